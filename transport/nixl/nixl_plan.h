/* Which memory of which agents has the bytes of each tensor: shards, whose boxes must tile the
 * tensor.
 *
 * A shard is one contiguous range of memory. What it has of its tensor is a box: elements [start,
 * start + size) in each dimension, row-major; a flat range of elements is a box of one dimension.
 * In the order of the plan (tensors in the order of their list, the shards of each by `start`) the
 * shards' bytes are one stream, as long as the packed tensors are, in which each tensor begins at
 * its own offset: so the stream is read in windows of any size, and a window is unpacked by the
 * copy that takes the bytes out of it. */
#ifndef BATON_TRANSPORT_NIXL_NIXL_PLAN_H
#define BATON_TRANSPORT_NIXL_NIXL_PLAN_H

#include "base/err.h"
#include "base/progress.h"
#include "weights/tensor_list.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    NIXL_SHARDS_MAX = 1 << 20,        /* of a request */
    NIXL_TENSOR_SHARDS_MAX = 1 << 10, /* of a tensor: each is compared with each */
    NIXL_AGENTS_MAX = 256
};

struct nixl_box {
    uint32_t ndim; /* 1, and the tensor's elements; or the tensor's own */
    uint64_t start[TENSOR_LIST_NDIM_MAX], size[TENSOR_LIST_NDIM_MAX];
};

/* The memory of a shard, as its agent has registered it. */
struct nixl_shard {
    uint32_t tensor;       /* index in the list */
    uint32_t index;        /* of the shard in the request, for messages */
    uint32_t agent;        /* index among the request's */
    bool vram;             /* a GPU's memory */
    uint64_t device, addr; /* device: the GPU's ordinal at the agent */
    struct nixl_box box;

    uint64_t at; /* in the stream; the plan's */
};

/* A range of the stream, where it is. */
struct nixl_slice {
    uint64_t addr, nbytes, device;
    uint64_t at; /* in the window */
    uint32_t agent;
    uint32_t mem;    /* NIXL_DRAM, NIXL_VRAM */
    uint32_t tensor; /* its first byte is of this one */
    uint32_t zero;
};

struct nixl_plan;

/* nixl_plan_new - begin a plan. @list  one reference more. Errors: ERR_NO_MEMORY. */
int nixl_plan_new(struct nixl_plan **out, struct tensor_list *list, struct err *e);
void nixl_plan_free(struct nixl_plan *plan); /* accepts NULL */

/* nixl_plan_add - add a shard, in any order.
 * Errors: ERR_MISMATCH (the box has no element or leaves the tensor), ERR_BAD_REQUEST (the range of
 *         memory wraps), ERR_TOO_LARGE (too many shards); all at `field`; ERR_NO_MEMORY. */
int nixl_plan_add(struct nixl_plan *plan, const struct nixl_shard *shard, const char *field,
                  struct err *e);

/* nixl_plan_finish - order the shards, and check that they tile each tensor exactly once.
 * Errors: ERR_MISMATCH at /shards/<i>: the message names the tensor, and two shards that overlap or
 *         the first element that is in none; ERR_TOO_LARGE (too many shards of a tensor). */
int nixl_plan_finish(struct nixl_plan *plan, struct err *e);

/* nixl_plan_nbytes - bytes of the stream. The plan is finished, here and below. */
uint64_t nixl_plan_nbytes(const struct nixl_plan *plan);

/* nixl_plan_slices - where bytes [from, to) of the stream are: a slice of each shard, since two
 * that are adjacent may be registered apart.
 * @out  malloc'ed [*n]; the caller's
 * Errors: ERR_NO_MEMORY. */
int nixl_plan_slices(const struct nixl_plan *plan, uint64_t from, uint64_t to,
                     struct nixl_slice **out, uint32_t *n, struct err *e);

/* nixl_plan_copy - copy bytes [from, to) of the stream into the packed tensors.
 * @src  of byte `from`
 * @dst  of the byte at offset `begin` of the packed tensors
 * @p    told of the tensor, and of what has come: pieces of it, or all of a tensor with its last
 *       byte, if one of its shards has more than one row
 * Threads: one at a time. Blocks: no. */
void nixl_plan_copy(const struct nixl_plan *plan, uint64_t from, uint64_t to, const uint8_t *src,
                    uint8_t *dst, uint64_t begin, struct progress *p);

#endif
