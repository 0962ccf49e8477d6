/* A real HTTP server on a free port, driven by raw sockets. */
#include "tests/unit/http/http_server_app.h"

#include "http/server/http_server_priv.h"

#include <pthread.h>
#include <sys/epoll.h>

static void test_keep_alive_serves_many(void **state)
{
    struct client c;

    (void)state;
    client_open(&c, app.port);
    for (int i = 0; i < 100; i++)
        expect(&c, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello", 200, "hello");
    expect(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    client_close(&c);
    app_wait(&app, &app.n_done, 101);
    assert_int_equal(app.last.status, 200);
    assert_false(app.last.gone);
}

static void test_pipelined_two_are_answered_in_order(void **state)
{
    struct client c;
    struct response r;

    (void)state;
    client_open(&c, app.port);
    client_send(&c, "POST /work HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\n1"
                    "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\n2");
    client_response(&c, &r, false);
    assert_string_equal(r.body, "1");
    response_free(&r);
    client_response(&c, &r, false);
    assert_string_equal(r.body, "2");
    response_free(&r);
    client_close(&c);
}

static void test_head_has_length_and_no_body(void **state)
{
    struct client c;
    struct response r;
    struct http_server_outcome o;

    (void)state;
    client_open(&c, app.port);
    client_send(&c, "HEAD /nowhere HTTP/1.1\r\n" HOST "\r\n");
    client_response(&c, &r, true);
    assert_int_equal(r.status, 404);
    assert_string_equal(response_header(&r, "Content-Length"), "9");
    response_free(&r);
    expect(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    o = app_outcome(&app, 2);
    assert_int_equal(o.nbytes_out, 0);
    client_close(&c);
}

static void test_reply_has_its_headers(void **state)
{
    struct client c;
    struct response r;

    (void)state;
    client_open(&c, app.port);
    ask(&c, "GET /nowhere HTTP/1.1\r\n" HOST "X-Request-Id: my-id.1\r\n\r\n", &r);
    assert_string_equal(response_header(&r, "X-Request-Id"), "my-id.1");
    assert_string_equal(response_header(&r, "X-Baton-Boot-Id"), "boot-1");
    assert_string_equal(response_header(&r, "Content-Type"), "text/plain");
    assert_string_equal(response_header(&r, "X-Test"), "404");
    response_free(&r);
    ask(&c, "GET /nowhere HTTP/1.1\r\n" HOST "X-Request-Id: not/allowed\r\n\r\n", &r);
    assert_int_equal(strlen(response_header(&r, "X-Request-Id")), 32);
    response_free(&r);
    client_close(&c);
    app_wait(&app, &app.n_released, 2);
}

static void came(const char *path, const char *query)
{
    mtx_lock(&app.lock);
    assert_string_equal(app.last_path, path);
    assert_string_equal(app.last_query, query);
    mtx_unlock(&app.lock);
}

static void test_target_is_decoded(void **state)
{
    struct client c;

    (void)state;
    client_open(&c, app.port);
    expect(&c, "GET /a%2Fb%20c?x=1&q=a%26b+c&q=2 HTTP/1.1\r\n" HOST "\r\n", 404, NULL);
    came("/a/b c", "a&b c");
    expect(&c, "GET http://t/p?q HTTP/1.1\r\n" HOST "\r\n", 404, NULL);
    came("/p", "");
    client_close(&c);
}

/* What each refused request gets; `closes`: the connection ends after the answer. */
static const struct {
    const char *what, *request;
    int status;
    bool closes;
} refusals[] = {
    {"TE and CL",
     "POST /echo HTTP/1.1\r\n" HOST
     "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
     400, true},
    {"TE gzip, chunked",
     "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400, true},
    {"TE xchunked", "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: xchunked\r\n\r\n", 400,
     true},
    {"TE identity", "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: identity\r\n\r\n", 400,
     true},
    {"TE twice",
     "POST /echo HTTP/1.1\r\n" HOST
     "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
     400, true},
    {"two CL", "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
     400, true},
    {"CL repeated",
     "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400, true},
    {"CL over 2^63", "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 9223372036854775808\r\n\r\n",
     413, true},
    {"no Host", "GET /echo HTTP/1.1\r\n\r\n", 400, true},
    {"two Hosts", "GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, true},
    {"blank before the colon", "GET /echo HTTP/1.1\r\n" HOST "X-A : b\r\n\r\n", 400, true},
    {"control byte in a name", "GET /echo HTTP/1.1\r\n" HOST "X-\x01: b\r\n\r\n", 400, true},
    {"control byte in a value", "GET /echo HTTP/1.1\r\n" HOST "X-A: b\x02\r\n\r\n", 400, true},
    {"bare CR in a value", "GET /echo HTTP/1.1\r\n" HOST "X-A: b\rX-B: c\r\n\r\n", 400, true},
    {"NUL in the path", "GET /ec%00ho HTTP/1.1\r\n" HOST "\r\n", 400, true},
    {"broken escape", "GET /ec%4 HTTP/1.1\r\n" HOST "\r\n", 400, true},
    {"NUL in the query", "GET /echo?a=%00 HTTP/1.1\r\n" HOST "\r\n", 400, true},
    {"blank in the target", "GET /ec ho HTTP/1.1\r\n" HOST "\r\n", 400, true},
    {"unknown Expect", "GET /echo HTTP/1.1\r\n" HOST "Expect: tea\r\n\r\n", 417, false},
    {"unknown method", "BREW /echo HTTP/1.1\r\n" HOST "\r\n", 405, false},
    {"HTTP/1.0 chunked", "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
     true},
    {"route refuses, no body", "GET /deny HTTP/1.1\r\n" HOST "\r\n", 403, false},
    {"route refuses, short body", "POST /deny HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc",
     403, false},
    {"route refuses, chunked body",
     "POST /deny HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 403,
     true},
    {"too large by its length", "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1048577\r\n\r\nabc",
     413, true},
};

static void test_refusals(void **state)
{
    struct client c;
    struct response r;

    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        client_open(&c, app.port);
        ask(&c, refusals[i].request, &r);
        if (r.status != refusals[i].status || !r.whole)
            fail_msg("%s: %d instead of %d", refusals[i].what, r.status, refusals[i].status);
        if (refusals[i].closes) {
            if (!client_closed(&c))
                fail_msg("%s: the connection goes on", refusals[i].what);
        } else {
            expect(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
        }
        response_free(&r);
        client_close(&c);
    }
}

static void test_headers_over_the_limit_are_431(void **state)
{
    struct client c;
    struct response r;
    char *big = malloc(40000);

    (void)state;
    assert_non_null(big);
    memset(big, 'a', 39999);
    big[39999] = '\0';
    client_open(&c, app.port);
    client_send(&c, "GET /echo HTTP/1.1\r\n" HOST "X-Big: ");
    (void)client_try_send(&c, big, 39999);
    client_response(&c, &r, false);
    assert_int_equal(r.status, 431);
    response_free(&r);
    client_close(&c);
    free(big);
}

static void test_hang_up_while_suspended(void **state)
{
    struct client c;
    struct http_request *x;
    struct http_server_stats stats;

    (void)state;
    client_open(&c, app.port);
    client_send(&c, "POST /hold HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\nx");
    app_wait(&app, &app.n_held, 1);
    client_close(&c);
    app_wait(&app, &app.n_gone, 1);
    x = app.held;
    assert_true(http_request_disconnected(x));
    assert_true(app_outcome(&app, 1).gone);
    app_answer(&app, x, 200, "too late"); /* harmless, and its data is released */
    app_wait(&app, &app.n_released, 1);
    client_open(&c, app.port);
    expect(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    client_close(&c);
    http_server_stats(app.http_server, &stats);
    assert_int_equal(stats.n_gone, 1);
    assert_int_equal(app.n_gone, 1);
}

/* FIN with more request bytes behind the suspended one: the watch sees it all the same. */
static void test_hang_up_behind_pipelined_bytes(void **state)
{
    struct client c;

    (void)state;
    client_open(&c, app.port);
    client_send(&c, "GET /hold HTTP/1.1\r\n" HOST "\r\nGET /echo HTTP/1.1\r\n" HOST "\r\n");
    app_wait(&app, &app.n_held, 1);
    assert_int_equal(shutdown(c.fd, SHUT_WR), 0);
    app_wait(&app, &app.n_gone, 1);
    app_answer(&app, app.held, 200, "too late");
    assert_true(client_closed(&c));
    client_close(&c);
    app_wait(&app, &app.n_released, 1);
}

static void test_reply_from_another_thread(void **state)
{
    struct client c;
    struct response r;

    (void)state;
    client_open(&c, app.port);
    for (size_t i = 1; i <= 20; i++) {
        client_send(&c, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
        app_wait(&app, &app.n_held, i);
        app_answer(&app, app.held, 200, "here");
        client_response(&c, &r, false);
        assert_string_equal(r.body, "here");
        response_free(&r);
    }
    client_close(&c);
    assert_int_equal(app.n_gone, 0);
}

/* Drips bytes until the server ends the connection. Returns the status it said, or 0. */
static int drip(struct client *c, const char *head, char byte)
{
    struct response r;
    int status;

    client_send(c, head);
    for (struct pollfd p = {.fd = c->fd, .events = POLLIN}; poll(&p, 1, 10) == 0;)
        if (!client_try_send(c, &byte, 1))
            break;
    client_response(c, &r, false);
    status = r.status;
    response_free(&r);
    return status;
}

static void short_timeouts(struct http_server_cfg *cfg)
{
    cfg->header_timeout_us = cfg->body_timeout_us = cfg->idle_timeout_us = 1000 * 1000;
}

static void test_deadlines_are_absolute(void **state)
{
    struct client c;
    struct http_server_stats stats;
    uint64_t began_us;

    (void)state;
    app_start(&app, short_timeouts);
    began_us = clock_now_us();
    client_open(&c, app.port);
    assert_int_equal(drip(&c, "GET /echo HTTP/1.1\r\n" HOST "X-Slow: ", 'a'), 408);
    client_close(&c);
    client_open(&c, app.port);
    assert_int_equal(drip(&c, "GET /", 'a'), 408);
    client_close(&c);
    client_open(&c, app.port);
    assert_int_equal(drip(&c, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 100000\r\n\r\n", 'a'),
                     408);
    client_close(&c);
    client_open(&c, app.port); /* no byte at all */
    assert_true(client_closed(&c));
    client_close(&c);
    client_open(&c, app.port); /* idle after a request */
    expect(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    assert_true(client_closed(&c));
    client_close(&c);
    assert_true(clock_now_us() - began_us < APP_WAIT_US);
    http_server_stats(app.http_server, &stats);
    assert_int_equal(stats.n_timeouts, 4);
    app_stop(&app);
}

/* Turns of event loops: each waits once. */
static atomic_uint n_turns;

int __real_epoll_wait(int fd, struct epoll_event *events, int n, int ms);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int n, int ms);

int __wrap_epoll_wait(int fd, struct epoll_event *events, int n, int ms)
{
    (void)atomic_fetch_add(&n_turns, 1);
    return __real_epoll_wait(fd, events, n, ms);
}

/* libmicrohttpd asks for a zero timeout for ever on this request. */
static void test_spin_guard(void **state)
{
    struct client c;
    char *ext = malloc(64 << 10);
    unsigned turns;

    (void)state;
    assert_non_null(ext);
    memset(ext, 'e', 64 << 10);
    app_start(&app, short_timeouts);
    client_open(&c, app.port);
    client_send(&c, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n5;");
    turns = atomic_load(&n_turns);
    (void)client_try_send(&c, ext, 64 << 10);
    while (client_more(&c)) /* until the deadline ends it */
        client_take(&c, c.len);
    turns = atomic_load(&n_turns) - turns;
    /* 1 s at one turn each ms; without the guard it is hundreds of thousands. */
    assert_in_range(turns, 1, 6000);
    client_close(&c);
    app_wait(&app, &app.n_done, 1);
    app_stop(&app);
    free(ext);
}

static void test_stream_in_order_and_at_once(void **state)
{
    struct client c;
    struct response r;
    char event[32];

    (void)state;
    client_open(&c, app.port);
    client_send(&c, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_head(&c, &r));
    assert_string_equal(response_header(&r, "Content-Type"), "text/event-stream");
    assert_string_equal(response_header(&r, "X-Baton-Boot-Id"), "boot-1");
    app_wait(&app, &app.n_held, 1);
    for (int i = 0; i < 200; i++) { /* each is read before the next is written */
        (void)snprintf(event, sizeof event, "data: %d\n\n", i);
        assert_int_equal(http_request_stream_write(app.held, event, strlen(event)), 0);
        assert_int_equal(client_chunk(&c, &r), (long)strlen(event));
        assert_string_equal(r.body + r.len - strlen(event), event);
    }
    for (int i = 0; i < 200; i++) { /* many at once */
        (void)snprintf(event, sizeof event, "data: %d\n\n", i);
        assert_int_equal(http_request_stream_write(app.held, event, strlen(event)), 0);
    }
    http_request_stream_close(app.held, true);
    while (client_chunk(&c, &r) > 0)
        ;
    assert_memory_equal(r.body, r.body + r.len / 2, r.len / 2);
    response_free(&r);
    expect(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    client_close(&c);
    assert_int_equal(app.n_gone, 0);
}

static void test_stream_cut_has_no_end(void **state)
{
    struct client c;
    struct response r;

    (void)state;
    client_open(&c, app.port);
    client_send(&c, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_head(&c, &r));
    app_wait(&app, &app.n_held, 1);
    assert_int_equal(http_request_stream_write(app.held, "abc", 3), 0);
    assert_int_equal(client_chunk(&c, &r), 3);
    http_request_stream_close(app.held, false);
    assert_int_equal(client_chunk(&c, &r), -1);
    response_free(&r);
    client_close(&c);
}

static void test_stream_reader_gone(void **state)
{
    struct client c;
    struct response r;

    (void)state;
    client_open(&c, app.port);
    client_send(&c, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_head(&c, &r));
    response_free(&r);
    app_wait(&app, &app.n_held, 1);
    client_close(&c);
    app_wait(&app, &app.n_gone, 1);
    assert_int_equal(http_request_stream_write(app.held, "abc", 3), -1);
    http_request_stream_close(app.held, true);
    assert_true(app_outcome(&app, 1).gone);
}

static void test_stream_reader_too_slow_is_cut(void **state)
{
    struct client c;
    struct response r;
    char *block = calloc(1, 64 << 10);
    size_t sent = 0;

    (void)state;
    assert_non_null(block);
    client_open(&c, app.port);
    client_send(&c, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_head(&c, &r));
    app_wait(&app, &app.n_held, 1);
    while (http_request_stream_write(app.held, block, 64 << 10) == 0)
        sent += 64 << 10;
    assert_true(sent >= HTTP_REQUEST_STREAM_NBYTES_MAX);
    http_request_stream_close(app.held, true);
    while (client_chunk(&c, &r) > 0)
        ;
    assert_true(r.len < sent); /* cut, and the client can tell */
    response_free(&r);
    client_close(&c);
    free(block);
}

static void test_hold_and_stop(void **state)
{
    struct client c;
    struct app a;

    (void)state;
    app_start(&a, NULL);
    client_open(&c, a.port);
    client_send(&c, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    app_wait(&a, &a.n_held, 1);
    assert_false(http_server_wait_idle(a.http_server, clock_after_us(1000)));
    http_server_free(a.http_server);
    a.http_server = NULL;
    assert_int_equal(a.n_gone, 1);
    assert_int_equal(a.n_done, 1);
    assert_true(client_closed(&c));
    app_answer(&a, a.held, 200, "nobody hears");
    assert_int_equal(a.n_released, 1);
    client_close(&c);
    app_stop(&a);
}

static void test_quiesce_and_wait_idle(void **state)
{
    struct client c, idle;
    struct response r;

    (void)state;
    client_open(&c, app.port);
    client_open(&idle, app.port);
    expect(&idle, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    client_send(&c, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    app_wait(&app, &app.n_held, 1);
    http_server_quiesce(app.http_server);
    assert_int_equal(client_try_connect(app.port), -1);
    assert_false(http_server_wait_idle(app.http_server, clock_after_us(1000)));
    app_answer(&app, app.held, 200, "last");
    client_response(&c, &r, false);
    assert_int_equal(r.status, 200);
    assert_string_equal(response_header(&r, "Connection"), "close");
    response_free(&r);
    assert_true(client_closed(&c));
    assert_true(http_server_wait_idle(app.http_server, clock_after_us(APP_WAIT_US)));
    ask(&idle, "GET /echo HTTP/1.1\r\n" HOST "\r\n", &r);
    assert_string_equal(response_header(&r, "Connection"), "close");
    response_free(&r);
    assert_true(client_closed(&idle));
    client_close(&idle);
    client_close(&c);
}

/* All clients are ready in one wake-up, round after round: the stall at multiples of 128. */
static void busy_clients(size_t n, size_t rounds)
{
    struct client *c = calloc(n, sizeof *c);
    struct response r;

    assert_non_null(c);
    for (size_t i = 0; i < n; i++)
        client_open(&c[i], app.port);
    for (size_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < n; i++)
            client_send(&c[i], "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nok");
        for (size_t i = 0; i < n; i++) {
            client_response(&c[i], &r, false);
            assert_string_equal(r.body, "ok");
            response_free(&r);
        }
    }
    for (size_t i = 0; i < n; i++)
        client_close(&c[i]);
    free(c);
}

static void test_multiples_of_128_do_not_stall(void **state)
{
    static const size_t n[] = {127, 128, 129, 255, 256, 257};

    (void)state;
    for (size_t i = 0; i < sizeof n / sizeof n[0]; i++)
        busy_clients(n[i], 20);
}

static void two_shards(struct http_server_cfg *cfg)
{
    cfg->n_shards = 2;
}

enum { STORM_THREADS = 4, STORM_ROUNDS = 100 };

/* Requests answered by a pool, some clients leaving before their answer. */
static void *storm(void *arg)
{
    struct app *a = arg;
    struct client c;
    struct response r;

    client_open(&c, a->port);
    for (int i = 0; i < STORM_ROUNDS; i++) {
        client_send(&c, "POST /work HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nwork");
        if (i % 10 == 9) {
            client_close(&c);
            client_open(&c, a->port);
            continue;
        }
        client_response(&c, &r, false);
        assert_string_equal(r.body, "work");
        response_free(&r);
    }
    client_close(&c);
    return NULL;
}

static void test_two_shards_and_racing_hang_ups(void **state)
{
    pthread_t threads[STORM_THREADS];

    (void)state;
    app_start(&app, two_shards);
    for (int i = 0; i < STORM_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, storm, &app), 0);
    for (int i = 0; i < STORM_THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_true(http_server_wait_idle(app.http_server, clock_after_us(APP_WAIT_US)));
    app_stop(&app);
}

static void test_new_names_what_is_wrong(void **state)
{
    static const struct http_server_app ops = {
        .route = app_route, .dispatch = app_dispatch, .reject = app_reject, .done = app_done};
    struct http_server_cfg cfg = {.n_shards = 1, .n_connections_max = 16, .app = &ops};
    struct http_server *f = NULL;
    struct err e = {0};

    (void)state;
    cfg.address = "localhost";
    assert_int_equal(http_server_new(&f, &cfg, &e), -1);
    assert_non_null(strstr(e.msg, "'localhost'"));
    err_clear(&e);
    cfg.address = "127.0.0.1";
    cfg.port = app.port;
    assert_int_equal(http_server_new(&f, &cfg, &e), -1);
    assert_non_null(strstr(e.msg, "Address already in use"));
    assert_null(f);
}

/* Shards share a port with each other and with nobody else: a second server there would get half of
 * the first one's requests. */
static void test_no_second_server_on_a_port(void **state)
{
    static const struct http_server_app ops = {
        .route = app_route, .dispatch = app_dispatch, .reject = app_reject, .done = app_done};
    struct http_server_cfg cfg = {.address = "127.0.0.1",
                                  .n_shards = 2,
                                  .n_connections_max = 16,
                                  .app = &ops,
                                  .app_arg = &app};
    struct http_server *f = NULL;
    struct err e = {0};

    (void)state;
    app_start(&app, two_shards);
    cfg.port = app.port;
    assert_int_equal(http_server_new(&f, &cfg, &e), -1);
    assert_non_null(strstr(e.msg, "Address already in use"));
    assert_null(f);
    app_stop(&app);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_keep_alive_serves_many),
        T(test_pipelined_two_are_answered_in_order),
        T(test_head_has_length_and_no_body),
        T(test_reply_has_its_headers),
        T(test_target_is_decoded),
        T(test_refusals),
        T(test_headers_over_the_limit_are_431),
        T(test_hang_up_while_suspended),
        T(test_hang_up_behind_pipelined_bytes),
        T(test_reply_from_another_thread),
        cmocka_unit_test(test_deadlines_are_absolute),
        cmocka_unit_test(test_spin_guard),
        T(test_stream_in_order_and_at_once),
        T(test_stream_cut_has_no_end),
        T(test_stream_reader_gone),
        T(test_stream_reader_too_slow_is_cut),
        cmocka_unit_test(test_hold_and_stop),
        T(test_quiesce_and_wait_idle),
        T(test_multiples_of_128_do_not_stall),
        cmocka_unit_test(test_two_shards_and_racing_hang_ups),
        T(test_new_names_what_is_wrong),
        cmocka_unit_test(test_no_second_server_on_a_port),
    };

    return cmocka_run_group_tests_name("front", tests, NULL, NULL);
}
