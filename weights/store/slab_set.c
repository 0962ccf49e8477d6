#include "weights/store/slab_set.h"

#include <stdlib.h>

void slab_set_fini(struct slab_set *set)
{
    free(set->slabs);
    free(set->offsets);
}

static int compare_slabs(const void *x, const void *y)
{
    uintptr_t a = (uintptr_t) * (struct slab *const *)x, b = (uintptr_t) * (struct slab *const *)y;

    return (a > b) - (a < b);
}

int slab_set_init(struct slab_set *out, const struct view *views, uint32_t n_tensors, struct err *e)
{
    struct slab_set set = {.slabs = calloc(n_tensors, sizeof *set.slabs),
                           .offsets = calloc(n_tensors, sizeof *set.offsets)};
    uint32_t n = 0;

    if (set.slabs == NULL || set.offsets == NULL) {
        slab_set_fini(&set);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the handles");
    }
    for (uint32_t i = 0; i < n_tensors; i++) /* adjacent tensors mostly share a slab */
        if (views[i].slab != NULL && (n == 0 || set.slabs[n - 1] != views[i].slab))
            set.slabs[n++] = views[i].slab;
    qsort(set.slabs, n, sizeof *set.slabs, compare_slabs);
    for (uint32_t i = 0; i < n; i++)
        if (set.n == 0 || set.slabs[set.n - 1] != set.slabs[i])
            set.slabs[set.n++] = set.slabs[i];
    *out = set;
    return 0;
}

uint32_t slab_set_index(const struct slab_set *set, struct slab *slab)
{
    struct slab *const *at = bsearch(&slab, set->slabs, set->n, sizeof *set->slabs, compare_slabs);

    return (uint32_t)(at - set->slabs);
}
