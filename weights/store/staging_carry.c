/* What a partial update did not bring is the base's, and shared with it a tensor keeps its whole
 * slab alive. Where that is less than half of a slab the next version gets copies instead: it costs
 * less than what was brought since. On a GPU more is copied, what frees most for its bytes first,
 * until a whole version fits beside this one, if there is room for two at all: so the next update
 * fits, whatever it brings. Host memory, most of all page-locked, takes too long to copy for
 * that. */
#include "weights/store/store_priv.h"

#include "base/clock.h"
#include "base/jobs/parallel.h"
#include "base/log.h"
#include "base/utf8.h"
#include "memory/device.h"
#include "weights/store/slab_set.h"

#include <stdlib.h>
#include <string.h>

enum {
    CARRY_ALIGN = 16,         /* what store_whole_nbytes has room for */
    CARRY_WAIT_US = 60000000, /* for copies within one GPU's memory: its work before them too */
    CARRY_GRANULE = 2 << 20   /* of a GPU's memory */
};

/* A slab of the base. */
struct carry_slab {
    uint64_t nbytes_kept;  /* not replaced; with alignment */
    uint64_t nbytes_taken; /* whole granules */
    bool copied;
};

struct carry {
    struct staging *g;
    uint32_t place;
    struct slab_set set;         /* of the base */
    struct carry_slab *slabs;    /* owned; [set.n] */
    struct device_piece *pieces; /* owned; [n] */
    struct device_made *made;    /* owned; [n]: their sums */
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

static int carry_init(struct carry *c, struct err *e)
{
    uint32_t n = c->g->next->n_tensors;

    if (slab_set_init(&c->set, version_view(c->g->base, c->place, 0), n, e) != 0)
        return -1;
    c->pieces = malloc(n * sizeof *c->pieces);
    c->made = malloc(n * sizeof *c->made);
    c->indexes = malloc(n * sizeof *c->indexes);
    c->slabs = calloc(c->set.n + 1, sizeof *c->slabs);
    if (c->pieces == NULL || c->made == NULL || c->indexes == NULL || c->slabs == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a list of %u tensors", (unsigned)n);
    return 0;
}

static void carry_fini(struct carry *c)
{
    slab_set_fini(&c->set);
    free(c->slabs);
    free(c->pieces);
    free(c->made);
    free(c->indexes);
}

/* How much of a GPU's memory the next update should find free; 0: whatever there is. */
static uint64_t room_wanted(const struct carry *c)
{
    struct store *s = c->g->store;
    struct slab_pool *pool = store_slabs(s, c->place);
    uint64_t whole = store_whole_nbytes(s, c->place) + CARRY_GRANULE;
    struct slab_stats st;

    slab_pool_stats(pool, &st);
    return store_device(s, c->place) != NULL && !s->in_host_memory &&
                   slab_pool_room(pool).nbytes / 2 + st.nbytes_live / 2 >= whole
               ? whole
               : 0;
}

/* Of two slabs, the one that frees more for each byte that is copied. */
static int by_share(const void *a, const void *b)
{
    const struct carry_slab *x = *(struct carry_slab *const *)a,
                            *y = *(struct carry_slab *const *)b;
    double kept_x = (double)x->nbytes_kept / (double)x->nbytes_taken;
    double kept_y = (double)y->nbytes_kept / (double)y->nbytes_taken;

    return (kept_x > kept_y) - (kept_x < kept_y);
}

static void choose_slabs(struct carry *c, struct carry_slab **order)
{
    bool is_device = store_device(c->g->store, c->place) != NULL;
    uint64_t granule = is_device ? CARRY_GRANULE : 1, wanted = room_wanted(c), nbytes_free = 0;

    if (wanted > 0)
        nbytes_free = slab_pool_room(store_slabs(c->g->store, c->place)).nbytes;
    for (uint32_t k = 0; k < c->set.n; k++) {
        c->slabs[k].nbytes_taken = (c->set.slabs[k]->nbytes + granule - 1) / granule * granule;
        order[k] = &c->slabs[k];
    }
    qsort(order, c->set.n, sizeof *order, by_share);
    for (uint32_t k = 0; k < c->set.n; k++) {
        struct carry_slab *s = order[k];

        s->copied = s->nbytes_kept < s->nbytes_taken / 2 ||
                    (nbytes_free < wanted && s->nbytes_kept < s->nbytes_taken);
        if (s->copied)
            nbytes_free += s->nbytes_taken - s->nbytes_kept;
    }
}

static void carry_add(struct carry *c, uint32_t i)
{
    c->nbytes = (c->nbytes + CARRY_ALIGN - 1) / CARRY_ALIGN * CARRY_ALIGN;
    c->indexes[c->n] = i;
    c->pieces[c->n++] = (struct device_piece){version_view(c->g->base, c->place, i)->addr,
                                              c->nbytes, carry_nbytes_of(c, i), DTYPE_NONE};
    c->nbytes += carry_nbytes_of(c, i);
}

/* Which tensors are copied? `dst` of a piece is from the start of their memory. */
static int carry_choose(struct carry *c, struct err *e)
{
    struct carry_slab **order;
    uint32_t n = c->g->next->n_tensors;

    if (carry_init(c, e) != 0)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        if (slab_kept(c, i) != NULL)
            c->slabs[slab_set_index(&c->set, slab_kept(c, i))].nbytes_kept += carry_nbytes_of(c,
                                                                                              i) +
                                                                              CARRY_ALIGN;
    order = calloc(c->set.n + 1, sizeof *order);
    if (order == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a list of %u tensors", (unsigned)n);
    choose_slabs(c, order);
    free(order);
    for (uint32_t i = 0; i < n; i++)
        if (slab_kept(c, i) != NULL && c->slabs[slab_set_index(&c->set, slab_kept(c, i))].copied)
            carry_add(c, i);
    return 0;
}

static int piece_copy(void *arg, unsigned thread, uint64_t i, struct err *e)
{
    const struct carry *c = arg;
    const struct device_piece *p = &c->pieces[i];

    (void)thread;
    (void)e;
    memcpy((void *)(uintptr_t)p->dst, (const void *)(uintptr_t)p->src, p->nbytes);
    c->made[i].sum = checksum_of((const void *)(uintptr_t)p->dst, p->nbytes);
    return 0;
}

/* Copied bytes must be those that the base is known to have. On a GPU without kernels they are not
 * summed. */
static int carry_prove(const struct carry *c, struct err *e)
{
    for (uint32_t k = 0; k < c->n; k++) {
        const struct sum_slot *known = &c->g->base->sums[c->indexes[k]];
        const char *name = c->g->store->model_spec->tensor_list->tensors[c->indexes[k]].name;

        if (atomic_load_explicit(&known->state, memory_order_acquire) == SUM_READY &&
            !checksum_equal(known->sum, c->made[k].sum))
            return err_set(e, ERR_CHECKSUM, "", "the bytes of '%.*s' have changed in memory",
                           utf8_cut_name(name), name);
    }
    return 0;
}

static int pieces_copy(struct carry *c, struct err *e)
{
    struct device *d = store_device(c->g->store, c->place);
    struct progress p = {.deadline_us = clock_after_us(CARRY_WAIT_US)};
    bool summed = d == NULL || device_has_kernels(d);
    struct device_batch *b;
    int rc;

    if (d == NULL) {
        rc = parallel_run(piece_copy, c, c->n, c->nbytes, "carry", e);
    } else {
        if (device_batch_new(d, &b, e) != 0)
            return -1;
        rc = device_batch_copy(b, c->pieces, c->n, summed ? c->made : NULL, e);
        if (rc == 0)
            rc = device_batch_wait(b, &p, e);
        device_batch_free(b);
    }
    return rc == 0 && summed ? carry_prove(c, e) : rc;
}

/* In the slab of a whole version, if what was brought is there; else no more than is needed. */
static int carry_memory(const struct carry *c, struct staging_memory *out, struct err *e)
{
    struct slab_pool *pool = store_slabs(c->g->store, c->place);

    if (c->place < STORE_DEVICES_MAX && c->g->whole[c->place].slab != NULL)
        return staging_memory(c->g, c->place, c->nbytes, out, e);
    *out = (struct staging_memory){.nbytes = c->nbytes};
    return slab_pool_check(pool, c->nbytes, e) == 0 ? slab_new(&out->slab, pool, c->nbytes, e) : -1;
}

static int carry_run(struct carry *c, struct err *e)
{
    struct staging_memory room;
    int rc;

    if (carry_choose(c, e) != 0)
        return -1;
    if (c->n == 0)
        return 0;
    if (carry_memory(c, &room, e) != 0)
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
        carry_fini(&c);
    }
    return rc;
}
