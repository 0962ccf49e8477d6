/* What stands still for an update goes on: what got nothing of it, and at the end what has it. */
#include "fleet/update/fleet_run.h"

#include <assert.h>

/* The trainer's own pause and sleep are not ended with an update. */
static bool may_go_on(struct fleet_control *fc)
{
    bool on;

    mtx_lock(&fc->lock);
    on = !fc->hold.on && !fc->weights_asleep && !fc->kv_asleep;
    mtx_unlock(&fc->lock);
    return on;
}

struct letting_go {
    bool dropped; /* only those that are out */
};

/* It stands still for the update, and got nothing of it. What was fenced stands still. */
static bool is_unchanged_held(const struct fleet_part *p, const void *arg)
{
    const struct letting_go *l = arg;

    return p->held && part_is_unchanged(p) && p->before != PART_WAS_FENCED &&
           !(l->dropped && part_takes_part(p));
}

static bool is_finished_held(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return p->state == PART_FINISHED && p->held;
}

static void take_resume(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    (void)part;
    (void)arg;
    p->held = !said_good(said);
    if (!p->held || !part_takes_part(p))
        return;
    part_move(p, PART_ON_NO_RESUME);
    part_note(p, said->end, said->status, &said->why);
}

/* A pause that a trainer has asked for meanwhile has the last word: its end tells them too.
 * @select  whom */
static void parts_let_go(struct fleet_control *fc, struct fleet_session *s,
                         bool (*select)(const struct fleet_part *p, const void *arg),
                         struct letting_go *l)
{
    const struct fanout f = {.op = WIRE_RESUME,
                             .select = select,
                             .on_result = take_resume,
                             .arg = l,
                             .fence_failed = true};
    struct err ignored = {0};
    struct fleet_batch b;

    if (fanout_select(fc, s, &f, &b) == 0)
        return;
    if (!fleet_flow_soon(fc, "the end of an update")) {
        fleet_note_behind(fc, b.to, b.n);
        return;
    }
    if (may_go_on(fc))
        (void)fanout_apply(fc, s, &f, &ignored);
    fleet_flow_end(fc);
}

void fleet_release_finished(struct fleet_control *fc, struct fleet_session *s)
{
    struct letting_go all = {.dropped = false};

    if (may_go_on(fc))
        parts_let_go(fc, s, is_finished_held, &all);
}

/* What was started and got nothing is ended: without a label that changes nothing. A start without
 * an answer may not have been one; then there is nothing to end. An SGLang that has none open,
 * since it was restarted, refuses to end it. */
static void take_close(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    bool none_open = p->process_unnamed && said->end == FLEET_REFUSED && said->status == 400;
    bool doubtful = !part_takes_part(p) && p->end == FLEET_UNKNOWN;

    (void)part;
    (void)arg;
    if (said_good(said) || none_open || (doubtful && said->end == FLEET_REFUSED))
        p->own = PART_OWN_CLOSED;
    else
        part_move(p, PART_ON_DOUBT);
}

/* What was started, and will not be finished, is closed where nothing came. An SGLang is closed
 * also where something did, if it answers: it is fenced, and its next update may be one of files,
 * which closes nothing. */
static bool must_close(const struct fleet_part *p, const void *arg)
{
    const struct letting_go *l = arg;
    bool answers = p->end != FLEET_UNKNOWN && p->end != FLEET_UNSENT;

    if ((l->dropped && part_takes_part(p)) || p->state == PART_FINISHED || p->state == PART_STUCK)
        return false;
    return part_begins(p) && p->own == PART_OWN_OPEN &&
           (part_is_unchanged(p) || (p->process_unnamed && answers));
}

void fleet_release(struct fleet_control *fc, struct fleet_session *s, bool dropped)
{
    struct letting_go l = {.dropped = dropped};
    const struct fanout close = {
        .op = WIRE_FINISH, .select = must_close, .on_result = take_close, .arg = &l};
    struct err ignored = {0};

    assert(fleet_has_op(fc));
    (void)fanout_apply(fc, s, &close, &ignored);
    fleet_unmark_parts(fc, s, dropped);
    parts_let_go(fc, s, is_unchanged_held, &l);
    fleet_fence_parts(fc, s);
}
