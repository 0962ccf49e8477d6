/* Slabs: reference-counted blocks of memory, kept for the next update when their last owner
 * releases them.
 *
 * Only a slab of exactly the same size is used again: updates of one model repeat their buckets,
 * and first-fit would slowly increase the memory of each version. A new slab replaces at least as
 * many idle bytes, so live + idle never passes what was live at the peak. */
#include "memory/slab.h"

#include "base/mtx.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { SLAB_PAGE_NBYTES = 4096, SLAB_HUGE_NBYTES = 2 << 20, SLAB_GRANULE_MAX = 1 << 30 };

struct slab_owned {
    struct slab slab; /* first: the part that callers see */
    struct slab_pool *pool;
    uint64_t nbytes_taken;   /* whole granules */
    atomic_uint refs;        /* relaxed up, acq_rel down: the last one owns it alone */
    atomic_bool quarantined; /* relaxed: ordered by refs */
    struct slab_owned *next; /* of the idle list; oldest first */
};

struct slab_pool {
    struct mtx lock; /* rank MTX_LEAF; guards down to the blank line */
    struct slab_owned *idle, **idle_tail;
    uint64_t nbytes_live, nbytes_idle;
    uint64_t n_live;

    uint64_t nbytes_max, nbytes_idle_max; /* immutable, and so is the next */
    struct slab_memory memory;
};

static int slab_refuse(uint64_t needed, uint64_t available, const char *bound, struct err *e)
{
    return err_set(e, ERR_NO_STAGING, "",
                   "%llu bytes of memory are needed for weights, %llu are available (bound: %s)",
                   (unsigned long long)needed, (unsigned long long)available, bound);
}

/* Large ones start at a huge page, so that all but their tail can be huge. */
static int pages_take(void *arg, uint64_t nbytes, uint64_t *addr, struct err *e)
{
    uint64_t slack = nbytes >= SLAB_HUGE_NBYTES ? SLAB_HUGE_NBYTES : 0;
    char *base = mmap(NULL, nbytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                      0);

    (void)arg;
    if (base == MAP_FAILED)
        return slab_refuse(nbytes, 0, "the system's overcommit limit", e);
    if (slack > 0) {
        uint64_t head = (SLAB_HUGE_NBYTES - (uintptr_t)base % SLAB_HUGE_NBYTES) % SLAB_HUGE_NBYTES;

        if (head > 0)
            (void)munmap(base, head);
        base += head;
        if (slack > head)
            (void)munmap(base + nbytes, slack - head);
        (void)madvise(base, nbytes, MADV_HUGEPAGE); /* a wish: fails where it is switched off */
    }
    (void)madvise(base, nbytes, MADV_DONTDUMP);
    *addr = (uintptr_t)base;
    return 0;
}

static void pages_give(void *arg, uint64_t addr, uint64_t nbytes)
{
    int rc = munmap((void *)(uintptr_t)addr, nbytes);

    assert(rc == 0);
    (void)rc;
    (void)arg;
}

static struct memory_room pages_room(void *arg)
{
    (void)arg;
    return memory_room("");
}

static const struct slab_memory ordinary = {
    .take = pages_take,
    .give = pages_give,
    .room = pages_room,
    .granule_nbytes = SLAB_PAGE_NBYTES,
};

int slab_pool_new(struct slab_pool **out, const struct slab_memory *memory, uint64_t nbytes_max,
                  uint64_t nbytes_idle, struct err *e)
{
    struct slab_pool *p = calloc(1, sizeof *p);

    if (p == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the slab pool");
    mtx_init(&p->lock, MTX_LEAF);
    p->idle_tail = &p->idle;
    p->memory = memory != NULL ? *memory : ordinary;
    assert(p->memory.take != NULL && p->memory.give != NULL && p->memory.room != NULL);
    assert(p->memory.granule_nbytes > 0 && p->memory.granule_nbytes <= SLAB_GRANULE_MAX);
    p->nbytes_max = nbytes_max;
    p->nbytes_idle_max = nbytes_idle;
    *out = p;
    return 0;
}

static void slabs_give(const struct slab_memory *memory, struct slab_owned *s)
{
    while (s != NULL) {
        struct slab_owned *next = s->next;

        memory->give(memory->arg, s->slab.addr, s->nbytes_taken);
        free(s);
        s = next;
    }
}

uint64_t slab_pool_trim(struct slab_pool *p)
{
    struct slab_owned *idle;
    uint64_t nbytes;

    mtx_lock(&p->lock);
    idle = p->idle;
    nbytes = p->nbytes_idle;
    p->idle = NULL;
    p->idle_tail = &p->idle;
    p->nbytes_idle = 0;
    mtx_unlock(&p->lock);
    slabs_give(&p->memory, idle);
    return nbytes;
}

void slab_pool_free(struct slab_pool *p)
{
    if (p == NULL)
        return;
    assert(p->n_live == 0 && p->nbytes_live == 0);
    slabs_give(&p->memory, p->idle);
    mtx_fini(&p->lock);
    free(p);
}

/* Whole granules; at least one, so that an empty tensor has an address too. 0 on overflow. */
static uint64_t nbytes_of_granules(const struct slab_pool *p, uint64_t nbytes)
{
    uint64_t granule = p->memory.granule_nbytes;

    if (nbytes == 0)
        return granule;
    if (nbytes > (uint64_t)INT64_MAX - SLAB_HUGE_NBYTES - granule)
        return 0;
    return (nbytes + granule - 1) / granule * granule;
}

struct memory_room slab_pool_room(struct slab_pool *p)
{
    struct memory_room room = p->memory.room(p->memory.arg);
    struct slab_stats st;
    uint64_t left;

    slab_pool_stats(p, &st);
    /* Idle slabs are used again or dropped before fresh memory is taken. */
    room.nbytes += st.nbytes_idle < UINT64_MAX - room.nbytes ? st.nbytes_idle
                                                             : UINT64_MAX - room.nbytes;
    left = p->nbytes_max - (st.nbytes_live < p->nbytes_max ? st.nbytes_live : p->nbytes_max);
    if (p->nbytes_max != UINT64_MAX && left <= room.nbytes)
        room = (struct memory_room){left, "--max-weight-bytes"};
    if (room.nbytes != UINT64_MAX)
        room.nbytes -= room.nbytes % p->memory.granule_nbytes;
    return room;
}

int slab_pool_check(struct slab_pool *p, uint64_t nbytes, struct err *e)
{
    uint64_t needed = nbytes_of_granules(p, nbytes);
    struct memory_room room = slab_pool_room(p);

    if (needed == 0)
        return slab_refuse(nbytes, 0, "the address space", e);
    if (needed > room.nbytes)
        return slab_refuse(nbytes, room.nbytes, room.bound, e);
    return 0;
}

static struct slab_owned *idle_take_locked(struct slab_pool *p, struct slab_owned **at)
{
    struct slab_owned *s = *at;

    mtx_assert_held(&p->lock);
    *at = s->next;
    if (s->next == NULL)
        p->idle_tail = at;
    s->next = NULL;
    p->nbytes_idle -= s->nbytes_taken;
    return s;
}

/* Reserves the bytes; gives an idle slab of that size, or idle ones to give back in its stead. */
static int pool_reserve(struct slab_pool *p, uint64_t taken, struct slab_owned **reuse,
                        struct slab_owned **drop, struct err *e)
{
    uint64_t n_dropped = 0, live;
    bool fits;

    mtx_lock(&p->lock);
    live = p->nbytes_live;
    fits = live <= p->nbytes_max && taken <= p->nbytes_max - live;
    if (fits) {
        p->nbytes_live += taken;
        p->n_live++;
        for (struct slab_owned **at = &p->idle; *at != NULL && *reuse == NULL;)
            if ((*at)->nbytes_taken == taken)
                *reuse = idle_take_locked(p, at);
            else
                at = &(*at)->next;
        while (*reuse == NULL && p->idle != NULL && n_dropped < taken) {
            struct slab_owned *s = idle_take_locked(p, &p->idle);

            n_dropped += s->nbytes_taken;
            s->next = *drop;
            *drop = s;
        }
    }
    mtx_unlock(&p->lock);
    if (!fits)
        return slab_refuse(taken, live < p->nbytes_max ? p->nbytes_max - live : 0,
                           "--max-weight-bytes", e);
    return 0;
}

static void pool_unreserve(struct slab_pool *p, uint64_t taken)
{
    mtx_lock(&p->lock);
    p->nbytes_live -= taken;
    p->n_live--;
    mtx_unlock(&p->lock);
}

static struct slab_owned *slab_take(struct slab_pool *p, uint64_t taken, struct err *e)
{
    struct slab_owned *s = calloc(1, sizeof *s);

    if (s == NULL) {
        (void)err_set(e, ERR_NO_STAGING, "", "no memory for a slab's record");
        return NULL;
    }
    if (p->memory.take(p->memory.arg, taken, &s->slab.addr, e) != 0) {
        free(s);
        return NULL;
    }
    s->pool = p;
    s->nbytes_taken = taken;
    return s;
}

int slab_new(struct slab **out, struct slab_pool *p, uint64_t nbytes, struct err *e)
{
    uint64_t taken = nbytes_of_granules(p, nbytes);
    struct slab_owned *s = NULL, *drop = NULL;

    if (taken == 0)
        return slab_refuse(nbytes, 0, "the address space", e);
    if (pool_reserve(p, taken, &s, &drop, e) != 0)
        return -1;
    slabs_give(&p->memory, drop);
    if (s == NULL)
        s = slab_take(p, taken, e);
    if (s == NULL) {
        pool_unreserve(p, taken);
        return -1;
    }
    s->slab.nbytes = nbytes;
    atomic_store_explicit(&s->refs, 1, memory_order_relaxed);
    *out = &s->slab;
    return 0;
}

void slab_ref_many(struct slab *s, size_t n)
{
    struct slab_owned *o = (struct slab_owned *)s;

    (void)atomic_fetch_add_explicit(&o->refs, (unsigned)n, memory_order_relaxed);
}

struct slab *slab_ref(struct slab *s)
{
    slab_ref_many(s, 1);
    return s;
}

void slab_quarantine(struct slab *s)
{
    atomic_store_explicit(&((struct slab_owned *)s)->quarantined, true, memory_order_relaxed);
}

void slab_unref_many(struct slab *s, size_t n)
{
    struct slab_owned *o = (struct slab_owned *)s;
    struct slab_owned *drop = NULL, *lost = NULL;
    struct slab_pool *p;

    if (s == NULL || atomic_fetch_sub_explicit(&o->refs, (unsigned)n, memory_order_acq_rel) != n)
        return;
    p = o->pool;
    mtx_lock(&p->lock);
    p->nbytes_live -= o->nbytes_taken;
    p->n_live--;
    if (atomic_load_explicit(&o->quarantined, memory_order_relaxed)) {
        lost = o;
    } else if (p->nbytes_idle <= p->nbytes_idle_max &&
               o->nbytes_taken <= p->nbytes_idle_max - p->nbytes_idle) {
        o->next = NULL;
        *p->idle_tail = o;
        p->idle_tail = &o->next;
        p->nbytes_idle += o->nbytes_taken;
    } else {
        o->next = NULL;
        drop = o;
    }
    mtx_unlock(&p->lock);
    slabs_give(&p->memory, drop);
    free(lost);
}

void slab_unref(struct slab *s)
{
    slab_unref_many(s, 1);
}

void slab_pool_stats(struct slab_pool *p, struct slab_stats *out)
{
    mtx_lock(&p->lock);
    out->nbytes_live = p->nbytes_live;
    out->nbytes_idle = p->nbytes_idle;
    out->n_live = p->n_live;
    mtx_unlock(&p->lock);
}
