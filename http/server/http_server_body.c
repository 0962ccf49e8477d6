/* Request bodies: collected, streamed to a reader, or discarded.
 *
 * A lying Content-Length costs nothing: the first allocation is bounded, and growth follows the
 * received bytes. */
#include "base/clock.h"
#include "http/server/http_server_priv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void body_begin(struct request *r)
{
    struct http_server *f = r->conn->shard->http_server;

    r->stage = r->route.body == HTTP_SERVER_BODY_STREAM ? STAGE_STREAM_HEAD : STAGE_WHOLE;
    conn_deadline(r->conn, f->cfg.body_timeout_us);
    if (r->route.reserved)
        conn_unread(r->conn);
}

void body_drop_begin(struct request *r)
{
    r->stage = STAGE_DROP;
    conn_deadline(r->conn, r->conn->shard->http_server->cfg.drop_timeout_us);
    conn_unread(r->conn);
}

/* Decides the answer mid-body: the rest is dropped, then it is sent. */
static void refuse_and_drop(struct request *r, const struct err *e)
{
    request_refuse(r, e);
    body_drop_begin(r);
}

/* Appends to x->body, keeping room for a NUL. */
static int body_append(struct request *r, const char *data, size_t n, struct err *e)
{
    struct http_request *x = r->x;
    uint64_t declared = x->content_length != UINT64_MAX ? x->content_length : 0;
    size_t need, cap;
    char *body;

    if (n > r->route.body_max || x->body_len > r->route.body_max - n || n >= SIZE_MAX / 4 ||
        x->body_len >= SIZE_MAX / 4)
        return err_set(e, ERR_TOO_LARGE, "", "the body is over the limit of %llu bytes",
                       (unsigned long long)r->route.body_max);
    need = x->body_len + n + 1;
    if (need > r->body_cap) {
        cap = r->body_cap * 2;
        if (r->body_cap == 0 && declared > 0 && r->stage == STAGE_WHOLE)
            cap = declared < HTTP_SERVER_BODY_CAP_FIRST ? (size_t)declared + 1
                                                        : HTTP_SERVER_BODY_CAP_FIRST;
        if (declared > 0 && cap > declared && declared + 1 >= need)
            cap = (size_t)declared + 1;
        if (cap > r->route.body_max && r->route.body_max + 1 >= need)
            cap = (size_t)r->route.body_max + 1;
        if (cap < need)
            cap = need;
        body = realloc(r->body_cap > 0 ? x->body : NULL, cap);
        if (body == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for a body of %zu bytes", need);
        x->body = body;
        r->body_cap = cap;
    }
    memcpy(x->body + x->body_len, data, n);
    x->body_len += n;
    x->body[x->body_len] = '\0';
    return 0;
}

/* A body of GET or HEAD is ignored, unless the route uses it; it counts against the limit all the
 * same. */
static bool body_ignored(const struct request *r)
{
    if (r->route.of_get)
        return false;
    return r->x->method == METHOD_GET || r->x->method == METHOD_HEAD;
}

static void collect_whole(struct request *r, const char *data, size_t n)
{
    struct err e = {0};

    if (body_ignored(r)) {
        if (r->nbytes_in <= r->route.body_max)
            return;
        (void)err_set(&e, ERR_TOO_LARGE, "", "the body is over the limit of %llu bytes",
                      (unsigned long long)r->route.body_max);
        refuse_and_drop(r, &e);
        return;
    }
    if (body_append(r, data, n, &e) != 0)
        refuse_and_drop(r, &e);
}

/* Consumes bytes up to the end of the head and dispatches once it is complete. Returns the number
 * consumed. */
static size_t collect_head(struct request *r, const char *data, size_t n)
{
    struct http_request *x = r->x;
    size_t before = x->body_len, take = n;
    struct err e = {0};

    if (r->head_nbytes > 0 && r->head_nbytes - before < n)
        take = (size_t)(r->head_nbytes - before);
    if (body_append(r, data, take, &e) != 0)
        goto refuse;
    if (r->head_nbytes == 0 && r->route.head_nbytes(x->body, x->body_len, &r->head_nbytes, &e) != 0)
        goto refuse;
    if (r->head_nbytes == 0)
        return take;
    if (r->head_nbytes > r->route.body_max) {
        (void)err_set(&e, ERR_TOO_LARGE, "",
                      "the head of the body has %llu bytes, over the limit "
                      "of %llu",
                      (unsigned long long)r->head_nbytes, (unsigned long long)r->route.body_max);
        goto refuse;
    }
    if (r->head_nbytes < before) {
        (void)err_set(&e, ERR_INTERNAL, "", "the head of the body shrank while it came");
        goto refuse;
    }
    if (x->body_len > r->head_nbytes) { /* the piece went past it: the rest is not ours */
        x->body_len = (size_t)r->head_nbytes;
        x->body[x->body_len] = '\0';
        take = x->body_len - before;
    }
    if (x->body_len == r->head_nbytes) {
        r->stage = STAGE_STREAM;
        if (!r->chunked && !r->conn->shard->http_server->tls && r->conn->daemon->direct == NULL)
            r->conn->daemon->direct = r;
        conn_deadline(r->conn, CLOCK_NEVER);
        conn_busy(r->conn);
        request_dispatch(r);
    }
    return take;

refuse:
    refuse_and_drop(r, &e);
    return n;
}

/* Gives bytes to the request's reader; without one the connection sleeps until there is. */
static size_t body_feed(struct request *r, const char *data, size_t n)
{
    size_t take = r->told < n ? (size_t)r->told : n;

    if (http_request_answered(r->x) != ANSWER_NONE && !body_whole(r)) {
        r->must_close = true;
        body_drop_begin(r);
        return n;
    }
    r->told -= take;
    if (take < n)
        take += http_request_body_feed(r->x, data + take, n - take);
    r->drained = take == n;
    if (take < n)
        request_suspend(r);
    return take;
}

enum MHD_Result body_piece(struct request *r, const char *data, size_t *size)
{
    size_t n = *size, take = n;

    switch (r->stage) {
    case STAGE_WHOLE:
        r->nbytes_in += n;
        collect_whole(r, data, n);
        break;
    case STAGE_STREAM_HEAD:
        take = collect_head(r, data, n);
        if (r->stage == STAGE_STREAM && take < n)
            take += body_feed(r, data + take, n - take);
        r->nbytes_in += take;
        break;
    case STAGE_STREAM:
        take = body_feed(r, data, n);
        r->nbytes_in += take;
        break;
    case STAGE_DROP:
        r->nbytes_in += n;
        if (r->conn->deadline_us != CLOCK_NEVER && clock_passed(r->conn->deadline_us)) {
            request_send_raw(r);
            return MHD_NO;
        }
        break;
    case STAGE_HEADERS:
    case STAGE_WAIT:
    case STAGE_SEND:
        assert(!"body bytes outside the body");
        return MHD_NO;
    }
    *size = n - take;
    return MHD_YES;
}

static void head_missing(struct request *r)
{
    struct err e = {0};

    if (r->head_nbytes > 0)
        (void)err_set(&e, ERR_UNREADABLE, "",
                      "the body ended after %zu of the %llu bytes of its head", r->x->body_len,
                      (unsigned long long)r->head_nbytes);
    else
        (void)err_set(&e, ERR_UNREADABLE, "", "the body ended after %zu bytes, within its head",
                      r->x->body_len);
    request_refuse(r, &e);
}

/* The body is complete: dispatch, notify the reader, or continue with the reply. */
enum MHD_Result body_over(struct request *r)
{
    enum stage was = r->stage;

    r->stage = STAGE_WAIT;
    conn_deadline(r->conn, CLOCK_NEVER);
    conn_busy(r->conn);
    if (was == STAGE_WHOLE)
        request_dispatch(r);
    else if (was == STAGE_STREAM_HEAD)
        head_missing(r);
    else if (was == STAGE_STREAM)
        http_request_body_over(r->x);
    if (http_request_answered(r->x) != ANSWER_NONE)
        return request_queue(r);
    request_suspend(r);
    return MHD_YES;
}
