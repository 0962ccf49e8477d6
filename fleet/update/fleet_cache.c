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
 * until its cache is empty.
 *
 * A process that this server has not asked yet may have stale entries, because an earlier server
 * may have ended in the middle of an update. So it is asked to empty its caches before it gets its
 * first request.
 *
 * Rejected: to empty caches when the engines are resumed. A trainer's pause may outlast the update,
 * and a failure could not be reported to anyone then. Rejected, too: a fence. The weights are the
 * right ones, and only a whole update would lift the fence. */
#include "fleet/update/fleet_cache.h"

#include "fleet/update/fleet_update_priv.h"

#include "base/log.h"

#include <string.h>

bool fleet_recomputes_kv(struct fleet_control *fc)
{
    return fc->cfg.recomputes;
}

/* Some engines, and why the caches of each could not be emptied; clean: they were, or the engine
 * has not been asked yet. */
struct reset_state {
    struct fleet_control *fc;
    const struct fleet_cache_reset *list;
    struct err *why;
    size_t n;
};

typedef bool filter_fn(const struct reset_state *x, size_t i);

static bool is_any(const struct reset_state *x, size_t i)
{
    (void)x;
    (void)i;
    return true;
}

static bool is_reset(const struct reset_state *x, size_t i)
{
    return x->why[i].code == ERR_NONE;
}

/* An SGLang that refused and is paused: the requests that it holds may be retracted. */
static bool is_paused_and_refused(const struct reset_state *x, size_t i)
{
    struct upstream_endpoint at;

    upstreams_get(x->fc->upstreams, x->list[i].upstream, &at);
    return upstream_caps(at.kind)->retracts_requests && x->list[i].paused && x->list[i].preempt &&
           x->why[i].code != ERR_NONE;
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

static void apply_reset_result(const struct reset_state *x, size_t i, enum api_op op,
                               const json_t *body, const struct fleet_result *result)
{
    struct upstream_endpoint at;

    upstreams_get(x->fc->upstreams, result->upstream, &at);
    err_clear(&x->why[i]);
    if (!result_ok(result) && !has_no_cache(op, x->list[i].route_optional, result))
        x->why[i] = result->why;
    else if (op == API_RESET_PREFIX_CACHE && result->outcome == FLEET_OK &&
             !api_reset_is_proven(at.kind, body, result->text != NULL ? result->text : "",
                                  result->text_len))
        (void)err_set(&x->why[i], ERR_UPSTREAM, "",
                      "%.100s does not report whether its cache is empty", at.name);
}

static void request_reset(const struct reset_state *x, enum api_op op, filter_fn *filter)
{
    json_t *bodies[2] = {json_pack("{s:b}", "external", 1),
                         json_pack("{s:b, s:b}", "external", 1, "running", 1)};
    struct fleet_target targets[FLEET_MAX];
    size_t at[FLEET_MAX], n = 0;
    struct fleet_result *results = NULL;
    struct err e = {0};

    for (size_t i = 0; i < x->n; i++)
        if (filter(x, i)) {
            targets[n] = (struct fleet_target){.upstream = x->list[i].upstream,
                                               .body = bodies[x->list[i].preempt]};
            at[n++] = i;
        }
    if (bodies[0] == NULL || bodies[1] == NULL)
        (void)err_set(&e, ERR_NO_MEMORY, "", "no memory to empty caches");
    else if (n > 0)
        (void)fleet_request(x->fc, op, targets, n, fleet_step_us(x->fc), &results, &e);
    for (size_t k = 0; k < n; k++) {
        if (results != NULL)
            apply_reset_result(x, at[k], op, targets[k].body, &results[k]);
        else
            x->why[at[k]] = e;
    }
    fleet_results_free(results, n);
    json_decref(bodies[0]);
    json_decref(bodies[1]);
}

void fleet_reset_caches(struct fleet_control *fc, const struct fleet_cache_reset *list, size_t n,
                        struct err *why)
{
    const struct reset_state x = {.fc = fc, .list = list, .why = why, .n = n};
    struct err refused[FLEET_MAX];
    size_t n_held = 0;

    if (n == 0)
        return;
    request_reset(&x, API_RESET_PREFIX_CACHE, is_any);
    for (size_t i = 0; i < n; i++)
        n_held += is_paused_and_refused(&x, i);
    if (n_held > 0) {
        memcpy(refused, why, n * sizeof *why);
        request_reset(&x, API_RETRACT_REQUESTS,
                      is_paused_and_refused); /* again, whatever it answered to that */
        for (size_t i = 0; i < n; i++)
            why[i] = refused[i];
        request_reset(&x, API_RESET_PREFIX_CACHE, is_paused_and_refused);
    }
    request_reset(&x, API_RESET_ENCODER_CACHE, is_reset);
    request_reset(&x, API_RESET_STORAGE_CACHE, is_reset);
}

static void log_stale(struct fleet_control *fc, size_t upstream, const struct err *why)
{
    struct upstream_endpoint at;
    struct log_rec r;

    upstreams_get(fc->upstreams, upstream, &at);
    log_begin(&r, LOG_WARN, "fleet.cache_stale");
    log_str(&r, "upstream", at.name);
    log_str(&r, "error", why->msg);
    log_end(&r);
}

/* @why  [n]; clean; set as by fleet_reset_caches */
static void reset_or_set_stale(struct fleet_control *fc, const struct fleet_cache_reset *list,
                               size_t n, struct err *why)
{
    fleet_reset_caches(fc, list, n, why);
    for (size_t i = 0; i < n; i++) {
        if (why[i].code != ERR_NONE)
            log_stale(fc, list[i].upstream, &why[i]);
        fleet_reconcile_set_stale(fc, list[i].upstream, &why[i]);
    }
}

void fleet_reset_part_caches(struct fleet_control *fc, struct fleet_session *s)
{
    struct fleet_cache_reset list[FLEET_MAX];
    struct fleet_part *parts[FLEET_MAX];
    struct err why[FLEET_MAX];
    size_t n = 0;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++) {
        struct fleet_part *p = &s->parts[i];

        if (p->two_phase || !part_takes_part(p))
            continue;
        list[n] = (struct fleet_cache_reset){
            .upstream = p->upstream, .paused = p->paused, .preempt = fleet_recomputes_kv(fc)};
        parts[n++] = p;
    }
    mtx_unlock(&fc->lock);
    memset(why, 0, n * sizeof *why);
    reset_or_set_stale(fc, list, n, why);
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < n; i++)
        parts[i]->cache_error = why[i];
    mtx_unlock(&fc->lock);
}

/* An SGLang gives each load of an adapter a new id, so its entries cannot be mixed up. A running
 * request of a vLLM cannot keep the adapter that it began with, so it computes its KV again
 * whatever --on-update says. */
void fleet_reset_adapter_caches(struct fleet_control *fc, const struct fleet_result *results,
                                size_t n)
{
    struct fleet_cache_reset list[FLEET_MAX];
    struct err why[FLEET_MAX];
    struct upstream_endpoint at;
    size_t n_list = 0;

    for (size_t i = 0; i < n; i++) {
        upstreams_get(fc->upstreams, results[i].upstream, &at);
        if (upstream_caps(at.kind)->caches_by_adapter_name &&
            fleet_result_may_have_run(&results[i]))
            list[n_list++] = (struct fleet_cache_reset){
                .upstream = results[i].upstream,
                .route_optional = !fleet_reconcile_is_stale(fc, results[i].upstream),
                .preempt = true};
    }
    memset(why, 0, n_list * sizeof *why);
    reset_or_set_stale(fc, list, n_list, why);
}

void fleet_reset_caches_of(struct fleet_control *fc, size_t upstream)
{
    const struct fleet_cache_reset one = {.upstream = upstream, .preempt = fleet_recomputes_kv(fc)};
    struct err why = {0};
    struct upstream_endpoint at;

    upstreams_get(fc->upstreams, upstream, &at);
    if (!upstream_caps(at.kind)->two_phase)
        reset_or_set_stale(fc, &one, 1, &why);
}
