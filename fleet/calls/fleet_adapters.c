/* A list: there are few names. An adapter that was unloaded stays in it while an engine may still
 * have it, so that it is unloaded there. */
#include "fleet/calls/fleet_adapters.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fleet_adapters_fini(struct fleet_adapters *fa)
{
    for (size_t i = 0; i < fa->n; i++) {
        free(fa->list[i].path);
        free(fa->list[i].load);
    }
    free(fa->list);
    memset(fa, 0, sizeof *fa);
}

/* Also one that was unloaded and that an engine may still have. */
static struct fleet_adapter *find(const struct fleet_adapters *fa, const char *name)
{
    for (size_t i = 0; i < fa->n; i++)
        if (strcmp(fa->list[i].name, name) == 0)
            return &fa->list[i];
    return NULL;
}

const struct fleet_adapter *fleet_adapters_find(const struct fleet_adapters *fa, const char *name)
{
    struct fleet_adapter *a = find(fa, name);

    return a != NULL && !a->removed ? a : NULL;
}

void fleet_adapters_join(struct fleet_adapters *fa, struct fleet_engine_adapters *engine)
{
    engine->next = fa->engines;
    fa->engines = engine;
}

bool fleet_adapters_any_found(const struct fleet_adapters *fa)
{
    for (const struct fleet_engine_adapters *e = fa->engines; e != NULL; e = e->next)
        if (e->found != FLEET_HAS_NONE && e->incarnation != FLEET_REMOVED)
            return true;
    return false;
}

static bool may_any_member_have(const struct fleet_adapters *fa, const struct fleet_adapter *a)
{
    for (const struct fleet_engine_adapters *e = fa->engines; e != NULL; e = e->next)
        if (e->at[a->slot].has != FLEET_HAS_NONE && e->incarnation != FLEET_REMOVED)
            return true;
    return false;
}

static bool is_pending(const struct fleet_adapters *fa, const struct fleet_adapter *a)
{
    for (const struct fleet_engine_adapters *e = fa->engines; e != NULL; e = e->next)
        if (e->at[a->slot].pending)
            return true;
    return false;
}

static void set_source(struct fleet_adapter *a, char *path, char *load)
{
    free(a->path);
    free(a->load);
    a->path = path;
    a->load = load;
}

static void forget(struct fleet_adapters *fa, struct fleet_adapter *a)
{
    set_source(a, NULL, NULL);
    for (struct fleet_engine_adapters *e = fa->engines; e != NULL; e = e->next)
        e->at[a->slot].has = FLEET_HAS_NONE;
    fa->used[a->slot] = false;
    *a = fa->list[--fa->n];
}

/* Of those that were unloaded, and that only removed engines may still have. */
static void forget_oldest(struct fleet_adapters *fa)
{
    struct fleet_adapter *oldest = NULL;

    for (size_t i = 0; i < fa->n; i++) {
        struct fleet_adapter *a = &fa->list[i];

        if (a->removed && !is_pending(fa, a) && !may_any_member_have(fa, a) &&
            (oldest == NULL || a->change < oldest->change))
            oldest = a;
    }
    if (oldest != NULL)
        forget(fa, oldest);
}

int fleet_adapters_reserve(struct fleet_adapters *fa, const char *name, struct err *e)
{
    struct fleet_adapter *grown;

    if (find(fa, name) != NULL)
        return 0;
    if (fa->n >= FLEET_ADAPTERS_MAX)
        forget_oldest(fa);
    if (fa->n >= FLEET_ADAPTERS_MAX)
        return err_set(e, ERR_CONFLICT, "",
                       "there are %d adapters, which is the limit; an unloaded one counts until "
                       "every upstream has unloaded it",
                       FLEET_ADAPTERS_MAX);
    grown = realloc(fa->list, (fa->n + 1) * sizeof *grown);
    if (grown == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for another adapter");
    fa->list = grown;
    return 0;
}

static struct fleet_adapter *add(struct fleet_adapters *fa, const char *name)
{
    struct fleet_adapter *a = find(fa, name);

    if (a != NULL)
        return a;
    a = &fa->list[fa->n++];
    memset(a, 0, sizeof *a);
    (void)snprintf(a->name, sizeof a->name, "%s", name);
    while (fa->used[a->slot])
        a->slot++;
    fa->used[a->slot] = true;
    return a;
}

static bool may_any_have(const struct fleet_adapters *fa, const struct fleet_adapter *a)
{
    for (const struct fleet_engine_adapters *e = fa->engines; e != NULL; e = e->next)
        if (e->at[a->slot].has != FLEET_HAS_NONE)
            return true;
    return false;
}

static void forget_removed(struct fleet_adapters *fa)
{
    for (size_t i = fa->n; i-- > 0;) {
        struct fleet_adapter *a = &fa->list[i];

        if (a->removed && !may_any_have(fa, a) && !is_pending(fa, a))
            forget(fa, a);
    }
}

void fleet_adapters_leave(struct fleet_adapters *fa, struct fleet_engine_adapters *engine)
{
    struct fleet_engine_adapters **at = &fa->engines;

    while (*at != engine)
        at = &(*at)->next;
    *at = engine->next;
    forget_removed(fa);
}

/* A task that is pending at an engine may change what it has after this reply. */
static void set_has(struct fleet_adapters *fa, struct fleet_adapter *a)
{
    for (struct fleet_engine_adapters *e = fa->engines; e != NULL; e = e->next)
        e->at[a->slot].has = e->at[a->slot].pending ? FLEET_HAS_OTHER : e->found;
    fa->changes++;
}

uint64_t fleet_adapters_put(struct fleet_adapters *fa, const struct fleet_adapter_source *from)
{
    struct fleet_adapter *a = add(fa, from->name);

    a->removed = false;
    a->timeout_us = from->timeout_us;
    set_source(a, from->path, from->load);
    (void)snprintf(a->digest, sizeof a->digest, "%s", from->digest != NULL ? from->digest : "");
    set_has(fa, a);
    a->change = fa->changes;
    return ++a->revision;
}

void fleet_adapters_find_has(struct fleet_adapters *fa, const char *name)
{
    const struct fleet_adapter *a = find(fa, name);

    for (struct fleet_engine_adapters *e = fa->engines; e != NULL; e = e->next) {
        e->found = a != NULL ? e->at[a->slot].has : FLEET_HAS_NONE;
        e->found_incarnation = e->incarnation;
    }
}

void fleet_adapters_set_has(struct fleet_adapters *fa, const char *name)
{
    struct fleet_adapter *a = find(fa, name);

    if (a == NULL)
        return;
    set_has(fa, a);
    a->change =
        fa->changes; /* a pending load may have been processed before the adapter was lost */
}

static bool may_any_have_found(const struct fleet_adapters *fa)
{
    for (const struct fleet_engine_adapters *e = fa->engines; e != NULL; e = e->next)
        if (e->found != FLEET_HAS_NONE)
            return true;
    return false;
}

uint64_t fleet_adapters_remove(struct fleet_adapters *fa, const char *name)
{
    const struct fleet_adapter *was = fleet_adapters_find(fa, name);
    uint64_t revision = was != NULL ? was->revision : 0;
    struct err full = {0};
    struct fleet_adapter *a;

    if (find(fa, name) == NULL &&
        (!may_any_have_found(fa) || fleet_adapters_reserve(fa, name, &full) != 0))
        return 0;
    a = add(fa, name);
    a->removed = true;
    a->revision = 0;
    set_source(a, NULL, NULL);
    set_has(fa, a);
    a->change = fa->changes;
    forget_removed(fa);
    return revision;
}

void fleet_adapters_set_incarnation(struct fleet_adapters *fa, struct fleet_engine_adapters *engine,
                                    uint64_t incarnation, bool is_new)
{
    if (engine->incarnation == incarnation)
        return;
    engine->incarnation = incarnation;
    fa->changes++;
    for (size_t i = 0; i < fa->n; i++) {
        struct fleet_adapter *a = &fa->list[i];

        if (engine->at[a->slot].pending || (!is_new && engine->at[a->slot].has != FLEET_HAS_NONE))
            engine->at[a->slot].has = FLEET_HAS_OTHER;
        else
            engine->at[a->slot].has = FLEET_HAS_NONE;
    }
    forget_removed(fa);
}

bool fleet_adapters_is_missing(const struct fleet_adapter *a,
                               const struct fleet_engine_adapters *engine)
{
    return !a->removed && engine->at[a->slot].has != FLEET_HAS_THIS;
}

static bool any_has_this(const struct fleet_adapters *fa, const struct fleet_adapter *a)
{
    for (const struct fleet_engine_adapters *e = fa->engines; e != NULL; e = e->next)
        if (e->at[a->slot].has == FLEET_HAS_THIS)
            return true;
    return false;
}

/* One that cannot be loaded again, and that no engine has, is unloaded where there may be an older
 * revision of it. */
static bool has_task(const struct fleet_adapters *fa, const struct fleet_adapter *a,
                     const struct fleet_engine_adapters *engine)
{
    enum fleet_has has = (enum fleet_has)engine->at[a->slot].has;

    if (a->removed)
        return has != FLEET_HAS_NONE;
    return a->load != NULL ? has != FLEET_HAS_THIS : has == FLEET_HAS_OTHER && !any_has_this(fa, a);
}

/* Adapters that the engine refused come last. */
static struct fleet_adapter *next_task(const struct fleet_adapters *fa,
                                       const struct fleet_engine_adapters *engine)
{
    struct fleet_adapter *refused = NULL;

    for (size_t i = 0; i < fa->n; i++) {
        struct fleet_adapter *a = &fa->list[i];

        if (has_task(fa, a, engine) && engine->at[a->slot].has != FLEET_HAS_REFUSED)
            return a;
        if (has_task(fa, a, engine))
            refused = a;
    }
    return refused;
}

bool fleet_adapters_has_task(const struct fleet_adapters *fa,
                             const struct fleet_engine_adapters *engine)
{
    return next_task(fa, engine) != NULL;
}

int fleet_adapters_begin_task(struct fleet_adapters *fa, struct fleet_engine_adapters *engine,
                              struct fleet_adapter_task *out)
{
    struct fleet_adapter *a = next_task(fa, engine);
    struct fleet_adapter_task task = {.incarnation = engine->incarnation};

    if (a == NULL)
        return 0;
    if (!a->removed && a->load != NULL) {
        task.load = strdup(a->load);
        task.path = a->path != NULL ? strdup(a->path) : NULL;
        if (task.load == NULL || (a->path != NULL && task.path == NULL)) {
            free(task.load);
            free(task.path);
            return -1;
        }
    }
    memcpy(task.name, a->name, sizeof task.name);
    memcpy(task.digest, a->digest, sizeof task.digest);
    task.had = (enum fleet_has)engine->at[a->slot].has;
    task.may_have = task.had != FLEET_HAS_NONE;
    task.timeout_us = a->timeout_us;
    task.change = a->change;
    engine->at[a->slot].pending = true;
    *out = task;
    return 1;
}

void fleet_adapters_end_task(struct fleet_adapters *fa, struct fleet_engine_adapters *engine,
                             struct fleet_adapter_task *task, enum fleet_has has)
{
    struct fleet_adapter *a = find(fa, task->name); /* not forgotten while a task is pending */

    assert(a != NULL && engine->at[a->slot].pending);
    engine->at[a->slot].pending = false;
    engine->at[a->slot].has = (uint8_t)has;
    if (task->incarnation != engine->incarnation || task->change != a->change)
        engine->at[a->slot].has = FLEET_HAS_OTHER;
    fa->changes++;
    forget_removed(fa);
    free(task->load);
    free(task->path);
    task->load = task->path = NULL;
}

const struct fleet_adapter *fleet_adapters_blocking(const struct fleet_adapters *fa,
                                                    const struct fleet_engine_adapters *engine)
{
    for (size_t i = 0; i < fa->n; i++) {
        const struct fleet_adapter *a = &fa->list[i];
        enum fleet_has has = (enum fleet_has)engine->at[a->slot].has;
        bool can_mend = has == FLEET_HAS_OTHER || (a->load != NULL && has != FLEET_HAS_REFUSED);

        if (a->removed ? has != FLEET_HAS_NONE
                       : has != FLEET_HAS_THIS && (can_mend || any_has_this(fa, a)))
            return a;
    }
    return NULL;
}
