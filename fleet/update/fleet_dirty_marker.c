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

static bool has_our_marker(const struct fleet_part *p)
{
    return strcmp(p->reported_label, p->update_id) == 0;
}

/* A client's abort waits for these requests. */
static uint64_t undo_timeout_us(struct fleet_control *fc)
{
    uint64_t step_us = fleet_step_us(fc);

    return step_us < FLEET_ABORT_US ? step_us : FLEET_ABORT_US;
}

/* Reads the version that the engine reports (p->reported_label). The result becomes FLEET_SKIPPED
 * if its API has none. The caller holds the lock. */
static void read_label(struct fleet_part *p, struct fleet_result *result)
{
    const char *text = result->text != NULL ? result->text : "";
    struct err why = {0};

    p->reported_label[0] = '\0';
    if (refuses_labels(result) || (result->outcome == FLEET_OK &&
                                   api_read_version(p->reported_label, upstream_kind(p->upstream),
                                                    text, result->text_len, &why) != 0))
        result->outcome = FLEET_SKIPPED;
}

/* ---- before the first byte ---- */

static void on_marker_set(struct fleet_part *p, size_t part, struct fleet_result *result, void *arg)
{
    (void)part;
    (void)arg;
    if (refuses_labels(result))
        return;
    p->may_have_marker = fleet_result_may_have_run(result);
    if (result->outcome == FLEET_UNKNOWN)
        part_apply(p, PART_ON_DOUBT); /* the request may still be executed at any time */
    part_drop_failed(p, result);
}

/* The server is stopping, so the answers are lost, and each request may have been executed. */
static void markers_in_doubt(struct fleet_control *fc, struct fleet_session *s,
                             const struct part_set *of)
{
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        if (of->has[i] && part_takes_part(&s->parts[i])) {
            s->parts[i].may_have_marker = true;
            part_apply(&s->parts[i], PART_ON_DOUBT);
        }
    mtx_unlock(&fc->lock);
}

static bool takes_part(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return part_takes_part(p);
}

int fleet_set_dirty_markers(struct fleet_control *fc, struct fleet_session *s,
                            const struct part_set *named, struct err *e)
{
    char marker[sizeof FLEET_DIRTY_MARKER + UPDATE_ID_MAX];
    const struct api_args args = {.label = marker};
    const struct fanout f = {.op = API_SET_VERSION,
                             .args = &args,
                             .only = named,
                             .select = takes_part,
                             .on_result = on_marker_set};
    int rc;

    assert(fleet_owns_update_lock(fc));
    (void)snprintf(marker, sizeof marker, FLEET_DIRTY_MARKER "%s", s->id);
    rc = fanout_apply(fc, s, &f, e);
    if (rc != 0 && e->code == ERR_DRAINING)
        markers_in_doubt(fc, s, named);
    return rc;
}

/* Not the marker of another server, and not a version that is too long to be set: those stay. */
static bool can_be_restored(const char *label)
{
    return !fleet_is_dirty_marker(label) && strlen(label) < API_VERSION_MAX;
}

static bool needs_marker(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return !p->two_phase && part_takes_part(p) && !p->may_have_marker;
}

static void on_old_label(struct fleet_part *p, size_t part, struct fleet_result *result, void *arg)
{
    struct part_set *named = arg;

    read_label(p, result);
    if (can_be_restored(p->old_label))
        memcpy(p->old_label, p->reported_label, sizeof p->old_label);
    named->has[part] = result->outcome == FLEET_OK;
    part_drop_failed(p, result);
}

int fleet_read_old_labels(struct fleet_control *fc, struct fleet_session *s, struct part_set *named,
                          struct err *e)
{
    const struct fanout f = {.is_query = true,
                             .query = API_GET_VERSION,
                             .select = needs_marker,
                             .on_result = on_old_label,
                             .arg = named};

    assert(fleet_owns_update_lock(fc));
    return fanout_apply(fc, s, &f, e);
}

/* ---- when no byte was accepted ---- */

/* An engine that may still get the marker of an update that is over needs a whole update. The
 * caller holds the lock. */
static void part_set_in_doubt(struct fleet_part *p, const struct err *why)
{
    part_apply(p, PART_ON_DOUBT);
    if (p->why.code == ERR_NONE)
        p->why = *why;
}

struct marker_clearing {
    bool dropped;         /* only engines that are out */
    struct part_set ours; /* engines that still report our marker */
};

static bool has_marker_to_clear(const struct fleet_part *p, const void *arg)
{
    const struct marker_clearing *u = arg;

    return p->may_have_marker && part_is_unchanged(p) && !(u->dropped && part_takes_part(p));
}

/* It had another server's marker, or weights of another version than the fleet's. */
static bool was_out_of_step(const struct fleet_part *p)
{
    return p->before >= PART_WAS_OUT_OF_STEP || !can_be_restored(p->old_label);
}

/* An engine that reports another version was restarted, or another client has changed it. */
static void on_marker_read(struct fleet_part *p, size_t part, struct fleet_result *result,
                           void *arg)
{
    struct marker_clearing *u = arg;

    read_label(p, result);
    if (result->outcome != FLEET_OK)
        part_set_in_doubt(p, &result->why);
    else if (has_our_marker(p))
        u->ours.has[part] = true;
    else
        p->may_have_marker = false;
}

static void on_label_restored(struct fleet_part *p, size_t part, struct fleet_result *result,
                              void *arg)
{
    (void)part;
    (void)arg;
    if (result_ok(result))
        p->may_have_marker = false;
    else
        part_set_in_doubt(p, &result->why);
}

static void restore_labels(struct fleet_control *fc, struct fleet_session *s,
                           const struct part_set *ours)
{
    struct api_args args[FLEET_MAX];
    const struct fanout f = {.op = API_SET_VERSION,
                             .of = args,
                             .timeout_us = undo_timeout_us(fc),
                             .only = ours,
                             .on_result = on_label_restored};
    struct err why = {0};

    for (size_t i = 0; i < s->n_parts; i++)
        args[i] = (struct api_args){.label = s->parts[i].old_label};
    fanout_apply_or_fail(fc, s, &f, &why);
}

static void out_of_step_in_doubt(struct fleet_control *fc, struct fleet_session *s,
                                 const struct marker_clearing *u)
{
    struct err bad = {0};

    (void)err_set(
        &bad, ERR_UNSYNCED, "",
        "update %s ended before its first byte, and before it the weights were not of the "
        "fleet's version",
        s->id);
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        if (has_marker_to_clear(&s->parts[i], u) && was_out_of_step(&s->parts[i]))
            part_set_in_doubt(&s->parts[i], &bad);
    mtx_unlock(&fc->lock);
}

void fleet_clear_dirty_markers(struct fleet_control *fc, struct fleet_session *s, bool dropped)
{
    struct marker_clearing u = {.dropped = dropped};
    const struct fanout f = {.is_query = true,
                             .query = API_GET_VERSION,
                             .timeout_us = undo_timeout_us(fc),
                             .select = has_marker_to_clear,
                             .on_result = on_marker_read,
                             .arg = &u};
    struct err why = {0};

    assert(fleet_owns_update_lock(fc));
    out_of_step_in_doubt(fc, s, &u);
    fanout_apply_or_fail(fc, s, &f, &why);
    restore_labels(fc, s, &u.ours);
}

/* ---- during the update, and at its end ---- */

/* An engine that was given no marker may report no version. The caller holds the lock. */
static void check_label(struct fleet_part *p, const struct fleet_result *result,
                        const char *expected)
{
    struct err why = {0};

    if (!p->may_have_marker &&
        (result->outcome == FLEET_SKIPPED || result->outcome == FLEET_REFUSED ||
         (result->outcome == FLEET_OK && !p->reported_label[0])))
        return;
    if (result->outcome == FLEET_OK && strcmp(p->reported_label, expected) == 0)
        return;
    if (result->outcome == FLEET_OK || result->outcome == FLEET_SKIPPED)
        (void)err_set(&why, ERR_UPSTREAM, "",
                      "%.200s: it was restarted, or changed by another client, during the update: "
                      "it reports version '%.100s'",
                      upstream_name(p->upstream), p->reported_label);
    part_drop(p, FLEET_UNKNOWN, result->status, why.code != ERR_NONE ? &why : &result->why);
}

struct marker_check {
    bool all; /* also engines that name their process */
    size_t n_asked;
    const char *label;     /* the new version */
    struct part_set *kept; /* engines that still report our marker; NULL: none may */
};

static bool needs_marker_check(const struct fleet_part *p, const void *arg)
{
    const struct marker_check *c = arg;

    return part_takes_part(p) && (p->no_process_id ? !part_is_unchanged(p) || p->may_have_marker
                                                   : c->all && p->may_have_marker);
}

static void on_marker_checked(struct fleet_part *p, size_t part, struct fleet_result *results,
                              void *arg)
{
    struct marker_check *c = arg;

    (void)part;
    c->n_asked++;
    read_label(p, results);
    check_label(p, results, p->update_id);
}

int fleet_check_dirty_markers(struct fleet_control *fc, struct fleet_session *s, bool all,
                              struct err *e)
{
    struct marker_check c = {.all = all};
    const struct fanout f = {.is_query = true,
                             .query = API_GET_VERSION,
                             .select = needs_marker_check,
                             .on_result = on_marker_checked,
                             .arg = &c};

    if (fanout_apply(fc, s, &f, e) != 0)
        return -1;
    if (c.n_asked == 0)
        return 0;
    fleet_fence_parts(fc, s);
    if (fleet_has_quorum(fc, s))
        return 0;
    fleet_set_cause(fc, s, e);
    return -1;
}

static void on_label_set(struct fleet_part *p, size_t part, struct fleet_result *result, void *arg)
{
    (void)part;
    if (result->outcome == FLEET_OK)
        (void)snprintf(p->reported_label, sizeof p->reported_label, "%s", (const char *)arg);
    if (!result_ok(result))
        part_drop(p, FLEET_UNKNOWN, result->status, &result->why);
}

/* The finish of these engines takes no version, so they still report our marker. */
static void set_new_labels(struct fleet_control *fc, struct fleet_session *s, struct fanout *f,
                           struct err *why)
{
    const struct api_args args = {.label = s->label};

    f->op = API_SET_VERSION;
    f->args = &args;
    f->on_result = on_label_set;
    f->arg = s->label;
    fanout_apply_or_fail(fc, s, f, why);
}

static void on_label_checked(struct fleet_part *p, size_t part, struct fleet_result *result,
                             void *arg)
{
    struct marker_check *c = arg;

    read_label(p, result);
    if (c->kept != NULL && part_needs_start(p) && result->outcome == FLEET_OK && has_our_marker(p))
        c->kept->has[part] = true;
    else
        check_label(p, result, c->label);
}

static bool is_finished_with_label(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return p->state == PART_FINISHED && (p->no_process_id || p->may_have_marker);
}

static bool is_finished_without_process_id(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return p->state == PART_FINISHED && p->no_process_id;
}

static void check_labels(struct fleet_control *fc, struct fleet_session *s,
                         bool (*select)(const struct fleet_part *p, const void *arg),
                         struct part_set *kept)
{
    struct marker_check c = {.label = s->label, .kept = kept};
    const struct fanout f = {.is_query = true,
                             .query = API_GET_VERSION,
                             .select = select,
                             .on_result = on_label_checked,
                             .arg = &c};
    struct err why = {0};

    fanout_apply_or_fail(fc, s, &f, &why);
}

static bool finished_without_label(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return p->state == PART_FINISHED && p->finish_takes_no_label && p->may_have_marker &&
           p->own_update == PART_UPDATE_OPEN;
}

void fleet_set_new_labels(struct fleet_control *fc, struct fleet_session *s,
                          struct fanout_with *with, struct err *why)
{
    struct part_set kept = {{false}};
    struct fanout f = {.only = &kept, .with = with};

    assert(fleet_owns_update_lock(fc));
    check_labels(fc, s, finished_without_label, &kept);
    set_new_labels(fc, s, &f, why);
    fleet_fence_parts(fc, s);
}

/* Engines that do not name their process are asked again after the version was set: one that was
 * restarted meanwhile reports another version. */
void fleet_label_parts(struct fleet_control *fc, struct fleet_session *s)
{
    struct part_set kept = {{false}};
    struct fanout f = {.only = &kept};
    struct err ignored = {0};
    bool any = false;

    assert(fleet_owns_update_lock(fc));
    check_labels(fc, s, is_finished_with_label, &kept);
    for (size_t i = 0; i < s->n_parts; i++)
        any = any || kept.has[i];
    if (any) {
        set_new_labels(fc, s, &f, &ignored);
        check_labels(fc, s, is_finished_without_process_id, NULL);
    }
    fleet_fence_parts(fc, s);
}
