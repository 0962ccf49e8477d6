/* The application that test_http_server puts behind a real HTTP server. */
#ifndef BATON_TESTS_UNIT_HTTP_HTTP_SERVER_APP_H
#define BATON_TESTS_UNIT_HTTP_HTTP_SERVER_APP_H

#include "base/clock.h"
#include "base/jobs/workers.h"
#include "base/mtx.h"
#include "http/http_request.h"
#include "http/server/http_server.h"
#include "tests/unit/http_client.h"

enum { APP_BODY_MAX = 1 << 20, APP_HEAD_MAX = 64 << 10, APP_WAIT_US = 60 * 1000 * 1000 };

struct app {
    struct mtx lock; /* rank MTX_LEAF; guards down to the blank line */
    struct cnd moved;
    struct http_request *held; /* of /hold, /stream; the test's now */
    size_t n_held, n_gone, n_done, n_released;
    struct http_server_outcome last;
    char last_path[64], last_query[64];
    struct err last_read; /* of /sink */
    uint64_t sum;         /* of /sink: bytes that were as expected */

    struct workers *pool;
    struct http_server *http_server;
    uint16_t port;
    uint64_t sink_more; /* bytes /sink wants beyond the body */
    uint64_t sink_stall_us;
};

struct work {
    struct job job;
    struct app *app;
    struct http_request *x;
};

struct counted {
    struct app *app;
    char text[1024];
};

static inline void count_release(void *arg)
{
    struct counted *d = arg;

    mtx_lock(&d->app->lock);
    d->app->n_released++;
    cnd_broadcast(&d->app->moved);
    mtx_unlock(&d->app->lock);
    free(d);
}

/* A reply with its own memory, whose release is counted. */
static inline void text_reply(struct app *a, struct http_reply *r, int status, const char *text)
{
    struct counted *d = calloc(1, sizeof *d);

    assert_non_null(d);
    d->app = a;
    (void)snprintf(d->text, sizeof d->text, "%s", text);
    *r = (struct http_reply){.status = status,
                             .content_type = "text/plain",
                             .data = d->text,
                             .len = strlen(d->text),
                             .release = count_release,
                             .release_arg = d,
                             .log_code = status >= 400 ? "some_error" : NULL};
}

static inline void app_answer(struct app *a, struct http_request *x, int status, const char *text)
{
    struct http_reply r;

    text_reply(a, &r, status, text);
    http_reply_header(&r, "X-Test", "%d", status);
    http_reply(x, &r);
}

static inline void answer_echo(struct http_request *x)
{
    struct http_reply r = {.status = 200, .content_type = "application/octet-stream"};
    char *copy = malloc(x->body_len + 1);

    assert_non_null(copy);
    memcpy(copy, x->body, x->body_len + 1); /* with the NUL that must be there */
    r.data = copy;
    r.len = x->body_len;
    r.release = free;
    r.release_arg = copy;
    http_reply(x, &r);
}

static inline void run_echo(void *arg)
{
    struct work *w = arg;

    answer_echo(w->x);
    free(w);
}

/* Byte i of a test body. */
static inline unsigned char pattern(uint64_t i)
{
    return (unsigned char)(i * 2654435761U >> 13);
}

/* Reads the body in pieces of odd sizes into one buffer, then compares it. */
static inline void run_sink(void *arg)
{
    struct work *w = arg;
    struct app *a = w->app;
    uint64_t n = w->x->content_length - w->x->body_len + a->sink_more, done = 0;
    uint64_t deadline_us = clock_after_us(APP_WAIT_US);
    char *dst = malloc(n + 1);
    struct err e = {0};
    char text[64];
    uint64_t good = 0;

    assert_non_null(dst);
    while (done < n) {
        uint64_t piece = n - done < 3000001 ? n - done : 3000001;

        if (http_request_body_read(w->x, dst + done, piece, a->sink_stall_us, deadline_us, NULL,
                                   NULL, &e) != 0)
            break;
        done += piece;
    }
    if (e.code == ERR_NONE)
        (void)http_request_body_end(w->x, a->sink_stall_us, deadline_us, &e);
    for (uint64_t i = 0; i < done; i++)
        good += (unsigned char)dst[i] == pattern(i);
    free(dst);
    mtx_lock(&a->lock);
    a->last_read = e;
    a->sum = good;
    mtx_unlock(&a->lock);
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)good);
    if (e.code != ERR_NONE)
        app_answer(a, w->x, err_http_status(e.code), e.msg);
    else
        app_answer(a, w->x, 200, text);
    free(w);
}

static inline void app_post(struct app *a, struct http_request *x, void (*run)(void *arg))
{
    struct work *w = calloc(1, sizeof *w);
    struct err e = {0};

    assert_non_null(w);
    w->app = a;
    w->x = x;
    w->job = (struct job){.run = run, .arg = w};
    assert_int_equal(workers_post(a->pool, &w->job, WORKERS_NORMAL, &e), 0);
}

static inline void count_gone(void *arg)
{
    struct app *a = arg;

    mtx_lock(&a->lock);
    a->n_gone++;
    cnd_broadcast(&a->moved);
    mtx_unlock(&a->lock);
}

static inline void app_hold(struct app *a, struct http_request *x)
{
    http_request_on_disconnect(x, count_gone, a);
    mtx_lock(&a->lock);
    a->held = x;
    a->n_held++;
    cnd_broadcast(&a->moved);
    mtx_unlock(&a->lock);
}

/* u64 length, then that many bytes. */
static inline int sink_head(const void *data, size_t have, uint64_t *out, struct err *e)
{
    const unsigned char *p = data;
    uint64_t n = 0;

    *out = 0;
    if (have < 8)
        return 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | p[i];
    if (n > APP_HEAD_MAX)
        return err_set(e, ERR_BAD_REQUEST, "", "the head is too long");
    *out = n + 8;
    return 0;
}

static inline int app_route(void *app, struct http_request *x, struct http_server_route *out,
                            struct err *e)
{
    struct app *a = app;
    const char *q = http_request_query(x, "q");

    mtx_lock(&a->lock);
    (void)snprintf(a->last_path, sizeof a->last_path, "%.63s", x->path);
    (void)snprintf(a->last_query, sizeof a->last_query, "%.63s", q != NULL ? q : "(none)");
    mtx_unlock(&a->lock);
    *out = (struct http_server_route){.body = HTTP_SERVER_BODY_WHOLE, .body_max = APP_BODY_MAX};
    out->reserved = strcmp(x->path, "/reserved") == 0;
    if (strcmp(x->path, "/deny") == 0)
        return err_set(e, ERR_FORBIDDEN, "", "denied");
    if (x->method == METHOD_OTHER)
        return err_set(e, ERR_BAD_METHOD, "", "method not allowed");
    if (strcmp(x->path, "/sink") == 0 || strcmp(x->path, "/refuse") == 0) {
        out->body = HTTP_SERVER_BODY_STREAM;
        out->body_max = UINT64_C(1) << 40;
        out->head_nbytes = sink_head;
    }
    return 0;
}

static inline void app_dispatch(void *app, struct http_request *x)
{
    struct app *a = app;

    if (strcmp(x->path, "/echo") == 0 || strcmp(x->path, "/reserved") == 0)
        answer_echo(x);
    else if (strcmp(x->path, "/work") == 0)
        app_post(a, x, run_echo);
    else if (strcmp(x->path, "/sink") == 0)
        app_post(a, x, run_sink);
    else if (strcmp(x->path, "/refuse") == 0)
        app_answer(a, x, 422, "refused by its head");
    else if (strcmp(x->path, "/hold") == 0)
        app_hold(a, x);
    else if (strcmp(x->path, "/stream") == 0) {
        http_request_stream_open(x, 200, "text/event-stream");
        app_hold(a, x);
    } else
        app_answer(a, x, 404, "not found");
}

static inline void app_reject(void *app, struct http_request *x, const struct err *e,
                              struct http_reply *out)
{
    (void)x;
    text_reply(app, out, err_http_status(e->code), e->msg);
    if (err_http_status(e->code) == 503)
        http_reply_header(out, "Retry-After", "1");
}

static inline void app_done(void *app, const struct http_request *x,
                            const struct http_server_outcome *o)
{
    struct app *a = app;

    assert_true(x->actor.request_id[0] != '\0');
    mtx_lock(&a->lock);
    a->n_done++;
    a->last = *o;
    cnd_broadcast(&a->moved);
    mtx_unlock(&a->lock);
}

static inline void app_start(struct app *a, void (*tweak)(struct http_server_cfg *cfg))
{
    static const struct http_server_app ops = {
        .route = app_route, .dispatch = app_dispatch, .reject = app_reject, .done = app_done};
    struct http_server_cfg cfg = {
        .address = "127.0.0.1",
        .n_shards = 1,
        .n_connections_max = 1024,
        .header_timeout_us = APP_WAIT_US,
        .body_timeout_us = APP_WAIT_US,
        .idle_timeout_us = APP_WAIT_US,
        .drop_timeout_us = 5 * 1000 * 1000,
        .boot_id = "boot-1",
        .app = &ops,
        .app_arg = a,
    };
    struct workers_cfg pool = {.name = "test", .n_threads = 3, .n_queue_max = 4096};
    struct err e = {0};

    memset(a, 0, sizeof *a);
    mtx_init(&a->lock, MTX_LEAF);
    cnd_init(&a->moved);
    a->sink_stall_us = APP_WAIT_US;
    if (tweak != NULL)
        tweak(&cfg);
    assert_int_equal(workers_new(&a->pool, &pool, &e), 0);
    if (http_server_new(&a->http_server, &cfg, &e) != 0)
        fail_msg("%s", e.msg);
    a->port = http_server_port(a->http_server);
    assert_true(a->port != 0);
}

static inline void app_stop(struct app *a)
{
    http_server_free(a->http_server);
    a->http_server = NULL;
    workers_free(a->pool);
    cnd_fini(&a->moved);
    mtx_fini(&a->lock);
}

/* Waits until *counter reaches n. */
static inline void app_wait(struct app *a, const size_t *counter, size_t n)
{
    uint64_t deadline_us = clock_after_us(APP_WAIT_US);
    size_t seen;

    mtx_lock(&a->lock);
    while (*counter < n && cnd_wait(&a->moved, &a->lock, deadline_us))
        ;
    seen = *counter;
    mtx_unlock(&a->lock);
    assert_true(seen >= n);
}

static inline struct http_server_outcome app_outcome(struct app *a, size_t n_done)
{
    struct http_server_outcome o;
    size_t seen;

    app_wait(a, &a->n_done, n_done);
    mtx_lock(&a->lock);
    seen = a->n_done;
    o = a->last;
    mtx_unlock(&a->lock);
    assert_int_equal(seen, n_done);
    return o;
}

#define HOST    "Host: t\r\n"
#define T(name) cmocka_unit_test_setup_teardown(name, start, stop)

/* The application of the tests that need no settings of their own. */
static struct app app;

static inline int start(void **state)
{
    (void)state;
    app_start(&app, NULL);
    return 0;
}

static inline int stop(void **state)
{
    (void)state;
    app_stop(&app);
    return 0;
}

/* Sends `request`, reads one response; the connection is left open. */
static inline void ask(struct client *c, const char *request, struct response *r)
{
    client_send(c, request);
    client_response(c, r, false);
}

static inline void expect(struct client *c, const char *request, int status, const char *body)
{
    struct response r;

    ask(c, request, &r);
    assert_int_equal(r.status, status);
    assert_true(r.whole);
    if (body != NULL)
        assert_string_equal(r.body, body);
    response_free(&r);
}

#endif
