/* What follows for an update from the results at its engines. */
#include "fleet/update/fleet_session.h"

#include <assert.h>
#include <stdlib.h>

int fleet_session_new(struct fleet_session **out, size_t n_parts, struct err *e)
{
    struct fleet_session *s = calloc(1, sizeof *s + n_parts * sizeof s->parts[0]);

    if (s == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for an update of %zu upstreams", n_parts);
    s->n_refs = 1;
    s->n_parts = n_parts;
    s->phase = UPDATE_OPEN;
    *out = s;
    return 0;
}

static void release_engines(struct fleet_session *s)
{
    for (size_t i = 0; i < s->n_parts; i++) {
        upstream_unref(s->parts[i].upstream);
        s->parts[i].upstream = NULL;
    }
}

struct fleet_session *fleet_session_ref(struct fleet_session *s)
{
    if (s != NULL)
        s->n_refs++;
    return s;
}

void fleet_session_unref(struct fleet_session *s)
{
    if (s == NULL || --s->n_refs > (s->listed ? 1U : 0U))
        return;
    release_engines(s);
    if (s->n_refs > 0)
        return;
    fleet_coverage_free(s->coverage);
    api_object_unref(s->list);
    api_object_unref(s->report);
    free(s);
}

bool fleet_session_is_open(const struct fleet_session *s)
{
    return s->phase != UPDATE_COMMITTED && s->phase != UPDATE_ABORTED;
}

bool fleet_session_has_part(const struct fleet_session *s, bool two_phase)
{
    for (size_t i = 0; i < s->n_parts; i++)
        if (!s->parts[i].out && s->parts[i].two_phase == two_phase)
            return true;
    return false;
}

bool fleet_session_overwrites(const struct fleet_session *s)
{
    for (size_t i = 0; i < s->n_parts; i++)
        if (!s->parts[i].two_phase)
            return true;
    return false;
}

bool fleet_session_has_quorum(const struct fleet_session *s, size_t min_ready)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n_parts; i++) {
        const struct fleet_part *p = &s->parts[i];

        if (p->removed)
            continue;
        if (p->out && p->two_phase)
            return false;
        n += !p->out;
    }
    return n >= min_ready;
}

/* @removed  those whose engines were removed, or the others */
static void drop_failed(struct fleet_session *s, const struct fleet_results *results,
                        const size_t *parts, bool removed)
{
    for (size_t i = 0; i < results->n; i++)
        if (s->parts[parts[i]].removed == removed)
            part_drop_failed(&s->parts[parts[i]], &results->list[i]);
}

enum session_verdict fleet_session_apply_results(struct fleet_session *s,
                                                 const struct fleet_results *results,
                                                 const size_t *parts, size_t min_ready,
                                                 bool repeats)
{
    size_t n_failed = 0, n_worked = 0;
    bool one_phase = false, lost = false;

    for (size_t i = 0; i < results->n; i++) {
        const struct fleet_result *r = &results->list[i];
        struct fleet_part *p = &s->parts[parts[i]];

        n_failed += !result_ok(r) && !p->removed;
        n_worked += r->outcome == FLEET_OK || r->outcome == FLEET_UNKNOWN ||
                    (!p->two_phase && fleet_result_may_have_run(r));
        one_phase = one_phase || !p->two_phase;
        lost = lost || (r->outcome == FLEET_LOST && !p->removed);
        if (!fleet_result_may_have_run(r))
            part_not_taken(p);
        part_set_result(p, r->outcome, r->status, &r->why);
    }
    drop_failed(s, results, parts, true);
    if (n_failed == 0)
        return VERDICT_CONTINUE;
    if (!lost && (n_worked == 0 || (repeats && !one_phase)))
        return VERDICT_RETRY;
    drop_failed(s, results, parts, false);
    return fleet_session_has_quorum(s, min_ready) ? VERDICT_CONTINUE : VERDICT_ABORT;
}

void fleet_client_error(const struct err *why, struct err *e)
{
    *e = *why;
    if (e->code == ERR_NOT_FOUND && e->field[0] == '\0')
        e->code = ERR_UPSTREAM;
}

void fleet_session_cause_error(const struct fleet_session *s, size_t min_ready, struct err *e)
{
    const struct fleet_part *cause = NULL;
    size_t n = 0;

    for (size_t i = 0; i < s->n_parts; i++) {
        const struct fleet_part *p = &s->parts[i];

        bool failed = p->out || (part_has_finished(p) && !part_serves(p));

        n += !failed && !p->removed;
        if (!failed || p->removed || p->why.code == ERR_NONE)
            continue;
        if (cause == NULL || (p->outcome == FLEET_REFUSED && cause->outcome != FLEET_REFUSED))
            cause = p;
    }
    if (cause == NULL) {
        (void)err_set(
            e, ERR_UNSYNCED, "",
            "upstreams that take part: %zu, and --min-ready is %zu: GET /v1/upstreams says why "
            "the others do not",
            n, min_ready);
        return;
    }
    fleet_client_error(&cause->why, e);
}

/* During a verify or a finish the trainer waits for its reply. */
bool fleet_lease_expired_locked(const struct fleet_session *s)
{
    return fleet_session_is_open(s) && s->n_running == 0 && s->phase != UPDATE_VERIFYING &&
           s->handoff == 0 && lease_timer_expired(&s->lease);
}
