/* One lock guards the table of engines. Each report and each operation is a change of the table
 * (fleet_change_begin, fleet_change_end); which engines are in rotation follows from the table.
 * This file has the table and the pause, fleet_change.c its changes. Reports are in
 * fleet_reports.c, fences in fleet_fence.c, the fleet's version in fleet_decide.c and
 * fleet_version.c, permits in fleet_permits.c, and what users see of the state in fleet_info.c. */
#include "fleet/members/fleet_priv.h"

#include "base/clock.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One that was removed keeps what a process would keep: it may be the same one. */
static void upstream_join_locked(struct fleet *f, struct upstream *u)
{
    struct upstream_error broken = u->why[REASON_BROKEN];
    bool joined_before = u->join_order > 0;

    u->label_known = u->down = false;
    u->key_rejected[FLEET_AUTH_PROBE] = u->key_rejected[FLEET_AUTH_REQUEST] = false;
    u->join_order = ++f->n_joined;
    u->hash = fleet_affinity(upstream_name(u));
    atomic_store_explicit(&u->removed, false, memory_order_release);
    u->probe_ok_us = u->n_failures = u->n_granted = 0;
    u->n_failures_in_row = u->n_probe_failures = 0;
    u->update_id[0] = '\0';
    u->report = (struct upstream_report){0};
    u->no_answer = (struct upstream_error){0};
    memset(u->why, 0, sizeof u->why);
    u->why[REASON_BROKEN] = broken; /* if it still is */
    if (u->fleet == NULL)           /* one that is added again has it already, and readers */
        u->fleet = f;
    fleet_reset_locked(u, false);
    if (joined_before && fleet_hides_sleep(u) && u->have.gate != GATE_NOT_RESUMED)
        u->have.gate = GATE_UNKNOWN; /* another server may have had it meanwhile */
    u->have.weights.serial = 0;
    if (u->have.weights.fault == FAULT_WRONG)
        u->have.weights.fault = FAULT_TORN; /* not known to be another process */
    if (upstream_caps_of(u)->wakes_twice)
        have_missed_wake(&u->have, &f->woken);
    u->reports_us = u->n_unreported = 0;
    u->n_reports = 0;
    u->quiesced_incarnation = 0;
    u->switching = SWITCH_NO_PART;
    if (u->have.weights.fault == FAULT_NONE && f->serial > 0)
        FLEET_SET_WHY(u, REASON_OTHER_WEIGHTS, "it was added after version '%s' was committed: %s",
                      f->label, fleet_remedy_or_resync(f));
    fleet_derive_locked(f, u);
    u->state = u->last_seen = upstream_state_of(u->out);
}

static struct upstream_list *first_list(const struct fleet_cfg *cfg)
{
    struct upstream_list *list = upstream_list_new(cfg->n_upstreams);

    for (size_t i = 0; list != NULL && i < cfg->n_upstreams; i++) {
        struct upstream *u = upstream_new(cfg->configs[i]);

        if (u == NULL) {
            upstream_list_unref(list);
            return NULL;
        }
        upstream_list_add(list, u);
        upstream_unref(u);
    }
    return list;
}

const char *fleet_queue_name(enum fleet_queue queue)
{
    return queue == FLEET_TEXT ? "text" : "generate";
}

int fleet_new(struct fleet **out, const struct fleet_cfg *cfg, struct err *e)
{
    struct fleet *f = calloc(1, sizeof *f);

    assert(cfg->n_upstreams <= FLEET_MAX);
    if (f != NULL)
        f->list = first_list(cfg);
    if (f == NULL || f->list == NULL) {
        free(f);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the upstreams");
    }
    mtx_init(&f->lock, MTX_ADMISSION);
    cnd_init(&f->idle);
    cnd_init(&f->before_settled);
    for (size_t queue = 0; queue < FLEET_QUEUES; queue++)
        ticket_queue_init(&f->queues[queue]);
    f->weights_epoch = 1; /* 0 is none */
    f->min_ready = cfg->min_ready;
    for (size_t i = 0; i < f->list->n; i++)
        upstream_join_locked(f, f->list->items[i]);
    f->cfg = *cfg;
    f->cfg.configs = NULL; /* the array is the caller's */
    *out = f;
    return 0;
}

void fleet_free(struct fleet *f)
{
    if (f == NULL)
        return;
    for (size_t queue = 0; queue < FLEET_QUEUES; queue++)
        assert(f->queues[queue].n_waiting == 0 && f->queues[queue].n_running == 0);
    upstream_list_unref(f->list);
    fleet_adapters_fini(&f->adapters);
    cnd_fini(&f->idle);
    cnd_fini(&f->before_settled);
    mtx_fini(&f->lock);
    free(f);
}

int fleet_list_by(struct fleet *f, uint64_t deadline_us, struct upstream_list **out, struct err *e)
{
    if (mtx_lock_by(&f->lock, deadline_us, e) != 0)
        return -1;
    *out = upstream_list_ref(f->list);
    mtx_unlock(&f->lock);
    return 0;
}

struct upstream_list *fleet_list(struct fleet *f)
{
    struct upstream_list *list = NULL;

    (void)fleet_list_by(f, CLOCK_NEVER, &list, NULL);
    return list;
}

bool fleet_is_lost(const struct fleet_ticket *t)
{
    return t->n_lost != atomic_load_explicit(&t->upstream->n_lost, memory_order_relaxed);
}

/* @grown  empty, with room */
static void fill_list(struct upstream_list *grown, const struct upstream_list *from,
                      const struct upstream *drop, struct upstream *u)
{
    for (size_t i = 0; i < from->n; i++)
        if (from->items[i] != drop)
            upstream_list_add(grown, from->items[i]);
    upstream_list_add(grown, u);
}

void fleet_add(struct fleet *f, struct upstream *u, struct upstream_list *grown,
               const struct upstream *drop)
{
    struct upstream_list *before = NULL;

    mtx_lock(&f->lock);
    assert(grown != NULL || upstream_is_removed(u));
    upstream_join_locked(f, u);
    if (grown != NULL) {
        fill_list(grown, f->list, drop, u);
        before = f->list;
        f->list = grown;
        if (drop != NULL)
            fleet_forget_adapters_locked(f);
    }
    mtx_unlock(&f->lock);
    upstream_list_unref(before);
}

void fleet_remove(struct fleet *f, struct upstream *u)
{
    fleet_change_begin(f);
    assert(!upstream_is_removed(u));
    atomic_store_explicit(&u->removed, true, memory_order_release);
    fleet_derive_adapters_of_locked(u);
    fleet_change_end(f);
}

void fleet_set_min_ready(struct fleet *f, size_t min_ready)
{
    fleet_change_begin(f);
    f->min_ready = min_ready;
    fleet_change_end(f);
}

void fleet_confirm_quiesced(struct fleet *f, struct upstream *u, uint64_t incarnation)
{

    fleet_change_begin(f);
    if (u->incarnation == incarnation)
        u->quiesced_incarnation = incarnation;
    fleet_change_end(f);
}

/* The caller sends the pause to the engines that are alive. */
void fleet_set_still(struct fleet *f, const struct fleet_still *still)
{
    bool ends = false;

    fleet_change_begin(f);
    if (still->order > f->still.order) {
        for (size_t i = 0; i < f->list->n && still->quiesced != f->still.quiesced; i++) {
            struct upstream *u = f->list->items[i];

            u->quiesced_incarnation = fleet_is_alive(u) ? u->incarnation : 0;
        }
        ends = f->still.holds_generates && !still->holds_generates;
        f->still = *still;
    }
    fleet_change_end(f);
    if (ends)
        fleet_grant_all(f);
}
