/* The state of a fleet's control plane: what is asked of all engines. */
#include "fleet/calls/fleet_priv.h"

#include <assert.h>
#include <stdio.h>

/* quiesce */

/* Threads that call this at the same time may reach fleet_set_still in any order, so it gets a
 * number and ignores older ones. */
void fleet_apply_quiesce(struct fleet_control *fc)
{
    bool quiesced, prepare_begun, held;
    struct fleet_still still;

    mtx_lock(&fc->lock);
    prepare_begun = fc->session != NULL && fc->session->prepare_begun && !fc->session->repair;
    held = (prepare_begun && fc->session->committing_since_us == 0) || /* then fleet_begin_switch */
           fc->quiesce.n_adapters_replacing > 0;
    quiesced = pause_is_held(&fc->pause) || fc->sleep.weights || fc->sleep.kv ||
               fc->quiesce.n_probe_suspensions > 0;
    still = (struct fleet_still){.quiesced = quiesced,
                                 .holds_generates = quiesced || held,
                                 .no_probes = quiesced || prepare_begun,
                                 .order = ++fc->quiesce.order};
    mtx_unlock(&fc->lock);
    fleet_set_still(fleet_of(fc), &still);
}

static void count_reason(struct fleet_control *fc, unsigned *n, bool on)
{
    mtx_lock(&fc->lock);
    *n = on ? *n + 1 : *n - 1;
    mtx_unlock(&fc->lock);
    fleet_apply_quiesce(fc);
}

void fleet_adapter_replacing(struct fleet_control *fc, bool on)
{
    count_reason(fc, &fc->quiesce.n_adapters_replacing, on);
}

void fleet_suspend_generation_probes(struct fleet_control *fc, bool on)
{
    count_reason(fc, &fc->quiesce.n_probe_suspensions, on);
}

struct fleet *fleet_of(const struct fleet_control *fc)
{
    return upstreams_fleet(fc->upstreams);
}

bool fleet_engine_is_held_locked(const struct fleet_control *fc, struct upstream *upstream)
{
    const struct fleet_session *s = fc->session != NULL ? fc->session : fc->releasing;

    for (size_t i = 0; s != NULL && i < s->n_parts; i++)
        if (s->parts[i].upstream == upstream)
            return !s->parts[i].two_phase && s->pausing &&
                   (!s->parts[i].out || s->parts[i].may_have_marker ||
                    !part_is_unchanged(&s->parts[i]) || s->parts[i].own_update == PART_UPDATE_OPEN);
    return false;
}

/* reachable engines */

size_t fleet_reachable(struct fleet_control *fc, const struct upstream_list *all,
                       const struct api_args *args, struct fleet_target *targets)
{
    size_t n_reachable = 0;
    struct upstream_info info;

    for (size_t i = 0; i < all->n; i++) {
        fleet_info(fleet_of(fc), all->items[i], &info);
        if (!upstream_is_removed(all->items[i]) && info.alive)
            targets[n_reachable++] = (struct fleet_target){.upstream = all->items[i], .args = args};
    }
    return n_reachable;
}

size_t fleet_min_ready(struct fleet_control *fc)
{
    struct fleet_stats stats;

    fleet_stats(fleet_of(fc), &stats);
    return stats.min_ready;
}

/* "; down: http://a, http://b" of those that were probed, or were not yet; "" if there are none. */
static void list_unreachable(struct fleet_control *fc, const struct upstream_list *all, bool probed,
                             char *out, size_t cap)
{
    size_t len = 0;
    struct upstream_info info;

    out[0] = '\0';
    for (size_t i = 0; i < all->n && len < cap; i++) {
        fleet_info(fleet_of(fc), all->items[i], &info);
        if (upstream_is_removed(all->items[i]) || info.alive ||
            upstream_info_is_probed(&info) != probed)
            continue;
        len += (size_t)snprintf(out + len, cap - len, "%s%s",
                                len > 0  ? ", "
                                : probed ? "; down: "
                                         : "; not yet probed: ",
                                upstream_name(all->items[i]));
    }
}

int fleet_reachable_quorum(struct fleet_control *fc, const struct upstream_list *all,
                           const struct api_args *args, struct fleet_target *targets, size_t *n,
                           struct err *e)
{
    struct fleet_stats stats;
    char down[ERR_MSG_MAX / 2], unprobed[ERR_MSG_MAX / 2];

    fleet_stats(fleet_of(fc), &stats);
    *n = fleet_reachable(fc, all, args, targets);
    if (*n >= stats.min_ready)
        return 0;
    if (stats.n_upstreams == 0)
        return err_set(e, ERR_UNSYNCED, "",
                       "there is no upstream yet: add one by POST /v1/upstreams; nothing was sent");
    list_unreachable(fc, all, true, down, sizeof down);
    list_unreachable(fc, all, false, unprobed, sizeof unprobed);
    return err_set(e, ERR_UNSYNCED, "",
                   "%zu of %zu upstreams are reachable, --min-ready is %zu: nothing was sent%s%s",
                   *n, stats.n_upstreams, stats.min_ready, down, unprobed);
}

uint64_t fleet_update_us(const struct fleet_control *fc)
{
    return fc->cfg.update_us;
}

/* sleep and readiness */

void fleet_get_sleep(struct fleet_control *fc, struct fleet_sleep *out)
{
    mtx_lock(&fc->lock);
    *out = fc->sleep;
    mtx_unlock(&fc->lock);
}

void fleet_set_sleep(struct fleet_control *fc, bool weights, bool kv, int level)
{
    assert(fleet_owns_op_lock(fc));
    mtx_lock(&fc->lock);
    if (weights)
        fc->sleep.weights = level > 0;
    if (kv)
        fc->sleep.kv = level > 0;
    if (weights && level > 0)
        fc->sleep.level = level;
    mtx_unlock(&fc->lock);
}

/* Engines in rotation that the open update keeps paused: they accept requests and process none. */
static size_t n_held_locked(struct fleet_control *fc)
{
    const struct fleet_session *s = fc->session;
    struct upstream_info info;
    size_t n = 0;

    for (size_t i = 0; s != NULL && s->pausing && i < s->n_parts; i++) {
        if (!upstream_may_be_paused(s->parts[i].upstream))
            continue;
        fleet_info(fleet_of(fc), s->parts[i].upstream, &info);
        n += info.state == UPSTREAM_SERVING;
    }
    return n;
}

int fleet_check_serving(struct fleet_control *fc, const struct fleet_stats *s, struct err *why)
{
    mtx_auto held = mtx_hold(&fc->lock);
    size_t n_held = n_held_locked(fc);

    if (fc->sleep.weights || fc->sleep.kv)
        return err_set(why, ERR_ASLEEP, "", "the upstreams are asleep (level %d)", fc->sleep.level);
    if (pause_is_held(&fc->pause))
        return err_set(why, ERR_PAUSED, "", "generation is paused by '%s' (%s)", fc->pause.owner,
                       lifecycle_pause_name(fc->pause.mode));
    if (n_held == 0 && s->n_serving < s->min_ready)
        return err_set(why, ERR_UNSYNCED, "",
                       "%zu upstreams serve, %zu are needed: 'baton upstreams' (GET /v1/upstreams) "
                       "has the reason of each",
                       s->n_serving, s->min_ready);
    if (n_held > s->n_serving || s->n_serving - n_held < s->min_ready)
        return err_set(why, ERR_PAUSED, "",
                       "an update holds %zu of the %zu upstreams that serve, %zu are needed",
                       n_held, s->n_serving, s->min_ready);
    return 0;
}

bool fleet_pause_expired_locked(const struct fleet_control *fc)
{
    return lease_timer_expired(&fc->pause.lease);
}
