/* Lists that came before: known by all of their bytes or not at all, and then the same plan as when
 * they are read. */
#include "base/json_parse.h"
#include "weights/list_memo.h"

#include "handlers/app.h"
#include "handlers/body_columns.h"
#include "handlers/control_plane.h"
#include "handlers/route.h"
#include "handlers/tensor_list_json.h"
#include "tests/unit/update_fixture.h"

#include <stdio.h>
#include <stdlib.h>

enum { N_TENSORS = 24, N_LISTS = 3, TEXT_MAX = 16384, N_BODIES = 6000 };

static struct plan *plan_of_one(const char *name)
{
    struct plan_builder *b;
    struct plan *p;
    uint64_t one = 1;
    struct err e = {0};

    assert_int_equal(plan_builder_new(&b, &e), 0);
    assert_int_equal(plan_builder_add(b, name, DTYPE_U8, &one, 1, UINT64_MAX, &e), 0);
    assert_int_equal(plan_builder_finish(b, &p, &e), 0);
    return p;
}

static struct plan *plan_of_many(uint32_t n)
{
    struct plan_builder *b;
    struct plan *p;
    uint64_t none = 0;
    char name[16];
    struct err e = {0};

    assert_int_equal(plan_builder_new(&b, &e), 0);
    assert_int_equal(plan_builder_reserve(b, n, &e), 0);
    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "%u", (unsigned)i);
        assert_int_equal(plan_builder_add(b, name, DTYPE_U8, &none, 0, UINT64_MAX, &e), 0);
    }
    assert_int_equal(plan_builder_finish(b, &p, &e), 0);
    return p;
}

static struct list_memo *memo_new(void)
{
    struct list_memo *m;
    struct err e = {0};

    assert_int_equal(list_memo_new(&m, &e), 0);
    return m;
}

static struct list_text text_of(const char *text)
{
    return (struct list_text){text, text != NULL ? strlen(text) : 0};
}

static void keep_plan(struct list_memo *m, const char *names, struct plan *p)
{
    const struct list_text columns[LIST_COLUMNS] = {[LIST_NAMES] = text_of(names)};

    list_memo_keep(m, columns, p);
}

static void keep(struct list_memo *m, const char *names, const char *dtypes, const char *sizes)
{
    const struct list_text columns[LIST_COLUMNS] = {[LIST_NAMES] = text_of(names),
                                                    [LIST_DTYPES] = text_of(dtypes),
                                                    [LIST_SIZES] = text_of(sizes)};
    struct plan *p = plan_of_one(names);

    list_memo_keep(m, columns, p);
    plan_unref(p);
}

static bool knows(struct list_memo *m, enum list_column which, const char *text)
{
    struct known_list *l = list_memo_find(m, which, text, strlen(text), NULL);

    known_list_unref(l);
    return l != NULL;
}

static void test_list_memo_find_compares_all_bytes(void **state)
{
    struct list_memo *m = memo_new();

    (void)state;
    keep(m, "[\"a\",\"b\"]", "[\"F32\",\"F32\"]", NULL);
    assert_true(knows(m, LIST_NAMES, "[\"a\",\"b\"]"));
    assert_true(knows(m, LIST_NAMES, "[\"a\",\"b\"],\"more\":1}"));
    assert_false(knows(m, LIST_NAMES, "[\"a\",\"b\"")); /* cut off */
    assert_false(knows(m, LIST_NAMES, "[\"a\",\"c\"]"));
    assert_false(knows(m, LIST_NAMES, "[\"a\",\"b\",\"c\"]"));
    assert_false(knows(m, LIST_NAMES, "[\"a\", \"b\"]"));
    assert_false(knows(m, LIST_NAMES, "[\"F32\",\"F32\"]")); /* another column */
    assert_true(knows(m, LIST_DTYPES, "[\"F32\",\"F32\"]"));
    assert_false(knows(m, LIST_SIZES, "[]")); /* was not given */
    list_memo_free(m);
    assert_null(list_memo_find(NULL, LIST_NAMES, "[]", 2, NULL));
}

static void test_list_memo_find_tries_the_first(void **state)
{
    struct list_memo *m = memo_new();
    struct known_list *a, *b, *found;

    (void)state;
    keep(m, "[\"a\"]", "[\"F32\"]", NULL);
    keep(m, "[\"b\"]", "[\"F32\"]", "[1]");
    a = list_memo_find(m, LIST_NAMES, "[\"a\"]", 5, NULL);
    b = list_memo_find(m, LIST_NAMES, "[\"b\"]", 5, NULL);
    found = list_memo_find(m, LIST_DTYPES, "[\"F32\"]", 7, b);
    assert_ptr_equal(found, b);
    known_list_unref(found);
    found = list_memo_find(m, LIST_DTYPES, "[\"F32\"]", 7, a);
    assert_ptr_equal(found, a);
    known_list_unref(found);
    assert_true(known_list_has(a, LIST_SIZES, text_of(NULL)));
    assert_false(known_list_has(b, LIST_SIZES, text_of(NULL)));
    assert_false(known_list_has(a, LIST_SIZES, text_of("[1]")));
    assert_true(known_list_has(b, LIST_SIZES, text_of("[1]")));
    assert_false(known_list_has(b, LIST_SIZES, text_of("[1],")));
    list_memo_free(m);
    assert_string_equal(a->plan->tensors[0].name, "[\"a\"]"); /* held */
    known_list_unref(a);
    known_list_unref(b);
}

static void test_list_memo_keeps_the_last_used(void **state)
{
    struct list_memo *m = memo_new();
    char name[32];

    (void)state;
    for (int i = 0; i < LIST_MEMO_MAX; i++) {
        (void)snprintf(name, sizeof name, "[\"t.%d\"]", i);
        keep(m, name, "[]", NULL);
    }
    assert_true(knows(m, LIST_NAMES, "[\"t.0\"]"));
    keep(m, "[\"new\"]", "[]", NULL);
    assert_true(knows(m, LIST_NAMES, "[\"t.0\"]"));
    assert_false(knows(m, LIST_NAMES, "[\"t.1\"]"));
    assert_true(knows(m, LIST_NAMES, "[\"t.2\"]"));
    assert_true(knows(m, LIST_NAMES, "[\"new\"]"));
    list_memo_free(m);
}

/* A text of so many bytes; `c` makes it another one. */
static char *long_text(size_t len, char c)
{
    char *text = malloc(len + 1);

    assert_non_null(text);
    memset(text, c, len);
    text[0] = '[';
    text[len - 1] = ']';
    text[len] = '\0';
    return text;
}

/* One that leaves no room for any other, when there are as many as may be. */
static void test_list_memo_all_make_room(void **state)
{
    struct list_memo *m = memo_new();
    char *all = long_text(LIST_MEMO_NBYTES, 'a'), name[32];
    struct plan *one = plan_of_one("one");

    (void)state;
    for (int i = 0; i < LIST_MEMO_MAX; i++) {
        (void)snprintf(name, sizeof name, "[\"t.%d\"]", i);
        keep(m, name, "[]", NULL);
    }
    keep_plan(m, all, one);
    assert_true(knows(m, LIST_NAMES, all));
    assert_false(knows(m, LIST_DTYPES, "[]"));
    list_memo_free(m);
    plan_unref(one);
    free(all);
}

/* In so few words that their text leaves room for all. */
static void test_list_memo_is_bounded_by_tensors(void **state)
{
    enum { MANY = LIST_MEMO_TENSORS / 2 };
    struct list_memo *m = memo_new();
    struct plan *half = plan_of_many(MANY), *over = plan_of_many(LIST_MEMO_TENSORS + 1);

    (void)state;
    keep_plan(m, "[\"half\"]", half);
    keep_plan(m, "[\"other\"]", half);
    keep_plan(m, "[\"over\"]", over);
    assert_true(knows(m, LIST_NAMES, "[\"half\"]") && knows(m, LIST_NAMES, "[\"other\"]"));
    assert_false(knows(m, LIST_NAMES, "[\"over\"]"));
    keep(m, "[\"one more\"]", NULL, NULL);
    assert_false(knows(m, LIST_NAMES, "[\"half\"]"));
    assert_true(knows(m, LIST_NAMES, "[\"other\"]") && knows(m, LIST_NAMES, "[\"one more\"]"));
    keep_plan(m, "[\"half\"]", half);
    assert_false(knows(m, LIST_NAMES, "[\"other\"]"));
    list_memo_free(m);
    plan_unref(half);
    plan_unref(over);
}

static void test_list_memo_is_bounded(void **state)
{
    struct list_memo *m = memo_new();
    char *half = long_text(LIST_MEMO_NBYTES / 2, 'a'),
         *other = long_text(LIST_MEMO_NBYTES / 2, 'b'),
         *over = long_text((size_t)LIST_MEMO_NBYTES + 1, 'c');
    const struct list_text columns[LIST_COLUMNS] = {[LIST_NAMES] = text_of(over)};
    struct plan *p = plan_of_one("one");

    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct list_text all[LIST_COLUMNS] = {[LIST_NAMES] = text_of(i == 0 ? half : other)};

        list_memo_keep(m, all, p);
    }
    assert_true(knows(m, LIST_NAMES, half) && knows(m, LIST_NAMES, other));
    list_memo_keep(m, columns, p);
    assert_true(knows(m, LIST_NAMES, half) && knows(m, LIST_NAMES, other));
    assert_false(knows(m, LIST_NAMES, over));
    keep(m, "[\"one more\"]", NULL, NULL);
    assert_false(knows(m, LIST_NAMES, half));
    assert_true(knows(m, LIST_NAMES, other) && knows(m, LIST_NAMES, "[\"one more\"]"));
    list_memo_free(m);
    plan_unref(p);
    free(half);
    free(other);
    free(over);
}

/* bodies */

__attribute__((format(printf, 2, 3))) static void append(char *text, const char *format, ...)
{
    size_t len = strlen(text);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text + len, TEXT_MAX - len, format, args);
    va_end(args);
}

/* One of N_LISTS lists, of which two share their dtypes and two their shapes. */
static void put_list(char *text, int list)
{
    text[0] = '\0';
    append(text, "{\"names\":[");
    for (int i = 0; i < N_TENSORS; i++)
        append(text, "%s\"layer.%d.%d\"", i > 0 ? "," : "", list, i);
    append(text, "],\"dtypes\":[");
    for (int i = 0; i < N_TENSORS; i++)
        append(text, "%s\"%s\"", i > 0 ? "," : "", list > 0 && i == 3 ? "F16" : "BF16");
    append(text, "],\"shapes\":[");
    for (int i = 0; i < N_TENSORS; i++)
        append(text, "%s[%d,%d]", i > 0 ? "," : "", list > 1 ? 7 : 8, i + 1);
    for (int i = 0; i < N_TENSORS && list == 1; i++)
        append(text, "%s%d", i > 0 ? "," : "],\"sizes\":[", 8 * (i + 1));
    append(text, "]}");
}

struct said {
    char text[ERR_FIELD_MAX + sizeof((struct err *)NULL)->msg + 32];
    const struct plan *plan; /* only to be compared */
};

/* What a body comes to: its plan's digest, or why it has none. */
static struct said read_body(const char *text, struct app *app)
{
    static const struct route route = {
        .body = BODY_TENSORS, .strict = true, .members = update_members};
    struct exchange x = {
        .body = (char *)(uintptr_t)text, .body_len = strlen(text), .content_type = (char[]){""}};
    struct body_columns columns;
    struct plan *plan = NULL;
    json_t *body = NULL;
    struct said s = {.plan = NULL};
    struct err e = {0};
    int rc = body_parse_columns(&body, &columns, &x, &route, app->lists, &e);

    if (rc == 0)
        rc = plan_of_list(&plan, app, body, &columns, "", false, &e);
    if (rc == 0)
        (void)snprintf(s.text, sizeof s.text, "%s", plan->digest);
    else
        (void)snprintf(s.text, sizeof s.text, "%d at '%s': %s", (int)e.code, e.field, e.msg);
    s.plan = plan;
    plan_unref(plan);
    json_decref(body);
    body_columns_fini(&columns);
    return s;
}

static void test_a_known_list_is_the_same_plan(void **state)
{
    struct app app = {.lists = memo_new()}, without = {.lists = NULL};
    const struct plan *first[N_LISTS];
    char text[TEXT_MAX];
    struct bench b;

    (void)state;
    bench_open(&b);
    app.updates = b.updates;
    for (int round = 0; round < 3; round++)
        for (int list = 0; list < N_LISTS; list++) {
            struct said s;

            put_list(text, list);
            s = read_body(text, &app);
            assert_string_equal(s.text, read_body(text, &without).text);
            assert_non_null(s.plan);
            if (round == 0)
                first[list] = s.plan;
            assert_ptr_equal(s.plan, first[list]); /* remembered: nothing was built */
        }
    bench_close(&b);
    list_memo_free(app.lists);
}

/* Lists that begin alike are each remembered once, and push out nothing. */
static void test_lists_of_the_same_names(void **state)
{
    struct app app = {.lists = memo_new()};
    char text[TEXT_MAX], other[TEXT_MAX];
    struct said s;
    struct bench b;

    (void)state;
    bench_open(&b);
    app.updates = b.updates;
    keep(app.lists, "[\"before\"]", NULL, NULL);
    put_list(text, 0);
    memcpy(other, text, sizeof text);
    memcpy(strstr(other, "\"BF16\""), "\"F16\" ", 6);
    for (int i = 0; i < LIST_MEMO_MAX; i++) {
        const struct plan *is = read_body(text, &app).plan;

        assert_non_null(is);
        s = read_body(other, &app);
        assert_true(s.plan != NULL && s.plan != is);
    }
    assert_true(knows(app.lists, LIST_NAMES, "[\"before\"]"));
    bench_close(&b);
    list_memo_free(app.lists);
}

/* The text is remembered with its plan, and one in other words is the same plan. */
static void test_a_list_is_remembered(void **state)
{
    struct app app = {.lists = memo_new()};
    char text[TEXT_MAX], *blank;
    const struct plan *first;
    struct bench b;

    (void)state;
    bench_open(&b);
    app.updates = b.updates;
    put_list(text, 0);
    assert_false(knows(app.lists, LIST_NAMES, strchr(text, '[')));
    first = read_body(text, &app).plan;
    assert_true(knows(app.lists, LIST_NAMES, strchr(text, '[')));
    blank = strstr(text, "],\"dtypes");
    memmove(blank + 1, blank, strlen(blank) + 1);
    *blank = ' ';
    assert_false(knows(app.lists, LIST_NAMES, strchr(text, '[')));
    assert_ptr_equal(read_body(text, &app).plan, first);
    bench_close(&b);
    list_memo_free(app.lists);
}

/* Lists of which most bytes came before, but not all. */
static void test_an_almost_known_list_is_read(void **state)
{
    static const char bytes[] = "019[]{},\" \\:aB\n";
    struct app app = {.lists = memo_new()}, without = {.lists = NULL};
    unsigned n_taken = 0, n_refused = 0;
    char text[TEXT_MAX], other[TEXT_MAX];
    struct bench b;

    (void)state;
    srand(11);
    bench_open(&b);
    app.updates = b.updates;
    for (int i = 0; i < N_BODIES; i++) {
        struct said s;

        put_list(text, rand() % N_LISTS);
        if (rand() % 3 == 0) { /* the columns of two lists */
            char *cut = strstr(text, rand() % 2 == 0 ? ",\"dtypes" : ",\"shapes"), *with;

            put_list(other, rand() % N_LISTS);
            with = strncmp(cut, ",\"d", 3) == 0 ? strstr(other, ",\"dtypes")
                                                : strstr(other, ",\"shapes");
            memmove(cut, with, strlen(with) + 1);
        }
        for (int n = rand() % 3; n > 0; n--)
            text[(size_t)rand() % strlen(text)] = bytes[(size_t)rand() % (sizeof bytes - 1)];
        s = read_body(text, &app);
        if (strcmp(s.text, read_body(text, &without).text) != 0)
            fail_msg("of %s\nit says %s, and without what came before %s", text, s.text,
                     read_body(text, &without).text);
        n_taken += s.plan != NULL;
        n_refused += s.plan == NULL;
    }
    assert_true(n_taken > N_BODIES / 10 && n_refused > N_BODIES / 10);
    bench_close(&b);
    list_memo_free(app.lists);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_memo_find_compares_all_bytes),
        cmocka_unit_test(test_list_memo_find_tries_the_first),
        cmocka_unit_test(test_list_memo_keeps_the_last_used),
        cmocka_unit_test(test_list_memo_is_bounded),
        cmocka_unit_test(test_list_memo_all_make_room),
        cmocka_unit_test(test_list_memo_is_bounded_by_tensors),
        cmocka_unit_test(test_a_known_list_is_the_same_plan),
        cmocka_unit_test(test_lists_of_the_same_names),
        cmocka_unit_test(test_a_list_is_remembered),
        cmocka_unit_test(test_an_almost_known_list_is_read),
    };

    json_parse_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
