/* What a request may ask of the sampler: refusals with field and code, neutral values, defaults. */
#include "handlers/generate/generate_params.h"
#include "handlers/rows/rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 100 };

static const char at[] = "/sampling_params";

static int parse(struct generate_params *p, const char *text, const char *prefix, struct err *e)
{
    json_t *o = json_loads(text, 0, NULL);
    int rc;

    assert_non_null(o);
    generate_params_init(p);
    rc = generate_params_parse(p, o, prefix, VOCAB, NULL, e);
    json_decref(o);
    return rc;
}

static const struct {
    const char *body, *field;
} refusals[] = {
    {"{\"n\": 0}", "/sampling_params/n"},
    {"{\"n\": 129}", "/sampling_params/n"},
    {"{\"n\": 1.5}", "/sampling_params/n"},
    {"{\"max_tokens\": 0}", "/sampling_params/max_tokens"},
    {"{\"max_tokens\": -1}", "/sampling_params/max_tokens"},
    {"{\"max_tokens\": 4294967295}", "/sampling_params/max_tokens"},
    {"{\"max_tokens\": \"8\"}", "/sampling_params/max_tokens"},
    {"{\"max_tokens\": true}", "/sampling_params/max_tokens"},
    {"{\"min_tokens\": -1}", "/sampling_params/min_tokens"},
    {"{\"max_tokens\": 4, \"min_tokens\": 5}", "/sampling_params/min_tokens"},
    {"{\"temperature\": -0.1}", "/sampling_params/temperature"},
    {"{\"temperature\": 1e300}", "/sampling_params/temperature"},
    {"{\"temperature\": \"hot\"}", "/sampling_params/temperature"},
    {"{\"top_p\": 0}", "/sampling_params/top_p"},
    {"{\"top_p\": 1.01}", "/sampling_params/top_p"},
    {"{\"top_k\": -2}", "/sampling_params/top_k"},
    {"{\"top_k\": 2147483648}", "/sampling_params/top_k"},
    {"{\"min_p\": -0.5}", "/sampling_params/min_p"},
    {"{\"min_p\": 2}", "/sampling_params/min_p"},
    {"{\"seed\": 1.5}", "/sampling_params/seed"},
    {"{\"logprobs\": -2}", "/sampling_params/logprobs"},
    {"{\"prompt_logprobs\": -2}", "/sampling_params/prompt_logprobs"},
    {"{\"prompt_logprobs\": 1.5}", "/sampling_params/prompt_logprobs"},
    {"{\"logprobs\": 101}", "/sampling_params/logprobs"},
    {"{\"logprobs\": true}", "/sampling_params/logprobs"},
    {"{\"prompt_logprobs\": 101}", "/sampling_params/prompt_logprobs"},
    {"{\"ignore_eos\": 1}", "/sampling_params/ignore_eos"},
    {"{\"skip_special_tokens\": \"yes\"}", "/sampling_params/skip_special_tokens"},
    {"{\"detokenize\": 0}", "/sampling_params/detokenize"},
    {"{\"output_kind\": 3}", "/sampling_params/output_kind"},
    {"{\"stop\": 7}", "/sampling_params/stop"},
    {"{\"stop\": \"\"}", "/sampling_params/stop"},
    {"{\"stop\": [\"a\", 7]}", "/sampling_params/stop/1"},
    {"{\"stop\": [\"a\", \"\"]}", "/sampling_params/stop/1"},
    {"{\"stop\": [\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\",\"12\","
     "\"13\",\"14\",\"15\",\"16\",\"17\"]}",
     "/sampling_params/stop"},
    {"{\"stop_token_ids\": 3}", "/sampling_params/stop_token_ids"},
    {"{\"stop_token_ids\": [3, 100]}", "/sampling_params/stop_token_ids/1"},
    {"{\"stop_token_ids\": [-1]}", "/sampling_params/stop_token_ids/0"},
    {"{\"stop_token_ids\": [true]}", "/sampling_params/stop_token_ids/0"},
    {"{\"repetition_penalty\": 0}", "/sampling_params/repetition_penalty"},
    {"{\"repetition_penalty\": 1e-60}", "/sampling_params/repetition_penalty"},
    {"{\"repetition_penalty\": -1}", "/sampling_params/repetition_penalty"},
    {"{\"repetition_penalty\": 1e39}", "/sampling_params/repetition_penalty"},
    {"{\"repetition_penalty\": \"1\"}", "/sampling_params/repetition_penalty"},
    {"{\"presence_penalty\": 2.01}", "/sampling_params/presence_penalty"},
    {"{\"presence_penalty\": -2.01}", "/sampling_params/presence_penalty"},
    {"{\"presence_penalty\": true}", "/sampling_params/presence_penalty"},
    {"{\"frequency_penalty\": 2.01}", "/sampling_params/frequency_penalty"},
    {"{\"frequency_penalty\": -1e300}", "/sampling_params/frequency_penalty"},
    {"{\"frequency_penalty\": []}", "/sampling_params/frequency_penalty"},
    {"{\"best_of\": 2}", "/sampling_params/best_of"},
    {"{\"n\": 3, \"best_of\": 1}", "/sampling_params/best_of"},
    {"{\"best_of\": 0}", "/sampling_params/best_of"},
    {"{\"best_of\": \"1\"}", "/sampling_params/best_of"},
    {"{\"use_beam_search\": true}", "/sampling_params/use_beam_search"},
    {"{\"logit_bias\": {\"100\": 1}}", "/sampling_params/logit_bias"},
    {"{\"allowed_token_ids\": []}", "/sampling_params/allowed_token_ids"},
    {"{\"bad_words\": [\"x\"]}", "/sampling_params/bad_words"},
    {"{\"structured_outputs\": {\"json\": {}}}", "/sampling_params/structured_outputs"},
    {"{\"guided_regex\": \"a*\"}", "/sampling_params/guided_regex"},
    {"{\"guided_json\": {}}", "/sampling_params/guided_json"},
    {"{\"response_format\": {\"type\": \"json_object\"}}", "/sampling_params/response_format"},
    {"{\"truncate_prompt_tokens\": 8}", "/sampling_params/truncate_prompt_tokens"},
    {"{\"flat_logprobs\": true}", "/sampling_params/flat_logprobs"},
    {"{\"routed_experts_prompt_start\": -1}", "/sampling_params/routed_experts_prompt_start"},
    {"{\"routed_experts_prompt_start\": \"7\"}", "/sampling_params/routed_experts_prompt_start"},
    {"{\"extra_args\": {\"a\": 1}}", "/sampling_params/extra_args"},
    {"{\"extra_args\": {\"prl_compact_logprobs\": 1}}", "/sampling_params/extra_args"},
    {"{\"extra_args\": {\"prl_compact_logprobs\": true, \"a\": 1}}", "/sampling_params/extra_args"},
    {"{\"extra_args\": [1]}", "/sampling_params/extra_args"},
};

static void test_parse_refuses_with_field_and_code(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct generate_params p;
        struct err e = {0};

        if (parse(&p, refusals[i].body, at, &e) == 0)
            fail_msg("accepted: %s", refusals[i].body);
        if (strcmp(e.field, refusals[i].field) != 0)
            fail_msg("%s: at %s (%s)", refusals[i].body, e.field, e.msg);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_true(e.msg[0] != '\0');
        generate_params_fini(&p);
    }
}

static void test_parse_accepts_neutral_and_unknown(void **state)
{
    static const char *const bodies[] = {
        "{\"repetition_penalty\": 1, \"presence_penalty\": 0.0, \"frequency_penalty\": 0}",
        "{\"repetition_penalty\": null, \"best_of\": 1, \"length_penalty\": 1.0}",
        "{\"logit_bias\": null, \"bad_words\": null, \"allowed_token_ids\": null}",
        "{\"structured_outputs\": null, \"guided_decoding\": null, \"guided_json\": null}",
        "{\"use_beam_search\": false, \"early_stopping\": false, \"flat_logprobs\": false}",
        "{\"response_format\": {\"type\": \"text\"}, \"extra_args\": {}, \"vllm_xargs\": null}",
        "{\"output_kind\": 2, \"detokenize\": false, \"skip_reading_prefix_cache\": null}",
        "{\"spaces_between_special_tokens\": false, \"routed_experts_prompt_start\": 0}",
        "{\"routed_experts_prompt_start\": 11, \"extra_args\": {\"prl_compact_logprobs\": true}}",
        "{\"routed_experts_prompt_start\": null}",
        "{\"extra_args\": {\"prl_compact_logprobs\": false}}",
        "{\"something_of_tomorrow\": 5}",
        "{\"stop\": null, \"stop_token_ids\": null, \"seed\": null, \"max_tokens\": null}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        struct generate_params p, fresh;
        struct err e = {0};

        if (parse(&p, bodies[i], at, &e) != 0)
            fail_msg("%s: %s: %s", bodies[i], e.field, e.msg);
        generate_params_init(&fresh);
        p.gen.seed = fresh.gen.seed = 0; /* unset in both */
        assert_memory_equal(&p.gen, &fresh.gen, sizeof p.gen);
        assert_int_equal(p.n, 1);
        assert_int_equal(p.seed, -1);
        generate_params_fini(&p);
    }
}

static void test_parse_defaults(void **state)
{
    struct generate_params p;
    struct err e = {0};

    (void)state;
    assert_int_equal(parse(&p, "{}", "", &e), 0);
    assert_int_equal(p.gen.max_tokens, GEN_MAX_TOKENS_REST);
    assert_int_equal(p.gen.min_tokens, 0);
    assert_true(p.gen.temperature == 1.0F && p.gen.top_p == 1.0F && p.gen.min_p == 0.0F);
    assert_true(p.gen.top_k == 0 || p.gen.top_k == -1);
    assert_int_equal(p.gen.logprobs, -1);
    assert_int_equal(p.gen.prompt_logprobs, -1);
    assert_true(p.skip_special_tokens);
    assert_false(p.include_stop_str);
    generate_params_fini(&p);
}

static void test_parse_takes_every_honoured_member(void **state)
{
    struct generate_params p;
    struct err e = {0};

    (void)state;
    assert_int_equal(
        parse(&p,
              "{\"n\": 3, \"max_tokens\": 9, \"min_tokens\": 2, \"temperature\": 0.5, "
              "\"top_p\": 0.25, \"top_k\": 7, \"min_p\": 0.125, \"seed\": -5, \"logprobs\": 0, "
              "\"prompt_logprobs\": 4, \"ignore_eos\": true, \"stop\": [\"ab\", \"c\"], "
              "\"stop_token_ids\": [0, 99], \"skip_special_tokens\": false, "
              "\"repetition_penalty\": 1.5, \"frequency_penalty\": -2, "
              "\"presence_penalty\": 2, \"best_of\": 3, \"logit_bias\": {\"7\": -3}, "
              "\"allowed_token_ids\": [7, 8], "
              "\"include_stop_str_in_output\": true}",
              at, &e),
        0);
    assert_int_equal(p.n, 3);
    assert_int_equal(p.gen.max_tokens, 9);
    assert_int_equal(p.gen.min_tokens, 2);
    assert_true(p.gen.temperature == 0.5F && p.gen.top_p == 0.25F && p.gen.min_p == 0.125F);
    assert_int_equal(p.gen.top_k, 7);
    assert_int_equal(p.seed, -5);
    assert_int_equal(p.gen.logprobs, 0);
    assert_int_equal(p.gen.prompt_logprobs, 4);
    assert_true(p.gen.repetition_penalty == 1.5F && p.gen.frequency_penalty == -2.0F &&
                p.gen.presence_penalty == 2.0F);
    assert_int_equal(p.gen.logits_processor->n_biases, 1);
    assert_int_equal(p.gen.logits_processor->n_allowed, 2);
    assert_true(p.gen.ignore_eos);
    assert_int_equal(p.gen.n_stops, 2);
    assert_string_equal(p.gen.stops[0], "ab");
    assert_string_equal(p.gen.stops[1], "c");
    assert_int_equal(p.gen.n_stop_ids, 2);
    assert_int_equal(p.gen.stop_ids[1], 99);
    assert_false(p.skip_special_tokens);
    assert_true(p.include_stop_str);
    generate_params_fini(&p);
}

static void test_parse_uses_the_prefix(void **state)
{
    struct generate_params p;
    struct err e = {0};

    (void)state;
    assert_int_equal(parse(&p, "{\"stop_token_ids\": [1, 2, 100]}", "", &e), -1);
    assert_string_equal(e.field, "/stop_token_ids/2");
    generate_params_fini(&p);
}

static void test_for_copies_stops_and_draws_seeds(void **state)
{
    struct generate_params p;
    struct gen_params a, b;
    struct err e = {0};

    (void)state;
    assert_int_equal(parse(&p, "{\"seed\": 7, \"stop\": \"x\", \"max_tokens\": 10}", at, &e), 0);
    assert_int_equal(generate_params_for(&a, &p, 0, 11, &e), 0);
    assert_int_equal(generate_params_for(&b, &p, 3, 10, &e), 0);
    assert_true(a.seed == 7 && b.seed == 10);
    assert_int_equal(a.max_tokens, 10);
    assert_int_equal(b.max_tokens, GEN_MAX_TOKENS_REST); /* the context ends no later */
    assert_string_equal(a.stops[0], "x");
    assert_ptr_not_equal(a.stops[0], p.gen.stops[0]);
    free(a.stops[0]);
    free(b.stops[0]);
    generate_params_fini(&p);

    assert_int_equal(parse(&p, "{\"seed\": -1}", at, &e), 0);
    assert_int_equal(generate_params_for(&a, &p, 0, 11, &e), 0);
    assert_int_equal(generate_params_for(&b, &p, 0, 11, &e), 0);
    assert_true(a.seed != b.seed);
    generate_params_fini(&p);
}

/* One list for all choices, given up by each; the text that stops search is the text that is told.
 */
static void test_fork_shares_the_logits_processor(void **state)
{
    struct generate_params p;
    struct gen_request a = {0}, b = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(parse(&p, "{\"logit_bias\": {\"7\": 1}}", at, &e), 0);
    assert_int_equal(generate_params_for(&a.params, &p, 0, 11, &e), 0);
    p.skip_special_tokens = false;
    assert_int_equal(generate_params_for(&b.params, &p, 1, 11, &e), 0);
    assert_ptr_equal(a.params.logits_processor, p.gen.logits_processor);
    assert_ptr_equal(b.params.logits_processor, p.gen.logits_processor);
    assert_true(!a.params.stops_see_special && b.params.stops_see_special);
    generate_params_fini(&p);
    gen_request_fini(&a);
    assert_true(b.params.logits_processor->biases[0].id == 7);
    gen_request_fini(&b);
}

static void test_minus_one_is_all_logprobs(void **state)
{
    json_t *o = json_pack("{s:i, s:i}", "logprobs", -1, "prompt_logprobs", -1);
    struct generate_params p;
    struct err e = {0};

    (void)state;
    generate_params_init(&p);
    assert_int_equal(generate_params_parse(&p, o, "", 151936, NULL, &e), 0);
    assert_int_equal(p.gen.logprobs, 151936);
    assert_int_equal(p.gen.prompt_logprobs, 151936);
    generate_params_fini(&p);
    json_decref(o);
}

/* Each row with a neutral value refuses any other, with a message that names both. */
static void test_neutral_rows_refuse_other_values(void **state)
{
    size_t n = 0;

    (void)state;
    for (const struct member *m = sampling_rows; m->name != NULL; m++) {
        json_t *other = json_pack("{s:i}", m->name, 17), *none = json_pack("{s:n}", m->name);
        struct generate_params p;
        struct err e = {0};

        generate_params_init(&p);
        if (m->neutral != NULL) {
            n++;
            assert_int_equal(generate_params_parse(&p, other, at, VOCAB, NULL, &e), -1);
            assert_string_equal(strrchr(e.field, '/') + 1, m->name);
            assert_non_null(strstr(e.msg, "found 17, only null"));
            assert_non_null(
                strstr(e.msg, strcmp(m->neutral, "empty") == 0 ? "or an empty value" : m->neutral));
            e = (struct err){0};
            assert_int_equal(generate_params_parse(&p, none, at, VOCAB, NULL, &e), 0);
        }
        generate_params_fini(&p);
        json_decref(other);
        json_decref(none);
    }
    assert_true(n > 15);
}

static void test_ids_refuses(void **state)
{
    static const struct {
        const char *body, *field;
    } rows[] = {
        {"[1, 2, 100]", "/token_ids/2"},   {"[-1]", "/token_ids/0"},
        {"[1, \"2\"]", "/token_ids/1"},    {"[1, 2.0]", "/token_ids/1"},
        {"[null]", "/token_ids/0"},        {"[[1]]", "/token_ids/0"},
        {"[1, 2, 3, 4, 5]", "/token_ids"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *a = json_loads(rows[i].body, 0, NULL);
        uint32_t *ids = NULL, n = 77;
        struct err e = {0};

        assert_int_equal(generate_parse_ids(&ids, &n, a, "/token_ids", VOCAB, 4, &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, rows[i].field);
        assert_null(ids);
        assert_int_equal(n, 77);
        json_decref(a);
    }
}

static void test_ids_takes_what_fits(void **state)
{
    json_t *a = json_pack("[i, i, i, i]", 0, 99, 5, 5), *none = json_array();
    uint32_t *ids = NULL, n = 0;
    struct err e = {0};

    (void)state;
    assert_int_equal(generate_parse_ids(&ids, &n, a, "/x", VOCAB, 4, &e), 0);
    assert_int_equal(n, 4);
    assert_int_equal(ids[1], 99);
    free(ids);
    ids = NULL;
    assert_int_equal(generate_parse_ids(&ids, &n, none, "/x", VOCAB, 4, &e), 0);
    assert_int_equal(n, 0);
    json_decref(a);
    json_decref(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_refuses_with_field_and_code),
        cmocka_unit_test(test_parse_accepts_neutral_and_unknown),
        cmocka_unit_test(test_parse_defaults),
        cmocka_unit_test(test_parse_takes_every_honoured_member),
        cmocka_unit_test(test_parse_uses_the_prefix),
        cmocka_unit_test(test_for_copies_stops_and_draws_seeds),
        cmocka_unit_test(test_fork_shares_the_logits_processor),
        cmocka_unit_test(test_minus_one_is_all_logprobs),
        cmocka_unit_test(test_neutral_rows_refuse_other_values),
        cmocka_unit_test(test_ids_refuses),
        cmocka_unit_test(test_ids_takes_what_fits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
