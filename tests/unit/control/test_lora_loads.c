/* control/lora_loads: jobs that run, wait and end. */
#include "base/clock.h"
#include "base/mtx.h"
#include "control/lora_loads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

struct load {
    struct lora_job job;
    struct lora_loads *loads;
    unsigned n_waits; /* how often it waits before it ends */
    unsigned n_runs;  /* of its thread, until `done` */
    enum lora_event how;
    struct mtx lock; /* rank MTX_LEAF; guards the next two */
    struct cnd changed;
    bool done;
};

static void load_run(void *arg)
{
    struct load *l = arg;
    struct err e = {0};

    assert_int_equal(l->job.state, LORA_RUNNING);
    if (l->n_runs++ < l->n_waits) {
        assert_int_equal(lora_loads_again(l->loads, &l->job, &e), 0);
        return;
    }
    lora_loads_end(l->loads, &l->job, l->how);
    mtx_lock(&l->lock);
    l->done = true;
    cnd_signal(&l->changed);
    mtx_unlock(&l->lock);
}

static void load_await(struct load *l)
{
    mtx_lock(&l->lock);
    while (!l->done)
        (void)cnd_wait(&l->changed, &l->lock, CLOCK_NEVER);
    mtx_unlock(&l->lock);
    cnd_fini(&l->changed);
    mtx_fini(&l->lock);
}

static void load_begin(struct load *l, struct lora_loads *loads, enum lora_pool pool,
                       unsigned n_waits, enum lora_event how)
{
    struct err e = {0};

    *l = (struct load){.job = {.run = load_run, .arg = l, .pool = pool},
                       .loads = loads,
                       .n_waits = n_waits,
                       .how = how};
    mtx_init(&l->lock, MTX_LEAF);
    cnd_init(&l->changed);
    assert_int_equal(lora_loads_post(loads, &l->job, &e), 0);
}

static void test_jobs_run_wait_and_end(void **state)
{
    static const enum lora_event hows[] = {LORA_ON_LOADED, LORA_ON_UNCHANGED, LORA_ON_FAILED};
    struct lora_loads *loads;
    struct lora_stats stats;
    struct load l[LORA_POOL_COUNT * 3];
    struct err e = {0};

    (void)state;
    assert_int_equal(lora_loads_new(&loads, &e), 0);
    for (unsigned i = 0; i < LORA_POOL_COUNT * 3; i++)
        load_begin(&l[i], loads, (enum lora_pool)(i % LORA_POOL_COUNT), i / 3, hows[i / 3]);
    for (unsigned i = 0; i < LORA_POOL_COUNT * 3; i++) {
        load_await(&l[i]);
        assert_int_equal(l[i].n_runs, i / 3 + 1);
        assert_int_equal(l[i].job.state, LORA_LOADED + i / 3);
    }
    lora_stats(loads, &stats);
    assert_int_equal(stats.n_queued, 0);
    for (int s = LORA_LOADED; s < LORA_STATES; s++)
        assert_int_equal(stats.n_ended[s], LORA_POOL_COUNT);
    lora_loads_free(loads);
}

/* A job that is refused is the caller's, as it was. */
static void test_a_refused_job_is_new(void **state)
{
    struct lora_job job = {.run = load_run};
    struct lora_loads *loads;
    struct err e = {0};

    (void)state;
    assert_int_equal(lora_loads_new(&loads, &e), 0);
    lora_loads_stop(loads);
    assert_int_equal(lora_loads_post(loads, &job, &e), -1);
    assert_int_equal(e.code, ERR_DRAINING);
    assert_int_equal(job.state, LORA_NEW);
    lora_loads_free(loads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jobs_run_wait_and_end),
        cmocka_unit_test(test_a_refused_job_is_new),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
