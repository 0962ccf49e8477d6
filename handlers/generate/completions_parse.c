/* Parses the body of POST /v1/completions; the prompts and sampling members of other routes too. */
#include "handlers/generate/completions_priv.h"

#include "base/json_parse.h"
#include "handlers/body.h"
#include "handlers/data_plane.h"
#include "weights/model/model_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void completions_prompt_field(char field[ERR_FIELD_MAX], const struct completions_op *op,
                              uint32_t i)
{
    if (op->is_list)
        (void)snprintf(field, ERR_FIELD_MAX, "%s/%u", op->prompts_at, i);
    else
        (void)snprintf(field, ERR_FIELD_MAX, "%s", op->prompts_at);
}

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

    completions_prompt_field(field, op, i);
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

        completions_prompt_field(field, op, i);
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
static int parse_completions_sampling(struct completions_op *op, const json_t *body, struct err *e)
{
    const json_t *max = json_object_get(body, "max_tokens");
    json_t *one;
    int rc;

    op->no_output = op->echo && json_is_integer(max) && json_integer_value(max) == 0;
    if (!op->no_output)
        return completions_parse_sampling(op, body, e);
    one = json_copy_all(body);
    if (one == NULL || json_object_set_new(one, "max_tokens", json_integer(1)) != 0)
        rc = err_set(e, ERR_NO_MEMORY, "", "no memory for the request");
    else
        rc = completions_parse_sampling(op, one, e);
    json_decref(one);
    return rc;
}

int completions_parse(struct completions_op *op, const json_t *body, struct err *e)
{
    struct generation *g = &op->g;
    bool routed = g->app->settings.routed_experts == ROUTED_EXPERTS_VLLM;
    struct generate_request r;

    if (body_given(body, "prompt") == NULL && body_given(body, "messages") != NULL)
        return err_set(e, ERR_BAD_REQUEST, "/prompt",
                       "'prompt' is required; messages go to /v1/chat/completions");
    g->params.gen.max_tokens = COMPLETIONS_MAX_TOKENS_DEFAULT; /* for null too, as in vLLM */
    if (generation_read(&r, &op->request_id, g, completions_members, body, routed, e) != 0 ||
        generation_read_stream(&op->stream, &r, false, e) != 0)
        return -1;
    op->echo = r.echo;
    op->add_special = r.add_special_tokens;
    op->return_ids = r.return_token_ids;
    op->as_ids = r.return_tokens_as_token_ids;
    if (parse_completions_sampling(op, body, e) != 0 || resolve_logprobs(op, e) != 0)
        return -1;
    return completions_parse_prompts(op, r.prompt, e);
}
