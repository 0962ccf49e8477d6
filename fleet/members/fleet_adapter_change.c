/* What changes the adapters of the fleet: clients' loads and unloads, and what engines answer. */
#include "fleet/members/fleet_priv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int fleet_adapter_begin(struct fleet *f, struct api_args *args, struct err *e)
{
    struct fleet_adapter *a;

    fleet_change_begin(f);
    assert(f->adapters.asked == NULL);
    a = fleet_adapter_add_locked(f, args->name, e);
    if (a != NULL) {
        a->asked = args->number = ADAPTER_NUMBER_MIN + f->adapters.n_asked++;
        args->slot = a->slot;
        f->adapters.asked = a;
        fleet_derive_adapter_locked(f, a);
    }
    fleet_change_end(f);
    return a != NULL ? 0 : -1;
}

static void set_source(struct fleet_adapter *a, uint32_t number, char *path, char *load)
{
    free(a->path);
    free(a->load);
    a->path = path;
    a->load = load;
    a->number = number;
}

/* Ends the change of the table that its caller began. What failed before is tried at once. */
static void fleet_adapter_change_end(struct fleet *f)
{
    struct fleet_adapter *a = f->adapters.asked;

    f->adapters.asked = NULL;
    for (size_t i = 0; a != NULL && i < f->list->n; i++) {
        struct upstream *u = f->list->items[i];

        u->adapters[a->slot].settled = u->adapters[a->slot].has;
        have_caches_settle(&u->have);
        retry_clear(&u->needs[NEED_ADAPTERS].retry);
    }
    if (a != NULL)
        fleet_derive_adapter_locked(f, a);
    fleet_change_end(f);
}

void fleet_adapter_end(struct fleet *f)
{
    fleet_change_begin(f);
    fleet_adapter_change_end(f);
}

static bool may_any_member_have(const struct fleet *f, const struct fleet_adapter *a)
{
    for (size_t i = 0; i < f->list->n; i++)
        if (have_may_have(f->list->items[i]->adapters[a->slot].has) &&
            !upstream_is_removed(f->list->items[i]))
            return true;
    return false;
}

void fleet_adapter_end_kept(struct fleet *f)
{
    fleet_change_begin(f);
    if (!may_any_member_have(f, f->adapters.asked))
        set_source(f->adapters.asked, 0, NULL, NULL);
    fleet_adapter_change_end(f);
}

uint64_t fleet_adapter_end_loaded(struct fleet *f, char *path, char *load, uint64_t timeout_us)
{
    struct fleet_adapter *a;
    uint64_t revision;

    fleet_change_begin(f);
    a = f->adapters.asked;
    revision = a->revision = a->number != 0 ? a->revision + 1 : 1;
    a->timeout_us = timeout_us;
    set_source(a, a->asked, path, load);
    fleet_adapter_change_end(f);
    return revision;
}

uint64_t fleet_adapter_end_unloaded(struct fleet *f)
{
    struct fleet_adapter *a;
    uint64_t revision;

    fleet_change_begin(f);
    a = f->adapters.asked;
    revision = a != NULL && a->number != 0 ? a->revision : 0;
    if (a != NULL)
        set_source(a, 0, NULL, NULL);
    fleet_adapter_change_end(f);
    return revision;
}

void fleet_adapter_doubt(struct fleet *f, struct upstream *u, const struct api_args *args)
{
    fleet_change_begin(f);
    if (f->adapters.asked != NULL)
        u->adapters[args->slot].has = ADAPTER_UNKNOWN;
    fleet_change_end(f);
}
