/* One load of an adapter, from the request to its answer. lora_open.c finds the source,
 * lora_read.c reads it, lora_reply.c answers, lora_load.c does the rest. */
#ifndef BATON_HANDLERS_LORA_LORA_LOAD_H
#define BATON_HANDLERS_LORA_LORA_LOAD_H

#include "base/err.h"
#include "base/jobs/workers.h"
#include "control/lora_loads.h"
#include "engine/lora/adapter_config.h"
#include "engine/lora/adapter_file.h"
#include "engine/lora/adapters.h"
#include "http/http_request.h"
#include "weights/update/update.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct app;

struct lora_load {
    struct lora_job job;
    struct app *app;        /* borrowed */
    struct http_request *x; /* consumed by the answer */
    char *name;             /* owned */
    struct adapters_options options;
    struct adapters_load *place; /* owned until put or cancelled */
    bool allow_partial;
    bool delta;
    struct adapter_ref base;         /* of a delta; pinned while it is read */
    uint64_t deadline_us, appear_us; /* as of adapter_wait */

    char *path;       /* owned; a directory; NULL: the tensors come from the chunk's source */
    int root;         /* owned; -1 without a path */
    const char *rest; /* of path, beneath root */
    struct adapter_sight sight;

    struct update_chunk *chunk; /* owned; tensor list, checksums and source; NULL with a path */
    char *delta_base;           /* owned; of a body, as in safetensors.h, and so is the next */
    struct made_sums made;
    struct adapter_config *config; /* owned; NULL with a path */
};

/* Properties of a loaded adapter, kept because the registry owns the adapter by then. */
struct lora_loaded {
    const char *name; /* borrowed, as `pinned`, from the load */
    bool pinned;
    struct adapter_report report;
    struct adapters_outcome outcome;
    char digest[ADAPTER_DIGEST_LEN + 1];
    uint32_t rank;
    uint64_t nbytes;
};

/* lora_open - find the source of the adapter that a JSON body names; nothing is read or received
 * yet.
 * Errors: ERR_BAD_REQUEST at the member; those of roots_open, adapter_config_parse,
 *         shm_source_open, ipc_from_body, nccl_from_body; ERR_NO_MEMORY. */
int lora_open(struct lora_load *l, const json_t *body, struct err *e);

/* lora_open_stream - the same for a body of tensors, whose head has been received.
 * Errors: ERR_BAD_REQUEST; those of safetensors_parse; ERR_NO_MEMORY. */
int lora_open_stream(struct lora_load *l, struct err *e);

/* lora_pool_of - the queue for a load whose source was opened. */
enum lora_pool lora_pool_of(const struct lora_load *l);

/* lora_read_directory, lora_read_tensors - make the adapter from its directory, or from the chunk.
 * @out, @report  written on success only; @report is the caller's to free
 * Threads: one of the loads'. Blocks: on the disk or the source, up to l->deadline_us.
 * Returns: 0; 1: the directory is not complete yet (only lora_read_directory); -1.
 * Errors: as adapter_file_look; as adapter_builder_new and host_copy_run, with fields of the
 *         request; ERR_CHECKSUM, ERR_TOO_LARGE, ERR_GONE (the client), ERR_CONFLICT (stopped). */
int lora_read_directory(struct lora_load *l, struct adapter **out, struct adapter_report *report,
                        struct err *e);
int lora_read_tensors(struct lora_load *l, struct adapter **out, struct adapter_report *report,
                      struct err *e);

/* lora_reply_loaded - answer the request; a static body if there is no memory for the full one. */
void lora_reply_loaded(struct lora_load *l, const struct lora_loaded *d);
void lora_log_loaded(const struct lora_load *l, const struct lora_loaded *d);
void lora_log_failed(const struct lora_load *l, const struct err *e);
void lora_warn_non_finite(const struct lora_load *l, const struct lora_loaded *d);

#endif
