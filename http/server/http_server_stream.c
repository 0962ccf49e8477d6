/* Streams, past libmicrohttpd.
 *
 * Once it has sent the headers of a chunked answer its connection is suspended, and the chunks are
 * written to the socket from here: libmicrohttpd would send a few KiB in each iteration, and waking
 * and suspending it for each token costs more than the token. It gets the connection back for the
 * last chunk. Not TLS, whose records only its library can send again. */
#include "base/clock.h"
#include "http/server/http_server_priv.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

bool stream_may_pass(const struct request *r)
{
    return r->http11 && !r->conn->shard->http_server->tls && r->x->method != METHOD_HEAD;
}

/* How many bytes the socket took; -1: it is broken, which its watch reports too. */
static ssize_t stream_send(const struct request *r, struct iovec *parts, size_t n_parts)
{
    struct msghdr msg = {.msg_iov = parts, .msg_iovlen = n_parts};
    ssize_t n = sendmsg(r->conn->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    return n;
}

/* What the socket did not take waits here for room; the request counts it as unsent. */
static bool keep_rest(struct request *r, const struct iovec *parts, size_t n_parts, size_t sent,
                      size_t len)
{
    char *to = malloc(len - sent);

    if (to == NULL)
        return false;
    r->rest = to;
    r->rest_len = len - sent;
    r->rest_sent = 0;
    for (size_t i = 0; i < n_parts; i++) {
        size_t skip = sent < parts[i].iov_len ? sent : parts[i].iov_len;

        memcpy(to, (const char *)parts[i].iov_base + skip, parts[i].iov_len - skip);
        to += parts[i].iov_len - skip;
        sent -= skip;
    }
    http_request_stream_kept(r->x, r->rest_len);
    return true;
}

/* False: no more for now. */
static bool put_chunk(struct request *r, const void *data, size_t n)
{
    union {
        const void *in;
        void *out;
    } body = {data}; /* sendmsg only reads it, whatever the type of its parts says */
    char head[HTTP_SERVER_CHUNK_HEAD_MAX + 1], tail[] = {'\r', '\n'};
    int head_len = snprintf(head, sizeof head, "%zx\r\n", n);
    struct iovec parts[] = {{head, (size_t)head_len}, {body.out, n}, {tail, sizeof tail}};
    size_t len = (size_t)head_len + n + sizeof tail;
    ssize_t sent;

    assert(head_len > 0 && head_len <= HTTP_SERVER_CHUNK_HEAD_MAX);
    r->nbytes_out += n;
    sent = stream_send(r, parts, 3);
    if (sent == (ssize_t)len)
        return true;
    if (sent < 0 || !keep_rest(r, parts, 3, (size_t)sent, len))
        conn_kill(r->conn);
    return false;
}

/* False: some of it is still there, or the connection is dead. */
static bool put_rest(struct request *r)
{
    struct iovec part = {r->rest + r->rest_sent, r->rest_len - r->rest_sent};
    ssize_t n = stream_send(r, &part, 1);

    if (n < 0) {
        conn_kill(r->conn);
        return false;
    }
    r->rest_sent += (size_t)n;
    http_request_stream_kept(r->x, r->rest_len - r->rest_sent);
    if (r->rest_sent < r->rest_len)
        return false;
    free(r->rest);
    r->rest = NULL;
    return true;
}

/* The deadline runs while the client is slow; there is none while the producer is. */
void stream_push(struct request *r)
{
    struct shard *s = r->conn->shard;
    uint64_t limit_us = s->http_server->cfg.body_timeout_us;
    size_t n = 0;

    if (r->conn->dead || !r->suspended)
        return;
    if (r->rest != NULL && !put_rest(r))
        return; /* its deadline stays: conn_late checks how much the peer has read */
    for (;;) {
        switch (http_request_stream_take(r->x, s->piece, sizeof s->piece, &n)) {
        case STREAM_BYTES:
            if (put_chunk(r, s->piece, n))
                continue;
            conn_deadline(r->conn, limit_us);
            return;
        case STREAM_EMPTY:
            conn_deadline(r->conn, CLOCK_NEVER);
            return;
        case STREAM_END:
        case STREAM_CUT:
            conn_deadline(r->conn, limit_us);
            request_resume(r);
            return;
        }
    }
}
