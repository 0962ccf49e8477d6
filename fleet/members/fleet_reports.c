/* What probes and requests report of an engine, and what follows for its state. */
#include "fleet/members/fleet_priv.h"

#include "base/clock.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* May the process have been replaced since the last report? An engine that does not report its
 * process may have been, if it was not alive in between. */
static bool may_be_restarted(const struct upstream *u, const struct upstream_report *report)
{
    if (report->process[0] == '\0' || u->report.process[0] == '\0')
        return u->probe_ok_us != 0 && !fleet_is_alive(u);
    return strcmp(report->process, u->report.process) != 0;
}

static void set_restarted_error(const struct fleet *f, struct err *out)
{
    err_clear(out);
    if (f->serial == 0)
        (void)err_set(out, ERR_UNSYNCED, "", "it was restarted: its version is not known yet");
    else
        (void)err_set(out, ERR_UNSYNCED, "",
                      "it was restarted: its weights are not known to be version '%s'; %s",
                      f->label, fleet_remedy_or_resync(f));
}

/* With --stage a version that is newer than the fleet's may be about to be handed over. */
static void set_other_version_error(const struct fleet *f, const char *label, struct err *out)
{
    if (f->cfg.staged)
        (void)err_set(out, ERR_UNSYNCED, "", "it serves version '%s', not that of this server: %s",
                      label, fleet_remedy(f));
    else
        (void)err_set(out, ERR_UNSYNCED, "", "it serves version '%s', not '%s'", label, f->label);
}

/* Before the first update fleet_decide_version_locked does this, except while that update runs. The
 * label of a fenced engine says nothing: it may be that of a repair under way. */
static void check_sync_locked(const struct fleet *f, struct upstream *u,
                              const struct upstream_report *report)
{
    struct err why = {0};

    if (f->serial == 0 && !f->updating)
        return;
    if (may_be_restarted(u, report))
        set_restarted_error(f, &why);
    else if (have_is_broken(&u->have))
        return;
    else if (!f->renaming && f->decided && !report->is_stale && report->label[0] != '\0' &&
             u->have.weights.serial == f->serial && strcmp(report->label, f->label) != 0 &&
             !fleet_has_earlier_name(u, report->label))
        set_other_version_error(f, report->label, &why);
    else if (!f->renaming && !report->is_stale && report->update_id[0] != '\0' &&
             u->update_id[0] != '\0' && strcmp(report->update_id, u->update_id) != 0)
        (void)err_set(&why, ERR_UNSYNCED, "",
                      "its weights are those of an update by another client (%s): %s",
                      report->update_id, fleet_remedy(f));
    if (why.code == ERR_NONE)
        return;
    u->have.weights.state = WEIGHTS_OTHER;
    u->have.weights.earlier_name = false;
    fleet_set_why(u, REASON_OTHER_WEIGHTS, &why);
}

void fleet_reset_locked(struct upstream *u, bool certain)
{
    u->incarnation++;
    have_reset(&u->have, certain);
    if (certain)
        u->own_start_lost_us = 0;
    fleet_reset_needs_locked(u, certain);
}

void fleet_doubt(struct fleet *f, struct upstream *u, enum api_op op, const struct api_args *args,
                 struct have_before *before)
{
    mtx_lock(&f->lock);
    *before = (struct have_before){.incarnation = u->incarnation};
    fleet_adapter_before_locked(f, u, op, args, before);
    have_doubt(&u->have, op, args, before);
    fleet_derive_locked(f, u);
    mtx_unlock(&f->lock);
}

/* Only these keep it out of rotation by themselves. */
static bool answer_changes_rotation(enum api_op op)
{
    return op == API_PAUSE || op == API_RESUME || op == API_SLEEP || op == API_WAKE ||
           op == API_LOAD_ADAPTER || op == API_UNLOAD_ADAPTER;
}

static void set_released(struct upstream *u)
{
    u->report.held = NULL;
    u->report.held_by_fence = false;
}

/* With other files it is as if it had not answered. */
bool fleet_answer(struct fleet *f, struct upstream *u, enum api_op op, const struct api_args *args,
                  const struct have_before *before, enum have_answer answer, const char *digest)
{
    bool same, is_process;

    mtx_lock(&f->lock);
    is_process = before->incarnation == u->incarnation;
    same = fleet_adapter_is_same_locked(f, op, args, digest);
    have_answer(&u->have, op, args, before, same ? answer : HAVE_LOST, is_process);
    if ((op == API_RESUME || op == API_WAKE) && answer == HAVE_GOOD && is_process)
        set_released(u);
    if (op == API_START_UPDATE && answer == HAVE_LOST)
        u->own_start_lost_us = clock_now_us();
    if (before->adapter != NULL)
        fleet_adapter_answered_locked(f, u, before);
    if (answer_changes_rotation(op))
        fleet_change_end(f);
    else
        mtx_unlock(&f->lock);
    return same;
}

/* A new process is not paused, and has neither the adapters nor the state of the old one. */
static void note_restart_locked(struct upstream *u)
{
    fleet_reset_locked(u, u->report.process[0] != '\0');
}

/* What an earlier report says of the weights is kept for the same process only. */
void fleet_store_report_locked(struct upstream *u, const struct upstream_report *report)
{
    struct upstream_report now = *report;
    bool restarted = may_be_restarted(u, report);

    if (report->is_stale && !restarted) {
        memcpy(now.label, u->report.label, sizeof now.label);
        memcpy(now.not_ready, u->report.not_ready, sizeof now.not_ready);
    } else if (report->is_stale) {
        now.label[0] = now.not_ready[0] = '\0';
    }
    if (report->is_stale) /* of which weights it is, is not known */
        now.serial = 0;
    if (now.release[0] == '\0' && !restarted)
        memcpy(now.release, u->report.release, sizeof now.release);
    if (restarted)
        note_restart_locked(u);
    else
        have_seen(&u->have, report->have_change);
    if (report->sleep != SAYS_NOTHING)
        have_told(&u->have, report->have_change, report->sleep == SAYS_ASLEEP);
    u->label_known = !report->is_stale || (u->label_known && !restarted);
    u->report = now;
    u->down = u->key_rejected[FLEET_AUTH_PROBE] = false;
    u->n_failures_in_row = 0;
    u->n_probe_failures = 0;
    u->no_answer = (struct upstream_error){0};
    u->probe_ok_us = clock_now_us();
}

/* A dirty marker is left: the server that began that update did not end it. During an update of
 * ours the marker may be our own. */
static void fence_dirty_locked(const struct fleet *f, struct upstream *u)
{
    if (f->updating || have_is_broken(&u->have) || !fleet_is_dirty_marker(u->report.label))
        return;
    have_fault(&u->have, FAULT_TORN);
    u->have.weights.fault_is_older = true;
    if (strcmp(u->report.label, FLEET_FENCED_MARKER) == 0)
        FLEET_SET_WHY(u, REASON_BROKEN, "an earlier server fenced it (weight_version '%s'): %s",
                      u->report.label, fleet_remedy(f));
    else
        FLEET_SET_WHY(u, REASON_BROKEN, "an update of it never ended (weight_version '%s'): %s",
                      u->report.label, fleet_remedy(f));
}

/* By a sleep of another client, or of this server that was not answered well. */
static void note_dropped_locked(struct upstream *u, const struct upstream_report *report)
{
    if (report->dropped && !report->is_stale && !have_is_broken(&u->have))
        have_fault(&u->have, FAULT_DROPPED);
}

/* An update that ended at the engine after it had failed here: its reply to the finish was lost, or
 * it hands the version to engines of its own and had to repeat that, or it was restarted and has
 * restored the version. Not what it reported before it was last asked to sleep, which may have
 * dropped that. */
static void check_update_locked(const struct fleet *f, struct upstream *u,
                                const struct upstream_report *report)
{
    if (f->updating || report->is_stale || report->have_change != u->have.change ||
        u->update_id[0] == '\0' || strcmp(report->update_id, u->update_id) != 0 ||
        strcmp(report->label, f->label) != 0 || have_has_missed(&u->have) ||
        u->have.sleep.weights == SLEEP_UNKNOWN)
        return;
    have_version(&u->have, f->serial);
}

/* It reports the digest of its weights, each byte of which it has compared, and an engine that
 * serves the fleet's version reports the same one. Where it has read them from does not matter. */
static void check_seed_locked(const struct fleet *f, struct upstream *u,
                              const struct upstream_report *report)
{
    if (f->updating || f->serial == 0 || report->is_stale || report->digest[0] == '\0' ||
        strcmp(report->label, f->label) != 0 ||
        (fleet_is_synced(f, u) && !have_is_broken(&u->have)) || !fleet_may_seed(u) ||
        u->have.sleep.weights == SLEEP_UNKNOWN)
        return;
    for (size_t i = 0; i < f->list->n; i++) {
        const struct upstream *from = f->list->items[i];

        if (from == u || !fleet_is_synced(f, from) || have_is_broken(&from->have) ||
            upstream_is_removed(from) || strcmp(from->report.digest, report->digest) != 0)
            continue;
        have_version(&u->have, f->serial);
        memcpy(u->update_id, report->update_id, sizeof u->update_id);
        return;
    }
}

void fleet_probe_ok(struct fleet *f, struct upstream *u, const struct upstream_report *report)
{
    struct upstream_report fresh_report = *report;
    bool was;

    fleet_change_begin(f);
    was = fleet_is_synced(f, u);
    fresh_report.is_stale |= report->sent_epoch != 0 && report->sent_epoch != f->weights_epoch;
    /* The marker is that of our own update, and goes when the update ends. */
    fresh_report.is_stale |= f->updating && fleet_is_dirty_marker(report->label);
    if (f->updating || fresh_report.is_stale) /* it may be of the weights before */
        fresh_report.digest[0] = '\0';
    if (fleet_reject_alias_locked(f, u, report->identity)) {
        fleet_change_end(f);
        return;
    }
    check_sync_locked(f, u, &fresh_report);
    fleet_store_report_locked(u, &fresh_report);
    fleet_check_name_locked(f, u, &fresh_report);
    check_update_locked(f, u, &fresh_report);
    check_seed_locked(f, u, &fresh_report);
    fence_dirty_locked(f, u);
    note_dropped_locked(u, &fresh_report);
    fleet_decide_version_locked(f);
    /* An engine that does not report its process has restarted if it has lost the version, but not
     * if it has a dirty marker, which a new process does not have. */
    if (was && !fleet_is_synced(f, u) && report->process[0] == '\0' &&
        !fleet_is_dirty_marker(report->label))
        fleet_reset_locked(u, false);
    fleet_change_end(f);
}

void fleet_found_awake(struct fleet *f, struct upstream *u, uint64_t change)
{
    fleet_change_begin(f);
    have_found_awake(&u->have, change);
    fleet_change_end(f);
}

static bool is_same_locked(const struct upstream *u, const char *process)
{
    return u->report.process[0] == '\0' || strcmp(process, u->report.process) == 0;
}

/* An answer that comes late may be of a process before the known one, which would be served with
 * what the earlier one has. Called with each reply of a baton, so the usual case takes the lock
 * once. The new process becomes the known one: an update that it completes syncs it. Before the
 * first update the next probe tells which version it has. */
bool fleet_check_process(struct fleet *f, struct upstream *u, uint64_t incarnation,
                         const char *process)
{
    struct err why = {0};
    bool same;

    mtx_lock(&f->lock);
    same = is_same_locked(u, process);
    mtx_unlock(&f->lock);
    if (same)
        return true;
    fleet_change_begin(f);
    same = is_same_locked(u, process);
    if (!same && incarnation == u->incarnation) {
        set_restarted_error(f, &why);
        fleet_set_why(u, REASON_OTHER_WEIGHTS, &why);
        note_restart_locked(u);
        (void)snprintf(u->report.process, sizeof u->report.process, "%s", process);
        u->report.label[0] = u->report.not_ready[0] = u->report.identity[0] = '\0';
        set_released(u);
        u->label_known = false;
    }
    fleet_change_end(f);
    return same;
}

/* One that has not answered yet and refuses connections may still be starting. */
static void count_failure_locked(struct upstream *u, bool refused, const struct err *why)
{
    u->n_failures_in_row++;
    u->n_failures++;
    if (u->n_failures_in_row >= FLEET_FAILURES_DOWN || (refused && u->probe_ok_us != 0))
        u->down = true;
    u->no_answer = (struct upstream_error){*why, clock_wall_s()};
}

void fleet_count_failure(struct fleet *f, struct upstream *u)
{
    mtx_lock(&f->lock);
    u->n_failures++;
    mtx_unlock(&f->lock);
}

void fleet_request_failed(struct fleet *f, struct upstream *u, bool refused, const struct err *why)
{

    fleet_change_begin(f);
    count_failure_locked(u, refused, why);
    fleet_change_end(f);
}

void fleet_probe_failed_locked(struct upstream *u, bool refused, const struct err *why)
{
    count_failure_locked(u, refused, why);
    u->n_probe_failures++;
    if (u->n_probe_failures >= FLEET_PROBE_FAILURES_MAX && u->probe_ok_us != 0) {
        err_clear(&u->no_answer.why);
        (void)err_set(&u->no_answer.why, why->code, "",
                      "its version is not known: %u probes in a row failed; %.300s",
                      u->n_probe_failures, why->msg);
    }
}

void fleet_probe_failed(struct fleet *f, struct upstream *u, bool refused, const struct err *why)
{

    fleet_change_begin(f);
    fleet_probe_failed_locked(u, refused, why);
    fleet_change_end(f);
}

void fleet_auth_failed(struct fleet *f, struct upstream *u, enum fleet_auth what,
                       const struct err *why)
{

    assert(why->code == ERR_UPSTREAM_KEY);
    fleet_change_begin(f);
    u->key_rejected[what] = true;
    fleet_set_why(u, what == FLEET_AUTH_PROBE ? REASON_AUTH_PROBE : REASON_AUTH_REQUEST, why);
    fleet_clear_failure_locked(u);
    fleet_change_end(f);
}

void fleet_auth_ok(struct fleet *f, struct upstream *u)
{

    fleet_change_begin(f);
    u->key_rejected[FLEET_AUTH_REQUEST] = false;
    fleet_change_end(f);
}
