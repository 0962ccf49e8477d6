/* What the answers mean: engines of one version are compared, and the faulty are fenced. */
#include "fleet/proof/fleet_proof_priv.h"

#include "base/log.h"
#include "fleet/calls/fleet_priv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Log-probabilities of one version on other GPUs, in other precision or by another kind of engine
 * differ by less; wrong weights differ by many. In nats. */
static const double canary_tolerance = 1.0;

enum { NAMES_LISTED = 2 };

/* distances */

double proof_distance_of_values(const double *a, const double *b)
{
    double largest = 0;

    for (size_t i = 0; i < API_CANARY_VALUES; i++)
        largest = fmax(largest, fabs(a[i] - b[i]));
    return largest;
}

/* the engines that are compared */

/* A copy of what is known of one, so that they are compared without the lock. */
struct compared_one {
    struct fleet_prover *p; /* its members are not read without the lock */
    struct fleet_prover
        now; /* with the verdict; of its pointers only `sums` is used, a reference */
    bool is_new;
    struct err why;
};

struct compared {
    size_t n;
    struct compared_one list[FLEET_MAX];
};

static double canary_distance(const void *arg, size_t a, size_t b)
{
    const struct compared *c = arg;

    return proof_distance_of_values(c->list[a].now.values, c->list[b].now.values);
}

static double sums_distance(const void *arg, size_t a, size_t b)
{
    const struct compared *c = arg;
    const struct proof_sums *sums = c->list[a].now.sums, *others = c->list[b].now.sums;

    return sums->hash == others->hash ? 0 : proof_sums_distance(sums, others);
}

/* A fenced engine keeps its last verdict. */
static void collect_locked(struct fleet_control *fc, const struct upstream_list *all,
                           struct compared *c)
{
    struct fleet_stats stats;

    fleet_stats(fleet_of(fc), &stats);
    for (size_t i = 0; i < all->n; i++) {
        struct fleet_prover *p = &fleet_engine(all->items[i])->proof;

        if (!p->compared || !fleet_proof_is_of_version_locked(p, &stats))
            continue;
        (void)proof_sums_ref(p->sums);
        c->list[c->n++] = (struct compared_one){.p = p, .now = *p};
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

/* It has other bytes than were committed, which needs no majority. */
static bool is_wrong(const struct fleet_prover *p)
{
    return p->has_compared && p->compared_bytes.n_wrong > 0;
}

static const char last_of_undecided[] = "find out which one is faulty, and restart it";

struct version_text {
    char text[FLEET_LABEL_MAX + 16];
};

/* For a message. An engine that takes no names has none. */
static struct version_text version_text(const struct fleet_prover *p)
{
    struct version_text out = {"the version that it started with"};

    if (p->serial > 0 || p->label[0] != '\0')
        (void)snprintf(out.text, sizeof out.text, "version '%.*s'", FLEET_LABEL_MAX, p->label);
    return out;
}

/* With --stage too nothing is handed over before the first version. */
static const char *remedy_of(const struct fleet_prover *p)
{
    if (!p->faulty)
        return "no majority agrees";
    return p->serial > 0 ? fleet_remedy(fleet_of(p->fc)) : "push a whole update";
}

static const char *last_of(const struct fleet_prover *p)
{
    if (!p->faulty)
        return last_of_undecided;
    return p->serial > 0 ? "restart it if that does not help"
                         : "or restart it with the right weights, and resync it";
}

static void set_why(const struct fleet_prover *p, struct err *why)
{
    const char *remedy = remedy_of(p), *last = last_of(p);
    struct version_text version = version_text(p);

    if (is_wrong(p))
        (void)err_set(
            why, ERR_UPSTREAM, "",
            "%zu of its parameters, one of them '%s', have other bytes than were committed "
            "for %s, and had the committed ones before: %s; %s",
            p->compared_bytes.n_wrong, p->compared_bytes.wrong, version.text, remedy, last);
    else if (p->verdict.state == PROOF_NOT_FINITE)
        (void)err_set(
            why, ERR_UPSTREAM, "",
            "its log-probabilities of a fixed prompt are not finite with %s: restart it, since its "
            "KV cache may keep them, and %s; if no upstream's are finite, push other weights",
            version.text, remedy);
    else if (p->verdict.state == PROOF_DIFFERS)
        (void)err_set(why, ERR_UPSTREAM, "",
                      "its log-probabilities of a fixed prompt differ by %.2f from those of other "
                      "upstreams with %s, more than %.2f: %s; %s",
                      p->verdict.distance, version.text, canary_tolerance, remedy, last);
    else if (p->sums_verdict.state == PROOF_DIFFERS)
        (void)err_set(why, ERR_UPSTREAM, "",
                      "%.0f of its %zu parameters have other checksums than at other upstreams "
                      "with %s: %s; %s",
                      p->sums_verdict.distance, p->n_sums, version.text, remedy, last);
}

/* By their checksums, else by their canaries. */
static void judge_by(struct compared *c, bool sums)
{
    enum api_answer answers[FLEET_MAX];
    struct proof_verdict verdicts[FLEET_MAX];

    for (size_t i = 0; i < c->n; i++)
        answers[i] = sums ? c->list[i].now.checksums : c->list[i].now.canary;
    proof_judge(answers, c->n, sums ? 0 : canary_tolerance, sums ? sums_distance : canary_distance,
                c, verdicts);
    for (size_t i = 0; i < c->n; i++)
        *(sums ? &c->list[i].now.sums_verdict : &c->list[i].now.verdict) = verdicts[i];
}

/* An engine is faulty only by two canaries: a false alarm costs an engine, and may stop the updates
 * of a fleet that needs all of them. All are asked again, since any of the answers compared may be
 * the wrong one. */
static bool must_ask_again(struct compared *c)
{
    bool again = false;

    for (size_t i = 0; i < c->n; i++) {
        struct fleet_prover *p = &c->list[i].now;

        again = again || (p->verdict.faulty && !p->asked_again);
        p->asked_again = p->asked_again || p->verdict.faulty;
    }
    for (size_t i = 0; again && i < c->n; i++)
        if (c->list[i].now.canary != API_ANSWER_NO_VALUE)
            c->list[i].now.canary = API_ANSWER_PENDING;
    return again;
}

static void judge(struct compared *c)
{
    judge_by(c, false);
    if (must_ask_again(c))
        judge_by(c, false);
    judge_by(c, true);
    for (size_t i = 0; i < c->n; i++) {
        struct fleet_prover *p = &c->list[i].now;
        enum proof_state was = p->state;
        bool was_faulty = p->faulty;

        if (is_wrong(p)) {
            p->sums_verdict.state = PROOF_DIFFERS;
            p->sums_verdict.faulty = true;
        }
        p->state = state_of(p);
        p->faulty = p->verdict.faulty || p->sums_verdict.faulty;
        if (p->state == was && p->faulty == was_faulty)
            continue;
        c->list[i].is_new = true;
        set_why(p, &c->list[i].why);
    }
}

static void apply_locked(const struct compared_one *one)
{
    struct fleet_prover *p = one->p;

    p->canary = one->now.canary;
    p->asked_again = one->now.asked_again;
    p->verdict = one->now.verdict;
    p->sums_verdict = one->now.sums_verdict;
    p->state = one->now.state;
    p->faulty = one->now.faulty;
    p->n_results[p->state] += one->is_new;
    p->n_faults += one->is_new && p->faulty;
}

/* reports */

static void log_verdict(const struct fleet_prover *p, const struct err *why)
{
    bool good = p->state == PROOF_PROVEN;
    struct log_rec r;

    log_begin(&r,
              good                        ? LOG_DEBUG
              : p->state == PROOF_UNKNOWN ? LOG_INFO
                                          : LOG_WARN,
              "upstream.proof");
    log_str(&r, "upstream", upstream_name(p->upstream));
    log_str(&r, "state", proof_state_name(p->state));
    log_str(&r, "weight_version", p->label);
    log_u64(&r, "n_compared", p->verdict.n_others);
    if (p->verdict.n_others > 0)
        log_real(&r, "largest_difference", p->verdict.distance);
    log_str(&r, "action",
            good || p->state == PROOF_UNKNOWN ? NULL
            : p->faulty                       ? "fenced"
                                              : "none, since no majority agrees");
    log_str(&r, "error", why->code != ERR_NONE ? why->msg : NULL);
    log_event(&r);
}

static void report(struct fleet_control *fc, const struct compared_one *news)
{
    const struct fleet_prover *p = &news->now;

    if (!news->is_new || p->state == PROOF_UNPROVEN)
        return;
    log_verdict(p, &news->why);
    if (p->faulty)
        fleet_fence_served(fleet_of(fc), p->upstream, p->incarnation, p->serial, &news->why);
}

/* If anything has changed meanwhile, the next look judges again. */
void fleet_proof_judge(struct fleet_control *fc)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct compared *c = NULL;
    bool news, applies;

    mtx_lock(&fc->lock);
    news = fc->proof.judge;
    mtx_unlock(&fc->lock);
    if (news)
        c = calloc(1, sizeof *c); /* without memory: at the next look */
    if (c == NULL)
        return;
    mtx_lock(&fc->lock);
    fc->proof.judge = false;
    collect_locked(fc, all, c);
    mtx_unlock(&fc->lock);
    judge(c);
    mtx_lock(&fc->lock);
    applies = !fc->proof.judge;
    for (size_t i = 0; i < c->n; i++) {
        if (applies)
            apply_locked(&c->list[i]);
        proof_sums_unref(c->list[i].now.sums);
    }
    cnd_broadcast(&fc->changed);
    mtx_unlock(&fc->lock);
    for (size_t i = 0; applies && i < c->n; i++)
        report(fc, &c->list[i]);
    free(c);
}

/* engines that serve, and that differ without a majority */

struct undecided {
    size_t n;
    double nats, n_sums; /* the largest differences */
    char names[ERR_MSG_MAX / 2];
    struct version_text version;
};

static void add_undecided_locked(struct undecided *u, const struct fleet_prover *p)
{
    size_t len = strlen(u->names);

    if (u->n < NAMES_LISTED)
        (void)snprintf(u->names + len, sizeof u->names - len, "%s%.80s", u->n > 0 ? ", " : "",
                       upstream_name(p->upstream));
    else if (u->n == NAMES_LISTED)
        (void)snprintf(u->names + len, sizeof u->names - len, ", …");
    u->n++;
    u->version = version_text(p);
    u->nats = fmax(u->nats, p->verdict.distance);
    u->n_sums = fmax(u->n_sums, p->sums_verdict.distance);
}

bool fleet_proof_warning(struct fleet_control *fc, struct err *e)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct undecided u = {0};

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < all->n; i++) {
        const struct fleet_prover *p = &fleet_engine(all->items[i])->proof;

        if (p->wanted > 0 && p->compared && !p->faulty && p->state == PROOF_DIFFERS)
            add_undecided_locked(&u, p);
    }
    mtx_unlock(&fc->lock);
    if (u.n == 0)
        return false;
    (void)err_set(
        e, ERR_UPSTREAM, "",
        "%zu upstreams that serve %s have different weights (log-probabilities of a fixed "
        "prompt differ by up to %.2f, %.0f checksums differ), and no majority agrees, so "
        "clients get tokens of each: %s; push a whole update, or %s",
        u.n, u.version.text, u.nats, u.n_sums, u.names, last_of_undecided);
    return true;
}
