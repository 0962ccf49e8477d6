/* Results of a load or an unload are stored only for processes that sent them: an engine may be
 * restarted between its reply and this. */
#include "fleet/ask/fleet_lora.h"

#include "fleet/calls/fleet_priv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void check_incarnations_locked(struct fleet_control *fc)
{
    struct upstream_list *all = upstreams_list(fc->upstreams);

    for (size_t i = 0; i < all->n; i++)
        fleet_reconcile_check_incarnation_locked(fc, all->items[i]);
    upstream_list_unref(all);
}

void fleet_lora_read(struct fleet_control *fc, const char *name)
{
    mtx_lock(&fc->lock);
    check_incarnations_locked(fc);
    fleet_adapters_find_has(&fc->adapters, name);
    mtx_unlock(&fc->lock);
}

uint8_t *fleet_lora_found(const struct upstream *upstream)
{
    return &fleet_engine(upstream)->adapters.found;
}

bool fleet_lora_exists(struct fleet_control *fc, const char *name)
{
    bool exists;

    mtx_lock(&fc->lock);
    exists = fleet_adapters_find(&fc->adapters, name) != NULL;
    mtx_unlock(&fc->lock);
    return exists;
}

int fleet_lora_path(struct fleet_control *fc, const char *name, char **out)
{
    const struct fleet_adapter *a;
    int rc = 0;

    *out = NULL;
    mtx_lock(&fc->lock);
    a = fleet_adapters_find(&fc->adapters, name);
    if (a != NULL && a->path != NULL) {
        *out = strdup(a->path);
        rc = *out != NULL ? 0 : -1;
    }
    mtx_unlock(&fc->lock);
    return rc;
}

int fleet_lora_reserve(struct fleet_control *fc, const char *name, struct err *e)
{
    int rc;

    mtx_lock(&fc->lock);
    rc = fleet_adapters_reserve(&fc->adapters, name, e);
    mtx_unlock(&fc->lock);
    return rc;
}

static void doubt_restarted_locked(struct fleet_control *fc)
{
    check_incarnations_locked(fc);
    for (struct fleet_engine_adapters *e = fc->adapters.engines; e != NULL; e = e->next)
        if (e->found_incarnation != e->incarnation)
            e->found = FLEET_HAS_OTHER;
}

uint64_t fleet_lora_put(struct fleet_control *fc, const struct fleet_adapter_source *from)
{
    uint64_t revision;

    assert(fleet_owns_op_lock(fc));
    mtx_lock(&fc->lock);
    doubt_restarted_locked(fc);
    revision = fleet_adapters_put(&fc->adapters, from);
    mtx_unlock(&fc->lock);
    return revision;
}

uint64_t fleet_lora_remove(struct fleet_control *fc, const char *name)
{
    uint64_t revision;

    assert(fleet_owns_op_lock(fc));
    mtx_lock(&fc->lock);
    doubt_restarted_locked(fc);
    revision = fleet_adapters_remove(&fc->adapters, name);
    mtx_unlock(&fc->lock);
    return revision;
}

void fleet_lora_set_has(struct fleet_control *fc, const char *name)
{
    assert(fleet_owns_op_lock(fc));
    mtx_lock(&fc->lock);
    doubt_restarted_locked(fc);
    fleet_adapters_set_has(&fc->adapters, name);
    mtx_unlock(&fc->lock);
}

void fleet_lora_keep(struct fleet_control *fc, const char *name)
{
    assert(fleet_owns_op_lock(fc));
    mtx_lock(&fc->lock);
    doubt_restarted_locked(fc);
    if (!fleet_adapters_any_found(&fc->adapters))
        (void)fleet_adapters_remove(&fc->adapters, name);
    else
        fleet_adapters_set_has(&fc->adapters, name);
    mtx_unlock(&fc->lock);
}

struct fleet_lora_entry *fleet_lora_list(struct fleet_control *fc, size_t *n)
{
    struct fleet_lora_entry *list;

    *n = 0;
    mtx_lock(&fc->lock);
    list = calloc(fc->adapters.n + 1, sizeof *list);
    for (size_t i = 0; list != NULL && i < fc->adapters.n; i++) {
        const struct fleet_adapter *a = &fc->adapters.list[i];

        if (a->removed)
            continue;
        memcpy(list[*n].name, a->name, sizeof list[*n].name);
        list[*n].path = a->path != NULL ? strdup(a->path) : NULL;
        list[(*n)++].revision = a->revision;
    }
    mtx_unlock(&fc->lock);
    return list;
}

void fleet_lora_list_free(struct fleet_lora_entry *list, size_t n)
{
    for (size_t i = 0; list != NULL && i < n; i++)
        free(list[i].path);
    free(list);
}
