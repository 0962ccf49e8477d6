/* One lock over a table of upstreams and one line for each lane. Whatever makes room (a permit that
 * comes back, an upstream that enters rotation) grants to the first in line, one at a time, outside
 * of the lock: a ticket may be gone as soon as its owner has been told. */
#include "engine/upstream/fleet.h"

#include "base/clock.h"
#include "base/mtx.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLEET_WHO_MAX = 200 }; /* of a name in a message */

enum ticket_state { TICKET_IDLE, TICKET_QUEUED, TICKET_GRANTED };

struct upstream {
    const char *name; /* borrowed; NULL: it has none */
    uint64_t hash;    /* of the name, or else of the index: for affinity */
    bool heard, alive, synced, fenced, removed;
    unsigned n_misses; /* in a row */
    uint64_t serial;
    struct upstream_saw saw;
    size_t n_outstanding[FLEET_LANES];
    uint64_t n_granted, n_missed, heard_us;
    struct err error;
};

struct line {
    struct fleet_ticket *head, **tail;
    size_t n_waiting, n_running;
    uint64_t n_refused, n_cancelled;
};

struct fleet {
    struct mtx lock;            /* rank MTX_ADMISSION; guards down to the blank line */
    struct upstream *upstreams; /* [FLEET_MAX], of which n are used */
    size_t n, min_ready;
    struct line lines[FLEET_LANES];
    size_t turn; /* where the search for the least loaded begins: equals take turns */
    uint64_t serial, epoch;
    char label[FLEET_LABEL_MAX + 1];
    bool updating, closed;

    struct fleet_cfg cfg; /* immutable */
};

/* Spreads whatever bits differ over the whole word [splitmix64]. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
    x = (x ^ x >> 27) * 0x94d049bb133111ebU;
    return x ^ x >> 31;
}

uint64_t fleet_affinity(const char *session)
{
    uint64_t hash = 0;

    if (*session == '\0')
        return 0;
    for (; *session != '\0'; session++)
        hash = mix(hash ^ (uint8_t)*session);
    return hash != 0 ? hash : 1;
}

static void join_locked(struct fleet *f, size_t upstream, const char *name)
{
    struct upstream *u = &f->upstreams[upstream];
    struct upstream fresh = {.name = name, .synced = f->serial == 0};

    fresh.hash = name != NULL ? fleet_affinity(name) : mix(upstream);
    memcpy(fresh.n_outstanding, u->n_outstanding, sizeof fresh.n_outstanding);
    if (!fresh.synced)
        (void)err_set(&fresh.error, ERR_UNSYNCED, "", "it came after version '%s'", f->label);
    *u = fresh;
}

int fleet_new(struct fleet **out, const struct fleet_cfg *cfg, struct err *e)
{
    struct fleet *f = calloc(1, sizeof *f);

    assert(cfg->n_upstreams >= 1 && cfg->n_upstreams <= FLEET_MAX);
    if (f != NULL)
        f->upstreams = calloc(FLEET_MAX, sizeof *f->upstreams);
    if (f == NULL || f->upstreams == NULL) {
        free(f);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the upstreams");
    }
    mtx_init(&f->lock, MTX_ADMISSION);
    for (size_t lane = 0; lane < FLEET_LANES; lane++)
        f->lines[lane].tail = &f->lines[lane].head;
    f->n = cfg->n_upstreams;
    f->min_ready = cfg->min_ready;
    for (size_t i = 0; i < f->n; i++)
        join_locked(f, i, cfg->names != NULL ? cfg->names[i] : NULL);
    f->cfg = *cfg;
    f->cfg.names = NULL; /* the array is the caller's */
    *out = f;
    return 0;
}

void fleet_free(struct fleet *f)
{
    if (f == NULL)
        return;
    for (size_t lane = 0; lane < FLEET_LANES; lane++)
        assert(f->lines[lane].n_waiting == 0 && f->lines[lane].n_running == 0);
    mtx_fini(&f->lock);
    free(f->upstreams);
    free(f);
}

/* who gets it */

/* Does what runs there run as it should? */
static bool is_sound(const struct upstream *u)
{
    return u->alive && u->synced && !u->fenced;
}

static bool in_rotation(const struct upstream *u)
{
    return is_sound(u) && !u->removed && u->saw.unready[0] == '\0';
}

/* What one lane looks like to a search. */
struct search {
    const struct fleet *f;
    const struct fleet_ticket *t;
    size_t n_open; /* upstreams in rotation */
    size_t n_outstanding;
    bool avoid;
};

static bool may_take(const struct search *s, size_t i)
{
    const struct upstream *u = &s->f->upstreams[i];
    enum fleet_lane lane = s->t->lane;

    return in_rotation(u) && u->n_outstanding[lane] < s->f->cfg.n_permits[lane] &&
           !(s->avoid && s->t->avoid == i);
}

/* The session's own, while it has no more than its share. */
static bool find_own(const struct search *s, size_t *out)
{
    size_t share = (s->n_outstanding + 1) * FLEET_LOAD_PERCENT;
    uint64_t best = 0;
    bool found = false;

    for (size_t i = 0; i < s->f->n; i++) {
        uint64_t score = mix(s->t->affinity ^ s->f->upstreams[i].hash);

        if (!may_take(s, i) || (found && score <= best))
            continue;
        /* at most ceil(share / n_open), this one counted */
        if (s->f->upstreams[i].n_outstanding[s->t->lane] * 100 * s->n_open >= share)
            continue;
        best = score;
        *out = i;
        found = true;
    }
    return found;
}

static bool find_least(const struct search *s, size_t *out)
{
    size_t n = s->f->n, best = SIZE_MAX;

    for (size_t k = 0; k < n; k++) {
        size_t i = (s->f->turn + k) % n;

        if (!may_take(s, i) || s->f->upstreams[i].n_outstanding[s->t->lane] >= best)
            continue;
        best = s->f->upstreams[i].n_outstanding[s->t->lane];
        *out = i;
    }
    return best != SIZE_MAX;
}

/* An upstream with a free permit for it. What is to be avoided is taken when nobody else can. */
static bool find_locked(const struct fleet *f, const struct fleet_ticket *t, size_t *out)
{
    struct search s = {.f = f, .t = t, .avoid = t->avoid_one};

    for (size_t i = 0; i < f->n; i++) {
        s.n_open += in_rotation(&f->upstreams[i]);
        s.n_outstanding += f->upstreams[i].n_outstanding[t->lane];
    }
    if (t->affinity != 0 && find_own(&s, out))
        return true;
    if (find_least(&s, out))
        return true;
    s.avoid = false;
    return t->avoid_one && s.n_open == 1 && find_least(&s, out);
}

static void grant_locked(struct fleet *f, struct fleet_ticket *t, size_t upstream)
{
    struct upstream *u = &f->upstreams[upstream];

    t->state = TICKET_GRANTED;
    t->upstream = upstream;
    u->n_outstanding[t->lane]++;
    u->n_granted++;
    f->lines[t->lane].n_running++;
    f->turn = (upstream + 1) % f->n;
}

static void queue_locked(struct line *line, struct fleet_ticket *t)
{
    t->state = TICKET_QUEUED;
    t->next = NULL;
    t->prev_next = line->tail;
    *line->tail = t;
    line->tail = &t->next;
    line->n_waiting++;
}

static void unqueue_locked(struct line *line, struct fleet_ticket *t)
{
    *t->prev_next = t->next;
    if (t->next != NULL)
        t->next->prev_next = t->prev_next;
    else
        line->tail = t->prev_next;
    t->next = NULL;
    t->prev_next = NULL;
    line->n_waiting--;
    t->state = TICKET_IDLE;
}

/* The first in line for whom there is room. Only one that avoids an upstream may find none where
 * the next one does. */
static struct fleet_ticket *first_locked(const struct fleet *f, const struct line *line,
                                         size_t *upstream)
{
    for (struct fleet_ticket *t = line->head; t != NULL; t = t->next) {
        if (find_locked(f, t, upstream))
            return t;
        if (!t->avoid_one)
            break;
    }
    return NULL;
}

/* Returns false when nobody was granted. */
static bool grant_first(struct fleet *f, enum fleet_lane lane)
{
    struct line *line = &f->lines[lane];
    void (*granted)(void *arg, size_t upstream) = NULL;
    struct fleet_ticket *t;
    void *arg = NULL;
    size_t upstream = 0;

    mtx_lock(&f->lock);
    t = first_locked(f, line, &upstream);
    if (t != NULL) {
        unqueue_locked(line, t);
        grant_locked(f, t, upstream);
        granted = t->granted;
        arg = t->arg;
    }
    mtx_unlock(&f->lock);
    if (granted != NULL)
        granted(arg, upstream);
    return granted != NULL;
}

static void grant_all(struct fleet *f)
{
    for (enum fleet_lane lane = FLEET_GENERATE; lane < FLEET_LANES; lane++)
        while (grant_first(f, lane))
            continue;
}

struct who {
    char text[FLEET_WHO_MAX];
};

/* "http://10.0.0.1:8000", or "upstream 3" of one without a name. */
static struct who who_is(const struct fleet *f, size_t upstream)
{
    const char *name = f->upstreams[upstream].name;
    struct who w;

    if (name != NULL)
        (void)snprintf(w.text, sizeof w.text, "%s", name);
    else
        (void)snprintf(w.text, sizeof w.text, "upstream %zu", upstream);
    return w;
}

/* Why nothing serves: of the first upstream that says. */
static int refuse_locked(const struct fleet *f, struct err *e)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct upstream *u = &f->upstreams[i];

        if (!u->removed && u->error.code != ERR_NONE)
            return err_set(e, ERR_UNSYNCED, "", "no upstream serves; of %s: %.250s",
                           who_is(f, i).text, u->error.msg);
    }
    return err_set(e, ERR_UNSYNCED, "", "no upstream serves: none has answered yet");
}

static bool any_serving_locked(const struct fleet *f)
{
    for (size_t i = 0; i < f->n; i++)
        if (in_rotation(&f->upstreams[i]))
            return true;
    return false;
}

int fleet_enter(struct fleet *f, struct fleet_ticket *t, struct err *e)
{
    struct line *line = &f->lines[t->lane];
    bool granted = false;
    size_t upstream = 0;
    int rc = 0;

    mtx_lock(&f->lock);
    assert(t->state == TICKET_IDLE);
    if (f->closed)
        rc = err_set(e, ERR_DRAINING, "", "the server is draining: nothing new is taken");
    else if (!any_serving_locked(f))
        rc = refuse_locked(f, e);
    else if (first_locked(f, line, &upstream) == NULL && find_locked(f, t, &upstream))
        granted = true; /* who waits waits for something else */
    else if (line->n_waiting >= f->cfg.n_queue_max[t->lane])
        rc = err_set(e, ERR_OVERLOADED, "", "the upstreams are full: %zu requests run and %zu wait",
                     line->n_running, line->n_waiting);
    else
        queue_locked(line, t);
    if (granted)
        grant_locked(f, t, upstream);
    line->n_refused += rc != 0;
    mtx_unlock(&f->lock);
    /* A queued ticket may be granted and gone by now: it is not touched any more. */
    if (granted)
        t->granted(t->arg, upstream);
    return rc;
}

bool fleet_cancel(struct fleet *f, struct fleet_ticket *t)
{
    bool queued;

    mtx_lock(&f->lock);
    queued = t->state == TICKET_QUEUED;
    if (queued) {
        unqueue_locked(&f->lines[t->lane], t);
        f->lines[t->lane].n_cancelled++;
    }
    mtx_unlock(&f->lock);
    return queued;
}

void fleet_leave(struct fleet *f, struct fleet_ticket *t)
{
    enum fleet_lane lane = t->lane;
    struct upstream *u = &f->upstreams[t->upstream];
    bool waiting;

    mtx_lock(&f->lock);
    assert(t->state == TICKET_GRANTED);
    t->state = TICKET_IDLE;
    u->n_outstanding[lane]--;
    if (t->answered)
        u->n_misses = 0;
    f->lines[lane].n_running--;
    waiting = f->lines[lane].head != NULL;
    mtx_unlock(&f->lock);
    if (waiting)
        (void)grant_first(f, lane);
}

bool fleet_serves(struct fleet *f, size_t upstream)
{
    bool serves;

    mtx_lock(&f->lock);
    serves = in_rotation(&f->upstreams[upstream]);
    mtx_unlock(&f->lock);
    return serves;
}

void fleet_close(struct fleet *f)
{
    mtx_lock(&f->lock);
    f->closed = true;
    mtx_unlock(&f->lock);
}

/* which there are */

void fleet_add(struct fleet *f, size_t upstream, const char *name)
{
    mtx_lock(&f->lock);
    assert(upstream < FLEET_MAX && upstream <= f->n);
    assert(upstream == f->n || f->upstreams[upstream].removed);
    join_locked(f, upstream, name);
    if (upstream == f->n)
        f->n++;
    mtx_unlock(&f->lock);
}

/* One is out of rotation, but not so that what runs there were lost. */
static void closed_one(struct fleet *f)
{
    bool any;

    mtx_lock(&f->lock);
    any = any_serving_locked(f);
    mtx_unlock(&f->lock);
    if (!any && f->cfg.left != NULL)
        f->cfg.left(f->cfg.arg, FLEET_MAX);
}

void fleet_remove(struct fleet *f, size_t upstream)
{
    mtx_lock(&f->lock);
    assert(upstream < f->n);
    f->upstreams[upstream].removed = true;
    mtx_unlock(&f->lock);
    closed_one(f);
}

void fleet_set_min_ready(struct fleet *f, size_t min_ready)
{
    mtx_lock(&f->lock);
    f->min_ready = min_ready;
    mtx_unlock(&f->lock);
}

/* what was seen */

/* How an upstream stands: a removed one that is sound serves what it has, and no more. */
struct standing {
    bool sound, open;
};

static struct standing standing_of(const struct upstream *u)
{
    return (struct standing){is_sound(u), in_rotation(u)};
}

/* After a change: where nothing can be relied on is told of, and who entered brought room. */
static void changed(struct fleet *f, size_t upstream, struct standing before, struct standing after)
{
    if (before.sound && !after.sound && f->cfg.left != NULL)
        f->cfg.left(f->cfg.arg, upstream);
    else if (before.open && !after.open)
        closed_one(f);
    if (!before.open && after.open)
        grant_all(f);
}

static void blame(struct upstream *u, const struct err *why)
{
    u->error = *why;
}

/* Is what answers the process that was put into step? Nobody can tell of one that was away and
 * does not name itself. */
static bool may_be_another(const struct upstream *u, const struct upstream_saw *saw)
{
    if (saw->process[0] == '\0' || u->saw.process[0] == '\0')
        return u->heard && !u->alive;
    return strcmp(saw->process, u->saw.process) != 0;
}

static void check_sync_locked(const struct fleet *f, struct upstream *u,
                              const struct upstream_saw *saw)
{
    struct err why = {0};

    if (f->serial == 0)
        return;
    if (may_be_another(u, saw))
        (void)err_set(&why, ERR_UNSYNCED, "", "it was restarted: its weights are not version '%s'",
                      f->label);
    else if (!f->updating && saw->label[0] != '\0' && u->serial == f->serial &&
             strcmp(saw->label, f->label) != 0)
        (void)err_set(&why, ERR_UNSYNCED, "", "it serves weights '%s', not '%s'", saw->label,
                      f->label);
    if (why.code == ERR_NONE)
        return;
    u->synced = false;
    blame(u, &why);
}

void fleet_heard(struct fleet *f, size_t upstream, const struct upstream_saw *saw)
{
    struct upstream *u = &f->upstreams[upstream];
    struct standing before, after;

    mtx_lock(&f->lock);
    before = standing_of(u);
    check_sync_locked(f, u, saw);
    u->saw = *saw;
    u->heard = true;
    u->alive = true;
    u->n_misses = 0;
    u->heard_us = clock_now_us();
    after = standing_of(u);
    if (after.sound)
        err_clear(&u->error);
    if (after.sound && saw->unready[0] != '\0')
        (void)err_set(&u->error, ERR_UNSYNCED, "", "it would serve nobody: %s", saw->unready);
    mtx_unlock(&f->lock);
    changed(f, upstream, before, after);
}

bool fleet_confirm(struct fleet *f, size_t upstream, const char *process)
{
    struct upstream *u = &f->upstreams[upstream];
    struct standing before, after;
    struct err why = {0};
    bool same;

    mtx_lock(&f->lock);
    before = standing_of(u);
    same = f->serial == 0 || u->saw.process[0] == '\0' || strcmp(process, u->saw.process) == 0;
    if (!same) {
        (void)err_set(&why, ERR_UNSYNCED, "", "it was restarted: its weights are not version '%s'",
                      f->label);
        u->synced = false;
        blame(u, &why);
    }
    after = standing_of(u);
    mtx_unlock(&f->lock);
    changed(f, upstream, before, after);
    return same;
}

void fleet_missed(struct fleet *f, size_t upstream, bool refused, const struct err *why)
{
    struct upstream *u = &f->upstreams[upstream];
    struct standing before, after;

    mtx_lock(&f->lock);
    before = standing_of(u);
    u->n_misses++;
    u->n_missed++;
    if (refused || u->n_misses >= FLEET_MISSES_DOWN)
        u->alive = false;
    blame(u, why);
    after = standing_of(u);
    mtx_unlock(&f->lock);
    changed(f, upstream, before, after);
}

void fleet_updating(struct fleet *f, bool on)
{
    mtx_lock(&f->lock);
    f->updating = on;
    f->epoch++;
    mtx_unlock(&f->lock);
}

uint64_t fleet_epoch(struct fleet *f)
{
    uint64_t epoch;

    mtx_lock(&f->lock);
    epoch = f->epoch;
    mtx_unlock(&f->lock);
    return epoch;
}

void fleet_fence(struct fleet *f, size_t upstream, const struct err *why)
{
    struct upstream *u = &f->upstreams[upstream];
    struct standing before, after;

    mtx_lock(&f->lock);
    before = standing_of(u);
    u->fenced = true;
    blame(u, why);
    after = standing_of(u);
    mtx_unlock(&f->lock);
    changed(f, upstream, before, after);
}

int fleet_resync(struct fleet *f, size_t upstream, struct err *e)
{
    struct upstream *u = &f->upstreams[upstream];
    struct standing before, after;
    int rc = 0;

    mtx_lock(&f->lock);
    before = standing_of(u);
    if (u->removed)
        rc = err_set(e, ERR_NOT_FOUND, "", "%s is no longer configured", who_is(f, upstream).text);
    else if (u->fenced)
        rc = err_set(e, ERR_CONFLICT, "",
                     "%s is fenced: it is not as the others are, and only a whole update makes "
                     "that good",
                     who_is(f, upstream).text);
    else if (!u->alive)
        rc = err_set(e, ERR_CONFLICT, "", "%s does not answer", who_is(f, upstream).text);
    if (rc == 0) {
        u->synced = true;
        u->serial = f->serial;
        f->epoch++; /* what was asked before says nothing against it */
        err_clear(&u->error);
    }
    after = standing_of(u);
    mtx_unlock(&f->lock);
    changed(f, upstream, before, after);
    return rc;
}

static void step_locked(const struct fleet *f, struct upstream *u, bool done)
{
    struct err why = {0};

    if (done) {
        u->synced = true;
        u->fenced = false;
        u->serial = f->serial;
        u->saw.label[0] = '\0'; /* what it said before holds no more */
        u->saw.unready[0] = '\0';
        err_clear(&u->error);
        return;
    }
    if (u->removed)
        return; /* what runs there ends on the version that it began with */
    u->synced = false;
    if (u->fenced)
        return;
    (void)err_set(&why, ERR_UNSYNCED, "", "it did not take version '%s'", f->label);
    blame(u, &why);
}

uint64_t fleet_committed(struct fleet *f, const char *label, const bool *done)
{
    struct standing before[FLEET_MAX], after[FLEET_MAX];
    uint64_t serial;
    size_t n;

    mtx_lock(&f->lock);
    serial = ++f->serial;
    f->updating = false;
    f->epoch++;
    (void)snprintf(f->label, sizeof f->label, "%s", label);
    n = f->n;
    for (size_t i = 0; i < n; i++) {
        before[i] = standing_of(&f->upstreams[i]);
        step_locked(f, &f->upstreams[i], done[i]);
        after[i] = standing_of(&f->upstreams[i]);
    }
    mtx_unlock(&f->lock);
    for (size_t i = 0; i < n; i++)
        changed(f, i, before[i], after[i]);
    return serial;
}

uint64_t fleet_relabelled(struct fleet *f, const char *label, const bool *named)
{
    struct standing before[FLEET_MAX], after[FLEET_MAX];
    uint64_t serial;
    size_t n;

    mtx_lock(&f->lock);
    serial = f->serial;
    f->updating = false;
    f->epoch++;
    (void)snprintf(f->label, sizeof f->label, "%s", label);
    n = f->n;
    for (size_t i = 0; i < n; i++) {
        struct upstream *u = &f->upstreams[i];

        before[i] = standing_of(u);
        if (named[i])
            u->saw.label[0] = '\0';
        else if (u->serial == serial && serial > 0)
            step_locked(f, u, false);
        after[i] = standing_of(u);
    }
    mtx_unlock(&f->lock);
    for (size_t i = 0; i < n; i++)
        changed(f, i, before[i], after[i]);
    return serial;
}

/* the truth */

static const char *state_of(const struct upstream *u)
{
    if (u->removed)
        return "removed";
    if (u->fenced)
        return "fenced";
    if (!u->heard && !u->alive)
        return "unknown";
    if (!u->alive)
        return "down";
    if (!u->synced)
        return "unsynced";
    return u->saw.unready[0] == '\0' ? "serving" : "unready";
}

void fleet_info(struct fleet *f, size_t upstream, struct upstream_info *out)
{
    const struct upstream *u = &f->upstreams[upstream];

    mtx_lock(&f->lock);
    *out = (struct upstream_info){.alive = u->alive,
                                  .synced = u->synced,
                                  .fenced = u->fenced,
                                  .removed = u->removed,
                                  .state = state_of(u),
                                  .serial = u->serial,
                                  .saw = u->saw,
                                  .n_granted = u->n_granted,
                                  .n_missed = u->n_missed,
                                  .heard_us = u->heard_us,
                                  .error = u->error};
    memcpy(out->n_outstanding, u->n_outstanding, sizeof out->n_outstanding);
    mtx_unlock(&f->lock);
}

void fleet_stats(struct fleet *f, struct fleet_stats *out)
{
    memset(out, 0, sizeof *out);
    mtx_lock(&f->lock);
    out->min_ready = f->min_ready;
    for (size_t i = 0; i < f->n; i++) {
        out->n_upstreams += !f->upstreams[i].removed;
        out->n_serving += in_rotation(&f->upstreams[i]);
    }
    for (size_t lane = 0; lane < FLEET_LANES; lane++) {
        out->n_waiting[lane] = f->lines[lane].n_waiting;
        out->n_running[lane] = f->lines[lane].n_running;
        out->n_refused[lane] = f->lines[lane].n_refused;
        out->n_cancelled[lane] = f->lines[lane].n_cancelled;
    }
    out->serial = f->serial;
    memcpy(out->label, f->label, sizeof out->label);
    out->ready = out->n_serving >= f->min_ready;
    mtx_unlock(&f->lock);
}
