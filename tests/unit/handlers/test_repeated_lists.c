/* Lists that come again in a request: known by all of their bytes or not at all, and then the same
 * tensor list as when they are read. */
#include "base/json_parse.h"
#include "handlers/app.h"
#include "handlers/body_columns.h"
#include "handlers/control_plane.h"
#include "handlers/route.h"
#include "handlers/tensor_list_json.h"
#include "tests/unit/update_fixture.h"

#include <stdio.h>
#include <stdlib.h>

enum { N_TENSORS = 24, N_LISTS = 3, TEXT_MAX = 16384, N_BODIES = 6000 };

/* Does a cached list have names that this text begins with? */
static bool knows(struct list_cache *c, const char *text)
{
    struct list_entry *l = list_cache_find(c, LIST_NAMES, text, strlen(text), NULL);

    list_entry_unref(l);
    return l != NULL;
}

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
    const struct tensor_list *tensor_list; /* only to be compared */
};

/* What a body comes to: its tensor list's digest, or why it has none. */
static struct said read_body(const char *text, struct app *app)
{
    static const struct route route = {
        .body = BODY_TENSORS, .strict = true, .members = update_members};
    struct http_request x = {
        .body = (char *)(uintptr_t)text, .body_len = strlen(text), .content_type = (char[]){""}};
    struct body_columns columns;
    struct tensor_list *tensor_list = NULL;
    json_t *body = NULL;
    struct said s = {.tensor_list = NULL};
    struct err e = {0};
    int rc = body_parse_columns(&body, &columns, &x, &route, app->weights->lists, &e);

    if (rc == 0)
        rc = tensor_list_resolve(&tensor_list, app->weights, body, &columns, "", false, &e);
    if (rc == 0)
        (void)snprintf(s.text, sizeof s.text, "%s", tensor_list->digest);
    else
        (void)snprintf(s.text, sizeof s.text, "%d at '%s': %s", (int)e.code, e.field, e.msg);
    s.tensor_list = tensor_list;
    tensor_list_unref(tensor_list);
    json_decref(body);
    body_columns_fini(&columns);
    return s;
}

static void test_a_known_list_is_the_same_tensor_list(void **state)
{
    struct app_weights weights = {.lists = NULL}, none = {.lists = NULL};
    struct app app = {.weights = &weights}, without = {.weights = &none};
    const struct tensor_list *first[N_LISTS];
    char text[TEXT_MAX];
    struct bench b;

    (void)state;
    bench_open(&b);
    app.weights->lists = updates_lists(b.updates);
    for (int round = 0; round < 3; round++)
        for (int list = 0; list < N_LISTS; list++) {
            struct said s;

            put_list(text, list);
            s = read_body(text, &app);
            assert_string_equal(s.text, read_body(text, &without).text);
            assert_non_null(s.tensor_list);
            if (round == 0)
                first[list] = s.tensor_list;
            assert_ptr_equal(s.tensor_list, first[list]); /* remembered: nothing was built */
        }
    bench_close(&b);
}

/* Lists that begin alike are each remembered once, and push out nothing. */
static void test_lists_of_the_same_names(void **state)
{
    struct app_weights weights = {.lists = NULL};
    struct app app = {.weights = &weights};
    char text[TEXT_MAX], other[TEXT_MAX];
    struct said s;
    struct bench b;

    (void)state;
    bench_open(&b);
    app.weights->lists = updates_lists(b.updates);
    put_list(text, 1);
    (void)read_body(text, &app);
    put_list(text, 0);
    memcpy(other, text, sizeof text);
    memcpy(strstr(other, "\"BF16\""), "\"F16\" ", 6);
    for (int i = 0; i < LIST_CACHE_MAX; i++) {
        const struct tensor_list *is = read_body(text, &app).tensor_list;

        assert_non_null(is);
        s = read_body(other, &app);
        assert_true(s.tensor_list != NULL && s.tensor_list != is);
    }
    put_list(text, 1);
    assert_true(knows(app.weights->lists, strchr(text, '[')));
    bench_close(&b);
}

/* The text is remembered with its tensor list, and one in other words is the same tensor list. */
static void test_a_list_is_remembered(void **state)
{
    struct app_weights weights = {.lists = NULL};
    struct app app = {.weights = &weights};
    char text[TEXT_MAX], *blank;
    const struct tensor_list *first;
    struct bench b;

    (void)state;
    bench_open(&b);
    app.weights->lists = updates_lists(b.updates);
    put_list(text, 0);
    assert_false(knows(app.weights->lists, strchr(text, '[')));
    first = read_body(text, &app).tensor_list;
    assert_true(knows(app.weights->lists, strchr(text, '[')));
    blank = strstr(text, "],\"dtypes");
    memmove(blank + 1, blank, strlen(blank) + 1);
    *blank = ' ';
    assert_false(knows(app.weights->lists, strchr(text, '[')));
    assert_ptr_equal(read_body(text, &app).tensor_list, first);
    bench_close(&b);
}

/* Lists of which most bytes came before, but not all. */
static void test_an_almost_known_list_is_read(void **state)
{
    static const char bytes[] = "019[]{},\" \\:aB\n";
    struct app_weights weights = {.lists = NULL}, none = {.lists = NULL};
    struct app app = {.weights = &weights}, without = {.weights = &none};
    unsigned n_taken = 0, n_refused = 0;
    char text[TEXT_MAX], other[TEXT_MAX];
    struct bench b;

    (void)state;
    srand(11);
    bench_open(&b);
    app.weights->lists = updates_lists(b.updates);
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
        n_taken += s.tensor_list != NULL;
        n_refused += s.tensor_list == NULL;
    }
    assert_true(n_taken > N_BODIES / 10 && n_refused > N_BODIES / 10);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_known_list_is_the_same_tensor_list),
        cmocka_unit_test(test_lists_of_the_same_names),
        cmocka_unit_test(test_a_list_is_remembered),
        cmocka_unit_test(test_an_almost_known_list_is_read),
    };

    json_parse_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
