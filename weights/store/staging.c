/* A staging: the table of the next version, filled as tensors arrive.
 *
 * The next version is allocated at the start, so that missing tensors, and a GPU that is
 * lost, are the only reasons for which a commit can fail. */
#include "weights/store/store_priv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void staging_free(struct staging *g)
{
    for (uint32_t p = 0; p < STORE_DEVICES_MAX; p++)
        slab_unref(g->whole[p].slab);
    version_free(g->next);
    free(g->spread);
    free(g->arrived);
    free(g);
}

static int slab_of(struct slab_pool *pool, uint64_t nbytes, struct slab **out, struct err *e)
{
    return slab_pool_check(pool, nbytes, e) == 0 ? slab_new(out, pool, nbytes, e) : -1;
}

int store_scratch(struct store *s, uint64_t nbytes, struct slab **out, struct err *e)
{
    return slab_of(s->scratch, nbytes, out, e);
}

int staging_slab(struct staging *g, uint64_t nbytes, struct slab **out, struct err *e)
{
    return store_scratch(g->store, nbytes, out, e);
}

static uint64_t staging_aligned(uint64_t offset)
{
    return (offset + STAGING_ALIGN - 1) / STAGING_ALIGN * STAGING_ALIGN;
}

static struct staging_hole hole_remove(struct staging_whole *whole, uint32_t i)
{
    struct staging_hole hole = whole->holes[i];

    whole->holes[i] = whole->holes[--whole->n_holes];
    return hole;
}

/* Reuses memory that was given back: a chunk that is sent again gets the memory of its first
 * attempt, even if another chunk was placed after it. */
static bool hole_take(struct staging_whole *whole, uint64_t nbytes, uint64_t *at)
{
    for (uint32_t i = 0; i < whole->n_holes; i++) {
        struct staging_hole *hole = &whole->holes[i];
        uint64_t next = staging_aligned(hole->offset + nbytes), end = hole->offset + hole->nbytes;

        if (hole->nbytes < nbytes)
            continue;
        *at = hole->offset;
        if (next < end)
            *hole = (struct staging_hole){next, end - next};
        else
            (void)hole_remove(whole, i);
        return true;
    }
    return false;
}

/* If the hole is at the end, `end` moves back, also over holes that are then at the end. */
static void hole_add(struct staging_whole *whole, uint64_t offset, uint64_t nbytes)
{
    bool more = true;

    if (whole->end != offset + nbytes) {
        if (nbytes > 0 && whole->n_holes < STAGING_HOLES_MAX)
            whole->holes[whole->n_holes++] = (struct staging_hole){offset, nbytes};
        return;
    }
    whole->end = offset;
    while (more) {
        more = false;
        for (uint32_t i = 0; i < whole->n_holes && !more; i++) {
            more = staging_aligned(whole->holes[i].offset + whole->holes[i].nbytes) == whole->end;
            if (more)
                whole->end = hole_remove(whole, i).offset;
        }
    }
}

/* Is it part of a whole version's memory? On a GPU the pool has a slab of that size idle, also for
 * a partial update that brings most of a version. */
static bool in_whole(const struct staging *g, uint32_t place, uint64_t nbytes, uint64_t whole)
{
    if (g->whole[place].slab != NULL || (nbytes <= whole && nbytes >= whole - whole / 8))
        return true;
    return !g->partial && !(g->sharded && g->store->n_ranks > 1 && g->store->owners == NULL);
}

/* Takes memory from the slab that holds a whole version on a GPU. Returns 1 if there is no such
 * slab, because only a part is sent there, or if it is full, because aligned buckets waste more
 * than was planned. */
static int memory_in_whole(struct staging *g, uint32_t place, uint64_t nbytes,
                           struct staging_memory *out, struct err *e)
{
    struct staging_whole *whole = &g->whole[place < STORE_DEVICES_MAX ? place : 0];
    uint64_t at;

    if (store_device(g->store, place) == NULL ||
        !in_whole(g, place, nbytes, store_whole_nbytes(g->store, place)))
        return 1;
    if (whole->slab == NULL) {
        whole->nbytes = store_whole_nbytes(g->store, place);
        if (slab_of(store_slabs(g->store, place), whole->nbytes, &whole->slab, e) != 0)
            return -1;
    }
    if (!hole_take(whole, nbytes, &at)) {
        at = staging_aligned(whole->end);
        if (at > whole->nbytes || nbytes > whole->nbytes - at)
            return 1;
        whole->end = at + nbytes;
    }
    *out = (struct staging_memory){slab_ref(whole->slab), at, nbytes};
    return 0;
}

int staging_memory(struct staging *g, uint32_t place, uint64_t nbytes, struct staging_memory *out,
                   struct err *e)
{
    struct staging_memory room = {.nbytes = nbytes};
    int rc = memory_in_whole(g, place, nbytes, &room, e);

    if (rc > 0)
        rc = slab_of(store_slabs(g->store, place), nbytes, &room.slab, e);
    if (rc == 0)
        *out = room;
    else
        store_explain_room(g->store, place, e);
    return rc;
}

void staging_memory_return(struct staging *g, uint32_t place, struct staging_memory *room)
{
    struct staging_whole *whole = g != NULL && place < STORE_DEVICES_MAX ? &g->whole[place] : NULL;

    if (room->slab == NULL)
        return;
    if (whole != NULL && room->slab == whole->slab)
        hole_add(whole, room->offset, room->nbytes);
    slab_unref(room->slab);
    memset(room, 0, sizeof *room);
}

static const struct tensor_spec *staging_spec_of(const struct staging *g, uint32_t index)
{
    const struct tensor_list *tensor_list = g->store->model_spec->tensor_list;

    assert(index < tensor_list->n_tensors);
    return &tensor_list->tensors[index];
}

static bool *arrived_at(const struct staging *g, uint32_t place, uint32_t index)
{
    assert(place < g->store->n_places && index < g->next->n_tensors);
    return &g->arrived[(size_t)place * g->next->n_tensors + index];
}

const bool *staging_arrivals(const struct staging *g, uint32_t place)
{
    return arrived_at(g, place, 0);
}

static void count_arrival(struct staging *g, uint32_t place, uint32_t index)
{
    struct spread *spread = &g->spread[index];

    g->n_arrived += spread->n_places++ == 0;
    if (place < g->store->n_ranks)
        g->n_whole += ++spread->n_ranks == g->store->n_ranks;
}

static int staging_arrive(struct staging *g, uint32_t place, uint32_t index, struct err *e)
{
    bool *arrived = arrived_at(g, place, index);

    if (*arrived)
        return err_set(e, ERR_PRECONDITION, "/names", "'%.256s' already arrived in this update",
                       staging_spec_of(g, index)->name);
    *arrived = true;
    count_arrival(g, place, index);
    return 0;
}

int staging_view(struct staging *g, uint32_t place, uint32_t index, struct slab *slab,
                 uint64_t addr, struct err *e)
{
    struct view *view = version_view(g->next, place, index);

    assert(addr % dtype_nbytes(staging_spec_of(g, index)->dtype) == 0);
    if (staging_arrive(g, place, index, e) != 0)
        return -1;
    view->addr = addr;
    view->slab = slab_ref(slab);
    return 0;
}

void staging_views(struct staging *g, uint32_t place, const struct dst_slot *dst_slots, size_t n,
                   struct slab *slab, uint64_t addr)
{
    struct view *views = version_view(g->next, place, 0);
    bool *arrived = arrived_at(g, place, 0);

    for (size_t i = 0; i < n; i++) {
        uint32_t index = dst_slots[i].index;

        assert(index < g->next->n_tensors && !arrived[index]);
        arrived[index] = true;
        count_arrival(g, place, index);
        views[index].addr = addr + dst_slots[i].offset;
        views[index].slab = slab;
    }
    slab_ref_many(slab, n);
}

bool staging_has(const struct staging *g, uint32_t place, uint32_t index)
{
    return *arrived_at(g, place, index);
}

uint32_t staging_keeper(const struct staging *g, uint32_t rank, uint32_t index)
{
    if (g->store->owners == NULL || staging_has(g, rank, index))
        return rank;
    return g->store->owners[index];
}

/* If a tensor arrived in any place, the other places' bytes of it are of another version. */
uint64_t staging_effective(const struct staging *g, uint32_t place, uint32_t index)
{
    if (staging_has(g, place, index))
        return version_view(g->next, place, index)->addr;
    if (g->base == NULL || !g->partial || g->spread[index].n_places > 0)
        return 0;
    return version_view(g->base, place, index)->addr;
}

/* Is the tensor missing on a rank that needs it? A mirror receives all that ranks receive. */
static bool is_missing(const struct staging *g, uint32_t index)
{
    uint8_t n = g->spread[index].n_ranks;

    return g->sharded || g->store->owners != NULL ? n == 0 : n < g->store->n_ranks;
}

uint32_t staging_missing(const struct staging *g, uint32_t *out, uint32_t cap)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->next->n_tensors && g->n_whole < g->next->n_tensors; i++) {
        if (!is_missing(g, i))
            continue;
        if (n < cap)
            out[n] = i;
        n++;
    }
    return n;
}

uint32_t staging_uneven(const struct staging *g)
{
    if (g->sharded || g->store->owners != NULL || g->n_whole == g->n_arrived)
        return TENSOR_LIST_NO_TENSOR;
    for (uint32_t i = 0; i < g->next->n_tensors; i++)
        if (g->spread[i].n_places > 0 && is_missing(g, i))
            return i;
    return TENSOR_LIST_NO_TENSOR;
}
