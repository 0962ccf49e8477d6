/* JSON texts, and integers of any size in files that other programs write. */
#include "base/json_parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static json_t *parse(const char *text)
{
    json_error_t why;
    bool starved = true;
    json_t *v = json_parse_file(text, strlen(text), JSON_DECODE_ANY, &why, &starved);

    assert_false(starved);
    if (v == NULL)
        assert_int_not_equal(why.text[0], '\0');
    return v;
}

static void check_int(const char *text, json_int_t want)
{
    json_t *v = parse(text);

    assert_true(json_is_integer(v) && json_integer_value(v) == want);
    json_decref(v);
}

static void check_real(const char *text, double want)
{
    json_t *v = parse(text);

    assert_true(json_is_real(v) && !(json_real_value(v) < want) && !(json_real_value(v) > want));
    json_decref(v);
}

static void test_json_parse_file_takes_integers_of_any_size(void **state)
{
    json_t *v;

    (void)state;
    check_int("9223372036854775807", INT64_MAX);
    check_int("-9223372036854775808", INT64_MIN);
    check_real("9223372036854775808", 9223372036854775808.0);
    check_real("-9223372036854775809", -9223372036854775808.0);
    check_real("1000000000000000019884624838656", 1e30);
    check_real("0.12345678901234567890123", 0.12345678901234567890123);
    assert_null(parse("1e400"));
    assert_null(parse("{"));
    assert_null(parse("1000000000000000019884624838656x"));
    v = parse("{\"a\\\"1000000000000000019884624838656\": [1000000000000000019884624838656, 7, "
              "-99999999999999999999], \"\\\\\": \"123456789012345678901\", \"e\": 1}");
    assert_non_null(v);
    assert_int_equal(json_array_size(json_object_get(v, "a\"1000000000000000019884624838656")), 3);
    assert_string_equal(json_string_value(json_object_get(v, "\\")), "123456789012345678901");
    assert_int_equal(json_integer_value(json_object_get(v, "e")), 1);
    json_decref(v);
}

static unsigned n_left; /* allocations that succeed */

static void *limited(size_t size)
{
    if (n_left == 0)
        return NULL;
    n_left--;
    return malloc(size);
}

static void check_copies(json_t *(*copy)(const json_t *), const json_t *value)
{
    json_t *made = NULL;

    for (unsigned n = 0; made == NULL; n++) {
        assert_true(n < 1000);
        n_left = n;
        made = copy(value);
        n_left = 1000000;
        assert_true(made == NULL || json_equal(made, value));
    }
    json_decref(made);
}

/* jansson's own copies leave out what there is no memory for. */
static void test_copies_are_whole_or_none(void **state)
{
    json_t *v;

    (void)state;
    n_left = 1000000;
    json_set_alloc_funcs(limited, free);
    v = json_pack("{s:[i,s,{s:b}], s:s, s:f, s:n, s:i, s:i, s:i, s:i, s:i, s:i}", "list", 1, "two",
                  "three", 1, "text", "t", "real", 0.5, "null", "a", 1, "b", 2, "c", 3, "d", 4, "e",
                  5, "f", 6);
    assert_non_null(v);
    check_copies(json_copy_all, v);
    check_copies(json_deep_copy_all, v);
    check_copies(json_copy_all, json_object_get(v, "list"));
    check_copies(json_deep_copy_all, json_object_get(v, "list"));
    assert_null(json_copy_all(NULL));
    assert_null(json_deep_copy_all(NULL));
    json_decref(v);
    json_set_alloc_funcs(malloc, free);
}

static const char *const samples[] = {
    "{\"a\": [1, -2, 0, -0, 3.5e-1, 1E2, 123456789012345678, 1234567890123456789], \"b\": {}}",
    "{\"\\u0061\": \"x\\ny\\ud83d\\ude00\", \"\xc3\xa9\": \"\xe2\x82\xac\", \"t\": true, "
    "\"f\":false}",
    " [null, \"\", [[[]]], {\"k\": {\"k\": [\"\\\\\", \"\\\"\"]}}, 1e308, 1e309, 0.1, 1e-400] \n",
    "{\"a\": 1, \"b\": 2, \"a\": 3}",
    "\"text\"",
    "17",
    "[\"\\u0000\", \"\\ud800\", 01, 1., .5, +1, tru, nul]",
};

static void check_same(const char *text, size_t len, size_t flags)
{
    json_error_t why, theirs;
    bool starved;
    json_t *made = json_parse(text, len, flags, &why, &starved);
    json_t *right = json_loadb(text, len, flags, &theirs);

    assert_false(starved);
    assert_true((made == NULL) == (right == NULL));
    assert_true(right == NULL || json_equal(made, right));
    if (right == NULL)
        assert_string_equal(why.text, theirs.text);
    json_decref(made);
    json_decref(right);
}

/* In memory of just its length: under a sanitizer no byte before or behind it may be read. */
static void check_ends_within_a_character(void)
{
    static const char text[] = "\"\xe3\xa9\xf0\x9f\x98";

    for (size_t len = 1; len < sizeof text; len++) {
        char *alone = malloc(len);

        assert_non_null(alone);
        memcpy(alone, text, len);
        check_same(alone, len, JSON_DECODE_ANY);
        free(alone);
    }
}

/* What it takes, and refuses, and makes, is what jansson alone would: texts with a few bytes of
 * others in them. */
static void test_json_parse_is_as_jansson(void **state)
{
    static const char put[] = "{}[]:,\"\\/bnu019-+.eEtrufalsn \n\t\x01\x7f\xc3\xa9\xed\xa0\x80\xff";
    static const size_t flags[] = {0, JSON_DECODE_ANY, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY,
                                   JSON_ALLOW_NUL | JSON_DECODE_ANY};
    char text[256];
    unsigned seed = 7;

    (void)state;
    for (unsigned i = 0; i < 60000; i++) {
        const char *from = samples[i % (sizeof samples / sizeof samples[0])];
        size_t len = strlen(from);

        memcpy(text, from, len);
        for (unsigned k = 0; k < i / 7 % 4; k++) {
            seed = seed * 1103515245 + 12345;
            text[(seed >> 16) % len] = put[(seed >> 8) % (sizeof put - 1)];
        }
        check_same(text, len - i / 28 % 3, flags[i / 84 % 4]);
    }
    memset(text, '[', 100);
    memset(text + 100, ']', 100);
    check_same(text, 200, 0);
    check_same(text, 199, 0);
    check_same(text, 0, 0);
    check_ends_within_a_character();
}

static void test_json_parse_without_memory(void **state)
{
    json_t *made = NULL;
    json_error_t why;
    bool starved;

    (void)state;
    json_set_alloc_funcs(limited, free);
    for (unsigned n = 0; made == NULL; n++) {
        assert_true(n < 1000);
        n_left = n;
        made = json_parse(samples[1], strlen(samples[1]), 0, &why, &starved);
        n_left = 1000000;
        assert_true(starved == (made == NULL));
    }
    json_decref(made);
    json_set_alloc_funcs(malloc, free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_parse_file_takes_integers_of_any_size),
        cmocka_unit_test(test_json_parse_is_as_jansson),
        cmocka_unit_test(test_json_parse_without_memory),
        cmocka_unit_test(test_copies_are_whole_or_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
