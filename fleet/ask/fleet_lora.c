/* Results of a load or an unload are stored only for processes that sent them: an engine may be
 * restarted between its reply and this. */
#include "fleet/ask/fleet_lora.h"

#include "fleet/calls/fleet_priv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void fleet_lora_read(struct fleet_control *fc, const char *name, struct fleet_lora *out)
{
    size_t n = upstreams_n(fc->upstreams);

    memset(out, 0, sizeof *out);
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < n; i++)
        fleet_reconcile_check_incarnation_locked(fc, i);
    memcpy(out->incarnation, fc->adapters.incarnation, sizeof out->incarnation);
    fleet_adapters_get_has(&fc->adapters, name, out->has);
    mtx_unlock(&fc->lock);
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

static void check_incarnations_locked(struct fleet_control *fc, struct fleet_lora *l)
{
    size_t n = upstreams_n(fc->upstreams);

    for (size_t i = 0; i < n; i++) {
        fleet_reconcile_check_incarnation_locked(fc, i);
        if (l->incarnation[i] != fc->adapters.incarnation[i])
            l->has[i] = FLEET_HAS_OTHER;
    }
}

uint64_t fleet_lora_put(struct fleet_control *fc, const struct fleet_adapter_source *from,
                        struct fleet_lora *l)
{
    uint64_t revision;

    assert(fleet_owns_op_lock(fc));
    mtx_lock(&fc->lock);
    check_incarnations_locked(fc, l);
    revision = fleet_adapters_put(&fc->adapters, from, l->has);
    mtx_unlock(&fc->lock);
    return revision;
}

uint64_t fleet_lora_remove(struct fleet_control *fc, const char *name, struct fleet_lora *l)
{
    uint64_t revision;

    assert(fleet_owns_op_lock(fc));
    mtx_lock(&fc->lock);
    check_incarnations_locked(fc, l);
    revision = fleet_adapters_remove(&fc->adapters, name, l->has);
    mtx_unlock(&fc->lock);
    return revision;
}

void fleet_lora_set_has(struct fleet_control *fc, const char *name, struct fleet_lora *l)
{
    assert(fleet_owns_op_lock(fc));
    mtx_lock(&fc->lock);
    check_incarnations_locked(fc, l);
    fleet_adapters_set_has(&fc->adapters, name, l->has);
    mtx_unlock(&fc->lock);
}

void fleet_lora_keep(struct fleet_control *fc, const char *name, struct fleet_lora *l)
{
    assert(fleet_owns_op_lock(fc));
    mtx_lock(&fc->lock);
    check_incarnations_locked(fc, l);
    if (!fleet_adapters_any_has(&fc->adapters, l->has))
        (void)fleet_adapters_remove(&fc->adapters, name, l->has);
    else
        fleet_adapters_set_has(&fc->adapters, name, l->has);
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
