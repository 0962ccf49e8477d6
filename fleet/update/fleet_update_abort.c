/* How an update of the fleet is aborted: by its trainer, by a step that failed, or by its lease. */
#include "fleet/update/fleet_update_priv.h"

#include "base/log.h"

#include <assert.h>
#include <string.h>

static const char aborting[] = "an abort";

static bool has_named_update(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return p->two_phase && p->update_id[0] != '\0' && upstream_have(p->upstream).own != OWN_CLOSED;
}

/* The answer is a fact of the engine. */
static void on_aborted(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    (void)p;
    (void)result;
    (void)arg;
}

void fleet_abort_parts(struct fleet_control *fc, struct fleet_session *s, const char *reason)
{
    struct err ignored = {0};
    const struct api_args args = {.reason = reason};
    const struct fanout f = {.op = API_ABORT_UPDATE,
                             .args = &args,
                             .timeout_us = FLEET_ABORT_US,
                             .select = has_named_update,
                             .on_result = on_aborted,
                             .fail_each = true};

    (void)fanout_apply(fc, s, &f, &ignored);
}

/* The session is closed first, so that requests under way see it. */
void fleet_abort_with_lock(struct fleet_control *fc, struct fleet_session *s, const struct err *why)
{
    assert(fleet_owns_update_lock(fc));
    fleet_close_session(fc, s, why);
    fleet_report_ended(fc, s, 0);
    fleet_abort_parts(fc, s, why->msg);
    fleet_release_unchanged(fc, s, false);
    if (!s->repair)
        fleet_set_updating(fleet_of(fc), false);
    fleet_end_release(fc);
}

/* The caller has the abort lock; it is given back here. */
static int abort_session(struct fleet_control *fc, struct fleet_session *s, const struct err *why,
                         struct err *e)
{
    if (fleet_update_is_open(fc, s))
        fleet_abort_with_lock(fc, s, why);
    fleet_abort_unlock(fc);
    if (s->phase == UPDATE_COMMITTED) /* as it stays: it has ended */
        return err_set(e, ERR_ENDED, "", "update %s is committed", s->id);
    return 0;
}

int fleet_abort_update_wait(struct fleet_control *fc, struct fleet_session *s,
                            const struct err *why, struct err *e)
{
    if (fleet_expiry_lock(fc, aborting, e) != 0)
        return -1;
    return abort_session(fc, s, why, e);
}

static struct fleet_session *starting_session(struct fleet_control *fc, const char *id)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return fc->starting != NULL && strcmp(fc->starting->id, id) == 0
               ? fleet_session_ref(fc->starting)
               : NULL;
}

int fleet_abort_start(struct fleet_control *fc, const char *id, struct fleet_session **out,
                      struct err *e)
{
    struct fleet_session *s = starting_session(fc, id);

    *out = NULL;
    if (s == NULL)
        return 0;
    if (fleet_abort_lock(fc, aborting, e) != 0) {
        fleet_unref(fc, s);
        return -1;
    }
    fleet_abort_unlock(fc);
    mtx_lock(&fc->lock);
    s->starting = false;
    s->phase = UPDATE_ABORTED; /* what is shown of it */
    mtx_unlock(&fc->lock);
    *out = s;
    return 0;
}

int fleet_abort_update(struct fleet_control *fc, struct fleet_session *s, const struct err *why,
                       struct err *e)
{
    if (!fleet_update_is_open(fc, s)) /* nothing that is under way is of it */
        return s->phase == UPDATE_ABORTED
                   ? 0
                   : err_set(e, ERR_ENDED, "", "update %s is committed", s->id);
    if (fleet_abort_lock(fc, aborting, e) != 0)
        return -1;
    return abort_session(fc, s, why, e);
}

static bool is_unused(struct fleet_control *fc, const struct fleet_session *s)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return fleet_session_is_open(s) && s->anonymous && s->handoff == 0 && !s->repair &&
           s->n_received == 0 && s->n_running == 0;
}

/* Asked again with the lock: tensors may have begun to come. */
bool fleet_abort_unused_update(struct fleet_control *fc, const struct actor *actor)
{
    struct fleet_session *s = fleet_open_session(fc);
    struct err why = {0}, ignored = {0};
    bool unused = s != NULL && actor_is_same_host(&s->actor, actor) && is_unused(fc, s) &&
                  fleet_expiry_lock(fc, aborting, &ignored) == 0;

    if (unused) {
        unused = is_unused(fc, s);
        (void)err_set(&why, ERR_CONFLICT, "", "it received nothing, and another start came");
        if (unused)
            fleet_abort_with_lock(fc, s, &why);
        fleet_abort_unlock(fc);
    }
    if (s != NULL)
        fleet_unref(fc, s);
    return unused;
}

void fleet_abort_update_at_stop(struct fleet_control *fc)
{
    struct fleet_session *s = fleet_open_session(fc);
    struct err why = {0}, e = {0};

    if (s == NULL)
        return;
    (void)err_set(&why, ERR_DRAINING, "", "this server is stopping");
    if (fleet_abort_update(fc, s, &why, &e) != 0)
        log_line(LOG_WARN, "fleet.not_aborted",
                 "the open update stays at the upstreams until their leases end: %s", e.msg);
    fleet_unref(fc, s);
}

void fleet_expire_update(struct fleet_control *fc, struct fleet_session *s)
{
    struct err why = {0}, ignored = {0};
    bool over;

    if (fleet_expiry_lock(fc, aborting, &ignored) != 0)
        return;
    mtx_lock(&fc->lock);
    over = fleet_lease_expired_locked(
        s); /* the trainer may have sent a request while this waited */
    (void)err_set(&why, ERR_CONFLICT, "", "its lease of %u s ended without a request",
                  s->lease.length_s);
    mtx_unlock(&fc->lock);
    if (over)
        fleet_abort_with_lock(fc, s, &why);
    fleet_abort_unlock(fc);
}
