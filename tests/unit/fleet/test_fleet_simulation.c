/* Random histories of a fleet, each event at each turn of an update, and whether each rule that is
 * broken on purpose is noticed. With arguments, only histories: how many, and the first one's seed:
 * test_fleet_simulation 1000000 0 */
#include "tests/unit/fleet/model/sim_fleet.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    HISTORIES = 200,
    TURN_STEP = 13,
    PROVES_ITSELF = 0, /* that each broken rule is noticed, release shows */
#else
    HISTORIES = 1500,
    TURN_STEP = 1,
    PROVES_ITSELF = 1,
#endif
    HISTORIES_BROKEN = 6000 /* until a broken rule is noticed; most are in the first ten */
};

static uint64_t first_seed, n_histories = HISTORIES;

/* ---- events ---- */

static struct sim_engine *any_engine(struct sim *s)
{
    struct sim_engine *e = &s->engines[sim_random(s, SIM_ENGINES)];

    return e->is_used ? e : &s->engines[0];
}

static void pause_by_other(struct sim *s)
{
    struct sim_engine *e = any_engine(s);

    if (e->have.pause != GATE_NOT_OURS || e->known != e->d.process || sim_under_way(e) != 0)
        return;
    e->d.paused = e->d.paused_by_other = true;
    e->probe_us = s->now_us;
}

static void change_adapter(struct sim *s)
{
    struct adapter_want *a = &s->adapters[sim_random(s, SIM_ADAPTERS)];

    if (sim_random(s, 3) == 0)
        *a = (struct adapter_want){0};
    else
        *a = (struct adapter_want){.revision = a->revision + 1 + sim_random(s, 2),
                                   .required = true};
}

/* Some were engines of this fleet before, and have its version. */
static void join(struct sim *s)
{
    struct sim_engine *e = sim_join(s, sim_random(s, UPSTREAM_KINDS));

    if (e == NULL || !s->w.version.decided || sim_random(s, 2))
        return;
    e->d.weights = (int)s->w.version.serial;
    (void)snprintf(e->d.label, sizeof e->d.label, "%.*s", SIM_LABEL_MAX - 1, s->w.version.label);
    e->d.stale = e->d.stale_second = true;
}

static void remove_engine(struct sim *s)
{
    struct sim_engine *e = any_engine(s);

    if (e != &s->engines[0])
        e->removed = true;
}

static void sleep_or_wake(struct sim *s)
{
    if (s->w.sleep == WANT_AWAKE && s->update.phase == PHASE_NONE) {
        s->w.sleep = WANT_ASLEEP;
        s->w.sleep_level = 1 + sim_random(s, 2);
    } else if (s->w.sleep != WANT_AWAKE) {
        s->w.sleep = sim_random(s, 3) == 0 ? WANT_WEIGHTS : WANT_AWAKE;
    }
}

enum event {
    EVENT_UPDATE,
    EVENT_UPDATE_AGAIN, /* more often than the others */
    EVENT_ABORT,
    EVENT_PAUSE,
    EVENT_RESUME,
    EVENT_SLEEP,
    EVENT_WAKE,
    EVENT_ADAPTER,
    EVENT_RESTART,
    EVENT_JOIN,
    EVENT_REMOVE,
    EVENT_PAUSE_BY_OTHER,
    EVENT_RENAME,
    EVENTS
};

static void happen(struct sim *s, enum event event)
{
    switch (event) {
    case EVENT_UPDATE:
    case EVENT_UPDATE_AGAIN:
        (void)sim_start(s, 1 + sim_random(s, 2));
        break;
    case EVENT_ABORT:
        sim_abort(s);
        break;
    case EVENT_PAUSE:
        sim_pause(s);
        break;
    case EVENT_RESUME:
        sim_resume(s);
        break;
    case EVENT_SLEEP:
    case EVENT_WAKE:
        sleep_or_wake(s);
        break;
    case EVENT_ADAPTER:
        change_adapter(s);
        break;
    case EVENT_RESTART:
        sim_restart(s, any_engine(s));
        break;
    case EVENT_JOIN:
        join(s);
        break;
    case EVENT_REMOVE:
        remove_engine(s);
        break;
    case EVENT_PAUSE_BY_OTHER:
        pause_by_other(s);
        break;
    case EVENT_RENAME:
        sim_rename(s);
        break;
    case EVENTS:
        break;
    }
}

/* ---- after the faults ---- */

static bool all_serve(const struct sim *s, size_t *n)
{
    *n = 0;
    for (int i = 0; i < SIM_ENGINES; i++) {
        if (s->engines[i].is_used && !s->engines[i].removed && sim_out(s, &s->engines[i]) != 0)
            return false;
        *n += s->engines[i].is_used && !s->engines[i].removed;
    }
    return true;
}

/* A person restarts the engines whose sleep cannot be known, and pushes an update. */
static void help(struct sim *s)
{
    for (int i = 0; i < SIM_ENGINES; i++) {
        struct sim_engine *e = &s->engines[i];
        struct engine_now now = sim_now(e);

        if (e->is_used && engine_reason(&now, &s->w) == REASON_SLEEP_UNKNOWN)
            sim_restart(s, e);
    }
    sim_run(s, 15 * S);
    (void)sim_start(s, 1);
    for (int i = 0; i < SIM_ENGINES; i++) {
        s->engines[i].d.in_group = true;
        s->engines[i].have.groups = 1;
    }
}

static void heal(struct sim *s)
{
    enum { ROUNDS = 30, ROUNDS_ALONE = 8, ROUND_S = 10 };

    s->faults = 0;
    s->w.sleep = WANT_AWAKE;
    sim_resume(s);
    for (int i = 0; i < ROUNDS && s->violation == NULL; i++) {
        if (i >= ROUNDS_ALONE && i % ROUNDS_ALONE == 0)
            help(s);
        sim_run(s, ROUND_S * S);
        if (s->update.phase == PHASE_NONE && all_serve(s, &s->n_healed))
            return;
    }
    sim_violate(s, "I11: an engine does not heal");
}

static void run_history(struct sim *s, enum sim_broken broken, uint64_t seed)
{
    static const unsigned faults[] = {0, 4, 15, 40};
    unsigned n_engines, n_events;

    sim_init(s, broken, seed);
    s->w.stage = sim_random(s, 2);
    s->w.pauses_fenced = sim_random(s, 2);
    n_engines = 1 + sim_random(s, 3);
    for (unsigned i = 0; i < n_engines; i++)
        (void)sim_join(s, sim_random(s, UPSTREAM_KINDS));
    n_events = 4 + sim_random(s, 12);
    for (unsigned i = 0; i < n_events && s->violation == NULL; i++) {
        s->faults = faults[sim_random(s, 4)];
        happen(s, sim_random(s, EVENTS));
        sim_run(s, sim_random(s, 4) == 0 ? 10 * S : sim_random(s, 400) * MS);
    }
    if (s->violation == NULL)
        heal(s);
}

static void fail_history(const struct sim *s, uint64_t seed)
{
    for (int i = 0; i < SIM_ENGINES; i++) {
        const struct sim_engine *e = &s->engines[i];
        struct engine_now now = sim_now(e);
        const struct engine_have *h = &e->have;

        if (!e->is_used)
            continue;
        print_message(
            "%s%s reach=%d serves=%d out=%x why='%s' goal=%d ops=%x\n  have pause=%d sleep=%d/%d "
            "own=%d weights=%d(%d) label=%d'%s' old='%s' caches=%d/%d/%d/%d adapters=%d/%d\n"
            "  true process=%d/%d paused=%d asleep=%d/%d own=%d weights=%d label='%s' stale=%d/%d "
            "adapters=%u/%u\n",
            upstream_kind_name(e->d.kind), e->removed ? " (removed)" : "", e->reachable, e->serves,
            sim_out(s, e), reason_text(engine_reason(&now, &s->w)), e->part.goal, sim_under_way(e),
            h->pause, h->sleep.weights, h->sleep.kv, h->own.state, h->weights.state,
            (int)h->weights.serial, h->label.read, h->label.text, h->label.old,
            (int)h->caches.needed, (int)h->caches.tried, (int)h->caches.emptied,
            (int)h->caches.second, h->adapters[0].state, h->adapters[1].state, (int)e->known,
            (int)e->d.process, e->d.paused, e->d.weights_asleep, e->d.kv_asleep, e->d.own_open,
            e->d.weights, e->d.label, e->d.stale, e->d.stale_second, e->d.adapters[0],
            e->d.adapters[1]);
    }
    fail_msg("seed %llu, at %.3f s, phase %d, version %s, wants pause %d sleep %d stage %d: %s",
             (unsigned long long)seed, (double)s->now_us / S, s->update.phase, s->w.version.label,
             s->w.pause, s->w.sleep, s->w.stage, s->violation);
}

static void test_random_histories(void **state)
{
    struct sim *s = malloc(sizeof *s);
    size_t n_served = 0, n_healed = 0, n_committed = 0, n_aborted = 0, n_repairs = 0;

    (void)state;
    assert_non_null(s);
    for (uint64_t seed = first_seed; seed < first_seed + n_histories; seed++) {
        run_history(s, BROKEN_NOTHING, seed);
        if (s->violation != NULL)
            fail_history(s, seed);
        n_served += s->n_served;
        n_healed += s->n_healed;
        n_committed += s->n_committed;
        n_aborted += s->n_aborted;
        n_repairs += s->n_repairs;
    }
    print_message(
        "%zu turns of engines in rotation, %zu engines healed, %zu updates committed, %zu "
        "aborted, %zu repairs\n",
        n_served, n_healed, n_committed, n_aborted, n_repairs);
    free(s);
}

/* One update of two engines, after another, without faults but for one; a turn more each time.
 * Returns: has it ended before that turn? */
static bool run_to_turn(struct sim *s, enum upstream_kind a, enum upstream_kind b, int turn)
{
    sim_init(s, BROKEN_NOTHING, 7);
    (void)sim_join(s, a);
    (void)sim_join(s, b);
    sim_run(s, 3 * S);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++) {
            s->engines[k].d.in_group = true;
            s->engines[k].have.groups = 1;
        }
        assert_true(sim_start(s, 2));
        if (i == 0)
            sim_run(s, 5 * S);
    }
    for (int i = 0; i < turn; i++)
        sim_turn(s);
    return s->update.phase == PHASE_NONE;
}

static void run_each_event(struct sim *s, enum upstream_kind a, enum upstream_kind b, int turn)
{
    enum { REPEATS = 2 };

    for (int what = 0; what < (EVENTS + SIM_FAULTS) * REPEATS; what++) {
        (void)run_to_turn(s, a, b, turn);
        s->random += (uint64_t)what; /* another engine, other times */
        s->w.stage = what % 2;
        if (what < EVENTS * REPEATS)
            happen(s, what / REPEATS);
        s->forces_fault = what >= EVENTS * REPEATS;
        s->forced = what / REPEATS - EVENTS;
        if (s->violation == NULL)
            heal(s);
        if (s->violation != NULL) {
            print_message("%s and %s, event %d at turn %d\n", upstream_kind_name(a),
                          upstream_kind_name(b), what, turn);
            fail_history(s, 7);
        }
    }
}

static void test_each_event_at_each_turn(void **state)
{
    struct sim *s = malloc(sizeof *s);
    int n_turns = 0;

    (void)state;
    assert_non_null(s);
    for (int a = 0; a < UPSTREAM_KINDS; a++)
        for (int b = a; b < UPSTREAM_KINDS; b++)
            for (int turn = 0; !run_to_turn(s, a, b, turn); turn += TURN_STEP, n_turns++)
                run_each_event(s, a, b, turn);
    print_message("%d turns\n", n_turns);
    free(s);
}

/* What an engine is asked by an update that goes well: while it stands still, each request is time
 * in which nothing is generated. tests/http/fleet/handoff_order.py pins the same of real requests.
 */
static void test_order_of_requests(void **state)
{
    static const char *const orders[UPSTREAM_KINDS] = {
        [UPSTREAM_BATON] = " start tensors verify finish",
        [UPSTREAM_VLLM] = " read_label pause set_label start tensors read_label"
                          " finish+prefix+encoder resume read_label prove",
        [UPSTREAM_SGLANG] = " read_label pause set_label start tensors read_label finish+prefix"
                            " read_label set_label+storage resume read_label prove"};
    struct sim *s = malloc(sizeof *s);

    (void)state;
    assert_non_null(s);
    for (int kind = 0; kind < UPSTREAM_KINDS; kind++) {
        sim_init(s, BROKEN_NOTHING, 1);
        (void)sim_join(s, kind);
        sim_run(s, 3 * S);
        for (int i = 0; i < 2; i++) {
            s->engines[0].d.in_group = true;
            s->engines[0].have.groups = 1;
            s->engines[0].have.packing = s->n_updates + 1; /* known before */
            s->log[0] = '\0';
            assert_true(sim_start(s, 1));
            sim_run(s, 5 * S);
        }
        assert_string_equal(s->log, orders[kind]);
    }
    free(s);
}

static bool is_noticed(const struct sim *s)
{
    const char *by = sim_broken_noticed(s->broken);

    return s->violation != NULL && strncmp(s->violation, by, strlen(by)) == 0;
}

static void test_each_broken_rule_is_found(void **state)
{
    struct sim *s = malloc(sizeof *s);
    size_t n_missed = 0;

    (void)state;
    assert_non_null(s);
    for (int broken = BROKEN_NOTHING + 1; PROVES_ITSELF && broken < SIM_BROKEN; broken++) {
        uint64_t seed = 0;

        do
            run_history(s, broken, seed++);
        while (!is_noticed(s) && seed < HISTORIES_BROKEN);
        if (!is_noticed(s))
            n_missed++;
        print_message("%s: %s (%d histories)\n", sim_broken_text(broken),
                      is_noticed(s) ? s->violation : "NOT NOTICED", (int)seed);
    }
    assert_int_equal(n_missed, 0);
    free(s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order_of_requests),
                                       cmocka_unit_test(test_random_histories),
                                       cmocka_unit_test(test_each_event_at_each_turn),
                                       cmocka_unit_test(test_each_broken_rule_is_found)};

    const struct CMUnitTest histories[] = {cmocka_unit_test(test_random_histories)};

    if (argc > 2)
        first_seed = strtoull(argv[2], NULL, 10);
    if (argc == 1)
        return cmocka_run_group_tests(tests, NULL, NULL);
    n_histories = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(histories, NULL, NULL);
}
