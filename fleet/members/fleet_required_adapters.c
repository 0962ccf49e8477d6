/* The adapters that each engine has to have besides the weights. A process whose adapters have not
 * been checked since it started may lack some, so it is out of rotation from its first report on.
 */
#include "fleet/members/fleet_priv.h"

void fleet_require_adapters(struct fleet *f)
{
    fleet_change_begin(f);
    f->requires_adapters = true;
    for (size_t i = 0; i < f->list->n; i++) {
        f->list->items[i]->requires_adapters = true;
        f->list->items[i]->adapters_incarnation = f->list->items[i]->incarnation;
    }
    fleet_change_end(f);
}

/* A check of an earlier process, or one that is older than the last, is ignored. */
void fleet_set_missing_adapters(struct fleet *f, struct upstream *u,
                                const struct fleet_adapter_check *o)
{

    fleet_change_begin(f);
    if (o->incarnation == u->incarnation && o->change >= u->adapters_change) {
        u->adapters_incarnation = o->incarnation;
        u->adapters_change = o->change;
        u->missing = *o->missing;
    }
    fleet_change_end(f);
}
