/* One forwarded request, from its permit to its end.
 *
 * Everything happens on the loop on which the request arrived; a grant by another thread is posted
 * to it. Rejected: a queue of permits for each loop, because one loop could starve while another
 * has permits. */
#include "fleet/proxy/proxy.h"

#include "base/log.h"
#include "fleet/proxy/proxy_priv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { WHY_MAX = 200 }; /* bytes of a cause, in a message */

/* the end */

void proxy_request_free(struct proxy_request *r)
{
    struct loop *l = r->loop->loop;

    assert(r->call == NULL && r->x == NULL);
    *r->prev_next = r->next;
    if (r->next != NULL)
        r->next->prev_next = r->prev_next;
    loop_unpost(l, &r->granted);
    loop_unpost(l, &r->disconnected);
    loop_unpost(l, &r->drained);
    fleet_settle(r->loop->proxy->fleet, &r->ticket);
    if (r->has_permit)
        fleet_permit_release(r->loop->proxy->fleet, &r->ticket);
    reply_versions_free(r->versions);
    free(r->body);
    free(r);
}

/* Free the request, or keep it until a grant that is on its way has arrived. */
static void leave_queue(struct proxy_request *r)
{
    fleet_settle(r->loop->proxy->fleet, &r->ticket);
    if (r->stage == PROXY_QUEUED && !fleet_permit_cancel(r->loop->proxy->fleet, &r->ticket))
        r->stage = PROXY_ANSWERED;
    else
        proxy_request_free(r);
}

void proxy_cancel_call(struct proxy_request *r)
{
    if (r->call != NULL)
        http_cancel(r->call);
    r->call = NULL;
}

static void log_aborted(const struct proxy_request *r, const char *why)
{
    struct log_rec rec;

    if (!log_enabled(LOG_WARN))
        return;
    log_begin(&rec, LOG_WARN, "proxy.aborted");
    log_actor(&rec, &r->x->actor);
    log_str(&rec, "upstream", r->at != NULL ? r->at->url : NULL);
    log_str(&rec, "why", why);
    log_end(&rec);
}

void proxy_drop(struct proxy_request *r)
{
    static const struct http_reply nothing = {.status = 499, .data = ""};
    struct http_request *x = r->x;

    proxy_cancel_call(r);
    r->x = NULL;
    if (x == NULL)
        return; /* PROXY_ANSWERED already */
    if (r->stage == PROXY_STREAMING)
        http_request_stream_close(x, false);
    else
        http_reply(x, &nothing);
    leave_queue(r);
}

void proxy_fail(struct proxy_request *r, const struct err *e)
{
    struct http_reply out;
    struct http_request *x = r->x;

    proxy_cancel_call(r);
    if (r->stage == PROXY_STREAMING) {
        log_aborted(r, e->msg);
        http_request_stream_close(x, false);
    } else {
        r->hooks->error_reply(x, e, &out);
        proxy_name_upstream(r, &out);
        http_reply(x, &out);
    }
    r->x = NULL;
    leave_queue(r);
}

/* sending */

static void proxy_send_request(struct proxy_request *r);

/* Called at once, within fleet_permit_acquire, or later, on any thread. */
static void on_granted(void *arg)
{
    struct proxy_request *r = arg;
    struct proxy *proxy = r->loop->proxy;

    if (loop_is_current(r->loop->loop) && r->acquiring) {
        r->has_permit = true;
        return;
    }
    mtx_lock(&proxy->lock);
    r->grant_posted = true;
    loop_post(r->loop->loop, &r->granted);
    cnd_broadcast(&proxy->grant_posted);
    mtx_unlock(&proxy->lock);
}

/* Errors: those of fleet_permit_acquire; r is unchanged. */
static int admit(struct proxy_request *r, struct err *e)
{
    int rc;

    r->stage = PROXY_QUEUED;
    r->grant_posted = false;
    r->at = NULL;
    r->acquiring = true;
    rc = fleet_permit_acquire(r->loop->proxy->fleet, &r->ticket, e);
    r->acquiring = false;
    if (rc != 0)
        return -1;
    if (r->has_permit)
        proxy_send_request(r);
    return 0;
}

void proxy_readmit(struct proxy_request *r, const struct err *why)
{
    struct err e = {0};

    if (r->has_permit)
        fleet_permit_release(r->loop->proxy->fleet, &r->ticket);
    r->has_permit = false;
    if (admit(r, &e) == 0)
        return;
    r->stage = PROXY_SENT; /* no longer queued */
    proxy_fail(r, why != NULL && e.code == ERR_UNSYNCED ? why : &e);
}

void proxy_abort(struct proxy_request *r)
{
    struct fleet *fleet = r->loop->proxy->fleet;
    bool sent = r->stage == PROXY_SENT;

    if ((!sent && r->stage != PROXY_QUEUED) || !fleet_is_aborted(fleet, &r->ticket, sent))
        return;
    if (!sent && !r->has_permit && !fleet_permit_cancel(fleet, &r->ticket))
        return;            /* its grant is on the way */
    r->stage = PROXY_SENT; /* no longer queued */
    PROXY_FAIL(r, ERR_ABORTED, "the request was aborted before it had a token");
}

/* A grant that was posted to the loop. If the upstream has left rotation since, its requests were
 * evicted before this one had its permit here. */
static void handle_granted(void *arg)
{
    struct proxy_request *r = arg;

    r->has_permit = true;
    if (r->stage == PROXY_ANSWERED)
        proxy_request_free(r);
    else if (fleet_is_aborted(r->loop->proxy->fleet, &r->ticket, false))
        proxy_abort(r);
    else if (fleet_serves(r->loop->proxy->fleet, r->ticket.upstream) && !fleet_is_lost(&r->ticket))
        proxy_send_request(r);
    else
        proxy_readmit(r, NULL);
}

static void proxy_add_header(struct http_call_request *req, struct http_header *headers,
                             const char *name, const char *value)
{
    if (value[0] != '\0')
        headers[req->n_headers++] = (struct http_header){name, value};
}

static struct http_client *choose_client(struct proxy_loop *pl, enum fleet_queue queue)
{
    return queue == FLEET_TEXT ? pl->text : pl->generate[pl->next_client++ % PROXY_CLIENTS];
}

/* The client's Authorization is not forwarded, nor are headers of its connection. HEAD is sent as
 * GET, because some engines do not accept HEAD. */
static void proxy_send_request(struct proxy_request *r)
{
    struct http_request *x = r->x;
    bool text = r->queue == FLEET_TEXT;
    struct http_header headers[8];
    struct http_call_request req = {
        .method = x->method == METHOD_HEAD ? "GET" : http_request_method_name(x->method),
        .path = x->target,
        .body = x->body_len > 0 ? x->body : NULL,
        .body_len = x->body_len,
        .headers = headers,
        .connect_timeout_us = (uint64_t)PROXY_CONNECT_MS * 1000,
        .timeout_us = text ? (uint64_t)PROXY_TEXT_MS * 1000 : 0,
        .fresh = !text, /* only a text request may be sent twice: it changes nothing */
    };
    struct http_events events = proxy_events(r);
    struct err e = {0};

    r->at = upstream_config(r->ticket.upstream);
    r->epoch = fleet_weights_epoch(r->loop->proxy->fleet);
    memset(&r->scan, 0, sizeof r->scan);
    req.target = &r->at->target;
    proxy_add_header(&req, headers, "Content-Type", x->content_type);
    proxy_add_header(&req, headers, "Accept", x->accept);
    proxy_add_header(&req, headers, "X-Session-ID", x->session_id);
    proxy_add_header(&req, headers, "X-Request-Id", x->actor.request_id);
    proxy_add_header(&req, headers, "traceparent", x->trace.traceparent);
    proxy_add_header(&req, headers, "tracestate", x->trace.tracestate);
    if (x->wants_versions && upstream_caps(r->at->kind)->reply_has_spans)
        proxy_add_header(&req, headers, "X-Baton-Weight-Versions", "1");
    proxy_add_header(&req, headers, "Accept-Encoding",
                     "identity"); /* whatever the client accepts */
    r->stage = PROXY_SENT;
    r->n_attempts++;
    if (http_start(&r->call, choose_client(r->loop, r->queue), &req, &events, &e) != 0)
        proxy_fail(r, &e);
}

/* failures */

/* As many attempts as there are upstreams. */
static bool may_retry(const struct proxy_request *r)
{
    upstream_list_auto *all = upstreams_list(r->loop->proxy->upstreams);

    return r->n_attempts < all->n;
}

static void retry_elsewhere(struct proxy_request *r, const struct err *why)
{
    r->ticket.avoid = upstream_number(r->ticket.upstream);
    proxy_readmit(r, why);
}

/* If the key is not the cause, the probe that is started here finds out. */
void proxy_auth_failed(struct proxy_request *r)
{
    struct err e = {0};

    proxy_cancel_call(r);
    (void)err_set(&e, ERR_UPSTREAM_KEY, "", "%.*s %s: it replied %d", WHY_MAX, r->at->url,
                  api_auth_error_text(r->head.status, r->at->target.authorization != NULL),
                  r->head.status);
    fleet_auth_failed(r->loop->proxy->fleet, r->ticket.upstream, FLEET_AUTH_REQUEST, &e);
    upstreams_probe_now(r->loop->proxy->upstreams);
    if (may_retry(r))
        retry_elsewhere(r, &e);
    else
        proxy_fail(r, &e);
}

static void set_unsent_error(const struct proxy_request *r, const struct http_end *end,
                             struct err *e)
{
    bool late = end->outcome == HTTP_TIMED_OUT;

    (void)err_set(e, late ? ERR_UPSTREAM_TIMEOUT : ERR_UPSTREAM, "",
                  "%.*s cannot be reached, nothing was sent: %.*s", WHY_MAX, r->at->url, WHY_MAX,
                  end->why);
}

static void set_sent_error(const struct proxy_request *r, const struct http_end *end, struct err *e)
{
    if (end->outcome == HTTP_TIMED_OUT)
        (void)err_set(e, ERR_UPSTREAM_TIMEOUT, "", "%.*s did not reply within %d ms", WHY_MAX,
                      r->at->url, PROXY_TEXT_MS);
    else
        (void)err_set(e, ERR_UPSTREAM, "",
                      "the connection to %.*s was lost after the request was sent, which may have "
                      "been processed: %.*s",
                      WHY_MAX, r->at->url, WHY_MAX, end->why);
}

/* The failure is counted before the permit is given back, so that the next queued request is not
 * sent there too. */
void proxy_upstream_failed(struct proxy_request *r, bool unreachable, const struct err *e)
{
    r->ticket.responded = false;
    fleet_request_failed(r->loop->proxy->fleet, r->ticket.upstream, unreachable, e);
    proxy_fail(r, e);
}

void proxy_call_failed(struct proxy_request *r, const struct http_end *end)
{
    bool unreachable = end->outcome == HTTP_UNREACHABLE;
    struct err e = {0};

    if (end->outcome == HTTP_NO_MEMORY) {
        PROXY_FAIL(r, ERR_NO_MEMORY, "this server has no memory or descriptor %s",
                   end->sent ? "for a reply of the upstream; the request may have been processed"
                             : "for a connection to the upstream; nothing was sent");
    } else if (end->sent) {
        set_sent_error(r, end, &e);
        proxy_upstream_failed(r, unreachable, &e);
    } else {
        set_unsent_error(r, end, &e);
        if (!may_retry(r)) {
            proxy_upstream_failed(r, unreachable, &e);
            return;
        }
        fleet_request_failed(r->loop->proxy->fleet, r->ticket.upstream, unreachable, &e);
        retry_elsewhere(r, NULL);
    }
}

void proxy_evict(struct proxy_request *r, const struct err *why)
{
    bool sent = http_sent(r->call);

    proxy_cancel_call(r);
    if (r->stage == PROXY_SENT && !sent && may_retry(r)) {
        retry_elsewhere(r, NULL);
        return;
    }
    PROXY_FAIL(r, ERR_UPSTREAM, "%.*s left rotation before its reply was complete%s: %.*s", WHY_MAX,
               r->at->url,
               r->stage == PROXY_STREAMING || !sent ? "" : "; it may have been processed", WHY_MAX,
               why->msg);
}

/* the beginning */

/* Under the request's lock. */
static void on_disconnect(void *arg)
{
    struct proxy_request *r = arg;

    loop_post(r->loop->loop, &r->disconnected);
}

static void handle_disconnect(void *arg)
{
    proxy_drop(arg);
}

static struct proxy_request *proxy_request_new(struct proxy_loop *pl, struct http_request *x,
                                               enum fleet_queue queue, struct err *e)
{
    struct proxy_request *r = calloc(1, sizeof *r);

    if (r == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
        return NULL;
    }
    r->loop = pl;
    r->x = x;
    r->queue = queue;
    r->ticket = (struct fleet_ticket){.ticket = {.granted = on_granted, .arg = r},
                                      .queue = r->queue,
                                      .affinity = fleet_affinity(x->session_id)};
    r->granted = (struct loop_item){.run = handle_granted, .arg = r};
    r->disconnected = (struct loop_item){.run = handle_disconnect, .arg = r};
    r->drained = (struct loop_item){.run = proxy_resume_reading, .arg = r};
    r->next = pl->requests;
    r->prev_next = &pl->requests;
    if (r->next != NULL)
        r->next->prev_next = &r->next;
    pl->requests = r;
    return r;
}

/* Does the variable part of the path have a segment "." or ".."? A proxy on the way would resolve
 * it, to a path that a key of this role may not request. */
static bool has_dots(const char *variable)
{
    size_t len;

    for (const char *at = variable; *at != '\0'; at += len + (at[len] == '/')) {
        len = strcspn(at, "/");
        if ((len == 1 && at[0] == '.') || (len == 2 && at[0] == '.' && at[1] == '.'))
            return true;
    }
    return false;
}

int proxy_forward(struct http_request *x, enum fleet_queue queue, const struct proxy_hooks *hooks,
                  struct err *e)
{
    struct proxy_loop *pl = x->loop_app;
    struct proxy_request *r;

    assert(pl != NULL && loop_is_current(pl->loop));
    if (x->target[0] != '/') /* "%2Fv1/models" is a path only once it is decoded */
        return err_set(e, ERR_NOT_FOUND, "", "there is no route %.200s", x->target);
    if (has_dots(x->path_arg))
        return err_set(e, ERR_BAD_REQUEST, "", "%.200s has a segment '.' or '..'", x->path);
    r = proxy_request_new(pl, x, queue, e);
    if (r == NULL)
        return -1;
    r->hooks = hooks;
    http_request_on_disconnect(x, on_disconnect, r);
    if (admit(r, e) == 0)
        return 0;
    http_request_on_disconnect(x, NULL, NULL); /* the dispatcher answers it */
    r->x = NULL;
    proxy_request_free(r);
    return -1;
}
