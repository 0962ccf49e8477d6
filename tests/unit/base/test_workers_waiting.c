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
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JOBS_MAX = 200 };

static struct mtx lock;
static struct cnd moved, turn;
static unsigned n_begun, n_ended, n_late, tickets; /* guarded by lock, and so is what follows */
static unsigned order[JOBS_MAX];
static bool no_memory;

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

static void give_tickets(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        mtx_lock(&lock);
        tickets++;
        cnd_signal(&turn);
        mtx_unlock(&lock);
    }
}

static struct workers *start(size_t n_threads, size_t n_waiting_max)
{
    struct workers_cfg cfg = {"pool", n_threads, JOBS_MAX, n_waiting_max};
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

static void test_a_full_pool_takes_urgent_jobs_only(void **state)
{
    struct workers *w = start(2, 2);
    struct job jobs[2], normal, urgent;

    (void)state;
    for (unsigned i = 0; i < 2; i++)
        post(w, &jobs[i], run_turn, i, WORKERS_NORMAL);
    await(&n_begun, 2);
    while (workers_waiting(w) < 2)
        (void)sched_yield();
    post(w, &normal, run_note, 0, WORKERS_NORMAL);
    post(w, &urgent, run_turn, 2, WORKERS_URGENT);
    await(&n_begun, 3);
    assert_int_equal(workers_queued(w), 1);
    assert_int_equal(n_ended, 0);
    give_tickets(2); /* then one waits, and there is room */
    await(&n_ended, 3);
    assert_int_equal(workers_queued(w), 0);
    give_tickets(1);
    await(&n_ended, 4);
    workers_free(w);
}

static void test_without_memory_a_job_keeps_its_thread(void **state)
{
    struct workers *w = start(2, JOBS_MAX);
    struct job first, second;

    (void)state;
    no_memory = true;
    post(w, &first, run_turn, 1, WORKERS_NORMAL);
    await(&n_begun, 1);
    post(w, &second, run_note, 0, WORKERS_NORMAL);
    await(&n_ended, 1);
    assert_int_equal(workers_waiting(w), 0);
    give_tickets(1);
    await(&n_ended, 2);
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
        cmocka_unit_test_setup_teardown(test_a_full_pool_takes_urgent_jobs_only, setup, teardown),
        cmocka_unit_test_setup_teardown(test_without_memory_a_job_keeps_its_thread, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_stop_awaits_jobs_that_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stacks_are_kept, setup, teardown),
    };

    return cmocka_run_group_tests_name("workers_waiting", tests, NULL, NULL);
}
