/* The loop: posting, timers, watches that go away in the turn that names them. */
#include "base/clock.h"
#include "base/loop.h"
#include "base/mtx.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { WAIT_US = 60 * 1000 * 1000 };

static struct mtx lock;
static struct cnd moved;
static size_t n_seen;  /* guarded by lock */
static char order[64]; /* guarded by lock */
static struct loop *loop;
static atomic_uint_fast64_t skew_us; /* of the clock of this process */

uint64_t __real_clock_now_us(void);
uint64_t __wrap_clock_now_us(void);
uint64_t __wrap_clock_now_us(void)
{
    return __real_clock_now_us() + skew_us;
}

static void saw(char what)
{
    mtx_lock(&lock);
    if (n_seen < sizeof order - 1)
        order[n_seen] = what;
    n_seen++;
    cnd_broadcast(&moved);
    mtx_unlock(&lock);
}

static void wait_seen(size_t n)
{
    uint64_t deadline_us = clock_after_us(WAIT_US);
    size_t seen;

    mtx_lock(&lock);
    while (n_seen < n && cnd_wait(&moved, &lock, deadline_us))
        ;
    seen = n_seen;
    mtx_unlock(&lock);
    assert_true(seen >= n);
}

static int start(void **state)
{
    struct loop_cfg cfg = {.name = "test"};
    struct err e = {0};

    (void)state;
    mtx_init(&lock, MTX_LEAF);
    cnd_init(&moved);
    n_seen = 0;
    memset(order, 0, sizeof order);
    return loop_new(&loop, &cfg, &e);
}

static int stop(void **state)
{
    (void)state;
    loop_free(loop);
    cnd_fini(&moved);
    mtx_fini(&lock);
    return 0;
}

static void run_letter(void *arg)
{
    assert_true(loop_is_current(loop));
    saw(*(const char *)arg);
}

static void test_items_run_in_order_and_once(void **state)
{
    static char letters[] = "abc";
    struct loop_item items[3];
    struct err e = {0};

    (void)state;
    for (int i = 0; i < 3; i++) {
        items[i] = (struct loop_item){.run = run_letter, .arg = &letters[i]};
        loop_post(loop, &items[i]);
    }
    loop_post(loop, &items[0]); /* queued already: stays where it is */
    assert_int_equal(loop_start(loop, &e), 0);
    wait_seen(3);
    loop_post(loop, &items[1]);
    wait_seen(4);
    assert_string_equal(order, "abcb");
    assert_false(loop_is_current(loop));
}

static void test_unposted_item_does_not_run(void **state)
{
    static char letters[] = "abcd";
    struct loop_item items[4];
    struct err e = {0};

    (void)state;
    for (int i = 0; i < 4; i++) {
        items[i] = (struct loop_item){.run = run_letter, .arg = &letters[i]};
        loop_post(loop, &items[i]);
    }
    loop_unpost(loop, &items[1]);
    loop_unpost(loop, &items[3]); /* the last one */
    loop_unpost(loop, &items[3]); /* not queued: nothing */
    loop_post(loop, &items[1]);   /* behind c now */
    assert_int_equal(loop_start(loop, &e), 0);
    wait_seen(3);
    loop_stop(loop);
    assert_string_equal(order, "acb");
}

static void test_stop_runs_what_was_posted(void **state)
{
    static char letter[] = "z";
    struct loop_item item = {.run = run_letter, .arg = letter};
    struct err e = {0};

    (void)state;
    assert_int_equal(loop_start(loop, &e), 0);
    loop_post(loop, &item);
    loop_stop(loop);
    assert_string_equal(order, "z");
    loop_stop(loop); /* harmless */
}

static void test_timers_fire_in_due_order(void **state)
{
    static char letters[] = "123";
    struct loop_timer timers[4];
    uint64_t now = clock_now_us();
    struct err e = {0};

    (void)state;
    for (int i = 0; i < 4; i++)
        timers[i] = (struct loop_timer){.fire = run_letter, .arg = &letters[i % 3]};
    loop_timer_set(loop, &timers[2], now + 3000);
    loop_timer_set(loop, &timers[0], now + 1000);
    loop_timer_set(loop, &timers[3], now + 1500);
    loop_timer_set(loop, &timers[1], now + 9000);
    loop_timer_set(loop, &timers[1], now + 2000); /* armed again: moved */
    loop_timer_cancel(loop, &timers[3]);
    assert_int_equal(loop_start(loop, &e), 0);
    wait_seen(3);
    loop_stop(loop);
    assert_string_equal(order, "123");
    assert_true(clock_now_us() >= now + 3000);
}

struct pair {
    struct loop_watch watch[2];
};

/* Whichever is handled first takes the other away; its event of this turn must not be delivered. */
static void take_other(void *arg, uint32_t events)
{
    struct pair *p = arg;

    assert_true((events & EPOLLIN) != 0);
    loop_unwatch(loop, &p->watch[0]);
    loop_unwatch(loop, &p->watch[1]);
    saw('w');
}

static void test_unwatch_wipes_the_batch(void **state)
{
    static char letter[] = "i";
    struct pair p;
    struct loop_item item = {.run = run_letter, .arg = letter};
    struct err e = {0};

    (void)state;
    for (int i = 0; i < 2; i++) {
        int fd = eventfd(1, EFD_CLOEXEC);

        assert_true(fd >= 0);
        p.watch[i] = (struct loop_watch){.ready = take_other, .arg = &p, .fd = fd};
        assert_int_equal(loop_watch(loop, &p.watch[i], EPOLLIN, &e), 0);
    }
    loop_post(loop, &item);
    assert_int_equal(loop_start(loop, &e), 0);
    wait_seen(2);
    loop_stop(loop);
    assert_string_equal(order, "wi"); /* one of the two, then the item */
    for (int i = 0; i < 2; i++)
        (void)close(p.watch[i].fd);
}

static void test_watch_of_a_bad_fd_is_an_error(void **state)
{
    struct loop_watch w = {.ready = take_other, .fd = -1};
    struct err e = {0};

    (void)state;
    assert_int_equal(loop_watch(loop, &w, EPOLLIN, &e), -1);
    assert_int_equal(e.code, ERR_INTERNAL);
}

static void *post_many(void *arg)
{
    struct loop_item *items = arg;

    for (int i = 0; i < 1000; i++)
        loop_post(loop, &items[i]);
    return NULL;
}

static void test_posts_from_many_threads_all_run(void **state)
{
    static char letter[] = "p";
    struct loop_item *items = calloc(4000, sizeof *items);
    pthread_t threads[4];
    struct err e = {0};

    (void)state;
    assert_non_null(items);
    for (int i = 0; i < 4000; i++)
        items[i] = (struct loop_item){.run = run_letter, .arg = letter};
    assert_int_equal(loop_start(loop, &e), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, post_many, items + i * 1000), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    wait_seen(4000);
    loop_stop(loop);
    assert_int_equal(n_seen, 4000);
    free(items);
}

static void run_slowly(void *arg)
{
    (void)arg;
    skew_us += 20000;
    saw('s');
}

/* A turn is noted when it has ended. */
static void wait_noted(struct loop_item *quick)
{
    uint64_t deadline_us = clock_after_us(WAIT_US);
    size_t n = 1;

    while (loop_lag_max_us(loop) < 20000 && !clock_passed(deadline_us)) {
        loop_post(loop, quick);
        wait_seen(++n);
    }
}

/* Two readers read the same; a turn is forgotten after one whole period, also if no other comes. */
static void test_lag_is_a_maximum_by_the_clock(void **state)
{
    static char letter[] = "q";
    struct loop_item slow = {.run = run_slowly}, quick = {.run = run_letter, .arg = letter};
    struct err e = {0};

    (void)state;
    skew_us += LOOP_LAG_PERIOD_US - clock_now_us() % LOOP_LAG_PERIOD_US; /* a period begins */
    assert_int_equal(loop_start(loop, &e), 0);
    loop_post(loop, &slow);
    wait_seen(1);
    wait_noted(&quick);
    assert_in_range(loop_lag_max_us(loop), 20000, LOOP_LAG_PERIOD_US);
    assert_in_range(loop_lag_max_us(loop), 20000, LOOP_LAG_PERIOD_US);
    loop_stop(loop); /* no turn is under way while the clock is moved */
    skew_us += LOOP_LAG_PERIOD_US;
    assert_in_range(loop_lag_max_us(loop), 20000, LOOP_LAG_PERIOD_US);
    skew_us += LOOP_LAG_PERIOD_US;
    assert_int_equal(loop_lag_max_us(loop), 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_items_run_in_order_and_once),     T(test_unposted_item_does_not_run),
        T(test_stop_runs_what_was_posted),       T(test_timers_fire_in_due_order),
        T(test_unwatch_wipes_the_batch),         T(test_watch_of_a_bad_fd_is_an_error),
        T(test_posts_from_many_threads_all_run), T(test_lag_is_a_maximum_by_the_clock),
    };

    return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
