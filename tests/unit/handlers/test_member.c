/* Reading requests by rows: each kind of value, in a body and in the query, and that the rows of
 * all routes fit the fields that they name. Writing replies by rows: each kind of value, and a lack
 * of memory. */
#include "handlers/rows/member.h"

#include "handlers/route.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct inner {
    int64_t offset;
};

struct request {
    const char *name, *mode, *brief, *unit;
    int order, level;
    bool fast, order_given;
    uint32_t few;
    uint64_t many;
    double ratio, scale;
    float share;
    const json_t *list;
    struct inner inner;
};

static int check_name(const char *text, const char *field, struct err *e)
{
    return text[0] != '\0' ? 0 : err_set(e, ERR_BAD_REQUEST, field, "it is empty");
}

static const struct member inner_rows[] = {
    {"offset", M_INT, M_IN(struct inner, offset)},
    {0},
};

static const struct member rows[] = {
    {"name", M_STRING, M_IN(struct request, name), .flags = M_QUERY | M_REQUIRED,
     .check = check_name},
    {"mode", M_STRING, M_IN(struct request, mode), .flags = M_QUERY, M_WORDS("a", "b")},
    {"short", M_STRING, M_IN(struct request, brief), .flags = M_QUERY, .min = 2, .max = 3},
    {"unit", M_STRING, M_IN(struct request, unit), M_WORDS("s")},
    {"order", M_STRING, M_IN(struct request, order), M_GIVEN(struct request, order_given),
     .flags = M_QUERY, M_WORDS("up", "down"), .def = "down"},
    {"fast", M_BOOL, M_IN(struct request, fast), .flags = M_QUERY, .def = "true"},
    {"few", M_INT, M_IN(struct request, few), .flags = M_QUERY, .min = 1, .max = 9},
    {"many", M_INT, M_IN(struct request, many), .flags = M_QUERY, .def = "100"},
    {"ratio", M_NUMBER, M_IN(struct request, ratio), .flags = M_ABOVE, .max = 1, .def = "0.5"},
    {"scale", M_NUMBER, M_IN(struct request, scale), .flags = M_ABOVE},
    {"share", M_NUMBER, M_IN(struct request, share), .min = -2, .max = 2},
    {"level", M_INT, M_IN(struct request, level), .min = -1},
    {"list", M_ARRAY, M_IN(struct request, list)},
    {"none", .neutral = "null"},
    {"empty", .neutral = "empty"},
    {"off", .neutral = "false"},
    {"one", .neutral = "1"},
    {"text", .neutral = "{\"type\": \"text\"}"},
    {"", M_ROWS_IN(inner_rows, struct request, inner)},
    {.name = "ignored"},
    {0},
};

static void expect(int rc, const struct err *e, const char *field, const char *words)
{
    assert_int_equal(rc, field != NULL ? -1 : 0);
    assert_int_equal(e->code, field != NULL ? ERR_BAD_REQUEST : ERR_NONE);
    assert_string_equal(e->field, field != NULL ? field : "");
    if (words != NULL && strstr(e->msg, words) == NULL)
        fail_msg("'%s' is not in: %s", words, e->msg);
}

static void test_member_defaults(void **state)
{
    struct request r = {.few = 7, .mode = "as before"};
    json_t *body = json_pack("{s:s, s:n}", "name", "x", "few");
    struct err e = {0};

    (void)state;
    expect(member_read_only(&r, rows, body, "", &e), &e, NULL, NULL);
    assert_string_equal(r.name, "x");
    assert_string_equal(r.mode, "as before");
    assert_int_equal(r.order, 1);
    assert_true(r.fast && !r.order_given);
    assert_int_equal(r.few, 7);
    assert_int_equal(r.many, 100);
    assert_true(r.ratio > 0.49 && r.ratio < 0.51);
    assert_null(r.list);
    json_decref(body);
}

static void test_member_values(void **state)
{
    struct request r = {0};
    json_t *body = json_pack("{s:s, s:s, s:s, s:b, s:i, s:I, s:f, s:[i], s:I, s:s}", "name", "x",
                             "mode", "b", "order", "up", "fast", 0, "few", 9, "many",
                             (json_int_t)INT64_MAX, "ratio", 1.0, "list", 5, "offset",
                             (json_int_t)INT64_MIN, "ignored", "it is");
    struct err e = {0};

    (void)state;
    expect(member_read_only(&r, rows, body, "", &e), &e, NULL, NULL);
    assert_string_equal(r.mode, "b");
    assert_int_equal(r.order, 0);
    assert_true(r.order_given && !r.fast);
    assert_int_equal(r.few, 9);
    assert_true(r.many == INT64_MAX && r.ratio > 0.99);
    assert_int_equal(json_array_size(r.list), 1);
    assert_true(r.inner.offset == INT64_MIN);
    json_decref(body);
}

static void test_member_refusals(void **state)
{
    static const struct {
        const char *body, *field, *words;
    } cases[] = {
        {"{}", "/at/name", "it is required"},
        {"{'name':null}", "/at/name", "it is required"},
        {"{'name':''}", "/at/name", "it is empty"},
        {"{'name':5}", "/at/name", "expected a string"},
        {"{'name':'x','mode':'c'}", "/at/mode", "mode 'c' is not one of a, b"},
        {"{'name':'x','unit':'ms'}", "/at/unit", "unit 'ms' is not supported; only 's' is"},
        {"{'name':'x','short':'ab','unit':'s'}", NULL, NULL},
        {"{'name':'x','short':'a'}", "/at/short", "a string of 1 bytes; expected 2 to 3"},
        {"{'name':'x','short':'abcd'}", "/at/short", "a string of 4 bytes; expected 2 to 3"},
        {"{'name':'x','order':'a'}", "/at/order", "not one of up, down"},
        {"{'name':'x','fast':1}", "/at/fast", "expected a boolean"},
        {"{'name':'x','few':0}", "/at/few", "expected 1 to 9"},
        {"{'name':'x','few':10}", "/at/few", "expected 1 to 9"},
        {"{'name':'x','many':-1}", "/at/many", "expected 0 to"},
        {"{'name':'x','ratio':0}", "/at/ratio", "above 0"},
        {"{'name':'x','ratio':1.5}", "/at/ratio", "at most 1"},
        {"{'name':'x','scale':0}", "/at/scale", "it must be a finite number above 0"},
        {"{'name':'x','scale':1e300}", NULL, NULL},
        {"{'name':'x','share':-2.5}", "/at/share", "share is -2.5; expected -2 to 2"},
        {"{'name':'x','share':1e39}", "/at/share", "out of range of a 32-bit float"},
        {"{'name':'x','share':-2,'level':-1}", NULL, NULL},
        {"{'name':'x','level':-2}", "/at/level", "expected -1 to 2147483647"},
        {"{'name':'x','level':2147483648}", "/at/level", "expected -1 to 2147483647"},
        {"{'name':'x','none':false}", "/at/none", "found a boolean, only null is accepted"},
        {"{'name':'x','empty':[],'off':false,'one':1.0}", NULL, NULL},
        {"{'name':'x','empty':'','text':{'type':'text','a':1}}", NULL, NULL},
        {"{'name':'x','empty':[0]}", "/at/empty", "only null or an empty value is accepted"},
        {"{'name':'x','empty':0}", "/at/empty", "found 0"},
        {"{'name':'x','off':true}", "/at/off", "only null or false"},
        {"{'name':'x','off':0}", "/at/off", "only null or false"},
        {"{'name':'x','one':1.5}", "/at/one", "found 1.5, only null or 1 is accepted"},
        {"{'name':'x','text':{}}", "/at/text", "found an object"},
        {"{'name':'x','text':'text'}", "/at/text", "found a string"},
        {"{'name':'x','list':{}}", "/at/list", "expected an array"},
        {"{'name':'x','offset':'y'}", "/at/offset", "expected an integer"},
        {"{'name':'x','nam':'y'}", "/at/nam", "did you mean 'name'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64] = "";
        struct request r = {0};
        struct err e = {0};
        json_t *body;

        for (size_t k = 0; cases[i].body[k] != '\0'; k++)
            text[k] = cases[i].body[k] == '\'' ? '"' : cases[i].body[k];
        body = json_loads(text, 0, NULL);
        assert_non_null(body);
        expect(member_read_only(&r, rows, body, "/at", &e), &e, cases[i].field, cases[i].words);
        json_decref(body);
    }
}

static void *no_malloc(size_t n)
{
    (void)n;
    return NULL;
}

/* Whether the value is the neutral one is not known then. */
static void test_member_neutral_without_memory(void **state)
{
    static const char *const names[] = {"off", "one", "text"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_t *body = json_pack("{s:s, s:b}", "name", "x", names[i], 0);
        json_malloc_t malloc_fn;
        json_free_t free_fn;
        struct request r = {0};
        struct err e = {0};

        json_get_alloc_funcs(&malloc_fn, &free_fn);
        json_set_alloc_funcs(no_malloc, free_fn);
        assert_int_equal(member_read(&r, rows, body, "", &e), -1);
        json_set_alloc_funcs(malloc_fn, free_fn);
        assert_int_equal(e.code, ERR_NO_MEMORY);
        json_decref(body);
    }
}

static void test_member_query(void **state)
{
    static const struct {
        const char *member, *value, *field, *words;
    } cases[] = {
        {"mode", "a", NULL, NULL},
        {"mode", "c", "/mode", "mode 'c' is not one of a, b"},
        {"order", "up", NULL, NULL},
        {"fast", "false", NULL, NULL},
        {"fast", "yes", "/fast", "expected true or false"},
        {"short", "abc", NULL, NULL},
        {"short", "", "/short", "a string of 0 bytes; expected 2 to 3"},
        {"few", "9", NULL, NULL},
        {"few", "10", "/few", "from 1 to 9"},
        {"many", "x", "/many", "a whole number"},
        {"name", "", "/name", "it is empty"},
        {NULL, NULL, "/name", "name is missing in the query"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_request_param query[] = {
            {(char *)(uintptr_t)cases[i].member, (char *)(uintptr_t)cases[i].value},
            {(char *)(uintptr_t) "name", (char *)(uintptr_t) "x"}};
        struct http_request x = {.query = query, .n_query = cases[i].member != NULL ? 2 : 0};
        struct request r = {0};
        struct err e = {0};

        expect(member_read_query(&r, rows, &x, &e), &e, cases[i].field, cases[i].words);
        if (cases[i].field != NULL)
            continue;
        assert_string_equal(r.name, "x");
        assert_int_equal(r.fast, strcmp(cases[i].value, "false") != 0);
        assert_int_equal(r.order_given, strcmp(cases[i].member, "order") == 0);
        assert_int_equal(r.order, !r.order_given);
        assert_int_equal(r.few, strcmp(cases[i].member, "few") == 0 ? 9 : 0);
        assert_true(r.many == 100 && r.list == NULL);
    }
}

static unsigned type_of(const struct member *m)
{
    static const unsigned of[] = {
        [STORE_STR] = M_STRING, [STORE_TEXT] = M_STRING, [STORE_BOOL] = M_BOOL,
        [STORE_U32] = M_INT,    [STORE_U64] = M_INT,     [STORE_INT] = M_INT,
        [STORE_I64] = M_INT,    [STORE_F32] = M_NUMBER,  [STORE_F64] = M_NUMBER,
    };

    if (m->store == STORE_INT && m->words != NULL)
        return M_STRING;
    return m->store < sizeof of / sizeof of[0] && of[m->store] != 0 ? of[m->store] : m->type;
}

/* A string of this length is refused. */
static void refuses_length(const struct member *m, int64_t len)
{
    const struct member one[] = {*m, {0}};
    char *text = calloc(1, (size_t)len + 1);
    char out[1024]; /* any struct that the rows of a route fill */
    struct err e = {0};
    json_t *body;

    assert_non_null(text);
    assert_true(m->at + sizeof(const char *) <= sizeof out && m->given <= sizeof out);
    memset(text, 'a', (size_t)len);
    body = json_pack("{s:s}", m->name, text);
    if (member_read(out, one, body, "", &e) == 0)
        fail_msg("%s: a string of %d bytes is accepted", m->name, (int)len);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_string_equal(e.field + 1, m->name);
    json_decref(body);
    free(text);
}

static void check_lengths(const struct member *m)
{
    if (m->store != STORE_STR)
        return;
    if (m->min > 0)
        refuses_length(m, m->min - 1);
    if (m->max != 0)
        refuses_length(m, m->max + 1);
}

static void check_rows(const struct member *table)
{
    for (const struct member *m = table; m != NULL && m->name != NULL; m++) {
        bool known = m->def == NULL || m->words == NULL;

        if ((m->type & M_ROWS) != 0) {
            check_rows(m->of);
            continue;
        }
        for (const struct member *other = table; other != m; other++)
            if (strcmp(other->name, m->name) == 0)
                fail_msg("%s: it has two rows", m->name);
        if (m->type != type_of(m))
            fail_msg("%s: its field is of another type", m->name);
        for (size_t i = 0; !known && m->words[i] != NULL; i++)
            known = strcmp(m->words[i], m->def) == 0;
        if (!known)
            fail_msg("%s: its words lack its default", m->name);
        if (m->max != 0 && m->max < m->min)
            fail_msg("%s: its limits are crossed", m->name);
        check_lengths(m);
    }
}

static void test_member_rows_of_routes(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_routes; i++) {
        check_rows(routes[i].members);
        check_rows(routes[i].query);
        check_rows(routes[i].translated_members);
    }
}

enum color { RED, BLUE };

static const char *color_name(enum color color)
{
    return color == RED ? "red" : "blue";
}

struct written {
    const char *name, *none;
    char text[8], empty[8];
    enum color color;
    bool fast, known;
    uint32_t few;
    uint64_t us, zero;
    int level;
    double ratio;
    struct inner inner;
};

static json_t *twice_json(const void *few)
{
    return json_integer(*(const uint32_t *)few * 2);
}

static json_t *no_items_json(const void *from)
{
    (void)from;
    return json_array();
}

static const struct member written_rows[] = {
    {"name", M_STRING, M_IN(struct written, name)},
    {"none", M_STRING | M_NULL, M_IN(struct written, none)},
    {"text", M_STRING | M_NULL, M_IN(struct written, text)},
    {"empty", M_STRING | M_NULL, M_IN(struct written, empty)},
    {"color", M_STRING, M_IN(struct written, color), .word = color_name},
    {"pace", M_STRING, M_IN(struct written, fast), M_WORDS("slow", "fast")},
    {"fast", M_BOOL, M_IN(struct written, fast)},
    {"few", M_INT, M_IN(struct written, few)},
    {"twice", M_INT, M_MADE(twice_json, struct written, few)},
    {"ms", M_NUMBER, M_IN(struct written, us), .per = M_MS},
    {"s", M_INT, M_IN(struct written, us), .per = M_S},
    {"zero", M_INT | M_NULL, M_IN(struct written, zero)},
    {"level", M_INT, M_IN(struct written, level)},
    {"ratio", M_NUMBER, M_IN(struct written, ratio)},
    {"inner", M_OBJECT_IN(inner_rows, struct written, inner)},
    {"known_or_null", M_INT | M_NULL, M_IN(struct written, few), M_GIVEN(struct written, known)},
    {"known", M_INT, M_IN(struct written, few), M_GIVEN(struct written, known)},
    {"items", M_ARRAY, .make = no_items_json, .flags = M_IF_ANY},
    {"kind", M_STRING, .def = "one"},
    {.name = "later", .type = M_STRING},
    {"", M_ROWS_IN(inner_rows, struct written, inner)},
    {0},
};

static const struct written written = {.name = "a",
                                       .text = "b",
                                       .color = BLUE,
                                       .fast = true,
                                       .few = 3,
                                       .us = 1500000,
                                       .level = -1,
                                       .ratio = 0.5,
                                       .inner = {.offset = 7}};

static void test_member_write_values(void **state)
{
    static const char expected[] =
        "{\"name\":\"a\",\"none\":null,\"text\":\"b\",\"empty\":null,\"color\":\"blue\","
        "\"pace\":\"fast\",\"fast\":true,\"few\":3,\"twice\":6,\"ms\":1500.0,\"s\":1,"
        "\"zero\":null,\"level\":-1,\"ratio\":0.5,\"inner\":{\"offset\":7},"
        "\"known_or_null\":null,\"kind\":\"one\",\"offset\":7}";
    json_t *made = member_write(&written, written_rows);
    char *text = json_dumps(made, JSON_COMPACT);

    (void)state;
    assert_string_equal(text, expected);
    free(text);
    json_decref(made);
}

static size_t n_blocks_left;

static void *scarce_malloc(size_t nbytes)
{
    return n_blocks_left > 0 && n_blocks_left-- > 0 ? malloc(nbytes) : NULL;
}

static void test_member_write_without_memory(void **state)
{
    json_t *made = NULL;
    size_t n;

    (void)state;
    json_set_alloc_funcs(scarce_malloc, free);
    for (n = 0; made == NULL; n++) {
        n_blocks_left = n;
        made = member_write_list(&written, 1, sizeof written, written_rows);
    }
    json_set_alloc_funcs(malloc, free);
    assert_true(n > 20);
    assert_int_equal(json_object_size(json_array_get(made, 0)), 18);
    json_decref(made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_member_defaults),
        cmocka_unit_test(test_member_values),
        cmocka_unit_test(test_member_refusals),
        cmocka_unit_test(test_member_query),
        cmocka_unit_test(test_member_rows_of_routes),
        cmocka_unit_test(test_member_write_values),
        cmocka_unit_test(test_member_write_without_memory),
        cmocka_unit_test(test_member_neutral_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
