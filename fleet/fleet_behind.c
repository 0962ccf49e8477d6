/* Which process an upstream is, and who was away when the others were told to stand still, or to go
 * on: it is told as soon as it is there again. Nobody stays paused because it missed a resume. */
#include "fleet/update/fleet_update_priv.h"

#include <string.h>

void fleet_live(struct fleet_control *fc, size_t upstream, struct fleet_incarnation *out)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    memcpy(out->process, info.saw.process, sizeof out->process);
    out->n_missed = info.n_missed;
    out->synced = info.synced;
}

bool fleet_is_another(struct fleet_control *fc, size_t upstream,
                      const struct fleet_incarnation *life)
{
    struct fleet_incarnation now;

    fleet_live(fc, upstream, &now);
    if (life->process[0] != '\0' && now.process[0] != '\0')
        return strcmp(life->process, now.process) != 0;
    return (life->synced && !now.synced) || now.n_missed >= life->n_missed + FLEET_MISSES_DOWN;
}

bool fleet_is_paused_locked(struct fleet_control *fc, size_t upstream)
{
    return fc->took[upstream] && !fleet_is_another(fc, upstream, &fc->paused[upstream]);
}

static bool reached(const struct fleet_said *said, size_t n, size_t upstream)
{
    for (size_t i = 0; i < n; i++)
        if (said[i].upstream == upstream)
            return true;
    return false;
}

static void due_locked(struct fleet_control *fc)
{
    size_t n = upstreams_n(fc->upstreams);
    struct upstream_at at;

    fc->behind_due_us = CLOCK_NEVER;
    for (size_t i = 0; i < n; i++) {
        upstreams_at(fc->upstreams, i, &at);
        fc->behind[i] = fc->behind[i] && !at.removed;
        if (fc->behind[i])
            fc->behind_due_us = clock_after_us(FLEET_BEHIND_US);
    }
}

void fleet_note_behind(struct fleet_control *fc, const struct fleet_to *to, size_t n)
{
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < n; i++)
        fc->behind[to[i].upstream] = true;
    due_locked(fc);
    mtx_unlock(&fc->lock);
    fleet_look(fc);
}

/* What a resume failed at is fenced, and what is held or fenced has an update to wait for. */
void fleet_note_reached(struct fleet_control *fc, const struct fleet_said *said, size_t n,
                        bool paused)
{
    size_t n_all = upstreams_n(fc->upstreams);
    struct upstream_info info;
    struct upstream_at at;

    mtx_lock(&fc->lock);
    memset(fc->took, 0, sizeof fc->took);
    for (size_t i = 0; paused && i < n; i++) {
        fc->took[said[i].upstream] = result_ok(&said[i]);
        fleet_live(fc, said[i].upstream, &fc->paused[said[i].upstream]);
    }
    for (size_t i = 0; i < n_all; i++) {
        upstreams_at(fc->upstreams, i, &at);
        fleet_info(fleet_of(fc), i, &info);
        fc->behind[i] = !at.removed && !info.fenced && !reached(said, n, i) &&
                        !fleet_is_held_locked(fc, i);
    }
    due_locked(fc);
    mtx_unlock(&fc->lock);
}

/* @to  those that are behind and there */
static size_t who_is_back(struct fleet_control *fc, const json_t *body, struct fleet_to *to)
{
    struct fleet_to alive[FLEET_MAX];
    size_t n = fleet_alive(fc, body, alive), n_to = 0;
    struct upstream_info info;

    for (size_t i = 0; i < n; i++) {
        fleet_info(fleet_of(fc), alive[i].upstream, &info);
        mtx_lock(&fc->lock);
        if (fc->behind[alive[i].upstream] && !info.fenced &&
            !fleet_is_held_locked(fc, alive[i].upstream))
            to[n_to++] = alive[i];
        mtx_unlock(&fc->lock);
    }
    return n_to;
}

static void tell(struct fleet_control *fc, enum api_op op, const struct fleet_to *to, size_t n)
{
    struct fleet_said *said = NULL;
    struct upstream_info info;
    uint64_t lives[FLEET_MAX];
    struct err ignored = {0};

    for (size_t i = 0; i < n; i++) {
        fleet_info(fleet_of(fc), to[i].upstream, &info);
        lives[i] = info.n_lives;
    }
    if (n == 0 || fleet_ask(fc, op, to, n, fleet_step_us(fc), &said, &ignored) != 0)
        return;
    for (size_t i = 0; i < n; i++) {
        if (said[i].end == FLEET_REFUSED)
            fleet_fence(fleet_of(fc), said[i].upstream, &said[i].why);
        if (op == API_PAUSE && result_ok(&said[i]))
            fleet_stands_still(fleet_of(fc), said[i].upstream, lives[i]);
        mtx_lock(&fc->lock);
        fc->behind[said[i].upstream] = !result_ok(&said[i]) && said[i].end != FLEET_REFUSED;
        fc->took[said[i].upstream] = op == API_PAUSE && result_ok(&said[i]);
        fleet_live(fc, said[i].upstream, &fc->paused[said[i].upstream]);
        mtx_unlock(&fc->lock);
    }
    fleet_said_free(said, n);
}

/* In the flow, and so is who calls what it calls. */
static void catch_up_flow(struct fleet_control *fc)
{
    struct fleet_to to[FLEET_MAX];
    struct fleet_hold hold;
    json_t *body = NULL;

    mtx_lock(&fc->lock);
    hold = fc->hold;
    mtx_unlock(&fc->lock);
    if (hold.on)
        body = fleet_hold_body(&hold);
    if (!hold.on || body != NULL)
        tell(fc, hold.on ? API_PAUSE : API_RESUME, to, who_is_back(fc, body, to));
    json_decref(body);
}

void fleet_catch_up(struct fleet_control *fc)
{
    struct fleet_to to[FLEET_MAX];
    bool due;

    mtx_lock(&fc->lock);
    due = fc->behind_due_us <= clock_now_us();
    mtx_unlock(&fc->lock);
    if (!due)
        return;
    if (who_is_back(fc, NULL, to) > 0 && fleet_flow_soon(fc, "what an upstream missed")) {
        catch_up_flow(fc);
        fleet_flow_end(fc);
    }
    mtx_lock(&fc->lock);
    due_locked(fc);
    mtx_unlock(&fc->lock);
}
