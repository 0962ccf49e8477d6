/* Upstreams that overwrite what they serve are told to start an update before their first tensor,
 * and only then: a start may already take the weights apart, so they stand still. Which of them
 * know of no start is found out by that, each time: nothing that was remembered could be another's.
 */
#include "fleet/update/fleet_run.h"

struct beginning {
    struct fleet_session *s;
    bool by_path, files; /* files: those that take these tensors without a start, else those that do
                            not */
    struct part_set again;
};

/* One that has not been told to start. An SGLang takes a file without. */
static bool is_to_begin(const struct fleet_part *p, const void *arg)
{
    const struct beginning *b = arg;

    return part_begins(p) && part_takes_part(p) && p->own == PART_OWN_CLOSED &&
           (b->by_path && p->process_unnamed) == b->files;
}

/* May it have an update open that did not end, of this server or one before it? */
static bool may_be_open(const struct fleet_part *p)
{
    return p->before != PART_WAS_IN_STEP || p->was_first;
}

/* An end without a label closes such an update, which there is no word to give up. Whether there
 * was one is not looked at: the start that follows, or the tensors, would say so.
 * @f  of whom */
static int close_open(struct fleet_control *fc, struct fleet_session *s, const struct fanout *f,
                      struct err *e)
{
    struct fleet_said *closed = NULL;
    struct fleet_batch b;
    int rc = 0;

    (void)fanout_select(fc, s, f, &b);
    for (size_t i = 0; i < b.n; i++)
        b.to[i].about.has_begun = true;
    if (b.n > 0)
        rc = fleet_ask(fc, WIRE_FINISH, b.to, b.n, fleet_step_us(fc), &closed, e);
    fleet_said_free(closed, b.n);
    return rc;
}

/* An SGLang before 0.5.18 takes tensors as they come. */
static bool needs_no_begin(const struct fleet_part *p, const struct fleet_said *said)
{
    return p->process_unnamed && said->end == FLEET_REFUSED &&
           (said->status == 404 || said->status == 405);
}

/* Those that refuse, since they may have an update open, are told again. */
static void take_begin(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    struct beginning *b = arg;

    p->own = said->end == FLEET_GOOD || said->end == FLEET_UNKNOWN ? PART_OWN_OPEN
                                                                   : PART_OWN_CLOSED;
    if (needs_no_begin(p, said))
        p->own = PART_OWN_NONE;
    else if (said->end == FLEET_REFUSED && may_be_open(p))
        b->again.has[part] = true;
    else
        part_drop_failed(p, said);
}

static void take_begin_again(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    (void)part;
    (void)arg;
    if (said_good(said) || said->end == FLEET_UNKNOWN)
        p->own = PART_OWN_OPEN;
    part_drop_failed(p, said);
}

static int begin_tensors(struct fleet_control *fc, struct beginning *b, const json_t *start,
                         struct err *e)
{
    const struct fanout first = {
        .op = WIRE_START, .body = start, .select = is_to_begin, .on_result = take_begin, .arg = b};
    const struct fanout again = {
        .op = WIRE_START, .body = start, .only = &b->again, .on_result = take_begin_again};

    if (fanout_apply(fc, b->s, &first, e) != 0 || close_open(fc, b->s, &again, e) != 0)
        return -1;
    return fanout_apply(fc, b->s, &again, e);
}

static bool comes_by_path(const json_t *tensors)
{
    return json_object_get(tensors, "path") != NULL;
}

bool fleet_must_begin(struct fleet_control *fc, const struct fleet_session *s,
                      const json_t *tensors)
{
    const struct beginning b = {.by_path = comes_by_path(tensors)};
    bool any = false;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        any = any || is_to_begin(&s->parts[i], &b);
    mtx_unlock(&fc->lock);
    return any;
}

static bool is_file_to_close(const struct fleet_part *p, const void *arg)
{
    return is_to_begin(p, arg) && may_be_open(p);
}

int fleet_begin_parts(struct fleet_control *fc, struct fleet_session *s, const json_t *tensors,
                      struct err *e)
{
    struct beginning files = {.s = s, .by_path = comes_by_path(tensors), .files = true};
    struct beginning rest = {.s = s, .by_path = files.by_path};
    const struct fanout to_close = {.select = is_file_to_close, .arg = &files};
    json_t *start = s->selector != NULL ? json_pack("{s:s}", "selector", s->selector)
                                        : json_object();
    int rc = -1;

    if (start == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory to start an update");
    else if (close_open(fc, s, &to_close, e) == 0)
        rc = begin_tensors(fc, &rest, start, e);
    json_decref(start);
    return rc;
}
