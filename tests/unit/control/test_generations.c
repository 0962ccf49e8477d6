/* The list of generations: what is aborted by all, by ids, by a line, and what is left alone. */
#include "control/generations.h"

#include "weights/version_label.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

enum { N = 3 };

/* A generation that only counts. */
struct counted {
    struct generations_entry entry;
    const char *id;
    unsigned n_aborts, n_cuts;
};

static struct generations *all;
static struct counted made[N];

static bool count_abort(void *arg)
{
    return ++((struct counted *)arg)->n_aborts == 1;
}

static uint32_t count_named(void *arg, const char *const *ids, size_t n_ids)
{
    struct counted *c = arg;

    for (size_t i = 1; i < n_ids; i++)
        assert_true(strcmp(ids[i - 1], ids[i]) <= 0);
    for (size_t i = 0; i < n_ids; i++)
        if (strcmp(ids[i], c->id) == 0)
            return count_abort(c) ? 1 : 0;
    return 0;
}

static void count_cut(void *arg)
{
    ((struct counted *)arg)->n_cuts++;
}

/* Its two sequences. */
static size_t count_list(void *arg, struct generations_row *rows, size_t cap)
{
    const struct counted *c = arg;

    for (size_t i = 0; i < 2 && i < cap; i++) {
        rows[i].request_id[0] = c->id[0];
        rows[i].index = (uint32_t)i;
        rows[i].spans[rows[i].n_spans++].name = version_label_new();
    }
    return 2;
}

static int setup(void **state)
{
    static const struct generations_ops ops = {
        .abort = count_abort, .abort_named = count_named, .cut = count_cut, .list = count_list};
    static const char *const ids[N] = {"a", "b", "c"};
    struct err e = {0};

    (void)state;
    assert_int_equal(generations_new(&all, &e), 0);
    for (size_t i = 0; i < N; i++) {
        struct counted *c = &made[i];

        *c = (struct counted){.id = ids[i]};
        c->entry = (struct generations_entry){.ops = &ops, .arg = c};
        generations_add(all, &c->entry);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (size_t i = 0; i < N; i++)
        generations_remove(all, &made[i].entry);
    generations_free(all);
    return 0;
}

static void assert_aborts(unsigned a, unsigned b, unsigned c)
{
    assert_int_equal(made[0].n_aborts, a);
    assert_int_equal(made[1].n_aborts, b);
    assert_int_equal(made[2].n_aborts, c);
}

static void test_abort_all_counts_those_that_ended(void **state)
{
    (void)state;
    made[1].n_aborts = 1; /* before */
    assert_int_equal(generations_abort(all, NULL, 0), N - 1);
    assert_aborts(1, 2, 1);
}

static void test_abort_by_ids_gives_them_sorted(void **state)
{
    const char *ids[] = {"c", "x", "a"};

    (void)state;
    assert_int_equal(generations_abort(all, ids, 3), 2);
    assert_aborts(1, 0, 1);
}

static void count_idle(void *arg)
{
    ++*(int *)arg;
}

/* Those of before the line end one by one: in the list, and while their handlers run. */
static void test_the_last_before_the_line_says_so(void **state)
{
    uint64_t before, since, line;
    int n_idle = 0;

    (void)state;
    generations_on_idle(all, count_idle, &n_idle);
    before = generations_arrive(all);
    assert_int_equal(generations_n_before(all), 0); /* no line is drawn */
    assert_int_equal(generations_n(all), N + 1);
    line = generations_draw_line(all);
    since = generations_arrive(all);
    assert_true(before < line && since >= line);
    assert_int_equal(generations_n_before(all), N + 1);
    generations_parsed(all, since);
    generations_end(all, &made[0].entry);
    generations_end(all, &made[0].entry); /* repeating is harmless */
    generations_remove(all, &made[0].entry);
    generations_end(all, &made[1].entry);
    generations_remove(all, &made[2].entry);
    assert_int_equal(generations_n_before(all), 1);
    assert_int_equal(n_idle, 0);
    generations_parsed(all, before);
    assert_int_equal(n_idle, 1);
    assert_int_equal(generations_n(all), 0);
}

/* Also of those whose handlers run: they are aborted when they come into the list. */
static void test_abort_before_the_line(void **state)
{
    uint64_t before, since;
    int n_idle = 0;

    (void)state;
    generations_on_idle(all, count_idle, &n_idle);
    generations_remove(all, &made[0].entry);
    generations_remove(all, &made[1].entry);
    before = generations_arrive(all);
    (void)generations_draw_line(all);
    since = generations_arrive(all);
    assert_int_equal(generations_abort_before(all), 1);
    assert_aborts(0, 0, 1);
    assert_int_equal(generations_n_before(all), 0);
    assert_int_equal(n_idle, 1);
    made[0].entry.arrival = before;
    made[1].entry.arrival = since;
    generations_add(all, &made[0].entry);
    generations_add(all, &made[1].entry);
    generations_parsed(all, before);
    generations_parsed(all, since);
    assert_aborts(1, 0, 1);
    assert_int_equal(generations_n(all), 1);
    assert_int_equal(generations_abort_before(all), 0); /* that one came since */
    assert_int_equal(generations_abort(all, NULL, 0), 1);
    assert_int_equal(generations_n(all), 0);
    assert_int_equal(n_idle, 1);
}

static void test_removed_is_left_alone(void **state)
{
    (void)state;
    generations_remove(all, &made[1].entry);
    generations_remove(all, &made[1].entry); /* repeating is harmless */
    assert_int_equal(generations_abort(all, NULL, 0), N - 1);
    assert_aborts(1, 0, 1);
    made[1].entry.arrival = 0;
    generations_add(all, &made[1].entry);
    assert_int_equal(generations_abort(all, NULL, 0), 1);
}

static void test_cut_reaches_each(void **state)
{
    (void)state;
    generations_cut(all);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(made[i].n_cuts, 1);
}

static void test_no_list_keeps_none(void **state)
{
    (void)state;
    generations_add(NULL, &made[0].entry);
    generations_remove(NULL, &made[0].entry);
    assert_int_equal(generations_abort(NULL, NULL, 0), 0);
    assert_int_equal(generations_abort_before(NULL), 0);
    assert_int_equal(generations_arrive(NULL), 0);
    generations_parsed(NULL, 0);
    generations_end(NULL, &made[0].entry);
    assert_int_equal(generations_draw_line(NULL), 0);
    assert_int_equal(generations_n(NULL) + generations_n_before(NULL), 0);
    generations_cut(NULL);
    generations_free(NULL);
}

static void test_list(void **state)
{
    struct generations_row rows[4] = {0};

    (void)state;
    assert_int_equal(generations_list(all, rows, 3), 2 * N); /* the third generation has no room */
    assert_string_equal(rows[0].request_id, "c");
    assert_string_equal(rows[1].request_id, "c");
    assert_int_equal(rows[1].index, 1);
    assert_string_equal(rows[2].request_id, "b");
    assert_int_equal(rows[3].n_spans, 0);
    generations_rows_fini(rows, 3);
    assert_int_equal(generations_list(NULL, rows, 3), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_abort_all_counts_those_that_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(test_list, setup, teardown),
        cmocka_unit_test_setup_teardown(test_abort_by_ids_gives_them_sorted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_last_before_the_line_says_so, setup, teardown),
        cmocka_unit_test_setup_teardown(test_abort_before_the_line, setup, teardown),
        cmocka_unit_test_setup_teardown(test_removed_is_left_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cut_reaches_each, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_list_keeps_none, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
