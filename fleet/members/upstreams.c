/* A table of indexes under one leaf lock, and a loop. What is in the table is never changed, only
 * replaced, and what was replaced stays in memory: whoever read it may still be talking to it. A
 * reload with nothing new in it leaves nothing behind.
 *
 * Rejected: counting who uses a target, at the cost of two atomics for each request that is
 * relayed; keys change a few times in the life of a process. */
#include "fleet/members/upstreams.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mtx.h"
#include "fleet/members/prober.h"
#include "fleet/members/spec.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    LIVE_BEAT_MAX_US = 60000000, /* without a round of probes for longer it is dead */
    GIVE_UP_US = 200000          /* between looks at who went down while it was waited for */
};

/* A spec that was taken in. */
struct known {
    struct known *next; /* of all there ever were */
    struct spec *spec;  /* owned */
};

struct slot {
    const struct spec *spec; /* of a known one; NULL: the index was never used */
    bool removed;
};

/* One call of upstreams_ask, on its caller's stack. */
struct ask {
    struct loop_item item;
    struct upstreams *room;
    struct upstream_question *parts;
    size_t n;
    struct upstream_fanout *fanout;  /* loop thread */
    struct upstream_answer *answers; /* the caller's; written before `ended` */
    struct ask *next, **prev_next;   /* under the room's lock, and so is what follows */
    bool posted;                     /* its item has been; else it is about to be */
    bool ended;
    struct err error;
};

struct upstreams {
    struct mtx lock; /* rank MTX_LEAF; guards down to the blank line */
    struct slot slots[FLEET_MAX];
    size_t n, n_holds;
    struct ask *asks;
    bool stopped;
    void (*left)(void *arg, size_t upstream);
    void *left_arg;
    struct cnd ended; /* an ask, or posted */

    struct upstreams_cfg cfg; /* immutable, and so are the pointers that follow */
    struct fleet *fleet;
    struct loop *loop;
    struct http_client *client; /* loop thread */
    struct prober *prober;
    struct loop_item stop;
    struct loop_timer give_up;

    struct known *known; /* main's thread */
};

static void on_left(void *arg, size_t upstream)
{
    struct upstreams *u = arg;
    void (*left)(void *arg, size_t upstream);
    void *left_arg;

    mtx_lock(&u->lock);
    left = u->left;
    left_arg = u->left_arg;
    mtx_unlock(&u->lock);
    if (left != NULL)
        left(left_arg, upstream);
}

/* A trainer that finds requests refused has to be able to read why. */
static void on_moved(void *arg, const struct fleet_move *m)
{
    bool bad = m->from == UPSTREAM_SERVING || m->to == UPSTREAM_DOWN ||
               m->to == UPSTREAM_KEY_REFUSED;
    enum log_level level = bad ? LOG_WARN : LOG_INFO;
    struct log_rec r;

    (void)arg;
    if (!log_enabled(level))
        return;
    log_begin(&r, level, "upstream.state");
    log_str(&r, "upstream", m->name);
    log_str(&r, "from", upstream_state_name(m->from));
    log_str(&r, "to", upstream_state_name(m->to));
    log_str(&r, "why", m->why.code != ERR_NONE ? m->why.msg : NULL);
    log_str(&r, "weight_version", m->label[0] != '\0' ? m->label : NULL);
    if (m->n_untold > 0)
        log_u64(&r, "untold", m->n_untold);
    if (m->is_last)
        log_u64(&r, "silent_for_s", FLEET_MOVES_US / 1000000);
    log_end(&r);
}

/* Of whom a removed one has nobody left to wait for is not asked any more. */
static bool who_is(void *arg, size_t i, struct prober_who *out)
{
    struct upstreams *u = arg;
    struct upstream_info info;
    struct slot slot;

    mtx_lock(&u->lock);
    slot = u->slots[i];
    mtx_unlock(&u->lock);
    if (slot.spec == NULL)
        return false;
    if (slot.removed) {
        fleet_info(u->fleet, i, &info);
        if (info.n_outstanding[FLEET_GENERATE] + info.n_outstanding[FLEET_TEXT] == 0)
            return false;
    }
    *out = (struct prober_who){&slot.spec->target, slot.spec->kind};
    return true;
}

/* the configuration */

static int check_min_ready(const struct upstreams_cfg *cfg, size_t n, struct err *e)
{
    if (cfg->min_ready <= n)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "--min-ready", "%zu of %zu upstreams can never be ready",
                   cfg->min_ready, n);
}

static size_t min_ready_of(const struct upstreams_cfg *cfg, size_t n)
{
    return cfg->min_ready > 0 ? cfg->min_ready : n;
}

/* Takes the spec out of the list. @known  of the caller, for it */
static const struct spec *know(struct upstreams *u, struct spec_list *list, size_t i,
                               struct known *known)
{
    known->spec = list->items[i];
    known->next = u->known;
    u->known = known;
    list->items[i] = NULL;
    return known->spec;
}

static int take_first(struct upstreams *u, struct spec_list *list, struct err *e)
{
    for (size_t i = 0; i < list->n; i++) {
        struct known *known = calloc(1, sizeof *known);

        if (known == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for %zu upstreams", list->n);
        u->slots[i].spec = know(u, list, i, known);
    }
    u->n = list->n;
    return 0;
}

static int make_fleet(struct upstreams *u, struct err *e)
{
    const char *names[FLEET_MAX];
    struct fleet_cfg cfg = {.n_upstreams = u->n,
                            .names = names,
                            .min_ready = min_ready_of(&u->cfg, u->n),
                            .left = on_left,
                            .moved = on_moved,
                            .arg = u};

    for (size_t i = 0; i < u->n; i++)
        names[i] = u->slots[i].spec->url;
    memcpy(cfg.n_permits, u->cfg.n_permits, sizeof cfg.n_permits);
    memcpy(cfg.n_queue_max, u->cfg.n_queue_max, sizeof cfg.n_queue_max);
    if (fleet_new(&u->fleet, &cfg, e) != 0)
        return -1;
    for (size_t i = 0; i < u->n; i++)
        fleet_pause_controller(u->fleet, i, upstream_is_two_phase(u->slots[i].spec->kind));
    return 0;
}

static int make_prober(struct upstreams *u, struct err *e)
{
    struct prober_cfg cfg = {.fleet = u->fleet,
                             .loop = u->loop,
                             .client = u->client,
                             .who = who_is,
                             .arg = u,
                             .interval_us = u->cfg.probe_interval_us,
                             .timeout_us = u->cfg.probe_timeout_us,
                             .token_every = u->cfg.token_every};

    return prober_new(&u->prober, &cfg, e);
}

static void on_stop(void *arg);
static void on_give_up(void *arg);

static int make_room(struct upstreams *u, struct spec_list *list, struct err *e)
{
    struct loop_cfg loop = {.name = "upstream"};

    if (take_first(u, list, e) != 0 || make_fleet(u, e) != 0 || loop_new(&u->loop, &loop, e) != 0)
        return -1;
    return http_client_new(&u->client, u->loop, e) == 0 ? make_prober(u, e) : -1;
}

int upstreams_new(struct upstreams **out, const struct upstreams_cfg *cfg, struct err *e)
{
    struct spec_list list;
    struct upstreams *u;
    int rc;

    if (spec_list_read(&list, cfg->specs, cfg->n_specs, cfg->file, e) != 0)
        return -1;
    u = calloc(1, sizeof *u);
    if (u == NULL) {
        spec_list_fini(&list);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the upstreams");
    }
    mtx_init(&u->lock, MTX_LEAF);
    cnd_init(&u->ended);
    u->cfg = *cfg;
    u->stop = (struct loop_item){.run = on_stop, .arg = u};
    u->give_up = (struct loop_timer){.fire = on_give_up, .arg = u};
    rc = check_min_ready(cfg, list.n, e) == 0 ? make_room(u, &list, e) : -1;
    spec_list_fini(&list);
    if (rc == 0)
        *out = u;
    else
        upstreams_free(u);
    return rc;
}

int upstreams_start(struct upstreams *u, struct err *e)
{
    return loop_start(u->loop, e);
}

/* reading it again */

/* What a reload does to one entry of the new configuration. */
struct change {
    size_t index;        /* that it has, or gets */
    bool is_new;         /* the index was not its own, or it had been removed */
    struct known *known; /* owned; NULL: nothing about it has changed */
};

struct reload {
    struct change changes[FLEET_MAX]; /* [list->n] */
    bool named[FLEET_MAX];            /* the index is one of those */
    size_t n;                         /* indexes used afterwards */
};

static bool index_of(const struct upstreams *u, const char *name, size_t *out)
{
    for (size_t i = 0; i < u->n; i++)
        if (u->slots[i].spec != NULL && strcmp(u->slots[i].spec->url, name) == 0) {
            *out = i;
            return true;
        }
    return false;
}

static bool is_idle(struct upstreams *u, size_t i)
{
    struct upstream_info info;

    fleet_info(u->fleet, i, &info);
    for (size_t lane = 0; lane < FLEET_LANES; lane++)
        if (info.n_outstanding[lane] > 0)
            return false;
    return true;
}

/* An index that nobody has, for one that has none. Indexes of the removed are taken last: those who
 * were told of one a moment ago have forgotten it the longer. */
static bool free_index(struct upstreams *u, const struct reload *r, bool held, size_t *out)
{
    if (r->n < FLEET_MAX) {
        *out = r->n;
        return true;
    }
    for (size_t i = 0; i < u->n && !held; i++)
        if (!r->named[i] && u->slots[i].removed && is_idle(u, i)) {
            *out = i;
            return true;
        }
    return false;
}

static int tensor_list_one(struct upstreams *u, struct reload *r, struct change *c,
                           const struct spec *s, bool held, struct err *e)
{
    const struct slot *slot;

    if (c->index == FLEET_MAX) {
        if (!free_index(u, r, held, &c->index))
            return err_set(e, ERR_CONFLICT, "--upstream-file",
                           "no place is left for '%.200s': of %d all are taken, some by upstreams "
                           "that are gone but still busy",
                           s->url, FLEET_MAX);
        c->is_new = true;
    }
    r->named[c->index] = true;
    if (c->index >= r->n)
        r->n = c->index + 1;
    slot = &u->slots[c->index];
    c->is_new = c->is_new || slot->removed;
    if (!c->is_new && spec_same(slot->spec, s))
        return 0;
    c->known = calloc(1, sizeof *c->known);
    return c->known != NULL ? 0 : err_set(e, ERR_NO_MEMORY, "", "no memory for '%.200s'", s->url);
}

/* Only main changes the table, so main reads it without the lock. Who keeps an index is found
 * first, so that nobody new gets it. */
static int tensor_list(struct upstreams *u, struct reload *r, const struct spec_list *list,
                       bool held, struct err *e)
{
    r->n = u->n;
    for (size_t i = 0; i < list->n; i++) {
        r->changes[i].index = FLEET_MAX;
        if (index_of(u, list->items[i]->url, &r->changes[i].index))
            r->named[r->changes[i].index] = true;
    }
    for (size_t i = 0; i < list->n; i++)
        if (tensor_list_one(u, r, &r->changes[i], list->items[i], held, e) != 0)
            return -1;
    return 0;
}

static void log_change(const char *what, const struct spec *s)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, what);
    log_str(&r, "upstream", s->url);
    log_str(&r, "dialect", upstream_kind_name(s->kind));
    log_end(&r);
}

static void set_slot(struct upstreams *u, size_t i, const struct spec *spec, bool removed)
{
    mtx_lock(&u->lock);
    u->slots[i] = (struct slot){spec, removed};
    if (i >= u->n)
        u->n = i + 1;
    mtx_unlock(&u->lock);
}

static void change_one(struct upstreams *u, struct change *c, struct spec_list *list, size_t i)
{
    const struct spec *spec;

    if (c->known == NULL)
        return;
    spec = know(u, list, i, c->known);
    c->known = NULL;
    set_slot(u, c->index, spec, false);
    if (c->is_new)
        fleet_add(u->fleet, c->index, spec->url);
    fleet_pause_controller(u->fleet, c->index, upstream_is_two_phase(spec->kind));
    log_change(c->is_new ? "upstream.added" : "upstream.changed", spec);
}

static void remove_others(struct upstreams *u, const struct reload *r)
{
    for (size_t i = 0; i < u->n; i++) {
        if (r->named[i] || u->slots[i].removed)
            continue;
        set_slot(u, i, u->slots[i].spec, true);
        fleet_remove(u->fleet, i);
        log_change("upstream.removed", u->slots[i].spec);
    }
}

static int replace(struct upstreams *u, struct spec_list *list, struct err *e)
{
    struct reload *r = calloc(1, sizeof *r);
    bool held;
    int rc;

    if (r == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to read the upstreams again");
    mtx_lock(&u->lock);
    held = u->n_holds > 0 || u->asks != NULL;
    mtx_unlock(&u->lock);
    rc = tensor_list(u, r, list, held, e);
    if (rc == 0) {
        for (size_t i = 0; i < list->n; i++)
            change_one(u, &r->changes[i], list, i);
        remove_others(u, r);
        fleet_set_min_ready(u->fleet, min_ready_of(&u->cfg, list->n));
        prober_look(u->prober);
    }
    for (size_t i = 0; i < list->n; i++)
        free(r->changes[i].known);
    free(r);
    return rc;
}

int upstreams_reload(struct upstreams *u, struct err *e)
{
    const struct upstreams_cfg *cfg = &u->cfg;
    struct spec_list list;
    int rc;

    if (spec_list_read(&list, cfg->specs, cfg->n_specs, cfg->file, e) != 0)
        return -1;
    rc = check_min_ready(cfg, list.n, e) == 0 ? replace(u, &list, e) : -1;
    spec_list_fini(&list);
    return rc;
}

void upstreams_hold(struct upstreams *u)
{
    mtx_lock(&u->lock);
    u->n_holds++;
    mtx_unlock(&u->lock);
}

void upstreams_release(struct upstreams *u)
{
    mtx_lock(&u->lock);
    assert(u->n_holds > 0);
    u->n_holds--;
    mtx_unlock(&u->lock);
}

/* asking several */

static void link_locked(struct upstreams *u, struct ask *a)
{
    a->next = u->asks;
    a->prev_next = &u->asks;
    if (a->next != NULL)
        a->next->prev_next = &a->next;
    u->asks = a;
}

/* The caller may be gone as soon as the lock is. */
static void end_ask(struct ask *a, const struct err *why)
{
    struct upstreams *u = a->room;

    mtx_lock(&u->lock);
    *a->prev_next = a->next;
    if (a->next != NULL)
        a->next->prev_next = a->prev_next;
    if (why != NULL)
        a->error = *why;
    a->ended = true;
    cnd_broadcast(&u->ended);
    mtx_unlock(&u->lock);
}

static void on_answers(void *arg, struct upstream_answer *answers, size_t n)
{
    struct ask *a = arg;

    for (size_t i = 0; i < n; i++) {
        a->answers[i] = answers[i];
        answers[i].text = NULL;
    }
    end_ask(a, NULL);
}

static bool is_down(void *arg, const struct upstream_question *part)
{
    struct upstreams *u = arg;
    struct upstream_info info;

    if (!part->until_down)
        return false;
    fleet_info(u->fleet, part->upstream, &info);
    return !info.alive;
}

/* What ends is taken out of the list on this thread alone, so the rest of it stays. */
static void on_give_up(void *arg)
{
    struct upstreams *u = arg;
    struct ask *a, *next;

    mtx_lock(&u->lock);
    a = u->asks;
    mtx_unlock(&u->lock);
    if (a != NULL)
        loop_timer_set(u->loop, &u->give_up, clock_after_us(GIVE_UP_US));
    for (; a != NULL; a = next) {
        mtx_lock(&u->lock);
        next = a->next;
        mtx_unlock(&u->lock);
        if (a->fanout != NULL)
            upstream_fanout_give_up(a->fanout, is_down, u);
    }
}

/* Those that need it are few: each sets the timer anew. */
static void ask_watch(struct ask *a, struct upstream_fanout *fanout)
{
    struct upstreams *u = a->room;

    a->fanout = fanout;
    for (size_t i = 0; i < a->n; i++)
        if (a->parts[i].until_down)
            loop_timer_set(u->loop, &u->give_up, clock_after_us(GIVE_UP_US));
}

static void on_ask(void *arg)
{
    struct ask *a = arg;
    struct upstream_fanout *fanout = NULL;
    struct err e = {0};

    /* If nobody had to be asked it has ended, and `a` is gone, when this returns. */
    if (upstream_fanout_start(&fanout, a->room->client, a->parts, a->n, on_answers, a, &e) != 0)
        end_ask(a, &e);
    else if (fanout != NULL)
        ask_watch(a, fanout);
}

static void fini_parts(struct upstream_question *parts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        api_request_fini(&parts[i].request);
}

int upstreams_ask(struct upstreams *u, struct upstream_question *parts, size_t n,
                  struct upstream_answer *answers, struct err *e)
{
    struct ask a = {.room = u, .parts = parts, .n = n, .answers = answers};
    bool stopped;

    assert(!loop_is_current(u->loop));
    mtx_assert_none();
    a.item = (struct loop_item){.run = on_ask, .arg = &a};
    mtx_lock(&u->lock);
    stopped = u->stopped;
    if (!stopped)
        link_locked(u, &a);
    mtx_unlock(&u->lock);
    if (stopped) {
        fini_parts(parts, n);
        return err_set(e, ERR_DRAINING, "", "the server is draining: upstreams are not asked");
    }
    loop_post(u->loop, &a.item);
    mtx_lock(&u->lock);
    a.posted = true;
    cnd_broadcast(&u->ended);
    while (!a.ended)
        (void)cnd_wait(&u->ended, &u->lock, CLOCK_NEVER);
    mtx_unlock(&u->lock);
    if (a.error.code == ERR_NONE)
        return 0;
    *e = a.error;
    return -1;
}

/* stopping */

/* The first ask that has not ended: only this thread ends any. One that is about to be posted would
 * be so after it has ended and is gone. */
static struct ask *first_ask(struct upstreams *u)
{
    struct ask *a;

    mtx_lock(&u->lock);
    a = u->asks;
    while (a != NULL && !a->posted)
        (void)cnd_wait(&u->ended, &u->lock, CLOCK_NEVER);
    mtx_unlock(&u->lock);
    return a;
}

static void on_stop(void *arg)
{
    struct upstreams *u = arg;
    struct err why = {0};
    struct ask *a;

    (void)err_set(&why, ERR_DRAINING, "", "the server ended before all upstreams had answered");
    while ((a = first_ask(u)) != NULL) {
        loop_unpost(u->loop, &a->item);
        if (a->fanout != NULL)
            upstream_fanout_cancel(a->fanout);
        else
            fini_parts(a->parts, a->n); /* it was not begun */
        end_ask(a, &why);
    }
}

void upstreams_stop(struct upstreams *u)
{
    bool stopped;

    if (u == NULL || u->loop == NULL)
        return;
    mtx_lock(&u->lock);
    stopped = u->stopped;
    u->stopped = true;
    mtx_unlock(&u->lock);
    if (stopped)
        return;
    if (loop_started(u->loop)) {
        loop_post(u->loop, &u->stop);
        loop_stop(u->loop);
    } else {
        on_stop(u);
    }
}

void upstreams_free(struct upstreams *u)
{
    struct known *next;

    if (u == NULL)
        return;
    upstreams_stop(u);
    prober_free(u->prober);
    if (u->loop != NULL)
        loop_timer_cancel(u->loop, &u->give_up);
    http_client_free(u->client);
    loop_free(u->loop);
    fleet_free(u->fleet);
    for (struct known *k = u->known; k != NULL; k = next) {
        next = k->next;
        spec_free(k->spec);
        free(k);
    }
    cnd_fini(&u->ended);
    mtx_fini(&u->lock);
    free(u);
}

/* what there is */

struct fleet *upstreams_fleet(struct upstreams *u)
{
    return u->fleet;
}

size_t upstreams_n(struct upstreams *u)
{
    size_t n;

    mtx_lock(&u->lock);
    n = u->n;
    mtx_unlock(&u->lock);
    return n;
}

void upstreams_at(struct upstreams *u, size_t i, struct upstream_at *out)
{
    struct slot slot;

    mtx_lock(&u->lock);
    assert(i < u->n);
    slot = u->slots[i];
    mtx_unlock(&u->lock);
    *out = (struct upstream_at){.target = &slot.spec->target,
                                .name = slot.spec->url,
                                .kind = slot.spec->kind,
                                .removed = slot.removed};
}

static int not_found(struct upstreams *u, const char *name, struct err *e)
{
    enum { N_NAMED = 3 };
    const char *some[N_NAMED] = {"", "", ""};
    size_t n = upstreams_n(u), n_named = 0;
    struct upstream_at at;

    for (size_t i = 0; i < n && n_named < N_NAMED; i++) {
        upstreams_at(u, i, &at);
        if (!at.removed)
            some[n_named++] = at.name;
    }
    return err_set(e, ERR_NOT_FOUND, "",
                   "there is no upstream '%.100s'; there is %.80s%s%.80s%s%.80s", name, some[0],
                   n_named > 1 ? ", " : "", some[1], n_named > 2 ? ", " : "", some[2]);
}

int upstreams_find(struct upstreams *u, const char *name, size_t *out, struct err *e)
{
    size_t n = upstreams_n(u);
    struct upstream_at at;

    for (size_t i = 0; i < n; i++) {
        upstreams_at(u, i, &at);
        if (at.removed || strcmp(at.name, name) != 0)
            continue;
        *out = i;
        return 0;
    }
    return not_found(u, name, e);
}

void upstreams_tokens(struct upstreams *u, bool on)
{
    prober_tokens(u->prober, on);
}

void upstreams_look(struct upstreams *u)
{
    prober_look(u->prober);
}

int upstreams_live(struct upstreams *u, struct err *why)
{
    uint64_t now = clock_now_us(), beat = prober_beat_us(u->prober);
    uint64_t age = now > beat ? now - beat : 0;

    if (age <= u->cfg.probe_interval_us || age - u->cfg.probe_interval_us <= LIVE_BEAT_MAX_US)
        return 0;
    return err_set(why, ERR_INTERNAL, "", "no upstream was asked how it is for %llu s",
                   (unsigned long long)(age / 1000000));
}

struct loop *upstreams_loop(struct upstreams *u)
{
    return u->loop;
}

void upstreams_on_left(struct upstreams *u, void (*fn)(void *arg, size_t upstream), void *arg)
{
    mtx_lock(&u->lock);
    u->left = fn;
    u->left_arg = arg;
    mtx_unlock(&u->lock);
}
