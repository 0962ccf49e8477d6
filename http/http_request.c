/* One request, shared by the HTTP server's loop and the thread that answers it.
 *
 * The lock is held for moves and copies of at most one network buffer; the HTTP server is woken
 * under it, which is what makes http_request_detach final. Rejected: letting the answering thread
 * queue the response itself, which would run libmicrohttpd's state machine on a second thread. */
#include "http/http_request.h"

#include "base/clock.h"
#include "base/mtx.h"
#include "http/http_request_priv.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { STOP_POLL_US = 100 * 1000, STREAM_CAP_MIN = 1024 };

struct http_request_box {
    struct http_request x;
    struct http_request_private priv;
};

static char empty[1]; /* never written: every "" of a request */

const char *http_request_method_name(enum http_request_method m)
{
    switch (m) {
    case METHOD_GET:
        return "GET";
    case METHOD_HEAD:
        return "HEAD";
    case METHOD_POST:
        return "POST";
    case METHOD_PUT:
        return "PUT";
    case METHOD_DELETE:
        return "DELETE";
    case METHOD_OTHER:
        break;
    }
    return "OTHER";
}

const char *http_request_query(const struct http_request *x, const char *name)
{
    for (size_t i = 0; i < x->n_query; i++)
        if (strcmp(x->query[i].name, name) == 0)
            return x->query[i].value;
    return NULL;
}

void http_reply_header(struct http_reply *r, const char *name, const char *fmt, ...)
{
    struct http_request_header *h;
    va_list ap;

    assert(r->n_headers < HTTP_REQUEST_HEADERS_MAX);
    h = &r->headers[r->n_headers++];
    h->name = name;
    va_start(ap, fmt);
    (void)vsnprintf(h->value, sizeof h->value, fmt, ap);
    va_end(ap);
}

void http_reply_header_text(struct http_reply *r, const char *name, const char *text)
{
    char value[HTTP_REQUEST_HEADER_VALUE_MAX + 1];
    size_t len = 0;

    for (; *text != '\0' && len + 3 < sizeof value; text++) {
        bool plain = *text > ' ' && *text < 0x7f && *text != '%';

        len += (size_t)snprintf(value + len, sizeof value - len, plain ? "%c" : "%%%02X",
                                (unsigned)(unsigned char)*text);
    }
    value[len] = '\0';
    http_reply_header(r, name, "%s", value);
}

int http_request_new(struct http_request **out, struct http_request_http_server *http_server,
                     struct err *e)
{
    struct http_request_box *box = calloc(1, sizeof *box);

    if (box == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a request");
    mtx_init(&box->priv.lock, MTX_HTTP_REQUEST);
    cnd_init(&box->priv.body_moved);
    box->priv.http_server = http_server;
    atomic_init(&box->priv.n_refs, 1);
    box->x.priv = &box->priv;
    box->x.path = box->x.target = box->x.content_type = box->x.authorization = empty;
    box->x.accept = empty;
    box->x.session_id = box->x.last_event_id = box->x.host = empty;
    box->x.range = box->x.if_range = empty;
    box->x.path_arg = box->x.body = empty;
    box->x.began_us = clock_now_us();
    *out = &box->x;
    return 0;
}

struct http_request *http_request_ref(struct http_request *x)
{
    (void)atomic_fetch_add_explicit(&x->priv->n_refs, 1, memory_order_relaxed);
    return x;
}

static void reply_release(const struct http_reply *r)
{
    if (r->release != NULL)
        r->release(r->release_arg);
}

void http_request_unref(struct http_request *x)
{
    struct http_request_private *p;

    if (x == NULL)
        return;
    p = x->priv;
    /* acq_rel: the last one out sees everything that the others wrote. */
    if (atomic_fetch_sub_explicit(&p->n_refs, 1, memory_order_acq_rel) != 1)
        return;
    assert(p->reader == NULL);
    if (p->reply_held)
        reply_release(&p->reply);
    free(p->unsent);
    free(p->strings);
    free(x->error);
    if (x->body != empty)
        free(x->body);
    cnd_fini(&p->body_moved);
    mtx_fini(&p->lock);
    free(x); /* first member of its box */
}

void http_request_drop_body(struct http_request *x)
{
    if (x->body != empty)
        free(x->body);
    x->body = empty;
    x->body_len = 0;
}

void http_request_note_error(struct http_request *x, const struct err *e)
{
    struct http_request_private *p = x->priv;

    mtx_lock(&p->lock);
    if (!p->detached && x->error == NULL) {
        x->error = malloc(sizeof *x->error);
        if (x->error != NULL)
            *x->error = *e;
    }
    mtx_unlock(&p->lock);
}

static void wake_locked(struct http_request_private *p)
{
    mtx_assert_held(&p->lock);
    p->paused = false;
    if (p->http_server != NULL)
        p->http_server->wake(p->http_server);
}

static void gone_locked(struct http_request_private *p)
{
    void (*fn)(void *arg) = p->on_gone;

    p->gone = true;
    cnd_broadcast(&p->body_moved);
    p->on_gone = NULL;
    if (fn != NULL)
        fn(p->on_gone_arg);
}

void http_request_mark_disconnected(struct http_request *x)
{
    mtx_lock(&x->priv->lock);
    if (!x->priv->gone)
        gone_locked(x->priv);
    mtx_unlock(&x->priv->lock);
}

void http_request_detach(struct http_request *x, bool sent)
{
    struct http_request_private *p = x->priv;

    mtx_lock(&p->lock);
    p->http_server = NULL;
    p->detached = true;
    if (!sent && !p->gone)
        gone_locked(p);
    mtx_unlock(&p->lock);
}

enum http_request_answer http_request_answered(struct http_request *x)
{
    enum http_request_answer answer;

    mtx_lock(&x->priv->lock);
    answer = x->priv->answer;
    mtx_unlock(&x->priv->lock);
    return answer;
}

static void hold_reply_locked(struct http_request_private *p, const struct http_reply *r)
{
    assert(p->answer == ANSWER_NONE);
    p->answer = ANSWER_REPLY;
    p->reply = *r;
    p->reply_held = true;
    p->on_gone = NULL;
}

void http_request_refuse(struct http_request *x, const struct http_reply *r)
{
    mtx_lock(&x->priv->lock);
    hold_reply_locked(x->priv, r);
    mtx_unlock(&x->priv->lock);
}

void http_reply(struct http_request *x, const struct http_reply *r)
{
    struct http_request_private *p = x->priv;
    bool detached;

    mtx_lock(&p->lock);
    hold_reply_locked(p, r);
    detached = p->http_server == NULL;
    if (detached)
        p->reply_held = false;
    else
        wake_locked(p);
    mtx_unlock(&p->lock);
    if (detached)
        reply_release(r);
    http_request_unref(x);
}

void http_reply_take(struct http_request *x, struct http_reply *out)
{
    struct http_request_private *p = x->priv;

    mtx_lock(&p->lock);
    assert(p->answer == ANSWER_REPLY && p->reply_held);
    *out = p->reply;
    p->reply_held = false;
    mtx_unlock(&p->lock);
}

void http_request_stream_open_as(struct http_request *x, const struct http_reply *head)
{
    struct http_request_private *p = x->priv;

    assert(head->len == 0 && head->release == NULL);
    mtx_lock(&p->lock);
    assert(p->answer == ANSWER_NONE);
    p->answer = ANSWER_STREAM;
    p->reply = *head;
    wake_locked(p);
    mtx_unlock(&p->lock);
}

void http_request_stream_open(struct http_request *x, int status, const char *content_type)
{
    struct http_reply head = {.status = status, .content_type = content_type};

    http_request_stream_open_as(x, &head);
}

/* Makes room for `len` more unsent bytes; false when that would pass the bound or memory is out. */
static bool unsent_reserve_locked(struct http_request_private *p, size_t len)
{
    size_t have = p->unsent_end - p->unsent_head;
    size_t cap = p->unsent_cap > STREAM_CAP_MIN ? p->unsent_cap : STREAM_CAP_MIN;
    char *data;

    if (len > 0 && have >= HTTP_REQUEST_STREAM_NBYTES_MAX)
        return false;
    if (p->unsent_head > 0) {
        memmove(p->unsent, p->unsent + p->unsent_head, have);
        p->unsent_head = 0;
        p->unsent_end = have;
    }
    if (have + len <= p->unsent_cap)
        return true;
    while (cap < have + len)
        cap *= 2;
    data = realloc(p->unsent, cap);
    if (data == NULL)
        return false;
    p->unsent = data;
    p->unsent_cap = cap;
    return true;
}

size_t http_request_stream_unsent(struct http_request *x)
{
    struct http_request_private *p = x->priv;
    size_t n;

    mtx_lock(&p->lock);
    n = p->unsent_end - p->unsent_head + p->unsent_kept;
    mtx_unlock(&p->lock);
    return n;
}

int http_request_stream_write(struct http_request *x, const void *data, size_t len)
{
    struct http_request_private *p = x->priv;
    int rc = -1;

    mtx_lock(&p->lock);
    assert(p->answer == ANSWER_STREAM && !p->stream_closed);
    if (p->gone || p->http_server == NULL || p->stream_failed)
        goto out;
    if (p->unsent_cap - p->unsent_end < len && !unsent_reserve_locked(p, len)) {
        p->stream_failed = true;
        wake_locked(p);
        goto out;
    }
    if (len > 0)
        memcpy(p->unsent + p->unsent_end, data, len);
    p->unsent_end += len;
    if (p->paused)
        wake_locked(p);
    rc = 0;
out:
    mtx_unlock(&p->lock);
    return rc;
}

void http_request_stream_close(struct http_request *x, bool complete)
{
    struct http_request_private *p = x->priv;

    mtx_lock(&p->lock);
    assert(p->answer == ANSWER_STREAM && !p->stream_closed);
    p->stream_closed = true;
    p->stream_complete = complete;
    p->on_gone = NULL;
    p->on_drained = NULL;
    if (p->paused)
        wake_locked(p);
    mtx_unlock(&p->lock);
    http_request_unref(x);
}

/* Should the writer be notified that there is space again? */
static void drained_locked(struct http_request_private *p)
{
    void (*fn)(void *arg) = p->on_drained;

    if (fn == NULL || p->gone || p->unsent_end - p->unsent_head + p->unsent_kept > p->drained_most)
        return;
    p->on_drained = NULL;
    fn(p->on_drained_arg);
}

void http_request_on_drained(struct http_request *x, size_t most, void (*fn)(void *arg), void *arg)
{
    struct http_request_private *p = x->priv;

    mtx_lock(&p->lock);
    assert(p->answer == ANSWER_STREAM && !p->stream_closed);
    p->on_drained = fn;
    p->on_drained_arg = arg;
    p->drained_most = most;
    drained_locked(p);
    mtx_unlock(&p->lock);
}

enum http_request_stream_state http_request_stream_take(struct http_request *x, char *out,
                                                        size_t cap, size_t *n)
{
    struct http_request_private *p = x->priv;
    enum http_request_stream_state state = STREAM_BYTES;
    size_t have;

    mtx_lock(&p->lock);
    have = p->unsent_end - p->unsent_head;
    *n = have < cap ? have : cap;
    if (p->stream_failed || p->gone) {
        state = STREAM_CUT;
    } else if (have > 0) {
        memcpy(out, p->unsent + p->unsent_head, *n);
        p->unsent_head += *n;
        if (p->unsent_head == p->unsent_end)
            p->unsent_head = p->unsent_end = 0;
        drained_locked(p);
    } else if (p->stream_closed) {
        state = p->stream_complete ? STREAM_END : STREAM_CUT;
    } else {
        p->paused = true;
        state = STREAM_EMPTY;
    }
    mtx_unlock(&p->lock);
    return state;
}

void http_request_stream_kept(struct http_request *x, size_t n)
{
    struct http_request_private *p = x->priv;
    char *empty_one = NULL;

    mtx_lock(&p->lock);
    p->unsent_kept = n;
    if (n > 0 && p->unsent_end == p->unsent_head) { /* the HTTP server has its content now */
        empty_one = p->unsent;
        p->unsent = NULL;
        p->unsent_head = p->unsent_end = p->unsent_cap = 0;
    }
    drained_locked(p);
    mtx_unlock(&p->lock);
    free(empty_one);
}

bool http_request_disconnected(struct http_request *x)
{
    bool gone;

    mtx_lock(&x->priv->lock);
    gone = x->priv->gone;
    mtx_unlock(&x->priv->lock);
    return gone;
}

void http_request_on_disconnect(struct http_request *x, void (*fn)(void *arg), void *arg)
{
    struct http_request_private *p = x->priv;

    mtx_lock(&p->lock);
    p->on_gone = fn;
    p->on_gone_arg = arg;
    if (p->gone)
        gone_locked(p);
    mtx_unlock(&p->lock);
}

static void reader_took_locked(struct http_request_private *p, struct http_request_reader *r,
                               size_t n)
{
    r->dst += n;
    r->left -= n;
    p->body_taken += n;
    p->body_moved_us = clock_now_us();
    if (r->left == 0)
        cnd_broadcast(&p->body_moved);
}

size_t http_request_body_receive(struct http_request *x, int fd, size_t n)
{
    struct http_request_private *p = x->priv;
    struct http_request_reader *r;
    ssize_t got = 0;

    mtx_lock(&p->lock);
    r = p->reader;
    if (r != NULL && !r->to_end && r->left > 0)
        got = recvfrom(fd, r->dst, r->left < n ? (size_t)r->left : n, MSG_DONTWAIT, NULL, NULL);
    if (got > 0)
        reader_took_locked(p, r, (size_t)got);
    mtx_unlock(&p->lock);
    return got > 0 ? (size_t)got : 0;
}

size_t http_request_body_feed(struct http_request *x, const void *data, size_t n)
{
    struct http_request_private *p = x->priv;
    struct http_request_reader *r;
    size_t take = 0;

    mtx_lock(&p->lock);
    r = p->reader;
    if (r != NULL && r->to_end) {
        r->surplus = true;
        cnd_broadcast(&p->body_moved);
    } else if (r != NULL && r->left > 0) {
        take = r->left < n ? (size_t)r->left : n;
        memcpy(r->dst, data, take);
        reader_took_locked(p, r, take);
    }
    p->paused = take < n;
    mtx_unlock(&p->lock);
    return take;
}

void http_request_body_over(struct http_request *x)
{
    mtx_lock(&x->priv->lock);
    x->priv->body_ended = true;
    cnd_broadcast(&x->priv->body_moved);
    mtx_unlock(&x->priv->lock);
}

uint64_t http_request_body_taken(struct http_request *x)
{
    uint64_t n;

    mtx_lock(&x->priv->lock);
    n = x->priv->body_taken;
    mtx_unlock(&x->priv->lock);
    return n;
}

struct read_limits {
    uint64_t stall_us, deadline_us;
    bool (*stop)(void *arg);
    void *stop_arg;
};

enum read_end {
    READ_DONE,
    READ_GONE,
    READ_ENDED,
    READ_SURPLUS,
    READ_STALLED,
    READ_LATE,
    READ_STOPPED
};

/* Has the read ended? Sets *how. */
static bool read_over_locked(const struct http_request_private *p,
                             const struct http_request_reader *r, enum read_end *how)
{
    if (r->to_end ? p->body_ended : r->left == 0)
        *how = READ_DONE;
    else if (r->surplus)
        *how = READ_SURPLUS;
    else if (p->gone || p->http_server == NULL)
        *how = READ_GONE;
    else if (p->body_ended)
        *how = READ_ENDED;
    else
        return false;
    return true;
}

/* When to look again, or *how when a limit has passed. */
static bool read_late_locked(const struct http_request_private *p, const struct read_limits *lim,
                             uint64_t *until_us, enum read_end *how)
{
    uint64_t now = clock_now_us();
    uint64_t stalled = p->body_moved_us + lim->stall_us;

    if (stalled < p->body_moved_us)
        stalled = CLOCK_NEVER;
    if (now >= lim->deadline_us)
        *how = READ_LATE;
    else if (now >= stalled)
        *how = READ_STALLED;
    else {
        *until_us = now + STOP_POLL_US;
        if (lim->deadline_us < *until_us)
            *until_us = lim->deadline_us;
        if (stalled < *until_us)
            *until_us = stalled;
        return false;
    }
    return true;
}

/* Registers `r`, waits until it is filled or has failed, and removes it. */
static enum read_end read_wait(struct http_request_private *p, struct http_request_reader *r,
                               const struct read_limits *lim)
{
    enum read_end how = READ_STOPPED;
    uint64_t until_us;
    bool stopped;

    mtx_lock(&p->lock);
    assert(p->reader == NULL);
    p->reader = r;
    p->body_moved_us = clock_now_us();
    if (p->paused)
        wake_locked(p);
    while (!read_over_locked(p, r, &how) && !read_late_locked(p, lim, &until_us, &how)) {
        (void)cnd_wait(&p->body_moved, &p->lock, until_us);
        if (lim->stop == NULL)
            continue;
        mtx_unlock(&p->lock);
        stopped = lim->stop(lim->stop_arg);
        mtx_lock(&p->lock);
        if (stopped) {
            how = READ_STOPPED;
            break;
        }
    }
    p->reader = NULL;
    mtx_unlock(&p->lock);
    return how;
}

static int read_result(const struct http_request_reader *r, enum read_end how,
                       const struct read_limits *lim, struct err *e)
{
    unsigned long long left = r->left;

    switch (how) {
    case READ_DONE:
        return 0;
    case READ_GONE:
        return err_set(e, ERR_GONE, "", "the client went away with %llu bytes of its body missing",
                       left);
    case READ_ENDED:
        return err_set(e, ERR_UNREADABLE, "", "the body ended early: %llu bytes are missing", left);
    case READ_SURPLUS:
        return err_set(e, ERR_UNREADABLE, "", "the body has more bytes than were declared");
    case READ_STALLED:
        return err_set(e, ERR_TIMEOUT, "", "no byte of the body came for %llu ms, %llu are missing",
                       (unsigned long long)(lim->stall_us / 1000), left);
    case READ_LATE:
        return err_set(e, ERR_TIMEOUT, "",
                       "the deadline passed with %llu bytes of the body missing", left);
    case READ_STOPPED:
        break;
    }
    return err_set(e, ERR_CONFLICT, "", "stopped with %llu bytes of the body missing", left);
}

int http_request_body_read(struct http_request *x, void *dst, uint64_t nbytes, uint64_t stall_us,
                           uint64_t deadline_us, bool (*stop)(void *arg), void *stop_arg,
                           struct err *e)
{
    struct http_request_reader r = {.dst = dst, .left = nbytes};
    struct read_limits lim = {stall_us, deadline_us, stop, stop_arg};

    mtx_assert_none();
    return read_result(&r, read_wait(x->priv, &r, &lim), &lim, e);
}

int http_request_body_end(struct http_request *x, uint64_t stall_us, uint64_t deadline_us,
                          struct err *e)
{
    struct http_request_reader r = {.to_end = true};
    struct read_limits lim = {stall_us, deadline_us, NULL, NULL};

    mtx_assert_none();
    return read_result(&r, read_wait(x->priv, &r, &lim), &lim, e);
}
