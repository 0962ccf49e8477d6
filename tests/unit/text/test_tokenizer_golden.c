/* Ids and text as Hugging Face's tokenizers gives them: the cases of a byte-level fixture and of a
 * spelled one, and those of other tokenizers made from the two by setting members. */
#include "tests/unit/text/tokenizer_fixture.h"

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

/* Both directions of all cases of DIR/tokenizer_golden.json. */
static void check_fixture(const char *dir)
{
    char path[256];
    json_t *golden;
    const json_t *cases, *c;
    struct tokenizer *t;
    struct err e = {0};
    size_t i;

    (void)snprintf(path, sizeof path, "%s/tokenizer_golden.json", dir);
    golden = fixture_json(path);
    cases = json_object_get(golden, "encode");
    assert_int_equal(tokenizer_load(&t, dir, &e), 0);
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

static void test_byte_level_fixture(void **state)
{
    (void)state;
    check_fixture(FIXTURE_DIR);
}

static void test_spelled_fixture(void **state)
{
    (void)state;
    check_fixture(SPELLED_DIR);
}

/* The tokenizer of `dir` with the members of `patch` set. */
static struct tokenizer *patched(const char *dir, const json_t *patch)
{
    char file[256];
    json_t *root;
    const char *keys[8];
    struct tokenizer *t = NULL;
    struct err e = {0};
    const json_t *p;
    size_t i;

    (void)snprintf(file, sizeof file, "%s/tokenizer.json", dir);
    root = fixture_json(file);
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

static size_t check_config(const char *dir, const json_t *config)
{
    struct tokenizer *t = patched(dir, json_object_get(config, "patch"));
    const json_t *c;
    size_t k, n_cases = 0;

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
        check_decode(t, json_object_get(c, "ids"), json_object_get(c, "text_skip_special"), true);
        n_cases++;
    }
    tokenizer_free(t);
    return n_cases;
}

static void check_configs(const char *dir, const char *cases, size_t n_min)
{
    json_t *extra = fixture_json(cases);
    const json_t *config;
    size_t i, n_cases = 0;

    json_array_foreach(json_object_get(extra, "configs"), i, config)
    {
        size_t n = check_config(dir, config);

        assert_true(n > 0);
        n_cases += n;
    }
    assert_true(n_cases >= n_min);
    json_decref(extra);
}

static void test_other_byte_level_tokenizers(void **state)
{
    (void)state;
    check_configs(FIXTURE_DIR, FIXTURES "/tokenizer/extra_cases.json", 400);
}

static void test_other_spelled_tokenizers(void **state)
{
    (void)state;
    check_configs(SPELLED_DIR, FIXTURES "/tokenizer/spelled_cases.json", 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_level_fixture),
        cmocka_unit_test(test_spelled_fixture),
        cmocka_unit_test(test_other_byte_level_tokenizers),
        cmocka_unit_test(test_other_spelled_tokenizers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
