#include "fleet/handoff/handoff_ranks.h"

#include "fleet/calls/fleet_control.h"
#include "fleet/calls/fleet_request.h"
#include "fleet/members/upstreams.h"
#include "fleet/update/fleet_session.h"
#include "fleet/update/fleet_update.h"

#include <stdlib.h>

/* @out, @parts  [s->n_parts] */
static size_t find_sglangs(struct fleet_target *out, size_t *parts, const struct fleet_session *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n_parts; i++) {
        if (upstream_kind(s->parts[i].upstream) != UPSTREAM_SGLANG)
            continue;
        parts[n] = i;
        out[n++] = (struct fleet_target){.upstream = s->parts[i].upstream, .given_up = s->given_up};
    }
    return n;
}

/* One that does not say has no part in the hand-off: with a wrong number, a rank would find no
 * entry of its own, or a window would be overwritten while a stage still reads it. */
static int note_answer(struct handoff_ranks *ranks, struct fleet_control *fc,
                       struct fleet_session *s, size_t part, const struct fleet_result *r,
                       struct err *e)
{
    struct err cause = r->why, why = {0};

    if (r->outcome == FLEET_OK &&
        api_read_bucket_ranks(&ranks->of[part], r->text != NULL ? r->text : "", r->text_len,
                              &cause) == 0) {
        ranks->is_in[part] = true;
        return 0;
    }
    (void)err_set(&why, cause.code != ERR_NONE ? cause.code : ERR_UPSTREAM, "",
                  "%.200s: nothing was sent to it, as it did not say how many ranks it has; it is "
                  "asked again at the next try: %.300s",
                  upstream_name(r->upstream), cause.msg);
    return fleet_drop_engine(fc, s, r->upstream, &why, e);
}

int handoff_ranks_read(struct handoff_ranks *ranks, struct fleet_control *fc,
                       struct fleet_session *s, struct err *e)
{
    struct fleet_target *all = calloc(FLEET_MAX, sizeof *all);
    struct fleet_result *results = NULL;
    size_t parts[FLEET_MAX], n;
    int rc;

    if (all == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the hand-off");
    *ranks = (struct handoff_ranks){0};
    n = find_sglangs(all, parts, s);
    rc = fleet_query(fc, API_GET_RANKS, all, n, fleet_step_us(fc), &results, e);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = note_answer(ranks, fc, s, parts[i], &results[i], e);
    fleet_results_free(results, results != NULL ? n : 0);
    free(all);
    return rc;
}
