/* Hands the sequences of a generation to the engine, and takes their tokens back. */
#include "handlers/generate/generation_priv.h"

#include "base/clock.h"
#include "engine/generation.h"
#include "engine/lora/adapter_use.h"

#include <stdlib.h>
#include <string.h>

static void set_tokens_locked(struct generation_seq *seq, const struct gen_output *out)
{
    seq->tokens = out->tokens;
    seq->n_tokens = out->n_tokens;
    seq->spans = out->spans;
    seq->n_spans = out->n_spans;
    seq->n_cached = out->n_cached;
}

/* For the list of running generations. */
static void seq_count(void *arg, const struct gen_output *out, uint32_t first)
{
    struct generation_seq *seq = arg;

    (void)first;
    mtx_lock(&seq->g->lock);
    set_tokens_locked(seq, out);
    mtx_unlock(&seq->g->lock);
}

static void seq_tokens(void *arg, const struct gen_output *out, uint32_t first)
{
    struct generation_seq *seq = arg;

    if (out->finish != GEN_RUNNING)
        return; /* seq_done follows at once: the last token and the end become one event */
    seq_count(arg, out, first);
    generation_schedule_work(seq->g, false);
}

static void seq_done(void *arg, struct gen_output *out)
{
    struct generation_seq *seq = arg;
    struct generation *g = seq->g;
    struct gen_output *taken = gen_output_take(out);
    struct err e = {0};

    if (taken == NULL)
        (void)err_set(&e, ERR_NO_MEMORY, "", "no memory to keep the output");
    else if (taken->finish == GEN_ERROR && taken->error.code == ERR_NONE)
        (void)err_set(&taken->error, ERR_ENGINE, "", "the engine failed without a reason");
    if (taken != NULL && taken->finish == GEN_ERROR && !g->keeps_failures)
        e = taken->error;
    seq->ended_us = clock_now_us();
    mtx_lock(&g->lock);
    seq->id = 0;
    seq->ended = true;
    seq->out = taken;
    if (taken != NULL)
        set_tokens_locked(seq, taken);
    else
        seq->n_spans = 0; /* they are freed */
    if (e.code != ERR_NONE)
        generation_fail_locked(g, &e);
    mtx_unlock(&g->lock);
    if (g->ops->on_tokens != NULL)
        generation_schedule_work(
            g, false); /* send its last event without waiting for the other sequences */
    generation_pending_done(g);
}

static const struct gen_sink sink_whole = {.tokens = seq_count, .done = seq_done};

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
    memcpy(r->params.salt, g->salt, sizeof r->params.salt);
    memcpy(ids, p->ids, p->n * sizeof *ids);
    r->prompt = ids;
    r->n_prompt = p->n;
    r->on_update = g->on_update;
    r->adapter = g->use != NULL ? adapter_use_ref(g->use) : NULL;
    r->sink = g->ops->on_tokens != NULL && !g->ops->ends_only ? &sink_stream : &sink_whole;
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
            return generation_refuse_model(g->app->generate, g->lora, e);
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
        generation_fail_locked(g, &e);
        mtx_unlock(&g->lock);
        break;
    }
}

/* Runs with the permit: submits all sequences; stops if the client disconnects or one is refused.
 */
void generation_start(void *arg)
{
    struct generation *g = arg;
    struct err e = {0};

    if (pin_adapter(g, &e) == 0) {
        submit_all(g);
    } else {
        mtx_lock(&g->lock);
        generation_fail_locked(g, &e);
        mtx_unlock(&g->lock);
    }
    adapter_use_unref(g->use); /* each sequence has its own reference */
    g->use = NULL;
    generation_pending_done(g);
}
