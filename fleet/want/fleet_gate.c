/* Whether each engine is paused and asleep, as it should be. What it should be follows at every
 * look from what was asked of all (the trainer's pause, a sleep), from its fence (--pause-fenced)
 * and from the open update; what it is, from the last answers of its process (have.gate and
 * have.sleep, fleet/members/have.h). An engine that differs gets a pause or a resume, a sleep or a
 * wake.
 *
 * Engines that are fenced are paused too with --pause-fenced, so that a router beside this server
 * gets no tokens of theirs. A restart of this server is survived by what engines report: before a
 * vLLM or an SGLang is paused for its fence it gets the dirty marker, by which the next server
 * fences it, and a baton reports the owner of its pause.
 *
 * Rejected: to record fenced engines in --state-dir. It can be lost, and an engine's own record
 * goes with its process, as the pause does. */
#include "fleet/calls/fleet_priv.h"

#include "base/log.h"

#include <string.h>

enum {
    GATE_FENCE_RETRY_US = 2000000, /* after a pause for its fence: the next report shows it */
    GATE_TIMEOUT_US = 2000000      /* a trainer's pause or resume waits for these requests */
};

/* In the order in which they are sent. */
enum step { STEP_NONE, STEP_PAUSE_FENCED, STEP_PAUSE, STEP_RESUME, STEP_WAKE, STEP_SLEEP };

static bool is_fenced(const struct upstream_info *info)
{
    return have_is_broken(&info->have) && !info->removed;
}

static bool is_paused_for_fence(const struct fleet_control *fc, const struct upstream_info *info)
{
    return fc->cfg.pause_fenced && is_fenced(info);
}

bool fleet_gate_is_kept(struct fleet_control *fc, struct upstream *upstream)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    return is_paused_for_fence(fc, &info) ||
           (info.fenced && !upstream_caps_of(upstream)->two_phase);
}

/* A client has paused it at the engine itself, which that client ends. */
static bool is_held_by_client(const struct upstream_info *info)
{
    return info->report.held != NULL && !info->report.held_by_fence &&
           !fleet_is_dirty_marker(info->report.label);
}

/* Was it resumed at the engine itself, or has another pause of a baton replaced this one, which the
 * next server would not know for its own? A report from before the pause may say so too: then it is
 * paused twice. */
static bool was_resumed(const struct upstream *upstream, const struct upstream_info *info)
{
    if (upstream_caps_of(upstream)->two_phase)
        return !info->report.held_by_fence;
    return !upstream_caps_of(upstream)->hides_pause && info->report.held == NULL;
}

static enum step step_of_fenced(const struct fleet_control *fc, struct upstream *upstream,
                                const struct upstream_info *info)
{
    const struct fleet_gate *g = &fleet_engine(upstream)->gate;

    if (g->suspended || (!have_may_be_paused(&info->have) && is_held_by_client(info)))
        return STEP_NONE;
    if (info->have.gate == GATE_PAUSED &&
        (pause_is_held(&fc->pause) || (g->for_fence && !was_resumed(upstream, info))))
        return STEP_NONE;
    return STEP_PAUSE_FENCED;
}

/* One that was removed gets only the end of what this server began, and once: no probe tells
 * whether it answers. */
static enum step step_of_removed(const struct fleet_control *fc, struct upstream *upstream,
                                 const struct upstream_info *info)
{
    const struct fleet_engine *engine = fleet_engine(upstream);

    return have_may_be_paused(&info->have) && !pause_is_held(&fc->pause) &&
                   (!info->fenced || engine->gate.for_fence) &&
                   engine->retry[ASPECT_PAUSE].delay_us == 0
               ? STEP_RESUME
               : STEP_NONE;
}

static enum step step_of_other(const struct fleet_control *fc, const struct upstream_info *info)
{
    bool by_earlier = fc->cfg.pause_fenced && info->have.gate == GATE_NOT_OURS &&
                      info->report.held_by_fence;

    if (pause_is_held(&fc->pause))
        return info->have.gate == GATE_PAUSED ? STEP_NONE : STEP_PAUSE;
    return have_may_be_paused(&info->have) || by_earlier ? STEP_RESUME : STEP_NONE;
}

/* An update pauses and resumes by itself the engines that take part in it. One that sleeps is
 * resumed when it is awake. Fences that another pause or resume cannot end stay with it. */
static enum step pause_step_locked(struct fleet_control *fc, struct upstream *upstream,
                                   const struct upstream_info *info)
{
    if (!info->alive || fleet_engine_is_held_locked(fc, upstream) ||
        !retry_is_due(&fleet_engine(upstream)->retry[ASPECT_PAUSE]))
        return STEP_NONE;
    if (is_paused_for_fence(fc, info))
        return step_of_fenced(fc, upstream, info);
    if (fc->sleep.weights || fc->sleep.kv || (info->may_sleep && have_is_asleep(&info->have)))
        return STEP_NONE;
    if (info->removed)
        return step_of_removed(fc, upstream, info);
    if (info->fenced)
        return STEP_NONE;
    return step_of_other(fc, info);
}

/* One that missed the sleep of all: not at level 2, by which it would lose its weights, and not one
 * that hides whether it sleeps already. An update wakes by itself the engines that take part. */
static enum step sleep_step_locked(struct fleet_control *fc, struct upstream *upstream,
                                   const struct upstream_info *info)
{
    bool all_sleep = fc->sleep.weights && fc->sleep.kv && fc->sleep.level == 1;

    if (!info->alive || info->removed || fc->session != NULL || fc->releasing != NULL ||
        !retry_is_due(&fleet_engine(upstream)->retry[ASPECT_SLEEP]))
        return STEP_NONE;
    if (info->to_wake.weights || info->to_wake.kv)
        return have_sleeps_by_client(&info->have, &info->report) ? STEP_NONE : STEP_WAKE;
    return all_sleep && !info->fenced && !upstream_caps_of(upstream)->hides_pause &&
                   (info->have.sleep.weights != SLEEP_ASLEEP || info->have.sleep.kv != SLEEP_ASLEEP)
               ? STEP_SLEEP
               : STEP_NONE;
}

/* What has ended its fence, as an update, may have resumed it too. */
static bool has_been_resumed_locked(const struct fleet_control *fc, const struct upstream *upstream,
                                    const struct upstream_info *info)
{
    return fleet_engine(upstream)->gate.for_fence && info->have.gate == GATE_RUNNING &&
           !is_paused_for_fence(fc, info);
}

bool fleet_pause_differs_locked(struct fleet_control *fc, struct upstream *upstream,
                                const struct upstream_info *info)
{
    return has_been_resumed_locked(fc, upstream, info) ||
           pause_step_locked(fc, upstream, info) != STEP_NONE;
}

bool fleet_sleep_differs_locked(struct fleet_control *fc, struct upstream *upstream,
                                const struct upstream_info *info)
{
    return sleep_step_locked(fc, upstream, info) != STEP_NONE;
}

/* requests */

/* @event  of a failure, or of a pause for its fence */
static const struct {
    enum aspect aspect;
    enum api_op op;
    uint64_t timeout_us;
    const char *event;
} steps[] = {
    [STEP_PAUSE_FENCED] = {ASPECT_PAUSE, API_PAUSE, GATE_TIMEOUT_US, "upstream.fence_paused"},
    [STEP_PAUSE] = {ASPECT_PAUSE, API_PAUSE, GATE_TIMEOUT_US, "upstream.pause_missed"},
    [STEP_RESUME] = {ASPECT_PAUSE, API_RESUME, GATE_TIMEOUT_US, "upstream.pause_missed"},
    [STEP_WAKE] = {ASPECT_SLEEP, API_WAKE, FLEET_STEP_US, "upstream.sleep_missed"},
    [STEP_SLEEP] = {ASPECT_SLEEP, API_SLEEP, FLEET_STEP_US, "upstream.sleep_missed"},
};

/* To the engines that get the same step. */
struct requests {
    struct fleet_control *fc;
    enum step step;
    struct api_pause pause;
    struct api_sleep sleep[FLEET_MAX]; /* [n], and so are the next two */
    struct api_args args[FLEET_MAX];
    struct fleet_target targets[FLEET_MAX];
    size_t n;
};

/* A wake gives way to a step of an update, but where another one would end the engine. */
static void add_target(struct requests *r, struct upstream *upstream,
                       const struct upstream_info *info)
{
    bool wakes = r->step == STEP_WAKE;

    r->sleep[r->n] = wakes ? info->to_wake
                           : (struct api_sleep){.level = 1, .weights = true, .kv = true};
    r->args[r->n] = (struct api_args){
        .pause = steps[r->step].op == API_PAUSE ? &r->pause : NULL,
        .sleep = steps[r->step].aspect == ASPECT_SLEEP ? &r->sleep[r->n] : NULL};
    r->targets[r->n] = (struct fleet_target){
        .upstream = upstream,
        .args = &r->args[r->n],
        .until_down = true,
        .given_up = wakes && !upstream_caps_of(upstream)->hides_pause ? &r->fc->locks.op_wanted
                                                                      : NULL,
        .given_up_us = FLEET_LATE_US};
    r->n++;
}

static enum step step_locked(struct fleet_control *fc, struct upstream *upstream,
                             const struct upstream_info *info, enum aspect aspect)
{
    return aspect == ASPECT_SLEEP ? sleep_step_locked(fc, upstream, info)
                                  : pause_step_locked(fc, upstream, info);
}

/* All that get the step now. To send it the caller owns the lock by which what was asked of all
 * does not change: of the pause, or the operation lock. */
static void select_targets(struct requests *r, struct fleet_control *fc,
                           const struct upstream_list *all, enum step step)
{
    struct upstream_info info;

    r->fc = fc;
    r->step = step;
    r->n = 0;
    mtx_lock(&fc->lock);
    r->pause = (struct api_pause){.mode = fc->pause.mode, .reject = fc->pause.reject};
    if (step == STEP_PAUSE_FENCED)
        r->pause = (struct api_pause){.mode = PAUSE_KEEP, .owner = API_FENCE_OWNER};
    for (size_t i = 0; i < all->n; i++) {
        fleet_info(fleet_of(fc), all->items[i], &info);
        if (step_locked(fc, all->items[i], &info, steps[step].aspect) == step)
            add_target(r, all->items[i], &info);
    }
    mtx_unlock(&fc->lock);
}

/* the dirty marker */

/* The process that was fenced, which does not have a marker yet. What another one loaded since is
 * not known to be wrong. */
static bool must_mark(struct fleet_control *fc, struct upstream *upstream)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    return !upstream_caps_of(upstream)->two_phase && !info.have.weights.fault_is_older &&
           !fleet_is_dirty_marker(info.report.label);
}

/* A version is set only after it was read: another process, or another client, may have changed it.
 */
static bool is_expected(struct fleet_control *fc, const struct fleet_result *result)
{
    char label[API_VERSION_MAX + 1];
    struct upstream_info info;
    struct fleet_stats stats;
    struct err why = {0};

    fleet_info(fleet_of(fc), result->upstream, &info);
    fleet_stats(fleet_of(fc), &stats);
    return result->outcome == FLEET_OK &&
           api_read_version(label, upstream_kind(result->upstream), result->text, result->text_len,
                            &why) == 0 &&
           (strcmp(label, info.report.label) == 0 || strcmp(label, stats.label) == 0);
}

/* Engines that take no version have no marker, and are paused all the same.
 * @paused  will be, for their fence */
static void mark(const struct requests *paused)
{
    const struct api_args marker = {.label = FLEET_FENCED_MARKER};
    struct fleet_control *fc = paused->fc;
    struct fleet_target marked[FLEET_MAX];
    fleet_results_auto read = {0};
    struct err ignored = {0};
    size_t n_read = 0, n_marked = 0;

    for (size_t i = 0; i < paused->n; i++)
        if (must_mark(fc, paused->targets[i].upstream))
            marked[n_read++] = (struct fleet_target){.upstream = paused->targets[i].upstream,
                                                     .args = &marker};
    if (n_read == 0 ||
        fleet_query(fc, API_GET_VERSION, marked, n_read, GATE_TIMEOUT_US, &read, &ignored) != 0)
        return;
    for (size_t i = 0; i < read.n; i++)
        if (is_expected(fc, &read.list[i]))
            marked[n_marked++] = marked[i];
    fleet_tell(fc, API_SET_VERSION, marked, n_marked, GATE_TIMEOUT_US);
}

/* what the answers say */

static void log_step(const char *event, const struct upstream *upstream, const struct err *why)
{
    struct log_rec r;

    log_begin(&r, why->code == ERR_NONE ? LOG_INFO : LOG_WARN, event);
    log_str(&r, "upstream", upstream_name(upstream));
    log_str(&r, "error", why->code != ERR_NONE ? why->msg : NULL);
    log_event(&r);
}

bool fleet_lacks_wake(struct fleet_control *fc, const struct fleet_result *result)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), result->upstream, &info);
    return fleet_result_lacks_route(result) && !upstream_caps_of(result->upstream)->two_phase &&
           have_may_lack_wake(&info.have);
}

static void fleet_gate_note_answer(struct fleet_control *fc, enum step step,
                                   const struct fleet_result *result)
{
    struct upstream *upstream = result->upstream;
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    if (step == STEP_PAUSE ? info.have.gate == GATE_PAUSED
                           : step == STEP_SLEEP && have_is_asleep(&info.have))
        fleet_confirm_quiesced(fleet_of(fc), upstream, info.incarnation);
    else if (step == STEP_WAKE && fleet_lacks_wake(fc, result))
        fleet_found_awake(fleet_of(fc), upstream, info.have.change);
}

/* Each failure of one engine in a row is logged once. */
static void apply(struct fleet_control *fc, enum step step, const struct fleet_result *result)
{
    struct fleet_engine *engine = fleet_engine(result->upstream);
    struct retry *retry = &engine->retry[steps[step].aspect];
    bool ok = result_ok(result), fences = step == STEP_PAUSE_FENCED, ends, tells;

    fleet_gate_note_answer(fc, step, result);
    mtx_lock(&fc->lock);
    ends = step == STEP_RESUME && engine->gate.for_fence;
    tells = ok ? ends || (fences && !engine->gate.for_fence) : retry->delay_us == 0;
    fleet_aspect_tried_locked(retry, ok);
    if (fences)
        retry->due_us = clock_after_us(GATE_FENCE_RETRY_US);
    if (ok)
        engine->gate.for_fence = fences || (engine->gate.for_fence && !ends);
    mtx_unlock(&fc->lock);
    if (tells)
        log_step(ends ? "upstream.fence_resumed" : steps[step].event, result->upstream,
                 &result->why);
}

static void send_requests(const struct requests *r)
{
    fleet_results_auto results = {0};
    struct err ignored = {0};

    if (r->n > 0)
        (void)fleet_request(r->fc, steps[r->step].op, r->targets, r->n, steps[r->step].timeout_us,
                            &results, &ignored);
    for (size_t i = 0; i < results.n; i++)
        apply(r->fc, r->step, &results.list[i]);
}

static void send_steps(struct fleet_control *fc, const struct upstream_list *all,
                       struct requests *r, enum step first, enum step last)
{
    for (enum step step = first; step <= last; step++) {
        select_targets(r, fc, all, step);
        send_requests(r);
    }
}

/* what drives them */

static void note_resumed(struct fleet_control *fc, const struct upstream_list *all)
{
    const struct err none = {0};
    struct upstream_info info;

    for (size_t i = 0; i < all->n; i++) {
        bool resumed;

        fleet_info(fleet_of(fc), all->items[i], &info);
        mtx_lock(&fc->lock);
        resumed = has_been_resumed_locked(fc, all->items[i], &info);
        if (resumed)
            fleet_engine(all->items[i])->gate.for_fence = false;
        mtx_unlock(&fc->lock);
        if (resumed)
            log_step("upstream.fence_resumed", all->items[i], &none);
    }
}

void fleet_pause_drive(struct fleet_control *fc)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct requests r;

    note_resumed(fc, all);
    select_targets(&r, fc, all, STEP_PAUSE_FENCED);
    mark(&r);
    if (!fleet_pause_lock_unless_pausing(fc, "what an upstream missed"))
        return;
    send_steps(fc, all, &r, STEP_PAUSE_FENCED, STEP_RESUME);
    fleet_pause_unlock(fc);
}

/* Later, if an operation is under way. */
void fleet_sleep_drive(struct fleet_control *fc)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct requests r;

    if (!fleet_lock_if_free(fc, FLEET_LOCK_OPERATION, "a sleep or a wake that an upstream missed"))
        return;
    send_steps(fc, all, &r, STEP_WAKE, STEP_SLEEP);
    fleet_op_unlock(fc);
}

/* what others ask */

void fleet_gate_suspend(struct fleet_control *fc, struct upstream *upstream, bool on)
{
    struct requests r = {.fc = fc, .step = STEP_RESUME};
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    mtx_lock(&fc->lock);
    fleet_engine(upstream)->gate.suspended = on && fc->cfg.pause_fenced;
    mtx_unlock(&fc->lock);
    if (!on || !have_may_be_paused(&info.have) || !fleet_pause_lock_unless_pausing(fc, "a resync"))
        return;
    add_target(&r, upstream, &info);
    if (!fleet_is_paused(fc)) /* by a trainer, meanwhile */
        send_requests(&r);
    fleet_pause_unlock(fc);
}

bool fleet_fence_is_paused(struct fleet_control *fc, struct upstream *upstream)
{
    mtx_auto held = mtx_hold(&fc->lock);
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    return is_paused_for_fence(fc, &info) && fleet_engine(upstream)->gate.for_fence &&
           info.have.gate == GATE_PAUSED;
}
