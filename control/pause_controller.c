/* Pause and resume: one operation at a time changes the pause controller. */
#include "control/pause_controller_priv.h"

#include "base/clock.h"
#include "base/log.h"
#include "control/admission.h"
#include "control/engine.h"
#include "control/generations.h"
#include "control/life.h"
#include "weights/update/update.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pause_controller_begin(struct pause_controller *g)
{
    mtx_lock(&g->lock);
    while (g->busy)
        (void)cnd_wait(&g->changed, &g->lock, CLOCK_NEVER);
    g->busy = true;
    mtx_unlock(&g->lock);
}

void pause_controller_end(struct pause_controller *g)
{
    mtx_lock(&g->lock);
    g->busy = false;
    cnd_broadcast(&g->changed);
    mtx_unlock(&g->lock);
    pause_controller_wake_up(g);
}

bool pause_controller_idle(const struct pause_controller *g)
{
    struct admission_stats s;

    admission_stats(g->cfg.generate, &s);
    return s.n_running == 0 && generations_n_before(g->cfg.generations) == 0;
}

/* Is the pause in effect? If it is idle while admission is held, nothing can start to run. */
static bool is_in_effect_locked(const struct pause_controller *g)
{
    if (g->pause.state == PAUSE_OFF || !g->admission_held)
        return false;
    return g->pause.mode == PAUSE_KEEP ? g->frozen : pause_controller_idle(g);
}

static void pause_controller_fill_info_locked(const struct pause_controller *g,
                                              struct pause_controller_info *out)
{
    struct admission_stats s;

    admission_stats(g->cfg.generate, &s);
    *out = (struct pause_controller_info){.pause = g->pause,
                                          .n_running = s.n_running,
                                          .n_waiting = s.n_waiting,
                                          .acknowledged = is_in_effect_locked(g)};
    out->pause.paused_us = pause_total_us(&g->pause);
}

void pause_controller_info(struct pause_controller *g, struct pause_controller_info *out)
{
    mtx_lock(&g->lock);
    pause_controller_fill_info_locked(g, out);
    mtx_unlock(&g->lock);
}

int pause_controller_pause_by(struct pause_controller *g, uint64_t deadline_us, struct pause *out,
                              struct err *e)
{
    if (mtx_lock_by(&g->lock, deadline_us, e) != 0)
        return -1;
    *out = g->pause;
    mtx_unlock(&g->lock);
    return 0;
}

static enum lifecycle_weights weights_of(enum store_state state)
{
    switch (state) {
    case STORE_UNSYNCED:
        return WEIGHTS_UNSYNCED;
    case STORE_READY:
        return WEIGHTS_SERVED;
    case STORE_ASLEEP:
        return WEIGHTS_ASLEEP;
    case STORE_DROPPED:
    case STORE_STATE_COUNT:
        break;
    }
    return WEIGHTS_DROPPED;
}

static enum lifecycle_update update_of(struct updates *updates)
{
    struct update_info info;

    if (updates == NULL)
        return UPDATE_IS_NONE;
    updates_current(updates, &info);
    if (info.phase == UPDATE_NONE)
        return UPDATE_IS_NONE;
    if (info.yields)
        return UPDATE_IS_SEED;
    return info.phase == UPDATE_VERIFYING ? UPDATE_IS_FINISHING : UPDATE_IS_OPEN;
}

/* The whole state except the update. */
static void state_of_generation(struct pause_controller *g, struct lifecycle_state *out)
{
    struct engine *en = g->cfg.engine;
    struct engine_stats engine = {0};
    struct store_info store;

    store_info(g->cfg.store, &store);
    if (en != NULL)
        engine_stats_get(en, &engine);
    mtx_lock(&g->lock);
    *out = (struct lifecycle_state){.pause = g->pause.mode};
    mtx_unlock(&g->lock);
    out->life = life_state(g->cfg.life);
    out->weights = weights_of(store.state);
    out->kv_released = engine.kv_released;
    out->busy = !pause_controller_idle(g);
}

void pause_controller_state(struct pause_controller *g, struct lifecycle_state *out)
{
    state_of_generation(g, out);
    out->update = update_of(g->cfg.updates);
}

/* The error that names the owner of the pause. */
static void set_paused_error(const struct pause *p, struct err *e)
{
    (void)err_set(e, ERR_PAUSED, "",
                  "generation is paused by '%s' (%s) and new requests are refused until it is "
                  "resumed",
                  p->owner, lifecycle_pause_name(p->mode));
}

int pause_controller_allows(struct pause_controller *g, enum lifecycle_call call, struct err *e)
{
    struct lifecycle_state s;

    state_of_generation(g, &s);
    if (call != CALL_GENERATE && call != CALL_UPDATE_START)
        s.update = update_of(g->cfg.updates);
    if (lifecycle_check(&s, call, e) == 0)
        return 0;
    if (e->code == ERR_UNSYNCED) { /* the store knows why; or it has weights by now */
        err_clear(e);
        return store_readable(g->cfg.store, e) == 0 ? pause_controller_allows(g, call, e) : -1;
    }
    return -1;
}

void pause_controller_apply_admission(struct pause_controller *g)
{
    struct err refusal = {0};
    struct pause_controller_info now;
    bool admission_held;

    pause_controller_info(g, &now);
    admission_held = now.pause.state != PAUSE_OFF;
    if (admission_held && now.pause.reject)
        set_paused_error(&now.pause, &refusal);
    if (admission_held)
        admission_hold(g->cfg.generate,
                       &(struct admission_hold){.refusal = now.pause.reject ? &refusal : NULL,
                                                .line = g->line,
                                                .grants_before = now.pause.mode == PAUSE_WAIT});
    else
        admission_release(g->cfg.generate);
    mtx_lock(&g->lock);
    g->admission_held = admission_held;
    mtx_unlock(&g->lock);
}

static void pause_controller_log_change(const char *event, const struct pause *p)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, event);
    log_str(&r, "mode", lifecycle_pause_name(p->mode));
    log_str(&r, "owner", p->owner);
    log_u64(&r, "epoch", p->epoch);
    log_event(&r);
}

static void engine_thaw(struct pause_controller *g)
{
    mtx_lock(&g->lock);
    g->frozen = false;
    mtx_unlock(&g->lock);
    if (g->cfg.engine != NULL)
        g->cfg.engine->ops->thaw(g->cfg.engine);
}

/* Takes all waiting requests from the list, each with that error. The caller answers them after it
 * has released the lock. */
struct pause_controller_wait *pause_controller_take_waits_locked(struct pause_controller *g,
                                                                 const struct err *why)
{
    struct pause_controller_wait *all = g->waits;

    mtx_assert_held(&g->lock);
    for (struct pause_controller_wait *w = all; w != NULL; w = w->next)
        w->error = *why;
    g->waits = NULL;
    return all;
}

void pause_controller_answer(struct pause_controller *g, struct pause_controller_wait *all)
{
    struct pause_controller_info info;

    pause_controller_info(g, &info);
    for (struct pause_controller_wait *w = all, *next; w != NULL; w = next) {
        next = w->next;
        w->done(w, &info, &w->error);
    }
}

/* Within an operation. Generation runs from now on. */
bool pause_controller_lift(struct pause_controller *g, const char *why)
{
    struct pause_controller_wait *waits;
    struct err e = {0};
    struct pause was;

    (void)err_set(&e, ERR_CONFLICT, "", "%s", why);
    mtx_lock(&g->lock);
    was = g->pause;
    pause_lift(&g->pause);
    waits = pause_controller_take_waits_locked(g, &e);
    mtx_unlock(&g->lock);
    engine_thaw(g); /* first: a generation admitted next meets an engine that names what it lacks */
    pause_controller_apply_admission(g);
    pause_controller_answer(g, waits);
    if (was.state != PAUSE_OFF)
        pause_controller_log_change("resume", &was);
    return was.state != PAUSE_OFF;
}

bool pause_controller_resume(struct pause_controller *g, struct pause_controller_info *out)
{
    bool was;

    pause_controller_begin(g);
    was = pause_controller_lift(g,
                                "generation was resumed before all running generations had ended");
    pause_controller_info(g, out);
    pause_controller_end(g);
    return was;
}

/* Records the pause and closes admission. The line is drawn while it is closed: whatever has a
 * permit came before. */
static void set_pause(struct pause_controller *g, const struct pause_request *req,
                      struct pause *before)
{
    mtx_lock(&g->lock);
    pause_set(&g->pause, req, before);
    mtx_unlock(&g->lock);
    if (pause_begins_anew(before, req->mode)) {
        admission_hold(g->cfg.generate, NULL);
        g->line = generations_draw_line(g->cfg.generations);
    }
    pause_controller_apply_admission(g);
}

/* The engine could not be frozen (mode keep): restores the state before the request. */
static void undo_pause(struct pause_controller *g, const struct pause *before)
{
    mtx_lock(&g->lock);
    pause_undo(&g->pause, before);
    mtx_unlock(&g->lock);
    pause_controller_apply_admission(g);
}

/* A pause with mode keep has frozen the generations whose end the waiting requests wait for. */
static struct pause_controller_wait *waits_replace(struct pause_controller *g)
{
    struct pause_controller_wait *replaced;
    struct err e = {0};

    (void)err_set(&e, ERR_CONFLICT, "", "the pause was replaced by another pause with mode keep");
    mtx_lock(&g->lock);
    replaced = pause_controller_take_waits_locked(g, &e);
    mtx_unlock(&g->lock);
    return replaced;
}

static int engine_freeze(struct pause_controller *g, uint32_t timeout_s, struct err *e)
{
    uint64_t deadline_us = clock_after_us((uint64_t)timeout_s * 1000000);
    struct engine *en = g->cfg.engine;

    if (en != NULL && en->ops->freeze(en, deadline_us, e) != 0)
        return -1;
    mtx_lock(&g->lock);
    g->frozen = true;
    mtx_unlock(&g->lock);
    return 0;
}

/* Within an operation, with admission closed. Returns as pause_controller_pause. */
static int stop_running(struct pause_controller *g, const struct pause_request *req,
                        struct pause_controller_wait *w, struct err *e)
{
    bool later;

    if (req->mode == PAUSE_KEEP && engine_freeze(g, req->timeout_s, e) != 0)
        return -1;
    if (req->mode == PAUSE_ABORT) {
        uint32_t n = generations_abort_before(g->cfg.generations);

        mtx_lock(&g->lock);
        g->pause.n_aborted = n;
        mtx_unlock(&g->lock);
    }
    if (req->mode != PAUSE_KEEP)
        engine_thaw(g);
    later = req->mode != PAUSE_KEEP && !pause_controller_idle(g);
    mtx_lock(&g->lock);
    if (later) {
        w->deadline_us = clock_after_us((uint64_t)req->timeout_s * 1000000);
        w->next = g->waits;
        g->waits = w;
    } else {
        pause_acknowledge(&g->pause);
    }
    mtx_unlock(&g->lock);
    return later ? 1 : 0;
}

static enum lifecycle_call pause_controller_call_of(enum lifecycle_pause mode)
{
    return mode == PAUSE_KEEP   ? CALL_PAUSE_KEEP
           : mode == PAUSE_WAIT ? CALL_PAUSE_WAIT
                                : CALL_PAUSE_ABORT;
}

int pause_controller_pause(struct pause_controller *g, const struct pause_request *req,
                           struct pause_controller_wait *w, struct pause_controller_info *out,
                           struct err *e)
{
    struct pause_controller_wait *replaced = NULL;
    struct pause_controller_info is;
    struct pause before;
    int rc;

    assert(req->mode != PAUSE_NONE);
    pause_controller_begin(g);
    if (pause_controller_allows(g, pause_controller_call_of(req->mode), e) != 0) {
        pause_controller_end(g);
        return -1;
    }
    set_pause(g, req, &before);
    rc = stop_running(g, req, w, e);
    if (rc < 0) {
        undo_pause(g, &before);
    } else {
        if (req->mode == PAUSE_KEEP)
            replaced = waits_replace(g);
        pause_controller_info(g, &is);
        pause_controller_log_change("pause", &is.pause);
    }
    if (rc == 0)
        *out = is;
    pause_controller_answer(g, replaced);
    pause_controller_end(g);
    return rc;
}
