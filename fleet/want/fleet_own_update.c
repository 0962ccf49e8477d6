/* Updates that batons may still have open, and that no client will end: this server did not hear
 * that one was aborted, or what became of its start or of its end. They are aborted as soon as the
 * baton answers. Before an update those that an earlier server may have left open are aborted too.
 */
#include "fleet/calls/fleet_priv.h"

/* Its id may be unknown here, because an answer was lost, so the baton is asked first. It refuses
 * the abort of one that it is about to commit. */
void fleet_close_own_updates(struct fleet_control *fc, struct upstream *const *batons, size_t n)
{
    char ids[FLEET_MAX][API_UPDATE_ID_MAX + 1];
    struct fleet_target targets[FLEET_MAX];
    fleet_results_auto found = {0};
    struct err ignored = {0};
    size_t n_open = 0;

    for (size_t i = 0; i < n; i++)
        targets[i] = (struct fleet_target){.upstream = batons[i], .until_down = true};
    if (n == 0 ||
        fleet_query(fc, API_GET_STATUS, targets, n, fleet_step_us(fc), &found, &ignored) != 0)
        return;
    for (size_t i = 0; i < n; i++) {
        const struct fleet_result *r = &found.list[i];

        if (r->outcome != FLEET_OK)
            continue;
        if (!api_read_open_update(ids[n_open], r->text, r->text_len)) {
            upstream_note_closed(batons[i]);
            continue;
        }
        targets[n_open] = (struct fleet_target){.upstream = batons[i], .until_down = true};
        targets[n_open].ctx.update_id = ids[n_open];
        n_open++;
    }
    fleet_tell(fc, API_ABORT_UPDATE, targets, n_open, FLEET_ABORT_US);
}

/* One that this server has begun. While an update is open, that one's end decides. */
bool fleet_own_update_differs_locked(struct fleet_control *fc, struct upstream *upstream,
                                     const struct upstream_info *info)
{
    return upstream_caps_of(upstream)->two_phase && !info->removed && info->alive &&
           (info->have.own == OWN_UNKNOWN || info->have.own == OWN_OPEN) && fc->session == NULL &&
           fc->starting == NULL && fc->releasing == NULL &&
           retry_is_due(&fleet_engine(upstream)->retry[ASPECT_OWN_UPDATE]);
}

/* Whatever has the lock is over soon, or closes them itself. */
void fleet_own_updates_drive(struct fleet_control *fc)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct upstream *batons[FLEET_MAX] = {NULL};
    struct upstream_info info;
    struct err ignored = {0};
    size_t n = 0;

    if (fleet_expiry_lock(fc, "the abort of an earlier update", &ignored) != 0)
        return;
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < all->n; i++) {
        fleet_info(fleet_of(fc), all->items[i], &info);
        if (fleet_own_update_differs_locked(fc, all->items[i], &info))
            batons[n++] = all->items[i];
    }
    mtx_unlock(&fc->lock);
    fleet_close_own_updates(fc, batons, n);
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < n; i++)
        fleet_aspect_tried_locked(&fleet_engine(batons[i])->retry[ASPECT_OWN_UPDATE],
                                  upstream_have(batons[i]).own == OWN_CLOSED);
    mtx_unlock(&fc->lock);
    fleet_abort_unlock(fc);
}
