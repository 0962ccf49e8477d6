/* libcurl registers the sockets and timers that it waits for (on_socket, on_timer), and is notified
 * when they are ready. Finished calls are collected outside of its callbacks only, because libcurl
 * must not be called from within one; calls started or cancelled in a callback wait until it has
 * returned (settle). */
#include "http/client/http.h"

#include "base/clock.h"
#include "http/client/http_priv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>

enum {
    WATCHES_EACH = 3,      /* a connection, and two ends of a name lookup */
    LENGTH_DIGITS_MAX = 18 /* of a Content-Length */
};

int http_init(struct err *e)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) == 0)
        return 0;
    return err_set(e, ERR_INTERNAL, "", "libcurl cannot start");
}

/* what libcurl waits for */

static void look_for_ends(struct http_client *c);

static void on_ready(void *arg, uint32_t events)
{
    struct watch *w = arg;
    struct http_client *c = w->client;
    int running, what = 0;

    what |= (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP)) != 0 ? CURL_CSELECT_IN : 0;
    what |= (events & EPOLLOUT) != 0 ? CURL_CSELECT_OUT : 0;
    what |= (events & EPOLLERR) != 0 ? CURL_CSELECT_ERR : 0;
    (void)curl_multi_socket_action(c->multi, w->loop.fd, what, &running);
    look_for_ends(c);
}

static void on_timer_due(void *arg)
{
    struct http_client *c = arg;
    int running;

    (void)curl_multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    look_for_ends(c);
}

static int on_timer(CURLM *multi, long timeout_ms, void *arg)
{
    struct http_client *c = arg;

    (void)multi;
    if (timeout_ms < 0)
        loop_timer_cancel(c->loop, &c->timer);
    else
        loop_timer_set(c->loop, &c->timer, clock_after_us((uint64_t)timeout_ms * 1000));
    return 0;
}

static void watch_off(struct http_client *c, struct watch *w)
{
    if (w->events != 0 && !w->held)
        loop_unwatch(c->loop, &w->loop);
    w->events = 0;
    w->held = false;
}

static void watch_drop(struct http_client *c, struct watch *w)
{
    watch_off(c, w);
    if (w->call != NULL)
        w->call->watch = NULL;
    w->call = NULL;
    w->next = c->spare;
    c->spare = w;
}

static uint32_t http_wanted(int what)
{
    uint32_t events = 0;

    if (what == CURL_POLL_IN || what == CURL_POLL_INOUT)
        events |= EPOLLIN;
    if (what == CURL_POLL_OUT || what == CURL_POLL_INOUT)
        events |= EPOLLOUT;
    return events;
}

/* There is always a spare watch: each call added as many as it can have sockets. */
static struct watch *watch_take(struct http_client *c, curl_socket_t fd)
{
    struct watch *w = c->spare;

    assert(w != NULL);
    c->spare = w->next;
    w->loop = (struct loop_watch){.ready = on_ready, .arg = w, .fd = fd};
    w->events = 0;
    (void)curl_multi_assign(c->multi, fd, w);
    return w;
}

/* The last socket that libcurl wants watched for a call is its connection. */
static void watch_give(struct watch *w, CURL *easy)
{
    void *call = NULL;

    (void)curl_easy_getinfo(easy, CURLINFO_PRIVATE, &call);
    if (call == NULL || w->call == call)
        return;
    if (w->call != NULL)
        w->call->watch = NULL;
    w->call = call;
    if (w->call->watch != NULL)
        w->call->watch->call = NULL;
    w->call->watch = w;
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *socket_arg)
{
    struct http_client *c = arg;
    struct watch *w = socket_arg;
    uint32_t events = http_wanted(what);
    struct err ignored = {0};

    if (what == CURL_POLL_REMOVE) {
        if (w != NULL)
            watch_drop(c, w);
        return 0;
    }
    if (w == NULL)
        w = watch_take(c, fd);
    watch_give(w, easy);
    if (w->events == events)
        return 0;
    watch_off(c, w);
    if (w->call != NULL && w->call->hold) {
        w->events = events;
        w->held = events != 0;
        return 0;
    }
    if (events != 0 && loop_watch(c->loop, &w->loop, events, &ignored) != 0)
        return -1; /* the kernel has no memory: libcurl ends the running calls */
    w->events = events;
    return 0;
}

/* what comes */

static bool header_is(const char *line, size_t len, const char *name, const char **value,
                      size_t *value_len)
{
    size_t n = strlen(name);

    if (len <= n || line[n] != ':' || strncasecmp(line, name, n) != 0)
        return false;
    for (n++; n < len && (line[n] == ' ' || line[n] == '\t'); n++)
        continue;
    while (len > n && strchr(" \t\r\n", line[len - 1]) != NULL)
        len--;
    *value = line + n;
    *value_len = len - n;
    return true;
}

static void header_keep(char out[HTTP_VALUE_MAX], const char *value, size_t len)
{
    (void)snprintf(out, HTTP_VALUE_MAX, "%.*s", (int)(len < HTTP_VALUE_MAX ? len : HTTP_VALUE_MAX),
                   value);
    for (; *out != '\0'; out++) /* blanks, so that it may go into another answer's head */
        if ((unsigned char)*out < ' ' || *out == '\x7f')
            *out = ' ';
}

static void http_read_header(struct http_head *head, const char *line, size_t len)
{
    const char *value;
    size_t n;

    if (header_is(line, len, "Content-Type", &value, &n))
        header_keep(head->content_type, value, n);
    else if (header_is(line, len, "Content-Encoding", &value, &n))
        header_keep(head->content_encoding, value, n);
    else if (header_is(line, len, "Retry-After", &value, &n))
        header_keep(head->retry_after, value, n);
    else if (header_is(line, len, "X-Baton-Boot-Id", &value, &n))
        header_keep(head->boot_id, value, n);
    else if (header_is(line, len, "X-Baton-Weight-Version", &value, &n))
        header_keep(head->weight_version, value, n);
    else if (header_is(line, len, "ETag", &value, &n))
        header_keep(head->etag, value, n);
    else if (header_is(line, len, "Content-Range", &value, &n))
        header_keep(head->content_range, value, n);
}

/* The length and encoding of the body must be unambiguous: with a wrong end of one response, the
 * bytes behind it would be read as the next. */
static const char both[] = "it gave a length for a body in chunks";

static void read_coding(struct http_call *call, const char *line, size_t len)
{
    static const char chunked[] = "chunked", identity[] = "identity";
    const char *value;
    size_t n;

    if (!header_is(line, len, "Transfer-Encoding", &value, &n))
        return;
    if (n == sizeof identity - 1 && strncasecmp(value, identity, n) == 0)
        return;
    if (call->chunked || n != sizeof chunked - 1 || strncasecmp(value, chunked, n) != 0)
        call->odd = "its body is in a transfer coding that nobody asked for";
    else if (call->head.content_length >= 0)
        call->odd = both;
    call->chunked = true;
}

static void read_length(struct http_call *call, const char *line, size_t len)
{
    const char *value;
    int64_t length = 0;
    size_t n, i;

    if (!header_is(line, len, "Content-Length", &value, &n))
        return;
    for (i = 0; i < n && i < LENGTH_DIGITS_MAX && value[i] >= '0' && value[i] <= '9'; i++)
        length = length * 10 + (value[i] - '0');
    if (n == 0 || i < n)
        call->odd = "its Content-Length is no length";
    else if (call->head.content_length >= 0 && call->head.content_length != length)
        call->odd = "it gave two lengths for one body";
    else if (call->chunked)
        call->odd = both;
    call->head.content_length = length;
}

static bool begins_head(const char *line, size_t len)
{
    static const char version[] = "HTTP/";

    return len >= sizeof version - 1 && strncasecmp(line, version, sizeof version - 1) == 0;
}

/* An interim answer (100) has headers too; those of the last one count, and none that follow the
 * body. */
static size_t on_header(char *line, size_t size, size_t n, void *arg)
{
    struct http_call *call = arg;
    size_t len = size * n;

    call->head_nbytes += len;
    if (call->head_nbytes > HTTP_HEAD_NBYTES_MAX)
        return 0;
    if (call->told_head)
        return len;
    if (!call->in_head && !begins_head(line, len))
        return len;       /* a trailer, of a body without a byte */
    if (!call->in_head) { /* the name in a later line has no meaning */
        call->head = (struct http_head){.content_length = -1};
        call->chunked = false;
    } else {
        http_read_header(&call->head, line, len);
        read_length(call, line, len);
        read_coding(call, line, len);
    }
    call->in_head = line[0] != '\r' && line[0] != '\n';
    return call->odd == NULL ? len : 0;
}

/* Before the first byte of the body, or at an end without one. */
static void tell_head(struct http_call *call)
{
    curl_off_t length = -1;
    long status = 0;

    if (call->told_head)
        return;
    call->told_head = true;
    (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    (void)curl_easy_getinfo(call->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    call->head.status = (int)status;
    call->head.content_length = (int64_t)length;
    if (call->events.head != NULL)
        call->events.head(call->events.arg, &call->head);
}

static size_t http_call_on_data(char *data, size_t size, size_t n, void *arg)
{
    struct http_call *call = arg;
    size_t len = size * n;
    bool taken = false;

    assert(len <= HTTP_PIECE_NBYTES);
    call->depth++;
    call->client->depth++;
    if (!call->cancelled)
        tell_head(call);
    if (!call->cancelled)
        taken = call->events.data(call->events.arg, data, len);
    call->client->depth--;
    call->depth--;
    if (call->cancelled)
        return 0; /* ends the transfer */
    call->refused = !taken;
    return taken ? len : CURL_WRITEFUNC_PAUSE;
}

/* calls */

static void link_call(struct http_call *call)
{
    struct http_client *c = call->client;

    call->next = c->calls;
    call->prev_next = &c->calls;
    if (call->next != NULL)
        call->next->prev_next = &call->next;
    c->calls = call;
    c->n_calls++;
}

static void unlink_call(struct http_call *call)
{
    call->client->n_calls--;
    *call->prev_next = call->next;
    if (call->next != NULL)
        call->next->prev_next = call->prev_next;
}

/* Its connection is closed unless the response is complete. Not from within libcurl's callbacks.
 *
 * A handle is used once: libcurl 7.88 remembers the last header of an answer past its end and past
 * curl_easy_reset, and appends to its freed memory what a next answer begins with, if that is the
 * continuation of a line [lib/headers.c, unfold_value]. Making one costs a microsecond. */
static void call_free(struct http_call *call)
{
    unlink_call(call);
    (void)curl_multi_remove_handle(call->client->multi, call->easy);
    if (call->watch != NULL)
        call->watch->call = NULL;
    curl_slist_free_all(call->headers);
    curl_slist_free_all(call->connect_to);
    curl_easy_cleanup(call->easy);
    free(call);
}

/* Free it, and report how it ended unless it was cancelled. */
static void call_over(struct http_call *call, const struct http_end *end)
{
    struct http_events events = call->events;
    bool cancelled = call->cancelled;

    call_free(call);
    if (!cancelled)
        events.done(events.arg, end);
}

static void http_call_ended(struct http_call *call, CURLcode code)
{
    struct http_end end = {0};

    call->depth++;
    if (!call->cancelled && code == CURLE_OK && !call->in_head)
        tell_head(call);
    call->depth--;
    end.sent = http_sent(call);
    end.outcome = call_outcome(&(struct call_facts){.code = code,
                                                    .status = call->head.status,
                                                    .sent = end.sent,
                                                    .lacks = call_lacks(call, code)});
    call_describe(&end, call, code);
    call_over(call, &end);
}

static void put_off(struct http_call *call)
{
    call->client->n_later += !call->later;
    call->later = true;
}

/* Calls into libcurl that were not allowed in a callback. */
static void calls_settle(struct http_client *c)
{
    static const struct http_end no_memory = {.outcome = HTTP_NO_MEMORY};

    assert(c->depth == 0);
    while (c->n_later > 0) {
        struct http_call *call = c->calls;

        while (!call->later)
            call = call->next;
        call->later = false;
        c->n_later--;
        if (call->cancelled)
            call_free(call);
        else if (curl_multi_add_handle(c->multi, call->easy) != CURLM_OK)
            call_over(call, &no_memory);
    }
}

static void look_for_ends(struct http_client *c)
{
    const CURLMsg *msg;
    int left;

    calls_settle(c);
    while ((msg = curl_multi_info_read(c->multi, &left)) != NULL) {
        CURLcode code = msg->data.result;
        void *call = NULL;

        if (msg->msg != CURLMSG_DONE)
            continue;
        (void)curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &call);
        http_call_ended(call, code);
    }
}

static int http_add_header(struct http_call *call, const char *line)
{
    struct curl_slist *longer = curl_slist_append(call->headers, line);

    if (longer == NULL)
        return -1;
    call->headers = longer;
    return 0;
}

static int add_field(struct http_call *call, const char *name, const char *value)
{
    size_t cap = strlen(name) + strlen(value) + sizeof ": ";
    char *line = malloc(cap);
    int rc = -1;

    if (line == NULL)
        return -1;
    if (snprintf(line, cap, "%s: %s", name, value) == (int)cap - 1)
        rc = http_add_header(call, line);
    explicit_bzero(line, cap);
    free(line);
    return rc;
}

/* libcurl's own are taken out: an Expect would cost a round trip. */
static int set_headers(struct http_call *call, const struct http_call_request *req)
{
    bool typed = false;

    for (size_t i = 0; i < req->n_headers; i++)
        typed = typed || strcasecmp(req->headers[i].name, "Content-Type") == 0;
    if (http_add_header(call, "Expect:") != 0 || http_add_header(call, "Accept:") != 0 ||
        (!typed && http_add_header(call, "Content-Type:") != 0) ||
        (req->fresh && http_add_header(call, "Connection: close") != 0) ||
        (req->target->authorization != NULL &&
         add_field(call, "Authorization", req->target->authorization) != 0))
        return -1;
    for (size_t i = 0; i < req->n_headers; i++)
        if (add_field(call, req->headers[i].name, req->headers[i].value) != 0)
            return -1;
    return 0;
}

#define SET(call, option, value)                                                                   \
    do {                                                                                           \
        if (curl_easy_setopt((call)->easy, (option), (value)) != CURLE_OK)                         \
            return -1;                                                                             \
    } while (0)

static int set_where(struct http_call *call, const struct http_call_request *req)
{
    const char *url = req->target->url;
    bool local = strncmp(url, "unix:", 5) == 0;

    if (local)
        SET(call, CURLOPT_UNIX_SOCKET_PATH, url + 5);
    if (req->target->connect_to != NULL) {
        char any[HTTP_VALUE_MAX];

        (void)snprintf(any, sizeof any, "::%s", req->target->connect_to);
        call->connect_to = curl_slist_append(NULL, any);
        SET(call, CURLOPT_CONNECT_TO, call->connect_to);
        if (call->connect_to == NULL)
            return -1;
    }
    if (req->target->ca_file != NULL) {
        SET(call, CURLOPT_CAINFO, req->target->ca_file);
        /* Else the system's would be trusted too, and read for each connection: 30 ms of the loop
         * [measured with Debian's libcurl 7.88.1, whose default is a directory]. */
        SET(call, CURLOPT_CAPATH, NULL);
    }
    SET(call, CURLOPT_URL, local ? "http://localhost" : url);
    /* As it is: as part of a URL it would be cleaned. */
    SET(call, CURLOPT_REQUEST_TARGET, req->path);
    SET(call, CURLOPT_PROTOCOLS_STR, "http,https");
    SET(call, CURLOPT_PROXY, "");
    SET(call, CURLOPT_FRESH_CONNECT, req->fresh ? 1L : 0L);
    SET(call, CURLOPT_FORBID_REUSE, req->fresh ? 1L : 0L);
    return 0;
}

static int set_what(struct http_call *call, const struct http_call_request *req)
{
    SET(call, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    if (req->body != NULL) {
        SET(call, CURLOPT_POST, 1L);
        SET(call, CURLOPT_POSTFIELDS, (const char *)req->body);
        SET(call, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)req->body_len);
    } else if (strcmp(req->method, "POST") == 0) {
        SET(call, CURLOPT_POST, 1L);
        SET(call, CURLOPT_POSTFIELDS, "");
        SET(call, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)0);
    }
    if (strcmp(req->method, "HEAD") == 0)
        SET(call, CURLOPT_NOBODY, 1L);
    else
        SET(call, CURLOPT_CUSTOMREQUEST, req->method);
    SET(call, CURLOPT_HTTPHEADER, call->headers);
    return 0;
}

static long ms_of(uint64_t us)
{
    return us == 0 ? 0L : (long)((us + 999) / 1000);
}

static int set_how(struct http_call *call, const struct http_call_request *req)
{
    SET(call, CURLOPT_NOSIGNAL, 1L);
    /* Otherwise ending a call would block the loop until the thread that resolves its name is done.
     */
    SET(call, CURLOPT_QUICK_EXIT, 1L);
    SET(call, CURLOPT_PRIVATE, (void *)call);
    SET(call, CURLOPT_OPENSOCKETFUNCTION, call_open_socket);
    SET(call, CURLOPT_OPENSOCKETDATA, (void *)call);
    SET(call, CURLOPT_ERRORBUFFER, call->error);
    SET(call, CURLOPT_HEADERFUNCTION, on_header);
    SET(call, CURLOPT_HEADERDATA, (void *)call);
    SET(call, CURLOPT_WRITEFUNCTION, http_call_on_data);
    SET(call, CURLOPT_WRITEDATA, (void *)call);
    SET(call, CURLOPT_CONNECTTIMEOUT_MS, ms_of(req->connect_timeout_us));
    SET(call, CURLOPT_TIMEOUT_MS, ms_of(req->timeout_us));
    return 0;
}

/* Spare watches stay with the client: how many there are follows its busiest moment. */
static int bring_watches(struct http_client *c)
{
    while (c->n_watches < WATCHES_EACH * (c->n_calls + 1)) {
        struct watch *w = calloc(1, sizeof *w);

        if (w == NULL)
            return -1;
        w->client = c;
        w->next = c->spare;
        c->spare = w;
        c->n_watches++;
    }
    return 0;
}

static int call_prepare(struct http_call *call, const struct http_call_request *req)
{
    struct http_client *c = call->client;

    if (bring_watches(c) != 0)
        return -1;
    call->easy = curl_easy_init();
    if (call->easy == NULL || set_headers(call, req) != 0 || set_where(call, req) != 0 ||
        set_what(call, req) != 0 || set_how(call, req) != 0)
        return -1;
    if (c->depth > 0)
        return 0;
    return curl_multi_add_handle(c->multi, call->easy) == CURLM_OK ? 0 : -1;
}

int http_start(struct http_call **out, struct http_client *c, const struct http_call_request *req,
               const struct http_events *events, struct err *e)
{
    struct http_call *call = calloc(1, sizeof *call);

    if (call == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a request to %.200s", req->target->url);
    call->client = c;
    call->events = *events;
    call->body_len = req->body_len;
    call->allowed = req->allowed;
    call->allowed_arg = req->allowed_arg;
    call->head.content_length = -1;
    if (call_prepare(call, req) != 0) {
        curl_slist_free_all(call->headers);
        curl_slist_free_all(call->connect_to);
        if (call->easy != NULL)
            curl_easy_cleanup(call->easy);
        free(call);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a request to %.200s", req->target->url);
    }
    link_call(call);
    if (c->depth > 0)
        put_off(call);
    *out = call;
    return 0;
}

bool http_sent(const struct http_call *call)
{
    long n_sent = 0;

    (void)curl_easy_getinfo(call->easy, CURLINFO_REQUEST_SIZE, &n_sent);
    return n_sent > 0;
}

uint64_t http_body_nbytes_sent(const struct http_call *call)
{
    curl_off_t n_sent = 0;

    (void)curl_easy_getinfo(call->easy, CURLINFO_SIZE_UPLOAD_T, &n_sent);
    return n_sent > 0 ? (uint64_t)n_sent : 0;
}

bool http_body_sent(const struct http_call *call)
{
    return http_body_nbytes_sent(call) >= call->body_len;
}

void http_hold(struct http_call *call)
{
    struct watch *w = call->watch;

    call->hold = true;
    if (w == NULL || w->held || w->events == 0)
        return;
    loop_unwatch(call->client->loop, &w->loop);
    w->held = true;
}

/* What `data` refused libcurl hands over here and now, but it does not end a call that was
 * cancelled then, or that ended itself. */
void http_resume(struct http_call *call)
{
    struct http_client *c = call->client;
    struct watch *w = call->watch;
    struct err ignored = {0};
    CURLcode code;

    call->hold = false;
    if (w != NULL && w->held) {
        w->held = false;
        if (loop_watch(call->client->loop, &w->loop, w->events, &ignored) != 0)
            w->events = 0; /* the kernel has no memory: as in on_socket, but there is no caller to
                              return an error to */
    }
    if (!call->refused)
        return;
    call->refused = false;
    code = curl_easy_pause(call->easy, CURLPAUSE_CONT);
    if (code != CURLE_OK)
        http_call_ended(call, code);
    else if (call->cancelled)
        call_free(call);
    calls_settle(c);
}

void http_cancel(struct http_call *call)
{
    call->cancelled = true;
    if (call->depth > 0)
        return;
    if (call->client->depth > 0)
        put_off(call);
    else
        call_free(call);
}

int http_client_new(struct http_client **out, struct loop *loop, struct err *e)
{
    struct http_client *c = calloc(1, sizeof *c);

    if (c == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a client of upstreams");
    c->loop = loop;
    c->timer = (struct loop_timer){.fire = on_timer_due, .arg = c};
    c->multi = curl_multi_init();
    if (c->multi == NULL ||
        curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, on_socket) != CURLM_OK ||
        curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c) != CURLM_OK ||
        curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, on_timer) != CURLM_OK ||
        curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c) != CURLM_OK ||
        curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, (long)HTTP_IDLE_CONNECTIONS_MAX) !=
            CURLM_OK) {
        (void)curl_multi_cleanup(c->multi);
        free(c);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a client of upstreams");
    }
    *out = c;
    return 0;
}

void http_client_free(struct http_client *c)
{
    if (c == NULL)
        return;
    while (c->calls != NULL)
        http_cancel(c->calls);
    (void)curl_multi_cleanup(c->multi);
    loop_timer_cancel(c->loop, &c->timer);
    while (c->spare != NULL) {
        struct watch *next = c->spare->next;

        free(c->spare);
        c->spare = next;
    }
    free(c);
}
