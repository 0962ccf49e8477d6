/* The fleet itself, on one thread and under a clock of its own, in front of doubles of engines:
 * every event at every turn of what a trainer asks for, and histories in which anything may happen
 * at any moment. What must hold is in sim/check.h.
 *
 * test_fleet_sim random N [FIRST]   so many histories, of these seeds
 * test_fleet_sim seed N             one; SIM_TRACE=1 prints what happens
 * test_fleet_sim turns [K OF]       every event at every turn, of all fleets; or the Kth part of OF
 *                                   of them, from 0
 * test_fleet_sim at FLEET SCENARIO MIN_READY TURN EVENT FAILURE   one of those
 * test_fleet_sim broken N FIRST LAST   the first of these seeds that notices rule N of
 *                                      sim/broken.h, which is broken
 *
 * test_fleet_sim [PATTERN]          the tests whose names match
 *
 * "staged" before the mode: of versions that this server keeps and hands over. The whole is
 * "turns" and "staged turns", which take some hours of one core each, and as many seeds of both
 * kinds as there is time for.
 *
 * Processes with other seeds, or other parts, may run beside each other. The last line says how
 * many histories ran and which failed; the exit status is 1 if any did. A history that ends the
 * process is named too. */
#include "tests/unit/fleet/sim/ask.h"
#include "tests/unit/fleet/sim/broken.h"
#include "tests/unit/fleet/sim/check.h"
#include "tests/unit/fleet/sim/sched.h"
#include "tests/unit/fleet/sim/stage.h"
#include "tests/unit/fleet/sim/world.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static bool staged; /* with a store of this server: seeds and fleets of its own */

enum {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SEEDS = 300,
    TURNS_STEP = 499, /* every so many turns */
    TURNS_PARTS = 3,  /* one of so many parts: each scenario in front of every third fleet */
    STAGED_STEP = 1999,
    WAITS_STEP = 37,
    WITH_BROKEN = false, /* what notices a broken rule has nothing to do with memory */
#else
    SEEDS = 1000,
    TURNS_STEP = 37,
    TURNS_PARTS = 1,
    STAGED_STEP = 307,
    WAITS_STEP = 3,
    WITH_BROKEN = true,
#endif
    WAIT_TURNS = 80, /* in which an update that waits for nothing has ended */
    BROKEN_SEEDS = 4000,
    NAME_MAX_LEN = 100,
    SEEDS_LISTED = 200
};

/* The history under way, for what ends the process. */
static char history[NAME_MAX_LEN];

static void on_signal(int number)
{
    (void)!write(STDERR_FILENO, history, strlen(history));
    (void)!write(STDERR_FILENO, " ended the process\n", 19);
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static void name_what_ends(void)
{
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTERM};
    static char stack[1 << 16];
    const stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};

    (void)sigaltstack(&other, NULL);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        (void)sigaction(signals[i], &action, NULL);
}

/* ---- random ---- */

static enum scenario random_cfg(struct world_cfg *cfg, uint64_t seed)
{
    enum scenario scenario;
    bool mixed;
    enum upstream_kind kind;

    sched_begin(seed * 2 + 1, 0, false);
    *cfg = (struct world_cfg){.seed = seed, .n_engines = 2 + sched_draw(2)};
    mixed = sched_chance(50);
    kind = (enum upstream_kind)sched_draw(UPSTREAM_KINDS);
    for (size_t i = 0; i < cfg->n_engines; i++)
        cfg->kinds[i] = mixed ? (enum upstream_kind)sched_draw(UPSTREAM_KINDS) : kind;
    scenario = (enum scenario)(sched_chance(60) ? UPDATE_OF_TWO : sched_draw(SCENARIOS));
    cfg->min_ready = sched_draw((unsigned)cfg->n_engines + (scenario != JOIN));
    cfg->recomputes = true;
    cfg->pause_fenced = sched_chance(30);
    cfg->fail_percent = sched_chance(30) ? 0 : sched_draw(20);
    cfg->yield_percent = sched_draw(20);
    cfg->event_percent = sched_chance(20) ? 0 : sched_draw(60);
    /* The other histories are those of before there were more. */
    cfg->n_events = seed % 4 == 3 ? EVENTS : EVENTS_FIRST;
    cfg->n_failures = seed % 4 == 3 ? FAILURES : FAILURES_FIRST;
    return scenario;
}

static enum scenario staged_cfg(struct world_cfg *cfg, uint64_t seed)
{
    bool mixed;
    enum upstream_kind kind;
    enum scenario scenario;

    sched_begin(seed * 2 + 1, 0, false);
    *cfg = (struct world_cfg){.seed = seed,
                              .n_engines = 2 + sched_draw(2),
                              .stage = sched_chance(60) ? STAGE_WINDOWS : STAGE_WHOLE,
                              .recomputes = true,
                              .n_events = EVENTS,
                              .n_failures = FAILURES};
    mixed = sched_chance(50);
    kind = (enum upstream_kind)sched_draw(UPSTREAM_KINDS);
    for (size_t i = 0; i < cfg->n_engines; i++)
        cfg->kinds[i] = mixed ? (enum upstream_kind)sched_draw(UPSTREAM_KINDS) : kind;
    scenario = (enum scenario)(HANDOFF + sched_draw(STAGE_SCENARIOS - HANDOFF));
    cfg->min_ready = sched_draw((unsigned)cfg->n_engines);
    cfg->pause_fenced = sched_chance(30);
    cfg->fail_percent = sched_chance(30) ? 0 : sched_draw(15);
    cfg->memory_percent = seed % 5 == 4 ? seed % 11 : 0;
    cfg->yield_percent = sched_draw(20);
    cfg->event_percent = sched_chance(20) ? 0 : sched_draw(60);
    return scenario;
}

static int run_seed(uint64_t seed)
{
    struct world_cfg cfg;
    enum scenario scenario = staged ? staged_cfg(&cfg, seed) : random_cfg(&cfg, seed);
    const char *failed;

    (void)snprintf(history, sizeof history, "seed %llu", (unsigned long long)seed);
    failed = world_history(&cfg, scenario);
    if (failed == NULL)
        return 0;
    (void)fprintf(stderr, "%s: %s\n", history, failed);
    return -1;
}

/* ---- every event at every turn ---- */

static const struct fleet_kinds {
    size_t n;
    enum upstream_kind kinds[ENGINES_MAX];
} fleets[] = {
    {2, {UPSTREAM_VLLM, UPSTREAM_VLLM}},
    {2, {UPSTREAM_SGLANG, UPSTREAM_SGLANG}},
    {2, {UPSTREAM_BATON, UPSTREAM_BATON}},
    {3, {UPSTREAM_VLLM, UPSTREAM_VLLM, UPSTREAM_VLLM}},
    {3, {UPSTREAM_SGLANG, UPSTREAM_SGLANG, UPSTREAM_SGLANG}},
    {3, {UPSTREAM_BATON, UPSTREAM_BATON, UPSTREAM_BATON}},
    {3, {UPSTREAM_VLLM, UPSTREAM_SGLANG, UPSTREAM_BATON}},
    {2, {UPSTREAM_VLLM, UPSTREAM_SGLANG}},
};

static unsigned n_histories;

/* @scenario  with a store of this server: of windows, or STAGE_SCENARIOS more for a whole version
 */
static int run_at(const struct fleet_kinds *f, int scenario, size_t min_ready, uint64_t turn,
                  enum event event, enum failure failure)
{
    struct world_cfg cfg = {.n_engines = f->n,
                            .min_ready = min_ready,
                            .recomputes = true,
                            .at_turn = turn,
                            .event = event,
                            .failure = failure};
    const char *failed;

    memcpy(cfg.kinds, f->kinds, sizeof cfg.kinds);
    if (staged)
        cfg.stage = scenario < STAGE_SCENARIOS ? STAGE_WINDOWS : STAGE_WHOLE;
    (void)snprintf(history, sizeof history, "at %zu %d %zu %llu %d %d", (size_t)(f - fleets),
                   scenario, min_ready, (unsigned long long)turn, (int)event, (int)failure);
    failed = world_history(&cfg, (enum scenario)(scenario % STAGE_SCENARIOS));
    n_histories++;
    if (failed == NULL)
        return 0;
    (void)fprintf(stderr, "%s: %s\n", history, failed);
    return -1;
}

/* Returns: how many failed. */
static unsigned run_turns(const struct fleet_kinds *f, int scenario, size_t min_ready,
                          unsigned step)
{
    unsigned n_failed = run_at(f, scenario, min_ready, 0, EVENT_NONE, FAIL_NOT) != 0;
    uint64_t n_turns = world_n_turns();

    for (uint64_t turn = 1; turn <= n_turns; turn += step) {
        for (int event = 1; event < EVENTS; event++)
            n_failed += run_at(f, scenario, min_ready, turn, (enum event)event, FAIL_NOT) != 0;
        for (int failure = 1; failure < FAILURES; failure++)
            n_failed += run_at(f, scenario, min_ready, turn, EVENT_NONE, (enum failure)failure) !=
                        0;
    }
    return n_failed;
}

/* @step    every so many turns only
 * @k, @of  the kth part of so many */
static unsigned run_all_turns(unsigned step, uint64_t k, uint64_t of)
{
    int first = staged ? HANDOFF : 0, end = staged ? 2 * STAGE_SCENARIOS : SCENARIOS;
    unsigned n_failed = 0;
    uint64_t n = 0;

    for (size_t f = 0; f < sizeof fleets / sizeof fleets[0]; f++)
        for (int scenario = first; scenario < end; scenario++)
            for (size_t min_ready = 0; min_ready < 2; min_ready++)
                if (scenario % STAGE_SCENARIOS >= first && n++ % of == k)
                    n_failed += run_turns(&fleets[f], scenario, min_ready, step);
    return n_failed;
}

/* A request of the update hangs, at each of these turns. Returns: how many failed. */
static unsigned run_waits(unsigned step)
{
    unsigned n_failed = 0;

    for (size_t f = 0; f < sizeof fleets / sizeof fleets[0]; f++)
        for (int scenario = SCENARIOS; scenario < HANDOFF; scenario++)
            for (uint64_t turn = 1; turn <= WAIT_TURNS; turn += step)
                n_failed += run_at(&fleets[f], scenario, 1, turn, EVENT_NONE, FAIL_HANGS) != 0;
    return n_failed;
}

static int run_turns_only(uint64_t k, uint64_t of)
{
    unsigned n_failed = run_all_turns(1, k, of);

    (void)printf("turns, part %llu of %llu: %u histories, %u failed\n", (unsigned long long)k,
                 (unsigned long long)of, n_histories, n_failed);
    return n_failed > 0;
}

/* ---- tests ---- */

static void test_every_event_at_turns_of_everything(void **state)
{
    (void)state;
    assert_int_equal(run_all_turns(TURNS_STEP, 0, TURNS_PARTS), 0);
    print_message("%u histories\n", n_histories);
}

static void test_an_engine_changes_while_an_update_waits_for_another(void **state)
{
    (void)state;
    assert_int_equal(run_waits(WAITS_STEP), 0);
}

static void test_anything_at_any_moment(void **state)
{
    /* In longer runs; they failed once. */
    static const uint64_t found[] = {
        3822,    13150,    39402,    208922,   240292,   3054773,  3245259,  3349160,  3598347,
        3897664, 3909856,  3976856,  6006120,  6039122,  6069591,  6123497,  6276467,  6349433,
        8212532, 50000897, 50044901, 50508851, 50654618, 50739477, 70415543, 100011227};

    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        assert_int_equal(run_seed(seed), 0);
    for (size_t i = 0; i < sizeof found / sizeof found[0]; i++)
        assert_int_equal(run_seed(found[i]), 0);
}

static void test_every_event_at_turns_of_a_handoff(void **state)
{
    (void)state;
    staged = true;
    n_histories = 0;
    assert_int_equal(run_all_turns(STAGED_STEP, 0, TURNS_PARTS), 0);
    staged = false;
    print_message("%u histories\n", n_histories);
}

static void test_anything_at_any_moment_of_handoffs(void **state)
{
    static const uint64_t found[] = {35837,    40344,    4111679, /* in longer runs */
                                     5108997,  5110698,  8105018,  10004026, 11037897, 20046319,
                                     30007276, 30007690, 40054512, 40066784, 50024922, 50036603,
                                     50067157, 50050220, 90161151, 90186306, 100059336};

    (void)state;
    staged = true;
    for (uint64_t seed = 1; seed <= SEEDS / 2; seed++)
        assert_int_equal(run_seed(seed), 0);
    for (size_t i = 0; i < sizeof found / sizeof found[0]; i++)
        assert_int_equal(run_seed(found[i]), 0);
    staged = false;
}

/* ---- what is known to happen ---- */

/* vLLMs that do what they are asked for, and a version that is handed over whole. */
static void open_stage(size_t n, size_t min_ready)
{
    const struct world_cfg cfg = {.n_engines = n,
                                  .kinds = {UPSTREAM_VLLM, UPSTREAM_VLLM, UPSTREAM_VLLM},
                                  .min_ready = min_ready,
                                  .recomputes = true,
                                  .stage = STAGE_WHOLE};

    world_open(&cfg, n);
}

static void close_stage(void)
{
    const char *failed;

    for (size_t i = 0; i < world.n_engines; i++)
        world.engines[i].refuses = 0;
    world_run(30000000);
    for (size_t i = 0; i < world.n_engines; i++)
        assert_true(world_is_right(&world.engines[i]));
    failed = world_close();
    if (failed != NULL)
        fail_msg("%s", failed);
}

/* The delay after each failure is twice the one before, up to ten seconds. */
static void test_a_repair_that_fails_is_tried_less_often(void **state)
{
    unsigned n;

    (void)state;
    open_stage(3, 1);
    world.engines[0].refuses = 1u << API_UPDATE_WEIGHTS;
    stage_commit(false);
    world_run(60000000);
    n = world.engines[0].n_asked[API_UPDATE_WEIGHTS];
    close_stage();
    assert_in_range(n, 9, 13);
}

static void test_an_engine_that_failed_less_often_is_repaired_first(void **state)
{
    const unsigned *n_tries = &world.engines[0].n_asked[API_UPDATE_WEIGHTS];
    unsigned n, n_meanwhile;

    (void)state;
    open_stage(3, 1);
    world.engines[0].refuses = 1u << API_UPDATE_WEIGHTS;
    stage_commit(false);
    world_run(60000000);
    world_happens(EVENT_REPLACED, &world.engines[1]);
    for (size_t i = 0; i < 2; i++) /* both are due when it was noticed */
        fleet_engine(world_upstream(&world.engines[i]))->repair.due_us = clock_after_us(3000000);
    n = *n_tries;
    while (!world_is_right(&world.engines[1]) && check_failed() == NULL)
        world_run(10000);
    n_meanwhile = *n_tries - n;
    world_run(1000000);
    n = *n_tries - n;
    close_stage();
    assert_int_equal(n_meanwhile, 0);
    assert_int_equal(n, 1);
}

/* Whichever step fails. */
static void test_a_version_that_too_few_engines_got_is_an_error(void **state)
{
    static const enum api_op ops[] = {API_PAUSE, API_UPDATE_WEIGHTS, API_FINISH_UPDATE, API_RESUME};

    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        open_stage(2, 2);
        world.engines[1].refuses = 1u << ops[i];
        ask_commit();
        while (!ask_all_ended() && check_failed() == NULL)
            world_run(10000);
        assert_int_equal(stage_answer()->code, ERR_NOT_HANDED_OVER);
        assert_non_null(strstr(stage_answer()->msg, "committed here"));
        assert_true(world.engines[1].n_asked[ops[i]] > 0);
        close_stage();
    }
}

/* They answer with an error, and sleep all the same: nothing says then that the fleet sleeps, and
 * what they report is not taken for a client's own sleep. */
static void test_what_sleeps_after_an_error_is_woken(void **state)
{
    const struct world_cfg cfg = {.n_engines = 2, .kinds = {UPSTREAM_BATON, UPSTREAM_VLLM}};
    struct engine *g = world.engines;

    (void)state;
    world_open(&cfg, 2);
    for (size_t i = 0; i < 2; i++) {
        g[i].breaks = 1u << API_SLEEP;
        g[i].refuses = 1u << API_WAKE;
    }
    ask_event(EVENT_SLEEP, NULL);
    world_run(2000000);
    assert_true(g[0].weights_asleep && g[1].weights_asleep);
    g[0].refuses = g[1].refuses = 0;
    world_run(1500000); /* later the trainer wakes them */
    assert_true(world_is_right(&g[0]) && world_is_right(&g[1]));
    close_stage();
}

/* It has begun an update, and answers that with an error; what refuses the end of it, as a proxy
 * may, does not say that none is open. */
static void test_an_end_that_is_refused_does_not_count(void **state)
{
    const struct world_cfg cfg = {.n_engines = 2,
                                  .kinds = {UPSTREAM_VLLM, UPSTREAM_VLLM},
                                  .min_ready = 2,
                                  .recomputes = true};
    struct engine *g = &world.engines[0];

    (void)state;
    world_open(&cfg, 2);
    g->breaks = 1u << API_START_UPDATE;
    g->denies = 1u << API_FINISH_UPDATE;
    ask_update(1);
    world_run(10000000);
    assert_true(g->open && world_is_right(&world.engines[1]));
    assert_false(fleet_serves(world.fleet, world_upstream(g)));
    g->breaks = g->denies = 0;
    ask_update(1);
    close_stage();
}

/* One that knows no start answers it by 404, in each update. */
static void test_a_route_that_it_lacks_is_no_failure(void **state)
{
    const struct world_cfg cfg = {
        .n_engines = 2, .kinds = {UPSTREAM_SGLANG, UPSTREAM_SGLANG}, .recomputes = true};
    struct engine *g = &world.engines[1];
    struct upstream_info info;

    (void)state;
    world_open(&cfg, 2);
    assert_false(g->knows_start);
    ask_update(1);
    world_run(10000000);
    assert_true(g->n_asked[API_START_UPDATE] > 0 && world_is_right(g));
    fleet_info(world.fleet, world_upstream(g), &info);
    assert_int_equal(info.n_failures, 0);
    close_stage();
}

/* Returns: the first seed that notices it; 0: none does. */
static uint64_t find_broken(enum broken rule, uint64_t first, uint64_t last)
{
    uint64_t seed = first;

    broken = rule;
    staged = staged || rule >= BROKENS_STAGE;
    while (seed <= last && run_seed(seed) == 0)
        seed++;
    broken = BROKEN_NOT;
    return seed <= last ? seed : 0;
}

/* In a process of its own, as it may end by an assertion of the fleet, which notices it too. */
static bool is_noticed(enum broken rule)
{
    /* Few histories notice it: begin shortly before one. */
    static const uint64_t first[BROKENS] = {[BROKEN_SENT] = 5600};
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        (void)!freopen("/dev/null", "w", stderr);
        _exit(find_broken(rule, 1 + first[rule], first[rule] + BROKEN_SEEDS) == 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status == 0 || WIFSIGNALED(status);
}

static void test_each_rule_that_is_broken_is_noticed(void **state)
{
    (void)state;
    for (int rule = BROKEN_NOT + 1; WITH_BROKEN && rule < BROKENS; rule++)
        if (!is_noticed((enum broken)rule))
            fail_msg("rule %d is broken, and nothing notices it", rule);
}

static uint64_t number(const char *text)
{
    return strtoull(text, NULL, 10);
}

static int run_random(uint64_t first, uint64_t n)
{
    uint64_t failed[SEEDS_LISTED];
    unsigned n_failed = 0;

    for (uint64_t seed = first; seed < first + n; seed++)
        if (run_seed(seed) != 0 && n_failed++ < SEEDS_LISTED)
            failed[n_failed - 1] = seed;
    (void)printf("random, seeds %llu to %llu: %llu histories, %u failed", (unsigned long long)first,
                 (unsigned long long)(first + n - 1), (unsigned long long)n, n_failed);
    for (unsigned i = 0; i < n_failed && i < SEEDS_LISTED; i++)
        (void)printf("%s%llu", i == 0 ? ": " : " ", (unsigned long long)failed[i]);
    (void)printf("\n");
    return n_failed > 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_event_at_turns_of_everything),
        cmocka_unit_test(test_an_engine_changes_while_an_update_waits_for_another),
        cmocka_unit_test(test_anything_at_any_moment),
        cmocka_unit_test(test_every_event_at_turns_of_a_handoff),
        cmocka_unit_test(test_anything_at_any_moment_of_handoffs),
        cmocka_unit_test(test_a_repair_that_fails_is_tried_less_often),
        cmocka_unit_test(test_an_engine_that_failed_less_often_is_repaired_first),
        cmocka_unit_test(test_a_version_that_too_few_engines_got_is_an_error),
        cmocka_unit_test(test_what_sleeps_after_an_error_is_woken),
        cmocka_unit_test(test_an_end_that_is_refused_does_not_count),
        cmocka_unit_test(test_a_route_that_it_lacks_is_no_failure),
        cmocka_unit_test(test_each_rule_that_is_broken_is_noticed),
    };

    name_what_ends();
    staged = argc > 1 && strcmp(argv[1], "staged") == 0;
    argc -= staged;
    argv += staged;
    if (argc > 2 && strcmp(argv[1], "random") == 0)
        return run_random(argc > 3 ? number(argv[3]) : 1, number(argv[2]));
    if (argc > 2 && strcmp(argv[1], "seed") == 0)
        return run_seed(number(argv[2])) != 0;
    if (argc > 7 && strcmp(argv[1], "at") == 0)
        return run_at(&fleets[number(argv[2])], (int)number(argv[3]), number(argv[4]),
                      number(argv[5]), (enum event)number(argv[6]),
                      (enum failure)number(argv[7])) != 0;
    if (argc > 4 && strcmp(argv[1], "broken") == 0)
        return find_broken((enum broken)number(argv[2]), number(argv[3]), number(argv[4])) == 0;
    if (argc > 1 && strcmp(argv[1], "turns") == 0)
        return run_turns_only(argc > 3 ? number(argv[2]) : 0, argc > 3 ? number(argv[3]) : 1);
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
