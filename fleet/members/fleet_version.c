/* The fleet's version: an update's, from when its engines have ended it, and its name. The first
 * one, before any update, is found by fleet_decide.c. */
#include "fleet/members/fleet_priv.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

uint64_t fleet_weights_epoch(struct fleet *f)
{
    uint64_t weights_epoch;

    mtx_lock(&f->lock);
    weights_epoch = f->weights_epoch;
    mtx_unlock(&f->lock);
    return weights_epoch;
}

bool fleet_may_report_version(struct fleet *f, const char *label, uint64_t weights_epoch)
{
    bool may;

    mtx_lock(&f->lock);
    may = f->updating || f->weights_epoch != weights_epoch || f->label[0] == '\0' ||
          strcmp(label, f->label) == 0;
    mtx_unlock(&f->lock);
    return may;
}

/* @label  what it reports from now on; "": not known */
static void set_updated_locked(const struct fleet *f, struct upstream *u, const char *label)
{
    have_version(&u->have, f->serial);
    (void)snprintf(u->report.label, sizeof u->report.label, "%s", label);
    u->report.not_ready[0] = '\0';
    u->report.serial = 0; /* its next report says which it has there */
    u->report.digest[0] = '\0';
    fleet_clear_failure_locked(u);
}

static void set_behind_locked(const struct fleet *f, struct upstream *u)
{
    if (upstream_is_removed(u))
        return; /* its requests finish on the version that they began with */
    u->have.weights.state = WEIGHTS_OTHER;
    u->have.weights.earlier_name = false; /* the fleet's name is of other weights now */
    FLEET_SET_WHY(u, REASON_OTHER_WEIGHTS, "it did not get version '%s'", f->label);
}

static void set_version_locked(struct fleet *f, const char *label)
{
    f->awaits_commit = false;
    f->decided = true;
    f->weights_epoch++;
    (void)snprintf(f->label, sizeof f->label, "%s", label);
    fleet_keep_name_locked(f);
}

/* ---- an update ---- */

/* All engines that have this part in the switch. */
static void set_all_behind_locked(struct fleet *f, enum switch_part part)
{
    for (size_t i = 0; i < f->list->n; i++)
        if (f->list->items[i]->switching == part)
            set_behind_locked(f, f->list->items[i]);
}

static void set_updating_locked(struct fleet *f, bool on)
{
    f->updating = on;
    f->renaming = false;
    f->weights_epoch++;
    for (size_t i = 0; i < f->list->n; i++)
        f->list->items[i]->switching = SWITCH_NO_PART;
    f->switching = f->switched = false;
}

void fleet_set_updating(struct fleet *f, bool on)
{
    fleet_change_begin(f);
    if (f->switched)
        set_all_behind_locked(f, SWITCH_AWAITED);
    set_updating_locked(f, on);
    fleet_change_end(f);
    fleet_grant_all(f);
}

void fleet_begin_naming(struct fleet *f)
{
    fleet_change_begin(f);
    set_updating_locked(f, true);
    f->renaming = true;
    fleet_change_end(f);
}

void fleet_begin_switch(struct fleet *f, struct upstream *const *parts, size_t n)
{
    fleet_change_begin(f);
    set_updating_locked(f, true);
    f->switching = f->renaming = true;
    for (size_t i = 0; i < n; i++)
        parts[i]->switching = SWITCH_AWAITED;
    fleet_change_end(f);
}

uint64_t fleet_switch_version(struct fleet *f, const char *label, uint64_t serial)
{
    fleet_change_begin(f);
    if (serial == 0)
        serial = f->serial + 1;
    assert(f->updating && serial >= f->serial);
    f->serial = serial;
    f->switched = true;
    set_version_locked(f, label);
    for (size_t i = 0; i < f->list->n; i++)
        f->list->items[i]->update_id[0] = '\0';
    set_all_behind_locked(f, SWITCH_NO_PART);
    fleet_change_end(f);
    return serial;
}

void fleet_confirm_version(struct fleet *f, struct upstream *u, bool named)
{
    fleet_change_begin(f);
    if (f->switched && u->switching == SWITCH_AWAITED) {
        set_updated_locked(f, u, named ? f->label : "");
        u->switching = SWITCH_CONFIRMED;
    }
    fleet_change_end(f);
    fleet_grant_all(f);
}

void fleet_expect_update(struct fleet *f, struct upstream *u, const char *id)
{

    mtx_lock(&f->lock);
    (void)snprintf(u->update_id, sizeof u->update_id, "%s", id);
    mtx_unlock(&f->lock);
}

uint64_t fleet_repair_version(struct fleet *f, const char *label, struct upstream *u, bool named)
{
    uint64_t serial;

    fleet_change_begin(f);
    serial = f->serial;
    if (strcmp(label, f->label) == 0)
        set_updated_locked(f, u, named ? f->label : "");
    f->weights_epoch++; /* a probe that was sent before may report the dirty marker */
    fleet_change_end(f);
    return serial;
}

bool fleet_is_among(const struct upstream *const *list, size_t n, const struct upstream *u)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == u)
            return true;
    return false;
}

static void set_named_locked(struct upstream *u)
{
    u->report.label[0] = '\0';
    u->label_known = false;
}

/* It is given the name later, unless this server repairs it with the version. */
static void set_unnamed_locked(const struct fleet *f, struct upstream *u, const struct err *why)
{
    const char *last = why->code != ERR_NONE ? "; last error: " : "";

    u->have.weights.state = WEIGHTS_OTHER;
    u->have.weights.earlier_name = !f->cfg.staged;
    if (f->cfg.staged)
        FLEET_SET_WHY(u, REASON_OTHER_WEIGHTS, "it did not get version '%s'", f->label);
    else
        FLEET_SET_WHY(
            u, REASON_OTHER_WEIGHTS,
            "it has not taken '%.60s', another name of the version '%.60s' that it serves, "
            "and is given it again%s%.200s",
            f->label, u->earlier_label, last, why->msg);
}

uint64_t fleet_set_label(struct fleet *f, const char *label, const struct upstream *const *named,
                         size_t n)
{
    char before[FLEET_LABEL_MAX + 1];
    const struct err none = {0};
    uint64_t serial;

    fleet_change_begin(f);
    serial = f->serial;
    memcpy(before, f->label, sizeof before);
    f->updating = f->renaming = false;
    set_version_locked(f, label);
    for (size_t i = 0; i < f->list->n; i++) {
        struct upstream *u = f->list->items[i];

        if (fleet_is_among(named, n, u)) {
            set_named_locked(u);
        } else if (u->have.weights.serial == serial && fleet_is_synced(f, u) &&
                   !upstream_is_removed(u)) {
            memcpy(u->earlier_label, before, sizeof before);
            set_unnamed_locked(f, u, &none);
        } else if (u->have.weights.earlier_name) {
            set_unnamed_locked(f, u, &none);
        }
    }
    fleet_change_end(f);
    return serial;
}

static void take_name_locked(struct fleet *f, struct upstream *u)
{
    u->have.weights.state = WEIGHTS_SERIAL;
    u->have.weights.earlier_name = false;
    f->weights_epoch++; /* a probe that was sent before may report the earlier name */
}

void fleet_check_name_locked(struct fleet *f, struct upstream *u,
                             const struct upstream_report *report)
{
    if (!u->have.weights.earlier_name || f->updating || report->is_stale ||
        report->label[0] == '\0' || fleet_has_earlier_name(u, report->label))
        return;
    if (strcmp(report->label, f->label) == 0)
        take_name_locked(f, u);
    else
        u->have.weights.earlier_name = false; /* another client has changed it */
}

bool fleet_may_name(struct fleet *f, struct upstream *u, const char *label)
{
    bool may;

    mtx_lock(&f->lock);
    may = fleet_awaits_name(u) &&
          (fleet_has_earlier_name(u, label) || strcmp(label, f->label) == 0);
    mtx_unlock(&f->lock);
    return may;
}

void fleet_named(struct fleet *f, struct upstream *u, const char *label, const struct err *why)
{
    fleet_change_begin(f);
    if (u->have.weights.earlier_name && strcmp(label, f->label) == 0) {
        if (why->code == ERR_NONE) {
            set_named_locked(u);
            take_name_locked(f, u);
        } else {
            set_unnamed_locked(f, u, why);
        }
    }
    fleet_change_end(f);
}
