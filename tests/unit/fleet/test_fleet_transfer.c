/* Which groups are remembered, and by which names. */
#include "fleet/api/api_json.h"
#include "fleet/calls/fleet_priv.h"
#include "fleet/update/fleet_update_priv.h"

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

static void test_fleet_require_group_by_its_own_mark(void **state)
{
    struct fleet_control *fc = *state;
    struct fleet_group g;
    struct err e = {0};

    assert_int_equal(fleet_require_group(fc, NULL, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    err_clear(&e);
    add(fc, "a", 2);
    add(fc, "", 3);
    assert_int_equal(fleet_require_group(fc, NULL, &e), 0);
    fleet_any_group_locked(fc, NULL)->left = true;
    for (int named = 0; named < 2; named++) { /* the latest is not the one before it */
        assert_int_equal(fleet_require_group(fc, named ? SGLANG_GROUP_NAME : NULL, &e), -1);
        assert_int_equal(e.code, ERR_GROUP_LEFT);
        err_clear(&e);
    }
    assert_int_equal(fleet_require_group(fc, "a", &e), 0);
    assert_int_equal(world_size_of(fc, SGLANG_GROUP_NAME), 0);
    assert_int_equal(world_size_of(fc, NULL), 2);
    assert_int_equal(fleet_require_group(fc, "b", &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_true(fleet_forget_group(fc, NULL, &g)); /* the mark too */
    assert_true(g.left && g.world_size == 3);
    assert_int_equal(fleet_require_group(fc, NULL, &e), 0);
}

static struct api_object *list_of(const char *member, const char *value)
{
    json_t *body = json_pack("{s:s, s:i}", member, value, "other", 1);
    struct api_object *list = api_columns_of(&(struct api_object){.json = body});

    json_decref(body);
    return list;
}

static void is_list(struct api_object *list, const char *member, const char *value)
{
    const json_t *json = api_object_json(list);

    assert_int_equal(json_object_size(json), 1);
    assert_string_equal(json_string_value(json_object_get(json, member)), value);
    api_object_unref(list);
}

/* What the last update of a group was by; without memory for it, nothing. */
static void test_fleet_keep_list_of_its_group(void **state)
{
    struct fleet_control *fc = *state;
    struct api_object *list = list_of("names", "a"), *plan = list_of("plan_id", "p");

    add(fc, "a", 2);
    add(fc, "b", 3);
    fleet_any_group_locked(fc, "a")->began_us = 7;
    fleet_any_group_locked(fc, "b")->began_us = 8;
    fleet_keep_list(fc, list, 7);
    fleet_keep_list(fc, list, 0); /* not by a group */
    assert_null(fleet_group_list(fc, "b"));
    fleet_keep_list(fc, plan, 8);
    api_object_unref(list);
    api_object_unref(plan);
    is_list(fleet_group_list(fc, "a"), "names", "a");
    is_list(fleet_group_list(fc, "b"), "plan_id", "p");
    fleet_keep_list(fc, NULL, 7);
    assert_null(fleet_group_list(fc, "a"));
    fleet_forget_groups(fc);
}

/* Sessions that ended are kept, and lists are long. */
static void test_fleet_close_session_drops_its_list(void **state)
{
    struct fleet_control *fc = *state;
    struct fleet_session *s;
    struct err e = {0};

    assert_int_equal(fleet_session_new(&s, 1, &e), 0);
    s->list = list_of("names", "a");
    fleet_close_session(fc, s, &e);
    assert_null(s->list);
    fleet_session_unref(s);
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
        cmocka_unit_test_setup_teardown(test_fleet_require_group_by_its_own_mark, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_keep_list_of_its_group, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_close_session_drops_its_list, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fleet_add_group_forgets_the_oldest, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
