/* How tensors are sent to the engines of an update, and how engines are prepared for the first of
 * them.
 *
 * Engines that overwrite their weights are paused before the first byte, and told to start only
 * then: their own start may already take the weights apart. */
#include "fleet/update/fleet_update_priv.h"

#include "fleet/want/fleet_group_join.h"

#include <assert.h>
#include <string.h>

#define NO_GROUP UINT64_MAX

/* before the first byte */

struct pause_filter {
    struct fleet_control *fc;
    bool again; /* only those that may have been replaced since */
};

/* An engine that overwrites its weights, and neither is paused nor sleeps. Any pause of this
 * server will do, but for one that is out of step: clients may have resumed it. */
static bool is_running(const struct fleet_part *p, const void *arg)
{
    const struct pause_filter *l = arg;

    if (p->two_phase || p->out || l->fc->sleep.weights || l->fc->sleep.kv)
        return false;
    if (l->again)
        return fleet_may_be_other(l->fc, p->upstream, &p->incarnation);
    return !(p->before == PART_WAS_IN_STEP && upstream_have(p->upstream).gate == GATE_PAUSED);
}

static int pause_running(struct fleet_control *fc, struct fleet_session *s, bool again,
                         struct err *e)
{
    struct api_args args[FLEET_MAX];
    struct pause_filter filter = {.fc = fc, .again = again};
    const struct fanout f = {.op = API_PAUSE,
                             .of = args,
                             .select = is_running,
                             .arg = &filter,
                             .before_bytes = true,
                             .patient = fc->cfg.finishes}; /* requests may run for long */

    for (size_t i = 0; i < s->n_parts; i++)
        args[i] = (struct api_args){.pause = fleet_drain_pause(fc, &s->parts[i])};
    return fanout_apply(fc, s, &f, e) < 0 ? -1 : 0;
}

/* A resume does not touch these engines any more once this has begun (prepare_begun). What need not
 * be done while they stand still is done right before, in the pause lock: not before a trainer's
 * pause, in which engines may be replaced. */
static int pause_parts(struct fleet_control *fc, struct fleet_session *s,
                       const struct api_tensors *tensors, struct err *e)
{
    int rc = -1;

    fleet_proof_hold(fc, NULL);
    fleet_proof_await(fc);
    if (fleet_pause_lock(fc, "the start of an update", e) == 0) {
        if (fleet_send_packing(fc, s, tensors, e) == 0 && fleet_read_old_labels(fc, s, e) == 0) {
            mtx_lock(&fc->lock);
            s->pausing = true;
            mtx_unlock(&fc->lock);
            rc = pause_running(fc, s, false, e);
        }
        fleet_pause_unlock(fc);
    }
    fleet_proof_release(fc, NULL);
    return rc;
}

/* An abort waits only a moment. */
static int check_not_cut(const struct fleet_control *fc, const struct fleet_session *s,
                         struct err *e)
{
    if (s->given_up != NULL || !__atomic_load_n(&fc->locks.cuts, __ATOMIC_ACQUIRE))
        return 0;
    return err_set(e, ERR_CONFLICT, "", "an abort came before the first byte");
}

/* What is prepared now is this process of each engine. */
static void expect_tensors(struct fleet_control *fc, struct fleet_session *s)
{
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++) {
        struct fleet_part *p = &s->parts[i];

        if (!p->two_phase && !p->out && part_is_unchanged(p) && !p->may_have_marker)
            fleet_incarnation_of(fc, p->upstream, &p->incarnation);
    }
    mtx_unlock(&fc->lock);
}

/* Returns: -1 also if the update was aborted meanwhile, or too few engines are left. */
static int prepare_with_lock(struct fleet_control *fc, struct fleet_session *s,
                             const struct api_tensors *tensors, struct err *e)
{
    int rc = -1;

    assert(fleet_owns_update_lock(fc));
    if (!fleet_update_is_open(fc, s))
        return fleet_refuse_closed(s, e);
    if (!s->repair) /* its engines get no requests, and the others go on */
        fleet_set_updating(fleet_of(fc), true);
    expect_tensors(fc, s);
    if (fleet_drop_without_base(fc, s, e) == 0 && fleet_wake_parts(fc, s, e) == 0 &&
        pause_parts(fc, s, tensors, e) == 0) {
        fleet_drain_note_overwrites(fc, s);
        if (check_not_cut(fc, s, e) == 0 && fleet_set_dirty_markers(fc, s, e) == 0 &&
            check_not_cut(fc, s, e) == 0 && pause_running(fc, s, true, e) == 0)
            rc = fleet_start_parts(fc, s, tensors, e);
    }
    if (rc == 0) {
        fleet_release_unchanged(fc, s, true);
        rc = fleet_require_quorum(fc, s, e);
    }
    if (rc == 0)
        rc = check_not_cut(fc, s, e);
    mtx_lock(&fc->lock);
    s->prepared = rc == 0;
    mtx_unlock(&fc->lock);
    return rc;
}

/* From then on new requests wait for a permit. */
static void set_prepare_begun(struct fleet_control *fc, struct fleet_session *s, bool on)
{
    mtx_lock(&fc->lock);
    s->prepare_begun = on;
    mtx_unlock(&fc->lock);
    fleet_apply_quiesce(fc);
}

static int prepare_parts(struct fleet_control *fc, struct fleet_session *s,
                         const struct api_tensors *tensors, struct err *e)
{
    int rc;

    if (!fleet_session_overwrites(s) || (s->prepared && !fleet_must_start_parts(fc, s, tensors)))
        return 0;
    set_prepare_begun(fc, s, true);
    fleet_drain_parts(fc, s); /* without the lock: it can be aborted meanwhile */
    if (fleet_step_lock(fc, NULL, "the start of an update", e) != 0) {
        set_prepare_begun(fc, s, s->prepared);
        return -1;
    }
    rc = prepare_with_lock(fc, s, tensors, e);
    fleet_op_unlock(fc);
    return rc;
}

/* tensors */

/* Engines that overwrite their weights get one request after the other. */
static int sending_begin(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    uint64_t deadline_us = clock_after_us(fleet_update_us(fc));
    bool alone = fleet_session_overwrites(s), in_time = true;
    mtx_auto held = mtx_hold(&fc->lock);

    while (alone && s->sending && fleet_session_is_open(s) && in_time)
        in_time = cnd_wait(&fc->changed, &fc->lock, deadline_us);
    if (!fleet_session_is_open(s))
        return fleet_refuse_closed(s, e);
    if (s->phase == UPDATE_VERIFYING || s->phase == UPDATE_VERIFIED)
        return err_set(e, s->phase == UPDATE_VERIFIED ? ERR_ENDED : ERR_CONFLICT, "",
                       "update %s is %s: it takes no more tensors", s->id,
                       update_phase_name(s->phase));
    if (alone && s->sending)
        return err_set(e, ERR_CONFLICT, "",
                       "another request of update %s is under way: retry when it has ended", s->id);
    if (s->n_running++ == 0)
        s->receiving_since_us = clock_now_us();
    s->sending = true;
    s->sender = workers_self();
    s->phase = UPDATE_RECEIVING;
    return 0;
}

static void sending_end(struct fleet_control *fc, struct fleet_session *s)
{
    mtx_lock(&fc->lock);
    if (--s->n_running == 0)
        s->receive_us += clock_now_us() - s->receiving_since_us;
    s->sending = false;
    lease_timer_renew(&s->lease);
    cnd_broadcast(&fc->changed);
    mtx_unlock(&fc->lock);
}

/* An engine that has not joined the trainer's group gets nothing of what it broadcasts. From now on
 * the group is not left before fleet_group_end_receive.
 * @began_us  out: when it began, if it was found */
static int drop_non_members(struct fleet_control *fc, struct fleet_session *s, const char *name,
                            uint64_t *began_us, struct err *e)
{
    struct fleet_group *group;
    struct err never = {0}, ended = {0};
    int rc;

    (void)err_set(&never, ERR_CONFLICT, "", "it has not joined the group with the trainer");
    (void)err_set(&ended, ERR_CONFLICT, "",
                  "it was restarted, added again or given a version by others, and is no longer in "
                  "the group: join again by POST /v1/weight_transfer/init");
    mtx_lock(&fc->lock);
    rc = fleet_require_group_locked(fc, name, &group, e);
    if (rc == 0) {
        group->n_running++;
        *began_us = group->began_us;
    }
    for (size_t i = 0; rc == 0 && i < s->n_parts; i++) {
        struct fleet_part *p = &s->parts[i];

        if (!p->out && !fleet_group_has(fc, group, p->upstream))
            part_drop(p, FLEET_SKIPPED, 0,
                      fleet_group_member_of(group, p->upstream) != NULL ? &ended : &never);
    }
    mtx_unlock(&fc->lock);
    return rc == 0 ? fleet_require_quorum(fc, s, e) : rc;
}

static const struct api_args *args_for(const struct fleet_tensors *t, size_t part)
{
    return t->of != NULL && t->of[part].tensors != NULL ? &t->of[part] : &t->args;
}

/* Tensors of an update that was aborted meanwhile are not sent: its engines have been resumed. */
static int begin_receiving(struct fleet_control *fc, struct fleet_session *s,
                           const struct fleet_tensors *t, struct fleet_batch *b, struct err *e)
{
    mtx_auto held = mtx_hold(&fc->lock);

    if (!fleet_session_is_open(s))
        return fleet_refuse_closed(s, e);
    for (size_t i = 0; i < s->n_parts; i++) {
        struct fleet_part *p = &s->parts[i];

        if (p->out)
            continue;
        if (p->two_phase && part_is_unchanged(p))
            fleet_incarnation_of(fc, p->upstream, &p->incarnation);
        part_send(p);
        batch_add(b, s, i, args_for(t, i));
    }
    return 0;
}

static void apply_unsent(struct fleet_control *fc, struct fleet_session *s,
                         const struct fleet_batch *b)
{
    mtx_lock(&fc->lock);
    for (size_t i = 0; fleet_session_is_open(s) && i < b->n; i++)
        part_not_taken(&s->parts[b->part[i]]);
    mtx_unlock(&fc->lock);
}

static enum session_verdict apply_send_results(struct fleet_control *fc, struct fleet_session *s,
                                               const struct fleet_batch *b,
                                               const struct fleet_results *results, bool repeats,
                                               struct err *e)
{
    enum session_verdict verdict = VERDICT_RETRY;
    size_t min_ready;

    mtx_lock(&fc->lock);
    min_ready = fleet_session_min_ready_locked(fc, s);
    if (!fleet_session_is_open(s)) {
        (void)fleet_refuse_closed(s, e);
    } else {
        verdict = fleet_session_apply_results(s, results, b->part, min_ready, repeats);
        if (verdict == VERDICT_CONTINUE && fleet_session_has_part(s, true))
            fleet_session_set_report(s, results);
        if (verdict == VERDICT_RETRY)
            fleet_client_error(&fleet_results_cause(results)->why, e);
        if (verdict == VERDICT_ABORT)
            fleet_session_cause_error(s, min_ready, e);
    }
    mtx_unlock(&fc->lock);
    fleet_fence_parts(fc, s);
    return verdict;
}

/* @results  none: the answers are lost */
static void note_mapped(const struct fleet_tensors *t, const struct fleet_batch *b,
                        const struct fleet_results *results)
{
    for (size_t i = 0; t->mapped != NULL && i < b->n; i++) {
        const struct fleet_result *r = i < results->n ? &results->list[i] : NULL;

        t->mapped[b->part[i]] = r == NULL ||
                                (fleet_result_may_have_run(r) &&
                                 (r->outcome != FLEET_REFUSED ||
                                  !api_has_mapped_nothing(upstream_kind(b->targets[i].upstream),
                                                          r->status, r->text, r->text_len)));
    }
}

static size_t n_dropped(struct fleet_control *fc, const struct fleet_session *s)
{
    mtx_auto held = mtx_hold(&fc->lock);
    size_t n = 0;

    for (size_t i = 0; i < s->n_parts; i++)
        n += s->parts[i].out && part_is_unchanged(&s->parts[i]);
    return n;
}

/* An engine that refused the tensors without reading them is resumed with its old weights and
 * version, while the others get the rest. If the lock is not free now, this is done before the
 * others get the finish call. */
static void release_dropped(struct fleet_control *fc, struct fleet_session *s)
{
    struct err ignored = {0};

    if (fleet_step_lock(fc, NULL, "an update without one that refused it", &ignored) != 0)
        return;
    if (fleet_update_is_open(fc, s))
        fleet_release_unchanged(fc, s, true);
    fleet_op_unlock(fc);
}

static enum session_verdict send_to_parts(struct fleet_control *fc, struct fleet_session *s,
                                          const struct fleet_tensors *t, struct err *e)
{
    enum session_verdict verdict = VERDICT_RETRY;
    fleet_results_auto results = {0};
    struct fleet_batch b = {0};

    if (begin_receiving(fc, s, t, &b, e) != 0)
        return VERDICT_RETRY;
    if (fleet_request(fc, API_UPDATE_WEIGHTS, b.targets, b.n, fleet_update_us(fc), &results, e) ==
        0) {
        note_mapped(t, &b, &results);
        verdict = apply_send_results(fc, s, &b, &results, t->args.tensors->chunk_id != NULL, e);
    } else if (e->code == ERR_DRAINING) {
        note_mapped(t, &b, &results);
    } else {
        apply_unsent(fc, s, &b);
    }
    return verdict;
}

/* Checked first: tensors that one engine's API cannot express must not pause any engine. */
static int tensors_validate(struct fleet_control *fc, struct fleet_session *s,
                            const struct fleet_tensors *t, struct err *e)
{
    struct fleet_batch b = {0};

    mtx_lock(&fc->lock);
    for (size_t i = 0; fleet_session_is_open(s) && i < s->n_parts; i++)
        if (!s->parts[i].two_phase && !s->parts[i].out)
            batch_add(&b, s, i, args_for(t, i));
    mtx_unlock(&fc->lock);
    return fleet_validate(fc, API_UPDATE_WEIGHTS, b.targets, b.n, e);
}

/* Without memory for its list, an update that repeats it is refused. */
static void note_list_locked(struct fleet_session *s, const struct api_object *native,
                             uint64_t began_us)
{
    api_object_unref(s->list);
    s->list = api_columns_of(native);
    s->list_began_us = began_us;
}

static void fleet_update_send_count_received(struct fleet_control *fc, struct fleet_session *s,
                                             const struct fleet_tensors *t, uint64_t began_us,
                                             const struct fleet_names *l)
{
    fleet_coverage_add(fc, s, l);
    mtx_lock(&fc->lock);
    if (t->by_group && fleet_session_is_open(s))
        note_list_locked(s, t->args.native, began_us);
    s->n_received += l->seen ? (l->tensor_list != NULL ? l->tensor_list->n_tensors : 0) : 1;
    mtx_unlock(&fc->lock);
}

int fleet_send_tensors(struct fleet_control *fc, struct fleet_session *s,
                       const struct fleet_tensors *t, struct err *e)
{
    enum session_verdict verdict = VERDICT_RETRY;
    struct err ignored = {0};
    const struct api_tensors *tensors = t->args.tensors;
    struct fleet_names list = {0};
    uint64_t began_us = NO_GROUP;
    size_t n_before;

    if (tensors_validate(fc, s, t, e) != 0 || fleet_names_read(&list, fc, s, t, e) != 0 ||
        sending_begin(fc, s, e) != 0) {
        fleet_coverage_refuse(fc, s, &list, e);
        fleet_names_fini(&list);
        return -1;
    }
    mtx_lock(&fc->lock);
    s->source = t->source;
    mtx_unlock(&fc->lock);
    n_before = n_dropped(fc, s);
    if (fleet_coverage_check(fc, s, &list, e) != 0 ||
        fleet_read_configs(fc, s, tensors != NULL && tensors->by_path, e) != 0 ||
        (t->by_group && drop_non_members(fc, s, tensors->group, &began_us, e) != 0) ||
        fleet_check_dirty_markers(fc, s, false, e) != 0 || prepare_parts(fc, s, tensors, e) != 0 ||
        fleet_send_packing(fc, s, tensors, e) != 0 || fleet_drop_restarted(fc, s, e) != 0) {
        verdict = fleet_has_quorum(fc, s) ? VERDICT_RETRY : VERDICT_ABORT;
    } else {
        if (t->abort_requests)
            fleet_abort_all_requests(fc);
        verdict = send_to_parts(fc, s, t, e);
    }
    if (verdict == VERDICT_CONTINUE)
        fleet_update_send_count_received(fc, s, t, began_us, &list);
    if (verdict != VERDICT_ABORT && n_dropped(fc, s) > n_before)
        release_dropped(fc, s);
    if (e->code != ERR_NONE) /* before a finish that waits can look */
        fleet_coverage_refuse(fc, s, &list, e);
    sending_end(fc, s);
    fleet_names_fini(&list);
    if (verdict == VERDICT_ABORT)
        (void)fleet_abort_update_wait(fc, s, e, &ignored);
    if (began_us != NO_GROUP)
        fleet_group_end_receive(fc, began_us);
    return e->code == ERR_NONE ? 0 : -1;
}

int fleet_drop_engine(struct fleet_control *fc, struct fleet_session *s, struct upstream *upstream,
                      const struct err *why, struct err *e)
{
    struct err ignored = {0};
    int rc;

    if (sending_begin(fc, s, e) != 0)
        return -1;
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts && fleet_session_is_open(s); i++)
        if (s->parts[i].upstream == upstream && !s->parts[i].out)
            part_drop(&s->parts[i], FLEET_UNKNOWN, 0, why);
    mtx_unlock(&fc->lock);
    fleet_fence_parts(fc, s);
    rc = fleet_require_quorum(fc, s, e);
    sending_end(fc, s);
    if (rc != 0)
        (void)fleet_abort_update_wait(fc, s, e, &ignored);
    return rc;
}
