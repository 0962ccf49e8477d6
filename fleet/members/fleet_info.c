/* What users see of the engines' states: the state now, and the reports of its changes. An engine
 * that changes often is reported FLEET_REPORTS_MAX times within FLEET_REPORTS_US; after that time
 * its state is reported again if it differs. */
#include "fleet/members/fleet_priv.h"

#include "base/clock.h"

#include <string.h>

static bool may_report_locked(struct upstream *u)
{
    uint64_t now = clock_now_us();

    if (u->n_reports > 0 && now - u->reports_us < FLEET_REPORTS_US)
        return u->n_reports < FLEET_REPORTS_MAX;
    u->reports_us = now;
    u->n_reports = 0;
    return true;
}

/* While engines have yet to answer before the fleet's version can be decided, "unsynced" is not
 * reported. "removed" never is: a reload logs it itself. */
static bool is_reportable(enum upstream_state state, bool waits)
{
    return state != UPSTREAM_REMOVED && !(waits && state == UPSTREAM_UNSYNCED);
}

static bool next_change_locked(struct fleet *f, struct fleet_state_change *m)
{
    bool waits = fleet_awaits_probes_locked(f);

    for (size_t i = 0; i < f->list->n; i++) {
        struct upstream *u = f->list->items[i];
        enum upstream_state now = upstream_state_of(u->out);
        struct upstream_error error;

        if (!is_reportable(now, waits))
            continue;
        u->n_unreported += u->last_seen != now && u->last_seen != u->state;
        u->last_seen = now;
        if (now == u->state || !may_report_locked(u))
            continue;
        fleet_error_of(u, &error);
        *m = (struct fleet_state_change){.name = upstream_name(u),
                                         .from = u->state,
                                         .to = now,
                                         .is_last = ++u->n_reports == FLEET_REPORTS_MAX,
                                         .n_unreported = u->n_unreported,
                                         .why = error.why};
        memcpy(m->label,
               fleet_is_synced(f, u) && u->report.label[0] == '\0' ? f->label : u->report.label,
               sizeof m->label);
        u->state = now;
        u->n_unreported = 0;
        return true;
    }
    return false;
}

void fleet_report_states(struct fleet *f)
{
    struct fleet_state_change m;
    bool more;

    if (f->cfg.state_changed == NULL)
        return;
    do {
        mtx_lock(&f->lock);
        more = next_change_locked(f, &m);
        mtx_unlock(&f->lock);
        if (more)
            f->cfg.state_changed(f->cfg.arg, &m);
    } while (more);
}

/* Before the first update one without weights counts as synced. */
static bool wants_seed_locked(const struct fleet *f, const struct upstream *u)
{
    return !f->cfg.staged && u->report.takes_seeds && fleet_may_seed(u) &&
           (!fleet_is_synced(f, u) || have_is_broken(&u->have) ||
            strcmp(u->report.not_ready, "no_weights") == 0);
}

int fleet_info_by(struct fleet *f, struct upstream *u, uint64_t deadline_us,
                  struct upstream_info *out, struct err *e)
{
    if (mtx_lock_by(&f->lock, deadline_us, e) != 0)
        return -1;
    *out = (struct upstream_info){.alive = fleet_is_alive(u) && !u->key_rejected[FLEET_AUTH_PROBE],
                                  .synced = fleet_is_synced(f, u),
                                  .in_step = !fleet_is_out(u, OUT_WRONG_WEIGHTS | OUT_STANDS_STILL),
                                  .may_sleep = fleet_may_sleep(f, u),
                                  .no_probes = f->still.no_probes,
                                  .still_order = f->still.order,
                                  .needs_token = fleet_needs_token(f, u),
                                  .to_wake = fleet_to_wake(f, u),
                                  .have = u->have,
                                  .stale_caches = fleet_has_stale_caches(u),
                                  .wants_seed = wants_seed_locked(f, u),
                                  .incarnation = u->incarnation,
                                  .fenced = u->have.weights.fault != FAULT_NONE,
                                  .removed = upstream_is_removed(u),
                                  .request_auth_failed = u->key_rejected[FLEET_AUTH_REQUEST],
                                  .state = upstream_state_of(u->out),
                                  .out = u->out,
                                  .serial = u->have.weights.serial,
                                  .report = u->report,
                                  .n_granted = u->n_granted,
                                  .n_failures = u->n_failures,
                                  .probe_ok_us = u->probe_ok_us};
    fleet_error_of(u, &out->error);
    memcpy(out->n_outstanding, u->n_outstanding, sizeof out->n_outstanding);
    mtx_unlock(&f->lock);
    return 0;
}

void fleet_info(struct fleet *f, struct upstream *u, struct upstream_info *out)
{
    (void)fleet_info_by(f, u, CLOCK_NEVER, out, NULL);
}

bool upstream_info_is_probed(const struct upstream_info *info)
{
    return info->probe_ok_us != 0 || info->n_failures > 0 || info->request_auth_failed ||
           info->state == UPSTREAM_AUTH_FAILED;
}

int fleet_stats_by(struct fleet *f, uint64_t deadline_us, struct fleet_stats *out, struct err *e)
{
    if (mtx_lock_by(&f->lock, deadline_us, e) != 0)
        return -1;
    memset(out, 0, sizeof *out);
    out->min_ready = f->min_ready;
    for (size_t i = 0; i < f->list->n; i++) {
        out->n_upstreams += !upstream_is_removed(f->list->items[i]);
        out->n_serving += fleet_in_rotation(f->list->items[i]);
    }
    for (size_t queue = 0; queue < FLEET_QUEUES; queue++) {
        out->n_waiting[queue] = f->queues[queue].n_waiting;
        out->n_running[queue] = f->queues[queue].n_running;
        out->n_refused[queue] = f->queues[queue].n_refused;
        out->n_cancelled[queue] = f->queues[queue].n_cancelled;
        if (f->queues[queue].head != NULL)
            out->oldest_us[queue] = f->queues[queue].head->queued_us;
    }
    out->serial = f->serial;
    out->decided = f->serial > 0 || f->decided;
    memcpy(out->label, f->label, sizeof out->label);
    out->ready = out->n_serving >= f->min_ready;
    mtx_unlock(&f->lock);
    return 0;
}

void fleet_stats(struct fleet *f, struct fleet_stats *out)
{
    (void)fleet_stats_by(f, CLOCK_NEVER, out, NULL);
}
