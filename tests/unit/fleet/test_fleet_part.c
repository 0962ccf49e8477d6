/* What one engine's part in an update says of its weights: part of a model never counts as the old
 * version. */
#include "fleet/update/fleet_part.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* Steps: s(end), r (it took none), d(rop), f(inish), ?: a request that may still be executed. After
 * each: the weights (b as before, t torn, n new), a capital if the part is out. */
static const struct row {
    const char *steps, *overwrites, *two_phase;
} rows[] = {
    {"srsf", "tbtn", "bbbn"}, /* only the first tensors can be refused without a trace */
    {"ssrd", "tttT", "bbbB"}, {"srd", "tbB", "bbB"}, {"d", "B", "B"},
    {"sfd", "tnT", "bnN"}, /* it does not serve any more what it finished with */
    {"?srd", "tttT", ""},     {"d?", "BT", ""},      {"sd?", "tTT", ""},
};

static void step(struct fleet_part *p, char which)
{
    struct err why = {0};

    if (which == 's')
        part_send(p);
    else if (which == 'r')
        part_not_taken(p);
    else if (which == 'f')
        part_finish(p);
    else if (which == 'd')
        part_drop(p, FLEET_REFUSED, 500, &why);
    else
        p->weights = PART_TORN;
}

static void check_row(const struct row *row, const char *after, bool two_phase)
{
    struct fleet_part p = {.two_phase = two_phase};

    for (size_t i = 0; after[i] != '\0'; i++) {
        step(&p, row->steps[i]);
        if ((p.out ? "BTN" : "btn")[p.weights] != after[i])
            fail_msg("%s, kind %d, after step %zu", row->steps, (int)two_phase, i);
        assert_int_equal(part_is_unchanged(&p), after[i] == 'b' || after[i] == 'B');
        assert_int_equal(part_has_finished(&p), after[i] == 'n');
    }
}

static void test_part_weights_follow_the_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_row(&rows[i], rows[i].overwrites, false);
        check_row(&rows[i], rows[i].two_phase, true);
    }
}

static void test_part_drop_keeps_the_reason(void **state)
{
    struct fleet_part p = {0};
    struct err why = {0};

    (void)state;
    (void)err_set(&why, ERR_UPSTREAM, "", "no");
    part_drop(&p, FLEET_REFUSED, 500, &why);
    assert_int_equal(p.outcome, FLEET_REFUSED);
    assert_int_equal(p.status, 500);
    assert_string_equal(p.why.msg, "no");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_part_weights_follow_the_steps),
        cmocka_unit_test(test_part_drop_keeps_the_reason),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
