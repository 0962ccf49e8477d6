/* Where vLLM's packed broadcasts end: which tensors travel in which.
 *
 * Nothing of it is on the wire; both sides apply the same rule to the same tensor list, and a
 * difference is a hang. The rule is vLLM's (packed_tensor.py): append the tensor, add its bytes,
 * and if the sum is *greater* than the bucket's, that was one broadcast. So the tensor that crosses
 * the bound is in the broadcast, and a broadcast may be as large as the bound and its largest
 * tensor together. */
#ifndef BATON_TRANSPORT_NCCL_PACKED_CHUNKS_H
#define BATON_TRANSPORT_NCCL_PACKED_CHUNKS_H

#include "base/err.h"
#include "weights/tensor_list.h"

#include <stdint.h>

#define PACKED_BUCKET_NBYTES_DEFAULT ((uint64_t)1 << 30) /* vLLM's packed_buffer_size_bytes */

/* One broadcast: tensors [first, first + n) of the tensor list, nbytes from the first one's offset
 * on. nbytes may be 0 (empty tensors at the end): NCCL drops such a broadcast, so it may be left
 * out.
 */
struct packed_chunk {
    uint32_t first, n; /* n >= 1 */
    uint64_t nbytes;
};

struct packed_chunks {
    uint32_t n;
    struct packed_chunk *chunks; /* owned, [n] */
    uint64_t nbytes_max;         /* of the largest: what a receive buffer must hold */
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

/* packed_chunks_each - one broadcast for each tensor: a sender that does not pack.
 * Errors: ERR_NO_MEMORY. */
int packed_chunks_each(struct packed_chunks *out, const struct tensor_list *tensor_list,
                       struct err *e);

void packed_chunks_fini(struct packed_chunks *c); /* frees and zeroes; accepts a zeroed one */

#endif
