/* Sends a sleep or a wake to all engines, and fences those on which it failed. */
#include "fleet/ask/fleet_sleep.h"

#include "base/log.h"
#include "fleet/calls/fleet_priv.h"

static void fence_failed(struct fleet_control *fc, const struct fleet_result *results, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!result_ok(&results[i]))
            fleet_fence(fleet_of(fc), results[i].upstream, &results[i].why);
}

/* An engine that was removed is not asked, and may be added again. Other kinds report a sleep. */
static bool hides_its_sleep(struct fleet_control *fc, struct upstream *upstream)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    return upstream_caps_of(upstream)->hides_pause && info.asleep;
}

static bool is_among(const struct fleet_target *targets, size_t n, const struct upstream *it)
{
    for (size_t i = 0; i < n; i++)
        if (targets[i].upstream == it)
            return true;
    return false;
}

/* An engine that was down is in another state than the others when it is back, until a resync. */
static void fence_missed(struct fleet_control *fc, const struct upstream_list *all,
                         const struct fleet_target *targets, size_t n, bool asleep)
{
    for (size_t i = 0; i < all->n; i++) {
        struct upstream *it = all->items[i];

        if (!is_among(targets, n, it) &&
            (!upstream_is_removed(it) || (!asleep && hides_its_sleep(fc, it))))
            fleet_fence_missed(fleet_of(fc), it, asleep ? FLEET_FENCE_SLEEP : FLEET_FENCE_WAKE);
    }
}

static void record_sleep(struct fleet_control *fc, const struct upstream_list *all,
                         const struct fleet_result *results, size_t n, bool asleep)
{
    mtx_lock(&fc->lock);
    fc->wake_in_doubt = !asleep;
    mtx_unlock(&fc->lock);
    for (size_t i = 0; i < all->n; i++)
        fleet_engine(all->items[i])->wake_in_doubt = !asleep;
    for (size_t i = 0; i < n; i++)
        if (result_ok(&results[i])) {
            fleet_engine(results[i].upstream)->wake_in_doubt = false;
            fleet_note_sleep(fleet_of(fc), results[i].upstream, asleep);
        }
}

/* An engine that slept at level 2 has lost its weights, and cannot serve when it is woken. */
static void fence_dropped(struct fleet_control *fc, const struct fleet_result *results, size_t n)
{
    struct err why = {0};

    (void)err_set(&why, ERR_UNSYNCED, "", "its weights were dropped (sleep at level 2)");
    for (size_t i = 0; i < n; i++)
        if (result_ok(&results[i]))
            fleet_fence(fleet_of(fc), results[i].upstream, &why);
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

static int set_sleep_of(struct fleet_control *fc, const struct upstream_list *all,
                        const struct fleet_sleep_request *req, struct api_object *native,
                        struct fleet_result **results, size_t *n, struct err *e)
{
    const struct api_sleep asked = {.level = req->level, .weights = req->weights, .kv = req->kv};
    const struct api_args args = {.native = native, .sleep = &asked};
    bool asleep = req->level > 0;
    struct fleet_target targets[FLEET_MAX];
    struct upstream_list *now;
    size_t n_changed = 0;
    int rc;

    if (fleet_reachable_quorum(fc, all, &args, targets, n, e) != 0)
        return -1;
    fleet_proof_hold(fc, NULL);
    fleet_proof_await(fc);
    rc = fleet_request(fc, asleep ? API_SLEEP : API_WAKE, targets, *n, FLEET_SLEEP_US, results, e);
    if (rc != 0) {
        fleet_proof_release(fc, NULL);
        return -1;
    }
    for (size_t i = 0; i < *n; i++)
        n_changed += (*results)[i].outcome == FLEET_OK || (*results)[i].outcome == FLEET_UNKNOWN;
    if (n_changed > 0) {
        fence_failed(fc, *results, *n);
        now = upstreams_list(fc->upstreams); /* with those that were added meanwhile */
        fence_missed(fc, now, targets, *n, asleep);
        record_sleep(fc, now, *results, *n, asleep);
        upstream_list_unref(now);
        if (req->weights && req->level == 2)
            fence_dropped(fc, *results, *n);
        fleet_set_sleep(fc, req->weights, req->kv, req->level);
        if (asleep && !fleet_is_paused(fc)) /* as the engines do with what they have */
            (void)fleet_abort_queued(fleet_of(fc), true);
        log_sleep(req, n_changed);
    }
    fleet_proof_release(fc, NULL); /* fleet_set_sleep keeps canaries away from now on */
    return fleet_results_done(*results, *n, e) ? 0 : -1;
}

static int set_sleep(struct fleet_control *fc, const struct fleet_sleep_request *req,
                     struct api_object *native, struct fleet_result **results, size_t *n,
                     struct err *e)
{
    struct upstream_list *all = upstreams_list(fc->upstreams);
    int rc = set_sleep_of(fc, all, req, native, results, n, e);

    upstream_list_unref(all);
    return rc;
}

int fleet_sleep_all(struct fleet_control *fc, const struct fleet_sleep_request *req,
                    struct api_object *native, struct fleet_result **results, size_t *n,
                    struct err *e)
{
    int rc;

    *results = NULL;
    if (fleet_check_no_update(fc, false, e) != 0)
        return -1;
    fleet_suspend_generation_probes(fc, true);
    rc = set_sleep(fc, req, native, results, n, e);
    fleet_suspend_generation_probes(fc, false);
    return rc;
}

int fleet_wake_all(struct fleet_control *fc, const struct fleet_sleep_request *req,
                   struct api_object *native, struct fleet_result **results, size_t *n,
                   struct err *e)
{
    *results = NULL;
    if (req->kv && fleet_check_no_update(fc, true, e) != 0)
        return -1;
    return set_sleep(fc, req, native, results, n, e);
}
