/* One job for each engine, and a limit on how many run. They take no operation lock: a trainer's
 * load may come at any moment, and is newer than what a job is doing
 * (fleet/calls/fleet_adapters.h). */
#include "fleet/want/fleet_reconcile.h"

#include "base/log.h"
#include "fleet/calls/fleet_priv.h"
#include "fleet/want/fleet_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RECONCILE_INTERVAL_US = 250000,    /* between two checks of all engines */
    RECONCILE_RETRY_US = 500000,       /* delay after the first failure; doubled each time … */
    RECONCILE_RETRY_MAX_US = 30000000, /* … up to this */
    /* The same for a cache that cannot be reset while requests run. */
    RECONCILE_CACHE_RETRY_MAX_US = 1000000,
    RECONCILE_JOBS_MAX = 4 /* at the same time: other work needs threads too */
};

static void on_timer(void *arg);
static void reconcile_run(void *arg);

void fleet_reconcile_init(struct fleet_control *fc)
{
    fc->reconcile.item = (struct loop_item){.run = on_timer, .arg = fc};
    fc->reconcile.timer = (struct loop_timer){.fire = on_timer, .arg = fc};
}

/* state of one engine */

/* Has the engine surely lost its adapters, or never had any? One that was added again may be the
 * same process as before, and so may one that does not report its process. */
static bool is_new_locked(const struct fleet_reconciler *f, const struct upstream_info *info)
{
    uint64_t before = fleet_engine(f->upstream)->adapters.incarnation;

    if (!f->known)
        return true;
    return !info->removed && before != FLEET_REMOVED && before >= info->join_incarnation &&
           upstream_caps_of(f->upstream)->status_names_process;
}

void fleet_reconcile_check_incarnation_locked(struct fleet_control *fc, struct upstream *upstream)
{
    struct fleet_reconciler *f = &fleet_engine(upstream)->reconcile;
    struct upstream_info info;
    uint64_t incarnation;

    fleet_info(fleet_of(fc), upstream, &info);
    incarnation = info.removed ? FLEET_REMOVED : info.incarnation;
    if (incarnation == fleet_engine(upstream)->adapters.incarnation)
        return;
    fleet_adapters_set_incarnation(&fc->adapters, &fleet_engine(upstream)->adapters, incarnation,
                                   is_new_locked(f, &info));
    f->known = true;
    err_clear(&f->why);
    err_clear(&f->stale);
    f->untried = !info.removed && !upstream_caps_of(upstream)->two_phase;
    if (f->untried) {
        (void)err_set(&f->stale, ERR_UNSYNCED, "", "no attempt was made yet");
        f->n_stale++;
    }
    retry_clear(&f->retry);
}

static void describe_missing(const struct fleet_adapter *a, const struct err *why, struct err *out)
{
    const char *last = why->code != ERR_NONE ? "; last error: " : "";

    if (a->removed)
        (void)err_set(
            out, ERR_UNSYNCED, "",
            "it may still have adapter '%.60s', which the fleet has unloaded and which is "
            "unloaded there before it gets requests%s%.180s",
            a->name, last, why->msg);
    else if (a->load != NULL)
        (void)err_set(
            out, ERR_UNSYNCED, "",
            "it lacks adapter '%.60s', which is loaded there before it gets requests%s%.180s",
            a->name, last, why->msg);
    else
        (void)err_set(out, ERR_UNSYNCED, "",
                      "it lacks adapter '%.60s', of which this server has no files, as the "
                      "upstreams read its tensors themselves: load it again or unload it; one "
                      "that is sent as a body of tensors is kept in --adapter-dir",
                      a->name);
}

static void describe_stale(const struct err *why, struct err *out)
{
    (void)err_set(out, ERR_UNSYNCED, "",
                  "its caches may hold entries of other weights, and are reset before it gets "
                  "requests: %.250s",
                  why->msg);
}

static void publish(struct fleet_control *fc, struct upstream *upstream)
{
    const struct fleet_adapter *a;
    struct fleet_adapter_check check;
    struct err missing = {0};

    mtx_lock(&fc->lock);
    fleet_reconcile_check_incarnation_locked(fc, upstream);
    a = fleet_adapters_blocking(&fc->adapters, &fleet_engine(upstream)->adapters);
    if (fleet_engine(upstream)->reconcile.stale.code != ERR_NONE)
        describe_stale(&fleet_engine(upstream)->reconcile.stale, &missing);
    else if (a != NULL)
        describe_missing(a, &fleet_engine(upstream)->reconcile.why, &missing);
    check = (struct fleet_adapter_check){
        .incarnation = fleet_engine(upstream)->adapters.incarnation,
        .change = fc->adapters.changes,
        .missing = &missing};
    mtx_unlock(&fc->lock);
    fleet_set_missing_adapters(fleet_of(fc), upstream, &check);
}

void fleet_reconcile_start(struct fleet_control *fc)
{
    struct upstream_list *all = upstreams_list(fc->upstreams);

    for (size_t i = 0; i < all->n; i++) {
        if (upstream_is_removed(all->items[i]) || upstream_caps_of(all->items[i])->two_phase)
            continue;
        fleet_reconcile_watch(fc);
        publish(fc, all->items[i]);
    }
    upstream_list_unref(all);
    fleet_proof_watch(fc);
    fleet_gate_watch(fc);
}

void fleet_reconcile_all(struct fleet_control *fc)
{
    struct upstream_list *all = upstreams_list(fc->upstreams);

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < all->n; i++)
        retry_clear(&fleet_engine(all->items[i])->reconcile.retry);
    mtx_unlock(&fc->lock);
    for (size_t i = 0; i < all->n; i++)
        publish(fc, all->items[i]);
    upstream_list_unref(all);
}

void fleet_reconcile_set_stale(struct fleet_control *fc, struct upstream *upstream,
                               const struct err *why)
{
    struct fleet_reconciler *f = &fleet_engine(upstream)->reconcile;
    bool changes;

    if (why->code != ERR_NONE)
        fleet_reconcile_watch(fc);
    mtx_lock(&fc->lock);
    fleet_reconcile_check_incarnation_locked(fc, upstream);
    changes = why->code != ERR_NONE || f->stale.code != ERR_NONE;
    f->stale = *why;
    f->untried = false;
    f->n_stale++;
    retry_clear(&f->retry);
    fc->adapters.changes += changes;
    mtx_unlock(&fc->lock);
    if (changes)
        publish(fc, upstream);
}

bool fleet_reconcile_is_stale(struct fleet_control *fc, struct upstream *upstream)
{
    bool stale;

    mtx_lock(&fc->lock);
    stale = fleet_engine(upstream)->reconcile.stale.code != ERR_NONE;
    mtx_unlock(&fc->lock);
    return stale;
}

size_t fleet_missing_adapters(struct fleet_control *fc, struct upstream *upstream,
                              char (**names)[FLEET_ADAPTER_NAME_MAX + 1])
{
    size_t n = 0;

    *names = NULL;
    mtx_lock(&fc->lock);
    fleet_reconcile_check_incarnation_locked(fc, upstream);
    for (size_t i = 0; i < fc->adapters.n; i++)
        n += fleet_adapters_is_missing(&fc->adapters.list[i], &fleet_engine(upstream)->adapters);
    if (n > 0)
        *names = malloc(n * sizeof **names);
    n = 0;
    for (size_t i = 0; *names != NULL && i < fc->adapters.n; i++)
        if (fleet_adapters_is_missing(&fc->adapters.list[i], &fleet_engine(upstream)->adapters))
            memcpy((*names)[n++], fc->adapters.list[i].name, sizeof **names);
    mtx_unlock(&fc->lock);
    return n;
}

/* jobs */

static bool may_start_locked(struct fleet_control *fc, struct upstream *upstream)
{
    const struct fleet_reconciler *f = &fleet_engine(upstream)->reconcile;

    return !f->running && fc->reconcile.n_running < RECONCILE_JOBS_MAX && retry_is_due(&f->retry) &&
           !fc->sleep.weights && !fc->sleep.kv && !fleet_engine_is_held_locked(fc, upstream) &&
           !fleet_gate_differs_locked(fc, upstream) &&
           (f->stale.code != ERR_NONE ||
            fleet_adapters_has_task(&fc->adapters, &fleet_engine(upstream)->adapters));
}

/* It may be gone with its engine afterwards. */
static void end_job(struct fleet_reconciler *f)
{
    struct fleet_control *fc = f->fc;

    mtx_lock(&fc->lock);
    f->running = false;
    fc->reconcile.n_running--;
    mtx_unlock(&fc->lock);
    upstream_unref(f->upstream);
}

static void start_job(struct fleet_reconciler *f)
{
    struct fleet_control *fc = f->fc;
    struct err ignored = {0};

    f->job = (struct job){.run = reconcile_run, .arg = f};
    if (workers_post(fc->cfg.executor, &f->job, WORKERS_URGENT, &ignored) == 0)
        return;
    end_job(f);
}

static void check_one(struct fleet_control *fc, struct upstream *upstream)
{
    struct fleet_reconciler *f = &fleet_engine(upstream)->reconcile;
    struct upstream_info info;
    bool blocked, starts;

    fleet_info(fleet_of(fc), upstream, &info);
    mtx_lock(&fc->lock);
    fleet_reconcile_check_incarnation_locked(fc, upstream);
    blocked = f->stale.code != ERR_NONE ||
              fleet_adapters_blocking(&fc->adapters, &fleet_engine(upstream)->adapters) != NULL;
    starts = info.alive && !info.removed && may_start_locked(fc, upstream);
    if (starts) {
        f->running = true;
        fc->reconcile.n_running++;
        (void)upstream_ref(upstream); /* until end_job */
    }
    mtx_unlock(&fc->lock);
    if (!info.removed && (blocked || info.missing_adapters)) /* the reason may have changed too */
        publish(fc, upstream);
    if (starts)
        start_job(f);
}

/* On the thread of the upstreams' loop. */
static void on_timer(void *arg)
{
    struct fleet_control *fc = arg;
    struct upstream_list *all = upstreams_list(fc->upstreams);

    for (size_t i = 0; i < all->n; i++)
        check_one(fc, all->items[i]);
    upstream_list_unref(all);
    loop_timer_set(upstreams_loop(fc->upstreams), &fc->reconcile.timer,
                   clock_after_us(RECONCILE_INTERVAL_US));
}

void fleet_reconcile_watch(struct fleet_control *fc)
{
    bool first;

    mtx_lock(&fc->lock);
    first = !fc->reconcile.watching;
    fc->reconcile.watching = true;
    mtx_unlock(&fc->lock);
    if (!first)
        return;
    fleet_require_adapters(fleet_of(fc));
    loop_post(upstreams_loop(fc->upstreams), &fc->reconcile.item);
}

/* tasks */

static void log_task(struct upstream *upstream, const struct fleet_adapter_task *task,
                     const struct err *why)
{
    struct log_rec r;

    log_begin(&r, why->code == ERR_NONE ? LOG_INFO : LOG_WARN,
              task->load != NULL ? "fleet.adapter_reloaded" : "fleet.adapter_unloaded");
    log_str(&r, "upstream", upstream_name(upstream));
    log_str(&r, "lora_name", task->name);
    log_str(&r, "error", why->code != ERR_NONE ? why->msg : NULL);
    log_event(&r);
}

static void set_retry_locked(struct fleet_reconciler *f, uint64_t wait_max_us,
                             const struct err *why)
{
    f->why = *why;
    if (why->code == ERR_NONE)
        retry_clear(&f->retry);
    else
        retry_failed(&f->retry, RECONCILE_RETRY_US, wait_max_us);
}

static void log_cache_reset(struct upstream *upstream)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, "fleet.cache_reset");
    log_str(&r, "upstream", upstream_name(upstream));
    log_end(&r);
}

/* At an engine without requests of this server, preemption makes no client recompute its KV.
 * Returns false: it failed, and is due later. */
static bool reconcile_cache(struct fleet_reconciler *f)
{
    struct fleet_control *fc = f->fc;
    struct fleet_cache_reset one = {.upstream = f->upstream, .preempt = fleet_recomputes_kv(fc)};
    struct upstream_info info;
    struct err why = {0};
    uint64_t n_stale;
    bool stale;

    mtx_lock(&fc->lock);
    n_stale = f->n_stale;
    stale = f->stale.code != ERR_NONE;
    one.route_optional = f->untried;
    mtx_unlock(&fc->lock);
    if (!stale)
        return true;
    fleet_info(fleet_of(fc), f->upstream, &info);
    one.preempt = one.preempt || info.n_outstanding[FLEET_GENERATE] == 0;
    fleet_reset_caches(fc, &one, 1, &why);
    mtx_lock(&fc->lock);
    if (f->n_stale == n_stale) {
        f->stale = why;
        fc->adapters.changes++;
    }
    set_retry_locked(f, RECONCILE_CACHE_RETRY_MAX_US, &why);
    mtx_unlock(&fc->lock);
    if (why.code == ERR_NONE)
        log_cache_reset(f->upstream);
    return why.code == ERR_NONE;
}

/* Returns false: nothing is left to do, or it failed and is due later. */
static bool reconcile_adapter(struct fleet_reconciler *f)
{
    struct fleet_control *fc = f->fc;
    struct fleet_adapter_task task;
    struct err why = {0};
    enum fleet_has has;
    int found;

    mtx_lock(&fc->lock);
    fleet_reconcile_check_incarnation_locked(fc, f->upstream);
    found = fleet_adapters_begin_task(&fc->adapters, &fleet_engine(f->upstream)->adapters, &task);
    mtx_unlock(&fc->lock);
    if (found <= 0)
        return false;
    has = fleet_run_adapter_task(fc, f->upstream, &task, &why);
    log_task(f->upstream, &task, &why);
    mtx_lock(&fc->lock);
    fleet_reconcile_check_incarnation_locked(fc, f->upstream);
    fleet_adapters_end_task(&fc->adapters, &fleet_engine(f->upstream)->adapters, &task, has);
    set_retry_locked(f, RECONCILE_RETRY_MAX_US, &why);
    mtx_unlock(&fc->lock);
    return why.code == ERR_NONE;
}

static void reconcile_run(void *arg)
{
    struct fleet_reconciler *f = arg;
    struct fleet_control *fc = f->fc;

    while (reconcile_cache(f) && reconcile_adapter(f))
        continue;
    publish(fc, f->upstream);
    end_job(f);
}
