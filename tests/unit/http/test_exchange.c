/* The exchange alone: a front made of a counter stands in for the real one. */
#include "base/clock.h"
#include "http/exchange.h"
#include "http/exchange_priv.h"

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

enum { LONG_US = 60 * 1000 * 1000 };

struct fake_front {
    struct exchange_front front; /* first */
    atomic_int n_wakes;
};

static struct fake_front front;
static struct exchange *x;
static atomic_int n_released, n_gone;

static void count_wake(struct exchange_front *f)
{
    (void)atomic_fetch_add(&((struct fake_front *)(void *)f)->n_wakes, 1);
}

static void count_release(void *arg)
{
    (void)arg;
    (void)atomic_fetch_add(&n_released, 1);
}

static void count_gone(void *arg)
{
    (void)arg;
    (void)atomic_fetch_add(&n_gone, 1);
}

static int start(void **state)
{
    struct err e = {0};

    (void)state;
    front.front.wake = count_wake;
    atomic_store(&front.n_wakes, 0);
    atomic_store(&n_released, 0);
    atomic_store(&n_gone, 0);
    return exchange_new(&x, &front.front, &e);
}

static int stop(void **state)
{
    (void)state;
    exchange_unref(x);
    return 0;
}

static struct exchange_reply reply(void)
{
    struct exchange_reply r = {.status = 200, .data = "abc", .len = 3, .release = count_release};

    exchange_reply_header(&r, "X-A", "%d", 7);
    return r;
}

static void test_reply_reaches_the_front(void **state)
{
    struct exchange_reply r = reply(), got;

    (void)state;
    exchange_on_gone(x, count_gone, NULL);
    exchange_reply(exchange_ref(x), &r);
    assert_int_equal(atomic_load(&front.n_wakes), 1);
    assert_int_equal(exchange_answered(x), ANSWER_REPLY);
    exchange_reply_take(x, &got);
    assert_int_equal(got.status, 200);
    assert_string_equal(got.headers[0].value, "7");
    exchange_detach(x, false); /* the peer went while it was sent: nobody hears of it any more */
    assert_int_equal(atomic_load(&n_gone), 0);
    assert_int_equal(atomic_load(&n_released), 0); /* the front's now */
}

static void test_reply_after_detach_is_released_once(void **state)
{
    struct exchange_reply r = reply();

    (void)state;
    exchange_on_gone(x, count_gone, NULL);
    exchange_detach(x, false);
    assert_int_equal(atomic_load(&n_gone), 1);
    exchange_reply(exchange_ref(x), &r);
    assert_int_equal(atomic_load(&n_released), 1);
    assert_int_equal(atomic_load(&front.n_wakes), 0);
}

static void test_reply_never_taken_is_released_once(void **state)
{
    struct exchange_reply r = reply();
    struct exchange *other;
    struct err e = {0};

    (void)state;
    assert_int_equal(exchange_new(&other, &front.front, &e), 0);
    exchange_reply(exchange_ref(other), &r);
    exchange_detach(other, false);
    assert_int_equal(atomic_load(&n_released), 0);
    exchange_unref(other);
    assert_int_equal(atomic_load(&n_released), 1);
}

static void test_on_gone_runs_once_or_not_at_all(void **state)
{
    (void)state;
    exchange_on_gone(x, count_gone, NULL);
    exchange_on_gone(x, NULL, NULL); /* taken back */
    exchange_mark_gone(x);
    assert_int_equal(atomic_load(&n_gone), 0);
    assert_true(exchange_gone(x));
    exchange_on_gone(x, count_gone, NULL); /* gone already: here and now */
    assert_int_equal(atomic_load(&n_gone), 1);
    exchange_mark_gone(x);
    exchange_detach(x, false);
    assert_int_equal(atomic_load(&n_gone), 1);
}

static void test_stream_wakes_only_a_waiting_front(void **state)
{
    char out[8];
    size_t n;

    (void)state;
    exchange_stream_open(exchange_ref(x), 200, "text/event-stream");
    assert_int_equal(atomic_load(&front.n_wakes), 1);
    assert_int_equal(exchange_stream_write(x, "abcdefgh", 8), 0);
    assert_int_equal(atomic_load(&front.n_wakes), 1);
    assert_int_equal(exchange_stream_take(x, out, 5, &n), STREAM_BYTES);
    assert_memory_equal(out, "abcde", 5);
    assert_int_equal(exchange_stream_take(x, out, 8, &n), STREAM_BYTES);
    assert_int_equal(n, 3);
    assert_int_equal(exchange_stream_take(x, out, 8, &n), STREAM_EMPTY);
    assert_int_equal(exchange_stream_write(x, "i", 1), 0);
    assert_int_equal(atomic_load(&front.n_wakes), 2);
    exchange_stream_close(x, true);
    assert_int_equal(exchange_stream_take(x, out, 8, &n), STREAM_BYTES);
    assert_int_equal(exchange_stream_take(x, out, 8, &n), STREAM_END);
}

static void test_stream_bound(void **state)
{
    char *block = calloc(1, 1 << 20);
    char out[8];
    size_t n;

    (void)state;
    assert_non_null(block);
    exchange_stream_open(exchange_ref(x), 200, "text/event-stream");
    for (int i = 0; i < EXCHANGE_STREAM_NBYTES_MAX >> 20; i++)
        assert_int_equal(exchange_stream_write(x, block, 1 << 20), 0);
    assert_int_equal(exchange_stream_write(x, block, 1), -1);
    assert_int_equal(exchange_stream_write(x, block, 0), -1); /* and stays so */
    assert_int_equal(exchange_stream_take(x, out, 8, &n), STREAM_CUT);
    exchange_stream_close(x, true);
    assert_int_equal(exchange_stream_take(x, out, 8, &n), STREAM_CUT);
    free(block);
}

static void count_drained(void *arg)
{
    ++*(int *)arg;
}

static void test_drained_counts_what_the_front_keeps(void **state)
{
    int n_drained = 0;
    char out[8];
    size_t n;

    (void)state;
    exchange_stream_open(exchange_ref(x), 200, "text/event-stream");
    assert_int_equal(exchange_stream_write(x, "abcdefgh", 8), 0);
    exchange_on_drained(x, 4, count_drained, &n_drained);
    assert_int_equal(exchange_stream_take(x, out, 3, &n), STREAM_BYTES);
    assert_int_equal(n_drained, 0); /* 5 are left */
    exchange_stream_kept(x, 3);
    assert_int_equal(exchange_stream_unsent(x), 8);
    assert_int_equal(exchange_stream_take(x, out, 3, &n), STREAM_BYTES);
    assert_int_equal(n_drained, 0); /* 2, and 3 that are kept */
    exchange_stream_kept(x, 2);
    assert_int_equal(n_drained, 1);
    exchange_stream_kept(x, 0);
    assert_int_equal(n_drained, 1); /* once */
    exchange_on_drained(x, 4, count_drained, &n_drained);
    assert_int_equal(n_drained, 2); /* at once, where it is so */
    exchange_on_drained(x, 1, count_drained, &n_drained);
    exchange_on_drained(x, 1, NULL, NULL);
    assert_int_equal(exchange_stream_take(x, out, 8, &n), STREAM_BYTES);
    assert_int_equal(n_drained, 2); /* taken back */
    assert_int_equal(exchange_stream_write(x, "ab", 2), 0);
    exchange_on_drained(x, 1, count_drained, &n_drained);
    exchange_mark_gone(x);
    exchange_stream_kept(x, 0);
    exchange_stream_close(x, true);
    assert_int_equal(n_drained, 2); /* not of one who is gone */
}

static void test_a_stream_has_the_head_of_a_reply(void **state)
{
    struct exchange_reply head = {.status = 429};

    (void)state;
    exchange_reply_header(&head, "Content-Type", "text/%s", "plain");
    exchange_stream_open_as(exchange_ref(x), &head);
    assert_int_equal(x->priv->reply.status, 429);
    assert_string_equal(x->priv->reply.headers[0].value, "text/plain");
    assert_false(x->priv->reply_held);
    exchange_stream_close(x, true);
}

/* Feeds `body` in pieces of 3 bytes as a loop would, sleeping only while nobody reads. */
struct feeder {
    const char *body;
    size_t len;
    bool end, gone;
};

static void *feed(void *arg)
{
    struct feeder *f = arg;

    for (size_t done = 0; done < f->len;) {
        size_t piece = f->len - done < 3 ? f->len - done : 3;
        int wakes = atomic_load(&front.n_wakes);
        size_t took = exchange_body_feed(x, f->body + done, piece);

        done += took;
        while (took < piece && atomic_load(&front.n_wakes) == wakes)
            sched_yield();
    }
    if (f->end)
        exchange_body_over(x);
    if (f->gone)
        exchange_mark_gone(x);
    return NULL;
}

/* Reads n bytes in two reads, then the end. */
static int read_all(struct feeder f, size_t n, struct err *e)
{
    char dst[64] = "";
    pthread_t t;
    uint64_t deadline_us = clock_after_us(LONG_US);
    int rc;

    assert_int_equal(pthread_create(&t, NULL, feed, &f), 0);
    rc = exchange_body_read(x, dst, n / 2, LONG_US, deadline_us, NULL, NULL, e);
    if (rc == 0)
        rc = exchange_body_read(x, dst + n / 2, n - n / 2, LONG_US, deadline_us, NULL, NULL, e);
    if (rc == 0) {
        assert_memory_equal(dst, f.body, n);
        rc = exchange_body_end(x, LONG_US, deadline_us, e);
    }
    assert_int_equal(pthread_join(t, NULL), 0);
    return rc;
}

static void test_body_read_exact(void **state)
{
    struct err e = {0};

    (void)state;
    assert_int_equal(read_all((struct feeder){"0123456789", 10, true, false}, 10, &e), 0);
    assert_int_equal(exchange_body_taken(x), 10);
    /* After the end there is nothing more to read. */
    assert_int_equal(exchange_body_read(x, &e, 1, LONG_US, clock_after_us(LONG_US), NULL, NULL, &e),
                     -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
}

static void test_body_too_short(void **state)
{
    struct err e = {0};

    (void)state;
    assert_int_equal(read_all((struct feeder){"01234567", 8, true, false}, 11, &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_string_equal(e.msg, "the body ended early: 3 bytes are missing");
}

static void test_body_peer_gone(void **state)
{
    struct err e = {0};

    (void)state;
    assert_int_equal(read_all((struct feeder){"01234567", 8, false, true}, 11, &e), -1);
    assert_int_equal(e.code, ERR_GONE);
}

static void test_body_without_a_reader_is_not_taken(void **state)
{
    struct feeder f = {"abcd", 4, true, false};
    uint64_t deadline_us = clock_after_us(LONG_US);
    struct err e = {0};
    char dst[4];
    pthread_t t;

    (void)state;
    assert_int_equal(exchange_body_feed(x, "abcd", 4), 0); /* the front now sleeps */
    assert_int_equal(atomic_load(&front.n_wakes), 0);
    assert_int_equal(pthread_create(&t, NULL, feed, &f), 0);
    assert_int_equal(exchange_body_read(x, dst, 4, LONG_US, deadline_us, NULL, NULL, &e), 0);
    assert_memory_equal(dst, "abcd", 4);
    assert_true(atomic_load(&front.n_wakes) > 0);
    assert_int_equal(exchange_body_end(x, LONG_US, deadline_us, &e), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
}

static void *feed_surplus(void *arg)
{
    (void)arg;
    while (atomic_load(&front.n_wakes) == 0)
        sched_yield(); /* until the reader has registered */
    (void)exchange_body_feed(x, "more", 4);
    return NULL;
}

static void test_body_end_finds_surplus(void **state)
{
    struct err e = {0};
    pthread_t t;

    (void)state;
    assert_int_equal(exchange_body_feed(x, "m", 1), 0); /* paused: registering will wake */
    assert_int_equal(pthread_create(&t, NULL, feed_surplus, NULL), 0);
    assert_int_equal(exchange_body_end(x, LONG_US, clock_after_us(LONG_US), &e), -1);
    assert_int_equal(e.code, ERR_UNREADABLE);
    assert_int_equal(pthread_join(t, NULL), 0);
}

static bool always(void *arg)
{
    (void)arg;
    return true;
}

static void test_body_limits(void **state)
{
    struct err e = {0};
    char dst[4];
    uint64_t began_us = clock_now_us();

    (void)state;
    assert_int_equal(exchange_body_read(x, dst, 4, 5000, clock_after_us(LONG_US), NULL, NULL, &e),
                     -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    assert_string_equal(e.msg, "no byte of the body came for 5 ms, 4 are missing");
    err_clear(&e);
    assert_int_equal(exchange_body_read(x, dst, 4, LONG_US, clock_after_us(5000), NULL, NULL, &e),
                     -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    err_clear(&e);
    assert_int_equal(
        exchange_body_read(x, dst, 4, LONG_US, clock_after_us(LONG_US), always, NULL, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_true(clock_now_us() - began_us < LONG_US / 2);
    assert_int_equal(exchange_body_read(x, dst, 0, 0, 0, NULL, NULL, &e), 0);
}

static void test_query_finds_the_first(void **state)
{
    static char a[] = "a", b[] = "b", one[] = "1", two[] = "2";
    struct exchange_param query[] = {{b, two}, {a, one}, {a, two}};

    (void)state;
    x->query = query;
    x->n_query = 3;
    assert_string_equal(exchange_query(x, "a"), "1");
    assert_null(exchange_query(x, "c"));
    assert_string_equal(exchange_method_name(METHOD_OTHER), "OTHER");
}

#define T(name) cmocka_unit_test_setup_teardown(name, start, stop)

static void test_drop_body_twice_is_harmless(void **state)
{
    (void)state;
    exchange_drop_body(x); /* of a request without one */
    x->body = strdup("{}");
    assert_non_null(x->body);
    x->body_len = 2;
    exchange_drop_body(x);
    assert_string_equal(x->body, "");
    assert_int_equal(x->body_len, 0);
    exchange_drop_body(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_reply_reaches_the_front),
        T(test_reply_after_detach_is_released_once),
        T(test_reply_never_taken_is_released_once),
        T(test_on_gone_runs_once_or_not_at_all),
        T(test_stream_wakes_only_a_waiting_front),
        T(test_stream_bound),
        T(test_drained_counts_what_the_front_keeps),
        T(test_a_stream_has_the_head_of_a_reply),
        T(test_drop_body_twice_is_harmless),
        T(test_body_read_exact),
        T(test_body_too_short),
        T(test_body_peer_gone),
        T(test_body_without_a_reader_is_not_taken),
        T(test_body_end_finds_surplus),
        T(test_body_limits),
        T(test_query_finds_the_first),
    };

    return cmocka_run_group_tests_name("exchange", tests, NULL, NULL);
}
