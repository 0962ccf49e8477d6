/* Who gets the next request: one line for each lane. Whatever makes room (a permit that comes back,
 * an upstream that enters rotation) grants to the first in line, one at a time, outside of the
 * lock: a ticket may be gone as soon as its owner has been told. */
#include "fleet/members/fleet_priv.h"

#include <assert.h>

uint64_t fleet_affinity(const char *session)
{
    uint64_t hash = 0;

    if (*session == '\0')
        return 0;
    for (; *session != '\0'; session++)
        hash = fleet_mix(hash ^ (uint8_t)*session);
    return hash != 0 ? hash : 1;
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

    return fleet_in_rotation(u) && u->n_outstanding[lane] < s->f->cfg.n_permits[lane] &&
           !(s->f->held_back && u->no_pause_controller && lane == FLEET_GENERATE) &&
           !(s->avoid && s->t->avoid == i);
}

/* The session's own, while it has no more than its share. */
static bool find_own(const struct search *s, size_t *out)
{
    size_t share = (s->n_outstanding + 1) * FLEET_LOAD_PERCENT;
    uint64_t best = 0;
    bool found = false;

    for (size_t i = 0; i < s->f->n; i++) {
        uint64_t score = fleet_mix(s->t->affinity ^ s->f->upstreams[i].hash);

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
        s.n_open += fleet_in_rotation(&f->upstreams[i]);
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

void fleet_grant_all(struct fleet *f)
{
    for (enum fleet_lane lane = FLEET_GENERATE; lane < FLEET_LANES; lane++)
        while (grant_first(f, lane))
            continue;
}

/* All that are configured say no to our key. */
static bool all_refuse_locked(const struct fleet *f, size_t *first)
{
    size_t n = 0;

    for (size_t i = f->n; i-- > 0;) {
        const struct upstream *u = &f->upstreams[i];

        if (fleet_is_out(u, OUT_REMOVED))
            continue;
        if (!fleet_is_out(u, OUT_KEY))
            return false;
        *first = i;
        n++;
    }
    return n > 0;
}

/* Why nothing serves: of the first upstream that says, unless they are at odds. */
static int refuse_locked(const struct fleet *f, struct err *e)
{
    size_t first = 0;
    int64_t wall_s;

    if (all_refuse_locked(f, &first))
        return err_set(e, ERR_UPSTREAM_KEY, "", "no upstream serves; of %s: %.250s",
                       fleet_who(f, first).text,
                       fleet_error_of(&f->upstreams[first], &wall_s)->msg);
    if (fleet_undecided_locked(f, e))
        return -1;
    for (size_t i = 0; i < f->n; i++) {
        const struct upstream *u = &f->upstreams[i];
        const struct err *error = fleet_error_of(u, &wall_s);

        if (!fleet_is_out(u, OUT_REMOVED) && error->code != ERR_NONE)
            return err_set(e, ERR_UNSYNCED, "", "no upstream serves; of %s: %.250s",
                           fleet_who(f, i).text, error->msg);
    }
    return err_set(e, ERR_UNSYNCED, "", "no upstream serves: none has answered yet");
}

bool fleet_any_serving_locked(const struct fleet *f)
{
    for (size_t i = 0; i < f->n; i++)
        if (fleet_in_rotation(&f->upstreams[i]))
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
    else if (!fleet_any_serving_locked(f))
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
    if (t->answered) {
        u->n_misses = 0;
        fleet_answered_locked(u);
    }
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
    serves = fleet_in_rotation(&f->upstreams[upstream]);
    mtx_unlock(&f->lock);
    return serves;
}

void fleet_close(struct fleet *f)
{
    mtx_lock(&f->lock);
    f->closed = true;
    mtx_unlock(&f->lock);
}
