/* The distinct slabs of a version in one place, and the offset of each in its allocation: what
 * another process needs to map. */
#ifndef BATON_WEIGHTS_STORE_SLAB_SET_H
#define BATON_WEIGHTS_STORE_SLAB_SET_H

#include "base/err.h"
#include "weights/store/store.h"

#include <stdint.h>

struct slab_set {
    struct slab *
        *slabs;        /* owned; [n], ascending by address of the struct; counted by the version */
    uint64_t *offsets; /* owned; [n], zeros until the caller writes them */
    uint32_t n;
};

/* slab_set_init - @views  [n_tensors] of one place. Errors: ERR_NO_MEMORY. */
int slab_set_init(struct slab_set *out, const struct view *views, uint32_t n_tensors,
                  struct err *e);
void slab_set_fini(struct slab_set *set); /* accepts a zeroed one */

/* slab_set_index - of a slab of one of the views. O(log n). */
uint32_t slab_set_index(const struct slab_set *set, struct slab *slab);

#endif
