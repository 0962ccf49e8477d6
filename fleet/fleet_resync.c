/* Putting an upstream into step by somebody's word. What is known of it is as old as its last
 * answer: it is asked now what it serves, and whether it generates, and its own word goes first. */
#include "fleet/update/fleet_cache.h"

#include "handlers/body.h"
#include "handlers/fleet/fleet_status.h"
#include "handlers/reply.h"

const char *const resync_members[] = {"upstream", NULL};

static int ask_one(struct app *app, enum wire_question q, size_t upstream, struct fleet_said **said,
                   struct err *e)
{
    const struct fleet_to to = {.upstream = upstream};

    return fleet_ask_about(app, q, &to, 1, FLEET_LOOK_US, said, e);
}

static int refuse(const struct fleet_said *said, struct err *e)
{
    return err_set(e, ERR_CONFLICT, "", "it cannot be vouched for: %.400s", said->why.msg);
}

/* What it says of its weights at this moment. Errors: ERR_CONFLICT: it does not. */
static int ask_what(struct app *app, size_t upstream, struct upstream_saw *saw, struct err *e)
{
    struct fleet_said *who = NULL, *label = NULL;
    struct upstream_at at;
    int rc = -1;

    upstreams_at(app->upstreams, upstream, &at);
    if (ask_one(app, WIRE_WHO, upstream, &who, e) != 0 ||
        ask_one(app, WIRE_LABEL_OF, upstream, &label, e) != 0)
        goto free_said;
    if (who->end != FLEET_GOOD) {
        rc = refuse(who, e);
        goto free_said;
    }
    wire_read_who(saw, at.dialect, who->text != NULL ? who->text : "", who->text_len);
    if (label->end == FLEET_UNSENT || label->end == FLEET_UNKNOWN ||
        wire_refuses_key(label->status))
        rc = refuse(label, e);
    else
        rc = wire_read_label(saw, at.dialect, label->status, label->text != NULL ? label->text : "",
                             label->text_len, e);
    if (e->code == ERR_UNREADABLE)
        e->code = ERR_CONFLICT;
free_said:
    fleet_said_free(who, 1);
    fleet_said_free(label, 1);
    return rc;
}

/* That it understood, and said no to this token, says that it would to others. */
static bool answers(const struct fleet_said *said)
{
    return said->end == FLEET_GOOD ||
           (said->end == FLEET_REFUSED && said->status < 500 && said->status != 408 &&
            said->status != 429 && !wire_refuses_key(said->status));
}

/* One that serves has shown it. */
static int ask_token(struct app *app, size_t upstream, struct err *e)
{
    struct fleet_said *said = NULL;
    int rc = 0;

    if (fleet_serves(fleet_of(app), upstream))
        return 0;
    if (ask_one(app, WIRE_TOKEN, upstream, &said, e) != 0)
        return -1;
    if (!answers(said))
        rc = refuse(said, e);
    fleet_said_free(said, 1);
    return rc;
}

/* sleep, which it missed */

enum sleep_state { SLEEP_NONE, SLEEP_WHOLE, SLEEP_HALF, SLEEP_DROPPED };

static enum sleep_state sleep_of(struct fleet_control *fc)
{
    enum sleep_state state = SLEEP_NONE;

    mtx_lock(&fc->lock);
    if (fc->weights_asleep && fc->sleep_level == 2)
        state = SLEEP_DROPPED;
    else if (fc->weights_asleep && fc->kv_asleep)
        state = SLEEP_WHOLE;
    else if (fc->weights_asleep || fc->kv_asleep)
        state = SLEEP_HALF;
    mtx_unlock(&fc->lock);
    return state;
}

/* What cannot be made good, or not now, and what to do then. */
static int check_sleep(const struct upstream_info *info, enum sleep_state state, struct err *e)
{
    if (state == SLEEP_DROPPED)
        return err_set(
            e, ERR_CONFLICT, "",
            "the fleet sleeps and its weights were dropped (level 2): wake it and push a "
            "whole update, which this upstream takes too");
    if (state == SLEEP_HALF || (state != SLEEP_NONE && info->fence == FLEET_FENCE_WAKE))
        return err_set(
            e, ERR_CONFLICT, "",
            "the fleet sleeps, in part or this upstream with it: wake all of it, then name "
            "this upstream again");
    if (info->fence == FLEET_FENCE_WAKE && info->saw.process[0] == '\0')
        return err_set(
            e, ERR_NEEDS_UPDATE, "",
            "it was away when the fleet was woken and does not name its process: whether "
            "it still sleeps cannot be known; push a whole update");
    return 0;
}

static int tell_one(struct app *app, enum wire_op op, size_t upstream, struct err *e)
{
    const struct fleet_to to = {.upstream = upstream};
    struct fleet_said *said = NULL;
    int rc = 0;

    if (fleet_ask(app, op, &to, 1, FLEET_SLEEP_US, &said, e) != 0)
        return -1;
    if (said->end == FLEET_UNKNOWN) /* it did, or not: nobody knows how it is */
        fleet_fence(fleet_of(app), upstream, &said->why);
    if (!said_good(said))
        rc = refuse(said, e);
    fleet_said_free(said, 1);
    return rc;
}

/* The process that slept through the others' wake. Another one never slept. */
static int wake_first(struct app *app, size_t upstream, const struct upstream_info *info,
                      struct err *e)
{
    if (info->fence != FLEET_FENCE_WAKE || info->n_lives != info->fence_life)
        return 0;
    return tell_one(app, WIRE_WAKE, upstream, e);
}

static int sleep_last(struct app *app, size_t upstream, const struct upstream_info *info,
                      enum sleep_state state, struct err *e)
{
    if (info->fence != FLEET_FENCE_SLEEP || state != SLEEP_WHOLE)
        return 0;
    if (tell_one(app, WIRE_SLEEP, upstream, e) != 0)
        return -1;
    fleet_stands_still(fleet_of(app), upstream, info->n_lives);
    return 0;
}

/* What refuses it without a question is looked at first. It generates while it is awake: what it
 * missed of a wake comes before that is asked, and of a sleep behind it. */
static int resync_turn(struct app *app, size_t upstream, struct err *e)
{
    enum sleep_state state = sleep_of(app->fleet_control);
    struct upstream_info info;
    struct upstream_saw saw;

    if (fleet_holds(app->fleet_control))
        return err_set(e, ERR_CONFLICT, "",
                       "generation is paused, which an upstream that was away knows nothing of: "
                       "resume first");
    fleet_info(fleet_of(app), upstream, &info);
    if (fleet_may_resync(fleet_of(app), upstream, e) != 0 ||
        (info.fenced && check_sleep(&info, state, e) != 0) ||
        wake_first(app, upstream, &info, e) != 0 || ask_what(app, upstream, &saw, e) != 0 ||
        ask_token(app, upstream, e) != 0 || sleep_last(app, upstream, &info, state, e) != 0)
        return -1;
    fleet_empty_one(app, upstream); /* nobody knows what made its entries */
    return fleet_resync(fleet_of(app), upstream, &saw, e);
}

static int resync(struct app *app, struct exchange *x, const json_t *body, size_t *out,
                  struct err *e)
{
    const char *name = NULL;
    int rc;

    if (body_required(body, "", "upstream", e) != 0 ||
        body_str(&name, body, "", "upstream", e) != 0)
        return -1;
    if (fleet_turn(app->fleet_control, x, "a resync", e) != 0)
        return -1;
    upstreams_hold(app->upstreams);
    rc = upstreams_find(app->upstreams, name, out, e);
    if (rc == 0)
        rc = resync_turn(app, *out, e);
    upstreams_release(app->upstreams);
    fleet_turn_end(app->fleet_control);
    return rc;
}

int handle_fleet_resync(struct app *app, struct exchange *x, struct err *e)
{
    json_t *body;
    size_t i = 0;
    int rc;

    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = resync(app, x, body, &i, e);
    json_decref(body);
    if (rc == 0)
        reply_json(x, 200, fleet_one_json(app, i));
    return rc;
}
