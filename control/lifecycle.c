/* The table is a list of refusals: a call is allowed unless a row refuses it, and the first row
 * that matches gives the reason. Rejected: a full matrix of calls by states, with thousands of
 * cells that no one reads; the test walks all of them instead. */
#include "control/lifecycle.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>

#define BIT(x) (1u << (x))
#define ANY    UINT32_MAX

enum {
    WEIGHTS_ABSENT = BIT(WEIGHTS_ASLEEP) | BIT(WEIGHTS_DROPPED),
    UPDATE_UNDER_WAY = BIT(UPDATE_IS_OPEN) | BIT(UPDATE_IS_FINISHING),
    YES = BIT(1),

    /* Calls that never delay the end of the process. */
    ALWAYS = BIT(CALL_RESUME) | BIT(CALL_DRAIN),
    GENERATE = BIT(CALL_GENERATE),
    SLEEP_WEIGHTS = BIT(CALL_SLEEP_WEIGHTS_1) | BIT(CALL_SLEEP_WEIGHTS_2),
    UPDATE_BRINGS = BIT(CALL_UPDATE_START) | BIT(CALL_UPDATE_RECEIVE) | BIT(CALL_UPDATE_FINISH),
    /* Calls that bring an open update to its end. */
    UPDATE_ENDS = BIT(CALL_UPDATE_RECEIVE) | BIT(CALL_UPDATE_FINISH) | BIT(CALL_UPDATE_ABORT)
};

/* Sets of values; a row matches if all of them match. */
struct refusal {
    unsigned calls, life, pause, weights, kv_released, update, busy;
    enum err_code code;
    const char *why;
};

static const struct refusal refusals[] = {
    {~(unsigned)ALWAYS, BIT(LIFE_STARTING), ANY, ANY, ANY, ANY, ANY, ERR_STARTING,
     "the server is loading its first weights"},
    {~(unsigned)(ALWAYS | BIT(CALL_ABORT_REQUESTS) | UPDATE_ENDS), BIT(LIFE_DRAINING), ANY, ANY,
     ANY, ANY, ANY, ERR_DRAINING, "the server is draining and takes no new work"},
    {UPDATE_ENDS, BIT(LIFE_DRAINING), ANY, ANY, ANY, BIT(UPDATE_IS_NONE) | BIT(UPDATE_IS_SEED), ANY,
     ERR_DRAINING, "the server is draining and takes no new update"},

    {GENERATE, ANY, BIT(PAUSE_NONE), BIT(WEIGHTS_UNSYNCED), ANY, ANY, ANY, ERR_UNSYNCED,
     "no weights have been committed yet"},
    {GENERATE, ANY, BIT(PAUSE_NONE), BIT(WEIGHTS_ASLEEP), ANY, ANY, ANY, ERR_ASLEEP,
     "the weights are asleep (level 1): wake has to bring them back first"},
    {GENERATE, ANY, BIT(PAUSE_NONE), BIT(WEIGHTS_DROPPED), ANY, ANY, ANY, ERR_ASLEEP,
     "the weights were dropped (sleep at level 2): a whole update has to bring new ones first"},
    {GENERATE, ANY, BIT(PAUSE_NONE), ANY, YES, ANY, ANY, ERR_ASLEEP,
     "the kv cache is released: wake has to bring it back first"},

    {BIT(CALL_PAUSE_WAIT), ANY, ANY, WEIGHTS_ABSENT, ANY, ANY, YES, ERR_CONFLICT,
     "generations that are frozen or wait cannot end without weights; wake first, or pause with "
     "abort"},
    {BIT(CALL_PAUSE_WAIT), ANY, ANY, ANY, YES, ANY, YES, ERR_CONFLICT,
     "generations that are frozen or wait cannot end without the kv cache; wake first, or pause "
     "with abort"},

    {SLEEP_WEIGHTS, ANY, ANY, ANY, ANY, UPDATE_UNDER_WAY | BIT(UPDATE_IS_SEED), ANY, ERR_CONFLICT,
     "an update is open; finish or abort it first ('baton abort --update' aborts it)"},

    {UPDATE_BRINGS, ANY, ANY, BIT(WEIGHTS_ASLEEP), ANY, ANY, ANY, ERR_CONFLICT,
     "the weights are asleep; wake them first, or drop them with sleep at level 2"},
    {BIT(CALL_UPDATE_START), ANY, ANY, ANY, ANY, UPDATE_UNDER_WAY, ANY, ERR_CONFLICT,
     "another update is open: finish or abort it first ('baton abort --update' aborts it)"},
};

static const char *lifecycle_call_name(enum lifecycle_call call)
{
    static const char *const names[] = {
#define X(constant, name) name,
        LIFECYCLE_CALLS(X)
#undef X
    };

    assert(call < CALL_COUNT);
    return names[call];
}

const char *lifecycle_pause_name(enum lifecycle_pause pause)
{
    static const char *const names[] = {"none", "keep", "wait", "abort"};

    assert(pause < PAUSE_COUNT);
    return names[pause];
}

const char *lifecycle_weights_name(enum lifecycle_weights weights)
{
    static const char *const names[] = {"unsynced", "ready", "asleep", "dropped"};

    assert(weights < WEIGHTS_COUNT);
    return names[weights];
}

static bool refusal_fits(const struct refusal *r, const struct lifecycle_state *s,
                         enum lifecycle_call call)
{
    return (r->calls & BIT(call)) != 0 && (r->life & BIT(s->life)) != 0 &&
           (r->pause & BIT(s->pause)) != 0 && (r->weights & BIT(s->weights)) != 0 &&
           (r->kv_released & BIT(s->kv_released)) != 0 && (r->update & BIT(s->update)) != 0 &&
           (r->busy & BIT(s->busy)) != 0;
}

static const struct refusal *refusal_find(const struct lifecycle_state *s, enum lifecycle_call call)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
        if (refusal_fits(&refusals[i], s, call))
            return &refusals[i];
    return NULL;
}

/* "life serving, pause keep, weights asleep, kv_cache present, update none" */
static void lifecycle_text(const struct lifecycle_state *s, char *out, size_t cap)
{
    static const char *const updates[] = {"none", "open", "finishing", "of a peer"};

    (void)snprintf(out, cap, "life %s, pause %s, weights %s, kv_cache %s, update %s",
                   life_state_name(s->life), lifecycle_pause_name(s->pause),
                   lifecycle_weights_name(s->weights), s->kv_released ? "released" : "present",
                   updates[s->update]);
}

/* The message has the reason, the whole state and the calls that are allowed in it. */
static int lifecycle_refuse(const struct lifecycle_state *s, enum lifecycle_call call,
                            const char *why, struct err *e)
{
    char state[128], allowed[ERR_MSG_MAX];
    size_t len = 0;

    lifecycle_text(s, state, sizeof state);
    allowed[0] = '\0';
    for (int c = 0; c < CALL_COUNT && len < sizeof allowed; c++) {
        if (refusal_find(s, (enum lifecycle_call)c) != NULL)
            continue;
        len += (size_t)snprintf(allowed + len, sizeof allowed - len, "%s%s", len > 0 ? ", " : "",
                                lifecycle_call_name((enum lifecycle_call)c));
    }
    return err_set(e, ERR_CONFLICT, "", "%s: %s (%s); allowed: %s", lifecycle_call_name(call), why,
                   state, allowed);
}

int lifecycle_check(const struct lifecycle_state *s, enum lifecycle_call call, struct err *e)
{
    const struct refusal *r = refusal_find(s, call);

    if (r == NULL)
        return 0;
    if (r->code == ERR_CONFLICT)
        return lifecycle_refuse(s, call, r->why, e);
    return err_set(e, r->code, "", "%s", r->why);
}
