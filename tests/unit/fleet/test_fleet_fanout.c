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
                         struct fleet_result **results, struct err *e);
__typeof__(fleet_fence) __wrap_fleet_fence;
struct fleet *__wrap_upstreams_fleet(struct upstreams *u);

struct world {
    struct fleet_control fc;
    struct fleet_session *s;
    char asked[N + 1], taken[N + 1], fenced[N + 1]; /* '.': not asked, else its result */
    const char *answers; /* of each: g(ood), r(efused); NULL: no request can be made */
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
                         struct fleet_result **results, struct err *e)
{
    assert_ptr_equal(fc, &world->fc);
    assert_int_equal(op, API_PAUSE);
    assert_int_equal(timeout_us, 1000);
    mtx_assert_none();
    if (world->answers == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no request can be made");
    *results = calloc(n, sizeof **results);
    assert_non_null(*results);
    for (size_t i = 0; i < n; i++) {
        size_t part = part_of(targets[i].upstream);
        char answer = world->answers[part];

        world->asked[part] = answer;
        (*results)[i] = (struct fleet_result){.upstream = upstream_ref(targets[i].upstream),
                                              .outcome = answer == 'g' ? FLEET_OK : FLEET_REFUSED};
    }
    return 0;
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
    world->s->sender = pthread_self();
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

static bool is_clean(const struct fleet_part *p, const void *arg)
{
    const struct world *w = arg;

    mtx_assert_held(&w->fc.lock);
    return p->state == PART_CLEAN;
}

static void take(struct fleet_part *p, size_t part, struct fleet_result *result, void *arg)
{
    struct world *w = arg;

    mtx_assert_held(&w->fc.lock);
    assert_ptr_equal(p->upstream, result->upstream);
    assert_ptr_equal(p, &w->s->parts[part]);
    assert_int_equal(w->taken[part], '.');
    w->taken[part] = result->outcome == FLEET_OK        ? 'g'
                     : result->outcome == FLEET_REFUSED ? 'r'
                                                        : 'x';
}

static const struct part_set but_the_first = {{false, true, true, true}};

static struct fanout pause_of(struct world *w)
{
    return (struct fanout){.op = API_PAUSE,
                           .timeout_us = 1000,
                           .only = &but_the_first,
                           .select = is_clean,
                           .on_result = take,
                           .arg = w};
}

static void test_fanout_apply_asks_the_selected_parts(void **state)
{
    struct world *w = *state;
    struct fanout f = pause_of(w);
    struct err e = {0};

    w->answers = "ggrg";
    w->s->parts[1].state = PART_DROPPED;
    f.fence_failed = true;
    assert_int_equal(fanout_apply(&w->fc, w->s, &f, &e), 0);
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

static void test_fanout_apply_or_fail_fails_each_part(void **state)
{
    struct world *w = *state;
    struct fanout f = pause_of(w);
    struct err why = {0};

    fanout_apply_or_fail(&w->fc, w->s, &f, &why);
    assert_string_equal(w->taken, ".xxx");
    memset(w->taken, '.', N);
    w->answers = "gggg"; /* it is not tried, for the earlier reason */
    fanout_apply_or_fail(&w->fc, w->s, &f, &why);
    assert_string_equal(w->asked, "....");
    assert_string_equal(w->taken, ".xxx");
}

static void test_fanout_apply_of_no_part_does_nothing(void **state)
{
    struct world *w = *state;
    struct fanout f = pause_of(w);
    struct err e = {0};

    for (size_t i = 0; i < N; i++)
        w->s->parts[i].state = PART_FINISHED;
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
        cmocka_unit_test_setup_teardown(test_fanout_apply_or_fail_fails_each_part, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fanout_apply_of_no_part_does_nothing, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
