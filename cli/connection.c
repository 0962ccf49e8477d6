/* The loop of the HTTP client has a thread of its own; main waits on a condition, and looks for an
 * interrupt each time it wakes. Rejected: libcurl's easy interface here, which would be a second
 * way to make requests. */
#include "cli/connection.h"

#include "base/clock.h"
#include "base/json_parse.h"
#include "base/loop.h"
#include "base/mtx.h"
#include "base/utf8.h"
#include "cli/interrupt.h"
#include "cli/success.h"
#include "cli/terminal.h"
#include "http/client/http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONNECT_TIMEOUT_US = 10000000,
    LOOK_US = 200000,              /* between two looks at the interrupt and the progress */
    ANSWER_NBYTES_MAX = 256 << 20, /* of an answer that is kept; a list of all tensors fits */
    ERROR_TEXT_MAX = 300,          /* bytes shown of an answer that is no JSON */
    AUTHORIZATION_MAX = 4096 + 8,
    URL_MAX = 1024
};

struct connection {
    struct loop *loop;
    struct http_client *client;
    struct http_target target;
    char url[URL_MAX];
    char authorization[AUTHORIZATION_MAX];
    uint64_t timeout_us;

    struct mtx lock; /* rank MTX_LEAF; guards what follows */
    struct cnd changed;
    bool ended;
    uint64_t nbytes_sent;
    struct http_end end;

    /* owned by the loop's thread while a call runs */
    struct loop_item begin, cancel;
    struct loop_timer look;
    const struct call *call;
    struct http_call *http;
    struct answer *answer;
};

static void connection_call_ended(struct connection *c)
{
    c->http = NULL;
    loop_timer_cancel(c->loop, &c->look);
    mtx_lock(&c->lock);
    c->ended = true;
    cnd_signal(&c->changed);
    mtx_unlock(&c->lock);
}

static void connection_on_head(void *arg, const struct http_head *head)
{
    struct connection *c = arg;

    c->answer->status = head->status;
}

static bool is_good(int status)
{
    return status >= 200 && status < 300;
}

static bool connection_on_data(void *arg, const void *data, size_t len)
{
    struct connection *c = arg;

    if (c->call->data != NULL && is_good(c->answer->status))
        c->call->data(c->call->arg, data, len);
    else if (c->answer->text.len + len <= ANSWER_NBYTES_MAX)
        buf_append(&c->answer->text, data, len);
    else
        c->answer->text.failed = true;
    return true;
}

static void connection_on_done(void *arg, const struct http_end *end)
{
    struct connection *c = arg;

    c->end = *end;
    connection_call_ended(c);
}

static void on_look(void *arg)
{
    struct connection *c = arg;

    mtx_lock(&c->lock);
    if (c->http != NULL)
        c->nbytes_sent = http_body_nbytes_sent(c->http);
    mtx_unlock(&c->lock);
    loop_timer_set(c->loop, &c->look, clock_after_us(LOOK_US / 2));
}

static void run_begin(void *arg)
{
    struct connection *c = arg;
    const struct call *call = c->call;
    struct http_header type = {"Content-Type", call->content_type != NULL ? call->content_type
                                                                          : "application/json"};
    struct http_call_request req = {.target = &c->target,
                                    .method = call->method,
                                    .path = call->path,
                                    .body = call->body,
                                    .body_len = call->body_len,
                                    .headers = &type,
                                    .n_headers = call->body != NULL ? 1 : 0,
                                    .connect_timeout_us = CONNECT_TIMEOUT_US,
                                    .timeout_us = call->timeout_us > 0 ? call->timeout_us
                                                                       : c->timeout_us,
                                    .fresh = true};
    struct http_events events = {.head = connection_on_head,
                                 .data = connection_on_data,
                                 .done = connection_on_done,
                                 .arg = c};
    struct err e = {0};

    if (http_start(&c->http, c->client, &req, &events, &e) != 0) {
        c->end = (struct http_end){.outcome = HTTP_NO_MEMORY};
        (void)snprintf(c->end.why, sizeof c->end.why, "%.200s", e.msg);
        connection_call_ended(c);
        return;
    }
    loop_timer_set(c->loop, &c->look, clock_after_us(LOOK_US / 2));
}

static void run_cancel(void *arg)
{
    struct connection *c = arg;

    if (c->http == NULL)
        return;
    http_cancel(c->http);
    connection_call_ended(c);
}

/* Until the call has ended; an interrupt cancels it. */
static void call_wait(struct connection *c)
{
    bool ended = false;

    while (!ended) {
        uint64_t nbytes_sent;

        mtx_lock(&c->lock);
        if (!c->ended)
            (void)cnd_wait(&c->changed, &c->lock, clock_after_us(LOOK_US));
        ended = c->ended;
        nbytes_sent = c->nbytes_sent;
        mtx_unlock(&c->lock);
        if (!ended && interrupted() && !c->answer->interrupted) {
            c->answer->interrupted = true;
            loop_post(c->loop, &c->cancel);
        }
        if (!ended && c->call->progress != NULL)
            c->call->progress(c->call->arg, nbytes_sent);
    }
}

static void text_show(json_t *json)
{
    const char *text = json_string_value(json);
    size_t len = json_string_length(json);
    struct buf shown = {0};

    if (utf8_find_hidden(text, len) == len)
        return;
    (void)terminal_show(&shown, text, len, TERMINAL_LINE);
    (void)json_string_setn(json, shown.len > 0 ? shown.data : "", shown.len);
    buf_fini(&shown);
}

void json_show(json_t *json)
{
    const char *name;
    json_t *value;
    size_t i;

    if (json_is_string(json))
        text_show(json);
    json_object_foreach(json, name, value) json_show(value);
    json_array_foreach(json, i, value) json_show(value);
}

static const char *hint_of_failure(const struct http_end *end)
{
    if (end->no_tls)
        return "a server without TLS has an http:// URL; --ca-file FILE names the certificates to "
               "trust instead of the system's";
    if (end->outcome == HTTP_UNREACHABLE || end->outcome == HTTP_UNRESOLVED)
        return "'baton serve' starts a server; --url or BATON_URL names one, as http://HOST:PORT, "
               "https://HOST:PORT or unix:PATH";
    return NULL;
}

static enum cli_exit answer_settle(struct connection *c, struct answer *a)
{
    bool starved = false;
    json_error_t why;

    if (a->interrupted) {
        (void)snprintf(a->why, sizeof a->why, "interrupted");
        return CLI_INTERRUPTED;
    }
    if (c->end.outcome != HTTP_WHOLE || a->text.failed) {
        const char *what = c->end.why;

        if (c->end.outcome == HTTP_WHOLE)
            what = "the answer is too long, or there is no memory";
        else if (c->end.outcome == HTTP_UNREACHABLE && strncmp(c->target.url, "unix:", 5) == 0)
            what = "no server accepts connections at this socket"; /* libcurl names a port */
        (void)snprintf(a->why, sizeof a->why, "%s", what);
        a->hint = hint_of_failure(&c->end);
        a->status = 0;
        return CLI_UNREACHABLE;
    }
    if (a->text.len > 0)
        a->json = json_parse(a->text.data, a->text.len, 0, &why, &starved);
    if (!is_good(a->status)) {
        json_show(a->json);
        return CLI_REFUSED;
    }
    if (c->call->data != NULL || success_check(c->call->method, c->call->path, c->call->sent,
                                               a->json, a->why, sizeof a->why)) {
        json_show(a->json);
        return CLI_OK;
    }
    json_decref(a->json); /* nothing in it counts */
    a->json = NULL;
    return CLI_UNREACHABLE;
}

enum cli_exit connection_call(struct connection *c, const struct call *call, struct answer *out)
{
    *out = (struct answer){0};
    c->call = call;
    c->answer = out;
    c->end = (struct http_end){0};
    c->ended = false;
    c->nbytes_sent = 0;
    loop_post(c->loop, &c->begin);
    call_wait(c);
    return answer_settle(c, out);
}

enum cli_exit connection_json(struct connection *c, const char *method, const char *path,
                              json_t *body, struct answer *out)
{
    char *text = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
    struct call call = {.method = method,
                        .path = path,
                        .body = text,
                        .body_len = text != NULL ? strlen(text) : 0,
                        .sent = body};
    enum cli_exit rc = connection_call(c, &call, out);

    free(text);
    json_decref(body);
    return rc;
}

void answer_fini(struct answer *a)
{
    buf_fini(&a->text);
    json_decref(a->json);
    *a = (struct answer){0};
}

/* What a user of the command line can do about an error; the server's words name members. */
static const char *hint_of(const char *code, const char *param, const char *command)
{
    static const struct {
        const char *code, *param, *command, *hint; /* param: how it begins; NULL = any */
    } hints[] = {
        {"unauthorized", NULL, NULL, "give a key by --key-file FILE or BATON_API_KEY"},
        {"incomplete_update", NULL, "push", "--partial keeps the tensors that are not sent"},
        {"manifest_mismatch", "/dtypes", "push", "--convert converts float dtypes"},
        {"unsupported_in_proxy_mode", "/delta", NULL, NULL}, /* the message says what to do */
        {"unsupported_in_proxy_mode", NULL, "push",
         "--path lets engines that are batons or SGLang read the files themselves"},
        {"unsupported_in_proxy_mode", "/__metadata__", "lora load", NULL}, /* a delta */
        {"unsupported_in_proxy_mode", NULL, "lora load",
         "--path lets the engines read the files themselves"},
    };

    for (size_t i = 0; code != NULL && i < sizeof hints / sizeof hints[0]; i++)
        if (strcmp(hints[i].code, code) == 0 &&
            (hints[i].param == NULL ||
             (param != NULL && strncmp(param, hints[i].param, strlen(hints[i].param)) == 0)) &&
            (hints[i].command == NULL || strcmp(hints[i].command, command) == 0))
            return hints[i].hint;
    return NULL;
}

/* "; missing: a, b, c and 4 more", of an update that was refused for it. */
static void report_missing(const json_t *details)
{
    enum { SHOWN = 8 };
    const json_t *missing = json_object_get(details, "missing");
    size_t n = json_array_size(missing);

    for (size_t i = 0; i < n && i < SHOWN; i++) {
        const char *name = json_string_value(json_array_get(missing, i));

        (void)fprintf(stderr, "%s%s", i == 0 ? "; missing: " : ", ", name != NULL ? name : "?");
    }
    if (n > SHOWN)
        (void)fprintf(stderr, " and %zu more", n - SHOWN);
}

static void hint_print(const char *hint)
{
    if (hint != NULL)
        (void)fprintf(stderr, "hint: %s\n", hint);
}

void answer_report(const struct answer *a, const struct connection *c, const char *what)
{
    const json_t *error = json_object_get(a->json, "error");
    const char *code = json_string_value(json_object_get(error, "code"));
    const char *message = json_string_value(json_object_get(error, "message"));
    const char *param = json_string_value(json_object_get(error, "param"));

    if (a->status == 0) {
        (void)fprintf(stderr, "baton %s: %s: %s\n", what, c->target.url, a->why);
        hint_print(a->hint);
        return;
    }
    if (is_good(a->status) && error == NULL) {
        (void)fprintf(stderr,
                      "baton %s: %s answered %d: this is not an answer of a baton server: %s\n",
                      what, c->target.url, a->status, a->why);
        hint_print("--url or BATON_URL names the server itself; what answered may be a proxy "
                   "before it, or something else at this port");
        return;
    }
    if (message == NULL) {
        struct buf shown = {0};

        (void)terminal_show(&shown, a->text.data != NULL ? a->text.data : "",
                            a->text.len < ERROR_TEXT_MAX ? a->text.len : ERROR_TEXT_MAX,
                            TERMINAL_LINE);
        (void)fprintf(stderr, "baton %s: %s answered %d: %s\n", what, c->target.url, a->status,
                      shown.data != NULL ? shown.data : "");
        buf_fini(&shown);
        return;
    }
    (void)fprintf(stderr, "baton %s: %d%s%s: %s", what, a->status, code != NULL ? " " : "",
                  code != NULL ? code : "", message);
    if (param != NULL && param[0] != '\0')
        (void)fprintf(stderr, " (at %s)", param);
    if (code != NULL && strcmp(code, "incomplete_update") == 0)
        report_missing(json_object_get(error, "details"));
    (void)fputc('\n', stderr);
    if (code != NULL && strcmp(code, "unauthorized") == 0 && c->authorization[0] != '\0')
        hint_print(
            "the server knows another key than the one that --key-file or BATON_API_KEY has");
    else
        hint_print(hint_of(code, param, what));
}

const char *connection_url(const struct connection *c)
{
    return c->target.url;
}

int connection_new(struct connection **out, const struct connection_cfg *cfg, struct err *e)
{
    static const struct loop_cfg loop_cfg = {.name = "connection"};
    struct connection *c;

    size_t len = strlen(cfg->url);

    while (len > 0 && cfg->url[len - 1] == '/' && strncmp(cfg->url, "unix:", 5) != 0)
        len--; /* as browsers write it */
    c = calloc(1, sizeof *c);
    if (c == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a connection");
    mtx_init(&c->lock, MTX_LEAF);
    cnd_init(&c->changed);
    c->begin = (struct loop_item){.run = run_begin, .arg = c};
    c->cancel = (struct loop_item){.run = run_cancel, .arg = c};
    c->look = (struct loop_timer){.fire = on_look, .arg = c};
    c->timeout_us = cfg->timeout_us;
    c->target = (struct http_target){.url = c->url, .ca_file = cfg->ca_file};
    (void)snprintf(c->url, sizeof c->url, "%s%.*s",
                   strstr(cfg->url, "://") != NULL || strncmp(cfg->url, "unix:", 5) == 0
                       ? ""
                       : "http://", /* HOST:PORT */
                   (int)(len < URL_MAX ? len : URL_MAX), cfg->url);
    if (cfg->key != NULL) {
        (void)snprintf(c->authorization, sizeof c->authorization, "Bearer %s", cfg->key);
        c->target.authorization = c->authorization;
    }
    if (http_target_check(c->url, "--url", e) != 0 || http_init(e) != 0 ||
        loop_new(&c->loop, &loop_cfg, e) != 0 || http_client_new(&c->client, c->loop, e) != 0 ||
        loop_start(c->loop, e) != 0) {
        connection_free(c);
        return -1;
    }
    *out = c;
    return 0;
}

void connection_free(struct connection *c)
{
    if (c == NULL)
        return;
    if (c->loop != NULL)
        loop_stop(c->loop);
    http_client_free(c->client);
    loop_free(c->loop);
    cnd_fini(&c->changed);
    mtx_fini(&c->lock);
    free(c);
}
