/* The source that changes become: it makes the new bytes of tensors from the served version, and
 * from the parts that other sources bring or the files of a pull. So all else of an update is as
 * with any source of the first kind: staging, checksums, proof, commit.
 *
 * Parts are read first, into scratch memory, and stay there until the source is closed; a pull's
 * change is read when it is its turn. Each tensor is made a block at a time: the block of the base
 * is read, and its change is merged into it. A few threads make tensors of a large fill at once. */
#ifndef BATON_WEIGHTS_DELTA_DELTA_SOURCE_H
#define BATON_WEIGHTS_DELTA_DELTA_SOURCE_H

#include "base/err.h"
#include "memory/device.h"
#include "weights/delta/delta.h"
#include "weights/source.h"
#include "weights/store/store.h"
#include "weights/update/update.h"

#include <stdint.h>

struct list_cache;

/* A delta, and where its parts are; or a pull. */
struct delta_link {
    struct pull *pull;      /* owned; NULL: those below */
    struct source *source;  /* owned; of the parts, of any kind */
    struct chunk_rank sent; /* owned; their list, and checksums of them, or NULL */
    struct delta *delta;    /* owned; of that list */
};
void delta_link_fini(struct delta_link *l); /* accepts a zeroed one */

/* delta_of_list - delta_of_parts; but a list that is cached, or has the names of one that is, is
 * not read name by name again, and the layout of the result is cached too.
 * @lists  of that model spec, or NULL */
int delta_of_list(struct delta **out, struct list_cache *lists, const struct model_spec *m,
                  const struct tensor_list *parts, struct err *e);

struct delta_source_cfg {
    struct store *store; /* borrowed; outlives the source */
    uint64_t base_serial;
    struct device *const *devices; /* [n_devices] the ranks of the parts' source, borrowed; for
                                      sources of the second and third kind */
    uint32_t n_devices;
};

/* delta_source_new - @link  moved in, also on failure
 * @result  the tensors that the source makes: one reference, the caller's
 *
 * Its fill counts and reports the bytes that it makes; nbytes_done of the parts is not reported.
 * Errors of the first fill: those of the parts' source; ERR_PRECONDITION at /base_version (another
 * version is served than base_serial); ERR_CHECKSUM at /checksums/<i> (of a part); ERR_NO_STAGING
 * (no memory for the parts). Of each: those of delta_merge_*; ERR_CUDA.
 * Errors here: ERR_NO_MEMORY. */
int delta_source_new(struct source **out, struct tensor_list **result, struct delta_link *link,
                     const struct delta_source_cfg *cfg, struct err *e);

/* delta_source_sent - what was sent, and the place there of a part of each tensor that it makes:
 * for struct update_chunk. Borrowed. */
const struct chunk_rank *delta_source_sent(const struct source *s, const uint32_t **at);

#endif
