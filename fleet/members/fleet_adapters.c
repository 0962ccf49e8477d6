/* An adapter that was unloaded stays in the list while an engine may still have it, so that it is
 * unloaded there. Each load has a number of its own: what an engine has is compared by that, as
 * revisions begin anew where an adapter was unloaded. */
#include "fleet/members/fleet_adapters.h"

#include "fleet/members/fleet_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fleet_adapter_free(struct fleet_adapter *a)
{
    if (a == NULL)
        return;
    free(a->path);
    free(a->load);
    free(a);
}

void fleet_adapters_fini(struct fleet_adapters *fa)
{
    for (size_t i = 0; i < fa->n; i++)
        fleet_adapter_free(fa->list[i]);
}

/* NULL: there is none. Also one that was unloaded. */
static struct fleet_adapter *fleet_adapter_find_named(const struct fleet_adapters *fa,
                                                      const char *name)
{
    for (size_t i = 0; i < fa->n; i++)
        if (fa->list[i] != NULL && strcmp(fa->list[i]->name, name) == 0)
            return fa->list[i];
    return NULL;
}

/* ---- what follows from the facts ---- */

static bool has_refused(const struct fleet_adapter *a, const struct adapter_have *h)
{
    return h->has == ADAPTER_NONE && h->refused == a->number;
}

static bool blocks(const struct fleet_adapter *a, const struct adapter_have *h)
{
    if (a->number == 0)
        return have_may_have(h->settled);
    if (h->settled == a->number)
        return false;
    return have_may_have(h->settled) || a->n_have > 0 || (a->load != NULL && !has_refused(a, h));
}

/* Does it have to be loaded or unloaded there? One that cannot be loaded again, and that no engine
 * has, is unloaded where there may be an older revision of it. */
static bool differs(const struct fleet *f, const struct fleet_adapter *a,
                    const struct adapter_have *h)
{
    if (a == f->adapters.asked)
        return false;
    if (a->load != NULL)
        return h->has != a->number;
    return have_may_have(h->has) && (a->number == 0 || a->n_have == 0);
}

static void derive_at(struct fleet *f, struct fleet_adapter *a, struct upstream *u)
{
    struct adapter_have *h = &u->adapters[a->slot], before = *h;

    h->has_this = a->number != 0 && h->settled == a->number && !upstream_is_removed(u);
    a->n_have += h->has_this;
    a->n_have -= before.has_this;
    h->blocks = blocks(a, h);
    u->n_block += h->blocks;
    u->n_block -= before.blocks;
    if (h->blocks && (u->n_block == 1 || a->slot < u->blocking))
        u->blocking = a->slot;
    while (u->n_block > 0 && !u->adapters[u->blocking].blocks)
        u->blocking++;
    h->differs = differs(f, a, h);
    u->n_differ += h->differs;
    u->n_differ -= before.differs;
}

static void derive_all(struct fleet *f, struct fleet_adapter *a)
{
    for (size_t i = 0; i < f->list->n; i++)
        derive_at(f, a, f->list->items[i]);
}

static bool may_forget(const struct fleet *f, const struct fleet_adapter *a, bool members)
{
    if (a == NULL || a->number != 0 || a == f->adapters.asked)
        return false;
    for (size_t i = 0; i < f->list->n; i++) {
        const struct upstream *u = f->list->items[i];
        const struct adapter_have *h = &u->adapters[a->slot];

        if (h->n_calls > 0 || (have_may_have(h->has) && !(members && upstream_is_removed(u))))
            return false;
    }
    return true;
}

static void forget(struct fleet *f, struct fleet_adapter *a)
{
    struct fleet_adapters *fa = &f->adapters;

    for (size_t i = 0; i < f->list->n; i++) {
        struct adapter_have *h = &f->list->items[i]->adapters[a->slot];

        h->has = h->settled = ADAPTER_NONE;
        h->refused = 0;
    }
    derive_all(f, a);
    fa->list[a->slot] = NULL;
    fleet_adapter_free(a);
    while (fa->n > 0 && fa->list[fa->n - 1] == NULL)
        fa->n--;
}

static void forget_unused(struct fleet *f, struct fleet_adapter *a)
{
    if (may_forget(f, a, false))
        forget(f, a);
}

void fleet_derive_adapter_locked(struct fleet *f, struct fleet_adapter *a)
{
    derive_all(f, a);
    derive_all(f, a); /* by the number of those that have it */
    forget_unused(f, a);
}

/* The facts of one engine have changed. */
static void fleet_derive_adapter_at_locked(struct fleet *f, struct fleet_adapter *a,
                                           struct upstream *u)
{
    bool any = a->n_have > 0;

    derive_at(f, a, u);
    if (any != (a->n_have > 0))
        derive_all(f, a);
    forget_unused(f, a);
}

void fleet_derive_adapters_of_locked(struct upstream *u)
{
    for (size_t i = u->fleet->adapters.n; i-- > 0;)
        if (u->fleet->adapters.list[i] != NULL)
            fleet_derive_adapter_at_locked(u->fleet, u->fleet->adapters.list[i], u);
}

void fleet_forget_adapters_locked(struct fleet *f)
{
    for (size_t i = f->adapters.n; i-- > 0;)
        forget_unused(f, f->adapters.list[i]);
}

const struct fleet_adapter *fleet_blocking_adapter(const struct fleet *f, const struct upstream *u)
{
    return u->n_block > 0 ? f->adapters.list[u->blocking] : NULL;
}

/* ---- the list ---- */

static void forget_oldest(struct fleet *f)
{
    struct fleet_adapter *oldest = NULL;

    for (size_t i = 0; i < f->adapters.n; i++) {
        struct fleet_adapter *a = f->adapters.list[i];

        if (may_forget(f, a, true) && (oldest == NULL || a->asked < oldest->asked))
            oldest = a;
    }
    if (oldest != NULL)
        forget(f, oldest);
}

static size_t free_slot(const struct fleet_adapters *fa)
{
    size_t slot = 0;

    while (slot < fa->n && fa->list[slot] != NULL)
        slot++;
    return slot;
}

struct fleet_adapter *fleet_adapter_add_locked(struct fleet *f, const char *name, struct err *e)
{
    struct fleet_adapters *fa = &f->adapters;
    struct fleet_adapter *a = fleet_adapter_find_named(fa, name);
    size_t slot;

    if (a != NULL)
        return a;
    if (free_slot(fa) == FLEET_ADAPTERS_MAX)
        forget_oldest(f);
    slot = free_slot(fa);
    if (slot == FLEET_ADAPTERS_MAX)
        (void)err_set(e, ERR_CONFLICT, "",
                      "there are %d adapters, which is the limit; an unloaded one counts until "
                      "every upstream has unloaded it",
                      FLEET_ADAPTERS_MAX);
    else if ((a = calloc(1, sizeof *a)) == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for another adapter");
    if (a == NULL)
        return NULL;
    (void)snprintf(a->name, sizeof a->name, "%s", name);
    a->slot = (uint32_t)slot;
    fa->list[slot] = a;
    if (slot == fa->n)
        fa->n++;
    return a;
}

static const struct fleet_adapter *find_loaded(const struct fleet *f, const char *name)
{
    const struct fleet_adapter *a = fleet_adapter_find_named(&f->adapters, name);

    return a != NULL && a->number != 0 ? a : NULL;
}

bool fleet_adapter_exists(struct fleet *f, const char *name)
{
    bool exists;

    mtx_lock(&f->lock);
    exists = find_loaded(f, name) != NULL;
    mtx_unlock(&f->lock);
    return exists;
}

int fleet_adapter_path(struct fleet *f, const char *name, char **out)
{
    const struct fleet_adapter *a;
    bool has_path;

    *out = NULL;
    mtx_lock(&f->lock);
    a = find_loaded(f, name);
    has_path = a != NULL && a->path != NULL;
    if (has_path)
        *out = strdup(a->path);
    mtx_unlock(&f->lock);
    return has_path && *out == NULL ? -1 : 0;
}

struct fleet_adapter_entry *fleet_adapter_list(struct fleet *f, const struct upstream *lacking,
                                               size_t *n)
{
    struct fleet_adapter_entry *list;

    *n = 0;
    mtx_lock(&f->lock);
    list = calloc(f->adapters.n + 1, sizeof *list);
    for (size_t i = 0; list != NULL && i < f->adapters.n; i++) {
        const struct fleet_adapter *a = f->adapters.list[i];

        if (a == NULL || a->number == 0 ||
            (lacking != NULL && lacking->adapters[i].settled == a->number))
            continue;
        memcpy(list[*n].name, a->name, sizeof list[*n].name);
        list[*n].path = a->path != NULL ? strdup(a->path) : NULL;
        list[(*n)++].revision = a->revision;
    }
    mtx_unlock(&f->lock);
    return list;
}

void fleet_adapter_list_free(struct fleet_adapter_entry *list, size_t n)
{
    for (size_t i = 0; list != NULL && i < n; i++)
        free(list[i].path);
    free(list);
}

/* ---- one engine ---- */

void fleet_reset_needs_locked(struct upstream *u, bool certain)
{
    memset(u->needs, 0, sizeof u->needs);
    for (size_t i = 0; i < u->fleet->adapters.n; i++)
        have_reset_adapter(&u->adapters[i], certain);
    fleet_derive_adapters_of_locked(u);
}

bool fleet_adapter_may_have(struct fleet *f, struct upstream *u, uint32_t slot)
{
    bool may;

    mtx_lock(&f->lock);
    may = have_may_have(u->adapters[slot].has);
    mtx_unlock(&f->lock);
    return may;
}

/* Those that it refused come last. */
static const struct fleet_adapter *next_adapter(const struct fleet *f, const struct upstream *u)
{
    const struct fleet_adapter *refused = NULL;

    for (size_t i = 0; u->n_differ > 0 && i < f->adapters.n; i++) {
        const struct fleet_adapter *a = f->adapters.list[i];

        if (!u->adapters[i].differs)
            continue;
        if (!has_refused(a, &u->adapters[i]))
            return a;
        refused = a;
    }
    return refused;
}

int fleet_adapter_next(struct fleet *f, struct upstream *u, struct fleet_adapter_task *out)
{
    const struct fleet_adapter *a;
    int rc = 0;

    *out = (struct fleet_adapter_task){.load = NULL};
    mtx_lock(&f->lock);
    a = next_adapter(f, u);
    if (a != NULL) {
        memcpy(out->name, a->name, sizeof out->name);
        out->load = a->load != NULL ? strdup(a->load) : NULL;
        out->path = a->path != NULL ? strdup(a->path) : NULL;
        out->number = a->number;
        out->slot = a->slot;
        out->timeout_us = a->timeout_us;
        rc = (a->load != NULL) == (out->load != NULL) && (a->path != NULL) == (out->path != NULL)
                 ? 1
                 : -1;
    }
    mtx_unlock(&f->lock);
    if (rc < 0)
        fleet_adapter_task_fini(out);
    return rc;
}

void fleet_adapter_task_fini(struct fleet_adapter_task *task)
{
    free(task->load);
    free(task->path);
    task->load = task->path = NULL;
}

/* ---- what engines answer ---- */

/* The one that a request to an engine is about; NULL: the fleet does not know it any more. */
static struct fleet_adapter *adapter_of(struct fleet *f, enum api_op op,
                                        const struct api_args *args)
{
    struct fleet_adapter *a;

    if ((op != API_LOAD_ADAPTER && op != API_UNLOAD_ADAPTER) || args->slot >= f->adapters.n)
        return NULL;
    a = f->adapters.list[args->slot];
    return a != NULL && strcmp(a->name, args->name) == 0 ? a : NULL;
}

void fleet_adapter_before_locked(struct fleet *f, struct upstream *u, enum api_op op,
                                 const struct api_args *args, struct have_before *before)
{
    const struct fleet_adapter *a = adapter_of(f, op, args);

    before->adapter = a != NULL ? &u->adapters[a->slot] : NULL;
    before->keyed_by_name = upstream_caps_of(u)->caches_by_adapter_name;
    before->replaces = upstream_caps_of(u)->replaces_adapters;
}

/* The digest of a load is that which was answered first; that of an earlier load tells nothing. */
bool fleet_adapter_is_same_locked(struct fleet *f, enum api_op op, const struct api_args *args,
                                  const char *digest)
{
    struct fleet_adapter *a = adapter_of(f, op, args);

    if (a == NULL || digest == NULL)
        return true;
    if (a->digest_of != args->number) {
        if (args->number != (a == f->adapters.asked ? a->asked : a->number))
            return true;
        (void)snprintf(a->digest, sizeof a->digest, "%s", digest);
        a->digest_of = args->number;
    }
    return strcmp(a->digest, digest) == 0;
}

/* What a client's request changes is settled when that ends. */
void fleet_adapter_answered_locked(struct fleet *f, struct upstream *u,
                                   const struct have_before *before)
{
    struct fleet_adapter *a = f->adapters.list[before->adapter - u->adapters];

    if (a == f->adapters.asked)
        return;
    before->adapter->settled = before->adapter->has;
    have_caches_settle(&u->have);
    fleet_derive_adapter_at_locked(f, a, u);
}
