/* The data plane: tokens that show which version made them.
 *
 * Token i of an answer is 256 * (fnv1a32(maker) % 65521) + (fnv1a32(prompt) + 31 * i) % 256, where
 * the prompt is its ids, 4 bytes each, the low one first, and the maker the version's label: or
 * "v<serial>" where it has none, or "torn" while weights have come that belong to no version yet;
 * "/<adapter>#<n>" behind it for the nth load of an adapter, and "stale:" before it where the KV of
 * what came before was made by other weights (engine_cache.c). Its text is " t<id>"; every other
 * byte of a text is a token too, 65521 * 256 + that byte. */
#include "tests/fakes/engine_ids.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAKER_MAX = 2 * LABEL_MAX + 32,
    CREATED = 1763700000,
    NAMES_SPANS = 23 /* the first SGLang, as 0.5.N, whose answers have the spans of versions */
};
enum form { FORM_COMPLETION, FORM_CHAT, FORM_TOKENS, FORM_SGLANG, FORM_SKYRL };

struct span {
    char maker[MAKER_MAX], label[LABEL_MAX + 1];
    bool has_label;
    uint32_t maker_hash;
    uint64_t serial;
    size_t start;
};

struct job {
    enum form form;
    bool stream, usage, begun, running;
    bool stalled; /* nothing more is sent */
    bool told;    /* its answer has the spans of versions */
    bool experts; /* its answer has the routed experts, from row experts_start on */
    size_t experts_start;
    bool canary; /* its answer has the log-probabilities of its prompt; it uses no cache */
    bool blank;  /* a template is built: \1 is the place of the token */
    char id[LABEL_MAX + 1];
    const struct adapter *adapter; /* NULL: none */
    unsigned n_load;
    uint32_t hash, tag;
    size_t n_prompt, n_max, n_made, tokens_cap, n_spans;
    uint32_t *tokens;    /* owned [n_made] */
    struct span *spans;  /* owned [n_spans] */
    struct buf template; /* of an event with one token */
    size_t template_at;  /* of the token in it; SIZE_MAX: there is none */
    uint64_t epoch, due_us;
    uint64_t keys[CACHE_KEYS_MAX]; /* [n_keys], of the prompt's first 1, 2, ... tokens */
    size_t n_keys, n_cached;
    uint32_t prompt[CACHE_KEYS_MAX]; /* [n_prompt], of a canary */
    bool has_kv, preempted, stale;   /* stale: an entry of other weights is in its KV */
    uint64_t kv_weights;             /* which made its KV */
};

/* events and answers */

static void put_finish(struct buf *b, const struct job *j, const char *finish)
{
    if (finish == NULL)
        buf_puts(b, "null");
    else if (j->form != FORM_SGLANG)
        buf_printf(b, "\"%s\"", finish);
    else if (strcmp(finish, "length") == 0)
        buf_printf(b, "{\"type\":\"length\",\"length\":%zu}", j->n_max);
    else
        buf_printf(b,
                   "{\"type\":\"%s\",\"message\":\"Aborted\",\"status_code\":null,"
                   "\"err_type\":null}",
                   finish);
}

static void put_label(struct buf *b, const struct span *s)
{
    if (s->has_label)
        put_string(b, s->label);
    else
        buf_puts(b, "null");
}

/* @serials  with the serials, as only a baton has them */
static void put_spans(struct buf *b, const struct job *j, bool serials)
{
    buf_puts(b, ",\"weight_versions\":[");
    for (size_t i = 0; i < j->n_spans; i++) {
        buf_puts(b, i > 0 ? ",{\"version\":" : "{\"version\":");
        put_label(b, &j->spans[i]);
        buf_printf(b, ",\"start\":%zu,\"end\":%zu", j->spans[i].start,
                   i + 1 < j->n_spans ? j->spans[i + 1].start : j->n_made);
        if (serials)
            buf_printf(b, ",\"serial\":%zu", (size_t)j->spans[i].serial);
        buf_puts(b, "}");
    }
    buf_puts(b, "]");
}

static void put_usage(struct buf *b, const struct job *j)
{
    buf_printf(b,
               ",\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,"
               "\"total_tokens\":%zu}",
               j->n_prompt, j->n_made, j->n_prompt + j->n_made);
}

/* The tokens from..to in the member of the form, with the text before and after it. */
static void put_made(struct buf *b, const struct job *j, size_t from, size_t to)
{
    if (j->blank)
        buf_puts(b, "\1");
    else if (j->form == FORM_TOKENS)
        put_ids(b, j->tokens + from, to - from);
    else
        put_text(b, j->tokens + from, to - from);
}

/* The row of the token before it made each token; the first weights computed the rows before. */
static void put_job_experts(struct buf *b, const struct conn *c, enum experts_form form)
{
    const struct job *j = c->job;
    size_t n_all = j->n_prompt + j->n_made, n = 0;
    uint8_t *tags = must(calloc(n_all + 1, 1));

    for (size_t row = j->experts_start; row + 1 < n_all; row++) {
        size_t token = row + 1 > j->n_prompt ? row + 1 - j->n_prompt : 0;

        tags[n++] = j->n_made > 0 ? (uint8_t)(j->tokens[token] / STEPS % 128) : 0;
    }
    put_experts(b, form, tags, n, j->experts_start);
    free(tags);
}

static void put_choice(struct buf *b, const struct conn *c, size_t from, size_t to,
                       const char *finish)
{
    const struct job *j = c->job;
    static const char *const before[] = {
        "\"text\":\"", "\"delta\":{\"role\":\"assistant\",\"content\":\"", "\"token_ids\":["};
    static const char *const behind[] = {"\"", "\"}", "]"};
    bool message = j->form == FORM_CHAT && !j->stream;

    buf_puts(b, "{\"index\":0,");
    buf_puts(b, message ? "\"message\":{\"role\":\"assistant\",\"content\":\"" : before[j->form]);
    put_made(b, j, from, to);
    buf_puts(b, behind[j->form]);
    buf_puts(b, ",\"logprobs\":null,\"finish_reason\":");
    put_finish(b, j, finish);
    buf_puts(b, ",\"stop_reason\":null");
    if (finish != NULL && j->canary && j->n_spans > 0 && strcmp(finish, "abort") != 0)
        put_prompt_logprobs(b, j->prompt, j->n_prompt, j->spans[0].maker_hash);
    if (finish != NULL && j->told)
        put_spans(b, j, c->e->o.dialect == BATON);
    if (finish != NULL && j->experts) {
        bool prime = j->form == FORM_TOKENS && strcmp(c->e->o.experts, "prime-rl") == 0;

        buf_puts(b, ",\"routed_experts\":");
        put_job_experts(b, c, prime ? EXPERTS_PRIME_RL : EXPERTS_VLLM);
    }
    buf_puts(b, "}");
}

static void put_skyrl(struct buf *b, const struct conn *c, const char *finish)
{
    const struct job *j = c->job;

    buf_puts(b, "{\"choices\":[{\"token_ids\":[");
    put_ids(b, j->tokens, j->n_made);
    buf_puts(b, "],\"finish_reason\":");
    put_finish(b, j, finish);
    buf_puts(b, ",\"logprobs\":null,\"routed_experts\":");
    if (j->experts)
        put_job_experts(b, c, EXPERTS_SKYRL);
    else
        buf_puts(b, "null");
    buf_puts(b, "}]}");
}

/* Always with all tokens so far. */
static void put_sglang(struct buf *b, const struct conn *c, const char *finish)
{
    const struct job *j = c->job;

    buf_puts(b, "{\"text\":\"");
    put_text(b, j->tokens, j->n_made);
    buf_puts(b, "\",\"output_ids\":[");
    put_ids(b, j->tokens, j->n_made);
    buf_puts(b, "],\"meta_info\":{\"id\":");
    put_string(b, j->id);
    buf_puts(b, ",\"finish_reason\":");
    put_finish(b, j, finish);
    buf_printf(b, ",\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"cached_tokens\":%zu",
               j->n_prompt, j->n_made, j->n_cached);
    buf_puts(b, ",\"weight_version\":");
    if (j->n_spans > 0)
        put_label(b, &j->spans[j->n_spans - 1]);
    else
        put_string(b, c->e->label);
    if (finish != NULL && j->canary && j->n_spans > 0 && strcmp(finish, "abort") != 0)
        put_input_token_logprobs(b, j->prompt, j->n_prompt, j->spans[0].maker_hash);
    if (finish != NULL && j->told)
        put_spans(b, j, false);
    if (finish != NULL && j->experts) {
        buf_puts(b, ",\"routed_experts\":");
        put_job_experts(b, c, EXPERTS_SGLANG);
    }
    buf_puts(b, "}}");
}

/* @usage  the event that carries only that */
static void put_answer(struct buf *b, struct conn *c, size_t from, size_t to, const char *finish,
                       bool usage)
{
    static const char *const ids[] = {"\"id\":\"cmpl-", "\"id\":\"chatcmpl-", "\"request_id\":\""};
    const struct job *j = c->job;
    bool whole = !j->stream;

    if (j->form == FORM_SGLANG) {
        put_sglang(b, c, finish);
        return;
    }
    if (j->form == FORM_SKYRL) {
        put_skyrl(b, c, finish);
        return;
    }
    buf_puts(b, "{");
    buf_puts(b, ids[j->form]);
    buf_puts(b, j->id);
    if (j->form == FORM_COMPLETION)
        buf_puts(b, "\",\"object\":\"text_completion");
    else if (j->form == FORM_CHAT)
        buf_puts(b, whole ? "\",\"object\":\"chat.completion"
                          : "\",\"object\":\"chat.completion.chunk");
    buf_printf(b, "\",\"created\":%d,\"model\":", CREATED);
    put_string(b, j->adapter != NULL ? j->adapter->name : c->e->o.model);
    buf_puts(b, ",\"choices\":[");
    if (!usage)
        put_choice(b, c, from, to, finish);
    buf_puts(b, "]");
    if (usage || whole)
        put_usage(b, j);
    else if (c->e->o.dialect != VLLM)
        buf_puts(b, ",\"usage\":null");
    if (c->e->o.dialect == SGLANG && whole && j->n_spans > 0) { /* of a stream it says nothing */
        buf_puts(b, ",\"metadata\":{\"weight_version\":");
        put_label(b, &j->spans[j->n_spans - 1]);
        buf_puts(b, "}");
    }
    buf_puts(b, "}");
}

static void put_end(struct buf *b, const struct engine *e)
{
    for (size_t i = 0; i < e->o.pad; i++)
        buf_append(b, " ", 1);
    buf_puts(b, "\n\n");
}

static void send_answer_event(struct conn *c, size_t from, const char *finish, bool usage)
{
    struct buf b = {0};

    buf_puts(&b, "data: ");
    put_answer(&b, c, from, c->job->n_made, finish, usage);
    put_end(&b, c->e);
    conn_chunk(c, b.data, b.len);
    buf_fini(&b);
}

/* Most events differ in the token only. */
static void make_template(struct conn *c)
{
    struct job *j = c->job;
    const char *at;

    j->template_at = SIZE_MAX;
    if (j->form == FORM_SGLANG || j->form == FORM_SKYRL)
        return;
    buf_puts(&j->template, "data: ");
    j->blank = true;
    put_answer(&j->template, c, 0, 0, NULL, false);
    j->blank = false;
    put_end(&j->template, c->e);
    at = must(memchr(j->template.data, '\1', j->template.len));
    j->template_at = (size_t)(at - j->template.data);
}

static void send_token(struct conn *c)
{
    static char event[64 << 10];
    struct job *j = c->job;
    size_t at = j->template_at, rest, len;
    char text[16];
    int n;

    if (at == SIZE_MAX || j->template.len + sizeof text > sizeof event) {
        send_answer_event(c, j->n_made - 1, NULL, false);
        return;
    }
    n = snprintf(text, sizeof text, j->form == FORM_TOKENS ? "%u" : " t%u",
                 j->tokens[j->n_made - 1]);
    rest = j->template.len - at - 1;
    memcpy(event, j->template.data, at);
    memcpy(event + at, text, (size_t)n);
    memcpy(event + at + n, j->template.data + at + 1, rest);
    len = at + (size_t)n + rest;
    conn_chunk(c, event, len);
}

/* jobs */

/* Which weights make its KV: a reload of its adapter under the same name does not change them. */
static uint64_t weights_of(const struct conn *c)
{
    return c->e->weights << 16 | c->job->n_load;
}

/* The KV of its prompt, before its first token, and again when it had to give it up. */
static void make_kv(struct conn *c)
{
    struct job *j = c->job;
    bool was_stale = j->stale;

    j->has_kv = true;
    j->preempted = false;
    j->kv_weights = weights_of(c);
    if (c->e->o.dialect != BATON && !j->canary)
        j->n_cached = cache_use(&c->e->cache, j->keys, j->n_keys, j->kv_weights, &j->stale);
    if (j->stale != was_stale)
        j->epoch = 0; /* no engine's: its next token begins a span */
}

void job_preempt(struct conn *c)
{
    struct job *j = c->job;

    if (j->canary && j->has_kv && c->e->o.dialect == VLLM) { /* as 0.24 ends by it */
        (void)fprintf(stderr, "a request for prompt_logprobs was preempted\n");
        abort();
    }
    c->e->n_running -= j->running;
    j->running = j->has_kv = false;
    j->preempted = true;
}

bool job_preempted(const struct conn *c)
{
    return !c->job->stalled && c->job->preempted;
}

/* A baton recomputes the KV, or keeps it if the request says so (on_update). */
static bool is_stale(const struct conn *c)
{
    return c->e->o.dialect != BATON && !c->e->o.own_kv &&
           (c->job->stale || c->job->kv_weights != weights_of(c));
}

static void new_span(struct conn *c)
{
    char maker[MAKER_MAX];
    struct engine *e = c->e;
    struct job *j = c->job;
    struct span *s;
    size_t len;

    j->spans = must(realloc(j->spans, (j->n_spans + 1) * sizeof *s));
    s = &j->spans[j->n_spans++];
    *s = (struct span){.start = j->n_made, .serial = e->serial, .has_label = e->has_label};
    memcpy(s->label, e->label, sizeof s->label);
    if (e->torn)
        (void)snprintf(s->maker, sizeof s->maker, "torn");
    else if (e->has_label)
        (void)snprintf(s->maker, sizeof s->maker, "%s", e->label);
    else
        (void)snprintf(s->maker, sizeof s->maker, "v%zu", (size_t)e->serial);
    len = strlen(s->maker);
    if (j->adapter != NULL)
        (void)snprintf(s->maker + len, sizeof s->maker - len, "/%s#%u", j->adapter->name,
                       j->n_load);
    if (is_stale(c)) {
        memcpy(maker, s->maker, sizeof maker);
        (void)snprintf(s->maker, sizeof s->maker, "stale:%.*s", MAKER_MAX - 8, maker);
    }
    s->maker_hash = fnv1a_of(s->maker, strlen(s->maker));
    j->tag = s->maker_hash % TAGS;
    j->epoch = e->epoch;
}

static void make_token(struct conn *c)
{
    struct job *j = c->job;

    if (j->epoch != c->e->epoch)
        new_span(c);
    if (j->n_made == j->tokens_cap) {
        j->tokens_cap = j->tokens_cap == 0 ? 16 : j->tokens_cap * 2;
        j->tokens = must(realloc(j->tokens, j->tokens_cap * sizeof *j->tokens));
    }
    j->tokens[j->n_made] = j->tag * STEPS + (j->hash + 31 * (uint32_t)j->n_made) % STEPS;
    j->n_made++;
    c->e->n_tokens_made += !j->canary;
    c->e->n_tokens_stale += is_stale(c);
    if (c->entry != NULL)
        c->entry->n_tokens = j->n_made;
    if (j->stream)
        send_token(c);
}

static void begin_stream(struct conn *c)
{
    if (c->job->stream && !c->job->begun)
        conn_stream_begin(c, "text/event-stream");
    c->job->begun = true;
}

static void finish_whole(struct conn *c, const char *why)
{
    struct buf b = {0};

    put_answer(&b, c, 0, c->job->n_made, why, false);
    conn_reply(c, 200, "application/json", b.data, b.len);
    buf_fini(&b);
}

static void finish_stream(struct conn *c, const char *why)
{
    static const char done[] = "data: [DONE]\n\n";
    struct job *j = c->job;

    begin_stream(c);
    send_answer_event(c, j->n_made, why, false);
    if (j->usage)
        send_answer_event(c, j->n_made, NULL, true);
    conn_chunk(c, done, sizeof done - 1);
    conn_stream_end(c);
    if (c->fault != NULL && c->fault->kind == FAULT_WRONG_VERSION)
        state_commit(c->e, c->fault->label);
    conn_flush(c);
}

/* It makes no more tokens, however long its client takes to read them. */
static void finish(struct conn *c, const char *why)
{
    struct engine *e = c->e;

    e->n_running -= c->job->running;
    c->job->running = false;
    c->job->stalled = true;
    if (c->job->stream)
        finish_stream(c, why);
    else
        finish_whole(c, why);
    state_job_ended(e);
}

void job_abort(struct conn *c)
{
    finish(c, "abort");
}

bool job_is_live(const struct conn *c, bool queued)
{
    return !c->job->stalled && (queued || c->job->running);
}

bool job_is(const struct conn *c, const char *id)
{
    const char *dash = strchr(id, '-');
    size_t n = dash != NULL ? (size_t)(dash - id) : 0;
    bool prefixed = (n == 4 && memcmp(id, "cmpl", n) == 0) ||
                    (n == 8 && memcmp(id, "chatcmpl", n) == 0);

    return strcmp(c->job->id, prefixed ? dash + 1 : id) == 0;
}

/* True: the stream ends here. */
static bool cut(struct conn *c)
{
    const struct fault *f = c->fault;
    struct job *j = c->job;

    if (!j->stream || f == NULL || j->n_made != f->n_tokens ||
        (f->kind != FAULT_HALF_STREAM && f->kind != FAULT_STALL_STREAM))
        return false;
    j->stalled = true;
    c->whole = c->close = f->kind == FAULT_HALF_STREAM;
    conn_flush(c);
    return true;
}

static bool frozen(const struct engine *e, const struct job *j)
{
    return e->asleep != 0 || (e->pause != PAUSE_NONE && (e->pause != PAUSE_WAIT || !j->running));
}

static void arm_next(struct conn *c)
{
    struct job *j = c->job;
    uint64_t now = clock_now_us(), interval = c->e->o.interval_us;

    if (c->out.len - c->sent >= (interval > 0 ? AHEAD_NBYTES_MAX : 1))
        return; /* epoll reports when the socket is writable */
    j->due_us = j->due_us + interval > now ? j->due_us + interval : now;
    conn_arm(c, STEP_TOKEN, j->due_us);
}

/* What is frozen is not armed: state_resume does that. */
void job_tick(struct conn *c)
{
    struct job *j = c->job;

    if (j->stalled)
        return;
    if (frozen(c->e, j)) {
        conn_flush(c);
        return;
    }
    if (!j->running)
        c->e->n_running++;
    j->running = true;
    if (!j->has_kv)
        make_kv(c);
    begin_stream(c);
    do {
        if (cut(c))
            return;
        if (j->n_made == j->n_max) {
            finish(c, "length");
            return;
        }
        make_token(c);
    } while ((c->e->o.interval_us == 0 || j->n_made == j->n_max) &&
             c->out.len - c->sent < AHEAD_NBYTES_MAX);
    conn_flush(c);
    if (!c->dead)
        arm_next(c);
}

void job_free(struct conn *c)
{
    struct job *j = c->job;
    struct buf b = {0};

    if (j == NULL)
        return;
    c->job = NULL;
    buf_puts(&b, "[");
    for (size_t i = 0; c->entry != NULL && i < j->n_spans; i++) {
        buf_puts(&b, i > 0 ? "," : "");
        put_string(&b, j->spans[i].maker);
    }
    buf_puts(&b, "]");
    if (c->entry != NULL)
        c->entry->versions = must(strdup(b.data));
    buf_fini(&b);
    buf_fini(&j->template);
    free(j->tokens);
    free(j->spans);
    if (j->running) {
        c->e->n_running--;
        state_job_ended(c->e);
    }
    free(j);
}

/* requests */

static void set_id(struct conn *c, const json_t *body)
{
    struct job *j = c->job;
    size_t len = 0;
    const char *id = text_member(body, "request_id", text_member(body, "rid", NULL));

    if (id != NULL)
        len = strlen(id);
    else
        id = request_header(&c->req, "X-Request-Id", &len);
    for (size_t i = 0; id != NULL && i < len; i++)
        if (id[i] < ' ' || id[i] > '~' || id[i] == '"' || id[i] == '\\')
            id = NULL;
    if (id != NULL && len > 0 && len <= LABEL_MAX)
        memcpy(j->id, id, len);
    else
        (void)snprintf(j->id, sizeof j->id, "%.8s-%zu", c->e->boot_id, (size_t)c->e->n_requests);
}

/* False: refused. */
static bool set_model(struct conn *c, const json_t *body)
{
    struct job *j = c->job;
    const char *member = c->e->o.dialect == SGLANG ? "lora_path" : "model";
    const char *name = text_member(body, member, NULL);

    if (name == NULL || strcmp(name, c->e->o.model) == 0)
        return true;
    j->adapter = state_adapter(c->e, name);
    if (j->adapter != NULL) {
        j->n_load = j->adapter->n_loads;
        return true;
    }
    conn_refuse(c, c->e->o.dialect == SGLANG ? 400 : 404, "not_found", "there is no model '%s'",
                name);
    return false;
}

/* An engine that reloads an adapter under the same name keeps the cache entries of that name. */
static void set_keys(struct conn *c, const struct ids *ids)
{
    struct job *j = c->job;
    uint64_t key = 14695981039346656037U;

    if (j->adapter != NULL)
        key ^= (uint64_t)fnv1a_of(j->adapter->name, strlen(j->adapter->name)) << 32;
    if (j->adapter != NULL && c->e->o.dialect == SGLANG)
        key ^= j->n_load;
    j->n_keys = ids->n < CACHE_KEYS_MAX ? ids->n : CACHE_KEYS_MAX;
    for (size_t i = 0; i < j->n_keys; i++) {
        key = (key ^ ids->at[i]) * 1099511628211U;
        j->keys[i] = key != 0 ? key : 1;
    }
}

static bool set_prompt(struct conn *c, const json_t *body)
{
    static const char *const members[] = {"prompt", "messages", "token_ids", "input_ids",
                                          "token_ids"};
    struct job *j = c->job;
    const json_t *text = json_object_get(body, "text");
    const json_t *prompt = json_object_get(body, members[j->form]);
    struct ids ids = {0};
    bool good;

    if (j->form == FORM_CHAT)
        good = ids_of_messages(&ids, prompt);
    else if (j->form == FORM_TOKENS || j->form == FORM_SKYRL)
        good = ids_of_list(&ids, prompt);
    else
        good = ids_of_prompt(&ids, j->form == FORM_SGLANG && text != NULL ? text : prompt);
    j->n_prompt = ids.n;
    j->hash = 2166136261U;
    for (size_t i = 0; i < ids.n; i++) {
        uint8_t le[4] = {(uint8_t)ids.at[i], (uint8_t)(ids.at[i] >> 8), (uint8_t)(ids.at[i] >> 16),
                         (uint8_t)(ids.at[i] >> 24)};

        j->hash = fnv1a(j->hash, le, sizeof le);
    }
    set_keys(c, &ids);
    j->canary = c->entry != NULL && strcmp(c->entry->op, "canary") == 0 && ids.n <= CACHE_KEYS_MAX;
    if (j->canary)
        memcpy(j->prompt, ids.at, ids.n * sizeof ids.at[0]);
    free(ids.at);
    if (!good)
        conn_refuse(c, 400, "bad_request", "%s is no one prompt that it understands",
                    members[j->form]);
    return good;
}

static void set_sampling(struct conn *c, const json_t *body)
{
    struct job *j = c->job;
    const json_t *options = json_object_get(body, "stream_options");
    const json_t *from = body;
    size_t otherwise = c->e->o.n_tokens;

    j->stream = true_member(body, "stream") && j->form != FORM_SKYRL;
    j->usage = j->form != FORM_SGLANG && true_member(options, "include_usage");
    if (j->form == FORM_TOKENS || j->form == FORM_SGLANG || j->form == FORM_SKYRL)
        from = json_object_get(body, "sampling_params");
    j->experts = c->e->o.experts != NULL &&
                 (j->form != FORM_SGLANG || true_member(body, "return_routed_experts"));
    j->experts_start = j->form == FORM_SGLANG ? int_member(body, "routed_experts_start_len", 0)
                                              : int_member(from, "routed_experts_prompt_start", 0);
    if (j->form == FORM_SGLANG)
        j->n_max = int_member(from, "max_new_tokens", otherwise);
    else
        j->n_max = int_member(from, "max_completion_tokens",
                              int_member(from, "max_tokens", otherwise));
}

/* What a fault does to a generation before its first token. False: it is taken care of. */
static bool fault_begin(struct conn *c)
{
    const struct fault *f = c->fault;

    if (f == NULL)
        return true;
    switch (f->kind) {
    case FAULT_HANG:
        c->job->stalled = true;
        return false;
    case FAULT_CLOSE_AFTER:
        conn_end(c, "closed");
        return false;
    case FAULT_STATUS:
        job_free(c);
        conn_reply(c, f->status, "application/json", f->text, strlen(f->text));
        return false;
    case FAULT_SLOW:
        c->job->due_us = clock_after_us(f->ms * 1000);
        conn_arm(c, STEP_TOKEN, c->job->due_us);
        return false;
    default:
        return true;
    }
}

static void generate(struct conn *c, const json_t *body, enum form form)
{
    struct job *j = c->job = must(calloc(1, sizeof *j));

    j->form = form;
    j->stalled = true; /* until it is found to be right */
    j->told = c->e->o.dialect == BATON || form == FORM_TOKENS ||
              (form == FORM_SGLANG && c->e->o.sglang >= NAMES_SPANS) ||
              json_is_true(json_object_get(body, "return_weight_versions"));
    set_sampling(c, body);
    set_id(c, body);
    if (!set_model(c, body) || !set_prompt(c, body))
        return;
    if (j->n_max > TOKENS_MAX) {
        conn_refuse(c, 400, "bad_request", "%zu tokens are too many", j->n_max);
        return;
    }
    if (c->e->torn && c->e->o.dialect == BATON) {
        conn_refuse(c, 503, "no_weights", "the weights were dropped");
        return;
    }
    if (c->e->asleep != 0 && c->e->o.dialect != VLLM) {
        conn_refuse(c, c->e->o.dialect == BATON ? 503 : 400, "asleep", "the memory is released");
        return;
    }
    make_template(c);
    j->stalled = false;
    if (!fault_begin(c))
        return;
    begin_stream(c);
    j->due_us = clock_now_us();
    if (c->e->o.interval_us == 0) {
        job_tick(c);
        return;
    }
    conn_flush(c);
    if (!c->dead)
        arm_next(c);
}

static void completions(struct conn *c, const json_t *body)
{
    generate(c, body, FORM_COMPLETION);
}

static void chat(struct conn *c, const json_t *body)
{
    generate(c, body, FORM_CHAT);
}

static void inference(struct conn *c, const json_t *body)
{
    generate(c, body, FORM_TOKENS);
}

static void skyrl_generate(struct conn *c, const json_t *body)
{
    generate(c, body, FORM_SKYRL);
}

static void sglang_generate(struct conn *c, const json_t *body)
{
    generate(c, body, FORM_SGLANG);
}

const struct route data_routes[] = {
    {ALL, "POST", "/v1/completions", "completions", completions, true},
    {ALL, "POST", "/v1/chat/completions", "chat", chat, true},
    {BATON, "POST", "/v1/generate", "generate", inference, true},
    {BATON | VLLM, "POST", "/inference/v1/generate", "generate", inference, true},
    {VLLM, "POST", "/skyrl/v1/generate", "generate", skyrl_generate, true},
    {BATON | SGLANG, "POST", "/generate", "generate", sglang_generate, true},
    {BATON | SGLANG, "PUT", "/generate", "generate", sglang_generate, true},
    {ALL, "POST", "/tokenize", "tokenize", reply_tokenize, true},
    {ALL, "POST", "/detokenize", "detokenize", reply_detokenize, true},
    {0},
};
