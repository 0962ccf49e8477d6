#include "fleet/handoff/handoff.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mtx.h"
#include "fleet/fleet_control.h"
#include "fleet/handoff/handoff_export.h"
#include "fleet/handoff/handoff_windows.h"
#include "fleet/members/upstreams.h"
#include "fleet/update/fleet_update.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOK_US = 250000,       /* between two looks for engines that lack the version */
    RETRY_US = 500000,      /* delay after the first failure; doubled each time … */
    RETRY_MAX_US = 10000000 /* … up to this */
};

struct handoff {
    struct mtx lock;    /* rank MTX_LEAF; guards down to the blank line */
    struct cnd changed; /* `info`, `tried` or `stopping` changed */
    struct handoff_info info;
    uint64_t tried; /* the last serial of which a hand-off ended, in whatever way */
    bool stopping;

    struct handoff_cfg cfg;          /* immutable, as is the next */
    struct handoff_windows *windows; /* owned; NULL: the version is on GPUs */
    pthread_t thread;
    bool joined;       /* of the owner's thread */
    uint64_t retry_us; /* of the hand-off's thread: the delay after the next failure, and … */
    uint64_t due_us;   /* … when the next try may begin */
};

/* one hand-off */

static void free_bodies(json_t **bodies)
{
    for (size_t i = 0; i < FLEET_MAX; i++)
        json_decref(bodies[i]);
    free(bodies);
}

/* An SGLang gets one string for each of its ranks. */
static int put_serialized(json_t **bodies, const struct handoff *h, const struct handoff_export *x,
                          const struct fleet_result *r, struct err *e)
{
    struct upstream_endpoint at;
    uint64_t n_ranks = 0;

    upstreams_get(h->cfg.upstreams, r->upstream, &at);
    if (r->outcome != FLEET_OK ||
        api_read_ranks(&n_ranks, at.kind, r->text != NULL ? r->text : "", r->text_len, e) != 0) {
        err_clear(e); /* it fails at the next step, and is dropped there */
        n_ranks = 1;
    }
    bodies[r->upstream] = handoff_export_serialized(x, n_ranks, e);
    return bodies[r->upstream] != NULL ? 0 : -1;
}

/* @out  [FLEET_MAX]; free_bodies */
static int make_bodies(json_t ***out, struct handoff *h, const struct handoff_export *x,
                       struct err *e)
{
    struct fleet_control *fc = h->cfg.control;
    json_t **bodies = calloc(FLEET_MAX, sizeof *bodies);
    struct fleet_target *all = calloc(FLEET_MAX, sizeof *all);
    struct fleet_result *results = NULL;
    struct upstream_endpoint at;
    size_t n_all, n = 0;
    int rc = -1;

    if (bodies == NULL || all == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the hand-off");
    } else {
        n_all = fleet_reachable(fc, NULL, all);
        for (size_t i = 0; i < n_all; i++) {
            upstreams_get(h->cfg.upstreams, all[i].upstream, &at);
            if (at.kind == UPSTREAM_SGLANG)
                all[n++] = all[i];
        }
        rc = fleet_query(fc, API_GET_RANKS, all, n, fleet_step_us(fc), &results, e);
    }
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = put_serialized(bodies, h, x, &results[i], e);
    fleet_results_free(results, results != NULL ? n : 0);
    free(all);
    if (rc == 0)
        *out = bodies;
    else if (bodies != NULL)
        free_bodies(bodies);
    return rc;
}

static int send_version(struct handoff *h, struct fleet_session *s, const struct version *v,
                        struct err *e)
{
    struct handoff_export *x = NULL;
    struct fleet_tensors t = {.source = "handoff"};
    json_t **bodies = NULL, *handles = NULL;
    int rc = -1;

    if (h->windows != NULL)
        return handoff_windows_send(h->windows, s, v, e);
    if (handoff_export_new(&x, h->cfg.store, v, h->cfg.cuda, e) == 0 &&
        (handles = handoff_export_handles(x, e)) != NULL && make_bodies(&bodies, h, x, e) == 0) {
        t.body = handles;
        t.bodies = bodies;
        rc = fleet_send_tensors(h->cfg.control, s, &t, e);
    }
    if (bodies != NULL)
        free_bodies(bodies);
    json_decref(handles);
    handoff_export_free(x);
    return rc;
}

static int finish(struct handoff *h, struct fleet_session *s, const struct version *v,
                  struct err *e)
{
    json_t *body = json_object();
    int rc = body != NULL ? fleet_finish_update(h->cfg.control, s, v->label, body, true, e)
                          : err_set(e, ERR_NO_MEMORY, "", "no memory to end the hand-off");

    json_decref(body);
    return rc;
}

static int hand_over(struct handoff *h, const struct version *v, bool repair, struct err *e)
{
    struct fleet_update_request req = {.label = v->label,
                                       .repair = repair,
                                       .handoff = true,
                                       .anonymous = true,
                                       .lease_s = UPDATE_LEASE_S_DEFAULT};
    json_t *start = json_object(), *details = NULL;
    struct fleet_session *s;
    struct err ignored = {0};
    int rc = -1;

    req.start = start;
    if (start == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the hand-off");
    } else if (fleet_start_update(h->cfg.control, &req, &s, &details, e) == 0) {
        rc = send_version(h, s, v, e);
        if (rc == 0)
            rc = finish(h, s, v, e);
        if (rc != 0 && fleet_update_is_open(h->cfg.control, s))
            (void)fleet_abort_update_wait(h->cfg.control, s, e, &ignored);
        fleet_unref(h->cfg.control, s);
    }
    json_decref(details);
    json_decref(start);
    return rc;
}

/* the thread */

static void log_handed(const struct version *v, bool repair, uint64_t took_us,
                       const struct err *why)
{
    struct log_rec r;

    log_begin(&r, why->code == ERR_NONE ? LOG_INFO : LOG_WARN,
              why->code != ERR_NONE ? "handoff.failed"
              : repair              ? "handoff.repaired"
                                    : "handoff.done");
    log_str(&r, "weight_version", v->label);
    log_u64(&r, "serial", v->serial);
    log_ms(&r, "duration_ms", took_us);
    log_str(&r, "error", why->code != ERR_NONE ? why->msg : NULL);
    log_event(&r);
}

static void note(struct handoff *h, const struct version *v, bool repair, uint64_t took_us,
                 const struct err *why)
{
    bool done = why->code == ERR_NONE;

    h->retry_us = done || h->retry_us == 0 ? RETRY_US : 2 * h->retry_us;
    if (h->retry_us > RETRY_MAX_US)
        h->retry_us = RETRY_MAX_US;
    h->due_us = done ? 0 : clock_after_us(h->retry_us);
    log_handed(v, repair, took_us, why);
    mtx_lock(&h->lock);
    h->info.why = *why;
    h->info.n_failed += !done;
    h->info.n_handoffs += done && !repair;
    h->info.n_repairs += done && repair;
    if (done && !repair) {
        h->info.done = v->serial;
        h->info.last_us = took_us;
    }
    h->tried = v->serial;
    cnd_broadcast(&h->changed);
    mtx_unlock(&h->lock);
}

/* Engines that are awake: a repair is refused while weights are asleep. */
static bool some_are_behind(struct handoff *h)
{
    struct upstream_endpoint at;
    struct upstream_info info;
    struct fleet_sleep sleep;
    size_t n = upstreams_n(h->cfg.upstreams);

    fleet_get_sleep(h->cfg.control, &sleep);
    for (size_t i = 0; i < n && !sleep.weights; i++) {
        upstreams_get(h->cfg.upstreams, i, &at);
        fleet_info(fleet_of(h->cfg.control), i, &info);
        if (!at.removed && info.alive && (!info.synced || info.fenced))
            return true;
    }
    return false;
}

static bool was_handed_over(struct handoff *h, uint64_t serial)
{
    bool was;

    mtx_lock(&h->lock);
    was = h->info.done == serial;
    mtx_unlock(&h->lock);
    return was;
}

static void try_once(struct handoff *h, bool repair)
{
    const struct version *v;
    uint64_t began_us = clock_now_us();
    struct err why = {0};

    if (store_pin(h->cfg.store, &v, &why) != 0) {
        h->due_us = clock_after_us(RETRY_US);
        return;
    }
    /* A version that was committed just now is for all engines, not only for those behind. */
    repair = repair && was_handed_over(h, v->serial);
    (void)hand_over(h, v, repair, &why);
    note(h, v, repair, clock_now_us() - began_us, &why);
    store_unpin(h->cfg.store, v);
}

/* Waits until there is something to do. Returns false at a stop.
 * @news  out: a version to hand over; else engines are to be looked at */
static bool wait_for_work(struct handoff *h, bool *news)
{
    bool go_on;

    mtx_lock(&h->lock);
    if (!h->stopping && h->info.wanted <= h->tried)
        (void)cnd_wait(&h->changed, &h->lock, clock_after_us(LOOK_US));
    /* A version that was never tried does not wait for the delay after a failure. */
    *news = h->info.wanted > h->tried || (h->info.wanted > h->info.done && clock_passed(h->due_us));
    go_on = !h->stopping;
    mtx_unlock(&h->lock);
    return go_on;
}

static bool is_settled(struct handoff *h)
{
    bool settled;

    mtx_lock(&h->lock);
    settled = h->info.done > 0 && h->info.done == h->info.wanted;
    mtx_unlock(&h->lock);
    return settled;
}

static void *handoff_main(void *arg)
{
    struct handoff *h = arg;
    bool news;

    while (wait_for_work(h, &news)) {
        if (news)
            try_once(h, false);
        else if (is_settled(h) && clock_passed(h->due_us) && some_are_behind(h))
            try_once(h, true);
    }
    return NULL;
}

static int open_windows(struct handoff *h, struct err *e)
{
    const struct handoff_cfg *cfg = &h->cfg;
    const struct handoff_windows_cfg windows = {.control = cfg->control,
                                                .upstreams = cfg->upstreams,
                                                .store = cfg->store,
                                                .cuda = cfg->cuda,
                                                .nbytes = cfg->window_nbytes};

    return cfg->window_nbytes > 0 ? handoff_windows_new(&h->windows, &windows, e) : 0;
}

int handoff_new(struct handoff **out, const struct handoff_cfg *cfg, struct err *e)
{
    struct handoff *h = calloc(1, sizeof *h);

    if (h == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the hand-off");
    h->cfg = *cfg;
    mtx_init(&h->lock, MTX_LEAF);
    cnd_init(&h->changed);
    if (open_windows(h, e) != 0)
        goto err_lock;
    if (pthread_create(&h->thread, NULL, handoff_main, h) != 0) {
        (void)err_set(e, ERR_INTERNAL, "", "the thread of the hand-off could not be started");
        goto err_windows;
    }
    (void)pthread_setname_np(h->thread, "handoff");
    *out = h;
    return 0;

err_windows:
    handoff_windows_free(h->windows);
err_lock:
    cnd_fini(&h->changed);
    mtx_fini(&h->lock);
    free(h);
    return -1;
}

void handoff_stop(struct handoff *h)
{
    if (h == NULL || h->joined)
        return;
    mtx_lock(&h->lock);
    h->stopping = true;
    cnd_broadcast(&h->changed);
    mtx_unlock(&h->lock);
    (void)pthread_join(h->thread, NULL);
    h->joined = true;
}

void handoff_free(struct handoff *h)
{
    if (h == NULL)
        return;
    handoff_stop(h);
    handoff_windows_free(h->windows);
    cnd_fini(&h->changed);
    mtx_fini(&h->lock);
    free(h);
}

void handoff_want(struct handoff *h, uint64_t serial)
{
    mtx_lock(&h->lock);
    if (h->info.wanted < serial)
        h->info.wanted = serial;
    cnd_broadcast(&h->changed);
    mtx_unlock(&h->lock);
}

int handoff_version(struct handoff *h, uint64_t serial, struct err *e)
{
    uint64_t deadline_us = clock_after_us(HANDOFF_WAIT_STEPS * fleet_update_us(h->cfg.control));
    bool in_time = true;
    int rc = 0;

    handoff_want(h, serial);
    mtx_lock(&h->lock);
    while (h->tried < serial && !h->stopping && in_time)
        in_time = cnd_wait(&h->changed, &h->lock, deadline_us);
    if (h->info.done >= serial)
        rc = 0;
    else if (h->tried >= serial)
        rc = err_set(e, h->info.why.code, "",
                     "the version is committed here, but not handed over to the upstreams, which "
                     "is tried again: %.300s",
                     h->info.why.msg);
    else
        rc = err_set(e, h->stopping ? ERR_DRAINING : ERR_TIMEOUT, "",
                     "the version is committed here, and not yet handed over to the upstreams");
    mtx_unlock(&h->lock);
    return rc;
}

uint64_t handoff_window_nbytes(const struct handoff *h)
{
    return h->cfg.window_nbytes;
}

void handoff_info_get(struct handoff *h, struct handoff_info *out)
{
    mtx_lock(&h->lock);
    *out = h->info;
    mtx_unlock(&h->lock);
}
