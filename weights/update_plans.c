/* Plans that were checked once and are named by their digest from then on. */
#include "weights/update_priv.h"

#include <string.h>

static struct plan_kept *find_locked(struct updates *u, const char *digest)
{
    for (uint32_t i = 0; i < UPDATE_PLANS_MAX; i++)
        if (u->plans[i].plan != NULL && strcmp(u->plans[i].plan->digest, digest) == 0)
            return &u->plans[i];
    return NULL;
}

/* A free place, or the one that was used longest ago. */
static struct plan_kept *room_locked(struct updates *u)
{
    struct plan_kept *room = &u->plans[0];

    for (uint32_t i = 0; i < UPDATE_PLANS_MAX; i++) {
        if (u->plans[i].plan == NULL)
            return &u->plans[i];
        if (u->plans[i].used < room->used)
            room = &u->plans[i];
    }
    return room;
}

int updates_plan_put(struct updates *u, struct plan *plan, bool convert, struct err *e)
{
    struct layout layout;
    struct plan *evicted = NULL;
    struct plan_kept *kept;

    if (layout_make(&layout, u->manifest, plan, convert, e) != 0)
        return -1;
    layout_fini(&layout); /* who uses the plan matches it again: it may convert or not */
    mtx_lock(&u->lock);
    kept = find_locked(u, plan->digest);
    if (kept == NULL) {
        kept = room_locked(u);
        evicted = kept->plan;
        kept->plan = plan_ref(plan);
    }
    kept->used = ++u->plans_clock;
    mtx_unlock(&u->lock);
    plan_unref(evicted);
    return 0;
}

struct plan *updates_plan_get(struct updates *u, const char *digest)
{
    struct plan *plan = NULL;
    struct plan_kept *kept;

    mtx_lock(&u->lock);
    kept = find_locked(u, digest);
    if (kept != NULL) {
        kept->used = ++u->plans_clock;
        plan = plan_ref(kept->plan);
    }
    mtx_unlock(&u->lock);
    return plan;
}
