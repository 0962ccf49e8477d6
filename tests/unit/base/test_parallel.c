/* The shared loop: every item once, and the error of the lowest that failed, however many threads
 * there are. */
#include "base/jobs/parallel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

enum { N = 1000 };

static bool threads_fail; /* to start */
static atomic_uint calls[N], busy[PARALLEL_THREADS_MAX], n_failed;
static uint64_t bad_from;

int __real_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);

int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
    return threads_fail ? EAGAIN : __real_pthread_create(t, attr, fn, arg);
}

/* Of those that fail, the first begun ends last. */
static int item(void *arg, unsigned thread, uint64_t i, struct err *e)
{
    assert_ptr_equal(arg, calls);
    assert_true(thread < PARALLEL_THREADS_MAX);
    assert_int_equal(atomic_fetch_add(&busy[thread], 1), 0);
    atomic_fetch_add(&calls[i], 1);
    for (int k = 0; i == bad_from && !threads_fail && k < 1000 && atomic_load(&n_failed) == 0; k++)
        (void)sched_yield();
    atomic_fetch_sub(&busy[thread], 1);
    if (i < bad_from)
        return 0;
    atomic_fetch_add(&n_failed, 1);
    return err_set(e, ERR_UNREADABLE, "", "item %u", (unsigned)i);
}

static int run(uint64_t bad, bool no_threads, struct err *e)
{
    for (int i = 0; i < N; i++)
        atomic_store(&calls[i], 0);
    atomic_store(&n_failed, 0);
    bad_from = bad;
    threads_fail = no_threads;
    return parallel_run(item, calls, N, (uint64_t)PARALLEL_THREADS_MAX * PARALLEL_NBYTES, "item",
                        e);
}

static void test_every_item_is_called_once(void **state)
{
    struct err e = {0};

    (void)state;
    for (int alone = 0; alone < 2; alone++) {
        assert_int_equal(run(N, alone != 0, &e), 0);
        for (int i = 0; i < N; i++)
            assert_int_equal(atomic_load(&calls[i]), 1);
    }
    assert_int_equal(parallel_run(item, calls, 0, 0, "item", &e), 0);
}

static void test_the_lowest_error_is_told(void **state)
{
    (void)state;
    for (int alone = 0; alone < 2; alone++) {
        for (uint64_t bad = 0; bad < N; bad += 99) {
            struct err e = {0};
            char says[32];

            assert_int_equal(run(bad, alone != 0, &e), -1);
            (void)snprintf(says, sizeof says, "item %u", (unsigned)bad);
            assert_string_equal(e.msg, says);
            for (uint64_t i = 0; i <= bad; i++)
                assert_int_equal(atomic_load(&calls[i]), 1);
            assert_true(atomic_load(&n_failed) <= PARALLEL_THREADS_MAX);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_is_called_once),
        cmocka_unit_test(test_the_lowest_error_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
