/* One load of an adapter, from the request to its answer, as lora_load.c and lora_open.c share it.
 */
#ifndef BATON_HANDLERS_LORA_LORA_LOAD_H
#define BATON_HANDLERS_LORA_LORA_LOAD_H

#include "base/err.h"
#include "base/workers.h"
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
    struct http_request *x; /* its reference; given up by the answer */
    char *name;             /* owned */
    struct adapters_options options;
    struct adapters_load *place; /* owned until put or cancelled */
    bool allow_partial;
    uint64_t deadline_us, appear_us; /* as of adapter_wait */

    char *path;       /* owned; a directory; NULL: tensors come by the chunk's source */
    int root;         /* owned; -1 without a path */
    const char *rest; /* of path, beneath root */
    struct adapter_sight sight;

    struct update_chunk *chunk;    /* owned; tensor list, checksums and source; NULL with a path */
    struct adapter_config *config; /* owned; NULL with a path */
};

/* lora_open - where a JSON body says that the adapter is; nothing of it is read or received yet.
 * Errors: ERR_BAD_REQUEST at the member that is wrong; roots_open's, adapter_config_parse's,
 *         shm_source_open's, ipc_from_body's, nccl_from_body's; ERR_NO_MEMORY. */
int lora_open(struct lora_load *l, const json_t *body, struct err *e);

/* lora_open_stream - the same of a body that is tensors, whose head has come.
 * Errors: ERR_BAD_REQUEST, safetensors_parse's, ERR_NO_MEMORY. */
int lora_open_stream(struct lora_load *l, struct err *e);

/* lora_lane_of - where a load that was opened belongs. */
enum lora_lane lora_lane_of(const struct lora_load *l);

#endif
