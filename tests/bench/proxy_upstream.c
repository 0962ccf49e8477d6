/* proxy_upstream: an engine as vLLM's clients see it that costs next to nothing, so that a proxy
 * before it is what is measured; for bench_proxy.py. The double (tests/fakes/engine.h), which keeps
 * a journal and true state, takes several times as long for a small request as a proxy may.
 *
 * Usage: proxy_upstream TOKENS EVENT_NBYTES INTERVAL_US      prints its port
 * A POST whose body has "stream" is answered by TOKENS events of EVENT_NBYTES each, one each
 * INTERVAL_US with the time in it ("t", of CLOCK_MONOTONIC in us), or, if that is 0, as fast as
 * they are taken; any other with ANSWER_NBYTES of JSON. GET of /metrics says that the process began
 * at 1; nothing else is there to get. */
#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    ANSWER_NBYTES = 300,
    REQUEST_NBYTES_MAX = 8192,
    EVENT_NBYTES_MIN = 64,
    EVENT_NBYTES_MAX = 4096,
    BLOCK_EVENTS = 256, /* that one send gets at most */
    EVENTS_MAX = 512
};

struct conn {
    int fd;
    bool streaming, waits, close;
    size_t len, offset; /* of the request; of the event or the end that is being sent */
    size_t n_left;      /* events */
    uint64_t due_us;
    struct conn *next, **prev_next; /* of those that pace: the earliest first */
    char in[REQUEST_NBYTES_MAX + 1];
};

struct upstream {
    int epoll_fd, listen_fd;
    size_t n_tokens, event_nbytes, chunk_nbytes; /* chunk: an event with its framing */
    uint64_t interval_us;
    char *block; /* [BLOCK_EVENTS] chunks; owned */
    struct conn *pacing, **pacing_end;
};

static const char stream_head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                  "Transfer-Encoding: chunked\r\n\r\n";
static const char stream_head_close[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                        "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
static const char stream_tail[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void watch(struct upstream *u, struct conn *c, int op, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};

    if (epoll_ctl(u->epoll_fd, op, c->fd, &event) != 0)
        die("epoll_ctl");
}

static void unpace(struct upstream *u, struct conn *c)
{
    if (c->prev_next == NULL)
        return;
    *c->prev_next = c->next;
    if (c->next != NULL)
        c->next->prev_next = c->prev_next;
    else
        u->pacing_end = c->prev_next;
    c->prev_next = NULL;
}

static void pace(struct upstream *u, struct conn *c)
{
    c->next = NULL;
    c->prev_next = u->pacing_end;
    *u->pacing_end = c;
    u->pacing_end = &c->next;
}

static void hang_up(struct upstream *u, struct conn *c)
{
    unpace(u, c);
    (void)close(c->fd);
    free(c);
}

/* 1: sent. 0: the socket has no room. -1: the connection is gone, and so is c. */
static int push(struct upstream *u, struct conn *c, const char *data, size_t len)
{
    ssize_t n;

    while (c->offset < len) {
        n = send(c->fd, data + c->offset, len - c->offset, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (!c->waits)
                watch(u, c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            c->waits = true;
            return 0;
        }
        if (n < 0) {
            hang_up(u, c);
            return -1;
        }
        c->offset += (size_t)n;
    }
    c->offset = 0;
    return 1;
}

static void stream_over(struct upstream *u, struct conn *c)
{
    int sent = push(u, c, stream_tail, sizeof stream_tail - 1);

    if (sent <= 0)
        return;
    c->streaming = false;
    if (c->close)
        hang_up(u, c);
    else if (c->waits)
        watch(u, c, EPOLL_CTL_MOD, EPOLLIN);
    if (!c->close)
        c->waits = false;
}

/* As much as is taken. offset counts from the first event that has not been sent whole. */
static void stream_flood(struct upstream *u, struct conn *c)
{
    while (c->n_left > 0) {
        size_t n = c->n_left < BLOCK_EVENTS ? c->n_left : BLOCK_EVENTS;
        int sent = push(u, c, u->block, n * u->chunk_nbytes);

        if (sent < 0)
            return;
        if (sent == 0) {
            c->n_left -= c->offset / u->chunk_nbytes;
            c->offset %= u->chunk_nbytes;
            return;
        }
        c->n_left -= n;
    }
    stream_over(u, c);
}

static void put_event(struct upstream *u, char *chunk, uint64_t now)
{
    char text[64];
    int n = snprintf(text, sizeof text, "%zx\r\ndata: {\"t\":%016llu,\"text\":\"", u->event_nbytes,
                     (unsigned long long)now);

    memset(chunk, 'x', u->chunk_nbytes);
    memcpy(chunk, text, (size_t)n);
    memcpy(chunk + u->chunk_nbytes - 6, "\"}\n\n\r\n", 6);
}

static void stream_token(struct upstream *u, struct conn *c)
{
    char chunk[EVENT_NBYTES_MAX + 16];

    if (c->n_left == 0) {
        stream_over(u, c);
        return;
    }
    put_event(u, chunk, clock_now_us());
    c->due_us += u->interval_us;
    if (push(u, c, chunk, u->chunk_nbytes) <= 0)
        return; /* a reader that far behind has nothing to time: see writable */
    c->n_left--;
    pace(u, c);
}

static void writable(struct upstream *u, struct conn *c)
{
    if (!c->streaming || !c->waits)
        return;
    if (u->interval_us == 0 && c->n_left > 0) {
        stream_flood(u, c);
        return;
    }
    if (c->n_left == 0) {
        stream_over(u, c);
        return;
    }
    (void)fprintf(stderr, "proxy_upstream: a reader of paced tokens is behind\n");
    hang_up(u, c);
}

static void answer_stream(struct upstream *u, struct conn *c)
{
    const char *head = c->close ? stream_head_close : stream_head;

    if (push(u, c, head, strlen(head)) <= 0)
        return;
    c->streaming = true;
    c->n_left = u->n_tokens;
    c->due_us = clock_after_us(u->interval_us);
    if (u->interval_us == 0)
        stream_flood(u, c);
    else
        pace(u, c);
}

static void answer_text(struct upstream *u, struct conn *c, const char *status, const char *type,
                        const char *text, size_t len)
{
    char out[1024];
    int n = snprintf(out, sizeof out,
                     "HTTP/1.1 %s\r\nContent-Type: %s\r\n%sContent-Length: %zu\r\n\r\n%.*s", status,
                     type, c->close ? "Connection: close\r\n" : "", len, (int)len, text);
    bool close = c->close;

    if (push(u, c, out, (size_t)n) > 0 && close)
        hang_up(u, c);
}

static void answer_json(struct upstream *u, struct conn *c)
{
    static char text[ANSWER_NBYTES];
    static const char head[] = "{\"object\":\"text_completion\",\"choices\":[{\"text\":\"";

    if (text[0] == '\0') {
        memset(text, 'x', sizeof text);
        memcpy(text, head, sizeof head - 1);
        memcpy(text + sizeof text - 4, "\"}]}", 4);
    }
    answer_text(u, c, "200 OK", "application/json", text, sizeof text);
}

/* Bytes of the whole request in c->in, or 0. */
static size_t request_nbytes(const struct conn *c, size_t *body_at)
{
    const char *end = memmem(c->in, c->len, "\r\n\r\n", 4);
    const char *length = end != NULL ? strcasestr(c->in, "\r\nContent-Length:") : NULL;
    size_t n = 0;

    if (end == NULL)
        return 0;
    if (length != NULL && length < end)
        n = strtoull(length + sizeof "\r\nContent-Length:" - 1, NULL, 10);
    *body_at = (size_t)(end - c->in) + 4;
    if (*body_at + n > REQUEST_NBYTES_MAX)
        die("a request that is too long");
    return *body_at + n <= c->len ? *body_at + n : 0;
}

static void answer(struct upstream *u, struct conn *c)
{
    static const char who[] = "# a process\nprocess_start_time_seconds 1\n";
    size_t body_at = 0, n = request_nbytes(c, &body_at);
    const char *close;

    if (n == 0)
        return;
    close = strcasestr(c->in, "\r\nConnection: close");
    c->close = close != NULL && close < c->in + body_at;
    c->len = 0; /* nobody sends ahead here */
    if (strncmp(c->in, "GET /metrics ", 13) == 0)
        answer_text(u, c, "200 OK", "text/plain", who, sizeof who - 1);
    else if (strncmp(c->in, "GET ", 4) == 0)
        answer_text(u, c, "404 Not Found", "text/plain", "no", 2);
    else if (memmem(c->in + body_at, n - body_at, "\"stream\"", 8) != NULL)
        answer_stream(u, c);
    else
        answer_json(u, c);
}

/* False: the connection is gone. */
static bool readable(struct upstream *u, struct conn *c)
{
    ssize_t n = recv(c->fd, c->in + c->len, REQUEST_NBYTES_MAX - c->len, 0);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0) {
        hang_up(u, c);
        return false;
    }
    c->len += (size_t)n;
    c->in[c->len] = '\0';
    return true;
}

static void accept_all(struct upstream *u)
{
    int fd, one = 1;

    while ((fd = accept4(u->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct conn *c = malloc(sizeof *c);

        if (c == NULL)
            die("malloc");
        memset(c, 0, offsetof(struct conn, in));
        c->fd = fd;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        watch(u, c, EPOLL_CTL_ADD, EPOLLIN);
        if (readable(u, c))
            answer(u, c);
    }
}

static void turn(struct upstream *u)
{
    struct epoll_event events[EVENTS_MAX];
    int n, ms = -1;

    if (u->pacing != NULL) {
        uint64_t now = clock_now_us();

        ms = u->pacing->due_us > now ? (int)((u->pacing->due_us - now + 999) / 1000) : 0;
    }
    n = epoll_wait(u->epoll_fd, events, EVENTS_MAX, ms);
    for (int i = 0; i < n; i++) {
        struct conn *c = events[i].data.ptr;

        if (c == NULL) {
            accept_all(u);
        } else if ((events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
            if (readable(u, c))
                answer(u, c);
        } else {
            writable(u, c);
        }
    }
    while (u->pacing != NULL && u->pacing->due_us <= clock_now_us()) {
        struct conn *c = u->pacing;

        unpace(u, c);
        stream_token(u, c);
    }
}

static void init(struct upstream *u, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    socklen_t len = sizeof at;
    struct rlimit limit;
    char hex[32];

    u->n_tokens = strtoull(argv[1], NULL, 10);
    u->event_nbytes = strtoull(argv[2], NULL, 10);
    u->interval_us = strtoull(argv[3], NULL, 10);
    if (u->event_nbytes < EVENT_NBYTES_MIN || u->event_nbytes > EVENT_NBYTES_MAX)
        die("the size of an event");
    u->chunk_nbytes = (size_t)snprintf(hex, sizeof hex, "%zx\r\n", u->event_nbytes) +
                      u->event_nbytes + 2;
    u->block = malloc(BLOCK_EVENTS * u->chunk_nbytes);
    for (size_t i = 0; u->block != NULL && i < BLOCK_EVENTS; i++)
        put_event(u, u->block + i * u->chunk_nbytes, 0);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    u->pacing_end = &u->pacing;
    u->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    u->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (u->block == NULL || u->epoll_fd < 0 || u->listen_fd < 0 ||
        bind(u->listen_fd, (struct sockaddr *)&at, sizeof at) != 0 ||
        listen(u->listen_fd, SOMAXCONN) != 0 ||
        getsockname(u->listen_fd, (struct sockaddr *)&at, &len) != 0 ||
        epoll_ctl(u->epoll_fd, EPOLL_CTL_ADD, u->listen_fd, &event) != 0)
        die("to listen");
    (void)printf("%u\n", ntohs(at.sin_port));
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    static struct upstream u;

    if (argc != 4) {
        (void)fprintf(stderr, "proxy_upstream: see the head of tests/bench/proxy_upstream.c\n");
        return 2;
    }
    init(&u, argv);
    for (;;)
        turn(&u);
}
