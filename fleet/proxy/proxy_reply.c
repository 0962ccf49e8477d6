/* The reply of an upstream to the client: a short one is sent as a whole, a longer one as it comes.
 *
 * If the client of a stream is slow, reading of the upstream is paused: libcurl leaves the bytes in
 * the socket, and the TCP window slows the upstream down. Reading is resumed from the loop, never
 * from within the HTTP server's call for more data, because libcurl delivers at once what it has.
 */
#include "base/buf.h"
#include "base/log.h"
#include "fleet/api/upstream_api.h"
#include "fleet/proxy/proxy_priv.h"

#include <stdlib.h>
#include <string.h>

void proxy_name_upstream(const struct proxy_request *r, struct http_reply *out)
{
    if (r->at != NULL)
        http_reply_header(out, "X-Baton-Upstream", "%s", r->at->url);
}

/* The version at the grant; or what the upstream says itself, as a baton in front of engines does.
 */
static void name_version(const struct proxy_request *r, struct http_reply *out)
{
    if (r->queue != FLEET_GENERATE || r->head.status != 200)
        return;
    if (upstream_caps(r->at->kind)->reply_has_spans && r->head.weight_version[0] != '\0')
        http_reply_header(out, "X-Baton-Weight-Version", "%s", r->head.weight_version);
    else if (r->ticket.served.label[0] != '\0')
        http_reply_header_text(out, "X-Baton-Weight-Version", r->ticket.served.label);
}

/* As it came. Content-Type is set as a header, because that of a reply must be static. */
static struct http_reply reply_head(const struct proxy_request *r)
{
    struct http_reply out = {.status = r->head.status};

    if (r->head.content_type[0] != '\0')
        http_reply_header(&out, "Content-Type", "%s", r->head.content_type);
    if (r->head.content_encoding[0] != '\0') /* although none was accepted */
        http_reply_header(&out, "Content-Encoding", "%s", r->head.content_encoding);
    if (r->head.retry_after[0] != '\0')
        http_reply_header(&out, "Retry-After", "%s", r->head.retry_after);
    proxy_name_upstream(r, &out);
    name_version(r, &out);
    return out;
}

static void note_made(const struct proxy_request *r)
{
    if (r->queue == FLEET_GENERATE && r->head.status == 200 && r->hooks->made != NULL)
        r->hooks->made(r->x, r->ticket.served.serial);
}

static void fail_no_memory(struct proxy_request *r)
{
    PROXY_FAIL(r, ERR_NO_MEMORY,
               "this server has no memory for a reply of the upstream; the request may have "
               "been processed");
}

/* Put the versions into a whole reply. Returns: -1 without memory. */
static int proxy_reply_add_versions(struct proxy_request *r)
{
    struct buf out = {0};

    if (r->versions == NULL || r->len == 0)
        return 0;
    reply_versions_feed(r->versions, r->body, r->len, &out);
    reply_versions_end(r->versions, &out);
    if (out.failed) {
        buf_fini(&out);
        return -1;
    }
    free(r->body);
    r->body = buf_take(&out, &r->len);
    return 0;
}

static void send_reply(struct proxy_request *r)
{
    struct http_reply out = reply_head(r);
    struct http_request *x = r->x;

    out.data = r->body;
    out.len = r->len;
    if (r->body != NULL) {
        out.release = free;
        out.release_arg = r->body;
    }
    r->body = NULL;
    r->x = NULL;
    http_reply(x, &out);
}

static void begin_collecting(struct proxy_request *r)
{
    r->stage = PROXY_COLLECTING;
    if (r->head.content_length <= 0)
        return;
    r->body = malloc((size_t)r->head.content_length);
    if (r->body == NULL)
        fail_no_memory(r);
}

static void begin_streaming(struct proxy_request *r)
{
    struct http_reply out = reply_head(r);

    if (r->x->method == METHOD_HEAD) { /* it was sent as GET: the rest is not needed */
        proxy_cancel_call(r);
        send_reply(r);
        proxy_request_free(r);
        return;
    }
    r->stage = PROXY_STREAMING;
    http_request_stream_open_as(r->x, &out);
    if (r->x->body_len > PROXY_BODY_NBYTES_KEPT && http_body_sent(r->call))
        http_request_drop_body(r->x);
}

/* Does the reply name another process than the last probe? An upstream which was restarted since
 * serves other weights than the fleet. */
static bool process_changed(const struct proxy_request *r)
{
    return upstream_caps(r->at->kind)->reply_names_process && r->head.boot_id[0] != '\0' &&
           !fleet_check_process(r->loop->proxy->fleet, r->ticket.upstream, r->ticket.incarnation,
                                r->head.boot_id);
}

/* Does the reply name another version than the fleet's? An upstream which was restarted since the
 * last probe serves the weights that it started with. */
static bool has_other_version(struct proxy_request *r, const char *data, size_t len)
{
    if (!upstream_caps(r->at->kind)->reply_names_version || r->queue != FLEET_GENERATE ||
        r->head.status != 200)
        return false;
    while (version_scan_next(&r->scan, &data, &len))
        if (!fleet_may_report_version(r->loop->proxy->fleet, r->scan.name, r->epoch))
            return true;
    return false;
}

/* Fail at once: the body behind such a head may never end. A redirect may be caused by the client's
 * request, so it does not count as a failure of the upstream. */
static void fail_bad_status(struct proxy_request *r)
{
    bool redirects = r->head.status >= 300 && r->head.status < 400;
    struct err e = {0};

    (void)err_set(&e, ERR_UPSTREAM, "", "%.200s replied %d, which cannot be forwarded: %s",
                  r->at->url, r->head.status,
                  redirects
                      ? "redirects are not followed"
                      : "it is not the status of a reply; the request may have been processed");
    if (redirects)
        proxy_fail(r, &e);
    else
        proxy_upstream_failed(r, false, &e);
}

/* Returns: -1 without memory. */
static int begin_versions(struct proxy_request *r)
{
    if (!r->x->wants_versions || r->queue != FLEET_GENERATE ||
        upstream_caps(r->at->kind)->reply_has_spans || !reply_versions_applies(&r->head))
        return 0;
    r->versions = reply_versions_new(r->loop->proxy->fleet, &r->ticket, &r->head);
    return r->versions != NULL ? 0 : -1;
}

static void begin_reply(struct proxy_request *r, const struct http_head *head)
{
    fleet_settle(r->loop->proxy->fleet, &r->ticket);
    if (head->status == 204 ||
        (head->content_length >= 0 && head->content_length <= PROXY_WHOLE_NBYTES_MAX))
        begin_collecting(r);
    else
        begin_streaming(r);
}

static void proxy_on_head(void *arg, const struct http_head *head)
{
    struct proxy_request *r = arg;

    r->head = *head;
    r->ticket.responded = true; /* unless it fails later (proxy_upstream_failed) */
    if (process_changed(r))
        PROXY_FAIL(r, ERR_UPSTREAM,
                   "%.200s was restarted: its reply may not be of the version that is served",
                   r->at->url);
    else if (api_is_auth_error_proxied(r->at->kind, head->status))
        proxy_auth_failed(r);
    else if (!http_is_answer(head->status))
        fail_bad_status(r);
    else if (begin_versions(r) != 0)
        fail_no_memory(r);
    else
        begin_reply(r, head);
}

static void collect(struct proxy_request *r, const void *data, size_t len)
{
    size_t left = r->body != NULL ? (size_t)r->head.content_length - r->len : 0;

    if (len > left) /* libcurl delivers no more than the Content-Length */
        len = left;
    if (len > 0)
        memcpy(r->body + r->len, data, len);
    r->len += len;
}

/* Under the request's lock. */
static void on_drained(void *arg)
{
    struct proxy_request *r = arg;

    loop_post(r->loop->loop, &r->drained);
}

void proxy_resume_reading(void *arg)
{
    struct proxy_request *r = arg;

    r->is_paused = false;
    if (r->call != NULL)
        http_resume(r->call);
}

static void pause_reading(struct proxy_request *r)
{
    if (r->is_paused)
        return;
    r->is_paused = true;
    http_hold(r->call);
    http_request_on_drained(r->x, PROXY_AHEAD_NBYTES / 2, on_drained, r);
}

/* Would `limit` bytes or more be unsent? `ahead` is an upper bound: the exact number is read only
 * when the bound is too high, because a reply comes in hundreds of small pieces. */
static bool client_is_slow(struct proxy_request *r, size_t more, size_t limit)
{
    if (r->ahead + more < limit)
        return false;
    r->ahead = http_request_stream_unsent(r->x);
    return r->ahead + more >= limit;
}

/* @data  NULL: the reply has ended. Returns: -1 if the client has disconnected, or without memory.
 */
static int write_stream(struct proxy_request *r, const void *data, size_t len)
{
    struct buf out = {0};
    int rc = 0;

    if (r->versions == NULL) {
        r->ahead += len;
        return len > 0 ? http_request_stream_write(r->x, data, len) : 0;
    }
    if (data != NULL)
        reply_versions_feed(r->versions, data, len, &out);
    else
        reply_versions_end(r->versions, &out);
    if (out.failed || (out.len > 0 && http_request_stream_write(r->x, out.data, out.len) != 0))
        rc = -1;
    r->ahead += out.len;
    buf_fini(&out);
    return rc;
}

/* libcurl delivers chunk by chunk. The HTTP server sends all chunks of one read together, later in
 * this iteration of the loop. False: not taken, deliver it again. */
static bool forward_data(struct proxy_request *r, const void *data, size_t len)
{
    if (client_is_slow(r, len, PROXY_AHEAD_NBYTES + HTTP_PIECE_NBYTES + 1)) {
        pause_reading(r); /* libcurl reads on while the socket has data */
        return false;
    }
    if (write_stream(r, data, len) != 0) {
        proxy_drop(r); /* the client has disconnected, or no memory */
        return true;
    }
    if (client_is_slow(r, 0, PROXY_AHEAD_NBYTES))
        pause_reading(r);
    return true;
}

static bool proxy_on_data(void *arg, const void *data, size_t len)
{
    struct proxy_request *r = arg;
    struct version_scan before = r->scan;

    if (has_other_version(r, data, len)) {
        upstreams_probe_now(r->loop->proxy->upstreams);
        PROXY_FAIL(r, ERR_UPSTREAM,
                   "%.200s replied with weights '%s', which are not the version that is served",
                   r->at->url, r->scan.name);
        return true;
    }
    if (r->stage == PROXY_STREAMING) {
        if (forward_data(r, data, len))
            return true;
        r->scan = before; /* the data is delivered again */
        return false;
    }
    if (r->stage == PROXY_COLLECTING)
        collect(r, data, len);
    return true;
}

static void proxy_on_done(void *arg, const struct http_end *end)
{
    struct proxy_request *r = arg;

    r->call = NULL;
    if (end->outcome != HTTP_WHOLE) {
        proxy_call_failed(r, end);
        return;
    }
    if (r->stage == PROXY_STREAMING) {
        bool complete = write_stream(r, NULL, 0) == 0;

        note_made(r);
        http_request_stream_close(r->x, complete);
        r->x = NULL;
    } else if (api_lacks_route(r->head.status, r->body, r->len)) {
        /* what came says neither whose answer it is nor what to do */
        PROXY_FAIL(r, ERR_NO_ROUTE,
                   "%.200s (%s) has no route %.160s: the request was passed on, and this engine "
                   "does not serve it",
                   r->at->url, upstream_kind_name(r->at->kind), r->x->path);
        return;
    } else if (proxy_reply_add_versions(r) != 0) {
        fail_no_memory(r);
        return;
    } else {
        note_made(r);
        send_reply(r);
    }
    proxy_request_free(r);
}

struct http_events proxy_events(struct proxy_request *r)
{
    return (struct http_events){
        .head = proxy_on_head, .data = proxy_on_data, .done = proxy_on_done, .arg = r};
}
