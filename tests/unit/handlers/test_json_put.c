/* JSON as text: what is written is what jansson would write. */
#include "handlers/json_put.h"
#include "handlers/reply.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N_REALS = 200000 };

static void assert_text(struct buf *out, const char *want)
{
    assert_false(out->failed);
    assert_string_equal(out->data, want);
    buf_fini(out);
}

/* As reply_append_json writes the value; steals both. */
static void assert_as_tree(struct buf *found, json_t *v)
{
    struct buf want = {0};

    reply_append_json(&want, v);
    json_decref(v);
    assert_false(want.failed || found->failed);
    assert_int_equal(found->len, want.len);
    assert_memory_equal(found->data, want.data, want.len);
    buf_fini(found);
    buf_fini(&want);
}

static void test_base64(void **state)
{
    static const struct {
        const char *bytes, *text;
    } rows[] = {{"", "[\"\"]"},
                {"f", "[\"Zg==\"]"},
                {"fo", "[\"Zm8=\"]"},
                {"foo", "[\"Zm9v\"]"},
                {"foob", "[\"Zm9vYg==\"]"},
                {"fooba", "[\"Zm9vYmE=\"]"},
                {"foobar", "[\"Zm9vYmFy\"]"},
                {"\xff\xfe\xfb", "[\"//77\"]"}};
    static unsigned char many[100000];
    struct buf out = {0};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_put_open(&out, '[');
        json_put_base64(&out, rows[i].bytes, strlen(rows[i].bytes));
        json_put_close(&out, ']');
        assert_text(&out, rows[i].text);
    }
    json_put_open(&out, '[');
    json_put_int(&out, 5);
    json_put_base64(&out, many, sizeof many); /* more than one piece */
    assert_int_equal(out.len, 4 + (sizeof many + 2) / 3 * 4 + 1);
    for (size_t i = 4; i < out.len - 3; i++)
        assert_int_equal(out.data[i], 'A');
    assert_memory_equal(out.data, "[5,\"", 4);
    assert_memory_equal(out.data + out.len - 3, "==\"", 3);
    buf_fini(&out);
}

static void assert_real(double v)
{
    struct buf out = {0};

    json_put_real(&out, v);
    assert_as_tree(&out, json_real(v));
}

static void test_reals(void **state)
{
    static const double some[] = {0.0,  -0.0,   1.0,   -1.0,   -9999.0, 0.1,    1e9,        1e-5,
                                  1e20, 1e-300, 1e300, 123e45, 5e-324,  1234e5, 999999999.5};
    uint32_t bits = 1;

    (void)state;
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
        assert_real(some[i]);
    for (size_t i = 0; i < N_REALS; i++) {
        float v;

        bits = bits * 1664525 + 1013904223;
        memcpy(&v, &bits, sizeof v);
        if (isfinite(v))
            assert_real((double)v);
    }
}

static void test_strings(void **state)
{
    static const char *const some[] = {
        "",  "a", "\"", "a\\b/c", "\x7f", "\xc3\xa9 \xf0\x9f\x8e\x89", "\xef\xbf\xbd",
        " ", ",", "{["};
    struct buf out = {0};
    char c;

    (void)state;
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        json_put_string(&out, some[i], strlen(some[i]));
        assert_as_tree(&out, json_string(some[i]));
    }
    for (c = 0; c < ' '; c++) {
        char text[3] = {'x', c, 'y'};

        json_put_string(&out, text, sizeof text);
        assert_as_tree(&out, json_stringn(text, sizeof text));
    }
    json_put_string(&out, "\xff", 1);
    assert_true(out.failed);
    buf_fini(&out);
}

static void test_commas_stand_between_values(void **state)
{
    struct buf out = {0}, list = {0}, none = {0};

    (void)state;
    buf_puts(&out, "data: ");
    json_put_int(&list, -1);
    json_put_null(&list);
    json_put_open(&out, '{');
    json_put_name(&out, "a");
    json_put_open(&out, '[');
    json_put_text(&out, &none);
    json_put_open(&out, '[');
    json_put_close(&out, ']');
    json_put_text(&out, &list);
    json_put_string(&out, "{", 1);
    json_put_open(&out, '{');
    json_put_close(&out, '}');
    json_put_close(&out, ']');
    json_put_members(&out, json_pack("{}"));
    json_put_members(&out, json_pack("{s:[i,b], s:s}", "b", 7, 1, "c", "x:"));
    json_put_name(&out, "d");
    json_put_value(&out, json_true());
    json_put_close(&out, '}');
    buf_fini(&list);
    assert_text(&out, "data: {\"a\":[[],-1,null,\"{\",{}],\"b\":[7,true],\"c\":\"x:\",\"d\":true}");
}

static void test_a_lack_of_memory_stays(void **state)
{
    struct buf out = {0}, failed = {.failed = true};

    (void)state;
    json_put_value(&out, NULL);
    assert_true(out.failed);
    buf_fini(&out);
    json_put_members(&out, NULL);
    assert_true(out.failed);
    buf_fini(&out);
    json_put_text(&out, &failed);
    assert_true(out.failed);
    buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reals),
        cmocka_unit_test(test_base64),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_commas_stand_between_values),
        cmocka_unit_test(test_a_lack_of_memory_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
