/* The moves of a join: a walk through every state that can be reached. */
#include "transport/nccl/nccl_join_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* A letter for each state, in the order of enum join_state; '-' is no move. */
static const char letters[JOIN_STATES + 1] = "ctjelo";

/* From each state. */
static const char *const rows[JOIN_EVENTS] = {
    [JOIN_ON_COUNTED] = "t--e--", [JOIN_ON_JOINED] = "jj-e--", [JOIN_ON_END] = "eee---",
    [JOIN_ON_CLOSE] = "---l--",   [JOIN_ON_OVER] = "---oo-",
};

static void walk(enum join_state from, unsigned *reached)
{
    if ((*reached & 1u << from) != 0)
        return;
    *reached |= 1u << from;
    for (int event = 0; event < JOIN_EVENTS; event++) {
        enum join_state to = from;

        if (rows[event][from] == '-')
            continue;
        join_move(&to, (enum join_event)event);
        assert_int_equal(letters[to], rows[event][from]);
        assert_true(to >= from); /* never back: a join is never used again */
        if (join_has_ended(from))
            assert_true(join_has_ended(to));
        walk(to, reached);
    }
}

/* Every state is reached, and from every state but the last the join can come to its end. */
static void test_every_join_comes_to_its_end(void **state)
{
    unsigned reached = 0;

    (void)state;
    walk(JOIN_CONNECTING, &reached);
    assert_int_equal(reached, (1u << JOIN_STATES) - 1);
    for (int s = JOIN_CONNECTING; s < JOIN_OVER; s++) {
        enum join_state at = (enum join_state)s;

        if (!join_has_ended(at))
            join_move(&at, JOIN_ON_END);
        join_move(&at, JOIN_ON_OVER);
        assert_int_equal(at, JOIN_OVER);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_join_comes_to_its_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
