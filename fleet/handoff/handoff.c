#include "fleet/handoff/handoff.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mtx.h"
#include "fleet/calls/fleet_priv.h"
#include "fleet/handoff/handoff_export.h"
#include "fleet/handoff/handoff_request.h"
#include "fleet/handoff/handoff_windows.h"
#include "fleet/members/retry.h"
#include "fleet/members/upstreams.h"
#include "fleet/update/fleet_update.h"

#include <stdlib.h>
#include <string.h>

enum {
    LOOK_US = 250000,          /* between two looks for engines that lack the version */
    REPAIR_GRACE_US = 1000000, /* a repair goes on for this time when a new version waits for it */
    RETRY_US = 500000,         /* delay after the first failure; doubled each time … */
    RETRY_MAX_US = 10000000    /* … up to this */
};

struct handoff {
    struct mtx lock;    /* rank MTX_LEAF; guards down to the blank line */
    struct cnd changed; /* `info`, `tried`, `repairing` or `stopping` changed */
    struct handoff_info info;
    uint64_t tried; /* the last serial of which a hand-off ended, in whatever way */
    bool stopping;
    bool running; /* the job is posted */
    bool repairing;
    bool given_up; /* atomic, also read without the lock: the repair under way is not waited for */

    struct handoff_cfg cfg;          /* immutable, as is the next */
    struct handoff_windows *windows; /* owned; NULL: the version is on GPUs */

    /* Of the job while `running`, else of the loop's thread, as the repair of each engine. */
    struct retry all;
    struct upstream
        *behind; /* one reference: to repair it, which lacks the version; NULL: for all */
    const struct version *v; /* what is handed over now; pinned */

    struct job job; /* of the loop's thread, and so are the next two */
    struct loop_item item;
    struct loop_timer timer;
};

/* one hand-off */

static int send_export(struct handoff_request *r, const struct handoff_export *x, struct err *e)
{
    r->tensors = (struct api_tensors){.list = x->list, .by_handles = true, .handles = x->handles};
    for (size_t i = 0; i < r->s->n_parts; i++) {
        const char **entries;

        if (r->ranks[i].n_entries == 0)
            continue;
        entries = handoff_request_entries(r, i, e);
        if (entries == NULL)
            return -1;
        for (uint64_t k = 0; k < r->ranks[i].n_entries; k++)
            entries[k] = x->named;
    }
    return handoff_request_send(r, e);
}

static int export_and_send(struct handoff *h, struct handoff_request *r, struct err *e)
{
    struct handoff_export x = {h->cfg.store, h->v, h->cfg.cuda, r->n_sglangs > 0, .e = e};

    workers_call(h->cfg.control->cfg.blocking, handoff_export_make, &x);
    if (x.rc == 0)
        x.rc = send_export(r, &x, e);
    handoff_export_fini(&x);
    return x.rc;
}

static int send_version(struct handoff *h, struct fleet_session *s, struct err *e)
{
    struct handoff_request *r;
    int rc;

    if (handoff_request_new(&r, h->cfg.control, s, e) != 0)
        return -1;
    rc = h->windows != NULL ? handoff_windows_send(h->windows, r, h->v, e)
                            : export_and_send(h, r, e);
    handoff_request_free(r);
    return rc;
}

static void hand_over(struct handoff *h, struct err *e)
{
    struct fleet_update_request req = {.label = h->v->label,
                                       .repair = h->behind != NULL,
                                       .upstream = h->behind,
                                       .given_up = h->behind != NULL ? &h->given_up : NULL,
                                       .handoff = h->v->serial,
                                       .anonymous = true,
                                       .lease_s = UPDATE_LEASE_S_DEFAULT};
    struct fleet_control *fc = h->cfg.control;
    fleet_results_auto replies = {0};
    struct fleet_session *s;
    struct err ignored = {0};
    int rc;

    if (fleet_start_update(fc, &req, &s, &replies, e) != 0)
        return;
    rc = send_version(h, s, e);
    if (rc == 0)
        rc = fleet_finish_update(fc, s, h->v->label, NULL, true, e);
    if (rc != 0 && fleet_update_is_open(fc, s))
        (void)fleet_abort_update_wait(fc, s, e, &ignored);
    fleet_unref(fc, s);
}

/* the job */

static void log_handed(const struct handoff *h, uint64_t took_us, const struct err *why)
{
    struct log_rec r;

    log_begin(&r, why->code == ERR_NONE ? LOG_INFO : LOG_WARN,
              why->code != ERR_NONE ? "handoff.failed"
              : h->behind != NULL   ? "handoff.repaired"
                                    : "handoff.done");
    log_str(&r, "weight_version", h->v->label);
    log_u64(&r, "serial", h->v->serial);
    log_ms(&r, "duration_ms", took_us);
    log_str(&r, "error", why->code != ERR_NONE ? why->msg : NULL);
    log_event(&r);
}

static void note(struct handoff *h, uint64_t took_us, const struct err *why)
{
    bool done = why->code == ERR_NONE, repair = h->behind != NULL;
    struct retry *retry = repair ? &fleet_engine(h->behind)->repair : &h->all;

    if (done)
        retry_clear(retry);
    else
        retry_failed(retry, RETRY_US, RETRY_MAX_US);
    log_handed(h, took_us, why);
    mtx_lock(&h->lock);
    h->info.why = *why;
    h->info.retry_due_us = retry->due_us;
    h->info.n_failed += !done;
    h->info.n_handoffs += done && !repair;
    h->info.n_repairs += done && repair;
    if (done && !repair) {
        h->info.done = h->v->serial;
        h->info.last_us = took_us;
    }
    h->tried = h->v->serial;
    h->repairing = false;
    cnd_broadcast(&h->changed);
    mtx_unlock(&h->lock);
}

/* A version that was committed just now is for all engines, not only for one behind. */
static void begin_attempt(struct handoff *h)
{
    struct upstream *behind = h->behind;

    mtx_lock(&h->lock);
    if (h->info.done != h->v->serial || h->info.wanted != h->v->serial)
        h->behind = NULL;
    h->repairing = h->behind != NULL;
    __atomic_store_n(&h->given_up, false, __ATOMIC_RELEASE);
    mtx_unlock(&h->lock);
    if (h->behind == NULL)
        upstream_unref(behind);
}

static void run_reap(void *store)
{
    store_reap(store);
}

static void handoff_run(void *arg)
{
    struct handoff *h = arg;
    uint64_t began_us = clock_now_us();
    struct err why = {0};
    bool pinned = store_pin(h->cfg.store, &h->v, &why) == 0, news;

    if (pinned) {
        begin_attempt(h);
        hand_over(h, &why);
        note(h, clock_now_us() - began_us, &why);
        if (store_unpin_deferred(h->cfg.store, h->v))
            workers_call(h->cfg.control->cfg.blocking, run_reap, h->cfg.store);
    }
    upstream_unref(h->behind);
    mtx_lock(&h->lock);
    h->running = false;
    news = pinned && h->info.wanted > h->tried;
    mtx_unlock(&h->lock);
    if (news)
        loop_post(upstreams_loop(h->cfg.control->upstreams), &h->item);
}

/* what there is to do */

/* An engine that is awake (a repair is refused while weights are asleep), lacks the version, and is
 * due: the one that has failed least often, so that one which hangs does not keep others waiting
 * again and again. A reference; NULL: there is none. */
static struct upstream *find_behind(struct handoff *h)
{
    upstream_list_auto *all = fleet_list(fleet_of(h->cfg.control));
    struct upstream *found = NULL;
    struct upstream_info info;
    struct fleet_sleep sleep;

    fleet_get_sleep(h->cfg.control, &sleep);
    for (size_t i = 0; i < all->n && !sleep.weights; i++) {
        struct upstream *it = all->items[i];
        const struct retry *retry = &fleet_engine(it)->repair;

        fleet_info(fleet_of(h->cfg.control), it, &info);
        if (upstream_is_removed(it) || !info.alive || (info.synced && !info.fenced) ||
            !retry_is_due(retry) || fleet_proof_is_beyond_repair(h->cfg.control, it) ||
            (found != NULL && retry->delay_us >= fleet_engine(found)->repair.delay_us))
            continue;
        found = it;
    }
    return found != NULL ? upstream_ref(found) : NULL;
}

/* The job is refused only when the executor has stopped, which it does after the loop. */
static void handoff_look(void *arg)
{
    struct handoff *h = arg;
    struct fleet_control *fc = h->cfg.control;
    struct upstream *behind = NULL;
    struct err ignored = {0};
    bool idle, news, settled;

    mtx_lock(&h->lock);
    idle = !h->running && !h->stopping;
    /* A version that was never tried does not wait for the delay after a failure. */
    news = idle &&
           (h->info.wanted > h->tried || (h->info.wanted > h->info.done && retry_is_due(&h->all)));
    settled = h->info.done > 0 && h->info.done == h->info.wanted;
    mtx_unlock(&h->lock);
    if (idle && !news && settled && retry_is_due(&h->all))
        behind = find_behind(h);
    if (news || behind != NULL) {
        h->behind = behind;
        mtx_lock(&h->lock);
        h->running = true;
        mtx_unlock(&h->lock);
        (void)workers_post(fc->cfg.executor, &h->job, WORKERS_URGENT, &ignored);
    }
    loop_timer_set(upstreams_loop(fc->upstreams), &h->timer, clock_after_us(LOOK_US));
}

int handoff_new(struct handoff **out, const struct handoff_cfg *cfg, struct err *e)
{
    struct handoff *h = calloc(1, sizeof *h);

    if (h == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the hand-off");
    h->cfg = *cfg;
    h->info.window_nbytes = cfg->window_nbytes;
    h->job = (struct job){.run = handoff_run, .arg = h};
    h->item = (struct loop_item){.run = handoff_look, .arg = h};
    h->timer = (struct loop_timer){.fire = handoff_look, .arg = h};
    if (cfg->window_nbytes > 0 && handoff_windows_new(&h->windows, cfg, e) != 0) {
        free(h);
        return -1;
    }
    mtx_init(&h->lock, MTX_LEAF);
    cnd_init(&h->changed);
    loop_post(upstreams_loop(cfg->control->upstreams), &h->item);
    *out = h;
    return 0;
}

void handoff_stop(struct handoff *h)
{
    if (h == NULL)
        return;
    mtx_lock(&h->lock);
    h->stopping = true;
    cnd_broadcast(&h->changed);
    mtx_unlock(&h->lock);
}

void handoff_free(struct handoff *h)
{
    if (h == NULL)
        return;
    handoff_windows_free(h->windows);
    cnd_fini(&h->changed);
    mtx_fini(&h->lock);
    free(h);
}

/* An engine that joins before the first hand-off is for it, whatever it serves. */
void handoff_want(struct handoff *h, uint64_t serial)
{
    fleet_await_commit(fleet_of(h->cfg.control), "");
    mtx_lock(&h->lock);
    if (h->info.wanted < serial)
        h->info.wanted = serial;
    mtx_unlock(&h->lock);
    loop_post(upstreams_loop(h->cfg.control->upstreams), &h->item);
}

/* A repair that goes well ends by itself soon; else it is given up, and its engine gets the new
 * version with the others. */
static void wait_tried_locked(struct handoff *h, uint64_t serial)
{
    uint64_t grace_us = clock_after_us(REPAIR_GRACE_US);
    uint64_t end_us = clock_after_us(HANDOFF_WAIT_STEPS * fleet_update_us(h->cfg.control));

    while (h->tried < serial && !h->stopping && !clock_passed(end_us)) {
        bool in_grace = h->repairing && !clock_passed(grace_us);

        if (h->repairing && !in_grace)
            __atomic_store_n(&h->given_up, true, __ATOMIC_RELEASE);
        (void)cnd_wait(&h->changed, &h->lock, in_grace && grace_us < end_us ? grace_us : end_us);
    }
}

static int outcome_locked(const struct handoff *h, uint64_t serial, struct err *e)
{
    if (h->info.done >= serial)
        return 0;
    if (h->tried >= serial)
        return err_set(e, ERR_NOT_HANDED_OVER, "",
                       "the version is committed here, but not handed over to the upstreams, which "
                       "is tried again (do not send it again): %.300s",
                       h->info.why.msg);
    if (h->stopping)
        return err_set(e, ERR_NOT_HANDED_OVER, "",
                       "the version is committed here, but not handed over to the upstreams: this "
                       "server is stopping");
    return err_set(e, ERR_NOT_HANDED_OVER, "",
                   "the version is committed here, and not yet handed over to the upstreams: that "
                   "goes on, and GET /v1/upstreams says which have it");
}

int handoff_version(struct handoff *h, uint64_t serial, struct err *e)
{
    int rc;

    handoff_want(h, serial);
    mtx_lock(&h->lock);
    wait_tried_locked(h, serial);
    rc = outcome_locked(h, serial, e);
    mtx_unlock(&h->lock);
    return rc;
}

void handoff_info_get(struct handoff *h, struct handoff_info *out)
{
    mtx_auto held = mtx_hold(&h->lock);

    *out = h->info;
}
