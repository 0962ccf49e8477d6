/* From an upstream's answer to the client's: short ones as a whole, others as they come.
 *
 * A stream is held when its client is behind: libcurl then leaves what comes in the socket, and the
 * upstream feels it. It goes on from the loop, never from within the HTTP server's own call for
 * more, because libcurl hands over at once what it has. */
#include "base/log.h"
#include "fleet/proxy/proxy_priv.h"

#include <stdlib.h>
#include <string.h>

void proxy_name_upstream(const struct proxy_request *r, struct http_reply *out)
{
    if (r->at.name != NULL)
        http_reply_header(out, "X-Baton-Upstream", "%s", r->at.name);
}

/* As it came. Types are headers here: those of a reply are static. */
static struct http_reply head_of(const struct proxy_request *r)
{
    struct http_reply out = {.status = r->head.status};

    if (r->head.content_type[0] != '\0')
        http_reply_header(&out, "Content-Type", "%s", r->head.content_type);
    if (r->head.content_encoding[0] != '\0') /* nobody asked for one */
        http_reply_header(&out, "Content-Encoding", "%s", r->head.content_encoding);
    if (r->head.retry_after[0] != '\0')
        http_reply_header(&out, "Retry-After", "%s", r->head.retry_after);
    proxy_name_upstream(r, &out);
    return out;
}

/* All of it is there. */
static void answer_whole(struct proxy_request *r)
{
    struct http_reply out = head_of(r);
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

static void give_up_call(struct proxy_request *r)
{
    http_cancel(r->call);
    r->call = NULL;
}

static void begin_whole(struct proxy_request *r)
{
    struct err e = {0};

    r->stage = PROXY_COLLECTING;
    if (r->head.content_length <= 0)
        return;
    r->body = malloc((size_t)r->head.content_length);
    if (r->body != NULL)
        return;
    give_up_call(r);
    (void)err_set(
        &e, ERR_NO_MEMORY, "",
        "this server has no memory for an answer of %lld bytes; the request may have been "
        "processed",
        (long long)r->head.content_length);
    proxy_fail(r, &e);
}

static void begin_stream(struct proxy_request *r)
{
    struct http_reply out = head_of(r);

    if (r->x->method == METHOD_HEAD) { /* it was asked as a GET, and this is all that is wanted */
        give_up_call(r);
        answer_whole(r);
        proxy_request_free(r);
        return;
    }
    r->stage = PROXY_STREAMING;
    http_request_stream_open_as(r->x, &out);
    if (r->x->body_len > PROXY_BODY_NBYTES_KEPT && http_body_sent(r->call))
        http_request_drop_body(r->x);
}

/* A baton says which process of it answers: one that was restarted since the last question to it
 * serves other weights than the fleet. */
static bool is_another(const struct proxy_request *r)
{
    return upstream_caps(r->at.kind)->reply_names_process && r->head.boot_id[0] != '\0' &&
           !fleet_check_process(r->loop->all->fleet, r->ticket.upstream, r->head.boot_id);
}

static void refuse_another(struct proxy_request *r)
{
    struct err e = {0};

    (void)err_set(&e, ERR_UPSTREAM, "",
                  "%.200s was restarted: what it answers is not of the version that is served",
                  r->at.name);
    proxy_fail(r, &e);
}

/* An SGLang says which version made it: of one that was restarted since the last question to it,
 * that it began with. What it is to say of itself is asked at once. */
static bool names_another(struct proxy_request *r, const char *data, size_t len)
{
    if (!upstream_caps(r->at.kind)->reply_names_version || r->queue != FLEET_GENERATE ||
        r->head.status != 200)
        return false;
    while (version_scan_next(&r->scan, &data, &len))
        if (!fleet_may_report_version(r->loop->all->fleet, r->scan.name, r->epoch))
            return true;
    return false;
}

static void refuse_version(struct proxy_request *r)
{
    struct err e = {0};

    (void)err_set(&e, ERR_UPSTREAM, "",
                  "%.200s answered with weights '%s', which are not what is served", r->at.name,
                  r->scan.name);
    upstreams_probe_now(r->loop->all->upstreams);
    proxy_fail(r, &e);
}

/* At once: what follows such a head may never end. A redirect may be our client's doing, by what it
 * asks for; any other status is none. */
static void refuse_bad(struct proxy_request *r)
{
    bool redirects = r->head.status >= 300 && r->head.status < 400;
    struct err e = {0};

    (void)err_set(&e, ERR_UPSTREAM, "", "%.200s gave no answer to pass on: it answered %d, %s",
                  r->at.name, r->head.status,
                  redirects ? "and redirects are not followed"
                            : "which is no status of an answer; it may have been processed");
    if (redirects)
        proxy_fail(r, &e);
    else
        proxy_upstream_failed(r, false, &e);
}

static void on_head(void *arg, const struct http_head *head)
{
    struct proxy_request *r = arg;

    r->head = *head;
    r->ticket.responded = true; /* unless it breaks (proxy_upstream_failed) */
    if (is_another(r))
        refuse_another(r);
    else if (api_is_auth_error_proxied(r->at.kind, head->status))
        proxy_auth_failed(r);
    else if (!http_is_answer(head->status))
        refuse_bad(r);
    else if (head->status == 204 ||
             (head->content_length >= 0 && head->content_length <= PROXY_WHOLE_NBYTES_MAX))
        begin_whole(r);
    else
        begin_stream(r);
}

static void collect(struct proxy_request *r, const void *data, size_t len)
{
    size_t room = r->body != NULL ? (size_t)r->head.content_length - r->len : 0;

    if (len > room) /* libcurl ends with the length that it was told */
        len = room;
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

void proxy_resume_stream(void *arg)
{
    struct proxy_request *r = arg;

    r->held = false;
    if (r->call != NULL)
        http_resume(r->call);
}

static void hold(struct proxy_request *r)
{
    if (r->held)
        return;
    r->held = true;
    http_hold(r->call);
    http_request_on_drained(r->x, PROXY_AHEAD_NBYTES / 2, on_drained, r);
}

/* Is its client so far behind? `ahead` is never too small: it is asked anew only when it could be
 * too much, for an answer comes in hundreds of small pieces. */
static bool is_behind(struct proxy_request *r, size_t more, size_t limit)
{
    if (r->ahead + more < limit)
        return false;
    r->ahead = http_request_stream_unsent(r->x);
    return r->ahead + more >= limit;
}

/* libcurl hands over each chunk by itself: those that it has read at once leave together, when the
 * HTTP server sees to it later in this turn of the loop. */
static bool pass_on(struct proxy_request *r, const void *data, size_t len)
{
    if (is_behind(r, len, PROXY_AHEAD_NBYTES + HTTP_PIECE_NBYTES + 1)) {
        hold(r); /* libcurl reads on while there is something to read */
        return false;
    }
    if (http_request_stream_write(r->x, data, len) != 0) {
        proxy_drop(r); /* the client is gone, or there is no memory for what it is owed */
        return true;
    }
    r->ahead += len;
    if (is_behind(r, 0, PROXY_AHEAD_NBYTES))
        hold(r);
    return true;
}

static bool on_data(void *arg, const void *data, size_t len)
{
    struct proxy_request *r = arg;
    struct version_scan before = r->scan;

    if (names_another(r, data, len)) {
        refuse_version(r);
        return true;
    }
    if (r->stage == PROXY_STREAMING) {
        if (pass_on(r, data, len))
            return true;
        r->scan = before; /* it comes again */
        return false;
    }
    if (r->stage == PROXY_COLLECTING)
        collect(r, data, len);
    return true;
}

static void on_done(void *arg, const struct http_end *end)
{
    struct proxy_request *r = arg;

    r->call = NULL;
    if (end->outcome != HTTP_WHOLE) {
        proxy_call_failed(r, end);
        return;
    }
    if (r->stage == PROXY_STREAMING) {
        http_request_stream_close(r->x, true);
        r->x = NULL;
    } else {
        answer_whole(r);
    }
    proxy_request_free(r);
}

struct http_events proxy_events(struct proxy_request *r)
{
    return (struct http_events){.head = on_head, .data = on_data, .done = on_done, .arg = r};
}
