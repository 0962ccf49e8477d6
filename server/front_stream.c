/* Streams, past libmicrohttpd.
 *
 * Once it has sent the headers of a chunked answer its connection is suspended, and the chunks are
 * written to the socket from here: it would send a few KiB in each of its turns, and waking and
 * suspending it for every token costs more than the token. It gets the connection back for the last
 * chunk. Not TLS, whose records only its library can send again. */
#include "base/clock.h"
#include "server/front_priv.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

bool stream_may_pass(const struct request *r)
{
    return r->http11 && !r->conn->shard->front->tls && r->x->method != METHOD_HEAD;
}

/* How many bytes the socket took; -1: it is broken, which its watch will tell too. */
static ssize_t put(const struct request *r, const char *data, size_t len)
{
    ssize_t n = send(r->conn->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    return n;
}

/* What the socket did not take waits here for room; the exchange counts it as unsent. */
static bool keep_rest(struct request *r, const char *data, size_t len)
{
    r->rest = malloc(len);
    if (r->rest == NULL)
        return false;
    memcpy(r->rest, data, len);
    r->rest_len = len;
    r->rest_sent = 0;
    exchange_stream_kept(r->x, len);
    return true;
}

/* Sends n bytes that lie in the shard's piece, as a chunk. False: no more for now. */
static bool put_chunk(struct request *r, size_t n)
{
    char head[FRONT_CHUNK_HEAD_MAX + 1], *data = r->conn->shard->piece + FRONT_CHUNK_HEAD_MAX;
    int head_len = snprintf(head, sizeof head, "%zx\r\n", n);
    char *begin = data - head_len;
    size_t len = (size_t)head_len + n + 2;
    ssize_t sent;

    assert(head_len > 0 && head_len <= FRONT_CHUNK_HEAD_MAX);
    memcpy(begin, head, (size_t)head_len);
    data[n] = '\r';
    data[n + 1] = '\n';
    sent = put(r, begin, len);
    if (sent == (ssize_t)len)
        return true;
    if (sent < 0 || !keep_rest(r, begin + sent, len - (size_t)sent))
        conn_kill(r->conn);
    return false;
}

/* False: some of it is still there, or the connection is dead. */
static bool put_rest(struct request *r)
{
    ssize_t n = put(r, r->rest + r->rest_sent, r->rest_len - r->rest_sent);

    if (n < 0) {
        conn_kill(r->conn);
        return false;
    }
    r->rest_sent += (size_t)n;
    exchange_stream_kept(r->x, r->rest_len - r->rest_sent);
    if (r->rest_sent < r->rest_len)
        return false;
    free(r->rest);
    r->rest = NULL;
    return true;
}

/* The deadline runs while the reader is behind, and none while its producer is. */
void stream_push(struct request *r)
{
    struct shard *s = r->conn->shard;
    uint64_t limit_us = s->front->cfg.body_timeout_us;
    size_t n = 0;

    if (r->conn->dead || !r->suspended)
        return;
    if (r->rest != NULL && !put_rest(r))
        return; /* its deadline runs on: conn_late asks how much the peer has taken */
    for (;;) {
        switch (
            exchange_stream_take(r->x, s->piece + FRONT_CHUNK_HEAD_MAX, FRONT_PIECE_NBYTES, &n)) {
        case STREAM_BYTES:
            r->nbytes_out += n;
            if (put_chunk(r, n))
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
