/* Reference-counted names of versions. */
#include "weights/version_label.h"

#include <stdlib.h>

struct version_label *version_label_new(void)
{
    struct version_label *l = calloc(1, sizeof *l);

    if (l != NULL)
        atomic_init(&l->refs, 1);
    return l;
}

struct version_label *version_label_ref(struct version_label *l)
{
    /* Relaxed: the caller has a reference, so nothing is being freed. */
    atomic_fetch_add_explicit(&l->refs, 1, memory_order_relaxed);
    return l;
}

void version_label_unref(struct version_label *l)
{
    if (l != NULL && atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) == 1)
        free(l);
}
