/* The states of one engine's part in an update: the whole table as it is meant, against the rows.
 */
#include "fleet/update/fleet_part.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* A letter for each state, in the order of enum part_state; '-' is no move. */
static const char letters[PART_STATES + 1] = "crdfoxs";

struct row {
    const char *event;
    const char *overwrites, *two_phase; /* from each state */
};

static const struct row rows[PART_EVENTS] = {
    [PART_ON_SEND] = {"send", "r-d----", "-------"},
    [PART_ON_ACCEPTED] = {"taken", "-dd----", "-------"},
    [PART_ON_REFUSED] = {"not taken", "-cd----", "-------"},
    [PART_ON_DOUBT] = {"doubt", "ddd-xx-", "-------"},
    [PART_ON_FAILURE] = {"failure", "oxxxox-", "o--oo--"},
    [PART_ON_FINISH] = {"finish", "--f----", "f------"},
    [PART_ON_RESUME_FAILED] = {"no resume", "o--s---", "-------"},
};

static char move_of(bool two_phase, size_t from, size_t event)
{
    enum part_state to;

    return part_transition(two_phase, (enum part_state)from, (enum part_event)event, &to)
               ? letters[to]
               : '-';
}

static void test_part_transition_equals_the_table(void **state)
{
    (void)state;
    for (size_t event = 0; event < PART_EVENTS; event++)
        for (size_t from = 0; from < PART_STATES; from++) {
            char overwrites = move_of(false, from, event), two_phase = move_of(true, from, event);

            if (overwrites != rows[event].overwrites[from] ||
                two_phase != rows[event].two_phase[from])
                fail_msg("%s from '%c': '%c' and '%c'", rows[event].event, letters[from],
                         overwrites, two_phase);
        }
}

/* Part of a model never counts as the old version: a part that may have changed becomes unchanged
 * only if its first tensors were not taken, and a part that is out stays out. */
static void test_part_transition_keeps_changed_parts_changed(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++)
        for (int from = 0; from < PART_STATES; from++)
            for (int event = 0; event < PART_EVENTS; event++) {
                struct fleet_part a = {.state = (enum part_state)from}, b = {0};

                if (!part_transition(kind == 1, a.state, (enum part_event)event, &b.state))
                    continue;
                if (kind == 0 && !part_is_unchanged(&a) && part_is_unchanged(&b)) {
                    assert_int_equal(from, PART_RECEIVING);
                    assert_int_equal(event, PART_ON_REFUSED);
                }
                if (!part_takes_part(&a))
                    assert_false(part_takes_part(&b));
            }
}

/* A part that had tensors and is then rejected is not clean. */
static void test_part_apply_keeps_taken_tensors(void **state)
{
    static const enum part_event events[] = {PART_ON_SEND,     PART_ON_REFUSED, PART_ON_SEND,
                                             PART_ON_ACCEPTED, PART_ON_SEND,    PART_ON_REFUSED,
                                             PART_ON_FAILURE};
    static const char after[] = "rcrdddx";
    struct fleet_part p = {0};

    (void)state;
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        part_apply(&p, events[i]);
        assert_int_equal(letters[p.state], after[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_part_transition_equals_the_table),
        cmocka_unit_test(test_part_transition_keeps_changed_parts_changed),
        cmocka_unit_test(test_part_apply_keeps_taken_tensors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
