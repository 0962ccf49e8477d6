/* The client of other servers, against a peer on a socket that misbehaves to order. */
#include "http/client/http.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

enum { BIG_NBYTES = 8 << 20, REQUEST_MAX = 4096, S = 1000000 };

/* ---- a peer ---- */

enum act {
    ACT_ANSWER,        /* and keep the connection */
    ACT_CLOSE_UNHEARD, /* the request is read, nothing is said */
    ACT_SILENT,        /* until the peer closes */
    ACT_BIG,           /* BIG_NBYTES */
    ACT_PART,          /* less than Content-Length says */
    ACT_REDIRECT,
    ACT_GARBAGE,
    ACT_LONG_HEADERS,
    ACT_INTERIM /* 100, then 200 in chunks of which there are none, and a trailer */
};

struct peer {
    int fd;
    enum act act;
    char url[128];
    pthread_t thread;
    atomic_int n_connections, n_requests, n_hung_up;
    atomic_bool stop;
    char last[REQUEST_MAX]; /* the last request; read after its answer came */
};

/* The head and the body of one request. False: the other side closed. */
static bool read_request(struct peer *p, int fd)
{
    size_t len = 0, want = 0;

    while (want == 0 || len < want) {
        ssize_t n = recv(fd, p->last + len, sizeof p->last - 1 - len, 0);
        const char *end, *length;

        if (n <= 0)
            return false;
        len += (size_t)n;
        p->last[len] = '\0';
        end = strstr(p->last, "\r\n\r\n");
        length = strstr(p->last, "Content-Length: ");
        if (end != NULL)
            want = (size_t)(end + 4 - p->last) +
                   (length != NULL ? strtoul(length + 16, NULL, 10) : 0);
    }
    atomic_fetch_add(&p->n_requests, 1);
    return true;
}

static void say(int fd, const char *text)
{
    (void)send(fd, text, strlen(text), MSG_NOSIGNAL);
}

static void say_big(int fd)
{
    static char piece[1 << 16];
    size_t left = BIG_NBYTES;

    say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 8388608\r\n\r\n");
    memset(piece, 'x', sizeof piece);
    while (left > 0) {
        ssize_t n = send(fd, piece, sizeof piece, MSG_NOSIGNAL);

        if (n <= 0)
            return;
        left -= (size_t)n;
    }
}

static void wait_hang_up(struct peer *p, int fd)
{
    char byte;

    while (recv(fd, &byte, 1, 0) > 0)
        continue;
    atomic_fetch_add(&p->n_hung_up, 1);
}

static void say_long_headers(int fd)
{
    static char line[1024];

    memset(line, 'h', sizeof line);
    memcpy(line, "X: ", 3);
    memcpy(line + sizeof line - 2, "\r\n", 2);
    say(fd, "HTTP/1.1 200 OK\r\n");
    for (int i = 0; i < 80; i++)
        (void)send(fd, line, sizeof line, MSG_NOSIGNAL);
    say(fd, "Content-Length: 0\r\n\r\n");
}

/* False: the connection ends here. */
static bool serve_one(struct peer *p, int fd)
{
    static const char ok[] =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Baton-Boot-Id: b1\r\n"
        "Content-Length: 2\r\n\r\n{}";

    switch (p->act) {
    case ACT_ANSWER:
        say(fd, ok);
        return true;
    case ACT_INTERIM:
        say(fd, "HTTP/1.1 100 Continue\r\nContent-Type: text/none\r\n\r\n");
        say(fd, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Type: text/none\r\n\r\n");
        return true;
    case ACT_SILENT:
        wait_hang_up(p, fd);
        return false;
    case ACT_BIG:
        say_big(fd);
        wait_hang_up(p, fd);
        return false;
    case ACT_PART:
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
        return false;
    case ACT_REDIRECT:
        say(fd, "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n");
        return true;
    case ACT_GARBAGE:
        say(fd, "HTTX/1.1 no\r\n\r\n");
        return false;
    case ACT_LONG_HEADERS:
        say_long_headers(fd);
        return false;
    case ACT_CLOSE_UNHEARD:
        break;
    }
    return false;
}

static void serve_connection(struct peer *p, int fd)
{
    atomic_fetch_add(&p->n_connections, 1);
    while (read_request(p, fd) && serve_one(p, fd))
        continue;
    (void)close(fd);
}

static void *peer_main(void *arg)
{
    struct peer *p = arg;

    while (!atomic_load(&p->stop)) {
        int fd = accept(p->fd, NULL, NULL);

        if (fd >= 0)
            serve_connection(p, fd);
    }
    return NULL;
}

static void peer_start(struct peer *p, enum act act)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;

    memset(p, 0, sizeof *p);
    p->act = act;
    p->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(p->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(p->fd, 16), 0);
    assert_int_equal(getsockname(p->fd, (struct sockaddr *)&a, &len), 0);
    (void)snprintf(p->url, sizeof p->url, "http://127.0.0.1:%d", ntohs(a.sin_port));
    assert_int_equal(pthread_create(&p->thread, NULL, peer_main, p), 0);
}

/* After the client is gone: what it held is closed then. */
static void peer_stop(struct peer *p)
{
    atomic_store(&p->stop, true);
    (void)shutdown(p->fd, SHUT_RDWR);
    assert_int_equal(pthread_join(p->thread, NULL), 0);
    (void)close(p->fd);
}

/* ---- a call, and what came of it ---- */

struct asked {
    struct http_call_request req;
    struct http_target target;
    struct loop_item item;
    struct http_client *client;
    struct http_call *call;
    struct http_head head;
    struct http_end end;
    size_t nbytes, hold_at; /* hold_at: where `data` says no, once; 0: never */
    bool cancel_in_data, held;
    bool hold, cancel_in_resume; /* hold: after each piece, until the loop's next turn */
    struct loop *loop;
    size_t n_holds;
    int n_heads, rc;
    struct asked *next; /* it is given up for that one in `head`; or NULL */
    struct asked *last; /* which is cancelled then too; or NULL */
    sem_t done, stopped;
};

struct world {
    struct loop *loop;
    struct http_client *client;
};

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    struct err e = {0};

    assert_int_equal(loop_new(&w->loop, &(struct loop_cfg){.name = "test"}, &e), 0);
    assert_int_equal(http_client_new(&w->client, w->loop, &e), 0);
    assert_int_equal(loop_start(w->loop, &e), 0);
    *state = w;
    return 0;
}

static void client_end(struct world *w)
{
    loop_stop(w->loop);
    http_client_free(w->client);
    w->client = NULL;
}

static int teardown(void **state)
{
    struct world *w = *state;

    client_end(w);
    loop_free(w->loop);
    free(w);
    return 0;
}

static void start(void *arg);

static void on_head(void *arg, const struct http_head *head)
{
    struct asked *a = arg;

    a->head = *head;
    a->n_heads++;
    if (a->next == NULL)
        return;
    http_cancel(a->call);
    start(a->next);
    if (a->last != NULL)
        http_cancel(a->last->call);
}

static bool on_data(void *arg, const void *data, size_t len)
{
    struct asked *a = arg;

    (void)data;
    if (a->cancel_in_data) {
        http_cancel(a->call);
        assert_int_equal(sem_post(&a->stopped), 0);
        return true;
    }
    if (a->hold_at != 0 && !a->held && a->nbytes + len > a->hold_at) {
        a->held = true;
        assert_int_equal(sem_post(&a->stopped), 0);
        return false;
    }
    if (a->held && a->cancel_in_resume) {
        http_cancel(a->call);
        return true;
    }
    a->nbytes += len;
    if (a->hold) {
        http_hold(a->call);
        a->n_holds++;
        loop_post(a->loop, &a->item);
    }
    return true;
}

static void on_done(void *arg, const struct http_end *end)
{
    struct asked *a = arg;

    a->end = *end;
    if (a->hold)
        loop_unpost(a->loop, &a->item);
    assert_int_equal(sem_post(&a->done), 0);
}

static void start(void *arg)
{
    struct asked *a = arg;
    struct http_events events = {.head = on_head, .data = on_data, .done = on_done, .arg = a};
    struct err e = {0};

    a->rc = http_start(&a->call, a->client, &a->req, &events, &e);
    if (a->rc != 0)
        assert_int_equal(sem_post(&a->done), 0);
}

static void resume(void *arg)
{
    http_resume(((struct asked *)arg)->call);
}

static void cancel(void *arg)
{
    struct asked *a = arg;

    http_cancel(a->call);
    assert_int_equal(sem_post(&a->stopped), 0);
}

static void on_loop(struct world *w, struct asked *a, void (*run)(void *))
{
    a->item = (struct loop_item){.run = run, .arg = a};
    loop_post(w->loop, &a->item);
}

static void ask(struct world *w, struct asked *a, const char *url, const char *method, bool fresh)
{
    memset(a, 0, sizeof *a);
    assert_int_equal(sem_init(&a->done, 0, 0), 0);
    assert_int_equal(sem_init(&a->stopped, 0, 0), 0);
    a->client = w->client;
    a->target = (struct http_target){.url = url, .authorization = "Bearer k"};
    a->req = (struct http_call_request){.target = &a->target,
                                        .method = method,
                                        .path = "/p?q=1",
                                        .connect_timeout_us = 10ULL * S,
                                        .timeout_us = 60ULL * S,
                                        .fresh = fresh};
    if (strcmp(method, "POST") == 0) {
        a->req.body = "{\"a\":1}";
        a->req.body_len = 7;
    }
}

static void wait_for(sem_t *s)
{
    while (sem_wait(s) != 0)
        continue;
}

static void run(struct world *w, struct asked *a)
{
    on_loop(w, a, start);
    wait_for(&a->done);
}

/* ---- names, which libcurl looks up on a thread of its own ---- */

static sem_t name_asked, name_known;

/* Instead of the C library's. Addresses are not asked for. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **out)
{
    (void)node;
    (void)service;
    (void)hints;
    (void)out;
    assert_int_equal(sem_post(&name_asked), 0);
    wait_for(&name_known);
    return EAI_NONAME;
}

/* ---- tests ---- */

static void test_an_answer_comes_whole(void **state)
{
    struct world *w = *state;
    struct peer p;
    struct asked a;

    peer_start(&p, ACT_ANSWER);
    ask(w, &a, p.url, "POST", true);
    run(w, &a);
    assert_int_equal(a.end.outcome, HTTP_WHOLE);
    assert_true(a.end.sent);
    assert_int_equal(a.n_heads, 1);
    assert_int_equal(a.head.status, 200);
    assert_int_equal(a.head.content_length, 2);
    assert_string_equal(a.head.content_type, "application/json");
    assert_string_equal(a.head.boot_id, "b1");
    assert_int_equal(a.nbytes, 2);
    assert_non_null(strstr(p.last, "POST /p?q=1 HTTP/1.1\r\n"));
    assert_non_null(strstr(p.last, "Authorization: Bearer k\r\n"));
    assert_non_null(strstr(p.last, "Connection: close\r\n"));
    assert_null(strstr(p.last, "Expect"));
    assert_null(strstr(p.last, "Content-Type"));
    client_end(w);
    peer_stop(&p);
}

static void test_of_interim_answers_and_trailers_nothing_is_kept(void **state)
{
    struct world *w = *state;
    struct peer p;
    struct asked a;

    peer_start(&p, ACT_INTERIM);
    ask(w, &a, p.url, "GET", true);
    run(w, &a);
    assert_int_equal(a.end.outcome, HTTP_WHOLE);
    assert_int_equal(a.head.status, 200);
    assert_string_equal(a.head.content_type, "application/json");
    client_end(w);
    peer_stop(&p);
}

static void test_only_what_may_run_twice_is_on_an_old_connection(void **state)
{
    struct world *w = *state;
    struct peer p;
    struct asked a;

    peer_start(&p, ACT_ANSWER);
    for (int i = 0; i < 4; i++) {
        ask(w, &a, p.url, i < 2 ? "GET" : "POST", i >= 2);
        run(w, &a);
        assert_int_equal(a.end.outcome, HTTP_WHOLE);
        /* This peer serves one connection at a time. */
        if (i == 1)
            assert_int_equal(atomic_load(&p.n_connections), 1);
        if (i == 1) {
            client_end(w);
            loop_free(w->loop);
            free(w);
            assert_int_equal(setup(state), 0);
            w = *state;
        }
    }
    assert_int_equal(atomic_load(&p.n_connections), 3);
    client_end(w);
    peer_stop(&p);
}

/* The peer reads the second request and closes; libcurl would send it again on a new connection. */
static void test_what_must_not_run_twice_runs_once(void **state)
{
    struct world *w = *state;
    struct peer p;
    struct asked a;

    peer_start(&p, ACT_CLOSE_UNHEARD);
    ask(w, &a, p.url, "POST", true);
    run(w, &a);
    assert_int_equal(a.end.outcome, HTTP_BROKEN);
    assert_true(a.end.sent);
    assert_true(a.end.why[0] != '\0');
    assert_int_equal(atomic_load(&p.n_requests), 1);
    client_end(w);
    peer_stop(&p);
}

static void test_bad_peers_are_told_apart(void **state)
{
    static const struct {
        enum act act;
        enum http_outcome outcome;
        const char *says;
    } rows[] = {
        {ACT_PART, HTTP_BROKEN, "7 bytes remaining"},
        {ACT_REDIRECT, HTTP_BROKEN, "302"},
        {ACT_GARBAGE, HTTP_BROKEN, ""},
        {ACT_LONG_HEADERS, HTTP_BROKEN, "longer than 65536"},
    };
    struct world *w = *state;
    struct peer peers[sizeof rows / sizeof rows[0]];
    struct asked a;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        peer_start(&peers[i], rows[i].act);
        ask(w, &a, peers[i].url, "GET", true);
        run(w, &a);
        assert_int_equal(a.end.outcome, rows[i].outcome);
        assert_non_null(strstr(a.end.why, rows[i].says));
        assert_true(a.end.sent);
    }
    client_end(w);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        peer_stop(&peers[i]);
}

static void test_who_is_not_there_got_nothing(void **state)
{
    struct world *w = *state;
    struct peer p;
    struct asked a;

    peer_start(&p, ACT_ANSWER);
    peer_stop(&p);
    ask(w, &a, p.url, "POST", true);
    run(w, &a);
    assert_int_equal(a.end.outcome, HTTP_UNREACHABLE);
    assert_false(a.end.sent);
    ask(w, &a, "unix:/nowhere/at/all", "POST", true);
    run(w, &a);
    assert_int_equal(a.end.outcome, HTTP_UNREACHABLE);
    assert_false(a.end.sent);
}

static void test_silence_ends_at_the_deadline(void **state)
{
    struct world *w = *state;
    struct peer p;
    struct asked a;

    peer_start(&p, ACT_SILENT);
    ask(w, &a, p.url, "POST", true);
    a.req.timeout_us = S;
    run(w, &a);
    assert_int_equal(a.end.outcome, HTTP_TIMED_OUT);
    assert_true(a.end.sent);
    client_end(w);
    peer_stop(&p);
    assert_int_equal(atomic_load(&p.n_hung_up), 1);
}

static void test_a_held_body_waits_and_goes_on(void **state)
{
    struct world *w = *state;
    struct peer p;
    struct asked a;

    peer_start(&p, ACT_BIG);
    ask(w, &a, p.url, "GET", true);
    a.hold_at = 100000;
    on_loop(w, &a, start);
    wait_for(&a.stopped);
    assert_true(a.nbytes <= a.hold_at);
    on_loop(w, &a, resume);
    wait_for(&a.done);
    assert_int_equal(a.end.outcome, HTTP_WHOLE);
    assert_int_equal(a.nbytes, BIG_NBYTES);
    client_end(w);
    peer_stop(&p);
}

static void start_held(void *arg)
{
    struct asked *a = arg;

    a->item = (struct loop_item){.run = resume, .arg = a};
    start(a);
}

static void test_a_hold_loses_nothing(void **state)
{
    struct world *w = *state;
    struct peer p;
    struct asked a;

    peer_start(&p, ACT_BIG);
    ask(w, &a, p.url, "GET", true);
    a.hold = true;
    a.loop = w->loop;
    on_loop(w, &a, start_held);
    wait_for(&a.done);
    assert_int_equal(a.end.outcome, HTTP_WHOLE);
    assert_int_equal(a.nbytes, BIG_NBYTES);
    assert_true(a.n_holds > 1);
    client_end(w);
    peer_stop(&p);
}

static void test_a_call_may_be_cancelled_when_it_is_resumed(void **state)
{
    struct world *w = *state;
    struct peer p;
    struct asked a;
    int n;

    peer_start(&p, ACT_BIG);
    ask(w, &a, p.url, "GET", true);
    a.hold_at = 100000;
    a.cancel_in_resume = true;
    on_loop(w, &a, start);
    wait_for(&a.stopped);
    on_loop(w, &a, resume);
    peer_stop(&p); /* its thread ends only when the other side has hung up */
    client_end(w);
    assert_int_equal(sem_getvalue(&a.done, &n), 0);
    assert_int_equal(n, 0);
}

/* Within libcurl's callback it takes no other call, and lets go of none. */
static void test_events_may_start_and_cancel_other_calls(void **state)
{
    struct world *w = *state;
    struct peer silent, p;
    struct asked a, b, c;
    int n;

    peer_start(&silent, ACT_SILENT);
    peer_start(&p, ACT_ANSWER);
    ask(w, &a, p.url, "POST", false);
    ask(w, &b, p.url, "POST", false);
    ask(w, &c, silent.url, "POST", false);
    a.next = &b;
    a.last = &c;
    on_loop(w, &c, start);
    on_loop(w, &a, start);
    wait_for(&b.done);
    assert_int_equal(b.rc, 0);
    assert_int_equal(b.end.outcome, HTTP_WHOLE);
    client_end(w);
    for (struct asked *gone = &a; gone != NULL; gone = gone == &a ? &c : NULL) {
        assert_int_equal(sem_getvalue(&gone->done, &n), 0);
        assert_int_equal(n, 0);
    }
    peer_stop(&p);
    peer_stop(&silent);
}

static void test_cancel_closes_the_connection(void **state)
{
    struct world *w = *state;
    struct peer silent, big;
    struct asked a;
    int n;

    peer_start(&silent, ACT_SILENT);
    ask(w, &a, silent.url, "POST", true);
    on_loop(w, &a, start);
    while (atomic_load(&silent.n_requests) == 0)
        (void)poll(NULL, 0, 1);
    on_loop(w, &a, cancel);
    wait_for(&a.stopped);
    peer_stop(&silent); /* its thread ends only when the other side has hung up */
    assert_int_equal(atomic_load(&silent.n_hung_up), 1);

    peer_start(&big, ACT_BIG);
    ask(w, &a, big.url, "GET", true);
    a.cancel_in_data = true;
    on_loop(w, &a, start);
    wait_for(&a.stopped);
    peer_stop(&big);
    assert_int_equal(sem_getvalue(&a.done, &n), 0);
    assert_int_equal(n, 0);
}

/* Who serves thousands on the same loop cannot wait for a name server. */
static void test_cancel_waits_for_no_name(void **state)
{
    struct world *w = *state;
    struct timespec until;
    struct asked a;
    int rc;

    assert_int_equal(sem_init(&name_asked, 0, 0), 0);
    assert_int_equal(sem_init(&name_known, 0, 0), 0);
    ask(w, &a, "http://engine.example:1", "POST", true);
    on_loop(w, &a, start);
    wait_for(&name_asked);
    on_loop(w, &a, cancel);
    assert_int_equal(clock_gettime(CLOCK_REALTIME, &until), 0);
    until.tv_sec += 20;
    rc = sem_timedwait(&a.stopped, &until);
    assert_int_equal(sem_post(&name_known), 0);
    assert_int_equal(rc, 0);
}

static void test_a_client_that_ends_tells_nobody(void **state)
{
    struct world *w = *state;
    struct peer p;
    struct asked a;
    int n;

    peer_start(&p, ACT_SILENT);
    ask(w, &a, p.url, "POST", true);
    on_loop(w, &a, start);
    while (atomic_load(&p.n_requests) == 0)
        (void)poll(NULL, 0, 1);
    client_end(w);
    peer_stop(&p);
    assert_int_equal(sem_getvalue(&a.done, &n), 0);
    assert_int_equal(n, 0);
}

static void test_many_at_once(void **state)
{
    enum { N = 40 };
    struct world *w = *state;
    struct peer p;
    static struct asked a[N];

    peer_start(&p, ACT_ANSWER);
    for (int i = 0; i < N; i++) {
        ask(w, &a[i], p.url, "POST", true);
        on_loop(w, &a[i], start);
    }
    for (int i = 0; i < N; i++) {
        wait_for(&a[i].done);
        assert_int_equal(a[i].end.outcome, HTTP_WHOLE);
    }
    assert_int_equal(atomic_load(&p.n_requests), N);
    client_end(w);
    peer_stop(&p);
}

static void test_http_target_check(void **state)
{
    static const struct {
        const char *url;
        bool good;
    } rows[] = {
        {"http://10.0.0.1:8000", true},
        {"https://engine", true},
        {"unix:/run/e.sock", true},
        {"http://", false},
        {"ftp://a", false},
        {"http://a/b", false},
        {"http://user@host", false},
        {"10.0.0.1:8000", false},
        {"unix:relative", false},
        {"http://a?x", false},
        {"https://[::1]:8000", true},
        {"http://host", true},
        {"http://my_host-1.example:65535", true},
        {"http://[fe80::1%25eth0]:1", true},
        {"http://host:99999", false},
        {"http://host:0", false},
        {"http://host:", false},
        {"http://host:80a", false},
        {"http://host:+80", false},
        {"http://host:000080", false},
        {"http://:80", false},
        {"http://::1:80", false},
        {"http://[::1", false},
        {"http://[]:80", false},
        {"http://[::1]80", false},
        {"http://a b:80", false},
        {"http://a%20b:80", false},
        {"", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err e = {0};

        assert_int_equal(http_target_check(rows[i].url, "--upstream", &e) == 0, rows[i].good);
        if (!rows[i].good)
            assert_string_equal(e.field, "--upstream");
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    static const struct CMUnitTest tests[] = {
        TEST(test_an_answer_comes_whole),
        TEST(test_of_interim_answers_and_trailers_nothing_is_kept),
        TEST(test_only_what_may_run_twice_is_on_an_old_connection),
        TEST(test_what_must_not_run_twice_runs_once),
        TEST(test_bad_peers_are_told_apart),
        TEST(test_who_is_not_there_got_nothing),
        TEST(test_silence_ends_at_the_deadline),
        TEST(test_a_held_body_waits_and_goes_on),
        TEST(test_a_hold_loses_nothing),
        TEST(test_a_call_may_be_cancelled_when_it_is_resumed),
        TEST(test_events_may_start_and_cancel_other_calls),
        TEST(test_cancel_closes_the_connection),
        TEST(test_cancel_waits_for_no_name),
        TEST(test_a_client_that_ends_tells_nobody),
        TEST(test_many_at_once),
        cmocka_unit_test(test_http_target_check),
    };
    struct err e = {0};

    if (http_init(&e) != 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
