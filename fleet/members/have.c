/* One switch for the doubt and one for the answers, so that an operation without a line in either
 * is seen. What was unknown before a refusal stays so. */
#include "fleet/members/have.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

void have_init(struct engine_have *have)
{
    *have = (struct engine_have){.gate = GATE_NOT_OURS,
                                 .own = OWN_NOT_OURS,
                                 .sleep = {.weights = SLEEP_NOT_OURS, .kv = SLEEP_NOT_OURS},
                                 .caches = {.changes = 1, .due = 1}};
}

/* What is under way may still come to the next process. */
void have_seen(struct engine_have *have, uint64_t change)
{
    if (have->change != change)
        return;
    have->gate_calls.asked = have->gate_calls.n > 0;
    have->sleep_calls.asked = have->sleep_calls.n > 0;
}

void have_told(struct engine_have *have, uint64_t change, bool asleep)
{
    have->sleep.told = true;
    if (have->change == change && have->sleep_calls.n == 0) /* else it may execute that yet */
        have->sleep.awake = !asleep;
}

static enum gate_fact gate_after_reset(const struct engine_have *have, bool certain)
{
    if (!certain && have->gate == GATE_NOT_RESUMED)
        return GATE_NOT_RESUMED; /* it may be paused still */
    if (have->gate_calls.asked || (!certain && have->gate == GATE_PAUSED))
        return GATE_UNKNOWN;
    return certain ? GATE_RUNNING : have->gate;
}

/* An earlier server may have ended in the middle of an update of a process that this one has not
 * asked yet: it may have stale entries. */
void have_reset(struct engine_have *have, bool certain)
{
    have->caches.due = have_caches_changed(have, false);
    have->caches.overwritten = 0;
    if (have->own == OWN_OPEN)
        have->own = OWN_UNKNOWN;
    have->gate = gate_after_reset(have, certain);
    if (certain) {
        have->sleep.weights = have->sleep.kv = have->sleep_calls.asked ? SLEEP_UNKNOWN
                                                                       : SLEEP_AWAKE;
        have->sleep.slept = have->sleep.told = false;
        have->sleep.missed = have->sleep_calls.asked;
    }
    have->sleep.awake = false;
    if (have->sleep.weights == SLEEP_ASLEEP)
        have->sleep.weights = SLEEP_UNKNOWN;
    if (have->sleep.kv == SLEEP_ASLEEP)
        have->sleep.kv = SLEEP_UNKNOWN;
    have->weights.state = WEIGHTS_OTHER;
    have->weights.fault_is_older = true;
    have->weights.earlier_name = false;
}

void have_reset_adapter(struct adapter_have *a, bool certain)
{
    if (a->n_calls > 0 || (!certain && have_may_have(a->has)))
        a->has = ADAPTER_UNKNOWN;
    else
        a->has = ADAPTER_NONE;
    a->settled = a->has;
    a->refused = 0;
}

/* doubt */

static void doubt_adapter(struct have_before *before)
{
    struct adapter_have *a = before->adapter;

    if (a == NULL)
        return;
    before->had = a->has;
    a->has = ADAPTER_UNKNOWN;
    a->overlap = a->n_calls++ > 0;
}

static void begin_call(struct engine_have *have, struct have_calls *calls)
{
    have->change++;
    calls->asked = true;
    calls->overlap = calls->n++ > 0;
}

/* A request that names no part is about all of them. */
static void have_set_sleep(struct engine_have *have, const struct api_args *args,
                           enum sleep_fact weights, enum sleep_fact kv)
{
    const struct api_sleep *of = args != NULL ? args->sleep : NULL;

    if (of == NULL || of->weights)
        have->sleep.weights = weights;
    if (of == NULL || of->kv)
        have->sleep.kv = kv;
}

void have_doubt(struct engine_have *have, enum api_op op, const struct api_args *args,
                struct have_before *before)
{
    before->gate = have->gate;
    before->own = have->own;
    before->weights = have->sleep.weights;
    before->kv = have->sleep.kv;
    switch (op) {
    case API_PAUSE:
    case API_RESUME:
        if (op == API_PAUSE || have->gate != GATE_NOT_RESUMED) /* it stays so until one succeeds */
            have->gate = GATE_UNKNOWN;
        begin_call(have, &have->gate_calls);
        break;
    case API_SLEEP:
    case API_WAKE:
        have_set_sleep(have, args, SLEEP_UNKNOWN, SLEEP_UNKNOWN);
        have->sleep.awake = have->sleep.awake && op == API_WAKE;
        begin_call(have, &have->sleep_calls);
        break;
    case API_START_UPDATE:
    case API_FINISH_UPDATE:
    case API_ABORT_UPDATE:
        have->own = OWN_UNKNOWN;
        break;
    case API_LOAD_ADAPTER:
    case API_UNLOAD_ADAPTER:
        doubt_adapter(before);
        break;
    default:
        break;
    }
}

/* answers */

/* Is the answer of the process that is there now, and of the only request? */
static bool end_call(struct engine_have *have, struct have_calls *calls, bool same)
{
    assert(calls->n > 0);
    calls->n--;
    have->change++;
    return same && !calls->overlap;
}

static bool is_not_done(enum have_answer answer)
{
    return answer == HAVE_UNSENT || answer == HAVE_REFUSED;
}

static bool is_known(enum have_answer answer)
{
    return answer == HAVE_GOOD || is_not_done(answer);
}

/* One that refused a resume is as it was before, and paused if it was. */
static enum gate_fact gate_answered(const struct engine_have *have, enum api_op op,
                                    enum gate_fact before, enum have_answer answer)
{
    bool runs = before == GATE_NOT_OURS || before == GATE_RUNNING;

    if (op == API_RESUME && !(is_not_done(answer) && runs))
        return answer == HAVE_GOOD ? GATE_RUNNING : GATE_NOT_RESUMED;
    if (!is_known(answer))
        return have->gate;
    return answer == HAVE_GOOD ? GATE_PAUSED : before;
}

/* @alone  the answer is of this process, and of the only request. Else it may be the same process,
 * which a resume that has failed left paused. */
static void answer_gate(struct engine_have *have, enum api_op op, const struct have_before *before,
                        enum have_answer answer, bool alone)
{
    if (alone)
        have->gate = gate_answered(have, op, before->gate, answer);
    else if (op == API_RESUME && answer != HAVE_GOOD && have->gate == GATE_UNKNOWN)
        have->gate = GATE_NOT_RESUMED;
    if (alone && have->gate == GATE_RUNNING && answer == HAVE_GOOD)
        have->gate_calls.asked = false; /* a process that was started since runs too */
}

static enum sleep_fact sleep_answered(enum api_op op, enum sleep_fact before,
                                      enum have_answer answer)
{
    if (answer == HAVE_GOOD)
        return op == API_SLEEP ? SLEEP_ASLEEP : SLEEP_AWAKE;
    return before;
}

static void answer_own(struct engine_have *have, enum own_fact now,
                       const struct have_before *before, enum have_answer answer, bool same)
{
    if (same && answer != HAVE_LOST && answer != HAVE_BROKE)
        have->own = answer == HAVE_GOOD ? now : before->own;
}

static void answer_sleep(struct engine_have *have, enum api_op op, const struct api_args *args,
                         const struct have_before *before, enum have_answer answer)
{
    have_set_sleep(have, args, sleep_answered(op, before->weights, answer),
                   sleep_answered(op, before->kv, answer));
    if (op == API_SLEEP && answer == HAVE_GOOD)
        have->sleep.slept = true;
    if (op == API_WAKE && answer == HAVE_GOOD && !have_may_sleep(have)) {
        have->sleep_calls.asked = false; /* a process that was started since is awake too */
        have->sleep.slept = have->sleep.missed = false;
    }
}

static bool drops_weights(enum api_op op, const struct api_args *args)
{
    return op == API_SLEEP && args != NULL && args->sleep != NULL && args->sleep->weights &&
           args->sleep->level == 2;
}

/* @number  of a load; ADAPTER_NONE: of an unload, after which nothing reads the entries that are
 * keyed by its name: a load of that name makes them stale */
static void answer_adapter(struct engine_have *have, uint32_t number,
                           const struct have_before *before, enum have_answer answer, bool same)
{
    struct adapter_have *a = before->adapter;

    if (before->keyed_by_name && number != ADAPTER_NONE && !is_not_done(answer))
        (void)have_caches_changed(have, false);
    if (a == NULL)
        return;
    assert(a->n_calls > 0);
    a->n_calls--;
    if (!same || a->overlap || answer == HAVE_LOST)
        return;
    a->has = answer == HAVE_GOOD ? number : before->had;
    if (answer == HAVE_REFUSED && number != ADAPTER_NONE &&
        (before->replaces || !have_may_have(before->had)))
        a->refused = number;
}

void have_answer(struct engine_have *have, enum api_op op, const struct api_args *args,
                 const struct have_before *before, enum have_answer answer, bool same)
{
    switch (op) {
    case API_PAUSE:
    case API_RESUME:
        answer_gate(have, op, before, answer, end_call(have, &have->gate_calls, same));
        break;
    case API_SLEEP:
    case API_WAKE:
        if (end_call(have, &have->sleep_calls, same) && is_known(answer))
            answer_sleep(have, op, args, before, answer);
        if (op == API_SLEEP && !is_known(answer))
            have->sleep.missed = true;
        if (answer == HAVE_GOOD && drops_weights(op, args)) /* whichever process answered */
            have_fault(have, FAULT_DROPPED);
        break;
    case API_START_UPDATE:
        answer_own(have, OWN_OPEN, before, answer, same);
        break;
    case API_FINISH_UPDATE:
    case API_ABORT_UPDATE:
        answer_own(have, OWN_CLOSED, before, answer, same);
        break;
    case API_LOAD_ADAPTER:
        answer_adapter(have, args->number, before, answer, same);
        break;
    case API_UNLOAD_ADAPTER:
        answer_adapter(have, ADAPTER_NONE, before, answer, same);
        break;
    default:
        break;
    }
}

/* what is known otherwise */

void have_missed_wake(struct engine_have *have, const struct api_sleep *of)
{
    if (of->weights && have->sleep.weights == SLEEP_NOT_OURS)
        have->sleep.weights = SLEEP_UNKNOWN;
    if (of->kv && have->sleep.kv == SLEEP_NOT_OURS)
        have->sleep.kv = SLEEP_UNKNOWN;
}

void have_found_awake(struct engine_have *have, uint64_t change)
{
    if (have->change == change)
        have->sleep.weights = have->sleep.kv = SLEEP_AWAKE;
}

void have_missed_sleep(struct engine_have *have, bool asleep, const struct api_sleep *of)
{
    if (have->weights.fault == FAULT_NONE)
        have_fault(have, asleep ? FAULT_SLEEP_MISSED : FAULT_WAKE_MISSED);
    if (!asleep && have->weights.fault != FAULT_SLEEP_MISSED) /* else it was never asked to sleep */
        have_missed_wake(have, of);
}

bool have_sleeps_by_client(const struct engine_have *have, const struct upstream_report *report)
{
    return !have->sleep.slept && !have->sleep.missed && report->held != NULL &&
           strcmp(report->held, "asleep") == 0;
}

void have_version(struct engine_have *have, uint64_t serial)
{
    have->weights.state = WEIGHTS_SERIAL;
    have->weights.serial = serial;
    have->weights.fault = FAULT_NONE;
    have->weights.earlier_name = false;
}

void have_fault(struct engine_have *have, enum weights_fault fault)
{
    have->weights.fault = fault;
    have->weights.fault_is_older = false;
    have->weights.earlier_name = false;
}

uint64_t have_caches_changed(struct engine_have *have, bool weights)
{
    struct cache_facts *c = &have->caches;

    c->changes++;
    if (weights)
        c->overwritten = c->changes;
    return c->changes;
}
