/* control/weight_transfer of a server that has no group. */
#include "control/weight_transfer.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static void left(void *arg)
{
    (void)arg;
    fail_msg("there is no group that could be left");
}

static void test_without_a_group(void **state)
{
    const struct nccl_join_cfg invitation = {0};
    const struct weight_transfer_cfg cfg = {0};
    const struct nccl_packing packing = {0};
    struct weight_transfer *t;
    struct nccl_join_info info;
    struct err e = {0};

    (void)state;
    assert_int_equal(weight_transfer_new(&t, &cfg, &e), 0);
    assert_false(weight_transfer_info(t, &info));
    assert_string_equal(weight_transfer_state(t), "none");
    assert_int_equal(weight_transfer_leave(t, "any", left, NULL, &e), 0);
    weight_transfer_doubt(t, NULL, clock_now_us(), &e);
    assert_string_equal(e.msg, "");
    weight_transfer_stop(t);
    weight_transfer_stop(t);
    assert_int_equal(weight_transfer_join(t, &invitation, &packing, 1, &e), -1);
    assert_int_equal(e.code, ERR_DRAINING);
    assert_int_equal(weight_transfer_leave(t, NULL, left, NULL, &e), 0);
    weight_transfer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_a_group),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
