/* Each upstream that owes something is asked for it by a job of its own, so that one that hangs
 * keeps nobody else out; only so many at the same time. No turn is taken: a load of a trainer's may
 * come at any moment, and is newer than what is made good here (fleet/fleet_adapters.h). */
#include "fleet/fleet_fit.h"

#include "base/log.h"
#include "fleet/fleet_priv.h"
#include "fleet/update/fleet_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIT_LOOK_US = 250000,        /* until it is looked again who lacks something */
    FIT_AGAIN_US = 500000,       /* after a first failure; then twice as long each time … */
    FIT_AGAIN_MAX_US = 30000000, /* … but not longer */
    FIT_EMPTY_MAX_US =
        1000000,     /* the same, where what runs there keeps a cache from being emptied */
    FIT_JOBS_MAX = 4 /* at the same time: other work needs threads too */
};

static void on_watch(void *arg);
static void fit_run(void *arg);

void fleet_fit_init(struct fleet_control *fc)
{
    fc->watch = (struct loop_item){.run = on_watch, .arg = fc};
    fc->watch_timer = (struct loop_timer){.fire = on_watch, .arg = fc};
    for (size_t i = 0; i < FLEET_MAX; i++)
        fc->fits[i] = (struct fleet_fitting){.fc = fc, .upstream = i};
}

/* What one has */

/* A process that does not name itself may be the one before. */
void fleet_fit_see_locked(struct fleet_control *fc, size_t upstream)
{
    struct fleet_fitting *f = &fc->fits[upstream];
    struct upstream_info info;
    struct upstream_at at;
    uint64_t life;

    upstreams_at(fc->upstreams, upstream, &at);
    fleet_info(fleet_of(fc), upstream, &info);
    life = at.removed ? UINT64_MAX : info.n_lives;
    if (life == fc->adapters.lives[upstream])
        return;
    fleet_adapters_is_in(&fc->adapters, upstream, life, at.removed || at.kind != UPSTREAM_SGLANG);
    err_clear(&f->why);
    err_clear(&f->stale);
    f->unasked = !at.removed && !upstream_is_two_phase(at.kind);
    if (f->unasked) {
        (void)err_set(&f->stale, ERR_UNSYNCED, "", "it has not been asked yet");
        f->n_stale++;
    }
    f->due_us = f->wait_us = 0;
}

static void say_lack(const struct fleet_adapter *a, const struct err *why, struct err *out)
{
    const char *last = why->code != ERR_NONE ? "; the last time: " : "";

    if (a->gone)
        (void)err_set(out, ERR_UNSYNCED, "",
                      "it may still have adapter '%.60s', which the fleet has no more, and is "
                      "asked to unload it%s%.180s",
                      a->name, last, why->msg);
    else if (a->load != NULL)
        (void)err_set(out, ERR_UNSYNCED, "",
                      "it lacks adapter '%.60s', and is asked to load it%s%.180s", a->name, last,
                      why->msg);
    else
        (void)err_set(out, ERR_UNSYNCED, "",
                      "it lacks adapter '%.60s', whose tensors came with the request that loaded "
                      "it: load it again, or unload it",
                      a->name);
}

static void say_stale(const struct err *why, struct err *out)
{
    (void)err_set(out, ERR_UNSYNCED, "",
                  "its caches may hold what other weights made, and it is asked to empty them: "
                  "%.250s",
                  why->msg);
}

static void tell_one(struct fleet_control *fc, size_t upstream)
{
    const struct fleet_adapter *a;
    struct fleet_outfit outfit;
    struct err lack = {0};

    mtx_lock(&fc->lock);
    fleet_fit_see_locked(fc, upstream);
    a = fleet_adapters_bars(&fc->adapters, upstream);
    if (fc->fits[upstream].stale.code != ERR_NONE)
        say_stale(&fc->fits[upstream].stale, &lack);
    else if (a != NULL)
        say_lack(a, &fc->fits[upstream].why, &lack);
    outfit = (struct fleet_outfit){
        .life = fc->adapters.lives[upstream], .change = fc->adapters.changes, .lack = &lack};
    mtx_unlock(&fc->lock);
    fleet_outfit(fleet_of(fc), upstream, &outfit);
}

void fleet_fit_begin(struct fleet_control *fc)
{
    size_t n = upstreams_n(fc->upstreams);
    struct upstream_at at;

    for (size_t i = 0; i < n; i++) {
        upstreams_at(fc->upstreams, i, &at);
        if (at.removed || upstream_is_two_phase(at.kind))
            continue;
        fleet_fit_watch(fc);
        tell_one(fc, i);
    }
}

void fleet_fit_tell(struct fleet_control *fc)
{
    size_t n = upstreams_n(fc->upstreams);

    mtx_lock(&fc->lock);
    for (size_t i = 0; i < n; i++)
        fc->fits[i].due_us = fc->fits[i].wait_us = 0;
    mtx_unlock(&fc->lock);
    for (size_t i = 0; i < n; i++)
        tell_one(fc, i);
}

void fleet_fit_stale(struct fleet_control *fc, size_t upstream, const struct err *why)
{
    struct fleet_fitting *f = &fc->fits[upstream];
    bool changes;

    if (why->code != ERR_NONE)
        fleet_fit_watch(fc);
    mtx_lock(&fc->lock);
    fleet_fit_see_locked(fc, upstream);
    changes = why->code != ERR_NONE || f->stale.code != ERR_NONE;
    f->stale = *why;
    f->unasked = false;
    f->n_stale++;
    f->due_us = f->wait_us = 0;
    fc->adapters.changes += changes;
    mtx_unlock(&fc->lock);
    if (changes)
        tell_one(fc, upstream);
}

bool fleet_fit_is_stale(struct fleet_control *fc, size_t upstream)
{
    bool stale;

    mtx_lock(&fc->lock);
    stale = fc->fits[upstream].stale.code != ERR_NONE;
    mtx_unlock(&fc->lock);
    return stale;
}

json_t *fleet_fit_lacks_json(struct fleet_control *fc, size_t upstream)
{
    char(*names)[FLEET_ADAPTER_NAME_MAX + 1] = NULL;
    json_t *list = json_array();
    size_t n = 0;

    mtx_lock(&fc->lock);
    fleet_fit_see_locked(fc, upstream);
    for (size_t i = 0; i < fc->adapters.n; i++)
        n += fleet_adapters_lacks(&fc->adapters.list[i], upstream);
    if (n > 0)
        names = malloc(n * sizeof *names);
    n = 0;
    for (size_t i = 0; names != NULL && i < fc->adapters.n; i++)
        if (fleet_adapters_lacks(&fc->adapters.list[i], upstream))
            memcpy(names[n++], fc->adapters.list[i].name, sizeof *names);
    mtx_unlock(&fc->lock);
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(list, json_string(names[i]));
    free(names);
    return list;
}

/* who is to be asked */

static bool may_begin_locked(struct fleet_control *fc, size_t upstream)
{
    const struct fleet_fitting *f = &fc->fits[upstream];

    return !f->running && fc->n_fitting < FIT_JOBS_MAX && f->due_us <= clock_now_us() &&
           !fc->weights_asleep && !fc->kv_asleep && !fleet_is_held_locked(fc, upstream) &&
           (f->stale.code != ERR_NONE || fleet_adapters_owes(&fc->adapters, upstream));
}

static void end_locked(struct fleet_fitting *f)
{
    f->running = false;
    f->fc->n_fitting--;
    upstreams_release(f->fc->upstreams);
}

static void begin(struct fleet_fitting *f)
{
    struct fleet_control *fc = f->fc;
    struct err ignored = {0};

    f->job = (struct job){.run = fit_run, .arg = f};
    if (workers_post(fc->cfg.fit, &f->job, WORKERS_URGENT, &ignored) == 0)
        return;
    mtx_lock(&fc->lock);
    end_locked(f);
    mtx_unlock(&fc->lock);
}

static void watch_one(struct fleet_control *fc, size_t upstream)
{
    struct fleet_fitting *f = &fc->fits[upstream];
    struct upstream_info info;
    bool bars, begins;

    fleet_info(fleet_of(fc), upstream, &info);
    mtx_lock(&fc->lock);
    fleet_fit_see_locked(fc, upstream);
    bars = f->stale.code != ERR_NONE || fleet_adapters_bars(&fc->adapters, upstream) != NULL;
    begins = info.alive && !info.removed && may_begin_locked(fc, upstream);
    if (begins) {
        f->running = true;
        fc->n_fitting++;
        upstreams_hold(fc->upstreams);
    }
    mtx_unlock(&fc->lock);
    if (bars || info.lacks) /* also what has changed of why */
        tell_one(fc, upstream);
    if (begins)
        begin(f);
}

/* The room's loop's thread. */
static void on_watch(void *arg)
{
    struct fleet_control *fc = arg;
    size_t n = upstreams_n(fc->upstreams);

    for (size_t i = 0; i < n; i++)
        watch_one(fc, i);
    loop_timer_set(upstreams_loop(fc->upstreams), &fc->watch_timer, clock_after_us(FIT_LOOK_US));
}

void fleet_fit_watch(struct fleet_control *fc)
{
    bool first;

    mtx_lock(&fc->lock);
    first = !fc->watched;
    fc->watched = true;
    mtx_unlock(&fc->lock);
    if (!first)
        return;
    fleet_needs_outfit(fleet_of(fc));
    loop_post(upstreams_loop(fc->upstreams), &fc->watch);
}

/* asking */

bool fleet_has_no_adapter(struct fleet_control *fc, const struct fleet_said *said, const char *name)
{
    struct upstream_at at;

    upstreams_at(fc->upstreams, said->upstream, &at);
    return said->end == FLEET_REFUSED &&
           api_adapter_is_absent(at.kind, name, said->status, said->text != NULL ? said->text : "",
                                 said->text_len);
}

static enum fleet_has unloaded(struct fleet_control *fc, const struct fleet_to *to,
                               const char *name, struct err *why)
{
    enum fleet_has has = FLEET_HAS_OTHER;
    struct fleet_said *said = NULL;

    if (fleet_ask(fc, API_UNLOAD_ADAPTER, to, 1, FLEET_CACHE_US, &said, why) != 0)
        return has;
    fleet_reset_adapter_caches(fc, said, 1);
    if (said->end == FLEET_GOOD || fleet_has_no_adapter(fc, said, name))
        has = FLEET_HAS_NONE;
    else
        *why = said->why;
    fleet_said_free(said, 1);
    return has;
}

/* Files may have been replaced since the others read them; only who tells a digest shows it. */
static bool is_same(const struct fleet_said *said, const struct fleet_fit *fit, struct err *why)
{
    json_t *answer = json_loadb(said->text != NULL ? said->text : "", said->text_len, 0, NULL);
    const char *digest = json_string_value(json_object_get(answer, "digest"));
    bool same = digest == NULL || fit->digest[0] == '\0' || strcmp(digest, fit->digest) == 0;

    json_decref(answer);
    if (!same)
        (void)err_set(why, ERR_CONFLICT, "",
                      "what is at its lora_path has changed since the others loaded it");
    return same;
}

static enum fleet_has loaded(struct fleet_control *fc, const struct fleet_to *to,
                             const struct fleet_fit *fit, struct err *why)
{
    enum fleet_has has = fit->had;
    struct fleet_said *said = NULL;
    struct err ignored = {0};
    struct upstream_at at;

    upstreams_at(fc->upstreams, to->upstream, &at);
    if (fit->may_have && at.kind == UPSTREAM_SGLANG) /* which replaces nothing */
        (void)unloaded(fc, to, fit->name, &ignored);
    if (fleet_ask(fc, API_LOAD_ADAPTER, to, 1, fit->timeout_us + FLEET_LATE_US, &said, why) != 0)
        return has;
    fleet_reset_adapter_caches(fc, said, 1);
    *why = said->why;
    if (said->end == FLEET_GOOD)
        has = is_same(said, fit, why) ? FLEET_HAS_THIS : FLEET_HAS_OTHER;
    else if (said->end == FLEET_REFUSED)
        has = FLEET_HAS_REFUSED;
    else if (said->end == FLEET_UNKNOWN)
        has = FLEET_HAS_OTHER;
    fleet_said_free(said, 1);
    return has;
}

static enum fleet_has ask(struct fleet_control *fc, size_t upstream, const struct fleet_fit *fit,
                          struct err *why)
{
    json_t *body = fit->load != NULL ? json_loads(fit->load, 0, NULL)
                                     : json_pack("{s:s}", "lora_name", fit->name);
    struct fleet_to to = {.upstream = upstream, .body = body};
    enum fleet_has has = fit->had;

    if (body == NULL)
        (void)err_set(why, ERR_NO_MEMORY, "", "no memory to ask for an adapter");
    else if (fit->load != NULL)
        has = loaded(fc, &to, fit, why);
    else
        has = unloaded(fc, &to, fit->name, why);
    json_decref(body);
    return has;
}

static void log_fitted(const struct fleet_control *fc, size_t upstream, const struct fleet_fit *fit,
                       const struct err *why)
{
    struct upstream_at at;
    struct log_rec r;

    upstreams_at(fc->upstreams, upstream, &at);
    log_begin(&r, why->code == ERR_NONE ? LOG_INFO : LOG_WARN,
              fit->load != NULL ? "fleet.adapter_loaded_again" : "fleet.adapter_unloaded_late");
    log_str(&r, "upstream", at.name);
    log_str(&r, "lora_name", fit->name);
    log_str(&r, "error", why->code != ERR_NONE ? why->msg : NULL);
    log_end(&r);
}

static void note_locked(struct fleet_fitting *f, uint64_t wait_max_us, const struct err *why)
{
    f->why = *why;
    f->due_us = 0;
    if (why->code == ERR_NONE) {
        f->wait_us = 0;
        return;
    }
    f->wait_us = f->wait_us == 0 ? FIT_AGAIN_US : 2 * f->wait_us;
    if (f->wait_us > wait_max_us)
        f->wait_us = wait_max_us;
    f->due_us = clock_after_us(f->wait_us);
}

static void log_emptied(const struct fleet_control *fc, size_t upstream)
{
    struct upstream_at at;
    struct log_rec r;

    upstreams_at(fc->upstreams, upstream, &at);
    log_begin(&r, LOG_INFO, "fleet.cache_emptied");
    log_str(&r, "upstream", at.name);
    log_end(&r);
}

/* One that runs nothing of ours has nobody who would make his KV again. False: not now. */
static bool empty_one(struct fleet_fitting *f)
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
    one.route_optional = f->unasked;
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
    note_locked(f, FIT_EMPTY_MAX_US, &why);
    mtx_unlock(&fc->lock);
    if (why.code == ERR_NONE)
        log_emptied(fc, f->upstream);
    return why.code == ERR_NONE;
}

/* False: there is nothing more to ask it for, or not now. */
static bool fit_one(struct fleet_fitting *f)
{
    struct fleet_control *fc = f->fc;
    struct fleet_fit fit;
    struct err why = {0};
    enum fleet_has has;
    int found;

    mtx_lock(&fc->lock);
    fleet_fit_see_locked(fc, f->upstream);
    found = fleet_adapters_begin(&fc->adapters, f->upstream, &fit);
    mtx_unlock(&fc->lock);
    if (found <= 0)
        return false;
    has = ask(fc, f->upstream, &fit, &why);
    log_fitted(fc, f->upstream, &fit, &why);
    mtx_lock(&fc->lock);
    fleet_fit_see_locked(fc, f->upstream);
    fleet_adapters_end(&fc->adapters, f->upstream, &fit, has);
    note_locked(f, FIT_AGAIN_MAX_US, &why);
    mtx_unlock(&fc->lock);
    return why.code == ERR_NONE;
}

static void fit_run(void *arg)
{
    struct fleet_fitting *f = arg;
    struct fleet_control *fc = f->fc;

    while (empty_one(f) && fit_one(f))
        continue;
    tell_one(fc, f->upstream);
    mtx_lock(&fc->lock);
    end_locked(f);
    mtx_unlock(&fc->lock);
}
