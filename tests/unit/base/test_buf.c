/* The growing buffer. */
#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static void test_appends_add_up(void **state)
{
    struct buf b = {0};
    size_t want = 0;
    char *all;

    (void)state;
    for (int i = 0; i < 5000; i++) {
        buf_printf(&b, "%d,", i);
        want += i < 10 ? 2 : i < 100 ? 3 : i < 1000 ? 4 : 5;
    }
    buf_append(&b, "a\0b", 3);
    buf_puts(&b, "end");
    assert_false(b.failed);
    assert_int_equal(b.len, want + 6);
    assert_int_equal(b.data[b.len], '\0');
    all = buf_take(&b, &want);
    assert_memory_equal(all, "0,1,2,", 6);
    assert_memory_equal(all + want - 6, "a\0bend", 7);
    assert_int_equal(b.len, 0);
    assert_null(b.data);
    free(all);
}

static void test_take_of_nothing_is_a_string(void **state)
{
    struct buf b = {0};
    size_t len = 7;
    char *text = buf_take(&b, &len);

    (void)state;
    assert_int_equal(len, 0);
    assert_string_equal(text, "");
    free(text);
    buf_fini(&b);
}

static void test_failure_sticks(void **state)
{
    struct buf b = {0};
    size_t len;

    (void)state;
    buf_puts(&b, "x");
    buf_append(&b, "", SIZE_MAX / 2 + 1); /* refused before a byte is read */
    assert_true(b.failed);
    buf_puts(&b, "y");
    assert_int_equal(b.len, 1);
    assert_null(buf_take(&b, &len));
    assert_null(b.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_appends_add_up),
        cmocka_unit_test(test_take_of_nothing_is_a_string),
        cmocka_unit_test(test_failure_sticks),
    };

    return cmocka_run_group_tests_name("buf", tests, NULL, NULL);
}
