/* Why an engine is out of rotation, as text: one for each kind of reason, so that no reason hides
 * another or outlives what it says. */
#include "fleet/members/fleet_priv.h"

#include "base/clock.h"
#include "fleet/api/upstream_api.h"

#include <string.h>

static void describe_pause(const struct fleet *f, const struct upstream *u, struct err *out)
{
    (void)f;
    if (fleet_is_alive(u))
        (void)err_set(out, ERR_UNSYNCED, "",
                      "it started, or was not reachable, when the others were paused: it serves "
                      "again when it is paused too, or when they resume");
}

static void describe_adapters(const struct fleet *f, const struct upstream *u, struct err *out)
{
    (void)f;
    if (!fleet_is_alive(u))
        return;
    if (u->missing.code != ERR_NONE)
        *out = u->missing;
    else
        (void)err_set(out, ERR_UNSYNCED, "",
                      "it may have restarted, and its adapters have not been checked yet");
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

/* @describe  makes the text from what is known now; NULL: fleet_set_why sets it, and it is kept */
static const struct {
    unsigned any; /* reasons of fleet_out_reasons */
    void (*describe)(const struct fleet *f, const struct upstream *u, struct err *out);
} whys[UPSTREAM_WHYS] = {
    [WHY_FENCED] = {OUT_FENCES, NULL},
    [WHY_KEY_PROBE] = {OUT_AUTH_PROBE, NULL},
    [WHY_KEY_REQUEST] = {OUT_AUTH_REQUEST, NULL},
    [WHY_WEIGHTS] = {OUT_OTHER_WEIGHTS, NULL},
    [WHY_PAUSE] = {OUT_PAUSE_MISSED, describe_pause},
    [WHY_ADAPTERS] = {OUT_ADAPTERS, describe_adapters},
    [WHY_NOT_READY] = {OUT_NOT_READY, describe_not_ready},
};

void fleet_set_why(struct upstream *u, enum upstream_why which, const struct err *why)
{
    struct upstream_error *at = &u->why[which];

    if (at->wall_s == 0 || strcmp(at->why.msg, why->msg) != 0)
        at->wall_s = why->code != ERR_NONE ? clock_wall_s() : 0;
    at->why = *why;
}

/* Called for each engine at each change of the table: one without a reason costs nothing. */
void fleet_describe_whys_locked(const struct fleet *f, struct upstream *u)
{
    unsigned out = fleet_out_reasons(u);

    for (int i = 0; i < UPSTREAM_WHYS; i++) {
        struct err why;

        if ((out & whys[i].any) == 0) {
            if (u->why[i].wall_s != 0)
                u->why[i] = (struct upstream_error){0};
        } else if (whys[i].describe != NULL) {
            err_clear(&why);
            whys[i].describe(f, u, &why);
            fleet_set_why(u, (enum upstream_why)i, &why);
        }
    }
}

/* A missing answer goes first where it keeps the engine out, and last where it does not yet. */
static size_t errors_of(const struct upstream *u, struct upstream_error *out, size_t max)
{
    bool missing = u->no_answer.why.code != ERR_NONE;
    bool first = missing && (fleet_out_reasons(u) & (OUT_UNREACHABLE | OUT_PROBES_FAIL)) != 0;
    size_t n = 0;

    if (first)
        out[n++] = u->no_answer;
    for (int i = 0; i < UPSTREAM_WHYS && n < max; i++)
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
    return fleet_is_out(u, OUT_AUTH_PROBE) ? &u->why[WHY_KEY_PROBE].why
                                           : &u->why[WHY_KEY_REQUEST].why;
}

void fleet_why_unreliable(struct fleet *f, struct upstream *u, struct err *out)
{

    mtx_lock(&f->lock);
    if (fleet_is_out(u, OUT_UNREACHABLE))
        *out = u->no_answer.why;
    else
        *out = u->why[fleet_is_out(u, OUT_FENCES) ? WHY_FENCED : WHY_WEIGHTS].why;
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
