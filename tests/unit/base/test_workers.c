/* The pool: lanes, bounds, stopping. */
#include "base/clock.h"
#include "base/jobs/workers.h"
#include "base/mtx.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <string.h>

static struct mtx lock;
static struct cnd moved;
static char order[32];                                       /* guarded by lock */
static bool pause_controller_open, pause_controller_reached; /* guarded by lock */

static void note(char c)
{
    size_t n;

    mtx_lock(&lock);
    n = strlen(order);
    order[n] = c;
    mtx_unlock(&lock);
}

static void run_letter(void *arg)
{
    note(*(const char *)arg);
}

/* Holds the only thread until the test opens the gate. */
static void run_pause_controller(void *arg)
{
    char name[16] = "";

    (void)arg;
    (void)pthread_getname_np(pthread_self(), name, sizeof name);
    if (strcmp(name, "pool/0") == 0)
        note('g');
    mtx_lock(&lock);
    pause_controller_reached = true;
    cnd_broadcast(&moved);
    while (!pause_controller_open)
        (void)cnd_wait(&moved, &lock, CLOCK_NEVER);
    mtx_unlock(&lock);
}

static void open_pause_controller(void)
{
    mtx_lock(&lock);
    pause_controller_open = true;
    cnd_broadcast(&moved);
    mtx_unlock(&lock);
}

static void test_lanes_bounds_and_stop(void **state)
{
    static char letters[] = "abcuvx";
    struct workers_cfg cfg = {.name = "pool", .n_threads = 1, .n_queue_max = 3};
    struct job pause_controller = {.run = run_pause_controller}, jobs[6];
    uint64_t began_us = clock_now_us();
    struct workers_info info;
    struct workers *w;
    struct err e = {0};

    (void)state;
    mtx_init(&lock, MTX_LEAF);
    cnd_init(&moved);
    assert_int_equal(workers_new(&w, &cfg, &e), 0);
    assert_int_equal(workers_post(w, &pause_controller, WORKERS_NORMAL, &e), 0);
    mtx_lock(&lock);
    while (!pause_controller_reached)
        (void)cnd_wait(&moved, &lock, CLOCK_NEVER);
    mtx_unlock(&lock);
    for (int i = 0; i < 6; i++)
        jobs[i] = (struct job){.run = run_letter, .arg = &letters[i]};
    for (int i = 0; i < 3; i++)
        assert_int_equal(workers_post(w, &jobs[i], WORKERS_NORMAL, &e), 0);
    assert_int_equal(workers_post(w, &jobs[5], WORKERS_NORMAL, &e), -1);
    assert_int_equal(e.code, ERR_OVERLOADED);
    assert_non_null(strstr(e.msg, "pool"));
    err_clear(&e);
    for (int i = 3; i < 5; i++) /* the urgent lane has no bound, and goes first */
        assert_int_equal(workers_post(w, &jobs[i], WORKERS_URGENT, &e), 0);
    assert_int_equal(workers_queued(w), 5);
    assert_int_equal(workers_info_by(w, CLOCK_NEVER, &info, &e), 0);
    assert_true(info.n_threads == 1 && info.n_idle == 0 && info.n_queued == 5);
    assert_int_equal(info.queued_us, jobs[0].queued_us); /* the oldest, whatever goes first */
    assert_true(info.queued_us >= began_us && info.waiting_us == 0);
    open_pause_controller();
    workers_stop(w); /* runs what is queued */
    assert_string_equal(order, "guvabc");
    assert_int_equal(workers_post(w, &jobs[5], WORKERS_URGENT, &e), -1);
    assert_int_equal(e.code, ERR_DRAINING);
    workers_free(w);
    workers_free(NULL);
    cnd_fini(&moved);
    mtx_fini(&lock);
}

static struct workers *pool;
static struct job last;
static bool last_ran; /* guarded by lock */

static void run_last(void *arg)
{
    (void)arg;
    mtx_lock(&lock);
    last_ran = true;
    mtx_unlock(&lock);
}

/* Stands at the gate until the pool has begun to stop, then posts what somebody waits for. */
static void run_and_post(void *arg)
{
    struct job refused = {.run = run_last}; /* the queue is full until the pool stops */
    struct err e = {0};

    run_pause_controller(arg);
    do {
        err_clear(&e);
        (void)sched_yield();
        (void)workers_post(pool, &refused, WORKERS_NORMAL, &e);
    } while (e.code == ERR_OVERLOADED);
    err_clear(&e);
    (void)workers_post(pool, &last, WORKERS_URGENT, &e);
}

static void test_stop_runs_what_its_jobs_post(void **state)
{
    struct workers_cfg cfg = {.name = "pool", .n_threads = 1, .n_queue_max = 1};
    struct job first = {.run = run_and_post}, filler = {.run = run_pause_controller};
    struct err e = {0};

    (void)state;
    mtx_init(&lock, MTX_LEAF);
    cnd_init(&moved);
    pause_controller_open = pause_controller_reached = false;
    last = (struct job){.run = run_last};
    assert_int_equal(workers_new(&pool, &cfg, &e), 0);
    assert_int_equal(workers_post(pool, &first, WORKERS_NORMAL, &e), 0);
    mtx_lock(&lock);
    while (!pause_controller_reached)
        (void)cnd_wait(&moved, &lock, CLOCK_NEVER);
    mtx_unlock(&lock);
    assert_int_equal(workers_post(pool, &filler, WORKERS_NORMAL, &e), 0);
    open_pause_controller();
    workers_stop(pool);
    assert_true(last_ran);
    assert_int_equal(workers_post(pool, &last, WORKERS_URGENT, &e), -1);
    assert_int_equal(e.code, ERR_DRAINING);
    workers_free(pool);
    cnd_fini(&moved);
    mtx_fini(&lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes_bounds_and_stop),
        cmocka_unit_test(test_stop_runs_what_its_jobs_post),
    };

    return cmocka_run_group_tests_name("workers", tests, NULL, NULL);
}
