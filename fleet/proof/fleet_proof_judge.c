/* What the answers mean: engines of one version are compared, and the faulty are fenced. */
#include "fleet/proof/fleet_proof_priv.h"

#include "base/log.h"
#include "fleet/fleet_priv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Log-probabilities of one version on other GPUs, in other precision or by another kind of engine
 * differ by less; wrong weights differ by many. In nats. */
static const double canary_tolerance = 1.0;

/* distances */

double proof_distance_of_values(const double *a, const double *b)
{
    double largest = 0;

    for (size_t i = 0; i < API_CANARY_VALUES; i++)
        largest = fmax(largest, fabs(a[i] - b[i]));
    return largest;
}

double proof_distance_of_sums(const json_t *a, const json_t *b)
{
    size_t n_different = 0;
    const char *name;
    json_t *sum;

    if (json_object_size(a) != json_object_size(b))
        return -1;
    json_object_foreach((json_t *)(uintptr_t)a, name, sum)
    {
        const json_t *other = json_object_get(b, name);

        if (other == NULL)
            return -1;
        n_different += !json_equal(sum, other);
    }
    return (double)n_different;
}

/* FNV-1a of each entry, added up. */
static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211U;
    return (hash ^ '\n') * 1099511628211U;
}

uint64_t proof_digest(const json_t *sums)
{
    uint64_t digest = 0;
    const char *name;
    json_t *sum;

    json_object_foreach((json_t *)(uintptr_t)sums, name, sum)
    {
        const char *text = json_string_value(sum);

        digest += hash_text(hash_text(14695981039346656037U, name), text != NULL ? text : "");
    }
    return digest;
}

/* the engines that are compared */

struct compared {
    size_t n;
    struct fleet_prover *list[FLEET_MAX];
    enum proof_answer answers[FLEET_MAX];
    struct proof_verdict verdicts[FLEET_MAX];
    struct proof_news {
        bool is_new;
        struct fleet_prover was; /* a copy; its pointers are not used */
        struct err why;
    } news[FLEET_MAX];
};

static double canary_distance(const void *arg, size_t a, size_t b)
{
    const struct compared *c = arg;

    return proof_distance_of_values(c->list[a]->values, c->list[b]->values);
}

static double sums_distance(const void *arg, size_t a, size_t b)
{
    const struct compared *c = arg;

    if (c->list[a]->sums_digest == c->list[b]->sums_digest)
        return 0;
    return proof_distance_of_sums(c->list[a]->sums, c->list[b]->sums);
}

/* A fenced engine keeps its last verdict. */
static void collect_locked(struct fleet_control *fc, struct compared *c)
{
    struct fleet_stats stats;

    fleet_stats(fleet_of(fc), &stats);
    for (size_t i = 0; i < FLEET_MAX; i++) {
        struct fleet_prover *p = &fc->proof.list[i];

        if (p->compared && p->serial == stats.serial)
            c->list[c->n++] = p;
    }
}

/* The worse of the two. An engine that can be asked for neither is unknown. */
static enum proof_state state_of(const struct fleet_prover *p)
{
    enum proof_state canary = p->verdict.state, sums = p->sums_verdict.state;

    if (canary == PROOF_NOT_FINITE || canary == PROOF_DIFFERS)
        return canary;
    if (sums == PROOF_DIFFERS)
        return sums;
    if (canary == PROOF_UNPROVEN || sums == PROOF_UNPROVEN)
        return PROOF_UNPROVEN;
    return canary == PROOF_PROVEN || sums == PROOF_PROVEN ? PROOF_PROVEN : PROOF_UNKNOWN;
}

static void set_why(const struct fleet_prover *p, struct err *why)
{
    const char *remedy = p->faulty ? fleet_remedy(fleet_of(p->fc)) : "no majority agrees",
               *last = p->faulty ? "restart it if that does not help"
                                 : "find out which one is faulty, and restart it";

    if (p->verdict.state == PROOF_NOT_FINITE)
        (void)err_set(
            why, ERR_UPSTREAM, "",
            "its log-probabilities of a fixed prompt are not finite with version '%.100s': "
            "%s; %s; if no upstream's are finite, push other weights",
            p->label, remedy, last);
    else if (p->verdict.state == PROOF_DIFFERS)
        (void)err_set(why, ERR_UPSTREAM, "",
                      "its log-probabilities of a fixed prompt differ by %.2f from those of other "
                      "upstreams with version '%.100s', more than %.2f: %s; %s",
                      p->verdict.distance, p->label, canary_tolerance, remedy, last);
    else if (p->sums_verdict.state == PROOF_DIFFERS)
        (void)err_set(why, ERR_UPSTREAM, "",
                      "%.0f of its %zu parameters have other checksums than at other upstreams "
                      "with version '%.100s': %s; %s",
                      p->sums_verdict.distance, json_object_size(p->sums), p->label, remedy, last);
}

static void apply_locked(struct compared *c, size_t i)
{
    struct fleet_prover *p = c->list[i];
    struct proof_news *news = &c->news[i];
    enum proof_state state = state_of(p);
    bool faulty = p->verdict.faulty || p->sums_verdict.faulty;

    if (state == p->state && faulty == p->faulty)
        return;
    p->state = state;
    p->faulty = faulty;
    p->n_results[state]++;
    p->n_faults += faulty;
    news->is_new = state != PROOF_UNPROVEN;
    set_why(p, &news->why);
    news->was = *p;
}

static void judge_canaries_locked(struct compared *c)
{
    for (size_t i = 0; i < c->n; i++)
        c->answers[i] = c->list[i]->canary;
    proof_judge(c->answers, c->n, canary_tolerance, canary_distance, c, c->verdicts);
}

/* An engine is faulty only by two canaries: a false alarm costs an engine, and may stop the updates
 * of a fleet that needs all of them. All are asked again, since any of the answers compared may be
 * the wrong one. */
static bool must_ask_again_locked(struct compared *c)
{
    bool again = false;

    for (size_t i = 0; i < c->n; i++) {
        again = again || (c->verdicts[i].faulty && !c->list[i]->asked_again);
        c->list[i]->asked_again = c->list[i]->asked_again || c->verdicts[i].faulty;
    }
    for (size_t i = 0; again && i < c->n; i++)
        if (c->answers[i] == PROOF_VALUE || c->answers[i] == PROOF_BROKEN)
            c->list[i]->canary = PROOF_PENDING;
    return again;
}

static void judge_locked(struct fleet_control *fc, struct compared *c)
{
    collect_locked(fc, c);
    judge_canaries_locked(c);
    if (must_ask_again_locked(c))
        judge_canaries_locked(c);
    for (size_t i = 0; i < c->n; i++) {
        c->list[i]->verdict = c->verdicts[i];
        c->answers[i] = c->list[i]->checksums;
    }
    proof_judge(c->answers, c->n, 0, sums_distance, c, c->verdicts);
    for (size_t i = 0; i < c->n; i++) {
        c->list[i]->sums_verdict = c->verdicts[i];
        apply_locked(c, i);
    }
}

/* reports */

static void log_verdict(struct fleet_control *fc, const struct proof_news *news)
{
    const struct fleet_prover *p = &news->was;
    bool good = p->state == PROOF_PROVEN;
    struct upstream_endpoint at;
    char difference[32];
    struct log_rec r;

    upstreams_get(fc->upstreams, p->upstream, &at);
    (void)snprintf(difference, sizeof difference, "%.4f", p->verdict.distance);
    log_begin(&r,
              good                        ? LOG_DEBUG
              : p->state == PROOF_UNKNOWN ? LOG_INFO
                                          : LOG_WARN,
              "upstream.proof");
    log_str(&r, "upstream", at.name);
    log_str(&r, "state", proof_state_name(p->state));
    log_str(&r, "weight_version", p->label);
    log_u64(&r, "n_compared", p->verdict.n_others);
    log_str(&r, "largest_difference", p->verdict.n_others > 0 ? difference : NULL);
    log_str(&r, "action",
            good || p->state == PROOF_UNKNOWN ? NULL
            : p->faulty                       ? "fenced"
                                              : "none, since no majority agrees");
    log_str(&r, "error", news->why.code != ERR_NONE ? news->why.msg : NULL);
    log_event(&r);
}

void fleet_proof_judge(struct fleet_control *fc)
{
    struct compared *c = NULL;
    bool judge;

    mtx_lock(&fc->lock);
    judge = fc->proof.judge;
    mtx_unlock(&fc->lock);
    if (judge)
        c = calloc(1, sizeof *c);
    if (c == NULL) /* without memory: at the next look */
        return;
    mtx_lock(&fc->lock);
    fc->proof.judge = false;
    judge_locked(fc, c);
    mtx_unlock(&fc->lock);
    for (size_t i = 0; i < c->n; i++) {
        const struct proof_news *news = &c->news[i];

        if (news->is_new)
            log_verdict(fc, news);
        if (news->is_new && news->was.faulty)
            fleet_fence_served(fleet_of(fc), news->was.upstream, news->was.incarnation,
                               news->was.serial, &news->why);
    }
    free(c);
}
