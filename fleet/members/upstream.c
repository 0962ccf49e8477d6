/* References to engines, and lists of them. */
#include "fleet/members/upstream.h"

#include "fleet/members/fleet_priv.h"
#include "fleet/members/upstream_config.h"

#include <stdlib.h>

struct upstream *upstream_new(const struct upstream_config *config)
{
    static atomic_uint_fast64_t n_made; /* relaxed: only numbers */
    struct upstream *u = calloc(1, sizeof *u);

    if (u == NULL)
        return NULL;
    atomic_init(&u->n_refs, 1);
    atomic_init(&u->n_strong, 1);
    atomic_init(&u->n_lost, 0);
    atomic_init(&u->config, config);
    atomic_init(&u->removed, false);
    u->number = atomic_fetch_add_explicit(&n_made, 1, memory_order_relaxed) + 1;
    u->out = REASON_BIT(REASON_NEVER_REACHED);
    have_init(&u->have);
    return u;
}

struct upstream *upstream_ref(struct upstream *u)
{
    (void)atomic_fetch_add_explicit(&u->n_refs, 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&u->n_strong, 1, memory_order_relaxed);
    return u;
}

void upstream_unref(struct upstream *u)
{
    if (u == NULL)
        return;
    upstream_loosen(u);
    upstream_unref_loose(u);
}

void upstream_loosen(struct upstream *u)
{
    (void)atomic_fetch_sub_explicit(&u->n_strong, 1, memory_order_release);
}

void upstream_unref_loose(struct upstream *u)
{
    if (atomic_fetch_sub_explicit(&u->n_refs, 1, memory_order_acq_rel) > 1)
        return;
    if (u->control != NULL)
        u->control_free(u->control);
    free(u);
}

bool upstream_is_idle(const struct upstream *u)
{
    return atomic_load_explicit(&u->n_strong, memory_order_acquire) == 0;
}

uint64_t upstream_number(const struct upstream *u)
{
    return u->number;
}

const struct upstream_config *upstream_config(const struct upstream *u)
{
    return atomic_load_explicit(&u->config, memory_order_acquire);
}

const char *upstream_name(const struct upstream *u)
{
    return upstream_config(u)->url;
}

enum upstream_kind upstream_kind(const struct upstream *u)
{
    return upstream_config(u)->kind;
}

const struct upstream_caps *upstream_caps_of(const struct upstream *u)
{
    return upstream_caps(upstream_kind(u));
}

const struct http_target *upstream_target(const struct upstream *u)
{
    return &upstream_config(u)->target;
}

bool upstream_is_removed(const struct upstream *u)
{
    return atomic_load_explicit(&u->removed, memory_order_acquire);
}

struct engine_have upstream_have(const struct upstream *u)
{
    struct engine_have have;

    mtx_lock(&u->fleet->lock);
    have = u->have;
    mtx_unlock(&u->fleet->lock);
    return have;
}

bool upstream_may_be_paused(const struct upstream *u)
{
    struct engine_have have = upstream_have(u);

    return have_may_be_paused(&have);
}

void upstream_note_closed(struct upstream *u)
{
    mtx_lock(&u->fleet->lock);
    if (!upstream_start_may_come(u))
        u->have.own = OWN_CLOSED;
    mtx_unlock(&u->fleet->lock);
}

void upstream_set_control(struct upstream *u, struct fleet_engine *control,
                          void (*control_free)(struct fleet_engine *control))
{
    u->control = control;
    u->control_free = control_free;
}

struct fleet_engine *upstream_control(const struct upstream *u)
{
    return u->control;
}

struct upstream_list *upstream_list_new(size_t n)
{
    struct upstream_list *list = calloc(1, sizeof *list + n * sizeof list->items[0]);

    if (list != NULL)
        atomic_init(&list->n_refs, 1);
    return list;
}

void upstream_list_add(struct upstream_list *list, struct upstream *u)
{
    upstream_loosen(upstream_ref(u));
    list->items[list->n++] = u;
}

struct upstream_list *upstream_list_ref(struct upstream_list *list)
{
    (void)atomic_fetch_add_explicit(&list->n_refs, 1, memory_order_relaxed);
    return list;
}

void upstream_list_unref(struct upstream_list *list)
{
    if (list == NULL || atomic_fetch_sub_explicit(&list->n_refs, 1, memory_order_acq_rel) > 1)
        return;
    for (size_t i = 0; i < list->n; i++)
        upstream_unref_loose(list->items[i]);
    free(list);
}

/* [splitmix64] */
uint64_t fleet_hash_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
    x = (x ^ x >> 27) * 0x94d049bb133111ebU;
    return x ^ x >> 31;
}
