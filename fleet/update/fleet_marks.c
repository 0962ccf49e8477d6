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

#include <assert.h>
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

/* What each says now that it is named (p->says). FLEET_SKIPPED: it has no words for it. With the
 * lock. */
static void read_name(struct fleet_control *fc, struct fleet_part *p, struct fleet_said *said)
{
    const char *text = said->text != NULL ? said->text : "";
    struct upstream_at at;
    struct err why = {0};

    upstreams_at(fc->upstreams, p->upstream, &at);
    p->says[0] = '\0';
    if (takes_none(said) || (said->end == FLEET_GOOD &&
                             wire_read_name(p->says, at.dialect, text, said->text_len, &why) != 0))
        said->end = FLEET_SKIPPED;
}

/* ---- before the first byte ---- */

struct marking {
    struct fleet_control *fc;
    struct part_set named; /* those that told their names */
};

static void take_mark(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    (void)part;
    (void)arg;
    if (takes_none(said))
        return;
    p->marked = fleet_worked(said);
    if (said->end == FLEET_UNKNOWN)
        part_move(p, PART_ON_DOUBT); /* it may be named so at any time */
    part_drop_failed(p, said);
}

/* Nobody waits for the answers any more, and what was asked may be done. */
static void doubt_marks(struct fleet_control *fc, struct fleet_session *s,
                        const struct part_set *of)
{
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        if (of->has[i]) {
            s->parts[i].marked = true;
            part_move(&s->parts[i], PART_ON_DOUBT);
        }
    mtx_unlock(&fc->lock);
}

static int parts_mark(struct fleet_control *fc, struct fleet_session *s,
                      const struct part_set *named, struct err *e)
{
    json_t *body = json_pack("{s:s+}", "weight_version", FLEET_UNFINISHED, s->id);
    const struct fanout f = {.op = WIRE_LABEL, .body = body, .only = named, .on_result = take_mark};
    int rc = -1;

    if (body == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory to start an update");
    else
        rc = fanout_apply(fc, s, &f, e);
    if (rc != 0 && e->code == ERR_DRAINING)
        doubt_marks(fc, s, named);
    json_decref(body);
    return rc;
}

/* Not one that is another server's mark, or too long: that stays what it was named. */
static bool can_be_given(const char *label)
{
    return !fleet_is_unfinished(label) && strlen(label) < WIRE_NAME_MAX;
}

static bool is_to_mark(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return !p->two_phase && part_takes_part(p) && !p->marked;
}

static void take_old_name(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    struct marking *m = arg;

    read_name(m->fc, p, said);
    if (can_be_given(p->was_label))
        memcpy(p->was_label, p->says, sizeof p->was_label);
    m->named.has[part] = said->end == FLEET_GOOD;
    part_drop_failed(p, said);
}

int fleet_mark_parts(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    struct marking m = {.fc = fc};
    const struct fanout f = {.about_itself = true,
                             .question = WIRE_NAME,
                             .select = is_to_mark,
                             .on_result = take_old_name,
                             .arg = &m};

    assert(fleet_has_op(fc));
    return fanout_apply(fc, s, &f, e) == 0 ? parts_mark(fc, s, &m.named, e) : -1;
}

/* ---- that was not the first byte after all ---- */

/* Only a whole update makes good what may be named by one that is over. With the lock. */
static void part_doubt(struct fleet_part *p, const struct err *why)
{
    part_move(p, PART_ON_DOUBT);
    if (p->why.code == ERR_NONE)
        p->why = *why;
}

struct unmarking {
    struct fleet_control *fc;
    bool dropped;         /* only those that are out */
    struct part_set ours; /* those that still have our name */
};

static bool is_to_unmark(const struct fleet_part *p, const void *arg)
{
    const struct unmarking *u = arg;

    return p->marked && part_is_unchanged(p) && !(u->dropped && part_takes_part(p));
}

/* It had another server's mark, or weights that were not the fleet's. */
static bool was_bad(const struct fleet_part *p)
{
    return p->before >= PART_WAS_OUT_OF_STEP || !can_be_given(p->was_label);
}

/* One that has another name was restarted, or somebody else has named it. */
static void take_whose(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    struct unmarking *u = arg;

    read_name(u->fc, p, said);
    if (said->end != FLEET_GOOD)
        part_doubt(p, &said->why);
    else if (has_mark(p))
        u->ours.has[part] = true;
    else
        p->marked = false;
}

static void take_name_again(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    (void)part;
    (void)arg;
    if (said_good(said))
        p->marked = false;
    else
        part_doubt(p, &said->why);
}

static void parts_name_again(struct fleet_control *fc, struct fleet_session *s,
                             const struct part_set *ours)
{
    json_t *bodies[FLEET_MAX] = {NULL};
    const struct fanout f = {.op = WIRE_LABEL,
                             .bodies = bodies,
                             .timeout_us = undo_us(fc),
                             .only = ours,
                             .on_result = take_name_again};
    struct err why = {0};
    bool made = true;

    for (size_t i = 0; i < s->n_parts; i++)
        if (ours->has[i]) {
            bodies[i] = json_pack("{s:s}", "weight_version", s->parts[i].was_label);
            made = made && bodies[i] != NULL;
        }
    if (!made)
        (void)err_set(&why, ERR_NO_MEMORY, "", "no memory to give upstreams their names again");
    fanout_or_fail(fc, s, &f, &why);
    for (size_t i = 0; i < s->n_parts; i++)
        json_decref(bodies[i]);
}

static void doubt_bad(struct fleet_control *fc, struct fleet_session *s, const struct unmarking *u)
{
    struct err bad = {0};

    (void)err_set(&bad, ERR_UNSYNCED, "",
                  "update %s ended before its first byte came, and before that its weights were "
                  "not the fleet's",
                  s->id);
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        if (is_to_unmark(&s->parts[i], u) && was_bad(&s->parts[i]))
            part_doubt(&s->parts[i], &bad);
    mtx_unlock(&fc->lock);
}

void fleet_unmark_parts(struct fleet_control *fc, struct fleet_session *s, bool dropped)
{
    struct unmarking u = {.fc = fc, .dropped = dropped};
    const struct fanout f = {.about_itself = true,
                             .question = WIRE_NAME,
                             .timeout_us = undo_us(fc),
                             .select = is_to_unmark,
                             .on_result = take_whose,
                             .arg = &u};
    struct err why = {0};

    assert(fleet_has_op(fc));
    doubt_bad(fc, s, &u);
    fanout_or_fail(fc, s, &f, &why);
    parts_name_again(fc, s, &u.ours);
}

/* ---- on the way, and at the end ---- */

/* One that takes no names may tell none. With the lock. */
static void name_check(struct fleet_part *p, const struct fleet_said *said, const char *expected)
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
    fleet_session_drop(p, FLEET_UNKNOWN, said->status, why.code != ERR_NONE ? &why : &said->why);
}

struct checking {
    struct fleet_control *fc;
    bool all; /* also those that are known by more than their mark */
    size_t n_asked;
    const char *label;     /* of the new version */
    struct part_set *kept; /* those that have our name yet; NULL: none may */
};

static bool is_to_check(const struct fleet_part *p, const void *arg)
{
    const struct checking *c = arg;

    return part_takes_part(p) &&
           (p->process_unnamed ? !part_is_unchanged(p) || p->marked : c->all && p->marked);
}

static void take_mark_check(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    struct checking *c = arg;

    (void)part;
    c->n_asked++;
    read_name(c->fc, p, said);
    name_check(p, said, p->update_id);
}

int fleet_check_marks(struct fleet_control *fc, struct fleet_session *s, bool all, struct err *e)
{
    struct checking c = {.fc = fc, .all = all};
    const struct fanout f = {.about_itself = true,
                             .question = WIRE_NAME,
                             .select = is_to_check,
                             .on_result = take_mark_check,
                             .arg = &c};

    if (fanout_apply(fc, s, &f, e) != 0)
        return -1;
    if (c.n_asked == 0)
        return 0;
    fleet_fence_parts(fc, s);
    if (fleet_stands(fc, s))
        return 0;
    fleet_tell_cause(fc, s, e);
    return -1;
}

static void take_new_name(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    (void)part;
    if (said->end == FLEET_GOOD)
        (void)snprintf(p->says, sizeof p->says, "%s", (const char *)arg);
    if (!said_good(said))
        fleet_session_drop(p, FLEET_UNKNOWN, said->status, &said->why);
}

/* Those whose end of an update takes no name still have ours. */
static void parts_name_new(struct fleet_control *fc, struct fleet_session *s,
                           const struct part_set *kept)
{
    json_t *body = json_pack("{s:s}", "weight_version", s->label);
    const struct fanout f = {
        .op = WIRE_LABEL, .body = body, .only = kept, .on_result = take_new_name, .arg = s->label};
    struct err why = {0};

    if (body == NULL)
        (void)err_set(&why, ERR_NO_MEMORY, "", "no memory to name the version");
    fanout_or_fail(fc, s, &f, &why);
    json_decref(body);
}

static void take_name_check(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    struct checking *c = arg;

    read_name(c->fc, p, said);
    if (c->kept != NULL && part_begins(p) && said->end == FLEET_GOOD && has_mark(p))
        c->kept->has[part] = true;
    else
        name_check(p, said, c->label);
}

static bool has_finished_named(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return p->state == PART_FINISHED && (p->process_unnamed || p->marked);
}

static bool has_finished_unnamed(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return p->state == PART_FINISHED && p->process_unnamed;
}

static void names_check(struct fleet_control *fc, struct fleet_session *s,
                        bool (*select)(const struct fleet_part *p, const void *arg),
                        struct part_set *kept)
{
    struct checking c = {.fc = fc, .label = s->label, .kept = kept};
    const struct fanout f = {.about_itself = true,
                             .question = WIRE_NAME,
                             .select = select,
                             .on_result = take_name_check,
                             .arg = &c};
    struct err why = {0};

    fanout_or_fail(fc, s, &f, &why);
}

/* Those that do not name their process are asked again when all have been named: one that was
 * restarted meanwhile has another name. */
void fleet_name_parts(struct fleet_control *fc, struct fleet_session *s)
{
    struct part_set kept = {{false}};
    bool any = false;

    assert(fleet_has_op(fc));
    names_check(fc, s, has_finished_named, &kept);
    for (size_t i = 0; i < s->n_parts; i++)
        any = any || kept.has[i];
    if (any) {
        parts_name_new(fc, s, &kept);
        names_check(fc, s, has_finished_unnamed, NULL);
    }
    fleet_fence_parts(fc, s);
}
