/* Engines that overwrite their weights get a call that starts an update before their first tensor,
 * and not earlier: a start may already take the weights apart, so the engines are paused by then.
 * Whether an engine has a route to start an update is found out by the request itself, in each
 * update: what was learned earlier may have been about another process. */
#include "fleet/update/fleet_update_priv.h"

/* What of each part sleeps while the fleet is awake, and can be woken. */
struct wake {
    struct fleet_control *fc;
    const struct fleet_session *s;
    struct api_sleep of[FLEET_MAX];
};

static bool is_woken(const struct fleet_part *p, const void *arg)
{
    const struct wake *w = arg;
    const struct api_sleep *of = &w->of[p - w->s->parts];

    return !p->out && !p->two_phase && (of->weights || of->kv);
}

/* One that is known to sleep is dropped next. */
static void on_woken(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    const struct wake *w = arg;
    struct engine_have have = upstream_have(p->upstream);

    if (!fleet_lacks_wake(w->fc, result) &&
        (result->outcome != FLEET_REFUSED || !have_is_asleep(&have)))
        part_drop_failed(p, result);
}

/* One that is fenced and was left paused makes no token; if it sleeps, tensors end it, and then it
 * is restarted. */
static bool takes_no_tensors(const struct upstream_info *info)
{
    bool stuck = info->fenced && have_may_be_paused(&info->have);

    return info->may_sleep && (have_is_asleep(&info->have) || (info->needs_token && !stuck));
}

/* Tensors would end one that sleeps, and so might a second wake one that does not. */
static void drop_sleeping(struct fleet_control *fc, struct fleet_session *s)
{
    struct upstream_info info;
    struct err why = {0};

    (void)err_set(&why, ERR_CONFLICT, "",
                  "it may be asleep while the fleet is awake, and tensors would end it: it takes "
                  "part once it is woken or has made a token; restart it if it makes none");
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++) {
        fleet_info(fleet_of(fc), s->parts[i].upstream, &info);
        if (!s->parts[i].out && !s->parts[i].two_phase && takes_no_tensors(&info))
            part_drop(&s->parts[i], FLEET_SKIPPED, 0, &why);
    }
    mtx_unlock(&fc->lock);
}

int fleet_wake_parts(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    struct wake w = {.fc = fc, .s = s};
    struct api_args args[FLEET_MAX] = {0};
    const struct fanout f = {.op = API_WAKE,
                             .of = args,
                             .timeout_us = FLEET_SLEEP_US,
                             .select = is_woken,
                             .on_result = on_woken,
                             .arg = &w,
                             .before_bytes = true,
                             .patient = true};
    struct upstream_info info;

    for (size_t i = 0; i < s->n_parts; i++) {
        fleet_info(fleet_of(fc), s->parts[i].upstream, &info);
        w.of[i] = info.to_wake;
        args[i].sleep = &w.of[i];
    }
    if (fanout_apply(fc, s, &f, e) < 0)
        return -1;
    drop_sleeping(fc, s);
    return 0;
}

struct start_filter {
    bool by_path, files; /* files: engines that take these tensors without a start; else those that
                            need one */
};

/* An engine that was not told to start. An SGLang loads a file without a start. */
static bool needs_start(const struct fleet_part *p, const void *arg)
{
    const struct start_filter *l = arg;

    return part_needs_start(p) && !p->out && p->own_update != PART_UPDATE_OPEN &&
           (l->by_path && p->no_process_id) == l->files;
}

static bool needs_close(const struct fleet_part *p, const void *arg)
{
    return needs_start(p, arg) && p->own_update == PART_UPDATE_EARLIER;
}

static bool lacks_route(const struct fleet_part *p, const struct fleet_result *result)
{
    return p->no_process_id && fleet_result_lacks_route(result);
}

/* Has it answered a start that it may have executed neither well nor by a refusal? */
static bool may_have_started(const struct fleet_part *p)
{
    enum own_fact own = upstream_have(p->upstream).own;

    return p->own_update == PART_UPDATE_EARLIER && (own == OWN_UNKNOWN || own == OWN_OPEN);
}

/* Else the answer is not looked at: if no update was open, the start that follows, or the tensors,
 * will work; if it could not be closed, they fail. */
static void on_earlier_closed(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    (void)arg;
    p->own_update = lacks_route(p, result) && !may_have_started(p) ? PART_UPDATE_NONE
                                                                   : PART_UPDATE_CLOSED;
}

/* An SGLang before 0.5.21 has no start, and takes tensors as they come. An engine that refuses, and
 * may have an earlier update open, gets the start again after that is closed: a 404 may be that of
 * a proxy. */
static void on_started(struct fleet_part *p, struct fleet_result *result, void *arg)
{
    (void)arg;
    if (result->outcome == FLEET_OK || result->outcome == FLEET_UNKNOWN)
        p->own_update = PART_UPDATE_OPEN;
    else if (lacks_route(p, result) && !may_have_started(p))
        p->own_update = PART_UPDATE_NONE;
    if (p->own_update != PART_UPDATE_NONE &&
        !(p->own_update == PART_UPDATE_EARLIER && result->outcome == FLEET_REFUSED))
        part_drop_failed(p, result);
    if (part_may_hang(p))
        p->weights = PART_TORN; /* it may still be executed at any time */
}

bool fleet_must_start_parts(struct fleet_control *fc, const struct fleet_session *s,
                            const struct api_tensors *tensors)
{
    const struct start_filter rest = {.by_path = tensors->by_path};
    mtx_auto held = mtx_hold(&fc->lock);

    for (size_t i = 0; i < s->n_parts; i++)
        if (needs_start(&s->parts[i], &rest))
            return true;
    return false;
}

/* A finish without a version closes an earlier update; these engines have no request to abort one.
 */
int fleet_start_parts(struct fleet_control *fc, struct fleet_session *s,
                      const struct api_tensors *tensors, struct err *e)
{
    struct start_filter files = {.by_path = tensors->by_path, .files = true};
    struct start_filter rest = {.by_path = tensors->by_path};
    const struct api_args args = {.selector = s->selector};
    struct fanout close = {.op = API_FINISH_UPDATE,
                           .select = needs_close,
                           .on_result = on_earlier_closed,
                           .arg = &files,
                           .has_begun = true,
                           .before_bytes = true};
    const struct fanout start = {.op = API_START_UPDATE,
                                 .args = &args,
                                 .select = needs_start,
                                 .on_result = on_started,
                                 .arg = &rest,
                                 .before_bytes = true};

    if (fanout_apply(fc, s, &close, e) < 0 || fanout_apply(fc, s, &start, e) < 0)
        return -1;
    close.arg = &rest;
    return fanout_apply(fc, s, &close, e) < 0 || fanout_apply(fc, s, &start, e) < 0 ? -1 : 0;
}
