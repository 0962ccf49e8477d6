/* Sleep and wake.
 *
 * No version can be pinned while the store is asleep, and the last reader has left before, so
 * the table of the sleeping version is changed in place: a view that left its GPU has no slab,
 * and its old address only shows that the tensor was there. If several ranks have a tensor, its
 * bytes are the same, so one copy in host memory is enough. */
#include "weights/store/store_priv.h"

#include "base/clock.h"
#include "memory/device.h"
#include "weights/source.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void host_backup_fini(struct host_backup *b)
{
    slab_unref(b->slab);
    free(b->offsets);
    *b = (struct host_backup){0};
}

static uint64_t backup_aligned(uint64_t offset)
{
    return (offset + STAGING_ALIGN - 1) / STAGING_ALIGN * STAGING_ALIGN;
}

static uint64_t sleep_nbytes_of(const struct store *s, uint32_t index)
{
    return s->model_spec->tensor_list->tensors[index].nbytes;
}

static bool was_seen(const struct version_owned *v, uint32_t place, uint32_t index)
{
    return version_view(v, place, index)->addr != 0;
}

/* The first rank that has a tensor. (Only for stores without a place in host memory.) */
static uint32_t first_place(const struct version_owned *v, uint32_t index)
{
    uint32_t p = 0;

    while (p + 1 < v->n_places && !was_seen(v, p, index))
        p++;
    return p;
}

static int wait_batch(struct device_batch *b, struct err *e)
{
    struct progress p = {.deadline_us = CLOCK_NEVER};

    return device_batch_wait(b, &p, e);
}

/* Copies the tensors whose first place is `p`. */
static int host_backup_make_place(const struct store *s, const struct version_owned *v,
                                  struct host_backup *host_backup, uint32_t p, struct err *e)
{
    struct device_batch *b;
    int rc = 0;

    if (device_batch_new(store_device(s, p), &b, e) != 0)
        return -1;
    for (uint32_t i = 0; i < v->n_tensors && rc == 0; i++)
        if (sleep_nbytes_of(s, i) > 0 && first_place(v, i) == p)
            rc = device_batch_to_host(b, (char *)host_backup->slab->base + host_backup->offsets[i],
                                      version_view(v, p, i)->addr, sleep_nbytes_of(s, i), e);
    if (rc == 0)
        rc = wait_batch(b, e);
    device_batch_free(b);
    return rc;
}

/* A store without a place in host memory copies the weights of its GPUs there. */
static int host_backup_make(struct store *s, const struct version_owned *v, struct host_backup *out,
                            struct err *e)
{
    struct host_backup host_backup = {.offsets = calloc(v->n_tensors, sizeof *host_backup.offsets)};
    uint64_t nbytes = 0;
    int rc = 0;

    if (host_backup.offsets == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a list of %u tensors", v->n_tensors);
    for (uint32_t i = 0; i < v->n_tensors; i++) {
        host_backup.offsets[i] = nbytes;
        nbytes = backup_aligned(nbytes + sleep_nbytes_of(s, i));
    }
    if (slab_pool_check(s->scratch, nbytes, e) != 0 ||
        slab_new(&host_backup.slab, s->scratch, nbytes, e) != 0)
        rc = -1;
    for (uint32_t p = 0; p < s->n_places && rc == 0; p++)
        rc = host_backup_make_place(s, v, &host_backup, p, e);
    if (rc != 0) {
        host_backup_fini(&host_backup);
        return -1;
    }
    *out = host_backup;
    return 0;
}

static void leave_devices(const struct store *s, const struct version_owned *v)
{
    for (uint32_t p = 0; p < s->n_places; p++) {
        for (uint32_t i = 0; i < v->n_tensors && store_device(s, p) != NULL; i++) {
            struct view *view = version_view(v, p, i);

            slab_unref(view->slab);
            view->slab = NULL;
        }
    }
}

/* Bytes in all pools, on GPUs and on the host. */
struct pool_usage {
    uint64_t live_device, live_host, idle;
};

static void pool_usage_add(struct pool_usage *h, struct slab_pool *pool, bool device)
{
    struct slab_stats st;

    slab_pool_stats(pool, &st);
    *(device ? &h->live_device : &h->live_host) += st.nbytes_live;
    h->idle += st.nbytes_idle;
}

static struct pool_usage pool_usage_now(const struct store *s)
{
    struct pool_usage h = {0};

    for (uint32_t p = 0; p < s->n_places; p++)
        pool_usage_add(&h, s->places[p].slabs, store_device(s, p) != NULL);
    if (!store_has_host(s))
        pool_usage_add(&h, s->scratch, false);
    return h;
}

static void store_trim_pools(struct store *s)
{
    for (uint32_t p = 0; p < s->n_places; p++)
        (void)slab_pool_trim(s->places[p].slabs);
    (void)slab_pool_trim(s->scratch);
}

static uint64_t nbytes_less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* Sets staging_open, as an update does. The staging of an aborted update is freed a moment after
 * its session has ended; the caller has made sure that no session is open. */
static int lock_staging_locked(struct store *s, uint64_t deadline_us, struct err *e)
{
    while (s->staging_open || s->publishing)
        if (!store_wait_slice_locked(s, deadline_us, NULL))
            return err_set(e, ERR_CONFLICT, "",
                           "an update is being staged, or a sleep or wake is running");
    s->staging_open = true;
    return 0;
}

/* Prevents further pins, and waits until all readers have unpinned. */
static int begin_sleep_locked(struct store *s, uint64_t deadline_us, enum store_state *before,
                              struct err *e)
{
    if (lock_staging_locked(s, deadline_us, e) != 0)
        return -1;
    *before = s->state;
    if (s->current == NULL)
        return 0;
    s->state = STORE_ASLEEP;
    s->n_awaiting++;
    while ((s->current->refs > 1 || s->n_live > 1) && store_wait_slice_locked(s, deadline_us, NULL))
        continue;
    s->n_awaiting--;
    if (s->current->refs > 1 || s->n_live > 1) {
        s->state = *before;
        s->staging_open = false;
        cnd_broadcast(&s->changed);
        return err_set(e, ERR_CONFLICT, "",
                       "readers did not unpin the weights in time (%llu read the served version, "
                       "%u versions are alive)",
                       (unsigned long long)(s->current->refs - 1), s->n_live);
    }
    return 0;
}

static void end_sleep(struct store *s, enum store_state state)
{
    struct version_owned *old = NULL;

    mtx_lock(&s->lock);
    if (state == STORE_DROPPED) {
        old = s->current;
        s->current = NULL;
    }
    mtx_unlock(&s->lock);
    store_version_drop(s, old);
    if (state == STORE_DROPPED)
        host_backup_fini(&s->host_backup);
    if (state != STORE_READY)
        store_trim_pools(s);
    mtx_lock(&s->lock);
    s->state = state;
    s->staging_open = false;
    cnd_broadcast(&s->changed);
    mtx_unlock(&s->lock);
}

/* Sleep at level 1, from STORE_READY. */
static int sleep_level_1(struct store *s, struct err *e)
{
    if (!store_has_host(s) && host_backup_make(s, s->current, &s->host_backup, e) != 0)
        return -1;
    leave_devices(s, s->current);
    return 0;
}

int store_sleep(struct store *s, int level, uint64_t deadline_us, struct store_slept *out,
                struct err *e)
{
    enum store_state before, after;
    struct pool_usage was, is;
    int rc;

    assert(level == 1 || level == 2);
    mtx_lock(&s->lock);
    rc = begin_sleep_locked(s, deadline_us, &before, e);
    mtx_unlock(&s->lock);
    if (rc != 0)
        return -1;
    was = pool_usage_now(s);
    after = s->current == NULL ? before : level == 2 ? STORE_DROPPED : STORE_ASLEEP;
    if (after == STORE_ASLEEP && before != STORE_ASLEEP && sleep_level_1(s, e) != 0) {
        end_sleep(s, before);
        return -1;
    }
    end_sleep(s, after);
    is = pool_usage_now(s);
    *out = (struct store_slept){.nbytes_device = nbytes_less(was.live_device, is.live_device),
                                .nbytes_host = nbytes_less(was.live_host, is.live_host),
                                .nbytes_ready = nbytes_less(was.idle, is.idle),
                                .nbytes_kept = after == STORE_ASLEEP ? is.live_host : 0};
    return 0;
}

/* The bytes of a tensor in host memory, during level 1. */
static const void *backup_place(const struct store *s, const struct version_owned *v,
                                uint32_t index)
{
    if (store_has_host(s))
        return version_view(v, store_host_place(s), index)->data;
    return (const char *)s->host_backup.slab->base + s->host_backup.offsets[index];
}

static int new_slab(struct slab_pool *pool, uint64_t nbytes, struct slab **out, struct err *e)
{
    return slab_pool_check(pool, nbytes, e) == 0 ? slab_new(out, pool, nbytes, e) : -1;
}

/* Copies a place's tensors back to its GPU, into a slab that is as large as an update's, so that
 * the pool can reuse it. */
static int wake_place(struct store *s, const struct version_owned *v, uint32_t p, struct slab **out,
                      struct err *e)
{
    uint64_t nbytes = 0;
    struct device_batch *b;
    uint32_t n = 0;
    int rc = 0;

    for (uint32_t i = 0; i < v->n_tensors; i++)
        if (was_seen(v, p, i)) {
            nbytes = backup_aligned(nbytes) + sleep_nbytes_of(s, i);
            n++;
        }
    if (n >= store_n_kept(s, p) && nbytes < store_whole_nbytes(s, p))
        nbytes = store_whole_nbytes(s, p);
    if (n == 0)
        return 0;
    if (new_slab(store_slabs(s, p), nbytes, out, e) != 0)
        return -1;
    if (device_batch_new(store_device(s, p), &b, e) != 0)
        return -1;
    nbytes = 0;
    for (uint32_t i = 0; i < v->n_tensors && rc == 0; i++) {
        if (!was_seen(v, p, i))
            continue;
        nbytes = backup_aligned(nbytes);
        if (sleep_nbytes_of(s, i) > 0)
            rc = device_batch_from_host(b, (*out)->addr + nbytes, backup_place(s, v, i),
                                        sleep_nbytes_of(s, i), e);
        nbytes += sleep_nbytes_of(s, i);
    }
    if (rc == 0)
        rc = wait_batch(b, e);
    device_batch_free(b);
    return rc;
}

static void use_wake_slab(const struct store *s, const struct version_owned *v, uint32_t p,
                          struct slab *slab)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < v->n_tensors; i++) {
        struct view *view = version_view(v, p, i);

        if (!was_seen(v, p, i))
            continue;
        at = backup_aligned(at);
        view->slab = slab_ref(slab);
        view->addr = slab->addr + at;
        at += sleep_nbytes_of(s, i);
    }
}

/* Wakes all places, or none. */
static int wake_devices(struct store *s, uint64_t *nbytes, struct err *e)
{
    struct slab *slabs[STORE_PLACES_MAX] = {NULL};
    struct version_owned *v = s->current;
    int rc = 0;

    for (uint32_t p = 0; p < s->n_places && rc == 0; p++)
        if (store_device(s, p) != NULL)
            rc = wake_place(s, v, p, &slabs[p], e);
    for (uint32_t p = 0; p < s->n_places; p++) {
        if (rc == 0 && slabs[p] != NULL) {
            use_wake_slab(s, v, p, slabs[p]);
            *nbytes += slabs[p]->nbytes;
        }
        slab_unref(slabs[p]);
    }
    if (rc != 0)
        return -1;
    host_backup_fini(&s->host_backup);
    /* Checksums from before the sleep do not prove the bytes that were copied back. */
    for (uint32_t i = 0; i < v->n_tensors; i++)
        atomic_store_explicit(&v->sums[i].state, SUM_EMPTY, memory_order_relaxed);
    return 0;
}

static int ensure_backup_memory(struct store *s, struct err *e)
{
    for (uint32_t p = 0; p < s->n_places; p++)
        if (store_device(s, p) != NULL && store_reserve_whole(s, p, e) != 0)
            return -1;
    return 0;
}

int store_wake(struct store *s, uint64_t deadline_us, uint64_t *nbytes, struct err *e)
{
    enum store_state state;
    uint64_t n = 0;
    bool asleep;
    int rc = 0;

    mtx_lock(&s->lock);
    asleep = s->state == STORE_ASLEEP || s->state == STORE_DROPPED;
    if (asleep)
        rc = lock_staging_locked(s, deadline_us, e);
    state = s->state; /* it has changed if the update that was waited for was committed */
    mtx_unlock(&s->lock);
    if (rc != 0)
        return -1;
    if (state == STORE_ASLEEP)
        rc = wake_devices(s, &n, e);
    if (state == STORE_DROPPED)
        rc = ensure_backup_memory(s, e);
    if (asleep) {
        mtx_lock(&s->lock);
        s->state = rc == 0 && state == STORE_ASLEEP ? STORE_READY : state;
        s->staging_open = false;
        cnd_broadcast(&s->changed);
        mtx_unlock(&s->lock);
    }
    if (rc == 0)
        *nbytes = n;
    return rc;
}
