/* --on-update finish in front of engines that overwrite what they serve: no reply that this server
 * forwards crosses an update.
 *
 * Requests are counted here and not at the engine, because a reply must have been read to its end
 * before the first byte of the update: else nobody could tell which weights made it. The pause by
 * `wait` that follows is for requests that reached a vLLM in other ways.
 *
 * Rejected: to fail the update when requests run for too long. Its trainer waits in a collective by
 * then, and the same requests would be in the way of the next one. Rejected, too: to let them go
 * on, because the option promises that no reply is of two versions. */
#include "fleet/update/fleet_update_priv.h"

#include "base/clock.h"
#include "base/log.h"

enum {
    DRAIN_POLL_US = 100000,  /* a waiting update sees so soon that it was closed */
    ABORTED_END_US = 1000000 /* until the ends of aborted replies have been read */
};

static bool is_to_drain(const struct fleet_part *p)
{
    return !p->two_phase && !p->out && upstream_have(p->upstream).gate != GATE_PAUSED;
}

static bool may_wait(struct fleet_control *fc, const struct fleet_session *s)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return fleet_session_is_open(s) && !pause_is_held(&fc->pause) && !fc->sleep.weights &&
           !fc->sleep.kv;
}

static void log_late(struct upstream *upstream)
{
    struct log_rec r;

    log_begin(&r, LOG_WARN, "fleet.finish_late");
    log_str(&r, "upstream", upstream_name(upstream));
    log_str(&r, "effect", "requests that have not ended are aborted for the update");
    log_end(&r);
}

/* Returns: false if the deadline has passed. */
static bool await_idle(struct fleet_control *fc, const struct fleet_session *s,
                       struct upstream *upstream, uint64_t deadline_us)
{
    while (may_wait(fc, s)) {
        uint64_t poll_us = clock_after_us(DRAIN_POLL_US);

        if (fleet_await_idle(fleet_of(fc), upstream, poll_us < deadline_us ? poll_us : deadline_us))
            return true;
        if (clock_now_us() >= deadline_us)
            return false;
    }
    return true;
}

void fleet_drain_parts(struct fleet_control *fc, struct fleet_session *s)
{
    uint64_t deadline_us = clock_after_us(fleet_update_us(fc) / 2);

    for (size_t i = 0; i < s->n_parts && fc->cfg.finishes; i++) {
        struct fleet_part *p = &s->parts[i];
        bool drains;

        mtx_lock(&fc->lock);
        drains = is_to_drain(p);
        mtx_unlock(&fc->lock);
        p->drains_late = drains && !await_idle(fc, s, p->upstream, deadline_us);
        if (p->drains_late)
            log_late(p->upstream);
    }
}

const struct api_pause *fleet_drain_pause(struct fleet_control *fc, const struct fleet_part *p)
{
    static const struct api_pause aborts = {.mode = PAUSE_ABORT}, waits = {.mode = PAUSE_WAIT},
                                  keeps = {.mode = PAUSE_KEEP};

    if (p->drains_late)
        return &aborts;
    return fc->cfg.finishes && upstream_caps_of(p->upstream)->waits_in_pause ? &waits : &keeps;
}

void fleet_drain_note_overwrites(struct fleet_control *fc, const struct fleet_session *s)
{
    uint64_t deadline_us = clock_after_us(ABORTED_END_US);

    for (size_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].drains_late)
            (void)fleet_await_idle(fleet_of(fc), s->parts[i].upstream, deadline_us);
    for (size_t i = 0; i < s->n_parts; i++)
        if (!s->parts[i].two_phase && !s->parts[i].out)
            fleet_note_overwrite(fleet_of(fc), s->parts[i].upstream);
}
