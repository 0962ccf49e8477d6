/* Streamed answers, against a peer that sends piece after piece. */
#include "http/client/http.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    PIECES_MAX = 8,
    REQUEST_NBYTES = 32 << 20,
    BODY_MAX = 8 << 20,
    BIG_CHUNK = 5000,
    S = 1000000
};

#define HEAD  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
#define FIRST HEAD "5\r\nfirst\r\n"
#define LAST  "0\r\n\r\n"

/* ---- a peer: one connection, one request ---- */

struct peer {
    const char *pieces[PIECES_MAX]; /* up to NULL; "": BODY_MAX bytes in chunks */
    size_t body_nbytes;             /* read before the second piece */
    bool reset;                     /* its end is one */
    bool waits;                     /* for the other side to hang up */
    int fd;
    char url[64];
    pthread_t thread;
    sem_t go; /* for each piece but the first */
};

static void wait_for(sem_t *s)
{
    while (sem_wait(s) != 0)
        continue;
}

static char letter(size_t i)
{
    return (char)('a' + i * 7 % 26);
}

static void say(int fd, const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, text, len, MSG_NOSIGNAL);

        if (n <= 0)
            return; /* it hung up */
        text += n;
        len -= (size_t)n;
    }
}

static void say_big(int fd)
{
    char chunk[BIG_CHUNK + 64];

    for (size_t at = 0; at < BODY_MAX;) {
        size_t n = BODY_MAX - at < BIG_CHUNK ? BODY_MAX - at : BIG_CHUNK;
        int head = snprintf(chunk, sizeof chunk, "%zx\r\n", n);

        for (size_t i = 0; i < n; i++)
            chunk[(size_t)head + i] = letter(at + i);
        memcpy(chunk + head + n, "\r\n", 2);
        say(fd, chunk, (size_t)head + n + 2);
        at += n;
    }
}

static void serve(struct peer *p, int fd)
{
    static const struct linger at_once = {.l_onoff = 1};
    char request[4096];
    ssize_t n = recv(fd, request, sizeof request, 0); /* small: it comes as one */

    assert_true(n > 0);
    for (size_t i = 0; i < PIECES_MAX && p->pieces[i] != NULL; i++) {
        if (i > 0)
            wait_for(&p->go);
        for (size_t got = (size_t)n; i == 1 && n > 0 && got < p->body_nbytes; got += (size_t)n)
            n = recv(fd, request, sizeof request, 0);
        if (p->pieces[i][0] == '\0')
            say_big(fd);
        else
            say(fd, p->pieces[i], strlen(p->pieces[i]));
    }
    while (p->waits && recv(fd, request, sizeof request, 0) > 0)
        continue;
    if (p->reset) {
        wait_for(&p->go);
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    }
    (void)close(fd);
}

static void *peer_main(void *arg)
{
    struct peer *p = arg;
    int fd = accept(p->fd, NULL, NULL);

    assert_true(fd >= 0);
    serve(p, fd);
    return NULL;
}

static void peer_start(struct peer *p)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;

    p->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(p->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(p->fd, 1), 0);
    assert_int_equal(getsockname(p->fd, (struct sockaddr *)&a, &len), 0);
    (void)snprintf(p->url, sizeof p->url, "http://127.0.0.1:%d", ntohs(a.sin_port));
    assert_int_equal(sem_init(&p->go, 0, 0), 0);
    assert_int_equal(pthread_create(&p->thread, NULL, peer_main, p), 0);
}

static void peer_stop(struct peer *p)
{
    assert_int_equal(pthread_join(p->thread, NULL), 0);
    (void)close(p->fd);
}

/* ---- a call ---- */

struct asked {
    struct loop *loop;
    struct http_client *client;
    struct http_target target;
    struct http_call_request req;
    struct http_call *call;
    struct http_end end;
    int status; /* of its answer; 0: 200 */
    size_t n_data, nbytes;
    /* What `data` does. */
    size_t refuse; /* this piece, when it comes first; 1 is the first */
    size_t n_refused;
    bool hold, hold_first, cancel, cancel_again; /* again: what was refused */
    sem_t came, done;
    struct loop_item item, resume;
};

static bool on_data(void *arg, const void *data, size_t len)
{
    struct asked *a = arg;
    const char *text = data;

    a->n_data++;
    if (a->cancel || (a->cancel_again && a->n_refused > 0)) {
        http_cancel(a->call);
        assert_int_equal(sem_post(&a->came), 0);
        return true;
    }
    if (a->n_data == a->refuse) {
        a->n_refused++;
        assert_int_equal(sem_post(&a->came), 0);
        return false;
    }
    for (size_t i = 0; i < len && a->nbytes + i >= 5 && a->hold; i++)
        if (text[i] != letter(a->nbytes + i - 5))
            fail_msg("byte %zu is another", a->nbytes + i);
    a->nbytes += len;
    if (a->hold_first && a->n_data == 1)
        http_hold(a->call);
    if (a->hold) {
        http_hold(a->call);
        loop_post(a->loop, &a->resume);
    }
    assert_int_equal(sem_post(&a->came), 0);
    return true;
}

static void on_head(void *arg, const struct http_head *head)
{
    struct asked *a = arg;

    assert_int_equal(head->status, a->status != 0 ? a->status : 200);
}

static void on_done(void *arg, const struct http_end *end)
{
    struct asked *a = arg;

    a->end = *end;
    a->call = NULL;
    loop_unpost(a->loop, &a->resume);
    assert_int_equal(sem_post(&a->done), 0);
}

static void start(void *arg)
{
    struct asked *a = arg;
    struct http_events events = {.head = on_head, .data = on_data, .done = on_done, .arg = a};
    struct err e = {0};

    assert_int_equal(http_start(&a->call, a->client, &a->req, &events, &e), 0);
}

static void resume(void *arg)
{
    struct asked *a = arg;

    http_resume(a->call);
}

static void cancel(void *arg)
{
    http_cancel(((struct asked *)arg)->call);
}

static void look_and_resume(void *arg)
{
    struct asked *a = arg;

    if (a->call != NULL) /* else libcurl had read all of it before it was held */
        resume(a);
}

static void cancel_next(void *arg)
{
    struct asked *a = arg;

    a->cancel = true;
    assert_int_equal(sem_post(&a->came), 0);
}

static int setup(void **state)
{
    struct asked *a = calloc(1, sizeof *a);
    struct err e = {0};

    assert_int_equal(loop_new(&a->loop, &(struct loop_cfg){.name = "test"}, &e), 0);
    assert_int_equal(http_client_new(&a->client, a->loop, &e), 0);
    assert_int_equal(loop_start(a->loop, &e), 0);
    assert_int_equal(sem_init(&a->came, 0, 0), 0);
    assert_int_equal(sem_init(&a->done, 0, 0), 0);
    *state = a;
    return 0;
}

static void client_end(struct asked *a)
{
    loop_stop(a->loop);
    http_client_free(a->client);
    a->client = NULL;
}

static int teardown(void **state)
{
    struct asked *a = *state;

    client_end(a);
    loop_free(a->loop);
    free(a);
    return 0;
}

static void on_loop(struct asked *a, void (*run)(void *))
{
    a->item = (struct loop_item){.run = run, .arg = a};
    loop_post(a->loop, &a->item);
}

static void prepare(struct asked *a, const struct peer *p)
{
    a->target = (struct http_target){.url = p->url};
    a->req = (struct http_call_request){.target = &a->target,
                                        .method = "POST",
                                        .path = "/",
                                        .body = "{}",
                                        .body_len = 2,
                                        .connect_timeout_us = 10ULL * S,
                                        .fresh = true};
    a->resume = (struct loop_item){.run = resume, .arg = a};
}

static void ask(struct asked *a, const struct peer *p)
{
    prepare(a, p);
    on_loop(a, start);
}

/* Each piece when the one before has come. */
static void play(struct asked *a, struct peer *p)
{
    peer_start(p);
    ask(a, p);
    for (size_t i = 1; i < PIECES_MAX && p->pieces[i] != NULL; i++) {
        wait_for(&a->came);
        assert_int_equal(sem_post(&p->go), 0);
    }
}

static bool nobody_is_told(struct asked *a)
{
    int n = -1;

    client_end(a); /* its thread has ended */
    assert_int_equal(sem_getvalue(&a->done, &n), 0);
    return n == 0;
}

static size_t n_descriptors(void)
{
    DIR *all = opendir("/proc/self/fd");
    size_t n = 0;

    assert_non_null(all);
    while (readdir(all) != NULL)
        n++;
    assert_int_equal(closedir(all), 0);
    return n;
}

/* ---- tests ---- */

static void test_a_stream_comes_whole(void **state)
{
    static const struct {
        const char *second, *third;
        size_t nbytes;
    } rows[] = {
        {"6\r\nsecond\r\n", LAST, 11},
        {"6;a=b\r\nsecond\r\n0\r\nTrailer: x\r\n\r\nand more", NULL, 11},
        {"6\r\nsec", "ond\r\n5\r\nthird\r\n0\r\n\r\n", 16},
    };
    struct asked *a = *state;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct peer p = {.pieces = {FIRST, rows[i].second, rows[i].third}, .waits = true};

        a->n_data = a->nbytes = 0;
        play(a, &p);
        wait_for(&a->done);
        assert_int_equal(a->end.outcome, HTTP_WHOLE);
        assert_string_equal(a->end.why, "");
        assert_int_equal(a->nbytes, rows[i].nbytes);
        peer_stop(&p); /* which was hung up on */
        while (sem_trywait(&a->came) == 0)
            continue;
    }
}

/* Who ends early, or says nonsense, is told from one whose answer is whole. */
static void test_an_early_end_is_told(void **state)
{
    static const struct {
        const char *second;
        bool reset;
        const char *why;
    } rows[] = {
        {"6\r\nsec", false, "closed"},          {"6\r\nsecond\r\n", false, "closed"},
        {"2\r\nhi\r\n0\r\n", false, "closed"},  {"6\r\nsec", true, "reset"},
        {"2\r\nhi\r\nxyz\r\n", false, "chunk"},
    };
    struct asked *a = *state;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct peer p = {.pieces = {FIRST, rows[i].second}, .reset = rows[i].reset};

        a->n_data = a->nbytes = 0;
        play(a, &p);
        wait_for(&a->came); /* the second piece, before a reset throws it away */
        if (rows[i].reset)
            assert_int_equal(sem_post(&p.go), 0);
        wait_for(&a->done);
        assert_int_equal(a->end.outcome, HTTP_BROKEN);
        assert_true(a->end.sent);
        assert_non_null(strstr(a->end.why, rows[i].why));
        peer_stop(&p);
    }
}

static void test_a_held_stream_loses_nothing(void **state)
{
    struct asked *a = *state;
    struct peer p = {.pieces = {FIRST, "", LAST}};

    a->hold = true;
    peer_start(&p);
    ask(a, &p);
    assert_int_equal(sem_post(&p.go), 0);
    assert_int_equal(sem_post(&p.go), 0);
    wait_for(&a->done);
    assert_int_equal(a->end.outcome, HTTP_WHOLE);
    assert_int_equal(a->nbytes, 5 + BODY_MAX);
    peer_stop(&p);
}

static void test_a_stream_that_is_held_from_its_beginning_waits(void **state)
{
    struct asked *a = *state;
    struct peer p = {.pieces = {FIRST, "6\r\nsecond\r\n" LAST}};

    a->hold_first = true;
    play(a, &p);
    on_loop(a, look_and_resume);
    wait_for(&a->done);
    assert_int_equal(a->end.outcome, HTTP_WHOLE);
    assert_int_equal(a->nbytes, 11);
    peer_stop(&p);
}

/* Pieces that come again do so once, in their place, and the end waits for them. */
static void test_what_is_refused_comes_again(void **state)
{
    struct asked *a = *state;
    size_t n_before = n_descriptors();

    for (size_t refuse = 1; refuse <= 3; refuse++) {
        struct peer p = {.pieces = {FIRST, "6\r\nsecond\r\n", "5\r\nthird\r\n" LAST}};

        a->n_data = a->nbytes = 0;
        a->refuse = refuse;
        peer_start(&p);
        ask(a, &p);
        for (size_t i = 1; i <= 3; i++) {
            wait_for(&a->came);
            if (i == refuse) {
                on_loop(a, resume);
                wait_for(&a->came);
            }
            if (i < 3)
                assert_int_equal(sem_post(&p.go), 0);
        }
        wait_for(&a->done);
        assert_int_equal(a->end.outcome, HTTP_WHOLE);
        assert_int_equal(a->n_data, 4);
        assert_int_equal(a->nbytes, 16);
        peer_stop(&p);
    }
    assert_int_equal(a->n_refused, 3);
    assert_int_equal(n_descriptors(), n_before);
}

static void test_cancel_hangs_up(void **state)
{
    struct asked *a = *state;
    struct peer p = {.pieces = {FIRST, "6\r\nsecond\r\n"}, .waits = true};

    play(a, &p);
    wait_for(&a->came);
    on_loop(a, cancel);
    peer_stop(&p);
    assert_true(nobody_is_told(a));
}

static void test_cancel_within_an_event_hangs_up(void **state)
{
    struct asked *a = *state;
    struct peer p = {.pieces = {FIRST, "6\r\nsecond\r\n"}, .waits = true};

    peer_start(&p);
    ask(a, &p);
    wait_for(&a->came);
    on_loop(a, cancel_next);
    wait_for(&a->came);
    assert_int_equal(sem_post(&p.go), 0);
    wait_for(&a->came);
    peer_stop(&p);
    assert_true(nobody_is_told(a));
}

static void test_cancel_of_what_was_refused_hangs_up(void **state)
{
    struct asked *a = *state;
    struct peer p = {.pieces = {FIRST, "6\r\nsecond\r\n"}, .waits = true};

    a->refuse = 2;
    a->cancel_again = true;
    play(a, &p);
    wait_for(&a->came);
    on_loop(a, resume);
    wait_for(&a->came);
    peer_stop(&p);
    assert_true(nobody_is_told(a));
    assert_int_equal(a->n_data, 3);
}

static void test_a_client_that_ends_hangs_up(void **state)
{
    struct asked *a = *state;
    struct peer p = {.pieces = {FIRST, "6\r\nsecond\r\n"}, .waits = true};

    a->refuse = 2;
    play(a, &p);
    wait_for(&a->came);
    assert_true(nobody_is_told(a));
    peer_stop(&p);
}

static void test_bodies_of_every_form_come_whole(void **state)
{
    static const struct {
        const char *first, *second;
        bool fresh;
        uint64_t timeout_us;
    } rows[] = {
        {FIRST, "6\r\nsecond\r\n" LAST, true, 60ULL * S},
        {FIRST, "6\r\nsecond\r\n" LAST, false, 0},
        {"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nfirst", "second", true, 0},
        {"HTTP/1.1 200 OK\r\n\r\nfirst", "second", true, 0},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nfirst", "second", true, 0},
    };
    struct asked *a = *state;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct peer p = {.pieces = {rows[i].first, rows[i].second}};

        a->nbytes = 0;
        peer_start(&p);
        prepare(a, &p);
        a->req.fresh = rows[i].fresh;
        a->req.timeout_us = rows[i].timeout_us;
        on_loop(a, start);
        wait_for(&a->came);
        assert_int_equal(sem_post(&p.go), 0);
        wait_for(&a->came);
        wait_for(&a->done);
        assert_int_equal(a->end.outcome, HTTP_WHOLE);
        assert_int_equal(a->nbytes, 11);
        peer_stop(&p);
    }
}

/* Whoever answers before it has read all of the request gets the rest of it from libcurl. */
static void test_a_request_is_sent_to_its_end(void **state)
{
    struct asked *a = *state;
    struct peer p = {.pieces = {FIRST, "6\r\nsecond\r\n" LAST}, .body_nbytes = REQUEST_NBYTES};
    char *body = calloc(1, REQUEST_NBYTES);

    assert_non_null(body);
    peer_start(&p);
    prepare(a, &p);
    a->req.body = body;
    a->req.body_len = REQUEST_NBYTES;
    on_loop(a, start);
    wait_for(&a->came);
    assert_int_equal(sem_post(&p.go), 0);
    wait_for(&a->done);
    assert_int_equal(a->end.outcome, HTTP_WHOLE);
    assert_int_equal(a->nbytes, 11);
    peer_stop(&p);
    free(body);
}

static void test_a_redirect_is_no_whole_answer(void **state)
{
    struct asked *a = *state;
    struct peer p = {.pieces = {"HTTP/1.1 302 Found\r\nTransfer-Encoding: chunked\r\n\r\n"
                                "5\r\nfirst\r\n",
                                "6\r\nsecond\r\n" LAST}};

    a->status = 302;
    play(a, &p);
    wait_for(&a->done);
    assert_int_equal(a->end.outcome, HTTP_BROKEN);
    assert_non_null(strstr(a->end.why, "redirects"));
    peer_stop(&p);
}

/* Whatever its name is: what the head has said before it still holds. */
static void test_a_header_begins_no_new_head(void **state)
{
    struct asked *a = *state;
    struct peer p = {.pieces = {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nHTTP/1: x\r\n\r\n"
                                "5\r\nfirst\r\n" LAST}};

    peer_start(&p);
    ask(a, &p);
    wait_for(&a->done);
    assert_int_equal(a->end.outcome, HTTP_WHOLE);
    assert_int_equal(a->nbytes, 5);
    peer_stop(&p);
}

/* libcurl continues the last header line of the answer before, and that is gone. */
static void test_a_head_that_begins_in_mid_line_continues_no_other(void **state)
{
    static const char *const lines[] = {"A: b\r\n", " c: d\r\n", " c: d\r\nA: b\r\n", "\te: f\r\n"};
    struct asked *a = *state;

    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        char text[256];
        struct peer p = {.pieces = {text}};

        (void)snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\n%sContent-Length: 0\r\n\r\n",
                       lines[i]);
        play(a, &p);
        wait_for(&a->done);
        assert_true(a->end.outcome == HTTP_WHOLE || a->end.outcome == HTTP_BROKEN);
        peer_stop(&p);
    }
}

static void test_a_coding_that_nobody_asked_for_is_refused(void **state)
{
    static const char *const heads[] = {
        "Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"};
    struct asked *a = *state;

    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        char text[256];
        struct peer p = {.pieces = {text}, .waits = true};

        (void)snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\n%s\r\n5\r\nfirst\r\n" LAST, heads[i]);
        play(a, &p);
        wait_for(&a->done);
        assert_int_equal(a->end.outcome, HTTP_BROKEN);
        assert_non_null(strstr(a->end.why, "transfer coding"));
        assert_int_equal(a->n_data, 0);
        peer_stop(&p);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    static const struct CMUnitTest tests[] = {
        TEST(test_a_stream_comes_whole),
        TEST(test_an_early_end_is_told),
        TEST(test_a_held_stream_loses_nothing),
        TEST(test_a_stream_that_is_held_from_its_beginning_waits),
        TEST(test_what_is_refused_comes_again),
        TEST(test_cancel_hangs_up),
        TEST(test_cancel_within_an_event_hangs_up),
        TEST(test_cancel_of_what_was_refused_hangs_up),
        TEST(test_a_client_that_ends_hangs_up),
        TEST(test_bodies_of_every_form_come_whole),
        TEST(test_a_request_is_sent_to_its_end),
        TEST(test_a_redirect_is_no_whole_answer),
        TEST(test_a_header_begins_no_new_head),
        TEST(test_a_head_that_begins_in_mid_line_continues_no_other),
        TEST(test_a_coding_that_nobody_asked_for_is_refused),
    };
    struct err e = {0};

    if (http_init(&e) != 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
