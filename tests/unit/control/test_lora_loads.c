/* control/lora_loads: the table of a load's states, and jobs that run, wait and end. */
#include "base/clock.h"
#include "base/mtx.h"
#include "control/lora_loads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* A letter for each state, in the order of enum lora_state; '-' is no move. */
static const char letters[LORA_STATES + 1] = "nqrwluf";

static const struct {
    const char *event, *to; /* from each state */
} rows[LORA_EVENTS] = {
    [LORA_ON_POST] = {"post", "q------"},           [LORA_ON_START] = {"start", "-r-r---"},
    [LORA_ON_WAIT] = {"wait", "--w----"},           [LORA_ON_LOADED] = {"loaded", "--l----"},
    [LORA_ON_UNCHANGED] = {"unchanged", "--u----"}, [LORA_ON_FAILED] = {"failed", "--f----"},
};

static void test_lora_next_is_the_table(void **state)
{
    (void)state;
    for (int event = 0; event < LORA_EVENTS; event++)
        for (int from = 0; from < LORA_STATES; from++) {
            enum lora_state to;
            char move = lora_next((enum lora_state)from, (enum lora_event)event, &to) ? letters[to]
                                                                                      : '-';

            if (move != rows[event].to[from])
                fail_msg("%s from '%c': '%c'", rows[event].event, letters[from], move);
        }
}

static void walk(enum lora_state from, unsigned *reached)
{
    bool ends = true;

    if ((*reached & 1u << from) != 0)
        return;
    *reached |= 1u << from;
    for (int event = 0; event < LORA_EVENTS; event++) {
        enum lora_state to;

        if (!lora_next(from, (enum lora_event)event, &to))
            continue;
        ends = false;
        walk(to, reached);
    }
    assert_int_equal(ends, from >= LORA_LOADED);
}

static void test_every_state_of_a_load_is_reached(void **state)
{
    unsigned reached = 0;

    (void)state;
    walk(LORA_NEW, &reached);
    assert_int_equal(reached, (1u << LORA_STATES) - 1);
}

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
        cmocka_unit_test(test_lora_next_is_the_table),
        cmocka_unit_test(test_every_state_of_a_load_is_reached),
        cmocka_unit_test(test_jobs_run_wait_and_end),
        cmocka_unit_test(test_a_refused_job_is_new),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
