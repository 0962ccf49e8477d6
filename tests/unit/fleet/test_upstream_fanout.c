/* One request to several peers at the same time: no reply depends on the other peers. */
#include "fleet/members/upstream_fanout.h"

#include "tests/unit/fleet/upstream_peer.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 6, S = 1000000 };

struct world {
    struct loop *loop;
    struct http_client *client;
    struct loop_item item;
    struct upstream_fanout *fanout;
    struct http_target targets[N];
    struct upstream_call parts[N];
    size_t n;
    struct upstream_reply got[N];
    char texts[N][64];
    sem_t done, started;
    int rc;
};

static void world_open(struct world *w)
{
    struct err e = {0};

    memset(w, 0, sizeof *w);
    assert_int_equal(sem_init(&w->done, 0, 0), 0);
    assert_int_equal(sem_init(&w->started, 0, 0), 0);
    assert_int_equal(loop_new(&w->loop, &(struct loop_cfg){.name = "test"}, &e), 0);
    assert_int_equal(http_client_new(&w->client, w->loop, &e), 0);
    assert_int_equal(loop_start(w->loop, &e), 0);
}

static void world_close(struct world *w)
{
    loop_stop(w->loop);
    http_client_free(w->client);
    loop_free(w->loop);
}

static void add(struct world *w, const char *url, const char *body)
{
    struct upstream_call *p = &w->parts[w->n];

    w->targets[w->n].url = url;
    p->target = &w->targets[w->n++];
    p->timeout_us = 2ULL * S;
    p->request.method = body != NULL ? "POST" : "GET";
    (void)snprintf(p->request.path, sizeof p->request.path, "/ask");
    if (body != NULL) {
        p->request.body = strdup(body);
        p->request.body_len = strlen(body);
    }
}

static void on_replies(void *arg, struct upstream_reply *replies, size_t n)
{
    struct world *w = arg;

    assert_int_equal(n, w->n);
    memcpy(w->got, replies, n * sizeof *replies);
    for (size_t i = 0; i < n; i++)
        (void)snprintf(w->texts[i], sizeof w->texts[i], "%s",
                       replies[i].text != NULL ? replies[i].text : "");
    assert_int_equal(sem_post(&w->done), 0);
}

static void start(void *arg)
{
    struct world *w = arg;
    struct err e = {0};

    w->rc = upstream_fanout_start(&w->fanout, w->client, w->parts, w->n, on_replies, w, &e);
    assert_int_equal(sem_post(&w->started), 0);
}

static void cancel(void *arg)
{
    struct world *w = arg;

    upstream_fanout_cancel(w->fanout);
    assert_int_equal(sem_post(&w->done), 0);
}

static void on_loop(struct world *w, void (*run)(void *))
{
    w->item = (struct loop_item){.run = run, .arg = w};
    loop_post(w->loop, &w->item);
}

static void wait_for(sem_t *s)
{
    while (sem_wait(s) != 0)
        continue;
}

static void test_fanout_keeps_replies_apart(void **state)
{
    static const char ok[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    static const char no[] = "HTTP/1.1 500 No\r\nContent-Length: 35\r\n\r\n"
                             "{\"error\":{\"message\":\"out of luck\"}}";
    static const char half[] = "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nok";
    struct peer good, bad, hung, part;
    struct world w;

    (void)state;
    world_open(&w);
    peer_start(&good, ok);
    peer_start(&bad, no);
    peer_start(&hung, NULL);
    peer_start(&part, half);
    add(&w, good.url, "{}");
    add(&w, bad.url, "{}");
    add(&w, hung.url, NULL);
    add(&w, part.url, NULL);
    add(&w, "unix:/nowhere/at/all", "{}");
    add(&w, good.url, NULL);
    w.parts[5].request.method = NULL; /* nothing is sent */
    on_loop(&w, start);
    wait_for(&w.done);

    assert_true(w.got[0].good && w.got[0].requested && w.got[0].sent);
    assert_int_equal(w.got[0].status, 200);
    assert_string_equal(w.texts[0], "ok");
    assert_false(w.got[1].good);
    assert_int_equal(w.got[1].status, 500);
    assert_non_null(strstr(w.got[1].why.msg, "/ask with 500: out of luck"));
    assert_int_equal(w.got[2].why.code, ERR_UPSTREAM_TIMEOUT);
    assert_true(w.got[2].sent);
    assert_int_equal(w.got[2].status, 0);
    assert_int_equal(w.got[3].why.code, ERR_UPSTREAM);
    assert_int_equal(w.got[3].status, 0);
    assert_false(w.got[4].good || w.got[4].sent);
    assert_true(w.got[5].good && !w.got[5].requested);
    world_close(&w);
    peer_stop(&good);
    peer_stop(&bad);
    peer_stop(&hung);
    peer_stop(&part);
}

static void test_fanout_without_requests_ends_at_once(void **state)
{
    struct world w;

    (void)state;
    world_open(&w);
    add(&w, "unix:/nowhere", NULL);
    w.parts[0].request.method = NULL;
    on_loop(&w, start);
    wait_for(&w.started);
    wait_for(&w.done);
    assert_null(w.fanout);
    assert_true(w.got[0].good);
    world_close(&w);
}

static void test_fanout_cancel_does_not_call_done(void **state)
{
    struct peer hung;
    struct world w;

    (void)state;
    world_open(&w);
    peer_start(&hung, NULL);
    add(&w, hung.url, "{}");
    w.parts[0].timeout_us = 60ULL * S;
    on_loop(&w, start);
    wait_for(&w.started);
    assert_int_equal(w.rc, 0);
    on_loop(&w, cancel);
    wait_for(&w.done);
    assert_int_equal(w.got[0].status, 0);
    world_close(&w);
    peer_stop(&hung);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fanout_keeps_replies_apart),
        cmocka_unit_test(test_fanout_without_requests_ends_at_once),
        cmocka_unit_test(test_fanout_cancel_does_not_call_done),
    };
    struct err e = {0};

    if (http_init(&e) != 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
