/* Engines that overwrite their weights get a call that starts an update before their first tensor,
 * and not earlier: a start may already take the weights apart, so the engines are paused by then.
 * Whether an engine has a route to start an update is found out by the request itself, in each
 * update: what was learned earlier may have been about another process. */
#include "fleet/update/fleet_update_priv.h"

/* asleep */

static bool may_be_asleep(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return part_takes_part(p) && fleet_engine(p->upstream)->wake_in_doubt &&
           upstream_caps_of(p->upstream)->wakes_twice;
}

static void on_woken(struct fleet_part *p, size_t part, struct fleet_result *result, void *arg)
{
    (void)part;
    (void)arg;
    fleet_engine(p->upstream)->wake_in_doubt = !result_ok(result);
    part_drop_failed(p, result);
}

/* A vLLM that gets the name of what is awake wakes nothing. */
int fleet_wake_parts(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    struct fleet_sleep sleep;
    struct fanout f = {.op = API_WAKE,
                       .timeout_us = FLEET_SLEEP_US,
                       .select = may_be_asleep,
                       .on_result = on_woken};
    const struct api_args args = {.sleep = &(struct api_sleep){.weights = true}};

    fleet_get_sleep(fc, &sleep);
    if (sleep.weights) /* as they all are */
        return 0;
    if (sleep.kv)
        f.args = &args;
    return fanout_apply(fc, s, &f, e);
}

/* started */

struct start_request {
    struct fleet_session *s;
    bool by_path, files; /* files: engines that take these tensors without a start; else those that
                            need one */
    struct part_set again;
};

/* An engine that was not told to start. An SGLang loads a file without a start. */
static bool needs_start(const struct fleet_part *p, const void *arg)
{
    const struct start_request *b = arg;

    return part_needs_start(p) && part_takes_part(p) && p->own_update == PART_UPDATE_CLOSED &&
           (b->by_path && p->no_process_id) == b->files;
}

/* May an earlier update, of this server or one before it, still be open there? A start that an
 * engine answered with an error may have opened one; it is closed by a hand-off only, because
 * another client may have opened it where this server is not the only one that updates engines. */
static bool may_have_open_update(const struct fleet_session *s, const struct fleet_part *p)
{
    return p->before != PART_WAS_IN_STEP || p->first_update || s->handoff;
}

/* A finish without a version closes such an update; these engines have no request to abort one. The
 * reply is not looked at: if no update was open, the start that follows, or the tensors, will work;
 * if it could not be closed, they fail.
 * @f  selects the engines */
static int close_open_updates(struct fleet_control *fc, struct fleet_session *s,
                              const struct fanout *f, struct err *e)
{
    struct fleet_result *closed = NULL;
    struct fleet_batch b;
    int rc = 0;

    (void)fanout_select(fc, s, f, &b);
    for (size_t i = 0; i < b.n; i++)
        b.targets[i].ctx.has_begun = true;
    if (b.n > 0)
        rc = fleet_request(fc, API_FINISH_UPDATE, b.targets, b.n, fleet_step_us(fc), &closed, e);
    fleet_results_free(closed, b.n);
    return rc;
}

/* An SGLang before 0.5.18 has no start, and takes tensors as they come. */
static bool has_no_start(const struct fleet_part *p, const struct fleet_result *result)
{
    return p->no_process_id && result->outcome == FLEET_REFUSED &&
           (result->status == 404 || result->status == 405);
}

/* An engine that refuses, and may have an update open, gets the start call again after that is
 * closed. */
static void on_started(struct fleet_part *p, size_t part, struct fleet_result *result, void *arg)
{
    struct start_request *b = arg;

    p->own_update = result->outcome == FLEET_OK || result->outcome == FLEET_UNKNOWN
                        ? PART_UPDATE_OPEN
                        : PART_UPDATE_CLOSED;
    if (has_no_start(p, result))
        p->own_update = PART_UPDATE_NONE;
    else if (result->outcome == FLEET_REFUSED && may_have_open_update(b->s, p))
        b->again.has[part] = true;
    else
        part_drop_failed(p, result);
}

static void on_started_again(struct fleet_part *p, size_t part, struct fleet_result *result,
                             void *arg)
{
    (void)part;
    (void)arg;
    if (result_ok(result) || result->outcome == FLEET_UNKNOWN)
        p->own_update = PART_UPDATE_OPEN;
    part_drop_failed(p, result);
}

static int start_engines(struct fleet_control *fc, struct start_request *b,
                         const struct api_args *start, struct err *e)
{
    const struct fanout first = {.op = API_START_UPDATE,
                                 .args = start,
                                 .select = needs_start,
                                 .on_result = on_started,
                                 .arg = b};
    const struct fanout again = {
        .op = API_START_UPDATE, .args = start, .only = &b->again, .on_result = on_started_again};

    if (fanout_apply(fc, b->s, &first, e) != 0 || close_open_updates(fc, b->s, &again, e) != 0)
        return -1;
    return fanout_apply(fc, b->s, &again, e);
}

bool fleet_must_start_parts(struct fleet_control *fc, const struct fleet_session *s,
                            const struct api_tensors *tensors)
{
    const struct start_request b = {.by_path = tensors->by_path};
    bool any = false;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        any = any || needs_start(&s->parts[i], &b);
    mtx_unlock(&fc->lock);
    return any;
}

static bool needs_close_before_file(const struct fleet_part *p, const void *arg)
{
    const struct start_request *b = arg;

    return needs_start(p, arg) && may_have_open_update(b->s, p);
}

int fleet_start_parts(struct fleet_control *fc, struct fleet_session *s,
                      const struct api_tensors *tensors, struct err *e)
{
    struct start_request files = {.s = s, .by_path = tensors->by_path, .files = true};
    struct start_request rest = {.s = s, .by_path = files.by_path};
    const struct fanout to_close = {.select = needs_close_before_file, .arg = &files};
    const struct api_args start = {.selector = s->selector};

    if (close_open_updates(fc, s, &to_close, e) != 0)
        return -1;
    return start_engines(fc, &rest, &start, e);
}
