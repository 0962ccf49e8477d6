/* A pause controller over an engine that freezes when the test lets it, and what waits for a pause.
 */
#ifndef BATON_TESTS_UNIT_PAUSE_CONTROLLER_WORLD_H
#define BATON_TESTS_UNIT_PAUSE_CONTROLLER_WORLD_H

#include "tests/unit/weights_fixture.h"

#include "control/admission.h"
#include "control/engine.h"
#include "control/generations.h"
#include "control/life.h"
#include "control/pause_controller.h"

#include <unistd.h>

/* An engine that only freezes. */
struct still {
    struct engine engine; /* first */
    atomic_bool refuses, frozen, released;
    atomic_uint n_freezes, n_thaws;
    bool outlasts;                /* giving the KV cache back takes longer than the pause's lease */
    void (*meanwhile)(void *arg); /* while it gives the KV cache back, of what runs unfrozen */
    void *arg;
    struct pause_controller **pause_controller; /* NULL: nobody looks while it freezes */
    struct pause_controller_info seen;
};

struct bed {
    struct still still;
    struct life life;
    struct pause_controller_cfg cfg;
    struct pause_controller *pause_controller;
    struct ticket running; /* a generation's permit */
    bool holds;
};

/* Whoever waits for a pause; answered on the gate's thread. */
struct asker {
    struct pause_controller_wait wait; /* first */
    struct mtx lock;                   /* rank MTX_LEAF; guards down to the end */
    struct cnd changed;
    bool answered;
    struct pause_controller_info info;
    struct err error;
};

static inline int still_freeze(struct engine *en, uint64_t deadline_us, struct err *e)
{
    struct still *s = (struct still *)(void *)en;

    (void)deadline_us;
    (void)atomic_fetch_add(&s->n_freezes, 1);
    if (s->pause_controller != NULL)
        pause_controller_info(*s->pause_controller, &s->seen);
    if (atomic_load(&s->refuses))
        return err_set(e, ERR_TIMEOUT, "", "the step did not end in time");
    atomic_store(&s->frozen, true);
    return 0;
}

static inline void still_thaw(struct engine *en)
{
    struct still *s = (struct still *)(void *)en;

    (void)atomic_fetch_add(&s->n_thaws, 1);
    atomic_store(&s->frozen, false);
}

/* Until the test says so. */
static inline int still_release(struct engine *en, uint64_t deadline_us, uint64_t *nbytes,
                                struct err *e)
{
    struct still *s = (struct still *)(void *)en;
    struct pause_controller_info info = {
        .pause = {.mode = s->outlasts ? PAUSE_KEEP : PAUSE_NONE, .lease = {.end_us = CLOCK_NEVER}}};

    (void)deadline_us;
    (void)e;
    while (info.pause.mode != PAUSE_NONE && lease_timer_left_us(&info.pause.lease) > 0 &&
           usleep(1000) == 0)
        pause_controller_info(*s->pause_controller, &info);
    if (s->meanwhile != NULL)
        s->meanwhile(s->arg);
    else
        assert_true(atomic_load(&s->frozen)); /* nobody thaws it meanwhile */
    atomic_store(&s->released, true);
    *nbytes = 1;
    return 0;
}

static inline int still_stats(struct engine *en, uint64_t deadline_us, struct engine_stats *out,
                              struct err *e)
{
    struct still *s = (struct still *)(void *)en;

    (void)deadline_us;
    (void)e;
    *out = (struct engine_stats){.kv_released = atomic_load(&s->released)};
    return 0;
}

static inline void granted(void *arg)
{
    ((struct bed *)arg)->holds = true;
}

static inline void bed_open(struct bed *b)
{
    static const struct engine_ops ops = {.name = "still",
                                          .stats = still_stats,
                                          .freeze = still_freeze,
                                          .thaw = still_thaw,
                                          .kv_release = still_release};
    struct store_cfg store_cfg = {
        .model_spec = fx_model_spec(), .n_versions_max = 3, .nbytes_max = UINT64_MAX};
    struct err e = {0};

    memset(b, 0, sizeof *b);
    b->still.engine.ops = &ops;
    life_init(&b->life);
    life_set(&b->life, LIFE_SERVING);
    b->cfg = (struct pause_controller_cfg){
        .life = &b->life, .engine = &b->still.engine, .sleep_timeout_us = 60000000};
    assert_int_equal(store_new(&b->cfg.store, &store_cfg, &e), 0);
    assert_int_equal(admission_new(&b->cfg.generate, "generate", 4, 4, &e), 0);
    assert_int_equal(generations_new(&b->cfg.generations, &e), 0);
    assert_int_equal(pause_controller_new(&b->pause_controller, &b->cfg, &e), 0);
    b->running = (struct ticket){.granted = granted, .arg = b};
}

static inline void bed_close(struct bed *b)
{
    pause_controller_free(b->pause_controller);
    generations_free(b->cfg.generations);
    admission_free(b->cfg.generate);
    store_free(b->cfg.store);
}

static inline void run_one(struct bed *b)
{
    struct err e = {0};

    b->holds = false;
    assert_int_equal(admission_enter(b->cfg.generate, &b->running, &e), 0);
    assert_true(b->holds);
}

static inline void end_one(struct bed *b)
{
    admission_leave(b->cfg.generate, &b->running);
}

static inline void asker_done(struct pause_controller_wait *w,
                              const struct pause_controller_info *info, const struct err *e)
{
    struct asker *a = (struct asker *)(void *)w;

    mtx_assert_none();
    mtx_lock(&a->lock);
    assert_false(a->answered);
    a->answered = true;
    a->info = *info;
    a->error = *e;
    cnd_broadcast(&a->changed);
    mtx_unlock(&a->lock);
}

static inline void asker_init(struct asker *a, struct bed *b)
{
    memset(a, 0, sizeof *a);
    mtx_init(&a->lock, MTX_LEAF);
    cnd_init(&a->changed);
    a->wait.pause_controller = b->pause_controller;
    a->wait.done = asker_done;
}

static inline enum err_code asker_result(struct asker *a)
{
    mtx_lock(&a->lock);
    while (!a->answered)
        (void)cnd_wait(&a->changed, &a->lock, CLOCK_NEVER);
    mtx_unlock(&a->lock);
    return a->error.code;
}

static inline bool asker_waits(struct asker *a)
{
    bool waits;

    mtx_lock(&a->lock);
    waits = !a->answered;
    mtx_unlock(&a->lock);
    return waits;
}

static inline void asker_fini(struct asker *a)
{
    assert_false(asker_waits(a));
    cnd_fini(&a->changed);
    mtx_fini(&a->lock);
}

/* As pause_controller_pause. */
static inline int ask_for(struct bed *b, struct asker *a, const struct pause_request *what,
                          const char *owner, struct pause_controller_info *out, struct err *e)
{
    struct pause_request req = *what;

    (void)snprintf(req.owner, sizeof req.owner, "%s", owner);
    return pause_controller_pause(b->pause_controller, &req, a != NULL ? &a->wait : NULL, out, e);
}

static inline int ask(struct bed *b, struct asker *a, enum lifecycle_pause mode, const char *owner,
                      uint32_t lease_s, struct pause_controller_info *out, struct err *e)
{
    struct pause_request req = {.mode = mode, .lease_s = lease_s, .timeout_s = PAUSE_TIMEOUT_S_MAX};

    return ask_for(b, a, &req, owner, out, e);
}

static inline void leave(struct bed *b, struct asker *a)
{
    atomic_store_explicit(&a->wait.gone, true, memory_order_relaxed);
    pause_controller_wake_up(b->pause_controller);
}

static inline void come_meanwhile(void *arg)
{
    struct bed *b = arg;
    struct err e = {0};

    assert_int_equal(admission_enter(b->cfg.generate, &b->running, &e), 0);
    assert_false(b->holds);
}

#endif
