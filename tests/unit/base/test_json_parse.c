/* JSON of files that other programs write: integers of any size. */
#include "base/json_parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_parse_file_takes_integers_of_any_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
