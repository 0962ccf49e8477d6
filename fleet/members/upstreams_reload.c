/* Changes of the table, above all by reading the configuration again: first plan all changes, so
 * that an error changes nothing, then apply them. */
#include "fleet/members/upstreams_priv.h"

#include "base/clock.h"
#include "base/log.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* What a change does for one entry of its list. */
struct entry_change {
    size_t index;              /* its index, old or new */
    bool is_new;               /* the engine is new, or had been removed */
    struct retained *retained; /* owned; NULL: the entry has not changed */
};

struct change {
    struct entry_change changes[FLEET_MAX]; /* [list->n] */
    bool *named;                            /* [FLEET_MAX]; the index has an entry, or is kept */
    size_t n;                               /* indexes used afterwards */
    const char *field;                      /* for errors */
};

bool upstreams_find_slot(const struct upstreams *u, const char *name, size_t *out)
{
    for (size_t i = 0; i < u->n; i++)
        if (u->slots[i].config != NULL && strcmp(u->slots[i].config->url, name) == 0) {
            *out = i;
            return true;
        }
    return false;
}

static bool is_upstream_idle(struct upstreams *u, size_t i)
{
    struct upstream_info info;

    fleet_info(u->fleet, i, &info);
    for (size_t queue = 0; queue < FLEET_QUEUES; queue++)
        if (info.n_outstanding[queue] > 0)
            return false;
    return true;
}

/* An index for a new engine. Those of removed engines are used last, so that code which has just
 * read such an index has most time to forget it. */
static bool find_free_index(struct upstreams *u, const struct change *r, bool held, size_t *out)
{
    if (r->n < FLEET_MAX) {
        *out = r->n;
        return true;
    }
    for (size_t i = 0; i < u->n && !held; i++)
        if (!r->named[i] && u->slots[i].removed && is_upstream_idle(u, i)) {
            *out = i;
            return true;
        }
    return false;
}

static int plan_entry(struct upstreams *u, struct change *r, struct entry_change *c,
                      const struct upstream_config *s, bool held, struct err *e)
{
    const struct slot *slot;

    if (c->index == FLEET_MAX) {
        if (!find_free_index(u, r, held, &c->index))
            return err_set(e, ERR_CONFLICT, r->field,
                           "no index is free for '%.200s': all %d are used, some by removed "
                           "upstreams that still serve requests, or that an update or another "
                           "operation includes; try again when it has ended",
                           s->url, FLEET_MAX);
        c->is_new = true;
    }
    r->named[c->index] = true;
    if (c->index >= r->n)
        r->n = c->index + 1;
    slot = &u->slots[c->index];
    c->is_new = c->is_new || slot->removed;
    if (!c->is_new && upstream_config_same(slot->config, s))
        return 0;
    c->retained = calloc(1, sizeof *c->retained);
    return c->retained != NULL ? 0
                               : err_set(e, ERR_NO_MEMORY, "", "no memory for '%.200s'", s->url);
}

/* Engines that keep their index are found first, so that no new engine gets it. */
static int plan_change(struct upstreams *u, struct change *r,
                       const struct upstream_config_list *list, bool held, struct err *e)
{
    r->n = u->n;
    for (size_t i = 0; i < list->n; i++) {
        r->changes[i].index = FLEET_MAX;
        if (upstreams_find_slot(u, list->items[i]->url, &r->changes[i].index))
            r->named[r->changes[i].index] = true;
    }
    for (size_t i = 0; i < list->n; i++)
        if (plan_entry(u, r, &r->changes[i], list->items[i], held, e) != 0)
            return -1;
    return 0;
}

static void log_change(const char *what, const struct upstream_config *s)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, what);
    log_str(&r, "upstream", s->url);
    log_str(&r, "dialect", upstream_kind_name(s->kind));
    log_str(&r, "origin", s->requested ? "request" : "configuration");
    log_event(&r);
}

static void set_slot(struct upstreams *u, size_t i, const struct upstream_config *config,
                     bool removed)
{
    mtx_lock(&u->lock);
    u->slots[i] = (struct slot){config, removed};
    if (i >= u->n)
        u->n = i + 1;
    mtx_unlock(&u->lock);
}

static void apply_entry(struct upstreams *u, struct entry_change *c,
                        struct upstream_config_list *list, size_t i)
{
    const struct upstream_config *config;

    if (c->retained == NULL)
        return;
    config = upstreams_retain(u, list, i, c->retained);
    c->retained = NULL;
    set_slot(u, c->index, config, false);
    if (c->is_new)
        fleet_add(u->fleet, c->index, config->url);
    fleet_set_pause_queue(u->fleet, c->index, upstream_caps(config->kind)->two_phase);
    log_change(c->is_new ? "upstream.added" : "upstream.changed", config);
}

static void remove_unnamed(struct upstreams *u, const struct change *r)
{
    for (size_t i = 0; i < u->n; i++) {
        if (r->named[i] || u->slots[i].removed)
            continue;
        set_slot(u, i, u->slots[i].config, true);
        fleet_remove(u->fleet, i);
        log_change("upstream.removed", u->slots[i].config);
    }
}

static size_t count_members(const struct upstreams *u)
{
    size_t n = 0;

    for (size_t i = 0; i < u->n; i++)
        n += !u->slots[i].removed;
    return n;
}

int upstreams_apply(struct upstreams *u, struct upstream_config_list *list, bool *kept,
                    const char *field, struct err *e)
{
    struct change *r = calloc(1, sizeof *r);
    bool held;
    int rc;

    if (r == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to change the upstreams");
    r->named = kept;
    r->field = field;
    mtx_lock(&u->lock);
    held = u->n_holds > 0 || u->batches != NULL;
    mtx_unlock(&u->lock);
    rc = plan_change(u, r, list, held, e);
    if (rc == 0) {
        for (size_t i = 0; i < list->n; i++)
            apply_entry(u, &r->changes[i], list, i);
        remove_unnamed(u, r);
        fleet_set_min_ready(u->fleet, upstreams_min_ready(&u->cfg, count_members(u)));
        prober_probe_now(u->prober);
    }
    for (size_t i = 0; i < list->n; i++)
        free(r->changes[i].retained);
    free(r);
    return rc;
}

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

/* Engines that were added by requests, unless the configuration names them now. Their keys are read
 * again too. */
static int add_requested(const struct upstreams *u, struct upstream_config_list *list,
                         struct err *e)
{
    size_t n_configured = list->n;

    for (size_t i = 0; i < u->n; i++) {
        const struct upstream_config *s = u->slots[i].config;
        bool configured = u->slots[i].removed || !s->requested;

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

static int reload(struct upstreams *u, struct err *e)
{
    const struct upstreams_cfg *cfg = &u->cfg;
    struct upstream_config_list list;
    bool kept[FLEET_MAX] = {false};
    int rc = -1;

    if (upstream_config_list_read(&list, cfg->entries, cfg->n_entries, cfg->file, e) != 0)
        return -1;
    if (add_requested(u, &list, e) == 0)
        rc = upstreams_apply(u, &list, kept, "--upstream-file", e);
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

void upstreams_hold_indexes(struct upstreams *u)
{
    mtx_lock(&u->lock);
    u->n_holds++;
    mtx_unlock(&u->lock);
}

void upstreams_release_indexes(struct upstreams *u)
{
    mtx_lock(&u->lock);
    assert(u->n_holds > 0);
    u->n_holds--;
    mtx_unlock(&u->lock);
}
