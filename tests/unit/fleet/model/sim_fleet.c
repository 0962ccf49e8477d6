/* The simulated loop: probes, processes, the pause of all engines, turns. */
#include "tests/unit/fleet/model/sim_fleet.h"

#include <stdio.h>
#include <string.h>

static const struct sim *sim_of_clock;

uint64_t __wrap_clock_after_us(uint64_t us);
uint64_t __wrap_clock_after_us(uint64_t us)
{
    return sim_of_clock->now_us + us;
}

unsigned sim_random(struct sim *s, unsigned n)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return (unsigned)((s->random >> 16) % n);
}

void sim_violate(struct sim *s, const char *what)
{
    if (s->violation == NULL)
        s->violation = what;
}

void sim_init(struct sim *s, enum sim_broken broken, uint64_t seed)
{
    memset(s, 0, sizeof *s);
    sim_of_clock = s;
    s->broken = broken;
    s->random = (seed + 1) * 0x9e3779b97f4a7c15u;
    s->now_us = S;
    s->w = (struct wants){.pause = GATE_RUNNING,
                          .sleep_level = 1,
                          .adapters = s->adapters,
                          .n_adapters = SIM_ADAPTERS};
    for (int i = 0; i < 8; i++)
        (void)sim_random(s, 2);
}

/* ---- what is known ---- */

bool sim_is_up(const struct sim *s, const struct sim_engine *e)
{
    return e->up_us <= s->now_us;
}

struct engine_now sim_now(const struct sim_engine *e)
{
    return (struct engine_now){.kind = e->d.kind,
                               .reachable = e->reachable,
                               .serves = e->serves,
                               .have = &e->have,
                               .part = &e->part};
}

uint32_t sim_under_way(const struct sim_engine *e)
{
    uint32_t bits = 0;

    for (int i = 0; i < SIM_OPS; i++)
        for (size_t k = 0; e->ops[i].is_used && k < e->ops[i].n_calls; k++)
            bits |= 1u << e->ops[i].calls[k].request;
    return bits;
}

bool sim_has_op(const struct sim_engine *e, enum engine_request request)
{
    return sim_under_way(e) >> request & 1;
}

void sim_wants(const struct sim *s, const struct sim_engine *e, struct wants *out)
{
    *out = s->w;
    if (e->removed && s->broken != BROKEN_REMOVED)
        wants_of_removed(out, &s->w);
}

bool sim_plan(struct sim *s, struct sim_engine *e, uint32_t under_way, struct plan *plan)
{
    struct retry retry[ASPECTS];
    struct engine_now now = sim_now(e);

    memcpy(retry, e->retry, sizeof retry);
    if (s->broken >= BROKEN_ROW_SLEEP)
        retry[s->broken - BROKEN_ROW_SLEEP].due_us = UINT64_MAX;
    sim_see(s, e, &s->seen);
    sim_wants(s, e, &s->seen_wants);
    now.have = &s->seen;
    return aspect_next(&now, &s->seen_wants, s->broken == BROKEN_LANES ? 0 : under_way, retry,
                       s->now_us, plan);
}

/* ---- processes ---- */

void sim_reset(struct sim *s, struct sim_engine *e)
{
    struct engine_have kept = e->have;
    struct adapter_have adapters[SIM_ADAPTERS];
    bool named = upstream_caps(e->d.kind)->status_names_process;

    e->known = e->d.process;
    e->skipped_reset = false;
    if (s->broken == BROKEN_RESET)
        return;
    memcpy(adapters, e->adapters, sizeof adapters);
    have_reset(&e->have, e->d.kind, named && s->broken != BROKEN_RESET_SENT ? e->sent : 0);
    if (s->broken == BROKEN_RESET_GROUPS)
        e->have.groups = kept.groups;
    if (s->broken == BROKEN_RESET_ADAPTERS)
        memcpy(e->adapters, adapters, sizeof adapters);
    memset(e->retry, 0, sizeof e->retry);
    sim_part_failed(s, e);
}

/* A process that does not name itself is away long enough for a probe to notice. */
void sim_restart(struct sim *s, struct sim_engine *e)
{
    bool named = upstream_caps(e->d.kind)->status_names_process;

    double_boot(&e->d);
    e->up_us = s->now_us + (named ? sim_random(s, 2) * 2 * S : 2 * S);
    for (int i = 0; i < SIM_OPS; i++)
        if (e->ops[i].is_used && e->ops[i].end_us > s->now_us && sim_random(s, 2))
            e->ops[i].end_us = s->now_us;
    if (named && sim_random(s, 2))
        e->probe_us = s->now_us; /* an answer that was on its way comes after it */
}

struct sim_engine *sim_join(struct sim *s, enum upstream_kind kind)
{
    struct sim_engine *e = NULL;

    for (int i = 0; i < SIM_ENGINES && e == NULL; i++)
        e = s->engines[i].is_used ? NULL : &s->engines[i];
    if (e == NULL)
        return NULL;
    memset(e, 0, sizeof *e);
    e->d.kind = kind;
    e->d.process = s->now_us; /* no other had the same */
    double_boot(&e->d);
    e->is_used = e->reachable = true;
    e->known = e->d.process;
    e->d.holds_requests = sim_random(s, 4) == 0;
    have_init(&e->have, e->adapters, SIM_ADAPTERS);
    if (s->broken == BROKEN_FIRST_CACHES)
        e->have.caches.tried = e->have.caches.emptied = e->have.caches.second = 1;
    return e;
}

void sim_see_report(struct sim_engine *e)
{
    uint32_t changing = sim_under_way(e) & ~(1u << REQUEST_READ_LABEL | 1u << REQUEST_PROVE);

    e->serves = double_runs(&e->d);
    if (e->d.kind == UPSTREAM_SGLANG && e->serves)
        have_token(&e->have, changing == 0);
}

static void probe(struct sim *s, struct sim_engine *e)
{
    bool named = upstream_caps(e->d.kind)->status_names_process;

    e->probe_us = s->now_us + S;
    if (!sim_is_up(s, e)) {
        e->reachable = e->serves = false;
        e->was_down = true;
        return;
    }
    if (named ? e->known != e->d.process : e->was_down)
        sim_reset(s, e);
    e->was_down = false;
    e->reachable = true;
    e->sent = sim_under_way(e);
    sim_see_report(e);
}

/* ---- a pause of all, or of none ---- */

void sim_pause(struct sim *s)
{
    struct sim_ask *ask = &s->ask;

    if (ask->is_open)
        return;
    *ask = (struct sim_ask){.is_open = true, .end_us = s->now_us + 3 * S, .before = s->w.pause};
    for (int i = 0; i < SIM_ENGINES; i++)
        if (s->engines[i].is_used && s->engines[i].reachable && !s->engines[i].removed)
            ask->targets[i] = s->engines[i].known;
    s->w.pause = GATE_KEPT;
}

void sim_rename(struct sim *s)
{
    if (s->update.phase != PHASE_NONE || !s->w.version.decided)
        return;
    (void)snprintf(s->w.version.label, sizeof s->w.version.label, "v%d-%u",
                   (int)s->w.version.serial, sim_random(s, 100));
    for (int i = 0; i < SIM_ENGINES; i++)
        s->engines[i].have.label.read = false;
}

static void end_ask(struct sim *s)
{
    s->ask.is_open = s->broken == BROKEN_ASK_TWICE && s->ask.n_ends == 0;
    if (++s->ask.n_ends > 1)
        sim_violate(s, "I10: an ask ended twice");
}

void sim_resume(struct sim *s)
{
    if (s->ask.is_open)
        end_ask(s);
    s->w.pause = GATE_RUNNING;
    for (int i = 0; i < SIM_ENGINES; i++)
        if (s->engines[i].have.pause == GATE_NOT_OURS) /* it goes to these, too */
            s->engines[i].d.paused = s->engines[i].d.paused_by_other = false;
}

static void settle_ask(struct sim *s)
{
    bool settled = true;

    if (!s->ask.is_open)
        return;
    for (int i = 0; i < SIM_ENGINES; i++) {
        const struct sim_engine *e = &s->engines[i];

        settled = settled && (s->ask.targets[i] != e->known || !e->reachable || e->removed ||
                              gate_is_closed(e->have.pause));
    }
    if (settled) {
        end_ask(s);
    } else if (s->now_us >= s->ask.end_us && s->broken != BROKEN_ASK_DEADLINE) {
        s->w.pause = s->ask.before;
        end_ask(s);
    }
    if (s->ask.is_open && s->now_us > s->ask.end_us + S)
        sim_violate(s, "I10: an ask waits beyond its deadline");
}

/* ---- the loop ---- */

static void drive(struct sim *s, struct sim_engine *e)
{
    struct plan plan;

    for (int i = 0; sim_plan(s, e, sim_under_way(e), &plan) && s->violation == NULL; i++) {
        if (plan.step.calls[0].request != REQUEST_REPAIR) {
            sim_op_start(s, e, &plan);
        } else if (s->update.phase == PHASE_NONE) {
            sim_begin_repair(s, e);
        } else {
            e->retry[ASPECT_WEIGHTS].due_us = s->now_us + S;
        }
        if (i > 2 * SIM_OPS)
            sim_violate(s, "a loop without an end");
    }
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The time of the next event. */
static uint64_t next_event(const struct sim *s)
{
    uint64_t next = s->now_us + 500 * MS;

    for (int i = 0; i < SIM_ENGINES; i++) {
        const struct sim_engine *e = &s->engines[i];

        if (!e->is_used)
            continue;
        next = earlier(next, e->probe_us);
        for (int k = 0; k < SIM_OPS; k++)
            if (e->ops[k].is_used)
                next = earlier(next,
                               e->ops[k].is_executed ? e->ops[k].end_us : e->ops[k].execute_us);
    }
    return next > s->now_us ? next : s->now_us + 1;
}

static void hear(struct sim *s, struct sim_engine *e)
{
    sim_ops_hear(s, e);
    if (e->probe_us <= s->now_us)
        probe(s, e);
}

void sim_turn(struct sim *s)
{
    s->n_turns++;
    for (int i = 0; i < SIM_ENGINES; i++)
        if (s->engines[i].is_used)
            hear(s, &s->engines[i]);
    sim_update_advance(s);
    settle_ask(s);
    for (int i = 0; i < SIM_ENGINES; i++)
        if (s->engines[i].is_used)
            drive(s, &s->engines[i]);
    sim_check(s);
    s->now_us = next_event(s);
}

void sim_run(struct sim *s, uint64_t us)
{
    uint64_t end_us = s->now_us + us;

    while (s->now_us < end_us && s->violation == NULL)
        sim_turn(s);
}
