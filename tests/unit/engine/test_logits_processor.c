/* Lists of single tokens: their order, their limits, their one life. */
#include "engine/logits_processor.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct logits_processor *make(void)
{
    struct logits_processor *s = NULL;
    struct err e = {0};

    assert_int_equal(logits_processor_new(&s, &e), 0);
    return s;
}

static uint32_t *ids_of(const uint32_t *ids, uint32_t n)
{
    uint32_t *copy = malloc(n * sizeof *copy);

    assert_non_null(copy);
    memcpy(copy, ids, n * sizeof *copy);
    return copy;
}

static void test_allow_sorts_and_drops_repeats(void **state)
{
    static const uint32_t ids[] = {9, 2, 9, 0, 4000000000U, 2, 2};
    static const uint32_t sorted[] = {0, 2, 9, 4000000000U};
    struct logits_processor *s = make();

    (void)state;
    assert_null(s->allowed); /* no list: all */
    logits_processor_allow(s, ids_of(ids, 7), 7);
    assert_int_equal(s->n_allowed, 4);
    assert_memory_equal(s->allowed, sorted, sizeof sorted);
    logits_processor_unref(s);
}

static void test_favour_cuts_and_counts(void **state)
{
    struct logits_processor *s = make();

    (void)state;
    assert_true(logits_processor_add_bias(s, 1, 1e300) &&
                logits_processor_add_bias(s, 2, -INFINITY));
    assert_true(s->biases[0].bias == 100.0F && s->biases[1].bias == -100.0F);
    assert_true(logits_processor_add_bias(s, 3, 0.25));
    assert_true(s->biases[2].id == 3 && s->biases[2].bias == 0.25F);
    while (s->n_biases < LOGITS_PROCESSOR_BIASES_MAX)
        assert_true(logits_processor_add_bias(s, s->n_biases + 1, 1));
    assert_false(logits_processor_add_bias(s, 99999, 1));
    assert_int_equal(s->n_biases, LOGITS_PROCESSOR_BIASES_MAX);
    logits_processor_unref(s);
}

static void test_forbid_keeps_sequences_apart(void **state)
{
    static const uint32_t ids[] = {5, 6, 7};
    struct logits_processor *s = make();
    const uint32_t *word;
    uint32_t n;

    (void)state;
    assert_true(logits_processor_forbid(s, ids, 2) && logits_processor_forbid(s, ids + 2, 1) &&
                logits_processor_forbid(s, ids, 3));
    word = logits_processor_bad_word(s, 0, &n);
    assert_true(n == 2 && word[0] == 5 && word[1] == 6);
    word = logits_processor_bad_word(s, 1, &n);
    assert_true(n == 1 && word[0] == 7);
    word = logits_processor_bad_word(s, 2, &n);
    assert_true(n == 3 && word[2] == 7);
    logits_processor_unref(s);
}

static void test_forbid_has_both_limits(void **state)
{
    static uint32_t many[LOGITS_PROCESSOR_BAD_TOKENS_MAX + 1];
    struct logits_processor *s = make();

    (void)state;
    for (uint32_t i = 0; i < LOGITS_PROCESSOR_BAD_WORDS_MAX; i++)
        assert_true(logits_processor_forbid(s, many, 1));
    assert_false(logits_processor_forbid(s, many, 1));
    logits_processor_unref(s);
    s = make();
    assert_false(logits_processor_forbid(s, many, LOGITS_PROCESSOR_BAD_TOKENS_MAX + 1));
    assert_true(logits_processor_forbid(s, many, LOGITS_PROCESSOR_BAD_TOKENS_MAX - 1));
    assert_false(logits_processor_forbid(s, many, 2));
    assert_true(logits_processor_forbid(s, many, 1));
    assert_int_equal(s->n_bad_words, 2);
    logits_processor_unref(s);
}

static void test_check_names_the_list(void **state)
{
    static const uint32_t ids[] = {3, 10};
    static const char *const fields[] = {"/p/allowed_token_ids", "/p/logit_bias", "/p/bad_words"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct logits_processor *s = make();
        struct err e = {0};

        if (i == 0)
            logits_processor_allow(s, ids_of(ids, 2), 2);
        assert_true(i != 1 || logits_processor_add_bias(s, 10, 1));
        assert_true(i != 2 || logits_processor_forbid(s, ids, 2));
        assert_int_equal(logits_processor_check(s, 11, "/p", &e), 0);
        assert_int_equal(logits_processor_check(s, 10, "/p", &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, fields[i]);
        assert_non_null(strstr(e.msg, "10"));
        logits_processor_unref(s);
    }
}

/* The sanitizer sees a reference too few or too many. */
static void test_references(void **state)
{
    struct logits_processor *s = make();

    (void)state;
    assert_null(logits_processor_ref(NULL));
    logits_processor_unref(NULL);
    assert_ptr_equal(logits_processor_ref(s), s);
    logits_processor_unref(s);
    assert_int_equal(s->n_biases, 0); /* still there */
    logits_processor_unref(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allow_sorts_and_drops_repeats),
        cmocka_unit_test(test_favour_cuts_and_counts),
        cmocka_unit_test(test_forbid_keeps_sequences_apart),
        cmocka_unit_test(test_forbid_has_both_limits),
        cmocka_unit_test(test_check_names_the_list),
        cmocka_unit_test(test_references),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
