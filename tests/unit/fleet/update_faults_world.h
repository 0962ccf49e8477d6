/* Doubles of engines, and two threads that take turns: the trainer, and what interferes with its
 * update.
 *
 * One thread runs at a time. It may hand over at each request to an engine, where it gives the lock
 * of the fleet's control back, and where it waits for a lock. Who runs and which request fails is
 * drawn from a seed, so that each run can be repeated. Time stands still, and jumps to a deadline
 * when nothing else can happen. */
#ifndef BATON_TESTS_UNIT_FLEET_UPDATE_FAULTS_WORLD_H
#define BATON_TESTS_UNIT_FLEET_UPDATE_FAULTS_WORLD_H

#include "fleet/fleet_root.h"
#include "fleet/members/fleet_priv.h"
#include "fleet/members/upstream_config.h"
#include "fleet/update/fleet_update_priv.h"

#include "base/log.h"

#include "tests/unit/fleet/upstream_at.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    ENGINES_MAX = 6,
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SEEDS = 200, /* each hand-over between threads is slow; that all is reached, release shows */
    REACHES_ALL = 0,
#else
    SEEDS = 4000,
    REACHES_ALL = 1,
#endif
    SEEDS_MAX = 100000, /* until every transition was reached */
    CHUNKS = 2,
    EVENTS_MAX = 3,
    LEASE_S = 60, /* of an update of a trainer */
    STEP_US = 1000,
    TORN = -1
};

/* ---- the double of an engine ---- */

struct engine {
    enum upstream_kind kind;
    bool knows_start; /* else an SGLang of an old release */
    bool lacks_label; /* it has no route to set its version */
    unsigned process;
    char label[API_VERSION_MAX + 1];
    int version;     /* of the weights that it had before `chunks` came; TORN: of none */
    int target;      /* of the update that `chunks` belong to */
    unsigned chunks; /* a bit for each */
    bool open, paused;
    unsigned n_asked[API_OPS];
};

/* ---- the world ---- */

enum { TRAINER, OTHER };

static struct world {
    unsigned seed;
    bool traced;
    uint64_t random, now_us;
    unsigned fault_percent, all_fail_percent, abort_percent;
    struct fleet *fleet;
    struct fleet_control *fc;
    struct engine engines[ENGINES_MAX];
    struct upstream_config configs[ENGINES_MAX];
    size_t n_engines;
    int version, target; /* committed by this test's trainers; of the update that is sent now */
    unsigned accepted;   /* the chunks of it that the fleet has taken, a bit for each */
    unsigned switch_percent, unlock_percent;
    bool by_handles, by_path;
    bool may_drain; /* this server stops; nothing follows but the end of the update */
    void (*check)(void), (*after_query)(void); /* after each answer, queries to all; or NULL */
    void (*watch)(void); /* before the lock of the fleet's control is given back; or NULL */

    pthread_mutex_t lock; /* guards the next three */
    pthread_cond_t changed;
    int turn;
    bool done[2], blocked[2];
    uint64_t progress, seen[2];
} w;

static __thread int me;

/* For a run of one seed. */
__attribute__((format(printf, 1, 2))) static void trace(const char *fmt, ...)
{
    va_list args;

    if (!w.traced)
        return;
    (void)fprintf(stderr, "%s ", me == TRAINER ? "trainer" : "other  ");
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fprintf(stderr, "\n");
}

static unsigned draw(unsigned n)
{
    w.random ^= w.random << 13;
    w.random ^= w.random >> 7;
    w.random ^= w.random << 17;
    return (unsigned)((w.random >> 11) % n);
}

static bool chance(unsigned percent)
{
    return draw(100) < percent;
}

/* ---- whose turn it is ---- */

static void hand_over(void)
{
    assert_int_equal(pthread_mutex_lock(&w.lock), 0);
    w.turn = !me;
    (void)pthread_cond_broadcast(&w.changed);
    while (w.turn != me)
        (void)pthread_cond_wait(&w.changed, &w.lock);
    (void)pthread_mutex_unlock(&w.lock);
}

static void may_switch(unsigned percent)
{
    if (!w.done[!me] && chance(percent))
        hand_over();
}

__typeof__(mtx_unlock) __wrap_mtx_unlock, __real_mtx_unlock;
bool __wrap_cnd_wait(struct cnd *c, struct mtx *m, uint64_t deadline_us);
void __wrap_cnd_broadcast(struct cnd *c);
uint64_t __wrap_clock_now_us(void);
uint64_t __wrap_clock_after_us(uint64_t delay_us);

/* Whoever gives the lock of the fleet's control back may be overtaken there. */
void __wrap_mtx_unlock(struct mtx *m)
{
    bool ours = w.fc != NULL && m == &w.fc->lock;

    if (ours && w.watch != NULL)
        w.watch();
    __real_mtx_unlock(m);
    if (ours)
        may_switch(w.unlock_percent);
}

uint64_t __wrap_clock_now_us(void)
{
    return w.now_us;
}

uint64_t __wrap_clock_after_us(uint64_t delay_us)
{
    return w.now_us + delay_us;
}

void __wrap_cnd_broadcast(struct cnd *c)
{
    (void)c;
    w.progress++;
}

/* The deadline passes when the other thread waits too, or has ended, and nothing has changed. */
bool __wrap_cnd_wait(struct cnd *c, struct mtx *m, uint64_t deadline_us)
{
    bool stuck = w.done[!me] || (w.blocked[!me] && w.seen[!me] == w.progress);

    (void)c;
    w.blocked[me] = true;
    w.seen[me] = w.progress;
    if (stuck) {
        w.blocked[me] = false;
        if (w.now_us < deadline_us)
            w.now_us = deadline_us;
        return false;
    }
    __real_mtx_unlock(m);
    hand_over();
    mtx_lock(m);
    w.blocked[me] = false;
    return true;
}

/* ---- what is around the update ---- */

static char engine_names[ENGINES_MAX][16] = {"http://a", "http://b", "http://c",
                                             "http://d", "http://e", "http://f"};

struct fleet *__wrap_upstreams_fleet(struct upstreams *u);
__typeof__(upstreams_list) __wrap_upstreams_list;
__typeof__(upstreams_on_joined) __wrap_upstreams_on_joined;
__typeof__(upstreams_n_needed) __wrap_upstreams_n_needed;
__typeof__(fleet_validate) __wrap_fleet_validate;
__typeof__(log_end) __wrap_log_end, __wrap_log_event;
__typeof__(fleet_request) __wrap_fleet_request;
__typeof__(fleet_requests) __wrap_fleet_requests;
__typeof__(fleet_query) __wrap_fleet_query;

struct fleet *__wrap_upstreams_fleet(struct upstreams *u)
{
    (void)u;
    return w.fleet;
}

struct upstream_list *__wrap_upstreams_list(struct upstreams *u)
{
    (void)u;
    return fleet_list(w.fleet);
}

int __wrap_upstreams_on_joined(struct upstreams *u, upstreams_joined_fn *joined, void *arg,
                               struct err *e)
{
    (void)u;
    for (size_t i = 0; i < w.n_engines; i++)
        assert_int_equal(joined(arg, engine_at(w.fleet, i), e), 0);
    return 0;
}

size_t __wrap_upstreams_n_needed(const struct upstreams *u, size_t n)
{
    return u == NULL ? fleet_min_ready(w.fc) : n;
}

int __wrap_fleet_validate(struct fleet_control *fc, enum api_op op,
                          const struct fleet_target *targets, size_t n, struct err *e)
{
    (void)fc;
    (void)op;
    (void)targets;
    (void)n;
    (void)e;
    return 0;
}

void __wrap_log_end(struct log_rec *r)
{
    (void)r;
}

void __wrap_log_event(struct log_rec *r)
{
    (void)r;
}

/* ---- the engines ---- */

static void process_name(const struct engine *g, char *out, size_t cap)
{
    (void)snprintf(out, cap, "p-%zu-%u", (size_t)(g - w.engines), g->process);
}

/* It starts anew, with the weights of its model's directory. Meanwhile a probe finds that nothing
 * listens there; an engine that names its process is recognized without that, too. */
static void engine_restart(struct engine *g)
{
    struct err why = {0};

    (void)err_set(&why, ERR_UPSTREAM, "", "connection refused");
    if (g->kind == UPSTREAM_SGLANG || chance(50))
        fleet_probe_failed(w.fleet, engine_at(w.fleet, (size_t)(g - w.engines)), true, &why);
    g->process++;
    g->version = 0;
    g->chunks = 0;
    g->open = g->paused = false;
    (void)snprintf(g->label, sizeof g->label, "v0");
}

static bool is_whole(const struct engine *g)
{
    return g->chunks == 0 || (g->target == w.target && (g->chunks & w.accepted) == w.accepted);
}

static int version_of(const struct engine *g)
{
    return g->chunks == 0 ? g->version : is_whole(g) ? g->target : TORN;
}

/* The tensors of a chunk; of a baton they wait beside what it serves. */
static void engine_take(struct engine *g, unsigned chunk)
{
    if (g->target != w.target && g->chunks != 0 && g->kind != UPSTREAM_BATON) {
        g->version = TORN; /* half of one update below another, until that is whole */
        g->chunks = 0;
    }
    g->target = w.target;
    g->chunks |= 1u << chunk;
}

static void engine_finish(struct engine *g, const char *label)
{
    if (g->chunks != 0) {
        g->version = version_of(g);
        g->chunks = 0;
    }
    if (label != NULL)
        (void)snprintf(g->label, sizeof g->label, "%s", label);
    g->open = false;
}

/* The version that the request sets; NULL: none. */
static const char *label_of(const struct fleet_target *t)
{
    return t->args != NULL ? t->args->label : NULL;
}

/* Has the engine words for it? Else nothing is sent to it. */
static bool is_asked(const struct engine *g, enum api_op op, const struct fleet_target *t)
{
    switch (op) {
    case API_VERIFY_UPDATE:
    case API_ABORT_UPDATE:
        return g->kind == UPSTREAM_BATON;
    case API_FINISH_UPDATE:
        return g->kind != UPSTREAM_SGLANG || t->ctx.has_begun || label_of(t) != NULL;
    case API_INIT_TRANSFER:
        return g->kind == UPSTREAM_VLLM;
    case API_RESET_ENCODER_CACHE:
        return g->kind == UPSTREAM_VLLM;
    case API_RESET_STORAGE_CACHE:
    case API_RETRACT_REQUESTS:
        return g->kind == UPSTREAM_SGLANG;
    default:
        return true;
    }
}

/* Returns the status of its answer. */
static int engine_do(struct engine *g, enum api_op op, const struct fleet_target *t)
{
    const char *label = label_of(t);
    bool baton = g->kind == UPSTREAM_BATON;

    g->n_asked[op]++;
    switch (op) {
    case API_START_UPDATE:
        if (!g->knows_start)
            return 404;
        if (g->open && !baton)
            return 400;
        g->open = true;
        return 200;
    case API_UPDATE_WEIGHTS:
        if (baton && !g->open)
            return 410; /* stands for: no such update */
        engine_take(g, (unsigned)atoi(t->args->tensors->format));
        return 200;
    case API_VERIFY_UPDATE:
        return !g->open ? 410 : is_whole(g) ? 200 : 422;
    case API_FINISH_UPDATE:
        if (baton && (!g->open || !is_whole(g)))
            return g->open ? 422 : 410;
        if (g->kind == UPSTREAM_SGLANG && t->ctx.has_begun && !g->open)
            return 400;
        engine_finish(g, g->kind == UPSTREAM_SGLANG && t->ctx.has_begun ? NULL : label);
        return 200;
    case API_ABORT_UPDATE:
        g->chunks = 0;
        g->open = false;
        return 200;
    case API_PAUSE:
        g->paused = true;
        return 200;
    case API_RESUME:
        g->paused = false;
        return 200;
    case API_SET_VERSION:
        if (g->lacks_label)
            return 405;
        (void)snprintf(g->label, sizeof g->label, "%s", label);
        return 200;
    default:
        return 200;
    }
}

/* What a failure leaves behind: tensors may have come in part, everything else wholly or not. */
static void do_maybe(struct engine *g, enum api_op op, const struct fleet_target *t)
{
    if (chance(50))
        return;
    if (op == API_UPDATE_WEIGHTS && g->kind != UPSTREAM_BATON && chance(50)) {
        g->version = TORN;
        return;
    }
    (void)engine_do(g, op, t);
}

static void set_text(struct fleet_result *r, json_t *answer)
{
    r->text = json_dumps(answer, 0);
    assert_non_null(r->text);
    r->text_len = strlen(r->text);
    json_decref(answer);
}

static void set_failure(struct fleet_result *r, enum fleet_outcome outcome, int status)
{
    r->outcome = outcome;
    r->status = status;
    (void)err_set(&r->why, outcome == FLEET_UNKNOWN ? ERR_UPSTREAM_TIMEOUT : ERR_UPSTREAM, "",
                  "it failed (%d)", status);
    if (outcome == FLEET_REFUSED)
        set_text(r, json_pack("{s:s}", "message", "no"));
}

static void answer_op(struct fleet_result *r, enum api_op op, const struct fleet_target *t)
{
    struct engine *g = &w.engines[index_of(w.fleet, t->upstream)];
    char process[FLEET_LABEL_MAX + 1];
    int status;

    r->upstream = upstream_ref(t->upstream);
    if (!is_asked(g, op, t)) {
        r->outcome = FLEET_SKIPPED;
        return;
    }
    if (chance(w.fault_percent)) {
        static const int statuses[] = {400, 403, 404, 409, 500, 503};
        unsigned kind = draw(4);

        if (kind == 0) {
            set_failure(r, FLEET_UNSENT, 0);
        } else if (kind == 1) {
            do_maybe(g, op, t);
            set_failure(r, FLEET_UNKNOWN, 0);
        } else {
            set_failure(r, FLEET_REFUSED, statuses[draw(6)]);
            if (r->status >= 500)
                do_maybe(g, op, t);
        }
        return;
    }
    status = engine_do(g, op, t);
    if (status == 410) {
        set_failure(r, FLEET_LOST, 404);
    } else if (status != 200) {
        set_failure(r, FLEET_REFUSED, status);
    } else {
        process_name(g, process, sizeof process);
        r->outcome = FLEET_OK;
        r->status = 200;
        set_text(
            r, json_pack("{s:s, s:s, s:b}", "update_id", "upd", "boot_id", process, "success", 1));
    }
}

static void answer_query(struct fleet_result *r, enum api_query q, const struct fleet_target *t)
{
    const struct engine *g = &w.engines[index_of(w.fleet, t->upstream)];
    char process[FLEET_LABEL_MAX + 1];
    int len;

    r->upstream = upstream_ref(t->upstream);
    if (chance(w.fault_percent)) {
        set_failure(r, chance(50) ? FLEET_UNSENT : FLEET_UNKNOWN, 0);
        return;
    }
    r->outcome = FLEET_OK;
    r->status = 200;
    if (q == API_GET_STATUS && g->kind == UPSTREAM_VLLM) {
        process_name(g, process, sizeof process);
        len = asprintf(&r->text, "#\nprocess_start_time_seconds %s\n", process);
        assert_true(len > 0);
        r->text_len = (size_t)len;
        return;
    }
    set_text(r, json_pack("{s:s, s:i, s:o}", "weight_version", g->label, "tp_size", 1, "update",
                          q == API_GET_STATUS && g->open ? json_pack("{s:s}", "update_id", "upd")
                                                         : json_null()));
}

/* Requests reach the engines one by one, and what interferes may come before any of them. */
static int all_fail(struct err *e, bool *sent)
{
    bool draining;

    *sent = false;
    if (!chance(w.all_fail_percent))
        return 0;
    draining = w.may_drain && chance(50);
    *sent = draining && chance(50);
    return draining ? err_set(e, ERR_DRAINING, "", "the server drains")
                    : err_set(e, ERR_NO_MEMORY, "", "no memory");
}

/* @op  API_OPS: each target has its own, and they come in any order */
static int request_all(struct fleet_control *fc, enum api_op op, const struct fleet_target *targets,
                       size_t n, uint64_t timeout_us, struct fleet_results *results, struct err *e)
{
    size_t first = n > 0 ? draw((unsigned)n) : 0;
    struct have_before before[4 * ENGINES_MAX];
    bool sent = false;
    int rc;

    assert_true(fc == w.fc && timeout_us > 0);
    mtx_assert_none();
    w.now_us += STEP_US;
    assert_null(results->list);
    may_switch(w.switch_percent);
    rc = n > 0 ? all_fail(e, &sent) : 0;
    if (rc != 0 && !sent)
        return -1;
    *results = (struct fleet_results){calloc(n + 1, sizeof *results->list), n};
    assert_non_null(results->list);
    for (size_t i = 0; i < n; i++)
        fleet_doubt(w.fleet, targets[i].upstream, op != API_OPS ? op : targets[i].op,
                    targets[i].args, &before[i]);
    for (size_t k = 0; k < n; k++) {
        size_t i = (first + k) % n;
        enum api_op of = op == API_OPS ? targets[i].op : op;
        answer_op(&results->list[i], of, &targets[i]);
        trace("op %d at %zu: outcome %d (%d)", (int)of, index_of(w.fleet, targets[i].upstream),
              (int)results->list[i].outcome, results->list[i].status);
        (void)fleet_answer(w.fleet, targets[i].upstream, of, targets[i].args, &before[i],
                           rc != 0 ? HAVE_LOST : fleet_result_answer(&results->list[i]), NULL);
        if (rc == 0 && targets[i].answered != NULL)
            targets[i].answered(targets[i].arg, &results->list[i]);
        if (w.check != NULL)
            w.check();
        may_switch(w.switch_percent);
    }
    if (rc == 0)
        return 0;
    fleet_results_fini(results);
    return -1;
}

int __wrap_fleet_request(struct fleet_control *fc, enum api_op op,
                         const struct fleet_target *targets, size_t n, uint64_t timeout_us,
                         struct fleet_results *results, struct err *e)
{
    return request_all(fc, op, targets, n, timeout_us, results, e);
}

int __wrap_fleet_requests(struct fleet_control *fc, const struct fleet_target *targets, size_t n,
                          uint64_t timeout_us, struct fleet_results *results, struct err *e)
{
    return request_all(fc, API_OPS, targets, n, timeout_us, results, e);
}

int __wrap_fleet_query(struct fleet_control *fc, enum api_query q,
                       const struct fleet_target *targets, size_t n, uint64_t timeout_us,
                       struct fleet_results *results, struct err *e)
{
    bool sent;

    assert_ptr_equal(fc, w.fc);
    assert_true(timeout_us > 0);
    mtx_assert_none();
    w.now_us += STEP_US;
    assert_null(results->list);
    may_switch(w.switch_percent);
    if (n > 0 && all_fail(e, &sent) != 0)
        return -1;
    *results = (struct fleet_results){calloc(n + 1, sizeof *results->list), n};
    assert_non_null(results->list);
    for (size_t i = 0; i < n; i++) {
        answer_query(&results->list[i], q, &targets[i]);
        trace("query %d at %zu: %d", (int)q, index_of(w.fleet, targets[i].upstream),
              (int)results->list[i].outcome);
        if (targets[i].answered != NULL)
            targets[i].answered(targets[i].arg, &results->list[i]);
        if (w.check != NULL)
            w.check();
        may_switch(w.switch_percent);
    }
    if (w.after_query != NULL)
        w.after_query();
    return 0;
}

/* ---- what probes, the trainer and its lease do ---- */

static void probe(size_t i)
{
    const struct engine *g = &w.engines[i];
    struct upstream_report report = {.label = ""};

    if (g->kind != UPSTREAM_SGLANG)
        process_name(g, report.process, sizeof report.process);
    (void)snprintf(report.label, sizeof report.label, "%s", g->label);
    if (g->kind != UPSTREAM_SGLANG) /* which does not tell */
        report.held = g->paused && !w.fleet->still.no_probes ? "paused" : NULL;
    fleet_probe_ok(w.fleet, engine_at(w.fleet, i), &report);
    engine_at(w.fleet, i)->have.caches.emptied = UINT64_MAX; /* they are not tested here */
}

static void probe_all(void)
{
    for (size_t i = 0; i < w.n_engines; i++)
        probe(i);
}

static void pause_all(void)
{
    struct pause_request req = {.mode = PAUSE_KEEP, .timeout_s = 10, .owner = "test"};
    fleet_results_auto results = {0};
    struct err e = {0};

    if (fleet_trainer_pause_lock(w.fc, NULL, FLEET_OP_WAIT_US, &e) == 0) {
        (void)fleet_pause_all(w.fc, &req, clock_after_us(FLEET_STEP_US), NULL, &results, &e);
        fleet_pause_unlock(w.fc);
    }
}

static void resume_all(void)
{
    fleet_results_auto results = {0};
    struct err e = {0};
    bool was;

    (void)fleet_resume_all(w.fc, false, &results, &was, &e);
}

/* The end of the lease of an update that its trainer has left open. */
static void expire(void)
{
    struct fleet_session *s = fleet_open_session(w.fc);
    bool over;

    if (s == NULL)
        return;
    w.now_us += (uint64_t)(s->lease.length_s + 1) * 1000000;
    mtx_lock(&w.fc->lock);
    over = fleet_lease_expired_locked(s);
    mtx_unlock(&w.fc->lock);
    if (over)
        fleet_expire_update(w.fc, s);
    fleet_unref(w.fc, s);
}

/* ---- its begin and its end ---- */

static void world_begin(unsigned seed)
{
    memset(&w, 0, sizeof w);
    w.seed = seed;
    w.traced = getenv("BATON_SEED") != NULL;
    w.random = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 8; i++)
        (void)draw(2);
    w.now_us = 1000000;
    assert_int_equal(pthread_mutex_init(&w.lock, NULL), 0);
    assert_int_equal(pthread_cond_init(&w.changed, NULL), 0);
}

static void world_open(size_t n_engines, size_t min_ready, bool recomputes)
{
    const struct upstream_config *configs[ENGINES_MAX];
    struct fleet_cfg cfg = {.n_upstreams = n_engines,
                            .configs = configs,
                            .min_ready = min_ready,
                            .n_permits = {9, 9},
                            .n_queue_max = {9, 9}};
    struct fleet_control_cfg control = {.update_us = 60000000, .recomputes = recomputes};
    struct err e = {0};

    w.n_engines = n_engines;
    for (size_t i = 0; i < n_engines; i++) {
        w.configs[i].url = engine_names[i];
        configs[i] = &w.configs[i];
    }
    assert_int_equal(fleet_new(&w.fleet, &cfg, &e), 0);
    assert_int_equal(fleet_control_new(&w.fc, &control, &e), 0);
}

static void engine_start(struct engine *g, enum upstream_kind kind)
{
    g->kind = w.configs[g - w.engines].kind = kind;
    g->knows_start = kind != UPSTREAM_SGLANG || chance(50);
    (void)snprintf(g->label, sizeof g->label, "v0");
}

static void world_fini(void)
{
    fleet_control_free(w.fc);
    fleet_free(w.fleet);
    (void)pthread_cond_destroy(&w.changed);
    (void)pthread_mutex_destroy(&w.lock);
}

#endif
