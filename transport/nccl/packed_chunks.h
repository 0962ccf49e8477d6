/* The boundaries of vLLM's packed broadcasts: which tensors each broadcast contains.
 *
 * The boundaries are not sent: both sides apply the same rule to the same tensor list, and a
 * difference makes both wait without end. The rule is vLLM's (packed_tensor.py): append the
 * tensor, add its bytes, and if the sum is *greater* than the bucket's size, the broadcast is
 * complete. So the tensor that crosses the limit is part of the broadcast, and a broadcast may be
 * as large as the limit and the largest tensor together. */
#ifndef BATON_TRANSPORT_NCCL_PACKED_CHUNKS_H
#define BATON_TRANSPORT_NCCL_PACKED_CHUNKS_H

#include "base/err.h"
#include "weights/tensor_list.h"

#include <stdint.h>

#define PACKED_BUCKET_NBYTES_DEFAULT ((uint64_t)1 << 30) /* vLLM's packed_buffer_size_bytes */

/* One broadcast: tensors [first, first + n) of the tensor list, nbytes from the first one's offset
 * on. nbytes may be 0 (empty tensors at the end): NCCL drops such a broadcast, so it may be
 * omitted. */
struct packed_chunk {
    uint32_t first, n; /* n >= 1 */
    uint64_t nbytes;
};

struct packed_chunks {
    uint32_t n;
    struct packed_chunk *chunks; /* owned, [n] */
    uint64_t nbytes_max;         /* size of the largest chunk: the least size of a receive buffer */
};

/* packed_chunks_init - cut a tensor list as the sender does.
 * @out           written on success only
 * @bucket_nbytes  packed_buffer_size_bytes, above 0
 * @field         the member's JSON pointer
 *
 * Threads: any.
 * Errors: ERR_BAD_REQUEST at `field` (0); ERR_NO_MEMORY. */
int packed_chunks_init(struct packed_chunks *out, const struct tensor_list *tensor_list,
                       uint64_t bucket_nbytes, const char *field, struct err *e);

/* packed_chunks_each - one broadcast for each tensor, for a sender that does not pack.
 * Errors: ERR_NO_MEMORY. */
int packed_chunks_each(struct packed_chunks *out, const struct tensor_list *tensor_list,
                       struct err *e);

void packed_chunks_fini(struct packed_chunks *c); /* frees and zeroes; accepts a zeroed one */

#endif
