/* A connection: HTTP/1.1 in, a reply out, and the fault of the request in between. A client that
 * closes its side counts as disconnected.
 *
 * A connection that ends during an iteration is freed at its end, so that callers still have it. */
#include "tests/fakes/engine.h"

#include "base/clock.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READ_NBYTES = 64 << 10, KEPT_NBYTES_MAX = 4096 };

static void on_timer(void *arg);
static void take_requests(struct conn *c);

void conn_accept(struct engine *e, int fd)
{
    struct conn *c = must(calloc(1, sizeof *c));
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};

    c->e = e;
    c->fd = fd;
    c->id = ++e->n_accepted;
    c->events = event.events;
    c->timer = (struct timer){.fire = on_timer, .arg = c};
    c->next = e->conns;
    c->prev_next = &e->conns;
    if (c->next != NULL)
        c->next->prev_next = &c->next;
    e->conns = c;
    e->n_conns++;
    if (epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        conn_end(c, "no epoll");
}

static void watch(struct conn *c, bool writable)
{
    uint32_t events = EPOLLIN | EPOLLRDHUP | (writable ? EPOLLOUT : 0);
    struct epoll_event event = {.events = events, .data.ptr = c};

    if (events == c->events)
        return;
    c->events = events;
    (void)epoll_ctl(c->e->epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

void conn_arm(struct conn *c, enum step step, uint64_t due_us)
{
    c->step = step;
    timer_set(c->e, &c->timer, due_us);
}

static void disarm(struct conn *c)
{
    c->step = STEP_NONE;
    timer_cancel(c->e, &c->timer);
}

static void close_socket(struct conn *c)
{
    struct linger now = {.l_onoff = 1};

    if (c->fd < 0)
        return;
    if (c->fault != NULL && c->fault->reset)
        (void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    (void)close(c->fd);
    c->fd = -1;
}

/* The request is over, however it ended. */
static void request_over(struct conn *c, const char *how)
{
    job_free(c);
    journal_end(c, how);
    if (c->entry != NULL)
        c->entry->conn = NULL;
    c->entry = NULL;
    free(c->req.text);
    memset(&c->req, 0, sizeof c->req);
    c->busy = c->own = c->whole = c->held = c->draining = false;
    c->fault = NULL;
    c->route = NULL;
}

void conn_end(struct conn *c, const char *how)
{
    if (c->dead)
        return;
    c->dead = true;
    disarm(c);
    close_socket(c);
    if (c->busy)
        request_over(c, how);
    buf_fini(&c->in);
    buf_fini(&c->out);
    c->next_dead = c->e->dead;
    c->e->dead = c;
}

/* The client disconnected. A request that acts late acts all the same. */
static void client_left(struct conn *c)
{
    if (!c->busy || c->step != STEP_ACT) {
        conn_end(c, "client_left");
        return;
    }
    journal_end(c, "client_left");
    close_socket(c);
}

/* requests */

const char *request_header(const struct request *r, const char *name, size_t *len)
{
    const char *at = r->headers, *end = r->headers + r->headers_len;
    size_t name_len = strlen(name);

    while (at < end) {
        const char *eol = memchr(at, '\r', (size_t)(end - at));

        eol = eol != NULL ? eol : end;
        if ((size_t)(eol - at) > name_len && at[name_len] == ':' &&
            strncasecmp(at, name, name_len) == 0) {
            at += name_len + 1;
            while (at < eol && *at == ' ')
                at++;
            *len = (size_t)(eol - at);
            return at;
        }
        at = eol + 2;
    }
    return NULL;
}

static bool header_is(const struct request *r, const char *name, const char *value)
{
    size_t len;
    const char *at = request_header(r, name, &len);

    return at != NULL && len == strlen(value) && strncasecmp(at, value, len) == 0;
}

bool request_query(const struct request *r, const char *name, char *out, size_t cap)
{
    size_t len = strlen(name);

    for (const char *at = r->query; *at != '\0';) {
        size_t n = strcspn(at, "&");

        if (n > len && at[len] == '=' && strncmp(at, name, len) == 0) {
            (void)snprintf(out, cap, "%.*s", (int)(n - len - 1), at + len + 1);
            return true;
        }
        at += n + (at[n] == '&');
    }
    return false;
}

/* "METHOD TARGET HTTP/1.x" in place. */
static bool parse_line(struct request *r, char *line, char *eol)
{
    char *target, *version, *query;

    for (const char *at = line; at < eol; at++)
        if (*at < ' ' || *at > '~')
            return false;
    *eol = '\0';
    target = strchr(line, ' ');
    version = target != NULL ? strchr(target + 1, ' ') : NULL;
    if (version == NULL || strncmp(version + 1, "HTTP/1.", 7) != 0 || target[1] != '/')
        return false;
    *target++ = *version++ = '\0';
    query = strchr(target, '?');
    if (query != NULL)
        *query++ = '\0';
    r->method = line;
    r->path = target;
    r->query = query != NULL ? query : "";
    r->http10 = strcmp(version, "HTTP/1.0") == 0;
    return true;
}

/* Reads the length of the body. False: the request is not supported. */
static bool body_length(struct conn *c, const char *head, size_t head_len, size_t *out)
{
    const char *eol = memchr(head, '\r', head_len), *value;
    struct request r = {.headers = eol + 2, .headers_len = (size_t)(head + head_len - eol) - 2};
    size_t len, n = 0;

    *out = 0;
    if (request_header(&r, "Transfer-Encoding", &len) != NULL)
        return false;
    value = request_header(&r, "Content-Length", &len);
    for (size_t i = 0; value != NULL && i < len; i++) {
        if (!isdigit((unsigned char)value[i]) || n > BODY_NBYTES_MAX)
            return false;
        n = n * 10 + (size_t)(value[i] - '0');
    }
    if (n > BODY_NBYTES_MAX)
        return false;
    if (c->in.len == head_len + 2 && n > 0 && header_is(&r, "Expect", "100-continue"))
        buf_puts(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
    *out = n;
    return true;
}

/* 1: c->req is the next request. 0: incomplete. -1: not supported HTTP. */
static int take_request(struct conn *c)
{
    const char *end = memmem(c->in.data, c->in.len, "\r\n\r\n", 4);
    size_t head_len, body_len;
    struct request *r = &c->req;
    char *eol;

    if (end == NULL)
        return c->in.len > HEAD_NBYTES_MAX ? -1 : 0;
    head_len = (size_t)(end - c->in.data) + 2;
    if (head_len > HEAD_NBYTES_MAX || !body_length(c, c->in.data, head_len, &body_len))
        return -1;
    if (c->in.len < head_len + 2 + body_len)
        return 0;
    r->text = must(malloc(head_len + 2 + body_len + 1));
    memcpy(r->text, c->in.data, head_len + 2 + body_len);
    r->text[head_len + 2 + body_len] = '\0';
    eol = memmem(r->text, head_len, "\r\n", 2); /* there is one: the head ends so */
    r->headers = eol + 2;
    r->headers_len = (size_t)(r->text + head_len - r->headers);
    r->body = r->text + head_len + 2;
    r->body_len = body_len;
    if (!parse_line(r, r->text, eol)) {
        free(r->text);
        r->text = NULL;
        return -1;
    }
    r->close = r->http10 || header_is(r, "Connection", "close");
    c->in.len -= head_len + 2 + body_len;
    memmove(c->in.data, c->in.data + head_len + 2 + body_len, c->in.len);
    if (c->in.len == 0 && c->in.cap > KEPT_NBYTES_MAX)
        buf_fini(&c->in);
    return 1;
}

/* acting */

static const struct route *find_route(const struct conn *c)
{
    const struct route *const tables[] = {data_routes, baton_routes, vllm_routes, sglang_routes};

    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        for (const struct route *r = tables[i]; r->path != NULL; r++)
            if ((r->dialects & c->e->o.dialect) != 0 && strcmp(r->path, c->req.path) == 0 &&
                strcmp(r->method, c->req.method) == 0)
                return r;
    return NULL;
}

static bool key_is_right(const struct conn *c)
{
    static const char scheme[] = "Bearer ";
    const char *key = c->e->o.key, *given;
    size_t len;

    if (key == NULL || strcmp(c->req.path, "/health") == 0)
        return true;
    given = request_header(&c->req, "Authorization", &len);
    return given != NULL && len == sizeof scheme - 1 + strlen(key) &&
           memcmp(given, scheme, sizeof scheme - 1) == 0 &&
           memcmp(given + sizeof scheme - 1, key, strlen(key)) == 0;
}

static void act(struct conn *c)
{
    json_t *body;

    if (c->fd < 0 && c->route != NULL && c->route->data) {
        conn_end(c, "client_left"); /* an engine starts no request without a client */
        return;
    }
    if (c->entry != NULL)
        c->entry->executed = true;
    if (!key_is_right(c)) {
        conn_refuse(c, 401, "unauthorized", "the key is missing or wrong");
    } else if (c->route == NULL) {
        conn_refuse(c, 404, "not_found", "there is no route %s %s", c->req.method, c->req.path);
    } else if (header_is(&c->req, "Content-Type", "application/vnd.safetensors")) {
        body = must(json_pack("{s:b}", "is_tensors", 1));
        c->route->handle(c, body);
        json_decref(body);
    } else {
        body = c->req.body_len == 0 ? json_object()
                                    : json_loadb(c->req.body, c->req.body_len, 0, NULL);
        if (json_is_object(body))
            c->route->handle(c, body);
        else
            conn_refuse(c, 400, "bad_request", "the body is no JSON object");
        json_decref(body);
    }
}

/* What a fault does before the request acts. False: it is taken care of. */
static bool fault_before(struct conn *c)
{
    const struct fault *f = c->fault;

    switch (f != NULL ? f->kind : FAULT_NONE) {
    case FAULT_HANG:
        return f->acts;
    case FAULT_CLOSE_BEFORE:
        conn_end(c, "closed");
        return false;
    case FAULT_STATUS:
        if (!f->acts)
            conn_reply(c, f->status, "application/json", f->text, strlen(f->text));
        return f->acts;
    case FAULT_RAW:
        buf_puts(&c->out, f->text);
        c->close = c->whole = true;
        conn_flush(c);
        return false;
    case FAULT_LATE:
        conn_arm(c, STEP_ACT, clock_after_us(f->ms * 1000));
        return false;
    case FAULT_RESTART:
        engine_restart(c->e, f->ms);
        return false;
    default:
        return true;
    }
}

static bool body_has(const struct conn *c, const char *text)
{
    return memmem(c->req.body, c->req.body_len, text, strlen(text)) != NULL;
}

/* Setting a label is one op, except baton's marker before an update, which is "mark". A generation
 * whose answer has the log-probabilities of its prompt is "canary". */
static const char *op_of(const struct conn *c)
{

    if (c->route == NULL)
        return "";
    if (strcmp(c->route->path, "/update_weight_version") == 0 && body_has(c, "\"baton:unfinished:"))
        return "mark";
    if (c->route->data &&
        (body_has(c, "\"prompt_logprobs\":1") || body_has(c, "\"logprob_start_len\":0")))
        return "canary";
    return c->route->op;
}

static void begin(struct conn *c)
{
    const char *op;

    disarm(c);
    c->busy = true;
    c->close = c->req.close;
    c->n_requests++;
    if (own_route(c))
        return;
    c->e->n_requests++;
    c->route = find_route(c);
    op = op_of(c);
    c->entry = journal_add(c, op);
    c->fault = fault_take(c->e, op, &c->req);
    if (c->entry != NULL && c->fault != NULL)
        c->entry->fault = fault_name(c->fault->kind);
    if (fault_before(c))
        act(c);
}

static void take_requests(struct conn *c)
{
    int found = 0;

    while (!c->dead && !c->busy && c->in.len > 0 && (found = take_request(c)) > 0)
        begin(c);
    if (c->dead)
        return;
    if (found < 0)
        conn_end(c, "no HTTP");
    else if (c->out.len > c->sent)
        conn_flush(c);
}

/* answers */

static const char *reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } known[] = {{200, "OK"},
                 {302, "Found"},
                 {400, "Bad Request"},
                 {401, "Unauthorized"},
                 {404, "Not Found"},
                 {409, "Conflict"},
                 {422, "Unprocessable Entity"},
                 {429, "Too Many Requests"},
                 {500, "Internal Server Error"},
                 {503, "Service Unavailable"}};

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].status == status)
            return known[i].text;
    return "Ordered";
}

static void put_head(struct conn *c, int status, const char *type)
{
    struct buf *b = &c->out;

    if (c->entry != NULL)
        c->entry->status = status;
    buf_printf(b, "HTTP/1.1 %d %s\r\n", status, reason(status));
    if (type != NULL)
        buf_printf(b, "Content-Type: %s\r\n", type);
    if (c->e->o.dialect == BATON)
        buf_printf(b, "X-Baton-Boot-Id: %s\r\n", c->e->boot_id);
    if (c->close)
        buf_puts(b, "Connection: close\r\n");
}

/* Applies a fault to the reply in c->out. */
static void fault_after(struct conn *c, size_t body_len)
{
    const struct fault *f = c->fault;

    switch (f != NULL ? f->kind : FAULT_NONE) {
    case FAULT_HANG:
        buf_fini(&c->out);
        return;
    case FAULT_CLOSE_AFTER:
        conn_end(c, "closed");
        return;
    case FAULT_STALL_STREAM:
    case FAULT_HALF_STREAM:
        if (body_len > 0)
            c->out.len -= body_len - body_len / 2;
        else
            c->out.len = c->sent + sizeof "HTTP/1.1" - 1; /* lenient clients take half a head */
        c->whole = c->close = f->kind == FAULT_HALF_STREAM;
        break;
    case FAULT_SLOW:
        c->whole = true;
        if (c->job != NULL)
            break; /* its first token was late already */
        c->held = true;
        conn_arm(c, STEP_ANSWER, clock_after_us(f->ms * 1000));
        return;
    case FAULT_WRONG_VERSION:
        state_commit(c->e, f->label);
        /* fall through */
    default:
        c->whole = true;
    }
    conn_flush(c);
}

void conn_reply(struct conn *c, int status, const char *type, const void *body, size_t len)
{
    c->draining = false;
    if (c->fault != NULL && c->fault->kind == FAULT_STATUS) {
        status = c->fault->status;
        body = c->fault->text;
        len = strlen(body);
    }
    put_head(c, status, len > 0 ? type : NULL);
    buf_printf(&c->out, "Content-Length: %zu\r\n\r\n", len);
    buf_append(&c->out, body, len);
    fault_after(c, len);
}

void conn_reply_text(struct conn *c, int status, const char *text)
{
    conn_reply(c, status, "text/plain; charset=utf-8", text, strlen(text));
}

void conn_reply_json(struct conn *c, int status, json_t *body)
{
    char *text = must(json_dumps(must(body), JSON_COMPACT | JSON_ENCODE_ANY));

    json_decref(body);
    conn_reply(c, status, "application/json", text, strlen(text));
    free(text);
}

/* "Not Found" is vLLM's NotFoundError. */
static void vllm_type(char *out, size_t cap, int status)
{
    size_t n = 0;

    for (const char *at = reason(status); *at != '\0' && n + 1 < cap; at++)
        if (*at != ' ')
            out[n++] = *at;
    out[n] = '\0';
    if (n < 5 || strcmp(out + n - 5, "Error") != 0)
        (void)snprintf(out + n, cap - n, "Error");
}

/* @param  JSON pointer of the wrong member, as a baton reports it; or NULL */
static void send_refusal(struct conn *c, int status, const char *code, const char *param,
                         const char *message)
{
    char type[64];
    json_t *body;

    if (c->entry != NULL)
        c->entry->executed = false;
    if (c->e->o.dialect == BATON) {
        body = json_pack("{s:{s:s, s:s, s:s, s:s?, s:b, s:n}}", "error", "message", message, "type",
                         "error", "code", code, "param", param, "retryable", status == 503,
                         "details");
    } else if (c->e->o.dialect == VLLM) {
        vllm_type(type, sizeof type, status);
        body = json_pack("{s:{s:s, s:s, s:n, s:i}}", "error", "message", message, "type", type,
                         "param", "code", status);
    } else if (c->route != NULL && !c->route->data) {
        body = json_pack("{s:b, s:s}", "success", 0, "message", message);
    } else {
        body = json_pack("{s:{s:s}}", "error", "message", message);
    }
    conn_reply_json(c, status, body);
}

void conn_refuse(struct conn *c, int status, const char *code, const char *fmt, ...)
{
    char message[512];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    send_refusal(c, status, code, NULL, message);
}

void conn_refuse_at(struct conn *c, int status, const char *code, const char *param,
                    const char *fmt, ...)
{
    char message[512];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    send_refusal(c, status, code, param, message);
}

void conn_stream_begin(struct conn *c, const char *type)
{
    put_head(c, 200, type);
    buf_puts(&c->out, c->req.http10 ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n");
}

void conn_chunk(struct conn *c, const void *data, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    char size[16];
    size_t at = sizeof size;

    if (c->req.http10) {
        buf_append(&c->out, data, len);
        return;
    }
    size[--at] = '\n';
    size[--at] = '\r';
    for (size_t n = len; n > 0; n >>= 4)
        size[--at] = digits[n & 15];
    buf_append(&c->out, size + at, sizeof size - at);
    buf_append(&c->out, data, len);
    buf_append(&c->out, "\r\n", 2);
}

void conn_stream_end(struct conn *c)
{
    if (!c->req.http10)
        buf_puts(&c->out, "0\r\n\r\n");
    c->whole = true;
}

/* sockets and timers */

static void answered(struct conn *c)
{
    bool cut = c->fault != NULL &&
               (c->fault->kind == FAULT_HALF_STREAM || c->fault->kind == FAULT_RAW);

    if (c->close) {
        conn_end(c, cut ? "closed" : "answered");
        return;
    }
    request_over(c, "answered");
    disarm(c);
    if (c->in.len > 0)
        conn_arm(c, STEP_NEXT, clock_now_us());
    else if (c->e->o.idle_us > 0)
        conn_arm(c, STEP_IDLE, clock_after_us(c->e->o.idle_us));
}

void conn_flush(struct conn *c)
{
    if (c->dead || c->held)
        return;
    while (c->fd >= 0 && c->sent < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + c->sent, c->out.len - c->sent, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            watch(c, true);
            return;
        }
        if (n < 0) {
            conn_end(c, "client_left");
            return;
        }
        c->sent += (size_t)n;
    }
    c->sent = c->out.len = 0;
    if (c->out.cap > KEPT_NBYTES_MAX)
        buf_fini(&c->out);
    if (c->fd < 0) {
        if (c->whole)
            conn_end(c, "client_left");
        return;
    }
    watch(c, false);
    if (c->busy && c->whole)
        answered(c);
}

static void on_timer(void *arg)
{
    struct conn *c = arg;
    enum step step = c->step;

    c->step = STEP_NONE;
    if (step == STEP_IDLE) {
        conn_end(c, NULL);
    } else if (step == STEP_NEXT) {
        take_requests(c);
    } else if (step == STEP_ACT) {
        act(c);
    } else if (step == STEP_ANSWER) {
        c->held = false;
        conn_flush(c);
    } else if (step == STEP_TOKEN) {
        job_tick(c);
    }
}

static void readable(struct conn *c)
{
    static char scratch[READ_NBYTES];
    ssize_t n;

    do {
        n = recv(c->fd, scratch, sizeof scratch, 0);
        if (n > 0)
            buf_append(&c->in, scratch, (size_t)n);
    } while (n == (ssize_t)sizeof scratch || (n < 0 && errno == EINTR));
    if (c->in.failed || c->in.len > HEAD_NBYTES_MAX + BODY_NBYTES_MAX + READ_NBYTES)
        conn_end(c, "too long");
    else if (n == 0 || (n < 0 && errno != EAGAIN))
        client_left(c);
    else if (!c->busy)
        take_requests(c);
}

void conn_ready(struct conn *c, uint32_t events)
{
    if (!c->dead && c->fd >= 0 && (events & ~(uint32_t)EPOLLOUT) != 0)
        readable(c);
    if (c->dead || c->fd < 0 || (events & EPOLLOUT) == 0)
        return;
    conn_flush(c);
    if (!c->dead && c->job != NULL && c->timer.at == 0 && c->out.len == 0)
        conn_arm(c, STEP_TOKEN, clock_now_us());
}
