/* Why an engine is out of rotation, as text: one for each kind of reason, so that no reason hides
 * another or outlives what it says. */
#include "fleet/members/fleet_priv.h"

#include "base/clock.h"
#include "fleet/api/upstream_api.h"

#include <assert.h>
#include <string.h>

static void tell_fence(const struct fleet *f, const struct upstream *u, struct err *out)
{
    (void)u;
    (void)err_set(out, ERR_UNSYNCED, "", "it is fenced: %s", fleet_remedy(f));
}

static void tell_key(const struct fleet *f, const struct upstream *u, struct err *out)
{
    (void)f;
    (void)u;
    (void)err_set(out, ERR_UPSTREAM_KEY, "",
                  "it refuses the key of this server, or requires one (key-file)");
}

/* Before the first update none is known to be right. */
static void tell_weights(const struct fleet *f, const struct upstream *u, struct err *out)
{
    (void)u;
    if (f->serial > 0)
        (void)err_set(out, ERR_UNSYNCED, "", "its weights are not known to be version '%s'",
                      f->label);
}

static void tell_pause(const struct fleet *f, const struct upstream *u, struct err *out)
{
    (void)f;
    if (fleet_is_alive(u))
        (void)err_set(out, ERR_UNSYNCED, "",
                      "it started, or was not reachable, when the others were paused: it serves "
                      "again when they resume");
}

static void tell_adapters(const struct fleet *f, const struct upstream *u, struct err *out)
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
static void tell_not_ready(const struct fleet *f, const struct upstream *u, struct err *out)
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

/* @kept  the text is set by fleet_set_why, and `tell` is for an engine that has none; else `tell`
 * makes it from what is known now */
static const struct {
    unsigned any; /* reasons of fleet_out_reasons */
    bool kept;
    void (*tell)(const struct fleet *f, const struct upstream *u, struct err *out);
} whys[UPSTREAM_WHYS] = {
    [WHY_FENCED] = {OUT_FENCES, true, tell_fence},
    [WHY_KEY] = {OUT_AUTH, true, tell_key},
    [WHY_WEIGHTS] = {OUT_OTHER_WEIGHTS, true, tell_weights},
    [WHY_PAUSE] = {OUT_PAUSE_MISSED, false, tell_pause},
    [WHY_ADAPTERS] = {OUT_ADAPTERS, false, tell_adapters},
    [WHY_NOT_READY] = {OUT_NOT_READY, false, tell_not_ready},
};

void fleet_set_why(struct upstream *u, enum upstream_why which, const struct err *why)
{
    struct upstream_error *at = &u->why[which];

    if (at->wall_s == 0 || strcmp(at->why.msg, why->msg) != 0)
        at->wall_s = why->code != ERR_NONE ? clock_wall_s() : 0;
    at->why = *why;
}

void fleet_tell_whys_locked(const struct fleet *f, struct upstream *u)
{
    unsigned out = fleet_out_reasons(u);

    for (int i = 0; i < UPSTREAM_WHYS; i++) {
        bool is = (out & whys[i].any) != 0;
        struct err why = {0};

        if (is && whys[i].kept && u->why[i].why.code != ERR_NONE)
            continue;
        if (is)
            whys[i].tell(f, u, &why);
        fleet_set_why(u, (enum upstream_why)i, &why);
    }
}

/* A missing answer goes first. */
static size_t errors_of(const struct upstream *u, struct upstream_error *out, size_t max)
{
    size_t n = 0;

    if (n < max && u->no_answer.why.code != ERR_NONE)
        out[n++] = u->no_answer;
    for (int i = 0; i < UPSTREAM_WHYS && n < max; i++)
        if (u->why[i].why.code != ERR_NONE)
            out[n++] = u->why[i];
    return n;
}

void fleet_error_of(const struct upstream *u, struct upstream_error *out)
{
    *out = (struct upstream_error){0};
    (void)errors_of(u, out, 1);
}

size_t fleet_errors(struct fleet *f, size_t upstream, struct upstream_error *out)
{
    size_t n;

    mtx_lock(&f->lock);
    n = errors_of(&f->upstreams[upstream], out, UPSTREAM_ERRORS_MAX);
    mtx_unlock(&f->lock);
    return n;
}
