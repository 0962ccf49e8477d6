/* When a sequence stops: the whole matrix, fed by hand, with no threads and no model. */
#include "tests/unit/take_logits.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODEL_DIR FIXTURES "/kjv-qwen3-1m"

enum { VOCAB = 1024, EOS = 1021, N_PROMPT = 3, CONTEXT = 64 };

static struct seq_rules rules = {.vocab_size = VOCAB,
                                 .max_model_len = CONTEXT,
                                 .kv_tokens_max = 1000,
                                 .n_eos = 2,
                                 .eos = {EOS, 1019}};

static struct version_label label_v = {.refs = 1, .text = "v"};

static struct gen_params greedy(uint32_t max_tokens)
{
    struct gen_params p;

    gen_params_init(&p);
    p.temperature = 0;
    p.max_tokens = max_tokens;
    return p;
}

static int make_seq(struct seq **q, const struct gen_params *p, uint32_t n_prompt, struct err *e)
{
    struct gen_request r = {.n_prompt = n_prompt, .params = *p};
    int rc;

    r.prompt = calloc(n_prompt > 0 ? n_prompt : 1, sizeof *r.prompt);
    assert_non_null(r.prompt);
    for (uint32_t i = 0; i < p->n_stops; i++)
        r.params.stops[i] = strdup(p->stops[i]);
    rc = seq_new(q, &rules, &r, e);
    assert_int_equal(rc == 0, r.prompt == NULL);
    gen_request_fini(&r);
    return rc;
}

/* Feeds logits that favour script[i] for output token i, `next best` then, until it ends. */
static struct seq *run(const struct gen_params *p, const uint32_t *script, uint32_t n)
{
    struct seq_step step = {.serial = 1, .name = &label_v, .now_us = 5};
    static float logits[VOCAB];
    struct taker taker;
    struct seq *q = NULL;
    struct err e = {0};

    assert_int_equal(taker_init(&taker, VOCAB, &e), 0);
    if (make_seq(&q, p, N_PROMPT, &e) != 0)
        fail_msg("refused: %s", e.msg);
    for (uint32_t i = 0; i < n && q->rec->out.finish == GEN_RUNNING; i++) {
        memset(logits, 0, sizeof logits);
        logits[script[i]] = 9;
        logits[7] += 4; /* what comes when script[i] is masked */
        assert_true(seq_wants_logits(q, N_PROMPT - 1 + i));
        take_logits(&taker, q, N_PROMPT - 1 + i, logits, &step);
    }
    taker_fini(&taker);
    return q;
}

static const uint32_t plain[] = {20, 21, 22, 23, 24, 25};
static const uint32_t with_eos[] = {20, 21, EOS, 23, 24, 25};
static const uint32_t with_other_eos[] = {20, 21, 1019, 23, 24, 25};

static const struct {
    const char *name;
    const uint32_t *script;
    uint32_t max_tokens, min_tokens, stop_id; /* 0: none */
    bool ignore_eos;
    enum gen_finish finish;
    uint32_t n_tokens, last;
    int64_t out_stop_id;
} matrix[] = {
    {"max_tokens", plain, 4, 0, 0, false, GEN_LENGTH, 4, 23, -1},
    {"still running", plain, 9, 0, 0, false, GEN_RUNNING, 6, 25, -1},
    {"eos", with_eos, 9, 0, 0, false, GEN_STOP, 3, EOS, -1},
    {"the other eos", with_other_eos, 9, 0, 0, false, GEN_STOP, 3, 1019, -1},
    {"eos ignored", with_eos, 9, 0, 0, true, GEN_RUNNING, 6, 25, -1},
    {"eos at max_tokens is a stop", with_eos, 3, 0, 0, false, GEN_STOP, 3, EOS, -1},
    {"stop id", plain, 9, 0, 22, false, GEN_STOP, 3, 22, 22},
    {"stop id with eos ignored", plain, 9, 0, 22, true, GEN_STOP, 3, 22, 22},
    {"stop id that is eos, ignored", with_eos, 9, 0, EOS, true, GEN_STOP, 3, EOS, EOS},
    {"eos that is a stop id too", with_eos, 9, 0, EOS, false, GEN_STOP, 3, EOS, -1},
    {"min_tokens masks eos", with_eos, 6, 3, 0, false, GEN_LENGTH, 6, 25, -1},
    {"min_tokens masks stop ids", plain, 6, 3, 22, false, GEN_LENGTH, 6, 25, -1},
    {"min_tokens masks ignored eos", with_eos, 6, 3, 0, true, GEN_LENGTH, 6, 25, -1},
    {"eos right after min_tokens", with_eos, 9, 2, 0, false, GEN_STOP, 3, EOS, -1},
    {"min_tokens at max_tokens", plain, 3, 3, 22, false, GEN_LENGTH, 3, 7, -1},
};

static void test_stop_matrix(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof matrix / sizeof *matrix; i++) {
        struct gen_params p = greedy(matrix[i].max_tokens);
        const struct gen_output *out;
        struct seq *q;

        p.min_tokens = matrix[i].min_tokens;
        p.ignore_eos = matrix[i].ignore_eos;
        p.n_stop_ids = matrix[i].stop_id != 0;
        p.stop_ids[0] = matrix[i].stop_id;
        q = run(&p, matrix[i].script, 6);
        out = &q->rec->out;
        if (out->finish != matrix[i].finish || out->n_tokens != matrix[i].n_tokens ||
            out->tokens[out->n_tokens - 1].id != matrix[i].last ||
            out->stop_id != matrix[i].out_stop_id)
            fail_msg("%s: %s after %u tokens, the last %u, stop_id %lld", matrix[i].name,
                     gen_finish_name(out->finish), out->n_tokens, out->tokens[out->n_tokens - 1].id,
                     (long long)out->stop_id);
        seq_free(q);
    }
}

static void test_the_context_ends_it(void **state)
{
    static uint32_t script[CONTEXT];
    struct gen_params p = greedy(GEN_MAX_TOKENS_REST);
    struct seq *q = run(&p, script, CONTEXT);

    (void)state;
    assert_int_equal(q->rec->out.finish, GEN_LENGTH);
    assert_int_equal(q->rec->out.n_tokens, CONTEXT - N_PROMPT);
    assert_int_equal(q->n_kv, CONTEXT - 1);
    seq_free(q);
}

static void test_everything_masked_is_refused(void **state)
{
    struct gen_params p = greedy(4);
    struct seq_rules all = rules;
    struct gen_request r = {.n_prompt = 1};
    struct seq *q = NULL;
    struct err e = {0};

    (void)state;
    all.vocab_size = 2;
    all.n_eos = 0;
    p.min_tokens = 1;
    p.n_stop_ids = 2;
    p.stop_ids[1] = 1;
    r.params = p;
    r.prompt = calloc(1, sizeof *r.prompt);
    assert_int_equal(seq_new(&q, &all, &r, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, "/sampling_params/min_tokens");
    assert_null(q);
    gen_request_fini(&r);
}

static void test_times(void **state)
{
    static const uint64_t at_us[] = {1000, 1010, 1510, 1520};
    struct gen_params p = greedy(4);
    static float logits[VOCAB];
    struct taker taker;
    struct seq *q = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(taker_init(&taker, VOCAB, &e), 0);
    assert_int_equal(make_seq(&q, &p, 1, &e), 0);
    for (uint32_t i = 0; i < 4; i++) {
        struct seq_step step = {.serial = 1, .name = &label_v, .now_us = q->submit_us + at_us[i]};

        take_logits(&taker, q, i, logits, &step);
    }
    assert_int_equal(q->rec->out.first_token_us, 1000);
    assert_int_equal(q->rec->out.longest_gap_us, 500);
    taker_fini(&taker);
    seq_free(q);
}

/* ---- refusals ---- */

static const struct {
    const char *field;
    enum err_code code;
    uint32_t n_prompt, bad_id, max_tokens, stop_id;
    float top_p;
    bool stops;
} refusals[] = {
    {"/token_ids", ERR_BAD_REQUEST, 0, 0, 4, 0, 1, false},
    {"/token_ids", ERR_BAD_REQUEST, CONTEXT, 0, 4, 0, 1, false},
    {"/token_ids/2", ERR_BAD_REQUEST, 5, VOCAB, 4, 0, 1, false},
    {"/token_ids/2", ERR_BAD_REQUEST, 5, UINT32_MAX, 4, 0, 1, false},
    {"/sampling_params/max_tokens", ERR_BAD_REQUEST, 5, 0, 0, 0, 1, false},
    {"/sampling_params/stop_token_ids/0", ERR_BAD_REQUEST, 5, 0, 4, VOCAB, 1, false},
    {"/sampling_params/top_p", ERR_BAD_REQUEST, 5, 0, 4, 0, 0, false},
    {"/sampling_params/stop", ERR_BAD_REQUEST, 5, 0, 4, 0, 1, true},
};

static void test_refusals_name_the_culprit(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct gen_request r = {.n_prompt = refusals[i].n_prompt};
        struct seq *q = NULL;
        struct err e = {0};

        gen_params_init(&r.params);
        r.params.max_tokens = refusals[i].max_tokens;
        r.params.top_p = refusals[i].top_p;
        r.params.n_stop_ids = refusals[i].stop_id != 0;
        r.params.stop_ids[0] = refusals[i].stop_id;
        r.prompt = calloc(CONTEXT, sizeof *r.prompt);
        assert_non_null(r.prompt);
        r.prompt[2] = refusals[i].bad_id;
        if (refusals[i].stops)
            r.params.stops[r.params.n_stops++] = strdup("x");
        rules.tokenizer = NULL;
        assert_int_equal(seq_new(&q, &rules, &r, &e), -1);
        assert_int_equal(e.code, refusals[i].code);
        assert_string_equal(e.field, refusals[i].field);
        assert_null(q);
        assert_non_null(r.prompt); /* still the caller's */
        gen_request_fini(&r);
    }
}

/* ---- stop strings ---- */

static struct tokenizer *tokenizer;

static int load_tokenizer(void **state)
{
    struct err e = {0};

    (void)state;
    if (tokenizer_load(&tokenizer, MODEL_DIR, &e) != 0) {
        (void)fprintf(stderr, "%s\n", e.msg);
        return -1;
    }
    return 0;
}

static int free_tokenizer(void **state)
{
    (void)state;
    tokenizer_free(tokenizer);
    return 0;
}

/* Row: the text that is generated, and where it must end. `kept` is the text before the stop. */
static const struct {
    const char *text, *stops[3];
    uint32_t min_tokens;
    const char *stop, *kept; /* NULL: runs to the end of the text */
} strings[] = {
    {"And God said, Let there be light: and there was light.",
     {"light"},
     0,
     "light",
     "And God said, Let there be "},
    {"And God said, Let there be light", {"darkness"}, 0, NULL, NULL},
    {"And God said", {"A"}, 0, "A", ""},
    {"And God said, Let there be light", {"said, Let there b"}, 0, "said, Let there b", "And God "},
    {"And God said, Let there", {" there", "Let"}, 0, "Let", "And God said, "},
    {"aaaaaaab", {"aab"}, 0, "aab", "aaaaa"},
    {"abababac", {"abac"}, 0, "abac", "abab"},
    {"over \xe2\x82\xac many \xf0\x9f\x98\x80 bytes",
     {"\xf0\x9f\x98\x80"},
     0,
     "\xf0\x9f\x98\x80",
     "over \xe2\x82\xac many "},
    {"And God said, Let there be God and", {"God"}, 6, "God", "And God said, Let there be "},
    {"one two. three", {".", "two"}, 0, "two", "one "},
};

/* The text of the whole output, as a reply would have it. */
static void text_of(const struct gen_output *out, struct buf *text)
{
    struct detok d;

    detok_init(&d, tokenizer, true);
    for (uint32_t i = 0; i < out->n_tokens; i++)
        detok_push(&d, out->tokens[i].id, text);
    detok_end(&d, text);
}

static void check_string(size_t i, const struct gen_output *out, size_t n_script)
{
    struct buf text = {0};

    text_of(out, &text);
    if (strings[i].stop == NULL) {
        assert_int_equal(out->n_tokens, n_script);
        assert_int_equal(out->finish, GEN_LENGTH);
        assert_null(out->stop_text);
    } else {
        if (out->finish != GEN_STOP || out->stop_text == NULL)
            fail_msg("row %zu did not stop", i);
        assert_string_equal(out->stop_text, strings[i].stop);
        assert_true(out->stop_text_cut <= text.len);
        text.data[text.len - out->stop_text_cut] = '\0';
        assert_string_equal(text.data, strings[i].kept);
        assert_int_equal(out->stop_id, -1);
    }
    buf_fini(&text);
}

static void test_stop_strings(void **state)
{
    (void)state;
    rules.tokenizer = tokenizer;
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        struct gen_params p = greedy(1);
        uint32_t *script = NULL;
        size_t n = 0;
        struct err e = {0};
        struct seq *q;

        assert_int_equal(tokenizer_encode(tokenizer, strings[i].text, strlen(strings[i].text),
                                          false, &script, &n, &e),
                         0);
        p.max_tokens = (uint32_t)n;
        p.min_tokens = strings[i].min_tokens;
        for (; p.n_stops < 3 && strings[i].stops[p.n_stops] != NULL; p.n_stops++)
            p.stops[p.n_stops] = strdup(strings[i].stops[p.n_stops]);
        q = run(&p, script, (uint32_t)n);
        check_string(i, &q->rec->out, n);
        seq_free(q);
        free(script);
        for (uint32_t k = 0; k < p.n_stops; k++)
            free(p.stops[k]);
    }
}

/* As in vLLM: a token that stops may be the one after min_tokens, and so must be the one that
 * completes a stop string; what was complete before is passed over. */
static void test_min_tokens_passes_over_stop_strings(void **state)
{
    static const char text[] = "And God said, Let there be God and";
    uint32_t *script = NULL, at = 0;
    struct gen_params p = greedy(1);
    size_t n = 0;
    struct err e = {0};
    char stop[] = "God";

    (void)state;
    rules.tokenizer = tokenizer;
    assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), false, &script, &n, &e), 0);
    p.max_tokens = (uint32_t)n;
    p.n_stops = 1;
    p.stops[0] = stop;
    for (uint32_t min = 0; min <= at + 1; min++) {
        struct seq *q;

        p.min_tokens = min;
        q = run(&p, script, (uint32_t)n);
        assert_int_equal(q->rec->out.finish, GEN_STOP);
        if (min == 0)
            at = q->rec->out.n_tokens;
        if (min < at)
            assert_int_equal(q->rec->out.n_tokens, at);
        else
            assert_true(q->rec->out.n_tokens > at + 1);
        seq_free(q);
    }
    assert_true(at > 1);
    free(script);
}

/* A tokenizer with one token more: "d" and the first byte of a character. */
static struct tokenizer *with_half_character(uint32_t id)
{
    json_t *file = json_load_file(MODEL_DIR "/tokenizer.json", 0, NULL);
    json_t *vocab = json_object_get(json_object_get(file, "model"), "vocab");
    struct tokenizer *t = NULL;
    struct err e = {0};
    char *text;

    assert_int_equal(json_object_set_new(vocab, "d\xc3\x83", json_integer(id)), 0);
    (void)json_array_clear(json_object_get(file, "added_tokens")); /* they have ids after it */
    text = json_dumps(file, 0);
    if (tokenizer_parse(&t, text, strlen(text), &e) != 0)
        fail_msg("%s", e.msg);
    free(text);
    json_decref(file);
    return t;
}

/* Half a character is held when the stop string is complete: in the text of a reply it becomes
 * U+FFFD, after the stop string, so it is cut with it. */
static void test_a_held_byte_after_the_stop_string_is_cut(void **state)
{
    enum { HALF = 1021 };
    struct gen_params p = greedy(9);
    uint32_t *word = NULL, script[8], n = 0;
    struct tokenizer *t = with_half_character(HALF), *usual = tokenizer;
    struct buf text = {0};
    struct err e = {0};
    size_t n_word = 0;
    char stop[] = "word";
    struct seq *q;

    (void)state;
    p.ignore_eos = true; /* its id here */
    rules.tokenizer = tokenizer = t;
    assert_int_equal(tokenizer_encode(t, "a wor", 5, false, &word, &n_word, &e), 0);
    for (size_t i = 0; i < n_word && n < 7; i++)
        script[n++] = word[i];
    script[n++] = HALF;
    p.n_stops = 1;
    p.stops[0] = stop;
    q = run(&p, script, n);
    assert_int_equal(q->rec->out.finish, GEN_STOP);
    text_of(&q->rec->out, &text);
    assert_string_equal(text.data, "a word\xef\xbf\xbd");
    assert_int_equal(q->rec->out.stop_text_cut, 4 + 3);
    buf_fini(&text);
    seq_free(q);
    free(word);
    tokenizer_free(t);
    rules.tokenizer = tokenizer = usual;
}

/* Bytes of a run count as they stand until one breaks it; then all of them have become U+FFFD, and
 * a stop string may lie anywhere in what was searched already under another spelling. */
static void test_a_run_that_breaks_is_searched_again(void **state)
{
    enum { BYTE_0 = 3, A = 269, N_BYTES = 12 }; /* ids of the spelled tokenizer */
    struct tokenizer *spelled = NULL, *usual = tokenizer;
    uint32_t script[1 + N_BYTES] = {A};
    struct gen_params p = greedy(1 + N_BYTES);
    char stop[] = "A\xef\xbf\xbd\xef\xbf\xbd";
    struct err e = {0};
    struct seq *q;

    (void)state;
    assert_int_equal(tokenizer_load(&spelled, FIXTURES "/tiny-llama2-spm", &e), 0);
    rules.tokenizer = tokenizer = spelled;
    for (uint32_t i = 1; i < N_BYTES; i++)
        script[i] = BYTE_0 + 'x';
    script[N_BYTES] = BYTE_0 + 0xff;
    p.n_stops = 1;
    p.stops[0] = stop;
    q = run(&p, script, 1 + N_BYTES);
    assert_int_equal(q->rec->out.finish, GEN_STOP);
    assert_int_equal(q->rec->out.n_tokens, 1 + N_BYTES);
    assert_int_equal(q->rec->out.stop_text_cut, 1 + 3 * N_BYTES);
    seq_free(q);
    tokenizer_free(spelled);
    rules.tokenizer = tokenizer = usual;
}

static bool is_special(uint32_t id)
{
    struct buf out = {0};
    struct err e = {0};
    bool shown;

    assert_int_equal(tokenizer_decode(tokenizer, &id, 1, true, &out, &e), 0);
    shown = out.len > 0;
    buf_fini(&out);
    return !shown;
}

/* The text of a special token is searched only when the reply shows it. */
static void test_a_special_token_can_be_a_stop_string(void **state)
{
    struct gen_params p = greedy(3);
    uint32_t script[] = {40, 0, 41};
    char stop[64];

    (void)state;
    rules.tokenizer = tokenizer;
    while (!is_special(script[1]))
        script[1]++;
    (void)snprintf(stop, sizeof stop, "%s", tokenizer_token(tokenizer, script[1]));
    p.ignore_eos = true;
    p.n_stops = 1;
    p.stops[0] = stop;
    for (int seen = 0; seen < 2; seen++) {
        struct seq *q;

        p.stops_see_special = seen == 1;
        q = run(&p, script, 3);
        assert_int_equal(q->rec->out.finish, seen ? GEN_STOP : GEN_LENGTH);
        assert_int_equal(q->rec->out.n_tokens, seen ? 2 : 3);
        assert_int_equal(q->rec->out.stop_text_cut, seen ? strlen(stop) : 0);
        seq_free(q);
    }
}

/* A long output costs no more a token than a short one: the tail stays short. */
static void test_the_tail_stays_short(void **state)
{
    static uint32_t script[20000];
    struct seq_rules wide = rules;
    struct gen_params p = greedy(20000);
    struct seq *q;
    char stop[] = "never in there";

    (void)state;
    rules.tokenizer = tokenizer;
    rules.max_model_len = 30000;
    rules.kv_tokens_max = 30000;
    for (uint32_t i = 0; i < 20000; i++)
        script[i] = 200 + i % 500;
    p.n_stops = 1;
    p.stops[0] = stop;
    q = run(&p, script, 20000);
    assert_int_equal(q->rec->out.n_tokens, 20000);
    assert_true(q->tail.len < sizeof stop);
    assert_true(q->tail.cap <= 8192 * 2);
    seq_free(q);
    rules = wide;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_matrix),
        cmocka_unit_test(test_the_context_ends_it),
        cmocka_unit_test(test_everything_masked_is_refused),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_refusals_name_the_culprit),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_a_held_byte_after_the_stop_string_is_cut),
        cmocka_unit_test(test_min_tokens_passes_over_stop_strings),
        cmocka_unit_test(test_a_run_that_breaks_is_searched_again),
        cmocka_unit_test(test_a_special_token_can_be_a_stop_string),
        cmocka_unit_test(test_the_tail_stays_short),
    };

    return cmocka_run_group_tests(tests, load_tokenizer, free_tokenizer);
}
