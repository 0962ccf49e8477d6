/* A staging: the table of the version to be, filled as tensors arrive.
 *
 * The next version exists from the start, so that a commit can fail for no other reason than
 * missing tensors. */
#include "weights/store_priv.h"

#include <assert.h>
#include <string.h>

enum { STAGING_SIDE_NBYTES = 1 << 20, STAGING_SIDE_ALIGN = 64 };

bool staging_in_place(const struct staging *g)
{
    return g->in_place;
}

bool staging_dirty(const struct staging *g)
{
    return g->dirty;
}

int staging_slab(struct staging *g, uint64_t nbytes, struct slab **out, struct err *e)
{
    if (slab_pool_check(g->store->slabs, nbytes, e) != 0)
        return -1;
    return slab_new(out, g->store->slabs, nbytes, e);
}

static const struct tensor_spec *spec_of(const struct staging *g, uint32_t index)
{
    const struct plan *plan = g->store->manifest->plan;

    assert(index < plan->n_tensors);
    return &plan->tensors[index];
}

static int arrive(struct staging *g, uint32_t index, struct err *e)
{
    if (g->arrived[index])
        return err_set(e, ERR_CONFLICT, "/names", "'%.256s' already arrived in this update",
                       spec_of(g, index)->name);
    g->arrived[index] = true;
    g->n_arrived++;
    return 0;
}

/* Room in a slab that misaligned tensors share: small ones would waste a page each. */
static int side_room(struct staging *g, uint64_t nbytes, void **out, struct err *e)
{
    uint64_t total = g->store->manifest->plan->nbytes;
    uint64_t at = (g->side_nbytes_used + STAGING_SIDE_ALIGN - 1) / STAGING_SIDE_ALIGN *
                  STAGING_SIDE_ALIGN;

    if (g->side == NULL || at > g->side->nbytes || nbytes > g->side->nbytes - at) {
        uint64_t want = total < STAGING_SIDE_NBYTES ? total : STAGING_SIDE_NBYTES;
        struct slab *side = NULL;

        if (staging_slab(g, nbytes > want ? nbytes : want, &side, e) != 0)
            return -1;
        slab_unref(g->side);
        g->side = side;
        at = 0;
    }
    *out = (char *)g->side->base + at;
    g->side_nbytes_used = at + nbytes;
    return 0;
}

int staging_view(struct staging *g, uint32_t index, struct slab *slab, const void *data,
                 struct err *e)
{
    const struct tensor_spec *t = spec_of(g, index);
    struct view *view = &g->next->views[index];
    void *moved;

    assert(!g->in_place);
    if (g->arrived[index])
        return arrive(g, index, e);
    if ((uintptr_t)data % dtype_nbytes(t->dtype) != 0) {
        if (side_room(g, t->nbytes, &moved, e) != 0)
            return -1;
        memcpy(moved, data, t->nbytes);
        data = moved;
        slab = g->side;
    }
    view->data = data;
    view->slab = slab_ref(slab);
    return arrive(g, index, e);
}

void staging_forget(struct staging *g, uint32_t index)
{
    struct view *view = &g->next->views[index];

    assert(!g->in_place && g->arrived[index]);
    slab_unref(view->slab);
    memset(view, 0, sizeof *view);
    g->arrived[index] = false;
    g->n_arrived--;
}

char *staging_place(const struct staging *g, uint32_t index)
{
    assert(g->in_place && index < g->base->n_tensors);
    /* Nothing is pinned: the slab is ours to write. */
    return (char *)(uintptr_t)g->base->views[index].data;
}

void *staging_target(struct staging *g, uint32_t index)
{
    g->dirty = true;
    return staging_place(g, index);
}

int staging_arrived(struct staging *g, uint32_t index, struct err *e)
{
    assert(g->in_place && index < g->base->n_tensors);
    return arrive(g, index, e);
}

bool staging_has(const struct staging *g, uint32_t index)
{
    assert(index < g->next->n_tensors);
    return g->arrived[index];
}

const void *staging_data(const struct staging *g, uint32_t index)
{
    assert(staging_has(g, index));
    return g->in_place ? g->base->views[index].data : g->next->views[index].data;
}

const void *staging_effective(const struct staging *g, uint32_t index)
{
    if (staging_has(g, index))
        return staging_data(g, index);
    return g->base != NULL && g->partial ? g->base->views[index].data : NULL;
}

uint32_t staging_missing(const struct staging *g, uint32_t *out, uint32_t cap)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->next->n_tensors; i++) {
        if (g->arrived[i])
            continue;
        if (n < cap)
            out[n] = i;
        n++;
    }
    return n;
}
