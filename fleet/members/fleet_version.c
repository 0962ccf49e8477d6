/* The fleet's version.
 *
 * Before the first update it is the version that most engines serve, if at least --min-ready of
 * them do, and if the engines that have not answered yet could not change the majority. An empty
 * label counts as a version.
 *
 * This is decided once: an engine that is behind, or restarts with another version, gets no
 * requests. So a server that restarts in the middle of a training takes the fleet as it finds it.
 * The decision is dropped only when no engine can serve that version any more. A server that has a
 * version to hand over does not ask: what its engines loaded before is not that version. */
#include "fleet/members/fleet_priv.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { VERSIONS_LISTED = 4 };

/* Does it report the version that it can serve? */
static bool reports_version(const struct upstream *u)
{
    return u->label_known && fleet_is_alive(u) && !upstream_is_removed(u) &&
           u->have.weights.fault == FAULT_NONE && u->report.not_ready[0] == '\0';
}

/* May its first report still come? It has come, or failed, at the end of the first probe. */
static bool is_report_awaited(const struct upstream *u)
{
    return !u->label_known && !upstream_is_removed(u) && !u->key_rejected[FLEET_AUTH_PROBE] &&
           (fleet_is_alive(u) || u->n_failures == 0);
}

/* The versions that engines report, the most frequent first. */
struct versions {
    size_t n, n_reported, n_awaited;
    struct version {
        const char *label;
        size_t n;
    } items[FLEET_MAX];
};

static struct version *version_of(struct versions *v, const char *label)
{
    for (size_t i = 0; i < v->n; i++)
        if (strcmp(v->items[i].label, label) == 0)
            return &v->items[i];
    v->items[v->n] = (struct version){.label = label};
    return &v->items[v->n++];
}

static void sort_versions(struct versions *v)
{
    for (size_t i = 1; i < v->n; i++)
        for (size_t k = i; k > 0 && v->items[k].n > v->items[k - 1].n; k--) {
            struct version swap = v->items[k];

            v->items[k] = v->items[k - 1];
            v->items[k - 1] = swap;
        }
}

static void count_versions_locked(const struct fleet *f, struct versions *v)
{
    v->n = v->n_reported = v->n_awaited = 0;
    for (size_t i = 0; i < f->list->n; i++) {
        const struct upstream *u = f->list->items[i];

        v->n_awaited += is_report_awaited(u);
        if (!reports_version(u))
            continue;
        v->n_reported++;
        version_of(v, u->report.label)->n++;
    }
    sort_versions(v);
}

/* An engine that does not answer now may have the fleet's version. */
static bool may_be_served_locked(const struct fleet *f)
{
    for (size_t i = 0; i < f->list->n; i++) {
        const struct upstream *u = f->list->items[i];

        if (!upstream_is_removed(u) && u->have.weights.fault == FAULT_NONE &&
            (!fleet_is_alive(u) || !u->label_known || strcmp(u->report.label, f->label) == 0))
            return true;
    }
    return false;
}

static void choose_version_locked(struct fleet *f)
{
    struct versions v;
    size_t second;

    if (f->awaits_commit)
        return;
    count_versions_locked(f, &v);
    second = v.n > 1 ? v.items[1].n : 0;
    if (v.n == 0 || v.items[0].n < f->min_ready || v.items[0].n <= second + v.n_awaited)
        return;
    f->decided = true;
    (void)snprintf(f->label, sizeof f->label, "%s", v.items[0].label);
}

struct fleet_label_text fleet_label_text(const char *label)
{
    struct fleet_label_text n;

    if (label[0] == '\0')
        (void)snprintf(n.text, sizeof n.text, "(no label)");
    else
        (void)snprintf(n.text, sizeof n.text, "'%.*s'", FLEET_LABEL_TEXT_MAX, label);
    return n;
}

static void set_version_error_locked(const struct fleet *f, struct upstream *u)
{
    bool undecided = !f->decided;
    struct err why = {0};

    if (!fleet_is_alive(u) || u->have.weights.fault != FAULT_NONE) /* its label says nothing */
        return;
    if (undecided)
        (void)err_set(&why, ERR_UNSYNCED, "",
                      "it serves version %s, and the version of the fleet is not decided",
                      fleet_label_text(u->report.label).text);
    else
        (void)err_set(&why, ERR_UNSYNCED, "", "it serves version %s, the fleet %s",
                      fleet_label_text(u->report.label).text, fleet_label_text(f->label).text);
    fleet_set_why(u, REASON_OTHER_WEIGHTS, &why);
}

/* An engine that is not ready is checked once it is ready. A label from before a restart, or from
 * before a change of ours, does not count against an engine. */
static void check_version_locked(const struct fleet *f, struct upstream *u)
{
    bool is = fleet_is_synced(f, u);

    if (upstream_is_removed(u)) /* its requests finish on the version that they began with */
        return;
    if (u->report.not_ready[0] != '\0')
        is = true;
    else if (!f->decided)
        is = false;
    else if (u->label_known)
        is = strcmp(u->report.label, f->label) == 0;
    u->have.weights.state = is ? WEIGHTS_SERIAL : WEIGHTS_OTHER;
    if (!is && u->label_known)
        set_version_error_locked(f, u);
}

void fleet_await_commit(struct fleet *f, const char *why)
{
    mtx_lock(&f->lock);
    f->awaits_commit = true;
    (void)snprintf(f->awaits_why, sizeof f->awaits_why, "%s", why);
    mtx_unlock(&f->lock);
}

void fleet_decide_version_locked(struct fleet *f)
{
    if (f->serial > 0 || f->updating)
        return;
    if (f->decided && !may_be_served_locked(f)) {
        f->decided = false;
        f->label[0] = '\0';
    }
    if (!f->decided)
        choose_version_locked(f);
    for (size_t i = 0; i < f->list->n; i++)
        check_version_locked(f, f->list->items[i]);
}

bool fleet_awaits_probes_locked(const struct fleet *f)
{
    if (f->serial > 0 || f->decided)
        return false;
    for (size_t i = 0; i < f->list->n; i++)
        if (is_report_awaited(f->list->items[i]))
            return true;
    return false;
}

/* "'b' at 3, (no label) at 1" */
static void list_versions(const struct versions *v, char *out, size_t cap)
{
    size_t len = 0;

    out[0] = '\0';
    for (size_t i = 0; i < v->n && i < VERSIONS_LISTED && len < cap; i++)
        len += (size_t)snprintf(out + len, cap - len, "%s%s at %zu", i > 0 ? ", " : "",
                                fleet_label_text(v->items[i].label).text, v->items[i].n);
    if (v->n > VERSIONS_LISTED && len < cap)
        (void)snprintf(out + len, cap - len, " and %zu more", v->n - VERSIONS_LISTED);
}

bool fleet_version_undecided_locked(const struct fleet *f, struct err *e)
{
    char text[ERR_MSG_MAX];
    struct versions v;

    if (f->serial > 0 || f->decided)
        return false;
    count_versions_locked(f, &v);
    if (v.n_reported == 0)
        return false;
    list_versions(&v, text, sizeof text);
    if (f->awaits_commit && f->awaits_why[0] != '\0')
        (void)err_set(e, ERR_UNSYNCED, "", "%s", f->awaits_why);
    else if (f->awaits_commit)
        (void)err_set(e, ERR_UNSYNCED, "",
                      "the version of this server is not handed over yet; upstreams report: %.300s",
                      text);
    else if (v.n_awaited > 0)
        (void)err_set(
            e, ERR_UNSYNCED, "",
            "the version of the fleet is not decided yet: %zu upstreams have not answered; "
            "of the others: %.300s",
            v.n_awaited, text);
    else
        (void)err_set(
            e, ERR_UNSYNCED, "",
            "no version is served by most upstreams and by at least %zu (--min-ready): %.250s; "
            "push an update, or resync an upstream that has the right weights "
            "(/v1/upstreams/resync)",
            f->min_ready, text);
    return true;
}

bool fleet_version_undecided(struct fleet *f, struct err *e)
{
    bool undecided;

    mtx_lock(&f->lock);
    undecided = fleet_version_undecided_locked(f, e);
    mtx_unlock(&f->lock);
    return undecided;
}

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
    fleet_clear_failure_locked(u);
}

static void set_behind_locked(const struct fleet *f, struct upstream *u)
{
    if (upstream_is_removed(u))
        return; /* its requests finish on the version that they began with */
    u->have.weights.state = WEIGHTS_OTHER;
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

void fleet_begin_switch(struct fleet *f, struct upstream *const *parts, size_t n)
{
    fleet_change_begin(f);
    set_updating_locked(f, true);
    f->switching = true;
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
    if (u->switching == SWITCH_AWAITED) {
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
    f->updating = false;
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
    may = fleet_has_earlier_name(u, label) ||
          (u->have.weights.earlier_name && strcmp(label, f->label) == 0);
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
