/* The thread of the pause controller: it ends expired pauses and answers the requests that wait
 * for a pause. Its start and its stop.
 *
 * The thread waits on a condition with a lock of its own, because the callback for a disconnected
 * client runs under a lock of high rank and must wake it. */
#include "control/pause_controller_priv.h"

#include "base/clock.h"
#include "base/log.h"
#include "control/admission.h"
#include "control/generations.h"

#include <assert.h>
#include <stdlib.h>

void pause_controller_wake_up(struct pause_controller *g)
{
    mtx_lock(&g->wakeup_lock);
    g->woken = true;
    cnd_signal(&g->wakeup);
    mtx_unlock(&g->wakeup_lock);
}

static bool is_gone(const struct pause_controller_wait *w)
{
    return atomic_load_explicit(&w->gone, memory_order_relaxed);
}

/* The error of a request that gave up. @undo  the pause ends, because no other request wants it */
static void wait_set_error(struct pause_controller_wait *w, bool undo)
{
    if (is_gone(w))
        (void)err_set(&w->error, ERR_GONE, "",
                      "the client disconnected before all running generations had ended");
    else
        (void)err_set(&w->error, ERR_TIMEOUT, "",
                      "the running generations did not end in time; generation %s",
                      undo ? "is not paused" : "stays paused by another pause");
}

/* Takes from the list the requests that can be answered now. *undo: no request waits for the
 * pause, and none was acknowledged. */
static struct pause_controller_wait *take_answerable_locked(struct pause_controller *g, bool idle,
                                                            bool *undo)
{
    struct pause_controller_wait *answerable = NULL, **at = &g->waits;

    while (*at != NULL) {
        struct pause_controller_wait *w = *at;

        if (!idle && !is_gone(w) && !clock_passed(w->deadline_us)) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        w->next = answerable;
        answerable = w;
    }
    if (answerable == NULL)
        return NULL;
    if (idle)
        pause_acknowledge(&g->pause); /* with the lease of the last request */
    else if (g->waits == NULL && pause_is_held(&g->pause))
        pause_give_up(&g->pause);
    *undo = !idle && g->waits == NULL && !pause_is_held(&g->pause);
    for (struct pause_controller_wait *w = answerable; w != NULL && !idle; w = w->next)
        wait_set_error(w, *undo);
    return answerable;
}

/* Answers requests and ends the pause if its lease has expired; within an operation. */
static void pause_check(struct pause_controller *g)
{
    struct pause_controller_wait *answerable;
    bool idle = pause_controller_idle(g), undo = false, expired;

    mtx_lock(&g->lock);
    answerable = take_answerable_locked(g, idle, &undo);
    expired = lease_timer_expired(&g->pause.lease);
    if (expired)
        g->pause.n_expired++;
    mtx_unlock(&g->lock);
    if (undo || expired)
        (void)pause_controller_lift(g, expired ? "the lease of the pause expired"
                                               : "the pause was not acknowledged in time");
    if (expired)
        log_event_line(LOG_WARN, "pause.expired",
                       "the lease of a pause expired: generation is resumed");
    pause_controller_answer(g, answerable);
}

/* The time of the next check, unless the thread is woken before. */
static uint64_t next_us(struct pause_controller *g)
{
    uint64_t at;

    mtx_lock(&g->lock);
    at = g->pause.lease.end_us;
    for (const struct pause_controller_wait *w = g->waits; w != NULL; w = w->next)
        if (w->deadline_us < at)
            at = w->deadline_us;
    mtx_unlock(&g->lock);
    return at;
}

static bool wait_wakeup(struct pause_controller *g, uint64_t deadline_us)
{
    bool stopping;

    mtx_lock(&g->wakeup_lock);
    while (!g->woken && !g->stopping && !clock_passed(deadline_us))
        (void)cnd_wait(&g->wakeup, &g->wakeup_lock, deadline_us);
    g->woken = false;
    stopping = g->stopping;
    mtx_unlock(&g->wakeup_lock);
    return !stopping;
}

static bool pause_check_due(struct pause_controller *g)
{
    bool some;

    mtx_lock(&g->lock);
    some = g->waits != NULL || lease_timer_expired(&g->pause.lease);
    mtx_unlock(&g->lock);
    return some;
}

/* Ends an operation without a wake-up: those are for changes by other threads. */
static void *pause_controller_main(void *arg)
{
    struct pause_controller *g = arg;

    (void)pthread_setname_np(pthread_self(), "pause-watch");
    while (wait_wakeup(g, next_us(g))) {
        if (!pause_check_due(g))
            continue;
        pause_controller_begin(g);
        pause_check(g);
        mtx_lock(&g->lock);
        g->busy = false;
        cnd_broadcast(&g->changed);
        mtx_unlock(&g->lock);
    }
    return NULL;
}

/* On the thread that returned the last permit, or ended the last request that came before the
 * pause.
 */
static void generate_idle(void *arg)
{
    struct pause_controller *g = arg;

    mtx_lock(&g->lock);
    cnd_broadcast(&g->changed);
    mtx_unlock(&g->lock);
    pause_controller_wake_up(g);
}

int pause_controller_new(struct pause_controller **out, const struct pause_controller_cfg *cfg,
                         struct err *e)
{
    struct pause_controller *g = calloc(1, sizeof *g);
    int rc;

    if (g == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the pause controller");
    mtx_init(&g->lock, MTX_LIFE);
    mtx_init(&g->wakeup_lock, MTX_LEAF);
    cnd_init(&g->changed);
    cnd_init(&g->wakeup);
    g->cfg = *cfg;
    pause_init(&g->pause);
    rc = pthread_create(&g->thread, NULL, pause_controller_main, g);
    if (rc != 0) {
        g->joined = true;
        pause_controller_free(g);
        return err_set_errno(e, ERR_INTERNAL, "", rc,
                             "cannot start the thread of the pause controller");
    }
    admission_on_idle(cfg->generate, generate_idle, g);
    generations_on_idle(cfg->generations, generate_idle, g);
    *out = g;
    return 0;
}

void pause_controller_drain(struct pause_controller *g)
{
    struct pause_controller_wait *waits;
    struct err e = {0};

    (void)err_set(&e, ERR_DRAINING, "", "the server is draining: the pause is lifted");
    pause_controller_begin(g);
    mtx_lock(&g->lock);
    waits = pause_controller_take_waits_locked(g, &e);
    mtx_unlock(&g->lock);
    (void)pause_controller_lift(g, "the server is draining: the pause is lifted");
    pause_controller_answer(g, waits);
    pause_controller_end(g);
}

void pause_controller_stop(struct pause_controller *g)
{
    if (g->joined)
        return;
    pause_controller_drain(g);
    mtx_lock(&g->wakeup_lock);
    g->stopping = true;
    cnd_signal(&g->wakeup);
    mtx_unlock(&g->wakeup_lock);
    (void)pthread_join(g->thread, NULL);
    g->joined = true;
}

void pause_controller_free(struct pause_controller *g)
{
    if (g == NULL)
        return;
    pause_controller_stop(g);
    assert(g->waits == NULL);
    cnd_fini(&g->wakeup);
    cnd_fini(&g->changed);
    mtx_fini(&g->wakeup_lock);
    mtx_fini(&g->lock);
    free(g);
}
