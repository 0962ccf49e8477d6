/* One switch for the doubt and one for the answers, so that a request without a line in either is
 * seen. A refusal gives back what was known before; what was unknown then stays so. */
#include "tests/unit/fleet/model/have.h"

#include <stdio.h>
#include <string.h>

const char *engine_request_name(enum engine_request request)
{
    static const char *const names[REQUESTS] = {
        "pause",   "resume",  "sleep",   "wake",   "read_sleep", "read_label", "set_label",
        "packing", "start",   "tensors", "verify", "finish",     "close",      "prefix",
        "encoder", "storage", "load",    "unload", "prove",      "repair"};

    return names[request];
}

bool gate_is_closed(enum gate_fact fact)
{
    return fact == GATE_KEPT || fact == GATE_ABORTED || fact == GATE_WAITED;
}

bool have_caches_emptied(const struct engine_have *have, enum upstream_kind kind)
{
    const struct cache_facts *c = &have->caches;

    return upstream_caps(kind)->two_phase || (c->emptied == c->needed && c->second == c->needed);
}

bool label_is_marker(const char *label)
{
    return strncmp(label, FLEET_DIRTY_MARKER, strlen(FLEET_DIRTY_MARKER)) == 0;
}

static void copy_label(char out[API_VERSION_MAX + 1], const char *label)
{
    (void)snprintf(out, API_VERSION_MAX + 1, "%s", label);
}

void have_init(struct engine_have *have, struct adapter_have *adapters, size_t n)
{
    memset(have, 0, sizeof *have);
    memset(adapters, 0, n * sizeof *adapters);
    have->pause = GATE_NOT_OURS;
    have->sleep.weights = have->sleep.kv = SLEEP_NOT_OURS;
    have->own.state = OWN_NOT_OURS;
    have->caches.needed = 1;
    have->adapters = adapters;
    have->n_adapters = n;
}

static bool was_sent(uint32_t sent, enum engine_request a, enum engine_request b)
{
    return (sent >> a & 1) || (sent >> b & 1);
}

/* What the new process may have executed. */
static void doubt_sent(struct engine_have *have, enum upstream_kind kind, uint32_t sent)
{
    bool two_phase = upstream_caps(kind)->two_phase;

    if (was_sent(sent, REQUEST_PAUSE, REQUEST_RESUME))
        have->pause = GATE_UNKNOWN;
    if (was_sent(sent, REQUEST_SLEEP, REQUEST_WAKE))
        have->sleep.weights = have->sleep.kv = SLEEP_UNKNOWN;
    if (was_sent(sent, REQUEST_START, REQUEST_CLOSE) ||
        was_sent(sent, REQUEST_FINISH, REQUEST_START))
        have->own.state = OWN_UNKNOWN;
    if (was_sent(sent, REQUEST_TENSORS, REQUEST_FINISH) && !two_phase)
        have->weights.state = WEIGHTS_TORN;
    for (size_t i = 0; i < have->n_adapters && was_sent(sent, REQUEST_LOAD, REQUEST_UNLOAD); i++)
        have->adapters[i].state = ADAPTER_UNKNOWN;
}

void have_reset(struct engine_have *have, enum upstream_kind kind, uint32_t sent)
{
    const struct upstream_caps *caps = upstream_caps(kind);
    bool certain = caps->status_names_process;
    uint64_t needed = have->caches.needed + 1;

    have_init(have, have->adapters, have->n_adapters);
    have->caches.needed = needed;
    have->pause = certain ? GATE_RUNNING : GATE_UNKNOWN;
    have->sleep.weights = have->sleep.kv = certain ? SLEEP_AWAKE : SLEEP_UNKNOWN;
    have->own.state = certain ? OWN_CLOSED : OWN_UNKNOWN;
    have->weights.state = certain && !caps->two_phase ? WEIGHTS_OTHER : WEIGHTS_UNKNOWN;
    for (size_t i = 0; i < have->n_adapters; i++)
        have->adapters[i].state = certain ? ADAPTER_NONE : ADAPTER_UNKNOWN;
    doubt_sent(have, kind, sent);
}

static void doubt_label(struct engine_have *have, const char *label)
{
    if (label != NULL && label_is_marker(label) && !label_is_marker(have->label.text))
        copy_label(have->label.old, have->label.text);
    copy_label(have->label.before, have->label.text);
    if (label != NULL)
        copy_label(have->label.text, label);
    have->label.read = false;
}

static void doubt_sleep(struct engine_have *have, const struct call *call)
{
    if (call->sleep_of & SLEEP_OF_WEIGHTS)
        have->sleep.weights = SLEEP_UNKNOWN;
    if (call->sleep_of & SLEEP_OF_KV)
        have->sleep.kv = SLEEP_UNKNOWN;
    if (call->request == REQUEST_SLEEP && call->level > 1 && have->weights.state != WEIGHTS_TORN)
        have->weights.state = WEIGHTS_WERE_DROPPED;
}

static void doubt_load(struct engine_have *have, const struct upstream_caps *caps, size_t adapter)
{
    have->adapters[adapter].state = ADAPTER_UNKNOWN;
    if (caps->caches_by_adapter_name)
        have->caches.needed++;
}

/* Two-phase engines keep what arrives apart from what they serve. */
static void doubt_weights(struct engine_have *have, const struct upstream_caps *caps,
                          const struct call *call)
{
    if (call->request == REQUEST_FINISH) {
        have->own.state = OWN_UNKNOWN;
        doubt_label(have, caps->two_phase || !caps->finish_takes_no_version ? call->label : NULL);
        if (caps->two_phase)
            have->weights.state = WEIGHTS_UNKNOWN;
    } else if (!caps->two_phase) {
        have->weights.state = WEIGHTS_TORN;
        have->caches.needed++;
        have->label.read = false;
    }
}

void have_doubt(struct engine_have *have, enum upstream_kind kind, const struct call *call,
                struct have_before *before)
{
    const struct upstream_caps *caps = upstream_caps(kind);

    *before = (struct have_before){.pause = have->pause,
                                   .sleep_weights = have->sleep.weights,
                                   .sleep_kv = have->sleep.kv,
                                   .own = have->own.state,
                                   .weights = have->weights.state};
    switch (call->request) {
    case REQUEST_PAUSE:
    case REQUEST_RESUME:
        have->pause = GATE_UNKNOWN;
        break;
    case REQUEST_SLEEP:
    case REQUEST_WAKE:
        doubt_sleep(have, call);
        break;
    case REQUEST_SET_LABEL:
        doubt_label(have, call->label);
        break;
    case REQUEST_PACKING:
        have->packing = 0;
        break;
    case REQUEST_START:
        have->own.update = call->update;
        have->own.state = OWN_UNKNOWN;
        break;
    case REQUEST_CLOSE:
        have->own.state = OWN_UNKNOWN;
        break;
    case REQUEST_TENSORS:
    case REQUEST_FINISH:
        doubt_weights(have, caps, call);
        break;
    case REQUEST_LOAD:
    case REQUEST_UNLOAD:
        doubt_load(have, caps, call->adapter);
        break;
    case REQUEST_RESET_PREFIX: /* emptier than known does no harm */
    case REQUEST_RESET_ENCODER:
    case REQUEST_RESET_STORAGE:
        have->caches.tried = have->caches.needed;
        break;
    case REQUEST_READ_SLEEP: /* these change nothing */
    case REQUEST_READ_LABEL:
    case REQUEST_VERIFY:
    case REQUEST_PROVE:
    case REQUEST_REPAIR:
    case REQUESTS:
        break;
    }
}

/* ---- answers ---- */

/* What was reported decides what it serves only where that is unknown, or where the engine itself
 * counts its versions. A name that this server has not given means that another client changed it.
 */
static void read_weights(struct engine_have *have, const struct upstream_caps *caps,
                         const struct reply *reply)
{
    bool ours = strcmp(reply->label, have->label.text) == 0 ||
                strcmp(reply->label, have->label.before) == 0;

    if (have->weights.state == WEIGHTS_UNKNOWN || caps->two_phase) {
        have->weights.state = reply->serial != 0 ? WEIGHTS_SERIAL : WEIGHTS_OTHER;
        have->weights.serial = reply->serial;
    } else if (have->weights.state == WEIGHTS_SERIAL && !ours) {
        have->weights.state = WEIGHTS_OTHER;
    }
    if (label_is_marker(reply->label) && !ours)
        have->weights.state = WEIGHTS_TORN;
}

static void read_label(struct engine_have *have, const struct upstream_caps *caps,
                       const struct reply *reply)
{
    read_weights(have, caps, reply);
    copy_label(have->label.text, reply->label);
    copy_label(have->label.before, reply->label);
    have->label.read = true;
}

static void finished(struct engine_have *have, const struct upstream_caps *caps,
                     const struct call *call)
{
    if (have->own.state != OWN_NO_ROUTE)
        have->own.state = OWN_CLOSED;
    have->weights.state = WEIGHTS_SERIAL;
    have->weights.serial = call->serial;
    have->label.old[0] = '\0'; /* no name of these weights */
    have->label.read = caps->two_phase || !caps->finish_takes_no_version;
}

static void slept(struct engine_have *have, const struct call *call)
{
    enum sleep_fact fact = call->request == REQUEST_SLEEP ? SLEEP_ASLEEP : SLEEP_AWAKE;

    if (call->sleep_of & SLEEP_OF_WEIGHTS)
        have->sleep.weights = fact;
    if (call->sleep_of & SLEEP_OF_KV)
        have->sleep.kv = fact;
}

/* A sleep that this server has not begun stays another client's. */
static enum sleep_fact sleep_reported(enum sleep_fact before, bool awake)
{
    if (awake)
        return SLEEP_AWAKE;
    return before == SLEEP_NOT_OURS ? SLEEP_NOT_OURS : SLEEP_ASLEEP;
}

static void answer_good(struct engine_have *have, const struct upstream_caps *caps,
                        const struct call *call, const struct have_before *before,
                        const struct reply *reply)
{
    switch (call->request) {
    case REQUEST_PAUSE:
    case REQUEST_RESUME:
        if (!reply->overlapped)
            have->pause = call->request == REQUEST_PAUSE ? call->mode : GATE_RUNNING;
        break;
    case REQUEST_SLEEP:
    case REQUEST_WAKE:
        slept(have, call);
        break;
    case REQUEST_READ_SLEEP:
        have->sleep.weights = sleep_reported(have->sleep.weights, reply->weights_awake);
        have->sleep.kv = sleep_reported(have->sleep.kv, reply->kv_awake);
        break;
    case REQUEST_READ_LABEL:
        read_label(have, caps, reply);
        break;
    case REQUEST_SET_LABEL:
        have->label.read = true;
        break;
    case REQUEST_PACKING:
        have->packing = call->number;
        break;
    case REQUEST_START:
        have->own.state = OWN_OPEN;
        break;
    case REQUEST_CLOSE:
        have->own.state = before->own == OWN_NO_ROUTE ? OWN_NO_ROUTE : OWN_CLOSED;
        break;
    case REQUEST_FINISH:
        have->own.state = before->own;
        finished(have, caps, call);
        break;
    case REQUEST_RESET_PREFIX:
        have->caches.emptied = have->caches.tried;
        break;
    case REQUEST_RESET_ENCODER:
        have->caches.second = have->caches.tried;
        break;
    case REQUEST_RESET_STORAGE: /* what was in memory may have been written there before */
        have->caches.second = have->caches.emptied;
        break;
    case REQUEST_LOAD:
        have->adapters[call->adapter] = (struct adapter_have){.state = ADAPTER_THIS,
                                                              .revision = call->revision};
        break;
    case REQUEST_UNLOAD:
        have->adapters[call->adapter].state = ADAPTER_NONE;
        break;
    case REQUEST_PROVE:
        if (reply->faulty)
            have->weights.state = WEIGHTS_WRONG;
        else
            have->proof = call->number;
        break;
    case REQUEST_TENSORS:
    case REQUEST_VERIFY:
    case REQUEST_REPAIR:
    case REQUESTS:
        break;
    }
}

/* The request was not executed: what it made unknown is as before. */
static void answer_refused(struct engine_have *have, const struct upstream_caps *caps,
                           const struct call *call, const struct have_before *before)
{
    switch (call->request) {
    case REQUEST_PAUSE:
    case REQUEST_RESUME:
        have->pause = before->pause;
        break;
    case REQUEST_SLEEP:
    case REQUEST_WAKE:
        have->sleep.weights = before->sleep_weights;
        have->sleep.kv = before->sleep_kv;
        have->weights.state = before->weights;
        break;
    case REQUEST_CLOSE:
        have->own.state = before->own;
        break;
    case REQUEST_LOAD:
        if (!caps->replaces_adapters)
            have->adapters[call->adapter] = (struct adapter_have){.state = ADAPTER_REFUSED,
                                                                  .revision = call->revision};
        break;
    default: /* a part may have been executed, or it changes nothing */
        break;
    }
}

static void answer_unsent(struct engine_have *have, const struct upstream_caps *caps,
                          const struct call *call, const struct have_before *before)
{
    if (call->request == REQUEST_TENSORS || call->request == REQUEST_FINISH)
        have->weights.state = before->weights;
    if (call->request == REQUEST_START || call->request == REQUEST_CLOSE ||
        call->request == REQUEST_FINISH)
        have->own.state = before->own;
    else if (call->request != REQUEST_LOAD && call->request != REQUEST_UNLOAD)
        answer_refused(have, caps, call, before);
}

static void answer_no_route(struct engine_have *have, const struct upstream_caps *caps,
                            const struct call *call, const struct have_before *before)
{
    static const struct reply nothing = {.label = ""};

    if (call->request == REQUEST_READ_LABEL || call->request == REQUEST_SET_LABEL)
        have->label.no_route = true;
    else if (call->request == REQUEST_START || call->request == REQUEST_CLOSE)
        have->own.state = OWN_NO_ROUTE;
    else if (call->request >= REQUEST_RESET_PREFIX && call->request <= REQUEST_RESET_STORAGE)
        answer_good(have, caps, call, before, &nothing);
    else
        answer_refused(have, caps, call, before);
}

void have_answer(struct engine_have *have, enum upstream_kind kind, const struct call *call,
                 enum answer answer, const struct have_before *before, const struct reply *reply)
{
    const struct upstream_caps *caps = upstream_caps(kind);

    switch (answer) {
    case ANSWER_LOST:
        break;
    case ANSWER_UNSENT:
        answer_unsent(have, caps, call, before);
        break;
    case ANSWER_REFUSED:
        answer_refused(have, caps, call, before);
        break;
    case ANSWER_NOTHING:
        if (call->request == REQUEST_CLOSE)
            have->own.state = OWN_CLOSED;
        else if (call->request == REQUEST_UNLOAD)
            have->adapters[call->adapter].state = ADAPTER_NONE;
        break;
    case ANSWER_NO_ROUTE:
        answer_no_route(have, caps, call, before);
        break;
    case ANSWER_GOOD:
        answer_good(have, caps, call, before, reply);
        break;
    }
}

void have_token(struct engine_have *have, bool since_change)
{
    if (!since_change)
        return;
    have->sleep.weights = have->sleep.kv = SLEEP_AWAKE;
    if (have->pause == GATE_UNKNOWN)
        have->pause = GATE_RUNNING;
}
