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
#include "fleet/members/upstream_config.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    LIVE_BEAT_MAX_US = 60000000, /* without a round of probes for longer it is dead */
    DOWN_CHECK_US = 200000       /* between looks at who went down while it was waited for */
};

/* A spec that was taken in. */
struct retained {
    struct retained *next;          /* of all there ever were */
    struct upstream_config *config; /* owned */
};

struct slot {
    const struct upstream_config *config; /* of a known one; NULL: the index was never used */
    bool removed;
};

/* One call of upstreams_call, on its caller's stack. */
struct batch {
    struct loop_item item;
    struct upstreams *upstreams;
    struct upstream_call *calls;
    size_t n;
    struct upstream_fanout *fanout;  /* loop thread */
    struct upstream_reply *replies;  /* the caller's; written before `ended` */
    struct batch *next, **prev_next; /* under the room's lock, and so is what follows */
    bool posted;                     /* its item has been; else it is about to be */
    bool ended;
    struct err error;
};

struct upstreams {
    struct mtx lock; /* rank MTX_LEAF; guards down to the blank line */
    struct slot slots[FLEET_MAX];
    size_t n, n_holds;
    struct batch *batches;
    bool stopped;
    void (*left_rotation)(void *arg, size_t upstream);
    void *left_rotation_arg;
    struct cnd ended; /* an ask, or posted */

    struct upstreams_cfg cfg; /* immutable, and so are the pointers that follow */
    struct fleet *fleet;
    struct loop *loop;
    struct http_client *client; /* loop thread */
    struct prober *prober;
    struct loop_item stop;
    struct loop_timer down_check;

    struct retained *retained; /* main's thread */
};

static void on_left_rotation(void *arg, size_t upstream)
{
    struct upstreams *u = arg;
    void (*left_rotation)(void *arg, size_t upstream);
    void *left_rotation_arg;

    mtx_lock(&u->lock);
    left_rotation = u->left_rotation;
    left_rotation_arg = u->left_rotation_arg;
    mtx_unlock(&u->lock);
    if (left_rotation != NULL)
        left_rotation(left_rotation_arg, upstream);
}

/* A trainer that finds requests refused has to be able to read why. */
static void on_state_changed(void *arg, const struct fleet_state_change *m)
{
    bool bad = m->from == UPSTREAM_SERVING || m->to == UPSTREAM_DOWN ||
               m->to == UPSTREAM_AUTH_FAILED;
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
    if (m->n_unreported > 0)
        log_u64(&r, "untold", m->n_unreported);
    if (m->is_last)
        log_u64(&r, "silent_for_s", FLEET_REPORTS_US / 1000000);
    log_end(&r);
}

/* Of whom a removed one has nobody left to wait for is not asked any more. */
static bool find_peer(void *arg, size_t i, struct probe_peer *out)
{
    struct upstreams *u = arg;
    struct upstream_info info;
    struct slot slot;

    mtx_lock(&u->lock);
    slot = u->slots[i];
    mtx_unlock(&u->lock);
    if (slot.config == NULL)
        return false;
    if (slot.removed) {
        fleet_info(u->fleet, i, &info);
        if (info.n_outstanding[FLEET_GENERATE] + info.n_outstanding[FLEET_TEXT] == 0)
            return false;
    }
    *out = (struct probe_peer){&slot.config->target, slot.config->kind};
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
static const struct upstream_config *retain(struct upstreams *u, struct upstream_config_list *list,
                                            size_t i, struct retained *retained)
{
    retained->config = list->items[i];
    retained->next = u->retained;
    u->retained = retained;
    list->items[i] = NULL;
    return retained->config;
}

static int init_slots(struct upstreams *u, struct upstream_config_list *list, struct err *e)
{
    for (size_t i = 0; i < list->n; i++) {
        struct retained *retained = calloc(1, sizeof *retained);

        if (retained == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for %zu upstreams", list->n);
        u->slots[i].config = retain(u, list, i, retained);
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
                            .left_rotation = on_left_rotation,
                            .state_changed = on_state_changed,
                            .arg = u};

    for (size_t i = 0; i < u->n; i++)
        names[i] = u->slots[i].config->url;
    memcpy(cfg.n_permits, u->cfg.n_permits, sizeof cfg.n_permits);
    memcpy(cfg.n_queue_max, u->cfg.n_queue_max, sizeof cfg.n_queue_max);
    if (fleet_new(&u->fleet, &cfg, e) != 0)
        return -1;
    for (size_t i = 0; i < u->n; i++)
        fleet_set_pause_queue(u->fleet, i, upstream_is_two_phase(u->slots[i].config->kind));
    return 0;
}

static int make_prober(struct upstreams *u, struct err *e)
{
    struct prober_cfg cfg = {.fleet = u->fleet,
                             .loop = u->loop,
                             .client = u->client,
                             .find_peer = find_peer,
                             .arg = u,
                             .interval_us = u->cfg.probe_interval_us,
                             .timeout_us = u->cfg.probe_timeout_us,
                             .generation_probe_every = u->cfg.generation_probe_every};

    return prober_new(&u->prober, &cfg, e);
}

static void on_stop(void *arg);
static void on_down_check(void *arg);

static int init_members(struct upstreams *u, struct upstream_config_list *list, struct err *e)
{
    struct loop_cfg loop = {.name = "upstream"};

    if (init_slots(u, list, e) != 0 || make_fleet(u, e) != 0 || loop_new(&u->loop, &loop, e) != 0)
        return -1;
    return http_client_new(&u->client, u->loop, e) == 0 ? make_prober(u, e) : -1;
}

int upstreams_new(struct upstreams **out, const struct upstreams_cfg *cfg, struct err *e)
{
    struct upstream_config_list list;
    struct upstreams *u;
    int rc;

    if (upstream_config_list_read(&list, cfg->entries, cfg->n_entries, cfg->file, e) != 0)
        return -1;
    u = calloc(1, sizeof *u);
    if (u == NULL) {
        upstream_config_list_fini(&list);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the upstreams");
    }
    mtx_init(&u->lock, MTX_LEAF);
    cnd_init(&u->ended);
    u->cfg = *cfg;
    u->stop = (struct loop_item){.run = on_stop, .arg = u};
    u->down_check = (struct loop_timer){.fire = on_down_check, .arg = u};
    rc = check_min_ready(cfg, list.n, e) == 0 ? init_members(u, &list, e) : -1;
    upstream_config_list_fini(&list);
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
struct entry_change {
    size_t index;              /* that it has, or gets */
    bool is_new;               /* the index was not its own, or it had been removed */
    struct retained *retained; /* owned; NULL: nothing about it has changed */
};

struct reload {
    struct entry_change changes[FLEET_MAX]; /* [list->n] */
    bool named[FLEET_MAX];                  /* the index is one of those */
    size_t n;                               /* indexes used afterwards */
};

static bool index_of(const struct upstreams *u, const char *name, size_t *out)
{
    for (size_t i = 0; i < u->n; i++)
        if (u->slots[i].config != NULL && strcmp(u->slots[i].config->url, name) == 0) {
            *out = i;
            return true;
        }
    return false;
}

static bool is_idle(struct upstreams *u, size_t i)
{
    struct upstream_info info;

    fleet_info(u->fleet, i, &info);
    for (size_t queue = 0; queue < FLEET_QUEUES; queue++)
        if (info.n_outstanding[queue] > 0)
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

static int plan_entry(struct upstreams *u, struct reload *r, struct entry_change *c,
                      const struct upstream_config *s, bool held, struct err *e)
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
    if (!c->is_new && upstream_config_same(slot->config, s))
        return 0;
    c->retained = calloc(1, sizeof *c->retained);
    return c->retained != NULL ? 0
                               : err_set(e, ERR_NO_MEMORY, "", "no memory for '%.200s'", s->url);
}

/* Only main changes the table, so main reads it without the lock. Who keeps an index is found
 * first, so that nobody new gets it. */
static int plan_reload(struct upstreams *u, struct reload *r,
                       const struct upstream_config_list *list, bool held, struct err *e)
{
    r->n = u->n;
    for (size_t i = 0; i < list->n; i++) {
        r->changes[i].index = FLEET_MAX;
        if (index_of(u, list->items[i]->url, &r->changes[i].index))
            r->named[r->changes[i].index] = true;
    }
    for (size_t i = 0; i < list->n; i++)
        if (plan_entry(u, r, &r->changes[i], list->items[i], held, e) != 0)
            return -1;
    return 0;
}

static void log_change(const char *what, const struct upstream_config *s)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, what);
    log_str(&r, "upstream", s->url);
    log_str(&r, "dialect", upstream_kind_name(s->kind));
    log_end(&r);
}

static void set_slot(struct upstreams *u, size_t i, const struct upstream_config *config,
                     bool removed)
{
    mtx_lock(&u->lock);
    u->slots[i] = (struct slot){config, removed};
    if (i >= u->n)
        u->n = i + 1;
    mtx_unlock(&u->lock);
}

static void change_one(struct upstreams *u, struct entry_change *c,
                       struct upstream_config_list *list, size_t i)
{
    const struct upstream_config *config;

    if (c->retained == NULL)
        return;
    config = retain(u, list, i, c->retained);
    c->retained = NULL;
    set_slot(u, c->index, config, false);
    if (c->is_new)
        fleet_add(u->fleet, c->index, config->url);
    fleet_set_pause_queue(u->fleet, c->index, upstream_is_two_phase(config->kind));
    log_change(c->is_new ? "upstream.added" : "upstream.changed", config);
}

static void remove_others(struct upstreams *u, const struct reload *r)
{
    for (size_t i = 0; i < u->n; i++) {
        if (r->named[i] || u->slots[i].removed)
            continue;
        set_slot(u, i, u->slots[i].config, true);
        fleet_remove(u->fleet, i);
        log_change("upstream.removed", u->slots[i].config);
    }
}

static int apply_reload(struct upstreams *u, struct upstream_config_list *list, struct err *e)
{
    struct reload *r = calloc(1, sizeof *r);
    bool held;
    int rc;

    if (r == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to read the upstreams again");
    mtx_lock(&u->lock);
    held = u->n_holds > 0 || u->batches != NULL;
    mtx_unlock(&u->lock);
    rc = plan_reload(u, r, list, held, e);
    if (rc == 0) {
        for (size_t i = 0; i < list->n; i++)
            change_one(u, &r->changes[i], list, i);
        remove_others(u, r);
        fleet_set_min_ready(u->fleet, min_ready_of(&u->cfg, list->n));
        prober_probe_now(u->prober);
    }
    for (size_t i = 0; i < list->n; i++)
        free(r->changes[i].retained);
    free(r);
    return rc;
}

int upstreams_reload(struct upstreams *u, struct err *e)
{
    const struct upstreams_cfg *cfg = &u->cfg;
    struct upstream_config_list list;
    int rc;

    if (upstream_config_list_read(&list, cfg->entries, cfg->n_entries, cfg->file, e) != 0)
        return -1;
    rc = check_min_ready(cfg, list.n, e) == 0 ? apply_reload(u, &list, e) : -1;
    upstream_config_list_fini(&list);
    return rc;
}

void upstreams_hold_indexes(struct upstreams *u)
{
    mtx_lock(&u->lock);
    u->n_holds++;
    mtx_unlock(&u->lock);
}

void upstreams_release_indexes(struct upstreams *u)
{
    mtx_lock(&u->lock);
    assert(u->n_holds > 0);
    u->n_holds--;
    mtx_unlock(&u->lock);
}

/* asking several */

static void link_locked(struct upstreams *u, struct batch *a)
{
    a->next = u->batches;
    a->prev_next = &u->batches;
    if (a->next != NULL)
        a->next->prev_next = &a->next;
    u->batches = a;
}

/* The caller may be gone as soon as the lock is. */
static void end_batch(struct batch *a, const struct err *why)
{
    struct upstreams *u = a->upstreams;

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

static void on_replies(void *arg, struct upstream_reply *replies, size_t n)
{
    struct batch *a = arg;

    for (size_t i = 0; i < n; i++) {
        a->replies[i] = replies[i];
        replies[i].text = NULL;
    }
    end_batch(a, NULL);
}

static bool is_down(void *arg, const struct upstream_call *call)
{
    struct upstreams *u = arg;
    struct upstream_info info;

    if (!call->until_down)
        return false;
    fleet_info(u->fleet, call->upstream, &info);
    return !info.alive;
}

/* What ends is taken out of the list on this thread alone, so the rest of it stays. */
static void on_down_check(void *arg)
{
    struct upstreams *u = arg;
    struct batch *a, *next;

    mtx_lock(&u->lock);
    a = u->batches;
    mtx_unlock(&u->lock);
    if (a != NULL)
        loop_timer_set(u->loop, &u->down_check, clock_after_us(DOWN_CHECK_US));
    for (; a != NULL; a = next) {
        mtx_lock(&u->lock);
        next = a->next;
        mtx_unlock(&u->lock);
        if (a->fanout != NULL)
            upstream_fanout_give_up(a->fanout, is_down, u);
    }
}

/* Those that need it are few: each sets the timer anew. */
static void watch_batch(struct batch *a, struct upstream_fanout *fanout)
{
    struct upstreams *u = a->upstreams;

    a->fanout = fanout;
    for (size_t i = 0; i < a->n; i++)
        if (a->calls[i].until_down)
            loop_timer_set(u->loop, &u->down_check, clock_after_us(DOWN_CHECK_US));
}

static void on_batch(void *arg)
{
    struct batch *a = arg;
    struct upstream_fanout *fanout = NULL;
    struct err e = {0};

    /* If nobody had to be asked it has ended, and `a` is gone, when this returns. */
    if (upstream_fanout_start(&fanout, a->upstreams->client, a->calls, a->n, on_replies, a, &e) !=
        0)
        end_batch(a, &e);
    else if (fanout != NULL)
        watch_batch(a, fanout);
}

static void fini_calls(struct upstream_call *calls, size_t n)
{
    for (size_t i = 0; i < n; i++)
        api_request_fini(&calls[i].request);
}

int upstreams_call(struct upstreams *u, struct upstream_call *calls, size_t n,
                   struct upstream_reply *replies, struct err *e)
{
    struct batch a = {.upstreams = u, .calls = calls, .n = n, .replies = replies};
    bool stopped;

    assert(!loop_is_current(u->loop));
    mtx_assert_none();
    a.item = (struct loop_item){.run = on_batch, .arg = &a};
    mtx_lock(&u->lock);
    stopped = u->stopped;
    if (!stopped)
        link_locked(u, &a);
    mtx_unlock(&u->lock);
    if (stopped) {
        fini_calls(calls, n);
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
static struct batch *first_batch(struct upstreams *u)
{
    struct batch *a;

    mtx_lock(&u->lock);
    a = u->batches;
    while (a != NULL && !a->posted)
        (void)cnd_wait(&u->ended, &u->lock, CLOCK_NEVER);
    mtx_unlock(&u->lock);
    return a;
}

static void on_stop(void *arg)
{
    struct upstreams *u = arg;
    struct err why = {0};
    struct batch *a;

    (void)err_set(&why, ERR_DRAINING, "", "the server ended before all upstreams had answered");
    while ((a = first_batch(u)) != NULL) {
        loop_unpost(u->loop, &a->item);
        if (a->fanout != NULL)
            upstream_fanout_cancel(a->fanout);
        else
            fini_calls(a->calls, a->n); /* it was not begun */
        end_batch(a, &why);
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
    struct retained *next;

    if (u == NULL)
        return;
    upstreams_stop(u);
    prober_free(u->prober);
    if (u->loop != NULL)
        loop_timer_cancel(u->loop, &u->down_check);
    http_client_free(u->client);
    loop_free(u->loop);
    fleet_free(u->fleet);
    for (struct retained *k = u->retained; k != NULL; k = next) {
        next = k->next;
        upstream_config_free(k->config);
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

void upstreams_get(struct upstreams *u, size_t i, struct upstream_endpoint *out)
{
    struct slot slot;

    mtx_lock(&u->lock);
    assert(i < u->n);
    slot = u->slots[i];
    mtx_unlock(&u->lock);
    *out = (struct upstream_endpoint){.target = &slot.config->target,
                                      .name = slot.config->url,
                                      .kind = slot.config->kind,
                                      .removed = slot.removed};
}

static int not_found(struct upstreams *u, const char *name, struct err *e)
{
    enum { N_NAMED = 3 };
    const char *some[N_NAMED] = {"", "", ""};
    size_t n = upstreams_n(u), n_named = 0;
    struct upstream_endpoint at;

    for (size_t i = 0; i < n && n_named < N_NAMED; i++) {
        upstreams_get(u, i, &at);
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
    struct upstream_endpoint at;

    for (size_t i = 0; i < n; i++) {
        upstreams_get(u, i, &at);
        if (at.removed || strcmp(at.name, name) != 0)
            continue;
        *out = i;
        return 0;
    }
    return not_found(u, name, e);
}

void upstreams_enable_generation_probes(struct upstreams *u, bool on)
{
    prober_enable_generation_probes(u->prober, on);
}

void upstreams_probe_now(struct upstreams *u)
{
    prober_probe_now(u->prober);
}

int upstreams_live(struct upstreams *u, struct err *why)
{
    uint64_t now = clock_now_us(), beat = prober_round_us(u->prober);
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

void upstreams_on_left_rotation(struct upstreams *u, void (*fn)(void *arg, size_t upstream),
                                void *arg)
{
    mtx_lock(&u->lock);
    u->left_rotation = fn;
    u->left_rotation_arg = arg;
    mtx_unlock(&u->lock);
}
