/* Engines of a fleet by their place in its list. */
#ifndef BATON_TESTS_UNIT_FLEET_UPSTREAM_AT_H
#define BATON_TESTS_UNIT_FLEET_UPSTREAM_AT_H

#include "fleet/members/fleet.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The engine of this index in the list. */
static inline struct upstream *engine_at(struct fleet *f, size_t i)
{
    struct upstream_list *all = fleet_list(f);
    struct upstream *u = i < all->n ? all->items[i] : NULL;

    upstream_list_unref(all);
    assert_non_null(u);
    return u;
}

static inline size_t index_of(struct fleet *f, const struct upstream *u)
{
    size_t i = 0;

    while (engine_at(f, i) != u)
        i++;
    return i;
}

static inline size_t n_engines(struct fleet *f)
{
    struct upstream_list *all = fleet_list(f);
    size_t n = all->n;

    upstream_list_unref(all);
    return n;
}

#endif
