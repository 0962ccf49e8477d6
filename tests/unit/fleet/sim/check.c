#include "tests/unit/fleet/sim/check.h"

#include "tests/unit/fleet/sim/sched.h"
#include "tests/unit/fleet/sim/world.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static char failure[400];

void check_begin(void)
{
    failure[0] = '\0';
}

void check_fail(const char *fmt, ...)
{
    size_t len;
    va_list args;

    if (failure[0] != '\0')
        return;
    va_start(args, fmt);
    (void)vsnprintf(failure, sizeof failure, fmt, args);
    va_end(args);
    len = strlen(failure);
    (void)snprintf(failure + len, sizeof failure - len, " (turn %llu)",
                   (unsigned long long)world.turn);
    world_trace("FAILS: %s", failure);
}

const char *check_failed(void)
{
    return failure[0] != '\0' ? failure : NULL;
}

/* ---- for the doubles ---- */

size_t check_index_of(const struct engine *g)
{
    return (size_t)(g - world.engines);
}

uint64_t check_turn(void)
{
    return world.turn;
}

unsigned check_accepted(int target)
{
    return world.accepted[target];
}

/* What the fleet may know of it, it knows: what it hears is handled before time passes. */
static bool is_known(const struct engine *g)
{
    return g->seen == g->process && g->seen_us < clock_now_us() && !world.asked_unknown;
}

static bool is_checked(const struct engine *g)
{
    return is_known(g) && engine_overwrites(g) && g->stray != g->process;
}

static const char *name_of(const struct engine *g)
{
    static char names[ENGINES_MAX][32];
    size_t i = check_index_of(g);

    (void)snprintf(names[i], sizeof names[i], "engine %zu (%s)", i, upstream_kind_name(g->kind));
    return names[i];
}

bool check_runs_request(const struct engine *g)
{
    (void)g;
    return world.cfg.seed == 0 || sched_chance(50);
}

void check_stale(const struct engine *g, const char *what)
{
    if (is_known(g))
        check_fail("I4: %s reads an entry of another version from its %s", name_of(g), what);
}

/* It gets the end of what was begun, as of its pause, and no more. */
bool check_is_removed(const struct engine *g)
{
    const struct upstream *u = world_upstream(g);

    return u == NULL || upstream_is_removed(u);
}

bool check_is_fenced(const struct engine *g)
{
    struct upstream *u = world_upstream(g);
    struct upstream_info info = {.fenced = false};

    if (u != NULL)
        fleet_info(world.fleet, u, &info);
    return info.fenced;
}

/* ... and that, and the rest of the update, also if it was added again meanwhile. */
static bool has_left(const struct engine *g)
{
    return check_is_removed(g) || world.asked_removed ||
           (g->left != 0 && engine_version(g) == g->left);
}

bool check_is_open(int target)
{
    struct fleet_session *open = fleet_open_session(world.fc);
    bool is = open != NULL && world_label(open->label) == target;

    fleet_unref(world.fc, open);
    return is;
}

/* A baton may have committed what the fleet has yet to hear of, or never will, if the answer was
 * lost (docs/guarantees.md): requests that run there go on with it, and that version counts as seen
 * only once it is the fleet's. */
void check_token(struct engine *g, bool held)
{
    int version = engine_version(g), fleet = world_version();

    if (!is_known(g) || (held && (g->stray == g->process || g->released || has_left(g))))
        return;
    if (held && ((version == TORN && g->dropped) || version == FOREIGN))
        return; /* a sleep of level 2, or another client, spoils what it holds */
    if (version == TORN)
        check_fail("I8: %s makes tokens of weights of no version", name_of(g));
    else if (engine_overwrites(g) && fleet != TORN && version > fleet)
        check_fail("I9: %s makes tokens of v%d, and the fleet has v%d", name_of(g), version, fleet);
    else if (!held && fleet != TORN && version != fleet)
        check_fail("I4: %s makes tokens of v%d for a new request, and the fleet has v%d",
                   name_of(g), version, fleet);
    else if (!held && version < world.newest)
        check_fail("I9: %s makes tokens of v%d after v%d was seen", name_of(g), version,
                   world.newest);
    if (version > world.newest && version <= fleet && version != FOREIGN)
        world.newest = version;
}

void check_stray(struct engine *g)
{
    if (!is_known(g))
        g->stray = g->process;
}

void check_tensors(struct engine *g, int target)
{
    bool marked = fleet_is_dirty_marker(g->label) || g->unnamed;

    if (!engine_overwrites(g))
        return;
    check_stray(g);
    if (!is_known(g))
        return;
    if (world.first_byte[target] == 0)
        world.first_byte[target] = world.turn;
    if (!g->paused && !g->kv_asleep)
        check_fail("I8: %s gets tensors while it runs", name_of(g));
    else if (!marked)
        check_fail("I8: %s gets tensors without the dirty marker", name_of(g));
    else if (g->marked_at > world.first_byte[target])
        check_fail("I8: %s is prepared after the first tensors of v%d", name_of(g), target);
}

void check_repeat(const struct engine *g, int target, unsigned chunk)
{
    if (is_known(g) && world.sent[target][chunk] <= 1)
        check_fail("I7: %s gets tensors twice that were sent once", name_of(g));
}

/* An SGLang's end without tensors, or of what is fenced, closes its update only. */
void check_finish(const struct engine *g, bool labelled)
{
    if (!is_checked(g) || !labelled || g->kind != UPSTREAM_VLLM)
        return;
    if (g->chunks == 0 || (g->chunks & world.accepted[g->target]) != world.accepted[g->target])
        check_fail("I7: %s gets the end of an update without its tensors", name_of(g));
    else if (g->lost_target == g->target)
        check_fail("I7: %s gets the end of an update after an answer to its tensors was lost",
                   name_of(g));
}

void check_resume(const struct engine *g)
{
    int version = engine_version(g);

    if (!is_checked(g) || has_left(g))
        return;
    if (g->n_finishes > 0)
        check_fail("I8: %s is resumed before its update has ended", name_of(g));
    else if (version == TORN && !g->dropped)
        check_fail("I8: %s is resumed with weights of no version", name_of(g));
    else if (world_version() != TORN && version > world_version() && version != FOREIGN)
        check_fail("I9: %s is resumed with v%d, and the fleet has v%d", name_of(g), version,
                   world_version());
}

void check_crash(struct engine *g, const char *what)
{
    if (what != NULL && is_known(g))
        check_fail("%s: %s", what, name_of(g));
    world_restart(g, 3000000);
}

/* ---- at each turn ---- */

static void check_label(const struct engine *g)
{
    int version = engine_version(g);

    if (!g->up || !is_checked(g) || g->unnamed || fleet_is_dirty_marker(g->label))
        return;
    if (version == TORN && !g->dropped)
        check_fail("I14: %s has weights of no version, and reports '%s'", name_of(g), g->label);
    else if (version != TORN && world_label(g->label) != version)
        check_fail("I14: %s has v%d, and reports '%s'", name_of(g), version, g->label);
}

static void check_reasons(struct upstream *u)
{
    struct upstream_error errors[UPSTREAM_ERRORS_MAX];

    if (!fleet_serves(world.fleet, u) && !upstream_is_removed(u) &&
        fleet_errors(world.fleet, u, errors) == 0 &&
        (u->out & REASON_BIT(REASON_NEVER_REACHED)) == 0)
        check_fail("I11: '%s' does not serve, and gives no reason (%x)", upstream_name(u), u->out);
}

static void check_asks(void)
{
    uint64_t now_us = clock_now_us();

    for (size_t i = 0; i < ASKS_MAX; i++)
        if (world.asks[i].what != NULL && now_us > world.asks[i].end_by_us)
            check_fail("I10: %s has not ended in time", world.asks[i].what);
}

/* Its truth, and what the fleet knows of it. */
static void describe(const struct engine *g, char *out, size_t cap)
{
    const struct upstream *u = world_upstream(g);
    size_t len = (size_t)snprintf(out, cap, "%s: process %u, v%d as '%s'%s%s%s%s; ", name_of(g),
                                  g->process, engine_version(g), g->label, g->up ? "" : ", down",
                                  g->paused ? ", paused" : "", g->open ? ", open" : "",
                                  g->weights_asleep || g->kv_asleep ? ", asleep" : "");
    int reason = 0;

    if (u == NULL) {
        (void)snprintf(out + len, cap - len, "not a member");
        return;
    }
    len += (size_t)snprintf(out + len, cap - len,
                            "incarnation %llu, gate %d, out:", (unsigned long long)u->incarnation,
                            (int)u->have.gate);
    for (; reason < UPSTREAM_REASONS && len < cap; reason++)
        if ((u->out & REASON_BIT(reason)) != 0)
            len += (size_t)snprintf(out + len, cap - len, " %s",
                                    upstream_reason_name((enum upstream_reason)reason));
}

/* For a reader: what the fleet thinks, and what is, when that has changed. */
static void trace_changes(void)
{
    static char shown[ENGINES_MAX + 1][200];
    struct fleet_stats stats;
    char now[sizeof shown[0]];

    if (!world.traced)
        return;
    fleet_stats(world.fleet, &stats);
    (void)snprintf(now, sizeof now, "the fleet has '%s', serial %llu; seen: v%d", stats.label,
                   (unsigned long long)stats.serial, world.newest);
    for (size_t i = 0; i <= world.n_engines; i++) {
        if (strcmp(now, shown[i]) != 0)
            world_trace("    %s", now);
        memcpy(shown[i], now, sizeof now);
        if (i < world.n_engines)
            describe(&world.engines[i], now, sizeof now);
    }
}

void check_now(void)
{
    struct fleet_stats stats;

    trace_changes();
    if (check_failed() != NULL)
        return;
    fleet_stats(world.fleet, &stats);
    if (stats.serial < world.serial)
        check_fail("I9: serial %llu after %llu", (unsigned long long)stats.serial,
                   (unsigned long long)world.serial);
    world.serial = stats.serial;
    if (stats.serial == 0 && world_label(stats.label) != TORN) /* it has what engines report */
        world.newest = world_label(stats.label) == FOREIGN ? 0 : world_label(stats.label);
    for (size_t i = 0; i < world.n_engines; i++) {
        struct upstream *u = world_upstream(&world.engines[i]);

        check_label(&world.engines[i]);
        if (u != NULL)
            check_reasons(u);
    }
    check_asks();
}

/* ---- requests of clients ---- */

static void granted(void *arg)
{
    (void)arg;
}

/* It has answered that it has loaded it, and was not taken for another process since. An answer is
 * known when time has passed since. */
static bool is_known_to_have(const struct engine *g, int adapter)
{
    return g->answered == adapter && g->answered_us < clock_now_us() && !check_is_removed(g) &&
           g->answered_incarnation == world_incarnation(g);
}

/* An adapter that no member is known to have keeps out none that has refused it: all are alike
 * without it. */
static bool may_lack_adapter(const struct engine *g)
{
    for (size_t i = 0; i < world.n_engines; i++)
        if (is_known_to_have(&world.engines[i], world.adapter))
            return false;
    return g->adapter == 0 && g->refused == world.adapter;
}

static void check_grant(struct engine *g)
{
    if (!g->up || !is_known(g))
        return;
    if (g->n_finishes > 0)
        check_fail("I17: %s gets a request while its update ends", name_of(g));
    if (g->not_resumed_us != 0 && g->not_resumed_us < clock_now_us() && g->paused &&
        g->gates.n == 0 && world.n_pauses == 0)
        check_fail("I4: %s gets a request, and its last resume has failed", name_of(g));
    if (world.n_loads == 0 && !world.adapter_unsure && g->adapter != world.adapter &&
        !may_lack_adapter(g))
        check_fail("I4: %s gets a request with adapter %d, and the fleet has %d", name_of(g),
                   g->adapter, world.adapter);
    if (engine_overwrites(g) && g->open && engine_runs(g) && !g->unclosed)
        check_fail("I4: %s gets a request while it has an update open", name_of(g));
    engine_token(g, true);
}

/* So many at the same time that each engine in rotation gets one. */
void check_requests(void)
{
    struct fleet_ticket t[ENGINES_MAX];
    struct err e = {0};
    size_t n = 0;

    for (; n < world.n_engines && check_failed() == NULL; n++) {
        t[n] = (struct fleet_ticket){.ticket = {.granted = granted}, .queue = FLEET_GENERATE};
        if (fleet_permit_acquire(world.fleet, &t[n], &e) != 0)
            break;
        if (fleet_permit_cancel(world.fleet, &t[n])) {
            fleet_settle(world.fleet, &t[n]);
            break;
        }
        check_grant(&world.engines[upstream_name(t[n].upstream)[8] - '0']);
    }
    if (e.code != ERR_NONE)
        fleet_settle(world.fleet, &t[n]);
    for (size_t i = 0; i < n; i++) {
        t[i].responded = true;
        fleet_settle(world.fleet, &t[i]);
        fleet_permit_release(world.fleet, &t[i]);
    }
}
