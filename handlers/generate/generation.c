/* The life of a generation, from its ticket to its reply. The header says which thread runs what.
 *
 * n_pending counts what may still call back. The submitter holds one until the last sequence is
 * submitted, so that an early end cannot finish a request that is only half submitted. The thread
 * that brings it to 0 gives the permit back first, then schedules the reply. */
#include "handlers/generate/generation_priv.h"

#include "base/clock.h"
#include "base/log.h"
#include "control/metrics.h"
#include "control/pause_controller.h"
#include "control/unread.h"
#include "engine/generation.h"
#include "handlers/generate/generation_reply.h"
#include "handlers/reply.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void generation_work(void *arg);

void generation_init(struct generation *g, struct app *app, struct http_request *x,
                     const struct generation_ops *ops, struct workers *pool)
{
    assert(ops->finish != NULL && ops->free != NULL);
    mtx_init(&g->lock, MTX_GENERATION);
    g->n_refs = 1;
    g->n_pending = 1;
    g->app = app;
    g->x = x;
    g->began_us = x->began_us;
    g->ops = ops;
    g->pool = pool;
    g->work = (struct job){.run = generation_work, .arg = g};
    g->logprobs_at = "/logprobs";
    g->prompt_logprobs_at = "/prompt_logprobs";
    g->routes_start_at = "/routed_experts_prompt_start";
    g->prompt_logprobs_times = 1;
    generate_params_init(&g->params);
    g->params.gen.logprobs_mode = app->settings.logprobs_mode;
    g->on_update = app->settings.on_update;
    g->entry.arrival = x->arrival;
}

void generation_fini(struct generation *g)
{
    for (uint32_t i = 0; i < g->n_seqs; i++)
        gen_output_free(g->seqs[i].out);
    free(g->seqs);
    for (uint32_t i = 0; i < g->n_prompts; i++)
        free(g->prompts[i].ids);
    free(g->prompts);
    generate_params_fini(&g->params);
    free(g->lora);
    unread_give(&g->n_unread);
    assert(g->use == NULL);
    mtx_fini(&g->lock);
}

static void generation_ref(struct generation *g)
{
    mtx_lock(&g->lock);
    g->n_refs++;
    mtx_unlock(&g->lock);
}

void generation_unref(struct generation *g)
{
    bool last;

    if (g == NULL)
        return;
    mtx_lock(&g->lock);
    last = --g->n_refs == 0;
    mtx_unlock(&g->lock);
    if (!last)
        return;
    generations_remove(g->app->generate->generations, &g->entry);
    g->ops->free(g);
}

const char *generation_model(const struct generation *g)
{
    return g->lora != NULL ? g->lora : g->app->generate->model_name;
}

void generation_fail(struct generation *g, const struct err *e)
{
    reply_error(g->x, e, NULL);
    g->x = NULL;
    generation_unref(g);
}

static void post_work(struct generation *g)
{
    struct err stopping = {0};

    /* The pool stops before its generations only when the process ends: answer from here. */
    if (workers_post(g->pool, &g->work, WORKERS_URGENT, &stopping) != 0)
        generation_work(g);
}

/* Makes the work job run, now or once more. */
void generation_schedule_work(struct generation *g, bool ended)
{
    bool post;

    mtx_lock(&g->lock);
    g->ended = g->ended || ended;
    g->job_rerun = true;
    g->awaits_client = false;
    post = !g->job_posted;
    g->job_posted = true;
    mtx_unlock(&g->lock);
    if (post)
        post_work(g);
}

static void generation_fail_disconnected(void *arg)
{
    struct err e = {0};

    (void)err_set(&e, ERR_GONE, "", "the client disconnected while its request was queued");
    generation_fail(arg, &e);
}

static void cancel_locked(struct generation *g)
{
    struct engine *en = g->app->generate->engine;

    mtx_assert_held(&g->lock);
    g->stopped = true;
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        if (g->seqs[i].id != 0)
            en->ops->cancel(en, g->seqs[i].id);
    }
}

void generation_cancel(struct generation *g)
{
    mtx_lock(&g->lock);
    cancel_locked(g);
    mtx_unlock(&g->lock);
}

/* The client disconnected. Runs on the HTTP server's thread with MTX_HTTP_REQUEST held, so it must
 * not answer. */
static void generation_on_disconnect(void *arg)
{
    struct generation *g = arg;
    struct err e = {0};
    bool entered, awaits_client;

    mtx_lock(&g->lock);
    g->client_disconnected = true;
    cancel_locked(g);
    entered = g->entered;
    awaits_client = g->awaits_client;
    mtx_unlock(&g->lock);
    if (awaits_client)
        generation_schedule_work(g, false);
    if (!entered || !admission_cancel(g->app->generate->admission, &g->ticket))
        return;
    g->step = (struct job){.run = generation_fail_disconnected, .arg = g};
    if (workers_post(g->app->generate_executor, &g->step, WORKERS_URGENT, &e) != 0)
        log_line(LOG_WARN, "generate.left", "a queued request outlived its pool: %s", e.msg);
}

void generation_watch(struct generation *g)
{
    http_request_on_disconnect(g->x, generation_on_disconnect, g);
}

static void record_metrics(const struct generation *g)
{
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        const struct generation_seq *seq = &g->seqs[i];

        if (seq->out == NULL)
            continue;
        metrics_generation(g->app->metrics, g->prompts[seq->prompt].n, seq->out->n_tokens,
                           seq->out->first_token_us, seq->ended_us - seq->submitted_us,
                           gen_finish_name(seq->out->finish));
        if (seq->out->n_spans > 0) /* the first span has the oldest version */
            metrics_token_age(g->app->metrics, seq->out->spans[0].serial);
    }
}

/* Runs on the HTTP server's thread, or on that of the job. */
static void client_drained(void *arg)
{
    generation_schedule_work(arg, false);
}

/* From its end on a generation has no permit, and its outputs may wait for its client: they count
 * as unread. A stream whose client keeps up never gets here. */
static bool hold_outputs(struct generation *g)
{
    uint64_t nbytes = generation_outputs_nbytes(g);
    struct err e = {0};

    if (g->n_unread > 0)
        return true;
    if (g->events_repeat)
        nbytes += generation_text_nbytes(g);
    if (unread_take(g->app->settings.max_unread_nbytes, &g->n_unread, nbytes, &e) == 0)
        return true;
    mtx_lock(&g->lock);
    generation_fail_locked(g, &e);
    mtx_unlock(&g->lock);
    return false;
}

/* Does a stream have to wait until its client has read more? Then the job runs again once it has,
 * or has disconnected; at once if it has read since on_tokens stopped. Meanwhile tokens stay in the
 * engine's output, where they are small. The HTTP server times out a client that reads nothing. */
static bool wait_for_client(struct generation *g, bool ended)
{
    bool waits;

    g->stream_lagged = !g->stream_broken && g->stream_behind;
    if (!g->stream_lagged || (ended && !hold_outputs(g)))
        return false;
    mtx_lock(&g->lock);
    waits = g->awaits_client = !g->client_disconnected && !g->server_stopping;
    mtx_unlock(&g->lock);
    if (!waits)
        g->stream_broken = true;
    else
        http_request_on_drained(g->x, GENERATION_UNSENT_MAX, client_drained, g);
    return waits;
}

static void generation_work(void *arg)
{
    struct generation *g = arg;
    bool ended, more;

    mtx_lock(&g->lock);
    g->job_rerun = false;
    ended = g->ended;
    mtx_unlock(&g->lock);
    g->stream_behind = false;
    if (g->ops->on_tokens != NULL)
        g->ops->on_tokens(g);
    if (!wait_for_client(g, ended) && ended) {
        record_metrics(g);
        g->ops->finish(g);
        generation_unref(g);
        return;
    }
    mtx_lock(&g->lock);
    more = g->job_rerun;
    g->job_posted = more;
    mtx_unlock(&g->lock);
    if (more)
        post_work(g); /* queue behind the other streams */
}

/* One callback fewer is pending. The last one gives the permit back. */
void generation_pending_done(struct generation *g)
{
    bool last;

    mtx_lock(&g->lock);
    assert(g->n_pending > 0);
    last = --g->n_pending == 0;
    mtx_unlock(&g->lock);
    if (!last)
        return;
    if (g->ops->on_tokens == NULL)
        (void)hold_outputs(g); /* a failure is the reply */
    admission_leave(g->app->generate->admission, &g->ticket);
    generations_end(g->app->generate->generations, &g->entry);
    generation_schedule_work(g, true);
}

void generation_fail_locked(struct generation *g, const struct err *e)
{
    mtx_assert_held(&g->lock);
    if (g->err.code == ERR_NONE)
        g->err = *e;
    cancel_locked(g);
}

/* The output that the engine returns for a sequence which ended before its first token. */
static struct gen_output *empty_output(const struct generation_seq *seq, struct err *e)
{
    const struct engine_info *info = &seq->g->app->generate->info;
    bool routed = seq->g->params.gen.routes;
    struct gen_record_cfg cfg = {.n_tokens_max = 1,
                                 .n_prompt = seq->g->prompts[seq->prompt].n,
                                 .logprobs = -1,
                                 .prompt_logprobs = -1,
                                 .n_route_layers = routed ? info->n_route_layers : 0,
                                 .n_routes_per_token = routed ? info->n_routes_per_token : 0};
    struct gen_record *rec;

    if (gen_record_new(&rec, &cfg, e) != 0)
        return NULL;
    rec->out.finish = GEN_ABORT;
    return &rec->out;
}

/* Aborted before it had a permit; it has no ticket in the queue. */
static void generation_abort_queued(void *arg)
{
    struct generation *g = arg;
    uint64_t now_us = clock_now_us();
    struct err e = {0};

    for (uint32_t i = 0; i < g->n_seqs && e.code == ERR_NONE; i++) {
        struct gen_output *out = empty_output(&g->seqs[i], &e);

        mtx_lock(&g->lock);
        g->seqs[i].submitted_us = g->seqs[i].ended_us = now_us;
        g->seqs[i].ended = true;
        g->seqs[i].out = out;
        if (out == NULL)
            generation_fail_locked(g, &e);
        mtx_unlock(&g->lock);
    }
    generations_end(g->app->generate->generations, &g->entry);
    generation_schedule_work(g, true);
}

static void post_abort_queued(struct generation *g)
{
    struct err stopping = {0};

    g->step = (struct job){.run = generation_abort_queued, .arg = g};
    if (workers_post(g->app->generate_executor, &g->step, WORKERS_URGENT, &stopping) != 0)
        generation_abort_queued(g);
}

bool generation_abort(struct generation *g)
{
    struct engine *en = g->app->generate->engine;
    bool entered;

    mtx_lock(&g->lock);
    if (g->ended || g->aborted) {
        mtx_unlock(&g->lock);
        return false;
    }
    g->aborted = true;
    for (uint32_t i = 0; i < g->n_seqs; i++)
        if (g->seqs[i].id != 0)
            en->ops->cancel(en, g->seqs[i].id);
    entered = g->entered;
    mtx_unlock(&g->lock);
    if (entered && admission_cancel(g->app->generate->admission, &g->ticket))
        post_abort_queued(g);
    return true;
}

/* The server stops: end the stream without waiting for a slow client. */
static void generation_cut(void *arg)
{
    struct generation *g = arg;
    bool awaits_client;

    mtx_lock(&g->lock);
    g->server_stopping = true;
    awaits_client = g->awaits_client;
    mtx_unlock(&g->lock);
    if (awaits_client)
        generation_schedule_work(g, false);
}

bool generation_abort_seq(struct generation *g, uint32_t i)
{
    struct generation_seq *seq = &g->seqs[i];
    struct engine *en = g->app->generate->engine;
    bool aborts;

    if (g->n_seqs == 1)
        return generation_abort(g);
    mtx_lock(&g->lock);
    aborts = !g->ended && !g->aborted && !seq->ended && !seq->aborted;
    seq->aborted = true;
    if (aborts && seq->id != 0)
        en->ops->cancel(en, seq->id);
    mtx_unlock(&g->lock);
    return aborts;
}

/* Called in admission_enter, or by the thread that gave its permit back: only posts a job. */
static void generation_granted(void *arg)
{
    struct generation *g = arg;
    struct err stopping = {0};

    g->step = (struct job){.run = generation_start, .arg = g};
    if (workers_post(g->app->generate_executor, &g->step, WORKERS_URGENT, &stopping) != 0)
        generation_start(g);
}

static bool entry_abort(void *arg)
{
    return generation_abort(arg);
}

static const struct generations_ops entry_ops = {.abort = entry_abort,
                                                 .abort_named = generation_abort_named,
                                                 .cut = generation_cut,
                                                 .list = generation_list};

void generation_announce(struct generation *g)
{
    g->entry.ops = &entry_ops;
    g->entry.arg = g;
    generations_add(g->app->generate->generations, &g->entry);
}

void generation_enter(struct generation *g)
{
    struct err e = {0};
    bool client_disconnected, aborted;

    mtx_lock(&g->lock);
    g->prepared = true;
    client_disconnected = g->client_disconnected;
    aborted = g->aborted;
    mtx_unlock(&g->lock);
    if (client_disconnected) {
        generation_fail_disconnected(g);
        return;
    }
    if (aborted) {
        generation_abort_queued(g);
        return;
    }
    if (g->app->pause_controller != NULL &&
        pause_controller_allows(g->app->pause_controller, CALL_GENERATE, &e) != 0) {
        generation_fail(g, &e);
        return;
    }
    generation_ref(g); /* if it is granted at once, it may end before admission_enter returns */
    g->ticket = (struct ticket){
        .granted = generation_granted, .arg = g, .arrival = g->entry.arrival};
    if (admission_enter(g->app->generate->admission, &g->ticket, &e) != 0) {
        generation_fail(g, &e);
        generation_unref(g);
        return;
    }
    mtx_lock(&g->lock);
    g->entered = true;
    client_disconnected = g->client_disconnected;
    aborted = g->aborted;
    mtx_unlock(&g->lock);
    /* A disconnect or abort before `entered` was set could not cancel the ticket: do it here. */
    if ((client_disconnected || aborted) &&
        admission_cancel(g->app->generate->admission, &g->ticket)) {
        if (client_disconnected)
            generation_fail_disconnected(g);
        else
            post_abort_queued(g);
    }
    generation_unref(g);
}

bool generation_failed(struct generation *g, struct err *why)
{
    bool client_disconnected;

    if (why->code != ERR_NONE)
        return true;
    mtx_lock(&g->lock);
    client_disconnected = g->client_disconnected;
    if (!client_disconnected && g->err.code != ERR_NONE)
        *why = g->err;
    mtx_unlock(&g->lock);
    if (client_disconnected)
        (void)err_set(why, ERR_GONE, "", "the client disconnected");
    return why->code != ERR_NONE;
}

void generation_snapshot(const struct generation_seq *seq, const struct gen_token **tokens,
                         uint32_t *n, struct gen_output **out)
{
    mtx_lock(&seq->g->lock);
    *tokens = seq->tokens;
    *n = seq->n_tokens;
    *out = seq->out;
    mtx_unlock(&seq->g->lock);
}
