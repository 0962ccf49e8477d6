/* The life of a generation, from its ticket to its reply. The header says which thread runs what.
 *
 * n_pending counts what may still call back. The submitter holds one until the last sequence is
 * submitted, so that an early end cannot finish a request that is only half submitted. The thread
 * that brings it to 0 gives the permit back first, then schedules the reply. */
#include "handlers/generate/generation.h"

#include "base/clock.h"
#include "base/log.h"
#include "control/metrics.h"
#include "control/pause_controller.h"
#include "engine/generation.h"
#include "engine/lora/adapter_use.h"
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
    g->ops = ops;
    g->pool = pool;
    g->work = (struct job){.run = generation_work, .arg = g};
    g->logprobs_at = "/logprobs";
    g->prompt_logprobs_at = "/prompt_logprobs";
    g->prompt_logprobs_times = 1;
    generate_params_init(&g->params);
    g->params.gen.logprobs_mode = app->settings.logprobs_mode;
    g->on_update = app->settings.on_update;
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

static int refuse_model(const struct app_generate *generate, const char *model, struct err *e)
{
    return err_set(e, ERR_NOT_FOUND, "/model",
                   "model '%.160s' is not served here: it is neither '%.160s' nor an adapter that "
                   "is loaded",
                   model, generate->model_name);
}

int generation_check_model(const struct app *app, const char *model, struct err *e)
{
    if (model == NULL || strcmp(model, app->generate->model_name) == 0)
        return 0;
    if (app->generate->adapters != NULL && adapters_has(app->generate->adapters, model))
        return 1;
    return refuse_model(app->generate, model, e);
}

int generation_check_app(const struct app *app, const char *model, struct err *e)
{
    if (app->generate->engine == NULL)
        return err_set(e, ERR_NO_ENGINE, "",
                       "this server holds weights only (--engine none): it cannot generate");
    return generation_check_model(app, model, e) < 0 ? -1 : 0;
}

const char *generation_model(const struct generation *g)
{
    return g->lora != NULL ? g->lora : g->app->generate->model_name;
}

int generation_check_prompt(const struct app *app, size_t n, const char *at, struct err *e)
{
    if (n == 0)
        return err_set(e, ERR_BAD_REQUEST, at, "the prompt has no tokens; at least 1 is needed");
    if (n >= app->generate->max_model_len)
        return err_set(e, ERR_BAD_REQUEST, at,
                       "this model's maximum context length is %u tokens, but the prompt contains "
                       "%zu input tokens, which leaves no room for output: at most %u are allowed",
                       app->generate->max_model_len, n, app->generate->max_model_len - 1);
    return 0;
}

int generation_check_output(const struct app *app, uint32_t n, const char *at, struct err *e)
{
    if (n == GEN_MAX_TOKENS_REST || n <= app->generate->max_model_len)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, at,
                   "max_tokens=%u cannot be greater than max_model_len=%u: request fewer output "
                   "tokens",
                   n, app->generate->max_model_len);
}

int generation_count_seqs(const struct generation *g, const char *at, uint32_t *out, struct err *e)
{
    uint64_t n_seqs = (uint64_t)g->n_prompts * g->params.n;

    if (n_seqs > GENERATION_SEQS_MAX)
        return err_set(e, ERR_BAD_REQUEST, at,
                       "%u prompts with n = %u are %llu sequences; at most %d are allowed",
                       g->n_prompts, g->params.n, (unsigned long long)n_seqs, GENERATION_SEQS_MAX);
    *out = (uint32_t)n_seqs;
    return 0;
}

static int check_logprobs_each(const struct generation *g, const char *at, int32_t k, struct err *e)
{
    if (k <= 0 || (uint64_t)k <= g->app->settings.max_logprobs)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, at,
                   "%d logprobs with each token; at most %llu are allowed (--max-logprobs)", k,
                   (unsigned long long)g->app->settings.max_logprobs);
}

/* Checks how many logprobs the sequences can produce. */
static int check_made_logprobs(const struct generation *g, struct err *e)
{
    const struct gen_params *p = &g->params.gen;
    uint64_t n = 0;

    for (uint32_t i = 0; i < g->n_prompts; i++) {
        uint32_t rest = g->app->generate->max_model_len - g->prompts[i].n;

        n += (uint64_t)g->params.n * (p->max_tokens < rest ? p->max_tokens : rest);
    }
    if (p->logprobs <= 0 || n <= (uint64_t)GENERATION_LOGPROBS_MAX / (uint64_t)p->logprobs)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, g->logprobs_at,
                   "%d logprobs with each of up to %llu tokens; a request may come to %d of them: "
                   "ask for fewer logprobs, fewer tokens or fewer sequences",
                   p->logprobs, (unsigned long long)n, GENERATION_LOGPROBS_MAX);
}

/* Checks how many logprobs of prompts the reply would have; the prompt's own token counts as one.
 */
static int check_prompt_logprobs(const struct generation *g, struct err *e)
{
    int32_t k = g->params.gen.prompt_logprobs;
    uint64_t n = 0;

    for (uint32_t i = 0; i < g->n_prompts; i++)
        if (g->prompts[i].n > g->prompt_logprobs_from)
            n += g->prompts[i].n - g->prompt_logprobs_from;
    n *= g->prompt_logprobs_times;
    if (k < 0 || n <= (uint64_t)GENERATION_PROMPT_LOGPROBS_MAX / (k > 0 ? (uint64_t)k : 1))
        return 0;
    return err_set(e, ERR_BAD_REQUEST, g->prompt_logprobs_at,
                   "%d logprobs with each of %llu tokens of prompts, counted in every choice that "
                   "tells them; an answer may tell %d of them: ask for fewer logprobs, or with "
                   "fewer prompts or a smaller n",
                   k > 0 ? k : 1, (unsigned long long)n, GENERATION_PROMPT_LOGPROBS_MAX);
}

/* Checks all logprob limits before anything is computed. */
static int check_all_logprobs(const struct generation *g, struct err *e)
{
    const struct gen_params *p = &g->params.gen;

    if (check_logprobs_each(g, g->logprobs_at, p->logprobs, e) != 0 ||
        check_logprobs_each(g, g->prompt_logprobs_at, p->prompt_logprobs, e) != 0 ||
        check_made_logprobs(g, e) != 0)
        return -1;
    return check_prompt_logprobs(g, e);
}

int generation_expand(struct generation *g, const char *at, struct err *e)
{
    struct generation_seq *seqs;
    uint64_t n_tokens = 0;
    uint32_t n_seqs = 0;

    if (generation_count_seqs(g, at, &n_seqs, e) != 0)
        return -1;
    for (uint32_t i = 0; i < g->n_prompts; i++)
        n_tokens += (uint64_t)g->prompts[i].n * g->params.n;
    if (n_tokens > GENERATION_PROMPT_TOKENS_MAX)
        return err_set(e, ERR_TOO_LARGE, at,
                       "the prompts of all sequences have %llu tokens; at most %d are allowed",
                       (unsigned long long)n_tokens, GENERATION_PROMPT_TOKENS_MAX);
    if (check_all_logprobs(g, e) != 0)
        return -1;
    seqs = calloc(n_seqs, sizeof *seqs);
    if (seqs == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u sequences", n_seqs);
    for (uint32_t i = 0; i < n_seqs; i++) {
        seqs[i].g = g;
        seqs[i].index = i;
        seqs[i].prompt = i / g->params.n;
        seqs[i].choice = i % g->params.n;
    }
    mtx_lock(&g->lock); /* the disconnect callback may be reading them */
    g->seqs = seqs;
    g->n_seqs = n_seqs;
    mtx_unlock(&g->lock);
    return 0;
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
static void schedule_work(struct generation *g, bool ended)
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

    (void)err_set(&e, ERR_GONE, "", "the client went away before its turn");
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
        schedule_work(g, false);
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

        if (seq->out != NULL)
            metrics_generation(g->app->metrics, g->prompts[seq->prompt].n, seq->out->n_tokens,
                               seq->out->first_token_us, seq->ended_us - seq->submitted_us,
                               gen_finish_name(seq->out->finish));
    }
}

/* Runs on the HTTP server's thread, or on that of the job. */
static void client_drained(void *arg)
{
    schedule_work(arg, false);
}

/* Does a stream have to wait until its client has read more? Then the job runs again once it has,
 * or has disconnected. Meanwhile tokens stay in the engine's output, where they are small. The HTTP
 * server times out a client that reads nothing. */
static bool wait_for_client(struct generation *g)
{
    bool waits;

    g->stream_lagged = !g->stream_broken && !generation_client_keeps_up(g);
    if (!g->stream_lagged)
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
    if (g->ops->on_tokens != NULL)
        g->ops->on_tokens(g);
    if (!wait_for_client(g) && ended) {
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
static void pending_done(struct generation *g)
{
    bool last;

    mtx_lock(&g->lock);
    assert(g->n_pending > 0);
    last = --g->n_pending == 0;
    mtx_unlock(&g->lock);
    if (!last)
        return;
    admission_leave(g->app->generate->admission, &g->ticket);
    schedule_work(g, true);
}

static void fail_locked(struct generation *g, const struct err *e)
{
    mtx_assert_held(&g->lock);
    if (g->err.code == ERR_NONE)
        g->err = *e;
    cancel_locked(g);
}

static void seq_tokens(void *arg, const struct gen_output *out, uint32_t first)
{
    struct generation_seq *seq = arg;

    (void)first;
    if (out->finish != GEN_RUNNING)
        return; /* seq_done follows at once: the last token and the end become one event */
    mtx_lock(&seq->g->lock);
    seq->tokens = out->tokens;
    seq->n_tokens = out->n_tokens;
    mtx_unlock(&seq->g->lock);
    schedule_work(seq->g, false);
}

static void seq_done(void *arg, struct gen_output *out)
{
    struct generation_seq *seq = arg;
    struct generation *g = seq->g;
    struct gen_output *taken = gen_output_take(out);
    struct err e = {0};

    if (taken == NULL)
        (void)err_set(&e, ERR_NO_MEMORY, "", "no memory to keep the output");
    else if (taken->finish == GEN_ERROR && taken->error.code != ERR_NONE)
        e = taken->error;
    else if (taken->finish == GEN_ERROR)
        (void)err_set(&e, ERR_ENGINE, "", "the engine failed without saying why");
    seq->ended_us = clock_now_us();
    mtx_lock(&g->lock);
    seq->id = 0;
    seq->ended = true;
    seq->out = taken;
    if (taken != NULL) {
        seq->tokens = taken->tokens;
        seq->n_tokens = taken->n_tokens;
    }
    if (e.code != ERR_NONE)
        fail_locked(g, &e);
    mtx_unlock(&g->lock);
    if (g->ops->on_tokens != NULL)
        schedule_work(g, false); /* send its last event without waiting for the other sequences */
    pending_done(g);
}

static const struct gen_sink sink_whole = {.done = seq_done};
static const struct gen_sink sink_stream = {.tokens = seq_tokens, .done = seq_done};

static int seq_request(struct gen_request *r, struct generation_seq *seq, struct err *e)
{
    struct generation *g = seq->g;
    const struct generation_prompt *p = &g->prompts[seq->prompt];
    uint32_t *ids = malloc(p->n * sizeof *ids);

    if (ids == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a prompt of %u tokens", p->n);
    if (generate_params_for(&r->params, &g->params, seq->choice,
                            g->app->generate->max_model_len - p->n, e) != 0) {
        free(ids);
        return -1;
    }
    if (seq->choice > 0)
        r->params.prompt_logprobs = -1; /* all choices use those of the prompt's first choice */
    memcpy(ids, p->ids, p->n * sizeof *ids);
    r->prompt = ids;
    r->n_prompt = p->n;
    r->on_update = g->on_update;
    r->adapter = g->use != NULL ? adapter_use_ref(g->use) : NULL;
    r->sink = g->ops->on_tokens != NULL ? &sink_stream : &sink_whole;
    r->sink_arg = seq;
    return 0;
}

static int seq_submit(struct generation_seq *seq, struct err *e)
{
    struct generation *g = seq->g;
    struct engine *en = g->app->generate->engine;
    struct gen_request r = {0};
    uint64_t id = 0;

    if (seq_request(&r, seq, e) != 0)
        return -1;
    seq->submitted_us = clock_now_us();
    if (en->ops->submit(en, &r, &id, e) != 0) {
        gen_request_fini(&r);
        return -1;
    }
    mtx_lock(&g->lock);
    if (!seq->ended)
        seq->id = id;
    if ((g->stopped || g->aborted || seq->aborted) && !seq->ended)
        en->ops->cancel(en, id);
    mtx_unlock(&g->lock);
    return 0;
}

/* All sequences of a request share one pin, so that its reply is made with one revision. It is
 * taken after the wait for a permit: the request gets the revision that serves then, or an error if
 * the adapter was unloaded meanwhile. */
static int pin_adapter(struct generation *g, struct err *e)
{
    struct err why = {0};

    if (g->lora == NULL)
        return 0;
    if (adapter_use_new(&g->use, g->app->generate->adapters, g->lora, &why) != 0) {
        if (why.code == ERR_NOT_FOUND)
            return refuse_model(g->app->generate, g->lora, e);
        *e = why;
        return -1;
    }
    g->lora_revision = adapter_use_revision(g->use);
    return 0;
}

static void submit_all(struct generation *g)
{
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        struct err e = {0};
        bool stop;

        mtx_lock(&g->lock);
        stop = g->stopped;
        g->n_pending += stop ? 0 : 1;
        mtx_unlock(&g->lock);
        if (stop)
            break;
        if (seq_submit(&g->seqs[i], &e) == 0)
            continue;
        if (g->ops->set_error_field != NULL)
            g->ops->set_error_field(&g->seqs[i], &e);
        mtx_lock(&g->lock);
        g->n_pending--; /* never the last: the submitter still holds one */
        fail_locked(g, &e);
        mtx_unlock(&g->lock);
        break;
    }
}

/* Runs with the permit: submits all sequences; stops if the client disconnects or one is refused.
 */
static void generation_start(void *arg)
{
    struct generation *g = arg;
    struct err e = {0};

    if (pin_adapter(g, &e) == 0) {
        submit_all(g);
    } else {
        mtx_lock(&g->lock);
        fail_locked(g, &e);
        mtx_unlock(&g->lock);
    }
    adapter_use_unref(g->use); /* each sequence has its own reference */
    g->use = NULL;
    pending_done(g);
}

/* The output that the engine returns for a sequence which ended before its first token. */
static struct gen_output *empty_output(const struct generation_seq *seq, struct err *e)
{
    struct gen_record_cfg cfg = {.n_tokens_max = 1,
                                 .n_prompt = seq->g->prompts[seq->prompt].n,
                                 .logprobs = -1,
                                 .prompt_logprobs = -1};
    struct gen_record *rec;

    if (gen_record_new(&rec, &cfg, e) != 0)
        return NULL;
    rec->out.finish = GEN_ABORT;
    return &rec->out;
}

/* Aborted while queued: its ticket has already been removed from the queue. */
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
            fail_locked(g, &e);
        mtx_unlock(&g->lock);
    }
    schedule_work(g, true);
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
        schedule_work(g, false);
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

static const struct generations_ops entry_ops = {
    .abort = entry_abort, .abort_named = generation_abort_named, .cut = generation_cut};

void generation_enter(struct generation *g)
{
    struct err e = {0};
    bool client_disconnected, aborted;

    mtx_lock(&g->lock);
    client_disconnected = g->client_disconnected;
    mtx_unlock(&g->lock);
    if (client_disconnected) {
        generation_fail_disconnected(g);
        return;
    }
    if (g->app->pause_controller != NULL &&
        pause_controller_allows(g->app->pause_controller, CALL_GENERATE, &e) != 0) {
        generation_fail(g, &e);
        return;
    }
    generation_ref(g); /* if it is granted at once, it may end before admission_enter returns */
    g->ticket = (struct ticket){.granted = generation_granted, .arg = g};
    g->entry = (struct generations_entry){.ops = &entry_ops, .arg = g, .ticket = &g->ticket};
    generations_add(g->app->generate->generations, &g->entry);
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
        (void)err_set(why, ERR_GONE, "", "the client went away");
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
