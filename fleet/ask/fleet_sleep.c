/* Sends a sleep or a wake to all engines, and fences those on which it failed. */
#include "fleet/ask/fleet_sleep.h"

#include "base/log.h"
#include "fleet/calls/fleet_priv.h"

/* It was not reached, and gets it later (fleet/want/fleet_gate.c). */
static bool is_missed(const struct fleet_result *result)
{
    return result->outcome == FLEET_UNSENT && !upstream_caps_of(result->upstream)->hides_pause;
}

/* An engine that refused is in another state than the others, if one of these did it. One that
 * broke may have dropped its weights all the same; a baton says what it serves. */
static void fence_failed(struct fleet_control *fc, const struct fleet_sleep_request *req,
                         const struct fleet_results *results, bool any_did)
{
    for (size_t i = 0; i < results->n; i++) {
        const struct fleet_result *r = &results->list[i];

        if (any_did ? !result_ok(r) && !is_missed(r)
                    : req->weights && req->level == 2 && fleet_result_answer(r) == HAVE_BROKE &&
                          !upstream_caps_of(r->upstream)->two_phase)
            fleet_fence(fleet_of(fc), r->upstream, &r->why);
    }
}

/* One that was down is in another state than the others when it is back. */
static void note_asked(struct fleet_control *fc, const struct fleet_target *targets, size_t n,
                       const struct api_sleep *of)
{
    const struct upstream *asked[FLEET_MAX];

    for (size_t i = 0; i < n; i++)
        asked[i] = targets[i].upstream;
    fleet_slept(fleet_of(fc), of->level > 0, of, asked, n);
}

/* As the fleet is, and these too. */
static void want_sleep(struct fleet_control *fc, bool weights, bool kv)
{
    struct fleet_sleep sleep;

    fleet_get_sleep(fc, &sleep);
    fleet_want_sleep(fleet_of(fc), sleep.weights || weights, sleep.kv || kv);
}

static void log_sleep(const struct fleet_sleep_request *req, size_t n_upstreams)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, req->level > 0 ? "sleep" : "wake");
    if (req->level > 0)
        log_u64(&r, "level", (uint64_t)req->level);
    log_str(&r, "tags", req->weights && req->kv ? "all" : req->weights ? "weights" : "kv_cache");
    log_u64(&r, "upstreams", n_upstreams);
    log_event(&r);
}

/* A second wake ends an engine that hides whether it sleeps: it is sent only what is not known to
 * be awake.
 * @of, @args  [n] */
static void wake_once(struct fleet_control *fc, const struct api_sleep *asked,
                      struct fleet_target *targets, size_t n, struct api_sleep *of,
                      struct api_args *args)
{
    struct upstream_info info;

    for (size_t i = 0; i < n; i++) {
        fleet_info(fleet_of(fc), targets[i].upstream, &info);
        of[i] = (struct api_sleep){.weights = asked->weights &&
                                              info.have.sleep.weights != SLEEP_AWAKE,
                                   .kv = asked->kv && info.have.sleep.kv != SLEEP_AWAKE};
        if (!upstream_caps_of(targets[i].upstream)->hides_pause ||
            (of[i].weights == asked->weights && of[i].kv == asked->kv))
            continue;
        args[i] = (struct api_args){.sleep = &of[i]};
        targets[i].args = &args[i];
    }
}

static int fleet_sleep_set_sleep(struct fleet_control *fc, const struct fleet_sleep_request *req,
                                 struct api_object *native, struct fleet_results *results,
                                 struct err *e)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    const struct api_sleep asked = {.level = req->level, .weights = req->weights, .kv = req->kv};
    const struct api_args args = {.native = native, .sleep = &asked};
    bool asleep = req->level > 0;
    struct fleet_target targets[FLEET_MAX];
    struct api_sleep of[FLEET_MAX];
    struct api_args args_of[FLEET_MAX];
    size_t n, n_changed = 0;
    int rc;

    if (fleet_reachable_quorum(fc, all, &args, targets, &n, e) != 0)
        return -1;
    if (asleep)
        want_sleep(fc, req->weights, req->kv);
    else
        wake_once(fc, &asked, targets, n, of, args_of);
    fleet_proof_hold(fc, NULL);
    fleet_proof_await(fc);
    rc = fleet_request(fc, asleep ? API_SLEEP : API_WAKE, targets, n, FLEET_SLEEP_US, results, e);
    if (rc != 0) {
        want_sleep(fc, false, false);
        fleet_proof_release(fc, NULL);
        return -1;
    }
    for (size_t i = 0; i < n; i++)
        n_changed += result_ok(&results->list[i]) || results->list[i].outcome == FLEET_UNKNOWN;
    fence_failed(fc, req, results, n_changed > 0);
    if (n_changed > 0) {
        note_asked(fc, targets, n, &asked);
        fleet_set_sleep(fc, req->weights, req->kv, req->level);
        if (asleep && !fleet_is_paused(fc)) /* as the engines do with what they have */
            (void)fleet_abort_queued(fleet_of(fc), true);
        log_sleep(req, n_changed);
    }
    want_sleep(fc, false, false);
    fleet_proof_release(fc, NULL); /* fleet_set_sleep keeps canaries away from now on */
    return fleet_results_done(results, e) ? 0 : -1;
}

int fleet_sleep_all(struct fleet_control *fc, const struct fleet_sleep_request *req,
                    struct api_object *native, struct fleet_results *results, struct err *e)
{
    int rc;

    if (fleet_check_no_update(fc, false, e) != 0)
        return -1;
    fleet_suspend_generation_probes(fc, true);
    rc = fleet_sleep_set_sleep(fc, req, native, results, e);
    fleet_suspend_generation_probes(fc, false);
    return rc;
}

int fleet_wake_all(struct fleet_control *fc, const struct fleet_sleep_request *req,
                   struct api_object *native, struct fleet_results *results, struct err *e)
{
    if (req->kv && fleet_check_no_update(fc, true, e) != 0)
        return -1;
    return fleet_sleep_set_sleep(fc, req, native, results, e);
}
