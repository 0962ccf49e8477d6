/* Which engine has which adapter, which one it gets next, and which one keeps it out of rotation.
 */
#include "fleet/members/fleet_adapters.h"
#include "tests/unit/fleet/upstream_fleet_world.h"

enum took { TOOK, REFUSES, UNSENT, LOSES, NOT_ASKED };

static struct fleet *three(void)
{
    return fleet_alive(3);
}

static void send_op(struct fleet *f, size_t i, enum api_op op, const struct api_args *args,
                    struct have_before *before)
{
    fleet_doubt(f, engine_at(f, i), op, args, before);
}

static void answer(struct fleet *f, size_t i, enum api_op op, const struct api_args *args,
                   const struct have_before *before, enum took took)
{
    (void)fleet_answer(f, engine_at(f, i), op, args, before,
                       took == TOOK      ? HAVE_GOOD
                       : took == REFUSES ? HAVE_REFUSED
                       : took == UNSENT  ? HAVE_UNSENT
                                         : HAVE_LOST,
                       NULL);
}

static void ask(struct fleet *f, size_t i, enum api_op op, const struct api_args *args,
                enum took took)
{
    struct have_before before;

    if (took == NOT_ASKED)
        return;
    send_op(f, i, op, args, &before);
    answer(f, i, op, args, &before, took);
}

/* Until the next one. */
static struct api_args asked;

static void begin(struct fleet *f, const char *name)
{
    struct err e = {0};

    asked = (struct api_args){.name = name};
    assert_int_equal(fleet_adapter_begin(f, &asked, &e), 0);
}

static void ask_all(struct fleet *f, enum api_op op, const char *name, const enum took took[3])
{
    begin(f, name);
    for (size_t i = 0; i < 3; i++)
        ask(f, i, op, &asked, took[i]);
}

#define TO(a, b, c) ((const enum took[3]){(a), (b), (c)})

/* A client's load. @again  it can be loaded again */
static uint64_t load(struct fleet *f, const char *name, bool again, const enum took took[3])
{
    ask_all(f, API_LOAD_ADAPTER, name, took);
    return fleet_adapter_end_loaded(f, NULL, again ? strdup("{}") : NULL, 1);
}

static uint64_t unload(struct fleet *f, const char *name, const enum took took[3])
{
    ask_all(f, API_UNLOAD_ADAPTER, name, took);
    return fleet_adapter_end_unloaded(f);
}

/* A request to one engine, until the next one. */
struct task {
    struct api_args args;
    char name[32];
    enum api_op op;
    struct have_before before;
};

/* The engine's next load or unload is sent. */
static void next(struct fleet *f, size_t i, const char *name, struct task *out)
{
    struct fleet_adapter_task t;

    assert_int_equal(fleet_adapter_next(f, engine_at(f, i), &t), 1);
    assert_string_equal(t.name, name);
    (void)snprintf(out->name, sizeof out->name, "%s", name);
    out->args = (struct api_args){.name = out->name, .number = t.number, .slot = t.slot};
    out->op = t.load != NULL ? API_LOAD_ADAPTER : API_UNLOAD_ADAPTER;
    send_op(f, i, out->op, &out->args, &out->before);
    fleet_adapter_task_fini(&t);
}

static void end_task(struct fleet *f, size_t i, const struct task *t, enum took took)
{
    answer(f, i, t->op, &t->args, &t->before, took);
}

static enum api_op task(struct fleet *f, size_t i, const char *name, enum took took)
{
    struct task t;

    next(f, i, name, &t);
    end_task(f, i, &t, took);
    return t.op;
}

static bool may_have(struct fleet *f, size_t i, const char *name)
{
    for (uint32_t slot = 0; slot < f->adapters.n; slot++)
        if (f->adapters.list[slot] != NULL && strcmp(f->adapters.list[slot]->name, name) == 0)
            return fleet_adapter_may_have(f, engine_at(f, i), slot);
    return false;
}

static bool has_task(struct fleet *f, size_t i)
{
    struct fleet_adapter_task t;
    int n = fleet_adapter_next(f, engine_at(f, i), &t);

    fleet_adapter_task_fini(&t);
    return n == 1;
}

/* @certain  it names its process */
static void restart(struct fleet *f, size_t i, bool certain)
{
    struct upstream *u = engine_at(f, i);

    fleet_change_begin(f);
    fleet_reset_locked(u, certain);
    fleet_change_end(f);
}

static bool lacks(struct fleet *f, size_t i)
{
    size_t n;
    struct fleet_adapter_entry *list = fleet_adapter_list(f, engine_at(f, i), &n);

    fleet_adapter_list_free(list, n);
    return n > 0;
}

static void assert_blocked(struct fleet *f, bool a, bool b, bool c)
{
    const bool blocked[] = {a, b, c};

    for (size_t i = 0; i < 3; i++)
        assert_int_equal(fleet_has_needs(engine_at(f, i)), !blocked[i]);
}

static void assert_none_known(struct fleet *f)
{
    assert_int_equal(f->adapters.n, 0);
    fleet_free(f);
}

static void test_adapters_are_lost_with_the_process(void **state)
{
    struct fleet *f = three();

    (void)state;
    assert_int_equal(load(f, "x", true, TO(TOOK, TOOK, TOOK)), 1);
    assert_blocked(f, false, false, false);
    assert_false(has_task(f, 1));
    report_ok(f, 1, "p2", "");
    assert_blocked(f, false, true, false);
    assert_true(lacks(f, 1) && !lacks(f, 0));
    assert_int_equal(task(f, 1, "x", TOOK), API_LOAD_ADAPTER);
    assert_blocked(f, false, false, false);
    report_ok(f, 1, "p2", ""); /* the same */
    assert_false(has_task(f, 1));
    fleet_free(f);
}

/* A client's request of the same name beside it: which came last is unknown. */
static void test_a_load_beside_a_load_is_loaded_again(void **state)
{
    for (int first = 0; first < 2; first++) {
        struct fleet *f = three();
        struct have_before clients;
        struct task ours;

        (void)state;
        (void)load(f, "x", true, TO(TOOK, LOSES, TOOK));
        next(f, 1, "x", &ours);
        begin(f, "x");
        send_op(f, 1, API_LOAD_ADAPTER, &asked, &clients);
        if (first)
            end_task(f, 1, &ours, TOOK);
        answer(f, 1, API_LOAD_ADAPTER, &asked, &clients, TOOK);
        if (!first)
            end_task(f, 1, &ours, TOOK);
        fleet_adapter_end_kept(f);
        assert_blocked(f, false, true, false);
        (void)task(f, 1, "x", TOOK);
        assert_blocked(f, false, false, false);
        fleet_free(f);
    }
}

static void test_without_its_request_it_waits_for_the_trainer(void **state)
{
    struct fleet *f = three();

    (void)state;
    (void)load(f, "x", false, TO(TOOK, TOOK, TOOK));
    restart(f, 1, true);
    assert_blocked(f, false, true, false);
    assert_false(has_task(f, 1));
    assert_int_equal(load(f, "x", false, TO(TOOK, TOOK, TOOK)), 2);
    assert_blocked(f, false, false, false);
    restart(f, 0, true);
    restart(f, 1, true);
    assert_blocked(f, true, true, false);
    restart(f, 2, true); /* no engine has it any more: all are alike */
    assert_blocked(f, false, false, false);
    assert_true(lacks(f, 2));
    fleet_free(f);
}

/* One on which the load failed may have the revision before, and must not serve it when no engine
 * has this one any more: it is unloaded there. */
static void test_without_its_request_an_old_one_is_unloaded(void **state)
{
    struct fleet *f = three();

    (void)state;
    (void)load(f, "x", false, TO(TOOK, LOSES, NOT_ASKED));
    assert_blocked(f, false, true, true);
    assert_false(has_task(f, 1)); /* a trainer may load it again */
    restart(f, 0, true);
    assert_blocked(f, false, true, false);
    assert_false(has_task(f, 0));
    assert_int_equal(task(f, 1, "x", TOOK), API_UNLOAD_ADAPTER);
    assert_blocked(f, false, false, false);
    assert_true(fleet_adapter_exists(f, "x"));
    fleet_free(f);
}

static void refuse(struct fleet *f, size_t i, const char *name)
{
    assert_int_equal(task(f, i, name, REFUSES), API_LOAD_ADAPTER);
    assert_false(may_have(f, i, name));
}

static void test_refused_by_all_keeps_none_out(void **state)
{
    struct fleet *f = three();
    struct task again;

    (void)state;
    (void)load(f, "x", true, TO(TOOK, REFUSES, NOT_ASKED));
    (void)load(f, "y", true, TO(TOOK, NOT_ASKED, TOOK));
    (void)task(f, 1, "y", TOOK); /* one that it has not refused comes first */
    refuse(f, 1, "x");
    assert_true(has_task(f, 1));
    assert_blocked(f, false, true, true);
    (void)task(f, 2, "x", UNSENT);
    restart(f, 0, true);
    assert_blocked(f, true, false, true); /* the third was not asked: it may take it */
    next(f, 1, "x", &again);              /* it is asked again, and serves meanwhile */
    assert_blocked(f, true, false, true);
    end_task(f, 1, &again, REFUSES);
    assert_blocked(f, true, false, true);
    next(f, 1, "x", &again);
    end_task(f, 1, &again, LOSES); /* it may have it */
    assert_blocked(f, true, true, true);
    restart(f, 1, true);
    assert_blocked(f, true, true, true); /* another process may take it */
    refuse(f, 1, "x");
    (void)task(f, 1, "y", TOOK);
    assert_blocked(f, true, false, true);
    (void)task(f, 2, "x", TOOK);
    assert_blocked(f, true, true, false);
    fleet_free(f);
}

static void test_unloaded_where_it_may_still_be(void **state)
{
    struct fleet *f = three();

    (void)state;
    (void)load(f, "x", true, TO(TOOK, TOOK, NOT_ASKED));
    assert_int_equal(unload(f, "x", TO(TOOK, LOSES, TOOK)), 1);
    assert_false(fleet_adapter_exists(f, "x"));
    assert_blocked(f, false, true, false);
    assert_false(lacks(f, 1));
    assert_int_equal(task(f, 1, "x", LOSES), API_UNLOAD_ADAPTER);
    assert_blocked(f, false, true, false);
    (void)task(f, 1, "x", TOOK);
    assert_blocked(f, false, false, false);
    assert_int_equal(f->adapters.n, 0);
    assert_int_equal(unload(f, "y", TO(TOOK, TOOK, TOOK)), 0);
    assert_int_equal(f->adapters.n, 0);
    assert_int_equal(unload(f, "y", TO(LOSES, TOOK, TOOK)), 0);
    assert_int_equal(f->adapters.n, 1);
    restart(f, 0, true); /* it was lost with its process */
    assert_none_known(f);
}

/* Results of an older load, of an older process, and of an adapter that was unloaded meanwhile. A
 * revision counts from 1 again after an unload, so it is the load that is compared. */
static void test_late_results_are_not_trusted(void **state)
{
    struct fleet *f = three();
    struct task late;

    (void)state;
    (void)load(f, "x", true, TO(TOOK, REFUSES, TOOK));
    next(f, 1, "x", &late);
    assert_int_equal(load(f, "x", true, TO(TOOK, NOT_ASKED, TOOK)), 2);
    assert_blocked(f, false, true, false);
    end_task(f, 1, &late, TOOK);
    assert_blocked(f, false, true, false);
    assert_true(may_have(f, 1, "x"));
    next(f, 1, "x", &late);
    restart(f, 1, true);
    end_task(f, 1, &late, TOOK);
    assert_blocked(f, false, true, false);
    next(f, 1, "x", &late);
    assert_int_equal(unload(f, "x", TO(TOOK, NOT_ASKED, TOOK)), 2);
    assert_int_equal(f->adapters.n, 1);
    end_task(f, 1, &late, TOOK);
    assert_blocked(f, false, true, false);
    assert_int_equal(load(f, "x", true, TO(TOOK, NOT_ASKED, TOOK)), 1);
    assert_blocked(f, false, true, false);
    (void)unload(f, "x", TO(TOOK, NOT_ASKED, TOOK));
    assert_int_equal(task(f, 1, "x", TOOK), API_UNLOAD_ADAPTER);
    assert_none_known(f);
}

/* What the trainer's request changes keeps no engine out that had what it needed, and none in that
 * had not. */
static void test_a_load_for_all_leaves_rotation_as_it_is(void **state)
{
    struct fleet *f = three();

    (void)state;
    begin(f, "x"); /* a new one */
    ask(f, 0, API_LOAD_ADAPTER, &asked, TOOK);
    ask(f, 1, API_LOAD_ADAPTER, &asked, LOSES);
    assert_blocked(f, false, false, false);
    (void)fleet_adapter_end_unloaded(f); /* it is given up */
    assert_blocked(f, true, true, false);
    (void)task(f, 0, "x", TOOK);
    (void)task(f, 1, "x", TOOK);
    (void)load(f, "x", true, TO(TOOK, REFUSES, TOOK));
    assert_blocked(f, false, true, false);
    begin(f, "x"); /* another one in its place */
    for (size_t i = 0; i < 3; i++)
        ask(f, i, API_LOAD_ADAPTER, &asked, i == 2 ? REFUSES : TOOK);
    assert_blocked(f, false, true, false);
    assert_false(has_task(f, 1) || has_task(f, 2));
    assert_true(lacks(f, 1) && !lacks(f, 2));
    restart(f, 0, true); /* which loses it, whatever is loaded now */
    assert_blocked(f, true, true, false);
    (void)fleet_adapter_end_loaded(f, NULL, strdup("{}"), 1);
    assert_blocked(f, true, false, true);
    fleet_free(f);
}

static bool took_files(struct fleet *f, size_t i, const struct api_args *args, const char *digest)
{
    struct have_before before;

    send_op(f, i, API_LOAD_ADAPTER, args, &before);
    return fleet_answer(f, engine_at(f, i), API_LOAD_ADAPTER, args, &before, HAVE_GOOD, digest);
}

/* The first engine that reports a digest decides; one with other files may serve any. What an
 * earlier load brought tells nothing of a later one. */
static void test_other_files_are_not_the_adapter(void **state)
{
    struct fleet *f = three();
    struct api_args before;

    (void)state;
    begin(f, "x");
    assert_true(took_files(f, 0, &asked, NULL) && took_files(f, 1, &asked, "a"));
    assert_false(took_files(f, 2, &asked, "b"));
    (void)fleet_adapter_end_loaded(f, NULL, strdup("{}"), 1);
    assert_blocked(f, false, false, true);
    assert_false(took_files(f, 2, &asked, "b")); /* not for a moment */
    assert_blocked(f, false, false, true);
    assert_true(took_files(f, 2, &asked, "a"));
    assert_blocked(f, false, false, false);
    before = asked;
    begin(f, "x");
    assert_true(took_files(f, 0, &asked, "c"));
    assert_true(took_files(f, 2, &before, "a")); /* it was sent before */
    assert_true(took_files(f, 1, &asked, "c"));
    (void)fleet_adapter_end_loaded(f, NULL, strdup("{}"), 1);
    assert_blocked(f, false, false, true);
    fleet_free(f);
}

/* If every engine had to unload it before, and none took the other, it is gone. */
static void test_a_load_that_no_engine_took(void **state)
{
    struct fleet *f = three();

    (void)state;
    (void)load(f, "x", true, TO(TOOK, TOOK, TOOK));
    ask_all(f, API_LOAD_ADAPTER, "x", TO(REFUSES, REFUSES, REFUSES));
    fleet_adapter_end_kept(f);
    assert_blocked(f, false, false, false);
    assert_true(fleet_adapter_exists(f, "x"));
    begin(f, "x");
    for (size_t i = 0; i < 3; i++)
        ask(f, i, API_UNLOAD_ADAPTER, &asked, TOOK);
    fleet_adapter_end_kept(f);
    assert_blocked(f, false, false, false);
    assert_none_known(f);
}

/* A restarted engine that does not report its process may have kept what it had. */
static void test_an_unnamed_process_may_have_kept_it(void **state)
{
    struct fleet *f = three();

    (void)state;
    (void)load(f, "x", true, TO(TOOK, TOOK, NOT_ASKED));
    restart(f, 1, false);
    restart(f, 2, false);
    assert_true(may_have(f, 1, "x"));
    assert_false(may_have(f, 2, "x"));
    assert_blocked(f, false, true, true);
    (void)unload(f, "x", TO(TOOK, REFUSES, TOOK));
    restart(f, 1, false);
    assert_blocked(f, false, true, false);
    fleet_free(f);
}

/* It keeps its adapters, and may be added again; meanwhile it keeps no other out. */
static void test_a_removed_engine_may_have_kept_it(void **state)
{
    struct fleet *f = three();

    (void)state;
    (void)load(f, "x", false, TO(TOOK, TOOK, NOT_ASKED));
    fleet_remove(f, engine_at(f, 1));
    assert_blocked(f, false, false, true);
    restart(f, 0, true);
    assert_blocked(f, false, false, false); /* no member has it */
    (void)unload(f, "x", TO(TOOK, NOT_ASKED, TOOK));
    assert_int_equal(f->adapters.n, 1);
    add_again(f, 1);
    report_ok(f, 1, "p", ""); /* it is back */
    assert_blocked(f, false, true, false);
    (void)task(f, 1, "x", TOOK);
    assert_blocked(f, false, false, false);
    assert_none_known(f);
}

static void fill(struct fleet *f)
{
    char name[16];

    for (int i = 0; i < FLEET_ADAPTERS_MAX; i++) {
        (void)snprintf(name, sizeof name, "x%d", i);
        (void)load(f, name, true, TO(TOOK, TOOK, TOOK));
    }
}

static bool fits(struct fleet *f, const char *name)
{
    struct api_args args = {.name = name};
    struct err e = {0};

    if (fleet_adapter_begin(f, &args, &e) == 0) {
        fleet_adapter_end(f);
        return true;
    }
    assert_int_equal(e.code, ERR_CONFLICT);
    return false;
}

/* The limit is not used up by what engines had that never return. */
static void test_forgets_what_removed_engines_had(void **state)
{
    struct fleet *f = three();

    (void)state;
    fill(f);
    fleet_remove(f, engine_at(f, 1));
    (void)unload(f, "x9", TO(TOOK, NOT_ASKED, LOSES));
    (void)unload(f, "x8", TO(TOOK, NOT_ASKED, TOOK));
    (void)unload(f, "x7", TO(TOOK, NOT_ASKED, TOOK));
    assert_int_equal(f->adapters.n, FLEET_ADAPTERS_MAX);
    assert_int_equal(load(f, "more", true, TO(TOOK, NOT_ASKED, TOOK)), 1); /* for x8 */
    assert_int_equal(load(f, "most", true, TO(TOOK, NOT_ASKED, TOOK)), 1); /* for x7 */
    assert_true(fits(f, "x9")); /* a member may have it */
    assert_false(fits(f, "x8"));
    fleet_free(f);
}

static void test_refuses_beyond_the_limit(void **state)
{
    struct fleet *f = three();

    (void)state;
    fill(f);
    assert_true(fits(f, "x7"));
    assert_false(fits(f, "more"));
    assert_int_equal(unload(f, "x7", TO(TOOK, TOOK, TOOK)), 1);
    assert_true(fits(f, "more"));
    assert_true(fits(f, "another")); /* as that was not loaded */
    fleet_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adapters_are_lost_with_the_process),
        cmocka_unit_test(test_a_load_beside_a_load_is_loaded_again),
        cmocka_unit_test(test_without_its_request_it_waits_for_the_trainer),
        cmocka_unit_test(test_without_its_request_an_old_one_is_unloaded),
        cmocka_unit_test(test_refused_by_all_keeps_none_out),
        cmocka_unit_test(test_unloaded_where_it_may_still_be),
        cmocka_unit_test(test_late_results_are_not_trusted),
        cmocka_unit_test(test_a_load_for_all_leaves_rotation_as_it_is),
        cmocka_unit_test(test_other_files_are_not_the_adapter),
        cmocka_unit_test(test_a_load_that_no_engine_took),
        cmocka_unit_test(test_an_unnamed_process_may_have_kept_it),
        cmocka_unit_test(test_a_removed_engine_may_have_kept_it),
        cmocka_unit_test(test_forgets_what_removed_engines_had),
        cmocka_unit_test(test_refuses_beyond_the_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
