/* Answers that agree with one another only through a third are judged from the one with which most
 * agree. Two passes over all pairs. */
#include "fleet/proof/proof_verdict.h"

#include "fleet/members/fleet.h"

#include <assert.h>

const char *proof_state_name(enum proof_state state)
{
    static const char *const names[PROOF_STATES] = {[PROOF_UNPROVEN] = "unproven",
                                                    [PROOF_PROVEN] = "proven",
                                                    [PROOF_NOT_FINITE] = "not_finite",
                                                    [PROOF_DIFFERS] = "differs",
                                                    [PROOF_UNKNOWN] = "unknown"};

    return names[state];
}

/* What all answers say, seen from one of them. */
struct view {
    size_t n, n_agree; /* comparable, and those of them that agree; both with itself */
    double largest;    /* distance of any */
};

struct question {
    const enum api_answer *answers;
    size_t n, n_pending;
    double tolerance;
    proof_distance_fn *distance;
    const void *arg;
    struct view views[FLEET_MAX]; /* [n] */
};

static double distance_of(const struct question *q, size_t a, size_t b)
{
    return a == b ? 0 : q->distance(q->arg, a, b);
}

static struct view view_from(const struct question *q, size_t from)
{
    struct view v = {0};

    for (size_t i = 0; i < q->n; i++) {
        double d = q->answers[i] == API_ANSWER_VALUE ? distance_of(q, from, i) : -1;

        if (d < 0)
            continue;
        v.n++;
        v.n_agree += d <= q->tolerance;
        if (d > v.largest)
            v.largest = d;
    }
    return v;
}

static bool is_majority(const struct question *q, const struct view *v)
{
    return v->n_agree >= 2 && 2 * v->n_agree > v->n + q->n_pending;
}

/* The engine comparable to `to` with which most agree, if they are a majority; n: there is none. */
static size_t find_centre(const struct question *q, size_t to)
{
    size_t best = q->n;

    for (size_t i = 0; i < q->n; i++) {
        if (q->answers[i] != API_ANSWER_VALUE || !is_majority(q, &q->views[i]) ||
            (best < q->n && q->views[i].n_agree <= q->views[best].n_agree))
            continue;
        if (distance_of(q, to, i) >= 0)
            best = i;
    }
    return best;
}

static struct proof_verdict judge_value(const struct question *q, size_t i)
{
    const struct view *own = &q->views[i];
    size_t centre = find_centre(q, i);
    struct proof_verdict out = {.n_others = own->n - 1, .distance = own->largest};

    if (centre < q->n) {
        out.distance = distance_of(q, i, centre);
        out.faulty = out.distance > q->tolerance;
        out.state = out.faulty ? PROOF_DIFFERS : PROOF_PROVEN;
    } else if (q->n_pending > 0) {
        out.state = PROOF_UNPROVEN;
    } else {
        out.state = own->n == 1 ? PROOF_PROVEN : PROOF_DIFFERS;
    }
    return out;
}

void proof_judge(const enum api_answer *answers, size_t n, double tolerance,
                 proof_distance_fn *distance, const void *arg, struct proof_verdict *out)
{
    struct question q = {
        .answers = answers, .n = n, .tolerance = tolerance, .distance = distance, .arg = arg};

    assert(n <= FLEET_MAX);
    for (size_t i = 0; i < n; i++) {
        q.n_pending += answers[i] == API_ANSWER_PENDING;
        if (answers[i] == API_ANSWER_VALUE)
            q.views[i] = view_from(&q, i);
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = (struct proof_verdict){.state = PROOF_UNPROVEN};
        if (answers[i] == API_ANSWER_NO_VALUE)
            out[i].state = PROOF_UNKNOWN;
        else if (answers[i] == API_ANSWER_NOT_FINITE)
            out[i] = (struct proof_verdict){.state = PROOF_NOT_FINITE, .faulty = true};
        else if (answers[i] == API_ANSWER_VALUE)
            out[i] = judge_value(&q, i);
    }
}
