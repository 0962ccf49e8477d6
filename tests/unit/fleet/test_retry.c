/* The delays between attempts. */
#include "fleet/members/retry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static uint64_t now_us;

uint64_t __wrap_clock_now_us(void);
uint64_t __wrap_clock_now_us(void)
{
    return now_us;
}

uint64_t __wrap_clock_after_us(uint64_t delay_us);
uint64_t __wrap_clock_after_us(uint64_t delay_us)
{
    return now_us + delay_us;
}

static void test_delays_double_up_to_the_limit(void **state)
{
    const uint64_t delays_us[] = {500, 1000, 2000, 3000, 3000};
    struct retry r = {0};

    (void)state;
    now_us = 1;
    assert_true(retry_is_due(&r));
    for (size_t i = 0; i < sizeof delays_us / sizeof delays_us[0]; i++) {
        retry_failed(&r, 500, 3000);
        now_us += delays_us[i] - 1;
        assert_false(retry_is_due(&r));
        now_us++;
        assert_true(retry_is_due(&r));
    }
}

static void test_success_begins_anew(void **state)
{
    struct retry r = {0};

    (void)state;
    now_us = 1;
    retry_failed(&r, 500, 3000);
    retry_failed(&r, 500, 3000);
    retry_clear(&r);
    assert_true(retry_is_due(&r));
    retry_failed(&r, 500, 3000);
    now_us += 500;
    assert_true(retry_is_due(&r));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_delays_double_up_to_the_limit),
        cmocka_unit_test(test_success_begins_anew),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
