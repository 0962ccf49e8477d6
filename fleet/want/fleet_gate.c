/* Whether each engine is paused and asleep, as it should be. What it should be follows at every
 * look from what was asked of all (the trainer's pause, a sleep), from its fence (--pause-fenced)
 * and from the open update; what it is, from the last answers of its process (have.gate and
 * have.sleep, fleet/members/have.h). An engine that differs gets a pause or a resume, a sleep or a
 * wake: one that was away when the others got it, one that was restarted or added since, one whose
 * answer was lost. So it does not matter what came between, and nothing is remembered for it.
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
    GATE_INTERVAL_US = 250000,     /* between two looks at all engines */
    GATE_RETRY_US = 500000,        /* after the first request to one engine that failed ... */
    GATE_RETRY_MAX_US = 10000000,  /* ... and at most */
    GATE_FENCE_RETRY_US = 2000000, /* after a pause for its fence: the next report shows it */
    GATE_TIMEOUT_US = 2000000      /* a trainer's pause or resume waits for these requests */
};

enum step { STEP_NONE, STEP_PAUSE_FENCED, STEP_PAUSE, STEP_RESUME, STEP_SLEEP, STEP_WAKE };

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
    const struct fleet_gate *g = &fleet_engine(upstream)->gate;

    return have_may_be_paused(&info->have) && !pause_is_held(&fc->pause) &&
                   (!info->fenced || g->for_fence) && !g->told
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
static enum step step_of_locked(struct fleet_control *fc, struct upstream *upstream)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    if (!info.alive || fleet_engine_is_held_locked(fc, upstream) ||
        !retry_is_due(&fleet_engine(upstream)->gate.retry))
        return STEP_NONE;
    if (is_paused_for_fence(fc, &info))
        return step_of_fenced(fc, upstream, &info);
    if (fc->sleep.weights || fc->sleep.kv || (info.may_sleep && have_is_asleep(&info.have)))
        return STEP_NONE;
    if (info.removed)
        return step_of_removed(fc, upstream, &info);
    if (info.fenced)
        return STEP_NONE;
    return step_of_other(fc, &info);
}

/* It reports that it sleeps, and has answered no sleep of this server: it is shown, and woken when
 * a client asks for it, or before an update. */
static bool is_asleep_by_client(const struct upstream_info *info)
{
    return !info->have.sleep.slept && !info->have.sleep.missed && info->report.held != NULL &&
           strcmp(info->report.held, "asleep") == 0;
}

/* One that missed the sleep of all: not at level 2, by which it would lose its weights, and not one
 * that hides whether it sleeps already. An update wakes by itself the engines that take part. */
static enum step sleep_step_of_locked(struct fleet_control *fc, struct upstream *upstream)
{
    bool all_sleep = fc->sleep.weights && fc->sleep.kv && fc->sleep.level == 1;
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    if (!info.alive || info.removed || fc->session != NULL || fc->releasing != NULL ||
        !retry_is_due(&fleet_engine(upstream)->gate.sleep_retry))
        return STEP_NONE;
    if (info.to_wake.weights || info.to_wake.kv)
        return is_asleep_by_client(&info) ? STEP_NONE : STEP_WAKE;
    return all_sleep && !info.fenced && !upstream_caps_of(upstream)->hides_pause &&
                   (info.have.sleep.weights != SLEEP_ASLEEP || info.have.sleep.kv != SLEEP_ASLEEP)
               ? STEP_SLEEP
               : STEP_NONE;
}

/* @targets  [FLEET_MAX] */
static size_t select_targets(struct fleet_control *fc, const struct upstream_list *all,
                             enum step step, const struct api_args *args,
                             struct fleet_target *targets)
{
    size_t n_targets = 0;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < all->n; i++)
        if (step_of_locked(fc, all->items[i]) == step)
            targets[n_targets++] = (struct fleet_target){
                .upstream = all->items[i], .args = args, .until_down = true};
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

/* Engines that take no version have no marker, and are paused all the same. */
static void mark(struct fleet_control *fc, const struct fleet_target *targets, size_t n)
{
    const struct api_args marker = {.label = FLEET_FENCED_MARKER};
    struct fleet_target marked[FLEET_MAX];
    fleet_results_auto read = {0}, set = {0};
    struct err ignored = {0};
    size_t n_read = 0, n_marked = 0;

    for (size_t i = 0; i < n; i++)
        if (must_mark(fc, targets[i].upstream))
            marked[n_read++] = (struct fleet_target){.upstream = targets[i].upstream,
                                                     .args = &marker};
    if (n_read == 0 ||
        fleet_query(fc, API_GET_VERSION, marked, n_read, GATE_TIMEOUT_US, &read, &ignored) != 0)
        return;
    for (size_t i = 0; i < read.n; i++)
        if (is_expected(fc, &read.list[i]))
            marked[n_marked++] = marked[i];
    if (n_marked > 0)
        (void)fleet_request(fc, API_SET_VERSION, marked, n_marked, GATE_TIMEOUT_US, &set, &ignored);
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

static void note_paused(struct fleet_control *fc, const struct fleet_result *result)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), result->upstream, &info);
    if (info.have.gate == GATE_PAUSED)
        fleet_confirm_quiesced(fleet_of(fc), result->upstream, info.incarnation);
}

/* Each failure of one engine in a row is logged once. */
static void apply(struct fleet_control *fc, enum step step, const struct fleet_result *result)
{
    struct fleet_gate *g = &fleet_engine(result->upstream)->gate;
    bool ok = result_ok(result), fenced = step == STEP_PAUSE_FENCED, ends, tells;
    const char *event;

    if (step == STEP_PAUSE)
        note_paused(fc, result);
    mtx_lock(&fc->lock);
    ends = step == STEP_RESUME && g->for_fence;
    event = fenced ? "upstream.fence_paused"
            : ends ? "upstream.fence_resumed"
                   : "upstream.pause_missed";
    tells = ok ? ends || (fenced && !g->for_fence) : !g->told;
    g->told = !ok;
    if (ok) {
        g->for_fence = fenced || (g->for_fence && !ends);
        retry_clear(&g->retry);
    }
    if (!ok || fenced)
        retry_failed(&g->retry, fenced ? GATE_FENCE_RETRY_US : GATE_RETRY_US,
                     fenced ? GATE_FENCE_RETRY_US : GATE_RETRY_MAX_US);
    mtx_unlock(&fc->lock);
    if (tells)
        log_step(event, result);
}

static void send_step(struct fleet_control *fc, enum step step, const struct fleet_target *targets,
                      size_t n)
{
    fleet_results_auto results = {0};
    struct err ignored = {0};

    if (n > 0)
        (void)fleet_request(fc, step == STEP_RESUME ? API_RESUME : API_PAUSE, targets, n,
                            GATE_TIMEOUT_US, &results, &ignored);
    for (size_t i = 0; i < results.n; i++)
        apply(fc, step, &results.list[i]);
}

/* The caller holds the pause lock, so the trainer's pause does not change. */
static void send_steps(struct fleet_control *fc, const struct upstream_list *all)
{
    struct fleet_target targets[FLEET_MAX];
    struct api_pause trainers, fence = {.mode = PAUSE_KEEP, .owner = API_FENCE_OWNER};
    const struct api_args args[] = {[STEP_PAUSE_FENCED] = {.pause = &fence},
                                    [STEP_PAUSE] = {.pause = &trainers},
                                    [STEP_RESUME] = {0}};

    mtx_lock(&fc->lock);
    trainers = (struct api_pause){.mode = fc->pause.mode, .reject = fc->pause.reject};
    mtx_unlock(&fc->lock);
    for (enum step step = STEP_PAUSE_FENCED; step <= STEP_RESUME; step++)
        send_step(fc, step, targets, select_targets(fc, all, step, &args[step], targets));
}

/* sleep */

static bool lacks_route(int status)
{
    return status == 404 || status == 405;
}

/* What has no route to be woken by was not put to sleep by one either. */
static void apply_sleep(struct fleet_control *fc, enum step step, const struct fleet_result *result)
{
    struct fleet_gate *g = &fleet_engine(result->upstream)->gate;
    struct upstream_info info;
    bool first;

    fleet_info(fleet_of(fc), result->upstream, &info);
    if (step == STEP_SLEEP && result_ok(result))
        fleet_confirm_quiesced(fleet_of(fc), result->upstream, info.incarnation);
    else if (step == STEP_WAKE && result->outcome == FLEET_REFUSED && lacks_route(result->status) &&
             !info.have.sleep.slept)
        fleet_found_awake(fleet_of(fc), result->upstream, info.have.change);
    mtx_lock(&fc->lock);
    first = g->sleep_retry.delay_us == 0;
    if (result_ok(result))
        retry_clear(&g->sleep_retry);
    else
        retry_failed(&g->sleep_retry, GATE_RETRY_US, GATE_RETRY_MAX_US);
    mtx_unlock(&fc->lock);
    if (!result_ok(result) && first)
        log_step("upstream.sleep_missed", result);
}

/* The caller owns the operation lock, so what of the fleet sleeps does not change. */
static void send_sleep(struct fleet_control *fc, const struct upstream_list *all, enum step step)
{
    struct fleet_target targets[FLEET_MAX];
    struct api_sleep of[FLEET_MAX];
    struct api_args args[FLEET_MAX] = {0};
    fleet_results_auto results = {0};
    struct upstream_info info;
    struct err ignored = {0};
    size_t n = 0;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < all->n; i++) {
        if (sleep_step_of_locked(fc, all->items[i]) != step)
            continue;
        fleet_info(fleet_of(fc), all->items[i], &info);
        of[n] = step == STEP_WAKE ? info.to_wake
                                  : (struct api_sleep){.level = 1, .weights = true, .kv = true};
        args[n].sleep = &of[n];
        targets[n] = (struct fleet_target){
            .upstream = all->items[i],
            .args = &args[n],
            .until_down = true,
            .given_up = step == STEP_WAKE && !upstream_caps_of(all->items[i])->hides_pause
                            ? &fc->locks.op_wanted
                            : NULL,
            .given_up_us = FLEET_LATE_US};
        n++;
    }
    mtx_unlock(&fc->lock);
    if (n > 0)
        (void)fleet_request(fc, step == STEP_WAKE ? API_WAKE : API_SLEEP, targets, n, FLEET_STEP_US,
                            &results, &ignored);
    for (size_t i = 0; i < results.n; i++)
        apply_sleep(fc, step, &results.list[i]);
}

static bool any_sleep_step(struct fleet_control *fc, const struct upstream_list *all)
{
    bool any = false;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < all->n && !any; i++)
        any = sleep_step_of_locked(fc, all->items[i]) != STEP_NONE;
    mtx_unlock(&fc->lock);
    return any;
}

/* Later, if an operation is under way. */
static void send_sleeps(struct fleet_control *fc, const struct upstream_list *all)
{
    if (!any_sleep_step(fc, all) ||
        !fleet_lock_if_free(fc, FLEET_LOCK_OPERATION, "a sleep or a wake that an upstream missed"))
        return;
    send_sleep(fc, all, STEP_WAKE);
    send_sleep(fc, all, STEP_SLEEP);
    fleet_op_unlock(fc);
}

void fleet_gate_drive(struct fleet_control *fc)
{
    struct upstream_list *all = upstreams_list(fc->upstreams);
    struct fleet_target targets[FLEET_MAX];

    mark(fc, targets, select_targets(fc, all, STEP_PAUSE_FENCED, NULL, targets));
    if (fleet_pause_lock_unless_pausing(fc, "what an upstream missed")) {
        send_steps(fc, all);
        fleet_pause_unlock(fc);
    }
    upstream_list_unref(all);
}

static void run(void *arg)
{
    struct fleet_control *fc = arg;

    fleet_gate_drive(fc);
    mtx_lock(&fc->lock);
    fc->gates.running = false;
    mtx_unlock(&fc->lock);
}

/* By itself: a wake may last long, and pauses and resumes of the others do not wait for it. */
static void run_sleeps(void *arg)
{
    struct fleet_control *fc = arg;
    struct upstream_list *all = upstreams_list(fc->upstreams);

    send_sleeps(fc, all);
    upstream_list_unref(all);
    mtx_lock(&fc->lock);
    fc->gates.sleeping = false;
    mtx_unlock(&fc->lock);
}

/* What has ended its fence, as an update, may have resumed it too. */
static bool has_been_resumed_locked(struct fleet_control *fc, struct upstream *upstream)
{
    struct fleet_gate *g = &fleet_engine(upstream)->gate;
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    if (!g->for_fence || info.have.gate != GATE_RUNNING || is_paused_for_fence(fc, &info))
        return false;
    g->for_fence = false;
    return true;
}

/* On the thread of the upstreams' loop. The job is refused only when the server stops. */
static void on_timer(void *arg)
{
    struct fleet_control *fc = arg;
    struct fleet_gates *g = &fc->gates;
    struct upstream_list *all = upstreams_list(fc->upstreams);
    struct err ignored = {0};
    bool starts = false, sleeps = false;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < all->n && !g->sleeping; i++)
        sleeps = sleeps || sleep_step_of_locked(fc, all->items[i]) != STEP_NONE;
    for (size_t i = 0; i < all->n && !g->running; i++) {
        if (has_been_resumed_locked(fc, all->items[i]))
            log_step("upstream.fence_resumed",
                     &(struct fleet_result){.upstream = all->items[i], .outcome = FLEET_OK});
        starts = starts || step_of_locked(fc, all->items[i]) != STEP_NONE;
    }
    g->running = g->running || starts;
    g->sleeping = g->sleeping || sleeps;
    mtx_unlock(&fc->lock);
    upstream_list_unref(all);
    if (starts) {
        g->job = (struct job){.run = run, .arg = fc};
        (void)workers_post(fc->cfg.executor, &g->job, WORKERS_URGENT, &ignored);
    }
    if (sleeps) {
        g->sleep_job = (struct job){.run = run_sleeps, .arg = fc};
        (void)workers_post(fc->cfg.executor, &g->sleep_job, WORKERS_URGENT, &ignored);
    }
    fleet_own_updates_look(fc);
    loop_timer_set(upstreams_loop(fc->upstreams), &g->timer, clock_after_us(GATE_INTERVAL_US));
}

/* what others ask */

void fleet_gate_init(struct fleet_control *fc)
{
    fc->gates.item = (struct loop_item){.run = on_timer, .arg = fc};
    fc->gates.timer = (struct loop_timer){.fire = on_timer, .arg = fc};
}

void fleet_gate_watch(struct fleet_control *fc)
{
    loop_post(upstreams_loop(fc->upstreams), &fc->gates.item);
}

bool fleet_gate_differs_locked(struct fleet_control *fc, struct upstream *upstream)
{
    return step_of_locked(fc, upstream) != STEP_NONE;
}

void fleet_gate_suspend(struct fleet_control *fc, struct upstream *upstream, bool on)
{
    const struct fleet_target target = {.upstream = upstream};
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    mtx_lock(&fc->lock);
    fleet_engine(upstream)->gate.suspended = on && fc->cfg.pause_fenced;
    mtx_unlock(&fc->lock);
    if (!on || !have_may_be_paused(&info.have) || !fleet_pause_lock_unless_pausing(fc, "a resync"))
        return;
    if (!fleet_is_paused(fc)) /* by a trainer, meanwhile */
        send_step(fc, STEP_RESUME, &target, 1);
    fleet_pause_unlock(fc);
}

bool fleet_fence_is_paused(struct fleet_control *fc, struct upstream *upstream)
{
    struct upstream_info info;
    bool paused;

    fleet_info(fleet_of(fc), upstream, &info);
    mtx_lock(&fc->lock);
    paused = is_paused_for_fence(fc, &info) && fleet_engine(upstream)->gate.for_fence &&
             info.have.gate == GATE_PAUSED;
    mtx_unlock(&fc->lock);
    return paused;
}
