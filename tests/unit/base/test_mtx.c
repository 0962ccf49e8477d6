/* Lock order is executed: going down the ranks, or unlocking out of order, ends the process. */
#include "base/clock.h"
#include "base/mtx.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct mtx low, high, high2;

static int start(void **state)
{
    (void)state;
    mtx_init(&low, MTX_STORE);
    mtx_init(&high, MTX_LEAF);
    mtx_init(&high2, MTX_LEAF);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    mtx_fini(&low);
    mtx_fini(&high);
    mtx_fini(&high2);
    return 0;
}

static void up(void)
{
    mtx_lock(&low);
    mtx_lock(&high);
    mtx_assert_held(&high);
    mtx_unlock(&high);
    mtx_unlock(&low);
    mtx_assert_none();
}

static void down(void)
{
    mtx_lock(&high);
    mtx_lock(&low);
}

static void same_rank(void)
{
    mtx_lock(&high);
    mtx_lock(&high2);
}

static void out_of_order(void)
{
    mtx_lock(&low);
    mtx_lock(&high);
    mtx_unlock(&low);
}

static void held_at_a_blocking_call(void)
{
    mtx_lock(&low);
    mtx_assert_none();
}

/* Does `body` run to its end in a process of its own? */
static bool survives(void (*body)(void))
{
    pid_t pid = fork();
    int status = -1;

    assert_true(pid >= 0);
    if (pid == 0) {
        (void)close(2); /* its complaint is expected */
        body();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void test_order_is_enforced(void **state)
{
    (void)state;
    assert_true(survives(up));
    assert_false(survives(down));
    assert_false(survives(same_rank));
    assert_false(survives(out_of_order));
    assert_false(survives(held_at_a_blocking_call));
}

static struct cnd moved;
static bool flag; /* guarded by low */

static void *set_flag(void *arg)
{
    (void)arg;
    mtx_lock(&low);
    flag = true;
    cnd_signal(&moved);
    mtx_unlock(&low);
    return NULL;
}

static void test_wait_until_signal_or_deadline(void **state)
{
    uint64_t began_us = clock_now_us();
    pthread_t t;

    (void)state;
    cnd_init(&moved);
    mtx_lock(&low);
    while (cnd_wait(&moved, &low, began_us + 3000))
        ; /* spurious */
    assert_true(clock_now_us() >= began_us + 3000);
    assert_int_equal(pthread_create(&t, NULL, set_flag, NULL), 0);
    while (!flag)
        assert_true(cnd_wait(&moved, &low, clock_after_us(60 * 1000 * 1000)));
    mtx_unlock(&low);
    assert_int_equal(pthread_join(t, NULL), 0);
    cnd_fini(&moved);
}

/* What the thread of this name does, as others see it. */
static struct mtx_thread seen_of(const char *name)
{
    struct mtx_thread all[64], found = {0};
    size_t n = mtx_threads(all, 64);

    for (size_t i = 0; i < n && i < 64; i++)
        if (strcmp(all[i].name, name) == 0)
            found = all[i];
    return found;
}

static void *take_low(void *arg)
{
    (void)pthread_setname_np(pthread_self(), arg);
    mtx_lock(&low);
    mtx_unlock(&low);
    return NULL;
}

static void *wait_for_flag(void *arg)
{
    (void)pthread_setname_np(pthread_self(), arg);
    mtx_lock(&low);
    while (!flag)
        (void)cnd_wait(&moved, &low, CLOCK_NEVER);
    mtx_unlock(&low);
    return NULL;
}

static void test_threads_show_what_they_hold_and_wait_for(void **state)
{
    char taker[] = "taker", waiter[] = "waiter";
    struct mtx_thread seen;
    pthread_t t;

    (void)state;
    (void)pthread_setname_np(pthread_self(), "holder");
    mtx_lock(&low);
    mtx_lock(&high);
    seen = seen_of("holder");
    assert_int_equal(seen.n_held, 2);
    assert_string_equal(mtx_rank_name(seen.held[0]), "MTX_STORE");
    assert_string_equal(mtx_rank_name(seen.held[1]), "MTX_LEAF");
    assert_true(seen.since_us == 0 && seen.tid == gettid());
    mtx_unlock(&high);
    assert_int_equal(pthread_create(&t, NULL, take_low, taker), 0);
    do
        seen = seen_of("taker");
    while (seen.since_us == 0);
    assert_true(seen.waits == MTX_STORE && !seen.on_condition && seen.n_held == 0);
    assert_string_equal(seen.owner, "holder");
    mtx_unlock(&low);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(seen_of("taker").tid, 0); /* it has ended */

    cnd_init(&moved);
    flag = false;
    assert_int_equal(pthread_create(&t, NULL, wait_for_flag, waiter), 0);
    do
        seen = seen_of("waiter");
    while (seen.since_us == 0 || !seen.on_condition);
    assert_true(seen.waits == MTX_STORE && seen.n_held == 0);
    (void)set_flag(NULL);
    assert_int_equal(pthread_join(t, NULL), 0);
    cnd_fini(&moved);
    assert_int_equal(mtx_threads(NULL, 0), 1);
}

static void *try_low(void *arg)
{
    struct err *e = arg;

    assert_int_equal(mtx_lock_by(&low, clock_after_us(2000), e), -1);
    mtx_assert_none();
    return NULL;
}

static void test_lock_by_names_who_has_it(void **state)
{
    struct err e = {0};
    pthread_t t;

    (void)state;
    (void)pthread_setname_np(pthread_self(), "holder");
    mtx_lock(&low);
    assert_int_equal(pthread_create(&t, NULL, try_low, &e), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    mtx_unlock(&low);
    assert_int_equal(e.code, ERR_TIMEOUT);
    assert_string_equal(e.msg, "MTX_STORE is locked by holder");
    err_clear(&e);
    assert_int_equal(mtx_lock_by(&low, clock_after_us(2000), &e), 0);
    mtx_assert_held(&low);
    mtx_unlock(&low);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_order_is_enforced, start, stop),
        cmocka_unit_test_setup_teardown(test_wait_until_signal_or_deadline, start, stop),
        cmocka_unit_test_setup_teardown(test_threads_show_what_they_hold_and_wait_for, start, stop),
        cmocka_unit_test_setup_teardown(test_lock_by_names_who_has_it, start, stop),
    };

    return cmocka_run_group_tests_name("mtx", tests, NULL, NULL);
}
