/* The fleet's first version.
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

static struct version *decide_version_of(struct versions *v, const char *label)
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
        decide_version_of(v, u->report.label)->n++;
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
        for (size_t i = 0; i < f->list->n; i++) /* of which that was the last name */
            f->list->items[i]->have.weights.earlier_name = false;
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
