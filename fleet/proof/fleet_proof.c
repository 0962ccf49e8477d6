/* One prover for each engine, and a look at all of them on the thread of the upstreams' loop. */
#include "fleet/proof/fleet_proof.h"

#include "base/log.h"
#include "fleet/calls/fleet_priv.h"
#include "fleet/proof/fleet_proof_priv.h"

#include <stdio.h>
#include <string.h>

enum {
    PROOF_RETRY_US = 500000,       /* delay after the first failure; doubled each time … */
    PROOF_RETRY_MAX_US = 30000000, /* … up to this */
    PROOF_HOLD_US = 2000000,
    PROOF_CANARY_US = 60000000,     /* for one answer: an engine that is full queues the request */
    PROOF_CHECKSUMS_US = 600000000, /* it copies and hashes all of its weights */
    PROOF_CHECKSUMS_NBYTES_MAX = 256 << 20, /* of the reply: some 200 bytes for each parameter of
                                               each rank */
    PROOF_FAULTS_MAX = 2 /* verdicts after which a version is not handed over again */
};

int fleet_prove_parse(enum fleet_prove *out, const char *name, const char *field, struct err *e)
{
    static const char *const names[] = {"none", "canary", "checksums"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum fleet_prove)i;
            return 0;
        }
    return err_set(e, ERR_BAD_REQUEST, field, "'%.32s' is not one of none, canary, checksums",
                   name);
}

static void on_item(void *fc)
{
    fleet_proof_look(fc);
}

int fleet_proof_init(struct fleet_control *fc, struct err *e)
{
    fc->proof.item = (struct loop_item){.run = on_item, .arg = fc};
    if (fc->cfg.store == NULL)
        return 0;
    return proof_committed_new(&fc->proof.committed, fc->cfg.store, &fc->proof.stopping, e);
}

void fleet_proof_fini(struct fleet_control *fc)
{
    proof_committed_free(fc->proof.committed);
    fc->proof.committed = NULL;
}

void fleet_prover_fini(struct fleet_prover *p)
{
    proof_sums_unref(p->sums);
    proof_sums_unref(p->before);
}

void fleet_proof_stop(struct fleet_control *fc)
{
    if (fc == NULL)
        return;
    atomic_store_explicit(&fc->proof.stopping, true, memory_order_relaxed);
    while (fc->proof.under_way != NULL)
        upstream_fanout_cancel(fc->proof.under_way);
    mtx_lock(&fc->lock);
    cnd_broadcast(&fc->changed); /* for fleet_proof_await */
    mtx_unlock(&fc->lock);
}

/* what is to prove */

static void fleet_proof_forget_locked(struct fleet_prover *p)
{
    proof_sums_unref(p->sums);
    p->sums = NULL;
    p->n_sums = 0;
    p->has_compared = false;
    p->canary = API_ANSWER_PENDING;
    p->checksums = p->with_checksums ? API_ANSWER_PENDING : API_ANSWER_NO_VALUE;
    p->verdict = p->sums_verdict = (struct proof_verdict){.state = PROOF_UNPROVEN};
    p->state = PROOF_UNPROVEN;
    p->faulty = p->asked_again = false;
    retry_clear(&p->retry);
    p->fc->proof.judge = true;
}

uint64_t fleet_proof_begin(struct fleet_control *fc, struct upstream *upstream, bool checksums)
{
    struct fleet_prover *p = &fleet_engine(upstream)->proof;
    struct upstream_info info;
    struct fleet_stats stats;
    uint64_t wanted;

    fleet_info(fleet_of(fc), upstream, &info);
    fleet_stats(fleet_of(fc), &stats);
    if (upstream_caps_of(upstream)->two_phase || !stats.decided)
        return 0;
    mtx_lock(&fc->lock);
    if (p->incarnation != info.incarnation || p->serial != stats.serial)
        p->n_faults = 0;
    p->wanted = wanted = ++fc->proof.n_wanted;
    p->incarnation = info.incarnation;
    p->serial = stats.serial;
    memcpy(p->label, stats.label, sizeof p->label);
    p->with_checksums = checksums || fc->cfg.prove == FLEET_PROVE_CHECKSUMS;
    fleet_proof_forget_locked(p);
    mtx_unlock(&fc->lock);
    loop_post(upstreams_loop(fc->upstreams), &fc->proof.item);
    return wanted;
}

bool fleet_proof_is_of_version_locked(const struct fleet_prover *p, const struct fleet_stats *s)
{
    return p->serial == s->serial && (s->serial > 0 || strcmp(p->label, s->label) == 0);
}

/* What was asked for on demand is not known of the next version. */
static void stop_proving(struct fleet_prover *p)
{
    mtx_lock(&p->fc->lock);
    if (p->wanted > 0)
        fleet_proof_forget_locked(p);
    p->wanted = 0;
    mtx_unlock(&p->fc->lock);
}

void fleet_proof_want(struct fleet_control *fc, struct upstream *upstream)
{
    if (fc->cfg.prove == FLEET_PROVE_NONE)
        stop_proving(&fleet_engine(upstream)->proof);
    else
        (void)fleet_proof_begin(fc, upstream, false);
}

/* One that was restarted or removed: nothing is known of the process that is there now. */
static bool fleet_proof_is_same_process(const struct fleet_prover *p,
                                        const struct upstream_info *info)
{
    return p->wanted > 0 && !info->removed && p->incarnation == info->incarnation;
}

static bool serves(const struct upstream_info *info)
{
    return info->alive && info->in_step;
}

/* May it generate now? A reset of its caches that is to come, or under way, would preempt a canary.
 */
static bool may_ask_locked(struct fleet_control *fc, const struct fleet_prover *p,
                           const struct upstream_info *info)
{
    return fleet_proof_is_same_process(p, info) && serves(info) && info->report.held == NULL &&
           !pause_is_held(&fc->pause) && !fc->sleep.weights && !fc->sleep.kv &&
           !fleet_engine_is_held_locked(fc, p->upstream) && !info->stale_caches;
}

/* answers */

void fleet_proof_retry_locked(struct fleet_prover *p)
{
    retry_failed(&p->retry, PROOF_RETRY_US, PROOF_RETRY_MAX_US);
}

/* A release, or a device, without them refuses the request. */
static enum api_answer refused_checksums(const struct upstream_reply *r)
{
    return r->status >= 400 && r->status < 500 && !api_is_auth_error(r->status)
               ? API_ANSWER_NO_VALUE
               : API_ANSWER_PENDING;
}

/* The engine may have got another version since it was asked, or may be one that was restarted. In
 * an update it may have answered with weights that are not the fleet's version yet; it is asked
 * again. */
static void fleet_proof_on_reply(void *arg, struct upstream_reply *replies, size_t n)
{
    struct fleet_prover *p = arg;
    struct fleet_control *fc = p->fc;
    struct upstream_info info;
    bool is_canary, read;

    (void)n;
    fleet_info(fleet_of(fc), p->upstream, &info);
    mtx_lock(&fc->lock);
    is_canary = p->sent == API_GENERATE_CANARY;
    p->sent = API_QUERIES;
    cnd_broadcast(&fc->changed);
    read = p->asked == p->wanted && may_ask_locked(fc, p, &info);
    if (read && (is_canary || !replies->good)) {
        enum api_answer *answer = is_canary ? &p->canary : &p->checksums;

        *answer = is_canary ? api_read_canary(p->values, upstream_kind(p->upstream),
                                              replies->status, replies->text, replies->text_len)
                            : refused_checksums(replies);
        if (*answer == API_ANSWER_PENDING)
            fleet_proof_retry_locked(p);
        fc->proof.judge = true;
        read = false;
    }
    mtx_unlock(&fc->lock);
    if (read)
        fleet_proof_read_sums(p, replies);
    loop_post(upstreams_loop(fc->upstreams), &fc->proof.item);
}

/* requests */

static bool is_reading_checksums(const struct fleet_control *fc)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);

    for (size_t i = 0; i < all->n; i++) {
        const struct fleet_prover *p = &fleet_engine(all->items[i])->proof;

        if (p->reading || p->sent == API_GET_CHECKSUMS)
            return true;
    }
    return false;
}

/* One engine at a time stands still for its checksums. API_QUERIES: nothing is due. */
static enum api_query next_query_locked(const struct fleet_control *fc,
                                        const struct fleet_prover *p)
{
    if (!retry_is_due(&p->retry))
        return API_QUERIES;
    if (p->canary == API_ANSWER_PENDING)
        return API_GENERATE_CANARY;
    if (p->checksums == API_ANSWER_PENDING && !is_reading_checksums(fc))
        return API_GET_CHECKSUMS;
    return API_QUERIES;
}

/* To an engine that is held. */
static bool is_canary_sent_locked(const struct fleet_control *fc)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);

    for (size_t i = 0; i < all->n; i++) {
        const struct fleet_prover *p = &fleet_engine(all->items[i])->proof;

        if (fc->proof.n_holds + p->n_holds > 0 && p->sent == API_GENERATE_CANARY && p->compared)
            return true;
    }
    return false;
}

static unsigned *holds_of(struct fleet_control *fc, const struct upstream *upstream)
{
    return upstream == NULL ? &fc->proof.n_holds : &fleet_engine(upstream)->proof.n_holds;
}

void fleet_proof_hold(struct fleet_control *fc, struct upstream *upstream)
{
    mtx_lock(&fc->lock);
    ++*holds_of(fc, upstream);
    mtx_unlock(&fc->lock);
}

void fleet_proof_await(struct fleet_control *fc)
{
    uint64_t deadline_us = clock_after_us(PROOF_HOLD_US);

    mtx_lock(&fc->lock);
    while (!atomic_load_explicit(&fc->proof.stopping, memory_order_relaxed) &&
           is_canary_sent_locked(fc) && cnd_wait(&fc->changed, &fc->lock, deadline_us)) {
    }
    mtx_unlock(&fc->lock);
}

void fleet_proof_release(struct fleet_control *fc, struct upstream *upstream)
{
    mtx_lock(&fc->lock);
    --*holds_of(fc, upstream);
    mtx_unlock(&fc->lock);
}

/* If there is no memory for the request, it is sent at the next look. */
static void ask(struct fleet_prover *p, enum api_query query)
{
    bool is_canary = query == API_GENERATE_CANARY;
    struct upstream_call call = {.timeout_us = is_canary ? PROOF_CANARY_US : PROOF_CHECKSUMS_US,
                                 .text_max = is_canary ? 0 : PROOF_CHECKSUMS_NBYTES_MAX};
    struct err ignored = {0};

    if (api_make_query(&call.request, upstream_kind(p->upstream), query, &ignored) == 0) {
        call.target = upstream_target(p->upstream);
        if (upstreams_send(p->fc->upstreams, &p->fanout, &call, fleet_proof_on_reply, p,
                           &ignored) == 0) {
            upstream_fanout_keep(&p->fanout, &p->fc->proof.under_way, p->upstream);
            return;
        }
    }
    mtx_lock(&p->fc->lock);
    p->sent = API_QUERIES;
    cnd_broadcast(&p->fc->changed);
    mtx_unlock(&p->fc->lock);
}

/* Nothing is known of another process, nor of one that served other weights in between. */
static bool must_forget_locked(const struct fleet_prover *p, const struct upstream_info *info)
{
    return p->wanted > 0 &&
           (!fleet_proof_is_same_process(p, info) || (!info->synced && !info->fenced) ||
            upstream_caps_of(p->upstream)->two_phase); /* since a reload */
}

/* Does it serve a version that nobody has asked it about? The end of an update asks by itself. */
static bool is_unasked_locked(const struct fleet_prover *p, const struct upstream_info *info,
                              const struct fleet_stats *stats)
{
    return p->fc->cfg.prove != FLEET_PROVE_NONE && p->fc->session == NULL && stats->decided &&
           serves(info) && !info->removed &&
           (p->wanted == 0 || !fleet_proof_is_of_version_locked(p, stats));
}

static void look_at(struct fleet_prover *p, const struct fleet_stats *stats)
{
    struct fleet_control *fc = p->fc;
    struct upstream_info info;
    enum api_query query = API_QUERIES, sent;
    bool may, ends, unasked, compared;

    fleet_info(fleet_of(fc), p->upstream, &info);
    mtx_lock(&fc->lock);
    sent = p->sent;
    compared = p->compared;
    if (must_forget_locked(p, &info)) {
        fleet_proof_forget_locked(p);
        p->wanted = 0;
    }
    fc->proof.judge |= p->compared != (p->wanted > 0 && serves(&info));
    p->compared = p->wanted > 0 && serves(&info);
    may = may_ask_locked(fc, p, &info);
    ends = p->fanout != NULL && (!may || p->asked != p->wanted);
    if (ends || p->fanout == NULL) {
        if (may && fc->proof.n_holds + p->n_holds == 0)
            query = next_query_locked(fc, p);
        p->sent = query;
        p->asked = p->wanted;
    }
    unasked = is_unasked_locked(p, &info, stats);
    if (p->sent != sent || p->compared != compared) /* for fleet_proof_await */
        cnd_broadcast(&fc->changed);
    mtx_unlock(&fc->lock);
    if (ends)
        upstream_fanout_cancel(p->fanout);
    if (query != API_QUERIES)
        ask(p, query);
    if (unasked) /* it is asked at the next look, which follows at once */
        (void)fleet_proof_begin(fc, p->upstream, false);
}

void fleet_proof_look(struct fleet_control *fc)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct fleet_stats stats;

    fleet_stats(fleet_of(fc), &stats);
    for (size_t i = 0; i < all->n; i++)
        look_at(&fleet_engine(all->items[i])->proof, &stats);
    fleet_proof_judge(fc);
}

/* what is known */

bool fleet_proof_is_beyond_repair(struct fleet_control *fc, struct upstream *upstream)
{
    const struct fleet_prover *p = &fleet_engine(upstream)->proof;
    struct upstream_info info;
    struct fleet_stats stats;
    bool beyond;

    fleet_info(fleet_of(fc), upstream, &info);
    fleet_stats(fleet_of(fc), &stats);
    mtx_lock(&fc->lock);
    beyond = fleet_proof_is_same_process(p, &info) && p->serial == stats.serial &&
             p->n_faults >= PROOF_FAULTS_MAX;
    mtx_unlock(&fc->lock);
    return beyond;
}

bool fleet_proof_get(struct fleet_control *fc, struct upstream *upstream, struct fleet_prover *out)
{
    mtx_lock(&fc->lock);
    memcpy(out, &fleet_engine(upstream)->proof, offsetof(struct fleet_prover, fanout));
    mtx_unlock(&fc->lock);
    return out->wanted > 0;
}
