/* libmicrohttpd's callbacks for a request. Their invariant: when the handler's last call returns, a
 * response is queued, or the connection is suspended, or it is closed.
 *
 * Suspending and resuming happen on the loop thread only, so `suspended` needs no lock and there is
 * exactly one resume for each suspend; other threads post the request's wake item. */
#include "base/clock.h"
#include "base/log.h"
#include "http/server/http_server_priv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void post_wake(struct http_request_http_server *http_server)
{
    struct request *r = (struct request *)(void *)http_server;

    loop_post(r->conn->shard->loop, &r->wake);
}

/* Loop thread: something happened to the request. */
static void request_woken(void *arg)
{
    struct request *r = arg;

    if (r->stage == STAGE_STREAM && http_request_answered(r->x) != ANSWER_NONE && !body_whole(r)) {
        r->must_close = true;
        body_drop_begin(r);
    }
    if (r->passes)
        stream_push(r);
    else
        request_resume(r);
}

void request_suspend(struct request *r)
{
    assert(!r->suspended);
    r->suspended = true;
    MHD_suspend_connection(r->mc);
}

void request_resume(struct request *r)
{
    if (!r->suspended)
        return;
    r->suspended = false;
    MHD_resume_connection(r->mc);
    daemon_due(r->conn->daemon);
}

void request_dispatch(struct request *r)
{
    const struct http_server_cfg *cfg = &r->conn->shard->http_server->cfg;

    cfg->app->dispatch(cfg->app_arg, http_request_ref(r->x));
}

/* The query is read by us: libmicrohttpd would take memory of its connection for each member. */
static void hide_query(const char *target)
{
    union {
        const char *in;
        char *out;
    } both = {strchr(target, '?')};

    if (both.in != NULL)
        both.out[1] = '\0';
}

/* The request line was received; a NULL target: it is malformed. Returns con_cls; NULL if there is
 * no memory. */
void *request_begin(void *cls, const char *target, struct MHD_Connection *mc)
{
    struct shard *s = ((struct daemon *)cls)->shard;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        mc, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct conn *c = info != NULL ? info->socket_context : NULL;
    struct request *r;
    struct err e = {0};

    if (c == NULL || c->dead)
        return NULL;
    r = calloc(1, sizeof *r);
    if (r == NULL)
        return NULL;
    r->target = strdup(target != NULL ? target : "");
    r->http_server.wake = post_wake;
    r->wake = (struct loop_item){.run = request_woken, .arg = r};
    r->conn = c;
    r->mc = mc;
    if (r->target == NULL || http_request_new(&r->x, &r->http_server, &e) != 0) {
        free(r->target);
        free(r);
        return NULL;
    }
    if (target != NULL)
        hide_query(target);
    r->x->loop_app = s->loop_app;
    memcpy(r->x->actor.peer, c->actor.peer, sizeof c->actor.peer);
    c->req = r;
    c->n_requests++;
    conn_begin(c); /* it may have been pipelined */
    return r;
}

static void open_count(struct http_server *f, int step)
{
    mtx_lock(&f->lock);
    if (step > 0)
        f->n_open++;
    else
        f->n_open--;
    if (f->n_open == 0)
        cnd_broadcast(&f->moved);
    mtx_unlock(&f->lock);
}

static int request_route(struct request *r, struct err *e)
{
    struct http_server *f = r->conn->shard->http_server;
    struct http_request *x = r->x;

    r->routed = true;
    open_count(f, 1);
    x->peer_trusted = r->conn->trusted;
    if (origin_admit(r, e) != 0)
        return -1;
    if (r->preflight)
        return 0;
    if (f->cfg.app->route(f->cfg.app_arg, x, &r->route, e) != 0 || origin_admit_act(r, e) != 0)
        return -1;
    if (x->content_length != UINT64_MAX && x->content_length > r->route.body_max)
        return err_set(e, ERR_TOO_LARGE, "", "the body has %llu bytes, over the limit of %llu",
                       (unsigned long long)x->content_length,
                       (unsigned long long)r->route.body_max);
    return 0;
}

static int request_admit(struct request *r, const struct request_line *line, struct err *e)
{
    struct shard *s = r->conn->shard;
    size_t n_busy;

    if (filter_request(r, line, e) != 0)
        return -1;
    if (r->chunked)
        chunks_begin(r, line);
    if (request_route(r, e) != 0)
        return -1;
    n_busy = s->n_conns - s->n_dead - s->n_queued;
    if (n_busy <= s->n_conns_max || r->route.reserved)
        return 0;
    r->must_close = true;
    return err_set(e, ERR_OVERLOADED, "", "too many connections are at work (%zu)", n_busy);
}

/* The reply is ready after the headers alone. A short rest of the body is read first, so that the
 * connection can be kept alive, unless other clients need it; a long one is refused at once, and
 * the socket lingers for the bytes in flight. */
static enum MHD_Result answer_early(struct request *r)
{
    bool body = r->x->content_length > 0;

    if (conn_crowded(r->conn->shard))
        r->must_close = true;
    if (!body && !r->must_close) {
        r->stage = STAGE_WAIT; /* the last call queues it */
        return MHD_YES;
    }
    if (!r->must_close && !r->expects && r->x->content_length <= HTTP_SERVER_DROP_NBYTES_MAX) {
        body_drop_begin(r);
        return MHD_YES;
    }
    r->must_close = true;
    request_send_raw(r); /* libmicrohttpd may have no memory left for it */
    return MHD_NO;
}

static enum MHD_Result first_call(struct request *r, const struct request_line *line)
{
    static const struct http_reply allowed = {.status = 204};
    struct err e = {0};
    int rc;

    http_server_count(&r->conn->shard->n_requests);
    conn_busy(r->conn);
    rc = request_admit(r, line, &e);
    /* The key is wiped after the check, and after a refusal before the check. */
    explicit_bzero(r->x->authorization, strlen(r->x->authorization));
    if (rc != 0) {
        request_refuse(r, &e);
        return answer_early(r);
    }
    if (r->preflight) {
        http_request_refuse(r->x, &allowed);
        return answer_early(r);
    }
    body_begin(r);
    return MHD_YES;
}

static enum MHD_Result last_call(struct request *r)
{
    switch (r->stage) {
    case STAGE_WHOLE:
    case STAGE_STREAM_HEAD:
    case STAGE_STREAM:
    case STAGE_DROP:
        return body_over(r);
    case STAGE_WAIT:
        if (http_request_answered(r->x) != ANSWER_NONE)
            return request_queue(r);
        request_suspend(r);
        return MHD_YES;
    case STAGE_HEADERS:
    case STAGE_SEND:
        break;
    }
    return MHD_NO;
}

static enum MHD_Result answer_no_memory(struct shard *s, struct MHD_Connection *mc, size_t *size)
{
    if (*size > 0) { /* refused mid-body: read on */
        *size = 0;
        return MHD_YES;
    }
    http_server_count(&s->n_rejected);
    return s->http_server->queue_response(mc, 503, s->http_server->no_memory);
}

static enum MHD_Result refuse_chunks(struct request *r)
{
    struct err e = {0};

    (void)chunks_malformed(&e);
    request_send_refusal(r, &e);
    return MHD_NO;
}

enum MHD_Result request_handle(void *cls, struct MHD_Connection *mc, const char *url,
                               const char *method, const char *version, const char *data,
                               size_t *size, void **con_cls)
{
    struct daemon *p = cls;
    struct request *r = *con_cls;
    struct request_line line = {method, url, version};
    enum MHD_Result rc;

    p->moved = true;
    if (r == NULL)
        return answer_no_memory(p->shard, mc, size);
    if (r->conn->dead || r->raw_sent)
        return MHD_NO;
    if (r->suspended)
        return MHD_YES; /* the next chunk of a buffer whose first one suspended us: not taken */
    if (r->stage == STAGE_HEADERS)
        return first_call(r, &line);
    if (r->chunks.state == CHUNK_BAD)
        return refuse_chunks(r);
    if (*size > 0)
        return body_piece(r, data, size);
    rc = last_call(r);
    if (rc == MHD_YES && !r->queued && !r->suspended) {
        log_line(LOG_ERROR, "http.lost_answer", "a request had no answer and was not waiting");
        return MHD_NO;
    }
    return rc;
}

static void tell_done(struct request *r)
{
    struct http_server *f = r->conn->shard->http_server;
    bool gone = !r->sent && !r->raw_sent;
    struct http_server_outcome o = {
        .status = gone ? err_http_status(ERR_GONE) : r->status,
        .gone = gone,
        .nbytes_in = r->nbytes_in,
        .nbytes_out = r->nbytes_out,
        .duration_us = clock_now_us() - r->x->began_us,
        .log_code = gone ? err_wire_name(ERR_GONE) : r->log_code,
    };

    if (gone)
        http_server_count(&r->conn->shard->n_gone);
    f->cfg.app->done(f->cfg.app_arg, r->x, &o);
    open_count(f, -1);
}

void request_completed(void *cls, struct MHD_Connection *mc, void **con_cls,
                       enum MHD_RequestTerminationCode toe)
{
    struct request *r = *con_cls;

    ((struct daemon *)cls)->moved = true;
    *con_cls = NULL;
    if (r == NULL || r->stage == STAGE_HEADERS) /* refused by libmicrohttpd, or by us unread */
        filter_wipe_key(mc);
    if (r != NULL)
        request_end(r, toe == MHD_REQUEST_TERMINATED_COMPLETED_OK);
}

void request_end(struct request *r, bool sent)
{
    struct shard *s = r->conn->shard;

    r->sent = r->queued && sent;
    http_request_detach(r->x, r->sent);
    loop_unpost(s->loop, &r->wake);
    chunks_end(r);
    if (r->conn->daemon->direct == r)
        r->conn->daemon->direct = NULL;
    r->conn->req = NULL;
    conn_kept(r->conn);
    conn_deadline(r->conn,
                  r->raw_sent ? HTTP_SERVER_GRACE_US : s->http_server->cfg.idle_timeout_us);
    if (r->routed)
        tell_done(r);
    http_request_unref(r->x);
    free(r->rest);
    free(r->target);
    free(r);
}
