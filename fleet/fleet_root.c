/* Makes and frees a fleet's control plane, and does what follows when a lease ends. */
#include "fleet/fleet_root.h"

#include "base/log.h"
#include "fleet/calls/fleet_priv.h"

#include <stdlib.h>

enum { EXPIRY_RETRY_US = 1000000 };

static void on_reschedule(void *arg);
static void on_expiry(void *arg);
static void expiry_run(void *arg);

static void engine_free(struct fleet_engine *engine)
{
    fleet_prover_fini(&engine->proof);
    window_reader_forget(&engine->window);
    free(engine);
}

int fleet_engine_join(void *arg, struct upstream *upstream, struct err *e)
{
    struct fleet_engine *engine = calloc(1, sizeof *engine);
    struct fleet_control *fc = arg;

    if (engine == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for an upstream");
    engine->reconcile.fc = engine->proof.fc = fc;
    engine->reconcile.upstream = engine->proof.upstream = upstream;
    upstream_set_control(upstream, engine, engine_free);
    return 0;
}

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
    fc->expiry.reschedule = (struct loop_item){.run = on_reschedule, .arg = fc};
    fc->expiry.timer = (struct loop_timer){.fire = on_expiry, .arg = fc};
    fleet_reconcile_init(fc);
    fleet_gate_init(fc);
    if (fleet_proof_init(fc, e) != 0 ||
        upstreams_on_joined(fc->upstreams, fleet_engine_join, fc, e) != 0) {
        fleet_proof_fini(fc);
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
    fleet_proof_fini(fc);
    cnd_fini(&fc->changed);
    mtx_fini(&fc->lock);
    free(fc);
}

/* leases */

static uint64_t due_locked(const struct fleet_control *fc)
{
    uint64_t due = fc->pause.lease.end_us;
    const struct fleet_session *s = fc->session;

    if (s != NULL && fleet_session_is_open(s) && s->n_running == 0 &&
        s->phase != UPDATE_VERIFYING && s->lease.end_us < due)
        due = s->lease.end_us;
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
    (void)workers_post(fc->cfg.executor, &fc->expiry.job, WORKERS_URGENT, &ignored);
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

static void expire_pause(struct fleet_control *fc)
{
    fleet_results_auto results = {0};
    struct err ignored = {0};
    bool expired, was;

    mtx_lock(&fc->lock);
    expired = fleet_pause_expired_locked(fc);
    mtx_unlock(&fc->lock);
    if (!expired)
        return;
    if (fleet_resume_all(fc, true, &results, &was, &ignored) == 0) {
        mtx_lock(&fc->lock);
        fc->pause.n_expired += was;
        mtx_unlock(&fc->lock);
        log_event_line(LOG_WARN, "pause.expired",
                       "the lease of a pause expired: generation is resumed");
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
    mtx_lock(&fc->lock);
    fc->expiry.running = false;
    mtx_unlock(&fc->lock);
    fleet_reschedule(fc);
}
