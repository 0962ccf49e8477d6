/* Memory of replies that clients have not read yet. */
#include "control/unread.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* What a reply holds already counts: it would not fit on an idle server either. */
static void test_a_reply_that_never_fits_is_too_large(void **state)
{
    struct unread_body *b = NULL;
    uint64_t held = 0;
    struct err e = {0};

    (void)state;
    assert_int_equal(unread_take(100, &held, 60, &e), 0);
    assert_int_equal(unread_body_new(&b, 100, held, 50, &e), -1);
    assert_int_equal(e.code, ERR_TOO_LARGE);
    err_clear(&e);
    assert_int_equal(unread_body_new(&b, 100, 0, 50, &e), -1); /* of another reply */
    assert_int_equal(e.code, ERR_OVERLOADED);
    err_clear(&e);
    assert_int_equal(unread_take(100, &held, 50, &e), -1);
    assert_int_equal(e.code, ERR_TOO_LARGE);
    assert_int_equal(held, 60);
    err_clear(&e);
    assert_int_equal(unread_body_new(&b, 100, held, 40, &e), 0);
    unread_body_free(b);
    unread_give(&held);
    assert_int_equal(unread_check(100, 100, &e), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_reply_that_never_fits_is_too_large),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
