/* Sleep. A second wake, or a second sleep, ends an SGLang; so from unknown it gets neither, and
 * stays out until it makes a token or is restarted. A vLLM may be told twice, a baton is asked. */
#include "tests/unit/fleet/model/aspects_priv.h"

static bool can_repeat(const struct engine_now *e)
{
    return upstream_caps(e->kind)->wakes_twice;
}

static bool can_ask(const struct engine_now *e)
{
    return upstream_caps(e->kind)->wakes_twice || upstream_caps(e->kind)->two_phase;
}

static struct step ask(const struct engine_now *e)
{
    return can_ask(e) ? step_call((struct call){.request = REQUEST_READ_SLEEP})
                      : step_stuck(REASON_SLEEP_UNKNOWN);
}

static struct step change(const struct wants *w, enum engine_request request, unsigned sleep_of)
{
    return step_call(
        (struct call){.request = request, .sleep_of = sleep_of, .level = w->sleep_level});
}

/* Tensors need weights that are known to be in memory. */
static struct step for_part(const struct engine_now *e, const struct wants *w)
{
    enum sleep_fact weights = e->have->sleep.weights;
    unsigned sleep_of = w->sleep == WANT_AWAKE && e->have->sleep.kv != SLEEP_AWAKE
                            ? SLEEP_OF_ALL
                            : SLEEP_OF_WEIGHTS;

    if (weights == SLEEP_AWAKE)
        return step_same();
    if (w->sleep == WANT_ASLEEP)
        return step_stuck(REASON_ASLEEP);
    if (weights == SLEEP_ASLEEP || (weights == SLEEP_UNKNOWN && can_repeat(e)))
        return change(w, REQUEST_WAKE, sleep_of);
    return ask(e);
}

static struct step to_sleep(const struct engine_now *e, const struct wants *w)
{
    const struct engine_have *have = e->have;
    unsigned awake = 0;

    if (have->sleep.weights != SLEEP_ASLEEP)
        awake |= SLEEP_OF_WEIGHTS;
    if (have->sleep.kv != SLEEP_ASLEEP)
        awake |= SLEEP_OF_KV;
    if (awake == 0)
        return step_same();
    if (can_repeat(e))
        return change(w, REQUEST_SLEEP, SLEEP_OF_ALL);
    if (have->sleep.weights == SLEEP_UNKNOWN || have->sleep.kv == SLEEP_UNKNOWN)
        return ask(e);
    if (!can_ask(e) && (have->sleep.weights == SLEEP_NOT_OURS || have->sleep.kv == SLEEP_NOT_OURS))
        return step_stuck(REASON_SLEEP_UNKNOWN);
    return change(w, REQUEST_SLEEP, awake);
}

static struct step to_wake(const struct engine_now *e, const struct wants *w)
{
    const struct engine_have *have = e->have;
    bool kv_too = w->sleep == WANT_AWAKE;
    unsigned asleep = 0;

    if (have->sleep.weights == SLEEP_UNKNOWN || (kv_too && have->sleep.kv == SLEEP_UNKNOWN)) {
        if (!can_repeat(e))
            return ask(e);
        return change(w, REQUEST_WAKE, kv_too ? SLEEP_OF_ALL : SLEEP_OF_WEIGHTS);
    }
    if (have->sleep.weights == SLEEP_ASLEEP)
        asleep |= SLEEP_OF_WEIGHTS;
    if (kv_too && have->sleep.kv == SLEEP_ASLEEP)
        asleep |= SLEEP_OF_KV;
    return asleep == 0 ? step_same() : change(w, REQUEST_WAKE, asleep);
}

struct step sleep_next(const struct engine_now *e, const struct wants *w)
{
    if (part_holds(e))
        return for_part(e, w);
    return w->sleep == WANT_ASLEEP ? to_sleep(e, w) : to_wake(e, w);
}

static bool may_be_asleep(enum sleep_fact fact)
{
    return fact != SLEEP_AWAKE && fact != SLEEP_NOT_OURS; /* the latter its reports tell */
}

bool sleep_out(const struct engine_now *e, const struct wants *w)
{
    return w->sleep != WANT_AWAKE || may_be_asleep(e->have->sleep.weights) ||
           may_be_asleep(e->have->sleep.kv);
}
