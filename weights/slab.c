/* Slabs: anonymous memory, counted, and kept for the next update when its last holder lets go.
 *
 * Only a slab of exactly the same size is used again: updates of one model repeat their buckets,
 * and a first-fit would slowly grow what each version really takes. A fresh slab takes the place
 * of at least as many idle bytes, so live + idle never passes what was live at the peak. */
#include "weights/slab.h"

#include "base/mtx.h"
#include "weights/memory.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { SLAB_PAGE_NBYTES = 4096, SLAB_HUGE_NBYTES = 2 << 20 };

struct slab_owned {
    struct slab slab; /* first: what the world sees */
    struct slab_pool *pool;
    uint64_t nbytes_mapped;
    atomic_uint refs;        /* relaxed up, acq_rel down: the last one owns it alone */
    struct slab_owned *next; /* of the idle list; oldest first */
};

struct slab_pool {
    struct mtx lock; /* rank MTX_LEAF; guards down to the blank line */
    struct slab_owned *idle, **idle_tail;
    uint64_t nbytes_live, nbytes_idle;
    uint64_t n_live;

    uint64_t nbytes_max, nbytes_idle_max; /* immutable */
};

int slab_pool_new(struct slab_pool **out, uint64_t nbytes_max, uint64_t nbytes_idle, struct err *e)
{
    struct slab_pool *p = calloc(1, sizeof *p);

    if (p == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the slab pool");
    mtx_init(&p->lock, MTX_LEAF);
    p->idle_tail = &p->idle;
    p->nbytes_max = nbytes_max;
    p->nbytes_idle_max = nbytes_idle;
    *out = p;
    return 0;
}

static void slabs_unmap(struct slab_owned *s)
{
    while (s != NULL) {
        struct slab_owned *next = s->next;
        int rc = munmap(s->slab.base, s->nbytes_mapped);

        assert(rc == 0);
        (void)rc;
        free(s);
        s = next;
    }
}

void slab_pool_free(struct slab_pool *p)
{
    if (p == NULL)
        return;
    assert(p->n_live == 0 && p->nbytes_live == 0);
    slabs_unmap(p->idle);
    mtx_fini(&p->lock);
    free(p);
}

/* Whole pages; at least one, so that an empty tensor has an address too. 0 on overflow. */
static uint64_t nbytes_of_pages(uint64_t nbytes)
{
    if (nbytes == 0)
        return SLAB_PAGE_NBYTES;
    if (nbytes > (uint64_t)INT64_MAX - SLAB_HUGE_NBYTES - SLAB_PAGE_NBYTES)
        return 0;
    return (nbytes + SLAB_PAGE_NBYTES - 1) / SLAB_PAGE_NBYTES * SLAB_PAGE_NBYTES;
}

static int refuse(uint64_t needed, uint64_t available, const char *bound, struct err *e)
{
    return err_set(e, ERR_NO_STAGING, "",
                   "%llu bytes of memory are needed for weights, %llu are available (bound: %s)",
                   (unsigned long long)needed, (unsigned long long)available, bound);
}

int slab_pool_check(struct slab_pool *p, uint64_t nbytes, struct err *e)
{
    struct slab_stats st;
    struct memory_room room;
    uint64_t needed = nbytes_of_pages(nbytes);
    uint64_t left;

    slab_pool_stats(p, &st);
    left = p->nbytes_max - (st.nbytes_live < p->nbytes_max ? st.nbytes_live : p->nbytes_max);
    if (needed == 0 || needed > left)
        return refuse(nbytes, left, "--max-weight-bytes", e);
    room = memory_room("");
    /* Idle slabs are used again or dropped before fresh pages are taken. */
    room.nbytes += st.nbytes_idle < UINT64_MAX - room.nbytes ? st.nbytes_idle
                                                             : UINT64_MAX - room.nbytes;
    if (needed > room.nbytes)
        return refuse(nbytes, room.nbytes, room.bound, e);
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
    p->nbytes_idle -= s->nbytes_mapped;
    return s;
}

/* Reserves the bytes; gives an idle slab of that size, or idle ones to unmap in its stead. */
static int reserve(struct slab_pool *p, uint64_t mapped, struct slab_owned **reuse,
                   struct slab_owned **drop, struct err *e)
{
    uint64_t n_dropped = 0, live;
    bool fits;

    mtx_lock(&p->lock);
    live = p->nbytes_live;
    fits = live <= p->nbytes_max && mapped <= p->nbytes_max - live;
    if (fits) {
        p->nbytes_live += mapped;
        p->n_live++;
        for (struct slab_owned **at = &p->idle; *at != NULL && *reuse == NULL;)
            if ((*at)->nbytes_mapped == mapped)
                *reuse = idle_take_locked(p, at);
            else
                at = &(*at)->next;
        while (*reuse == NULL && p->idle != NULL && n_dropped < mapped) {
            struct slab_owned *s = idle_take_locked(p, &p->idle);

            n_dropped += s->nbytes_mapped;
            s->next = *drop;
            *drop = s;
        }
    }
    mtx_unlock(&p->lock);
    if (!fits)
        return refuse(mapped, live < p->nbytes_max ? p->nbytes_max - live : 0, "--max-weight-bytes",
                      e);
    return 0;
}

static void unreserve(struct slab_pool *p, uint64_t mapped)
{
    mtx_lock(&p->lock);
    p->nbytes_live -= mapped;
    p->n_live--;
    mtx_unlock(&p->lock);
}

/* Large ones start at a huge page, so that all but their tail can be huge. */
static void *map_pages(uint64_t mapped)
{
    uint64_t slack = mapped >= SLAB_HUGE_NBYTES ? SLAB_HUGE_NBYTES : 0;
    char *base = mmap(NULL, mapped + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                      0);

    if (base == MAP_FAILED)
        return NULL;
    if (slack > 0) {
        uint64_t head = (SLAB_HUGE_NBYTES - (uintptr_t)base % SLAB_HUGE_NBYTES) % SLAB_HUGE_NBYTES;

        if (head > 0)
            (void)munmap(base, head);
        base += head;
        if (slack > head)
            (void)munmap(base + mapped, slack - head);
        (void)madvise(base, mapped, MADV_HUGEPAGE); /* a wish: fails where it is switched off */
    }
    (void)madvise(base, mapped, MADV_DONTDUMP);
    return base;
}

static struct slab_owned *slab_map(struct slab_pool *p, uint64_t mapped)
{
    struct slab_owned *s = calloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    s->slab.base = map_pages(mapped);
    if (s->slab.base == NULL) {
        free(s);
        return NULL;
    }
    s->pool = p;
    s->nbytes_mapped = mapped;
    return s;
}

int slab_new(struct slab **out, struct slab_pool *p, uint64_t nbytes, struct err *e)
{
    uint64_t mapped = nbytes_of_pages(nbytes);
    struct slab_owned *s = NULL, *drop = NULL;

    if (mapped == 0)
        return refuse(nbytes, 0, "the address space", e);
    if (reserve(p, mapped, &s, &drop, e) != 0)
        return -1;
    slabs_unmap(drop);
    if (s == NULL)
        s = slab_map(p, mapped);
    if (s == NULL) {
        unreserve(p, mapped);
        return refuse(nbytes, 0, "the system's overcommit limit", e);
    }
    s->slab.nbytes = nbytes;
    atomic_store_explicit(&s->refs, 1, memory_order_relaxed);
    *out = &s->slab;
    return 0;
}

struct slab *slab_ref(struct slab *s)
{
    struct slab_owned *o = (struct slab_owned *)s;

    (void)atomic_fetch_add_explicit(&o->refs, 1, memory_order_relaxed);
    return s;
}

void slab_unref(struct slab *s)
{
    struct slab_owned *o = (struct slab_owned *)s;
    struct slab_owned *drop = NULL;
    struct slab_pool *p;

    if (s == NULL || atomic_fetch_sub_explicit(&o->refs, 1, memory_order_acq_rel) != 1)
        return;
    p = o->pool;
    mtx_lock(&p->lock);
    p->nbytes_live -= o->nbytes_mapped;
    p->n_live--;
    if (p->nbytes_idle <= p->nbytes_idle_max &&
        o->nbytes_mapped <= p->nbytes_idle_max - p->nbytes_idle) {
        o->next = NULL;
        *p->idle_tail = o;
        p->idle_tail = &o->next;
        p->nbytes_idle += o->nbytes_mapped;
    } else {
        o->next = NULL;
        drop = o;
    }
    mtx_unlock(&p->lock);
    slabs_unmap(drop);
}

void slab_pool_stats(struct slab_pool *p, struct slab_stats *out)
{
    mtx_lock(&p->lock);
    out->nbytes_live = p->nbytes_live;
    out->nbytes_idle = p->nbytes_idle;
    out->n_live = p->n_live;
    mtx_unlock(&p->lock);
}
