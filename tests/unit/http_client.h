/* A raw HTTP client for tests: sends bytes as told, reads one response, never waits for ever. */
#ifndef BATON_TESTS_UNIT_HTTP_CLIENT_H
#define BATON_TESTS_UNIT_HTTP_CLIENT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLIENT_WAIT_MS = 60000, CLIENT_BUF = 1 << 20 };

struct client {
    int fd;
    size_t len; /* unread bytes in buf */
    char *buf;
};

struct response {
    int status;
    char head[8192];
    char *body; /* owned; NUL after it */
    size_t len;
    bool whole; /* the body ended as framed */
};

static inline int client_try_connect(uint16_t port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

static inline void client_open(struct client *c, uint16_t port)
{
    c->fd = client_try_connect(port);
    assert_true(c->fd >= 0);
    c->len = 0;
    c->buf = malloc(CLIENT_BUF);
    assert_non_null(c->buf);
}

static inline void client_close(struct client *c)
{
    if (c->fd >= 0)
        (void)close(c->fd);
    c->fd = -1;
    free(c->buf);
    c->buf = NULL;
}

/* Sends all; false when the peer has closed. */
static inline bool client_try_send(struct client *c, const void *data, size_t len)
{
    const char *p = data;

    while (len > 0) {
        ssize_t n = send(c->fd, p, len, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

static inline void client_send(struct client *c, const char *text)
{
    assert_true(client_try_send(c, text, strlen(text)));
}

/* More bytes into buf; false at the end of the stream or after a reset. */
static inline bool client_more(struct client *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    ssize_t n;

    assert_true(c->len < CLIENT_BUF);
    assert_int_equal(poll(&p, 1, CLIENT_WAIT_MS), 1); /* 0: the server hangs */
    n = recv(c->fd, c->buf + c->len, CLIENT_BUF - c->len, 0);
    if (n <= 0)
        return false;
    c->len += (size_t)n;
    return true;
}

static inline void client_take(struct client *c, size_t n)
{
    memmove(c->buf, c->buf + n, c->len - n);
    c->len -= n;
}

/* The line end from `at` on, as an offset; reads more as needed. SIZE_MAX when the stream ends. */
static inline size_t client_line(struct client *c, size_t at)
{
    for (;;) {
        char *nl = c->len > at ? memchr(c->buf + at, '\n', c->len - at) : NULL;

        if (nl != NULL)
            return (size_t)(nl - c->buf);
        if (!client_more(c))
            return SIZE_MAX;
    }
}

/* Reads n body bytes; false when the stream ends before. */
static inline bool client_body(struct client *c, struct response *r, size_t n)
{
    while (n > 0) {
        size_t take;

        if (c->len == 0 && !client_more(c))
            return false;
        take = c->len < n ? c->len : n;
        r->body = realloc(r->body, r->len + take + 1);
        assert_non_null(r->body);
        memcpy(r->body + r->len, c->buf, take);
        r->len += take;
        r->body[r->len] = '\0';
        client_take(c, take);
        n -= take;
    }
    return true;
}

/* The next chunk of a chunked body: its length, or -1 when the stream ends. */
static inline long client_chunk(struct client *c, struct response *r)
{
    size_t end = client_line(c, 0);
    long n;

    if (end == SIZE_MAX)
        return -1;
    n = strtol(c->buf, NULL, 16);
    client_take(c, end + 1);
    if (n > 0 && !client_body(c, r, (size_t)n))
        return -1;
    end = client_line(c, 0);
    if (end == SIZE_MAX)
        return -1;
    client_take(c, end + 1);
    return n;
}

/* The value of a header of r, or NULL; good until the next call. */
static inline const char *response_header(const struct response *r, const char *name)
{
    static _Thread_local char value[1024];
    size_t len = strlen(name);

    for (const char *p = r->head; (p = strchr(p, '\n')) != NULL;) {
        p++;
        if (strncasecmp(p, name, len) == 0 && p[len] == ':') {
            p += len + 1;
            p += strspn(p, " ");
            (void)snprintf(value, sizeof value, "%.*s", (int)strcspn(p, "\r\n"), p);
            return value;
        }
    }
    return NULL;
}

/* Status line and headers. False when the stream ends first. */
static inline bool client_head(struct client *c, struct response *r)
{
    size_t at = 0, end;

    memset(r, 0, sizeof *r);
    r->body = calloc(1, 1);
    assert_non_null(r->body);
    for (;;) {
        end = client_line(c, at);
        if (end == SIZE_MAX)
            return false;
        if (end - at <= 1)
            break;
        at = end + 1;
    }
    assert_true(end + 1 < sizeof r->head);
    memcpy(r->head, c->buf, end + 1);
    r->head[end + 1] = '\0';
    client_take(c, end + 1);
    assert_int_equal(sscanf(r->head, "HTTP/1.%*d %d", &r->status), 1);
    return true;
}

/* One response; status 0 when the server closed without one. */
static inline void client_response(struct client *c, struct response *r, bool head_only)
{
    const char *length;
    long n;

    if (!client_head(c, r))
        return;
    if (head_only || r->status == 100) {
        r->whole = true;
        return;
    }
    length = response_header(r, "Content-Length");
    if (length != NULL) {
        r->whole = client_body(c, r, strtoul(length, NULL, 10));
        return;
    }
    assert_non_null(response_header(r, "Transfer-Encoding"));
    while ((n = client_chunk(c, r)) > 0)
        ;
    r->whole = n == 0;
}

static inline void response_free(struct response *r)
{
    free(r->body);
    r->body = NULL;
}

/* True when the server closes (by FIN or reset) without another byte. */
static inline bool client_closed(struct client *c)
{
    return c->len == 0 && !client_more(c);
}

#endif
