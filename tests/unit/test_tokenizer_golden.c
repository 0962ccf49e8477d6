/* Ids and text as Hugging Face's tokenizers gives them: the fixture's own cases, and those of other
 * families of byte-level BPE, made from the fixture by setting members. */
#include "tokenizer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static void assert_ids(const json_t *expected, const uint32_t *ids, size_t n)
{
    assert_int_equal(n, json_array_size(expected));
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids[i], json_integer_value(json_array_get(expected, i)));
}

static void check_encode(const struct tokenizer *t, const json_t *text, const json_t *expected,
                         bool add_special)
{
    struct err e = {0};
    uint32_t *ids;
    size_t n;

    assert_true(json_is_array(expected));
    assert_int_equal(tokenizer_encode(t, json_string_value(text), json_string_length(text),
                                      add_special, &ids, &n, &e),
                     0);
    assert_ids(expected, ids, n);
    free(ids);
}

static void check_decode(const struct tokenizer *t, const json_t *list, const json_t *expected,
                         bool skip_special)
{
    uint32_t *ids = calloc(json_array_size(list) + 1, sizeof *ids);
    struct buf out = {0};
    struct err e = {0};

    assert_non_null(ids);
    assert_true(json_is_string(expected));
    for (size_t i = 0; i < json_array_size(list); i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    assert_int_equal(tokenizer_decode(t, ids, json_array_size(list), skip_special, &out, &e), 0);
    assert_int_equal(out.len, json_string_length(expected));
    if (out.len > 0)
        assert_memory_equal(out.data, json_string_value(expected), out.len);
    buf_fini(&out);
    free(ids);
}

static void test_encode_and_decode_match_the_fixture(void **state)
{
    json_t *golden = fixture_json(FIXTURE_DIR "/tokenizer_golden.json");
    const json_t *cases = json_object_get(golden, "encode"), *c;
    struct tokenizer *t;
    struct err e = {0};
    size_t i;

    (void)state;
    assert_int_equal(tokenizer_load(&t, FIXTURE_DIR, &e), 0);
    assert_true(json_array_size(cases) >= 20);
    json_array_foreach(cases, i, c)
    {
        check_encode(t, json_object_get(c, "text"), json_object_get(c, "ids"), true);
        check_decode(t, json_object_get(c, "ids"), json_object_get(c, "decoded"), false);
        check_decode(t, json_object_get(c, "ids"), json_object_get(c, "decoded_skip_special"),
                     true);
    }
    cases = json_object_get(golden, "decode");
    assert_true(json_array_size(cases) >= 40);
    json_array_foreach(cases, i, c)
    {
        check_decode(t, json_object_get(c, "ids"), json_object_get(c, "decoded"), false);
        check_decode(t, json_object_get(c, "ids"), json_object_get(c, "decoded_skip_special"),
                     true);
    }
    tokenizer_free(t);
    json_decref(golden);
}

/* The fixture's tokenizer with the members of `patch` set. */
static struct tokenizer *patched(const json_t *patch)
{
    json_t *root = fixture_json(FIXTURE_DIR "/tokenizer.json");
    const char *keys[8];
    struct tokenizer *t = NULL;
    struct err e = {0};
    const json_t *p;
    size_t i;

    json_array_foreach(patch, i, p)
    {
        const json_t *path = json_object_get(p, "path");
        size_t n = json_array_size(path);

        assert_true(n > 0 && n <= 8);
        for (size_t k = 0; k < n; k++)
            keys[k] = json_string_value(json_array_get(path, k));
        fixture_set(root, keys, n, json_incref(json_object_get(p, "value")));
    }
    if (fixture_parse(&t, root, &e) != 0)
        print_error("%s: %s\n", e.field, e.msg);
    assert_non_null(t);
    return t;
}

static void test_other_families_match(void **state)
{
    json_t *extra = fixture_json(FIXTURES "/tokenizer/extra_cases.json");
    const json_t *configs = json_object_get(extra, "configs"), *config, *c;
    size_t i, k, n_cases = 0;

    (void)state;
    json_array_foreach(configs, i, config)
    {
        struct tokenizer *t = patched(json_object_get(config, "patch"));

        json_array_foreach(json_object_get(config, "encode"), k, c)
        {
            const json_t *text = json_object_get(c, "text"), *ids = json_object_get(c, "ids");
            const json_t *special = json_object_get(c, "ids_special");

            check_encode(t, text, ids, false);
            check_encode(t, text, special != NULL ? special : ids, true);
            n_cases++;
        }
        json_array_foreach(json_object_get(config, "decode"), k, c)
        {
            check_decode(t, json_object_get(c, "ids"), json_object_get(c, "text"), false);
            check_decode(t, json_object_get(c, "ids"), json_object_get(c, "text_skip_special"),
                         true);
            n_cases++;
        }
        tokenizer_free(t);
    }
    assert_true(n_cases >= 400);
    json_decref(extra);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_and_decode_match_the_fixture),
        cmocka_unit_test(test_other_families_match),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
