/* Which call works in which state: every cell of the product against a second opinion, and a long
 * walk that must never end where nothing leads on. */
#include "control/lifecycle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

enum { N_WALK = 200000 };

static uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(*state >> 33) % n;
}

static void after_sleep(struct lifecycle_state *s)
{
    s->busy = s->busy && s->pause == PAUSE_KEEP; /* what is not frozen ends */
}

/* A whole update by itself begins and ends in one call. */
static void after_update(struct lifecycle_state *s)
{
    s->update = UPDATE_IS_NONE;
    s->weights = WEIGHTS_SERVED;
}

/* The state when a call that works has done what it does, and nothing else has happened. */
static struct lifecycle_state state_after(const struct lifecycle_state *before,
                                          enum lifecycle_call call)
{
    struct lifecycle_state s = *before;

    switch (call) {
    case CALL_GENERATE:
        s.busy = s.busy || s.pause == PAUSE_NONE;
        break;
    case CALL_PAUSE_KEEP:
        s.pause = PAUSE_KEEP;
        break;
    case CALL_PAUSE_WAIT:
    case CALL_PAUSE_ABORT:
        s.pause = call == CALL_PAUSE_WAIT ? PAUSE_WAIT : PAUSE_ABORT;
        s.busy = false;
        break;
    case CALL_RESUME:
        s.pause = PAUSE_NONE;
        break;
    case CALL_SLEEP_WEIGHTS_1:
        s.weights = s.weights == WEIGHTS_SERVED ? WEIGHTS_ASLEEP : s.weights;
        after_sleep(&s);
        break;
    case CALL_SLEEP_WEIGHTS_2:
        s.weights = s.weights == WEIGHTS_UNSYNCED ? WEIGHTS_UNSYNCED : WEIGHTS_DROPPED;
        after_sleep(&s);
        break;
    case CALL_SLEEP_KV:
        s.kv_released = true;
        after_sleep(&s);
        break;
    case CALL_WAKE_WEIGHTS:
        s.weights = s.weights == WEIGHTS_ASLEEP ? WEIGHTS_SERVED : s.weights;
        break;
    case CALL_WAKE_KV:
        s.kv_released = false;
        break;
    case CALL_UPDATE_START:
        s.update = UPDATE_IS_OPEN;
        break;
    case CALL_UPDATE_RECEIVE:
        if (s.update == UPDATE_IS_NONE)
            after_update(&s);
        break;
    case CALL_UPDATE_FINISH:
        if (s.update != UPDATE_IS_NONE)
            after_update(&s);
        break;
    case CALL_UPDATE_ABORT:
        s.update = UPDATE_IS_NONE;
        break;
    case CALL_ABORT_REQUESTS:
        s.busy = false;
        break;
    case CALL_DRAIN:
        s.life = LIFE_DRAINING;
        s.pause = PAUSE_NONE;
        break;
    case CALL_RESET_CACHE:
    case CALL_LORA_LOAD:
    case CALL_LORA_UNLOAD:
    case CALL_COUNT:
        break;
    }
    return s;
}

static bool same_state(const struct lifecycle_state *a, const struct lifecycle_state *b)
{
    return a->life == b->life && a->pause == b->pause && a->weights == b->weights &&
           a->kv_released == b->kv_released && a->update == b->update && a->busy == b->busy;
}

/* The rules said a second time, call by call, as a client reads them. */
static enum err_code expected(const struct lifecycle_state *s, enum lifecycle_call call)
{
    bool gone = s->weights == WEIGHTS_ASLEEP || s->weights == WEIGHTS_DROPPED;

    if (call == CALL_RESUME || call == CALL_DRAIN)
        return ERR_NONE;
    if (s->life == LIFE_STARTING)
        return ERR_STARTING;
    if (s->life == LIFE_DRAINING && call == CALL_ABORT_REQUESTS)
        return ERR_NONE;
    if (s->life == LIFE_DRAINING &&
        (s->update == UPDATE_IS_NONE || s->update == UPDATE_IS_SEED ||
         (call != CALL_UPDATE_RECEIVE && call != CALL_UPDATE_FINISH && call != CALL_UPDATE_ABORT)))
        return ERR_DRAINING;
    switch (call) {
    case CALL_GENERATE:
        if (s->pause != PAUSE_NONE)
            return ERR_NONE; /* admission knows whether it is refused */
        if (s->weights == WEIGHTS_UNSYNCED)
            return ERR_UNSYNCED;
        return gone || s->kv_released ? ERR_ASLEEP : ERR_NONE;
    case CALL_PAUSE_WAIT:
        return s->busy && (gone || s->kv_released) ? ERR_CONFLICT : ERR_NONE;
    case CALL_SLEEP_WEIGHTS_1:
    case CALL_SLEEP_WEIGHTS_2:
        return s->update != UPDATE_IS_NONE ? ERR_CONFLICT : ERR_NONE;
    case CALL_UPDATE_START:
        if (s->update != UPDATE_IS_NONE && s->update != UPDATE_IS_SEED)
            return ERR_CONFLICT;
        return s->weights == WEIGHTS_ASLEEP ? ERR_CONFLICT : ERR_NONE;
    case CALL_UPDATE_RECEIVE:
    case CALL_UPDATE_FINISH:
        return s->weights == WEIGHTS_ASLEEP ? ERR_CONFLICT : ERR_NONE;
    default:
        return ERR_NONE;
    }
}

/* All states; false after the last. */
static bool next_state(struct lifecycle_state *s)
{
    if ((s->busy = !s->busy))
        return true;
    if ((s->kv_released = !s->kv_released))
        return true;
    if ((s->update = (s->update + 1) % UPDATE_IS_COUNT) != 0)
        return true;
    if ((s->weights = (s->weights + 1) % WEIGHTS_COUNT) != 0)
        return true;
    if ((s->pause = (s->pause + 1) % PAUSE_COUNT) != 0)
        return true;
    return (s->life = (s->life + 1) % (LIFE_DRAINING + 1)) != 0;
}

/* ", name" or ": name" in the list at the end. */
static bool is_listed(const char *msg, const char *name)
{
    const char *list = strstr(msg, "; allowed: "), *at;
    char item[64];

    assert_non_null(list);
    (void)snprintf(item, sizeof item, " %s", name);
    for (at = list; (at = strstr(at, item)) != NULL; at++)
        if ((at[-1] == ',' || at[-1] == ':') && (at[strlen(item)] == ',' || at[strlen(item)] == 0))
            return true;
    return false;
}

static const char *call_name(int call)
{
    static const char *const names[] = {
#define X(constant, name) name,
        LIFECYCLE_CALLS(X)
#undef X
    };

    return names[call];
}

static void check_conflict(const struct lifecycle_state *s, enum lifecycle_call call,
                           const struct err *e)
{
    static const char *const updates[] = {"none", "open", "finishing", "of a peer"};
    char state[160];

    assert_true(snprintf(state, sizeof state,
                         "(life %s, pause %s, weights %s, kv_cache %s, update %s); allowed: ",
                         life_state_name(s->life), lifecycle_pause_name(s->pause),
                         lifecycle_weights_name(s->weights),
                         s->kv_released ? "released" : "present",
                         updates[s->update]) < (int)sizeof state);
    assert_non_null(strstr(e->msg, state));
    assert_memory_equal(e->msg, call_name(call), strlen(call_name(call)));
    assert_true(strlen(e->msg) + 1 < ERR_MSG_MAX); /* nothing was cut */
    for (int c = 0; c < CALL_COUNT; c++) {
        struct err none = {0};
        bool works = lifecycle_check(s, (enum lifecycle_call)c, &none) == 0;

        if (is_listed(e->msg, call_name(c)) != works)
            fail_msg("'%s' %s: %s", call_name(c),
                     works ? "works and is not listed" : "is listed and does not work", e->msg);
    }
}

static void test_every_call_in_every_state(void **state)
{
    struct lifecycle_state s = {0};
    unsigned n = 0, n_refused = 0;

    (void)state;
    do {
        for (int c = 0; c < CALL_COUNT; c++, n++) {
            enum lifecycle_call call = (enum lifecycle_call)c;
            struct err e = {0};
            int rc = lifecycle_check(&s, call, &e);

            assert_int_equal(e.code, expected(&s, call));
            assert_int_equal(rc, e.code == ERR_NONE ? 0 : -1);
            n_refused += rc != 0;
            if (e.code == ERR_CONFLICT)
                check_conflict(&s, call, &e);
            if (rc != 0)
                assert_true(e.msg[0] != '\0');
        }
    } while (next_state(&s));
    assert_int_equal(n, (LIFE_DRAINING + 1) * 4 * 4 * UPDATE_IS_COUNT * 2 * 2 * CALL_COUNT);
    assert_true(n_refused > 1000);
}

/* A call that worked works again, and then changes nothing more; but for those that bring work. A
 * server that drains takes no call about an update that has ended. */
static void test_repeating_is_harmless(void **state)
{
    struct lifecycle_state s = {0};

    (void)state;
    do {
        for (int c = 0; c < CALL_COUNT; c++) {
            enum lifecycle_call call = (enum lifecycle_call)c;
            struct lifecycle_state once, twice;
            struct err e = {0};

            if (lifecycle_check(&s, call, &e) != 0 || call == CALL_UPDATE_START ||
                call == CALL_DRAIN)
                continue;
            once = state_after(&s, call);
            if (s.life == LIFE_DRAINING && once.update != s.update)
                continue;
            assert_int_equal(lifecycle_check(&once, call, &e), 0);
            twice = state_after(&once, call);
            assert_true(same_state(&once, &twice));
        }
    } while (next_state(&s));
}

/* From wherever a server that serves got to: resume, abort the update, wake, and a whole update
 * make it generate again. */
static void test_there_is_always_a_way_back(void **state)
{
    static const enum lifecycle_call way[] = {CALL_RESUME, CALL_UPDATE_ABORT, CALL_WAKE_WEIGHTS,
                                              CALL_WAKE_KV, CALL_UPDATE_RECEIVE};
    struct lifecycle_state s = {0};

    (void)state;
    do {
        struct lifecycle_state at = s;
        struct err e = {0};

        if (s.life != LIFE_SERVING)
            continue;
        for (size_t i = 0; i < sizeof way / sizeof way[0]; i++) {
            if (lifecycle_check(&at, way[i], &e) != 0)
                fail_msg("no way back: %s", e.msg);
            at = state_after(&at, way[i]);
        }
        assert_int_equal(lifecycle_check(&at, CALL_GENERATE, &e), 0);
    } while (next_state(&s));
}

static void test_a_long_walk_keeps_what_must_hold(void **state)
{
    struct lifecycle_state s = {.life = LIFE_SERVING, .weights = WEIGHTS_UNSYNCED};
    unsigned n_of[CALL_COUNT] = {0};
    uint64_t seed = 20260821;

    (void)state;
    for (unsigned i = 0; i < N_WALK; i++) {
        enum lifecycle_call call = (enum lifecycle_call)draw(&seed, CALL_DRAIN);
        struct lifecycle_state was = s;
        struct err e = {0};

        if (lifecycle_check(&s, call, &e) != 0)
            continue;
        s = state_after(&s, call);
        n_of[call]++;
        /* Nothing runs unfrozen without weights or a cache, and no update sleeps. */
        assert_false(s.busy && s.pause != PAUSE_KEEP && was.pause == PAUSE_KEEP &&
                     call == CALL_PAUSE_WAIT);
        assert_false(s.update != UPDATE_IS_NONE && s.weights == WEIGHTS_ASLEEP);
        assert_false(!was.busy && s.busy &&
                     (was.weights != WEIGHTS_SERVED || was.kv_released || was.pause != PAUSE_NONE));
    }
    for (int c = 0; c < CALL_DRAIN; c++)
        assert_true(n_of[c] > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_call_in_every_state),
        cmocka_unit_test(test_repeating_is_harmless),
        cmocka_unit_test(test_there_is_always_a_way_back),
        cmocka_unit_test(test_a_long_walk_keeps_what_must_hold),
    };

    return cmocka_run_group_tests_name("lifecycle", tests, NULL, NULL);
}
