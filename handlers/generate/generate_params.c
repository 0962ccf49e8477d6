/* Sampling members: which are honoured, and which are refused rather than ignored.
 *
 * gen_params_check checks the ranges that the engine defines, once, after all members are read.
 * Rejected design: ignore unsupported members with a warning in the log. A trainer would then learn
 * from samples of another distribution than it requested. */
#include "handlers/generate/generate_params.h"

#include "base/id.h"
#include "handlers/body.h"
#include "handlers/generate/logits_processor_parse.h"
#include "handlers/rows/rows.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void generate_params_init(struct generate_params *p)
{
    *p = (struct generate_params){.seed = -1, .n = 1, .skip_special_tokens = true};
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
static int check_best_of(const struct generate_params *p, const char *at, struct err *e)
{
    char field[ERR_FIELD_MAX];

    if (p->best_of == 0 || p->best_of == p->n)
        return 0;
    (void)snprintf(field, sizeof field, "%s/best_of", at);
    return err_set(e, ERR_BAD_REQUEST, field,
                   "'best_of' is not supported by this server: found %u, only null and n, %u, are "
                   "accepted",
                   p->best_of, p->n);
}

/* prime-rl requests compact logprobs, and its client also accepts the normal form. */
static int check_extra_args(const json_t *o, const char *at, struct err *e)
{
    const json_t *args = NULL;
    char field[ERR_FIELD_MAX];

    if (body_object(&args, o, at, "extra_args", e) != 0)
        return -1;
    if (json_object_size(args) == json_is_boolean(json_object_get(args, "prl_compact_logprobs")))
        return 0;
    (void)snprintf(field, sizeof field, "%s/extra_args", at);
    return err_set(e, ERR_BAD_REQUEST, field,
                   "'extra_args' is not supported by this server: found an object, only null, {} "
                   "or {\"prl_compact_logprobs\": BOOLEAN} is accepted");
}

/* -1 means the whole vocabulary. */
static int read_logprobs(int32_t *out, const json_t *o, const char *at, const char *member,
                         uint32_t vocab_size, struct err *e)
{
    int64_t n = *out;

    if (body_i64(&n, o, at, member, -1, vocab_size, e) != 0)
        return -1;
    *out = n == -1 && body_given(o, member) != NULL ? (int32_t)vocab_size : (int32_t)n;
    return 0;
}

int generate_params_lists(struct generate_params *p, const json_t *object, const char *at,
                          uint32_t vocab_size, const struct tokenizer *t, struct err *e)
{
    struct gen_params *g = &p->gen;

    if (read_stops(g, object, at, e) != 0 || read_stop_ids(g, object, at, vocab_size, e) != 0 ||
        gen_params_check(g, at, e) != 0)
        return -1;
    return logits_processor_parse(&g->logits_processor, object, at, vocab_size, t, e);
}

int generate_params_parse(struct generate_params *p, const json_t *object, const char *at,
                          uint32_t vocab_size, const struct tokenizer *t, struct err *e)
{
    struct gen_params *g = &p->gen;

    if (member_read(p, sampling_rows, object, at, e) != 0 || check_best_of(p, at, e) != 0 ||
        read_logprobs(&g->logprobs, object, at, "logprobs", vocab_size, e) != 0 ||
        read_logprobs(&g->prompt_logprobs, object, at, "prompt_logprobs", vocab_size, e) != 0 ||
        check_extra_args(object, at, e) != 0)
        return -1;
    return generate_params_lists(p, object, at, vocab_size, t, e);
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
    g.seed = p->seed != -1 ? (uint64_t)p->seed + choice : id_random_u64();
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
