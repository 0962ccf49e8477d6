/* One lock guards the table of engines. Each report and each operation is a change of the table
 * (fleet_change_begin, fleet_change_end); which engines are in rotation follows from the table.
 * This file has the table, its changes and the pause. Reports are in fleet_reports.c, fences in
 * fleet_fence.c, the fleet's version in fleet_version.c, permits in fleet_permits.c, and what users
 * see of the state in fleet_info.c. */
#include "fleet/members/fleet_priv.h"

#include "base/clock.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* [splitmix64] */
uint64_t fleet_hash_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
    x = (x ^ x >> 27) * 0x94d049bb133111ebU;
    return x ^ x >> 31;
}

const char *fleet_remedy(const struct fleet *f)
{
    return f->cfg.staged ? "this server hands it the version (--stage)" : "push a whole update";
}

const char *fleet_remedy_or_resync(const struct fleet *f)
{
    return f->cfg.staged ? fleet_remedy(f)
                         : "push a whole update, or resync it (/v1/upstreams/resync) if it serves "
                           "that version";
}

static void upstream_join_locked(struct fleet *f, size_t upstream, const char *name)
{
    struct upstream *u = &f->upstreams[upstream];
    bool same = name != NULL && u->name != NULL && strcmp(name, u->name) == 0;
    struct upstream fresh = {.name = name,
                             .requires_adapters = f->requires_adapters,
                             .out = OUT_JOINED | (same ? u->out & OUT_FENCES : 0),
                             .fence_incarnation = u->fence_incarnation,
                             .asleep = same && u->asleep,
                             .incarnation = u->incarnation + 1,
                             .join_incarnation = u->incarnation + 1,
                             .adapters_change = u->adapters_change,
                             .n_overwrites = u->n_overwrites,
                             .join_order = ++f->n_joined};

    fresh.hash = name != NULL ? fleet_affinity(name) : fleet_hash_mix(upstream);
    memcpy(fresh.n_outstanding, u->n_outstanding, sizeof fresh.n_outstanding);
    if (f->quiesced)
        upstream_state_apply(&fresh.out, UPSTREAM_ON_PAUSE_MISSED);
    if (fleet_is_out(&fresh, OUT_FENCES)) {
        fresh.why[WHY_FENCED] = u->why[WHY_FENCED];
    } else if (f->serial > 0) {
        FLEET_SET_WHY(&fresh, WHY_WEIGHTS, "it was added after version '%s' was committed: %s",
                      f->label, fleet_remedy_or_resync(f));
    }
    fresh.state = fresh.last_seen = fleet_state_of(&fresh);
    *u = fresh;
}

int fleet_new(struct fleet **out, const struct fleet_cfg *cfg, struct err *e)
{
    struct fleet *f = calloc(1, sizeof *f);

    assert(cfg->n_upstreams <= FLEET_MAX);
    if (f != NULL)
        f->upstreams = calloc(FLEET_MAX, sizeof *f->upstreams);
    if (f == NULL || f->upstreams == NULL) {
        free(f);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the upstreams");
    }
    mtx_init(&f->lock, MTX_ADMISSION);
    cnd_init(&f->idle);
    cnd_init(&f->before_settled);
    for (size_t queue = 0; queue < FLEET_QUEUES; queue++)
        f->queues[queue].tail = &f->queues[queue].head;
    f->n = cfg->n_upstreams;
    f->weights_epoch = 1; /* 0 is none */
    f->min_ready = cfg->min_ready;
    for (size_t i = 0; i < FLEET_MAX; i++)
        f->upstreams[i].out = OUT_JOINED;
    for (size_t i = 0; i < f->n; i++)
        upstream_join_locked(f, i, cfg->names != NULL ? cfg->names[i] : NULL);
    f->cfg = *cfg;
    f->cfg.names = NULL; /* the array is the caller's */
    *out = f;
    return 0;
}

void fleet_free(struct fleet *f)
{
    if (f == NULL)
        return;
    for (size_t queue = 0; queue < FLEET_QUEUES; queue++)
        assert(f->queues[queue].n_waiting == 0 && f->queues[queue].n_running == 0);
    cnd_fini(&f->idle);
    cnd_fini(&f->before_settled);
    mtx_fini(&f->lock);
    free(f->upstreams);
    free(f);
}

struct fleet_name fleet_name(const struct fleet *f, size_t upstream)
{
    const char *name = f->upstreams[upstream].name;
    struct fleet_name w;

    if (name != NULL)
        (void)snprintf(w.text, sizeof w.text, "%s", name);
    else
        (void)snprintf(w.text, sizeof w.text, "upstream %zu", upstream);
    return w;
}

static void rotation_snapshot(const struct fleet *f, size_t n, struct fleet_rotation *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (struct fleet_rotation){fleet_is_reliable(&f->upstreams[i]),
                                         fleet_in_rotation(&f->upstreams[i])};
}

void fleet_change_begin(struct fleet *f, struct fleet_change *c)
{
    mtx_lock(&f->lock);
    c->n = f->n;
    rotation_snapshot(f, c->n, c->before);
}

/* Reports engines that are not reliable any more, and that no engine is left in rotation. */
void fleet_change_end(struct fleet *f, struct fleet_change *c)
{
    bool closed = false, opened = false, any;

    fleet_decide_version_locked(f);
    for (size_t i = 0; i < f->n; i++)
        fleet_describe_whys_locked(f, &f->upstreams[i]);
    rotation_snapshot(f, c->n, c->after);
    any = fleet_any_serving_locked(f);
    mtx_unlock(&f->lock);
    for (size_t i = 0; i < c->n; i++) {
        bool lost = c->before[i].reliable && !c->after[i].reliable;

        if (lost && f->cfg.left_rotation != NULL)
            f->cfg.left_rotation(f->cfg.arg, i);
        closed = closed || (!lost && c->before[i].in_rotation && !c->after[i].in_rotation);
        opened = opened || (!c->before[i].in_rotation && c->after[i].in_rotation);
    }
    if (closed && !any && f->cfg.left_rotation != NULL)
        f->cfg.left_rotation(f->cfg.arg, FLEET_MAX);
    if (opened)
        fleet_grant_all(f);
    fleet_report_states(f);
}

void fleet_add(struct fleet *f, size_t upstream, const char *name)
{
    mtx_lock(&f->lock);
    assert(upstream < FLEET_MAX && upstream <= f->n);
    assert(upstream == f->n || fleet_is_out(&f->upstreams[upstream], OUT_REMOVED));
    upstream_join_locked(f, upstream, name);
    if (upstream == f->n)
        f->n++;
    mtx_unlock(&f->lock);
}

void fleet_remove(struct fleet *f, size_t upstream)
{
    struct fleet_change c;

    fleet_change_begin(f, &c);
    assert(upstream < f->n);
    fleet_apply_event(f, &f->upstreams[upstream], UPSTREAM_ON_REMOVED);
    fleet_change_end(f, &c);
}

void fleet_set_min_ready(struct fleet *f, size_t min_ready)
{
    struct fleet_change c;

    fleet_change_begin(f, &c);
    f->min_ready = min_ready;
    fleet_change_end(f, &c);
}

static void clear_pause_missed_locked(const struct fleet *f, struct upstream *u)
{
    fleet_apply_event(f, u, UPSTREAM_ON_PAUSE_CLEARED);
}

void fleet_confirm_quiesced(struct fleet *f, size_t upstream, uint64_t incarnation)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;

    fleet_change_begin(f, &c);
    if (u->incarnation == incarnation)
        clear_pause_missed_locked(f, u);
    fleet_change_end(f, &c);
}

/* The caller sends the pause to the engines that are alive. */
void fleet_quiesce(struct fleet *f, bool on, uint64_t order)
{
    struct fleet_change c;
    bool changes;

    fleet_change_begin(f, &c);
    changes = order > f->quiesce_order && on != f->quiesced;
    for (size_t i = 0; i < f->n && changes; i++) {
        struct upstream *u = &f->upstreams[i];

        clear_pause_missed_locked(f, u);
        if (on && !fleet_is_alive(u))
            fleet_apply_event(f, u, UPSTREAM_ON_PAUSE_MISSED);
    }
    if (changes)
        f->quiesced = on;
    if (order > f->quiesce_order)
        f->quiesce_order = order;
    fleet_change_end(f, &c);
}

void fleet_set_pause_queue(struct fleet *f, size_t upstream, bool has_pause_queue)
{
    mtx_lock(&f->lock);
    f->upstreams[upstream].no_pause_queue = !has_pause_queue;
    mtx_unlock(&f->lock);
}

void fleet_hold_generates(struct fleet *f, bool on, uint64_t order)
{
    bool ends = false;

    mtx_lock(&f->lock);
    if (order > f->hold_order) {
        f->hold_order = order;
        ends = f->generates_held && !on;
        f->generates_held = on;
    }
    mtx_unlock(&f->lock);
    if (ends)
        fleet_grant_all(f);
}
