/* The life of one sequence: checks at submit, tokens one by one, the end.
 *
 * Stop strings are searched in the text of the last token and just enough before it, bad words in
 * as many tokens as they are long, and penalties count as tokens come, so the cost of a token does
 * not grow with the length of the output. */
#include "engine/scheduler/sequence.h"

#include "base/clock.h"
#include "engine/lora/adapter_use.h"

#include <assert.h>
#include <math.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARAMS "/sampling_params" /* where the request carries them */

/* A byte that is not part of a character becomes U+FFFD, which has three bytes. */
enum { REPLACEMENT_NBYTES = 3, CHAR_HELD_MAX = 3 };

static int check_ids(const uint32_t *ids, uint32_t n, const char *prefix, uint32_t vocab_size,
                     struct err *e)
{
    char field[ERR_FIELD_MAX];

    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] < vocab_size)
            continue;
        (void)snprintf(field, sizeof field, "%s/%u", prefix, i);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "token id %u is not in the vocabulary of %u tokens", ids[i], vocab_size);
    }
    return 0;
}

/* A list of the best tokens cannot be longer than the vocabulary. */
static int check_logprobs(int32_t k, const char *field, uint32_t vocab_size, struct err *e)
{
    if (k <= 0 || (uint32_t)k <= vocab_size)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, field, "%d logprobs; the vocabulary has %u tokens", k,
                   vocab_size);
}

static int check_request(const struct seq_rules *rules, const struct gen_request *r, struct err *e)
{
    if (gen_params_check(&r->params, PARAMS, e) != 0)
        return -1;
    if (r->n_prompt == 0)
        return err_set(e, ERR_BAD_REQUEST, "/token_ids", "no tokens; at least 1 is needed");
    if (r->n_prompt >= rules->max_model_len)
        return err_set(e, ERR_BAD_REQUEST, "/token_ids",
                       "a prompt of %u tokens leaves no room in the context of %u tokens",
                       r->n_prompt, rules->max_model_len);
    if (check_ids(r->prompt, r->n_prompt, "/token_ids", rules->vocab_size, e) != 0 ||
        check_ids(r->params.stop_ids, r->params.n_stop_ids, PARAMS "/stop_token_ids",
                  rules->vocab_size, e) != 0)
        return -1;
    if (check_logprobs(r->params.logprobs, PARAMS "/logprobs", rules->vocab_size, e) != 0 ||
        check_logprobs(r->params.prompt_logprobs, PARAMS "/prompt_logprobs", rules->vocab_size,
                       e) != 0)
        return -1;
    if (r->params.logits_processor != NULL &&
        logits_processor_check(r->params.logits_processor, rules->vocab_size, PARAMS, e) != 0)
        return -1;
    if (r->params.routes && rules->n_route_layers == 0)
        return err_set(e, ERR_BAD_REQUEST, "/return_routed_experts",
                       "this model has no experts: there is no routing to return; leave it out");
    if (r->params.n_stops > 0 && rules->tokenizer == NULL)
        return err_set(e, ERR_BAD_REQUEST, PARAMS "/stop",
                       "stop strings need a tokenizer, and this model has none");
    return 0;
}

/* Chunks are reserved whole, and the pool is whole chunks: no rounding is needed to compare. */
static int tensor_list_length(struct seq *q, const struct gen_request *r, struct err *e)
{
    const struct seq_rules *rules = q->rules;
    uint32_t rest = rules->max_model_len - r->n_prompt, n = r->params.max_tokens;

    if (n == GEN_MAX_TOKENS_REST && r->n_prompt <= rules->kv_tokens_max &&
        rules->kv_tokens_max - r->n_prompt < rest)
        n = (uint32_t)(rules->kv_tokens_max - r->n_prompt) + 1;
    q->n_out_max = n < rest ? n : rest;
    q->n_kv = r->n_prompt + q->n_out_max - 1;
    if (q->n_kv > rules->kv_tokens_max)
        return err_set(e, ERR_TOO_LARGE, "/token_ids",
                       "prompt and output need room for %u tokens; the whole kv cache has %llu",
                       q->n_kv, (unsigned long long)rules->kv_tokens_max);
    return 0;
}

static bool ids_contain(uint32_t id, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static void mask_early(struct seq *q, const struct gen_params *p)
{
    if (p->min_tokens == 0)
        return;
    for (uint32_t i = 0; i < q->rules->n_eos; i++)
        if (q->rules->eos[i] < q->rules->vocab_size)
            q->masked[q->n_early++] = q->rules->eos[i];
    for (uint32_t i = 0; i < p->n_stop_ids; i++)
        q->masked[q->n_early++] = p->stop_ids[i];
}

/* Do the last output tokens match all of `ids` but the last one? */
static bool nearly_there(const struct seq *q, const uint32_t *ids, uint32_t n)
{
    uint32_t n_out = q->rec->out.n_tokens;

    if (n - 1 > n_out)
        return false;
    for (uint32_t i = 0; i < n - 1; i++)
        if (q->rec->tokens[n_out - (n - 1) + i].id != ids[i])
            return false;
    return true;
}

/* Appends to `masked`, after the n_early ids, the last token of each bad word that the next token
 * could complete. Returns: how many. */
static uint32_t mask_bad_words(struct seq *q, const struct logits_processor *s)
{
    uint32_t n_bad = 0;

    for (uint32_t i = 0; s != NULL && i < s->n_bad_words; i++) {
        uint32_t n, id;
        const uint32_t *ids = logits_processor_bad_word(s, i, &n);

        id = ids[n - 1];
        if (nearly_there(q, ids, n))
            q->masked[q->n_early + n_bad++] = id;
    }
    return n_bad;
}

/* Refuses a request whose rules leave no first token. Ends after n_masked + 1 ids. */
static int sequence_check_choice(const struct seq *q, const struct logits_processor *s,
                                 uint32_t n_masked, struct err *e)
{
    bool some = s != NULL && s->allowed != NULL;
    uint32_t n = some ? s->n_allowed : q->rules->vocab_size;

    for (uint32_t i = 0; i < n; i++)
        if (!ids_contain(some ? s->allowed[i] : i, q->masked, n_masked))
            return 0;
    return err_set(e, ERR_BAD_REQUEST,
                   some             ? PARAMS "/allowed_token_ids"
                   : q->n_early > 0 ? PARAMS "/min_tokens"
                                    : PARAMS "/bad_words",
                   "min_tokens, by its stop tokens, and bad_words forbid all of the %u tokens that "
                   "are allowed; at least 1 must be left",
                   n);
}

static int prepare_masks(struct seq *q, const struct gen_params *p, struct err *e)
{
    const struct logits_processor *s = p->logits_processor;
    uint32_t n_max = p->n_stop_ids + q->rules->n_eos + (s != NULL ? s->n_bad_words : 0);

    q->masked = malloc(((size_t)n_max + 1) * sizeof *q->masked);
    if (q->masked == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u masked tokens", n_max);
    mask_early(q, p);
    return sequence_check_choice(q, s, q->n_early + mask_bad_words(q, s), e);
}

/* The prompt counts for the repetition penalty only. */
static int prepare_penalties(struct seq *q, const struct gen_request *r, struct err *e)
{
    const struct gen_params *p = &r->params;
    bool repetition = p->repetition_penalty < 1 || p->repetition_penalty > 1;
    bool others = fabsf(p->frequency_penalty) > 0 || fabsf(p->presence_penalty) > 0;
    uint32_t n_max = q->n_out_max + (repetition ? r->n_prompt : 0);

    if (!repetition && !others)
        return 0;
    n_max = n_max < q->rules->vocab_size ? n_max : q->rules->vocab_size;
    if (token_counts_init(&q->counts, n_max, e) != 0)
        return -1;
    for (uint32_t i = 0; repetition && i < r->n_prompt; i++)
        token_counts_add_prompt(&q->counts, r->prompt[i]);
    return 0;
}

/* Reserves the kept text, one token, the run of bytes that it may end and the bytes that it holds,
 * so that no step allocates. */
static int tail_init(struct seq *q, struct err *e)
{
    size_t cap = q->stop_len_max + DETOK_RUN_MAX + 1 +
                 REPLACEMENT_NBYTES *
                     (q->rules->token_text_max + CHAR_HELD_MAX + (size_t)DETOK_RUN_MAX);
    char *data = malloc(cap);

    if (data == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to search for stop strings");
    data[0] = '\0';
    q->tail = (struct buf){.data = data, .cap = cap};
    return 0;
}

static int prepare_stops(struct seq *q, const struct gen_request *r, struct err *e)
{
    const struct gen_params *p = &r->params;

    if (p->n_stops == 0)
        return 0;
    for (uint32_t i = 0; i < p->n_stops; i++) {
        size_t len = strlen(p->stops[i]);

        q->stop_len_max = len > q->stop_len_max ? len : q->stop_len_max;
    }
    detok_init(&q->detok, q->rules->tokenizer, !p->stops_see_special);
    detok_follow(&q->detok, r->prompt, r->n_prompt);
    return tail_init(q, e);
}

static int make_record(struct seq *q, const struct gen_request *r, struct err *e)
{
    bool routes = r->params.routes;
    struct gen_record_cfg cfg = {.n_tokens_max = q->n_out_max,
                                 .n_prompt = r->n_prompt,
                                 .logprobs = r->params.logprobs,
                                 .prompt_logprobs = r->params.prompt_logprobs,
                                 .n_route_layers = routes ? q->rules->n_route_layers : 0,
                                 .n_routes_per_token = routes ? q->rules->n_routes_per_token : 0};

    return gen_record_new(&q->rec, &cfg, e);
}

static void name_adapter(struct gen_output *out, const struct adapter_use *use)
{
    (void)snprintf(out->adapter, sizeof out->adapter, "%s", adapter_use_name(use));
    out->adapter_revision = adapter_use_revision(use);
}

/* A pair of an adapter's name and revision is never used twice, and a name has no NUL. */
static void set_scope(struct seq *q, const struct gen_request *r)
{
    const char *adapter = r->adapter != NULL ? adapter_use_name(r->adapter) : "";
    uint64_t revision = r->adapter != NULL ? adapter_use_revision(r->adapter) : 0;
    struct sha256_ctx sha;

    sha256_init(&sha);
    sha256_update(&sha, strlen(adapter) + 1, (const uint8_t *)adapter);
    sha256_update(&sha, sizeof revision, (const uint8_t *)&revision);
    sha256_update(&sha, sizeof r->params.salt, r->params.salt);
    sha256_digest(&sha, sizeof q->kv_scope, q->kv_scope);
}

int seq_new(struct seq **out, const struct seq_rules *rules, struct gen_request *r, struct err *e)
{
    struct seq *q;

    if (check_request(rules, r, e) != 0)
        return -1;
    q = calloc(1, sizeof *q);
    if (q == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a generation");
    q->rules = rules;
    q->submit_us = clock_now_us();
    if (tensor_list_length(q, r, e) != 0)
        goto err_free;
    if (!kv_prepare(&q->kv, q->n_kv)) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the kv cache of %u tokens", q->n_kv);
        goto err_free;
    }
    if (make_record(q, r, e) != 0 || prepare_stops(q, r, e) != 0 ||
        prepare_masks(q, &r->params, e) != 0 || prepare_penalties(q, r, e) != 0)
        goto err_free;
    if (q->rec->prompt != NULL)
        q->rec->prompt[0].id = r->prompt[0];
    if (r->adapter != NULL)
        name_adapter(&q->rec->out, r->adapter);
    set_scope(q, r);
    q->req = *r;
    memset(r, 0, sizeof *r);
    *out = q;
    return 0;

err_free:
    seq_free(q);
    return -1;
}

void seq_free(struct seq *q)
{
    if (q == NULL)
        return;
    assert(q->kv.n_chunks == 0 && q->version == NULL);
    gen_request_fini(&q->req);
    gen_record_free(q->rec);
    kv_release(&q->kv);
    buf_fini(&q->tail);
    token_counts_fini(&q->counts);
    free(q->masked);
    free(q);
}

void seq_give_back(struct seq *q, struct gen_request *r)
{
    *r = q->req;
    memset(&q->req, 0, sizeof q->req);
    seq_free(q);
}

uint32_t seq_n_known(const struct seq *q)
{
    return q->req.n_prompt + q->rec->out.n_tokens;
}

void seq_forget_kv(struct seq *q)
{
    kv_give_back(&q->kv);
    if (q->n_fed == 0)
        return;
    q->n_lost = q->n_fed > q->n_lost ? q->n_fed : q->n_lost;
    q->n_fed = 0;
    q->n_rebuilds++;
}

bool seq_may_share(const struct seq *q)
{
    if (q->req.params.skip_prefix)
        return false;
    return q->rec->out.n_tokens > 0 || (q->rec->prompt == NULL && q->rec->routes == NULL);
}

uint32_t seq_token(const struct seq *q, uint32_t pos)
{
    return pos < q->req.n_prompt ? q->req.prompt[pos] : q->rec->tokens[pos - q->req.n_prompt].id;
}

bool seq_wants_logits(const struct seq *q, uint32_t pos)
{
    return pos + 1 == seq_n_known(q) || (q->rec->prompt != NULL && q->rec->out.n_tokens == 0);
}

/* Ends with GEN_ERROR. @e is copied; a sequence that has ended keeps its end. */
static void seq_fail(struct seq *q, const struct err *e)
{
    if (q->rec->out.finish != GEN_RUNNING)
        return;
    q->rec->out.finish = GEN_ERROR;
    q->rec->out.error = *e;
}

/* Ends the sequence when one of its stop strings ends in the text from `old_len` on. The first of
 * the list wins, as in vLLM, at any place in the text. */
static bool sequence_find_stop(struct seq *q, size_t old_len)
{
    struct gen_output *out = &q->rec->out;

    for (uint32_t i = 0; i < q->req.params.n_stops; i++) {
        const char *stop = q->req.params.stops[i], *at;
        size_t len = strlen(stop), from = old_len > len - 1 ? old_len - (len - 1) : 0;

        at = memmem(q->tail.data + from, q->tail.len - from, stop, len);
        if (at == NULL)
            continue;
        if (q->n_peeked == 0)
            detok_end(&q->detok, &q->tail); /* the held bytes would follow the stop string */
        (void)snprintf(q->rec->stop_text, sizeof q->rec->stop_text, "%s", stop);
        out->stop_text = q->rec->stop_text;
        out->stop_text_cut = (uint32_t)(q->tail.len - (size_t)(at - q->tail.data));
        return true;
    }
    return false;
}

/* Adds the token's text; true when a stop string is complete. Text that is held only because the
 * next token may change it counts as it is: a sequence that stops here has no next token. */
static bool sequence_push_text(struct seq *q, uint32_t id, bool search)
{
    size_t sure, before = q->tail.len, old_len = before + q->n_peeked, keep = q->stop_len_max - 1;
    const char *held = NULL;
    struct err e = {0};
    bool found;

    detok_push(&q->detok, id, &q->tail);
    if (q->detok.broken)
        old_len = before; /* the held bytes are decoded differently now */
    sure = q->tail.len;
    q->n_peeked = (uint32_t)detok_peek(&q->detok, &held);
    if (q->n_peeked > 0)
        buf_append(&q->tail, held, q->n_peeked);
    if (q->tail.failed) {
        (void)err_set(&e, ERR_NO_MEMORY, "", "no memory to search for stop strings");
        seq_fail(q, &e);
        return false;
    }
    found = search && sequence_find_stop(q, old_len < q->tail.len ? old_len : q->tail.len);
    if (found)
        return true;
    q->tail.len = sure;
    if (q->tail.len > keep) {
        memmove(q->tail.data, q->tail.data + q->tail.len - keep, keep);
        q->tail.len = keep;
    }
    return false;
}

/* In vLLM's order: eos, stop ids, stop strings, length. */
static enum gen_finish finish_of(struct seq *q, uint32_t id)
{
    const struct gen_params *p = &q->req.params;
    struct gen_output *out = &q->rec->out;
    bool may_stop = out->n_tokens >= p->min_tokens;

    if (may_stop && !p->ignore_eos && ids_contain(id, q->rules->eos, q->rules->n_eos))
        return GEN_STOP;
    if (may_stop && ids_contain(id, p->stop_ids, p->n_stop_ids)) {
        out->stop_id = id;
        return GEN_STOP;
    }
    if (p->n_stops > 0 && sequence_push_text(q, id, out->n_tokens > p->min_tokens))
        return GEN_STOP;
    if (out->finish == GEN_RUNNING && out->n_tokens == q->n_out_max)
        return GEN_LENGTH;
    return out->finish;
}

static void take_time(struct seq *q, uint64_t now_us)
{
    struct gen_output *out = &q->rec->out;
    uint64_t gap_us = now_us - q->last_token_us;

    if (out->n_tokens == 0)
        out->first_token_us = now_us - q->submit_us;
    else if (gap_us > out->longest_gap_us)
        out->longest_gap_us = gap_us;
    q->last_token_us = now_us;
}

static void ask_for_token(struct seq *q, struct choice *out)
{
    const struct gen_params *p = &q->req.params;
    uint32_t n_tokens = q->rec->out.n_tokens;
    uint32_t n_early = n_tokens < p->min_tokens ? q->n_early : 0;
    uint32_t n_bad = mask_bad_words(q, p->logits_processor);

    out->draw = (struct sampler_draw){.params = p,
                                      .counts = q->counts.n > 0 ? &q->counts : NULL,
                                      .index = n_tokens,
                                      .masked = q->masked + (q->n_early - n_early),
                                      .n_masked = n_early + n_bad};
    out->logprobs = p->logprobs;
    out->logprobs_mode = p->logprobs_mode;
    out->top = gen_record_top(q->rec, n_tokens);
}

void seq_ask(struct seq *q, uint32_t pos, struct choice *out)
{
    uint32_t next = pos + 1;

    *out = (struct choice){0};
    if (next >= q->req.n_prompt) {
        ask_for_token(q, out);
        return;
    }
    out->given = true;
    out->id = q->req.prompt[next];
    out->logprobs = q->req.params.prompt_logprobs;
    out->top = gen_record_prompt_top(q->rec, next);
}

static void take_token(struct seq *q, const struct choice *c, const struct seq_step *step)
{
    struct gen_output *out = &q->rec->out;
    struct err e = {0};

    if (!c->chosen) {
        (void)err_set(&e, ERR_BAD_REQUEST, "",
                      "min_tokens, bad_words and allowed_token_ids together forbid every token "
                      "that output token %u could be; at least 1 must be left",
                      out->n_tokens);
        seq_fail(q, &e);
        return;
    }
    take_time(q, step->now_us);
    gen_record_append(q->rec, &c->token, step->serial, step->name);
    if (q->counts.n_max > 0)
        token_counts_add_output(&q->counts, c->id);
    out->finish = finish_of(q, c->id);
}

bool seq_blames(const struct seq *q, uint64_t serial)
{
    return q->req.adapter == NULL && q->kv_serial == serial;
}

/* The message names the weights: by label, and by serial because a label may be used twice. */
static void fail_logits(struct seq *q, uint32_t pos, const struct seq_step *step)
{
    const struct gen_output *out = &q->rec->out;
    char adapter[128] = "", kv[64] = "";
    struct err e = {0};

    if (q->req.adapter != NULL)
        (void)snprintf(adapter, sizeof adapter, "LoRA adapter '%.64s' (revision %llu) on ",
                       out->adapter, (unsigned long long)out->adapter_revision);
    if (q->kv_serial != step->serial)
        (void)snprintf(kv, sizeof kv, "; its KV cache is in part of serial %llu",
                       (unsigned long long)q->kv_serial);
    (void)err_set(&e, ERR_LOGITS, "",
                  "the logits after token %u are not finite (NaN or infinity), with %sweights "
                  "'%.256s' (serial %llu)%s",
                  pos, adapter, step->name->text, (unsigned long long)step->serial, kv);
    seq_fail(q, &e);
}

void seq_take(struct seq *q, uint32_t pos, const struct choice *c, const struct seq_step *step)
{
    if (q->rec->out.finish != GEN_RUNNING)
        return;
    if (!c->finite) {
        fail_logits(q, pos, step);
        return;
    }
    if (c->given)
        q->rec->prompt[pos + 1] = c->token;
    else
        take_token(q, c, step);
}
