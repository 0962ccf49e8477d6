/* A delta: what changed between a base version and the next, tensor by tensor.
 *
 * A delta travels as tensors whose names say what they are: a plain name is a whole tensor, and
 * "NAME#index", "NAME#value" and so on are the parts of the change of NAME (docs/delta.md has the
 * table). So every transport that carries tensors carries deltas, and a delta file is a safetensors
 * file. Other servers' forms become the same struct delta.
 *
 * Applying never needs to write to the base: it makes the new tensor's bytes elsewhere, a block at
 * a time. Bytes that are wrong in any way are an error, never a tensor. Pure: no threads, no locks,
 * no files. */
#ifndef BATON_WEIGHTS_DELTA_DELTA_H
#define BATON_WEIGHTS_DELTA_DELTA_H

#include "base/err.h"
#include "weights/model_spec.h"
#include "weights/tensor_list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DELTA_BLOCK_NBYTES = 32 << 10, /* of a tensor at once: it stays in the fastest cache */
    DELTA_WINDOW_LOG_MAX = 27      /* of a zstd frame: 128 MiB, as far as the zstd program reads
                                      without being told. Peers' frames have windows of 512 KiB */
};

/* How one tensor changed. Positions count units of `unit` bytes, from 0, in the tensor's bytes. */
enum delta_kind {
    DELTA_WHOLE,  /* all bytes */
    DELTA_XOR,    /* all bytes, as new xor old */
    DELTA_GAP,    /* of each changed unit: how many units lie between it and the one before (u16),
                     and new xor old. A unit whose xor is 0 bridges a longer gap */
    DELTA_BITMAP, /* a bit for each unit, lowest first, and new xor old of those that are set */
    DELTA_INDEX,  /* positions, ascending, and new values */
    DELTA_RANGE,  /* pairs of first position and count, ascending, and the new values of all */
    DELTA_KIND_COUNT
};

/* The bytes of one tensor of the transfer. */
struct delta_part {
    uint32_t i;      /* of the transfer's list; TENSOR_LIST_NO_TENSOR: the kind has no such part */
    uint64_t nbytes; /* once decompressed; 0 with `zstd`: the frame says */
    bool zstd;       /* one zstd frame, which states its content's size */
};

struct delta_tensor {
    enum delta_kind kind;
    uint32_t base;               /* of the model spec's list: whose bytes change; of WHOLE:
                                    which it is, or TENSOR_LIST_NO_TENSOR, an alias */
    uint32_t unit;               /* bytes: of an element (1, 2, 4 or 8), or 1 */
    uint32_t position_nbytes;    /* INDEX: 4 or 8, or 0: as the sizes of both parts say */
    bool patch;                  /* INDEX, of delta_of_patches: in any order until delta_sort, and
                                    named once in the request for both parts */
    struct delta_part positions; /* GAP, BITMAP, INDEX, RANGE (u64) */
    struct delta_part values;    /* all */
};

/* What one transfer brings. Immutable once made. */
struct delta {
    struct tensor_list *result;   /* owned: one reference; the tensors that it makes, in the order
                                     in which they first appear: named as in the transfer, shaped as
                                     the model spec has them */
    struct delta_tensor *tensors; /* owned; [result->n_tensors] */
};

/* delta_of_parts - read the names of a transfer.
 * @parts  the transfer's list, as sent. A name that the model spec knows is a whole tensor, as in
 *         any update; else what follows the last '#' says which part of which tensor it is
 * Errors: ERR_MISMATCH at /names/<i> (no such tensor), /dtypes/<i>, /shapes/<i>;
 *         ERR_BAD_REQUEST at /names/<i> (no such part, parts that do not belong together, a part
 *         without the other, a tensor twice, parts of a name that is fused or ignored);
 *         ERR_NO_MEMORY. The message names the tensor. */
int delta_of_parts(struct delta **out, const struct model_spec *m, const struct tensor_list *parts,
                   struct err *e);

/* delta_of_shapes - the same for parts with the names and dtypes of those that @like was made of;
 * their shapes alone are read. It shares the result of @like. Errors: as delta_of_parts. */
int delta_of_shapes(struct delta **out, const struct delta *like, const struct model_spec *m,
                    const struct tensor_list *parts, struct err *e);
void delta_free(struct delta *d); /* accepts NULL */

/* delta_of_patches - make parts of what vLLM's trainers name (backend sparse_nccl): for each tensor
 * so many positions (int32), which come in any order, and as many values.
 * @parts   a list (one reference) of positions and values, in the order in which they are sent
 * @named   the whole tensors, as the request has them
 * @counts  [named->n_tensors]
 * Errors: as model_spec_match; ERR_MISMATCH at /dtypes/<i> (the model keeps another dtype);
 *         ERR_BAD_REQUEST at /num_updates_list/<i> (more than there are elements), /names/<i>
 *         (fused, as in vLLM 0.28, or ignored; too large for int32); ERR_NO_MEMORY. */
int delta_of_patches(struct delta **out, struct tensor_list **parts, const struct model_spec *m,
                     const struct tensor_list *named, const uint64_t *counts, struct err *e);

/* delta_sort - put a patch into ascending order; a position that is there twice stays so, and the
 * merge refuses it.
 * @positions, @values  [n], of 4 and of `unit` bytes (at most 8); any alignment
 * Blocks: no. Needs no memory; one pass if they are in order. */
void delta_sort(void *positions, void *values, uint64_t n, uint32_t unit);

/* The bytes of a part, as they came. */
struct delta_bytes {
    const void *data; /* any alignment */
    uint64_t nbytes;
};

/* Makes new bytes of one tensor after the other, from the first byte of each to the last. It keeps
 * two blocks of memory and, once it has seen a frame, two contexts of zstd. One thread at a time.
 */
struct delta_merge;

int delta_merge_new(struct delta_merge **out, struct err *e); /* ERR_NO_MEMORY */
void delta_merge_free(struct delta_merge *m);                 /* accepts NULL */

/* delta_merge_begin - begin a tensor; one that was begun before is given up.
 * @t       the tensor as the model spec has it; borrowed to its end, and so are the parts' bytes
 * @positions, @values  of d->positions and d->values; the first is ignored where there is none
 * Errors: ERR_BAD_REQUEST at /names/<i> of the part: a frame that does not state its content's
 *         size, or needs a larger window than DELTA_WINDOW_LOG_MAX; sizes that the tensor cannot
 *         have, or that do not fit each other. ERR_NO_MEMORY. Nothing is decompressed yet. */
int delta_merge_begin(struct delta_merge *m, const struct tensor_spec *t,
                      const struct delta_tensor *d, struct delta_bytes positions,
                      struct delta_bytes values, struct err *e);

/* delta_merge_sizes - the bytes of both parts of the tensor that was begun, decompressed.
 * delta_merge_expand - instead of delta_merge_next and delta_merge_end: decompress both parts.
 * @positions, @values  room for that
 * Errors: ERR_BAD_REQUEST of a frame, as delta_merge_next and delta_merge_end. ERR_NO_MEMORY. */
void delta_merge_sizes(const struct delta_merge *m, uint64_t *positions, uint64_t *values);
int delta_merge_expand(struct delta_merge *m, void *positions, void *values, struct err *e);

/* delta_merge_next - make the next bytes.
 * @out     undefined after an error
 * @base    the same bytes in the base version; may be `out`; NULL for DELTA_WHOLE
 * @nbytes  a multiple of 64, unless these are the last
 * Blocks: no; runs at memory speed where little changed.
 * Errors: ERR_BAD_REQUEST at /names/<i> of the part, which names the tensor, the place of the
 *         position or value and what is wrong: a position out of range or not ascending, a bit
 *         beyond the tensor, a frame that is cut or damaged. ERR_NO_MEMORY. */
int delta_merge_next(struct delta_merge *m, void *out, const void *base, uint64_t nbytes,
                     struct err *e);

/* delta_merge_end - after the last byte: is anything left over? Errors: ERR_BAD_REQUEST, as
 * delta_merge_next: a position out of range, values without a position, bytes after a frame. */
int delta_merge_end(struct delta_merge *m, struct err *e);

/* delta_apply - all three for a whole tensor.
 * @base, @out  [t->nbytes]; as in delta_merge_next
 * Errors: of all three. */
int delta_apply(struct delta_merge *m, void *out, const struct tensor_spec *t,
                const struct delta_tensor *d, const void *base, struct delta_bytes positions,
                struct delta_bytes values, struct err *e);

#endif
