/* Each thing is copied under its own lock alone (the functions that end in _by), and logged after
 * it. Rejected: a handler of the signal, which may interrupt a thread between any two lines and so
 * may take no lock; main, which may hang in a start, a reload or a stop. */
#include "server/state_dump.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mtx.h"
#include "control/admission.h"
#include "control/pause_controller.h"
#include "fleet/fleet_state.h"
#include "fleet/members/upstreams.h"
#include "server/serve_priv.h"
#include "server/signals.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    DUMP_LOCK_US = 200000, /* the wait for one lock */
    DUMP_THREADS_MAX = 1024,
    DUMP_LIST_MAX = 256 /* bytes of a list of names */
};

struct state_dump {
    const struct server *server;
    pthread_t thread;
    atomic_bool built;                           /* release by main, acquire by the thread */
    atomic_bool stopping;                        /* the same */
    struct mtx_thread threads[DUMP_THREADS_MAX]; /* of the thread */
};

static uint64_t lock_deadline(void)
{
    return clock_after_us(DUMP_LOCK_US);
}

static void begin(struct log_rec *r, const char *event)
{
    log_begin(r, LOG_INFO, event);
}

/* @since_us  0: it is left out */
static void log_age(struct log_rec *r, const char *key, uint64_t since_us)
{
    uint64_t now_us = clock_now_us();

    if (since_us != 0)
        log_ms(r, key, now_us > since_us ? now_us - since_us : 0);
}

static void log_left(struct log_rec *r, const char *key, uint64_t left_us)
{
    if (left_us != CLOCK_NEVER)
        log_ms(r, key, left_us);
}

static void log_unread(const char *what, const struct err *why)
{
    struct log_rec r;

    begin(&r, "state.locked");
    log_str(&r, "what", what);
    log_str(&r, "message", why->msg);
    log_asked(&r);
}

/* Appends ", name". */
static void add_name(char list[DUMP_LIST_MAX], const char *name)
{
    size_t len = strlen(list);

    (void)snprintf(list + len, DUMP_LIST_MAX - len, "%s%s", len > 0 ? ", " : "", name);
}

/* threads */

static void dump_thread(const struct mtx_thread *t)
{
    char held[DUMP_LIST_MAX] = "";
    struct log_rec r;

    for (size_t i = 0; i < t->n_held; i++)
        add_name(held, mtx_rank_name(t->held[i]));
    begin(&r, "state.thread");
    log_str(&r, "thread", t->name);
    log_u64(&r, "tid", (uint64_t)t->tid);
    if (t->n_held > 0)
        log_str(&r, "holds", held);
    if (t->since_us != 0) {
        log_str(&r, t->on_condition ? "waits_on_condition_of" : "waits_for",
                mtx_rank_name(t->waits));
        log_age(&r, "waits_ms", t->since_us);
    }
    if (t->owner[0] != '\0')
        log_str(&r, "locked_by", t->owner);
    log_asked(&r);
}

static void dump_threads(struct state_dump *d)
{
    size_t n = mtx_threads(d->threads, DUMP_THREADS_MAX);

    for (size_t i = 0; i < n && i < DUMP_THREADS_MAX; i++)
        dump_thread(&d->threads[i]);
}

/* both servers */

static void dump_pause_record(const struct pause *p)
{
    struct log_rec r;

    if (p->state == PAUSE_OFF)
        return;
    begin(&r, "state.pause");
    log_str(&r, "state", pause_state_name(p->state));
    log_str(&r, "mode", lifecycle_pause_name(p->mode));
    log_str(&r, "owner", p->owner);
    log_age(&r, "since_ms", p->since_us);
    log_left(&r, "lease_left_ms", lease_timer_left_us(&p->lease));
    log_asked(&r);
}

static void dump_pool(const char *name, struct workers *pool)
{
    struct workers_info info;
    struct err e = {0};
    struct log_rec r;

    if (pool == NULL)
        return;
    if (workers_info_by(pool, lock_deadline(), &info, &e) != 0) {
        log_unread(name, &e);
        return;
    }
    begin(&r, "state.executor");
    log_str(&r, "executor", name);
    log_u64(&r, "threads", info.n_threads);
    log_u64(&r, "idle", info.n_idle);
    log_u64(&r, "queued", info.n_queued);
    log_age(&r, "oldest_ms", info.queued_us);
    log_u64(&r, "waiting", info.n_waiting);
    log_age(&r, "longest_wait_ms", info.waiting_us);
    log_asked(&r);
}

static void dump_queue(const char *name, size_t n_running, size_t n_waiting, uint64_t oldest_us)
{
    struct log_rec r;

    begin(&r, "state.queue");
    log_str(&r, "queue", name);
    log_u64(&r, "running", n_running);
    log_u64(&r, "waiting", n_waiting);
    log_age(&r, "oldest_ms", oldest_us);
    log_asked(&r);
}

/* a server with weights of its own */

static void dump_weights(struct store *store)
{
    struct store_info info;
    struct err e = {0};
    struct log_rec r;

    if (store_info_by(store, lock_deadline(), &info, &e) != 0) {
        log_unread("weights", &e);
        return;
    }
    begin(&r, "state.weights");
    log_str(&r, "state", store_state_name(info.state));
    log_str(&r, "weight_version", info.label);
    log_u64(&r, "serial", info.serial);
    log_u64(&r, "versions_alive", info.n_live);
    log_asked(&r);
}

static void dump_update(struct updates *updates)
{
    struct update_info info;
    struct err e = {0};
    struct log_rec r;

    if (updates_current_by(updates, lock_deadline(), &info, &e) != 0) {
        log_unread("update", &e);
        return;
    }
    if (info.phase == UPDATE_NONE)
        return;
    begin(&r, "state.update");
    log_str(&r, "update_id", info.id);
    log_str(&r, "phase", update_phase_name(info.phase));
    log_str(&r, "weight_version", info.label);
    log_ms(&r, "since_ms", info.whole_us);
    log_left(&r, "lease_left_ms", info.lease_left_us);
    log_left(&r, "deadline_left_ms", info.deadline_left_us);
    log_str(&r, "source", info.source);
    log_u64(&r, "tensors_done", info.n_tensors_done);
    log_u64(&r, "tensors_total", info.n_tensors_total);
    log_actor(&r, &info.actor);
    log_asked(&r);
}

static void dump_admission(struct admission *a, const char *name)
{
    struct admission_stats s;
    struct err e = {0};

    if (a == NULL)
        return;
    if (admission_stats_by(a, lock_deadline(), &s, &e) != 0)
        log_unread(name, &e);
    else
        dump_queue(s.name, s.n_running, s.n_waiting, s.oldest_us);
}

static void dump_pause(struct pause_controller *g)
{
    struct err e = {0};
    struct pause p;

    if (pause_controller_pause_by(g, lock_deadline(), &p, &e) != 0)
        log_unread("pause", &e);
    else
        dump_pause_record(&p);
}

static void dump_own_engine(struct engine *engine)
{
    struct engine_stats s;
    struct err e = {0};
    struct log_rec r;

    if (engine == NULL)
        return;
    if (engine->ops->stats(engine, lock_deadline(), &s, &e) != 0) {
        log_unread("engine", &e);
        return;
    }
    begin(&r, "state.engine");
    log_str(&r, "engine", engine->ops->name);
    log_str(&r, "state", s.frozen ? "frozen" : s.kv_released ? "asleep" : "running");
    log_u64(&r, "running", s.n_running);
    log_u64(&r, "waiting", s.n_waiting);
    log_age(&r, "heartbeat_age_ms", s.heartbeat_us);
    log_asked(&r);
}

static void dump_own(const struct server *s)
{
    dump_weights(s->weights.store);
    dump_update(s->weights.updates);
    dump_pause(s->app.pause_controller);
    dump_own_engine(s->generate.engine);
    dump_admission(s->generate.admission, "generate");
    dump_admission(s->generate.text_admission, "text");
    dump_admission(s->generate.prompt_admission, "prompts");
}

/* in front of a fleet */

static void dump_fleet_lock(const char *name, const struct fleet_lock *l)
{
    struct log_rec r;

    if (l->operation == NULL)
        return;
    begin(&r, "state.lock");
    log_str(&r, "lock", name);
    log_str(&r, "owner", l->operation);
    log_age(&r, "held_ms", l->since_us);
    log_asked(&r);
}

static void dump_fleet_locks(const struct fleet_locks *l)
{
    struct fleet_lock one_shot = {.operation = l->one_shot ? "an update in one request" : NULL};
    struct fleet_lock resumes = {.operation = l->n_resumes > 0 ? "a resume" : NULL,
                                 .since_us = l->resumes_since_us};

    dump_fleet_lock("operation", &l->op);
    dump_fleet_lock("abort", &l->abort);
    dump_fleet_lock("pause", &l->pause);
    dump_fleet_lock("resume", &resumes);
    dump_fleet_lock("one-shot", &one_shot);
}

static void dump_fleet_update(const struct fleet_state *now)
{
    struct log_rec r;

    if (now->update.id[0] == '\0')
        return;
    begin(&r, "state.update");
    log_str(&r, "update_id", now->update.id);
    log_str(&r, "phase", update_phase_name(now->update.phase));
    log_str(&r, "weight_version", now->update.label);
    log_age(&r, "since_ms", now->update.began_us);
    log_left(&r, "lease_left_ms", now->update.lease_left_us);
    if (now->update.handoff)
        log_str(&r, "purpose", now->update.repair ? "repair" : "hand-off");
    log_u64(&r, "upstreams", now->update.n_engines);
    log_u64(&r, "requests", now->update.n_running);
    log_u64(&r, "tensors", now->update.n_received);
    log_actor(&r, &now->update.actor);
    log_asked(&r);
}

static void dump_control(struct fleet_control *fc)
{
    struct fleet_state now;
    struct err e = {0};

    if (fleet_state_by(fc, lock_deadline(), &now, &e) != 0) {
        log_unread("update, pause and locks of the fleet", &e);
        return;
    }
    dump_fleet_update(&now);
    dump_pause_record(&now.pause);
    dump_fleet_locks(&now.locks);
}

static const char *gate_name(enum gate_fact gate)
{
    static const char *const names[] = {
        [GATE_UNKNOWN] = "unknown", [GATE_NOT_OURS] = "not_ours",
        [GATE_RUNNING] = "running", [GATE_NOT_RESUMED] = "not_resumed",
        [GATE_PAUSED] = "paused",
    };

    return names[gate];
}

static const char *sleep_name(enum sleep_fact sleep)
{
    static const char *const names[] = {[SLEEP_UNKNOWN] = "unknown",
                                        [SLEEP_NOT_OURS] = "not_ours",
                                        [SLEEP_AWAKE] = "awake",
                                        [SLEEP_ASLEEP] = "asleep"};

    return names[sleep];
}

static void dump_upstream(const struct upstream *u, const struct upstream_info *info)
{
    char reasons[DUMP_LIST_MAX] = "";
    struct log_rec r;

    for (int i = 0; i < UPSTREAM_REASONS; i++)
        if ((info->out & REASON_BIT(i)) != 0)
            add_name(reasons, upstream_reason_name((enum upstream_reason)i));
    begin(&r, "state.engine");
    log_str(&r, "upstream", upstream_name(u));
    log_str(&r, "dialect", upstream_kind_name(upstream_kind(u)));
    log_str(&r, "state", upstream_state_name(info->state));
    if (info->out != 0)
        log_str(&r, "reasons", reasons);
    log_str(&r, "weight_version", info->report.label);
    log_u64(&r, "serial", info->serial);
    log_str(&r, "gate", gate_name(info->have.gate));
    log_str(&r, "weights", sleep_name(info->have.sleep.weights));
    log_str(&r, "kv_cache", sleep_name(info->have.sleep.kv));
    log_u64(&r, "generate", info->n_outstanding[FLEET_GENERATE]);
    log_u64(&r, "text", info->n_outstanding[FLEET_TEXT]);
    log_u64(&r, "calls", info->have.gate_calls.n + info->have.sleep_calls.n);
    log_age(&r, "last_heard_ms", info->probe_ok_us);
    if (info->error.why.code != ERR_NONE)
        log_str(&r, "message", info->error.why.msg);
    log_asked(&r);
}

/* The first that cannot be read is the last that is tried: all have one lock. */
static void dump_upstreams(struct fleet *f)
{
    struct upstream_list *all;
    struct err e = {0};

    if (fleet_list_by(f, lock_deadline(), &all, &e) == 0) {
        for (size_t i = 0; i < all->n && e.code == ERR_NONE; i++) {
            struct upstream_info info;

            if (fleet_info_by(f, all->items[i], lock_deadline(), &info, &e) == 0)
                dump_upstream(all->items[i], &info);
        }
        upstream_list_unref(all);
    }
    if (e.code != ERR_NONE)
        log_unread("engines", &e);
}

static void dump_permits(struct fleet *f)
{
    struct fleet_stats s;
    struct err e = {0};

    if (fleet_stats_by(f, lock_deadline(), &s, &e) != 0) {
        log_unread("queues", &e);
        return;
    }
    for (int i = 0; i < FLEET_QUEUES; i++)
        dump_queue(fleet_queue_name(i), s.n_running[i], s.n_waiting[i], s.oldest_us[i]);
}

static void dump_fleet(const struct app_fleet *fleet)
{
    struct fleet *f = upstreams_fleet(fleet->upstreams);

    dump_control(fleet->control);
    dump_upstreams(f);
    dump_permits(f);
}

/* all */

static void dump_head(const struct server *s)
{
    struct log_rec r;

    begin(&r, "state");
    log_str(&r, "life", life_state_name(life_state(&s->life)));
    log_age(&r, "uptime_ms", s->life.started_us);
    log_str(&r, "version", BATON_VERSION);
    log_str(&r, "boot_id", s->life.boot_id);
    log_u64(&r, "pid", (uint64_t)getpid());
    log_asked(&r);
}

static void dump_parts(const struct server *s)
{
    dump_head(s);
    if (s->app.weights != NULL)
        dump_own(s);
    if (s->app.fleet != NULL)
        dump_fleet(s->app.fleet);
    dump_pool("control", s->app.control_executor);
    dump_pool("generate", s->app.generate_executor);
    dump_pool("text", s->app.text_executor);
    if (s->app.fleet != NULL)
        dump_pool("fleet", s->app.fleet->executor);
}

static void dump(struct state_dump *d)
{
    uint64_t began_us = clock_now_us();
    bool built = atomic_load_explicit(&d->built, memory_order_acquire);
    struct log_rec r;

    if (built) {
        dump_parts(d->server);
    } else {
        begin(&r, "state");
        log_str(&r, "life", "starting");
        log_asked(&r);
    }
    dump_threads(d);
    begin(&r, "state.end");
    log_age(&r, "took_ms", began_us);
    log_asked(&r);
}

static void *state_main(void *arg)
{
    struct state_dump *d = arg;

    for (;;) {
        signals_wait_quit();
        if (atomic_load_explicit(&d->stopping, memory_order_acquire))
            return NULL;
        dump(d);
    }
}

int state_dump_new(struct state_dump **out, const struct server *s, struct err *e)
{
    struct state_dump *d = calloc(1, sizeof *d);
    int rc;

    if (d == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the thread of SIGQUIT");
    d->server = s;
    rc = pthread_create(&d->thread, NULL, state_main, d);
    if (rc != 0) {
        free(d);
        return err_set_errno(e, ERR_INTERNAL, "", rc, "cannot start the thread of SIGQUIT");
    }
    (void)pthread_setname_np(d->thread, "state");
    *out = d;
    return 0;
}

void state_dump_built(struct state_dump *d)
{
    atomic_store_explicit(&d->built, true, memory_order_release);
}

void state_dump_free(struct state_dump *d)
{
    if (d == NULL)
        return;
    atomic_store_explicit(&d->stopping, true, memory_order_release);
    (void)pthread_kill(d->thread, SIGQUIT);
    (void)pthread_join(d->thread, NULL);
    free(d);
}
