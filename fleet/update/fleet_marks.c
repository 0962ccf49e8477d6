/* What upstreams that overwrite what they serve are named from before the first byte of an update
 * to its end: FLEET_UNFINISHED and its id. Should this server not live to end it, the next one
 * finds them so named, and serves nothing of them. That an upstream still has this name also says
 * that it is the process that took what came so far, and that nobody else has changed it.
 *
 * No name is given without a question before it: an upstream may be another by now, or another's.
 * The name of before is what it said itself, and is not given back to one that was bad already;
 * what is not known to have it again is fenced. Rejected: to give names by what is known here. A
 * process that came back was named after weights that it did not have, and half of an update well
 * again.
 *
 * Those of a release that takes no names, or tells none, go without. */
#include "fleet/update/fleet_run.h"

#include <stdio.h>
#include <string.h>

/* It says so of the route, or who stands between does. */
static bool takes_none(const struct fleet_said *said)
{
    static const int statuses[] = {400, 403, 404, 405, 422, 501};
    bool found = false;

    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        found = found || said->status == statuses[i];
    return found && said->end == FLEET_REFUSED;
}

static bool has_mark(const struct fleet_part *p)
{
    return strcmp(p->says, p->update_id) == 0;
}

/* A client's abort waits for it. */
static uint64_t undo_us(struct fleet_control *fc)
{
    uint64_t step_us = fleet_step_us(fc);

    return step_us < FLEET_ABORT_US ? step_us : FLEET_ABORT_US;
}

/* What each says now that it is named (p->says), of those of which `said` is FLEET_GOOD.
 * FLEET_SKIPPED: it has no words for it. */
static int ask_names(struct fleet_control *fc, struct fleet_session *s, const struct fleet_batch *b,
                     uint64_t timeout_us, struct fleet_said **said, struct err *e)
{
    if (fleet_ask_about(fc, WIRE_NAME, b->to, b->n, timeout_us, said, e) != 0)
        return -1;
    for (size_t i = 0; i < b->n; i++) {
        struct fleet_part *p = &s->parts[b->part[i]];
        struct fleet_said *one = &(*said)[i];
        char says[WIRE_NAME_MAX + 1] = "";
        struct upstream_at at;
        struct err why = {0};

        upstreams_at(fc->upstreams, p->upstream, &at);
        if (takes_none(one) || (one->end == FLEET_GOOD &&
                                wire_read_name(says, at.dialect, one->text != NULL ? one->text : "",
                                               one->text_len, &why) != 0))
            one->end = FLEET_SKIPPED;
        mtx_lock(&fc->lock);
        memcpy(p->says, says, sizeof p->says);
        mtx_unlock(&fc->lock);
    }
    return 0;
}

/* ---- before the first byte ---- */

/* Of those that told what they are named. */
static void take_marks(struct fleet_control *fc, struct fleet_session *s,
                       const struct fleet_batch *b, const struct fleet_said *said)
{
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < b->n; i++) {
        struct fleet_part *p = &s->parts[b->part[i]];

        if (takes_none(&said[i]))
            continue;
        p->marked = fleet_worked(&said[i]);
        if (said[i].end == FLEET_UNKNOWN)
            part_move(p, PART_ON_DOUBT); /* it may be named so at any time */
        if (!said_good(&said[i]))
            fleet_session_drop(p, said[i].end, said[i].status, &said[i].why);
    }
    mtx_unlock(&fc->lock);
}

/* Nobody waits for the answers any more, and what was asked may be done. */
static void doubt_all(struct fleet_control *fc, struct fleet_session *s,
                      const struct fleet_batch *b)
{
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < b->n; i++) {
        s->parts[b->part[i]].marked = true;
        part_move(&s->parts[b->part[i]], PART_ON_DOUBT);
    }
    mtx_unlock(&fc->lock);
}

static int mark(struct fleet_control *fc, struct fleet_session *s, struct fleet_batch *b,
                struct err *e)
{
    json_t *body = json_pack("{s:s+}", "weight_version", FLEET_UNFINISHED, s->id);
    struct fleet_said *said = NULL;
    int rc = -1;

    for (size_t i = 0; i < b->n; i++)
        b->to[i].body = body;
    if (body == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory to start an update");
    else
        rc = fleet_ask(fc, WIRE_LABEL, b->to, b->n, fleet_step_us(fc), &said, e);
    if (rc == 0)
        take_marks(fc, s, b, said);
    else if (e->code == ERR_DRAINING)
        doubt_all(fc, s, b);
    fleet_said_free(said, b->n);
    json_decref(body);
    return rc;
}

/* Not one that is another server's mark, or too long: that stays what it was named. */
static bool can_be_given(const char *label)
{
    return !fleet_is_unfinished(label) && strlen(label) < WIRE_NAME_MAX;
}

/* @named  then: those that told their names */
static void take_names(struct fleet_control *fc, struct fleet_session *s,
                       const struct fleet_batch *b, const struct fleet_said *said,
                       struct fleet_batch *named)
{
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < b->n; i++) {
        struct fleet_part *p = &s->parts[b->part[i]];

        if (can_be_given(p->was_label))
            memcpy(p->was_label, p->says, sizeof p->was_label);
        if (said[i].end == FLEET_GOOD)
            batch_add(named, s, b->part[i], NULL);
        else if (!said_good(&said[i]))
            fleet_session_drop(p, said[i].end, said[i].status, &said[i].why);
    }
    mtx_unlock(&fc->lock);
}

int fleet_mark_parts(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    struct fleet_batch b = {0}, named = {0};
    struct fleet_said *said = NULL;

    for (size_t i = 0; i < s->n_parts; i++)
        if (!s->parts[i].two_phase && part_takes_part(&s->parts[i]) && !s->parts[i].marked)
            batch_add(&b, s, i, NULL);
    if (b.n == 0)
        return 0;
    if (ask_names(fc, s, &b, fleet_step_us(fc), &said, e) != 0)
        return -1;
    take_names(fc, s, &b, said, &named);
    fleet_said_free(said, b.n);
    return named.n > 0 ? mark(fc, s, &named, e) : 0;
}

/* ---- that was not the first byte after all ---- */

/* Only a whole update makes good what may be named by one that is over. */
static void doubt(struct fleet_control *fc, struct fleet_part *p, const struct err *why)
{
    mtx_lock(&fc->lock);
    part_move(p, PART_ON_DOUBT);
    if (p->why.code == ERR_NONE)
        p->why = *why;
    mtx_unlock(&fc->lock);
}

static void forget_mark(struct fleet_control *fc, struct fleet_part *p)
{
    mtx_lock(&fc->lock);
    p->marked = false;
    mtx_unlock(&fc->lock);
}

/* Those that still have our name. Who has another was restarted, or somebody else has named it. */
static void ask_whose(struct fleet_control *fc, struct fleet_session *s,
                      const struct fleet_batch *b, struct fleet_batch *ours)
{
    struct fleet_said *said = NULL;
    struct err why = {0};

    if (ask_names(fc, s, b, undo_us(fc), &said, &why) != 0) {
        for (size_t i = 0; i < b->n; i++)
            doubt(fc, &s->parts[b->part[i]], &why);
        return;
    }
    for (size_t i = 0; i < b->n; i++) {
        struct fleet_part *p = &s->parts[b->part[i]];

        if (said[i].end != FLEET_GOOD)
            doubt(fc, p, &said[i].why);
        else if (has_mark(p))
            batch_add(ours, s, b->part[i], NULL);
        else
            forget_mark(fc, p);
    }
    fleet_said_free(said, b->n);
}

static void name_again(struct fleet_control *fc, struct fleet_session *s, struct fleet_batch *b)
{
    json_t *bodies[FLEET_MAX];
    struct fleet_said *said = NULL;
    struct err why = {0};
    bool made = true;

    for (size_t i = 0; i < b->n; i++) {
        bodies[i] = json_pack("{s:s}", "weight_version", s->parts[b->part[i]].was_label);
        b->to[i].body = bodies[i];
        made = made && bodies[i] != NULL;
    }
    if (!made)
        (void)err_set(&why, ERR_NO_MEMORY, "", "no memory to give upstreams their names again");
    else
        (void)fleet_ask(fc, WIRE_LABEL, b->to, b->n, undo_us(fc), &said, &why);
    for (size_t i = 0; i < b->n; i++) {
        struct fleet_part *p = &s->parts[b->part[i]];

        if (said != NULL && said_good(&said[i]))
            forget_mark(fc, p);
        else
            doubt(fc, p, said != NULL ? &said[i].why : &why);
        json_decref(bodies[i]);
    }
    fleet_said_free(said, b->n);
}

void fleet_unmark_parts(struct fleet_control *fc, struct fleet_session *s, bool dropped)
{
    struct fleet_batch b = {0}, ours = {0};
    struct err bad = {0};

    (void)err_set(&bad, ERR_UNSYNCED, "",
                  "update %s ended before its first byte came, and before that its weights were "
                  "not the fleet's",
                  s->id);
    for (size_t i = 0; i < s->n_parts; i++) {
        struct fleet_part *p = &s->parts[i];

        if (!p->marked || !part_is_unchanged(p) || (dropped && part_takes_part(p)))
            continue;
        if (p->before >= PART_WAS_OUT_OF_STEP || !can_be_given(p->was_label))
            doubt(fc, p, &bad);
        else
            batch_add(&b, s, i, NULL);
    }
    if (b.n > 0)
        ask_whose(fc, s, &b, &ours);
    if (ours.n > 0)
        name_again(fc, s, &ours);
}

/* ---- on the way, and at the end ---- */

static void drop(struct fleet_part *p, const struct fleet_said *said, const struct err *why)
{
    fleet_session_drop(p, FLEET_UNKNOWN, said != NULL ? said->status : 0, why);
}

/* One that takes no names may tell none. */
static void check_name(struct fleet_part *p, const struct fleet_said *said, const char *expected)
{
    struct err why = {0};

    if (!p->marked && (said->end == FLEET_SKIPPED || said->end == FLEET_REFUSED ||
                       (said->end == FLEET_GOOD && !p->says[0])))
        return;
    if (said->end == FLEET_GOOD && strcmp(p->says, expected) == 0)
        return;
    if (said->end == FLEET_GOOD || said->end == FLEET_SKIPPED)
        (void)err_set(&why, ERR_UPSTREAM, "",
                      "it was restarted, or changed by somebody else, during the update: it "
                      "serves '%.100s'",
                      p->says);
    drop(p, said, why.code != ERR_NONE ? &why : &said->why);
}

int fleet_check_marks(struct fleet_control *fc, struct fleet_session *s, bool all, struct err *e)
{
    struct fleet_said *said = NULL;
    struct fleet_batch b = {0};

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++) {
        const struct fleet_part *p = &s->parts[i];

        if (part_takes_part(p) &&
            (p->process_unnamed ? !part_is_unchanged(p) || p->marked : all && p->marked))
            batch_add(&b, s, i, NULL);
    }
    mtx_unlock(&fc->lock);
    if (b.n == 0)
        return 0;
    if (ask_names(fc, s, &b, fleet_step_us(fc), &said, e) != 0)
        return -1;
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < b.n; i++)
        check_name(&s->parts[b.part[i]], &said[i], s->parts[b.part[i]].update_id);
    mtx_unlock(&fc->lock);
    fleet_said_free(said, b.n);
    fleet_fence_parts(fc, s);
    if (fleet_stands(fc, s))
        return 0;
    fleet_tell_cause(fc, s, e);
    return -1;
}

/* Those whose end of an update takes no name still have ours. */
static void name_new(struct fleet_control *fc, struct fleet_session *s, struct fleet_batch *b)
{
    json_t *body = json_pack("{s:s}", "weight_version", s->label);
    struct fleet_said *said = NULL;
    struct err why = {0};

    for (size_t i = 0; i < b->n; i++)
        b->to[i].body = body;
    if (body == NULL)
        (void)err_set(&why, ERR_NO_MEMORY, "", "no memory to name the version");
    else
        (void)fleet_ask(fc, WIRE_LABEL, b->to, b->n, fleet_step_us(fc), &said, &why);
    json_decref(body);
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < b->n; i++)
        if (said == NULL || !said_good(&said[i]))
            drop(&s->parts[b->part[i]], said != NULL ? &said[i] : NULL,
                 said != NULL ? &said[i].why : &why);
    mtx_unlock(&fc->lock);
    fleet_said_free(said, b->n);
}

/* @kept  then: those that have ours yet; NULL: none may */
static void check_names(struct fleet_control *fc, struct fleet_session *s, struct fleet_batch *b,
                        struct fleet_batch *kept)
{
    struct fleet_said *said = NULL;
    struct err why = {0};
    int rc = ask_names(fc, s, b, fleet_step_us(fc), &said, &why);

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < b->n; i++) {
        struct fleet_part *p = &s->parts[b->part[i]];

        if (rc != 0)
            drop(p, NULL, &why);
        else if (kept != NULL && part_begins(p) && said[i].end == FLEET_GOOD && has_mark(p))
            batch_add(kept, s, b->part[i], NULL);
        else
            check_name(p, &said[i], s->label);
    }
    mtx_unlock(&fc->lock);
    fleet_said_free(said, b->n);
}

/* Those that do not name their process are asked again when all have been named: one that was
 * restarted meanwhile has another name. */
void fleet_name_parts(struct fleet_control *fc, struct fleet_session *s)
{
    struct fleet_batch b = {0}, kept = {0}, named = {0};

    for (size_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].state == PART_FINISHED &&
            (s->parts[i].process_unnamed || s->parts[i].marked))
            batch_add(&b, s, i, NULL);
    if (b.n > 0)
        check_names(fc, s, &b, &kept);
    if (kept.n > 0)
        name_new(fc, s, &kept);
    for (size_t i = 0; kept.n > 0 && i < s->n_parts; i++)
        if (s->parts[i].state == PART_FINISHED && s->parts[i].process_unnamed)
            batch_add(&named, s, i, NULL);
    if (named.n > 0)
        check_names(fc, s, &named, NULL);
    fleet_fence_parts(fc, s);
}
