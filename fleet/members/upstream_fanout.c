/* Each part is one HTTP call; the last one that ends calls `done`. */
#include "fleet/members/upstream_fanout.h"

#include "base/clock.h"
#include "fleet/members/upstream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONNECT_TIMEOUT_US = 5000000, HEADERS_MAX = 4 };

struct part {
    struct upstream_fanout *fanout;
    struct http_call *http_call;  /* NULL: none, or ended */
    struct upstream_call call;    /* its request is owned */
    struct upstream_reply *reply; /* of the fan-out */
    bool too_long, out_of_memory; /* the rest of the reply is dropped */
};

struct upstream_fanout {
    struct http_client *client;
    upstream_fanout_done_fn *done;
    upstream_fanout_reply_fn *on_reply; /* NULL: none */
    void *arg;                          /* of both */
    size_t n, n_left, n_good;
    uint64_t began_us;
    uint64_t good_us; /* when the last good reply came that a late_us waits for, or the start */
    struct upstream_reply *replies; /* owned; [n] */

    struct upstream *upstream; /* of upstream_fanout_keep, as the next two; NULL: not kept */
    struct upstream_fanout **at;
    struct upstream_fanout *next, **prev_next;

    struct part parts[];
};

void upstream_reply_fini(struct upstream_reply *a)
{
    free(a->text);
    a->text = NULL;
    a->text_len = 0;
}

void upstream_fanout_keep(struct upstream_fanout **at, struct upstream_fanout **first,
                          struct upstream *upstream)
{
    struct upstream_fanout *f = *at;

    if (f == NULL) /* it has ended */
        return;
    upstream_loosen(upstream_ref(upstream));
    f->upstream = upstream;
    f->at = at;
    f->next = *first;
    f->prev_next = first;
    if (f->next != NULL)
        f->next->prev_next = &f->next;
    *first = f;
}

static void upstream_fanout_release(struct upstream_fanout *f)
{
    *f->at = NULL;
    *f->prev_next = f->next;
    if (f->next != NULL)
        f->next->prev_next = f->prev_next;
    upstream_unref_loose(f->upstream);
}

void upstream_fanout_cancel(struct upstream_fanout *f)
{
    if (f->upstream != NULL)
        upstream_fanout_release(f);
    for (size_t i = 0; i < f->n; i++) {
        if (f->parts[i].http_call != NULL)
            http_cancel(f->parts[i].http_call);
        api_request_fini(&f->parts[i].call.request);
        upstream_reply_fini(&f->replies[i]);
    }
    free(f->replies);
    free(f);
}

static void fanout_on_head(void *arg, const struct http_head *head)
{
    struct upstream_reply *a = ((struct part *)arg)->reply;

    a->status = head->status;
    memcpy(a->process, head->boot_id, sizeof a->process);
}

static size_t text_max(const struct part *p)
{
    return p->call.text_max > 0 ? p->call.text_max : UPSTREAM_REPLY_TEXT_MAX;
}

/* If there is no memory, or the reply is too long, its text ends here and the rest is dropped. */
static bool fanout_on_data(void *arg, const void *data, size_t len)
{
    struct part *p = arg;
    struct upstream_reply *a = p->reply;
    char *grown;

    p->too_long = p->too_long || len > text_max(p) - a->text_len;
    if (p->too_long || p->out_of_memory)
        return true;
    grown = realloc(a->text, a->text_len + len + 1);
    if (grown == NULL) {
        p->out_of_memory = true;
        return true;
    }
    memcpy(grown + a->text_len, data, len);
    a->text_len += len;
    grown[a->text_len] = '\0';
    a->text = grown;
    return true;
}

static void fanout_part_set_result(struct part *p, const struct http_end *end)
{
    struct upstream_reply *a = p->reply;
    char text[256] = "";

    a->sent = end->sent;
    a->unreachable = end->outcome == HTTP_UNREACHABLE;
    if (end->outcome == HTTP_NO_MEMORY || p->out_of_memory) {
        (void)err_set(&a->why, ERR_NO_MEMORY, "",
                      "this server has no memory or file descriptor for %s %s",
                      end->sent ? "the reply to" : "a request to", p->call.request.path);
    } else if (end->outcome == HTTP_TIMED_OUT) {
        (void)err_set(&a->why, ERR_UPSTREAM_TIMEOUT, "", "it did not answer %s in time",
                      p->call.request.path);
    } else if (end->outcome != HTTP_WHOLE) {
        (void)err_set(&a->why, ERR_UPSTREAM, "", "it did not answer %s: %s", p->call.request.path,
                      end->why);
    } else if (p->too_long) {
        (void)err_set(&a->why, ERR_UPSTREAM, "", "its reply to %s is longer than %zu bytes",
                      p->call.request.path, text_max(p));
    } else if (a->status >= 300) {
        if (a->text != NULL)
            api_read_error(text, sizeof text, a->text, a->text_len);
        (void)err_set(&a->why, ERR_UPSTREAM, "", "it answered %s with %d: %s", p->call.request.path,
                      a->status, text);
    }
    if (end->outcome != HTTP_WHOLE || p->out_of_memory)
        a->status = 0;
    a->good = a->why.code == ERR_NONE;
    if (a->good && p->fanout->n_good++ < p->call.n_enough)
        p->fanout->good_us = clock_now_us();
}

void upstream_fanout_on_reply(struct upstream_fanout *f, upstream_fanout_reply_fn *fn)
{
    f->on_reply = fn;
}

static void part_tell(struct part *p)
{
    struct upstream_fanout *f = p->fanout;

    if (f->on_reply != NULL)
        f->on_reply(f->arg, (size_t)(p - f->parts), p->reply);
}

static void part_ended(struct upstream_fanout *f)
{
    if (--f->n_left > 0)
        return;
    f->done(f->arg, f->replies, f->n);
    upstream_fanout_cancel(f);
}

static int part_start(struct part *p, struct err *e);

/* Sends the request to the path of older releases if the engine does not have the current one.
 * Which path an engine has is not stored: the next request may meet another release. Returns: false
 * if there is no older path, or the request could not be sent. */
static bool part_retry_older(struct part *p)
{
    struct api_request *r = &p->call.request;
    struct err why = {0};

    if (r->older == NULL || (p->reply->status != 404 && p->reply->status != 405))
        return false;
    (void)snprintf(r->path, sizeof r->path, "%s", r->older);
    r->older = NULL;
    upstream_reply_fini(p->reply);
    *p->reply = (struct upstream_reply){0};
    if (part_start(p, &why) == 0)
        return true;
    p->reply->why = why;
    return false;
}

static void fanout_on_done(void *arg, const struct http_end *end)
{
    struct part *p = arg;

    p->http_call = NULL;
    fanout_part_set_result(p, end);
    if (part_retry_older(p))
        return;
    part_tell(p);
    part_ended(p->fanout);
}

/* Returns: how many there are. */
static size_t make_headers(struct http_header out[HEADERS_MAX], const struct upstream_call *call)
{
    const struct trace_context *t = call->trace;
    size_t n = 0;

    if (call->request.body != NULL)
        out[n++] = (struct http_header){"Content-Type", "application/json"};
    if (t != NULL && t->request_id[0] != '\0')
        out[n++] = (struct http_header){"X-Request-Id", t->request_id};
    if (t != NULL && t->traceparent[0] != '\0')
        out[n++] = (struct http_header){"traceparent", t->traceparent};
    if (t != NULL && t->tracestate[0] != '\0')
        out[n++] = (struct http_header){"tracestate", t->tracestate};
    return n;
}

static int part_start(struct part *p, struct err *e)
{
    struct http_header headers[HEADERS_MAX];
    const struct api_request *r = &p->call.request;
    struct http_events events = {
        .head = fanout_on_head, .data = fanout_on_data, .done = fanout_on_done, .arg = p};
    struct http_call_request req = {.target = p->call.target,
                                    .method = r->method,
                                    .path = r->path,
                                    .body = r->body,
                                    .body_len = r->body_len,
                                    .headers = headers,
                                    .n_headers = make_headers(headers, &p->call),
                                    .connect_timeout_us = CONNECT_TIMEOUT_US,
                                    .timeout_us = p->call.timeout_us,
                                    .fresh = strcmp(r->method, "GET") != 0};

    p->reply->requested = true;
    return http_start(&p->http_call, p->fanout->client, &req, &events, e);
}

static struct upstream_fanout *upstream_fanout_new(struct upstream_call *parts, size_t n)
{
    struct upstream_fanout *f = calloc(1, sizeof *f + n * sizeof f->parts[0]);
    struct upstream_reply *replies = calloc(n, sizeof *replies);

    if (f == NULL || replies == NULL) {
        free(f);
        free(replies);
        return NULL;
    }
    f->n = n;
    f->replies = replies;
    for (size_t i = 0; i < n; i++) {
        f->parts[i].fanout = f;
        f->parts[i].reply = &replies[i];
        f->parts[i].call = parts[i];
        memset(&parts[i].request, 0, sizeof parts[i].request);
    }
    return f;
}

int upstream_fanout_start(struct upstream_fanout **out, struct http_client *c,
                          struct upstream_call *parts, size_t n, upstream_fanout_done_fn *done,
                          void *arg, struct err *e)
{
    struct upstream_fanout *f = upstream_fanout_new(parts, n);

    if (f == NULL) {
        for (size_t i = 0; i < n; i++)
            api_request_fini(&parts[i].request);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for requests to %zu upstreams", n);
    }
    f->client = c;
    f->done = done;
    f->arg = arg;
    f->began_us = f->good_us = clock_now_us();
    for (size_t i = 0; i < n; i++) {
        f->replies[i].good = f->parts[i].call.request.method == NULL;
        f->n_good += f->replies[i].good;
        if (f->replies[i].good)
            continue;
        f->n_left++;
        if (part_start(&f->parts[i], e) != 0) {
            upstream_fanout_cancel(f);
            return -1;
        }
    }
    *out = f->n_left > 0 ? f : NULL;
    if (f->n_left == 0) {
        f->n_left = 1;
        part_ended(f);
    }
    return 0;
}

static bool is_late(const struct part *p)
{
    const struct upstream_fanout *f = p->fanout;

    return p->call.late_us > 0 && f->n_good >= p->call.n_enough &&
           clock_now_us() >= f->good_us + p->call.late_us;
}

/* @late  it is; else it is down */
static void part_give_up(struct part *p, bool late)
{
    http_cancel(p->http_call);
    p->http_call = NULL;
    p->reply->status = 0;
    p->reply->good = false;
    p->reply->sent = true; /* as far as is known */
    if (late)
        (void)err_set(&p->reply->why, ERR_UNSYNCED, "",
                      "it did not answer %s within %.1f s of the others, which are enough "
                      "(--min-ready)",
                      p->call.request.path, (double)p->call.late_us / 1e6);
    else
        (void)err_set(&p->reply->why, ERR_UNSYNCED, "",
                      "it went down, or was given up, before it answered %s", p->call.request.path);
}

void upstream_fanout_give_up(struct upstream_fanout *f,
                             bool (*is_down)(void *arg, const struct upstream_call *part),
                             void *arg)
{
    size_t n_ended = 0;

    for (size_t i = 0; i < f->n; i++) {
        struct part *p = &f->parts[i];

        if (p->http_call == NULL ||
            !(is_late(p) ||
              (clock_now_us() >= f->began_us + p->call.given_up_us && is_down(arg, &p->call))))
            continue;
        part_give_up(p, is_late(p));
        part_tell(p);
        n_ended++;
    }
    while (n_ended-- > 0)
        part_ended(f);
}
