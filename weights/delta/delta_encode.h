/* Finding what changed in a tensor, and the shortest way to say it: the sender's side of
 * weights/delta/delta.h. Pure: no threads, no locks, no files. */
#ifndef BATON_WEIGHTS_DELTA_DELTA_ENCODE_H
#define BATON_WEIGHTS_DELTA_DELTA_ENCODE_H

#include "base/err.h"
#include "weights/delta/delta.h"
#include "weights/tensor_list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DELTA_ENCODING_PARTS_MAX = 2,
    DELTA_PART_NBYTES_HEAD = 96 /* of a part in the head of a file, but for its tensor's name: what
                                   a part costs besides its bytes */
};

/* One tensor of a delta file or of a transfer. */
struct delta_encoding_part {
    const char *suffix; /* what follows the tensor's name: "#gap", "#xor.zst", "" (static) */
    enum dtype dtype;
    uint32_t ndim;
    uint64_t shape[TENSOR_LIST_NDIM_MAX];
    const void *data; /* borrowed */
    uint64_t nbytes;
};

/* How one tensor changed. */
struct delta_encoding {
    enum delta_kind kind;
    uint64_t n_changed; /* elements */
    uint32_t n_parts;   /* 0: nothing changed */
    struct delta_encoding_part parts[DELTA_ENCODING_PARTS_MAX];
};

/* Keeps its memory, as much as the largest tensor needs, from one tensor to the next. */
struct delta_encoder;

/* delta_encoder_new - @zstd  compress parts where that makes them smaller. Errors: ERR_NO_MEMORY.
 */
int delta_encoder_new(struct delta_encoder **out, bool zstd, struct err *e);
void delta_encoder_free(struct delta_encoder *c); /* accepts NULL */

/* delta_encode - compare two versions of a tensor and encode the difference by whatever takes the
 * fewest bytes: gaps, a bitmap, an index, a dense xor, or the whole tensor where nothing saves.
 * @out           its data are the encoder's until its next call, or `bytes`
 * @base, @bytes  [t->nbytes], old and new; unaligned
 *
 * Threads: one at a time for each encoder. Blocks: no; finding the difference takes little longer
 *          than reading both, zstd 2 GB or more of tensor a second where 1 % changed.
 * Errors:  ERR_NO_MEMORY; *out is untouched. */
int delta_encode(struct delta_encoding *out, struct delta_encoder *c, const struct tensor_spec *t,
                 const void *base, const void *bytes, struct err *e);

#endif
