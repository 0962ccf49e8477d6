/* The names there are, and what is known of each. */
#include "fleet/members/upstream_names.h"

#include "fleet/members/upstreams_priv.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct upstream_name *upstream_names_find(const struct upstreams *u, const char *url)
{
    for (size_t i = 0; u->names != NULL && i < u->names->n; i++)
        if (strcmp(u->names->items[i].config->url, url) == 0)
            return &u->names->items[i];
    return NULL;
}

int upstream_names_prepare(const struct upstreams *u, struct upstream_names **out,
                           const struct upstream_config_list *list, struct err *e)
{
    struct upstream_names *next = calloc(1, sizeof *next + list->n_names * sizeof next->items[0]);

    if (next == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the names of upstreams");
    next->n = list->n_names;
    for (size_t i = 0; i < next->n; i++) {
        const struct upstream_name *before = upstream_names_find(u, list->names[i]->url);

        if (before != NULL)
            next->items[i] = *before;
    }
    *out = next;
    return 0;
}

void upstream_names_replace(struct upstreams *u, struct upstream_names *next,
                            struct upstream_config_list *list)
{
    struct upstream_names *before = u->names;

    for (size_t i = 0; i < next->n; i++) {
        next->items[i].config = list->names[i];
        list->names[i] = NULL;
    }
    mtx_lock(&u->lock);
    u->names = next;
    mtx_unlock(&u->lock);
    for (size_t i = 0; before != NULL && i < before->n; i++) {
        if (upstream_names_find(u, before->items[i].config->url) == NULL)
            resolve_drop(before->items[i].lookup);
        upstream_config_free(before->items[i].config);
    }
    free(before);
    upstream_names_ask(u);
}

void upstream_names_free(struct upstreams *u)
{
    for (size_t i = 0; u->names != NULL && i < u->names->n; i++) {
        resolve_drop(u->names->items[i].lookup);
        upstream_config_free(u->names->items[i].config);
    }
    free(u->names);
    if (u->names_fd >= 0)
        (void)close(u->names_fd);
}

static void names_wake(struct upstreams *u)
{
    uint64_t one = 1;

    (void)!write(u->names_fd, &one, sizeof one);
}

void upstream_names_stop(struct upstreams *u)
{
    if (!u->names_run)
        return;
    atomic_store_explicit(&u->names_stop, true, memory_order_relaxed);
    names_wake(u);
    (void)pthread_join(u->names_thread, NULL);
    u->names_run = false;
}

void upstream_names_ask(struct upstreams *u)
{
    atomic_store_explicit(&u->names_ask, true, memory_order_relaxed);
    names_wake(u);
}

bool upstreams_name(struct upstreams *u, size_t i, struct upstream_name_info *out)
{
    mtx_auto held = mtx_hold(&u->lock);
    const struct upstream_name *n;

    if (u->names == NULL || i >= u->names->n)
        return false;
    n = &u->names->items[i];
    (void)snprintf(out->name, sizeof out->name, "dns+%s", n->config->url);
    out->n_addresses = n->answer.n;
    out->answered_us = n->answered_us;
    out->n_failures = n->n_failures;
    out->why = n->why;
    return true;
}
