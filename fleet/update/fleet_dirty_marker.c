/* The dirty marker: FLEET_DIRTY_MARKER and the update's id, which engines that overwrite their
 * weights report as their version from before the first byte of an update to its end. If this
 * server ends before the update does, the next one finds the marker and fences the engine. An
 * engine that still reports the marker is also known to be the process that accepted the tensors so
 * far, and unchanged by other clients.
 *
 * The marker is set while the engine is paused: replies of an SGLang, and of a vLLM since 0.32,
 * name the version of each token. So is the new version; a release whose end of an update takes
 * none, and which is not known for that, gets it when it is found to have the marker still, after
 * its resume.
 *
 * A version is never set without reading it first, since the process may have been replaced, or
 * changed by another client. The old version is what the engine reported itself. It is not restored
 * on an engine that was out of step before; an engine that is not known to have it again is fenced.
 * Rejected: to set versions from what is known here. A restarted engine then reported the version
 * of weights that it did not have, and half of an update looked like a whole version.
 *
 * Engines of releases that take no version, or report none, have no marker. */
#include "fleet/update/fleet_update_priv.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* The engine, or a proxy before it, says that the route does not exist, or may not be used. */
static bool refuses_labels(const struct fleet_result *result)
{
    static const int statuses[] = {400, 403, 404, 405, 422, 501};
    bool found = false;

    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        found = found || result->status == statuses[i];
    return found && result->outcome == FLEET_REFUSED;
}

/* The result becomes FLEET_SKIPPED if the engine's API has no version. The caller holds the lock.
 */
static void read_label(struct fleet_part *p, struct fleet_result *result)
{
    struct err why = {0};

    p->label[0] = '\0';
    if (refuses_labels(result) || (result->outcome == FLEET_OK &&
                                   api_read_version(p->label, upstream_kind(p->upstream),
                                                    result->text, result->text_len, &why) != 0))
        result->outcome = FLEET_SKIPPED;
    p->label_read = result->outcome == FLEET_OK;
}

static bool has_our_marker(const struct fleet_part *p)
{
    return part_reports(p, p->update_id);
}

static void set_restarted(const struct fleet_part *p, struct err *out)
{
    (void)err_set(out, ERR_UPSTREAM, "",
                  "%.200s: it was restarted, or was not reachable, in the middle of the update",
                  upstream_name(p->upstream));
}

/* ---- before the first byte ---- */

static bool needs_marker(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return !p->two_phase && !p->out && !p->may_have_marker;
}

/* Not the marker of another server, and not a version that is too long to be set: those stay. */
static bool can_be_restored(const char *label)
{
    return !fleet_is_dirty_marker(label) && strlen(label) < API_VERSION_MAX;
}

static void refuse_base(const struct fleet_part *p, struct err *e)
{
    (void)err_set(e, ERR_UNSYNCED, "",
                  "%.200s: it does not serve the fleet's version any more, and a partial update "
                  "cannot bring it there; send a whole one",
                  upstream_name(p->upstream));
}

/* @base  the fleet's version, which a partial update builds on; NULL: of a whole one */
static void on_old_label(struct fleet_part *p, struct fleet_result *result, void *base)
{
    read_label(p, result);
    if (base != NULL && p->label[0] != '\0' && strcmp(p->label, base) != 0) {
        result->outcome = FLEET_UNSENT;
        refuse_base(p, &result->why);
    }
    if (can_be_restored(p->old_label))
        memcpy(p->old_label, p->label, sizeof p->old_label);
    part_drop_failed(p, result);
}

/* Of another process, whatever the one before had. */
static void on_other_label(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    (void)arg;
    read_label(p, result);
    memcpy(p->old_label, p->label, sizeof p->old_label);
    part_drop_failed(p, result);
}

int fleet_drop_without_base(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    size_t n = 0;

    if (!s->partial)
        return 0;
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++) {
        struct fleet_part *p = &s->parts[i];
        struct upstream_info info;
        struct err why = {0};

        fleet_info(fleet_of(fc), p->upstream, &info);
        if (!needs_marker(p, NULL) || !part_is_unchanged(p) || (info.synced && !info.fenced))
            continue;
        refuse_base(p, &why);
        part_drop(p, FLEET_UNSENT, 0, &why);
        n++;
    }
    mtx_unlock(&fc->lock);
    return n > 0 ? fleet_require_quorum(fc, s, e) : 0;
}

int fleet_read_old_labels(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    struct fleet_stats now;
    const struct fanout f = {.is_query = true,
                             .query = API_GET_VERSION,
                             .select = needs_marker,
                             .on_result = on_old_label,
                             .arg = s->partial ? now.label : NULL,
                             .before_bytes = true};

    fleet_stats(fleet_of(fc), &now);
    return fanout_apply(fc, s, &f, e) < 0 ? -1 : 0;
}

static bool can_have_marker(const struct fleet_part *p, const void *arg)
{
    return needs_marker(p, arg) && p->label_read;
}

/* Another engine's requests, or its pause, may have kept the others waiting for long. */
static bool may_be_replaced(const struct fleet_part *p, const void *arg)
{
    struct fleet_control *const *fc = arg;

    return can_have_marker(p, NULL) && fleet_may_be_other(*fc, p->upstream, &p->incarnation);
}

/* Of one that does not name its process, failed requests count only after it got our marker: it may
 * have been asked to wait before that. */
static void on_marker_set(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    (void)arg;
    if (refuses_labels(result))
        return;
    if (p->no_process_id && result_ok(result))
        part_note_same(p, false);
    p->may_have_marker = fleet_result_may_have_run(result);
    p->label_read = false;
    if (result->outcome == FLEET_UNKNOWN)
        p->weights = PART_TORN; /* the request may still be executed at any time */
    part_drop_failed(p, result);
}

/* The old version of another process is what that one reports: it is given back after an abort. */
int fleet_set_dirty_markers(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    const struct fanout again = {.is_query = true,
                                 .query = API_GET_VERSION,
                                 .select = may_be_replaced,
                                 .on_result = on_other_label,
                                 .arg = &fc,
                                 .before_bytes = true};
    char marker[sizeof FLEET_DIRTY_MARKER + UPDATE_ID_MAX];
    const struct api_args args = {.label = marker};
    const struct fanout f = {.op = API_SET_VERSION,
                             .args = &args,
                             .select = can_have_marker,
                             .on_result = on_marker_set,
                             .before_bytes = true};

    if (fanout_apply(fc, s, &again, e) < 0)
        return -1;
    (void)snprintf(marker, sizeof marker, FLEET_DIRTY_MARKER "%s", s->id);
    return fanout_apply(fc, s, &f, e) < 0 ? -1 : 0;
}

/* ---- when no byte was accepted ---- */

/* @arg  bool: only engines that are out */
static bool has_marker_to_clear(const struct fleet_part *p, const void *arg)
{
    const bool *dropped = arg;

    return p->may_have_marker && part_is_unchanged(p) && (p->out || !*dropped);
}

/* An engine that reports another version was restarted, or another client has changed it. */
static void on_marker_read(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    (void)arg;
    read_label(p, result);
    if (result->outcome != FLEET_OK)
        part_set_in_doubt(p, &result->why);
    p->may_have_marker = result->outcome != FLEET_OK || has_our_marker(p);
}

static void on_label_restored(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    (void)arg;
    p->may_have_marker = !result_ok(result);
    if (p->may_have_marker)
        part_set_in_doubt(p, &result->why);
}

/* It had another server's marker, or weights of another version than the fleet's. */
static void doubt_out_of_step(struct fleet_control *fc, struct fleet_session *s, bool dropped)
{
    struct err why = {0};

    (void)err_set(
        &why, ERR_UNSYNCED, "",
        "update %s ended before its first byte, and before it the weights were not of the "
        "fleet's version",
        s->id);
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        if (has_marker_to_clear(&s->parts[i], &dropped) &&
            (s->parts[i].before >= PART_WAS_OUT_OF_STEP || !can_be_restored(s->parts[i].old_label)))
            part_set_in_doubt(&s->parts[i], &why);
    mtx_unlock(&fc->lock);
}

/* A client's abort waits for these requests. */
void fleet_clear_dirty_markers(struct fleet_control *fc, struct fleet_session *s, bool dropped)
{
    struct api_args args[FLEET_MAX];
    struct fanout f = {.is_query = true,
                       .query = API_GET_VERSION,
                       .timeout_us = fleet_step_us(fc),
                       .select = has_marker_to_clear,
                       .on_result = on_marker_read,
                       .arg = &dropped,
                       .fail_each = true};
    struct err ignored = {0};

    if (f.timeout_us > FLEET_ABORT_US)
        f.timeout_us = FLEET_ABORT_US;
    doubt_out_of_step(fc, s, dropped);
    (void)fanout_apply(fc, s, &f, &ignored);
    for (size_t i = 0; i < s->n_parts; i++)
        args[i] = (struct api_args){.label = s->parts[i].old_label};
    f.is_query = false;
    f.op = API_SET_VERSION;
    f.of = args;
    f.on_result = on_label_restored;
    err_clear(&ignored);
    (void)fanout_apply(fc, s, &f, &ignored);
}

/* ---- during the update, and at its end ---- */

struct label_check {
    enum { CHECK_TENSORS, CHECK_FINISH, CHECK_FINISHED, CHECK_RESUMED, CHECK_LABELLED } when;
    const char *label; /* the new version */
    bool only_doubtful;
    struct fleet_control *fc;
};

/* Engines that do not name their process are asked more often. */
static bool is_to_check(const struct fleet_part *p, const void *arg)
{
    const struct label_check *c = arg;
    bool may_be_other = p->no_process_id && (!part_is_unchanged(p) || p->may_have_marker);

    if (c->only_doubtful && !fleet_may_be_other(c->fc, p->upstream, &p->incarnation))
        return false;
    switch (c->when) {
    case CHECK_TENSORS:
        return !p->out && may_be_other;
    case CHECK_FINISH:
        return !p->out && (may_be_other || p->may_have_marker);
    case CHECK_FINISHED:
        return part_has_finished(p) && p->finish_takes_no_label && p->may_have_marker &&
               p->own_update == PART_UPDATE_OPEN;
    case CHECK_RESUMED:
        return part_has_finished(p) && (may_be_other || p->may_have_marker);
    case CHECK_LABELLED:
        return part_has_finished(p) && may_be_other;
    }
    return false;
}

/* Its finish took no version, so that it still reports our marker. */
static bool lacks_label(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return part_has_finished(p) && part_needs_start(p) && has_our_marker(p);
}

/* An engine that was given no marker may report no version. One with our marker was the process
 * that was prepared, whatever was thought of it when it was asked. */
static void on_label_checked(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    const struct label_check *c = arg;
    struct err why = {0};

    read_label(p, result);
    if (c->when < CHECK_FINISHED && has_our_marker(p))
        part_note_same(p, !c->only_doubtful);
    if (part_reports(p, c->when < CHECK_FINISHED ? p->update_id : c->label) ||
        (c->when >= CHECK_FINISHED && c->when < CHECK_LABELLED && lacks_label(p, NULL)))
        return;
    if (!p->may_have_marker &&
        (result->outcome == FLEET_SKIPPED || result->outcome == FLEET_REFUSED ||
         (p->label_read && p->label[0] == '\0')))
        return;
    if (result->outcome == FLEET_OK || result->outcome == FLEET_SKIPPED)
        (void)err_set(&why, ERR_UPSTREAM, "",
                      "%.200s: it was restarted, or changed by another client, during the update: "
                      "it reports version '%.100s'",
                      upstream_name(p->upstream), p->label);
    part_drop(p, FLEET_UNKNOWN, result->status, why.code != ERR_NONE ? &why : &result->why);
}

/* It runs, and nothing is left to be asked: it gets requests. */
static void confirm_checked(struct fleet_control *fc, struct fleet_session *s, struct fleet_part *p)
{
    if (!lacks_label(p, NULL))
        fleet_switch_confirm(fc, s, p);
}

static int check_labels(struct fleet_control *fc, struct fleet_session *s, struct label_check c,
                        struct err *e)
{
    const struct fanout f = {.is_query = true,
                             .query = API_GET_VERSION,
                             .select = is_to_check,
                             .on_result = on_label_checked,
                             .then = c.when >= CHECK_RESUMED ? confirm_checked : NULL,
                             .arg = &c,
                             .fail_each = c.when >= CHECK_FINISHED};

    c.fc = fc;
    return fanout_apply(fc, s, &f, e);
}

/* Another engine may have kept the others waiting for long since that check. One that failed
 * meanwhile is asked again: another process may answer there, which no probe has seen yet. */
static int check_doubtful_labels(struct fleet_control *fc, struct fleet_session *s,
                                 struct label_check c, struct err *e)
{
    c.only_doubtful = true;
    return check_labels(fc, s, c, e);
}

/* Without a marker only its name tells one process from another. */
static bool is_to_name(const struct fleet_part *p, const void *arg)
{
    struct fleet_control *const *fc = arg;

    return !p->two_phase && !p->out && !p->may_have_marker &&
           fleet_may_be_other(*fc, p->upstream, &p->incarnation);
}

static void on_named(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    struct upstream_report report = {0};
    struct err why = result->why;

    (void)arg;
    if (result->outcome == FLEET_OK)
        (void)api_read_report(&report, upstream_kind(p->upstream), API_GET_STATUS, result->status,
                              result->text, result->text_len, &why);
    if (report.process[0] != '\0' && strcmp(report.process, p->incarnation.process) == 0) {
        part_note_same(p, false);
        return;
    }
    if (why.code == ERR_NONE)
        set_restarted(p, &why);
    part_drop(p, FLEET_UNKNOWN, result->status, &why);
}

int fleet_check_dirty_markers(struct fleet_control *fc, struct fleet_session *s, bool all,
                              struct err *e)
{
    int n = check_labels(fc, s, (struct label_check){.when = all ? CHECK_FINISH : CHECK_TENSORS},
                         e);

    if (n <= 0)
        return n;
    fleet_fence_parts(fc, s);
    return fleet_require_quorum(fc, s, e);
}

int fleet_drop_restarted(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    const struct fanout name = {.is_query = true,
                                .query = API_GET_STATUS,
                                .select = is_to_name,
                                .on_result = on_named,
                                .arg = &fc};
    int n_named = fanout_apply(fc, s, &name, e), n_marked = -1;
    bool any;

    if (n_named >= 0)
        n_marked = check_doubtful_labels(fc, s, (struct label_check){.when = CHECK_FINISH}, e);
    if (n_marked < 0)
        return -1;
    any = n_named + n_marked > 0;
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts && fleet_session_is_open(s); i++) {
        struct fleet_part *p = &s->parts[i];
        struct err why = {0};

        if (p->two_phase || p->out || !fleet_is_other_incarnation(fc, p->upstream, &p->incarnation))
            continue;
        set_restarted(p, &why);
        part_drop(p, FLEET_UNKNOWN, 0, &why);
        any = true;
    }
    mtx_unlock(&fc->lock);
    if (!any)
        return 0;
    fleet_fence_parts(fc, s);
    return fleet_require_quorum(fc, s, e);
}

static void on_label_set(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    (void)snprintf(p->label, sizeof p->label, "%s", (const char *)arg);
    p->label_read = result->outcome == FLEET_OK;
    if (!result_ok(result))
        part_drop(p, FLEET_UNKNOWN, result->status, &result->why);
}

/* One that may be another process is asked once more. */
static void confirm_labelled(struct fleet_control *fc, struct fleet_session *s,
                             struct fleet_part *p)
{
    const struct label_check c = {.when = CHECK_LABELLED};

    if (!is_to_check(p, &c))
        fleet_switch_confirm(fc, s, p);
}

void fleet_set_new_labels(struct fleet_control *fc, struct fleet_session *s, bool resumed,
                          struct fanout_with *with, struct err *why)
{
    struct label_check c = {.when = resumed ? CHECK_RESUMED : CHECK_FINISHED, .label = s->label};
    const struct api_args args = {.label = s->label};
    const struct fanout set = {.op = API_SET_VERSION,
                               .args = &args,
                               .select = lacks_label,
                               .on_result = on_label_set,
                               .then = resumed ? confirm_labelled : NULL,
                               .arg = s->label,
                               .fail_each = true,
                               .with = with};
    struct err ignored = {0};

    assert(fleet_owns_update_lock(fc));
    for (size_t i = 0; resumed && i < s->n_parts; i++)
        if (!is_to_check(&s->parts[i], &c))
            fleet_switch_confirm(fc, s, &s->parts[i]);
    (void)check_labels(fc, s, c, &ignored);
    err_clear(&ignored);
    (void)check_doubtful_labels(fc, s, c, &ignored);
    for (size_t i = 0; i < s->n_parts; i++) /* and are back, without the update */
        if (lacks_label(&s->parts[i], NULL))
            fleet_fence_restarted(fc, &s->parts[i]);
    if (fanout_apply(fc, s, &set, why) != 0 && resumed) {
        c.when = CHECK_LABELLED; /* one that was restarted meanwhile reports another version */
        err_clear(&ignored);
        (void)check_labels(fc, s, c, &ignored);
    }
    fleet_fence_parts(fc, s);
}
