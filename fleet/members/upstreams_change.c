/* Changes of the table, by reading the configuration again or by a request: first plan all changes,
 * so that an error changes nothing, then apply them. */
#include "fleet/members/upstreams_priv.h"

#include "base/clock.h"
#include "base/log.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a change does for one entry of its list. */
struct entry_change {
    struct upstream *upstream;   /* the engine that has it, old or new; a reference */
    struct upstream_list *grown; /* owned; for fleet_add; NULL: the engine is in the list */
    struct upstream *drop;       /* so that there is place; NULL: there is */
};

struct change {
    struct upstream_list *before; /* a reference */
    size_t n, n_grown;
    bool keeps; /* engines without an entry stay, but for `except` */
    const struct upstream *except;
    const char *field;             /* for errors */
    struct entry_change changes[]; /* [n] */
};

/* Does an entry name the engine, or its place? */
static bool upstreams_change_is_named(const struct change *r, const struct upstream *upstream)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->changes[i].upstream == upstream || r->changes[i].drop == upstream)
            return true;
    return false;
}

/* A removed engine to which nothing refers any more; of those, the one that joined first. */
static struct upstream *find_victim(const struct change *r)
{
    struct upstream *victim = NULL;

    for (size_t i = 0; i < r->before->n; i++) {
        struct upstream *it = r->before->items[i];

        if (upstream_is_removed(it) && upstream_is_idle(it) && !upstreams_change_is_named(r, it) &&
            (victim == NULL || it->join_order < victim->join_order))
            victim = it;
    }
    return victim;
}

static int plan_new(struct upstreams *u, struct change *r, struct entry_change *c,
                    const struct upstream_config *s, struct err *e)
{
    c->upstream = upstream_new(NULL); /* it has one when the table has the entry */
    c->grown = upstream_list_new(FLEET_MAX);
    if (c->upstream == NULL || c->grown == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for '%.200s'", s->url);
    if (r->before->n + r->n_grown < FLEET_MAX)
        r->n_grown++;
    else if ((c->drop = find_victim(r)) == NULL)
        return err_set(e, ERR_CONFLICT, r->field,
                       "no place is free for '%.200s': all %d are used, some by removed "
                       "upstreams that still serve requests, or that an update or another "
                       "operation includes; try again when it has ended",
                       s->url, FLEET_MAX);
    return u->joined != NULL ? u->joined(u->joined_arg, c->upstream, e) : 0;
}

/* Engines that are there are found first, so that none of them leaves for a new one. */
static int plan_change(struct upstreams *u, struct change *r,
                       const struct upstream_config_list *list, struct err *e)
{
    for (size_t i = 0; i < list->n; i++) {
        r->changes[i].upstream = upstreams_find_any(r->before, list->items[i]->url);
        if (r->changes[i].upstream != NULL)
            (void)upstream_ref(r->changes[i].upstream);
    }
    for (size_t i = 0; i < list->n; i++)
        if (r->changes[i].upstream == NULL &&
            plan_new(u, r, &r->changes[i], list->items[i], e) != 0)
            return -1;
    return 0;
}

static void upstreams_change_log_change(const char *what, const struct upstream_config *s)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, what);
    log_str(&r, "upstream", s->url);
    log_str(&r, "dialect", upstream_kind_name(s->kind));
    log_str(&r, "origin", upstream_config_origin(s));
    log_event(&r);
}

static void apply_entry(struct upstreams *u, struct entry_change *c,
                        struct upstream_config_list *list, size_t i)
{
    bool is_new = c->grown != NULL || upstream_is_removed(c->upstream);
    const struct upstream_config *config;

    if (!is_new && upstream_config_same(upstream_config(c->upstream), list->items[i]))
        return;
    config = upstreams_retain(u, list, i);
    atomic_store_explicit(&c->upstream->config, config, memory_order_release);
    if (is_new)
        fleet_add(u->fleet, c->upstream, c->grown, c->drop);
    c->grown = NULL;
    upstreams_change_log_change(is_new ? "upstream.added" : "upstream.changed", config);
}

static void remove_unnamed(struct upstreams *u, const struct change *r)
{
    for (size_t i = 0; i < r->before->n; i++) {
        struct upstream *it = r->before->items[i];

        if (upstream_is_removed(it) || upstreams_change_is_named(r, it) ||
            (r->keeps && it != r->except))
            continue;
        fleet_remove(u->fleet, it);
        upstreams_change_log_change("upstream.removed", upstream_config(it));
    }
}

static size_t count_members(struct upstreams *u)
{
    upstream_list_auto *all = upstreams_list(u);
    size_t n = 0;

    for (size_t i = 0; i < all->n; i++)
        n += !upstream_is_removed(all->items[i]);
    return n;
}

static void change_free(struct change *r)
{
    for (size_t i = 0; i < r->n; i++) {
        struct entry_change *c = &r->changes[i];

        upstream_list_unref(c->grown);
        upstream_unref(c->upstream);
    }
    upstream_list_unref(r->before);
    free(r);
}

/* Make the engines of the list the only ones. Entries that engines get are moved out of the list.
 * @keeps  those that have no entry stay as they are, but for `except`
 * @field  for errors
 * Errors: ERR_CONFLICT: no place is free; ERR_NO_MEMORY. After an error nothing has changed. */
static int apply_change(struct upstreams *u, struct upstream_config_list *list, bool keeps,
                        const struct upstream *except, const char *field, struct err *e)
{
    struct change *r = calloc(1, sizeof *r + list->n * sizeof r->changes[0]);
    int rc;

    if (r == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to change the upstreams");
    *r = (struct change){upstreams_list(u), list->n, 0, keeps, except, field};
    rc = plan_change(u, r, list, e);
    if (rc == 0) {
        for (size_t i = 0; i < list->n; i++)
            apply_entry(u, &r->changes[i], list, i);
        remove_unnamed(u, r);
        fleet_set_min_ready(u->fleet, upstreams_n_needed(u, count_members(u)));
        prober_probe_now(u->prober);
    }
    change_free(r);
    return rc;
}

/* ---- one change at a time ---- */

int upstreams_change_begin(struct upstreams *u, struct err *e)
{
    uint64_t deadline_us = clock_after_us(UPSTREAMS_CHANGE_WAIT_US);
    bool in_time = true, mine;

    mtx_lock(&u->lock);
    while (u->changing && in_time)
        in_time = cnd_wait(&u->changed, &u->lock, deadline_us);
    mine = !u->changing;
    u->changing = true;
    mtx_unlock(&u->lock);
    return mine ? 0
                : err_set(e, ERR_CONFLICT, "",
                          "another change of the upstreams has not ended for %d s: try again",
                          UPSTREAMS_CHANGE_WAIT_US / 1000000);
}

void upstreams_change_end(struct upstreams *u)
{
    mtx_lock(&u->lock);
    u->changing = false;
    cnd_signal(&u->changed);
    mtx_unlock(&u->lock);
}

/* ---- by the configuration ---- */

/* Engines that were added by requests, unless the configuration names them now. Their keys are read
 * again too. */
static int add_requested(const struct upstream_list *all, struct upstream_config_list *list,
                         struct err *e)
{
    size_t n_configured = list->n;

    for (size_t i = 0; i < all->n; i++) {
        const struct upstream_config *s = upstream_config(all->items[i]);
        bool configured = upstream_is_removed(all->items[i]) || !s->requested;

        for (size_t k = 0; k < n_configured && !configured; k++)
            configured = strcmp(list->items[k]->url, s->url) == 0;
        if (configured)
            continue;
        if (upstream_config_list_add(list, s->entry, "/v1/upstreams", e) != 0)
            return -1;
        list->items[list->n - 1]->requested = true;
    }
    return 0;
}

/* Engines at the addresses that are known of the names. */
static int add_named(const struct upstreams *u, struct upstream_config_list *list, struct err *e)
{
    for (size_t i = 0; i < list->n_names; i++) {
        const struct upstream_name *n = upstream_names_find(u, list->names[i]->url);

        for (size_t k = 0; n != NULL && k < n->answer.n; k++)
            if (upstream_config_list_add_address(list, list->names[i], n->answer.items[k], e) != 0)
                return -1;
    }
    return 0;
}

static int reload_list(struct upstreams *u, struct upstream_config_list *list, struct err *e)
{
    upstream_list_auto *all = upstreams_list(u);
    struct upstream_names *names;

    if (add_requested(all, list, e) != 0 || add_named(u, list, e) != 0 ||
        upstream_names_prepare(u, &names, list, e) != 0)
        return -1;
    if (apply_change(u, list, false, NULL, "--upstream-file", e) != 0) {
        free(names);
        return -1;
    }
    upstream_names_replace(u, names, list);
    return 0;
}

static int reload(struct upstreams *u, struct err *e)
{
    const struct upstreams_cfg *cfg = &u->cfg;
    struct upstream_config_list list;
    int rc;

    if (upstream_config_list_read(&list, cfg->entries, cfg->n_entries, cfg->file, e) != 0)
        return -1;
    rc = reload_list(u, &list, e);
    upstream_config_list_fini(&list);
    return rc;
}

int upstreams_reload(struct upstreams *u, struct err *e)
{
    int rc;

    if (upstreams_change_begin(u, e) != 0)
        return -1;
    rc = reload(u, e);
    upstreams_change_end(u);
    return rc;
}

/* ---- by a request ---- */

static const char request_field[] = "/upstream";

static bool upstreams_change_is_path(const char *a, const char *b)
{
    return a != NULL && strcmp(a, b) == 0;
}

/* Does an entry name this file? That of a removed engine counts: one often replaces another. */
static bool is_configured_file(void *arg, const char *path)
{
    const struct upstream_list *all = arg;

    for (size_t i = 0; i < all->n; i++)
        if (upstreams_change_is_path(upstream_config(all->items[i])->key_file, path) ||
            upstreams_change_is_path(upstream_config(all->items[i])->ca_file, path))
            return true;
    return false;
}

static int upstreams_change_check_same(const struct upstream_config *there,
                                       const struct upstream_config *asked, struct err *e)
{
    if (upstream_config_same_entry(there, asked))
        return 0;
    return err_set(e, ERR_CONFLICT, request_field,
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
        if (upstreams_change_check_same(upstream_config(there), list->items[0], e) != 0)
            return -1;
    } else {
        list->items[0]->requested = true;
        if (apply_change(u, list, true, NULL, request_field, e) != 0)
            return -1;
    }
    return upstreams_find(u, url, out, e);
}

static int add_by_request(struct upstreams *u, const char *entry, struct upstream **out,
                          struct err *e)
{
    upstream_list_auto *all = upstreams_list(u);
    struct upstream_config_list list = {.n = 0};
    int rc;

    if (upstream_config_check_files(entry, is_configured_file, all, request_field, e) != 0 ||
        upstream_config_list_add(&list, entry, request_field, e) != 0)
        return -1;
    rc = list.n > 0 ? add_one(u, all, &list, out, e)
                    : err_set(e, ERR_BAD_REQUEST, request_field,
                              "a name is for the configuration: give it to --upstream or "
                              "--upstream-file");
    upstream_config_list_fini(&list);
    return rc;
}

int upstreams_add(struct upstreams *u, const char *entry, struct upstream **out, struct err *e)
{
    int rc;

    if (upstreams_change_begin(u, e) != 0)
        return -1;
    rc = add_by_request(u, entry, out, e);
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
        rc = apply_change(u, &none, true, found, request_field, e);
    upstreams_change_end(u);
    if (rc == 0)
        *out = found;
    else
        upstream_unref(found);
    return rc;
}

/* ---- by the addresses of a name ---- */

/* Where the host begins in its URL. */
static const char *authority_of(const struct upstream_config *s)
{
    return strstr(s->url, "://") + strlen("://");
}

static bool same_scheme(const struct upstream_config *a, const struct upstream_config *b)
{
    return authority_of(a) - a->url == authority_of(b) - b->url;
}

/* An engine that was found by a name, and that no name has any more. */
static bool has_left(const struct upstreams *u, const struct upstream_name *n,
                     const struct resolve_all *found, const struct upstream *it)
{
    const struct upstream_config *s = upstream_config(it);

    if (upstream_is_removed(it) || s->name_url == NULL || !same_scheme(s, n->config) ||
        !resolve_has(&n->answer, authority_of(s)) || resolve_has(found, authority_of(s)))
        return false;
    for (size_t i = 0; i < u->names->n; i++)
        if (&u->names->items[i] != n && same_scheme(s, u->names->items[i].config) &&
            resolve_has(&u->names->items[i].answer, authority_of(s)))
            return false;
    return true;
}

/* @list  out: of addresses that are new; one with an engine keeps it as it is */
static int list_joining(const struct upstream_list *all, const struct upstream_name *n,
                        const struct resolve_all *found, struct upstream_config_list *list,
                        struct err *e)
{
    for (size_t i = 0; i < found->n; i++) {
        const struct upstream *there;

        if (resolve_has(&n->answer, found->items[i]))
            continue;
        if (upstream_config_list_add_address(list, n->config, found->items[i], e) != 0)
            return -1;
        there = upstreams_find_any(all, list->items[list->n - 1]->url);
        if (there != NULL && !upstream_is_removed(there))
            upstream_config_free(list->items[--list->n]);
    }
    return 0;
}

int upstreams_change_addresses(struct upstreams *u, const struct upstream_name *n,
                               const struct resolve_all *found, struct err *e)
{
    upstream_list_auto *all = upstreams_list(u);
    struct upstream_config_list list = {.n = 0};
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < all->n; i++)
        if (has_left(u, n, found, all->items[i]))
            rc = apply_change(u, &list, true, all->items[i], "", e);
    if (rc == 0)
        rc = list_joining(all, n, found, &list, e);
    if (rc == 0 && list.n > 0)
        rc = apply_change(u, &list, true, NULL, "", e);
    upstream_config_list_fini(&list);
    return rc;
}
