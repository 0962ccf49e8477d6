/* A table of leases, and one thread that ends expired ones. The table is small and is searched
 * linearly. A version is unpinned outside the lock, because freeing its memory may take a driver
 * call. */
#include "weights/store/leases.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mtx.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum lease_state { LEASE_FREE, LEASE_OPENING, LEASE_RUNNING };

struct lease {
    enum lease_state state;
    struct lease_info info;
    const struct version *version; /* pinned; NULL until it is */
};

struct handle_leases {
    struct mtx lock;    /* rank MTX_LEAF; guards down to the blank line */
    struct cnd changed; /* a lease ends earlier than before, or `stopping` */
    struct lease leases[LEASES_MAX];
    bool stopping;

    struct store *store; /* immutable */
    pthread_t thread;    /* the owner's */
    bool joined;         /* the owner's */
};

/* Removes a lease from the table; the caller has to unpin its version. */
static const struct version *take_out_locked(struct handle_leases *l, struct lease *it)
{
    const struct version *v = it->version;

    mtx_assert_held(&l->lock);
    memset(it, 0, sizeof *it);
    return v;
}

/* A running lease that has expired, or NULL; *next_us is the next expiry. */
static struct lease *expired_locked(struct handle_leases *l, uint64_t *next_us)
{
    *next_us = CLOCK_NEVER;
    for (size_t i = 0; i < LEASES_MAX; i++) {
        struct lease *it = &l->leases[i];

        if (it->state != LEASE_RUNNING)
            continue;
        if (lease_timer_expired(&it->info.timer))
            return it;
        if (it->info.timer.end_us < *next_us)
            *next_us = it->info.timer.end_us;
    }
    return NULL;
}

static void log_expired(const struct lease_info *info)
{
    struct log_rec r;

    log_begin(&r, LOG_WARN, "lease.expired");
    log_str(&r, "lease_id", info->id);
    log_u64(&r, "serial", info->serial);
    log_u64(&r, "lease_s", info->timer.length_s);
    log_end(&r);
}

static void *leases_main(void *arg)
{
    struct handle_leases *l = arg;
    const struct version *v;
    struct lease_info info;
    struct lease *it;
    uint64_t next_us;

    mtx_lock(&l->lock);
    while (!l->stopping) {
        it = expired_locked(l, &next_us);
        if (it == NULL) {
            (void)cnd_wait(&l->changed, &l->lock, next_us);
            continue;
        }
        info = it->info;
        v = take_out_locked(l, it);
        mtx_unlock(&l->lock);
        store_unpin(l->store, v);
        log_expired(&info);
        mtx_lock(&l->lock);
    }
    mtx_unlock(&l->lock);
    return NULL;
}

int leases_new(struct handle_leases **out, struct store *store, struct err *e)
{
    struct handle_leases *l = calloc(1, sizeof *l);
    int rc;

    if (l == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the leases");
    mtx_init(&l->lock, MTX_LEAF);
    cnd_init(&l->changed);
    l->store = store;
    rc = pthread_create(&l->thread, NULL, leases_main, l);
    if (rc != 0) {
        cnd_fini(&l->changed);
        mtx_fini(&l->lock);
        free(l);
        return err_set_errno(e, ERR_INTERNAL, "", rc, "cannot start the thread that ends leases");
    }
    (void)pthread_setname_np(l->thread, "handles");
    *out = l;
    return 0;
}

uint32_t leases_stop(struct handle_leases *l)
{
    const struct version *pins[LEASES_MAX];
    uint32_t n = 0;

    if (l->joined)
        return 0;
    mtx_lock(&l->lock);
    l->stopping = true;
    cnd_broadcast(&l->changed);
    for (size_t i = 0; i < LEASES_MAX; i++) {
        assert(l->leases[i].state != LEASE_OPENING);
        if (l->leases[i].state == LEASE_RUNNING)
            pins[n++] = take_out_locked(l, &l->leases[i]);
    }
    mtx_unlock(&l->lock);
    (void)pthread_join(l->thread, NULL);
    l->joined = true;
    for (uint32_t i = 0; i < n; i++)
        store_unpin(l->store, pins[i]);
    return n;
}

void leases_free(struct handle_leases *l)
{
    if (l == NULL)
        return;
    (void)leases_stop(l);
    cnd_fini(&l->changed);
    mtx_fini(&l->lock);
    free(l);
}

/* Reserves a free entry, so that two concurrent calls do not both get the last one. */
static struct lease *lease_reserve(struct handle_leases *l, struct err *e)
{
    struct lease *it = NULL;
    bool stopping;

    mtx_lock(&l->lock);
    stopping = l->stopping;
    for (size_t i = 0; i < LEASES_MAX && it == NULL && !stopping; i++)
        if (l->leases[i].state == LEASE_FREE)
            it = &l->leases[i];
    if (it != NULL)
        it->state = LEASE_OPENING;
    mtx_unlock(&l->lock);
    if (stopping)
        (void)err_set(e, ERR_DRAINING, "", "the server is stopping and grants no leases");
    else if (it == NULL)
        (void)err_set(e, ERR_OVERLOADED, "",
                      "there are %d leases on the weights, no more are allowed", (int)LEASES_MAX);
    return it;
}

int lease_open(struct handle_leases *l, uint32_t lease_s, struct lease_info *out,
               const struct version **version, struct err *e)
{
    struct lease_info info = {0};
    const struct version *v = NULL;
    struct lease *it;
    char id[ID_LEN + 1];
    int rc;

    assert(lease_s >= 1 && lease_s <= LEASE_S_MAX);
    lease_timer_set(&info.timer, lease_s);
    it = lease_reserve(l, e);
    if (it == NULL)
        return -1;
    rc = store_pin(l->store, &v, e);
    if (rc == 0) {
        id_make(id);
        (void)snprintf(info.id, sizeof info.id, "lse-%s", id);
        (void)snprintf(info.label, sizeof info.label, "%s", v->label);
        info.serial = v->serial;
    }
    mtx_lock(&l->lock);
    if (rc == 0) {
        it->info = info;
        it->version = v;
    } else {
        (void)take_out_locked(l, it);
    }
    mtx_unlock(&l->lock);
    if (rc != 0)
        return -1;
    *out = info;
    *version = v;
    return 0;
}

static struct lease *leases_find_locked(struct handle_leases *l, const char *id)
{
    mtx_assert_held(&l->lock);
    for (size_t i = 0; i < LEASES_MAX; i++)
        if (l->leases[i].state != LEASE_FREE && strcmp(l->leases[i].info.id, id) == 0 &&
            id[0] != '\0')
            return &l->leases[i];
    return NULL;
}

static int leases_refuse_unknown(const char *id, struct err *e)
{
    return err_set(e, ERR_NOT_FOUND, "/lease_id",
                   "there is no lease '%.64s': it has ended, or never existed", id);
}

void lease_start(struct handle_leases *l, const char *id)
{
    struct lease *it;

    mtx_lock(&l->lock);
    it = leases_find_locked(l, id);
    assert(it != NULL && it->state == LEASE_OPENING);
    it->state = LEASE_RUNNING;
    lease_timer_renew(&it->info.timer);
    cnd_signal(&l->changed);
    mtx_unlock(&l->lock);
}

int lease_renew(struct handle_leases *l, const char *id, uint32_t lease_s, struct lease_info *out,
                struct err *e)
{
    struct lease *it;

    assert(lease_s <= LEASE_S_MAX);
    mtx_lock(&l->lock);
    it = leases_find_locked(l, id);
    if (it != NULL && (it->state != LEASE_RUNNING || lease_timer_expired(&it->info.timer)))
        it = NULL; /* expired, but not removed yet */
    if (it != NULL) {
        lease_timer_extend(&it->info.timer, lease_s);
        cnd_signal(&l->changed); /* it may end sooner than before */
        *out = it->info;
    }
    mtx_unlock(&l->lock);
    return it != NULL ? 0 : leases_refuse_unknown(id, e);
}

int lease_close(struct handle_leases *l, const char *id, struct err *e)
{
    const struct version *v = NULL;
    struct lease *it;

    mtx_lock(&l->lock);
    it = leases_find_locked(l, id);
    if (it != NULL)
        v = take_out_locked(l, it);
    mtx_unlock(&l->lock);
    if (it == NULL)
        return leases_refuse_unknown(id, e);
    store_unpin(l->store, v);
    return 0;
}

bool leases_first(struct handle_leases *l, struct lease_info *out)
{
    bool found = false;

    mtx_lock(&l->lock);
    for (size_t i = 0; i < LEASES_MAX && !found; i++) {
        found = l->leases[i].state != LEASE_FREE;
        if (found)
            *out = l->leases[i].info;
    }
    mtx_unlock(&l->lock);
    return found;
}
