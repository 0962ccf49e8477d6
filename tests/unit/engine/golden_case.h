/* A case of golden.json, which transformers or peft computed in float32: asked of the engine, and
 * its output compared. Included with FIXTURES. */
#ifndef BATON_TESTS_GOLDEN_CASE_H
#define BATON_TESTS_GOLDEN_CASE_H

#include "tests/unit/engine/served_model.h"

#include <jansson.h>
#include <math.h>

static const double GOLDEN_TOLERANCE = 1e-4;

/* Returns: how many `*ids`, which the caller frees, are. */
static inline uint32_t golden_ids(const json_t *list, uint32_t **ids)
{
    size_t n = json_array_size(list);

    *ids = malloc((n + 1) * sizeof **ids);
    assert_non_null(*ids);
    for (size_t i = 0; i < n; i++)
        (*ids)[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)n;
}

static inline void golden_submit(struct served *s, struct job *j, const json_t *c)
{
    struct gen_params p;
    struct err e = {0};
    uint32_t *ids, n = golden_ids(json_object_get(c, "prompt_token_ids"), &ids);

    gen_params_init(&p);
    p.temperature = 0;
    p.max_tokens = (uint32_t)json_array_size(json_object_get(c, "greedy_token_ids"));
    p.ignore_eos = true;
    p.logprobs = 0;
    p.prompt_logprobs = json_object_get(c, "prompt_logprobs") != NULL ? 0 : -1;
    if (job_submit(s->en, j, ids, n, &p, &e) != 0)
        fail_msg("%s", e.msg);
    free(ids);
}

static inline void golden_near(const json_t *want, const struct gen_token *got, uint32_t from,
                               uint32_t n)
{
    assert_int_equal(json_array_size(want), n);
    for (uint32_t i = from; i < n; i++)
        if (!(fabs(json_real_value(json_array_get(want, i)) - (double)got[i].logprob) <
              GOLDEN_TOLERANCE))
            fail_msg("logprob %u is %g, not %g", i, (double)got[i].logprob,
                     json_real_value(json_array_get(want, i)));
}

static inline void golden_check(const struct gen_output *out, const json_t *c)
{
    uint32_t *ids, n = golden_ids(json_object_get(c, "greedy_token_ids"), &ids);

    assert_true(n > 0);
    assert_int_equal(out->n_tokens, n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(out->tokens[i].id, ids[i]);
    golden_near(json_object_get(c, "greedy_logprobs"), out->tokens, 0, n);
    if (json_object_get(c, "prompt_logprobs") != NULL)
        golden_near(json_object_get(c, "prompt_logprobs"), out->prompt, 1, out->n_prompt);
    free(ids);
}

#endif
