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
    const struct upstreams *u = arg;

    for (size_t i = 0; i < u->n; i++)
        if (is_path(u->slots[i].config->key_file, path) ||
            is_path(u->slots[i].config->ca_file, path))
            return true;
    return false;
}

static void keep_all(const struct upstreams *u, bool kept[FLEET_MAX])
{
    for (size_t i = 0; i < FLEET_MAX; i++)
        kept[i] = i < u->n && !u->slots[i].removed;
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
static int add_one(struct upstreams *u, struct upstream_config_list *list, size_t *out,
                   struct err *e)
{
    bool kept[FLEET_MAX];
    char url[UPSTREAM_CONFIG_LEN_MAX + 1];

    (void)snprintf(url, sizeof url, "%s", list->items[0]->url); /* the table takes the entry */
    if (upstreams_find_slot(u, url, out) && !u->slots[*out].removed)
        return check_same(u->slots[*out].config, list->items[0], e);
    list->items[0]->requested = true;
    keep_all(u, kept);
    if (upstreams_apply(u, list, kept, field, e) != 0)
        return -1;
    (void)upstreams_find_slot(u, url, out);
    return 0;
}

static int add(struct upstreams *u, const char *entry, size_t *out, struct err *e)
{
    struct upstream_config_list list = {.n = 0};
    int rc;

    if (upstream_config_check_files(entry, is_configured_file, u, field, e) != 0 ||
        upstream_config_list_add(&list, entry, field, e) != 0)
        return -1;
    rc = add_one(u, &list, out, e);
    upstream_config_list_fini(&list);
    return rc;
}

int upstreams_add(struct upstreams *u, const char *entry, size_t *out, struct err *e)
{
    int rc;

    if (upstreams_change_begin(u, e) != 0)
        return -1;
    rc = add(u, entry, out, e);
    upstreams_change_end(u);
    return rc;
}

int upstreams_remove(struct upstreams *u, const char *name, struct upstream_endpoint *at,
                     struct upstream_info *info, struct err *e)
{
    struct upstream_config_list none = {.n = 0};
    bool kept[FLEET_MAX];
    size_t i;
    int rc;

    if (upstreams_change_begin(u, e) != 0)
        return -1;
    rc = upstreams_find(u, name, &i, e);
    if (rc == 0) {
        keep_all(u, kept);
        kept[i] = false;
        rc = upstreams_apply(u, &none, kept, field, e);
    }
    if (rc == 0) {
        upstreams_get(u, i, at);
        fleet_info(u->fleet, i, info);
    }
    upstreams_change_end(u);
    return rc;
}
