/* The request alone: an HTTP server made of a counter stands in for the real one. */
#include "base/clock.h"
#include "http/http_request.h"
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

enum { LONG_US = 60 * 1000 * 1000 };

struct fake_http_server {
    struct http_request_http_server http_server; /* first */
    atomic_int n_wakes;
};

static struct fake_http_server http_server;
static struct http_request *x;
static atomic_int n_released, n_gone;

static void count_wake(struct http_request_http_server *f)
{
    (void)atomic_fetch_add(&((struct fake_http_server *)(void *)f)->n_wakes, 1);
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
    http_server.http_server.wake = count_wake;
    atomic_store(&http_server.n_wakes, 0);
    atomic_store(&n_released, 0);
    atomic_store(&n_gone, 0);
    return http_request_new(&x, &http_server.http_server, &e);
}

static int stop(void **state)
{
    (void)state;
    http_request_unref(x);
    return 0;
}

static struct http_reply reply(void)
{
    struct http_reply r = {.status = 200, .data = "abc", .len = 3, .release = count_release};

    http_reply_header(&r, "X-A", "%d", 7);
    return r;
}

static void test_reply_reaches_the_http_server(void **state)
{
    struct http_reply r = reply(), got;

    (void)state;
    http_request_on_disconnect(x, count_gone, NULL);
    http_reply(http_request_ref(x), &r);
    assert_int_equal(atomic_load(&http_server.n_wakes), 1);
    assert_int_equal(http_request_answered(x), ANSWER_REPLY);
    http_reply_take(x, &got);
    assert_int_equal(got.status, 200);
    assert_string_equal(got.headers[0].value, "7");
    http_request_detach(x,
                        false); /* the peer went while it was sent: nobody hears of it any more */
    assert_int_equal(atomic_load(&n_gone), 0);
    assert_int_equal(atomic_load(&n_released), 0); /* the HTTP server's now */
}

static void test_reply_after_detach_is_released_once(void **state)
{
    struct http_reply r = reply();

    (void)state;
    http_request_on_disconnect(x, count_gone, NULL);
    http_request_detach(x, false);
    assert_int_equal(atomic_load(&n_gone), 1);
    http_reply(http_request_ref(x), &r);
    assert_int_equal(atomic_load(&n_released), 1);
    assert_int_equal(atomic_load(&http_server.n_wakes), 0);
}

static void test_reply_never_taken_is_released_once(void **state)
{
    struct http_reply r = reply();
    struct http_request *other;
    struct err e = {0};

    (void)state;
    assert_int_equal(http_request_new(&other, &http_server.http_server, &e), 0);
    http_reply(http_request_ref(other), &r);
    http_request_detach(other, false);
    assert_int_equal(atomic_load(&n_released), 0);
    http_request_unref(other);
    assert_int_equal(atomic_load(&n_released), 1);
}

static void test_on_gone_runs_once_or_not_at_all(void **state)
{
    (void)state;
    http_request_on_disconnect(x, count_gone, NULL);
    http_request_on_disconnect(x, NULL, NULL); /* taken back */
    http_request_mark_disconnected(x);
    assert_int_equal(atomic_load(&n_gone), 0);
    assert_true(http_request_disconnected(x));
    http_request_on_disconnect(x, count_gone, NULL); /* gone already: here and now */
    assert_int_equal(atomic_load(&n_gone), 1);
    http_request_mark_disconnected(x);
    http_request_detach(x, false);
    assert_int_equal(atomic_load(&n_gone), 1);
}

static void test_stream_wakes_only_a_waiting_http_server(void **state)
{
    char out[8];
    size_t n;

    (void)state;
    http_request_stream_open(http_request_ref(x), 200, "text/event-stream");
    assert_int_equal(atomic_load(&http_server.n_wakes), 1);
    assert_int_equal(http_request_stream_write(x, "abcdefgh", 8), 0);
    assert_int_equal(atomic_load(&http_server.n_wakes), 1);
    assert_int_equal(http_request_stream_take(x, out, 5, &n), STREAM_BYTES);
    assert_memory_equal(out, "abcde", 5);
    assert_int_equal(http_request_stream_take(x, out, 8, &n), STREAM_BYTES);
    assert_int_equal(n, 3);
    assert_int_equal(http_request_stream_take(x, out, 8, &n), STREAM_EMPTY);
    assert_int_equal(http_request_stream_write(x, "i", 1), 0);
    assert_int_equal(atomic_load(&http_server.n_wakes), 2);
    http_request_stream_close(x, true);
    assert_int_equal(http_request_stream_take(x, out, 8, &n), STREAM_BYTES);
    assert_int_equal(http_request_stream_take(x, out, 8, &n), STREAM_END);
}

static void test_stream_bound(void **state)
{
    char *block = calloc(1, 1 << 20);
    char out[8];
    size_t n;

    (void)state;
    assert_non_null(block);
    http_request_stream_open(http_request_ref(x), 200, "text/event-stream");
    for (int i = 0; i < HTTP_REQUEST_STREAM_NBYTES_MAX >> 20; i++)
        assert_int_equal(http_request_stream_write(x, block, 1 << 20), 0);
    assert_int_equal(http_request_stream_write(x, block, 1), -1);
    assert_int_equal(http_request_stream_write(x, block, 0), -1); /* and stays so */
    assert_int_equal(http_request_stream_take(x, out, 8, &n), STREAM_CUT);
    http_request_stream_close(x, true);
    assert_int_equal(http_request_stream_take(x, out, 8, &n), STREAM_CUT);
    free(block);
}

static void count_drained(void *arg)
{
    ++*(int *)arg;
}

static void test_drained_counts_what_the_http_server_keeps(void **state)
{
    int n_drained = 0;
    char out[8];
    size_t n;

    (void)state;
    http_request_stream_open(http_request_ref(x), 200, "text/event-stream");
    assert_int_equal(http_request_stream_write(x, "abcdefgh", 8), 0);
    http_request_on_drained(x, 4, count_drained, &n_drained);
    assert_int_equal(http_request_stream_take(x, out, 3, &n), STREAM_BYTES);
    assert_int_equal(n_drained, 0); /* 5 are left */
    http_request_stream_kept(x, 3);
    assert_int_equal(http_request_stream_unsent(x), 8);
    assert_int_equal(http_request_stream_take(x, out, 3, &n), STREAM_BYTES);
    assert_int_equal(n_drained, 0); /* 2, and 3 that are kept */
    http_request_stream_kept(x, 2);
    assert_int_equal(n_drained, 1);
    http_request_stream_kept(x, 0);
    assert_int_equal(n_drained, 1); /* once */
    http_request_on_drained(x, 4, count_drained, &n_drained);
    assert_int_equal(n_drained, 2); /* at once, where it is so */
    http_request_on_drained(x, 1, count_drained, &n_drained);
    http_request_on_drained(x, 1, NULL, NULL);
    assert_int_equal(http_request_stream_take(x, out, 8, &n), STREAM_BYTES);
    assert_int_equal(n_drained, 2); /* taken back */
    assert_int_equal(http_request_stream_write(x, "ab", 2), 0);
    http_request_on_drained(x, 1, count_drained, &n_drained);
    http_request_mark_disconnected(x);
    http_request_stream_kept(x, 0);
    http_request_stream_close(x, true);
    assert_int_equal(n_drained, 2); /* not of one who is gone */
}

static void test_a_stream_has_the_head_of_a_reply(void **state)
{
    struct http_reply head = {.status = 429};

    (void)state;
    http_reply_header(&head, "Content-Type", "text/%s", "plain");
    http_request_stream_open_as(http_request_ref(x), &head);
    assert_int_equal(x->priv->reply.status, 429);
    assert_string_equal(x->priv->reply.headers[0].value, "text/plain");
    assert_false(x->priv->reply_held);
    http_request_stream_close(x, true);
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
        int wakes = atomic_load(&http_server.n_wakes);
        size_t took = http_request_body_feed(x, f->body + done, piece);

        done += took;
        while (took < piece && atomic_load(&http_server.n_wakes) == wakes)
            sched_yield();
    }
    if (f->end)
        http_request_body_over(x);
    if (f->gone)
        http_request_mark_disconnected(x);
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
    rc = http_request_body_read(x, dst, n / 2, LONG_US, deadline_us, NULL, NULL, e);
    if (rc == 0)
        rc = http_request_body_read(x, dst + n / 2, n - n / 2, LONG_US, deadline_us, NULL, NULL, e);
    if (rc == 0) {
        assert_memory_equal(dst, f.body, n);
        rc = http_request_body_end(x, LONG_US, deadline_us, e);
    }
    assert_int_equal(pthread_join(t, NULL), 0);
    return rc;
}

static void test_body_read_exact(void **state)
{
    struct err e = {0};

    (void)state;
    assert_int_equal(read_all((struct feeder){"0123456789", 10, true, false}, 10, &e), 0);
    assert_int_equal(http_request_body_taken(x), 10);
    /* After the end there is nothing more to read. */
    assert_int_equal(
        http_request_body_read(x, &e, 1, LONG_US, clock_after_us(LONG_US), NULL, NULL, &e), -1);
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
    assert_int_equal(http_request_body_feed(x, "abcd", 4), 0); /* the HTTP server now sleeps */
    assert_int_equal(atomic_load(&http_server.n_wakes), 0);
    assert_int_equal(pthread_create(&t, NULL, feed, &f), 0);
    assert_int_equal(http_request_body_read(x, dst, 4, LONG_US, deadline_us, NULL, NULL, &e), 0);
    assert_memory_equal(dst, "abcd", 4);
    assert_true(atomic_load(&http_server.n_wakes) > 0);
    assert_int_equal(http_request_body_end(x, LONG_US, deadline_us, &e), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
}

static void *feed_surplus(void *arg)
{
    (void)arg;
    while (atomic_load(&http_server.n_wakes) == 0)
        sched_yield(); /* until the reader has registered */
    (void)http_request_body_feed(x, "more", 4);
    return NULL;
}

static void test_body_end_finds_surplus(void **state)
{
    struct err e = {0};
    pthread_t t;

    (void)state;
    assert_int_equal(http_request_body_feed(x, "m", 1), 0); /* paused: registering will wake */
    assert_int_equal(pthread_create(&t, NULL, feed_surplus, NULL), 0);
    assert_int_equal(http_request_body_end(x, LONG_US, clock_after_us(LONG_US), &e), -1);
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
    assert_int_equal(
        http_request_body_read(x, dst, 4, 5000, clock_after_us(LONG_US), NULL, NULL, &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    assert_string_equal(e.msg, "no byte of the body came for 5 ms, 4 are missing");
    err_clear(&e);
    assert_int_equal(
        http_request_body_read(x, dst, 4, LONG_US, clock_after_us(5000), NULL, NULL, &e), -1);
    assert_int_equal(e.code, ERR_TIMEOUT);
    err_clear(&e);
    assert_int_equal(
        http_request_body_read(x, dst, 4, LONG_US, clock_after_us(LONG_US), always, NULL, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_true(clock_now_us() - began_us < LONG_US / 2);
    assert_int_equal(http_request_body_read(x, dst, 0, 0, 0, NULL, NULL, &e), 0);
}

static void test_query_finds_the_first(void **state)
{
    static char a[] = "a", b[] = "b", one[] = "1", two[] = "2";
    struct http_request_param query[] = {{b, two}, {a, one}, {a, two}};

    (void)state;
    x->query = query;
    x->n_query = 3;
    assert_string_equal(http_request_query(x, "a"), "1");
    assert_null(http_request_query(x, "c"));
    assert_string_equal(http_request_method_name(METHOD_OTHER), "OTHER");
}

#define T(name) cmocka_unit_test_setup_teardown(name, start, stop)

static void test_drop_body_twice_is_harmless(void **state)
{
    (void)state;
    http_request_drop_body(x); /* of a request without one */
    x->body = strdup("{}");
    assert_non_null(x->body);
    x->body_len = 2;
    http_request_drop_body(x);
    assert_string_equal(x->body, "");
    assert_int_equal(x->body_len, 0);
    http_request_drop_body(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_reply_reaches_the_http_server),
        T(test_reply_after_detach_is_released_once),
        T(test_reply_never_taken_is_released_once),
        T(test_on_gone_runs_once_or_not_at_all),
        T(test_stream_wakes_only_a_waiting_http_server),
        T(test_stream_bound),
        T(test_drained_counts_what_the_http_server_keeps),
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
