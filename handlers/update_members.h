/* Members of requests about updates that several kinds of operation say in the same words. */
#ifndef BATON_HANDLERS_UPDATE_MEMBERS_H
#define BATON_HANDLERS_UPDATE_MEMBERS_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UPDATE_ANONYMOUS_LEASE_S = 600 }; /* of sessions whose trainers do not know of leases */

/* update_id_check - of 1 to len_max bytes? Errors: ERR_BAD_REQUEST at `field`. */
int update_id_check(const char *id, size_t len_max, const char *field, struct err *e);

/* update_id_parse - the update_id member of a body, which must be there. @id  borrowed from it
 * Errors: ERR_BAD_REQUEST at /update_id. */
int update_id_parse(const char **id, const json_t *body, struct err *e);

/* update_source_of - the one source of bytes that the body names: the member.
 * @out  static. Errors: ERR_BAD_REQUEST: none, several, or a word for another one. */
int update_source_of(const char **out, const json_t *body, struct err *e);

/* mode_from_body - `mode` of a start: "staged", and no other. */
int mode_from_body(const json_t *body, struct err *e);

/* placement_from_body - `placement`: "replicated" or "sharded". @sharded unchanged when absent. */
int placement_from_body(bool *sharded, const json_t *body, struct err *e);

/* selector_from_body - `selector`: "all" or "target", which here are the same: there is no drafter.
 * @selector  static; unchanged when absent. Errors: ERR_BAD_REQUEST at /selector: a drafter's. */
int selector_from_body(const char **selector, const json_t *body, struct err *e);

/* label_check - a weight version label: 1..VERSION_LABEL_MAX bytes without control characters, and
 * none of an update that did not end (FLEET_DIRTY_MARKER). */
int label_check(const char *label, const char *field, struct err *e);

/* A request for another name of what is served. */
struct label_req {
    const char *label;  /* borrowed from the body */
    uint64_t if_serial; /* 0: whatever is served */
    bool abort_requests;
};

/* label_parse - @req  zeroed. Errors: ERR_BAD_REQUEST at the member. */
int label_parse(struct label_req *req, const json_t *body, struct err *e);

#endif
