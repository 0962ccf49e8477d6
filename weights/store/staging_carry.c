/* What a partial update did not bring is the base's, and shared with it a tensor keeps its whole
 * slab alive. Where that is less than half of a slab the next version gets copies instead, so that
 * with room for two versions the next update fits too: the copies and what was brought take as much
 * as the version, and what is shared leaves room for as much again. */
#include "weights/store/store_priv.h"

#include "base/clock.h"
#include "base/jobs/parallel.h"
#include "base/log.h"
#include "memory/device.h"
#include "weights/store/slab_set.h"

#include <stdlib.h>
#include <string.h>

enum { CARRY_ALIGN = 16 }; /* what store_whole_nbytes has room for */

struct carry {
    struct staging *g;
    uint32_t place;
    struct slab_set slabs;       /* of the base; an offset: how much of it is not replaced */
    struct device_piece *pieces; /* owned; [n] */
    uint32_t *indexes;           /* owned; [n] tensors */
    uint32_t n;
    uint64_t nbytes; /* with alignment */
};

static uint64_t carry_nbytes_of(const struct carry *c, uint32_t index)
{
    return c->g->store->model_spec->tensor_list->tensors[index].nbytes;
}

/* The base's slab of a tensor that the next version takes from there, or NULL. */
static struct slab *slab_kept(const struct carry *c, uint32_t index)
{
    if (c->g->spread[index].n_places > 0 || version_view(c->g->next, c->place, index)->slab != NULL)
        return NULL;
    return version_view(c->g->base, c->place, index)->slab;
}

/* Which tensors are copied? `dst` of a piece is from the start of their memory. */
static int carry_choose(struct carry *c, struct err *e)
{
    uint32_t n = c->g->next->n_tensors;

    c->pieces = malloc(n * sizeof *c->pieces);
    c->indexes = malloc(n * sizeof *c->indexes);
    if (c->pieces == NULL || c->indexes == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a list of %u tensors", (unsigned)n);
    if (slab_set_init(&c->slabs, version_view(c->g->base, c->place, 0), n, e) != 0)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        if (slab_kept(c, i) != NULL)
            c->slabs.offsets[slab_set_index(&c->slabs, slab_kept(c, i))] += carry_nbytes_of(c, i);
    for (uint32_t i = 0; i < n; i++) {
        struct slab *slab = slab_kept(c, i);

        if (slab == NULL || c->slabs.offsets[slab_set_index(&c->slabs, slab)] >= slab->nbytes / 2)
            continue;
        c->nbytes = (c->nbytes + CARRY_ALIGN - 1) / CARRY_ALIGN * CARRY_ALIGN;
        c->indexes[c->n] = i;
        c->pieces[c->n++] = (struct device_piece){version_view(c->g->base, c->place, i)->addr,
                                                  c->nbytes, carry_nbytes_of(c, i), DTYPE_NONE};
        c->nbytes += carry_nbytes_of(c, i);
    }
    return 0;
}

static int piece_copy(void *arg, unsigned thread, uint64_t i, struct err *e)
{
    const struct carry *c = arg;
    const struct device_piece *p = &c->pieces[i];

    (void)thread;
    return place_write(c->g->store, c->place, p->dst, (const void *)(uintptr_t)p->src, p->nbytes,
                       e);
}

static int pieces_copy(struct carry *c, struct err *e)
{
    struct device *d = store_device(c->g->store, c->place);
    struct progress p = {.deadline_us = CLOCK_NEVER};
    struct device_batch *b;
    int rc;

    if (d == NULL)
        return parallel_run(piece_copy, c, c->n, c->nbytes, "carry", e);
    if (device_batch_new(d, &b, e) != 0)
        return -1;
    rc = device_batch_copy(b, c->pieces, c->n, NULL, e);
    if (rc == 0)
        rc = device_batch_wait(b, &p, e);
    device_batch_free(b);
    return rc;
}

static int carry_run(struct carry *c, struct err *e)
{
    struct staging_memory room;
    int rc;

    if (carry_choose(c, e) != 0)
        return -1;
    if (c->n == 0)
        return 0;
    if (staging_memory(c->g, c->place, c->nbytes, &room, e) != 0)
        return -1;
    for (uint32_t k = 0; k < c->n; k++)
        c->pieces[k].dst += room.slab->addr + room.offset;
    rc = pieces_copy(c, e);
    for (uint32_t k = 0; k < c->n && rc == 0; k++) {
        struct view *view = version_view(c->g->next, c->place, c->indexes[k]);

        *view = *version_view(c->g->base, c->place, c->indexes[k]);
        view->addr = c->pieces[k].dst;
        view->slab = slab_ref(room.slab);
    }
    if (rc == 0)
        slab_unref(room.slab);
    else
        staging_memory_return(c->g, c->place, &room);
    return rc;
}

/* Without a copy the tensors are shared; on a GPU that is lost nothing can be served. */
static int carry_failed(const struct staging *g, uint32_t place, const struct err *why,
                        struct err *e)
{
    struct device *d = store_device(g->store, place);

    log_line(LOG_WARN, "store.carry",
             "what this update did not bring is not copied on %s, and keeps the memory of older "
             "versions: %s",
             store_place_name(g->store, place), why->msg);
    return d != NULL ? device_check(d, e) : 0;
}

int staging_carry(struct staging *g, struct err *e)
{
    int rc = 0;

    for (uint32_t p = 0; g->base != NULL && p < g->next->n_places && rc == 0; p++) {
        struct carry c = {.g = g, .place = p};
        struct err why = {0};

        if (carry_run(&c, &why) != 0)
            rc = carry_failed(g, p, &why, e);
        slab_set_fini(&c.slabs);
        free(c.pieces);
        free(c.indexes);
    }
    return rc;
}
