/* The order of the rows is that in which requests are sent where several could be: a resume comes
 * first among what clients notice, a proof last. */
#include "tests/unit/fleet/model/aspects_priv.h"

enum { HALF_S = 500000, ONE_S = 1000000, TEN_S = 10000000, THIRTY_S = 30000000 };

static const struct aspect_row rows[ASPECTS] = {
    [ASPECT_SLEEP] = {sleep_next, sleep_out, HALF_S, TEN_S},
    [ASPECT_PACKING] = {packing_next, NULL, HALF_S, TEN_S},
    [ASPECT_LABEL_READ] = {label_read_next, label_out, HALF_S, TEN_S},
    [ASPECT_PAUSE] = {pause_next, pause_out, HALF_S, HALF_S},
    [ASPECT_LABEL_SET] = {label_set_next, NULL, HALF_S, TEN_S},
    [ASPECT_OWN_UPDATE] = {own_next, own_out, HALF_S, TEN_S},
    [ASPECT_WEIGHTS] = {weights_next, weights_out, HALF_S, TEN_S},
    [ASPECT_CACHES] = {caches_next, caches_out, HALF_S, ONE_S},
    [ASPECT_ADAPTERS] = {adapters_next, adapters_out, HALF_S, THIRTY_S},
    [ASPECT_PROOF] = {proof_next, NULL, HALF_S, THIRTY_S},
};

const char *reason_text(enum reason reason)
{
    static const char *const texts[REASONS] = {
#define X(constant, text) [constant] = text,
        REASONS_LIST(X)
#undef X
    };

    return texts[reason];
}

/* ---- lanes ---- */

enum lane request_lane(enum engine_request request)
{
    switch (request) {
    case REQUEST_PAUSE:
    case REQUEST_RESUME:
        return LANE_GATE;
    case REQUEST_LOAD:
    case REQUEST_UNLOAD:
        return LANE_ADAPTERS;
    case REQUEST_PROVE:
        return LANE_NONE;
    default:
        return LANE_WEIGHTS;
    }
}

/* A pause or resume runs beside everything: it must reach an engine whose sleep or finish hangs. It
 * may even overtake its opposite, which then leaves neither known. Loads are slow, and tensors do
 * not touch them. */
bool lanes_conflict(enum engine_request under_way, enum engine_request next)
{
    enum lane a = request_lane(under_way), b = request_lane(next);

    if (under_way == next)
        return true;
    if (a == LANE_NONE || b == LANE_NONE || a == LANE_GATE || b == LANE_GATE)
        return false;
    if (a == b)
        return true;
    return under_way != REQUEST_TENSORS && next != REQUEST_TENSORS;
}

static bool is_free(uint32_t under_way, const struct step *step)
{
    for (size_t i = 0; i < step->n_calls; i++)
        for (unsigned r = 0; r < REQUESTS; r++)
            if ((under_way >> r & 1) && lanes_conflict(r, step->calls[i].request))
                return false;
    return true;
}

void aspect_failed(struct retry *retry, enum aspect aspect)
{
    retry_failed(retry, rows[aspect].delay_us, rows[aspect].delay_max_us);
}

/* ---- the table ---- */

/* What a request under way changes is unknown until it is answered, so nobody has to act on it. */
static void wait_for_answers(uint32_t under_way, struct step *step)
{
    if (step->is == STEP_STUCK && (under_way & ~(1u << REQUEST_PROVE)) != 0)
        *step = step_blocked();
}

static bool is_before(const struct plan *out, const struct step *step)
{
    return out->aspect == ASPECTS || (out->step.is != STEP_STUCK && step->is == STEP_STUCK);
}

bool aspect_next(const struct engine_now *e, const struct wants *w, uint32_t under_way,
                 const struct retry *retry, uint64_t now_us, struct plan *out)
{
    *out = (struct plan){.aspect = ASPECTS, .due_us = UINT64_MAX};
    if (!e->reachable) {
        out->step = step_stuck(REASON_DOWN);
        return false;
    }
    for (unsigned i = 0; i < ASPECTS; i++) {
        struct step step = rows[i].next(e, w);

        if (step.is == STEP_SAME)
            continue;
        wait_for_answers(under_way, &step);
        if (step.is == STEP_CALL && retry[i].due_us <= now_us && is_free(under_way, &step)) {
            *out = (struct plan){.aspect = i, .step = step, .due_us = UINT64_MAX};
            return true;
        }
        if (step.is == STEP_CALL && retry[i].due_us > now_us && retry[i].due_us < out->due_us)
            out->due_us = retry[i].due_us;
        if (is_before(out, &step)) {
            out->aspect = i;
            out->step = step;
        }
    }
    return false;
}

/* A two-phase engine that ends an update gets no request until it has answered; the others are held
 * from their pause on, until their label was read after the resume. */
static bool part_is_out(const struct engine_now *e)
{
    const struct part_want *p = e->part;

    if (upstream_caps(e->kind)->two_phase)
        return p->goal == GOAL_FINISHED &&
               !(e->have->weights.state == WEIGHTS_SERIAL && e->have->weights.serial == p->serial);
    return part_overwrites(e) || (p->goal == GOAL_RELEASED && !p->confirmed);
}

unsigned aspects_out(const struct engine_now *e, const struct wants *w)
{
    unsigned out = 0;

    if (!e->reachable || !e->serves)
        out |= ASPECTS_OUT_REACH;
    if (part_is_out(e))
        out |= ASPECTS_OUT_PART;
    for (unsigned i = 0; i < ASPECTS; i++)
        if (rows[i].out != NULL && rows[i].out(e, w))
            out |= 1u << i;
    return out;
}

/* Of an engine that is as it should be, but should not serve. */
static enum reason reason_of_wants(const struct engine_now *e, const struct wants *w)
{
    if (w->sleep != WANT_AWAKE)
        return REASON_ASLEEP;
    if (w->pause != GATE_RUNNING)
        return REASON_PAUSED;
    if (part_is_out(e))
        return REASON_UPDATE;
    return REASON_NOT_READY;
}

enum reason engine_reason(const struct engine_now *e, const struct wants *w)
{
    enum reason driven = REASON_NONE;

    if (aspects_out(e, w) == 0)
        return REASON_NONE;
    if (!e->reachable)
        return REASON_DOWN;
    for (unsigned i = 0; i < ASPECTS; i++) {
        struct step step = rows[i].next(e, w);

        if (step.is == STEP_STUCK)
            return step.why;
        if (step.is != STEP_SAME)
            driven = REASON_DRIVEN;
    }
    return driven != REASON_NONE ? driven : reason_of_wants(e, w);
}
