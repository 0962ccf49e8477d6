/* Tensors of an update of the fleet, and what must be so before the first of them.
 *
 * What overwrites live weights is stopped before the first byte, and told to start only then: its
 * own start may already take the weights apart. */
#include "fleet/update/fleet_run.h"

#include <assert.h>
#include <string.h>

/* before the first byte */

/* One that overwrites what it serves, and does not stand still for the update. What is asleep does
 * not run. */
static bool may_run(const struct fleet_part *p, const void *arg)
{
    const struct fleet_control *fc = arg;

    return !p->two_phase && part_takes_part(p) && !p->held && !fc->weights_asleep && !fc->kv_asleep;
}

/* The trainer's pause holds for what took it, and is still the process that did. */
static void hold_paused(struct fleet_control *fc, struct fleet_session *s)
{
    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++) {
        struct fleet_part *p = &s->parts[i];

        if (may_run(p, fc) && fc->hold.on && p->before == PART_WAS_IN_STEP &&
            fleet_is_paused_locked(fc, p->upstream))
            p->held = true;
    }
    mtx_unlock(&fc->lock);
}

static void take_hold(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    (void)part;
    (void)arg;
    if (said_good(said) || said->end == FLEET_UNKNOWN)
        p->held = true;
    part_drop_failed(p, said);
}

/* Who lets upstreams go on finds them held from the moment on that this has begun. */
static int hold_parts(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    json_t *keep = json_pack("{s:s}", "mode", "keep");
    const struct fanout f = {
        .op = WIRE_PAUSE, .body = keep, .select = may_run, .on_result = take_hold, .arg = fc};
    int rc = -1;

    if (keep == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory to pause upstreams");
    } else if (fleet_flow(fc, NULL, "the start of an update", e) == 0) {
        hold_paused(fc, s);
        rc = fanout_apply(fc, s, &f, e);
        fleet_flow_end(fc);
    }
    json_decref(keep);
    return rc;
}

/* Returns -1 also when it was ended meanwhile, or too few are left. */
static int open_turn(struct fleet_control *fc, struct fleet_session *s, const json_t *tensors,
                     struct err *e)
{
    int rc = -1;

    assert(fleet_has_op(fc));
    if (!fleet_is_open(fc, s))
        return refuse_ended(s, e);
    mtx_lock(&fc->lock);
    s->opened = true;
    mtx_unlock(&fc->lock);
    fleet_updating(fleet_of(fc), true);
    fleet_tokens(fc);
    if (hold_parts(fc, s, e) == 0 && fleet_mark_parts(fc, s, e) == 0)
        rc = fleet_begin_parts(fc, s, tensors, e);
    if (rc == 0)
        fleet_release(fc, s, true);
    if (rc == 0 && !fleet_stands(fc, s)) {
        fleet_tell_cause(fc, s, e);
        rc = -1;
    }
    mtx_lock(&fc->lock);
    s->ready = rc == 0;
    mtx_unlock(&fc->lock);
    return rc;
}

static int open_parts(struct fleet_control *fc, struct fleet_session *s, const json_t *tensors,
                      struct err *e)
{
    int rc;

    if (!fleet_session_overwrites(s) || (s->ready && !fleet_must_begin(fc, s, tensors)))
        return 0;
    if (fleet_step(fc, NULL, "the start of an update", e) != 0)
        return -1;
    rc = open_turn(fc, s, tensors, e);
    fleet_turn_end(fc);
    return rc;
}

/* tensors */

/* Those that overwrite what they serve get one request after the other. */
static int sending_enter(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    uint64_t deadline_us = clock_after_us(fleet_update_us(fc));
    bool alone = fleet_session_overwrites(s), in_time = true;
    int rc = 0;

    mtx_lock(&fc->lock);
    while (alone && s->sending && fleet_session_is_open(s) && in_time)
        in_time = cnd_wait(&fc->changed, &fc->lock, deadline_us);
    if (!fleet_session_is_open(s))
        rc = refuse_ended(s, e);
    else if (s->phase == UPDATE_VERIFYING || s->phase == UPDATE_VERIFIED)
        rc = err_set(e, ERR_CONFLICT, "", "update %s is %s: it takes no more tensors", s->id,
                     update_phase_name(s->phase));
    else if (alone && s->sending)
        rc = err_set(e, ERR_CONFLICT, "", "another request of update %s is under way", s->id);
    if (rc == 0) {
        s->n_running++;
        s->sending = true;
        s->sender = pthread_self();
        s->phase = UPDATE_RECEIVING;
    }
    mtx_unlock(&fc->lock);
    return rc;
}

static void sending_leave(struct fleet_control *fc, struct fleet_session *s)
{
    mtx_lock(&fc->lock);
    s->n_running--;
    s->sending = false;
    s->lease_until_us = clock_after_us((uint64_t)s->lease_s * 1000000);
    cnd_broadcast(&fc->changed);
    mtx_unlock(&fc->lock);
    fleet_look(fc);
}

/* An SGLang that is in no group of a name ends when it is asked to receive by it. */
static int find_group_locked(struct fleet_control *fc, const char *name,
                             const struct fleet_group **out, struct err *e)
{
    *out = fleet_group_locked(fc, name);
    if (*out != NULL)
        return 0;
    if (fc->n_groups == 0)
        return err_set(e, ERR_CONFLICT, "/transport",
                       "there is no group to receive from; POST /v1/weight_transfer/init joins "
                       "the upstreams to one");
    return err_set(e, ERR_CONFLICT, "/group_name",
                   "the group's name is '%.100s', not '%.100s': join it under the name that its "
                   "updates have",
                   fleet_group_locked(fc, NULL)->name, name);
}

/* Who is not in the trainer's group gets nothing of what it broadcasts. */
static int drop_strangers(struct fleet_control *fc, struct fleet_session *s, const json_t *body,
                          struct err *e)
{
    const struct fleet_group *group;
    struct err why = {0};
    bool stands;
    int rc;

    (void)err_set(&why, ERR_CONFLICT, "", "it has not joined the group with the trainer");
    mtx_lock(&fc->lock);
    rc = find_group_locked(fc, json_string_value(json_object_get(body, "group_name")), &group, e);
    for (size_t i = 0; rc == 0 && i < s->n_parts; i++)
        if (part_takes_part(&s->parts[i]) && !group->joined[s->parts[i].upstream])
            fleet_session_drop(&s->parts[i], FLEET_SKIPPED, 0, &why);
    stands = fleet_session_stands(s, fleet_min_ready(fc));
    mtx_unlock(&fc->lock);
    if (rc != 0)
        return rc;
    if (!stands)
        fleet_tell_cause(fc, s, e);
    return stands ? 0 : -1;
}

/* Of an update that was given up meanwhile nobody gets any: they have been let go. */
static int note_sending(struct fleet_control *fc, struct fleet_session *s,
                        const struct fleet_batch *b, struct err *e)
{
    int rc = 0;

    mtx_lock(&fc->lock);
    if (!fleet_session_is_open(s))
        rc = refuse_ended(s, e);
    for (size_t i = 0; rc == 0 && i < b->n; i++) {
        struct fleet_part *p = &s->parts[b->part[i]];

        if (p->two_phase)
            continue;
        if (p->state == PART_CLEAN)
            fleet_live(fc, p->upstream, &p->life);
        part_move(p, PART_ON_SEND);
    }
    mtx_unlock(&fc->lock);
    return rc;
}

/* @event  PART_ON_NOT_TAKEN: it reached nobody; PART_ON_DOUBT: nobody waits for the answers */
static void note_unanswered(struct fleet_control *fc, struct fleet_session *s,
                            const struct fleet_batch *b, enum part_event event)
{
    mtx_lock(&fc->lock);
    for (size_t i = 0; fleet_session_is_open(s) && i < b->n; i++)
        if (!s->parts[b->part[i]].two_phase)
            part_move(&s->parts[b->part[i]], event);
    mtx_unlock(&fc->lock);
}

/* Takes down what they said. */
static enum session_verdict answers_judge(struct fleet_control *fc, struct fleet_session *s,
                                          const struct fleet_batch *b, struct fleet_said *said,
                                          bool repeats, struct err *e)
{
    size_t min_ready = fleet_min_ready(fc);
    enum session_verdict verdict = SESSION_AGAIN;

    mtx_lock(&fc->lock);
    if (!fleet_session_is_open(s)) {
        (void)refuse_ended(s, e);
    } else {
        verdict = fleet_session_took(s, said, b->part, b->n, min_ready, repeats);
        if (verdict == SESSION_GOES_ON && fleet_session_has(s, true))
            fleet_note_told(s, said, b->n);
        if (verdict == SESSION_AGAIN)
            fleet_session_tell(&fleet_cause(said, b->n)->why, e);
        if (verdict == SESSION_OVER)
            fleet_session_cause(s, min_ready, e);
    }
    mtx_unlock(&fc->lock);
    fleet_fence_parts(fc, s);
    return verdict;
}

static size_t n_dropped(struct fleet_control *fc, const struct fleet_session *s)
{
    size_t n = 0;

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        n += s->parts[i].state == PART_DROPPED;
    mtx_unlock(&fc->lock);
    return n;
}

/* Who refused it at its door goes on with what it served, and has its name again, while the others
 * get the rest. Who cannot be let go of now is before the others are told to finish. */
static void release_dropped(struct fleet_control *fc, struct fleet_session *s)
{
    struct err ignored = {0};

    if (fleet_step(fc, NULL, "an update without one that refused it", &ignored) != 0)
        return;
    if (fleet_is_open(fc, s))
        fleet_release(fc, s, true);
    fleet_turn_end(fc);
}

static enum session_verdict tensors_send(struct fleet_control *fc, struct fleet_session *s,
                                         const struct fleet_tensors *t, const json_t *named,
                                         struct err *e)
{
    enum session_verdict verdict = SESSION_AGAIN;
    struct fleet_said *said = NULL;
    struct fleet_batch b = {0};

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        if (part_takes_part(&s->parts[i]))
            batch_add(&b, s, i, s->parts[i].two_phase ? named : t->body);
    mtx_unlock(&fc->lock);
    if (note_sending(fc, s, &b, e) != 0)
        return SESSION_AGAIN;
    if (fleet_ask(fc, WIRE_UPDATE, b.to, b.n, fleet_update_us(fc), &said, e) == 0)
        verdict = answers_judge(fc, s, &b, said, t->chunk_id != NULL, e);
    else
        note_unanswered(fc, s, &b, e->code == ERR_DRAINING ? PART_ON_DOUBT : PART_ON_NOT_TAKEN);
    fleet_said_free(said, b.n);
    return verdict;
}

static void abort_requests(struct fleet_control *fc)
{
    json_t *all = json_pack("{s:b}", "all", 1);
    struct fleet_to to[FLEET_MAX];
    struct fleet_said *said = NULL;
    struct err ignored = {0};
    size_t n = fleet_alive(fc, all, to);

    if (all != NULL &&
        fleet_ask(fc, WIRE_ABORT_REQUESTS, to, n, FLEET_CACHE_US, &said, &ignored) == 0)
        fleet_said_free(said, n);
    json_decref(all);
}

/* Words first: what somebody has none for must not stop anybody. */
static int tensors_check_words(struct fleet_control *fc, struct fleet_session *s,
                               const struct fleet_tensors *t, struct err *e)
{
    struct fleet_batch b = {0};

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        if (!s->parts[i].two_phase)
            batch_add(&b, s, i, t->body);
    mtx_unlock(&fc->lock);
    return fleet_words(fc, WIRE_UPDATE, b.to, b.n, e);
}

static enum session_verdict tensors_send_named(struct fleet_control *fc, struct fleet_session *s,
                                               const struct fleet_tensors *t, struct err *e)
{
    enum session_verdict verdict;
    json_t *named = json_copy((json_t *)(uintptr_t)t->body);

    if (named == NULL ||
        (t->chunk_id != NULL && fleet_put(named, "chunk_id", json_string(t->chunk_id)) != 0)) {
        json_decref(named);
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the update");
        return SESSION_AGAIN;
    }
    verdict = tensors_send(fc, s, t, named, e);
    json_decref(named);
    return verdict;
}

int fleet_send(struct fleet_control *fc, struct fleet_session *s, const struct fleet_tensors *t,
               struct err *e)
{
    enum session_verdict verdict = SESSION_AGAIN;
    struct err ignored = {0};
    struct fleet_list list = {0};
    size_t n_before;

    if (tensors_check_words(fc, s, t, e) != 0 || fleet_list_read(&list, fc, s, t->body, e) != 0)
        return -1;
    if (sending_enter(fc, s, e) != 0) {
        fleet_list_fini(&list);
        return -1;
    }
    n_before = n_dropped(fc, s);
    if (fleet_cover_check(s, &list, e) != 0 ||
        (t->by_group && drop_strangers(fc, s, t->body, e) != 0) ||
        fleet_check_marks(fc, s, false, e) != 0 || open_parts(fc, s, t->body, e) != 0 ||
        fleet_tell_packed(fc, s, t->body, e) != 0) {
        verdict = fleet_stands(fc, s) ? SESSION_AGAIN : SESSION_OVER;
    } else {
        if (t->abort_requests)
            abort_requests(fc);
        verdict = tensors_send_named(fc, s, t, e);
    }
    if (verdict == SESSION_GOES_ON)
        fleet_cover_took(fc, s, &list);
    fleet_list_fini(&list);
    if (verdict != SESSION_OVER && n_dropped(fc, s) > n_before)
        release_dropped(fc, s);
    sending_leave(fc, s);
    if (verdict == SESSION_OVER)
        (void)fleet_give_up(fc, s, e, &ignored);
    return e->code == ERR_NONE ? 0 : -1;
}
