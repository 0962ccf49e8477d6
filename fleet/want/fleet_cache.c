/* What an engine cached of prompts was computed with the weights of that time. An update that
 * overwrites those weights therefore empties the caches before it ends, while the engines are
 * paused, whichever call paused or resumes them: no request that is sent after the update
 * reads an entry of another version. The caches are: the prefix cache, a vLLM's cache of encoder
 * outputs (images), and an SGLang's storage beyond its memory (HiCache). An SGLang has no route
 * that empties its cache of image embeddings; those entries stay.
 *
 * A cache cannot be emptied while a request holds KV. By default such requests are preempted, and
 * compute their KV again with the new weights. With --on-update continue, or in an SGLang before
 * 0.5.23, which cannot flush while it holds a request, they go on; the engine gets no other request
 * until its cache is empty. If emptying fails in any other way they are aborted: a part that their
 * clients can continue is better than tokens of new weights and old KV.
 *
 * A process that this server has not asked yet may have stale entries, because an earlier server
 * may have ended in the middle of an update. So it is asked to empty its caches before it gets its
 * first request. Therefore an update may empty them at the same time as it gives the engine its
 * version, which saves the paused engine a round trip: a paused engine makes no new entries.
 *
 * What an SGLang evicts from its memory may be written to its storage, so that is emptied last.
 *
 * Rejected: to empty caches when the engines are resumed. A trainer's pause may outlast the update,
 * and a failure could not be reported to anyone then. Rejected, too: a fence. The weights are the
 * right ones, and only a whole update would lift the fence. */
#include "fleet/want/fleet_cache.h"

#include "fleet/update/fleet_update_priv.h"

#include "base/log.h"

#include <string.h>

bool fleet_recomputes_kv(struct fleet_control *fc)
{
    return fc->cfg.recomputes;
}

typedef bool filter_fn(const struct fleet_resets *r, size_t i);

static bool is_any(const struct fleet_resets *r, size_t i)
{
    (void)r;
    (void)i;
    return true;
}

static bool is_reset(const struct fleet_resets *r, size_t i)
{
    return r->why[i].code == ERR_NONE;
}

/* An SGLang that refused and is paused: the requests that it holds may be retracted. */
static bool is_paused_and_refused(const struct fleet_resets *r, size_t i)
{

    return upstream_caps_of(r->list[i].upstream)->retracts_requests && r->list[i].paused &&
           r->list[i].preempt && r->why[i].code != ERR_NONE;
}

/* An engine without such a cache has no route for it; an SGLang without HiCache answers 400 where
 * one with it answers 200. A vLLM outside of development mode has neither a route to reset its
 * prefix cache nor routes for updates; only its adapters can have changed. */
static bool has_no_cache(enum api_op op, bool route_optional, const struct fleet_result *result)
{
    bool optional = op == API_RESET_ENCODER_CACHE || op == API_RESET_STORAGE_CACHE ||
                    route_optional;

    if (result->outcome != FLEET_REFUSED)
        return false;
    return (op == API_RESET_STORAGE_CACHE && result->status == 400) ||
           (optional && (result->status == 404 || result->status == 405));
}

/* Did it fail, other than by an SGLang's refusal while it holds requests? */
static bool is_failure(enum upstream_kind kind, const struct fleet_result *result)
{
    bool holds = upstream_caps(kind)->retracts_requests && result->outcome == FLEET_REFUSED &&
                 result->status < 500;

    return !result_ok(result) && !holds;
}

/* The first failure of an engine stays. */
static void apply_reset_result(struct fleet_resets *r, size_t k, const struct fleet_result *result)
{
    const struct fleet_target *target = &r->targets[k];
    struct err *why = &r->why[r->of[k]];

    if (why->code != ERR_NONE)
        return;
    if (!result_ok(result) && !has_no_cache(target->op, r->list[r->of[k]].route_optional, result))
        *why = result->why;
    else if (target->op == API_RESET_PREFIX_CACHE && result->outcome == FLEET_OK &&
             !api_reset_is_proven(upstream_kind(target->upstream), target->args,
                                  result->text != NULL ? result->text : "", result->text_len))
        (void)err_set(why, ERR_UPSTREAM, "", "%.100s does not report whether its cache is empty",
                      upstream_name(target->upstream));
    r->failed[r->of[k]] = why->code != ERR_NONE &&
                          is_failure(upstream_kind(target->upstream), result);
}

static void add_targets(struct fleet_resets *r, enum api_op op, filter_fn *filter)
{
    static const struct api_args caches[] = {{.external = true},
                                             {.external = true, .running = true}};
    static const struct api_args requests = {.all = true};

    for (size_t i = 0; i < r->n; i++)
        if (filter(r, i)) {
            r->of[r->n_targets] = i;
            r->targets[r->n_targets++] = (struct fleet_target){
                .upstream = r->list[i].upstream,
                .op = op,
                .args = op == API_ABORT_REQUESTS ? &requests : &caches[r->list[i].preempt],
                .given_up = r->list[i].given_up,
                .timeout_us = fleet_step_us(r->fc)};
        }
}

/* @results  NULL: nothing was sent, because of `e` */
static void apply_results(struct fleet_resets *r, const struct fleet_result *results,
                          const struct err *e)
{
    for (size_t k = 0; k < r->n_targets; k++) {
        if (results != NULL)
            apply_reset_result(r, k, &results[k]);
        else if (r->why[r->of[k]].code == ERR_NONE) {
            r->why[r->of[k]] = *e;
            r->failed[r->of[k]] = true;
        }
    }
    r->n_targets = 0;
}

/* The caller frees. NULL: nothing was sent, because of `e`. */
static struct fleet_result *send_targets(struct fleet_resets *r, struct err *e)
{
    struct fleet_result *results = NULL;

    if (r->n_targets > 0)
        (void)fleet_requests(r->fc, r->targets, r->n_targets, fleet_step_us(r->fc), &results, e);
    return results;
}

/* Flushes again, whatever the engines answered to the retraction. */
static void retract_and_flush(struct fleet_resets *r)
{
    struct fleet_result *retracted, *results;
    struct err ignored = {0}, e = {0};
    size_t n;

    add_targets(r, API_RETRACT_REQUESTS, is_paused_and_refused);
    n = r->n_targets;
    if (n == 0)
        return;
    retracted = send_targets(r, &ignored);
    r->n_targets = 0;
    add_targets(r, API_RESET_PREFIX_CACHE, is_paused_and_refused);
    for (size_t k = 0; k < n; k++)
        err_clear(&r->why[r->of[k]]);
    results = send_targets(r, &e);
    apply_results(r, results, &e);
    for (size_t k = 0; k < n; k++) /* after apply_results r->of is as it was */
        if (r->why[r->of[k]].code != ERR_NONE &&
            (retracted == NULL || is_failure(UPSTREAM_SGLANG, &retracted[k])))
            r->failed[r->of[k]] = true;
    fleet_results_free(retracted, n);
    fleet_results_free(results, n);
}

void fleet_resets_begin(struct fleet_resets *r, struct fleet_control *fc,
                        const struct fleet_cache_reset *list, size_t n)
{
    r->fc = fc;
    r->n = n;
    memcpy(r->list, list, n * sizeof *list);
    memset(r->why, 0, n * sizeof r->why[0]);
    memset(r->failed, 0, n * sizeof r->failed[0]);
    r->n_targets = 0;
    add_targets(r, API_RESET_PREFIX_CACHE, is_any);
    add_targets(r, API_RESET_ENCODER_CACHE, is_any);
}

void fleet_resets_apply(struct fleet_resets *r, const struct fleet_result *results,
                        const struct err *e)
{
    apply_results(r, results, e);
    retract_and_flush(r);
    add_targets(r, API_RESET_STORAGE_CACHE, is_reset);
}

void fleet_resets_end(struct fleet_resets *r, const struct fleet_result *results,
                      const struct err *e)
{
    apply_results(r, results, e);
}

void fleet_reset_caches(struct fleet_control *fc, const struct fleet_cache_reset *list, size_t n,
                        struct err *why)
{
    struct fleet_result *results;
    struct fleet_resets r;
    struct err e = {0};
    size_t n_sent;

    for (size_t i = 0; i < n; i++)
        fleet_proof_hold(fc, list[i].upstream);
    fleet_proof_await(fc);
    fleet_resets_begin(&r, fc, list, n);
    n_sent = r.n_targets;
    results = send_targets(&r, &e);
    fleet_resets_apply(&r, results, &e);
    fleet_results_free(results, n_sent);
    n_sent = r.n_targets;
    results = send_targets(&r, &e);
    fleet_resets_end(&r, results, &e);
    fleet_results_free(results, n_sent);
    for (size_t i = 0; i < n; i++)
        fleet_proof_release(fc, list[i].upstream);
    memcpy(why, r.why, n * sizeof *why);
}

static void log_stale(struct upstream *upstream, const struct err *why)
{
    struct log_rec r;

    log_begin(&r, LOG_WARN, "fleet.cache_stale");
    log_str(&r, "upstream", upstream_name(upstream));
    log_str(&r, "error", why->msg);
    log_end(&r);
}

static void set_stale(struct fleet_control *fc, const struct fleet_cache_reset *list, size_t n,
                      const struct err *why)
{
    for (size_t i = 0; i < n; i++) {
        if (why[i].code != ERR_NONE)
            log_stale(list[i].upstream, &why[i]);
        fleet_reconcile_set_stale(fc, list[i].upstream, &why[i]);
    }
}

static void reset_or_set_stale(struct fleet_control *fc, const struct fleet_cache_reset *list,
                               size_t n)
{
    struct err why[FLEET_MAX];

    fleet_reset_caches(fc, list, n, why);
    set_stale(fc, list, n, why);
}

void fleet_reset_parts_begin(struct fleet_resets *r, struct fleet_control *fc,
                             struct fleet_session *s)
{
    struct fleet_cache_reset list[FLEET_MAX];
    size_t n = 0;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++) {
        const struct fleet_part *p = &s->parts[i];

        if (!p->two_phase && !p->out)
            list[n++] = (struct fleet_cache_reset){.upstream = p->upstream,
                                                   .paused = upstream_may_be_paused(p->upstream),
                                                   .preempt = fleet_recomputes_kv(fc),
                                                   .given_up = s->given_up};
    }
    mtx_unlock(&fc->lock);
    fleet_resets_begin(r, fc, list, n);
}

static bool holds_stale_requests(const struct fleet_resets *r, size_t i)
{
    return r->list[i].preempt && r->list[i].paused && r->why[i].code != ERR_NONE && r->failed[i];
}

static void log_held(const struct fleet_result *result)
{
    struct log_rec r;

    log_begin(&r, LOG_WARN, "fleet.held_aborted");
    log_str(&r, "upstream", upstream_name(result->upstream));
    log_str(&r, "error", result_ok(result) ? NULL : result->why.msg);
    log_end(&r);
}

/* A failure is only reported: the engine may have ended, and with it what it held. */
static void abort_stale_requests(struct fleet_resets *r)
{
    struct fleet_result *results;
    struct err ignored = {0};
    size_t n;

    add_targets(r, API_ABORT_REQUESTS, holds_stale_requests);
    n = r->n_targets;
    results = send_targets(r, &ignored);
    for (size_t k = 0; k < n && results != NULL; k++)
        log_held(&results[k]);
    fleet_results_free(results, n);
    r->n_targets = 0;
}

void fleet_reset_parts_end(struct fleet_resets *r, struct fleet_session *s,
                           const struct fleet_result *results, const struct err *e)
{
    fleet_resets_end(r, results, e);
    abort_stale_requests(r);
    set_stale(r->fc, r->list, r->n, r->why);
    mtx_lock(&r->fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        for (size_t k = 0; k < r->n; k++)
            if (r->list[k].upstream == s->parts[i].upstream)
                s->parts[i].cache_error = r->why[k];
    mtx_unlock(&r->fc->lock);
}

/* An SGLang gives each load of an adapter a new id, so its entries cannot be mixed up. A running
 * request of a vLLM cannot keep the adapter that it began with, so it computes its KV again
 * whatever --on-update says. */
void fleet_reset_adapter_caches(struct fleet_control *fc, const struct fleet_result *results,
                                size_t n)
{
    struct fleet_cache_reset list[FLEET_MAX];
    size_t n_list = 0;

    for (size_t i = 0; i < n; i++) {
        if (upstream_caps_of(results[i].upstream)->caches_by_adapter_name &&
            fleet_result_may_have_run(&results[i]))
            list[n_list++] = (struct fleet_cache_reset){
                .upstream = results[i].upstream,
                .route_optional = !fleet_reconcile_is_stale(fc, results[i].upstream),
                .preempt = true};
    }
    if (n_list > 0)
        reset_or_set_stale(fc, list, n_list);
}

void fleet_reset_caches_of(struct fleet_control *fc, struct upstream *upstream)
{
    const struct fleet_cache_reset one = {.upstream = upstream, .preempt = fleet_recomputes_kv(fc)};

    if (!upstream_caps_of(upstream)->two_phase)
        reset_or_set_stale(fc, &one, 1);
}
