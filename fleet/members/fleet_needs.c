/* What an engine needs besides the weights before it gets requests: caches without entries of other
 * weights, and the adapters of the fleet. Both follow from facts of its process. */
#include "fleet/members/fleet_priv.h"

enum { RETRY_US = 500000 }; /* delay after the first failure; doubled each time … */

/* … up to this. Caches cannot be reset while requests run. */
static const uint64_t retry_max_us[] = {
    [NEED_CACHES] = 1000000, [NEED_ADAPTERS] = 30000000, [NEED_NAME] = 10000000};

uint64_t fleet_caches_begin(struct fleet *f, struct upstream *u, enum cache_change change,
                            bool *may_lack_route)
{
    uint64_t number;

    mtx_lock(&f->lock);
    number = change != CACHES_AS_BEFORE
                 ? have_caches_changed(&u->have, change == CACHES_OF_OTHER_WEIGHTS)
                 : u->have.caches.changes;
    *may_lack_route = have_may_lack_reset_route(&u->have);
    mtx_unlock(&f->lock);
    return number;
}

/* A change that is settled by this was not known to the attempts before. */
void fleet_caches_end(struct fleet *f, struct upstream *u, uint64_t number, const struct err *why)
{
    struct fleet_need_state *need = &u->needs[NEED_CACHES];
    struct cache_facts *c = &u->have.caches;

    fleet_change_begin(f);
    need->why = *why;
    if (why->code == ERR_NONE && number > c->emptied)
        c->emptied = number;
    if (why->code == ERR_NONE || number > c->due)
        retry_clear(&need->retry);
    else
        retry_failed(&need->retry, RETRY_US, retry_max_us[NEED_CACHES]);
    if (number > c->due)
        c->due = number;
    fleet_change_end(f);
}

bool fleet_needs(struct fleet *f, struct upstream *u, enum fleet_need which)
{
    bool needs;

    mtx_lock(&f->lock);
    needs = (which == NEED_CACHES     ? fleet_has_stale_caches(u)
             : which == NEED_ADAPTERS ? u->n_differ > 0
                                      : fleet_awaits_name(u)) &&
            retry_is_due(&u->needs[which].retry);
    mtx_unlock(&f->lock);
    return needs;
}

void fleet_need_tried(struct fleet *f, struct upstream *u, enum fleet_need which,
                      const struct err *why)
{
    struct fleet_need_state *need = &u->needs[which];

    fleet_change_begin(f);
    need->why = *why;
    if (why->code == ERR_NONE)
        retry_clear(&need->retry);
    else
        retry_failed(&need->retry, RETRY_US, retry_max_us[which]);
    fleet_change_end(f);
}
