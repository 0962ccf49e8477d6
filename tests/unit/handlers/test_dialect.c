/* What all dialects share: members found in text, which dialects there are, what is ignored. */
#include "handlers/body.h"
#include "handlers/body_scan.h"
#include "handlers/dialect.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* "name=value;" for each member. */
static void list_members(const char *text, size_t len, char *out, size_t cap)
{
    struct scan_member m = {0};
    size_t at = 0;

    out[0] = '\0';
    while (scan_next_member(text, len, &m))
        at += (size_t)snprintf(out + at, cap - at, "%.*s=%.*s;", (int)m.name_len, m.name,
                               (int)m.value_len, m.value);
}

static void test_scan_next_member_finds(void **state)
{
    static const struct {
        const char *text, *members;
    } rows[] = {
        {"{\"a\":1,\"b\":\"x\"}", "a=1;b=x;"},
        {" \n{ \"a\" : [1, {\"b\":2}] , \"c\" : {\"d\":\"}\"}, \"e\":null }",
         "a=[1, {\"b\":2}] ;c={\"d\":\"}\"};e=null ;"},
        {"{\"a\\\"b\":\"c\\\\\",\"d\":true}", "a\\\"b=c\\\\;d=true;"},
        {"{\"method\": \"x\", \"kwargs\": {\"method\": \"y\"}}",
         "method=x;kwargs={\"method\": \"y\"};"},
        {"{}", ""},
        {"", ""},
        {"[1,2]", ""},
        {"{\"a\"", ""},
        {"{\"a\":", "a=;"},
        {"{\"a\":\"open", "a=\"open;"},
        {"{\"a\":1 \"b\":2}", "a=1 \"b\":2;"},
        {"{a:1}", ""},
    };
    char found[256];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        list_members(rows[i].text, strlen(rows[i].text), found, sizeof found);
        assert_string_equal(found, rows[i].members);
    }
}

/* Every cut of a text is read without a step outside of it (the sanitizer looks). */
static void test_scan_next_member_stays_inside(void **state)
{
    static const char text[] = "{\"a\\\"\":{\"b\":[\"]\"]}, \"c\":\"\\\\\",\"d\":1}";
    char found[256];

    (void)state;
    for (size_t len = 0; len < sizeof text; len++) {
        char *copy = test_malloc(len + 1);

        memcpy(copy, text, len);
        copy[len] = '\0';
        list_members(copy, len, found, sizeof found);
        test_free(copy);
    }
    assert_string_equal(found, "a\\\"={\"b\":[\"]\"]};c=\\\\;d=1;");
}

static void test_dialects_parse_reads(void **state)
{
    static const struct {
        const char *text;
        unsigned bits; /* 0: refused */
    } rows[] = {
        {"none", 1U << DIALECT_NATIVE},
        {"vllm", 1U << DIALECT_NATIVE | 1U << DIALECT_VLLM},
        {"skyrl,prime-rl",
         1U << DIALECT_NATIVE | 1U << DIALECT_VLLM | 1U << DIALECT_SKYRL | 1U << DIALECT_PRIME_RL},
        {"skyrl", 1U << DIALECT_NATIVE | 1U << DIALECT_VLLM | 1U << DIALECT_SKYRL},
        {"prime-rl,sglang", 1U << DIALECT_NATIVE | 1U << DIALECT_SGLANG | 1U << DIALECT_PRIME_RL},
        {"all", (1U << DIALECT_COUNT) - 1},
        {"", 0},
        {"vllm,", 0},
        {"native", 0},
        {"vllm, skyrl", 0},
        {"none,vllm", 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err e = {0};
        unsigned bits = 0;

        if (rows[i].bits == 0) {
            assert_int_equal(dialects_parse(&bits, rows[i].text, "--compat", &e), -1);
            assert_string_equal(e.field, "--compat");
            continue;
        }
        assert_int_equal(dialects_parse(&bits, rows[i].text, "--compat", &e), 0);
        assert_int_equal(bits, rows[i].bits);
    }
}

static void test_dialect_flag_reads_what_python_writes(void **state)
{
    static const struct {
        const char *text;
        int found; /* -1: refused */
    } rows[] = {{"true", 1}, {"True", 1},  {"1", 1},     {"YES", 1}, {"on", 1},     {"t", 1},
                {"y", 1},    {"false", 0}, {"False", 0}, {"0", 0},   {"no", 0},     {"Off", 0},
                {"f", 0},    {"n", 0},     {"", -1},     {"2", -1},  {"truely", -1}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct http_request_param pair = {.name = (char[]){"flag"},
                                          .value = (char *)(uintptr_t)rows[i].text};
        struct http_request x = {.query = &pair, .n_query = 1};
        struct err e = {0};
        bool found = rows[i].found == 0; /* the other one */
        int rc = dialect_flag(&found, &x, "flag", &e);

        assert_int_equal(rc, rows[i].found < 0 ? -1 : 0);
        assert_string_equal(e.field, rows[i].found < 0 ? "/flag" : "");
        assert_true(rows[i].found < 0 || found == (rows[i].found == 1));
        assert_int_equal(dialect_flag(&found, &x, "other", &(struct err){0}), 0);
    }
}

static const struct member known[] = {
    {.name = "theirs", .ours = "ours"},
    {.name = "typo", .ours = "tpyo"},
    {0},
};
static const struct member native[] = {{.name = "ours"}, {0}};
static const struct route row = {.pattern = "/theirs",
                                 .body = BODY_JSON,
                                 .json_optional = true,
                                 .form = FORM_OPENAI,
                                 .dialect = DIALECT_SGLANG,
                                 .members = known,
                                 .translated_members = native,
                                 .translate_request = dialect_request_plain};

static int parse(json_t **out, const char *text, struct err *e)
{
    struct http_request x = {
        .content_type = (char[]){""}, .body = (char *)(uintptr_t)text, .body_len = strlen(text)};

    x.route = &row;
    return body_parse(out, &x, &row, e);
}

static void test_dialect_error(void **state)
{
    static const struct member pairs[] = {{.name = "theirs", .ours = "ours"},
                                          {.name = "one", .ours = "list/0"},
                                          {.name = "count", .ours = "config/n"},
                                          {0}};
    static const struct member members[] = {{.name = "info"}, {.name = "typo"}, {0}};
    static const struct member query[] = {{.name = "ours", .flags = M_QUERY}, {0}};
    static const struct member made[] = {
        {.name = "ours"}, {.name = "list"}, {.name = "config"}, {.name = "transport"}, {0}};
    struct route within = {.error_members = pairs,
                           .error_at = "/info",
                           .members = members,
                           .translated_members = made};
    struct route beside = within, same = {.members = members, .translated_members = made};
    struct route asked = {.query = query, .translated_members = made}, plain = {.members = members};
    const struct {
        const struct route *route;
        const char *field, *msg, *client_field, *client_msg;
    } rows[] = {{&within, "/ours", "ours is null", "/info/theirs", "theirs is null"},
                {&within, "/ours/3/x", "x is null", "/info/theirs/3/x", "x is null"},
                {&within, "/ours", "ours", "/info/theirs", "ours"},
                {&within, "/info/other", "other is null", "/info/other", "other is null"},
                {&within, "/oursome", "oursome is null", "/oursome", "oursome is null"},
                {&within, "/transport", "transport is null", "", "transport is null"},
                {&within, "/elsewhere", "", "/elsewhere", ""},
                {&within, "", "ours is null", "", "ours is null"},
                {&beside, "/ours", "ours is null", "/theirs", "theirs is null"},
                {&beside, "/typo/0", "", "/typo/0", ""},
                {&beside, "/list/0", "", "/one", ""},
                {&beside, "/list/0/2", "", "/one/2", ""},
                {&beside, "/list/1", "", "", ""},
                {&beside, "/config/n", "n is null", "/count", "count is null"},
                {&same, "/ours", "", "", ""},
                {&same, "/typo", "", "/typo", ""},
                {&asked, "/ours", "", "/ours", ""},
                {&plain, "/ours", "ours is null", "/ours", "ours is null"}};

    (void)state;
    beside.error_at = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err e = {0};

        (void)err_set(&e, ERR_BAD_REQUEST, rows[i].field, "%s", rows[i].msg);
        dialect_error(&e, rows[i].route);
        assert_string_equal(e.field, rows[i].client_field);
        assert_string_equal(e.msg, rows[i].client_msg);
    }
}

static void test_body_parse_goes_through_the_way_in(void **state)
{
    struct err e = {0};
    json_t *body = NULL;

    (void)state;
    assert_int_equal(parse(&body, "{\"theirs\":5,\"other\":1}", &e), 0);
    assert_int_equal(json_object_size(body), 1);
    assert_int_equal(json_integer_value(json_object_get(body, "ours")), 5);
    json_decref(body);
    assert_int_equal(parse(&body, "", &e), 0);
    assert_int_equal(json_object_size(body), 0);
    json_decref(body);
}

static void test_body_parse_counts_what_nobody_knows(void **state)
{
    uint64_t before = dialect_n_unknown(DIALECT_SGLANG);
    struct err e = {0};
    json_t *body = NULL;

    (void)state;
    assert_int_equal(parse(&body, "{\"theirs\":5,\"x\":1,\"y\":{\"theirs\":1}}", &e), 0);
    json_decref(body);
    assert_int_equal(dialect_n_unknown(DIALECT_SGLANG) - before, 2);
    assert_int_equal(dialect_n_unknown(DIALECT_VLLM), 0);
}

static void test_body_parse_refuses_what_the_native_route_does_not_take(void **state)
{
    struct err e = {0};
    json_t *body = NULL;

    (void)state;
    assert_int_equal(parse(&body, "{\"typo\":5}", &e), -1);
    assert_int_equal(e.code, ERR_INTERNAL);
    assert_non_null(strstr(e.msg, "'tpyo'"));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scan_next_member_finds),
        cmocka_unit_test(test_scan_next_member_stays_inside),
        cmocka_unit_test(test_dialects_parse_reads),
        cmocka_unit_test(test_dialect_flag_reads_what_python_writes),
        cmocka_unit_test(test_dialect_error),
        cmocka_unit_test(test_body_parse_goes_through_the_way_in),
        cmocka_unit_test(test_body_parse_counts_what_nobody_knows),
        cmocka_unit_test(test_body_parse_refuses_what_the_native_route_does_not_take),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
