/* What a request may ask for: the model, the lengths, the number of sequences and of logprobs. */
#include "handlers/generate/generation_priv.h"

#include "control/unread.h"
#include "engine/lora/adapters.h"
#include "handlers/generate/generation_reply.h"
#include "handlers/generate/routed_experts.h"

#include <stdlib.h>
#include <string.h>

int generation_refuse_model(const struct app_generate *generate, const char *model, struct err *e)
{
    return err_set(e, ERR_NOT_FOUND, "/model",
                   "model '%.160s' is not served here: it is neither '%.160s' nor an adapter that "
                   "is loaded",
                   model, generate->model_name);
}

static bool is_base(const struct app_generate *generate, const char *model)
{
    for (const char *const *name = generate->base_names; name != NULL && *name != NULL; name++)
        if (strcmp(*name, model) == 0)
            return true;
    return false;
}

int generation_check_model(const struct app *app, const char *model, struct err *e)
{
    if (model == NULL || is_base(app->generate, model))
        return 0;
    if (app->generate->adapters != NULL && adapters_has(app->generate->adapters, model))
        return 1;
    return generation_refuse_model(app->generate, model, e);
}

int generation_check_app(const struct app *app, const char *model, struct err *e)
{
    if (app->generate->engine == NULL)
        return err_set(e, ERR_NO_ENGINE, "",
                       "this server holds weights only (--engine none): it cannot generate");
    return generation_check_model(app, model, e) < 0 ? -1 : 0;
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
                   "%d logprobs for each token; at most %llu are allowed (--max-logprobs)", k,
                   (unsigned long long)g->app->settings.max_logprobs);
}

/* Checks how many logprobs the sequences can produce; adds them to n_all. */
static int check_made_logprobs(const struct generation *g, uint64_t *n_all, struct err *e)
{
    const struct gen_params *p = &g->params.gen;
    uint64_t n = 0;

    for (uint32_t i = 0; i < g->n_prompts; i++) {
        uint32_t rest = g->app->generate->max_model_len - g->prompts[i].n;

        n += (uint64_t)g->params.n * (p->max_tokens < rest ? p->max_tokens : rest);
    }
    if (p->logprobs <= 0)
        return 0;
    *n_all += n * (uint64_t)p->logprobs;
    if (n <= (uint64_t)GENERATION_LOGPROBS_MAX / (uint64_t)p->logprobs)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, g->logprobs_at,
                   "%d logprobs for each of up to %llu tokens; a request may have %d in total: "
                   "request fewer logprobs, fewer tokens or fewer sequences",
                   p->logprobs, (unsigned long long)n, GENERATION_LOGPROBS_MAX);
}

/* Checks how many logprobs of prompts the reply would have; the prompt's own token counts as one.
 */
static int check_prompt_logprobs(const struct generation *g, uint64_t *n_all, struct err *e)
{
    int32_t k = g->params.gen.prompt_logprobs;
    uint64_t n = 0;

    for (uint32_t i = 0; i < g->n_prompts; i++)
        if (g->prompts[i].n > g->prompt_logprobs_from)
            n += g->prompts[i].n - g->prompt_logprobs_from;
    n *= g->prompt_logprobs_times;
    if (k < 0)
        return 0;
    *n_all += n * (k > 0 ? (uint64_t)k : 1);
    if (n <= (uint64_t)GENERATION_PROMPT_LOGPROBS_MAX / (k > 0 ? (uint64_t)k : 1))
        return 0;
    return err_set(
        e, ERR_BAD_REQUEST, g->prompt_logprobs_at,
        "%d logprobs for each of %llu prompt tokens, counted in each choice that repeats them; a "
        "reply may have %d in total: request fewer logprobs, fewer prompts or a smaller n",
        k > 0 ? k : 1, (unsigned long long)n, GENERATION_PROMPT_LOGPROBS_MAX);
}

/* Checks all logprob limits, and that there is room for so many now, before anything is computed. A
 * request that may be too large by itself is tried when nothing is unread: most end early. */
static int check_all_logprobs(const struct generation *g, struct err *e)
{
    const struct gen_params *p = &g->params.gen;
    uint64_t most = g->app->settings.max_unread_nbytes, n = 0;

    if (check_logprobs_each(g, g->logprobs_at, p->logprobs, e) != 0 ||
        check_logprobs_each(g, g->prompt_logprobs_at, p->prompt_logprobs, e) != 0 ||
        check_made_logprobs(g, &n, e) != 0 || check_prompt_logprobs(g, &n, e) != 0)
        return -1;
    n *= GENERATION_LOGPROB_NBYTES;
    return unread_check(most, n < most ? n : most, e);
}

int generation_make_seqs(struct generation *g, const char *at, struct err *e)
{
    struct generation_seq *seqs;
    uint32_t n_seqs = 0;

    if (generation_count_seqs(g, at, &n_seqs, e) != 0)
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

int generation_expand(struct generation *g, const char *at, struct err *e)
{
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
    if (check_all_logprobs(g, e) != 0 || routed_experts_check(g, e) != 0)
        return -1;
    return g->seqs != NULL ? 0 : generation_make_seqs(g, at, e);
}
