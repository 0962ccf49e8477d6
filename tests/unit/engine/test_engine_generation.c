/* What every engine shares: the ranges of parameters, and the life of an output. */
#include "engine/generation.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum member {
    MAX_TOKENS,
    MIN_TOKENS,
    TEMPERATURE,
    TOP_P,
    TOP_K,
    MIN_P,
    REPETITION,
    FREQUENCY,
    PRESENCE,
    LOGPROBS,
    PROMPT_LOGPROBS
};

static void set(struct gen_params *p, enum member m, double value)
{
    switch (m) {
    case MAX_TOKENS:
        p->max_tokens = (uint32_t)value;
        break;
    case MIN_TOKENS:
        p->min_tokens = (uint32_t)value;
        break;
    case TEMPERATURE:
        p->temperature = (float)value;
        break;
    case TOP_P:
        p->top_p = (float)value;
        break;
    case TOP_K:
        p->top_k = (int32_t)value;
        break;
    case MIN_P:
        p->min_p = (float)value;
        break;
    case REPETITION:
        p->repetition_penalty = (float)value;
        break;
    case FREQUENCY:
        p->frequency_penalty = (float)value;
        break;
    case PRESENCE:
        p->presence_penalty = (float)value;
        break;
    case LOGPROBS:
        p->logprobs = (int32_t)value;
        break;
    case PROMPT_LOGPROBS:
        p->prompt_logprobs = (int32_t)value;
        break;
    }
}

static const struct {
    enum member member;
    double value;
    const char *field;   /* NULL: accepted */
    const char *allowed; /* part of the message */
} rows[] = {
    {MAX_TOKENS, 1, NULL, NULL},
    {MAX_TOKENS, 0, "/p/max_tokens", "at least 1"},
    {MAX_TOKENS, UINT32_MAX, NULL, NULL},
    {MIN_TOKENS, 16, NULL, NULL},
    {MIN_TOKENS, 17, "/p/min_tokens", "16"},
    {TEMPERATURE, 0, NULL, NULL},
    {TEMPERATURE, 100, NULL, NULL},
    {TEMPERATURE, 100.1, "/p/temperature", "0 to 100"},
    {TEMPERATURE, -0.1, "/p/temperature", "0 to 100"},
    {TEMPERATURE, NAN, "/p/temperature", "0 to 100"},
    {TEMPERATURE, INFINITY, "/p/temperature", "0 to 100"},
    {TOP_P, 1, NULL, NULL},
    {TOP_P, 1e-9, NULL, NULL},
    {TOP_P, 0, "/p/top_p", "above 0"},
    {TOP_P, 1.01, "/p/top_p", "at most 1"},
    {TOP_P, NAN, "/p/top_p", "above 0"},
    {TOP_K, -1, NULL, NULL},
    {TOP_K, 0, NULL, NULL},
    {TOP_K, 1e9, NULL, NULL},
    {TOP_K, -2, "/p/top_k", "-1"},
    {MIN_P, 0, NULL, NULL},
    {MIN_P, 1, NULL, NULL},
    {MIN_P, -0.01, "/p/min_p", "0 to 1"},
    {MIN_P, 1.01, "/p/min_p", "0 to 1"},
    {MIN_P, NAN, "/p/min_p", "0 to 1"},
    {REPETITION, 1e-30, NULL, NULL},
    {REPETITION, 1e30, NULL, NULL},
    {REPETITION, 0, "/p/repetition_penalty", "above 0"},
    {REPETITION, -1, "/p/repetition_penalty", "above 0"},
    {REPETITION, NAN, "/p/repetition_penalty", "finite"},
    {REPETITION, INFINITY, "/p/repetition_penalty", "finite"},
    {FREQUENCY, -2, NULL, NULL},
    {FREQUENCY, 2, NULL, NULL},
    {FREQUENCY, 2.01, "/p/frequency_penalty", "-2 to 2"},
    {FREQUENCY, NAN, "/p/frequency_penalty", "-2 to 2"},
    {PRESENCE, -2, NULL, NULL},
    {PRESENCE, 2, NULL, NULL},
    {PRESENCE, -2.01, "/p/presence_penalty", "-2 to 2"},
    {PRESENCE, NAN, "/p/presence_penalty", "-2 to 2"},
    {LOGPROBS, -1, NULL, NULL},
    {LOGPROBS, 151936, NULL, NULL},
    {LOGPROBS, -2, "/p/logprobs", "not be negative"},
    {PROMPT_LOGPROBS, 151936, NULL, NULL},
    {PROMPT_LOGPROBS, -2, "/p/prompt_logprobs", "not be negative"},
};

static void test_params_check_ranges(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gen_params p;
        struct err e = {0};
        int rc;

        gen_params_init(&p);
        set(&p, rows[i].member, rows[i].value);
        rc = gen_params_check(&p, "/p", &e);
        if (rows[i].field == NULL) {
            if (rc != 0)
                fail_msg("row %zu: refused: %s", i, e.msg);
            continue;
        }
        assert_int_equal(rc, -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, rows[i].field);
        assert_non_null(strstr(e.msg, rows[i].allowed));
    }
}

static void test_params_check_stops(void **state)
{
    char fits[GEN_STOP_LEN_MAX + 1], over[GEN_STOP_LEN_MAX + 2], none[1] = "";
    struct gen_params p;
    struct err e = {0};

    (void)state;
    memset(fits, 'x', sizeof fits);
    memset(over, 'x', sizeof over);
    fits[sizeof fits - 1] = '\0';
    over[sizeof over - 1] = '\0';
    gen_params_init(&p);
    p.n_stops = 2;
    p.stops[0] = p.stops[1] = fits;
    assert_int_equal(gen_params_check(&p, "", &e), 0);
    p.stops[1] = over;
    assert_int_equal(gen_params_check(&p, "", &e), -1);
    assert_string_equal(e.field, "/stop/1");
    err_clear(&e);
    p.stops[1] = none;
    assert_int_equal(gen_params_check(&p, "", &e), -1);
    assert_string_equal(e.field, "/stop/1");
    err_clear(&e);
    p.n_stops = GEN_STOPS_MAX + 1;
    assert_int_equal(gen_params_check(&p, "", &e), -1);
    assert_string_equal(e.field, "/stop");
    err_clear(&e);
    p.n_stops = 0;
    p.n_stop_ids = GEN_STOP_IDS_MAX;
    assert_int_equal(gen_params_check(&p, "", &e), 0);
    p.n_stop_ids++;
    assert_int_equal(gen_params_check(&p, "", &e), -1);
    assert_string_equal(e.field, "/stop_token_ids");
}

static void test_finish_names(void **state)
{
    (void)state;
    assert_string_equal(gen_finish_name(GEN_STOP), "stop");
    assert_string_equal(gen_finish_name(GEN_LENGTH), "length");
    assert_string_equal(gen_finish_name(GEN_ABORT), "abort");
    assert_string_equal(gen_finish_name(GEN_ERROR), "error");
}

static void test_request_fini_accepts_a_zeroed_one(void **state)
{
    struct gen_request r = {0};

    (void)state;
    gen_request_fini(&r);
    r.prompt = calloc(3, sizeof *r.prompt);
    r.params.n_stops = 1;
    r.params.stops[0] = strdup("end");
    gen_request_fini(&r);
    assert_null(r.prompt);
    assert_int_equal(r.params.n_stops, 0);
}

static struct gen_record *record(const struct gen_record_cfg *cfg)
{
    struct gen_record *r = NULL;
    struct err e = {0};

    assert_int_equal(gen_record_new(&r, cfg, &e), 0);
    return r;
}

/* Names are the record's as long as it lives, whoever made them lets go at once. */
static void test_record_holds_a_span_for_each_token(void **state)
{
    struct gen_record_cfg cfg = {
        .n_tokens_max = 100, .n_prompt = 3, .logprobs = 2, .prompt_logprobs = -1};
    struct gen_record *r = record(&cfg);
    const struct gen_token *tokens = r->out.tokens;
    const struct gen_span *spans = r->out.spans;
    struct version_label *name = NULL;
    char label[16];

    (void)state;
    assert_null(r->out.prompt);
    assert_int_equal(r->out.n_prompt, 0);
    assert_int_equal(r->out.stop_id, -1);
    for (uint32_t i = 0; i < 100; i++) {
        struct gen_token t = {.id = i};

        name = version_label_new();
        assert_non_null(name);
        (void)snprintf(name->text, sizeof name->text, "v%u", i / 3 * 3); /* the same, made again */
        gen_record_append(r, &t, i / 3, name);
        version_label_unref(name);
        assert_ptr_equal(gen_record_top(r, i), r->tops + (size_t)i * 2);
    }
    assert_ptr_equal(r->out.tokens, tokens);
    assert_ptr_equal(r->out.spans, spans);
    assert_int_equal(r->out.n_spans, 34);
    for (uint32_t i = 0; i < 34; i++) {
        (void)snprintf(label, sizeof label, "v%u", i * 3);
        assert_int_equal(r->out.spans[i].serial, i);
        assert_int_equal(r->out.spans[i].start, i * 3);
        assert_int_equal(r->out.spans[i].end, i < 33 ? i * 3 + 3 : 100);
        assert_string_equal(r->out.spans[i].label, label);
        for (uint32_t k = r->out.spans[i].start; k < r->out.spans[i].end; k++)
            assert_string_equal(r->out.tokens[k].version, label);
    }
    gen_record_free(r);
}

static void take(void *arg, struct gen_output *out)
{
    struct gen_output **mine = arg;

    *mine = gen_output_take(out);
}

static void leave(void *arg, struct gen_output *out)
{
    *(uint32_t *)arg += out->n_prompt;
}

static void test_output_take_keeps_it_beyond_done(void **state)
{
    struct gen_record_cfg cfg = {
        .n_tokens_max = 1, .n_prompt = 3, .logprobs = 0, .prompt_logprobs = 4};
    struct gen_sink taker = {.done = take}, leaver = {.done = leave};
    struct gen_output *mine = NULL;
    struct gen_record *left = record(&cfg);
    uint32_t n = 0;

    (void)state;
    assert_false(gen_record_tell(left, &leaver, &n));
    gen_record_free(left);
    assert_int_equal(n, 3);
    assert_true(gen_record_tell(record(&cfg), &taker, &mine));
    assert_non_null(mine);
    assert_int_equal(mine->n_prompt, 3);
    gen_output_free(mine);
    gen_output_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_params_check_ranges),
        cmocka_unit_test(test_params_check_stops),
        cmocka_unit_test(test_finish_names),
        cmocka_unit_test(test_request_fini_accepts_a_zeroed_one),
        cmocka_unit_test(test_record_holds_a_span_for_each_token),
        cmocka_unit_test(test_output_take_keeps_it_beyond_done),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
