/* control/weight_transfer: the table of states, and a server that has no group. */
#include "control/weight_transfer.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* A letter for each state, in the order of enum transfer_state; '-' is no move. */
static const char letters[TRANSFER_STATES + 1] = "ngls";

static const char *const rows[TRANSFER_EVENTS] = {
    [TRANSFER_ON_JOIN] = "ggg-",
    [TRANSFER_ON_LEAVE] = "-l--",
    [TRANSFER_ON_STOP] = "ssss",
};

static void test_weight_transfer_next_is_the_table(void **state)
{
    (void)state;
    for (int event = 0; event < TRANSFER_EVENTS; event++)
        for (int from = 0; from < TRANSFER_STATES; from++) {
            enum transfer_state to;
            bool moves = weight_transfer_next((enum transfer_state)from, (enum transfer_event)event,
                                              &to);

            assert_int_equal(moves ? letters[to] : '-', rows[event][from]);
        }
}

static void walk(enum transfer_state from, unsigned *reached)
{
    if ((*reached & 1u << from) != 0)
        return;
    *reached |= 1u << from;
    for (int event = 0; event < TRANSFER_EVENTS; event++) {
        enum transfer_state to;

        if (weight_transfer_next(from, (enum transfer_event)event, &to)) {
            assert_true(from != TRANSFER_STOPPED || to == TRANSFER_STOPPED);
            walk(to, reached);
        }
    }
}

static void test_every_state_is_reached(void **state)
{
    unsigned reached = 0;

    (void)state;
    walk(TRANSFER_NONE, &reached);
    assert_int_equal(reached, (1u << TRANSFER_STATES) - 1);
}

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
    assert_int_equal(weight_transfer_join(t, &invitation, &packing, &e), -1);
    assert_int_equal(e.code, ERR_DRAINING);
    assert_int_equal(weight_transfer_leave(t, NULL, left, NULL, &e), 0);
    weight_transfer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weight_transfer_next_is_the_table),
        cmocka_unit_test(test_every_state_is_reached),
        cmocka_unit_test(test_without_a_group),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
