/* POST /v1/completions: OpenAI's form, text or token ids in, text out.
 *
 * A chat (chat.c) is a completion too: its prompt is rendered first, on the same executor.
 *
 * Text prompts are tokenized on app->text_executor before the request queues for its permit, and
 * text is made there after the permit is given back, so that slow text never holds an engine slot.
 * Both share that executor's urgent queue with /tokenize and /detokenize, first come first served.
 * Each of the three is bounded by an admission queue of its own, so a flood of one does not fill
 * the urgent queue. */
#include "handlers/data_plane.h"

#include "base/clock.h"
#include "control/admission.h"
#include "control/life.h"
#include "engine/model/model_config.h"
#include "handlers/body.h"
#include "handlers/generate/chat.h"
#include "handlers/generate/chat_parse.h"
#include "handlers/generate/completions.h"
#include "handlers/route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const completions_members[] = {"model",
                                           "prompt",
                                           "request_id",
                                           "session_id",
                                           "user",
                                           "stream",
                                           "stream_options",
                                           "echo",
                                           "suffix",
                                           "add_special_tokens",
                                           "return_token_ids",
                                           "return_tokens_as_token_ids",
                                           "cache_salt",
                                           "priority",
                                           "prompt_embeds",
                                           "kv_transfer_params",
                                           COMPLETIONS_SGLANG_NEUTRAL(GENERATE_MEMBER)
                                               GENERATE_SAMPLING_MEMBERS NULL};

static const struct neutral_rule completions_rules[] = {
    {"suffix", NEUTRAL_EMPTY, 0},
    {"priority", NEUTRAL_NUMBER, 0},
    {"prompt_embeds", NEUTRAL_NULL, 0},
    {"kv_transfer_params", NEUTRAL_NULL, 0},
    COMPLETIONS_SGLANG_NEUTRAL(COMPLETIONS_RULE){NULL, NEUTRAL_NULL, 0}};

static void prompt_field(char field[ERR_FIELD_MAX], const struct completions_op *op, uint32_t i)
{
    if (op->is_list)
        (void)snprintf(field, ERR_FIELD_MAX, "%s/%u", op->prompts_at, i);
    else
        (void)snprintf(field, ERR_FIELD_MAX, "%s", op->prompts_at);
}

/* The engine reports /token_ids/<i> and /sampling_params/<member>; here these have other names. */
void completions_set_error_field(const struct generation_seq *seq, struct err *e)
{
    static const char ids[] = "/token_ids", sampling[] = "/sampling_params";
    const struct completions_op *op = completions_of(seq->g);
    char field[ERR_FIELD_MAX], rest[ERR_FIELD_MAX];

    if (strncmp(e->field, ids, sizeof ids - 1) == 0) {
        prompt_field(field, op, seq->prompt);
        (void)snprintf(rest, sizeof rest, "%s", e->field + sizeof ids - 1);
        (void)snprintf(e->field, sizeof e->field, "%.32s%.100s", field, rest);
    } else if (strncmp(e->field, sampling, sizeof sampling - 1) == 0) {
        (void)snprintf(rest, sizeof rest, "%s", e->field + sizeof sampling - 1);
        (void)snprintf(e->field, sizeof e->field, "%.32s%.100s", op->sampling_at, rest);
    }
}

void completions_fini(struct completions_op *op)
{
    struct generation *g = &op->g;

    for (uint32_t i = 0; i < g->n_prompts && op->prompts != NULL; i++)
        free(op->prompts[i].text);
    free(op->prompts);
    for (uint32_t i = 0; i < g->n_seqs && op->texts != NULL; i++)
        completion_text_fini(&op->texts[i]);
    free(op->texts);
    if (op->chat != NULL)
        chat_request_fini(op->chat);
    free(op->chat);
    json_decref(op->role);
    free(op->request_id);
    generation_fini(g);
}

static void completions_free(struct generation *g)
{
    completions_fini(completions_of(g));
    free(g);
}

static const struct generation_ops whole_ops = {.set_error_field = completions_set_error_field,
                                                .finish = completions_finish,
                                                .free = completions_free};
static const struct generation_ops stream_ops = {.on_tokens = completions_on_tokens,
                                                 .set_error_field = completions_set_error_field,
                                                 .finish = completions_finish,
                                                 .free = completions_free};

/* The i-th prompt of the request. */
static const json_t *prompt_value(const struct completions_op *op, const json_t *prompt, uint32_t i)
{
    return op->is_list ? json_array_get(prompt, i) : prompt;
}

static int copy_text(struct completions_op *op, const json_t *v, uint32_t i, struct err *e)
{
    struct completions_prompt *p = &op->prompts[i];
    size_t len = json_string_length(v);

    p->text = malloc(len + 1);
    if (p->text == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a prompt of %zu bytes", len);
    memcpy(p->text, json_string_value(v), len);
    p->text[len] = '\0';
    p->len = len;
    return 0;
}

static int copy_ids(struct completions_op *op, const json_t *v, uint32_t i, struct err *e)
{
    struct generation *g = &op->g;
    char field[ERR_FIELD_MAX];

    prompt_field(field, op, i);
    if (generation_check_prompt(g->app, json_array_size(v), field, e) != 0)
        return -1;
    return generate_parse_ids(&g->prompts[i].ids, &g->prompts[i].n, v, field,
                              g->app->generate->vocab_size, g->app->generate->max_model_len, e);
}

/* Checks that all prompts are of the same kind as the first, and the total length of their text. */
static int check_prompts(const struct completions_op *op, const json_t *prompt, uint32_t n,
                         struct err *e)
{
    char field[ERR_FIELD_MAX];
    uint64_t nbytes = 0;

    for (uint32_t i = 0; i < n; i++) {
        const json_t *v = prompt_value(op, prompt, i);

        prompt_field(field, op, i);
        if (op->is_text ? !json_is_string(v) : !json_is_array(v))
            return err_set(e, ERR_BAD_REQUEST, field,
                           "prompts must all be strings or all be arrays of token ids");
        nbytes += op->is_text ? json_string_length(v) : 0;
    }
    if (nbytes > COMPLETIONS_PROMPT_NBYTES_MAX)
        return err_set(e, ERR_TOO_LARGE, op->prompts_at,
                       "the prompts have %llu bytes of text; at most %d are allowed",
                       (unsigned long long)nbytes, COMPLETIONS_PROMPT_NBYTES_MAX);
    return 0;
}

int completions_parse_prompts(struct completions_op *op, const json_t *prompt, struct err *e)
{
    const json_t *first = json_is_array(prompt) ? json_array_get(prompt, 0) : prompt;
    const char *at = op->prompts_at;
    size_t n;

    if (first == NULL && json_is_array(prompt))
        return err_set(e, ERR_BAD_REQUEST, at, "an empty array; at least one prompt is needed");
    if (first == NULL)
        return err_set(e, ERR_BAD_REQUEST, at, "'%s' is required", at + 1);
    op->is_text = json_is_string(first);
    op->is_list = first != prompt && !json_is_integer(first);
    if (!op->is_text && !json_is_array(op->is_list ? first : prompt))
        return err_set(e, ERR_BAD_REQUEST, at,
                       "'%s' must be a string, an array of strings, an array of token ids, or an "
                       "array of such arrays",
                       at + 1);
    n = op->is_list ? json_array_size(prompt) : 1;
    if (n > COMPLETIONS_PROMPTS_MAX)
        return err_set(e, ERR_BAD_REQUEST, at, "%zu prompts; at most %d are allowed", n,
                       COMPLETIONS_PROMPTS_MAX);
    if (check_prompts(op, prompt, (uint32_t)n, e) != 0)
        return -1;
    op->prompts = calloc(n, sizeof *op->prompts);
    op->g.prompts = calloc(n, sizeof *op->g.prompts);
    if (op->prompts == NULL || op->g.prompts == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %zu prompts", n);
    op->g.n_prompts = (uint32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        const json_t *v = prompt_value(op, prompt, i);

        if ((op->is_text ? copy_text(op, v, i, e) : copy_ids(op, v, i, e)) != 0)
            return -1;
    }
    return 0;
}

/* Which logprobs the engine computes and the reply has; an echoed prompt has them too. */
static int resolve_logprobs(struct completions_op *op, struct err *e)
{
    struct gen_params *gen = &op->g.params.gen;

    op->logprobs = gen->logprobs;
    op->prompt_logprobs = gen->prompt_logprobs;
    if (op->stream.on && op->prompt_logprobs >= 0)
        return err_set(e, ERR_BAD_REQUEST, "/prompt_logprobs",
                       "prompt logprobs are not sent in a stream; set 'stream' to false");
    op->g.prompt_logprobs_times = op->g.params.n; /* each choice repeats them */
    if (!op->echo || op->logprobs < 0)
        return 0;
    op->g.prompt_logprobs_times *= 2; /* in the echo and in prompt_logprobs */
    if (op->stream.on)
        return err_set(e, ERR_BAD_REQUEST, "/echo",
                       "logprobs of an echoed prompt are not sent in a stream; set 'stream' to "
                       "false, or leave out 'echo' or 'logprobs'");
    if (gen->prompt_logprobs < gen->logprobs)
        gen->prompt_logprobs = gen->logprobs;
    if (op->prompt_logprobs < 0)
        op->prompt_logprobs = gen->logprobs;
    return 0;
}

static int parse_flags(struct completions_op *op, const json_t *body, struct err *e)
{
    const char *user = NULL;

    op->add_special = true;
    if (body_str(&user, body, "", "user", e) != 0 ||
        body_bool(&op->echo, body, "", "echo", e) != 0 ||
        body_bool(&op->add_special, body, "", "add_special_tokens", e) != 0 ||
        body_bool(&op->return_ids, body, "", "return_token_ids", e) != 0)
        return -1;
    return body_bool(&op->as_ids, body, "", "return_tokens_as_token_ids", e);
}

/* generation_config.json has the defaults of members that the request leaves out, as in vLLM on
 * this route. */
static void apply_defaults(struct gen_params *p, const struct model_defaults *d)
{
    p->temperature = d->has_temperature ? d->temperature : p->temperature;
    p->top_p = d->has_top_p ? d->top_p : p->top_p;
    p->top_k = d->has_top_k ? d->top_k : p->top_k;
    p->min_p = d->has_min_p ? d->min_p : p->min_p;
    p->repetition_penalty = d->has_repetition_penalty ? d->repetition_penalty
                                                      : p->repetition_penalty;
}

int completions_parse_sampling(struct completions_op *op, const json_t *body, struct err *e)
{
    struct generation *g = &op->g;
    const struct model_defaults *d = g->app->generate->defaults;

    if (d != NULL)
        apply_defaults(&g->params.gen, d);
    if (generate_params_parse(&g->params, body, "", g->app->generate->vocab_size,
                              g->app->generate->tokenizer, e) != 0 ||
        generation_check_output(g->app, g->params.gen.max_tokens, "/max_tokens", e) != 0)
        return -1;
    if (d != NULL && d->has_max_tokens && g->params.gen.max_tokens > d->max_tokens)
        g->params.gen.max_tokens = d->max_tokens;
    return 0;
}

/* max_tokens = 0 with echo scores the prompt. The engine makes one token, which is not sent. */
static int parse_sampling(struct completions_op *op, const json_t *body, struct err *e)
{
    const json_t *max = json_object_get(body, "max_tokens");
    json_t *one;
    int rc;

    op->no_output = op->echo && json_is_integer(max) && json_integer_value(max) == 0;
    if (!op->no_output)
        return completions_parse_sampling(op, body, e);
    one = json_copy((json_t *)(uintptr_t)body);
    if (one == NULL || json_object_set_new(one, "max_tokens", json_integer(1)) != 0)
        rc = err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
    else
        rc = completions_parse_sampling(op, one, e);
    json_decref(one);
    return rc;
}

static int completions_parse(struct completions_op *op, const json_t *body, struct err *e)
{
    struct generation *g = &op->g;

    g->params.gen.max_tokens = COMPLETIONS_MAX_TOKENS_DEFAULT; /* for null too, as in vLLM */
    if (generation_parse_names(&op->request_id, g, body, e) != 0 ||
        generation_parse_stream(&op->stream, body, false, e) != 0 ||
        parse_flags(op, body, e) != 0 ||
        generate_check_neutral(body, "", completions_rules, e) != 0 ||
        parse_sampling(op, body, e) != 0 || resolve_logprobs(op, e) != 0)
        return -1;
    if (body_given(body, "prompt") == NULL && body_given(body, "messages") != NULL)
        return err_set(e, ERR_BAD_REQUEST, "/prompt",
                       "'prompt' is required; messages go to /v1/chat/completions");
    return completions_parse_prompts(op, json_object_get(body, "prompt"), e);
}

static int encode_prompt(struct completions_op *op, uint32_t i, struct err *e)
{
    const struct app *app = op->g.app;
    struct generation_prompt *out = &op->g.prompts[i];
    char field[ERR_FIELD_MAX];
    uint32_t *ids = NULL;
    size_t n = 0;

    prompt_field(field, op, i);
    if (tokenizer_encode(app->generate->tokenizer, op->prompts[i].text, op->prompts[i].len,
                         op->add_special, &ids, &n, e) != 0) {
        (void)snprintf(e->field, sizeof e->field, "%s", field);
        return -1;
    }
    out->ids = ids;
    out->n = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    return generation_check_prompt(app, out->n, field, e);
}

/* An echo needs the text of the prompt: the client's, or else the decoded ids. */
static int prepare_prompt_text(struct completions_op *op, uint32_t i, struct err *e)
{
    struct completions_prompt *p = &op->prompts[i];
    const struct generation_prompt *ids = &op->g.prompts[i];
    struct buf text = {0};

    if (!op->echo) {
        free(p->text);
        *p = (struct completions_prompt){0};
        return 0;
    }
    if (p->text == NULL) {
        if (tokenizer_decode(op->g.app->generate->tokenizer, ids->ids, ids->n,
                             op->g.params.skip_special_tokens, &text, e) != 0) {
            buf_fini(&text);
            prompt_field(e->field, op, i);
            return -1;
        }
        p->text = buf_take(&text, &p->len);
        if (p->text == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for the text of the prompt");
    }
    p->n_chars = completion_text_chars(p->text, p->len);
    return 0;
}

static int make_texts(struct completions_op *op, struct err *e)
{
    struct generation *g = &op->g;

    if (generation_expand(g, op->prompts_at, e) != 0)
        return -1;
    op->texts = calloc(g->n_seqs, sizeof *op->texts);
    if (op->texts == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u texts", g->n_seqs);
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        const struct generation_prompt *prompt = &g->prompts[g->seqs[i].prompt];

        completion_text_init(&op->texts[i], g->app->generate->tokenizer,
                             g->params.skip_special_tokens, &g->params.gen,
                             g->params.include_stop_str, op->prompts[g->seqs[i].prompt].n_chars);
        completion_text_follow(&op->texts[i], prompt->ids, prompt->n);
    }
    return 0;
}

/* All work of the tokenizer before the request queues for its permit. */
static int make_prompts(struct completions_op *op, struct err *e)
{
    if (http_request_disconnected(op->g.x))
        return err_set(e, ERR_GONE, "", "the client went away before its turn");
    if (life_state(op->g.app->life) == LIFE_DRAINING) /* no permit would follow */
        return err_set(e, ERR_DRAINING, "", "the server is draining: no new generate");
    if (op->chat != NULL && chat_render(op, e) != 0)
        return -1;
    for (uint32_t i = 0; i < op->g.n_prompts; i++) {
        if ((op->is_text && encode_prompt(op, i, e) != 0) || prepare_prompt_text(op, i, e) != 0)
            return -1;
    }
    return make_texts(op, e);
}

/* On app->text_executor. */
static void completions_prepare(void *arg)
{
    struct completions_op *op = arg;
    struct err e = {0};
    int rc;

    http_request_on_disconnect(op->g.x, NULL, NULL);
    rc = make_prompts(op, &e);
    admission_leave(op->g.app->generate->prompt_admission, &op->ticket);
    if (rc != 0) {
        generation_fail(&op->g, &e);
        return;
    }
    generation_watch(&op->g);
    generation_enter(&op->g);
}

/* The client disconnected while queued: its ticket has already been removed from the queue. */
static void completions_fail_disconnected(void *arg)
{
    struct completions_op *op = arg;
    struct err e = {0};

    (void)err_set(&e, ERR_GONE, "", "the client went away before its turn");
    generation_fail(&op->g, &e);
}

/* Runs under the request's lock: only removes the ticket; another thread answers. */
static void completions_on_disconnect(void *arg)
{
    struct completions_op *op = arg;
    struct app *app = op->g.app;
    struct err ignored = {0};

    if (!admission_cancel(app->generate->prompt_admission, &op->ticket))
        return;
    op->g.step = (struct job){.run = completions_fail_disconnected, .arg = op};
    (void)workers_post(app->text_executor, &op->g.step, WORKERS_URGENT, &ignored);
}

/* If the threads of the executor have ended, it runs here. */
static void completions_granted(void *arg)
{
    struct completions_op *op = arg;
    struct err ignored = {0};

    op->g.step = (struct job){.run = completions_prepare, .arg = op};
    if (workers_post(op->g.app->text_executor, &op->g.step, WORKERS_URGENT, &ignored) != 0)
        completions_prepare(op);
}

void completions_init(struct completions_op *op, struct app *app, struct http_request *x)
{
    generation_init(&op->g, app, x, &whole_ops, app->text_executor);
    op->created_s = clock_wall_s();
    op->g.id_prefix = "cmpl-";
    op->stream_ops = &stream_ops;
    op->prompts_at = "/prompt";
    op->sampling_at = "";
}

struct completions_op *completions_new(struct app *app, struct http_request *x, struct err *e)
{
    struct completions_op *op = calloc(1, sizeof *op);

    if (op == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
        return NULL;
    }
    completions_init(op, app, x);
    return op;
}

void completions_begin(struct completions_op *op)
{
    struct http_request *x = op->g.x;
    struct err e = {0};

    if (op->stream.on)
        op->g.ops = op->stream_ops;
    op->ticket = (struct ticket){.granted = completions_granted, .arg = op};
    http_request_on_disconnect(x, completions_on_disconnect, op);
    if (admission_enter(op->g.app->generate->prompt_admission, &op->ticket, &e) == 0)
        return;
    http_request_on_disconnect(x, NULL, NULL);
    generation_fail(&op->g, &e);
}

int handle_completions(struct app *app, struct http_request *x, struct err *e)
{
    struct completions_op *op;
    json_t *body = NULL;
    int rc;

    if (generation_check_app(app, NULL, e) != 0)
        return -1;
    if (app->generate->tokenizer == NULL)
        return err_set(e, ERR_NO_ENGINE, "", "no tokenizer is loaded: text cannot be made");
    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    http_request_drop_body(x);
    op = completions_new(app, x, e);
    rc = op != NULL ? completions_parse(op, body, e) : -1;
    json_decref(body);
    if (rc == 0)
        completions_begin(op);
    else if (op != NULL)
        generation_unref(&op->g);
    return rc;
}
