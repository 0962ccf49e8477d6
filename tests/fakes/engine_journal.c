/* The double's own routes: POST, GET and DELETE /fault, GET and DELETE /journal, GET /state. They
 * are not recorded in the journal, need no key and have no faults.
 *
 * POST /fault {"on": "finish" | "POST /path" | "*", "do": kind, "nth": 1, "times": 1, "ms": 0,
 * "status": 500, "tokens": 1, "text", "label": "wrong", "acts", "reset": false}; the kinds are in
 * engine.h. If several match a request, the oldest that is due is used. The ops are in the route
 * tables, and are the same in all dialects. DELETE sends what a slow one holds back. */
#include "tests/fakes/engine.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    bool acts;
} kinds[] = {
    [FAULT_NONE] = {"none", true},
    [FAULT_SLOW] = {"slow", true},
    [FAULT_LATE] = {"late", true},
    [FAULT_HANG] = {"hang", false},
    [FAULT_CLOSE_BEFORE] = {"close_before", false},
    [FAULT_CLOSE_AFTER] = {"close_after", true},
    [FAULT_HALF_STREAM] = {"half_stream", true},
    [FAULT_STALL_STREAM] = {"stall_stream", true},
    [FAULT_STATUS] = {"status", false},
    [FAULT_RAW] = {"raw", false},
    [FAULT_WRONG_VERSION] = {"wrong_version", true},
    [FAULT_RESTART] = {"restart", false},
};

static const char answer_of_status[] =
    "{\"error\":{\"message\":\"ordered by the test\",\"code\":\"internal_error\"}}";

const char *text_member(const json_t *body, const char *name, const char *otherwise)
{
    const json_t *value = json_object_get(body, name);

    return json_is_string(value) ? json_string_value(value) : otherwise;
}

uint64_t int_member(const json_t *body, const char *name, uint64_t otherwise)
{
    const json_t *value = json_object_get(body, name);

    return json_is_integer(value) && json_integer_value(value) >= 0
               ? (uint64_t)json_integer_value(value)
               : otherwise;
}

bool true_member(const json_t *body, const char *name)
{
    return json_is_true(json_object_get(body, name));
}

void put_string(struct buf *b, const char *text)
{
    buf_puts(b, "\"");
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            buf_printf(b, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            buf_printf(b, "\\u%04x", (unsigned)*text);
        else
            buf_append(b, text, 1);
    }
    buf_puts(b, "\"");
}

/* faults */

const char *fault_name(enum fault_kind kind)
{
    return kinds[kind].name;
}

static bool fault_is_on(const struct fault *f, const char *op, const struct request *r)
{
    size_t n = strlen(r->method);

    return strcmp(f->on, "*") == 0 || strcmp(f->on, op) == 0 ||
           (strncmp(f->on, r->method, n) == 0 && f->on[n] == ' ' &&
            strcmp(f->on + n + 1, r->path) == 0);
}

const struct fault *fault_take(struct engine *e, const char *op, const struct request *r)
{
    struct fault *taken = NULL;

    for (struct fault *f = e->faults; f != NULL; f = f->next) {
        if (f->off || !fault_is_on(f, op, r))
            continue;
        f->n_seen++;
        if (taken != NULL || f->n_seen < f->nth || (f->times > 0 && f->n_seen >= f->nth + f->times))
            continue;
        f->n_fired++;
        taken = f;
    }
    return taken;
}

/* NULL: `body` orders none that there is. */
static struct fault *fault_parse(const json_t *body)
{
    const char *name = text_member(body, "do", "none");
    struct fault *f = must(calloc(1, sizeof *f));
    const json_t *acts = json_object_get(body, "acts");

    for (size_t i = 1; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(name, kinds[i].name) == 0)
            f->kind = (enum fault_kind)i;
    f->acts = acts != NULL ? json_is_true(acts) : kinds[f->kind].acts;
    f->nth = (unsigned)int_member(body, "nth", 1);
    f->times = (unsigned)int_member(body, "times", 1);
    f->ms = int_member(body, "ms", 0);
    f->status = (int)int_member(body, "status", 500);
    f->n_tokens = int_member(body, "tokens", 1);
    f->reset = true_member(body, "reset");
    (void)snprintf(f->on, sizeof f->on, "%s", text_member(body, "on", ""));
    (void)snprintf(f->label, sizeof f->label, "%s", text_member(body, "label", "wrong"));
    f->text = must(strdup(text_member(body, "text", answer_of_status)));
    if (f->kind == FAULT_NONE || f->nth == 0 || f->status < 200 || f->status > 599) {
        free(f->text);
        free(f);
        return NULL;
    }
    return f;
}

/* Without "on" a restart or a wrong version happens now. */
static void fault_order(struct conn *c)
{
    struct fault **end = &c->e->faults, *f;
    json_t *body = json_loadb(c->req.body, c->req.body_len, 0, NULL);
    size_t n = 0;

    f = json_is_object(body) ? fault_parse(body) : NULL;
    json_decref(body);
    for (; *end != NULL; end = &(*end)->next)
        n++;
    if (f == NULL || n == FAULTS_MAX ||
        (f->on[0] == '\0' && f->kind != FAULT_RESTART && f->kind != FAULT_WRONG_VERSION)) {
        if (f != NULL)
            free(f->text);
        free(f);
        conn_reply_text(c, 400, "no such fault\n");
        return;
    }
    *end = f; /* for good: requests may hold it after it was taken back */
    if (f->on[0] == '\0') {
        f->off = true;
        f->n_fired = 1;
        if (f->kind == FAULT_RESTART)
            engine_restart(c->e, f->ms);
        else
            state_commit(c->e, f->label);
    }
    conn_reply_json(c, 200, json_pack("{s:b}", "ordered", 1));
}

static void fault_list(struct conn *c)
{
    json_t *list = must(json_array());

    for (const struct fault *f = c->e->faults; f != NULL; f = f->next)
        if (!f->off)
            (void)json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:i, s:i, s:i}", "on",
                                                        f->on, "do", kinds[f->kind].name, "nth",
                                                        (int)f->nth, "times", (int)f->times, "seen",
                                                        (int)f->n_seen, "fired", (int)f->n_fired));
    conn_reply_json(c, 200, json_pack("{s:o}", "faults", list));
}

/* All of them, or those on one thing. */
static void fault_clear(struct conn *c)
{
    char on[LABEL_MAX + 1];
    bool all = !request_query(&c->req, "on", on, sizeof on);

    for (struct fault *f = c->e->faults; f != NULL; f = f->next)
        f->off = f->off || all || strcmp(f->on, on) == 0;
    for (struct conn *held = c->e->conns; held != NULL; held = held->next)
        if (held->held && held->fault != NULL && held->fault->off)
            conn_arm(held, STEP_ANSWER, clock_now_us());
    conn_reply_json(c, 200, json_pack("{s:b}", "cleared", 1));
}

/* the journal */

static void entry_free(struct entry *x)
{
    free(x->head);
    free(x->body);
    free(x->versions);
    free(x);
}

static void drop_first(struct engine *e)
{
    struct entry *x = e->journal;

    e->journal = x->next;
    if (e->journal == NULL)
        e->journal_end = &e->journal;
    if (x->conn != NULL)
        x->conn->entry = NULL;
    entry_free(x);
    e->n_entries--;
    e->n_dropped++;
}

struct entry *journal_add(struct conn *c, const char *op)
{
    struct engine *e = c->e;
    const struct request *r = &c->req;
    size_t kept = r->body_len < JOURNAL_BODY_MAX ? r->body_len : JOURNAL_BODY_MAX;
    struct entry *x;

    if (e->o.n_journal == 0)
        return NULL;
    while (e->n_entries >= e->o.n_journal)
        drop_first(e);
    x = must(calloc(1, sizeof *x));
    x->conn = c;
    x->n = e->n_requests;
    x->connection = c->id;
    x->nth_on_connection = c->n_requests;
    x->came_us = clock_now_us();
    x->op = op;
    x->head_len = (size_t)(r->headers - r->text) + r->headers_len; /* its line has NULs in it */
    x->head = must(malloc(x->head_len + 1));
    memcpy(x->head, r->text, x->head_len);
    x->body = must(malloc(kept + 1));
    memcpy(x->body, r->body, kept);
    x->body_len = kept;
    x->body_nbytes = r->body_len;
    *e->journal_end = x;
    e->journal_end = &x->next;
    e->n_entries++;
    return x;
}

void journal_end(struct conn *c, const char *how)
{
    if (c->entry == NULL || c->entry->end != NULL)
        return;
    c->entry->end = how;
    c->entry->ended_us = clock_now_us();
}

void journal_free(struct engine *e)
{
    while (e->journal != NULL)
        drop_first(e);
    while (e->faults != NULL) {
        struct fault *f = e->faults;

        e->faults = f->next;
        free(f->text);
        free(f);
    }
}

/* {"host": "…"}: names in lower case; of several with one name the last. */
static json_t *headers_json(const char *at, const char *end)
{
    json_t *all = must(json_object());

    while (at < end) {
        const char *eol = memchr(at, '\r', (size_t)(end - at));
        const char *colon = memchr(at, ':', (size_t)(end - at));
        char name[LABEL_MAX + 1] = "";

        eol = eol != NULL ? eol : end;
        if (colon != NULL && colon < eol && (size_t)(colon - at) < sizeof name) {
            for (size_t i = 0; at + i < colon; i++)
                name[i] = (char)(at[i] | (at[i] >= 'A' && at[i] <= 'Z' ? 0x20 : 0));
            for (colon++; colon < eol && *colon == ' ';)
                colon++;
            (void)json_object_set_new(all, name, json_stringn(colon, (size_t)(eol - colon)));
        }
        at = eol + 2;
    }
    return all;
}

static json_t *text_or_null(const char *text)
{
    return text != NULL ? json_string(text) : json_null();
}

static json_t *entry_json(const struct entry *x)
{
    struct request r = {.method = x->head};
    json_t *body = json_stringn(x->body, x->body_len), *all;

    r.path = r.method + strlen(r.method) + 1;
    r.query = r.path + strlen(r.path) + 1;
    all = json_pack("{s:I, s:I, s:I, s:s, s:s, s:s, s:I, s:o, s:i, s:b, s:I}", "n",
                    (json_int_t)x->n, "connection", (json_int_t)x->connection, "nth_on_connection",
                    (json_int_t)x->nth_on_connection, "method", r.method, "path", r.path, "op",
                    x->op, "body_nbytes", (json_int_t)x->body_nbytes, "body",
                    body != NULL ? body : json_null(), "status", x->status, "executed", x->executed,
                    "tokens", (json_int_t)x->n_tokens);
    (void)json_object_set_new(
        all, "query", strncmp(r.query, "HTTP/1.", 7) == 0 ? json_string("") : json_string(r.query));
    (void)json_object_set_new(all, "came_us", json_integer((json_int_t)x->came_us));
    (void)json_object_set_new(all, "ended_us",
                              x->end != NULL ? json_integer((json_int_t)x->ended_us) : json_null());
    (void)json_object_set_new(all, "end", text_or_null(x->end));
    (void)json_object_set_new(all, "fault", text_or_null(x->fault));
    (void)json_object_set_new(
        all, "versions", x->versions != NULL ? json_loads(x->versions, 0, NULL) : json_array());
    return must(all);
}

static void journal_list(struct conn *c)
{
    json_t *list = must(json_array());

    for (const struct entry *x = c->e->journal; x != NULL; x = x->next) {
        const char *headers = memchr(x->head, '\n', x->head_len);
        json_t *one = entry_json(x);

        (void)json_object_set_new(one, "headers", headers_json(headers + 1, x->head + x->head_len));
        (void)json_array_append_new(list, one);
    }
    conn_reply_json(c, 200,
                    json_pack("{s:o, s:I, s:I}", "requests", list, "dropped",
                              (json_int_t)c->e->n_dropped, "seen", (json_int_t)c->e->n_requests));
}

static void journal_clear(struct conn *c)
{
    while (c->e->journal != NULL)
        drop_first(c->e);
    c->e->n_dropped = 0;
    conn_reply_json(c, 200, json_pack("{s:b}", "cleared", 1));
}

/* the state */

static void state_show(struct conn *c)
{
    static const char *const phases[] = {NULL, "open", "verified", "committed", "aborted"};
    static const char *const pauses[] = {NULL, "keep", "wait", "abort"};
    const struct engine *e = c->e;
    json_t *adapters = must(json_object()), *all;

    for (size_t i = 0; i < ADAPTERS_MAX; i++)
        if (e->adapters[i].loaded)
            (void)json_object_set_new(adapters, e->adapters[i].name,
                                      json_string(e->adapters[i].path));
    all = json_pack("{s:s, s:s, s:f, s:I, s:b, s:I, s:I, s:o}", "dialect", e->o.dialect_name,
                    "boot_id", e->boot_id, "started_s", e->started_s, "serial",
                    (json_int_t)e->serial, "torn", e->torn, "received", (json_int_t)e->n_received,
                    "boots", (json_int_t)e->n_boots, "adapters", adapters);
    (void)json_object_set_new(all, "version", text_or_null(e->has_label ? e->label : NULL));
    (void)json_object_set_new(all, "update", text_or_null(phases[e->phase]));
    (void)json_object_set_new(all, "pause", text_or_null(pauses[e->pause]));
    (void)json_object_set_new(all, "weights_asleep", json_boolean(e->asleep & SLEEP_WEIGHTS));
    (void)json_object_set_new(all, "kv_released", json_boolean(e->asleep & SLEEP_KV));
    (void)json_object_set_new(all, "group", e->group != NULL ? json_incref(e->group) : json_null());
    (void)json_object_set_new(all, "running", json_integer((json_int_t)e->n_running));
    (void)json_object_set_new(all, "waiting", json_integer((json_int_t)state_waiting(e)));
    (void)json_object_set_new(all, "connections", json_integer((json_int_t)e->n_conns));
    (void)json_object_set_new(all, "accepted", json_integer((json_int_t)e->n_accepted));
    (void)json_object_set_new(all, "requests", json_integer((json_int_t)e->n_requests));
    (void)json_object_set_new(all, "tokens_made", json_integer((json_int_t)e->n_tokens_made));
    (void)json_object_set_new(all, "tokens_stale", json_integer((json_int_t)e->n_tokens_stale));
    conn_reply_json(c, 200, all);
}

bool own_route(struct conn *c)
{
    static const struct {
        const char *method, *path;
        void (*handle)(struct conn *c);
    } routes[] = {{"POST", "/fault", fault_order},       {"GET", "/fault", fault_list},
                  {"DELETE", "/fault", fault_clear},     {"GET", "/journal", journal_list},
                  {"DELETE", "/journal", journal_clear}, {"GET", "/state", state_show}};

    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (strcmp(c->req.method, routes[i].method) != 0 ||
            strcmp(c->req.path, routes[i].path) != 0)
            continue;
        c->own = true;
        routes[i].handle(c);
        return true;
    }
    return false;
}
