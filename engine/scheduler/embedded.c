/* The engine thread and its inbox.
 *
 * Submit never waits for a step: the caller's thread checks a request and allocates its memory,
 * then puts it into an inbox that the engine thread empties between steps. Cancel finds the
 * sequence by its id and sets a flag on it; the engine thread removes a sequence from that table,
 * under the lock, before it frees anything of it. */
#include "engine/scheduler/embedded.h"

#include "base/clock.h"
#include "base/mtx.h"
#include "engine/kernels/compute.h"
#include "engine/scheduler/free_queue.h"
#include "engine/scheduler/scheduler.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    LIVE_BUCKETS = 1024, /* of the table of live sequences; a power of two */
    IDLE_TURN_US = 500000,
    FROZEN_TURN_US = 50000
};

struct embedded {
    struct engine base;

    struct mtx lock;                /* rank MTX_ENGINE; guards down to the blank line */
    struct seq *live[LIVE_BUCKETS]; /* borrowed; by id */
    struct seq *inbox, **inbox_end; /* owned FIFO */
    uint32_t n_inbox;
    uint64_t last_id;
    bool draining, stopping, cancelling;
    bool freeze;               /* requested */
    bool frozen;               /* done, until `freeze` is cleared: the thread computes nothing */
    bool kv_unwanted, kv_gone; /* requested; done */
    bool kv_forget, kv_forget_running; /* requested, and not yet done */
    uint64_t kv_nbytes_gone;           /* by the last release */
    struct engine_stats stats;         /* of the last turn */

    struct cnd wake;                  /* with lock: something for the thread to do */
    struct cnd settled;               /* with lock: frozen or kv_gone changed */
    struct store *store;              /* borrowed */
    struct model_config model_config; /* immutable, as all below */
    struct seq_rules rules;
    uint16_t route_layers[MODEL_LAYERS_MAX]; /* the sparse layers */
    const char *model_path;                  /* borrowed */
    struct model *model;                     /* owned */
    struct kv_pool *kv;                      /* owned */
    struct free_queue *free_queue;           /* owned */
    struct scheduler *scheduler;             /* owned; engine thread only */
    pthread_t thread;                        /* owner only */
    bool stopped;                            /* owner only: joined */
};

static struct embedded *embedded_of(struct engine *en)
{
    return (struct embedded *)en;
}

static struct seq **bucket_of_locked(struct embedded *m, uint64_t id)
{
    mtx_assert_held(&m->lock);
    return &m->live[id % LIVE_BUCKETS];
}

/* What submit can check about the weights. A version to generate with may still be missing later;
 * the sequence then ends with that error. */
static int check_weights(struct embedded *m, struct err *e)
{
    const struct version *v;
    struct err why = {0};
    bool frozen, kv_gone;

    mtx_lock(&m->lock);
    frozen = m->freeze;
    kv_gone = m->kv_unwanted;
    mtx_unlock(&m->lock);
    if (kv_gone && !frozen)
        return err_set(e, ERR_ASLEEP, "",
                       "the kv cache is released: wake has to bring it back first");
    if (store_pin(m->store, &v, &why) == 0)
        store_unpin(m->store, v);
    else if (!(why.code == ERR_ASLEEP && frozen)) {
        *e = why;
        return -1;
    }
    return 0;
}

static int embedded_submit(struct engine *en, struct gen_request *r, uint64_t *id, struct err *e)
{
    struct embedded *m = embedded_of(en);
    struct seq *q, **bucket;

    if (check_weights(m, e) != 0)
        return -1;
    if (seq_new(&q, &m->rules, r, e) != 0)
        return -1;
    mtx_lock(&m->lock);
    if (m->draining) {
        mtx_unlock(&m->lock);
        seq_give_back(q, r);
        return err_set(e, ERR_DRAINING, "", "the engine takes no new work: the server is draining");
    }
    q->id = ++m->last_id;
    *id = q->id; /* before `done` can run */
    bucket = bucket_of_locked(m, q->id);
    q->next_live = *bucket;
    *bucket = q;
    *m->inbox_end = q;
    m->inbox_end = &q->next;
    m->n_inbox++;
    cnd_signal(&m->wake);
    mtx_unlock(&m->lock);
    return 0;
}

static void embedded_cancel(struct engine *en, uint64_t id)
{
    struct embedded *m = embedded_of(en);

    mtx_lock(&m->lock);
    for (struct seq *q = *bucket_of_locked(m, id); q != NULL; q = q->next_live) {
        if (q->id != id)
            continue;
        atomic_store_explicit(&q->cancelled, true, memory_order_relaxed);
        m->cancelling = true;
        cnd_signal(&m->wake);
        break;
    }
    mtx_unlock(&m->lock);
}

static int embedded_stats(struct engine *en, uint64_t deadline_us, struct engine_stats *out,
                          struct err *e)
{
    struct embedded *m = embedded_of(en);
    uint64_t pulse_us = model_pulse(m->model);

    if (mtx_lock_by(&m->lock, deadline_us, e) != 0)
        return -1;
    *out = m->stats;
    out->n_waiting += m->n_inbox;
    out->frozen = m->frozen;
    out->kv_released = m->kv_gone;
    mtx_unlock(&m->lock);
    if (pulse_us > out->heartbeat_us)
        out->heartbeat_us = pulse_us;
    return 0;
}

static void embedded_info(struct engine *en, struct engine_info *out)
{
    const struct embedded *m = embedded_of(en);

    *out = (struct engine_info){.model_path = m->model_path,
                                .vocab_size = m->rules.vocab_size,
                                .max_model_len = m->rules.max_model_len,
                                .n_experts = m->model_config.experts.n,
                                .n_route_layers = m->rules.n_route_layers,
                                .n_routes_per_token = m->rules.n_routes_per_token,
                                .n_layers = m->model_config.n_layers,
                                .route_layers = m->route_layers};
}

static int refuse_wait(struct err *e)
{
    return err_set(e, ERR_TIMEOUT, "", "the engine's step did not end in time");
}

static int embedded_freeze(struct engine *en, uint64_t deadline_us, struct err *e)
{
    struct embedded *m = embedded_of(en);
    bool frozen;

    mtx_lock(&m->lock);
    m->freeze = true;
    cnd_signal(&m->wake);
    while (!m->frozen && !m->stopping && !clock_passed(deadline_us))
        (void)cnd_wait(&m->settled, &m->lock, deadline_us);
    frozen = m->frozen || m->stopping;
    if (!frozen)
        m->freeze = false;
    mtx_unlock(&m->lock);
    return frozen ? 0 : refuse_wait(e);
}

static void embedded_thaw(struct engine *en)
{
    struct embedded *m = embedded_of(en);

    mtx_lock(&m->lock);
    m->freeze = false;
    m->frozen = false;
    cnd_signal(&m->wake);
    mtx_unlock(&m->lock);
}

/* Asks the thread to release the KV cache, or to take it again, and waits. The thread does it
 * between two steps. */
static int set_kv(struct embedded *m, bool unwanted, uint64_t deadline_us, uint64_t *nbytes,
                  struct err *e)
{
    bool done;

    mtx_lock(&m->lock);
    m->kv_nbytes_gone = 0;
    m->kv_unwanted = unwanted;
    cnd_signal(&m->wake);
    while (m->kv_gone != unwanted && !m->stopping && !clock_passed(deadline_us))
        (void)cnd_wait(&m->settled, &m->lock, deadline_us);
    done = m->kv_gone == unwanted || m->stopping;
    if (!done)
        m->kv_unwanted = !unwanted;
    *nbytes = m->kv_nbytes_gone;
    mtx_unlock(&m->lock);
    return done ? 0 : refuse_wait(e);
}

static int embedded_kv_release(struct engine *en, uint64_t deadline_us, uint64_t *nbytes,
                               struct err *e)
{
    uint64_t n;

    if (set_kv(embedded_of(en), true, deadline_us, &n, e) != 0)
        return -1;
    *nbytes = n;
    return 0;
}

static int embedded_kv_restore(struct engine *en, uint64_t deadline_us, struct err *e)
{
    uint64_t none;

    return set_kv(embedded_of(en), false, deadline_us, &none, e);
}

/* The thread reads this before it computes again. */
static uint64_t embedded_kv_forget(struct engine *en, bool running)
{
    struct embedded *m = embedded_of(en);
    uint64_t n;

    mtx_lock(&m->lock);
    n = m->stats.kv_tokens_kept;
    m->kv_forget = true;
    m->kv_forget_running |= running;
    cnd_signal(&m->wake);
    mtx_unlock(&m->lock);
    return n;
}

static void embedded_drain(struct engine *en)
{
    struct embedded *m = embedded_of(en);

    mtx_lock(&m->lock);
    m->draining = true;
    mtx_unlock(&m->lock);
}

/* The scheduler's retire: from now on the id is unknown, and no counter includes the sequence. */
static void seq_retire(void *arg, struct seq *q)
{
    struct embedded *m = arg;
    struct seq **at;

    mtx_lock(&m->lock);
    for (at = bucket_of_locked(m, q->id); *at != q; at = &(*at)->next_live)
        assert(*at != NULL);
    *at = q->next_live;
    scheduler_stats(m->scheduler, &m->stats);
    mtx_unlock(&m->lock);
}

/* The beginning of an iteration of the thread. */
struct mail {
    struct seq *first; /* owned */
    bool cancelling, stopping, forget, forget_running;
    bool blocked; /* nothing may be computed now */
};

/* Does the thread compute nothing, whatever waits? */
static bool blocked_locked(const struct embedded *m)
{
    return m->freeze || m->kv_unwanted || m->kv_gone;
}

/* Between two steps: releases the KV cache, or takes it again, as requested. */
static void settle_kv(struct embedded *m, bool unwanted)
{
    uint64_t nbytes = 0;

    if (unwanted)
        nbytes = scheduler_kv_release(m->scheduler);
    else
        scheduler_kv_restore(m->scheduler);
    mtx_lock(&m->lock);
    scheduler_stats(m->scheduler, &m->stats);
    m->kv_gone = unwanted;
    m->kv_nbytes_gone = nbytes;
    cnd_broadcast(&m->settled);
    mtx_unlock(&m->lock);
}

/* Carries out requests to the thread between two steps, and wakes the callers that wait. */
static void commands_settle(struct embedded *m)
{
    bool freezing, unwanted, change;

    mtx_lock(&m->lock);
    freezing = m->freeze && !m->frozen;
    unwanted = m->kv_unwanted;
    change = unwanted != m->kv_gone;
    mtx_unlock(&m->lock);
    if (freezing) {
        scheduler_freeze(m->scheduler);
        mtx_lock(&m->lock);
        scheduler_stats(m->scheduler, &m->stats); /* the waiting thread may read them at once */
        m->frozen = m->freeze;
        cnd_broadcast(&m->settled);
        mtx_unlock(&m->lock);
    }
    if (change)
        settle_kv(m, unwanted);
}

static bool nothing_to_do_locked(const struct embedded *m, bool idle)
{
    return (idle || blocked_locked(m)) && m->inbox == NULL && !m->stopping && !m->cancelling &&
           !m->kv_forget && m->frozen == m->freeze && m->kv_gone == m->kv_unwanted;
}

/* Empties the inbox; with `idle`, waits for an entry first. Updates the heartbeat meanwhile. */
static struct mail inbox_collect(struct embedded *m, bool idle)
{
    struct mail mail;

    mtx_lock(&m->lock);
    scheduler_stats(m->scheduler, &m->stats);
    m->stats.heartbeat_us = clock_now_us();
    while (nothing_to_do_locked(m, idle)) {
        (void)cnd_wait(&m->wake, &m->lock, clock_after_us(IDLE_TURN_US));
        m->stats.heartbeat_us = clock_now_us();
    }
    mail = (struct mail){.first = m->inbox,
                         .cancelling = m->cancelling,
                         .stopping = m->stopping,
                         .forget = m->kv_forget,
                         .forget_running = m->kv_forget_running,
                         .blocked = blocked_locked(m)};
    m->stats.n_waiting += m->n_inbox; /* in no other count until the iteration ends */
    m->inbox = NULL;
    m->inbox_end = &m->inbox;
    m->n_inbox = 0;
    m->cancelling = false;
    m->kv_forget = m->kv_forget_running = false;
    mtx_unlock(&m->lock);
    return mail;
}

static void *engine_main(void *arg)
{
    struct embedded *m = arg;
    enum scheduler_turn turn = SCHEDULER_IDLE;

    (void)pthread_setname_np(pthread_self(), "engine");
    for (;;) {
        struct mail mail;

        commands_settle(m);
        mail = inbox_collect(m, turn == SCHEDULER_IDLE);
        for (struct seq *q = mail.first, *next; q != NULL; q = next) {
            next = q->next;
            scheduler_push(m->scheduler, q);
        }
        if (mail.stopping)
            break;
        if (mail.cancelling)
            scheduler_reap(m->scheduler);
        if (mail.forget)
            scheduler_kv_forget(m->scheduler, mail.forget_running);
        turn = SCHEDULER_STEPPED;
        if (mail.blocked)
            continue;
        turn = scheduler_turn(m->scheduler);
        if (turn == SCHEDULER_FROZEN)
            (void)store_wait_pinnable(m->store, clock_after_us(FROZEN_TURN_US));
    }
    scheduler_abort(m->scheduler);
    return NULL;
}

static void embedded_stop(struct engine *en)
{
    struct embedded *m = embedded_of(en);
    int rc;

    if (m->stopped)
        return;
    m->stopped = true;
    mtx_lock(&m->lock);
    m->draining = true;
    m->stopping = true;
    cnd_signal(&m->wake);
    cnd_broadcast(&m->settled);
    mtx_unlock(&m->lock);
    rc = pthread_join(m->thread, NULL);
    assert(rc == 0);
    (void)rc;
}

static void free_parts(struct embedded *m)
{
    scheduler_free(m->scheduler);
    free_queue_free(m->free_queue);
    kv_pool_free(m->kv);
    model_free(m->model);
}

static void embedded_free(struct engine *en)
{
    struct embedded *m = embedded_of(en);

    if (m == NULL)
        return;
    embedded_stop(en);
    free_parts(m);
    cnd_fini(&m->settled);
    cnd_fini(&m->wake);
    mtx_fini(&m->lock);
    free(m);
}

static const struct engine_ops embedded_ops = {
    .name = "embedded",
    .submit = embedded_submit,
    .cancel = embedded_cancel,
    .stats = embedded_stats,
    .info = embedded_info,
    .freeze = embedded_freeze,
    .thaw = embedded_thaw,
    .kv_release = embedded_kv_release,
    .kv_restore = embedded_kv_restore,
    .kv_forget = embedded_kv_forget,
    .drain = embedded_drain,
    .stop = embedded_stop,
    .free = embedded_free,
};

static uint32_t embedded_at_most(uint32_t n, uint32_t max)
{
    return n < max ? n : max;
}

/* Sequences reserve buffers for it, so that no step has to. */
static int longest_token_text(size_t *out, const struct tokenizer *t, struct err *e)
{
    struct buf text = {0};
    size_t max = 0;
    bool failed;

    for (uint32_t id = 0; t != NULL && id < tokenizer_vocab_size(t); id++) {
        text.len = 0;
        tokenizer_token_text(t, id, &text);
        max = text.len > max ? text.len : max;
    }
    failed = text.failed;
    buf_fini(&text);
    if (failed)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a token's text");
    *out = max;
    return 0;
}

static void list_route_layers(struct embedded *m)
{
    uint32_t n = 0;

    for (uint32_t l = 0; l < m->model_config.n_layers; l++)
        if (model_layer_is_sparse(&m->model_config, l))
            m->route_layers[n++] = (uint16_t)l;
}

static int set_rules(struct embedded *m, const struct embedded_cfg *cfg, struct err *e)
{
    const struct model_config *mc = &m->model_config;

    m->rules = (struct seq_rules){.vocab_size = mc->vocab_size,
                                  .max_model_len = mc->max_position_embeddings,
                                  .kv_tokens_max = kv_pool_tokens_max(m->kv),
                                  .n_route_layers = mc->experts.n_sparse_layers,
                                  .n_routes_per_token = mc->experts.n_per_token,
                                  .n_eos = mc->n_eos,
                                  .tokenizer = cfg->tokenizer};
    if (cfg->max_model_len != 0)
        m->rules.max_model_len = embedded_at_most(cfg->max_model_len, mc->max_position_embeddings);
    memcpy(m->rules.eos, mc->eos, sizeof m->rules.eos);
    return longest_token_text(&m->rules.token_text_max, cfg->tokenizer, e);
}

/* What it made is free_parts's, also after an error. */
static int make_parts(struct embedded *m, const struct embedded_cfg *cfg, struct err *e)
{
    uint32_t n_rows_max = cfg->n_step_tokens_max > 0 ? cfg->n_step_tokens_max : 1;
    struct scheduler_cfg sc = {.store = cfg->store,
                               .vocab_size = m->model_config.vocab_size,
                               .n_rows_max = n_rows_max,
                               .shares_kv = !cfg->no_prefix_cache,
                               .retire = seq_retire,
                               .retire_arg = m};

    if (model_new(&m->model, &m->model_config, store_model_spec(cfg->store), n_rows_max,
                  cfg->n_threads > 0 ? cfg->n_threads : compute_n_processors(), e) != 0)
        return -1;
    if (cfg->adapter_rank_max > 0 && model_take_adapters(m->model, cfg->adapter_rank_max, e) != 0)
        return -1;
    if (kv_pool_new(&m->kv, &m->model_config, cfg->kv_nbytes_max, e) != 0 ||
        free_queue_new(&m->free_queue, cfg->store, e) != 0 || set_rules(m, cfg, e) != 0)
        return -1;
    sc.model = m->model;
    sc.kv = m->kv;
    sc.free_queue = m->free_queue;
    sc.n_running_max = embedded_at_most(cfg->n_running_max > 0 ? cfg->n_running_max : 1,
                                        n_rows_max);
    return scheduler_new(&m->scheduler, &sc, e);
}

int embedded_new(struct engine **out, const struct embedded_cfg *cfg, struct err *e)
{
    struct embedded *m = calloc(1, sizeof *m);
    int rc;

    if (m == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the engine");
    m->base.ops = &embedded_ops;
    m->store = cfg->store;
    m->model_path = cfg->model_path;
    m->model_config = *cfg->model;
    m->inbox_end = &m->inbox;
    list_route_layers(m);
    mtx_init(&m->lock, MTX_ENGINE);
    cnd_init(&m->wake);
    cnd_init(&m->settled);
    if (make_parts(m, cfg, e) != 0)
        goto err_free_parts;
    scheduler_stats(m->scheduler, &m->stats);
    m->stats.heartbeat_us = clock_now_us();
    rc = pthread_create(&m->thread, NULL, engine_main, m);
    if (rc != 0) {
        (void)err_set_errno(e, ERR_INTERNAL, "", rc, "the engine thread could not start");
        goto err_free_parts;
    }
    if (cfg->pin_threads && model_pin(m->model, m->thread, e) != 0) {
        embedded_free(&m->base);
        return -1;
    }
    *out = &m->base;
    return 0;

err_free_parts:
    free_parts(m);
    cnd_fini(&m->settled);
    cnd_fini(&m->wake);
    mtx_fini(&m->lock);
    free(m);
    return -1;
}
