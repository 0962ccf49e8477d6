/* Rejected: preemption and growing reservations. A sequence that was admitted can always finish,
 * so nothing is ever recomputed and no output depends on who else was there. */
#include "engine/embedded/scheduler.h"

#include "base/clock.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whose logits a row's are. */
struct want {
    struct seq *q;
    uint32_t pos;
};

struct scheduler {
    struct scheduler_cfg cfg;
    struct seq **running; /* owned array [n_running_max], in order of admission; owned sequences */
    uint32_t n_running;
    struct seq *waiting, **waiting_end; /* owned FIFO */
    uint32_t n_waiting;

    struct model_row *rows; /* owned; [n_rows_max] */
    struct want *wants;     /* owned; [n_rows_max] */
    float *logits;          /* owned; [n_rows_max, vocab_size]; pages come when rows want them */
    uint32_t n_rows, n_wants;
    struct sampler *sampler;           /* owned */
    char label[VERSION_LABEL_MAX + 1]; /* of the version of this step */

    struct engine_stats stats;
};

static int scheduler_alloc(struct scheduler *s, struct err *e)
{
    const struct scheduler_cfg *cfg = &s->cfg;

    s->running = calloc(cfg->n_running_max, sizeof(struct seq *));
    s->rows = calloc(cfg->n_rows_max, sizeof *s->rows);
    s->wants = calloc(cfg->n_rows_max, sizeof *s->wants);
    s->logits = calloc((size_t)cfg->n_rows_max * cfg->vocab_size, sizeof *s->logits);
    if (s->running == NULL || s->rows == NULL || s->wants == NULL || s->logits == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for steps of %u rows", cfg->n_rows_max);
    return sampler_new(&s->sampler, cfg->vocab_size, e);
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
    free(s->logits);
    sampler_free(s->sampler);
    free(s);
}

void scheduler_push(struct scheduler *s, struct seq *q)
{
    q->next = NULL;
    *s->waiting_end = q;
    s->waiting_end = &q->next;
    s->n_waiting++;
}

static struct seq *pop_waiting(struct scheduler *s)
{
    struct seq *q = s->waiting;

    s->waiting = q->next;
    if (s->waiting == NULL)
        s->waiting_end = &s->waiting;
    s->n_waiting--;
    return q;
}

/* The last thing that happens to a sequence; it is in no list any more. */
static void end(struct scheduler *s, struct seq *q)
{
    struct gen_record *rec = q->rec;

    assert(rec->out.finish != GEN_RUNNING);
    kv_release(&q->kv);
    s->stats.n_finished[rec->out.finish]++;
    s->cfg.retire(s->cfg.retire_arg, q);
    q->rec = NULL; /* the sink's, or freed, when this returns */
    gen_record_done(rec, q->req.sink, q->req.sink_arg);
    seq_free(q);
}

/* Tells the sink of new tokens. */
static void report(struct seq *q)
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
        end(s, q);
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
            end(s, q);
    }
}

/* Marks what `fn` says has ended, in the batch and in the queue, and ends it. */
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

/* With nothing running the whole pool is free, and seq_new saw to it that the sequence fits: then
 * it is the memory for the chunk list that is missing, and waiting would be for ever. */
static void admit(struct scheduler *s)
{
    struct err e = {0};
    struct seq *q;

    while (s->n_waiting > 0 && s->n_running < s->cfg.n_running_max) {
        q = s->waiting;
        if (kv_reserve(&q->kv, s->cfg.kv, q->n_kv)) {
            s->running[s->n_running++] = pop_waiting(s);
            continue;
        }
        if (s->n_running > 0)
            return;
        (void)err_set(&e, ERR_NO_MEMORY, "", "no memory for the kv cache of %u tokens", q->n_kv);
        seq_fail(q, &e);
        end(s, pop_waiting(s));
        err_clear(&e);
    }
}

static uint32_t n_known(const struct seq *q)
{
    return q->req.n_prompt + q->rec->out.n_tokens;
}

static void add_rows(struct scheduler *s, struct seq *q, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pos = q->n_fed + i;
        bool want = seq_wants_logits(q, pos);

        s->rows[s->n_rows++] = (struct model_row){
            .token = seq_token(q, pos), .pos = pos, .kv = &q->kv, .want_logits = want};
        if (want)
            s->wants[s->n_wants++] = (struct want){.q = q, .pos = pos};
    }
    if (q->n_fed < q->req.n_prompt)
        s->stats.n_prompt_tokens += n;
    q->n_fed += n;
}

/* Chooses the rows of the next step. */
static void compose(struct scheduler *s)
{
    s->n_rows = 0;
    s->n_wants = 0;
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->n_fed >= s->running[i]->req.n_prompt)
            add_rows(s, s->running[i], 1);
    for (uint32_t i = 0; i < s->n_running && s->n_rows < s->cfg.n_rows_max; i++) {
        struct seq *q = s->running[i];
        uint32_t room = s->cfg.n_rows_max - s->n_rows, left = n_known(q) - q->n_fed;

        if (q->n_fed < q->req.n_prompt)
            add_rows(s, q, left < room ? left : room);
    }
}

static void make_span_room(struct scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct err e = {0};

        if (gen_record_span_room(s->running[i]->rec, &e) != 0)
            seq_fail(s->running[i], &e);
    }
    end_finished(s);
}

/* Everything but the forward pass happens without the pin: an in_place update waits for it. */
static void step(struct scheduler *s, const struct version *v, uint64_t begin_us)
{
    struct seq_step made = {.serial = v->serial, .label = s->label};
    uint32_t n_tokens;
    uint64_t us;

    compose(s);
    (void)snprintf(s->label, sizeof s->label, "%s", v->label);
    model_step(s->cfg.model, v, s->rows, s->n_rows, s->logits);
    store_unpin(s->cfg.store, v);
    made.now_us = clock_now_us();
    for (uint32_t i = 0; i < s->n_wants; i++) {
        struct seq *q = s->wants[i].q;

        n_tokens = q->rec->out.n_tokens;
        seq_take_logits(q, s->wants[i].pos, s->logits + (size_t)i * s->cfg.vocab_size, s->sampler,
                        &made);
        s->stats.n_generated_tokens += q->rec->out.n_tokens - n_tokens;
    }
    us = clock_now_us() - begin_us;
    s->stats.n_steps++;
    s->stats.step_us_max = us > s->stats.step_us_max ? us : s->stats.step_us_max;
}

enum scheduler_turn scheduler_turn(struct scheduler *s)
{
    const struct version *v;
    struct err e = {0};

    admit(s);
    make_span_room(s);
    if (s->n_running == 0)
        return s->n_waiting == 0 ? SCHEDULER_IDLE : SCHEDULER_STEPPED;
    if (store_pin(s->cfg.store, &v, &e) != 0) {
        if (e.code == ERR_CONFLICT)
            return SCHEDULER_FROZEN;
        end_where(s, seq_fail, &e);
        return SCHEDULER_STEPPED;
    }
    step(s, v, clock_now_us());
    for (uint32_t i = 0; i < s->n_running; i++)
        report(s->running[i]);
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
    out->kv_tokens_max = kv_pool_tokens_max(s->cfg.kv);
}
