/* Engines that join and leave by a request: the same change of the table as of a reload, of which
 * one entry is not kept. */
#include "fleet/members/upstreams_priv.h"

#include <stdio.h>
#include <string.h>

static const char field[] = "/upstream";

static bool is_path(const char *a, const char *b)
{
    return a != NULL && strcmp(a, b) == 0;
}

/* Does an entry name this file? That of a removed engine counts: one often replaces another. */
static bool is_configured_file(void *arg, const char *path)
{
    const struct upstream_list *all = arg;

    for (size_t i = 0; i < all->n; i++)
        if (is_path(upstream_config(all->items[i])->key_file, path) ||
            is_path(upstream_config(all->items[i])->ca_file, path))
            return true;
    return false;
}

static int check_same(const struct upstream_config *there, const struct upstream_config *asked,
                      struct err *e)
{
    if (upstream_config_same_entry(there, asked))
        return 0;
    return err_set(e, ERR_CONFLICT, field,
                   "'%.200s' is an upstream already, with another description (%s, %s key, %s "
                   "ca-file): remove it first, or add it as it is",
                   there->url, upstream_kind_name(there->kind),
                   there->key_file != NULL ? "with a" : "without a",
                   there->ca_file != NULL ? "with a" : "without a");
}

/* @list  of one entry */
static int add_one(struct upstreams *u, const struct upstream_list *all,
                   struct upstream_config_list *list, struct upstream **out, struct err *e)
{
    const struct upstream *there = upstreams_find_any(all, list->items[0]->url);
    char url[UPSTREAM_CONFIG_LEN_MAX + 1];

    (void)snprintf(url, sizeof url, "%s", list->items[0]->url); /* the table takes the entry */
    if (there != NULL && !upstream_is_removed(there)) {
        if (check_same(upstream_config(there), list->items[0], e) != 0)
            return -1;
    } else {
        list->items[0]->requested = true;
        if (upstreams_apply(u, list, true, NULL, field, e) != 0)
            return -1;
    }
    return upstreams_find(u, url, out, e);
}

static int add(struct upstreams *u, const char *entry, struct upstream **out, struct err *e)
{
    upstream_list_auto *all = upstreams_list(u);
    struct upstream_config_list list = {.n = 0};
    int rc = -1;

    if (upstream_config_check_files(entry, is_configured_file, all, field, e) == 0 &&
        upstream_config_list_add(&list, entry, field, e) == 0) {
        rc = add_one(u, all, &list, out, e);
        upstream_config_list_fini(&list);
    }
    return rc;
}

int upstreams_add(struct upstreams *u, const char *entry, struct upstream **out, struct err *e)
{
    int rc;

    if (upstreams_change_begin(u, e) != 0)
        return -1;
    rc = add(u, entry, out, e);
    upstreams_change_end(u);
    return rc;
}

int upstreams_remove(struct upstreams *u, const char *name, struct upstream **out, struct err *e)
{
    struct upstream_config_list none = {.n = 0};
    struct upstream *found = NULL;
    int rc;

    if (upstreams_change_begin(u, e) != 0)
        return -1;
    rc = upstreams_find(u, name, &found, e);
    if (rc == 0)
        rc = upstreams_apply(u, &none, true, found, field, e);
    upstreams_change_end(u);
    if (rc == 0)
        *out = found;
    else
        upstream_unref(found);
    return rc;
}
