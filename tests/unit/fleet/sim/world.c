#include "tests/unit/fleet/sim/world.h"

#include "tests/unit/fleet/sim/ask.h"
#include "tests/unit/fleet/sim/check.h"
#include "tests/unit/fleet/sim/sched.h"
#include "tests/unit/fleet/sim/stage.h"

#include "base/log.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    AWAY_US = 3500000,  /* of an engine that restarts: a probe in between is refused */
    GONE_US = 20000000, /* ... for long */
    HEAL_US = 70000000, /* the longest between two attempts is 30 s */
    STEPS_MAX = 400000
};

struct world world;

static const char *const urls[ENGINES_MAX] = {"http://e0:80", "http://e1:80", "http://e2:80",
                                              "http://e3:80"};

void world_trace(const char *fmt, ...)
{
    va_list args;

    if (!world.traced)
        return;
    (void)fprintf(stderr, "%4llu %9.3f ", (unsigned long long)world.turn,
                  (double)clock_now_us() / 1e6);
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fprintf(stderr, "\n");
}

/* ---- what is around ---- */

__typeof__(log_end) __wrap_log_end, __wrap_log_event;
__typeof__(log_event_line) __wrap_log_event_line;

void __wrap_log_end(struct log_rec *r)
{
    (void)r;
}

void __wrap_log_event(struct log_rec *r)
{
    world_trace("log: %.*s", (int)r->len, r->text);
}

void __wrap_log_event_line(enum log_level level, const char *event, const char *fmt, ...)
{
    (void)level;
    (void)event;
    (void)fmt;
}

/* No memory for the requests. */

__typeof__(fleet_request) __wrap_fleet_request, __real_fleet_request;
__typeof__(fleet_query) __wrap_fleet_query, __real_fleet_query;

static bool memory_fails(void)
{
    return !world.quiet && sched_chance(world.cfg.memory_percent);
}

int __wrap_fleet_request(struct fleet_control *fc, enum api_op op,
                         const struct fleet_target *targets, size_t n, uint64_t timeout_us,
                         struct fleet_results *results, struct err *e)
{
    return memory_fails() ? err_set(e, ERR_NO_MEMORY, "", "no memory")
                          : __real_fleet_request(fc, op, targets, n, timeout_us, results, e);
}

int __wrap_fleet_query(struct fleet_control *fc, enum api_query q,
                       const struct fleet_target *targets, size_t n, uint64_t timeout_us,
                       struct fleet_results *results, struct err *e)
{
    return memory_fails() ? err_set(e, ERR_NO_MEMORY, "", "no memory")
                          : __real_fleet_query(fc, q, targets, n, timeout_us, results, e);
}

/* ---- the fleet ---- */

const char *world_url(size_t i)
{
    return urls[i];
}

struct upstream *world_upstream(const struct engine *g)
{
    upstream_list_auto *all = fleet_list(world.fleet);

    for (size_t i = 0; i < all->n; i++)
        if (strcmp(upstream_name(all->items[i]), urls[check_index_of(g)]) == 0)
            return all->items[i];
    return NULL;
}

uint64_t world_incarnation(const struct engine *g)
{
    struct upstream *u = world_upstream(g);
    struct upstream_info info = {.incarnation = 0};

    if (u != NULL)
        fleet_info(world.fleet, u, &info);
    return info.incarnation;
}

int world_label(const char *label)
{
    int version;

    return sscanf(label, "v%d", &version) == 1 ? version : TORN;
}

int world_version(void)
{
    struct fleet_stats stats;

    fleet_stats(world.fleet, &stats);
    return world_label(stats.label);
}

static void open_fleet(size_t n_joined)
{
    static char entries[ENGINES_MAX][64];
    const char *given[ENGINES_MAX];
    struct upstreams_cfg cfg = {.entries = given,
                                .n_entries = n_joined,
                                .min_ready = world.cfg.min_ready,
                                .staged = world.cfg.stage != STAGE_NOT,
                                .boot_id = "this",
                                .n_permits = {9, 9},
                                .n_queue_max = {9, 9},
                                .probe_interval_us = 1000000,
                                .probe_timeout_us = PROBE_US,
                                .generation_probe_every = 5};
    struct fleet_control_cfg control = {.update_us = 60000000,
                                        .recomputes = world.cfg.recomputes,
                                        .pause_fenced = world.cfg.pause_fenced};
    struct workers_cfg none = {.n_threads = 1};
    struct err e = {0};
    int rc;

    for (size_t i = 0; i < world.n_engines; i++) {
        (void)snprintf(entries[i], sizeof entries[i], "%s,%s", urls[i],
                       upstream_kind_name(world.engines[i].kind));
        given[i] = entries[i];
    }
    rc = upstreams_new(&world.upstreams, &cfg, &e);
    assert(rc == 0);
    world.fleet = upstreams_fleet(world.upstreams);
    rc = workers_new(&control.executor, &none, &e);
    assert(rc == 0);
    control.upstreams = world.upstreams;
    control.blocking = control.executor;
    rc = fleet_control_new(&world.fc, &control, &e);
    assert(rc == 0);
    if (world.cfg.stage != STAGE_NOT)
        stage_open(world.fc);
    rc = upstreams_start(world.upstreams, &e);
    assert(rc == 0);
    fleet_control_watch(world.fc);
}

/* ---- engines ---- */

static void on_back(void *arg)
{
    struct engine *g = arg;

    engine_start(g);
    world_trace("engine %zu is back", check_index_of(g));
}

void world_restart(struct engine *g, uint64_t away_us)
{
    if (!g->up)
        return;
    world_trace("engine %zu ends", check_index_of(g));
    g->up = false;
    g->n_finishes = 0;
    sched_after(away_us, on_back, g);
}

void world_note_down(struct engine *g)
{
    struct upstream *u = world_upstream(g);
    struct upstream_info info;

    if (u == NULL)
        return;
    fleet_info(world.fleet, u, &info);
    if (!info.alive)
        g->seen = g->process + 1;
}

/* ---- what happens ---- */

static void restart_at_once(struct engine *g)
{
    if (!g->up || g->kind == UPSTREAM_SGLANG) {
        world_restart(g, AWAY_US);
        return;
    }
    g->up = false;
    engine_start(g);
}

/* Not into an update of ours: others are told not to. It is known when it is reported. */
static void push_foreign(struct engine *g)
{
    const struct fleet_locks *locks = &world.fc->locks;

    if (!g->up || g->open || g->weights_asleep || g->n_queries > 0 || world.fc->session != NULL ||
        world.fc->starting != NULL || locks->op.operation != NULL ||
        locks->abort.operation != NULL || check_is_removed(g))
        return;
    g->weights = FOREIGN;
    g->chunks = 0;
    g->caches = (struct caches){NO_ENTRY, NO_ENTRY, NO_ENTRY};
    g->seen = 0;
    (void)snprintf(g->label, sizeof g->label, "v%d", FOREIGN);
    (void)snprintf(g->committed_id, sizeof g->committed_id, "foreign");
}

void world_happens(enum event event, struct engine *g)
{
    world_trace("happens: %d at %zu", (int)event, check_index_of(g));
    switch (event) {
    case EVENT_RESTART:
        world_restart(g, AWAY_US);
        break;
    case EVENT_REPLACED:
        restart_at_once(g);
        break;
    case EVENT_GONE:
        world_restart(g, GONE_US);
        break;
    case EVENT_FOREIGN:
        push_foreign(g);
        break;
    case EVENT_SILENCE:
        world.silent = true;
        break;
    case EVENT_PROBE:
        upstreams_probe_now(world.upstreams);
        break;
    default:
        ask_event(event, g);
        break;
    }
}

enum failure world_at_turn(struct engine *g, enum api_op op)
{
    const struct world_cfg *cfg = &world.cfg;

    world.turn++;
    if (world.quiet)
        return FAIL_NOT;
    if (world.turn == cfg->at_turn) {
        if (cfg->event != EVENT_NONE)
            world_happens(cfg->event, g);
        return cfg->failure;
    }
    if (cfg->seed != 0 && cfg->event_percent > 0 && sched_draw(1000) < cfg->event_percent)
        world_happens((enum event)(1 + sched_draw(cfg->n_events - 1)), g);
    if (!sched_chance(cfg->fail_percent))
        return FAIL_NOT;
    (void)op;
    return (enum failure)(1 + sched_draw(cfg->n_failures - 1));
}

/* ---- a history ---- */

static unsigned n_steps;
static uint64_t n_turns;

uint64_t world_n_turns(void)
{
    return n_turns;
}

static bool step(void)
{
    bool any = sched_step();

    if (n_steps++ > STEPS_MAX)
        check_fail("I10: it does not come to an end");
    if (any && n_steps % 8 == 0)
        check_requests();
    return any && check_failed() == NULL;
}

/* Until all asks have ended, or this time is over. */
static void run_asks(void)
{
    while (check_failed() == NULL && !ask_all_ended())
        if (!step())
            check_fail("I10: requests wait, and nothing will happen");
}

static bool has_the_name(const struct engine *g)
{
    struct fleet_stats stats;

    fleet_stats(world.fleet, &stats);
    return strcmp(g->label, stats.label) == 0;
}

/* @pushed  and has no update open: an earlier one is closed by the next at the latest; that of a
 *          baton before, unless it was begun before the baton was removed */
static bool is_right(const struct engine *g, bool pushed)
{
    struct upstream *u = world_upstream(g);

    if (u == NULL || upstream_is_removed(u))
        return true;
    return fleet_serves(world.fleet, u) && engine_runs(g) &&
           !(g->open && (pushed || (!engine_overwrites(g) && !g->was_removed))) &&
           engine_version(g) == world_version() && has_the_name(g);
}

static bool all_are_right(bool pushed)
{
    if (world.cfg.stage != STAGE_NOT && world.target > 0 && world_version() != world.target)
        return false;
    for (size_t i = 0; i < world.n_engines; i++)
        if (!is_right(&world.engines[i], pushed))
            return false;
    return true;
}

static void run_until_right(uint64_t us, bool pushed)
{
    uint64_t end_us = clock_now_us() + us;

    while (clock_now_us() < end_us && !all_are_right(pushed) && step())
        continue;
}

/* Nothing but an update, or a restart, gives it what it lacks. */
static bool needs_push(const struct upstream *u)
{
    unsigned by_push = OUT_WRONG_WEIGHTS | REASON_BIT(REASON_ASLEEP) | REASON_BIT(REASON_DOWN);

    if (world.cfg.stage != STAGE_NOT) /* then a push is this server's */
        by_push = REASON_BIT(REASON_ASLEEP) | REASON_BIT(REASON_DOWN);
    if (fleet_awaits_name(u)) /* it has the version, and is given its last name */
        by_push &= ~REASON_BIT(REASON_OTHER_WEIGHTS);
    return (u->out & by_push) != 0;
}

static void tell_wrong(const char *when, const struct engine *g)
{
    struct upstream *u = world_upstream(g);
    struct upstream_info info;

    fleet_info(world.fleet, u, &info);
    check_fail("I11: %s: engine %zu (%s) %s: %s, %s; %s; v%d as '%s' of v%d%s%s%s%s", when,
               check_index_of(g), upstream_kind_name(g->kind), upstream_state_name(info.state),
               fleet_serves(world.fleet, u) ? "serves" : "is out", g->up ? "up" : "down",
               info.error.why.msg, engine_version(g), g->label, world_version(),
               g->paused ? ", paused" : "", g->weights_asleep || g->kv_asleep ? ", asleep" : "",
               g->open ? ", open" : "", g->seen != g->process ? ", not seen" : "");
}

/* Then it, and with it the next version, has to wait for a person. */
static bool keeps_window(void)
{
    for (size_t i = 0; i < world.n_engines; i++)
        if (stage_keeps_window(&world.engines[i]))
            return true;
    return false;
}

/* What needs no push is right by itself. */
static void check_healed(const char *when, bool pushed)
{
    for (size_t i = 0; i < world.n_engines && check_failed() == NULL; i++) {
        const struct engine *g = &world.engines[i];
        const struct upstream *u = world_upstream(g);

        if (!is_right(g, pushed) && (pushed || !(needs_push(u) || keeps_window())))
            tell_wrong(when, g);
    }
}

/* It hides whether it sleeps: nobody wakes it, and nobody sends it tensors. */
static void restart_hidden(void)
{
    for (size_t i = 0; i < world.n_engines; i++) {
        struct engine *g = &world.engines[i];
        const struct upstream *u = world_upstream(g);

        if (u != NULL && !is_right(g, false) && g->kind == UPSTREAM_SGLANG &&
            (g->weights_asleep || g->kv_asleep || fleet_may_sleep(world.fleet, u) ||
             stage_keeps_window(g)))
            world_restart(g, AWAY_US);
    }
}

static void recover(void)
{
    world.quiet = true;
    world.silent = false;
    world.cfg.at_turn = 0;
    ask_recover();
    run_asks();
    run_until_right(HEAL_US, false);
    check_healed("without a push", false);
    restart_hidden();
}

/* What is committed gets everywhere, and so does the next version. */
static void heal_staged(void)
{
    recover();
    run_until_right(HEAL_US, true);
    check_healed("without another version", true);
    if (check_failed() == NULL && world.target > 0 && world_version() != world.target)
        check_fail("I11: v%d is committed, and the fleet has v%d", world.target, world_version());
    if (check_failed() != NULL)
        return;
    ask_commit();
    run_asks();
    run_until_right(HEAL_US, true); /* a request from before that may hang still */
    check_healed("after another version", true);
    if (check_failed() == NULL && world_version() != world.target)
        check_fail("I11: v%d is committed, the fleet has v%d", world.target, world_version());
}

static void heal(void)
{
    recover();
    run_until_right(5000000, false);
    for (int n = 0; n < 3 && check_failed() == NULL && (n == 0 || !all_are_right(true)); n++) {
        ask_update(CHUNKS);
        run_asks();
        run_until_right(n == 2 ? HEAL_US : HEAL_US / 4, true);
    }
    check_healed("after a whole update", true);
}

static void close_fleet(void)
{
    upstreams_stop(world.upstreams);
    if (world.cfg.stage != STAGE_NOT)
        stage_stop();
    while (sched_n_jobs() > 0 && sched_step())
        continue;
    upstreams_free(world.upstreams);
    if (world.cfg.stage != STAGE_NOT)
        stage_close();
    fleet_control_free(world.fc);
}

void world_open(const struct world_cfg *cfg, size_t n_joined)
{
    world = (struct world){.cfg = *cfg, .n_engines = cfg->n_engines, .quiet = true};
    world.traced = getenv("SIM_TRACE") != NULL;
    n_steps = 0;
    check_begin();
    ask_begin_history();
    stage_begin();
    sched_begin(cfg->seed, cfg->yield_percent, cfg->seed == 0);
    for (size_t i = 0; i < cfg->n_engines; i++) {
        world.engines[i].kind = cfg->kinds[i];
        world.engines[i].knows_start = cfg->kinds[i] != UPSTREAM_SGLANG || i % 2 == 0;
        engine_start(&world.engines[i]);
        world.engines[i].seen = world.engines[i].process;
        world.engines[i].caches = (struct caches){0}; /* of an earlier server: of no version here */
    }
    open_fleet(n_joined);
    run_until_right(10000000, true);
    check_healed("at the start", true);
}

void world_run(uint64_t us)
{
    uint64_t end_us = clock_now_us() + us;

    while (clock_now_us() < end_us && step())
        continue;
}

bool world_is_right(const struct engine *g)
{
    return is_right(g, true);
}

const char *world_close(void)
{
    if (check_failed() == NULL)
        close_fleet();
    return check_failed();
}

const char *world_history(const struct world_cfg *cfg, enum scenario scenario)
{
    world_open(cfg, cfg->n_engines - (scenario == JOIN || scenario == REPAIR_JOIN));
    if (scenario >= REPAIR) { /* of what was handed over */
        ask_commit();
        run_asks();
        run_until_right(10000000, true);
    }
    world.turn = 0;
    for (size_t i = 0; i < world.n_engines; i++)
        world.engines[i].marked_at = 0;
    world.quiet = false;
    ask_scenario(scenario);
    run_asks();
    n_turns = world.turn;
    if (check_failed() == NULL && world.cfg.stage != STAGE_NOT)
        heal_staged();
    else if (check_failed() == NULL)
        heal();
    return world_close();
}
