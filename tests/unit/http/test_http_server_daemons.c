/* A crowd in one loop: its connections are shared out to several libmicrohttpds, which count as
 * one. */
#include "tests/unit/http/http_server_app.h"

#include "base/loop.h"
#include "http/server/http_server_priv.h"

#include <semaphore.h>
#include <sys/resource.h>

enum {
    CROWD = 2 * HTTP_SERVER_DAEMON_CONNS + 44,
    STEP = 7, /* and CROWD have no divisor: all are taken in another order */
    FULL = 2 * HTTP_SERVER_DAEMON_CONNS + 44,
    SERVED = FULL - FULL / 16 /* more are told that there are too many */
};

/* What a shard is like, seen on its loop's thread. */
struct look {
    struct shard *shard;
    struct loop_item item;
    sem_t seen;
    size_t n_daemons, n_conns, in_part[HTTP_SERVER_DAEMONS_MAX];
    bool listening;
};

static void look_now(void *arg)
{
    struct look *l = arg;

    l->n_daemons = l->shard->n_daemons;
    l->n_conns = l->shard->n_conns;
    for (size_t i = 0; i < l->n_daemons; i++)
        l->in_part[i] = l->shard->daemons[i].n_conns;
    l->listening = l->shard->listening;
    (void)sem_post(&l->seen);
}

static void look(struct look *l, struct app *a)
{
    *l = (struct look){.shard = &a->http_server->shards[0], .item = {.run = look_now, .arg = l}};
    assert_int_equal(sem_init(&l->seen, 0, 0), 0);
    loop_post(l->shard->loop, &l->item);
    while (sem_wait(&l->seen) != 0)
        continue;
    (void)sem_destroy(&l->seen);
}

static void look_until(struct look *l, struct app *a, size_t n_conns, bool listening)
{
    uint64_t deadline_us = clock_after_us(APP_WAIT_US);

    do
        look(l, a);
    while ((l->n_conns != n_conns || l->listening != listening) && !clock_passed(deadline_us));
    assert_int_equal(l->n_conns, n_conns);
    assert_int_equal(l->listening, listening);
}

/* Asks for what is answered later. */
static struct http_request *wait_for_it(struct app *a, struct client *c)
{
    size_t n;

    mtx_lock(&a->lock);
    n = a->n_held + 1;
    mtx_unlock(&a->lock);
    client_send(c, "POST /hold HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\nx");
    app_wait(a, &a->n_held, n);
    return a->held;
}

static void expect_number(struct client *c, size_t number)
{
    struct response r;
    char text[32];

    (void)snprintf(text, sizeof text, "%zu", number);
    client_response(c, &r, false);
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, text);
    response_free(&r);
}

static void test_a_crowd_is_shared_out(void **state)
{
    struct client c[CROWD];
    struct http_request *x[CROWD];
    struct look l;
    char text[32];

    (void)state;
    for (size_t i = 0; i < CROWD; i++) {
        client_open(&c[i], app.port);
        x[i] = wait_for_it(&app, &c[i]);
    }
    look(&l, &app);
    assert_int_equal(l.n_daemons, 1024 / HTTP_SERVER_DAEMON_CONNS);
    for (size_t i = 0; i < l.n_daemons; i++)
        assert_int_equal(l.in_part[i], i < 2 ? HTTP_SERVER_DAEMON_CONNS : i == 2 ? 44 : 0);
    for (size_t i = 0, k = 0; i < CROWD; i++, k = (k + STEP) % CROWD) {
        (void)snprintf(text, sizeof text, "%zu", k);
        app_answer(&app, x[k], 200, text);
        expect_number(&c[k], k);
    }
    for (size_t i = 0; i < CROWD; i++)
        expect(&c[i], "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    for (size_t i = 0; i < CROWD; i++)
        client_close(&c[i]);
}

/* Where connections have ended there is room for the next ones. */
static void test_room_is_used_again(void **state)
{
    struct client c[CROWD];
    struct look l;

    (void)state;
    for (size_t i = 0; i < CROWD; i++) {
        client_open(&c[i], app.port);
        expect(&c[i], "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    }
    for (size_t i = 0; i < HTTP_SERVER_DAEMON_CONNS; i++)
        client_close(&c[i]);
    look_until(&l, &app, CROWD - HTTP_SERVER_DAEMON_CONNS, true);
    assert_int_equal(l.in_part[0], 0);
    for (size_t i = 0; i < 2; i++) {
        client_open(&c[i], app.port);
        expect(&c[i], "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    }
    look(&l, &app);
    assert_int_equal(l.in_part[0], 2);
    assert_int_equal(l.in_part[1], HTTP_SERVER_DAEMON_CONNS);
    for (size_t i = 0; i < CROWD; i++)
        if (i < 2 || i >= HTTP_SERVER_DAEMON_CONNS)
            client_close(&c[i]);
}

/* Each of those that wait in several parts is told when the HTTP server ends. */
static void test_a_crowd_is_gone_at_the_end(void **state)
{
    struct client c[CROWD];
    struct http_request *x[CROWD];
    struct app a;

    (void)state;
    app_start(&a, NULL);
    for (size_t i = 0; i < CROWD; i++) {
        client_open(&c[i], a.port);
        x[i] = wait_for_it(&a, &c[i]);
    }
    http_server_free(a.http_server);
    a.http_server = NULL;
    app_wait(&a, &a.n_gone, CROWD);
    app_wait(&a, &a.n_done, CROWD);
    for (size_t i = 0; i < CROWD; i++) {
        app_answer(&a, x[i], 200, "too late");
        assert_true(client_closed(&c[i]));
        client_close(&c[i]);
    }
    app_stop(&a);
}

static void full(struct http_server_cfg *cfg)
{
    cfg->n_connections_max = FULL;
}

static void test_limits_are_of_all_parts(void **state)
{
    uint64_t deadline_us = clock_after_us(APP_WAIT_US);
    struct client c[FULL], late;
    struct http_server_stats stats;
    struct response r;
    struct look l;
    struct app a;

    (void)state;
    app_start(&a, full);
    for (size_t i = 0; i < SERVED; i++) {
        client_open(&c[i], a.port);
        client_send(&c[i], "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nx");
    }
    do
        http_server_stats(a.http_server, &stats);
    while (stats.n_requests < SERVED && !clock_passed(deadline_us));
    for (size_t i = SERVED; i < FULL; i++) {
        client_open(&c[i], a.port);
        client_send(&c[i], "GET /echo HT");
    }
    client_open(&late, a.port);
    client_send(&late, "GET /echo HTTP/1.1\r\n" HOST "\r\n");
    look_until(&l, &a, FULL, false); /* they all have come, and the last one waits outside */
    assert_int_equal(l.n_daemons, 3);
    client_close(&c[FULL - 1]);
    client_response(&late, &r, false);
    assert_int_equal(r.status, 503);
    response_free(&r);
    client_close(&late);
    for (size_t i = 0; i < FULL - SERVED; i++)
        client_close(&c[i]);
    look_until(&l, &a, SERVED - 1, true);
    client_open(&late, a.port);
    expect(&late, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    client_close(&late);
    for (size_t i = FULL - SERVED; i < FULL - 1; i++)
        client_close(&c[i]);
    app_stop(&a);
}

/* Without a descriptor for it a client waits, and the loop is not kept busy by it. */
static void test_no_descriptor_for_a_connection(void **state)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(app.port)};
    struct rlimit before, none;
    struct client c;
    struct look l;

    (void)state;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c = (struct client){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
                        .buf = malloc(CLIENT_BUF)};
    assert_true(c.fd >= 0 && c.buf != NULL);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(connect(c.fd, (struct sockaddr *)&addr, sizeof addr), 0);
    look_until(&l, &app, 0, false);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    expect(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    look_until(&l, &app, 1, true);
    client_close(&c);
}

static void test_how_many_parts(void **state)
{
    static const struct {
        size_t n_connections_max, n_shards, n_daemons;
    } rows[] = {
        {1, 1, 1},
        {HTTP_SERVER_DAEMON_CONNS, 1, 1},
        {HTTP_SERVER_DAEMON_CONNS + 1, 1, 2},
        {4000, 1, 32},
        {4000, 2, 16},
        {1000000, 1, HTTP_SERVER_DAEMONS_MAX},
        {1000000, 4, HTTP_SERVER_DAEMONS_MAX / 4},
        {1000000, 2 * HTTP_SERVER_DAEMONS_MAX, 1},
        {2, 4, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct http_server_cfg cfg = {.n_connections_max = rows[i].n_connections_max,
                                      .n_shards = rows[i].n_shards};

        assert_int_equal(daemons_wanted(&cfg), rows[i].n_daemons);
    }
}

static void test_the_least_of_full_parts(void **state)
{
    struct daemon daemons[] = {{.n_conns = HTTP_SERVER_DAEMON_CONNS + 9},
                               {.n_conns = HTTP_SERVER_DAEMON_CONNS + 1},
                               {.n_conns = HTTP_SERVER_DAEMON_CONNS + 1},
                               {.n_conns = HTTP_SERVER_DAEMON_CONNS}};
    struct shard *s = calloc(1, sizeof *s);

    (void)state;
    assert_non_null(s);
    s->daemons = daemons;
    s->n_daemons = 3;
    assert_ptr_equal(daemon_with_space(s), &daemons[1]);
    s->n_daemons = 4;
    assert_ptr_equal(daemon_with_space(s), &daemons[3]);
    daemons[2].n_conns = HTTP_SERVER_DAEMON_CONNS - 1;
    assert_ptr_equal(daemon_with_space(s), &daemons[2]);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_a_crowd_is_shared_out),
        T(test_room_is_used_again),
        cmocka_unit_test(test_a_crowd_is_gone_at_the_end),
        cmocka_unit_test(test_limits_are_of_all_parts),
        T(test_no_descriptor_for_a_connection),
        cmocka_unit_test(test_how_many_parts),
        cmocka_unit_test(test_the_least_of_full_parts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
