/* An engine that may lack adapters of the fleet, or have stale caches, is out of rotation. */
#include "fleet/members/upstream_config.h"
#include "tests/unit/fleet/upstream_fleet_world.h"

static struct fleet *new_fleet(void)
{
    struct fleet_cfg cfg = {.n_upstreams = 2,
                            .configs = usual_configs,
                            .n_permits = {1, 1},
                            .n_queue_max = {1, 1},
                            .min_ready = 1};
    struct fleet *f = NULL;
    struct err e = {0};

    assert_int_equal(fleet_new(&f, &cfg, &e), 0);
    return f;
}

static struct upstream_info info_of(struct fleet *f, size_t i)
{
    struct upstream_info info;

    fleet_info(f, engine_at(f, i), &info);
    return info;
}

/* Engine 0 overwrites the weights that it serves, so what it caches may be of other weights. */
static struct fleet *fleet_with_cache(void)
{
    static const struct upstream_config vllm = {.url = usual_names[0], .kind = UPSTREAM_VLLM};
    struct fleet *f = new_fleet();

    atomic_store(&engine_at(f, 0)->config, &vllm);
    report_ok(f, 0, "p1", "v");
    report_ok(f, 1, "q1", "v");
    return f;
}

static const struct err fails = {.code = ERR_UPSTREAM, .msg = "it holds requests"}, good;
static bool optional;

static uint64_t begin(struct fleet *f, enum cache_change change)
{
    return fleet_caches_begin(f, engine_at(f, 0), change, &optional);
}

static void end(struct fleet *f, uint64_t number, const struct err *why)
{
    fleet_caches_end(f, engine_at(f, 0), number, why);
}

static bool serves(struct fleet *f)
{
    return fleet_serves(f, engine_at(f, 0));
}

static bool says(struct fleet *f, const char *words)
{
    return strstr(info_of(f, 0).error.why.msg, words) != NULL;
}

/* Also the first one, of which it is not known what an earlier server did to it. */
static void test_new_process_waits_for_empty_caches(void **state)
{
    struct fleet *f = fleet_with_cache();
    uint64_t number;

    (void)state;
    assert_true(!serves(f) && fleet_serves(f, engine_at(f, 1)));
    assert_string_equal(upstream_state_name(info_of(f, 0).state), "unsynced");
    assert_true(says(f, "no attempt was made yet"));
    assert_true(fleet_needs(f, engine_at(f, 0), NEED_CACHES));
    number = begin(f, CACHES_AS_BEFORE);
    assert_true(optional && !serves(f) && info_of(f, 0).stale_caches);
    end(f, number, &fails);
    assert_true(!serves(f) && says(f, "it holds requests"));
    number = begin(f, CACHES_AS_BEFORE);
    end(f, number, &good);
    assert_true(serves(f) && !info_of(f, 0).stale_caches);
    assert_int_equal(info_of(f, 0).error.why.code, ERR_NONE);
    number = begin(f, CACHES_OF_OTHER_WEIGHTS);
    report_ok(f, 0, "p2", "v"); /* those of the process before are emptied */
    assert_false(serves(f));
    end(f, number, &good);
    assert_true(!serves(f) && says(f, "no attempt was made yet"));
    fleet_free(f);
}

/* A change that its caller empties the caches for counts when that fails, or was not enough. */
static void test_a_change_needs_a_reset_that_was_sent_after_it(void **state)
{
    struct fleet *f = fleet_with_cache();
    uint64_t before, after;

    (void)state;
    end(f, begin(f, CACHES_AS_BEFORE), &good);
    before = begin(f, CACHES_AS_BEFORE);
    after = begin(f, CACHES_OF_OTHER_ADAPTER);
    assert_true(optional && serves(f)); /* only adapters have changed */
    end(f, after, &fails);
    assert_false(serves(f));
    end(f, before, &good); /* it was sent before the change */
    assert_false(serves(f));
    end(f, begin(f, CACHES_AS_BEFORE), &good);
    assert_true(serves(f));
    after = begin(f, CACHES_OF_OTHER_WEIGHTS);
    assert_true(!optional && serves(f));
    end(f, after, &fails);
    assert_false(serves(f));
    (void)begin(f, CACHES_OF_OTHER_ADAPTER);
    assert_false(optional || serves(f));
    fleet_free(f);
}

/* It is asked again at once after a change, and then less and less often. */
static void test_what_fails_is_tried_later(void **state)
{
    struct fleet *f = fleet_with_cache();

    (void)state;
    end(f, begin(f, CACHES_AS_BEFORE), &fails);
    assert_false(fleet_needs(f, engine_at(f, 0), NEED_CACHES));
    end(f, begin(f, CACHES_OF_OTHER_WEIGHTS), &fails);
    assert_true(fleet_needs(f, engine_at(f, 0), NEED_CACHES));
    fleet_free(f);
}

/* An adapter that it had not when the fleet loaded it. */
static void lose_adapter(struct fleet *f)
{
    struct api_args args = {.name = "x"};
    struct have_before before;
    struct err e = {0};

    assert_int_equal(fleet_adapter_begin(f, &args, &e), 0);
    fleet_doubt(f, engine_at(f, 1), API_LOAD_ADAPTER, &args, &before);
    (void)fleet_answer(f, engine_at(f, 1), API_LOAD_ADAPTER, &args, &before, HAVE_REFUSED, NULL);
    (void)fleet_adapter_end_loaded(f, NULL, strdup("{}"), 1);
}

static void find_adapter(struct fleet *f)
{
    const struct api_args args = {.name = "x", .number = f->adapters.list[0]->number};
    struct have_before before;

    fleet_doubt(f, engine_at(f, 0), API_LOAD_ADAPTER, &args, &before);
    (void)fleet_answer(f, engine_at(f, 0), API_LOAD_ADAPTER, &args, &before, HAVE_GOOD, NULL);
}

/* Neither an update nor a resync gives it the adapters that it lacks. */
static void test_weights_do_not_replace_adapters(void **state)
{
    struct fleet *f = new_fleet();
    const bool done[FLEET_MAX] = {true, true};
    struct upstream_report report = {.process = "p1", .label = "w"};
    struct upstream_info before;
    struct err e = {0};

    (void)state;
    report_ok(f, 0, "p1", "v");
    report_ok(f, 1, "q1", "v");
    lose_adapter(f);
    assert_false(serves(f));
    (void)commit(f, "w", 0, done, NULL);
    assert_true(!serves(f) && info_of(f, 0).synced && says(f, "it lacks adapter 'x'"));
    fleet_need_tried(f, engine_at(f, 0), NEED_ADAPTERS, &fails);
    assert_true(says(f, "it lacks adapter 'x'") && says(f, "last error: it holds requests"));
    before = info_of(f, 0);
    assert_int_equal(fleet_resync(f, engine_at(f, 0), &before, &report, &e), 0);
    assert_false(serves(f));
    find_adapter(f);
    assert_true(serves(f));
    fleet_free(f);
}

/* It changes for another engine at the index, and for a restart that only the label shows. */
static void test_incarnation_never_repeats(void **state)
{
    struct fleet *f = new_fleet();
    const bool done[FLEET_MAX] = {true, true};
    uint64_t incarnation;

    (void)state;
    report_ok(f, 0, "", "v");
    report_ok(f, 1, "q1", "v");
    (void)commit(f, "w", 0, done, NULL);
    report_ok(f, 0, "", "w");
    assert_true(serves(f));
    lose_adapter(f);
    find_adapter(f);
    assert_true(serves(f));
    incarnation = info_of(f, 0).incarnation;
    report_ok(f, 0, "", "default");
    assert_true(info_of(f, 0).incarnation > incarnation && !fleet_has_needs(engine_at(f, 0)));
    incarnation = info_of(f, 0).incarnation;
    fleet_remove(f, engine_at(f, 0));
    add_again(f, 0);
    assert_true(info_of(f, 0).incarnation > incarnation && !fleet_has_needs(engine_at(f, 0)));
    fleet_free(f);
}

/* The reasons end in each order. */
static void test_engine_serves_when_the_last_reason_has_ended(void **state)
{
    enum { ADAPTERS, FENCED, PAUSE, KEY, N_REASONS };
    const bool done[FLEET_MAX] = {true, true};
    struct err why = {0}, key = {0};

    (void)state;
    (void)err_set(&why, ERR_UNSYNCED, "", "half of an update is in it");
    (void)err_set(&key, ERR_UPSTREAM_KEY, "", "it refuses the key");
    for (int first = 0; first < N_REASONS; first++) {
        struct fleet *f = new_fleet();

        report_ok(f, 0, "p1", "v");
        report_ok(f, 1, "q1", "v");
        lose_adapter(f);
        quiesce(f, true, 1);
        report_ok(f, 0, "p2", "w");
        fleet_fence(f, engine_at(f, 0), &why);
        fleet_auth_failed(f, engine_at(f, 0), FLEET_AUTH_REQUEST, &key);
        for (int k = 0; k < N_REASONS; k++) {
            assert_false(fleet_serves(f, engine_at(f, 0)));
            assert_int_not_equal(info_of(f, 0).error.why.code, ERR_NONE);
            switch ((first + k) % N_REASONS) {
            case ADAPTERS:
                find_adapter(f);
                break;
            case FENCED: /* and unsynced */
                (void)commit(f, "x", 0, done, NULL);
                break;
            case PAUSE:
                quiesce(f, false, 2);
                break;
            default:
                fleet_auth_ok(f, engine_at(f, 0));
            }
            report_ok(f, 0, "p2", "x");
        }
        assert_true(fleet_serves(f, engine_at(f, 0)));
        assert_string_equal(upstream_state_name(info_of(f, 0).state), "serving");
        assert_int_equal(info_of(f, 0).error.why.code, ERR_NONE);
        fleet_free(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_new_process_waits_for_empty_caches),
        cmocka_unit_test(test_a_change_needs_a_reset_that_was_sent_after_it),
        cmocka_unit_test(test_what_fails_is_tried_later),
        cmocka_unit_test(test_weights_do_not_replace_adapters),
        cmocka_unit_test(test_incarnation_never_repeats),
        cmocka_unit_test(test_engine_serves_when_the_last_reason_has_ended),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
