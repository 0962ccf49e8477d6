/* Requests are counted here and not at the engine, because a reply must have been read to its end
 * before the first byte of the update: else nobody could tell which weights made it. The pause by
 * `wait` that follows is for requests that reached a vLLM in other ways.
 *
 * Rejected: to fail the update when requests run for too long. Its trainer waits in a collective by
 * then, and the same requests would be in the way of the next one. Rejected, too: to let them go
 * on, because the option promises that no reply is of two versions. */
#include "fleet/update/fleet_drain.h"

#include "base/clock.h"
#include "base/log.h"
#include "fleet/calls/fleet_priv.h"

#include <string.h>

enum {
    DRAIN_POLL_US = 100000,  /* a waiting update sees so soon that it was closed */
    ABORTED_END_US = 1000000 /* until the ends of aborted replies have been read */
};

static bool is_to_drain(const struct fleet_part *p)
{
    return !p->two_phase && part_takes_part(p) && upstream_gate(p->upstream) != GATE_PAUSED;
}

static bool may_wait(struct fleet_control *fc, const struct fleet_session *s)
{
    bool may;

    mtx_lock(&fc->lock);
    may = fleet_session_is_open(s) && !pause_is_held(&fc->pause) && !fc->sleep.weights &&
          !fc->sleep.kv;
    mtx_unlock(&fc->lock);
    return may;
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

void fleet_drain_parts(struct fleet_control *fc, struct fleet_session *s, struct part_set *late)
{
    uint64_t deadline_us = clock_after_us(fleet_update_us(fc) / 2);

    memset(late, 0, sizeof *late);
    for (size_t i = 0; i < s->n_parts && fc->cfg.finishes; i++) {
        bool drains;

        mtx_lock(&fc->lock);
        drains = is_to_drain(&s->parts[i]);
        mtx_unlock(&fc->lock);
        late->has[i] = drains && !await_idle(fc, s, s->parts[i].upstream, deadline_us);
        if (late->has[i])
            log_late(s->parts[i].upstream);
    }
}

static enum lifecycle_pause pause_mode(struct fleet_control *fc, const struct fleet_part *p,
                                       bool late)
{

    if (late)
        return PAUSE_ABORT;
    return fc->cfg.finishes && upstream_caps_of(p->upstream)->waits_in_pause ? PAUSE_WAIT
                                                                             : PAUSE_KEEP;
}

void fleet_drain_pauses(struct fleet_control *fc, const struct fleet_session *s,
                        const struct part_set *late, struct api_pause *out)
{
    for (size_t i = 0; i < s->n_parts; i++)
        out[i] = (struct api_pause){.mode = pause_mode(fc, &s->parts[i], late->has[i])};
}

void fleet_drain_note_overwrites(struct fleet_control *fc, const struct fleet_session *s,
                                 const struct part_set *late)
{
    uint64_t deadline_us = clock_after_us(ABORTED_END_US);

    for (size_t i = 0; i < s->n_parts; i++)
        if (late->has[i])
            (void)fleet_await_idle(fleet_of(fc), s->parts[i].upstream, deadline_us);
    for (size_t i = 0; i < s->n_parts; i++)
        if (!s->parts[i].two_phase && part_takes_part(&s->parts[i]))
            fleet_note_overwrite(fleet_of(fc), s->parts[i].upstream);
}
