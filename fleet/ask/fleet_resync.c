/* A resync: a trainer vouches for the weights of an engine. What is known of the engine is as old
 * as its last reply, so it is queried now, and what it reports takes precedence. */
#include "fleet/calls/fleet_priv.h"
#include "fleet/want/fleet_cache.h"

static int query_one(struct fleet_control *fc, enum api_query q, struct upstream *upstream,
                     struct fleet_results *results, struct err *e)
{
    const struct fleet_target target = {.upstream = upstream};

    return fleet_query(fc, q, &target, 1, FLEET_QUERY_US, results, e);
}

static int refuse_unverified(const struct fleet_result *result, struct err *e)
{
    return err_set(e, ERR_CONFLICT, "", "its weights cannot be verified: %.400s", result->why.msg);
}

/* Which weights the engine serves now. Errors: ERR_CONFLICT: it does not report them. */
static int query_version(struct fleet_control *fc, struct upstream *upstream,
                         struct upstream_report *report, struct err *e)
{
    fleet_results_auto of_status = {0}, of_label = {0};
    const struct fleet_result *status, *label;
    int rc;

    if (query_one(fc, API_GET_STATUS, upstream, &of_status, e) != 0 ||
        query_one(fc, API_GET_PROBE_VERSION, upstream, &of_label, e) != 0)
        return -1;
    status = of_status.list;
    label = of_label.list;
    if (status->outcome != FLEET_OK)
        return refuse_unverified(status, e);
    (void)api_read_report(report, upstream_kind(upstream), API_GET_STATUS, status->status,
                          status->text, status->text_len, e);
    if (label->outcome == FLEET_UNSENT || label->outcome == FLEET_UNKNOWN ||
        api_is_auth_error(label->status))
        rc = refuse_unverified(label, e);
    else
        rc = api_read_report(report, upstream_kind(upstream), API_GET_PROBE_VERSION, label->status,
                             label->text, label->text_len, e);
    if (e->code == ERR_UNREADABLE)
        e->code = ERR_CONFLICT;
    return rc;
}

/* An engine that understood the request and refused this token would generate others. */
static bool can_generate(const struct fleet_result *result)
{
    return result->outcome == FLEET_OK ||
           (result->outcome == FLEET_REFUSED && result->status < 500 && result->status != 408 &&
            result->status != 429 && !api_is_auth_error(result->status));
}

/* An engine in rotation has shown that it generates. A token shows that one is awake too. */
static int probe_generation(struct fleet_control *fc, struct upstream *upstream, struct err *e)
{
    fleet_results_auto results = {0};
    const struct fleet_result *result;
    struct upstream_info info;

    if (fleet_serves(fleet_of(fc), upstream))
        return 0;
    fleet_info(fleet_of(fc), upstream, &info);
    if (query_one(fc, API_GENERATE_TOKEN, upstream, &results, e) != 0)
        return -1;
    result = results.list;
    if (result->outcome == FLEET_OK && info.may_sleep)
        fleet_found_awake(fleet_of(fc), upstream, info.have.change);
    if (result->outcome != FLEET_OK && (info.may_sleep || !can_generate(result)))
        return refuse_unverified(result, e);
    return 0;
}

/* a sleep or a wake that the engine missed */

/* Refuses what cannot be resolved, or not now. */
static int check_sleep(const struct upstream_info *info, const struct fleet_sleep *s, struct err *e)
{
    if (!info->fenced && !have_may_sleep(&info->have))
        return 0;
    if (s->weights && s->level == 2)
        return err_set(
            e, ERR_CONFLICT, "",
            "the fleet is asleep and its weights were dropped (level 2): wake it and push "
            "a whole update, which includes this upstream");
    if (s->weights != s->kv || (s->weights && have_may_sleep(&info->have)))
        return err_set(
            e, ERR_CONFLICT, "",
            "the fleet is asleep, in part or together with this upstream: wake all of it, "
            "then resync this upstream again");
    return 0;
}

static int request_one(struct fleet_control *fc, enum api_op op, struct upstream *upstream,
                       const struct api_args *args, struct err *e)
{
    const struct fleet_target target = {.upstream = upstream, .args = args};
    fleet_results_auto results = {0};
    const struct fleet_result *result;

    if (fleet_request(fc, op, &target, 1, FLEET_SLEEP_US, &results, e) != 0)
        return -1;
    result = results.list;
    if (result->outcome == FLEET_UNKNOWN) /* it may be asleep or awake */
        fleet_fence(fleet_of(fc), upstream, &result->why);
    return result_ok(result) ? 0 : refuse_unverified(result, e);
}

/* Not one that was started since: it never slept. */
static int wake_if_missed(struct fleet_control *fc, struct upstream *upstream,
                          const struct upstream_info *info, struct err *e)
{
    const struct api_args args = {.sleep = &info->to_wake};

    return info->to_wake.weights || info->to_wake.kv ? request_one(fc, API_WAKE, upstream, &args, e)
                                                     : 0;
}

static int sleep_if_missed(struct fleet_control *fc, struct upstream *upstream,
                           const struct upstream_info *info, const struct fleet_sleep *s,
                           struct err *e)
{
    if (!have_has_missed(&info->have) || !s->weights || !s->kv || s->level == 2)
        return 0;
    if (request_one(fc, API_SLEEP, upstream, NULL, e) != 0)
        return -1;
    fleet_confirm_quiesced(fleet_of(fc), upstream, info->incarnation);
    return 0;
}

static int refuse_if_paused(struct fleet_control *fc, struct err *e)
{
    if (!fleet_is_paused(fc))
        return 0;
    return err_set(e, ERR_CONFLICT, "",
                   "generation is paused, and this upstream may have missed the pause: resume "
                   "first");
}

/* Refusals that need no query come first. An engine generates only while it is awake: a wake that
 * it missed is sent before the probe, a sleep after it. */
static int resync_with_lock(struct fleet_control *fc, struct upstream *upstream, struct err *e)
{
    struct fleet_sleep sleep;
    struct upstream_info info, before;
    struct upstream_report report;
    struct err stale = {0};

    fleet_get_sleep(fc, &sleep);
    if (refuse_if_paused(fc, e) != 0)
        return -1;
    fleet_info(fleet_of(fc), upstream, &info);
    if (fleet_may_resync(fleet_of(fc), upstream, e) != 0 || check_sleep(&info, &sleep, e) != 0)
        return -1;
    fleet_gate_suspend(fc, upstream, true);
    if (refuse_if_paused(fc, e) != 0 || wake_if_missed(fc, upstream, &info, e) != 0)
        return -1;
    fleet_info(fleet_of(fc), upstream, &before);
    if (query_version(fc, upstream, &report, e) != 0 || probe_generation(fc, upstream, e) != 0 ||
        sleep_if_missed(fc, upstream, &info, &sleep, e) != 0)
        return -1;
    fleet_reset_caches(fc, upstream, CACHES_OF_OTHER_WEIGHTS, &stale);
    return fleet_resync(fleet_of(fc), upstream, &before, &report, e);
}

int fleet_resync_one(struct fleet_control *fc, struct http_request *x, const char *name,
                     struct upstream **out, struct err *e)
{
    int rc;

    *out = NULL;
    if (fleet_op_lock(fc, x, "a resync", e) != 0)
        return -1;
    rc = upstreams_find(fc->upstreams, name, out, e);
    if (rc == 0) {
        rc = resync_with_lock(fc, *out, e);
        fleet_gate_suspend(fc, *out, false);
    }
    if (rc == 0)
        fleet_proof_want(fc, *out);
    fleet_op_unlock(fc);
    return rc;
}
