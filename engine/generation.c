/* Parameters and outputs of a generation: what every engine shares. */
#include "engine/generation.h"

#include "engine/lora/adapter_use.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float TEMPERATURE_MAX = 100.0F, PENALTY_MAX = 2.0F;

void gen_params_init(struct gen_params *p)
{
    *p = (struct gen_params){
        .max_tokens = 16,
        .temperature = 1.0F,
        .top_p = 1.0F,
        .repetition_penalty = 1.0F,
        .logprobs = -1,
        .prompt_logprobs = -1,
    };
}

__attribute__((format(printf, 4, 5))) static int refuse(struct err *e, const char *prefix,
                                                        const char *member, const char *fmt, ...)
{
    char field[ERR_FIELD_MAX], msg[ERR_MSG_MAX];
    va_list ap;

    (void)snprintf(field, sizeof field, "%s/%s", prefix, member);
    va_start(ap, fmt);
    (void)vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return err_set(e, ERR_BAD_REQUEST, field, "%s", msg);
}

static int check_counts(const struct gen_params *p, const char *prefix, struct err *e)
{
    if (p->max_tokens < 1)
        return refuse(e, prefix, "max_tokens", "max_tokens is 0; it must be at least 1");
    if (p->min_tokens > p->max_tokens)
        return refuse(e, prefix, "min_tokens",
                      "min_tokens is %u; it must not exceed max_tokens, %u", p->min_tokens,
                      p->max_tokens);
    if (p->logprobs < -1)
        return refuse(e, prefix, "logprobs", "logprobs is %d; it must not be negative",
                      p->logprobs);
    if (p->prompt_logprobs < -1)
        return refuse(e, prefix, "prompt_logprobs",
                      "prompt_logprobs is %d; it must not be negative", p->prompt_logprobs);
    return 0;
}

static int generation_check_shape(const struct gen_params *p, const char *prefix, struct err *e)
{
    if (!isfinite(p->temperature) || p->temperature < 0 || p->temperature > TEMPERATURE_MAX)
        return refuse(e, prefix, "temperature", "temperature is %.9g; expected 0 to %g",
                      (double)p->temperature, (double)TEMPERATURE_MAX);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return refuse(e, prefix, "top_p", "top_p is %.9g; it must be above 0 and at most 1",
                      (double)p->top_p);
    if (p->top_k < -1)
        return refuse(e, prefix, "top_k", "top_k is %d; it must be positive, or 0 or -1 for off",
                      p->top_k);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return refuse(e, prefix, "min_p", "min_p is %.9g; expected 0 to 1", (double)p->min_p);
    return 0;
}

static int check_penalty(float penalty, const char *prefix, const char *member, struct err *e)
{
    if (penalty >= -PENALTY_MAX && penalty <= PENALTY_MAX)
        return 0;
    return refuse(e, prefix, member, "%s is %.9g; expected %g to %g", member, (double)penalty,
                  (double)-PENALTY_MAX, (double)PENALTY_MAX);
}

static int check_penalties(const struct gen_params *p, const char *prefix, struct err *e)
{
    if (!isfinite(p->repetition_penalty) || p->repetition_penalty <= 0)
        return refuse(e, prefix, "repetition_penalty",
                      "repetition_penalty is %.9g; it must be a finite number above 0",
                      (double)p->repetition_penalty);
    if (check_penalty(p->frequency_penalty, prefix, "frequency_penalty", e) != 0)
        return -1;
    return check_penalty(p->presence_penalty, prefix, "presence_penalty", e);
}

static int check_stops(const struct gen_params *p, const char *prefix, struct err *e)
{
    char member[32];

    if (p->n_stop_ids > GEN_STOP_IDS_MAX)
        return refuse(e, prefix, "stop_token_ids", "%u stop token ids; at most %d are allowed",
                      p->n_stop_ids, (int)GEN_STOP_IDS_MAX);
    if (p->n_stops > GEN_STOPS_MAX)
        return refuse(e, prefix, "stop", "%u stop strings; at most %d are allowed", p->n_stops,
                      (int)GEN_STOPS_MAX);
    for (uint32_t i = 0; i < p->n_stops; i++) {
        size_t len = strlen(p->stops[i]);

        (void)snprintf(member, sizeof member, "stop/%u", i);
        if (len == 0 || len > GEN_STOP_LEN_MAX)
            return refuse(e, prefix, member,
                          "a stop string of %zu bytes; it must have 1 to %d bytes", len,
                          (int)GEN_STOP_LEN_MAX);
    }
    return 0;
}

int gen_params_check(const struct gen_params *p, const char *prefix, struct err *e)
{
    if (check_counts(p, prefix, e) != 0 || generation_check_shape(p, prefix, e) != 0 ||
        check_penalties(p, prefix, e) != 0 || check_stops(p, prefix, e) != 0)
        return -1;
    return 0;
}

void gen_request_fini(struct gen_request *r)
{
    free(r->prompt);
    for (uint32_t i = 0; i < r->params.n_stops; i++)
        free(r->params.stops[i]);
    logits_processor_unref(r->params.logits_processor);
    adapter_use_unref(r->adapter);
    memset(r, 0, sizeof *r);
}

static uint32_t n_top(int32_t logprobs)
{
    return logprobs > 0 ? (uint32_t)logprobs : 0;
}

/* Blocks of n * k entries: n is bounded by the context, k by the vocabulary, and both together by
 * the caller of submit. */
static struct gen_top *tops_new(uint32_t n, int32_t logprobs)
{
    return malloc((size_t)n * n_top(logprobs) * sizeof(struct gen_top));
}

static size_t n_row_routes(const struct gen_record_cfg *cfg)
{
    return (size_t)cfg->n_route_layers * cfg->n_routes_per_token;
}

static int routes_alloc(struct gen_record *r)
{
    const struct gen_record_cfg *cfg = &r->cfg;
    size_t n_rows = (size_t)cfg->n_prompt + cfg->n_tokens_max - 1;

    if (n_row_routes(cfg) == 0)
        return 0;
    r->routes = malloc(n_rows * n_row_routes(cfg) * sizeof *r->routes);
    return r->routes != NULL ? 0 : -1;
}

static int record_alloc(struct gen_record *r)
{
    const struct gen_record_cfg *cfg = &r->cfg;

    r->tokens = malloc(cfg->n_tokens_max * sizeof *r->tokens);
    r->spans = malloc(cfg->n_tokens_max * sizeof *r->spans);
    if (r->tokens == NULL || r->spans == NULL)
        return -1;
    if (cfg->logprobs > 0 && (r->tops = tops_new(cfg->n_tokens_max, cfg->logprobs)) == NULL)
        return -1;
    if (routes_alloc(r) != 0)
        return -1;
    if (cfg->prompt_logprobs < 0)
        return 0;
    r->prompt = calloc(cfg->n_prompt, sizeof *r->prompt);
    if (r->prompt == NULL)
        return -1;
    if (cfg->prompt_logprobs > 0 &&
        (r->prompt_tops = tops_new(cfg->n_prompt, cfg->prompt_logprobs)) == NULL)
        return -1;
    return 0;
}

int gen_record_new(struct gen_record **out, const struct gen_record_cfg *cfg, struct err *e)
{
    struct gen_record *r = calloc(1, sizeof *r);

    if (r == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the output of a generation");
    r->cfg = *cfg;
    if (record_alloc(r) != 0) {
        gen_record_free(r);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for an output of %u tokens",
                       cfg->n_tokens_max);
    }
    r->out.tokens = r->tokens;
    r->out.spans = r->spans;
    r->out.prompt = r->prompt;
    r->out.n_prompt = r->prompt != NULL ? cfg->n_prompt : 0;
    r->out.routes = r->routes;
    r->out.n_route_layers = cfg->n_route_layers;
    r->out.n_routes_per_token = cfg->n_routes_per_token;
    r->out.stop_id = -1;
    *out = r;
    return 0;
}

void gen_record_free(struct gen_record *r)
{
    if (r == NULL)
        return;
    free(r->tokens);
    free(r->tops);
    free(r->prompt);
    free(r->prompt_tops);
    free(r->routes);
    for (uint32_t i = 0; i < r->out.n_spans; i++)
        version_label_unref(r->spans[i].name);
    free(r->spans);
    free(r);
}

struct gen_top *gen_record_top(struct gen_record *r, uint32_t i)
{
    return r->tops == NULL ? NULL : r->tops + (size_t)i * n_top(r->cfg.logprobs);
}

struct gen_top *gen_record_prompt_top(struct gen_record *r, uint32_t i)
{
    return r->prompt_tops == NULL ? NULL
                                  : r->prompt_tops + (size_t)i * n_top(r->cfg.prompt_logprobs);
}

uint16_t *gen_record_routes(struct gen_record *r, uint32_t pos)
{
    struct gen_output *out = &r->out;

    if (r->routes == NULL || (out->n_tokens > 0 && pos < out->n_routed))
        return NULL;
    assert(pos < r->cfg.n_prompt + out->n_tokens);
    if (out->n_tokens == 0)
        out->n_routed = pos + 1;
    return r->routes + pos * n_row_routes(&r->cfg);
}

void gen_record_append(struct gen_record *r, const struct gen_token *t, uint64_t serial,
                       struct version_label *name)
{
    struct gen_output *out = &r->out;
    struct gen_span *span = out->n_spans > 0 ? &r->spans[out->n_spans - 1] : NULL;

    assert(out->n_tokens < r->cfg.n_tokens_max);
    if (span == NULL || span->serial != serial || strcmp(span->label, name->text) != 0) {
        span = &r->spans[out->n_spans++];
        *span = (struct gen_span){.start = out->n_tokens,
                                  .serial = serial,
                                  .name = version_label_ref(name),
                                  .label = name->text};
    }
    r->tokens[out->n_tokens] = *t;
    r->tokens[out->n_tokens++].version = span->label;
    span->end = out->n_tokens;
    if (r->routes != NULL)
        out->n_routed = r->cfg.n_prompt + out->n_tokens - 1;
}

struct gen_output *gen_output_take(struct gen_output *out)
{
    struct gen_record *r = (struct gen_record *)out;

    assert(r->taken != NULL); /* inside done, and once */
    *r->taken = true;
    r->taken = NULL;
    return out;
}

bool gen_record_tell(struct gen_record *r, const struct gen_sink *sink, void *sink_arg)
{
    bool taken = false;

    r->taken = &taken;
    sink->done(sink_arg, &r->out);
    return taken;
}

void gen_output_free(struct gen_output *out)
{
    gen_record_free((struct gen_record *)out);
}
