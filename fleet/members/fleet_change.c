/* How each change of the table begins and ends. */
#include "fleet/members/fleet_priv.h"

void fleet_change_begin(struct fleet *f)
{
    mtx_lock(&f->lock);
}

/* What the change did to the engines of the table. */
struct change_effect {
    bool lost, closed, opened;
};

static void note_effect_locked(struct upstream *u, unsigned before, struct change_effect *effect)
{
    bool lost = (before & OUT_UNRELIABLE) == 0 && fleet_is_out(u, OUT_UNRELIABLE);

    if (lost)
        (void)atomic_fetch_add_explicit(&u->n_lost, 1, memory_order_relaxed);
    effect->lost = effect->lost || lost;
    effect->closed = effect->closed || (!lost && before == 0 && u->out != 0);
    effect->opened = effect->opened || (before != 0 && u->out == 0);
}

/* Reports engines that are not reliable any more, and that no engine is left in rotation. */
void fleet_change_end(struct fleet *f)
{
    struct change_effect effect = {0};
    bool none;

    fleet_decide_version_locked(f);
    for (size_t i = 0; i < f->list->n; i++) {
        struct upstream *u = f->list->items[i];
        unsigned before = u->out;

        fleet_derive_locked(f, u);
        note_effect_locked(u, before, &effect);
    }
    none = effect.closed && !fleet_any_serving_locked(f);
    mtx_unlock(&f->lock);
    if ((effect.lost || none) && f->cfg.left_rotation != NULL)
        f->cfg.left_rotation(f->cfg.arg);
    if (effect.opened)
        fleet_grant_all(f);
    fleet_report_states(f);
}
