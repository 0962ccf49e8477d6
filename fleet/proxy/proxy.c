/* One request in front of upstream engines, from its permit to its end.
 *
 * Everything happens on the loop that the request came on; what other threads have to say (a grant)
 * is posted to it. Rejected: a queue of each loop's own, which would let one loop starve while
 * another has permits. */
#include "fleet/proxy/proxy.h"

#include "base/log.h"
#include "fleet/proxy/proxy_priv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { WHY_MAX = 200 }; /* of what an upstream did, in a message */

/* the end */

void proxy_request_free(struct proxy_request *r)
{
    struct loop *l = r->loop->loop;

    assert(r->call == NULL && r->x == NULL);
    *r->prev_next = r->next;
    if (r->next != NULL)
        r->next->prev_next = r->prev_next;
    loop_unpost(l, &r->granted);
    loop_unpost(l, &r->gone);
    loop_unpost(l, &r->drained);
    if (r->has_permit)
        fleet_permit_release(r->loop->all->fleet, &r->ticket);
    free(r->body);
    free(r);
}

/* Nobody who waits for a permit is forgotten: if one is on its way, the relay stays for it. */
static void leave_line(struct proxy_request *r)
{
    if (r->stage == PROXY_QUEUED && !fleet_permit_cancel(r->loop->all->fleet, &r->ticket))
        r->stage = PROXY_ANSWERED;
    else
        proxy_request_free(r);
}

static void drop_call(struct proxy_request *r)
{
    if (r->call != NULL)
        http_cancel(r->call);
    r->call = NULL;
}

static void log_cut(const struct proxy_request *r, const char *why)
{
    struct log_rec rec;

    if (!log_enabled(LOG_WARN))
        return;
    log_begin(&rec, LOG_WARN, "proxy.aborted");
    log_str(&rec, "request_id", r->x->request_id);
    log_str(&rec, "upstream", r->at.name);
    log_str(&rec, "why", why);
    log_end(&rec);
}

void proxy_drop(struct proxy_request *r)
{
    static const struct http_reply nothing = {.status = 499, .data = ""};
    struct http_request *x = r->x;

    drop_call(r);
    r->x = NULL;
    if (x == NULL)
        return; /* PROXY_ANSWERED already */
    if (r->stage == PROXY_STREAMING)
        http_request_stream_close(x, false);
    else
        http_reply(x, &nothing);
    leave_line(r);
}

void proxy_fail(struct proxy_request *r, const struct err *e)
{
    struct http_reply out;
    struct http_request *x = r->x;

    drop_call(r);
    if (r->stage == PROXY_STREAMING) {
        log_cut(r, e->msg);
        http_request_stream_close(x, false);
    } else {
        r->error_reply(x, e, &out);
        proxy_name_upstream(r, &out);
        http_reply(x, &out);
    }
    r->x = NULL;
    leave_line(r);
}

/* asking */

static void start(struct proxy_request *r);

/* A grant: at once, within fleet_permit_acquire, or later, on any thread. */
static void on_granted(void *arg, size_t upstream)
{
    struct proxy_request *r = arg;
    struct proxy *all = r->loop->all;

    (void)upstream; /* the ticket says it too */
    if (loop_is_current(r->loop->loop) && r->entering) {
        r->has_permit = true;
        return;
    }
    mtx_lock(&all->lock);
    r->told = true;
    loop_post(r->loop->loop, &r->granted);
    cnd_broadcast(&all->told);
    mtx_unlock(&all->lock);
}

int proxy_admit(struct proxy_request *r, struct err *e)
{
    int rc;

    r->stage = PROXY_QUEUED;
    r->told = false;
    r->at.name = NULL;
    r->entering = true;
    rc = fleet_permit_acquire(r->loop->all->fleet, &r->ticket, e);
    r->entering = false;
    if (rc != 0)
        return -1;
    if (r->has_permit)
        start(r);
    return 0;
}

/* Back into the line, or the answer why not. @why  goes before that nobody else serves; or NULL */
static void enter_again(struct proxy_request *r, const struct err *why)
{
    struct err e = {0};

    if (r->has_permit)
        fleet_permit_release(r->loop->all->fleet, &r->ticket);
    r->has_permit = false;
    if (proxy_admit(r, &e) == 0)
        return;
    r->stage = PROXY_SENT; /* it waits for nothing */
    proxy_fail(r, why != NULL && e.code == ERR_UNSYNCED ? why : &e);
}

/* The loop's thread: what was granted elsewhere. */
static void granted_later(void *arg)
{
    struct proxy_request *r = arg;

    r->has_permit = true;
    if (r->stage == PROXY_ANSWERED)
        proxy_request_free(r);
    else if (fleet_serves(r->loop->all->fleet, r->ticket.upstream))
        start(r);
    else /* it has left rotation since: those who run there have been cut already */
        enter_again(r, NULL);
}

static void add(struct http_call_request *req, struct http_header *headers, const char *name,
                const char *value)
{
    if (value[0] != '\0')
        headers[req->n_headers++] = (struct http_header){name, value};
}

static struct http_client *client_of(struct proxy_loop *rl, enum fleet_queue queue)
{
    return queue == FLEET_TEXT ? rl->text : rl->generate[rl->turn++ % PROXY_CLIENTS];
}

/* Not the client's Authorization, nor what belongs to its connection. HEAD is asked as GET, which
 * engines answer where they do not know HEAD. */
static void start(struct proxy_request *r)
{
    struct http_request *x = r->x;
    bool text = r->queue == FLEET_TEXT;
    struct http_header headers[4];
    struct http_call_request req = {
        .method = x->method == METHOD_HEAD ? "GET" : http_request_method_name(x->method),
        .path = x->target,
        .body = x->body_len > 0 ? x->body : NULL,
        .body_len = x->body_len,
        .headers = headers,
        .connect_timeout_us = (uint64_t)PROXY_CONNECT_MS * 1000,
        .timeout_us = text ? (uint64_t)PROXY_TEXT_MS * 1000 : 0,
        .fresh = !text, /* of a text that is looked at twice nothing is left behind */
    };
    struct http_events events = proxy_events(r);
    struct err e = {0};

    upstreams_get(r->loop->all->upstreams, r->ticket.upstream, &r->at);
    r->epoch = fleet_weights_epoch(r->loop->all->fleet);
    memset(&r->scan, 0, sizeof r->scan);
    req.target = r->at.target;
    add(&req, headers, "Content-Type", x->content_type);
    add(&req, headers, "X-Session-ID", x->session_id);
    add(&req, headers, "X-Request-Id", x->request_id);
    add(&req, headers, "Accept-Encoding", "identity"); /* the client's wishes are not asked */
    r->stage = PROXY_SENT;
    r->n_tries++;
    if (http_start(&r->call, client_of(r->loop, r->queue), &req, &events, &e) != 0)
        proxy_fail(r, &e);
}

/* what goes wrong */

/* Once for each upstream that there is. */
static bool may_try_again(const struct proxy_request *r)
{
    return r->n_tries < upstreams_n(r->loop->all->upstreams);
}

static void try_another(struct proxy_request *r, const struct err *why)
{
    r->ticket.avoid_one = true;
    r->ticket.avoid = r->ticket.upstream;
    enter_again(r, why);
}

/* What was no fault of its key is found by the question that follows at once. */
void proxy_auth_failed(struct proxy_request *r)
{
    struct err e = {0};

    drop_call(r);
    (void)err_set(&e, ERR_UPSTREAM_KEY, "", "%.*s %s: it answered %d", WHY_MAX, r->at.name,
                  api_auth_error_text(r->head.status, r->at.target->authorization != NULL),
                  r->head.status);
    fleet_auth_failed(r->loop->all->fleet, r->ticket.upstream, FLEET_AUTH_REQUEST, &e);
    upstreams_probe_now(r->loop->all->upstreams);
    if (may_try_again(r))
        try_another(r, &e);
    else
        proxy_fail(r, &e);
}

static void say_unsent(const struct proxy_request *r, const struct http_end *end, struct err *e)
{
    bool late = end->outcome == HTTP_TIMED_OUT;

    (void)err_set(e, late ? ERR_UPSTREAM_TIMEOUT : ERR_UPSTREAM, "",
                  "%.*s cannot be reached, nothing was sent: %.*s", WHY_MAX, r->at.name, WHY_MAX,
                  end->why);
}

static void say_sent(const struct proxy_request *r, const struct http_end *end, struct err *e)
{
    if (end->outcome == HTTP_TIMED_OUT)
        (void)err_set(e, ERR_UPSTREAM_TIMEOUT, "", "%.*s did not answer within %d ms", WHY_MAX,
                      r->at.name, PROXY_TEXT_MS);
    else
        (void)err_set(e, ERR_UPSTREAM, "",
                      "the connection to %.*s was lost after the request was sent, which may have "
                      "been processed: %.*s",
                      WHY_MAX, r->at.name, WHY_MAX, end->why);
}

static void say_ours(const struct http_end *end, struct err *e)
{
    (void)err_set(e, ERR_NO_MEMORY, "", "this server has no memory or descriptor %s",
                  end->sent ? "for an answer from upstream; the request may have been processed"
                            : "for a connection upstream; nothing was sent");
}

/* Before the permit goes back: the next in line is not sent there too. */
void proxy_upstream_failed(struct proxy_request *r, bool unreachable, const struct err *e)
{
    r->ticket.responded = false;
    fleet_request_failed(r->loop->all->fleet, r->ticket.upstream, unreachable, e);
    proxy_fail(r, e);
}

void proxy_call_failed(struct proxy_request *r, const struct http_end *end)
{
    bool unreachable = end->outcome == HTTP_UNREACHABLE;
    struct err e = {0};

    if (end->outcome == HTTP_NO_MEMORY) {
        say_ours(end, &e);
        proxy_fail(r, &e);
    } else if (end->sent) {
        say_sent(r, end, &e);
        proxy_upstream_failed(r, unreachable, &e);
    } else {
        say_unsent(r, end, &e);
        if (!may_try_again(r)) {
            proxy_upstream_failed(r, unreachable, &e);
            return;
        }
        fleet_request_failed(r->loop->all->fleet, r->ticket.upstream, unreachable, &e);
        try_another(r, NULL);
    }
}

void proxy_evict(struct proxy_request *r, const struct err *why)
{
    bool sent = http_sent(r->call);
    struct err e = {0};

    drop_call(r);
    if (r->stage == PROXY_SENT && !sent && may_try_again(r)) {
        try_another(r, NULL);
        return;
    }
    (void)err_set(&e, ERR_UPSTREAM, "", "%.*s left rotation before its answer was whole%s: %.*s",
                  WHY_MAX, r->at.name,
                  r->stage == PROXY_STREAMING || !sent ? "" : "; it may have been processed",
                  WHY_MAX, why->msg);
    proxy_fail(r, &e);
}

/* the beginning */

/* Under the request's lock. */
static void on_gone(void *arg)
{
    struct proxy_request *r = arg;

    loop_post(r->loop->loop, &r->gone);
}

static void gone(void *arg)
{
    proxy_drop(arg);
}

static struct proxy_request *proxy_request_new(struct proxy_loop *rl, struct http_request *x,
                                               enum fleet_queue queue, struct err *e)
{
    struct proxy_request *r = calloc(1, sizeof *r);

    if (r == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
        return NULL;
    }
    r->loop = rl;
    r->x = x;
    r->queue = queue;
    r->ticket = (struct fleet_ticket){.queue = r->queue,
                                      .affinity = fleet_affinity(x->session_id),
                                      .granted = on_granted,
                                      .arg = r};
    r->granted = (struct loop_item){.run = granted_later, .arg = r};
    r->gone = (struct loop_item){.run = gone, .arg = r};
    r->drained = (struct loop_item){.run = proxy_resume_stream, .arg = r};
    r->next = rl->requests;
    r->prev_next = &rl->requests;
    if (r->next != NULL)
        r->next->prev_next = &r->next;
    rl->requests = r;
    return r;
}

/* Has what stands for a route's variable a segment "." or ".."? A proxy on the way would fold it,
 * to a path that a key of this role may not ask for. */
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

int proxy_forward(struct http_request *x, enum fleet_queue queue, proxy_error_fn *error_reply,
                  struct err *e)
{
    struct proxy_loop *rl = x->loop_app;
    struct proxy_request *r;

    assert(rl != NULL && loop_is_current(rl->loop));
    if (x->target[0] != '/') /* "%2Fv1/models", which is a path only when it is decoded */
        return err_set(e, ERR_NOT_FOUND, "", "there is no route %.200s", x->target);
    if (has_dots(x->path_arg))
        return err_set(e, ERR_BAD_REQUEST, "", "%.200s has a segment '.' or '..'", x->path);
    r = proxy_request_new(rl, x, queue, e);
    if (r == NULL)
        return -1;
    r->error_reply = error_reply;
    http_request_on_disconnect(x, on_gone, r);
    if (proxy_admit(r, e) == 0)
        return 0;
    http_request_on_disconnect(x, NULL, NULL); /* dispatch answers */
    r->x = NULL;
    proxy_request_free(r);
    return -1;
}
