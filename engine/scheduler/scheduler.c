/* Rejected: preemption and growing reservations. A sequence that was admitted can always finish,
 * so nothing is ever recomputed and no output depends on which other sequences ran. Only one that
 * has to compute its KV again may wait for room, because it shared some of it before. */
#include "engine/scheduler/scheduler.h"

#include "base/clock.h"
#include "engine/lora/adapter_use.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sequence and position of a row of logits, and the version that made them. */
struct want {
    struct seq *q;
    uint32_t pos;
    const struct version *version; /* pinned */
};

struct scheduler {
    struct scheduler_cfg cfg;
    struct seq **running; /* owned array [n_running_max], in order of admission; owned sequences */
    uint32_t n_running;
    struct seq *waiting, **waiting_end; /* owned FIFO */
    uint32_t n_waiting;

    struct model_row *rows; /* owned; [n_rows_max] */
    struct want *wants;     /* owned; [n_rows_max] */
    float *logits;          /* owned; [n_rows_max, vocab_size]; pages are allocated at first use */
    uint32_t n_rows, n_wants;
    struct choice *choices;          /* owned; [n_rows_max]; of the wants */
    struct token_selector *selector; /* owned */

    struct engine_stats stats;
};

static int scheduler_alloc(struct scheduler *s, struct err *e)
{
    const struct scheduler_cfg *cfg = &s->cfg;

    s->running = calloc(cfg->n_running_max, sizeof(struct seq *));
    s->rows = calloc(cfg->n_rows_max, sizeof *s->rows);
    s->wants = calloc(cfg->n_rows_max, sizeof *s->wants);
    s->choices = calloc(cfg->n_rows_max, sizeof *s->choices);
    s->logits = calloc((size_t)cfg->n_rows_max * cfg->vocab_size, sizeof *s->logits);
    if (s->running == NULL || s->rows == NULL || s->wants == NULL || s->choices == NULL ||
        s->logits == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for steps of %u rows", cfg->n_rows_max);
    return token_selector_new(&s->selector, model_compute(cfg->model), cfg->vocab_size,
                              cfg->n_rows_max, e);
}

int scheduler_new(struct scheduler **out, const struct scheduler_cfg *cfg, struct err *e)
{
    struct scheduler *s = calloc(1, sizeof *s);

    assert(cfg->n_running_max >= 1 && cfg->n_running_max <= cfg->n_rows_max);
    if (s == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the scheduler");
    s->cfg = *cfg;
    s->waiting_end = &s->waiting;
    if (scheduler_alloc(s, e) != 0) {
        scheduler_free(s);
        return -1;
    }
    *out = s;
    return 0;
}

void scheduler_free(struct scheduler *s)
{
    if (s == NULL)
        return;
    assert(s->n_running == 0 && s->n_waiting == 0);
    free(s->running);
    free(s->rows);
    free(s->wants);
    free(s->choices);
    free(s->logits);
    token_selector_free(s->selector);
    free(s);
}

void scheduler_push(struct scheduler *s, struct seq *q)
{
    q->next = NULL;
    *s->waiting_end = q;
    s->waiting_end = &q->next;
    s->n_waiting++;
}

/* Takes the sequence out of the list that *at points to. */
static struct seq *take_waiting(struct scheduler *s, struct seq **at)
{
    struct seq *q = *at;

    *at = q->next;
    if (*at == NULL)
        s->waiting_end = at;
    s->n_waiting--;
    return q;
}

static void let_go(struct scheduler *s, const struct version *v)
{
    if (v != NULL && store_unpin_deferred(s->cfg.store, v))
        free_queue_reap(s->cfg.free_queue);
}

/* Pins the version for the sequence, and unpins the one that it had. */
static void version_hold(struct scheduler *s, struct seq *q, const struct version *v)
{
    store_pin_again(s->cfg.store, v);
    let_go(s, q->version);
    q->version = v;
}

static void version_unhold(struct scheduler *s, struct seq *q)
{
    let_go(s, q->version);
    q->version = NULL;
}

/* Ends a sequence that is in no list. Its KV is released before the sink is notified. */
static void running_end(struct scheduler *s, struct seq *q)
{
    struct gen_record *rec = q->rec;

    assert(rec->out.finish != GEN_RUNNING);
    version_unhold(s, q);
    kv_give_back(&q->kv);
    s->stats.n_finished[rec->out.finish]++;
    s->cfg.retire(s->cfg.retire_arg, q);
    q->rec = NULL; /* owned by the sink, unless `done` does not take it */
    if (!gen_record_tell(rec, q->req.sink, q->req.sink_arg))
        q->rec = rec;
    free_queue_add(s->cfg.free_queue, q);
}

/* Passes new tokens to the sink. */
static void running_report(struct seq *q)
{
    const struct gen_output *out = &q->rec->out;
    uint32_t first = q->n_reported;

    q->n_reported = out->n_tokens;
    if (out->n_tokens > first && q->req.sink->tokens != NULL)
        q->req.sink->tokens(q->req.sink_arg, out, first);
}

/* Takes the sequences that have ended out of the batch, then ends them. */
static void end_finished(struct scheduler *s)
{
    struct seq *ended = NULL, **ended_end = &ended, *q;
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_running; i++) {
        q = s->running[i];
        if (q->rec->out.finish == GEN_RUNNING) {
            s->running[n++] = q;
            continue;
        }
        q->next = NULL;
        *ended_end = q;
        ended_end = &q->next;
    }
    s->n_running = n;
    while ((q = ended) != NULL) {
        ended = q->next;
        running_end(s, q);
    }
}

static void end_waiting_finished(struct scheduler *s)
{
    struct seq *all = s->waiting, *q;

    s->waiting = NULL;
    s->waiting_end = &s->waiting;
    s->n_waiting = 0;
    for (q = all; q != NULL; q = all) {
        all = q->next;
        if (q->rec->out.finish == GEN_RUNNING)
            scheduler_push(s, q);
        else
            running_end(s, q);
    }
}

/* Calls `fn` for every sequence, in the batch and in the queue, and ends those that it finished. */
static void end_where(struct scheduler *s, void (*fn)(struct seq *q, const struct err *e),
                      const struct err *e)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        fn(s->running[i], e);
    for (struct seq *q = s->waiting; q != NULL; q = q->next)
        fn(q, e);
    end_finished(s);
    end_waiting_finished(s);
}

static void mark_cancelled(struct seq *q, const struct err *e)
{
    (void)e;
    if (atomic_load_explicit(&q->cancelled, memory_order_relaxed))
        q->rec->out.finish = GEN_ABORT;
}

static void mark_abort(struct seq *q, const struct err *e)
{
    (void)e;
    q->rec->out.finish = GEN_ABORT;
}

void scheduler_reap(struct scheduler *s)
{
    end_where(s, mark_cancelled, NULL);
}

void scheduler_abort(struct scheduler *s)
{
    end_where(s, mark_abort, NULL);
}

void scheduler_freeze(struct scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->req.on_update == GEN_ON_UPDATE_RECOMPUTE)
            version_unhold(s, s->running[i]);
}

void scheduler_kv_forget(struct scheduler *s, bool running)
{
    kv_pool_forget(s->cfg.kv);
    for (uint32_t i = 0; i < s->n_running && running; i++)
        seq_forget_kv(s->running[i]);
}

uint64_t scheduler_kv_release(struct scheduler *s)
{
    scheduler_kv_forget(s, true);
    return kv_pool_release(s->cfg.kv);
}

void scheduler_kv_restore(struct scheduler *s)
{
    kv_pool_restore(s->cfg.kv);
}

/* The version that it reads in this step; NULL: there is none, it waits. */
static const struct version *scheduler_version_of(const struct seq *q, const struct version *served)
{
    return q->version != NULL ? q->version : served;
}

/* What a sequence may find in the KV cache. The KV of the last token of its prompt, or what comes
 * before a row that it has to report, is not enough: such rows are computed. */
static struct kv_prefix prefix_of(const struct seq *q, uint64_t serial)
{
    struct kv_prefix p = {.key = {.serial = serial}, .tokens = q->req.prompt};

    memcpy(p.key.scope, q->kv_scope, sizeof p.key.scope);
    p.n_tokens = seq_may_share(q) ? q->req.n_prompt - 1 : 0;
    return p;
}

/* Is some running sequence about to compute what this one could share instead of computing it at
 * the same time? It waits for as much as half of its own work, or a chunk. */
static bool shared_soon(const struct scheduler *s, const struct seq *q,
                        const struct kv_prefix *prefix)
{
    uint32_t have = kv_find(s->cfg.kv, prefix);

    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct seq *r = s->running[i];
        uint32_t same = 0,
                 n = prefix->n_tokens < r->req.n_prompt ? prefix->n_tokens : r->req.n_prompt;

        if (r->kv.n_chunks == 0 || r->kv.n_told != r->n_fed || r->n_fed >= n ||
            !kv_keys_equal(&r->kv.key, &prefix->key))
            continue;
        while (same < n && r->req.prompt[same] == prefix->tokens[same])
            same++;
        if (same >= have + KV_CHUNK || (same > have && 2 * (same - have) >= q->req.n_prompt - have))
            return true;
    }
    return false;
}

/* Reserves the KV of a sequence that has none, and takes over what is there already. Returns false
 * if it has to wait. When no other has KV the whole pool is free, and seq_new has checked that it
 * fits. */
static bool scheduler_seat(struct scheduler *s, struct seq *q, const struct version *v)
{
    struct kv_prefix prefix = prefix_of(q, v->serial);

    if (!s->cfg.shares_kv) {
        if (!kv_take(&q->kv, s->cfg.kv, NULL))
            return false;
    } else if (shared_soon(s, q, &prefix) || !kv_take(&q->kv, s->cfg.kv, &prefix)) {
        return false;
    }
    q->n_fed = q->kv.n_found;
    q->kv_serial = v->serial;
    if (q->rec->out.n_tokens == 0)
        q->rec->out.n_cached = q->kv.n_found;
    return true;
}

/* First come, first served, those that lost their KV before all that wait. What could not go on,
 * because it has no weights, is in nobody's way. */
static void queue_admit(struct scheduler *s, const struct version *served)
{
    struct seq **at = &s->waiting, *q;

    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct version *v = scheduler_version_of(s->running[i], served);

        if (s->running[i]->kv.n_chunks == 0 && v != NULL && !scheduler_seat(s, s->running[i], v))
            return;
    }
    while ((q = *at) != NULL && s->n_running < s->cfg.n_running_max) {
        const struct version *v = scheduler_version_of(q, served);

        if (v == NULL) {
            at = &q->next;
            continue;
        }
        if (!scheduler_seat(s, q, v))
            return;
        s->running[s->n_running++] = take_waiting(s, at);
    }
}

/* The served version may have a new name now, or be another one. A sequence that has computed
 * nothing of its KV yet does not begin with that of older weights. */
static void meet_served(struct scheduler *s, struct seq *q, const struct version *served)
{
    if (q->version != NULL && q->version != served && q->version->serial == served->serial)
        version_hold(s, q, served); /* only the label changed: not an update */
    if (q->version != NULL || q->kv.n_chunks == 0 || q->kv_serial == served->serial)
        return;
    if (q->n_fed == q->kv.n_found) {
        kv_give_back(&q->kv);
        q->n_fed = 0;
    } else if (q->req.on_update == GEN_ON_UPDATE_RECOMPUTE) {
        seq_forget_kv(q);
    }
}

static void meet_all(struct scheduler *s, const struct version *served)
{
    if (served == NULL)
        return;
    kv_pool_serve(s->cfg.kv, served->serial);
    for (uint32_t i = 0; i < s->n_running; i++)
        meet_served(s, s->running[i], served);
}

/* Can it be computed in this step? */
static bool scheduler_goes(const struct seq *q, const struct version *served)
{
    return q->kv.n_chunks > 0 && scheduler_version_of(q, served) != NULL;
}

/* Assigns the rows of the next step: one to each sequence that decodes, the rest to those that have
 * more than one token to feed, first come first served. Returns: how many. */
static uint32_t deal_rows(struct scheduler *s, const struct version *served)
{
    uint32_t n_rows = 0;

    for (uint32_t i = 0; i < s->n_running; i++) {
        struct seq *q = s->running[i];

        q->n_step = scheduler_goes(q, served) && q->rec->out.n_tokens > 0 &&
                    q->n_fed + 1 == seq_n_known(q);
        n_rows += q->n_step;
    }
    for (uint32_t i = 0; i < s->n_running && n_rows < s->cfg.n_rows_max; i++) {
        struct seq *q = s->running[i];
        uint32_t room = s->cfg.n_rows_max - n_rows, left = seq_n_known(q) - q->n_fed;

        if (q->n_step > 0 || !scheduler_goes(q, served))
            continue;
        q->n_step = left < room ? left : room;
        n_rows += q->n_step;
    }
    return n_rows;
}

/* Of what begins with this step: each token of a prompt is counted once, as found or computed. */
static void count_found(struct scheduler *s, const struct seq *q)
{
    if (q->n_fed != q->kv.n_found)
        return;
    if (q->n_lost == 0 && s->cfg.shares_kv && seq_may_share(q))
        s->stats.n_prefix_queried_tokens += q->req.n_prompt;
    if (q->kv.n_found > q->n_lost)
        s->stats.n_prefix_found_tokens += q->kv.n_found - q->n_lost;
}

/* Pins the served version for sequences that begin with it and must stay on it. */
static void hold_begun(struct scheduler *s, const struct version *served)
{
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct seq *q = s->running[i];

        if (q->n_step == 0)
            continue;
        count_found(s, q);
        if (q->version == NULL &&
            (q->req.on_update == GEN_ON_UPDATE_FINISH || q->n_rebuilds >= SEQ_REBUILDS_MAX))
            version_hold(s, q, served);
    }
}

static void count_row(struct scheduler *s, const struct seq *q, uint32_t pos)
{
    if (pos < q->n_lost)
        s->stats.n_recomputed_tokens++;
    else if (pos < q->req.n_prompt)
        s->stats.n_prompt_tokens++;
}

static void add_rows(struct scheduler *s, struct seq *q, const struct version *v)
{
    const struct adapter *adapter = q->req.adapter != NULL ? adapter_use_adapter(q->req.adapter)
                                                           : NULL;

    for (; q->n_step > 0; q->n_step--) {
        uint32_t pos = q->n_fed++;
        bool want = seq_wants_logits(q, pos);

        s->rows[s->n_rows++] = (struct model_row){.token = seq_token(q, pos),
                                                  .pos = pos,
                                                  .kv = &q->kv,
                                                  .want_logits = want,
                                                  .adapter = adapter,
                                                  .routes = gen_record_routes(q->rec, pos)};
        if (v->serial == q->kv_serial)
            kv_tell(&q->kv, pos, seq_token(q, pos));
        if (want)
            s->wants[s->n_wants++] = (struct want){.q = q, .pos = pos, .version = v};
        count_row(s, q, pos);
    }
}

/* The rows of one version: those of sequence `from` and of all behind it that read the same. */
static void compute_group(struct scheduler *s, uint32_t from, const struct version *served)
{
    const struct version *v = scheduler_version_of(s->running[from], served);
    uint32_t first = s->n_rows, first_want = s->n_wants;

    for (uint32_t i = from; i < s->n_running; i++)
        if (s->running[i]->n_step > 0 && scheduler_version_of(s->running[i], served) == v)
            add_rows(s, s->running[i], v);
    model_step(s->cfg.model, v, s->rows + first, s->n_rows - first,
               s->logits + (size_t)first_want * s->cfg.vocab_size);
}

static void take_want(struct scheduler *s, uint32_t i, uint64_t now_us)
{
    const struct want *w = &s->wants[i];
    struct seq_step made = {
        .serial = w->version->serial, .name = w->version->name, .now_us = now_us};
    struct seq *q = w->q;
    uint32_t n_tokens = q->rec->out.n_tokens;

    seq_take(q, w->pos, &s->choices[i], &made);
    if (!s->choices[i].finite && seq_blames(q, made.serial) &&
        made.serial > s->stats.failing_serial)
        s->stats.failing_serial = made.serial;
    if (q->rec->out.n_tokens == n_tokens)
        return;
    s->stats.n_generated_tokens++;
    q->n_rebuilds = 0;
}

static void tokens_choose(struct scheduler *s)
{
    for (uint32_t i = 0; i < s->n_wants; i++) {
        seq_ask(s->wants[i].q, s->wants[i].pos, &s->choices[i]);
        s->choices[i].logits = s->logits + (size_t)i * s->cfg.vocab_size;
    }
    token_selector_run(s->selector, s->choices, s->n_wants);
}

/* The names of spans come from pinned versions, so the pins last until all tokens are taken. */
static void scheduler_step(struct scheduler *s, const struct version *served)
{
    uint64_t begin_us = clock_now_us(), us;

    s->n_rows = 0;
    s->n_wants = 0;
    hold_begun(s, served);
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->n_step > 0)
            compute_group(s, i, served);
    us = clock_now_us();
    tokens_choose(s);
    for (uint32_t i = 0; i < s->n_wants; i++)
        take_want(s, i, us);
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->req.on_update != GEN_ON_UPDATE_FINISH && s->running[i]->n_rebuilds == 0)
            version_unhold(s, s->running[i]);
    us = clock_now_us() - begin_us;
    s->stats.n_steps++;
    s->stats.step_us_max = us > s->stats.step_us_max ? us : s->stats.step_us_max;
}

enum scheduler_turn scheduler_turn(struct scheduler *s)
{
    const struct version *served = NULL;
    struct err e = {0};

    if (s->n_running == 0 && s->n_waiting == 0)
        return SCHEDULER_IDLE;
    (void)store_pin(s->cfg.store, &served, &e); /* asleep: sequences wait; see submit */
    meet_all(s, served);
    queue_admit(s, served);
    if (deal_rows(s, served) == 0) {
        let_go(s, served);
        return served == NULL ? SCHEDULER_FROZEN : SCHEDULER_STEPPED;
    }
    scheduler_step(s, served);
    let_go(s, served);
    for (uint32_t i = 0; i < s->n_running; i++)
        running_report(s->running[i]);
    end_finished(s);
    return SCHEDULER_STEPPED;
}

void scheduler_stats(const struct scheduler *s, struct engine_stats *out)
{
    uint64_t heartbeat_us = out->heartbeat_us;

    *out = s->stats;
    out->heartbeat_us = heartbeat_us;
    out->n_running = s->n_running;
    out->n_waiting = s->n_waiting;
    out->kv_tokens_used = kv_pool_tokens_used(s->cfg.kv);
    out->kv_tokens_kept = kv_pool_tokens_kept(s->cfg.kv);
    out->kv_tokens_max = kv_pool_tokens_max(s->cfg.kv);
}
