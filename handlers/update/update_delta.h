/* Requests whose tensors are parts of a delta. */
#ifndef BATON_HANDLERS_UPDATE_UPDATE_DELTA_H
#define BATON_HANDLERS_UPDATE_UPDATE_DELTA_H

#include "base/err.h"
#include "handlers/app.h"
#include "handlers/rows/update_request.h"
#include "weights/safetensors.h"
#include "weights/update/update.h"

/* What is known of a request before its tensors are. Zeroed: it is no delta. */
struct delta_request {
    struct update_base base; /* of its update */
    bool from_path;
    char *file_base; /* owned; the base_version that the file or the body says in its metadata;
                        NULL: it is no delta file */
    struct made_sums made; /* owned; of the tensors that it makes, as its metadata says */
    struct delta *patches; /* owned; what the parts are, if their names do not say it; or NULL */
};

/* delta_request_begin - find what the update of a chunk builds on: for a whole update as the
 * request says, which is then also in c->base; else as the session's start said.
 * With patches the update becomes a delta, if it is none yet.
 * @out  zeroed
 * Errors: ERR_PRECONDITION at /base_version, /base_update_id; ERR_NOT_FOUND (no such update); with
 *         patches those of weight_transfer_chain and updates_build_on, and ERR_CONFLICT (no update
 *         was started). */
int delta_request_begin(struct delta_request *out, struct update_chunk *c,
                        const struct app_weights *weights, const struct update_request *w,
                        struct err *e);
void delta_request_fini(struct delta_request *r);

/* delta_request_proves - is the update of a finish, if patches made it, all that its trainer sent?
 * If not, it is aborted. Errors: those of weight_transfer_chain. */
int delta_request_proves(const struct app_weights *weights, const char *update_id, struct err *e);

/* delta_request_apply - make the parts that a chunk brings the tensors that come of them, with the
 * checksums that the file says of those. Does nothing if neither the update nor the file is one.
 * Errors: ERR_BAD_REQUEST (only one of the update and the file is a delta; each GPU gets a list of
 * its own; parts as in delta_of_parts), ERR_CONFLICT (whole tensors in an update of patches),
 * ERR_PRECONDITION (the file builds on another version), ERR_MISMATCH, ERR_NO_MEMORY. */
int delta_request_apply(struct delta_request *r, struct update_chunk *c,
                        const struct app_weights *weights, struct err *e);

#endif
