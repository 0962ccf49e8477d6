/* How each upstream stands, for people: what there is to know of it now, and what has changed. Who
 * comes and goes all the time is told of FLEET_MOVES_MAX times in FLEET_MOVES_US; where it got to
 * in the end is told then. */
#include "fleet/members/fleet_priv.h"

#include "base/clock.h"

#include <string.h>

static bool may_tell_locked(struct upstream *u)
{
    uint64_t now = clock_now_us();

    if (u->n_moves > 0 && now - u->moves_us < FLEET_MOVES_US)
        return u->n_moves < FLEET_MOVES_MAX;
    u->moves_us = now;
    u->n_moves = 0;
    return true;
}

/* While it is open which version will be the fleet's, that it is out of step is no news; nor is
 * that it is removed, to whoever removed it. */
static bool is_news(enum upstream_state state, bool waits)
{
    return state != UPSTREAM_REMOVED && !(waits && state == UPSTREAM_OUT_OF_STEP);
}

static bool next_locked(struct fleet *f, struct fleet_move *m)
{
    bool waits = fleet_waits_locked(f);

    for (size_t i = 0; i < f->n; i++) {
        struct upstream *u = &f->upstreams[i];
        enum upstream_state now = fleet_state_of(u);
        int64_t wall_s;

        if (!is_news(now, waits))
            continue;
        u->n_untold += u->last != now && u->last != u->state;
        u->last = now;
        if (now == u->state || !may_tell_locked(u))
            continue;
        *m = (struct fleet_move){.upstream = i,
                                 .name = u->name,
                                 .from = u->state,
                                 .to = now,
                                 .is_last = ++u->n_moves == FLEET_MOVES_MAX,
                                 .n_untold = u->n_untold,
                                 .why = *fleet_error_of(u, &wall_s)};
        memcpy(m->label, fleet_is_synced(u) && u->saw.label[0] == '\0' ? f->label : u->saw.label,
               sizeof m->label);
        u->state = now;
        u->n_untold = 0;
        return true;
    }
    return false;
}

void fleet_tell_moves(struct fleet *f)
{
    struct fleet_move m;
    bool more;

    if (f->cfg.moved == NULL)
        return;
    do {
        mtx_lock(&f->lock);
        more = next_locked(f, &m);
        mtx_unlock(&f->lock);
        if (more)
            f->cfg.moved(f->cfg.arg, &m);
    } while (more);
}

/* the truth */

static enum fleet_fence fence_of(const struct upstream *u)
{
    if (fleet_is_out(u, OUT_UPDATE_FAILED))
        return FLEET_FENCE_UPDATE;
    if (fleet_is_out(u, OUT_SLEEP_MISSED))
        return FLEET_FENCE_SLEEP;
    return fleet_is_out(u, OUT_WAKE_MISSED) ? FLEET_FENCE_WAKE : FLEET_FENCE_NONE;
}

void fleet_info(struct fleet *f, size_t upstream, struct upstream_info *out)
{
    const struct upstream *u = &f->upstreams[upstream];
    const struct err *error;
    int64_t error_wall_s;

    mtx_lock(&f->lock);
    error = fleet_error_of(u, &error_wall_s);
    *out = (struct upstream_info){.alive = !fleet_is_out(u, OUT_UNREACHED | OUT_KEY_STATUS),
                                  .synced = fleet_is_synced(u),
                                  .lacks = !fleet_is_fit(u),
                                  .n_lives = u->n_lives,
                                  .fenced = fleet_is_out(u, OUT_FENCES),
                                  .fence = fence_of(u),
                                  .fence_life = u->fence_life,
                                  .removed = fleet_is_out(u, OUT_REMOVED),
                                  .refuses_work = fleet_is_out(u, OUT_KEY_WORK),
                                  .state = fleet_state_of(u),
                                  .serial = u->serial,
                                  .saw = u->saw,
                                  .n_granted = u->n_granted,
                                  .n_missed = u->n_missed,
                                  .heard_us = u->heard_us,
                                  .error = *error,
                                  .error_wall_s = error_wall_s};
    memcpy(out->n_outstanding, u->n_outstanding, sizeof out->n_outstanding);
    mtx_unlock(&f->lock);
}

void fleet_stats(struct fleet *f, struct fleet_stats *out)
{
    memset(out, 0, sizeof *out);
    mtx_lock(&f->lock);
    out->min_ready = f->min_ready;
    for (size_t i = 0; i < f->n; i++) {
        out->n_upstreams += !fleet_is_out(&f->upstreams[i], OUT_REMOVED);
        out->n_serving += fleet_in_rotation(&f->upstreams[i]);
    }
    for (size_t lane = 0; lane < FLEET_LANES; lane++) {
        out->n_waiting[lane] = f->lines[lane].n_waiting;
        out->n_running[lane] = f->lines[lane].n_running;
        out->n_refused[lane] = f->lines[lane].n_refused;
        out->n_cancelled[lane] = f->lines[lane].n_cancelled;
    }
    out->serial = f->serial;
    memcpy(out->label, f->label, sizeof out->label);
    out->ready = out->n_serving >= f->min_ready;
    mtx_unlock(&f->lock);
}
