/* An HTTP server on a unix socket: who its peers are, that a slow reader is told from one that has
 * stopped, and what becomes of the file. */
#include "tests/unit/http/http_server_app.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/un.h>

static char dir[] = "/tmp/test_front_unix.XXXXXX", path[64];
static struct err why;

static void connect_path(struct client *c)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    (void)snprintf(addr.sun_path, sizeof addr.sun_path, "%s", path);
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(c->fd >= 0);
    assert_int_equal(connect(c->fd, (const struct sockaddr *)&addr, sizeof addr), 0);
    c->len = 0;
    c->buf = malloc(CLIENT_BUF);
    assert_non_null(c->buf);
}

/* As app_start, which wants a port. NULL: *e says why. */
static struct http_server *http_server_or(size_t n_shards, struct err *e)
{
    static const struct http_server_app ops = {
        .route = app_route, .dispatch = app_dispatch, .reject = app_reject, .done = app_done};
    struct http_server_cfg cfg = {.n_shards = n_shards,
                                  .n_connections_max = 64,
                                  .header_timeout_us = APP_WAIT_US,
                                  .idle_timeout_us = APP_WAIT_US,
                                  .drop_timeout_us = APP_WAIT_US,
                                  .unix_path = path,
                                  .body_timeout_us = 600 * 1000,
                                  .app = &ops,
                                  .app_arg = &app};
    struct http_server *f = NULL;

    if (http_server_new(&f, &cfg, e) != 0)
        assert_null(f);
    return f;
}

static struct http_server *http_server(size_t n_shards)
{
    err_clear(&why);
    return http_server_or(n_shards, &why);
}

static void test_http_server_unix_serves(void **state)
{
    struct http_server *f = http_server(3);
    struct client c[8];

    (void)state;
    assert_non_null(f);
    assert_int_equal(http_server_port(f), 0);
    for (int i = 0; i < 8; i++) {
        connect_path(&c[i]);
        expect(&c[i], "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nhi", 200, "hi");
    }
    for (int i = 0; i < 8; i++) {
        expect(&c[i], "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nho", 200, "ho");
        client_close(&c[i]);
    }
    http_server_free(f);
    assert_int_equal(access(path, F_OK), -1);
}

/* Reads until the end, waiting after each piece as told. Returns how many bytes came. */
static size_t read_slowly(struct client *c, int pause_ms)
{
    enum { PIECE = 64 << 10 };
    struct pollfd cut = {.fd = c->fd, .events = POLLRDHUP};
    char *piece = malloc(PIECE);
    size_t n_read = 0;
    ssize_t n;

    assert_non_null(piece);
    while ((n = recv(c->fd, piece, PIECE, 0)) > 0) {
        n_read += (size_t)n;
        (void)poll(&cut, 1, pause_ms);
    }
    free(piece);
    return n_read;
}

/* The answer is larger than what a socket holds: whoever reads it slowly, for longer than any
 * deadline, gets all of it; whoever reads no more is cut. */
static void test_http_server_unix_slow_reader(void **state)
{
    enum { NBYTES = 1 << 20, SLOW_MS = 100 }; /* 16 pieces: 1.6 s; the deadline is 0.6 s */
    struct http_server *f = http_server(1);
    char *body = malloc(NBYTES), head[128];
    size_t n_read[2];

    (void)state;
    assert_non_null(f);
    assert_non_null(body);
    memset(body, 'b', NBYTES);
    (void)snprintf(head, sizeof head,
                   "POST /echo HTTP/1.1\r\n" HOST "Connection: close\r\nContent-Length: %d\r\n\r\n",
                   NBYTES);
    for (int stopped = 0; stopped < 2; stopped++) {
        struct client c;

        connect_path(&c);
        client_send(&c, head);
        assert_true(client_try_send(&c, body, NBYTES));
        n_read[stopped] = read_slowly(&c, stopped ? CLIENT_WAIT_MS : SLOW_MS);
        client_close(&c);
    }
    assert_true(n_read[0] > NBYTES);
    assert_true(n_read[1] < NBYTES);
    free(body);
    http_server_free(f);
}

/* As a server that was killed leaves it. */
static void leave_stale(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)snprintf(addr.sun_path, sizeof addr.sun_path, "%s", path);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&addr, sizeof addr), 0);
    (void)close(fd);
}

/* Somebody listens: refused. Nobody does any more: replaced. No socket: left alone. */
static void test_http_server_unix_path(void **state)
{
    struct http_server *f = http_server(1);
    struct stat st;
    int fd;

    (void)state;
    assert_non_null(f);
    assert_null(http_server(1));
    assert_non_null(strstr(why.msg, path));
    assert_non_null(strstr(why.msg, "in use"));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & (S_IROTH | S_IWOTH | S_IXOTH), 0);
    http_server_free(f);

    leave_stale();
    f = http_server(1);
    assert_non_null(f);
    http_server_free(f);

    fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_null(http_server(1));
    assert_non_null(strstr(why.msg, "in use"));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(unlink(path), 0);
}

enum { RACERS = 4, RACES = 400 };

struct racer {
    pthread_t thread;
    pthread_barrier_t *start;
    struct http_server *http_server;
};

static void *race(void *arg)
{
    struct racer *r = arg;
    struct err e = {0};

    (void)pthread_barrier_wait(r->start);
    r->http_server = http_server_or(1, &e);
    return NULL;
}

/* Several find the socket of one that was killed, at the same time: one gets the path, and nobody
 * takes another's for a dead one. */
static void test_http_server_unix_race(void **state)
{
    pthread_barrier_t start;
    struct racer racers[RACERS];

    (void)state;
    assert_int_equal(pthread_barrier_init(&start, NULL, RACERS), 0);
    for (int k = 0; k < RACES; k++) {
        int n_won = 0;

        if (k % 2 == 0)
            leave_stale();
        for (int i = 0; i < RACERS; i++) {
            racers[i] = (struct racer){.start = &start};
            assert_int_equal(pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
        }
        for (int i = 0; i < RACERS; i++) {
            assert_int_equal(pthread_join(racers[i].thread, NULL), 0);
            n_won += racers[i].http_server != NULL;
        }
        for (int i = 0; i < RACERS; i++)
            http_server_free(racers[i].http_server);
        assert_int_equal(n_won, 1);
    }
    (void)pthread_barrier_destroy(&start);
}

/* One that ends gives the path up before it closes its socket: a successor takes it while what was
 * accepted before is still served, and keeps it when the first one is gone. */
static void test_http_server_unix_successor(void **state)
{
    struct http_server *old = http_server(2), *next;
    struct client c;

    (void)state;
    assert_non_null(old);
    http_server_quiesce(old);
    assert_int_equal(access(path, F_OK), -1);
    next = http_server(2);
    assert_non_null(next);
    http_server_free(old);
    connect_path(&c);
    expect(&c, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nhi", 200, "hi");
    client_close(&c);
    http_server_free(next);
    assert_int_equal(access(path, F_OK), -1);
}

/* A refusal reaches a client that sends all of a long body first. */
static void test_http_server_unix_early_refusal(void **state)
{
    enum { NBYTES = 64 << 20 };
    struct http_server *f = http_server(1);
    char *body = calloc(1, NBYTES);
    struct client c;

    (void)state;
    assert_non_null(f);
    assert_non_null(body);
    connect_path(&c);
    client_send(&c, "POST /deny HTTP/1.1\r\n" HOST "Content-Length: 67108864\r\n\r\n");
    assert_true(client_try_send(&c, body, NBYTES));
    expect(&c, "", 403, "denied");
    client_close(&c);
    free(body);
    http_server_free(f);
}

/* Its producer has gone, and its reader does not read: nothing else would ever end it. */
static void test_http_server_unix_stream_unread(void **state)
{
    enum { NBYTES = 3 << 20 };
    struct http_server *f = http_server(1);
    char *data = calloc(1, NBYTES);
    struct client c;
    struct response r;
    size_t n_done;

    (void)state;
    assert_non_null(f);
    assert_non_null(data);
    n_done = app.n_done;
    app.n_held = 0;
    connect_path(&c);
    client_send(&c, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    assert_true(client_head(&c, &r));
    response_free(&r);
    app_wait(&app, &app.n_held, 1);
    assert_int_equal(http_request_stream_write(app.held, data, NBYTES), 0);
    http_request_stream_close(app.held, true);
    app_wait(&app, &app.n_done, n_done + 1);
    assert_true(app.last.gone);
    client_close(&c);
    free(data);
    http_server_free(f);
}

/* Every loop shows that it turns, soon after it was asked. */
static void test_http_server_beat(void **state)
{
    struct http_server *f = http_server(4);
    uint64_t until_us = clock_after_us(APP_WAIT_US), asked_us = clock_now_us();

    (void)state;
    assert_non_null(f);
    while (http_server_beat_us(f) < asked_us)
        assert_false(clock_passed(until_us));
    http_server_free(f);
}

static int setup(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL)
        return -1;
    (void)snprintf(path, sizeof path, "%s/front.sock", dir);
    mtx_init(&app.lock, MTX_LEAF);
    cnd_init(&app.moved);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)unlink(path);
    cnd_fini(&app.moved);
    mtx_fini(&app.lock);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_http_server_unix_serves),
        cmocka_unit_test(test_http_server_unix_slow_reader),
        cmocka_unit_test(test_http_server_unix_path),
        cmocka_unit_test(test_http_server_unix_race),
        cmocka_unit_test(test_http_server_unix_successor),
        cmocka_unit_test(test_http_server_unix_early_refusal),
        cmocka_unit_test(test_http_server_unix_stream_unread),
        cmocka_unit_test(test_http_server_beat),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
