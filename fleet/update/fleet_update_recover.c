/* Updates that batons may still have open: they are aborted, those of an earlier server too, which
 * was killed. A baton that did not confirm it is asked again before the next update. */
#include "fleet/update/fleet_update_priv.h"

static bool may_have_open_update(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return p->two_phase && upstream_have(p->upstream).own != OWN_CLOSED;
}

static bool has_named_update(const struct fleet_part *p, const void *arg)
{
    return may_have_open_update(p, arg) && p->update_id[0] != '\0';
}

static void on_status(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    (void)arg;
    p->update_id[0] = '\0';
    if (result->outcome == FLEET_OK &&
        !api_read_open_update(p->update_id, result->text, result->text_len))
        upstream_note_closed(p->upstream);
}

static void on_aborted(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    (void)result;
    (void)arg;
    p->update_id[0] = '\0';
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

/* A baton's id of the update may be unknown here, because its answer was lost, so it is asked
 * first. */
void fleet_recover(struct fleet_control *fc, struct fleet_session *s)
{
    const struct fanout status = {.is_query = true,
                                  .query = API_GET_STATUS,
                                  .select = may_have_open_update,
                                  .on_result = on_status,
                                  .fail_each = true};
    struct err ignored = {0};

    (void)fanout_apply(fc, s, &status, &ignored);
    fleet_abort_parts(fc, s, NULL);
}
