/* One request to some parts of an update: which are asked, and that each result is applied once,
 * with the lock. */
#include "fleet/update/fleet_fanout.h"

#include "fleet/members/fleet_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 4 };

int __wrap_fleet_request(struct fleet_control *fc, enum api_op op,
                         const struct fleet_target *targets, size_t n, uint64_t timeout_us,
                         struct fleet_results *results, struct err *e);
__typeof__(fleet_fence) __wrap_fleet_fence;
__typeof__(fleet_incarnation_of) __wrap_fleet_incarnation_of;
struct fleet *__wrap_upstreams_fleet(struct upstreams *u);

struct world {
    struct fleet_control fc;
    struct fleet_session *s;
    char asked[N + 1], taken[N + 1], fenced[N + 1]; /* '.': not asked, else its result */
    const char *answers; /* of each: g(ood), r(efused); NULL: no request can be made */
    bool drains;         /* the answers are lost */
    bool watched;        /* each result is taken at once */
};

static struct world *world; /* of the running test */

/* Which part the engine has. */
static size_t part_of(const struct upstream *upstream)
{
    size_t i = 0;

    while (world->s->parts[i].upstream != upstream)
        i++;
    return i;
}

int __wrap_fleet_request(struct fleet_control *fc, enum api_op op,
                         const struct fleet_target *targets, size_t n, uint64_t timeout_us,
                         struct fleet_results *results, struct err *e)
{
    assert_ptr_equal(fc, &world->fc);
    assert_int_equal(op, API_PAUSE);
    assert_int_equal(timeout_us, 1000);
    mtx_assert_none();
    if (world->drains)
        return err_set(e, ERR_DRAINING, "", "this server stops");
    if (world->answers == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no request can be made");
    *results = (struct fleet_results){calloc(n, sizeof *results->list), n};
    assert_non_null(results->list);
    for (size_t i = 0; i < n; i++) {
        size_t part = part_of(targets[i].upstream);
        char answer = world->answers[part];

        world->asked[part] = answer;
        assert_int_equal(world->s->parts[part].asked.incarnation, 7);
        results->list[i] = (struct fleet_result){.upstream = upstream_ref(targets[i].upstream),
                                                 .outcome = answer == 'g' ? FLEET_OK
                                                                          : FLEET_REFUSED};
        if (targets[i].answered != NULL)
            targets[i].answered(targets[i].arg, &results->list[i]);
        if (world->watched)
            assert_int_not_equal(world->taken[part], '.'); /* the next has not answered yet */
    }
    return 0;
}

/* What the answer belongs to is noted before the request. */
void __wrap_fleet_incarnation_of(struct fleet_control *fc, struct upstream *upstream,
                                 struct fleet_incarnation *out)
{
    (void)fc;
    (void)upstream;
    *out = (struct fleet_incarnation){.incarnation = 7};
}

void __wrap_fleet_fence(struct fleet *f, struct upstream *upstream, const struct err *why)
{
    (void)f;
    (void)why;
    mtx_assert_none();
    world->fenced[part_of(upstream)] = 'x';
}

struct fleet *__wrap_upstreams_fleet(struct upstreams *u)
{
    (void)u;
    return NULL;
}

static int setup(void **state)
{
    struct err e = {0};

    world = calloc(1, sizeof *world);
    assert_non_null(world);
    mtx_init(&world->fc.lock, MTX_UPDATES);
    assert_int_equal(fleet_session_new(&world->s, N, &e), 0);
    for (size_t i = 0; i < N; i++)
        assert_non_null(world->s->parts[i].upstream = upstream_new(NULL));
    world->s->sending = true;
    world->s->sender = workers_self();
    memset(world->asked, '.', N);
    memset(world->taken, '.', N);
    memset(world->fenced, '.', N);
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;

    fleet_session_unref(w->s);
    mtx_fini(&w->fc.lock);
    free(w);
    return 0;
}

static bool is_clean_but_the_first(const struct fleet_part *p, const void *arg)
{
    const struct world *w = arg;

    mtx_assert_held(&w->fc.lock);
    return p != &w->s->parts[0] && !p->out && part_is_unchanged(p);
}

static void take(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    struct world *w = arg;
    size_t part = (size_t)(p - w->s->parts);

    mtx_assert_held(&w->fc.lock);
    assert_ptr_equal(p->upstream, result->upstream);
    assert_in_range(part, 0, N - 1);
    assert_int_equal(w->taken[part], '.');
    w->taken[part] = result->outcome == FLEET_OK        ? 'g'
                     : result->outcome == FLEET_REFUSED ? 'r'
                                                        : 'x';
}

static struct fanout pause_of(struct world *w)
{
    return (struct fanout){.op = API_PAUSE,
                           .timeout_us = 1000,
                           .select = is_clean_but_the_first,
                           .on_result = take,
                           .arg = w};
}

static void test_fanout_apply_asks_the_selected_parts(void **state)
{
    struct world *w = *state;
    struct fanout f = pause_of(w);
    struct err e = {0};

    w->answers = "ggrg";
    w->s->parts[1].out = true;
    w->watched = f.fence_failed = true;
    assert_int_equal(fanout_apply(&w->fc, w->s, &f, &e), 2);
    assert_string_equal(w->asked, "..rg");
    assert_string_equal(w->taken, "..rg");
    assert_string_equal(w->fenced, "..x.");
}

static void test_fanout_apply_applies_nothing_on_failure(void **state)
{
    struct world *w = *state;
    struct fanout f = pause_of(w);
    struct err e = {0};

    assert_int_equal(fanout_apply(&w->fc, w->s, &f, &e), -1);
    assert_int_equal(e.code, ERR_NO_MEMORY);
    assert_string_equal(w->taken, "....");
}

static void test_fanout_apply_can_fail_each_part(void **state)
{
    struct world *w = *state;
    struct fanout f = pause_of(w);
    struct err e = {0};

    f.fail_each = f.fence_failed = true;
    assert_int_equal(fanout_apply(&w->fc, w->s, &f, &e), -1);
    assert_string_equal(w->taken, ".xxx");
    assert_string_equal(w->fenced, ".xxx");
}

/* The requests may have been executed. */
static void test_fanout_apply_fails_each_part_whose_answer_is_lost(void **state)
{
    struct world *w = *state;
    struct fanout f = pause_of(w);
    struct err e = {0};

    w->drains = true;
    assert_int_equal(fanout_apply(&w->fc, w->s, &f, &e), -1);
    assert_int_equal(e.code, ERR_DRAINING);
    assert_string_equal(w->taken, ".xxx");
}

static void test_fanout_apply_drops_failed_parts(void **state)
{
    struct world *w = *state;
    struct fanout f = pause_of(w);
    struct err e = {0};

    w->answers = "ggrg";
    f.on_result = NULL;
    assert_int_equal(fanout_apply(&w->fc, w->s, &f, &e), 3);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(w->s->parts[i].out, i == 2);
}

static void test_fanout_apply_of_no_part_does_nothing(void **state)
{
    struct world *w = *state;
    struct fanout f = pause_of(w);
    struct err e = {0};

    for (size_t i = 0; i < N; i++)
        w->s->parts[i].weights = PART_NEW;
    w->s->sending = false;
    assert_int_equal(fanout_apply(&w->fc, w->s, &f, &e), 0);
    assert_string_equal(w->asked, "....");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fanout_apply_asks_the_selected_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fanout_apply_applies_nothing_on_failure, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_fanout_apply_can_fail_each_part, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fanout_apply_fails_each_part_whose_answer_is_lost,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_fanout_apply_drops_failed_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fanout_apply_of_no_part_does_nothing, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
