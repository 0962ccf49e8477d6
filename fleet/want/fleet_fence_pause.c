/* Engines that are fenced are paused too (--pause-fenced), so that a router beside this server gets
 * no tokens of theirs.
 *
 * What is to be done follows from what is known of each engine, at every look: one that is fenced
 * for its weights is to be paused, and one that this server has paused and that is not fenced any
 * more is to be resumed. So it does not matter what has ended the fence, and a request that failed
 * is sent again. A restart of this server is survived by what engines report: before a vLLM or an
 * SGLang is paused it gets the dirty marker, by which the next server fences it, and a baton
 * reports the owner of its pause.
 *
 * Rejected: to record it in --state-dir. It can be lost, and an engine's own record goes with its
 * process, as the pause does. */
#include "fleet/calls/fleet_priv.h"

#include "base/log.h"

#include <string.h>

enum {
    FENCE_PAUSE_INTERVAL_US = 250000, /* between two looks at all engines */
    FENCE_PAUSE_RETRY_US = 2000000,   /* between two requests to one engine */
    FENCE_PAUSE_TIMEOUT_US = 2000000  /* a trainer's pause waits for these requests */
};

enum step { STEP_NONE, STEP_PAUSE, STEP_RESUME };

/* Which state it is in, for the process that is there now. */
static enum fleet_fence_pause_state *state_locked(struct upstream *upstream,
                                                  const struct upstream_info *info)
{
    struct fleet_fence_pause *f = &fleet_engine(upstream)->fence_pause;

    if (f->incarnation != info->incarnation) {
        f->incarnation = info->incarnation;
        f->state = FENCE_RUNS;
        f->due_us = 0;
        f->told = false;
    }
    return &f->state;
}

/* A client has paused it at the engine itself, which that client ends. */
static bool is_held_by_client(const struct upstream_info *info)
{
    return info->report.held != NULL && !info->report.held_by_fence &&
           !fleet_is_dirty_marker(info->report.label);
}

/* Was it resumed at the engine itself? A report from before the pause may say so too: then it is
 * paused twice. */
static bool was_resumed(const struct upstream *upstream, const struct upstream_info *info)
{
    return !upstream_caps_of(upstream)->hides_pause && info->report.held == NULL;
}

static bool is_fenced(const struct upstream_info *info)
{
    return info->fence == FLEET_FENCE_UPDATE && !info->removed;
}

static enum step step_of_fenced_locked(struct fleet_control *fc, struct upstream *upstream,
                                       const struct upstream_info *info)
{
    enum fleet_fence_pause_state state = *state_locked(upstream, info);
    bool trainer = pause_is_held(&fc->pause) && fleet_engine_is_paused_locked(fc, upstream);

    if (trainer || state == FENCE_SUSPENDED ||
        (state == FENCE_PAUSED && !was_resumed(upstream, info)) ||
        (state == FENCE_RUNS && is_held_by_client(info)))
        return STEP_NONE;
    return STEP_PAUSE;
}

/* A trainer's pause that is held outlasts ours: its resume reaches this engine too, unless it was
 * removed. One that sleeps is resumed when it is awake. */
static enum step step_of_other_locked(struct fleet_control *fc, struct upstream *upstream,
                                      const struct upstream_info *info)
{
    enum fleet_fence_pause_state *state = state_locked(upstream, info);

    if (*state == FENCE_RUNS && info->report.held_by_fence)
        *state = FENCE_PAUSE_IN_DOUBT; /* by an earlier server */
    if (*state == FENCE_RUNS || *state == FENCE_SUSPENDED || fc->sleep.weights || fc->sleep.kv)
        return STEP_NONE;
    if (!pause_is_held(&fc->pause))
        return STEP_RESUME;
    if (!info->removed)
        *state = FENCE_RUNS;
    return STEP_NONE;
}

/* An update pauses and resumes by itself the engines that take part in it. */
static enum step step_of_locked(struct fleet_control *fc, struct upstream *upstream)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    if (!info.alive || fleet_engine_is_held_locked(fc, upstream) ||
        fleet_engine(upstream)->fence_pause.due_us > clock_now_us())
        return STEP_NONE;
    return is_fenced(&info) ? step_of_fenced_locked(fc, upstream, &info)
                            : step_of_other_locked(fc, upstream, &info);
}

static size_t select_targets(struct fleet_control *fc, const struct upstream_list *all,
                             enum step step, const struct api_args *args,
                             struct fleet_target *targets)
{
    size_t n_targets = 0;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < all->n; i++)
        if (step_of_locked(fc, all->items[i]) == step)
            targets[n_targets++] = (struct fleet_target){.upstream = all->items[i], .args = args};
    mtx_unlock(&fc->lock);
    return n_targets;
}

/* the dirty marker */

/* The process that was fenced, which does not have a marker yet. What another one loaded since is
 * not known to be wrong. */
static bool must_mark(struct fleet_control *fc, struct upstream *upstream)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    return !upstream_caps_of(upstream)->two_phase && info.incarnation == info.fence_incarnation &&
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
           api_read_version(label, upstream_kind(result->upstream),
                            result->text != NULL ? result->text : "", result->text_len,
                            &why) == 0 &&
           (strcmp(label, info.report.label) == 0 || strcmp(label, stats.label) == 0);
}

/* Engines that take no version have no marker, and are paused all the same. */
static void mark(struct fleet_control *fc, const struct fleet_target *targets, size_t n)
{
    const struct api_args marker = {.label = FLEET_FENCED_MARKER};
    struct fleet_target marked[FLEET_MAX];
    struct fleet_result *results = NULL;
    struct err ignored = {0};
    size_t n_read = 0, n_marked = 0;

    for (size_t i = 0; i < n; i++)
        if (must_mark(fc, targets[i].upstream))
            marked[n_read++] = (struct fleet_target){.upstream = targets[i].upstream,
                                                     .args = &marker};
    if (n_read > 0 && fleet_query(fc, API_GET_VERSION, marked, n_read, FENCE_PAUSE_TIMEOUT_US,
                                  &results, &ignored) == 0) {
        for (size_t i = 0; i < n_read; i++)
            if (is_expected(fc, &results[i]))
                marked[n_marked++] = marked[i];
        fleet_results_free(results, n_read);
        if (n_marked > 0 && fleet_request(fc, API_SET_VERSION, marked, n_marked,
                                          FENCE_PAUSE_TIMEOUT_US, &results, &ignored) == 0)
            fleet_results_free(results, n_marked);
    }
}

/* requests */

static void log_step(const char *event, const struct fleet_result *result)
{
    struct log_rec r;

    log_begin(&r, result_ok(result) ? LOG_INFO : LOG_WARN, event);
    log_str(&r, "upstream", upstream_name(result->upstream));
    log_str(&r, "error", result_ok(result) ? NULL : result->why.msg);
    log_event(&r);
}

/* Each failure of one engine in a row is logged once. */
static void apply(struct fleet_control *fc, enum step step, const struct fleet_result *result)
{
    struct fleet_fence_pause *f = &fleet_engine(result->upstream)->fence_pause;
    bool ok = result_ok(result), tells;

    mtx_lock(&fc->lock);
    tells = ok ? step == STEP_RESUME || !f->held : !f->told;
    f->told = !ok;
    if (step == STEP_PAUSE && result->outcome == FLEET_REFUSED)
        f->state = FENCE_RUNS;
    if (ok) {
        f->state = step == STEP_PAUSE ? FENCE_PAUSED : FENCE_RUNS;
        f->held = step == STEP_PAUSE;
    }
    f->due_us = ok && step == STEP_RESUME ? 0 : clock_after_us(FENCE_PAUSE_RETRY_US);
    mtx_unlock(&fc->lock);
    if (tells)
        log_step(step == STEP_PAUSE ? "upstream.fence_paused" : "upstream.fence_resumed", result);
}

/* That an engine may be paused is recorded before the request is sent. */
static void send_step(struct fleet_control *fc, enum step step, const struct fleet_target *targets,
                      size_t n)
{
    struct fleet_result *results = NULL;
    struct err ignored = {0};

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < n; i++)
        fleet_engine(targets[i].upstream)->fence_pause.state = FENCE_PAUSE_IN_DOUBT;
    mtx_unlock(&fc->lock);
    if (n == 0 || fleet_request(fc, step == STEP_PAUSE ? API_PAUSE : API_RESUME, targets, n,
                                FENCE_PAUSE_TIMEOUT_US, &results, &ignored) != 0)
        return;
    for (size_t i = 0; i < n; i++)
        apply(fc, step, &results[i]);
    fleet_results_free(results, n);
}

static void run(void *arg)
{
    struct fleet_control *fc = arg;
    struct upstream_list *all = upstreams_list(fc->upstreams);
    struct fleet_target targets[FLEET_MAX];
    const struct api_pause asked = {.mode = PAUSE_KEEP, .owner = API_FENCE_OWNER};
    const struct api_args keep = {.pause = &asked};

    mark(fc, targets, select_targets(fc, all, STEP_PAUSE, NULL, targets));
    if (fleet_pause_lock_unless_pausing(fc, "the pause of a fenced upstream")) {
        send_step(fc, STEP_PAUSE, targets, select_targets(fc, all, STEP_PAUSE, &keep, targets));
        send_step(fc, STEP_RESUME, targets, select_targets(fc, all, STEP_RESUME, NULL, targets));
        fleet_pause_unlock(fc);
    }
    mtx_lock(&fc->lock);
    fc->fence_pauses.running = false;
    mtx_unlock(&fc->lock);
    upstream_list_unref(all);
}

/* On the thread of the upstreams' loop. The job is refused only when the server stops. */
static void on_timer(void *arg)
{
    struct fleet_control *fc = arg;
    struct fleet_fence_pauses *f = &fc->fence_pauses;
    struct upstream_list *all = upstreams_list(fc->upstreams);
    struct err ignored = {0};
    bool starts = false;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < all->n && !f->running; i++)
        starts = starts || step_of_locked(fc, all->items[i]) != STEP_NONE;
    f->running = f->running || starts;
    mtx_unlock(&fc->lock);
    upstream_list_unref(all);
    if (starts) {
        f->job = (struct job){.run = run, .arg = fc};
        (void)workers_post(fc->cfg.reconcile, &f->job, WORKERS_URGENT, &ignored);
    }
    loop_timer_set(upstreams_loop(fc->upstreams), &f->timer,
                   clock_after_us(FENCE_PAUSE_INTERVAL_US));
}

/* what others ask */

void fleet_fence_pause_init(struct fleet_control *fc)
{
    fc->fence_pauses.item = (struct loop_item){.run = on_timer, .arg = fc};
    fc->fence_pauses.timer = (struct loop_timer){.fire = on_timer, .arg = fc};
}

void fleet_fence_pause_watch(struct fleet_control *fc)
{
    if (fc->cfg.pause_fenced)
        loop_post(upstreams_loop(fc->upstreams), &fc->fence_pauses.item);
}

bool fleet_fence_keeps_paused_locked(struct fleet_control *fc, struct upstream *upstream)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    if (fc->cfg.pause_fenced && is_fenced(&info)) {
        *state_locked(upstream, &info) = FENCE_PAUSE_IN_DOUBT;
        return true;
    }
    return info.fenced && !upstream_caps_of(upstream)->two_phase;
}

void fleet_fence_pause_suspend(struct fleet_control *fc, struct upstream *upstream, bool on)
{
    struct fleet_target target = {.upstream = upstream};
    struct upstream_info info;
    enum fleet_fence_pause_state *state;
    bool was;

    fleet_info(fleet_of(fc), upstream, &info);
    mtx_lock(&fc->lock);
    state = state_locked(upstream, &info);
    was = *state != FENCE_RUNS;
    mtx_unlock(&fc->lock);
    if (on && was && fleet_pause_lock_unless_pausing(fc, "a resync")) {
        if (!fleet_is_paused(fc)) /* by a trainer, meanwhile */
            send_step(fc, STEP_RESUME, &target, 1);
        fleet_pause_unlock(fc);
    }
    mtx_lock(&fc->lock);
    state = state_locked(upstream, &info);
    if (on && *state == FENCE_RUNS && fc->cfg.pause_fenced)
        *state = FENCE_SUSPENDED;
    else if (!on && *state == FENCE_SUSPENDED)
        *state = FENCE_RUNS;
    mtx_unlock(&fc->lock);
}

bool fleet_fence_is_paused(struct fleet_control *fc, struct upstream *upstream)
{
    struct upstream_info info;
    bool paused;

    fleet_info(fleet_of(fc), upstream, &info);
    mtx_lock(&fc->lock);
    paused = *state_locked(upstream, &info) == FENCE_PAUSED;
    mtx_unlock(&fc->lock);
    return paused;
}
