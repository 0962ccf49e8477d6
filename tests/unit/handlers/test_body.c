/* Bodies: what is accepted is what was sent, and a refusal names the culprit. */
#include "base/json_parse.h"
#include "handlers/body.h"
#include "handlers/rows/member.h"

#include "handlers/route.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void *__real_malloc(size_t nbytes);
void *__wrap_malloc(size_t nbytes);

/* The n-th malloc from now fails, once; -1: none does. */
static long malloc_countdown = -1;
static long n_after_failure; /* mallocs since the one that failed */

void *__wrap_malloc(size_t nbytes)
{
    n_after_failure++;
    if (malloc_countdown >= 0 && malloc_countdown-- == 0) {
        n_after_failure = 0;
        return NULL;
    }
    return __real_malloc(nbytes);
}

static const struct member members[] = {{.name = "names"},
                                        {.name = "shapes"},
                                        {.name = "sizes"},
                                        {.name = "lease_s"},
                                        {.name = "weight_version"},
                                        {.name = "a/b~c"},
                                        {0}};
static const struct member query_members[] = {
    {.name = "partial", .flags = M_QUERY}, {.name = "weight_version", .flags = M_QUERY}, {0}};
static const struct route strict = {
    .body = BODY_JSON, .strict = true, .members = members, .query = query_members};
static const struct route lenient = {.body = BODY_JSON, .members = members};
static const struct route optional = {.body = BODY_JSON, .json_optional = true, .strict = true};
static const struct route tensors = {.body = BODY_TENSORS, .strict = true, .members = members};

static const struct route control = {
    .body = BODY_JSON, .role = ROLE_CONTROL, .json_optional = true, .members = members};

static int parse_typed(json_t **out, const struct route *route, const char *type, const char *text,
                       size_t len, struct err *e)
{
    /* Exactly as long as it is, and a NUL behind it: reading further is seen. */
    char *copy = malloc(len + 1);
    struct http_request x = {.body = copy, .body_len = len};
    int rc;

    assert_non_null(copy);
    memcpy(copy, text, len);
    copy[len] = '\0';
    x.content_type = strdup(type);
    *out = NULL;
    memset(e, 0, sizeof *e);
    rc = body_parse(out, &x, route, e);
    free(x.content_type);
    free(copy);
    return rc;
}

static int parse(json_t **out, const struct route *route, const char *text, struct err *e)
{
    return parse_typed(out, route, "application/json", text, strlen(text), e);
}

static void test_body_parse_accepts(void **state)
{
    json_t *o;
    struct err e;

    (void)state;
    assert_int_equal(parse(&o, &strict, " {\"names\": [\"a\"], \"a/b~c\": {\"any\": 1}} \n", &e),
                     0);
    assert_int_equal(json_object_size(o), 2);
    json_decref(o);
    assert_int_equal(parse(&o, &lenient, "{\"unknown\": 1}", &e), 0);
    assert_int_equal(json_object_size(o), 1);
    json_decref(o);
    assert_int_equal(parse_typed(&o, &optional, "text/plain", "", 0, &e), 0);
    assert_int_equal(json_object_size(o), 0);
    json_decref(o);
}

static void test_body_parse_media_types(void **state)
{
    static const struct {
        const char *type;
        bool taken;
    } rows[] = {
        {"", true},
        {"application/json", true},
        {"Application/JSON; charset=utf-8", true},
        {"application/json;charset=utf-8", true},
        {"application/json ; x=y", true},
        {"application/jsonp", false},
        {"application/x-www-form-urlencoded", false},
        {"application/vnd.safetensors", false},
        {"json", false},
    };
    json_t *o;
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int rc = parse_typed(&o, &strict, rows[i].type, "{}", 2, &e);

        if ((rc == 0) != rows[i].taken)
            fail_msg("'%s' is %s", rows[i].type, rc == 0 ? "taken" : "refused");
        if (rc != 0) {
            assert_int_equal(e.code, ERR_MEDIA_TYPE);
            assert_non_null(strstr(e.msg, rows[i].type));
        }
        json_decref(o);
    }
    assert_int_equal(parse_typed(&o, &tensors, "text/plain", "{}", 2, &e), -1);
    assert_non_null(strstr(e.msg, "or application/vnd.safetensors"));
}

/* A page may send bytes without a type anywhere; a body that is not there needs none. */
static void test_body_parse_wants_a_type_on_control_routes(void **state)
{
    json_t *o;
    struct err e;

    (void)state;
    assert_int_equal(parse_typed(&o, &control, "", "{}", 2, &e), -1);
    assert_int_equal(e.code, ERR_MEDIA_TYPE);
    assert_non_null(strstr(e.msg, "send Content-Type: application/json"));
    assert_int_equal(parse_typed(&o, &control, "", "", 0, &e), 0);
    json_decref(o);
    assert_int_equal(parse(&o, &control, "{}", &e), 0);
    json_decref(o);
}

static const struct refusal {
    const char *what, *text, *field, *says;
} refusals[] = {
    {"empty", "", "", "the body is empty"},
    {"blank", "  ", "", "not JSON"},
    {"an array", "[]", "", "the body is an array, expected a JSON object"},
    {"null", "null", "", "the body is null"},
    {"a string", "\"x\"", "", "the body is a string"},
    {"a number", "1.5", "", "the body is a real number"},
    {"half", "{\"names\": [\"a\", ", "/names/1", "not JSON"},
    {"position", "{\n  \"lease_s\": 01}", "/lease_s", "(line 2, column "},
    {"trailing bytes", "{} x", "", "end of file expected"},
    {"two objects", "{}{}", "", "end of file expected"},
    {"trailing comma", "{\"lease_s\": 1,}", "", "not JSON"},
    {"element", "{\"shapes\": [[1, 2], [3, x]]}", "/shapes/1/1", "not JSON"},
    {"NaN", "{\"lease_s\": NaN}", "/lease_s", "not JSON"},
    {"too big an integer", "{\"lease_s\": 9223372036854775808}", "/lease_s", "too big integer"},
    {"too big a real", "{\"lease_s\": 1e400}", "/lease_s", "real number overflow"},
    {"NUL by escape", "{\"names\": [\"a\\u0000b\"]}", "/names/0", "\\u0000 is not allowed"},
    {"NUL in a name", "{\"a\\u0000b\": 1}", "/a\\u0000b", "NUL byte in object key"},
    {"control byte", "{\"names\": [\"a\nb\"]}", "/names/0", "unexpected newline"},
    {"not UTF-8", "{\"names\": [\"\xff\"]}", "/names/0", "unable to decode byte 0xff"},
    {"half a surrogate", "{\"names\": [\"\\ud800\"]}", "/names/0", "invalid Unicode"},
    {"twice", "{\"lease_s\": 1, \"names\": [], \"lease_s\": 2}", "/lease_s",
     "member '\"lease_s\"' is given twice"},
    {"twice, inside", "{\"names\": [{}, {\"x/~\": 1, \"x/~\": 1}]}", "/names/1/x~1~0", "twice"},
    {"near", "{\"nmaes\": []}", "/nmaes", "unknown member 'nmaes', did you mean 'names'?"},
    {"near, by case", "{\"weightVersion\": []}", "/weightVersion",
     "did you mean 'weight_version'?"},
    {"far", "{\"temperature\": 1}", "/temperature",
     "unknown member 'temperature', expected one of names, shapes, sizes, lease_s, weight_version, "
     "a/b~c"},
    {"pointer escapes", "{\"x/y~z\": 1}", "/x~1y~0z", "unknown member 'x/y~z'"},
    {"nameless", "{\"\": 1}", "/", "unknown member ''"},
};

static void test_body_parse_refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        json_t *o;
        struct err e;

        if (parse(&o, &strict, r->text, &e) == 0)
            fail_msg("%s: was accepted", r->what);
        if (e.code != ERR_BAD_REQUEST || strcmp(e.field, r->field) != 0 ||
            strstr(e.msg, r->says) == NULL)
            fail_msg("%s: %s '%s' at '%s'", r->what, err_wire_name(e.code), e.msg, e.field);
        assert_null(o);
    }
}

/* In prompts only, of routes that are not strict. */
static void test_body_parse_allows_a_nul(void **state)
{
    static const struct route prompts = {.body = BODY_JSON, .role = ROLE_GENERATE},
                              names = {.body = BODY_JSON, .role = ROLE_CONTROL};
    static const char text[] = "{\"zmq_handles\": {\"GPU\": \"ipc://@a\\u0000b\"}}";
    json_t *o;
    struct err e;

    (void)state;
    assert_int_equal(parse(&o, &prompts, text, &e), 0);
    json_decref(o);
    assert_int_equal(parse(&o, &names, text, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field, "/zmq_handles/GPU");
    assert_non_null(strstr(e.msg, "\\u0000 is not allowed"));
}

static void test_body_parse_refuses_a_raw_nul(void **state)
{
    static const char text[] = "{\"names\": [\"a\0b\"]}", behind[] = "{}\0";
    json_t *o;
    struct err e;

    (void)state;
    assert_int_equal(parse_typed(&o, &strict, "", text, sizeof text - 1, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_int_equal(parse_typed(&o, &strict, "", behind, 3, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
}

/* {"names":[[...]]} of `depth` containers, the first open one at byte 0. */
static size_t nested(char *out, unsigned depth, const char *core)
{
    size_t len = (size_t)sprintf(out, "{\"names\":");

    for (unsigned i = 1; i < depth; i++)
        out[len++] = '[';
    len += (size_t)sprintf(out + len, "%s", core);
    for (unsigned i = 1; i < depth; i++)
        out[len++] = ']';
    out[len++] = '}';
    out[len] = '\0';
    return len;
}

static void test_body_parse_bounds_depth(void **state)
{
    enum { BIG = 1 << 20 };
    char *text = malloc(2 * BIG + 64);
    json_t *o;
    struct err e;

    (void)state;
    assert_non_null(text);
    (void)nested(text, BODY_DEPTH_MAX, "1");
    assert_int_equal(parse(&o, &strict, text, &e), 0);
    json_decref(o);
    (void)nested(text, BODY_DEPTH_MAX, "\"[[[[{{{{ \\\" [[[[\""); /* in a string: not nesting */
    assert_int_equal(parse(&o, &strict, text, &e), 0);
    json_decref(o);
    (void)nested(text, BODY_DEPTH_MAX + 1, "1");
    assert_int_equal(parse(&o, &strict, text, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_non_null(strstr(e.msg, "nested deeper than 32 levels at byte 40 (line 1, column 41)"));
    assert_memory_equal(e.field, "/names/0/0/", 11);
    (void)nested(text, BIG, "1"); /* jansson alone would use up a small stack */
    assert_int_equal(parse(&o, &strict, text, &e), -1);
    assert_non_null(strstr(e.msg, "nested deeper"));
    memset(text, '[', BIG);
    text[BIG] = '\0';
    assert_int_equal(parse(&o, &strict, text, &e), -1);
    assert_non_null(strstr(e.msg, "nested deeper"));
    free(text);
}

/* Every allocation fails in turn, alone. Never a 400 (the text is right), never a success with a
 * shortened token. */
static void test_body_parse_tells_lack_of_memory(void **state)
{
    static const char text[] =
        "{\"names\": [\"model.layers.0.self_attn.q_proj.weight\", \"exactly14byte\", \"b\"],"
        " \"lease_s\": 1234567890123456789, \"weight_version\": \"a label that is longer than it"
        " would have to be, so that the token's buffer grows more than once\","
        " \"sizes\": [1.2345678901234567890123, {\"k\": null}, true]}";
    json_t *o = NULL, *want;
    struct err e;
    int rc = -1;

    (void)state;
    assert_int_equal(parse(&want, &strict, text, &e), 0);
    for (int n = 0; rc != 0 || malloc_countdown < 0; n++) {
        struct http_request x = {.body = strdup(text), .body_len = sizeof text - 1};

        memset(&e, 0, sizeof e);
        x.content_type = x.body + x.body_len; /* "" */
        malloc_countdown = n;
        rc = body_parse(&o, &x, &strict, &e);
        if (malloc_countdown < 0) {               /* it did fail */
            assert_int_equal(n_after_failure, 0); /* going on with a shortened token is unsafe */
            if (rc == 0 || e.code != ERR_NO_MEMORY)
                fail_msg("allocation %d: %s '%s'", n, err_wire_name(e.code), e.msg);
        } else {
            assert_int_equal(rc, 0);
            assert_true(json_equal(o, want));
            json_decref(o);
            assert_true(n > 20);
        }
        free(x.body);
    }
    malloc_countdown = -1;
    json_decref(want);

    memset(&e, 0, sizeof e);
    malloc_countdown = 0; /* the empty body of an optional route */
    assert_int_equal(body_parse(&o, &(struct http_request){.body_len = 0}, &optional, &e), -1);
    assert_int_equal(e.code, ERR_NO_MEMORY);

    /* And a wrong text is a 400 again afterwards. */
    assert_int_equal(parse(&o, &strict, "{", &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
}

static void test_body_only_names_the_inner_member(void **state)
{
    static const struct member inner[] = {{.name = "name"},
                                          {.name = "offset"},
                                          {.name = "nbytes"},
                                          {0}},
                               none[] = {{0}};
    json_t *o = json_pack("{s:s, s:i}", "name", "x", "ofset", 1);
    struct err e = {0};

    (void)state;
    assert_int_equal(body_only(o, "/shm/0", inner, &e), -1);
    assert_string_equal(e.field, "/shm/0/ofset");
    assert_non_null(strstr(e.msg, "did you mean 'offset'?"));
    memset(&e, 0, sizeof e);
    assert_int_equal(body_only(o, "", none, &e), -1);
    assert_non_null(strstr(e.msg, "none is accepted here"));
    assert_int_equal(json_object_del(o, "ofset"), 0);
    memset(&e, 0, sizeof e);
    assert_int_equal(body_only(o, "/shm/0", inner, &e), 0);
    json_decref(o);
}

static void test_body_only_bounds_its_message(void **state)
{
    static char names[60][12];
    struct member list[61] = {{0}};
    char *big = malloc(1 << 20);
    json_t *o = json_object();
    struct err e = {0};

    (void)state;
    assert_non_null(big);
    for (size_t i = 0; i < 60; i++) {
        (void)snprintf(names[i], sizeof names[i], "member_%03zu", i);
        list[i].name = names[i];
    }
    memset(big, '/', 1 << 20);
    big[(1 << 20) - 1] = '\0';
    assert_int_equal(json_object_set_new(o, big, json_true()), 0);
    assert_int_equal(body_only(o, "/at", list, &e), -1);
    assert_string_equal(e.field, "/at"); /* a pointer that is cut in its middle would lie */
    assert_non_null(strstr(e.msg, "member_000, member_001"));
    assert_string_equal(e.msg + strlen(e.msg) - 4, " ...");
    json_decref(o);
    free(big);
}

static void test_body_query_only(void **state)
{
    struct http_request_param params[4] = {
        {(char *)(uintptr_t) "partial", (char *)(uintptr_t) "true"}};
    struct http_request x = {.query = params, .n_query = 1};
    struct err e = {0};

    (void)state;
    assert_int_equal(body_query_only(&x, &strict, &e), 0);
    params[1] = (struct http_request_param){(char *)(uintptr_t) "weight-version", NULL};
    x.n_query = 2;
    assert_int_equal(body_query_only(&x, &strict, &e), -1);
    assert_string_equal(e.field, "/weight-version");
    assert_non_null(strstr(e.msg, "did you mean 'weight_version'?"));
    params[1] = params[0];
    memset(&e, 0, sizeof e);
    assert_int_equal(body_query_only(&x, &strict, &e), -1);
    assert_non_null(strstr(e.msg, "given twice"));
    memset(&e, 0, sizeof e);
    assert_int_equal(body_query_only(&x, &lenient, &e), -1); /* none listed */
    assert_int_equal(e.code, ERR_BAD_REQUEST);
}

static const char readers_text[] =
    "{\"s\": \"x\", \"b\": true, \"f\": false, \"i\": 5, \"neg\": -5, \"r\": 1.5, \"w\": 1.0, "
    "\"a\": [], "
    "\"o\": {}, \"n\": null, \"max\": 9223372036854775807, \"min\": -9223372036854775808}";

enum reader { STR, BOOL, U64, I64, F64, ARRAY, OBJECT };

static int read_one(enum reader reader, const json_t *o, const char *member, struct err *e)
{
    const char *s = NULL;
    bool b = false;
    uint64_t u = 0;
    int64_t i = 0;
    double f = 0;
    const json_t *v = NULL;

    memset(e, 0, sizeof *e);
    switch (reader) {
    case STR:
        return body_str(&s, o, "/at", member, e);
    case BOOL:
        return body_bool(&b, o, "/at", member, e);
    case U64:
        return body_u64(&u, o, "/at", member, 0, UINT64_MAX, e);
    case I64:
        return body_i64(&i, o, "/at", member, INT64_MIN, INT64_MAX, e);
    case F64:
        return body_f64(&f, o, "/at", member, e);
    case ARRAY:
        return body_array(&v, o, "/at", member, e);
    case OBJECT:
        return body_object(&v, o, "/at", member, e);
    }
    return -1;
}

/* Every reader against every type: taken, or refused naming both types. */
static void test_body_readers_take_their_type_only(void **state)
{
    static const struct {
        const char *member, *is, *takers; /* by the letters of reader_letters */
    } rows[] = {
        {"s", "a string", "s"},     {"b", "a boolean", "b"},     {"f", "a boolean", "b"},
        {"i", "an integer", "uif"}, {"r", "a real number", "f"}, {"w", "a real number", "uif"},
        {"a", "an array", "a"},     {"o", "an object", "o"},     {"n", "null", "sbuifao"},
        {"absent", "", "sbuifao"},
    };
    static const char reader_letters[] = "sbuifao";
    static const char *const wanted[] = {"a string", "a boolean", "an integer", "an integer",
                                         "a number", "an array",  "an object"};
    json_t *o = json_loads(readers_text, 0, NULL);
    char want[96], field[32];
    struct err e;

    (void)state;
    assert_non_null(o);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int reader = STR; reader <= OBJECT; reader++) {
            int rc = read_one((enum reader)reader, o, rows[i].member, &e);
            bool taken = strchr(rows[i].takers, reader_letters[reader]) != NULL;

            if ((rc == 0) != taken)
                fail_msg("reader %c, member %s", reader_letters[reader], rows[i].member);
            if (taken)
                continue;
            (void)snprintf(want, sizeof want, "%s is %s, expected %s", rows[i].member, rows[i].is,
                           wanted[reader]);
            (void)snprintf(field, sizeof field, "/at/%s", rows[i].member);
            assert_string_equal(e.msg, want);
            assert_string_equal(e.field, field);
            assert_int_equal(e.code, ERR_BAD_REQUEST);
        }
    }
    json_decref(o);
}

static void test_body_readers_give_the_value(void **state)
{
    json_t *o = json_loads(readers_text, 0, NULL);
    const char *s = NULL, *untouched = "default";
    bool b = false;
    uint64_t u = 7;
    int64_t i = 0;
    double f = 0;
    struct err e = {0};

    (void)state;
    assert_int_equal(body_str(&s, o, "", "s", &e), 0);
    assert_string_equal(s, "x");
    assert_int_equal(body_str(&untouched, o, "", "n", &e), 0);
    assert_string_equal(untouched, "default");
    assert_int_equal(body_bool(&b, o, "", "b", &e), 0);
    assert_true(b);
    assert_int_equal(body_bool(&b, o, "", "f", &e), 0);
    assert_false(b);
    assert_int_equal(body_u64(&u, o, "", "absent", 0, 1, &e), 0);
    assert_int_equal(u, 7);
    assert_int_equal(body_u64(&u, o, "", "max", 0, UINT64_MAX, &e), 0);
    assert_true(u == INT64_MAX);
    assert_int_equal(body_i64(&i, o, "", "min", INT64_MIN, 0, &e), 0);
    assert_true(i == INT64_MIN);
    assert_int_equal(body_f64(&f, o, "", "i", &e), 0);
    assert_true(f > 4.9 && f < 5.1);
    json_decref(o);
}

static void test_body_readers_range(void **state)
{
    json_t *o = json_loads(readers_text, 0, NULL);
    uint64_t u = 1;
    int64_t i = 1;
    struct err e = {0};

    (void)state;
    assert_int_equal(body_u64(&u, o, "/p", "i", 5, 5, &e), 0);
    assert_int_equal(body_u64(&u, o, "/p", "i", 6, 9, &e), -1);
    assert_string_equal(e.msg, "i is 5, expected 6 to 9");
    assert_string_equal(e.field, "/p/i");
    memset(&e, 0, sizeof e);
    assert_int_equal(body_u64(&u, o, "", "i", 0, 4, &e), -1);
    memset(&e, 0, sizeof e);
    assert_int_equal(body_u64(&u, o, "", "neg", 0, UINT64_MAX, &e), -1);
    assert_string_equal(e.msg, "neg is -5, expected 0 to 18446744073709551615");
    memset(&e, 0, sizeof e);
    assert_int_equal(body_i64(&i, o, "", "neg", -4, 4, &e), -1);
    assert_string_equal(e.msg, "neg is -5, expected -4 to 4");
    memset(&e, 0, sizeof e);
    assert_int_equal(body_i64(&i, o, "", "i", -4, 4, &e), -1);
    assert_int_equal(u, 5); /* only what was accepted */
    assert_int_equal(i, 1);
    json_decref(o);
}

static void test_body_required(void **state)
{
    json_t *o = json_loads(readers_text, 0, NULL);
    struct err e = {0};

    (void)state;
    assert_int_equal(body_required(o, "", "f", &e), 0);
    assert_int_equal(body_required(o, "/p", "absent", &e), -1);
    assert_string_equal(e.msg, "absent is missing, it is required");
    assert_string_equal(e.field, "/p/absent");
    memset(&e, 0, sizeof e);
    assert_int_equal(body_required(o, "", "n", &e), -1);
    assert_string_equal(e.msg, "n is null, it is required");
    json_decref(o);
}

static void test_query_readers(void **state)
{
    static const struct {
        const char *text;
        int is_bool, is_u64; /* 0..10 allowed */
    } rows[] = {
        {"true", 1, 0},
        {"false", 1, 0},
        {"True", 0, 0},
        {"1", 0, 1},
        {"10", 0, 1},
        {"11", 0, 0},
        {"", 0, 0},
        {"-1", 0, 0},
        {"+1", 0, 0},
        {" 1", 0, 0},
        {"1.0", 0, 0},
        {"0x1", 0, 0},
        {"18446744073709551617", 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct http_request_param p = {(char *)(uintptr_t) "m", (char *)(uintptr_t)rows[i].text};
        struct http_request x = {.query = &p, .n_query = 1};
        struct err e = {0};
        bool b = strcmp(rows[i].text, "true") != 0;
        uint64_t u = 99;

        assert_int_equal(query_bool(&b, &x, "m", &e), rows[i].is_bool - 1);
        if (rows[i].is_bool)
            assert_int_equal(b, strcmp(rows[i].text, "true") == 0);
        else
            assert_string_equal(e.field, "/m");
        memset(&e, 0, sizeof e);
        assert_int_equal(query_u64(&u, &x, "m", 0, 10, &e), rows[i].is_u64 - 1);
        assert_int_equal(u, rows[i].is_u64 ? strtoul(rows[i].text, NULL, 10) : 99);
        memset(&e, 0, sizeof e);
        assert_int_equal(query_u64(&u, &x, "absent", 0, 10, &e), 0);
        assert_int_equal(query_bool(&b, &x, "absent", &e), 0);
    }
}

static int setup(void **state)
{
    (void)state;
    json_parse_init();
    json_object_seed(0);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_body_parse_accepts),
        cmocka_unit_test(test_body_parse_media_types),
        cmocka_unit_test(test_body_parse_wants_a_type_on_control_routes),
        cmocka_unit_test(test_body_parse_refuses),
        cmocka_unit_test(test_body_parse_allows_a_nul),
        cmocka_unit_test(test_body_parse_refuses_a_raw_nul),
        cmocka_unit_test(test_body_parse_bounds_depth),
        cmocka_unit_test(test_body_parse_tells_lack_of_memory),
        cmocka_unit_test(test_body_only_names_the_inner_member),
        cmocka_unit_test(test_body_only_bounds_its_message),
        cmocka_unit_test(test_body_query_only),
        cmocka_unit_test(test_body_readers_take_their_type_only),
        cmocka_unit_test(test_body_readers_give_the_value),
        cmocka_unit_test(test_body_readers_range),
        cmocka_unit_test(test_body_required),
        cmocka_unit_test(test_query_readers),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
