/* The store: one pointer to the version that is served, and who still reads older ones.
 *
 * A version's references are plain integers under the store's lock: a pin happens once an engine
 * step, so a lock held for a few instructions costs nothing. Rejected: an atomic pointer with
 * hazard pointers, because in_place needs "nobody reads and nobody can begin to" anyway. */
#include "weights/store_priv.h"

#include "base/clock.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STORE_PAGE_NBYTES = 4096, STORE_STOP_POLL_US = 50000 };

const char *store_state_name(enum store_state state)
{
    switch (state) {
    case STORE_UNSYNCED:
        return "unsynced";
    case STORE_READY:
        return "ready";
    case STORE_IN_PLACE:
        return "in_place";
    case STORE_INCONSISTENT:
        return "inconsistent";
    }
    return "unknown";
}

/* One retired version may stay idle: the next update is as large as the last. */
static uint64_t idle_bound(const struct plan *plan)
{
    uint64_t rounding = (uint64_t)plan->n_tensors * STORE_PAGE_NBYTES;

    return plan->nbytes > UINT64_MAX - rounding ? UINT64_MAX : plan->nbytes + rounding;
}

int store_new(struct store **out, const struct store_cfg *cfg, struct err *e)
{
    struct store *s = calloc(1, sizeof *s);

    assert(cfg->n_versions_max >= 2);
    if (s == NULL) {
        manifest_free(cfg->manifest);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the store");
    }
    s->manifest = cfg->manifest;
    if (slab_pool_new(&s->slabs, cfg->nbytes_max, idle_bound(s->manifest->plan), e) != 0) {
        manifest_free(s->manifest);
        free(s);
        return -1;
    }
    mtx_init(&s->lock, MTX_STORE);
    cnd_init(&s->changed);
    s->n_versions_max = cfg->n_versions_max;
    *out = s;
    return 0;
}

void store_free(struct store *s)
{
    if (s == NULL)
        return;
    assert(!s->staging_open);
    assert(s->current == NULL || (s->current->refs == 1 && s->n_live == 1));
    version_free(s->current);
    slab_pool_free(s->slabs);
    cnd_fini(&s->changed);
    mtx_fini(&s->lock);
    manifest_free(s->manifest);
    free(s);
}

const struct manifest *store_manifest(const struct store *s)
{
    return s->manifest;
}

struct slab_pool *store_slabs(struct store *s)
{
    return s->slabs;
}

struct version_owned *version_new(uint32_t n_tensors)
{
    struct version_owned *v = calloc(1, sizeof *v);

    if (v == NULL)
        return NULL;
    v->views = calloc(n_tensors, sizeof *v->views);
    v->sums = calloc(n_tensors, sizeof *v->sums);
    if (v->views == NULL || v->sums == NULL) {
        free(v->views);
        free(v->sums);
        free(v);
        return NULL;
    }
    v->version.views = v->views;
    v->n_tensors = n_tensors;
    v->refs = 1;
    return v;
}

void version_free(struct version_owned *v)
{
    if (v == NULL)
        return;
    for (uint32_t i = 0; i < v->n_tensors; i++)
        slab_unref(v->views[i].slab);
    free(v->views);
    free(v->sums);
    free(v);
}

void version_share(struct version_owned *to, const struct version_owned *from, uint32_t index)
{
    struct sum_slot *sum = &from->sums[index];

    to->views[index] = from->views[index];
    (void)slab_ref(to->views[index].slab);
    /* `to` is not published yet: nobody else looks at its slots. */
    atomic_store_explicit(&to->sums[index].state, SUM_EMPTY, memory_order_relaxed);
    if (atomic_load_explicit(&sum->state, memory_order_acquire) != SUM_READY)
        return;
    to->sums[index].sum = sum->sum;
    atomic_store_explicit(&to->sums[index].state, SUM_READY, memory_order_relaxed);
}

/* The version leaves the count only when its slabs are back, so that whoever waits for room finds
 * it. */
void store_version_drop(struct store *s, struct version_owned *v)
{
    bool last;

    if (v == NULL)
        return;
    mtx_lock(&s->lock);
    assert(v->refs > 0);
    last = --v->refs == 0;
    if (!last && v == s->current)
        cnd_broadcast(&s->changed);
    mtx_unlock(&s->lock);
    if (!last)
        return;
    version_free(v);
    mtx_lock(&s->lock);
    s->n_live--;
    cnd_broadcast(&s->changed);
    mtx_unlock(&s->lock);
}

static int refuse_state(enum store_state state, struct err *e)
{
    switch (state) {
    case STORE_UNSYNCED:
        return err_set(e, ERR_UNSYNCED, "", "no weights have been committed yet");
    case STORE_INCONSISTENT:
        return err_set(e, ERR_INCONSISTENT, "",
                       "an in_place update failed half-way: the weights are inconsistent until a "
                       "whole update succeeds");
    default:
        return err_set(e, ERR_CONFLICT, "", "an in_place update is writing the weights");
    }
}

int store_pin(struct store *s, const struct version **out, struct err *e)
{
    enum store_state state;
    struct version_owned *v = NULL;

    mtx_lock(&s->lock);
    state = s->state;
    if (state == STORE_READY) {
        v = s->current;
        v->refs++;
    }
    mtx_unlock(&s->lock);
    if (v == NULL)
        return refuse_state(state, e);
    *out = &v->version;
    return 0;
}

void store_unpin(struct store *s, const struct version *v)
{
    /* Every version that is handed out is the first member of its version_owned. */
    store_version_drop(s, (struct version_owned *)(uintptr_t)v);
}

bool store_wait_pinnable(struct store *s, uint64_t deadline_us)
{
    bool ready;

    mtx_lock(&s->lock);
    while (s->state == STORE_IN_PLACE && !clock_passed(deadline_us))
        (void)cnd_wait(&s->changed, &s->lock, deadline_us);
    ready = s->state == STORE_READY;
    mtx_unlock(&s->lock);
    return ready;
}

static bool stopped(const atomic_bool *stop)
{
    return stop != NULL && atomic_load_explicit(stop, memory_order_relaxed);
}

/* Waits in short pieces, because nobody signals `changed` for a stop. */
static bool wait_piece_locked(struct store *s, uint64_t deadline_us, const atomic_bool *stop)
{
    uint64_t piece = clock_after_us(STORE_STOP_POLL_US);

    if (stopped(stop) || clock_passed(deadline_us))
        return false;
    (void)cnd_wait(&s->changed, &s->lock, piece < deadline_us ? piece : deadline_us);
    return true;
}

bool store_wait_drained(struct store *s, uint64_t deadline_us, const atomic_bool *stop)
{
    bool drained;

    mtx_lock(&s->lock);
    while (s->n_live > 1 && wait_piece_locked(s, deadline_us, stop))
        continue;
    drained = s->n_live <= 1;
    mtx_unlock(&s->lock);
    return drained;
}

/* Closes the door first: with a busy engine there would always be one more reader otherwise.
 * Older versions may share slabs with the served one, so they have to go as well. */
static int begin_in_place_locked(struct store *s, struct staging *g, uint64_t deadline_us,
                                 const atomic_bool *stop, struct err *e)
{
    enum store_state before = s->state;

    s->state = STORE_IN_PLACE;
    while (s->current->refs > 1 || s->n_live > 1) {
        if (wait_piece_locked(s, deadline_us, stop))
            continue;
        s->state = before;
        cnd_broadcast(&s->changed);
        return err_set(e, ERR_CONFLICT, "",
                       stopped(stop) ? "the update was stopped while it waited for readers"
                                     : "readers of the served weights did not let go in time");
    }
    g->was_inconsistent = before == STORE_INCONSISTENT;
    return 0;
}

static int begin_staged_locked(struct store *s, uint64_t deadline_us, const atomic_bool *stop,
                               struct err *e)
{
    while (s->n_live + 1 > s->n_versions_max) {
        if (wait_piece_locked(s, deadline_us, stop))
            continue;
        return err_set(e, ERR_CONFLICT, "",
                       "%u versions of the weights are alive, %u are allowed: older ones are still "
                       "being read",
                       s->n_live, s->n_versions_max - 1);
    }
    return 0;
}

static int begin_locked(struct store *s, const struct staging_cfg *cfg, uint64_t deadline_us,
                        const atomic_bool *stop, struct staging *g, struct err *e)
{
    int rc;

    if (s->staging_open)
        return err_set(e, ERR_CONFLICT, "", "another update is being staged");
    if (cfg->partial && s->current == NULL)
        return refuse_state(STORE_UNSYNCED, e);
    if (cfg->partial && s->state == STORE_INCONSISTENT)
        return refuse_state(STORE_INCONSISTENT, e);
    s->staging_open = true; /* also while waiting: one at a time */
    g->in_place = cfg->in_place && s->current != NULL;
    g->partial = cfg->partial;
    rc = g->in_place ? begin_in_place_locked(s, g, deadline_us, stop, e)
                     : begin_staged_locked(s, deadline_us, stop, e);
    if (rc != 0) {
        s->staging_open = false;
        return -1;
    }
    if (g->in_place || g->partial) {
        g->base = s->current;
        g->base->refs++;
    }
    return 0;
}

static void staging_free(struct staging *g)
{
    slab_unref(g->side);
    version_free(g->next);
    free(g->arrived);
    free(g);
}

int store_stage_until(struct store *s, const struct staging_cfg *cfg, uint64_t deadline_us,
                      const atomic_bool *stop, struct staging **out, struct err *e)
{
    uint32_t n = s->manifest->plan->n_tensors;
    struct staging *g = calloc(1, sizeof *g);
    int rc;

    if (g == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a staging of %u tensors", n);
    g->store = s;
    g->arrived = calloc(n, sizeof *g->arrived);
    g->next = version_new(n);
    if (g->arrived == NULL || g->next == NULL) {
        staging_free(g);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a staging of %u tensors", n);
    }
    mtx_lock(&s->lock);
    rc = begin_locked(s, cfg, deadline_us, stop, g, e);
    mtx_unlock(&s->lock);
    if (rc != 0) {
        staging_free(g);
        return -1;
    }
    *out = g;
    return 0;
}

int store_stage(struct store *s, const struct staging_cfg *cfg, uint64_t deadline_us,
                struct staging **out, struct err *e)
{
    return store_stage_until(s, cfg, deadline_us, NULL, out, e);
}

static int check_complete(const struct store *s, const struct staging *g, struct err *e)
{
    const struct plan *plan = s->manifest->plan;
    uint32_t first = 0, n_missing = staging_missing(g, &first, 1);

    if (g->partial && g->n_arrived == 0)
        return err_set(e, ERR_INCOMPLETE, "", "no tensor of the model arrived in this update");
    if (g->partial || n_missing == 0)
        return 0;
    return err_set(e, ERR_INCOMPLETE, "", "%u of %u tensors are missing, '%.256s' first", n_missing,
                   plan->n_tensors, plan->tensors[first].name);
}

static void keep_label_locked(struct store *s, uint64_t serial, const char *label)
{
    struct label_kept *kept = &s->labels[serial % STORE_LABELS_KEPT];

    kept->serial = serial;
    (void)snprintf(kept->label, sizeof kept->label, "%s", label);
}

/* The one pointer store. */
static struct version_owned *publish_locked(struct store *s, struct version_owned *next,
                                            const char *label)
{
    struct version_owned *old = s->current;

    if (label[0] != '\0')
        (void)snprintf(next->version.label, sizeof next->version.label, "%s", label);
    else
        (void)snprintf(next->version.label, sizeof next->version.label, "serial-%llu",
                       (unsigned long long)next->version.serial);
    keep_label_locked(s, next->version.serial, next->version.label);
    s->current = next;
    s->n_live++;
    s->state = STORE_READY;
    cnd_broadcast(&s->changed);
    return old;
}

int store_commit(struct store *s, struct staging *g, const char *label, struct store_stats *stats,
                 struct err *e)
{
    struct version_owned *next = g->next, *base = g->base, *old;

    if (check_complete(s, g, e) != 0)
        return -1;
    next->version.nbytes = s->manifest->plan->nbytes;
    next->version.serial = s->serial + 1; /* only commits write it, and they come one at a time */
    for (uint32_t i = 0; i < next->n_tensors; i++) {
        if (!g->arrived[i] || g->in_place)
            if (base != NULL)
                version_share(next, base, i);
        if (!g->arrived[i])
            continue;
        next->views[i].serial = next->version.serial;
        atomic_store_explicit(&next->sums[i].state, SUM_EMPTY, memory_order_relaxed);
    }
    mtx_lock(&s->lock);
    old = publish_locked(s, next, label);
    s->serial = next->version.serial;
    s->n_commits++;
    s->committed_at_us = clock_now_us();
    s->staging_open = false;
    stats->serial = s->serial;
    stats->nbytes = next->version.nbytes;
    (void)snprintf(stats->label, sizeof stats->label, "%s", next->version.label);
    mtx_unlock(&s->lock);
    stats->n_updated = g->n_arrived;
    g->next = NULL;
    staging_free(g);
    store_version_drop(s, base);
    store_version_drop(s, old);
    mtx_lock(&s->lock);
    stats->n_live = s->n_live;
    mtx_unlock(&s->lock);
    return 0;
}

void store_abort(struct store *s, struct staging *g)
{
    struct version_owned *base;
    bool in_place, inconsistent;

    if (g == NULL)
        return;
    base = g->base;
    in_place = g->in_place;
    inconsistent = g->dirty || g->was_inconsistent;
    staging_free(g); /* its slabs are back before anyone may stage again */
    mtx_lock(&s->lock);
    if (in_place)
        s->state = inconsistent ? STORE_INCONSISTENT : STORE_READY;
    s->staging_open = false;
    cnd_broadcast(&s->changed);
    mtx_unlock(&s->lock);
    store_version_drop(s, base);
}

/* A label is read without a lock by whoever pinned the version, so a renamed version is a new
 * table over the same slabs. */
int store_set_label(struct store *s, const char *label, struct err *e)
{
    struct version_owned *next = version_new(s->manifest->plan->n_tensors), *old = NULL;
    const struct version *seen;

    if (next == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to rename the weights");
    for (;;) {
        struct version_owned *from;

        if (store_pin(s, &seen, e) != 0) {
            version_free(next);
            return -1;
        }
        from = (struct version_owned *)(uintptr_t)seen;
        for (uint32_t i = 0; i < next->n_tensors; i++) {
            slab_unref(next->views[i].slab);
            version_share(next, from, i);
        }
        next->version.serial = from->version.serial;
        next->version.nbytes = from->version.nbytes;
        mtx_lock(&s->lock);
        if (s->current == from && s->state == STORE_READY)
            old = publish_locked(s, next, label);
        mtx_unlock(&s->lock);
        store_version_drop(s, from);
        if (old != NULL)
            break;
    }
    store_version_drop(s, old);
    return 0;
}

void store_info(struct store *s, struct store_info *out)
{
    memset(out, 0, sizeof *out);
    mtx_lock(&s->lock);
    out->state = s->state;
    if (s->current != NULL) {
        out->serial = s->current->version.serial;
        out->nbytes = s->current->version.nbytes;
        memcpy(out->label, s->current->version.label, sizeof out->label);
    }
    out->n_live = s->n_live;
    out->committed_at_us = s->committed_at_us;
    out->n_commits = s->n_commits;
    mtx_unlock(&s->lock);
}

bool store_label_of(struct store *s, uint64_t serial, char *out)
{
    const struct label_kept *kept = &s->labels[serial % STORE_LABELS_KEPT];
    bool found;

    mtx_lock(&s->lock);
    found = serial != 0 && kept->serial == serial;
    if (found)
        memcpy(out, kept->label, sizeof kept->label);
    mtx_unlock(&s->lock);
    return found;
}

struct checksum store_checksum(struct store *s, const struct version *v, uint32_t index)
{
    struct version_owned *o = (struct version_owned *)(uintptr_t)v;
    struct sum_slot *slot = &o->sums[index];
    struct checksum sum;
    unsigned char empty = SUM_EMPTY;

    assert(index < o->n_tensors);
    if (atomic_load_explicit(&slot->state, memory_order_acquire) == SUM_READY)
        return slot->sum;
    sum = checksum_of(v->views[index].data, s->manifest->plan->tensors[index].nbytes);
    if (atomic_compare_exchange_strong(&slot->state, &empty, SUM_WRITING)) {
        slot->sum = sum;
        atomic_store_explicit(&slot->state, SUM_READY, memory_order_release);
    }
    return sum;
}
