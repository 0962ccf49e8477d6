/* One process under two URLs, or this server as its own engine. Two updates of one process would
 * disturb each other, and a server that sends requests to itself does so without end. */
#include "fleet/members/fleet_priv.h"

#include <stdio.h>
#include <string.h>

static bool has_identity(const struct upstream *u, const char *identity)
{
    return !upstream_is_removed(u) && strcmp(u->report.identity, identity) == 0;
}

int fleet_check_alias_locked(const struct fleet *f, struct upstream *u, const char *identity,
                             struct err *e)
{
    if (identity[0] == '\0')
        return 0;
    if (f->cfg.boot_id != NULL && strcmp(identity, f->cfg.boot_id) == 0)
        return err_set(e, ERR_PRECONDITION, "", "it is this server itself: remove it");
    for (size_t i = 0; i < f->list->n; i++)
        if (f->list->items[i]->join_order < u->join_order &&
            has_identity(f->list->items[i], identity))
            return err_set(e, ERR_CONFLICT, "",
                           "it is the same process as %.200s: remove one of the two",
                           upstream_name(f->list->items[i]));
    return 0;
}

/* Stores the identity: a resync is checked by it. */
static bool reject_locked(struct fleet *f, struct upstream *u, const char *identity)
{
    struct err why = {0};

    if (fleet_check_alias_locked(f, u, identity, &why) == 0)
        return false;
    (void)snprintf(u->report.identity, sizeof u->report.identity, "%s", identity);
    fleet_probe_failed_locked(u, true, &why);
    return true;
}

bool fleet_reject_alias_locked(struct fleet *f, struct upstream *u, const char *identity)
{
    if (identity[0] == '\0' || upstream_is_removed(u))
        return false;
    if (reject_locked(f, u, identity))
        return true;
    (void)snprintf(u->report.identity, FLEET_LABEL_MAX + 1, "%s", identity);
    for (size_t i = 0; i < f->list->n; i++) /* one that joined later may have answered first */
        if (f->list->items[i] != u && has_identity(f->list->items[i], identity) &&
            fleet_is_alive(f->list->items[i]))
            (void)reject_locked(f, f->list->items[i], identity);
    return false;
}

bool fleet_reject_alias(struct fleet *f, struct upstream *u, const char *identity)
{
    bool rejected;

    fleet_change_begin(f);
    rejected = fleet_reject_alias_locked(f, u, identity);
    fleet_change_end(f);
    return rejected;
}
