#include "fleet/handoff/handoff_request.h"

#include "fleet/calls/fleet_control.h"
#include "fleet/calls/fleet_request.h"
#include "fleet/members/upstreams.h"
#include "fleet/update/fleet_session.h"
#include "fleet/update/fleet_update.h"

#include <stdlib.h>
#include <string.h>

static int handoff_refuse_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the hand-off");
}

int handoff_request_drop(const struct handoff_request *r, struct upstream *upstream,
                         const struct err *why, struct err *e)
{
    struct err named = {0};

    (void)err_set(&named, why->code, "", "%.200s: %s", upstream_name(upstream), why->msg);
    return fleet_drop_engine(r->fc, r->s, upstream, &named, e);
}

/* One that does not say has no part in the hand-off: with a wrong number, a rank would find no
 * entry of its own, or a window would be overwritten while a stage still reads it. */
static int handoff_request_note_answer(struct handoff_request *r, size_t part,
                                       const struct fleet_result *result, struct err *e)
{
    struct err cause = result->why, why = {0};

    if (result->outcome == FLEET_OK &&
        api_read_bucket_ranks(&r->ranks[part], result->text, result->text_len, &cause) == 0) {
        r->n_sglangs++;
        return 0;
    }
    (void)err_set(&why, cause.code != ERR_NONE ? cause.code : ERR_UPSTREAM, "",
                  "nothing was sent to it, as it did not say how many ranks it has; it is asked "
                  "again at the next try: %.300s",
                  cause.msg);
    return handoff_request_drop(r, result->upstream, &why, e);
}

static int handoff_read_ranks(struct handoff_request *r, struct err *e)
{
    struct fleet_target sglangs[FLEET_MAX];
    fleet_results_auto results = {0};
    size_t parts[FLEET_MAX], n = 0;
    int rc;

    for (size_t i = 0; i < r->s->n_parts; i++) {
        struct upstream *it = r->s->parts[i].upstream;

        if (upstream_kind(it) != UPSTREAM_SGLANG)
            continue;
        parts[n] = i;
        sglangs[n++] = (struct fleet_target){.upstream = it, .given_up = r->s->given_up};
    }
    rc = fleet_query(r->fc, API_GET_RANKS, sglangs, n, fleet_step_us(r->fc), &results, e);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = handoff_request_note_answer(r, parts[i], &results.list[i], e);
    return rc;
}

int handoff_request_new(struct handoff_request **out, struct fleet_control *fc,
                        struct fleet_session *s, struct err *e)
{
    struct handoff_request *r = calloc(1, sizeof *r);

    if (r == NULL)
        return handoff_refuse_memory(e);
    r->fc = fc;
    r->s = s;
    if (handoff_read_ranks(r, e) != 0) {
        handoff_request_free(r);
        return -1;
    }
    *out = r;
    return 0;
}

void handoff_request_free(struct handoff_request *r)
{
    if (r != NULL)
        handoff_request_clear(r);
    free(r);
}

const char **handoff_request_entries(struct handoff_request *r, size_t part, struct err *e)
{
    uint64_t n = r->ranks[part].n_entries;
    const char **entries = calloc(n, sizeof *entries);

    r->sglangs[part] = (struct api_tensors){
        .serialized = true, .entries = entries, .n_entries = entries != NULL ? n : 0};
    if (entries == NULL)
        (void)handoff_refuse_memory(e);
    return entries;
}

int handoff_request_send(struct handoff_request *r, struct err *e)
{
    struct api_args args[FLEET_MAX] = {{0}};
    struct fleet_tensors t = {.source = "handoff",
                              .args = {api_object_of(&r->tensors), .tensors = &r->tensors},
                              .of = args,
                              .mapped = r->mapped};
    bool made = t.args.native != NULL;
    int rc;

    for (size_t i = 0; i < r->s->n_parts && made; i++) {
        if (r->sglangs[i].entries == NULL)
            continue;
        args[i] = (struct api_args){api_object_of(&r->sglangs[i]), .tensors = &r->sglangs[i]};
        made = args[i].native != NULL;
    }
    rc = made ? fleet_send_tensors(r->fc, r->s, &t, e) : handoff_refuse_memory(e);
    for (size_t i = 0; i < r->s->n_parts; i++)
        api_object_unref(args[i].native);
    api_object_unref(t.args.native);
    return rc;
}

void handoff_request_clear(struct handoff_request *r)
{
    for (size_t i = 0; i < r->s->n_parts; i++)
        free((void *)(uintptr_t)r->sglangs[i].entries);
    r->tensors = (struct api_tensors){0};
    memset(r->sglangs, 0, sizeof r->sglangs);
    memset(r->mapped, 0, sizeof r->mapped);
}
