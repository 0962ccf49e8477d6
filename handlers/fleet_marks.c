/* An SGLang does not name its process: that it names the update whose tensors it took last
 * (FLEET_UNFINISHED and the id) says that it is the one that took what came so far. Should this
 * server not live to end the update, the next one finds it so named. */
#include "handlers/fleet_run.h"

#include <string.h>

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
