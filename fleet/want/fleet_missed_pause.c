/* Which process answers for an upstream, and which engines were not reachable when the others were
 * paused or resumed: those get it as soon as they are back, so that none stays paused after a
 * resume. */
#include "fleet/update/fleet_update_priv.h"

#include <assert.h>
#include <string.h>

void fleet_incarnation_of(struct fleet_control *fc, struct upstream *upstream,
                          struct fleet_incarnation *out)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    memcpy(out->process, info.report.process, sizeof out->process);
    out->incarnation = info.incarnation;
    out->n_failures = info.n_failures;
    out->synced = info.synced;
}

bool fleet_is_other_incarnation(struct fleet_control *fc, struct upstream *upstream,
                                const struct fleet_incarnation *before)
{
    struct fleet_incarnation now;

    fleet_incarnation_of(fc, upstream, &now);
    if (before->process[0] != '\0' && now.process[0] != '\0')
        return strcmp(before->process, now.process) != 0;
    return before->incarnation != now.incarnation || (before->synced && !now.synced) ||
           now.n_failures >= before->n_failures + FLEET_FAILURES_DOWN;
}

bool fleet_engine_is_paused_locked(struct fleet_control *fc, struct upstream *upstream)
{
    return fleet_engine(upstream)->paused.has &&
           !fleet_is_other_incarnation(fc, upstream, &fleet_engine(upstream)->paused.incarnation);
}

static bool is_among(const struct fleet_result *results, size_t n, struct upstream *upstream)
{
    for (size_t i = 0; i < n; i++)
        if (results[i].upstream == upstream)
            return true;
    return false;
}

static void set_due_locked(struct fleet_control *fc)
{
    struct upstream_list *all = upstreams_list(fc->upstreams);

    fc->missed_pause_due_us = CLOCK_NEVER;
    for (size_t i = 0; i < all->n; i++) {
        struct fleet_paused *paused = &fleet_engine(all->items[i])->paused;

        paused->missed = paused->missed && !upstream_is_removed(all->items[i]);
        if (paused->missed)
            fc->missed_pause_due_us = clock_after_us(FLEET_MISSED_PAUSE_RETRY_US);
    }
    upstream_list_unref(all);
}

void fleet_note_missed_pause(struct fleet_control *fc, const struct fleet_target *targets, size_t n)
{
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < n; i++)
        fleet_engine(targets[i].upstream)->paused.missed = true;
    set_due_locked(fc);
    mtx_unlock(&fc->lock);
    fleet_reschedule(fc);
}

void fleet_note_joined(struct fleet_control *fc)
{
    struct upstream_list *all = upstreams_list(fc->upstreams);
    struct upstream_info info;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < all->n; i++) {
        struct fleet_paused *paused = &fleet_engine(all->items[i])->paused;
        uint64_t before = paused->joined;

        fleet_info(fleet_of(fc), all->items[i], &info);
        paused->joined = info.join_incarnation;
        if (before != 0 && before != info.join_incarnation &&
            upstream_caps_of(all->items[i])->hides_pause)
            paused->missed = true;
    }
    set_due_locked(fc);
    mtx_unlock(&fc->lock);
    upstream_list_unref(all);
    fleet_reschedule(fc);
}

/* An engine at which a resume fails is fenced by the caller; one that is fenced, or that an update
 * keeps paused, is resumed with that update. */
void fleet_note_pause_results(struct fleet_control *fc, const struct fleet_result *results,
                              size_t n, bool paused)
{
    struct upstream_list *all = upstreams_list(fc->upstreams);
    struct upstream_info info;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < all->n; i++)
        fleet_engine(all->items[i])->paused.has = false;
    for (size_t i = 0; paused && i < n; i++) {
        struct fleet_paused *p = &fleet_engine(results[i].upstream)->paused;

        p->has = result_ok(&results[i]);
        fleet_incarnation_of(fc, results[i].upstream, &p->incarnation);
    }
    for (size_t i = 0; i < all->n; i++) {
        struct upstream *it = all->items[i];

        fleet_info(fleet_of(fc), it, &info);
        fleet_engine(it)->paused.missed = !upstream_is_removed(it) && !info.fenced &&
                                          !is_among(results, n, it) &&
                                          !fleet_engine_is_held_locked(fc, it);
    }
    set_due_locked(fc);
    mtx_unlock(&fc->lock);
    upstream_list_unref(all);
}

/* @targets  [FLEET_MAX]: those that missed it and are back */
static size_t select_missed_pause(struct fleet_control *fc, const struct upstream_list *all,
                                  const struct api_args *args, struct fleet_target *targets)
{
    struct fleet_target alive[FLEET_MAX];
    size_t n = fleet_reachable(fc, all, args, alive), n_targets = 0;
    struct upstream_info info;

    for (size_t i = 0; i < n; i++) {
        fleet_info(fleet_of(fc), alive[i].upstream, &info);
        mtx_lock(&fc->lock);
        if (fleet_engine(alive[i].upstream)->paused.missed && !info.fenced &&
            !fleet_engine_is_held_locked(fc, alive[i].upstream)) {
            targets[n_targets] = alive[i];
            targets[n_targets++].until_down = true;
        }
        mtx_unlock(&fc->lock);
    }
    return n_targets;
}

static void send_missed(struct fleet_control *fc, enum api_op op,
                        const struct fleet_target *targets, size_t n)
{
    struct fleet_result *results = NULL;
    struct upstream_info info;
    uint64_t incarnation[FLEET_MAX];
    struct err ignored = {0};

    for (size_t i = 0; i < n; i++) {
        fleet_info(fleet_of(fc), targets[i].upstream, &info);
        incarnation[i] = info.incarnation;
    }
    if (n == 0 || fleet_request(fc, op, targets, n, fleet_step_us(fc), &results, &ignored) != 0)
        return;
    for (size_t i = 0; i < n; i++) {
        if (results[i].outcome == FLEET_REFUSED)
            fleet_fence(fleet_of(fc), results[i].upstream, &results[i].why);
        if (op == API_PAUSE && result_ok(&results[i]))
            fleet_confirm_quiesced(fleet_of(fc), results[i].upstream, incarnation[i]);
        mtx_lock(&fc->lock);
        fleet_engine(results[i].upstream)->paused.missed = !result_ok(&results[i]) &&
                                                           results[i].outcome != FLEET_REFUSED;
        fleet_engine(results[i].upstream)->paused.has = op == API_PAUSE && result_ok(&results[i]);
        fleet_incarnation_of(fc, results[i].upstream,
                             &fleet_engine(results[i].upstream)->paused.incarnation);
        mtx_unlock(&fc->lock);
    }
    fleet_results_free(results, n);
}

static void send_missed_with_lock(struct fleet_control *fc, const struct upstream_list *all)
{
    struct fleet_target targets[FLEET_MAX];
    struct api_pause asked;
    const struct api_args args = {.pause = &asked};
    struct pause pause;
    bool on;

    assert(fleet_owns_pause_lock(fc));
    mtx_lock(&fc->lock);
    pause = fc->pause;
    mtx_unlock(&fc->lock);
    on = pause_is_held(&pause);
    asked = (struct api_pause){.mode = pause.mode, .reject = pause.reject};
    send_missed(fc, on ? API_PAUSE : API_RESUME, targets,
                select_missed_pause(fc, all, on ? &args : NULL, targets));
}

void fleet_send_missed_pauses(struct fleet_control *fc)
{
    struct fleet_target targets[FLEET_MAX];
    struct upstream_list *all;
    bool due;

    mtx_lock(&fc->lock);
    due = fc->missed_pause_due_us <= clock_now_us();
    mtx_unlock(&fc->lock);
    if (!due)
        return;
    all = upstreams_list(fc->upstreams);
    if (select_missed_pause(fc, all, NULL, targets) > 0 &&
        fleet_pause_lock_unless_pausing(fc, "what an upstream missed")) {
        send_missed_with_lock(fc, all);
        fleet_pause_unlock(fc);
    }
    upstream_list_unref(all);
    mtx_lock(&fc->lock);
    set_due_locked(fc);
    mtx_unlock(&fc->lock);
}
