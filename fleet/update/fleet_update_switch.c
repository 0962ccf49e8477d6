/* How an update switches the fleet's version: for the fleet at once, and for each engine when that
 * is known to serve it. */
#include "fleet/update/fleet_update_priv.h"

void fleet_fence_restarted(struct fleet_control *fc, struct fleet_part *p)
{
    struct err why = {0};

    if (!part_has_finished(p) || !fleet_is_other_incarnation(fc, p->upstream, &p->incarnation))
        return;
    (void)err_set(&why, ERR_UPSTREAM, "",
                  "%.100s was restarted, or was not reachable, before the update ended",
                  upstream_name(p->upstream));
    mtx_lock(&fc->lock);
    part_drop(p, FLEET_UNKNOWN, 0, &why);
    mtx_unlock(&fc->lock);
    fleet_fence(fleet_of(fc), p->upstream, &why);
}

size_t fleet_session_n_finished(const struct fleet_session *s, bool committed)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n_parts; i++)
        n += (part_serves(&s->parts[i]) ||
              (committed && (part_has_finished(&s->parts[i]) || s->parts[i].committed))) &&
             !s->parts[i].removed;
    return n;
}

void fleet_switch_begin(struct fleet_control *fc, struct fleet_session *s)
{
    struct upstream *parts[FLEET_MAX];
    size_t n = 0;

    for (size_t i = 0; i < s->n_parts; i++)
        if (!s->parts[i].out)
            parts[n++] = s->parts[i].upstream;
    fleet_begin_switch(fleet_of(fc), parts, n);
}

/* Once, at the first baton that has committed it; else before the first engine is resumed: then it
 * may make tokens of the version. One that proved the update, and whose finish failed, may serve it
 * later. */
void fleet_switch_now(struct fleet_control *fc, struct fleet_session *s)
{
    uint64_t serial;

    if (s->repair || s->serial > 0 || fleet_session_n_finished(s, true) == 0)
        return;
    serial = fleet_switch_version(fleet_of(fc), s->label, s->handoff);
    for (size_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].two_phase)
            fleet_expect_update(fleet_of(fc), s->parts[i].upstream, s->parts[i].update_id);
    mtx_lock(&fc->lock);
    s->serial = serial;
    mtx_unlock(&fc->lock);
}

/* A baton's reply to finish was compared with the version already. */
void fleet_switch_confirm(struct fleet_control *fc, struct fleet_session *s, struct fleet_part *p)
{
    bool named = p->two_phase || part_reports(p, s->label);

    fleet_fence_restarted(fc, p);
    if (!s->repair && part_has_finished(p))
        fleet_confirm_version(fleet_of(fc), p->upstream, named);
}

/* The others serve the version already. */
static void end_repair(struct fleet_control *fc, struct fleet_session *s, struct fleet_part *p)
{
    bool named = p->two_phase || part_reports(p, s->label);
    uint64_t serial;

    if (!part_has_finished(p))
        return;
    if (p->two_phase)
        fleet_expect_update(fleet_of(fc), p->upstream, p->update_id);
    serial = fleet_repair_version(fleet_of(fc), s->label, p->upstream, named);
    mtx_lock(&fc->lock);
    s->serial = serial;
    mtx_unlock(&fc->lock);
}

/* Checked twice: an engine may be restarted meanwhile. Later restarts are found by probes, since
 * the process in rotation is then the one that finished. */
size_t fleet_switch_end(struct fleet_control *fc, struct fleet_session *s)
{
    for (size_t i = 0; i < s->n_parts; i++) {
        fleet_switch_confirm(fc, s, &s->parts[i]);
        if (s->repair)
            end_repair(fc, s, &s->parts[i]);
    }
    if (!s->repair && s->serial > 0)
        fleet_set_updating(fleet_of(fc), false);
    for (size_t i = 0; i < s->n_parts; i++) {
        fleet_fence_restarted(fc, &s->parts[i]);
        if (part_has_finished(&s->parts[i]))
            fleet_proof_want(fc, s->parts[i].upstream);
    }
    return fleet_session_n_finished(s, false);
}
