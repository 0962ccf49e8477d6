/* What the files of a batch share: batch.c (the tensors), batch_metadata.c (what describes them).
 */
#ifndef BATON_HANDLERS_BATCH_BATCH_PRIV_H
#define BATON_HANDLERS_BATCH_BATCH_PRIV_H

#include "handlers/batch/batch.h"

struct batch_widths {
    uint64_t total, response; /* columns: W, and those at its end that have responses */
};

/* The versions that made tokens of a batch, each once, in the order of their first row. */
struct batch_versions {
    const struct gen_span **spans; /* owned; [n]: the first one of each version */
    uint32_t n;
};

/* batch_versions_collect - @v  zeroed. Returns -1 without memory; nothing is to be freed then. */
int batch_versions_collect(struct batch_versions *v, const struct batch *b);
void batch_versions_fini(struct batch_versions *v);

/* batch_versions_index - the index of a span's version, which has been collected. */
uint32_t batch_versions_index(const struct batch_versions *v, const struct gen_span *span);

/* batch_metadata_text - "__metadata__" (new) whose "baton.rollouts" is the text of `members`,
 * which is stolen; NULL, or without memory: NULL. */
json_t *batch_metadata_text(json_t *members);

/* batch_metadata - "__metadata__" (new); takes b->metadata over. NULL without memory. */
json_t *batch_metadata(const struct batch *b, const struct batch_widths *w,
                       const struct batch_versions *v);

#endif
