/* logit_bias, allowed_token_ids and bad_words as a request spells them. */
#include "handlers/generate/logits_processor_parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 1024 };

static struct tokenizer *tokenizer;
static long n_allocations, fails_at = -1;

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__wrap_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);

static bool fails(void)
{
    return n_allocations++ == fails_at;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t each)
{
    return fails() ? NULL : __real_calloc(n, each);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

static int parse(struct logits_processor **out, const char *body, const struct tokenizer *t,
                 struct err *e)
{
    json_error_t why;
    json_t *o = json_loads(body, 0, &why);
    int rc;

    if (o == NULL)
        fail_msg("%s: %s", body, why.text);
    rc = logits_processor_parse(out, o, "/p", VOCAB, t, e);
    json_decref(o);
    return rc;
}

static const struct {
    const char *body, *field, *found;
} refusals[] = {
    {"{\"logit_bias\": []}", "/p/logit_bias", "array"},
    {"{\"logit_bias\": 3}", "/p/logit_bias", "integer"},
    {"{\"logit_bias\": \"5\"}", "/p/logit_bias", "string"},
    {"{\"logit_bias\": {\"1024\": 1}}", "/p/logit_bias", "'1024'"},
    {"{\"logit_bias\": {\"-1\": 1}}", "/p/logit_bias", "'-1'"},
    {"{\"logit_bias\": {\"05\": 1}}", "/p/logit_bias", "'05'"},
    {"{\"logit_bias\": {\"\": 1}}", "/p/logit_bias", "''"},
    {"{\"logit_bias\": {\"5.0\": 1}}", "/p/logit_bias", "'5.0'"},
    {"{\"logit_bias\": {\" 5\": 1}}", "/p/logit_bias", "' 5'"},
    {"{\"logit_bias\": {\"the\": 1}}", "/p/logit_bias", "'the'"},
    {"{\"logit_bias\": {\"18446744073709551621\": 1}}", "/p/logit_bias", "'1844674407"},
    {"{\"logit_bias\": {\"5\": null}}", "/p/logit_bias/5", "null"},
    {"{\"logit_bias\": {\"5\": \"1\"}}", "/p/logit_bias/5", "string"},
    {"{\"logit_bias\": {\"4\": 1, \"5\": true}}", "/p/logit_bias/5", "boolean"},
    {"{\"allowed_token_ids\": []}", "/p/allowed_token_ids", "empty"},
    {"{\"allowed_token_ids\": {}}", "/p/allowed_token_ids", "object"},
    {"{\"allowed_token_ids\": 5}", "/p/allowed_token_ids", "integer"},
    {"{\"allowed_token_ids\": [5, 1024]}", "/p/allowed_token_ids/1", "1024"},
    {"{\"allowed_token_ids\": [-1]}", "/p/allowed_token_ids/0", "-1"},
    {"{\"allowed_token_ids\": [1.0]}", "/p/allowed_token_ids/0", "real"},
    {"{\"allowed_token_ids\": [null]}", "/p/allowed_token_ids/0", "null"},
    {"{\"bad_words\": \"the\"}", "/p/bad_words", "string"},
    {"{\"bad_words\": {}}", "/p/bad_words", "object"},
    {"{\"bad_words\": [\"a\", 7]}", "/p/bad_words/1", "integer"},
    {"{\"bad_words\": [null]}", "/p/bad_words/0", "null"},
    {"{\"bad_words\": [\"a\", \"\"]}", "/p/bad_words/1", "0 bytes"},
    {"{\"bad_words\": [\" \\t\\u3000\\u00a0\"]}", "/p/bad_words/0", "no token"},
};

static void test_parse_refuses_with_field_and_what_was_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct logits_processor *s = NULL;
        struct err e = {0};

        if (parse(&s, refusals[i].body, tokenizer, &e) == 0)
            fail_msg("accepted: %s", refusals[i].body);
        assert_null(s);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        if (strcmp(e.field, refusals[i].field) != 0 || strstr(e.msg, refusals[i].found) == NULL)
            fail_msg("%s: at %s: %s", refusals[i].body, e.field, e.msg);
    }
}

static void test_parse_says_nothing_of_nothing(void **state)
{
    static const char *const bodies[] = {
        "{}", "{\"logit_bias\": null, \"allowed_token_ids\": null, \"bad_words\": null}"};

    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct logits_processor unset, *s = &unset;
        struct err e = {0};

        assert_int_equal(parse(&s, bodies[i], NULL, &e), 0);
        assert_null(s);
    }
}

/* A list in text: `n` times `item`, which may have one %d for the place. */
static char *list_of(const char *head, const char *item, int n, const char *tail)
{
    size_t cap = strlen(head) + strlen(tail) + (size_t)n * (strlen(item) + 8) + 1, len;
    char *text = malloc(cap);

    assert_non_null(text);
    len = (size_t)snprintf(text, cap, "%s", head);
    for (int i = 0; i < n; i++) {
        const char *place = strstr(item, "%d");
        int before = place != NULL ? (int)(place - item) : (int)strlen(item);

        len += (size_t)snprintf(text + len, cap - len, "%s%.*s", i > 0 ? "," : "", before, item);
        if (place != NULL)
            len += (size_t)snprintf(text + len, cap - len, "%d%s", i, place + 2);
    }
    (void)snprintf(text + len, cap - len, "%s", tail);
    return text;
}

static const struct {
    const char *head, *item, *tail, *field;
    int most;
} limits[] = {
    {"{\"allowed_token_ids\": [", "3", "]}", "/p/allowed_token_ids", VOCAB},
    {"{\"logit_bias\": {", "\"%d\": 1", "}}", "/p/logit_bias", LOGITS_PROCESSOR_BIASES_MAX},
    {"{\"bad_words\": [", "\"the\"", "]}", "/p/bad_words", GENERATE_BAD_WORDS_MAX},
};

static void test_parse_has_limits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        for (int over = 0; over < 2; over++) {
            char *body = list_of(limits[i].head, limits[i].item, limits[i].most + over,
                                 limits[i].tail);
            struct logits_processor *s = NULL;
            struct err e = {0};

            if (parse(&s, body, tokenizer, &e) != (over ? -1 : 0))
                fail_msg("%s: %s", limits[i].field, e.msg);
            if (over)
                assert_string_equal(e.field, limits[i].field);
            logits_processor_unref(s);
            free(body);
        }
}

/* Long words are cut off by their own limit; many tokens by that of all. */
static void test_parse_limits_bad_words(void **state)
{
    char item[GENERATE_BAD_WORD_LEN_MAX + 8] = "\"";
    struct logits_processor *s = NULL;
    struct err e = {0};
    char *body;

    (void)state;
    memset(item + 1, 'x', GENERATE_BAD_WORD_LEN_MAX);
    item[1 + GENERATE_BAD_WORD_LEN_MAX] = '"';
    body = list_of("{\"bad_words\": [", item, 1, "]}");
    assert_int_equal(parse(&s, body, tokenizer, &e), 0);
    logits_processor_unref(s);
    free(body);
    for (int i = 0; i < GENERATE_BAD_WORD_LEN_MAX / 2; i++)
        memcpy(item + 1 + 2 * i, "qz", 2);
    body = list_of("{\"bad_words\": [", item, GENERATE_BAD_WORDS_MAX, "]}");
    s = NULL;
    assert_int_equal(parse(&s, body, tokenizer, &e), -1);
    assert_int_equal(strncmp(e.field, "/p/bad_words/", 13), 0);
    assert_non_null(strstr(e.msg, "4096"));
    assert_null(s);
    free(body);
    err_clear(&e);
    (void)snprintf(item + 1 + GENERATE_BAD_WORD_LEN_MAX, 3, "x\"");
    body = list_of("{\"bad_words\": [", item, 1, "]}");
    assert_int_equal(parse(&s, body, tokenizer, &e), -1);
    assert_string_equal(e.field, "/p/bad_words/0");
    assert_non_null(strstr(e.msg, "257"));
    free(body);
}

static void test_bad_words_need_a_tokenizer(void **state)
{
    struct logits_processor *s = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(parse(&s, "{\"bad_words\": [\"a\"]}", NULL, &e), -1);
    assert_string_equal(e.field, "/p/bad_words");
    err_clear(&e);
    assert_int_equal(parse(&s, "{\"bad_words\": []}", NULL, &e), 0);
    logits_processor_unref(s);
}

static void test_parse_reads_the_lists(void **state)
{
    struct logits_processor *s = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(parse(&s,
                           "{\"logit_bias\": {\"0\": -1e308, \"1023\": 7, \"8\": 0.5},"
                           " \"allowed_token_ids\": [9, 0, 1023, 9]}",
                           tokenizer, &e),
                     0);
    assert_int_equal(s->n_biases, 3);
    for (uint32_t i = 0; i < 3; i++) {
        const struct logits_processor_bias *b = &s->biases[i];

        assert_true(b->bias == (b->id == 0 ? -100.0F : b->id == 8 ? 0.5F : 7.0F));
    }
    assert_int_equal(s->n_allowed, 3);
    assert_true(s->allowed[0] == 0 && s->allowed[1] == 9 && s->allowed[2] == 1023);
    assert_int_equal(s->n_bad_words, 0);
    logits_processor_unref(s);
}

/* ---- bad words ---- */

/* vLLM's rule, from the tokenizer's own answers: without a space; with one, when the first token is
 * another and there are as many. */
static uint32_t expected(const char *word, uint32_t out[2][64], uint32_t n[2])
{
    char spaced[128];
    uint32_t n_forms = 0;

    for (int with = 0; with < 2; with++) {
        uint32_t *ids = NULL;
        struct err e = {0};
        size_t len = 0;

        (void)snprintf(spaced, sizeof spaced, "%s%s", with ? " " : "", word);
        assert_int_equal(tokenizer_encode(tokenizer, spaced, strlen(spaced), false, &ids, &len, &e),
                         0);
        assert_true(len > 0 && len < 64);
        if (!with || (len == n[0] && ids[0] != out[0][0])) {
            memcpy(out[n_forms], ids, len * sizeof *ids);
            n[n_forms++] = (uint32_t)len;
        }
        free(ids);
    }
    return n_forms;
}

static void test_bad_words_become_tokens_as_in_vllm(void **state)
{
    static const struct {
        const char *json, *word;
    } words[] = {
        {"the", "the"},
        {" the", "the"},
        {"\\t \\u2003the", "the"},
        {"the ", "the "},
        {"beginning", "beginning"},
        {"In the beginning", "In the beginning"},
        {"q", "q"},
        {"\\u00e9t\\u00e9", "\xc3\xa9t\xc3\xa9"},
        {"a\\u00a0b", "a\xc2\xa0"
                      "b"},
        {"God said, Let", "God said, Let"},
    };
    uint32_t n_two = 0, n_one = 0;

    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        uint32_t forms[2][64], n[2] = {0}, n_forms = expected(words[i].word, forms, n);
        struct logits_processor *s = NULL;
        struct err e = {0};
        char body[128];

        (void)snprintf(body, sizeof body, "{\"bad_words\": [\"%s\"]}", words[i].json);
        if (parse(&s, body, tokenizer, &e) != 0)
            fail_msg("%s: %s", body, e.msg);
        assert_int_equal(s->n_bad_words, n_forms);
        for (uint32_t k = 0; k < n_forms; k++) {
            uint32_t len;
            const uint32_t *ids = logits_processor_bad_word(s, k, &len);

            assert_int_equal(len, n[k]);
            assert_memory_equal(ids, forms[k], len * sizeof *ids);
        }
        n_two += n_forms == 2;
        n_one += n_forms == 1;
        logits_processor_unref(s);
    }
    assert_true(n_two > 0 && n_one > 0);
}

/* Fails the 1st, 2nd, ... allocation in turn. */
static void test_parse_unwinds_every_failure(void **state)
{
    json_t *o = json_loads("{\"logit_bias\": {\"5\": 1}, \"allowed_token_ids\": [3, 4, 5],"
                           " \"bad_words\": [\"the beginning\", \"God\"]}",
                           0, NULL);
    struct logits_processor *s = NULL;
    int rc = -1;
    long n;

    (void)state;
    for (n = 0; rc != 0; n++) {
        struct err e = {0};

        fails_at = n_allocations + n;
        rc = logits_processor_parse(&s, o, "", VOCAB, tokenizer, &e);
        fails_at = -1;
        assert_true(rc == 0 || e.code == ERR_NO_MEMORY);
        assert_true((rc == 0) == (s != NULL));
    }
    assert_true(n > 5);
    logits_processor_unref(s);
    json_decref(o);
}

static int load_tokenizer(void **state)
{
    struct err e = {0};

    (void)state;
    return tokenizer_load(&tokenizer, FIXTURES "/kjv-qwen3-1m", &e);
}

static int free_tokenizer(void **state)
{
    (void)state;
    tokenizer_free(tokenizer);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_refuses_with_field_and_what_was_found),
        cmocka_unit_test(test_parse_says_nothing_of_nothing),
        cmocka_unit_test(test_parse_has_limits),
        cmocka_unit_test(test_parse_limits_bad_words),
        cmocka_unit_test(test_bad_words_need_a_tokenizer),
        cmocka_unit_test(test_parse_reads_the_lists),
        cmocka_unit_test(test_bad_words_become_tokens_as_in_vllm),
        cmocka_unit_test(test_parse_unwinds_every_failure),
    };

    return cmocka_run_group_tests(tests, load_tokenizer, free_tokenizer);
}
