/* The steps of an update of the fleet: begin, tensors, the turns that others must stand still for.
 *
 * What overwrites live weights is stopped before the first byte, and told to start only then: its
 * own start may already take the weights apart. */
#include "fleet/update/fleet_run.h"

#include "base/id.h"
#include "base/log.h"
#include "handlers/body.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATON_LEASE_SPARE_S = 60 };

void part_drop_failed(struct fleet_part *p, const struct fleet_said *said)
{
    if (!said_good(said))
        fleet_session_drop(p, said->end, said->status, &said->why);
}

/* sessions */

struct fleet_session *fleet_open_session(struct fleet_control *fc)
{
    struct fleet_session *s;

    mtx_lock(&fc->lock);
    s = fc->session;
    if (s != NULL)
        s->n_refs++;
    mtx_unlock(&fc->lock);
    return s;
}

void fleet_unref(struct fleet_control *fc, struct fleet_session *s)
{
    mtx_lock(&fc->lock);
    fleet_session_unref(s);
    mtx_unlock(&fc->lock);
}

static struct fleet_session *find_locked(struct fleet_control *fc, const char *id)
{
    if (fc->session != NULL && strcmp(fc->session->id, id) == 0)
        return fc->session;
    for (size_t i = 0; i < FLEET_ENDED_KEPT; i++)
        if (fc->ended[i] != NULL && strcmp(fc->ended[i]->id, id) == 0)
            return fc->ended[i];
    return NULL;
}

int fleet_find(struct fleet_control *fc, const char *id, struct fleet_session **out, struct err *e)
{
    struct fleet_session *s;

    mtx_lock(&fc->lock);
    s = find_locked(fc, id);
    if (s != NULL)
        s->n_refs++;
    mtx_unlock(&fc->lock);
    if (s == NULL)
        return err_set(e, ERR_NOT_FOUND, "/update_id", "there is no update '%.60s'", id);
    *out = s;
    return 0;
}

static int refuse_open(const struct fleet_session *s, struct err *e)
{
    uint64_t now = clock_now_us();
    uint64_t left = s->lease_until_us > now ? s->lease_until_us - now : 0;

    return err_set(e, ERR_CONFLICT, "",
                   "update %s is %s, and its lease has %" PRIu64
                   " s left: finish or abort it first",
                   s->id, update_phase_name(s->phase), left / 1000000);
}

static int check_none_open(struct fleet_control *fc, struct err *e)
{
    int rc = 0;

    mtx_lock(&fc->lock);
    if (fc->session != NULL)
        rc = refuse_open(fc->session, e);
    else if (fc->weights_asleep && fc->sleep_level < 2)
        rc = err_set(e, ERR_ASLEEP, "", "the weights are asleep: wake them first");
    mtx_unlock(&fc->lock);
    return rc;
}

/* what an upstream may have open, and nobody here knows */

struct recovery {
    struct fleet_control *fc;
    struct part_set open;
};

static bool is_orphaned(const struct fleet_part *p, const void *arg)
{
    const struct recovery *r = arg;

    return p->two_phase && r->fc->orphaned[p->upstream];
}

static void take_open_update(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    struct recovery *r = arg;

    if (said->end != FLEET_GOOD)
        return;
    r->open.has[part] = wire_read_open_update(p->update_id, said->text, said->text_len);
    r->fc->orphaned[p->upstream] = r->open.has[part];
}

static void take_recovered(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    struct recovery *r = arg;

    (void)part;
    if (said->end == FLEET_GOOD)
        r->fc->orphaned[p->upstream] = false;
}

/* Before anything is asked of them: their last answer to us was lost. */
static void recover(struct fleet_control *fc, struct fleet_session *s)
{
    struct recovery r = {.fc = fc};
    const struct fanout who = {.about_itself = true,
                               .question = WIRE_WHO,
                               .select = is_orphaned,
                               .on_result = take_open_update,
                               .arg = &r};
    const struct fanout end = {.op = WIRE_ABORT,
                               .timeout_us = FLEET_ABORT_US,
                               .only = &r.open,
                               .on_result = take_recovered,
                               .arg = &r};
    struct err ignored = {0};

    if (fanout_apply(fc, s, &who, &ignored) != 0)
        return;
    (void)fanout_apply(fc, s, &end, &ignored);
    mtx_lock(&r.fc->lock);
    for (size_t i = 0; i < s->n_parts; i++)
        if (r.open.has[i])
            s->parts[i].update_id[0] = '\0';
    mtx_unlock(&r.fc->lock);
}

/* under the lock */

bool fleet_is_open(struct fleet_control *fc, const struct fleet_session *s)
{
    bool open;

    mtx_lock(&fc->lock);
    open = fleet_session_is_open(s);
    mtx_unlock(&fc->lock);
    return open;
}

bool fleet_stands(struct fleet_control *fc, const struct fleet_session *s)
{
    size_t min_ready = fleet_min_ready(fc);
    bool stands;

    mtx_lock(&fc->lock);
    stands = fleet_session_stands(s, min_ready);
    mtx_unlock(&fc->lock);
    return stands;
}

void fleet_tell_cause(struct fleet_control *fc, const struct fleet_session *s, struct err *e)
{
    size_t min_ready = fleet_min_ready(fc);

    mtx_lock(&fc->lock);
    fleet_session_cause(s, min_ready, e);
    mtx_unlock(&fc->lock);
}

/* begin */

static uint32_t baton_lease_s(struct fleet_control *fc, uint32_t lease_s)
{
    uint64_t wanted = fleet_update_us(fc) / 1000000 + BATON_LEASE_SPARE_S;

    if (wanted < lease_s)
        wanted = lease_s;
    return wanted < UPDATE_LEASE_S_MAX ? (uint32_t)wanted : UPDATE_LEASE_S_MAX;
}

static void take_parts(struct fleet_control *fc, struct fleet_session *s, const struct fleet_to *to)
{
    struct upstream_info info;
    struct upstream_at at;
    struct err ignored = {0};
    bool undecided = fleet_undecided(fleet_of(fc), &ignored);

    for (size_t i = 0; i < s->n_parts; i++) {
        struct fleet_part *p = &s->parts[i];

        upstreams_at(fc->upstreams, to[i].upstream, &at);
        fleet_info(fleet_of(fc), to[i].upstream, &info);
        p->upstream = to[i].upstream;
        p->two_phase = wire_is_two_phase(at.dialect);
        p->process_unnamed = at.dialect == WIRE_SGLANG;
        if (!p->two_phase)
            (void)snprintf(p->update_id, sizeof p->update_id, FLEET_UNFINISHED "%s", s->id);
        p->before = info.fenced   ? PART_WAS_FENCED
                    : info.synced ? PART_WAS_IN_STEP
                    : undecided   ? PART_WAS_UNDECIDED
                                  : PART_WAS_OUT_OF_STEP;
        p->was_first = info.serial == 0;
    }
}

static void note_told(struct fleet_session *s, const struct fleet_said *said, size_t n)
{
    json_t *told = NULL;

    for (size_t i = 0; told == NULL && i < n; i++)
        if (said[i].end == FLEET_GOOD && said[i].text != NULL)
            told = json_loadb(said[i].text, said[i].text_len, 0, NULL);
    if (!json_is_object(told)) {
        json_decref(told);
        return;
    }
    json_decref(s->told);
    s->told = told;
}

static bool has_own_update(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return p->two_phase && p->own == PART_OWN_OPEN && p->state != PART_FINISHED;
}

static void take_abort(struct fleet_part *p, size_t part, struct fleet_said *said, void *arg)
{
    struct fleet_control *fc = arg;

    (void)part;
    fc->orphaned[p->upstream] = said->end != FLEET_GOOD;
}

void fleet_abort_parts(struct fleet_control *fc, struct fleet_session *s, const char *reason)
{
    struct err ignored = {0};
    json_t *body = json_pack("{s:s}", "reason", reason);
    const struct fanout f = {.op = WIRE_ABORT,
                             .body = body,
                             .timeout_us = FLEET_ABORT_US,
                             .select = has_own_update,
                             .on_result = take_abort,
                             .arg = fc};

    if (body != NULL)
        (void)fanout_apply(fc, s, &f, &ignored);
    json_decref(body);
}

/* What each two-phase part said to its start. */
static int take_starts(struct fleet_control *fc, struct fleet_session *s,
                       const struct fleet_batch *b, struct fleet_said *said, json_t **details,
                       struct err *e)
{
    const struct fleet_said *cause;

    for (size_t i = 0; i < b->n; i++) {
        struct fleet_part *p = &s->parts[b->part[i]];

        if (said[i].end == FLEET_GOOD &&
            wire_read_update_id(p->update_id, said[i].text, said[i].text_len, &said[i].why) != 0)
            said[i].end = FLEET_UNKNOWN;
        p->own = said[i].end == FLEET_GOOD ? PART_OWN_OPEN : PART_OWN_CLOSED;
        if (said[i].end == FLEET_UNKNOWN)
            fc->orphaned[p->upstream] = true;
    }
    note_told(s, said, b->n);
    cause = fleet_cause(said, b->n);
    if (cause == NULL)
        return 0;
    *e = cause->why;
    *details = json_pack("{s:o}", "upstreams", fleet_said_json(fc, said, b->n));
    fleet_abort_parts(fc, s, "another server could not start its update");
    recover(fc, s);
    return -1;
}

static int start_parts(struct fleet_control *fc, struct fleet_session *s,
                       const struct fleet_begin *req, json_t **details, struct err *e)
{
    struct fleet_batch b = {0}, others = {0};
    struct fleet_said *said = NULL;
    json_t *body = json_copy((json_t *)(uintptr_t)req->start);
    int rc = -1;

    for (size_t i = 0; i < s->n_parts; i++)
        batch_add(s->parts[i].two_phase ? &b : &others, s, i,
                  s->parts[i].two_phase ? body : req->start);
    recover(fc, s);
    if (body == NULL ||
        fleet_put(body, "lease_s", json_integer(baton_lease_s(fc, req->lease_s))) != 0)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory to start an update");
    else if (fleet_words(fc, WIRE_START, others.to, others.n, e) == 0 &&
             fleet_ask(fc, WIRE_START, b.to, b.n, fleet_step_us(fc), &said, e) == 0)
        rc = take_starts(fc, s, &b, said, details, e);
    fleet_said_free(said, b.n);
    json_decref(body);
    return rc;
}

/* What a partial update does not bring must be there: of those that answer, the ones that serve the
 * fleet's version. */
static int keep_in_step(struct fleet_control *fc, struct fleet_to *to, size_t *n, struct err *e)
{
    size_t n_kept = 0, min_ready = fleet_min_ready(fc);
    struct upstream_info info;

    for (size_t i = 0; i < *n; i++) {
        fleet_info(fleet_of(fc), to[i].upstream, &info);
        if (info.synced && !info.fenced)
            to[n_kept++] = to[i];
    }
    *n = n_kept;
    return n_kept >= min_ready
               ? 0
               : err_set(e, ERR_UNSYNCED, "/partial",
                         "a partial update keeps the rest of what is served: %zu upstreams serve "
                         "the fleet's version, and --min-ready is %zu; send a whole one",
                         n_kept, min_ready);
}

static int begin(struct fleet_control *fc, const struct fleet_begin *req,
                 struct fleet_session **out, json_t **details, struct err *e)
{
    struct fleet_to to[FLEET_MAX];
    struct fleet_session *s;
    char id[ID_LEN + 1];
    size_t n;

    assert(fleet_has_op(fc));
    if (check_none_open(fc, e) != 0 || fleet_alive_enough(fc, NULL, to, &n, e) != 0 ||
        (req->partial && keep_in_step(fc, to, &n, e) != 0) || fleet_session_new(&s, n, e) != 0)
        return -1;
    id_make(id);
    (void)snprintf(s->id, sizeof s->id, "upd-%s", id);
    (void)snprintf(s->label, sizeof s->label, "%s", req->label);
    s->implicit = req->implicit;
    s->unnamed = req->unnamed || req->implicit;
    s->partial = req->partial;
    s->sharded = req->sharded;
    s->selector = req->selector;
    s->lease_s = req->lease_s;
    take_parts(fc, s, to);
    if (fleet_cover_begin(fc, s, e) != 0 || start_parts(fc, s, req, details, e) != 0) {
        fleet_unref(fc, s);
        return -1;
    }
    s->lease_until_us = clock_after_us((uint64_t)s->lease_s * 1000000);
    mtx_lock(&fc->lock);
    s->n_refs++;
    fc->session = s;
    mtx_unlock(&fc->lock);
    *out = s;
    return 0;
}

int fleet_begin(struct fleet_control *fc, const struct fleet_begin *req, struct fleet_session **out,
                json_t **details, struct err *e)
{
    int rc;

    if (fleet_step(fc, req->x, "the start of an update", e) != 0)
        return -1;
    upstreams_hold(fc->upstreams); /* the session remembers indexes: until close_session */
    rc = begin(fc, req, out, details, e);
    if (rc != 0)
        upstreams_release(fc->upstreams);
    fleet_turn_end(fc);
    fleet_look(fc);
    return rc;
}

/* standing still */

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

int refuse_ended(const struct fleet_session *s, struct err *e)
{
    if (s->error.code != ERR_NONE)
        return err_set(e, ERR_ENDED, "", "update %s was aborted: %.350s", s->id, s->error.msg);
    return err_set(e, ERR_ENDED, "", "update %s is %s", s->id, update_phase_name(s->phase));
}

/* Those that overwrite what they serve get one request after the other. */
static int enter(struct fleet_control *fc, struct fleet_session *s, struct err *e)
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

static void leave(struct fleet_control *fc, struct fleet_session *s)
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
    rc = find_group_locked(fc, json_string_value(body_given(body, "group_name")), &group, e);
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

void fleet_fence_parts(struct fleet_control *fc, struct fleet_session *s)
{
    for (size_t i = 0; i < s->n_parts; i++) {
        const struct fleet_part *p = &s->parts[i];
        struct err why;
        bool torn;

        mtx_lock(&fc->lock);
        torn = p->state == PART_IN_DOUBT ||
               (!fleet_session_is_open(s) &&
                (p->state == PART_RECEIVING || p->state == PART_DIRTY));
        why = p->why;
        mtx_unlock(&fc->lock);
        if (!torn)
            continue;
        if (why.code == ERR_NONE)
            (void)err_set(&why, ERR_UNSYNCED, "", "update %s ended before its weights were whole",
                          s->id);
        fleet_fence(fleet_of(fc), p->upstream, &why);
    }
}

/* Takes down what they said. */
static enum session_verdict judge(struct fleet_control *fc, struct fleet_session *s,
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
            note_told(s, said, b->n);
        if (verdict == SESSION_AGAIN)
            fleet_session_tell(&fleet_cause(said, b->n)->why, e);
        if (verdict == SESSION_OVER)
            fleet_session_cause(s, min_ready, e);
    }
    mtx_unlock(&fc->lock);
    fleet_fence_parts(fc, s);
    return verdict;
}

static size_t n_refused(struct fleet_control *fc, const struct fleet_session *s)
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
static void release_refused(struct fleet_control *fc, struct fleet_session *s)
{
    struct err ignored = {0};

    if (fleet_step(fc, NULL, "an update without one that refused it", &ignored) != 0)
        return;
    if (fleet_is_open(fc, s))
        fleet_release(fc, s, true);
    fleet_turn_end(fc);
}

static enum session_verdict send_all(struct fleet_control *fc, struct fleet_session *s,
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
        verdict = judge(fc, s, &b, said, t->chunk_id != NULL, e);
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
static int check_words(struct fleet_control *fc, struct fleet_session *s,
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

static enum session_verdict send_named(struct fleet_control *fc, struct fleet_session *s,
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
    verdict = send_all(fc, s, t, named, e);
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

    if (check_words(fc, s, t, e) != 0 || fleet_list_read(&list, fc, s, t->body, e) != 0)
        return -1;
    if (enter(fc, s, e) != 0) {
        fleet_list_fini(&list);
        return -1;
    }
    n_before = n_refused(fc, s);
    if (fleet_cover_check(s, &list, e) != 0 ||
        (t->by_group && drop_strangers(fc, s, t->body, e) != 0) ||
        fleet_check_marks(fc, s, false, e) != 0 || open_parts(fc, s, t->body, e) != 0 ||
        fleet_tell_packed(fc, s, t->body, e) != 0) {
        verdict = fleet_stands(fc, s) ? SESSION_AGAIN : SESSION_OVER;
    } else {
        if (t->abort_requests)
            abort_requests(fc);
        verdict = send_named(fc, s, t, e);
    }
    if (verdict == SESSION_GOES_ON)
        fleet_cover_took(fc, s, &list);
    fleet_list_fini(&list);
    if (verdict != SESSION_OVER && n_refused(fc, s) > n_before)
        release_refused(fc, s);
    leave(fc, s);
    if (verdict == SESSION_OVER)
        (void)fleet_give_up(fc, s, e, &ignored);
    return e->code == ERR_NONE ? 0 : -1;
}
