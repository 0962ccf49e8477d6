/* The moves of a join, and those of a group: the whole tables, as they are meant, against the rows;
 * and a walk through every state that can be reached. */
#include "transport/nccl/nccl_group.h"
#include "transport/nccl/nccl_join_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* A letter for each state, in the order of enum join_state; '-' is no move. */
static const char letters[JOIN_STATES + 1] = "ctjelo";

static const struct {
    const char *event, *to; /* from each state */
} rows[JOIN_EVENTS] = {
    [JOIN_ON_COUNTED] = {"counted", "t--e--"}, [JOIN_ON_JOINED] = {"joined", "jj-e--"},
    [JOIN_ON_END] = {"end", "eee---"},         [JOIN_ON_CLOSE] = {"close", "---l--"},
    [JOIN_ON_OVER] = {"over", "---oo-"},
};

static void test_join_next_is_the_table(void **state)
{
    (void)state;
    for (int event = 0; event < JOIN_EVENTS; event++)
        for (int from = 0; from < JOIN_STATES; from++) {
            enum join_state to;
            char move = join_next((enum join_state)from, (enum join_event)event, &to) ? letters[to]
                                                                                      : '-';

            if (move != rows[event].to[from])
                fail_msg("%s from '%c': '%c'", rows[event].event, letters[from], move);
        }
}

static void walk(enum join_state from, unsigned *reached)
{
    if ((*reached & 1u << from) != 0)
        return;
    *reached |= 1u << from;
    for (int event = 0; event < JOIN_EVENTS; event++) {
        enum join_state to = from, moved;

        if (!join_next(from, (enum join_event)event, &to))
            continue;
        assert_true(to >= from); /* never back: a join is never used again */
        if (join_has_ended(from))
            assert_true(join_has_ended(to));
        moved = from;
        join_move(&moved, (enum join_event)event);
        assert_int_equal(moved, to);
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

static void test_nccl_group_next_is_the_table(void **state)
{
    static const char *const to[] = {
        [NCCL_GROUP_JOINING] = ".yy.",
        [NCCL_GROUP_JOINED] = "..y.",
        [NCCL_GROUP_FAILED] = "...y",
        [NCCL_GROUP_STUCK] = "....",
    };

    (void)state;
    for (int i = NCCL_GROUP_JOINING; i <= NCCL_GROUP_STUCK; i++)
        for (int k = NCCL_GROUP_JOINING; k <= NCCL_GROUP_STUCK; k++)
            assert_int_equal(nccl_group_next((enum nccl_group_state)i, (enum nccl_group_state)k),
                             to[i][k] == 'y');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join_next_is_the_table),
        cmocka_unit_test(test_every_join_comes_to_its_end),
        cmocka_unit_test(test_nccl_group_next_is_the_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
