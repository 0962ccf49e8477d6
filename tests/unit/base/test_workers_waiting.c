/* Jobs that wait without a thread. */
#include "base/clock.h"
#include "base/jobs/stack.h"
#include "base/jobs/workers.h"
#include "base/mtx.h"
#include "base/net/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JOBS_MAX = 200 };

static struct mtx lock;
static struct cnd moved, turn;
static unsigned n_begun, n_ended, n_late, tickets; /* guarded by lock, and so is what follows */
static unsigned order[JOBS_MAX];
static atomic_bool no_memory;

struct stack *__real_stack_new(size_t nbytes, struct stack *(*run)(void *arg), void *arg);
struct stack *__wrap_stack_new(size_t nbytes, struct stack *(*run)(void *arg), void *arg);

struct stack *__wrap_stack_new(size_t nbytes, struct stack *(*run)(void *arg), void *arg)
{
    return no_memory ? NULL : __real_stack_new(nbytes, run, arg);
}

static int setup(void **state)
{
    (void)state;
    mtx_init(&lock, MTX_LEAF);
    cnd_init(&moved);
    cnd_init(&turn);
    n_begun = n_ended = n_late = tickets = 0;
    no_memory = false;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    cnd_fini(&turn);
    cnd_fini(&moved);
    mtx_fini(&lock);
    return 0;
}

static void begun_locked(void)
{
    n_begun++;
    cnd_broadcast(&moved);
}

/* Waits for a ticket, one for each signal; then all that it knew is as before. */
static void run_turn(void *arg)
{
    struct trace_context trace = {.trace_id = ""};
    const void *self = workers_self();
    unsigned number = (unsigned)(uintptr_t)arg;

    (void)snprintf(trace.trace_id, sizeof trace.trace_id, "%u", number);
    trace_enter(&trace);
    mtx_lock(&lock);
    begun_locked();
    while (tickets == 0)
        (void)cnd_wait(&turn, &lock, CLOCK_NEVER);
    tickets--;
    order[n_ended++] = number;
    cnd_broadcast(&moved);
    mtx_unlock(&lock);
    assert_ptr_equal(workers_self(), self);
    assert_ptr_equal(trace_current(), &trace);
    assert_int_equal(atoi(trace_current()->trace_id), number);
    trace_leave();
}

static void run_until_deadline(void *arg)
{
    uint64_t deadline_us = clock_after_us((uint64_t)(uintptr_t)arg);
    bool woken;

    mtx_lock(&lock);
    begun_locked();
    woken = cnd_wait(&turn, &lock, deadline_us);
    n_late += !woken && clock_now_us() >= deadline_us;
    n_ended++;
    cnd_broadcast(&moved);
    mtx_unlock(&lock);
}

static void run_note(void *arg)
{
    (void)arg;
    mtx_lock(&lock);
    n_ended++;
    cnd_broadcast(&moved);
    mtx_unlock(&lock);
}

static void await(const unsigned *n, unsigned wanted)
{
    mtx_lock(&lock);
    while (*n < wanted)
        assert_true(cnd_wait(&moved, &lock, clock_after_us(60000000)));
    mtx_unlock(&lock);
}

static void await_waiting(struct workers *w, size_t wanted)
{
    while (workers_waiting(w) < wanted)
        (void)sched_yield();
}

static void give_tickets(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        mtx_lock(&lock);
        tickets++;
        cnd_signal(&turn);
        mtx_unlock(&lock);
    }
}

static struct workers *start(size_t n_threads, size_t n_queue_max)
{
    struct workers_cfg cfg = {"pool", n_threads, n_queue_max, true};
    struct workers *w;
    struct err e = {0};

    assert_int_equal(workers_new(&w, &cfg, &e), 0);
    return w;
}

static void post(struct workers *w, struct job *job, void (*run)(void *arg), uintptr_t arg,
                 enum workers_lane lane)
{
    struct err e = {0};

    *job = (struct job){.run = run, .arg = (void *)arg};
    assert_int_equal(workers_post(w, job, lane, &e), 0);
}

static void test_one_thread_has_many_jobs_that_wait(void **state)
{
    struct workers *w = start(1, JOBS_MAX + 1);
    struct job jobs[JOBS_MAX], last;

    (void)state;
    for (unsigned i = 0; i < JOBS_MAX; i++)
        post(w, &jobs[i], run_turn, i, WORKERS_NORMAL);
    await(&n_begun, JOBS_MAX);
    post(w, &last, run_note, 0, WORKERS_NORMAL); /* the thread is free for it */
    await(&n_ended, 1);
    assert_int_equal(workers_waiting(w), JOBS_MAX);
    n_ended = 0;
    give_tickets(JOBS_MAX);
    await(&n_ended, JOBS_MAX);
    for (unsigned i = 0; i < JOBS_MAX; i++) { /* each once */
        unsigned n = 0;

        for (unsigned k = 0; k < JOBS_MAX; k++)
            n += order[k] == i;
        assert_int_equal(n, 1);
    }
    workers_free(w);
}

static void test_a_deadline_ends_a_wait(void **state)
{
    struct workers *w = start(1, JOBS_MAX + 1);
    struct job jobs[3];

    (void)state;
    post(w, &jobs[0], run_until_deadline, 30000, WORKERS_NORMAL);
    post(w, &jobs[1], run_until_deadline, 10000, WORKERS_NORMAL);
    await(&n_ended, 2);
    assert_int_equal(n_late, 2);
    post(w, &jobs[2], run_until_deadline, 60000000, WORKERS_NORMAL);
    await(&n_begun, 3);
    give_tickets(1);
    await(&n_ended, 3);
    assert_int_equal(n_late, 2);
    workers_free(w);
}

static void test_jobs_that_wait_count(void **state)
{
    struct workers *w = start(1, 2);
    struct job jobs[4], refused = {.run = run_note}, urgent;
    uint64_t began_us = clock_now_us();
    struct workers_info info;
    struct err e = {0};

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        post(w, &jobs[i], run_turn, i, WORKERS_NORMAL);
        await_waiting(w, i + 1);
    }
    assert_int_equal(workers_post(w, &refused, WORKERS_NORMAL, &e), -1);
    assert_int_equal(e.code, ERR_OVERLOADED);
    err_clear(&e);
    for (unsigned i = 2; i < 4; i++) {
        post(w, &jobs[i], run_turn, i, WORKERS_PRIOR);
        await_waiting(w, i + 1);
    }
    assert_int_equal(workers_post(w, &refused, WORKERS_PRIOR, &e), -1);
    assert_int_equal(e.code, ERR_OVERLOADED);
    err_clear(&e);
    assert_int_equal(workers_info_by(w, CLOCK_NEVER, &info, &e), 0);
    assert_true(info.n_waiting == 4 && info.n_queued == 0 && info.queued_us == 0);
    assert_true(info.waiting_us >= began_us && info.waiting_us <= clock_now_us());
    post(w, &urgent, run_note, 0, WORKERS_URGENT);
    await(&n_ended, 1);
    n_ended = 0;
    give_tickets(4);
    await(&n_ended, 4);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(order[i], i); /* the job that waits longest goes first */
    workers_free(w);
}

static void run_busy(void *arg)
{
    bool *may_end = arg;

    run_note(NULL);
    while (!__atomic_load_n(may_end, __ATOMIC_ACQUIRE))
        (void)sched_yield();
}

static void run_turn_then_busy(void *arg)
{
    run_turn(NULL);
    run_busy(arg);
}

/* A post wakes the thread on which a job waits. If that job goes on first, another thread takes
 * what was posted. */
static void test_what_was_posted_does_not_wait_for_a_job_that_goes_on(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct workers *w = start(2, JOBS_MAX);
        struct job first, urgent;
        bool may_end = false;

        n_begun = n_ended = 0;
        post(w, &first, run_turn_then_busy, (uintptr_t)&may_end, WORKERS_NORMAL);
        await_waiting(w, 1);
        mtx_lock(&lock);
        tickets++;
        post(w, &urgent, run_note, 0, WORKERS_URGENT);
        cnd_signal(&turn);
        mtx_unlock(&lock);
        await(&n_ended, 3); /* the turn, what it notes, and the urgent job beside it */
        __atomic_store_n(&may_end, true, __ATOMIC_RELEASE);
        workers_free(w);
    }
}

static void run_blocking(void *arg)
{
    *(const void **)arg = workers_self();
}

struct caller {
    struct workers *other;
    const void *self, *found;
};

static void run_caller(void *arg)
{
    struct caller *c = arg;

    c->self = workers_self();
    workers_call(c->other, run_blocking, &c->found);
    run_note(NULL);
}

static void test_a_call_runs_in_the_other_pool(void **state)
{
    struct workers_cfg cfg = {"other", 1, 1, false};
    struct workers *w = start(1, JOBS_MAX), *other;
    struct caller callers[20];
    struct job jobs[20];
    struct err e = {0};

    (void)state;
    assert_int_equal(workers_new(&other, &cfg, &e), 0);
    for (int i = 0; i < 20; i++) {
        callers[i] = (struct caller){.other = other};
        post(w, &jobs[i], run_caller, (uintptr_t)&callers[i], WORKERS_NORMAL);
    }
    await(&n_ended, 20);
    for (int i = 0; i < 20; i++) {
        assert_non_null(callers[i].found);
        assert_ptr_not_equal(callers[i].found, callers[i].self);
    }
    workers_stop(other);
    n_ended = 0;
    post(w, &jobs[0], run_caller, (uintptr_t)&callers[0], WORKERS_NORMAL);
    await(&n_ended, 1);
    assert_ptr_equal(callers[0].found, callers[0].self); /* it runs all the same */
    workers_free(w);
    workers_free(other);
}

/* One that holds the thread of others which wait would keep them from what they wait for. */
static void test_without_memory_a_job_keeps_no_thread_of_others(void **state)
{
    struct workers *w = start(2, JOBS_MAX);
    struct job jobs[2], second, third;

    (void)state;
    post(w, &jobs[0], run_turn, 0, WORKERS_NORMAL);
    await_waiting(w, 1);
    no_memory = true;
    post(w, &second, run_turn, 1, WORKERS_NORMAL); /* keeps the other thread */
    await(&n_begun, 2);
    post(w, &third, run_note, 0, WORKERS_NORMAL);
    give_tickets(2);
    await(&n_ended, 3);
    workers_free(w);
}

static void *free_pool(void *arg)
{
    workers_free(arg);
    return NULL;
}

static void test_a_stop_awaits_jobs_that_wait(void **state)
{
    struct workers *w = start(2, JOBS_MAX);
    struct job jobs[10];
    pthread_t stopper;

    (void)state;
    for (unsigned i = 0; i < 10; i++)
        post(w, &jobs[i], run_turn, i, WORKERS_NORMAL);
    await(&n_begun, 10);
    assert_int_equal(pthread_create(&stopper, NULL, free_pool, w), 0);
    give_tickets(10);
    await(&n_ended, 10);
    assert_int_equal(pthread_join(stopper, NULL), 0);
}

/* Fills some of its stack, waits at the bottom of it, and looks whether that was kept. */
static unsigned dig(unsigned depth, unsigned seed)
{
    volatile unsigned char kept[512];
    unsigned sum = 0;

    for (unsigned i = 0; i < sizeof kept; i++)
        kept[i] = (unsigned char)(seed + depth + i);
    if (depth > 0) {
        sum = dig(depth - 1, seed);
    } else {
        mtx_lock(&lock);
        (void)cnd_wait(&turn, &lock, clock_after_us(seed % 7 * 1000));
        mtx_unlock(&lock);
    }
    for (unsigned i = 0; i < sizeof kept; i++)
        sum += kept[i] != (unsigned char)(seed + depth + i);
    return sum;
}

static void run_dig(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg, wrong = 0;

    for (unsigned i = 0; i < 20; i++)
        wrong += dig(seed % 50, seed + i);
    mtx_lock(&lock);
    n_late += wrong;
    n_ended++;
    cnd_broadcast(&moved);
    mtx_unlock(&lock);
}

static void test_stacks_are_kept(void **state)
{
    struct workers *w = start(4, JOBS_MAX);
    struct job jobs[JOBS_MAX];

    (void)state;
    for (unsigned i = 0; i < JOBS_MAX; i++)
        post(w, &jobs[i], run_dig, i, WORKERS_URGENT);
    for (bool ended = false; !ended;) { /* while deadlines pass */
        mtx_lock(&lock);
        if (n_ended % 3 == 0)
            cnd_broadcast(&turn);
        else
            cnd_signal(&turn);
        ended = n_ended == JOBS_MAX;
        mtx_unlock(&lock);
    }
    assert_int_equal(n_late, 0);
    workers_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_thread_has_many_jobs_that_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_deadline_ends_a_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(test_jobs_that_wait_count, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_was_posted_does_not_wait_for_a_job_that_goes_on,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_call_runs_in_the_other_pool, setup, teardown),
        cmocka_unit_test_setup_teardown(test_without_memory_a_job_keeps_no_thread_of_others, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_stop_awaits_jobs_that_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stacks_are_kept, setup, teardown),
    };

    return cmocka_run_group_tests_name("workers_waiting", tests, NULL, NULL);
}
