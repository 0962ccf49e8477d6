#include "tests/unit/fleet/model/sim_double.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void double_boot(struct sim_double *d)
{
    struct sim_double fresh = {.kind = d->kind, .process = d->process + 1, .label = "boot"};

    fresh.holds_requests = d->holds_requests;
    fresh.stale_second = d->kind == UPSTREAM_SGLANG && d->stale_second;
    *d = fresh;
}

bool double_runs(const struct sim_double *d)
{
    return !d->paused && !d->kv_asleep && !d->weights_asleep;
}

static bool two_phase(const struct sim_double *d)
{
    return d->kind == UPSTREAM_BATON;
}

static void set_label(struct sim_double *d, const char *label)
{
    (void)snprintf(d->label, sizeof d->label, "%s", label);
}

static enum answer take_tensors(struct sim_double *d, uint64_t chunk, int serial, const char **bad)
{
    if (d->weights_asleep)
        *bad = "I7: tensors to an engine that sleeps";
    else if (!two_phase(d) && double_runs(d))
        *bad = "I7: tensors to an engine that generates";
    else if (!two_phase(d) && !label_is_marker(d->label))
        *bad = "I7: tensors to an engine without the marker";
    else if (!d->own_open)
        *bad = "I7: tensors to an engine that has not started the update";
    else if (!d->in_group)
        *bad = "C4: tensors of a group that it is not in";
    else if (chunk == d->last_chunk)
        *bad = "I7: the same tensors twice";
    d->last_chunk = chunk;
    if (!two_phase(d)) {
        d->weights = SIM_TORN;
        d->stale = d->stale_second = true;
    }
    d->received = (int)(chunk & 15) == 1 || d->received == serial ? serial : SIM_TORN;
    return ANSWER_GOOD;
}

static enum answer finish(struct sim_double *d, const struct call *call, const char **bad)
{
    if (!d->own_open)
        return ANSWER_REFUSED;
    if (d->received <= 0)
        *bad = "I7: the end of an update of which not all has arrived";
    d->own_open = false;
    d->weights = d->received;
    d->received = 0;
    if (d->kind != UPSTREAM_SGLANG)
        set_label(d, call->label);
    return ANSWER_GOOD;
}

/* What a partial update made is not ended: a vLLM would serve it. */
static enum answer close_own(struct sim_double *d, const char **bad)
{
    if (!d->own_open)
        return ANSWER_NOTHING;
    if (d->received != 0 && !two_phase(d) && !d->paused)
        *bad = "the update of a torn engine that runs was ended";
    d->own_open = false;
    d->received = 0;
    return ANSWER_GOOD;
}

static enum answer resume(struct sim_double *d, const char **bad)
{
    if (!two_phase(d) && d->weights == SIM_TORN)
        *bad = "I8: torn weights were resumed";
    else if (!two_phase(d) && label_is_marker(d->label))
        *bad = "I8: resumed with the marker as its version";
    else if (!two_phase(d) && d->own_open)
        *bad = "I8: resumed while its own update is open";
    else if (d->paused_by_other)
        *bad = "rule 6: a pause of another client was ended";
    d->paused = false;
    return ANSWER_GOOD;
}

static enum answer change_sleep(struct sim_double *d, const struct call *call, const char **bad)
{
    bool to = call->request == REQUEST_SLEEP;

    if (d->kind == UPSTREAM_SGLANG &&
        (((call->sleep_of & SLEEP_OF_WEIGHTS) && d->weights_asleep == to) ||
         ((call->sleep_of & SLEEP_OF_KV) && d->kv_asleep == to)))
        *bad = "I7: an SGLang was put to sleep, or woken, twice";
    if (two_phase(d) && d->weights_asleep == to && d->kv_asleep == to)
        return ANSWER_REFUSED;
    if (call->sleep_of & SLEEP_OF_WEIGHTS)
        d->weights_asleep = to;
    if (call->sleep_of & SLEEP_OF_KV)
        d->kv_asleep = to;
    if (to && call->level > 1)
        d->weights = d->weights == SIM_TORN ? SIM_TORN : SIM_DROPPED;
    return ANSWER_GOOD;
}

static enum answer reset(struct sim_double *d, enum engine_request request)
{
    if (request == REQUEST_RESET_PREFIX && d->kind == UPSTREAM_SGLANG && d->paused &&
        d->holds_requests)
        return ANSWER_REFUSED;
    if (request == REQUEST_RESET_PREFIX)
        d->stale = false;
    else
        d->stale_second = d->kind == UPSTREAM_SGLANG && d->stale;
    return ANSWER_GOOD;
}

static enum answer change_adapter(struct sim_double *d, const struct call *call)
{
    uint32_t *has = &d->adapters[call->adapter];

    if (call->request == REQUEST_UNLOAD) {
        bool had = *has != 0;

        *has = 0;
        return had ? ANSWER_GOOD : ANSWER_NOTHING;
    }
    if (*has != 0 && !upstream_caps(d->kind)->replaces_adapters)
        return ANSWER_REFUSED;
    if (upstream_caps(d->kind)->caches_by_adapter_name)
        d->stale = d->stale_second = true;
    *has = call->revision;
    return ANSWER_GOOD;
}

static enum answer set_version(struct sim_double *d, const struct call *call, const char **bad)
{
    if (d->weights == SIM_TORN && label_is_marker(d->label) && !label_is_marker(call->label))
        *bad = "I14: the marker of torn weights was overwritten";
    set_label(d, call->label);
    return ANSWER_GOOD;
}

static enum answer read_label(const struct sim_double *d, struct reply *reply)
{
    reply->label = d->label;
    reply->serial = d->weights > 0 && d->label[0] == 'v' ? (uint64_t)atoi(d->label + 1) : 0;
    if (two_phase(d))
        reply->serial = (uint64_t)(d->weights > 0 ? d->weights : 0);
    return ANSWER_GOOD;
}

enum answer double_execute(struct sim_double *d, const struct call *call, uint64_t update,
                           int serial, struct reply *reply, const char **bad)
{
    switch (call->request) {
    case REQUEST_PAUSE:
        d->paused = true;
        d->paused_by_other = false;
        return ANSWER_GOOD;
    case REQUEST_RESUME:
        return resume(d, bad);
    case REQUEST_SLEEP:
    case REQUEST_WAKE:
        return change_sleep(d, call, bad);
    case REQUEST_READ_SLEEP:
        reply->weights_awake = !d->weights_asleep;
        reply->kv_awake = !d->kv_asleep;
        return ANSWER_GOOD;
    case REQUEST_READ_LABEL:
        return read_label(d, reply);
    case REQUEST_SET_LABEL:
        return set_version(d, call, bad);
    case REQUEST_PACKING:
        d->packing = call->number;
        return ANSWER_GOOD;
    case REQUEST_START:
        if (d->own_open)
            return ANSWER_REFUSED;
        d->own_open = true;
        d->received = 0;
        d->last_chunk = 0;
        return ANSWER_GOOD;
    case REQUEST_TENSORS:
        return take_tensors(d, update * 16 + call->number, serial, bad);
    case REQUEST_FINISH:
        return finish(d, call, bad);
    case REQUEST_CLOSE:
        return close_own(d, bad);
    case REQUEST_RESET_PREFIX:
    case REQUEST_RESET_ENCODER:
    case REQUEST_RESET_STORAGE:
        return reset(d, call->request);
    case REQUEST_LOAD:
    case REQUEST_UNLOAD:
        return change_adapter(d, call);
    default:
        return ANSWER_GOOD;
    }
}
