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
    size_t len = u->name != NULL ? strlen(u->name) : 0;
    const char *rest = why->msg + len;
    struct err bare = {0};

    if (len == 0 || strncmp(why->msg, u->name, len) != 0 || (*rest != ':' && *rest != ' ')) {
        fleet_set_why(u, WHY_FENCED, why);
        return;
    }
    (void)err_set(&bare, why->code, why->field, "%s%s", *rest == ':' ? "" : "it",
                  *rest == ':' ? rest + strspn(rest, ": ") : rest);
    fleet_set_why(u, WHY_FENCED, &bare);
}

void fleet_fence(struct fleet *f, struct upstream *u, const struct err *why)
{

    fleet_change_begin(f);
    fleet_apply_event(f, u, UPSTREAM_ON_UPDATE_FAILED);
    u->found_wrong = false;
    u->fence_incarnation = u->incarnation;
    set_fence_error(u, why);
    fleet_change_end(f);
}

void fleet_fence_served(struct fleet *f, struct upstream *u, uint64_t incarnation, uint64_t serial,
                        const struct err *why)
{

    fleet_change_begin(f);
    if (u->incarnation == incarnation && u->serial == serial && fleet_is_synced(u)) {
        fleet_apply_event(f, u, UPSTREAM_ON_UPDATE_FAILED);
        fleet_apply_event(f, u, UPSTREAM_ON_UNSYNCED); /* whatever it reports */
        u->found_wrong = true;
        u->fence_incarnation = u->incarnation;
        set_fence_error(u, why);
    }
    fleet_change_end(f);
}

/* One that does not name its process: nothing tells whether it was restarted since. */
static void set_asleep_error(const struct fleet *f, struct upstream *u)
{
    FLEET_SET_WHY(u, WHY_FENCED,
                  "it was put to sleep, and was not here when the fleet was woken: restart it, "
                  "then %s",
                  fleet_remedy(f));
}

static void set_missed_error(const struct fleet *f, struct upstream *u)
{
    if (u->asleep && fleet_is_out(u, OUT_WAKE_MISSED) && u->report.process[0] == '\0') {
        set_asleep_error(f, u);
        return;
    }
    FLEET_SET_WHY(u, WHY_FENCED,
                  "it was not reachable when the fleet was %s: once it answers again, %s",
                  fleet_is_out(u, OUT_SLEEP_MISSED) ? "put to sleep" : "woken",
                  f->cfg.staged ? fleet_remedy(f)
                                : "resync it (/v1/upstreams/resync) or push a whole update");
}

void fleet_fence_missed(struct fleet *f, struct upstream *u, enum fleet_fence what)
{
    bool fences;

    fleet_change_begin(f);
    fences = !fleet_is_out(u, OUT_FENCES);
    upstream_state_apply(&u->out, what == FLEET_FENCE_SLEEP ? UPSTREAM_ON_SLEEP_MISSED
                                                            : UPSTREAM_ON_WAKE_MISSED);
    if (fences) {
        u->fence_incarnation = u->incarnation;
        set_missed_error(f, u);
    }
    fleet_change_end(f);
}

void fleet_note_sleep(struct fleet *f, struct upstream *u, bool asleep)
{

    mtx_lock(&f->lock);
    fleet_apply_event(f, u, asleep ? UPSTREAM_ON_SLEEP : UPSTREAM_ON_WAKE);
    u->asleep = asleep;
    if (fleet_is_out(u, OUT_SLEEP_MISSED | OUT_WAKE_MISSED))
        u->fence_incarnation = u->incarnation;
    if (fleet_is_out(u, OUT_SLEEP_MISSED)) /* it is awake now */
        set_missed_error(f, u);
    mtx_unlock(&f->lock);
}

/* What was found wrong was in the memory of a process that is gone. A failed update is another
 * matter: it changes the version. */
static bool has_shed_fault(const struct upstream *u)
{
    return u->found_wrong && u->incarnation != u->fence_incarnation;
}

static int may_resync_locked(const struct fleet *f, struct upstream *u, struct err *e)
{
    struct fleet_name name = fleet_name(u);

    if (fleet_is_out(u, OUT_REMOVED))
        return err_set(e, ERR_NOT_FOUND, "", "%s is no longer configured", name.text);
    if (fleet_check_alias_locked(f, u, u->report.identity, e) != 0)
        return -1;
    if (fleet_is_out(u, OUT_UPDATE_FAILED) && !has_shed_fault(u))
        return err_set(e, ERR_NEEDS_UPDATE, "",
                       "%s is fenced, since a change of it failed or it was found faulty: %s; "
                       "restart it if that does not help",
                       name.text, fleet_remedy(f));
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
        return err_set(e, ERR_CONFLICT, "", "%s is not ready: %s", fleet_name(u).text,
                       report->not_ready);
    if (fleet_is_dirty_marker(report->label))
        return err_set(e, ERR_NEEDS_UPDATE, "",
                       "an update of %s never ended (weight_version '%s'): %s", fleet_name(u).text,
                       report->label, fleet_remedy(f));
    if (!decided || (f->serial > 0 && report->label[0] == '\0') ||
        strcmp(report->label, f->label) == 0)
        return 0;
    return err_set(e, ERR_NEEDS_UPDATE, "", "%s serves version %s, and the fleet %s: %s",
                   fleet_name(u).text, fleet_label_text(report->label).text,
                   fleet_label_text(f->label).text,
                   f->cfg.staged ? fleet_remedy(f) : "push an update");
}

int fleet_resync(struct fleet *f, struct upstream *u, const struct upstream_report *report,
                 struct err *e)
{
    int rc;

    fleet_change_begin(f);
    rc = check_resync_locked(f, u, report, e);
    if (rc == 0) {
        if (f->serial == 0 && !f->decided) {
            f->decided = true;
            (void)snprintf(f->label, sizeof f->label, "%s", report->label);
        }
        fleet_store_report_locked(f, u, report);
        if (has_shed_fault(u))
            fleet_apply_event(f, u, UPSTREAM_ON_UPDATED);
        u->found_wrong = false;
        fleet_apply_event(f, u, UPSTREAM_ON_RESYNCED);
        u->serial = f->serial;
        memcpy(u->update_id, report->update_id, sizeof u->update_id);
        f->weights_epoch++; /* probes that were sent before are outdated */
    }
    fleet_change_end(f);
    return rc;
}
