/* Updates that batons may still have open: they are aborted, those of an earlier server too, which
 * was killed. A baton that did not confirm it is asked again before the next update. */
#include "fleet/update/fleet_update_priv.h"

static bool may_have_open_update(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return p->two_phase && fleet_engine(p->upstream)->update_in_doubt;
}

static void on_open_update(struct fleet_part *p, size_t part, struct fleet_result *result,
                           void *arg)
{
    struct part_set *open = arg;

    if (result->outcome != FLEET_OK)
        return;
    open->has[part] = api_read_open_update(p->update_id, result->text, result->text_len);
    fleet_engine(p->upstream)->update_in_doubt = open->has[part];
}

static void on_recovered(struct fleet_part *p, size_t part, struct fleet_result *result, void *arg)
{
    (void)part;
    (void)arg;
    if (result->outcome == FLEET_OK)
        fleet_engine(p->upstream)->update_in_doubt = false;
}

/* A baton's id of the update may be unknown here, because its answer was lost, so it is asked
 * first. */
void fleet_recover(struct fleet_control *fc, struct fleet_session *s)
{
    struct part_set open = {{false}};
    const struct fanout status = {.is_query = true,
                                  .query = API_GET_STATUS,
                                  .select = may_have_open_update,
                                  .on_result = on_open_update,
                                  .arg = &open};
    const struct fanout end = {.op = API_ABORT_UPDATE,
                               .timeout_us = FLEET_ABORT_US,
                               .only = &open,
                               .on_result = on_recovered};
    struct err ignored = {0};

    if (fanout_apply(fc, s, &status, &ignored) != 0)
        return;
    (void)fanout_apply(fc, s, &end, &ignored);
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        if (open.has[i])
            s->parts[i].update_id[0] = '\0';
    mtx_unlock(&fc->lock);
}

static bool has_own_update(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return p->two_phase && p->own_update == PART_UPDATE_OPEN && p->state != PART_FINISHED;
}

static void on_aborted(struct fleet_part *p, size_t part, struct fleet_result *result, void *arg)
{
    (void)part;
    (void)arg;
    fleet_engine(p->upstream)->update_in_doubt = result->outcome != FLEET_OK;
}

void fleet_abort_parts(struct fleet_control *fc, struct fleet_session *s, const char *reason)
{
    struct err ignored = {0};
    const struct api_args args = {.reason = reason};
    const struct fanout f = {.op = API_ABORT_UPDATE,
                             .args = &args,
                             .timeout_us = FLEET_ABORT_US,
                             .select = has_own_update,
                             .on_result = on_aborted};

    (void)fanout_apply(fc, s, &f, &ignored);
}
