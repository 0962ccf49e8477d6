/* How tensors of a group are packed, as far as a request says it: the same members when the group
 * is joined, where they hold for all its updates, and in an update. */
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

/* packing_parse_join - the same of a request that joins a group, where all has to be said at once;
 * `packed_num_buffers` too, which makes no difference to what travels. */
int packing_parse_join(struct packing_params *out, const json_t *body, struct err *e);

#endif
