/* Replies and streams: handed to libmicrohttpd, or written past it.
 *
 * libmicrohttpd accepts a reply after the headers or after the whole body, never between. An error
 * in the middle of an upload is therefore written to the socket directly, which is sound because
 * nothing of this reply has been sent yet and the connection ends with it. */
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "http/server/http_server_priv.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum {
    STREAM_BLOCK_NBYTES = 1024 /* of libmicrohttpd; the chunks are as long as its pool allows */
};

static const char no_memory_body[] =
    "{\"error\":{\"message\":\"the server is out of memory\",\"type\":\"unavailable_error\","
    "\"code\":\"out_of_memory\",\"param\":null,\"retryable\":true,\"details\":null}}";
static const char internal_body[] =
    "{\"error\":{\"message\":\"the answer could not be built\",\"type\":\"server_error\","
    "\"code\":\"internal_error\",\"param\":null,\"retryable\":false,\"details\":null}}";

/* A response whose data is never freed; NULL if there is no memory. */
static struct MHD_Response *static_response(const char *body)
{
    union {
        const void *in;
        void *out;
    } data = {body}; /* libmicrohttpd only reads it, whatever its prototype says */

    return MHD_create_response_from_buffer(strlen(body), data.out, MHD_RESPMEM_PERSISTENT);
}

int http_server_prebuild(struct http_server *f, struct err *e)
{
    f->no_memory = static_response(no_memory_body);
    f->internal = static_response(internal_body);
    if (f->no_memory == NULL || f->internal == NULL ||
        MHD_add_response_header(f->no_memory, "Connection", "close") != MHD_YES ||
        MHD_add_response_header(f->no_memory, "Content-Type", "application/json") != MHD_YES ||
        MHD_add_response_header(f->no_memory, "Retry-After", "1") != MHD_YES ||
        MHD_add_response_header(f->internal, "Connection", "close") != MHD_YES ||
        MHD_add_response_header(f->internal, "Content-Type", "application/json") != MHD_YES)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the answers of last resort");
    return 0;
}

void request_refuse(struct request *r, const struct err *e)
{
    struct http_server *f = r->conn->shard->http_server;
    struct http_reply reply = {0};

    http_server_count(&r->conn->shard->n_rejected);
    f->cfg.app->reject(f->cfg.app_arg, r->x, e, &reply);
    http_request_refuse(r->x, &reply);
}

static bool reply_closes(const struct request *r)
{
    return r->must_close || r->conn->shard->quiesced || conn_crowded(r->conn->shard);
}

static bool has_header(const struct http_reply *reply, const char *name)
{
    for (size_t i = 0; i < reply->n_headers; i++)
        if (strcmp(reply->headers[i].name, name) == 0)
            return true;
    return false;
}

/* Headers that every answer has, and its own. */
static bool add_headers(const struct request *r, struct MHD_Response *resp,
                        const struct http_reply *reply)
{
    const char *boot_id = r->conn->shard->http_server->cfg.boot_id;

    if (MHD_add_response_header(resp, "X-Request-Id", r->x->actor.request_id) != MHD_YES ||
        !origin_add_headers(r, resp))
        return false;
    if (boot_id != NULL && !has_header(reply, "X-Baton-Boot-Id") &&
        MHD_add_response_header(resp, "X-Baton-Boot-Id", boot_id) != MHD_YES)
        return false;
    if (reply->content_type != NULL &&
        MHD_add_response_header(resp, "Content-Type", reply->content_type) != MHD_YES)
        return false;
    for (size_t i = 0; i < reply->n_headers; i++)
        if (MHD_add_response_header(resp, reply->headers[i].name, reply->headers[i].value) !=
            MHD_YES)
            return false;
    return !reply_closes(r) || MHD_add_response_header(resp, "Connection", "close") == MHD_YES;
}

/* The response takes over the reply's data, or it is released here. Returns NULL if there is no
 * memory, or a header has bytes that HTTP does not allow. */
static struct MHD_Response *reply_response(const struct request *r, const struct http_reply *reply)
{
    struct MHD_Response *resp;
    union {
        const void *in;
        void *out;
    } data = {reply->data};

    if (reply->release == NULL || reply->len == 0) {
        resp = MHD_create_response_from_buffer(reply->len, reply->len > 0 ? data.out : NULL,
                                               MHD_RESPMEM_PERSISTENT);
        if (reply->release != NULL)
            reply->release(reply->release_arg);
    } else {
        resp = MHD_create_response_from_buffer_with_free_callback_cls(
            reply->len, data.out, reply->release, reply->release_arg);
        if (resp == NULL)
            reply->release(reply->release_arg);
    }
    if (resp == NULL)
        return NULL;
    if (!add_headers(r, resp, reply)) {
        MHD_destroy_response(resp);
        return NULL;
    }
    return resp;
}

/* More of a stream, for libmicrohttpd, which asks when the socket has taken what it had; for the
 * end of one that passes. */
static ssize_t stream_more(void *cls, uint64_t pos, char *out, size_t cap)
{
    struct request *r = cls;
    uint64_t limit_us = r->conn->shard->http_server->cfg.body_timeout_us;
    size_t n = 0;

    (void)pos;
    r->conn->daemon->moved = true;
    if (r->suspended)
        return 0;
    if (!r->passes && stream_may_pass(r)) { /* the headers are out: stream_push does the rest */
        r->passes = true;
        request_suspend(r);
        loop_post(r->conn->shard->loop, &r->wake);
        return 0;
    }
    switch (http_request_stream_take(r->x, out, cap, &n)) {
    case STREAM_BYTES:
        conn_deadline(r->conn, limit_us);
        r->nbytes_out += n;
        return (ssize_t)n;
    case STREAM_EMPTY:
        /* A write after the take has posted a wake-up already; it runs after this returns. */
        conn_deadline(r->conn, CLOCK_NEVER);
        request_suspend(r);
        return 0;
    case STREAM_END:
        conn_deadline(r->conn, limit_us);
        return MHD_CONTENT_READER_END_OF_STREAM;
    case STREAM_CUT:
        if (!r->http11)
            conn_reset(r->conn);
        break;
    }
    return MHD_CONTENT_READER_END_WITH_ERROR;
}

static struct MHD_Response *stream_response(struct request *r)
{
    struct MHD_Response *resp = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_BLOCK_NBYTES, stream_more, r, NULL);

    if (resp == NULL)
        return NULL;
    if (!add_headers(r, resp, &r->x->priv->reply)) {
        MHD_destroy_response(resp);
        return NULL;
    }
    return resp;
}

/* Gives `resp` to libmicrohttpd; keeps no reference. */
static enum MHD_Result http_server_reply_queue(struct request *r, struct MHD_Response *resp,
                                               bool shared)
{
    const struct http_server *f = r->conn->shard->http_server;
    enum MHD_Result rc = f->queue_response(r->mc, (unsigned)r->status, resp);

    if (!shared)
        MHD_destroy_response(resp);
    if (rc != MHD_YES)
        return MHD_NO;
    r->queued = true;
    r->stage = STAGE_SEND;
    return MHD_YES;
}

enum MHD_Result request_queue(struct request *r)
{
    struct http_request_private *p = r->x->priv;
    struct http_server *f = r->conn->shard->http_server;
    bool stream = http_request_answered(r->x) == ANSWER_STREAM;
    struct MHD_Response *resp;
    struct http_reply reply;

    assert(!r->queued);
    if (stream) {
        r->status = p->reply.status;
        resp = stream_response(r);
    } else {
        http_reply_take(r->x, &reply);
        r->status = reply.status;
        r->log_code = reply.log_code;
        r->nbytes_out = r->x->method == METHOD_HEAD ? 0 : reply.len;
        resp = reply_response(r, &reply);
    }
    conn_deadline(r->conn, f->cfg.body_timeout_us); /* a stream sets its own deadlines */
    if (resp != NULL)
        return http_server_reply_queue(r, resp, false);
    r->must_close = true;
    r->status = 503;
    r->log_code = err_wire_name(ERR_NO_MEMORY);
    r->nbytes_out = sizeof no_memory_body - 1;
    return http_server_reply_queue(r, f->no_memory, true);
}

static void raw_head(struct buf *b, const struct request *r, const struct http_reply *reply)
{
    const char *boot_id = r->conn->shard->http_server->cfg.boot_id;

    buf_printf(b, "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Length: %zu\r\n", reply->status,
               MHD_get_reason_phrase_for((unsigned)reply->status), reply->len);
    buf_printf(b, "X-Request-Id: %s\r\n", r->x->actor.request_id);
    origin_put_headers(r, b);
    if (boot_id != NULL && !has_header(reply, "X-Baton-Boot-Id"))
        buf_printf(b, "X-Baton-Boot-Id: %s\r\n", boot_id);
    if (reply->content_type != NULL)
        buf_printf(b, "Content-Type: %s\r\n", reply->content_type);
    for (size_t i = 0; i < reply->n_headers; i++)
        if (strpbrk(reply->headers[i].value, "\r\n") == NULL)
            buf_printf(b, "%s: %s\r\n", reply->headers[i].name, reply->headers[i].value);
    buf_puts(b, "\r\n");
}

static void send_raw(struct request *r, const struct http_reply *reply)
{
    struct buf b = {0};
    size_t head_len;

    r->raw_sent = true;
    r->status = reply->status;
    r->log_code = reply->log_code;
    raw_head(&b, r, reply);
    head_len = b.len;
    if (reply->len > 0 && r->x->method != METHOD_HEAD)
        buf_append(&b, reply->data, reply->len);
    if (!b.failed) {
        ssize_t n = conn_send(r->conn, b.data, b.len);

        /* The socket's buffer is empty: an error reply fits, or the peer has disconnected. */
        r->nbytes_out = n > (ssize_t)head_len ? (uint64_t)n - head_len : 0;
    }
    buf_fini(&b);
    if (reply->release != NULL)
        reply->release(reply->release_arg);
    r->conn->linger = true;
}

void request_send_raw(struct request *r)
{
    struct http_reply reply;

    assert(!r->queued && !r->raw_sent);
    if (http_request_answered(r->x) != ANSWER_REPLY)
        return; /* a stream cannot send an error reply: it is cut */
    http_reply_take(r->x, &reply);
    send_raw(r, &reply);
}

void request_send_refusal(struct request *r, const struct err *e)
{
    struct http_server *f = r->conn->shard->http_server;
    struct http_reply reply = {0};

    if (http_request_answered(r->x) != ANSWER_NONE) {
        request_send_raw(r);
        return;
    }
    /* Not by the request: the reader of the body, which may answer meanwhile, is notified of its
     * end. */
    http_server_count(&r->conn->shard->n_rejected);
    f->cfg.app->reject(f->cfg.app_arg, r->x, e, &reply);
    send_raw(r, &reply);
}
