/* The end of an HTTP server: what was accepted is answered, and nobody holds it up. */
#include "tests/unit/http/http_server_app.h"

#include "base/loop.h"
#include "http/server/http_server_priv.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <semaphore.h>

enum { LATE_CLIENTS = 300 }; /* more than one part of the HTTP server takes */

/* The loop stands still until it is told to go on: what is posted meanwhile comes together. */
struct stand {
    sem_t stands, goes;
    struct loop_item item;
};

static void stand_still(void *arg)
{
    struct stand *s = arg;

    (void)sem_post(&s->stands);
    while (sem_wait(&s->goes) != 0)
        continue;
}

static void stand_begin(struct stand *s, struct app *a)
{
    assert_int_equal(sem_init(&s->stands, 0, 0), 0);
    assert_int_equal(sem_init(&s->goes, 0, 0), 0);
    s->item = (struct loop_item){.run = stand_still, .arg = s};
    loop_post(a->http_server->shards[0].loop, &s->item);
    while (sem_wait(&s->stands) != 0)
        continue;
}

static void stand_end(struct stand *s)
{
    (void)sem_post(&s->goes);
}

static void stand_fini(struct stand *s)
{
    (void)sem_destroy(&s->stands);
    (void)sem_destroy(&s->goes);
}

static void wait_closed(struct http_server *f)
{
    mtx_lock(&f->lock);
    while (f->n_closed < f->n_shards)
        (void)cnd_wait(&f->moved, &f->lock, CLOCK_NEVER);
    mtx_unlock(&f->lock);
}

/* The loop learns in one turn that there is an answer and that it has to end. */
static void test_last_answers_go_out(void **state)
{
    struct stand s;
    struct client c;
    struct response r;
    struct app a;

    (void)state;
    app_start(&a, NULL);
    client_open(&c, a.port);
    client_send(&c, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    app_wait(&a, &a.n_held, 1);
    http_server_quiesce(a.http_server);
    stand_begin(&s, &a);
    app_answer(&a, a.held, 200, "last words");
    loop_post(a.http_server->shards[0].loop, &a.http_server->shards[0].finish);
    stand_end(&s);
    wait_closed(a.http_server);
    client_response(&c, &r, false);
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, "last words");
    assert_true(client_closed(&c));
    response_free(&r);
    client_close(&c);
    assert_int_equal(a.n_gone, 0);
    app_stop(&a);
    stand_fini(&s);
}

static void test_last_stream_ends_as_a_stream_does(void **state)
{
    struct client c;
    struct response r;
    struct app a;

    (void)state;
    app_start(&a, NULL);
    client_open(&c, a.port);
    client_send(&c, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_head(&c, &r));
    app_wait(&a, &a.n_held, 1);
    assert_int_equal(http_request_stream_write(a.held, "last words", 10), 0);
    http_request_stream_close(a.held, true);
    http_server_free(a.http_server);
    a.http_server = NULL;
    assert_int_equal(client_chunk(&c, &r), 10);
    assert_int_equal(client_chunk(&c, &r), 0);
    response_free(&r);
    client_close(&c);
    app_stop(&a);
}

static void test_half_a_body_is_told(void **state)
{
    struct client c;
    struct response r;
    struct app a;

    (void)state;
    app_start(&a, NULL);
    client_open(&c, a.port);
    client_send(&c, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 100\r\n"
                    "Expect: 100-continue\r\n\r\n");
    client_response(&c, &r, false); /* 100: it is in its body now */
    response_free(&r);
    http_server_free(a.http_server);
    a.http_server = NULL;
    client_response(&c, &r, false);
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body, "the server ends"));
    response_free(&r);
    client_close(&c);
    app_stop(&a);
}

/* Whoever is in the listen queue when accepting stops is accepted first. */
static void test_who_came_before_the_end_is_served(void **state)
{
    struct stand s;
    struct client c[LATE_CLIENTS];
    struct response r;

    (void)state;
    stand_begin(&s, &app);
    for (size_t i = 0; i < LATE_CLIENTS; i++) {
        client_open(&c[i], app.port);
        client_send(&c[i], "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nlate");
    }
    loop_post(app.http_server->shards[0].loop,
              &app.http_server->shards[0].quiesce); /* it is next */
    stand_end(&s);
    http_server_quiesce(app.http_server);
    assert_int_equal(client_try_connect(app.port), -1);
    for (size_t i = 0; i < LATE_CLIENTS; i++) {
        client_response(&c[i], &r, false);
        assert_int_equal(r.status, 200);
        assert_string_equal(response_header(&r, "Connection"), "close");
        response_free(&r);
        assert_true(client_closed(&c[i]));
        client_close(&c[i]);
    }
    stand_fini(&s);
}

/* So are those who asked again before it, on connections of any part. */
static void test_who_asked_before_the_end_is_answered(void **state)
{
    struct stand s;
    struct client c[LATE_CLIENTS];
    struct app a;

    (void)state;
    app_start(&a, NULL);
    for (size_t i = 0; i < LATE_CLIENTS; i++) {
        client_open(&c[i], a.port);
        expect(&c[i], "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    }
    stand_begin(&s, &a);
    for (size_t i = 0; i < LATE_CLIENTS; i++)
        client_send(&c[i], "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nlate");
    loop_post(a.http_server->shards[0].loop, &a.http_server->shards[0].quiesce);
    loop_post(a.http_server->shards[0].loop, &a.http_server->shards[0].finish);
    stand_end(&s);
    wait_closed(a.http_server);
    for (size_t i = 0; i < LATE_CLIENTS; i++) {
        struct response r;

        client_response(&c[i], &r, false);
        assert_int_equal(r.status, 200);
        assert_string_equal(r.body, "late");
        response_free(&r);
        assert_true(client_closed(&c[i]));
        client_close(&c[i]);
    }
    app_stop(&a);
    stand_fini(&s);
}

/* Says that nothing more is coming, and waits until the other side has heard it. */
static void give_up(struct client *c)
{
    uint64_t deadline_us = clock_after_us(APP_WAIT_US);
    struct tcp_info info;
    socklen_t len;

    assert_int_equal(shutdown(c->fd, SHUT_WR), 0);
    do {
        len = sizeof info;
        assert_int_equal(getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
    } while (info.tcpi_state != TCP_FIN_WAIT2 && !clock_passed(deadline_us));
    assert_int_equal(info.tcpi_state, TCP_FIN_WAIT2);
}

/* Whoever has given up before it was accepted is not served, whatever it sent. */
static void test_who_went_before_it_was_accepted(void **state)
{
    struct stand s;
    struct client gone[3], c;

    (void)state;
    stand_begin(&s, &app);
    for (size_t i = 0; i < 3; i++) {
        client_open(&gone[i], app.port);
        client_send(&gone[i], "POST /hold HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nlate");
        give_up(&gone[i]);
    }
    client_open(&c, app.port);
    stand_end(&s);
    expect(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    client_close(&c);
    for (size_t i = 0; i < 3; i++) {
        assert_true(client_closed(&gone[i]));
        client_close(&gone[i]);
    }
    app_wait(&app, &app.n_done, 1);
    assert_int_equal(app.n_held, 0);
    stand_fini(&s);
}

/* A refusal while the HTTP server drains reaches a client that sends all of a long body first. */
static void test_a_refusal_while_draining_is_read(void **state)
{
    enum { NBYTES = 64 << 20 };
    char *body = calloc(1, NBYTES);
    struct client c;
    struct response r;

    (void)state;
    assert_non_null(body);
    client_open(&c, app.port);
    expect(&c, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "");
    http_server_quiesce(app.http_server);
    client_send(&c, "POST /deny HTTP/1.1\r\n" HOST "Content-Length: 67108864\r\n\r\n");
    assert_true(client_try_send(&c, body, NBYTES));
    client_response(&c, &r, false);
    assert_int_equal(r.status, 403);
    response_free(&r);
    client_close(&c);
    free(body);
}

/* Nobody takes the answer: the end waits for a moment, then ends. */
static void test_an_unread_answer_does_not_hold_up_the_end(void **state)
{
    static char block[64 << 10];
    struct client c;
    struct response r;
    struct app a;
    size_t sent = 0;

    (void)state;
    app_start(&a, NULL);
    client_open(&c, a.port);
    client_send(&c, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_head(&c, &r));
    response_free(&r);
    app_wait(&a, &a.n_held, 1);
    while (http_request_stream_write(a.held, block, sizeof block) == 0) /* more than sockets hold */
        sent += sizeof block;
    assert_true(sent >= HTTP_REQUEST_STREAM_NBYTES_MAX);
    http_request_stream_close(a.held, true);
    http_server_free(a.http_server);
    a.http_server = NULL;
    assert_int_equal(a.n_done, 1);
    assert_true(a.last.gone);
    client_close(&c);
    app_stop(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_last_answers_go_out),
        cmocka_unit_test(test_last_stream_ends_as_a_stream_does),
        cmocka_unit_test(test_half_a_body_is_told),
        T(test_who_came_before_the_end_is_served),
        cmocka_unit_test(test_who_asked_before_the_end_is_answered),
        T(test_who_went_before_it_was_accepted),
        T(test_a_refusal_while_draining_is_read),
        cmocka_unit_test(test_an_unread_answer_does_not_hold_up_the_end),
    };

    return cmocka_run_group_tests_name("front_end", tests, NULL, NULL);
}
