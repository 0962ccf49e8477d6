/* Fences, which keep an engine out of rotation until an update or a resync ends them. */
#include "fleet/members/fleet_priv.h"

#include <stdio.h>
#include <string.h>

bool fleet_is_dirty_marker(const char *label)
{
    return strncmp(label, FLEET_DIRTY_MARKER, sizeof FLEET_DIRTY_MARKER - 1) == 0;
}

/* Results name the engine, for clients: "http://a answered 500". The state of an engine does not:
 * "it answered 500". */
static void set_fence_error(struct upstream *u, const struct err *why)
{
    const char *name = upstream_name(u);
    size_t len = strlen(name);
    const char *rest = why->msg + len;
    struct err bare = {0};

    if (strncmp(why->msg, name, len) != 0 || (*rest != ':' && *rest != ' ')) {
        fleet_set_why(u, REASON_BROKEN, why);
        return;
    }
    (void)err_set(&bare, why->code, why->field, "%s%s", *rest == ':' ? "" : "it",
                  *rest == ':' ? rest + strspn(rest, ": ") : rest);
    fleet_set_why(u, REASON_BROKEN, &bare);
}

void fleet_fence(struct fleet *f, struct upstream *u, const struct err *why)
{

    fleet_change_begin(f);
    have_fault(&u->have, FAULT_TORN);
    set_fence_error(u, why);
    fleet_change_end(f);
}

void fleet_fence_served(struct fleet *f, struct upstream *u, uint64_t incarnation, uint64_t serial,
                        const struct err *why)
{

    fleet_change_begin(f);
    if (u->incarnation == incarnation && u->have.weights.serial == serial &&
        fleet_is_synced(f, u)) {
        have_fault(&u->have, FAULT_WRONG);
        u->have.weights.state = WEIGHTS_OTHER; /* whatever it reports */
        set_fence_error(u, why);
    }
    fleet_change_end(f);
}

/* Of removed ones, which are not asked, it counts only if they may sleep: they may be added again.
 */
static bool counts_as_missed(const struct upstream *u, bool asleep)
{
    if (!upstream_is_removed(u))
        return true;
    return !asleep && have_may_sleep(&u->have);
}

void fleet_want_sleep(struct fleet *f, bool weights, bool kv)
{
    fleet_change_begin(f);
    f->asleep.weights = weights;
    f->asleep.kv = kv;
    fleet_change_end(f);
}

void fleet_slept(struct fleet *f, bool asleep, const struct api_sleep *of,
                 const struct upstream *const *asked, size_t n)
{
    fleet_change_begin(f);
    if (of->weights)
        f->woken.weights = !asleep;
    if (of->kv)
        f->woken.kv = !asleep;
    for (size_t i = 0; i < f->list->n; i++) {
        struct upstream *u = f->list->items[i];

        if (!fleet_is_among(asked, n, u) && fleet_hides_sleep(u) && counts_as_missed(u, asleep))
            have_missed_sleep(&u->have, asleep, of);
        else if (!asleep && !upstream_is_removed(u)) /* or failed to wake */
            have_missed_wake(&u->have, of);
        u->have.sleep.missed = !asleep && have_may_sleep(&u->have);
    }
    fleet_change_end(f);
}

/* What was found wrong was in the memory of a process that is gone. A failed update is another
 * matter: it changes the version. */
static bool has_shed_fault(const struct upstream *u)
{
    return u->have.weights.fault == FAULT_WRONG && u->have.weights.fault_is_older;
}

static int may_resync_locked(const struct fleet *f, struct upstream *u, struct err *e)
{
    const char *name = upstream_name(u);

    if (upstream_is_removed(u))
        return err_set(e, ERR_NOT_FOUND, "", "%.200s is no longer configured", name);
    if (fleet_check_alias_locked(f, u, u->report.identity, e) != 0)
        return -1;
    if (have_is_broken(&u->have) && !has_shed_fault(u))
        return err_set(e, ERR_NEEDS_UPDATE, "",
                       "%.200s is fenced, since a change of it failed or it was found faulty: %s; "
                       "restart it if that does not help",
                       name, fleet_remedy(f));
    if (f->updating)
        return err_set(
            e, ERR_CONFLICT, "",
            "an update is under way and may change the version: try again when it has ended");
    return 0;
}

int fleet_may_resync(struct fleet *f, struct upstream *u, struct err *e)
{
    int rc;

    mtx_lock(&f->lock);
    rc = may_resync_locked(f, u, e);
    mtx_unlock(&f->lock);
    return rc;
}

static int check_resync_locked(const struct fleet *f, struct upstream *u,
                               const struct upstream_report *report, struct err *e)
{
    bool decided = f->serial > 0 || f->decided;

    if (may_resync_locked(f, u, e) != 0 || fleet_check_alias_locked(f, u, report->identity, e) != 0)
        return -1;
    if (report->not_ready[0] != '\0')
        return err_set(e, ERR_CONFLICT, "", "%.200s is not ready: %s", upstream_name(u),
                       report->not_ready);
    if (!fleet_is_alive(u))
        return err_set(e, ERR_CONFLICT, "",
                       "%.200s is down, and may be another process when it is up again: resync it "
                       "when its probes are answered",
                       upstream_name(u));
    if (fleet_is_dirty_marker(report->label))
        return err_set(e, ERR_NEEDS_UPDATE, "",
                       "an update of %.200s never ended (weight_version '%s'): %s",
                       upstream_name(u), report->label, fleet_remedy(f));
    if (!decided || (f->serial > 0 && report->label[0] == '\0') ||
        strcmp(report->label, f->label) == 0)
        return 0;
    return err_set(e, ERR_NEEDS_UPDATE, "", "%.200s serves version %s, and the fleet %s: %s",
                   upstream_name(u), fleet_label_text(report->label).text,
                   fleet_label_text(f->label).text,
                   f->cfg.staged ? fleet_remedy(f) : "push an update");
}

/* A probe, or an answer, may have told something else since it was asked. One that has told its
 * version before, and does not now, was not asked well. */
static bool has_changed_locked(const struct upstream *u, const struct upstream_info *before,
                               const struct upstream_report *report)
{
    bool same = report->process[0] != '\0' && strcmp(u->report.process, report->process) == 0;

    return (u->incarnation != before->incarnation && !same) ||
           (u->report.label[0] != '\0' && report->label[0] == '\0') ||
           (u->probe_ok_us != before->probe_ok_us && u->label_known &&
            strcmp(u->report.label, report->label) != 0);
}

int fleet_resync(struct fleet *f, struct upstream *u, const struct upstream_info *before,
                 const struct upstream_report *report, struct err *e)
{
    int rc;

    fleet_change_begin(f);
    rc = check_resync_locked(f, u, report, e);
    if (rc == 0 && has_changed_locked(u, before, report))
        rc = err_set(
            e, ERR_CONFLICT, "",
            "%.200s was restarted, or its version has changed, or could not be read, while "
            "it was asked: resync it again",
            upstream_name(u));
    if (rc == 0) {
        if (f->serial == 0 && !f->decided) {
            f->decided = true;
            (void)snprintf(f->label, sizeof f->label, "%s", report->label);
        }
        fleet_store_report_locked(u, report);
        have_version(&u->have, f->serial);
        u->key_rejected[FLEET_AUTH_REQUEST] = false;
        memcpy(u->update_id, report->update_id, sizeof u->update_id);
        f->weights_epoch++; /* probes that were sent before are outdated */
    }
    fleet_change_end(f);
    return rc;
}
