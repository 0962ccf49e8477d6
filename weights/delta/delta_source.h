/* The source that a delta becomes: it makes the new bytes of tensors from the served version and
 * the parts that other sources bring. So all else of an update is as with any source of the first
 * kind: staging, checksums, proof, commit.
 *
 * The parts are read first, into scratch memory, and stay there until the source is closed. Then
 * each tensor is made a block at a time: the block of the base is read, and the changes of every
 * link are merged into it, one after the other. */
#ifndef BATON_WEIGHTS_DELTA_DELTA_SOURCE_H
#define BATON_WEIGHTS_DELTA_DELTA_SOURCE_H

#include "base/err.h"
#include "memory/device.h"
#include "weights/delta/delta.h"
#include "weights/source.h"
#include "weights/store/store.h"
#include "weights/update/update.h"

#include <stdint.h>

/* One delta of a chain. */
struct delta_link {
    struct source *source;  /* owned; of the parts, of any kind */
    struct chunk_rank sent; /* owned; their list, and checksums of them, or NULL */
    struct delta *delta;    /* owned; of that list */
};
void delta_link_fini(struct delta_link *l); /* accepts a zeroed one */

/* Looks at the tensors that each link makes, while they are in a cache. On the thread that uses the
 * source, no lock held; must not block. */
struct delta_check {
    /* The next bytes of tensor `i` of the result of link `link`: from its first to its last. */
    void (*bytes)(void *arg, uint32_t link, uint32_t i, const void *data, uint64_t nbytes);
    /* All of them came. Returns -1 if they are wrong: the fill then fails with that. */
    int (*made)(void *arg, uint32_t link, uint32_t i, struct err *e);
    void *arg; /* borrowed; outlives the source */
};

struct delta_source_cfg {
    struct store *store; /* borrowed; outlives the source */
    uint64_t base_serial;
    struct delta_link *links; /* [n_links], in the order in which they are applied: the first one to
                                 the base. Contents moved in, also on failure; the array is not */
    uint32_t n_links;
    const struct delta_check *check; /* copied; NULL: none */
    struct device *const *devices;   /* [n_devices] the ranks of the links' sources, borrowed; for
                                        sources of the second and third kind */
    uint32_t n_devices;
};

/* delta_source_new - @result  the tensors that the source makes: one reference, the caller's. Those
 * of all links, in the order in which they first appear.
 *
 * Its fill counts and reports the bytes that it makes; nbytes_done of the parts is not reported.
 * Errors of the first fill: those of the links' sources; ERR_PRECONDITION at /base_version (another
 * version is served than base_serial); ERR_CHECKSUM at /checksums/<i> (of a part); ERR_NO_STAGING
 * (no memory for the parts). Of each: those of delta_merge_*; ERR_CUDA; the check's.
 * Errors here: ERR_NO_MEMORY; ERR_BAD_REQUEST or ERR_TOO_LARGE of the joined list. */
int delta_source_new(struct source **out, struct tensor_list **result,
                     const struct delta_source_cfg *cfg, struct err *e);

/* delta_source_sent - what the first link was sent, and the place there of a part of each tensor
 * that it makes: for struct update_chunk. Borrowed. @at  NULL: with several links */
const struct chunk_rank *delta_source_sent(const struct source *s, const uint32_t **at);

#endif
