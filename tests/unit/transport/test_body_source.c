/* The body as a source: exact ranges, the tensor named where the bytes ran out, the end checked. */
#include "transport/body.h"

#include "base/clock.h"
#include "http/http_request_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { LONG_US = 60 * 1000 * 1000, BIG = 20 << 20, TAIL = 1000 };

struct fake_http_server {
    struct http_request_http_server http_server; /* first */
    atomic_int n_wakes;
};

static struct fake_http_server http_server;
static struct http_request *x;
static struct source *source;
static struct progress progress;

static struct tensor_spec tensors[] = {
    {.name = "small.a", .nbytes = 3},
    {.name = "empty", .nbytes = 0},
    {.name = "big", .nbytes = BIG},
    {.name = "tail", .nbytes = TAIL},
};
static const struct tensor_list tensor_list = {
    .n_tensors = 4, .tensors = tensors, .nbytes = 3 + BIG + TAIL};

static void count_wake(struct http_request_http_server *f)
{
    (void)atomic_fetch_add(&((struct fake_http_server *)(void *)f)->n_wakes, 1);
}

static int start(void **state)
{
    struct err e = {0};

    (void)state;
    http_server.http_server.wake = count_wake;
    atomic_store(&http_server.n_wakes, 0);
    memset(&progress, 0, sizeof progress);
    progress.deadline_us = clock_after_us(LONG_US);
    if (http_request_new(&x, &http_server.http_server, &e) != 0)
        return -1;
    return body_source_new(&source, x, LONG_US, &e);
}

static int stop(void **state)
{
    (void)state;
    source_close(source);
    http_request_unref(x);
    return 0;
}

static unsigned char pattern(uint64_t i)
{
    return (unsigned char)(i * 2654435761U >> 11);
}

/* Feeds the first n pattern bytes as a loop would, then ends the body. */
static void *feed(void *arg)
{
    uint64_t n = *(const uint64_t *)arg;
    char piece[16384];

    for (uint64_t done = 0; done < n;) {
        size_t len = n - done < sizeof piece ? (size_t)(n - done) : sizeof piece;
        int wakes = atomic_load(&http_server.n_wakes);
        size_t took;

        for (size_t i = 0; i < len; i++)
            piece[i] = (char)pattern(done + i);
        took = http_request_body_feed(x, piece, len);
        done += took;
        while (took < len && atomic_load(&http_server.n_wakes) == wakes &&
               !http_request_disconnected(x))
            sched_yield();
        if (http_request_disconnected(x))
            return NULL;
    }
    http_request_body_over(x);
    return NULL;
}

static void test_ranges_are_exact(void **state)
{
    uint64_t n = tensor_list.nbytes;
    char *dst = malloc(n);
    struct err e = {0};
    pthread_t t;

    (void)state;
    assert_non_null(dst);
    assert_int_equal(pthread_create(&t, NULL, feed, &n), 0);
    assert_int_equal(source->ops->fill(source, &tensor_list, 0, 2, dst, &progress, &e), 0);
    assert_int_equal(atomic_load(&progress.nbytes_done), 3);
    assert_int_equal(source->ops->fill(source, &tensor_list, 2, 2, dst + 3, &progress, &e), 0);
    assert_int_equal(atomic_load(&progress.nbytes_done), n);
    assert_int_equal(source->ops->finish(source, &progress, &e), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    for (uint64_t i = 0; i < n; i++)
        if ((unsigned char)dst[i] != pattern(i))
            fail_msg("byte %llu differs", (unsigned long long)i);
    free(dst);
}

/* Fills everything from a body of n bytes, expects it to fail. */
static void expect_short(uint64_t n, const char *tensor)
{
    char *dst = malloc(tensor_list.nbytes);
    struct err e = {0};
    pthread_t t;

    assert_non_null(dst);
    assert_int_equal(pthread_create(&t, NULL, feed, &n), 0);
    assert_int_equal(source->ops->fill(source, &tensor_list, 0, 4, dst, &progress, &e), -1);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(e.code, ERR_UNREADABLE);
    if (strstr(e.msg, tensor) == NULL)
        fail_msg("%s does not name %s", e.msg, tensor);
    free(dst);
}

static void test_short_in_the_first(void **state)
{
    (void)state;
    expect_short(2, "'small.a'");
}

static void test_short_in_the_big_one(void **state)
{
    (void)state;
    expect_short(3 + BIG - 1, "'big'");
}

static void test_short_in_the_last(void **state)
{
    (void)state;
    expect_short(3 + BIG + 5, "'tail'");
}

static void test_surplus_is_found_at_the_end(void **state)
{
    uint64_t n = tensor_list.nbytes + 1;
    char *dst = malloc(tensor_list.nbytes);
    struct err e = {0};
    pthread_t t;

    (void)state;
    assert_non_null(dst);
    assert_int_equal(pthread_create(&t, NULL, feed, &n), 0);
    assert_int_equal(source->ops->fill(source, &tensor_list, 0, 4, dst, &progress, &e), 0);
    assert_int_equal(source->ops->finish(source, &progress, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    http_request_mark_disconnected(x); /* lets the feeder go */
    assert_int_equal(pthread_join(t, NULL), 0);
    free(dst);
}

static void *ask_to_stop(void *arg)
{
    (void)arg;
    while (http_request_body_feed(x, "\0\0", 2) == 0)
        sched_yield(); /* until the fill waits for more */
    atomic_store(&progress.stop, true);
    return NULL;
}

static void test_stop_and_deadline(void **state)
{
    char *dst = malloc(tensor_list.nbytes);
    struct err e = {0};
    uint64_t began_us = clock_now_us();
    pthread_t t;

    (void)state;
    assert_non_null(dst);
    assert_int_equal(pthread_create(&t, NULL, ask_to_stop, NULL), 0);
    assert_int_equal(source->ops->fill(source, &tensor_list, 0, 4, dst, &progress, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_int_equal(pthread_join(t, NULL), 0);
    err_clear(&e);
    atomic_store(&progress.stop, false);
    progress.deadline_us = clock_after_us(3000);
    assert_int_equal(source->ops->fill(source, &tensor_list, 0, 4, dst, &progress, &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    assert_true(clock_now_us() - began_us < LONG_US / 2);
    free(dst);
}

static void *fill_all(void *dst)
{
    struct err e = {0};

    assert_int_equal(source->ops->fill(source, &tensor_list, 0, 4, dst, &progress, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    return NULL;
}

/* Whoever looks while a slow sender sends sees every byte so far, and the tensor they are in. */
static void test_progress_is_told_within_a_piece(void **state)
{
    enum { SENT = 3 + 100000 };
    static const char zeros[SENT];
    uint64_t late_us = clock_after_us(LONG_US);
    char *dst = malloc(tensor_list.nbytes);
    pthread_t t;

    (void)state;
    assert_non_null(dst);
    assert_int_equal(pthread_create(&t, NULL, fill_all, dst), 0);
    for (size_t done = 0; done < SENT && !clock_passed(late_us);)
        done += http_request_body_feed(x, zeros + done, SENT - done);
    while (atomic_load(&progress.nbytes_done) < SENT && !clock_passed(late_us))
        sched_yield();
    assert_int_equal(atomic_load(&progress.nbytes_done), SENT);
    assert_int_equal(atomic_load(&progress.tensor), 2);
    atomic_store(&progress.stop, true);
    assert_int_equal(pthread_join(t, NULL), 0);
    free(dst);
}

static void *stop_who_waits_for_the_end(void *arg)
{
    bool waits = false;

    (void)arg;
    while (!waits) {
        mtx_lock(&x->priv->lock);
        waits = x->priv->reader != NULL;
        mtx_unlock(&x->priv->lock);
        (void)sched_yield();
    }
    atomic_store(&progress.stop, true);
    return NULL;
}

/* Every byte is there, the body's end is not: whoever ends the update does not wait for it. */
static void test_stop_while_the_end_is_awaited(void **state)
{
    uint64_t began_us = clock_now_us();
    struct err e = {0};
    pthread_t t;

    (void)state;
    assert_int_equal(pthread_create(&t, NULL, stop_who_waits_for_the_end, NULL), 0);
    assert_int_equal(source->ops->finish(source, &progress, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_true(clock_now_us() - began_us < LONG_US / 4);
    assert_int_equal(pthread_join(t, NULL), 0);
}

static void test_an_end_that_never_comes_is_a_stall(void **state)
{
    struct source *impatient = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(body_source_new(&impatient, x, 1000, &e), 0);
    assert_int_equal(impatient->ops->finish(impatient, &progress, &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    source_close(impatient);
}

#define T(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_ranges_are_exact),
        T(test_short_in_the_first),
        T(test_short_in_the_big_one),
        T(test_short_in_the_last),
        T(test_surplus_is_found_at_the_end),
        T(test_stop_and_deadline),
        T(test_progress_is_told_within_a_piece),
        T(test_stop_while_the_end_is_awaited),
        T(test_an_end_that_never_comes_is_a_stall),
    };

    return cmocka_run_group_tests_name("body_source", tests, NULL, NULL);
}
