/* Makes and frees a fleet's control plane, and looks at it again and again: at what engines lack,
 * and at leases that end. */
#include "fleet/fleet_root.h"

#include "base/log.h"
#include "fleet/calls/fleet_priv.h"

#include <stdlib.h>

enum {
    LOOK_INTERVAL_US = 250000, /* between two looks */
    EXPIRY_RETRY_US = 1000000
};

static void fleet_root_look(void *arg);
static void expire(struct fleet_control *fc);

static void engine_free(struct fleet_engine *engine)
{
    fleet_prover_fini(&engine->proof);
    window_reader_forget(&engine->window);
    free(engine);
}

/* Makes the control plane's part of an engine that joins. */
static int fleet_engine_join(void *arg, struct upstream *upstream, struct err *e)
{
    struct fleet_engine *engine = calloc(1, sizeof *engine);
    struct fleet_control *fc = arg;

    if (engine == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for an upstream");
    engine->task.fc = engine->proof.fc = fc;
    engine->task.upstream = engine->proof.upstream = upstream;
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
    fc->item = (struct loop_item){.run = fleet_root_look, .arg = fc};
    fc->timer = (struct loop_timer){.fire = fleet_root_look, .arg = fc};
    fc->expiry = (struct fleet_task){.fc = fc, .work = expire};
    fleet_reconcile_init(fc);
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

static void expire(struct fleet_control *fc)
{
    expire_session(fc);
    expire_pause(fc);
}

static bool has_expired_lease(struct fleet_control *fc)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return fleet_pause_expired_locked(fc) ||
           (fc->session != NULL && fleet_lease_expired_locked(fc->session));
}

/* what follows from the passing of time, and from what engines report */

/* On the thread of the upstreams' loop. What waits for engines is a job. */
static void fleet_root_look(void *arg)
{
    struct fleet_control *fc = arg;

    if (has_expired_lease(fc))
        fleet_task_start(&fc->expiry);
    fleet_reconcile_look(fc);
    fleet_proof_look(fc);
    loop_timer_set(upstreams_loop(fc->upstreams), &fc->timer, clock_after_us(LOOK_INTERVAL_US));
}

void fleet_control_watch(struct fleet_control *fc)
{
    loop_post(upstreams_loop(fc->upstreams), &fc->item);
}
