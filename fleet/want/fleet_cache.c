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

#include <stdlib.h>
#include <string.h>

typedef bool filter_fn(const struct fleet_reset *one);

static bool is_reset(const struct fleet_reset *one)
{
    return one->why.code == ERR_NONE;
}

/* An SGLang that refused and is paused: the requests that it holds may be retracted. */
static bool is_paused_and_refused(const struct fleet_reset *one)
{
    return upstream_caps_of(one->upstream)->retracts_requests && one->paused && one->preempt &&
           one->why.code != ERR_NONE;
}

static bool holds_stale_requests(const struct fleet_reset *one)
{
    return one->preempt && one->paused && one->why.code != ERR_NONE && one->failed;
}

/* An engine without such a cache has no route for it; an SGLang without HiCache answers 400 where
 * one with it answers 200. A vLLM outside of development mode has neither a route to reset its
 * prefix cache nor routes for updates; only its adapters can have changed. */
static bool has_no_cache(enum api_op op, bool may_lack_route, const struct fleet_result *result)
{
    bool optional = op != API_RESET_PREFIX_CACHE || may_lack_route;

    return (result->outcome == FLEET_REFUSED && op == API_RESET_STORAGE_CACHE &&
            result->status == 400) ||
           (optional && fleet_result_lacks_route(result));
}

/* Did it fail, other than by an SGLang's refusal while it holds requests? */
static bool is_failure(const struct fleet_result *result)
{
    bool holds = upstream_caps_of(result->upstream)->retracts_requests &&
                 result->outcome == FLEET_REFUSED && result->status < 500;

    return !result_ok(result) && !holds;
}

static struct fleet_reset *reset_of(struct fleet_resets *r, const struct fleet_target *target)
{
    struct fleet_reset *one = r->list;

    while (one->upstream != target->upstream)
        one++;
    return one;
}

static void log_caches(const char *event, const struct upstream *upstream, const struct err *why)
{
    struct log_rec rec;

    log_begin(&rec, LOG_WARN, event);
    log_str(&rec, "upstream", upstream_name(upstream));
    log_str(&rec, "error", why->code != ERR_NONE ? why->msg : NULL);
    log_end(&rec);
}

/* The first failure of an engine stays. */
static void apply_reset(struct fleet_reset *one, const struct fleet_target *target,
                        const struct fleet_result *result)
{
    if (!result_ok(result) && !has_no_cache(target->op, one->may_lack_route, result))
        one->why = result->why;
    else if (target->op == API_RESET_PREFIX_CACHE && result->outcome == FLEET_OK &&
             !api_reset_is_proven(upstream_kind(target->upstream), target->args, result->text,
                                  result->text_len))
        (void)err_set(&one->why, ERR_UPSTREAM, "",
                      "%.100s does not report whether its cache is empty",
                      upstream_name(target->upstream));
    one->failed = one->why.code != ERR_NONE &&
                  (is_failure(result) ||
                   (one->not_retracted && target->op == API_RESET_PREFIX_CACHE));
}

/* @result  NULL: nothing was sent, because of `e` */
static void fleet_cache_apply_result(struct fleet_reset *one, const struct fleet_target *target,
                                     const struct fleet_result *result, const struct err *e)
{
    if (target->op == API_RETRACT_REQUESTS) {
        one->not_retracted = result == NULL || is_failure(result);
    } else if (target->op == API_ABORT_REQUESTS) {
        if (result != NULL)
            log_caches("fleet.held_aborted", target->upstream, &result->why);
    } else if (one->why.code == ERR_NONE && result != NULL) {
        apply_reset(one, target, result);
    } else if (one->why.code == ERR_NONE) {
        one->why = *e;
        one->failed = true;
    }
}

/* Ends a step. */
static void fleet_cache_apply_results(struct fleet_resets *r, const struct fleet_results *results,
                                      const struct err *e)
{
    for (size_t k = 0; k < r->n_targets; k++)
        fleet_cache_apply_result(reset_of(r, &r->targets[k]), &r->targets[k],
                                 results->n > 0 ? &results->list[k] : NULL, e);
    r->n_targets = 0;
}

static void add_targets(struct fleet_resets *r, enum api_op op, filter_fn *filter)
{
    static const struct api_args caches[] = {{.external = true},
                                             {.external = true, .running = true}};
    static const struct api_args requests = {.all = true};

    for (size_t i = 0; i < r->n; i++)
        if (filter == NULL || filter(&r->list[i]))
            r->targets[r->n_targets++] = (struct fleet_target){
                .upstream = r->list[i].upstream,
                .op = op,
                .args = op == API_ABORT_REQUESTS ? &requests : &caches[r->list[i].preempt],
                .given_up = r->list[i].given_up,
                .timeout_us = fleet_step_us(r->fc)};
}

static void send_step(struct fleet_resets *r)
{
    fleet_results_auto results = {0};
    struct err e = {0};

    if (r->n_targets > 0)
        (void)fleet_requests(r->fc, r->targets, r->n_targets, fleet_step_us(r->fc), &results, &e);
    fleet_cache_apply_results(r, &results, &e);
}

/* Flushes again, whatever the engines answered to the retraction. */
static void retract_and_flush(struct fleet_resets *r)
{
    add_targets(r, API_RETRACT_REQUESTS, is_paused_and_refused);
    send_step(r);
    add_targets(r, API_RESET_PREFIX_CACHE, is_paused_and_refused);
    for (size_t k = 0; k < r->n_targets; k++)
        err_clear(&reset_of(r, &r->targets[k])->why);
    send_step(r);
}

static void resets_begin(struct fleet_resets *r)
{
    for (size_t i = 0; i < r->n; i++)
        r->list[i].number = fleet_caches_begin(fleet_of(r->fc), r->list[i].upstream,
                                               r->list[i].change, &r->list[i].may_lack_route);
    add_targets(r, API_RESET_PREFIX_CACHE, NULL);
    add_targets(r, API_RESET_ENCODER_CACHE, NULL);
}

static void begin_second_step(struct fleet_resets *r)
{
    retract_and_flush(r);
    add_targets(r, API_RESET_STORAGE_CACHE, is_reset);
}

void fleet_resets_apply(struct fleet_resets *r, const struct fleet_results *results,
                        const struct err *e)
{
    fleet_cache_apply_results(r, results, e);
    begin_second_step(r);
}

/* That those are stale which are reconciled was logged before, or they are of another process. */
static void resets_end(struct fleet_resets *r)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct fleet_reset *one = &r->list[i];

        if (one->why.code != ERR_NONE && one->change != CACHES_AS_BEFORE)
            log_caches("fleet.cache_stale", one->upstream, &one->why);
        fleet_caches_end(fleet_of(r->fc), one->upstream, one->number, &one->why);
    }
}

static void reset_all(struct fleet_resets *r)
{
    for (size_t i = 0; i < r->n; i++)
        fleet_proof_hold(r->fc, r->list[i].upstream);
    fleet_proof_await(r->fc);
    resets_begin(r);
    send_step(r);
    begin_second_step(r);
    send_step(r);
    for (size_t i = 0; i < r->n; i++)
        fleet_proof_release(r->fc, r->list[i].upstream);
    resets_end(r);
}

/* Returns: false: no memory. */
static bool resets_alloc(struct fleet_resets *r, struct fleet_control *fc, size_t n)
{
    *r = (struct fleet_resets){.fc = fc,
                               .targets = calloc(2 * n + 1, sizeof *r->targets),
                               .list = calloc(n + 1, sizeof *r->list)};
    return r->targets != NULL && r->list != NULL;
}

static void resets_free(struct fleet_resets *r)
{
    free(r->targets);
    free(r->list);
}

/* They could not even be asked: they are asked later, as those on which it failed. */
static void keep_stale(struct fleet_control *fc, struct upstream *upstream,
                       enum cache_change change, struct err *why)
{
    bool may_lack_route;
    uint64_t number = fleet_caches_begin(fleet_of(fc), upstream, change, &may_lack_route);

    err_clear(why);
    (void)err_set(why, ERR_NO_MEMORY, "", "no memory to empty its caches");
    fleet_caches_end(fleet_of(fc), upstream, number, why);
}

/* At an engine without requests of this server, preemption makes no client recompute its KV. */
void fleet_reset_caches(struct fleet_control *fc, struct upstream *upstream,
                        enum cache_change change, struct err *why)
{
    struct fleet_target targets[2];
    struct fleet_reset one = {.upstream = upstream, .change = change};
    struct fleet_resets r = {.fc = fc, .n = 1, .targets = targets, .list = &one};
    struct upstream_info info;

    if (upstream_caps_of(upstream)->two_phase)
        return;
    fleet_info(fleet_of(fc), upstream, &info);
    one.preempt = fc->cfg.recomputes ||
                  (change == CACHES_AS_BEFORE && info.n_outstanding[FLEET_GENERATE] == 0);
    reset_all(&r);
    *why = one.why;
}

static bool cache_overwrites(const struct fleet_part *p)
{
    return !p->two_phase && !p->out;
}

static void keep_parts_stale(struct fleet_control *fc, struct fleet_session *s)
{
    for (size_t i = 0; i < s->n_parts; i++) {
        struct fleet_part *p = &s->parts[i];
        struct err why = {0};

        if (!cache_overwrites(p))
            continue;
        keep_stale(fc, p->upstream, CACHES_OF_OTHER_WEIGHTS, &why);
        mtx_lock(&fc->lock);
        p->cache_error = why;
        mtx_unlock(&fc->lock);
    }
}

void fleet_reset_parts_begin(struct fleet_resets *r, struct fleet_control *fc,
                             struct fleet_session *s)
{
    if (!resets_alloc(r, fc, s->n_parts)) {
        keep_parts_stale(fc, s);
        return;
    }
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++) {
        const struct fleet_part *p = &s->parts[i];

        if (cache_overwrites(p))
            r->list[r->n++] = (struct fleet_reset){.upstream = p->upstream,
                                                   .change = CACHES_OF_OTHER_WEIGHTS,
                                                   .paused = upstream_may_be_paused(p->upstream),
                                                   .preempt = fc->cfg.recomputes,
                                                   .given_up = s->given_up};
    }
    mtx_unlock(&fc->lock);
    resets_begin(r);
}

/* That an abort fails is only reported: the engine may have ended, and with it what it held. */
void fleet_reset_parts_end(struct fleet_resets *r, struct fleet_session *s,
                           const struct fleet_results *results, const struct err *e)
{
    fleet_cache_apply_results(r, results, e);
    add_targets(r, API_ABORT_REQUESTS, holds_stale_requests);
    send_step(r);
    resets_end(r);
    mtx_lock(&r->fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        for (size_t k = 0; k < r->n; k++)
            if (r->list[k].upstream == s->parts[i].upstream)
                s->parts[i].cache_error = r->list[k].why;
    mtx_unlock(&r->fc->lock);
    resets_free(r);
}

/* An SGLang gives each load of an adapter a new id, so its entries cannot be mixed up. A running
 * request of a vLLM cannot keep the adapter that it began with, so it computes its KV again
 * whatever --on-update says. */
void fleet_reset_adapter_caches(struct fleet_control *fc, const struct fleet_results *results)
{
    struct fleet_resets r;
    bool has_memory = resets_alloc(&r, fc, results->n);
    struct err why = {0};

    for (size_t i = 0; i < results->n; i++) {
        const struct fleet_result *result = &results->list[i];

        if (!upstream_caps_of(result->upstream)->caches_by_adapter_name ||
            !fleet_result_may_have_run(result))
            continue;
        if (has_memory)
            r.list[r.n++] = (struct fleet_reset){
                .upstream = result->upstream, .change = CACHES_OF_OTHER_ADAPTER, .preempt = true};
        else
            keep_stale(fc, result->upstream, CACHES_OF_OTHER_ADAPTER, &why);
    }
    if (r.n > 0)
        reset_all(&r);
    resets_free(&r);
}
