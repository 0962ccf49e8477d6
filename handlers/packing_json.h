/* The members of a request that describe how a group's broadcasts are packed. A request that
 * joins a group has them for all its updates; an update may have them too. */
#ifndef BATON_HANDLERS_PACKING_JSON_H
#define BATON_HANDLERS_PACKING_JSON_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct packing_params {
    bool packed_given, packed;
    uint64_t bucket_nbytes;   /* 0: not given */
    const char *bucket_field; /* static: "/bucket_nbytes" or its other name */
};

/* packing_parse - `packed`, and `bucket_nbytes` or `packed_buffer_size_bytes`.
 * Errors: ERR_BAD_REQUEST at the member that is wrong. */
int packing_parse(struct packing_params *out, const json_t *body, struct err *e);

/* packing_parse_join - packing_parse for a request that joins a group: a bucket size needs
 * `packed`. It also accepts `packed_num_buffers`, which has no effect on what is sent. */
int packing_parse_join(struct packing_params *out, const json_t *body, struct err *e);

#endif
