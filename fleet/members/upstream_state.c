/* Why an engine is out of rotation: each reason has a row with its test, and one with its state and
 * its text, so that no reason hides another or outlives what it says. */
#include "fleet/members/fleet_priv.h"

#include "base/clock.h"
#include "fleet/api/upstream_api.h"

#include <string.h>

const char *fleet_remedy(const struct fleet *f)
{
    return f->cfg.staged ? "this server hands it the version (--stage)" : "push a whole update";
}

const char *fleet_remedy_or_resync(const struct fleet *f)
{
    return f->cfg.staged ? fleet_remedy(f)
                         : "push a whole update, or resync it (/v1/upstreams/resync) if it serves "
                           "that version";
}

struct api_sleep fleet_to_wake(const struct fleet *f, const struct upstream *u)
{
    bool any = fleet_may_sleep(f, u), hides = fleet_hides_sleep(u);

    return (struct api_sleep){
        .weights = !f->asleep.weights && (hides ? u->have.sleep.weights == SLEEP_ASLEEP : any),
        .kv = !f->asleep.kv && (hides ? u->have.sleep.kv == SLEEP_ASLEEP : any)};
}

bool fleet_needs_token(const struct fleet *f, const struct upstream *u)
{
    return fleet_may_sleep(f, u) && fleet_hides_sleep(u) && !have_is_asleep(&u->have);
}

static void describe_dropped(const struct fleet *f, const struct upstream *u, struct err *out)
{
    (void)f;
    (void)u;
    (void)err_set(out, ERR_UNSYNCED, "", "its weights were dropped (sleep at level 2)");
}

static void describe_missed_sleep(const struct fleet *f, const struct upstream *u, struct err *out)
{
    bool asleep = u->have.weights.fault == FAULT_SLEEP_MISSED;

    (void)err_set(out, ERR_UNSYNCED, "",
                  "it was not reachable when the fleet was %s: once it answers again, %s",
                  asleep ? "put to sleep" : "woken",
                  f->cfg.staged ? fleet_remedy(f)
                                : "resync it (/v1/upstreams/resync) or push a whole update");
}

/* If it sleeps, the token ends it; but then only a restart helps anyway. */
static void describe_asleep(const struct fleet *f, const struct upstream *u, struct err *out)
{
    struct api_sleep to_wake = fleet_to_wake(f, u);

    if (have_sleeps_by_client(&u->have, &u->report))
        (void)err_set(out, ERR_UNSYNCED, "",
                      "it is asleep, and not by this server: POST /v1/wake wakes it, and the next "
                      "update does");
    else if (to_wake.weights || to_wake.kv)
        (void)err_set(out, ERR_UNSYNCED, "",
                      "it may be asleep while the fleet is awake: it is woken, and serves once "
                      "that has succeeded");
    else
        (void)err_set(out, ERR_UNSYNCED, "",
                      "it may be asleep while the fleet is awake: it is asked for a token, which "
                      "shows that it is awake; restart it if it makes none");
}

static void describe_not_resumed(const struct fleet *f, const struct upstream *u, struct err *out)
{
    (void)f;
    (void)u;
    (void)err_set(out, ERR_UNSYNCED, "",
                  "it failed to resume, and is asked again: it serves once it has resumed");
}

/* Whatever compares its version says so itself. Nothing does while the others are updated. */
static void describe_weights(const struct fleet *f, const struct upstream *u, struct err *out)
{
    (void)f;
    *out = u->why[REASON_OTHER_WEIGHTS].why;
    if (out->code == ERR_NONE && fleet_is_alive(u) && u->have.weights.fault == FAULT_NONE)
        (void)err_set(out, ERR_UNSYNCED, "",
                      "its version is not compared with the fleet's yet: that is done when no "
                      "update is under way");
}

static void describe_pause(const struct fleet *f, const struct upstream *u, struct err *out)
{
    (void)f;
    if (fleet_is_alive(u))
        (void)err_set(out, ERR_UNSYNCED, "",
                      "it started, or was not reachable, when the others were paused: it serves "
                      "again when it is paused too, or when they resume");
}

/* @why  of the last attempt */
static void describe_missing(const struct fleet_adapter *a, const struct err *why, struct err *out)
{
    const char *last = why->code != ERR_NONE ? "; last error: " : "";

    if (a->number == 0 || a->load != NULL)
        (void)err_set(out, ERR_UNSYNCED, "",
                      "it %s adapter '%.60s', which %s there before it gets requests%s%.180s",
                      a->number == 0 ? "may still have" : "lacks", a->name,
                      a->number == 0 ? "the fleet has unloaded and which is unloaded" : "is loaded",
                      last, why->msg);
    else
        (void)err_set(out, ERR_UNSYNCED, "",
                      "it lacks adapter '%.60s', of which this server has no files, as the "
                      "upstreams read its tensors themselves: load it again or unload it; one "
                      "that is sent as a body of tensors is kept in --adapter-dir",
                      a->name);
}

static void describe_needs(const struct fleet *f, const struct upstream *u, struct err *out)
{
    const struct err *why = &u->needs[NEED_CACHES].why;

    if (!fleet_is_alive(u))
        return;
    if (fleet_has_stale_caches(u))
        (void)err_set(out, ERR_UNSYNCED, "",
                      "its caches may hold entries of other weights, and are reset before it gets "
                      "requests: %.250s",
                      why->code != ERR_NONE ? why->msg : "no attempt was made yet");
    else
        describe_missing(fleet_blocking_adapter(f, u), &u->needs[NEED_ADAPTERS].why, out);
}

/* The error has the code of the engine's own reason. */
static void describe_not_ready(const struct fleet *f, const struct upstream *u, struct err *out)
{
    bool held = u->report.not_ready[0] == '\0';
    const char *reason = held ? u->report.held : u->report.not_ready;
    enum err_code code = api_error_code(reason);

    (void)f;
    if (held)
        (void)err_set(out, code, "", "it is not ready: %s, and not by this server: POST %s", reason,
                      code == ERR_ASLEEP ? "/v1/wake wakes it" : "/v1/resume resumes it");
    else
        (void)err_set(out, code != ERR_NONE ? code : ERR_UNSYNCED, "", "it is not ready: %s",
                      reason);
}

unsigned reasons_derive(const struct fleet *f, const struct upstream *u)
{
    enum weights_fault fault = u->have.weights.fault;
    const bool holds[UPSTREAM_REASONS] = {
        [REASON_REMOVED] = upstream_is_removed(u),
        [REASON_BROKEN] = fault == FAULT_TORN || fault == FAULT_WRONG,
        [REASON_DROPPED] = fault == FAULT_DROPPED,
        [REASON_SLEEP_MISSED] = have_has_missed(&u->have),
        [REASON_AUTH_PROBE] = u->key_rejected[FLEET_AUTH_PROBE],
        [REASON_AUTH_REQUEST] = u->key_rejected[FLEET_AUTH_REQUEST],
        [REASON_NEVER_REACHED] = !u->down && u->probe_ok_us == 0,
        [REASON_DOWN] = u->down,
        [REASON_ASLEEP] = fleet_may_sleep(f, u),
        [REASON_NOT_RESUMED] = u->have.gate == GATE_NOT_RESUMED,
        [REASON_OTHER_WEIGHTS] = !fleet_is_synced(f, u),
        [REASON_PAUSE_MISSED] = fleet_has_missed_pause(f, u),
        [REASON_PROBES_FAIL] = u->n_probe_failures >= FLEET_PROBE_FAILURES_MAX,
        [REASON_ADAPTERS] = !fleet_has_needs(u),
        [REASON_NOT_READY] = u->report.not_ready[0] != '\0' || u->report.held != NULL,
    };
    unsigned out = 0;

    for (int i = 0; i < UPSTREAM_REASONS; i++)
        out |= holds[i] ? REASON_BIT(i) : 0;
    return out;
}

/* Where nothing describes a reason, its text is that of fleet_set_why, or of the missing answer. */
static const struct {
    enum upstream_state state;
    void (*describe)(const struct fleet *f, const struct upstream *u, struct err *out);
} shown[UPSTREAM_REASONS] = {
    [REASON_REMOVED] = {UPSTREAM_REMOVED, NULL},
    [REASON_BROKEN] = {UPSTREAM_FENCED, NULL},
    [REASON_DROPPED] = {UPSTREAM_FENCED, describe_dropped},
    [REASON_SLEEP_MISSED] = {UPSTREAM_FENCED, describe_missed_sleep},
    [REASON_AUTH_PROBE] = {UPSTREAM_AUTH_FAILED, NULL},
    [REASON_AUTH_REQUEST] = {UPSTREAM_AUTH_FAILED, NULL},
    [REASON_NEVER_REACHED] = {UPSTREAM_JOINING, NULL},
    [REASON_DOWN] = {UPSTREAM_DOWN, NULL},
    [REASON_ASLEEP] = {UPSTREAM_UNSYNCED, describe_asleep},
    [REASON_NOT_RESUMED] = {UPSTREAM_UNSYNCED, describe_not_resumed},
    [REASON_OTHER_WEIGHTS] = {UPSTREAM_UNSYNCED, describe_weights},
    [REASON_PAUSE_MISSED] = {UPSTREAM_UNSYNCED, describe_pause},
    [REASON_PROBES_FAIL] = {UPSTREAM_UNSYNCED, NULL},
    [REASON_ADAPTERS] = {UPSTREAM_UNSYNCED, describe_needs},
    [REASON_NOT_READY] = {UPSTREAM_NOT_READY, describe_not_ready},
};

/* Returns: UPSTREAM_REASONS if there is none. */
static int gravest(unsigned out)
{
    int i = 0;

    while (i < UPSTREAM_REASONS && (out & REASON_BIT(i)) == 0)
        i++;
    return i;
}

enum upstream_state upstream_state_of(unsigned out)
{
    return out != 0 ? shown[gravest(out)].state : UPSTREAM_SERVING;
}

const char *upstream_state_name(enum upstream_state state)
{
    static const char *const names[UPSTREAM_STATES] = {
        [UPSTREAM_JOINING] = "unknown",     [UPSTREAM_SERVING] = "serving",
        [UPSTREAM_NOT_READY] = "not_ready", [UPSTREAM_UNSYNCED] = "unsynced",
        [UPSTREAM_DOWN] = "down",           [UPSTREAM_AUTH_FAILED] = "refused",
        [UPSTREAM_FENCED] = "fenced",       [UPSTREAM_REMOVED] = "removed",
    };

    return names[state];
}

const char *upstream_reason_name(enum upstream_reason reason)
{
    static const char *const names[UPSTREAM_REASONS] = {
        [REASON_REMOVED] = "removed",
        [REASON_BROKEN] = "broken",
        [REASON_DROPPED] = "dropped",
        [REASON_SLEEP_MISSED] = "sleep_missed",
        [REASON_AUTH_PROBE] = "auth_probe",
        [REASON_AUTH_REQUEST] = "auth_request",
        [REASON_NEVER_REACHED] = "never_reached",
        [REASON_DOWN] = "down",
        [REASON_ASLEEP] = "asleep",
        [REASON_NOT_RESUMED] = "not_resumed",
        [REASON_OTHER_WEIGHTS] = "other_weights",
        [REASON_PAUSE_MISSED] = "pause_missed",
        [REASON_PROBES_FAIL] = "probes_fail",
        [REASON_ADAPTERS] = "adapters",
        [REASON_NOT_READY] = "not_ready",
    };

    return names[reason];
}

/* texts */

void fleet_set_why(struct upstream *u, enum upstream_reason which, const struct err *why)
{
    struct upstream_error *at = &u->why[which];

    if (at->wall_s == 0 || strcmp(at->why.msg, why->msg) != 0)
        at->wall_s = why->code != ERR_NONE ? clock_wall_s() : 0;
    at->why = *why;
}

/* Called for each engine at each change of the table: one without a reason costs little. */
void fleet_derive_locked(const struct fleet *f, struct upstream *u)
{
    u->out = reasons_derive(f, u);
    for (int i = 0; i < UPSTREAM_REASONS; i++) {
        struct err why;

        if ((u->out & REASON_BIT(i)) == 0) {
            if (u->why[i].wall_s != 0)
                u->why[i] = (struct upstream_error){0};
        } else if (shown[i].describe != NULL) {
            err_clear(&why);
            shown[i].describe(f, u, &why);
            fleet_set_why(u, (enum upstream_reason)i, &why);
        }
    }
}

/* A missing answer goes first where it keeps the engine out, and last where it does not yet. */
static size_t errors_of(const struct upstream *u, struct upstream_error *out, size_t max)
{
    bool missing = u->no_answer.why.code != ERR_NONE;
    bool first = missing && (u->out & (OUT_UNREACHABLE | REASON_BIT(REASON_PROBES_FAIL))) != 0;
    size_t n = 0;

    if (first)
        out[n++] = u->no_answer;
    for (int i = 0; i < UPSTREAM_REASONS && n < max; i++)
        if (u->why[i].why.code != ERR_NONE)
            out[n++] = u->why[i];
    if (missing && !first && n < max)
        out[n++] = u->no_answer;
    return n;
}

void fleet_error_of(const struct upstream *u, struct upstream_error *out)
{
    *out = (struct upstream_error){0};
    (void)errors_of(u, out, 1);
}

const struct err *fleet_key_error_of(const struct upstream *u)
{
    return &u->why[gravest(u->out & OUT_AUTH)].why;
}

void fleet_why_unreliable(struct fleet *f, struct upstream *u, struct err *out)
{
    int i;

    mtx_lock(&f->lock);
    i = gravest(u->out & OUT_WRONG_WEIGHTS);
    if (u->out & OUT_UNREACHABLE)
        *out = u->no_answer.why;
    else if (i < UPSTREAM_REASONS)
        *out = u->why[i].why;
    else
        err_clear(out);
    mtx_unlock(&f->lock);
}

size_t fleet_errors(struct fleet *f, struct upstream *u, struct upstream_error *out)
{
    size_t n;

    mtx_lock(&f->lock);
    n = errors_of(u, out, UPSTREAM_ERRORS_MAX);
    mtx_unlock(&f->lock);
    return n;
}

void fleet_clear_failure_locked(struct upstream *u)
{
    if (fleet_is_alive(u) && u->n_probe_failures == 0)
        u->no_answer = (struct upstream_error){0};
}
