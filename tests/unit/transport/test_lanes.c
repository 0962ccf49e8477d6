/* transport/lanes: which answers are the range that was asked for. */
#include "transport/lanes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static void test_lanes_check_range(void **state)
{
    static const struct {
        int status;
        const char *range;
        int64_t content_length;
        uint64_t from, to;
        bool right;
    } cases[] = {
        {206, "bytes 4-9/20", 6, 4, 10, true},
        {206, "bytes 4-9/20", -1, 4, 10, true},
        {206, "bytes 4-19/20", 16, 4, UINT64_MAX, true},
        {200, "bytes 4-9/20", 6, 4, 10, false},
        {206, "bytes 4-9/20", 7, 4, 10, false},
        {206, "bytes 5-9/20", 5, 4, 10, false},
        {206, "bytes 4-8/20", 5, 4, 10, false},
        {206, "bytes 4-9/9", 6, 4, 10, false},
        {206, "bytes 4-9/*", 6, 4, 10, false},
        {206, "bytes 04-9/20", 6, 4, 10, false},
        {206, "bytes 4-9/20, 12-13/20", 6, 4, 10, false},
        {206, "bytes 20-19/20", -1, 20, UINT64_MAX, false},
        {206, "bytes 21-19/20", -1, 21, UINT64_MAX, false},
        {206, "bytes 4-18446744073709551615/18446744073709551615", -1, 4, UINT64_MAX, false},
        {206, "", -1, 4, 10, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_head h = {.status = cases[i].status, .content_length = cases[i].content_length};
        struct lane_ask ask = {.from = cases[i].from, .to = cases[i].to};
        uint64_t total = 0;
        struct err e = {0};

        (void)snprintf(h.content_range, sizeof h.content_range, "%s", cases[i].range);
        if ((lanes_check_range(&h, &ask, &total, &e) == 0) != cases[i].right)
            fail_msg("%s", cases[i].range);
        assert_int_equal(e.code, cases[i].right ? ERR_NONE : ERR_UNREADABLE);
        if (cases[i].right)
            assert_int_equal(total, 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lanes_check_range)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
