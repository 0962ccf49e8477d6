/* Sampling members: which are honoured, and which are refused rather than ignored.
 *
 * gen_params_check checks the ranges that the engine defines, once, after all members are read.
 * Rejected design: ignore unsupported members with a warning in the log. A trainer would then learn
 * from samples of another distribution than it requested. */
#include "handlers/generate/generate_params.h"

#include "base/id.h"
#include "handlers/body.h"
#include "handlers/generate/logits_processor_parse.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUTPUT_KIND_MAX = 2 }; /* vLLM's RequestOutputKind: cumulative, delta, final */

static const struct neutral_rule sampling_neutral[] = {
#define X(member, kind, number) {member, kind, number},
    GENERATE_SAMPLING_NEUTRAL(X)
#undef X
        {NULL, NEUTRAL_NULL, 0}};


static bool is_neutral(const json_t *v, const struct neutral_rule *rule)
{
    switch (rule->kind) {
    case NEUTRAL_NULL:
        return false;
    case NEUTRAL_EMPTY:
        return (json_is_object(v) && json_object_size(v) == 0) ||
               (json_is_array(v) && json_array_size(v) == 0) ||
               (json_is_string(v) && json_string_length(v) == 0);
    case NEUTRAL_FALSE:
        return json_is_false(v);
    case NEUTRAL_NUMBER:
        return json_is_number(v) && !(json_number_value(v) < rule->number) &&
               !(json_number_value(v) > rule->number);
    case NEUTRAL_TEXT:
        v = json_object_get(v, "type");
        return json_is_string(v) && strcmp(json_string_value(v), "text") == 0;
    case NEUTRAL_LOGPROBS_FORM:
        return json_is_object(v) && (json_object_size(v) == 0 ||
                                     (json_object_size(v) == 1 &&
                                      json_is_boolean(json_object_get(v, "prl_compact_logprobs"))));
    }
    return false;
}

static int refuse(const json_t *v, const char *at, const struct neutral_rule *rule, struct err *e)
{
    char field[ERR_FIELD_MAX], found[64], allowed[64] = "null";

    (void)snprintf(field, sizeof field, "%s/%s", at, rule->member);
    (void)snprintf(found, sizeof found, "%s", body_type_name(v));
    if (json_is_number(v))
        (void)snprintf(found, sizeof found, "%.9g", json_number_value(v));
    if (rule->kind == NEUTRAL_NUMBER)
        (void)snprintf(allowed, sizeof allowed, "null or %g", rule->number);
    else if (rule->kind == NEUTRAL_EMPTY)
        (void)snprintf(allowed, sizeof allowed, "null or an empty value");
    else if (rule->kind == NEUTRAL_FALSE)
        (void)snprintf(allowed, sizeof allowed, "null or false");
    else if (rule->kind == NEUTRAL_TEXT)
        (void)snprintf(allowed, sizeof allowed, "null or {\"type\": \"text\"}");
    else if (rule->kind == NEUTRAL_LOGPROBS_FORM)
        (void)snprintf(allowed, sizeof allowed, "null, {} or {\"prl_compact_logprobs\": BOOLEAN}");
    return err_set(e, ERR_BAD_REQUEST, field,
                   "'%s' is not supported by this server: found %s, only %s is accepted",
                   rule->member, found, allowed);
}

int generate_check_neutral(const json_t *object, const char *at, const struct neutral_rule *rules,
                           struct err *e)
{
    for (; rules->member != NULL; rules++) {
        const json_t *v = json_object_get(object, rules->member);

        if (v != NULL && !json_is_null(v) && !is_neutral(v, rules))
            return refuse(v, at, rules, e);
    }
    return 0;
}

void generate_params_init(struct generate_params *p)
{
    *p = (struct generate_params){.n = 1, .skip_special_tokens = true};
    gen_params_init(&p->gen);
    p->gen.max_tokens = GEN_MAX_TOKENS_REST;
}

void generate_params_fini(struct generate_params *p)
{
    for (uint32_t i = 0; i < p->gen.n_stops; i++)
        free(p->gen.stops[i]);
    logits_processor_unref(p->gen.logits_processor);
    *p = (struct generate_params){0};
}

static int read_float(float *out, const json_t *o, const char *at, const char *member,
                      struct err *e)
{
    char field[ERR_FIELD_MAX];
    double v = (double)*out;

    if (body_f64(&v, o, at, member, e) != 0)
        return -1;
    if (!(fabs(v) <= (double)FLT_MAX)) {
        (void)snprintf(field, sizeof field, "%s/%s", at, member);
        return err_set(e, ERR_BAD_REQUEST, field, "%g is out of range of a 32-bit float", v);
    }
    *out = (float)v;
    return 0;
}

static int read_i32(int32_t *out, const json_t *o, const char *at, const char *member, int32_t min,
                    int32_t max, struct err *e)
{
    int64_t v = *out;

    if (body_i64(&v, o, at, member, min, max, e) != 0)
        return -1;
    *out = (int32_t)v;
    return 0;
}

static int read_seed(struct generate_params *p, const json_t *o, const char *at, struct err *e)
{
    int64_t seed = -1;

    if (body_i64(&seed, o, at, "seed", INT64_MIN, INT64_MAX, e) != 0)
        return -1;
    p->seeded = seed != -1; /* -1 is how some clients spell "none" */
    p->gen.seed = (uint64_t)seed;
    return 0;
}

static int add_stop(struct gen_params *g, const json_t *v, const char *field, struct err *e)
{
    size_t len = json_string_length(v);

    if (!json_is_string(v))
        return err_set(e, ERR_BAD_REQUEST, field, "a stop must be a string, found %s",
                       body_type_name(v));
    if (len == 0 || len > GEN_STOP_LEN_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "a stop string has %zu bytes; expected 1 to %d",
                       len, GEN_STOP_LEN_MAX);
    if (strlen(json_string_value(v)) != len)
        return err_set(e, ERR_BAD_REQUEST, field, "a stop string has a NUL character in it");
    g->stops[g->n_stops] = strdup(json_string_value(v));
    if (g->stops[g->n_stops] == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a stop string");
    g->n_stops++;
    return 0;
}

static int read_stops(struct gen_params *g, const json_t *o, const char *at, struct err *e)
{
    const json_t *v = json_object_get(o, "stop");
    char field[ERR_FIELD_MAX];

    if (v == NULL || json_is_null(v))
        return 0;
    (void)snprintf(field, sizeof field, "%s/stop", at);
    if (json_is_string(v))
        return add_stop(g, v, field, e);
    if (!json_is_array(v))
        return err_set(e, ERR_BAD_REQUEST, field,
                       "'stop' must be a string or an array of strings, found %s",
                       body_type_name(v));
    if (json_array_size(v) > GEN_STOPS_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "%zu stop strings; at most %d are allowed",
                       json_array_size(v), GEN_STOPS_MAX);
    for (size_t i = 0; i < json_array_size(v); i++) {
        (void)snprintf(field, sizeof field, "%s/stop/%zu", at, i);
        if (add_stop(g, json_array_get(v, i), field, e) != 0)
            return -1;
    }
    return 0;
}

static int read_stop_ids(struct gen_params *g, const json_t *o, const char *at, uint32_t vocab_size,
                         struct err *e)
{
    const json_t *array = NULL;
    char field[ERR_FIELD_MAX];
    uint32_t *ids = NULL, n = 0;

    if (body_array(&array, o, at, "stop_token_ids", e) != 0)
        return -1;
    if (array == NULL)
        return 0;
    (void)snprintf(field, sizeof field, "%s/stop_token_ids", at);
    if (generate_parse_ids(&ids, &n, array, field, vocab_size, GEN_STOP_IDS_MAX, e) != 0)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        g->stop_ids[i] = ids[i];
    g->n_stop_ids = n;
    free(ids);
    return 0;
}

/* best_of of older vLLM: the number of sequences to generate before the best n are returned. */
static int read_best_of(uint32_t n, const json_t *o, const char *at, struct err *e)
{
    char field[ERR_FIELD_MAX];
    uint32_t best_of = n;

    if (body_u32(&best_of, o, at, "best_of", 1, GENERATE_N_MAX, e) != 0)
        return -1;
    if (best_of == n)
        return 0;
    (void)snprintf(field, sizeof field, "%s/best_of", at);
    return err_set(e, ERR_BAD_REQUEST, field,
                   "'best_of' is not supported by this server: found %u, only null and n, %u, are "
                   "accepted",
                   best_of, n);
}

/* -1 means the whole vocabulary. */
static int read_logprobs(int32_t *out, const json_t *o, const char *at, const char *member,
                         uint32_t vocab_size, struct err *e)
{
    const json_t *v = body_given(o, member);

    if (read_i32(out, o, at, member, -1, (int32_t)vocab_size, e) != 0)
        return -1;
    if (v != NULL && *out == -1)
        *out = (int32_t)vocab_size;
    return 0;
}

static int read_shape(struct generate_params *p, const json_t *object, const char *at,
                      struct err *e)
{
    struct gen_params *g = &p->gen;

    if (body_u32(&p->n, object, at, "n", 1, GENERATE_N_MAX, e) != 0 ||
        read_best_of(p->n, object, at, e) != 0 ||
        body_u32(&g->max_tokens, object, at, "max_tokens", 1, GEN_MAX_TOKENS_REST - 1, e) != 0 ||
        body_u32(&g->min_tokens, object, at, "min_tokens", 0, GEN_MAX_TOKENS_REST - 1, e) != 0 ||
        read_float(&g->temperature, object, at, "temperature", e) != 0 ||
        read_float(&g->top_p, object, at, "top_p", e) != 0 ||
        read_float(&g->min_p, object, at, "min_p", e) != 0 ||
        read_i32(&g->top_k, object, at, "top_k", -1, INT32_MAX, e) != 0 ||
        read_float(&g->repetition_penalty, object, at, "repetition_penalty", e) != 0 ||
        read_float(&g->frequency_penalty, object, at, "frequency_penalty", e) != 0 ||
        read_float(&g->presence_penalty, object, at, "presence_penalty", e) != 0)
        return -1;
    return read_seed(p, object, at, e);
}

/* Members that have no effect on this server's reply; only their type is checked. */
static int read_harmless(const json_t *o, const char *at, struct err *e)
{
    static const char *const flags[] = {"spaces_between_special_tokens", "detokenize",
                                        "skip_reading_prefix_cache"};
    uint64_t kind = 0;
    bool flag = false;

    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (body_bool(&flag, o, at, flags[i], e) != 0)
            return -1;
    }
    return body_u64(&kind, o, at, "output_kind", 0, OUTPUT_KIND_MAX, e);
}

int generate_params_parse(struct generate_params *p, const json_t *object, const char *at,
                          uint32_t vocab_size, const struct tokenizer *t, struct err *e)
{
    struct gen_params *g = &p->gen;

    if (read_shape(p, object, at, e) != 0 ||
        read_logprobs(&g->logprobs, object, at, "logprobs", vocab_size, e) != 0 ||
        read_logprobs(&g->prompt_logprobs, object, at, "prompt_logprobs", vocab_size, e) != 0)
        return -1;
    if (body_bool(&g->ignore_eos, object, at, "ignore_eos", e) != 0 ||
        body_bool(&p->skip_special_tokens, object, at, "skip_special_tokens", e) != 0 ||
        body_bool(&p->include_stop_str, object, at, "include_stop_str_in_output", e) != 0 ||
        read_stops(g, object, at, e) != 0 || read_stop_ids(g, object, at, vocab_size, e) != 0 ||
        body_u32(&p->routes_start, object, at, "routed_experts_prompt_start", 0, UINT32_MAX, e) !=
            0 ||
        read_harmless(object, at, e) != 0 ||
        generate_check_neutral(object, at, sampling_neutral, e) != 0 ||
        gen_params_check(g, at, e) != 0)
        return -1;
    return logits_processor_parse(&g->logits_processor, object, at, vocab_size, t, e);
}

int generate_params_for(struct gen_params *out, const struct generate_params *p, uint32_t choice,
                        uint32_t context, struct err *e)
{
    struct gen_params g = p->gen;

    g.n_stops = 0;
    for (; g.n_stops < p->gen.n_stops; g.n_stops++) {
        g.stops[g.n_stops] = strdup(p->gen.stops[g.n_stops]);
        if (g.stops[g.n_stops] == NULL)
            goto err_free_stops;
    }
    if (g.max_tokens >= context)
        g.max_tokens = GEN_MAX_TOKENS_REST;
    g.stops_see_special = !p->skip_special_tokens;
    g.logits_processor = logits_processor_ref(p->gen.logits_processor);
    g.seed = p->seeded ? p->gen.seed + choice : id_random_u64();
    *out = g;
    return 0;

err_free_stops:
    while (g.n_stops > 0)
        free(g.stops[--g.n_stops]);
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the stop strings");
}

static int read_id(uint32_t *out, const json_t *v, const char *at, size_t i, uint32_t vocab_size,
                   struct err *e)
{
    json_int_t id = json_integer_value(v);
    char field[ERR_FIELD_MAX];

    if (json_is_integer(v) && id >= 0 && id < (json_int_t)vocab_size) {
        *out = (uint32_t)id;
        return 0;
    }
    (void)snprintf(field, sizeof field, "%s/%zu", at, i);
    if (!json_is_integer(v))
        return err_set(e, ERR_BAD_REQUEST, field, "a token id must be an integer, found %s",
                       body_type_name(v));
    return err_set(e, ERR_BAD_REQUEST, field, "token id %lld is not in the vocabulary of %u tokens",
                   (long long)id, vocab_size);
}

int generate_parse_ids(uint32_t **out, uint32_t *n, const json_t *array, const char *at,
                       uint32_t vocab_size, uint32_t n_max, struct err *e)
{
    size_t len = json_array_size(array);
    uint32_t *ids = NULL;

    assert(json_is_array(array));
    if (len > n_max)
        return err_set(e, ERR_BAD_REQUEST, at, "%zu token ids; at most %u are allowed here", len,
                       n_max);
    if (len > 0) {
        ids = malloc(len * sizeof *ids);
        if (ids == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for %zu token ids", len);
    }
    for (size_t i = 0; i < len; i++) {
        if (read_id(&ids[i], json_array_get(array, i), at, i, vocab_size, e) != 0) {
            free(ids);
            return -1;
        }
    }
    *out = ids;
    *n = (uint32_t)len;
    return 0;
}
