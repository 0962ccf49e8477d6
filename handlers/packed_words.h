/* How tensors of a group are packed, as far as a request says it: the same members when the group
 * is joined, where they hold for all its updates, and in an update. */
#ifndef BATON_HANDLERS_PACKED_WORDS_H
#define BATON_HANDLERS_PACKED_WORDS_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct packed_words {
    bool said, packed;
    uint64_t bucket_nbytes;   /* 0: not given */
    const char *bucket_field; /* static: "/bucket_nbytes" or its other name */
};

/* packed_parse - `packed`, and `bucket_nbytes` or `packed_buffer_size_bytes`.
 * Errors: ERR_BAD_REQUEST at the member that is wrong. */
int packed_parse(struct packed_words *out, const json_t *body, struct err *e);

/* packed_parse_join - the same of a request that joins a group, where all has to be said at once;
 * `packed_num_buffers` too, which makes no difference to what travels. */
int packed_parse_join(struct packed_words *out, const json_t *body, struct err *e);

#endif
