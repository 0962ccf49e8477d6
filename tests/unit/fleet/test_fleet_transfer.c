/* Which groups are remembered, and by which names. */
#include "fleet/fleet_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int setup(void **state)
{
    struct fleet_control *fc = calloc(1, sizeof *fc);

    assert_non_null(fc);
    mtx_init(&fc->lock, MTX_UPDATES);
    cnd_init(&fc->changed);
    *state = fc;
    return fleet_op_lock(fc, NULL, "a test", &(struct err){0});
}

static int teardown(void **state)
{
    struct fleet_control *fc = *state;

    cnd_fini(&fc->changed);
    mtx_fini(&fc->lock);
    free(fc);
    return 0;
}

static void add(struct fleet_control *fc, const char *name, uint64_t world_size)
{
    struct fleet_group g = {.world_size = world_size};

    (void)snprintf(g.name, sizeof g.name, "%s", name);
    fleet_add_group(fc, &g);
}

static uint64_t world_size_of(struct fleet_control *fc, const char *name)
{
    struct fleet_group g;

    return fleet_get_group(fc, name, &g) ? g.world_size : 0;
}

static void test_fleet_get_group_by_name(void **state)
{
    struct fleet_control *fc = *state;
    struct err e = {0};

    assert_int_equal(world_size_of(fc, NULL), 0);
    assert_int_equal(fleet_check_group_name(fc, "a", &e), 0); /* there is no group at all */
    add(fc, "a", 2);
    add(fc, "", 3);
    assert_int_equal(world_size_of(fc, NULL), 3);
    assert_int_equal(world_size_of(fc, "a"), 2);
    assert_int_equal(world_size_of(fc, SGLANG_GROUP_NAME), 3); /* the name of one without a name */
    assert_int_equal(world_size_of(fc, "b"), 0);
    assert_int_equal(fleet_check_group_name(fc, NULL, &e), 0);
    assert_int_equal(fleet_check_group_name(fc, "a", &e), 0);
    assert_int_equal(fleet_check_group_name(fc, "b", &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_string_equal(e.field, "/group_name");
}

static void test_fleet_forget_group_returns_whether_others_exist(void **state)
{
    struct fleet_control *fc = *state;

    add(fc, "a", 2);
    add(fc, "b", 3);
    assert_true(fleet_forget_group(fc, "a", NULL));
    assert_int_equal(world_size_of(fc, "a"), 0);
    assert_int_equal(world_size_of(fc, "b"), 3);
    assert_true(fleet_forget_group(fc, "c", NULL));
    assert_false(fleet_forget_group(fc, "b", NULL));
}

static void test_fleet_add_group_forgets_the_oldest(void **state)
{
    struct fleet_control *fc = *state;
    char name[16];

    for (int i = 0; i <= FLEET_GROUPS_MAX; i++) {
        (void)snprintf(name, sizeof name, "g%d", i);
        add(fc, name, 1);
    }
    assert_int_equal(world_size_of(fc, "g0"), 0);
    assert_int_equal(world_size_of(fc, "g1"), 1);
    assert_int_equal(world_size_of(fc, name), 1);
    fleet_forget_groups(fc);
    assert_int_equal(world_size_of(fc, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fleet_get_group_by_name, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_forget_group_returns_whether_others_exist, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fleet_add_group_forgets_the_oldest, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
