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

/* LEASE_ENDED: it is still in use, and nobody finds it any more. */
enum lease_state { LEASE_FREE, LEASE_OPENING, LEASE_RUNNING, LEASE_ENDED };

enum { LEASE_AWAITED_POLL_US = 50000 };

struct lease {
    enum lease_state state;
    enum lease_kind kind;
    struct lease_info info;
    const struct version *version; /* pinned; NULL until it is */
    void *file;                    /* of LEASE_FILE */
    void (*free_file)(void *file);
    uint32_t n_users;
};

struct handle_leases {
    struct mtx lock;    /* rank MTX_LEAF; guards down to the blank line */
    struct cnd changed; /* a lease ends earlier than before, or `stopping` */
    struct lease leases[LEASES_MAX];
    uint32_t n_files; /* of these, those of files */
    bool stopping;

    struct store *store; /* immutable */
    pthread_t thread;    /* the owner's */
    bool joined;         /* the owner's */
};

/* Ends a lease. @out  what has to be dropped without the lock; zeroed while the lease is in use */
static void take_out_locked(struct handle_leases *l, struct lease *it, struct lease *out)
{
    mtx_assert_held(&l->lock);
    it->state = LEASE_ENDED;
    memset(out, 0, sizeof *out);
    if (it->n_users > 0)
        return;
    *out = *it;
    l->n_files -= it->kind == LEASE_FILE;
    memset(it, 0, sizeof *it);
}

static void lease_drop(struct handle_leases *l, const struct lease *ended)
{
    store_unpin(l->store, ended->version);
    if (ended->free_file != NULL)
        ended->free_file(ended->file);
}

/* A running lease that has expired, or NULL; *next_us is when to look again. */
static struct lease *expired_locked(struct handle_leases *l, uint64_t *next_us)
{
    *next_us = CLOCK_NEVER;
    if (l->n_files > 0)
        *next_us = clock_after_us(LEASE_AWAITED_POLL_US);
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

/* A lease of a file whose version an update or a sleep waits for, or NULL. The lock is left. */
static struct lease *awaited_locked(struct handle_leases *l)
{
    for (size_t i = 0; i < LEASES_MAX && l->n_files > 0; i++) {
        struct lease *it = &l->leases[i];
        bool awaited;

        if (it->state != LEASE_RUNNING || it->version == NULL || it->kind != LEASE_FILE)
            continue;
        it->n_users++;
        mtx_unlock(&l->lock);
        awaited = store_reader_awaited(l->store, it->version);
        mtx_lock(&l->lock);
        it->n_users--;
        if (awaited || it->state == LEASE_ENDED)
            return it;
    }
    return NULL;
}

static void log_ended(const struct lease_info *info, const char *event)
{
    struct log_rec r;

    log_begin(&r, LOG_WARN, event);
    log_str(&r, "lease_id", info->id);
    log_u64(&r, "serial", info->serial);
    log_u64(&r, "lease_s", info->timer.length_s);
    log_end(&r);
}

static void *leases_main(void *arg)
{
    struct handle_leases *l = arg;
    struct lease_info info;
    struct lease *it, ended;
    uint64_t next_us;

    mtx_lock(&l->lock);
    while (!l->stopping) {
        const char *event = "lease.expired";

        it = expired_locked(l, &next_us);
        if (it == NULL) {
            it = awaited_locked(l);
            event = "lease.gave_way";
        }
        if (it == NULL) {
            (void)cnd_wait(&l->changed, &l->lock, next_us);
            continue;
        }
        info = it->info;
        event = it->state == LEASE_RUNNING ? event : NULL; /* it was closed meanwhile */
        take_out_locked(l, it, &ended);
        mtx_unlock(&l->lock);
        lease_drop(l, &ended);
        if (event != NULL)
            log_ended(&info, event);
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
    struct lease ended;
    uint32_t n = 0;

    if (l->joined)
        return 0;
    mtx_lock(&l->lock);
    l->stopping = true;
    cnd_broadcast(&l->changed);
    mtx_unlock(&l->lock);
    (void)pthread_join(l->thread, NULL);
    l->joined = true;
    for (size_t i = 0; i < LEASES_MAX; i++) {
        mtx_lock(&l->lock);
        assert(l->leases[i].state != LEASE_OPENING && l->leases[i].n_users == 0);
        n += l->leases[i].state == LEASE_RUNNING && l->leases[i].kind == LEASE_HANDLES;
        take_out_locked(l, &l->leases[i], &ended);
        mtx_unlock(&l->lock);
        lease_drop(l, &ended);
    }
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
static struct lease *lease_reserve(struct handle_leases *l, enum lease_kind kind, struct err *e)
{
    struct lease *it = NULL;
    bool stopping, full, busy = false;

    mtx_lock(&l->lock);
    stopping = l->stopping;
    full = kind == LEASE_FILE && l->n_files >= LEASES_FILE_MAX;
    for (size_t i = 0; i < LEASES_MAX && kind == LEASE_FILE; i++)
        busy = busy || (l->leases[i].state == LEASE_OPENING && l->leases[i].kind == kind);
    for (size_t i = 0; i < LEASES_MAX && it == NULL && !stopping && !full && !busy; i++)
        if (l->leases[i].state == LEASE_FREE)
            it = &l->leases[i];
    if (it != NULL) {
        it->state = LEASE_OPENING;
        it->kind = kind;
        l->n_files += kind == LEASE_FILE;
    }
    mtx_unlock(&l->lock);
    if (stopping)
        (void)err_set(e, ERR_DRAINING, "", "the server is stopping and grants no leases");
    else if (busy)
        (void)err_set(e, ERR_OVERLOADED, "",
                      "another lease of a file is being opened, for which the weights may be read");
    else if (it == NULL)
        (void)err_set(e, ERR_OVERLOADED, "", "there are %d %s, no more are allowed",
                      full ? (int)LEASES_FILE_MAX : (int)LEASES_MAX,
                      full ? "leases of files of the weights" : "leases on the weights");
    return it;
}

/* @label  of a lease without a version; NULL: it is pinned */
static int open_as(struct handle_leases *l, enum lease_kind kind, uint32_t lease_s,
                   const char *label, struct lease_info *out, const struct version **version,
                   struct err *e)
{
    struct lease_info info = {0};
    const struct version *v = NULL;
    struct lease *it, none;
    char id[ID_LEN + 1];
    int rc;

    assert(lease_s >= 1 && lease_s <= LEASE_S_MAX);
    lease_timer_set(&info.timer, lease_s);
    it = lease_reserve(l, kind, e);
    if (it == NULL)
        return -1;
    rc = label == NULL ? store_pin(l->store, &v, e) : 0;
    if (rc == 0) {
        id_make(id);
        (void)snprintf(info.id, sizeof info.id, "lse-%s", id);
        (void)snprintf(info.label, sizeof info.label, "%s", v != NULL ? v->label : label);
        info.serial = v != NULL ? v->serial : 0;
    }
    mtx_lock(&l->lock);
    if (rc == 0) {
        it->info = info;
        it->version = v;
    } else {
        take_out_locked(l, it, &none);
    }
    mtx_unlock(&l->lock);
    if (rc != 0)
        return -1;
    *out = info;
    *version = v;
    return 0;
}

int lease_open(struct handle_leases *l, enum lease_kind kind, uint32_t lease_s,
               struct lease_info *out, const struct version **version, struct err *e)
{
    return open_as(l, kind, lease_s, NULL, out, version, e);
}

int lease_open_passed(struct handle_leases *l, uint32_t lease_s, const char *label,
                      struct lease_info *out, struct err *e)
{
    const struct version *none;

    return open_as(l, LEASE_FILE, lease_s, label, out, &none, e);
}

static struct lease *leases_find_locked(struct handle_leases *l, enum lease_kind kind,
                                        const char *id)
{
    mtx_assert_held(&l->lock);
    for (size_t i = 0; i < LEASES_MAX; i++) {
        struct lease *it = &l->leases[i];

        if ((it->state == LEASE_OPENING || it->state == LEASE_RUNNING) && it->kind == kind &&
            strcmp(it->info.id, id) == 0 && id[0] != '\0')
            return it;
    }
    return NULL;
}

/* Only if its time runs: it may have expired, and not be removed yet. */
static struct lease *running_locked(struct handle_leases *l, enum lease_kind kind, const char *id)
{
    struct lease *it = leases_find_locked(l, kind, id);

    return it != NULL && it->state == LEASE_RUNNING && !lease_timer_expired(&it->info.timer) ? it
                                                                                             : NULL;
}

static int leases_refuse_unknown(const char *id, struct err *e)
{
    return err_set(e, ERR_NOT_FOUND, "/lease_id",
                   "there is no lease '%.64s': it has ended, or never existed", id);
}

void lease_start(struct handle_leases *l, const char *id, void *file, void (*free_file)(void *file))
{
    enum lease_kind kind = file != NULL ? LEASE_FILE : LEASE_HANDLES;
    struct lease *it;

    mtx_lock(&l->lock);
    it = leases_find_locked(l, kind, id);
    assert(it != NULL && it->state == LEASE_OPENING);
    it->state = LEASE_RUNNING;
    it->file = file;
    it->free_file = free_file;
    lease_timer_renew(&it->info.timer);
    cnd_signal(&l->changed);
    mtx_unlock(&l->lock);
}

int lease_renew(struct handle_leases *l, enum lease_kind kind, const char *id, uint32_t lease_s,
                struct lease_info *out, struct err *e)
{
    struct lease *it;

    assert(lease_s <= LEASE_S_MAX);
    mtx_lock(&l->lock);
    it = running_locked(l, kind, id);
    if (it != NULL) {
        lease_timer_extend(&it->info.timer, lease_s);
        cnd_signal(&l->changed); /* it may end sooner than before */
        *out = it->info;
    }
    mtx_unlock(&l->lock);
    return it != NULL ? 0 : leases_refuse_unknown(id, e);
}

int lease_close(struct handle_leases *l, enum lease_kind kind, const char *id, struct err *e)
{
    struct lease *it, ended;

    mtx_lock(&l->lock);
    it = leases_find_locked(l, kind, id);
    if (it != NULL)
        take_out_locked(l, it, &ended);
    mtx_unlock(&l->lock);
    if (it == NULL)
        return leases_refuse_unknown(id, e);
    lease_drop(l, &ended);
    return 0;
}

int lease_use(struct handle_leases *l, const char *id, struct lease_use *out, struct err *e)
{
    struct lease *it;

    mtx_lock(&l->lock);
    it = running_locked(l, LEASE_FILE, id);
    if (it != NULL) {
        it->n_users++;
        *out = (struct lease_use){it->version, &it->info, it->file, (size_t)(it - l->leases)};
    }
    mtx_unlock(&l->lock);
    if (it != NULL)
        return 0;
    return err_set(e, ERR_LEASE_ENDED, "/lease_id",
                   "there is no lease '%.64s' of a file: it has ended, by its time or because an "
                   "update or a sleep waited for its memory, or never existed",
                   id);
}

void lease_unuse(struct handle_leases *l, const struct lease_use *use)
{
    struct lease *it = &l->leases[use->slot], ended = {0};

    mtx_lock(&l->lock);
    assert(it->n_users > 0);
    it->n_users--;
    if (it->state == LEASE_ENDED)
        take_out_locked(l, it, &ended);
    mtx_unlock(&l->lock);
    lease_drop(l, &ended);
}

bool leases_first(struct handle_leases *l, struct lease_info *out)
{
    bool found = false;

    mtx_lock(&l->lock);
    for (size_t i = 0; i < LEASES_MAX && !found; i++) {
        found = l->leases[i].state != LEASE_FREE && l->leases[i].kind == LEASE_HANDLES;
        if (found)
            *out = l->leases[i].info;
    }
    mtx_unlock(&l->lock);
    return found;
}
