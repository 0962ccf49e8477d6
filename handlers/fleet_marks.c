/* What upstreams that overwrite what they serve are named while an update is not at its end
 * (FLEET_UNFINISHED): should this server not live to end it, the next one finds it so. An SGLang is
 * named by the tensors themselves, which also tells whether the process that took them is still
 * there; a vLLM before it is told to start. Those of a release that takes no names go without. */
#include "handlers/fleet_run.h"

#include <string.h>

static bool takes_no_names(const struct fleet_said *said)
{
    return said->end == FLEET_REFUSED && (said->status == 404 || said->status == 405);
}

int fleet_mark_parts(struct app *app, struct fleet_session *s, struct err *e)
{
    struct fleet_control *fc = app->fleet_control;
    json_t *body = json_pack("{s:s+}", "weight_version", FLEET_UNFINISHED, s->id);
    struct fleet_said *said = NULL;
    struct fleet_batch b = {0};
    int rc = 0;

    for (size_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].begins && !s->parts[i].out && !s->parts[i].marked)
            batch_add(&b, s, i, body);
    if (body == NULL)
        rc = err_set(e, ERR_NO_MEMORY, "", "no memory to start an update");
    else if (b.n > 0)
        rc = fleet_ask(app, WIRE_LABEL, b.to, b.n, fleet_step_us(app), &said, e);
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < b.n; i++) {
        struct fleet_part *p = &s->parts[b.part[i]];

        p->marked = said == NULL || said[i].end == FLEET_GOOD || said[i].end == FLEET_UNKNOWN;
        if (said != NULL && !said_good(&said[i]) && !takes_no_names(&said[i]))
            fleet_session_drop(p, said[i].end, said[i].status, &said[i].why);
    }
    mtx_unlock(&fc->lock);
    fleet_said_free(said, b.n);
    json_decref(body);
    return rc;
}

/* Those that did not take it go on under the unfinished one's. */
static void unmark(struct app *app, struct fleet_session *s, struct fleet_batch *b)
{
    struct fleet_control *fc = app->fleet_control;
    struct fleet_said *said = NULL;
    struct err ignored = {0};

    if (b->n == 0)
        return;
    (void)fleet_ask(app, WIRE_LABEL, b->to, b->n, fleet_step_us(app), &said, &ignored);
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < b->n; i++) {
        struct fleet_part *p = &s->parts[b->part[i]];

        p->marked = said == NULL || !said_good(&said[i]);
        p->touched = p->touched || p->marked; /* as good as */
    }
    mtx_unlock(&fc->lock);
    fleet_said_free(said, b->n);
}

void fleet_unmark_parts(struct app *app, struct fleet_session *s, bool dropped)
{
    struct fleet_control *fc = app->fleet_control;
    json_t *bodies[FLEET_MAX];
    struct fleet_batch b = {0};

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++) {
        struct fleet_part *p = &s->parts[i];

        if (!p->marked || p->touched || p->finished || (dropped && !p->out))
            continue;
        bodies[b.n] = json_pack("{s:s}", "weight_version", p->was_label);
        if (bodies[b.n] != NULL)
            batch_add(&b, s, i, bodies[b.n]);
        else
            p->touched = true; /* as good as */
    }
    mtx_unlock(&fc->lock);
    unmark(app, s, &b);
    for (size_t i = 0; i < b.n; i++)
        json_decref(bodies[i]);
}

void fleet_name_marked(struct app *app, struct fleet_session *s)
{
    struct fleet_control *fc = app->fleet_control;
    json_t *body = json_pack("{s:s}", "weight_version", s->label);
    struct fleet_said *said = NULL;
    struct fleet_batch b = {0};
    struct err e = {0};

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].marked && s->parts[i].finished)
            batch_add(&b, s, i, body);
    mtx_unlock(&fc->lock);
    if (body == NULL)
        (void)err_set(&e, ERR_NO_MEMORY, "", "no memory to name the version");
    else if (b.n > 0)
        (void)fleet_ask(app, WIRE_LABEL, b.to, b.n, fleet_step_us(app), &said, &e);
    json_decref(body);
    for (size_t i = 0; i < b.n; i++) {
        struct fleet_part *p = &s->parts[b.part[i]];

        if (said != NULL && said_good(&said[i]))
            continue;
        mtx_lock(&fc->lock);
        p->finished = false;
        fleet_session_drop(p, said != NULL ? said[i].end : FLEET_UNKNOWN,
                           said != NULL ? said[i].status : 0, said != NULL ? &said[i].why : &e);
        mtx_unlock(&fc->lock);
        fleet_fence(fleet_of(app), p->upstream, &p->why);
    }
    fleet_said_free(said, b.n);
}

static void check_mark(const struct fleet_session *s, struct fleet_part *p,
                       const struct fleet_said *said)
{
    const char *expected = p->finished ? s->label : p->update_id;
    struct upstream_saw saw = {0};
    struct err why = {0};

    if (said->end == FLEET_REFUSED)
        return; /* too old to know the question */
    if (said->end == FLEET_GOOD && said->text != NULL)
        wire_read_who(&saw, WIRE_SGLANG, said->text, said->text_len);
    if (said->end == FLEET_GOOD && (saw.label[0] == '\0' || strcmp(saw.label, expected) == 0))
        return;
    if (said->end == FLEET_GOOD)
        (void)err_set(&why, ERR_UPSTREAM, "",
                      "it was restarted, or changed by somebody else, during the update: it "
                      "serves '%.100s'",
                      saw.label);
    p->finished = false;
    fleet_session_drop(p, FLEET_UNKNOWN, said->status, said->end == FLEET_GOOD ? &why : &said->why);
}

int fleet_check_marks(struct app *app, struct fleet_session *s, struct err *e)
{
    struct fleet_control *fc = app->fleet_control;
    struct fleet_said *said = NULL;
    struct fleet_batch b = {0};

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].marks && s->parts[i].touched && !s->parts[i].out)
            batch_add(&b, s, i, NULL);
    mtx_unlock(&fc->lock);
    if (b.n == 0)
        return 0;
    if (fleet_ask_about(app, WIRE_WHO, b.to, b.n, fleet_step_us(app), &said, e) != 0)
        return -1;
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < b.n; i++)
        check_mark(s, &s->parts[b.part[i]], &said[i]);
    mtx_unlock(&fc->lock);
    fleet_said_free(said, b.n);
    fleet_fence_parts(app, s);
    if (fleet_stands(app, s))
        return 0;
    fleet_tell_cause(app, s, e);
    return -1;
}
