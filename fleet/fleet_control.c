/* The state of a fleet's control plane, and what follows when a lease ends. */
#include "fleet/fleet_priv.h"

#include "base/log.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXPIRY_RETRY_US = 1000000 };

static void on_reschedule(void *arg);
static void on_expiry(void *arg);
static void expiry_run(void *arg);

int fleet_control_new(struct fleet_control **out, const struct fleet_control_cfg *cfg,
                      struct err *e)
{
    struct fleet_control *fc = calloc(1, sizeof *fc);

    if (fc == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to control the upstreams");
    mtx_init(&fc->lock, MTX_UPDATES);
    cnd_init(&fc->changed);
    fc->cfg = *cfg;
    fc->upstreams = cfg->upstreams;
    pause_init(&fc->pause);
    fc->paused.missed_due_us = CLOCK_NEVER;
    fc->expiry.reschedule = (struct loop_item){.run = on_reschedule, .arg = fc};
    fc->expiry.timer = (struct loop_timer){.fire = on_expiry, .arg = fc};
    for (size_t i = 0; i < FLEET_MAX; i++)
        fc->update_in_doubt[i] = true; /* an earlier server may have left one open */
    fleet_reconcile_init(fc);
    fleet_fence_pause_init(fc);
    if (fleet_proof_init(fc, e) != 0) {
        cnd_fini(&fc->changed);
        mtx_fini(&fc->lock);
        free(fc);
        return -1;
    }
    *out = fc;
    return 0;
}

void fleet_control_free(struct fleet_control *fc)
{
    if (fc == NULL)
        return;
    fleet_session_unref(fc->session);
    for (size_t i = 0; i < FLEET_ENDED_SESSIONS_MAX; i++)
        fleet_session_unref(fc->ended[i]);
    fleet_spec_unref(fc->spec);
    fleet_transfer_clear(&fc->transfer);
    fleet_adapters_fini(&fc->adapters);
    fleet_proof_fini(fc);
    cnd_fini(&fc->changed);
    mtx_fini(&fc->lock);
    free(fc);
}

/* quiesce */

/* Threads that call this at the same time may reach fleet_quiesce in any order, so it gets a number
 * and ignores older ones. Probes are switched under the lock and need none. */
void fleet_apply_quiesce(struct fleet_control *fc)
{
    bool quiesced, prepare_begun, paused;
    uint64_t order;

    mtx_lock(&fc->lock);
    order = ++fc->quiesce.order;
    prepare_begun = fc->session != NULL && fc->session->prepare_begun && !fc->session->repair;
    paused = prepare_begun || fc->quiesce.n_adapters_replacing > 0;
    quiesced = pause_is_held(&fc->pause) || fc->sleep.weights || fc->sleep.kv ||
               fc->quiesce.n_probe_suspensions > 0;
    upstreams_enable_generation_probes(fc->upstreams, !quiesced && !prepare_begun);
    mtx_unlock(&fc->lock);
    fleet_quiesce(fleet_of(fc), quiesced, order);
    fleet_hold_generates(fleet_of(fc), quiesced || paused, order);
}

void fleet_adapter_replacing(struct fleet_control *fc, bool on)
{
    mtx_lock(&fc->lock);
    if (on)
        fc->quiesce.n_adapters_replacing++;
    else
        fc->quiesce.n_adapters_replacing--;
    mtx_unlock(&fc->lock);
    fleet_apply_quiesce(fc);
}

void fleet_suspend_generation_probes(struct fleet_control *fc, bool on)
{
    mtx_lock(&fc->lock);
    if (on)
        fc->quiesce.n_probe_suspensions++;
    else
        fc->quiesce.n_probe_suspensions--;
    mtx_unlock(&fc->lock);
    fleet_apply_quiesce(fc);
}

struct fleet *fleet_of(const struct fleet_control *fc)
{
    return upstreams_fleet(fc->upstreams);
}

/* reachable engines */

size_t fleet_reachable(struct fleet_control *fc, const json_t *body, struct fleet_target *targets)
{
    size_t n = upstreams_n(fc->upstreams), n_reachable = 0;
    struct upstream_info info;
    struct upstream_endpoint at;

    for (size_t i = 0; i < n && i < FLEET_MAX; i++) {
        upstreams_get(fc->upstreams, i, &at);
        fleet_info(fleet_of(fc), i, &info);
        if (!at.removed && info.alive)
            targets[n_reachable++] = (struct fleet_target){.upstream = i, .body = body};
    }
    return n_reachable;
}

size_t fleet_min_ready(struct fleet_control *fc)
{
    struct fleet_stats stats;

    fleet_stats(fleet_of(fc), &stats);
    return stats.min_ready;
}

/* "; down: http://a, http://b" of those that were probed, or were not yet; "" if there are none. */
static void list_unreachable(struct fleet_control *fc, bool probed, char *out, size_t cap)
{
    size_t n = upstreams_n(fc->upstreams), len = 0;
    struct upstream_info info;
    struct upstream_endpoint at;

    out[0] = '\0';
    for (size_t i = 0; i < n && len < cap; i++) {
        upstreams_get(fc->upstreams, i, &at);
        fleet_info(fleet_of(fc), i, &info);
        if (at.removed || info.alive || upstream_info_is_probed(&info) != probed)
            continue;
        len += (size_t)snprintf(out + len, cap - len, "%s%s",
                                len > 0  ? ", "
                                : probed ? "; down: "
                                         : "; not yet probed: ",
                                at.name);
    }
}

int fleet_reachable_quorum(struct fleet_control *fc, const json_t *body,
                           struct fleet_target *targets, size_t *n, struct err *e)
{
    struct fleet_stats stats;
    char down[ERR_MSG_MAX / 2], unprobed[ERR_MSG_MAX / 2];

    fleet_stats(fleet_of(fc), &stats);
    *n = fleet_reachable(fc, body, targets);
    if (*n >= stats.min_ready)
        return 0;
    if (stats.n_upstreams == 0)
        return err_set(e, ERR_UNSYNCED, "",
                       "there is no upstream yet: add one by POST /v1/upstreams; nothing was sent");
    list_unreachable(fc, true, down, sizeof down);
    list_unreachable(fc, false, unprobed, sizeof unprobed);
    return err_set(e, ERR_UNSYNCED, "",
                   "%zu of %zu upstreams are reachable, --min-ready is %zu: nothing was sent%s%s",
                   *n, stats.n_upstreams, stats.min_ready, down, unprobed);
}

uint64_t fleet_update_us(const struct fleet_control *fc)
{
    return fc->cfg.update_us;
}

/* sleep and readiness */

void fleet_get_sleep(struct fleet_control *fc, struct fleet_sleep *out)
{
    mtx_lock(&fc->lock);
    *out = fc->sleep;
    mtx_unlock(&fc->lock);
}

void fleet_set_sleep(struct fleet_control *fc, bool weights, bool kv, int level)
{
    assert(fleet_owns_op_lock(fc));
    mtx_lock(&fc->lock);
    if (weights)
        fc->sleep.weights = level > 0;
    if (kv)
        fc->sleep.kv = level > 0;
    if (weights && level > 0)
        fc->sleep.level = level;
    mtx_unlock(&fc->lock);
}

/* Engines in rotation that the open update keeps paused: they accept requests and process none. */
static size_t n_held_locked(struct fleet_control *fc)
{
    const struct fleet_session *s = fc->session;
    struct upstream_info info;
    size_t n = 0;

    for (size_t i = 0; s != NULL && i < s->n_parts; i++) {
        if (!s->parts[i].paused)
            continue;
        fleet_info(fleet_of(fc), s->parts[i].upstream, &info);
        n += info.state == UPSTREAM_SERVING;
    }
    return n;
}

int fleet_check_serving(struct fleet_control *fc, const struct fleet_stats *s, struct err *why)
{
    int rc = 0;
    size_t n_held;

    mtx_lock(&fc->lock);
    n_held = n_held_locked(fc);
    if (fc->sleep.weights || fc->sleep.kv)
        rc = err_set(why, ERR_ASLEEP, "", "the upstreams are asleep (level %d)", fc->sleep.level);
    else if (pause_is_held(&fc->pause))
        rc = err_set(why, ERR_PAUSED, "", "generation is paused by '%s' (%s)", fc->pause.owner,
                     lifecycle_pause_name(fc->pause.mode));
    else if (n_held == 0 && s->n_serving < s->min_ready)
        rc = err_set(why, ERR_UNSYNCED, "",
                     "%zu upstreams serve, %zu are needed: 'baton upstreams' (GET /v1/upstreams) "
                     "has the reason of each",
                     s->n_serving, s->min_ready);
    else if (n_held > s->n_serving || s->n_serving - n_held < s->min_ready)
        rc = err_set(why, ERR_PAUSED, "",
                     "an update holds %zu of the %zu upstreams that serve, %zu are needed", n_held,
                     s->n_serving, s->min_ready);
    mtx_unlock(&fc->lock);
    return rc;
}

/* leases */

static uint64_t due_locked(const struct fleet_control *fc)
{
    uint64_t due = fc->pause.lease.end_us;
    const struct fleet_session *s = fc->session;

    if (s != NULL && fleet_session_is_open(s) && s->n_running == 0 &&
        s->phase != UPDATE_VERIFYING && s->lease.end_us < due)
        due = s->lease.end_us;
    if (fc->paused.missed_due_us < due)
        due = fc->paused.missed_due_us;
    return fc->expiry.running ? CLOCK_NEVER : due;
}

static void on_reschedule(void *arg)
{
    struct fleet_control *fc = arg;
    uint64_t due;

    mtx_lock(&fc->lock);
    due = due_locked(fc);
    mtx_unlock(&fc->lock);
    if (due == CLOCK_NEVER)
        loop_timer_cancel(upstreams_loop(fc->upstreams), &fc->expiry.timer);
    else
        loop_timer_set(upstreams_loop(fc->upstreams), &fc->expiry.timer, due);
}

void fleet_reschedule(struct fleet_control *fc)
{
    loop_post(upstreams_loop(fc->upstreams), &fc->expiry.reschedule);
}

/* The work blocks on engines, so it is a job. The job is refused only when the executor has
 * stopped: then the server stops, and no lease matters. */
static void on_expiry(void *arg)
{
    struct fleet_control *fc = arg;
    struct err ignored = {0};

    mtx_lock(&fc->lock);
    fc->expiry.running = true;
    fc->expiry.job = (struct job){.run = expiry_run, .arg = fc};
    mtx_unlock(&fc->lock);
    (void)workers_post(fc->cfg.abort, &fc->expiry.job, WORKERS_URGENT, &ignored);
}

/* During a verify or a finish the trainer waits for its reply. */
bool fleet_lease_expired_locked(const struct fleet_session *s)
{
    return fleet_session_is_open(s) && s->n_running == 0 && s->phase != UPDATE_VERIFYING &&
           lease_timer_expired(&s->lease);
}

static void expire_session(struct fleet_control *fc)
{
    struct fleet_session *s = fleet_open_session(fc);
    bool expired;

    if (s == NULL)
        return;
    mtx_lock(&fc->lock);
    expired = fleet_lease_expired_locked(s);
    mtx_unlock(&fc->lock);
    if (expired)
        fleet_expire_update(fc, s);
    fleet_unref(fc, s);
}

bool fleet_pause_expired_locked(const struct fleet_control *fc)
{
    return lease_timer_expired(&fc->pause.lease);
}

static void expire_pause(struct fleet_control *fc)
{
    struct fleet_result *results = NULL;
    struct err ignored = {0};
    bool expired, was;
    size_t n = 0;

    mtx_lock(&fc->lock);
    expired = fleet_pause_expired_locked(fc);
    mtx_unlock(&fc->lock);
    if (!expired)
        return;
    if (fleet_resume_all(fc, true, &results, &n, &was, &ignored) == 0) {
        mtx_lock(&fc->lock);
        fc->pause.n_expired += was;
        mtx_unlock(&fc->lock);
        log_event_line(LOG_WARN, "pause.expired",
                       "the lease of a pause expired: generation is resumed");
        fleet_results_free(results, n);
        return;
    }
    mtx_lock(&fc->lock);
    if (fleet_pause_expired_locked(fc))
        fc->pause.lease.end_us = clock_after_us(EXPIRY_RETRY_US);
    mtx_unlock(&fc->lock);
}

static void expiry_run(void *arg)
{
    struct fleet_control *fc = arg;

    expire_session(fc);
    expire_pause(fc);
    fleet_send_missed_pauses(fc);
    mtx_lock(&fc->lock);
    fc->expiry.running = false;
    mtx_unlock(&fc->lock);
    fleet_reschedule(fc);
}
