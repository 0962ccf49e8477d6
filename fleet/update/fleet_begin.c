/* Upstreams that overwrite what they serve are told to start an update before their first tensor,
 * and only then: a start may already take the weights apart, so they stand still. Which of them
 * know of no start is found out by that, each time: nothing that was remembered could be another's.
 */
#include "fleet/update/fleet_run.h"

/* Those that have not been told to start.
 * @files  those that take this without: an SGLang, if it is a file; else those that do not */
static void to_begin(struct fleet_session *s, const json_t *tensors, bool files,
                     struct fleet_batch *b, const json_t *start)
{
    bool by_path = json_object_get(tensors, "path") != NULL;

    for (size_t i = 0; i < s->n_parts; i++) {
        const struct fleet_part *p = &s->parts[i];

        if (part_begins(p) && part_takes_part(p) && p->own == PART_OWN_CLOSED &&
            (by_path && p->process_unnamed) == files)
            batch_add(b, s, i, start);
    }
}

/* May it have an update open that did not end, of this server or one before it? */
static bool may_be_open(const struct fleet_part *p)
{
    return p->before != PART_WAS_IN_STEP || p->was_first;
}

/* An end without a label closes such an update, which there is no word to give up. Whether there
 * was one is not looked at: the start that follows, or the tensors, would say so. */
static int close_open(struct fleet_control *fc, struct fleet_batch *b, struct err *e)
{
    struct fleet_said *closed = NULL;

    for (size_t i = 0; i < b->n; i++)
        b->to[i].about.has_begun = true;
    if (b->n > 0 && fleet_ask(fc, WIRE_FINISH, b->to, b->n, fleet_step_us(fc), &closed, e) != 0)
        return -1;
    fleet_said_free(closed, b->n);
    return 0;
}

/* An SGLang before 0.5.18 takes tensors as they come. */
static bool needs_no_begin(const struct fleet_part *p, const struct fleet_said *said)
{
    return p->process_unnamed && said->end == FLEET_REFUSED &&
           (said->status == 404 || said->status == 405);
}

/* @again  then: those that refuse, since they may have an update open */
static void take_begins(struct fleet_control *fc, struct fleet_session *s,
                        const struct fleet_batch *b, const struct fleet_said *said,
                        struct fleet_batch *again)
{
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < b->n; i++) {
        struct fleet_part *p = &s->parts[b->part[i]];

        p->own = said[i].end == FLEET_GOOD || said[i].end == FLEET_UNKNOWN ? PART_OWN_OPEN
                                                                           : PART_OWN_CLOSED;
        if (needs_no_begin(p, &said[i]))
            p->own = PART_OWN_NONE;
        else if (said[i].end == FLEET_REFUSED && may_be_open(p))
            batch_add(again, s, b->part[i], b->to[i].body);
        else if (!said_good(&said[i]))
            fleet_session_drop(p, said[i].end, said[i].status, &said[i].why);
    }
    mtx_unlock(&fc->lock);
}

static void own_opened(struct fleet_part *p)
{
    p->own = PART_OWN_OPEN;
}

static int begin_tensors(struct fleet_control *fc, struct fleet_session *s, const json_t *tensors,
                         const json_t *start, struct err *e)
{
    struct fleet_batch b = {0}, again = {0};
    struct fleet_said *said = NULL;

    to_begin(s, tensors, false, &b, start);
    if (b.n == 0)
        return 0;
    if (fleet_ask(fc, WIRE_START, b.to, b.n, fleet_step_us(fc), &said, e) != 0)
        return -1;
    take_begins(fc, s, &b, said, &again);
    fleet_said_free(said, b.n);
    if (again.n == 0)
        return 0;
    return close_open(fc, &again, e) == 0
               ? fleet_ask_parts(fc, WIRE_START, s, &again, own_opened, e)
               : -1;
}

bool fleet_must_begin(struct fleet_session *s, const json_t *tensors)
{
    struct fleet_batch rest = {0};

    to_begin(s, tensors, false, &rest, NULL);
    return rest.n > 0;
}

int fleet_begin_parts(struct fleet_control *fc, struct fleet_session *s, const json_t *tensors,
                      struct err *e)
{
    json_t *start = s->selector != NULL ? json_pack("{s:s}", "selector", s->selector)
                                        : json_object();
    struct fleet_batch all = {0}, files = {0};
    int rc = -1;

    to_begin(s, tensors, true, &all, NULL);
    for (size_t i = 0; i < all.n; i++)
        if (may_be_open(&s->parts[all.part[i]]))
            batch_add(&files, s, all.part[i], NULL);
    if (start == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory to start an update");
    else if (close_open(fc, &files, e) == 0)
        rc = begin_tensors(fc, s, tensors, start, e);
    json_decref(start);
    return rc;
}
