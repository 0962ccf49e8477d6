/* What requests read and write of a session while steps of its update may be under way. */
#include "fleet/update/fleet_update.h"

#include "fleet/update/fleet_update_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int fleet_check_no_update(struct fleet_control *fc, bool prepared_only, struct err *e)
{
    mtx_auto held = mtx_hold(&fc->lock);

    if (fc->session == NULL || (prepared_only && !fc->session->prepare_begun))
        return 0;
    if (fc->session->handoff)
        return fleet_refuse_handoff(fc->session, e);
    return err_set(e, ERR_CONFLICT, "",
                   "update %s is open: finish or abort it first ('baton abort --update' aborts it)",
                   fc->session->id);
}

int fleet_update_set_label(struct fleet_control *fc, struct fleet_session *s, const char *label,
                           struct err *e)
{
    mtx_auto held = mtx_hold(&fc->lock);

    if (label == NULL || (s->phase != UPDATE_OPEN && s->phase != UPDATE_RECEIVING))
        return 0;
    if (s->label[0] != '\0' && s->auto_commit && strcmp(s->label, label) != 0)
        return err_set(e, ERR_CONFLICT, "/weight_version",
                       "the open update is of version '%.128s', and this request of '%.128s'",
                       s->label, label);
    (void)snprintf(s->label, sizeof s->label, "%s", label);
    return 0;
}

int fleet_update_set_selector(struct fleet_control *fc, struct fleet_session *s,
                              const char *selector, struct err *e)
{
    mtx_auto held = mtx_hold(&fc->lock);

    if (s->selector == NULL)
        s->selector = selector;
    if (selector == NULL || strcmp(s->selector, selector) == 0)
        return 0;
    /* the same request may begin the next update */
    return err_set(e, s->anonymous ? ERR_CONFLICT : ERR_PRECONDITION, "/selector",
                   "'%s', but this update began with '%s'", selector, s->selector);
}

bool fleet_update_was_refused(struct fleet_control *fc, const struct fleet_session *s,
                              struct err *why)
{
    mtx_auto held = mtx_hold(&fc->lock);

    *why = s->refused;
    return why->code != ERR_NONE;
}

bool fleet_update_is_covered(struct fleet_control *fc, const struct fleet_session *s)
{
    mtx_auto held = mtx_hold(&fc->lock);
    int64_t n_missing;

    return s->auto_commit && fleet_session_is_open(s) && s->n_running == 0 &&
           fleet_session_has_part(s, true) && api_report_missing(s->report, &n_missing) &&
           n_missing == 0;
}

bool fleet_update_is_other_version(struct fleet_control *fc, const struct fleet_session *s,
                                   const char *label)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return label != NULL && s->auto_commit && !fleet_session_has_part(s, true) &&
           s->label[0] != '\0' && strcmp(s->label, label) != 0;
}

bool fleet_update_is_empty(struct fleet_control *fc, const struct fleet_session *s)
{
    mtx_auto held = mtx_hold(&fc->lock);

    return (s->auto_commit || (s->anonymous && s->prepare_begun)) && s->n_received == 0 &&
           s->n_running == 0;
}

void fleet_begin_push(struct fleet_control *fc)
{
    mtx_lock(&fc->lock);
    fc->cut_off = NULL;
    if (fc->session != NULL)
        fleet_coverage_begin_push(fc->session);
    mtx_unlock(&fc->lock);
}

/* Others may encode the same report, which the copy keeps. */
struct fleet_session *fleet_update_copy(struct fleet_control *fc, const struct fleet_session *s)
{
    size_t nbytes = sizeof *s + s->n_parts * sizeof s->parts[0];
    struct fleet_session *copy = malloc(nbytes);

    if (copy == NULL)
        return NULL;
    mtx_lock(&fc->lock);
    memcpy(copy, s, nbytes);
    (void)api_object_ref(copy->report);
    mtx_unlock(&fc->lock);
    copy->n_refs = 1;
    copy->coverage = NULL;
    copy->list = NULL;
    for (size_t i = 0; i < copy->n_parts; i++)
        copy->parts[i].upstream = NULL;
    return copy;
}

/* renewal */

static int renew_locked(struct fleet_session *s, uint32_t lease_s, struct err *e)
{
    if (!fleet_session_is_open(s))
        return err_set(e, ERR_ENDED, "", "update %s is %s", s->id, update_phase_name(s->phase));
    lease_timer_extend(&s->lease, lease_s);
    return 0;
}

/* The leases of the batons' own updates are longer than the trainer's, and renewed with it. */
int fleet_renew_update(struct fleet_control *fc, struct fleet_session *s, uint64_t lease_s,
                       struct err *e)
{
    const struct api_args args = {.lease_s = UPDATE_LEASE_S_MAX};
    fleet_results_auto results = {0};
    struct fleet_batch b = {0};
    int rc;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].two_phase && !s->parts[i].out)
            batch_add(&b, s, i, &args);
    rc = renew_locked(s, (uint32_t)lease_s, e);
    mtx_unlock(&fc->lock);
    if (rc == 0) {
        rc = fleet_request(fc, API_RENEW_UPDATE, b.targets, b.n, FLEET_QUERY_US, &results, e);
    }
    return rc == 0 && fleet_results_ok(&results, e) ? 0 : -1;
}
