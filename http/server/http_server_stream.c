/* Streams, past libmicrohttpd.
 *
 * Once it has sent the headers of a chunked answer its connection is suspended, and the chunks are
 * written to the socket from here: libmicrohttpd would send a few KiB in each iteration, and waking
 * and suspending it for each token costs more than the token. It gets the connection back for the
 * last chunk. */
#include "base/clock.h"
#include "http/server/http_server_priv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char chunk_tail[] = {'\r', '\n'};

enum { PIECE_MAX = HTTP_SERVER_PIECE_NBYTES - HTTP_SERVER_CHUNK_HEAD_MAX - sizeof chunk_tail };

bool stream_may_pass(const struct request *r)
{
    return r->http11 && r->x->method != METHOD_HEAD;
}

/* What the socket did not take waits here for room; the request counts it as unsent. */
static bool keep_rest(struct request *r, const char *data, size_t len)
{
    r->rest = malloc(len);
    if (r->rest == NULL)
        return false;
    memcpy(r->rest, data, len);
    r->rest_len = len;
    r->rest_sent = 0;
    http_request_stream_kept(r->x, len);
    return true;
}

/* Of n bytes, with space before and behind them. False: no more for now. */
static bool put_chunk(struct request *r, char *data, size_t n)
{
    char head[HTTP_SERVER_CHUNK_HEAD_MAX + 1];
    int head_len = snprintf(head, sizeof head, "%zx\r\n", n);
    char *chunk = data - head_len;
    size_t len = (size_t)head_len + n + sizeof chunk_tail;
    ssize_t sent;

    assert(head_len > 0 && head_len <= HTTP_SERVER_CHUNK_HEAD_MAX);
    memcpy(chunk, head, (size_t)head_len);
    memcpy(data + n, chunk_tail, sizeof chunk_tail);
    r->nbytes_out += n;
    sent = conn_send(r->conn, chunk, len);
    if (sent == (ssize_t)len)
        return true;
    if (sent < 0 || !keep_rest(r, chunk + sent, len - (size_t)sent))
        conn_kill(r->conn);
    return false;
}

/* False: some of it is still there, or the connection is dead. */
static bool put_rest(struct request *r)
{
    ssize_t n = conn_send(r->conn, r->rest + r->rest_sent, r->rest_len - r->rest_sent);

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
    char *data = s->piece + HTTP_SERVER_CHUNK_HEAD_MAX;
    size_t n = 0;

    if (r->conn->dead || !r->suspended)
        return;
    if (r->rest != NULL && !put_rest(r))
        return; /* its deadline stays: conn_late checks how much the peer has read */
    for (;;) {
        switch (http_request_stream_take(r->x, data, PIECE_MAX, &n)) {
        case STREAM_BYTES:
            if (put_chunk(r, data, n))
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
