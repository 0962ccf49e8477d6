/* Near misses: what people type is found, what they did not mean is not. */
#include "base/closest_match.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const char *const words[] = {
    "names",      "dtypes",        "shapes",       "weight_version", "packed",
    "max_tokens", "max_model_len", "max_num_seqs", "update_id",      "id",
    NULL};

static void test_closest_match_table(void **state)
{
    static const struct {
        const char *word, *meant;
    } rows[] = {
        {"nmaes", "names"},  /* swapped neighbours: one edit */
        {"name", "names"},   /* one left out */
        {"naames", "names"}, /* one too many */
        {"shapse", "shapes"},
        {"maxTokens", "max_tokens"},      /* case does not count */
        {"max-num-seqs", "max_num_seqs"}, /* nor dashes, however many */
        {"MAX-MODEL-LEN", "max_model_len"},
        {"weight_verson", "weight_version"},
        {"wieght_versoin", "weight_version"}, /* two edits */
        {"wieght_versoins", NULL},            /* three */
        {"Names", "names"},
        {"ix", NULL}, /* one edit is half of the word */
        {"x", NULL},
        {"", NULL},
        {"temperature", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *found = closest_match(rows[i].word, words);

        if (rows[i].meant == NULL)
            assert_null(found);
        else
            assert_string_equal(found, rows[i].meant);
    }
}

static void test_closest_match_prefers_the_closest(void **state)
{
    static const char *const close[] = {"shaped", "shapes", "shape", NULL};

    (void)state;
    assert_string_equal(closest_match("shapess", close), "shapes");
    assert_string_equal(closest_match("SHAPE", close), "shape");
}

static void test_closest_match_bounds_long_words(void **state)
{
    char at[CLOSEST_MATCH_LEN_MAX + 1], over[CLOSEST_MATCH_LEN_MAX + 2], *big;
    const char *candidates[] = {at, NULL}, *none[] = {NULL};
    size_t big_len = 1 << 20;

    (void)state;
    memset(at, 'a', sizeof at);
    at[sizeof at - 1] = '\0';
    memset(over, 'a', sizeof over);
    over[sizeof over - 1] = '\0';
    assert_ptr_equal(closest_match(at, candidates), at);
    assert_null(closest_match(over, candidates));
    candidates[0] = over;
    assert_null(closest_match(at, candidates));
    assert_null(closest_match(at, none));
    assert_null(closest_match(at, NULL));

    big = test_malloc(big_len);
    memset(big, 'a', big_len);
    big[big_len - 1] = '\0';
    assert_null(closest_match(big, words));
    test_free(big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_closest_match_table),
        cmocka_unit_test(test_closest_match_prefers_the_closest),
        cmocka_unit_test(test_closest_match_bounds_long_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
