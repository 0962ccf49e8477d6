/* The state, and the leases that end by themselves. */
#include "fleet/fleet_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXPIRY_RETRY_US = 1000000 };

static void on_reschedule(void *arg);
static void on_due(void *arg);
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
    fc->missed_pause_due_us = CLOCK_NEVER;
    fc->reschedule = (struct loop_item){.run = on_reschedule, .arg = fc};
    fc->expiry_timer = (struct loop_timer){.fire = on_due, .arg = fc};
    fleet_reconcile_init(fc);
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
    fleet_adapters_fini(&fc->adapters);
    cnd_fini(&fc->changed);
    mtx_fini(&fc->lock);
    free(fc);
}

/* the groups with the trainer */

static bool is_named(const struct fleet_group *g, const char *name)
{
    return strcmp(g->name, name) == 0 ||
           (g->name[0] == '\0' && strcmp(name, SGLANG_GROUP_NAME) == 0);
}

struct fleet_group *fleet_group_locked(struct fleet_control *fc, const char *name)
{
    if (name == NULL)
        return fc->n_groups > 0 ? &fc->groups[fc->n_groups - 1] : NULL;
    for (size_t i = 0; i < fc->n_groups; i++)
        if (is_named(&fc->groups[i], name))
            return &fc->groups[i];
    return NULL;
}

/* who stands still, and who is asked for tokens */

/* The last word is of what is so: one is told under the lock, the other knows the order. */
void fleet_apply_quiesce(struct fleet_control *fc)
{
    bool still, prepare_begun, paused;
    uint64_t order;

    mtx_lock(&fc->lock);
    order = ++fc->quiesce_order;
    prepare_begun = fc->session != NULL && fc->session->prepare_begun;
    paused = prepare_begun || fc->n_adapters_replacing > 0;
    still = pause_is_held(&fc->pause) || fc->weights_asleep || fc->kv_asleep ||
            fc->n_probe_suspensions > 0;
    upstreams_enable_generation_probes(fc->upstreams, !still && !prepare_begun);
    mtx_unlock(&fc->lock);
    fleet_quiesce(fleet_of(fc), still, order);
    fleet_hold_generates(fleet_of(fc), still || paused, order);
}

void fleet_adapter_replacing(struct fleet_control *fc, bool on)
{
    mtx_lock(&fc->lock);
    if (on)
        fc->n_adapters_replacing++;
    else
        fc->n_adapters_replacing--;
    mtx_unlock(&fc->lock);
    fleet_apply_quiesce(fc);
}

void fleet_suspend_generation_probes(struct fleet_control *fc, bool on)
{
    mtx_lock(&fc->lock);
    if (on)
        fc->n_probe_suspensions++;
    else
        fc->n_probe_suspensions--;
    mtx_unlock(&fc->lock);
    fleet_apply_quiesce(fc);
}

/* who is there */

size_t fleet_reachable(struct fleet_control *fc, const json_t *body, struct fleet_target *targets)
{
    size_t n = upstreams_n(fc->upstreams), n_alive = 0;
    struct upstream_info info;
    struct upstream_endpoint at;

    for (size_t i = 0; i < n && i < FLEET_MAX; i++) {
        upstreams_get(fc->upstreams, i, &at);
        fleet_info(fleet_of(fc), i, &info);
        if (!at.removed && info.alive)
            targets[n_alive++] = (struct fleet_target){.upstream = i, .body = body};
    }
    return n_alive;
}

size_t fleet_min_ready(struct fleet_control *fc)
{
    struct fleet_stats stats;

    fleet_stats(fleet_of(fc), &stats);
    return stats.min_ready;
}

static void name_down(struct fleet_control *fc, char *out, size_t cap)
{
    size_t n = upstreams_n(fc->upstreams), len = 0;
    struct upstream_info info;
    struct upstream_endpoint at;

    out[0] = '\0';
    for (size_t i = 0; i < n && len < cap; i++) {
        upstreams_get(fc->upstreams, i, &at);
        fleet_info(fleet_of(fc), i, &info);
        if (!at.removed && !info.alive)
            len += (size_t)snprintf(out + len, cap - len, "%s%s", len > 0 ? ", " : "", at.name);
    }
}

int fleet_reachable_quorum(struct fleet_control *fc, const json_t *body,
                           struct fleet_target *targets, size_t *n, struct err *e)
{
    size_t min_ready = fleet_min_ready(fc);
    char down[ERR_MSG_MAX / 2];

    *n = fleet_reachable(fc, body, targets);
    if (*n >= min_ready)
        return 0;
    name_down(fc, down, sizeof down);
    return err_set(e, ERR_UNSYNCED, "",
                   "upstreams that answer: %zu, and --min-ready is %zu: nothing was done; down: %s",
                   *n, min_ready, down);
}

uint64_t fleet_update_us(const struct fleet_control *fc)
{
    return fc->cfg.update_us;
}

/* JSON */

int fleet_json_set(json_t *reply, const char *member, json_t *value)
{
    return json_object_set_new(reply, member, value);
}

json_t *fleet_result_json(const char *name, bool ok, int status, const char *error)
{
    return json_pack("{s:s, s:b, s:o, s:s?}", "upstream", name, "ok", (int)ok, "status",
                     status > 0 ? json_integer(status) : json_null(), "error", error);
}

/* Of one that nobody asked. */
static json_t *absent_json(struct fleet_control *fc, size_t i, const struct upstream_endpoint *at)
{
    struct upstream_info info;
    char why[ERR_MSG_MAX + 32];

    fleet_info(fleet_of(fc), i, &info);
    (void)snprintf(why, sizeof why, "it is %s%s%s", upstream_state_name(info.state),
                   info.error.code != ERR_NONE ? ": " : "", info.error.msg);
    return fleet_result_json(at->name, false, 0, info.alive ? "it was not asked" : why);
}

json_t *fleet_results_json(struct fleet_control *fc, const struct fleet_result *results, size_t n)
{
    size_t n_all = upstreams_n(fc->upstreams);
    json_t *list = json_array();
    struct upstream_endpoint at;

    for (size_t i = 0; i < n_all; i++) {
        const struct fleet_result *s = NULL;
        json_t *one;

        upstreams_get(fc->upstreams, i, &at);
        for (size_t k = 0; k < n; k++)
            if (results[k].upstream == i)
                s = &results[k];
        if (s == NULL && at.removed)
            continue;
        one = s == NULL ? absent_json(fc, i, &at)
                        : fleet_result_json(at.name,
                                            s->outcome == FLEET_OK || s->outcome == FLEET_SKIPPED,
                                            s->status, s->why.code != ERR_NONE ? s->why.msg : NULL);
        if (json_array_append_new(list, one) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* leases */

static uint64_t due_locked(const struct fleet_control *fc)
{
    uint64_t due = fc->pause.lease.end_us;
    const struct fleet_session *s = fc->session;

    if (s != NULL && fleet_session_is_open(s) && s->n_running == 0 &&
        s->phase != UPDATE_VERIFYING && s->lease_until_us < due)
        due = s->lease_until_us;
    if (fc->missed_pause_due_us < due)
        due = fc->missed_pause_due_us;
    return fc->expiring ? CLOCK_NEVER : due;
}

static void on_reschedule(void *arg)
{
    struct fleet_control *fc = arg;
    uint64_t due;

    mtx_lock(&fc->lock);
    due = due_locked(fc);
    mtx_unlock(&fc->lock);
    if (due == CLOCK_NEVER)
        loop_timer_cancel(upstreams_loop(fc->upstreams), &fc->expiry_timer);
    else
        loop_timer_set(upstreams_loop(fc->upstreams), &fc->expiry_timer, due);
}

void fleet_reschedule(struct fleet_control *fc)
{
    loop_post(upstreams_loop(fc->upstreams), &fc->reschedule);
}

/* The work waits for upstreams, so it is not this thread's. A pool that ends has nobody left whose
 * lease it could be. */
static void on_due(void *arg)
{
    struct fleet_control *fc = arg;
    struct err ignored = {0};

    mtx_lock(&fc->lock);
    fc->expiring = true;
    fc->expiry = (struct job){.run = expiry_run, .arg = fc};
    mtx_unlock(&fc->lock);
    (void)workers_post(fc->cfg.abort, &fc->expiry, WORKERS_URGENT, &ignored);
}

/* While an end is under way its trainer waits for it. */
bool fleet_lease_expired_locked(const struct fleet_session *s)
{
    return fleet_session_is_open(s) && s->n_running == 0 && s->phase != UPDATE_VERIFYING &&
           s->lease_until_us <= clock_now_us();
}

static void end_session(struct fleet_control *fc)
{
    struct fleet_session *s = fleet_open_session(fc);
    bool over;

    if (s == NULL)
        return;
    mtx_lock(&fc->lock);
    over = fleet_lease_expired_locked(s);
    mtx_unlock(&fc->lock);
    if (over)
        fleet_expire_update(fc, s);
    fleet_unref(fc, s);
}

bool fleet_pause_expired_locked(const struct fleet_control *fc)
{
    return lease_timer_expired(&fc->pause.lease);
}

static void end_hold(struct fleet_control *fc)
{
    struct fleet_result *results = NULL;
    struct err ignored = {0};
    bool over, was;
    size_t n = 0;

    mtx_lock(&fc->lock);
    over = fleet_pause_expired_locked(fc);
    mtx_unlock(&fc->lock);
    if (!over)
        return;
    if (fleet_resume_all(fc, true, &results, &n, &was, &ignored) == 0) {
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

    end_session(fc);
    end_hold(fc);
    fleet_send_missed_pauses(fc);
    mtx_lock(&fc->lock);
    fc->expiring = false;
    mtx_unlock(&fc->lock);
    fleet_reschedule(fc);
}
