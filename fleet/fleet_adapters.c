/* A list; names are few. An adapter that was unloaded stays in it as long as an upstream may have
 * it: what nobody remembers nobody takes away. */
#include "fleet/fleet_adapters.h"

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

/* Of the fleet's, or gone. */
static struct fleet_adapter *named(const struct fleet_adapters *fa, const char *name)
{
    for (size_t i = 0; i < fa->n; i++)
        if (strcmp(fa->list[i].name, name) == 0)
            return &fa->list[i];
    return NULL;
}

const struct fleet_adapter *fleet_adapters_find(const struct fleet_adapters *fa, const char *name)
{
    struct fleet_adapter *a = named(fa, name);

    return a != NULL && !a->gone ? a : NULL;
}

int fleet_adapters_reserve(struct fleet_adapters *fa, const char *name, struct err *e)
{
    struct fleet_adapter *grown;

    if (named(fa, name) != NULL)
        return 0;
    if (fa->n >= FLEET_ADAPTERS_MAX)
        return err_set(e, ERR_CONFLICT, "",
                       "there are %d adapters, those that an upstream has yet to let go of "
                       "counted, which is as many as may be",
                       FLEET_ADAPTERS_MAX);
    grown = realloc(fa->list, (fa->n + 1) * sizeof *grown);
    if (grown == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for another adapter");
    fa->list = grown;
    return 0;
}

static struct fleet_adapter *add(struct fleet_adapters *fa, const char *name)
{
    struct fleet_adapter *a = named(fa, name);

    if (a != NULL)
        return a;
    a = &fa->list[fa->n++];
    memset(a, 0, sizeof *a);
    (void)snprintf(a->name, sizeof a->name, "%s", name);
    return a;
}

static void keep(struct fleet_adapter *a, char *path, char *load)
{
    free(a->path);
    free(a->load);
    a->path = path;
    a->load = load;
}

static const uint8_t nobody[FLEET_MAX] = {FLEET_HAS_NONE};

static bool is_pending(const struct fleet_adapter *a)
{
    return memchr(a->pending, true, sizeof a->pending) != NULL;
}

static void forget_gone(struct fleet_adapters *fa)
{
    for (size_t i = fa->n; i-- > 0;) {
        struct fleet_adapter *a = &fa->list[i];

        if (!a->gone || memcmp(a->has, nobody, sizeof nobody) != 0 || is_pending(a))
            continue;
        keep(a, NULL, NULL);
        *a = fa->list[--fa->n];
    }
}

/* One that is being asked for it may do that after what it said here. */
static void set_has(struct fleet_adapters *fa, struct fleet_adapter *a, const uint8_t *has)
{
    for (size_t i = 0; i < FLEET_MAX; i++)
        a->has[i] = a->pending[i] ? FLEET_HAS_OTHER : has[i];
    fa->changes++;
}

uint64_t fleet_adapters_put(struct fleet_adapters *fa, const struct fleet_adapter_source *from,
                            const uint8_t *has)
{
    struct fleet_adapter *a = add(fa, from->name);

    a->gone = false;
    a->timeout_us = from->timeout_us;
    keep(a, from->path, from->load);
    (void)snprintf(a->digest, sizeof a->digest, "%s", from->digest != NULL ? from->digest : "");
    set_has(fa, a, has);
    a->change = fa->changes;
    return ++a->revision;
}

void fleet_adapters_set_has(struct fleet_adapters *fa, const char *name, const uint8_t *has)
{
    struct fleet_adapter *a = named(fa, name);

    if (a == NULL)
        return;
    set_has(fa, a, has);
    a->change = fa->changes; /* what is asked for now may have come before it was lost */
}

static bool any(const uint8_t *has)
{
    return memcmp(has, nobody, sizeof nobody) != 0;
}

uint64_t fleet_adapters_remove(struct fleet_adapters *fa, const char *name, const uint8_t *left)
{
    const struct fleet_adapter *was = fleet_adapters_find(fa, name);
    uint64_t revision = was != NULL ? was->revision : 0;
    struct err full = {0};
    struct fleet_adapter *a;

    if (named(fa, name) == NULL && (!any(left) || fleet_adapters_reserve(fa, name, &full) != 0))
        return 0;
    a = add(fa, name);
    a->gone = true;
    a->revision = 0;
    set_has(fa, a, left);
    a->change = fa->changes;
    forget_gone(fa);
    return revision;
}

void fleet_adapters_set_incarnation(struct fleet_adapters *fa, size_t upstream,
                                    uint64_t incarnation, bool afresh)
{
    if (fa->incarnation[upstream] == incarnation)
        return;
    fa->incarnation[upstream] = incarnation;
    fa->changes++;
    for (size_t i = 0; i < fa->n; i++) {
        struct fleet_adapter *a = &fa->list[i];

        if (a->pending[upstream] || (!afresh && a->has[upstream] != FLEET_HAS_NONE))
            a->has[upstream] = FLEET_HAS_OTHER;
        else
            a->has[upstream] = FLEET_HAS_NONE;
    }
    forget_gone(fa);
}

bool fleet_adapters_is_missing(const struct fleet_adapter *a, size_t upstream)
{
    return !a->gone && a->has[upstream] != FLEET_HAS_THIS;
}

static bool can_ask(const struct fleet_adapter *a, size_t upstream)
{
    if (a->gone)
        return a->has[upstream] != FLEET_HAS_NONE;
    return a->load != NULL && a->has[upstream] != FLEET_HAS_THIS;
}

/* What it has refused comes behind what it has not. */
static struct fleet_adapter *next(const struct fleet_adapters *fa, size_t upstream)
{
    struct fleet_adapter *refused = NULL;

    for (size_t i = 0; i < fa->n; i++) {
        struct fleet_adapter *a = &fa->list[i];

        if (can_ask(a, upstream) && a->has[upstream] != FLEET_HAS_REFUSED)
            return a;
        if (can_ask(a, upstream))
            refused = a;
    }
    return refused;
}

bool fleet_adapters_has_task(const struct fleet_adapters *fa, size_t upstream)
{
    return next(fa, upstream) != NULL;
}

int fleet_adapters_begin_task(struct fleet_adapters *fa, size_t upstream,
                              struct fleet_adapter_task *out)
{
    struct fleet_adapter *a = next(fa, upstream);
    struct fleet_adapter_task task = {.incarnation = fa->incarnation[upstream]};

    if (a == NULL)
        return 0;
    if (!a->gone) {
        task.load = strdup(a->load);
        if (task.load == NULL)
            return -1;
    }
    memcpy(task.name, a->name, sizeof task.name);
    memcpy(task.digest, a->digest, sizeof task.digest);
    task.had = (enum fleet_has)a->has[upstream];
    task.may_have = task.had != FLEET_HAS_NONE;
    task.timeout_us = a->timeout_us;
    task.change = a->change;
    a->pending[upstream] = true;
    *out = task;
    return 1;
}

void fleet_adapters_end_task(struct fleet_adapters *fa, size_t upstream,
                             struct fleet_adapter_task *task, enum fleet_has has)
{
    struct fleet_adapter *a = named(fa, task->name); /* which is not forgotten meanwhile */

    assert(a != NULL && a->pending[upstream]);
    a->pending[upstream] = false;
    a->has[upstream] = (uint8_t)has;
    if (task->incarnation != fa->incarnation[upstream] || task->change != a->change)
        a->has[upstream] = FLEET_HAS_OTHER;
    fa->changes++;
    forget_gone(fa);
    free(task->load);
    task->load = NULL;
}

static bool somebody_has(const struct fleet_adapter *a)
{
    return memchr(a->has, FLEET_HAS_THIS, sizeof a->has) != NULL;
}

const struct fleet_adapter *fleet_adapters_blocking(const struct fleet_adapters *fa,
                                                    size_t upstream)
{
    for (size_t i = 0; i < fa->n; i++) {
        const struct fleet_adapter *a = &fa->list[i];
        enum fleet_has has = (enum fleet_has)a->has[upstream];
        bool may_come = a->load != NULL && has != FLEET_HAS_REFUSED;

        if (a->gone ? has != FLEET_HAS_NONE
                    : has != FLEET_HAS_THIS && (may_come || somebody_has(a)))
            return a;
    }
    return NULL;
}
