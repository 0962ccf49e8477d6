/* One generation of a test: submits, collects, waits. Shared by the tests of the engine. */
#ifndef BATON_TESTS_ENGINE_JOBS_H
#define BATON_TESTS_ENGINE_JOBS_H

#include "engine/gen.h"
#include "engine/lora/adapter_use.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct job {
    uint64_t id;
    struct gen_output *out; /* owned; set by done */
    unsigned n_done;
    uint32_t n_seen; /* tokens that the sink was told of */
    bool dropped;    /* do not take the output */
    enum gen_on_update on_update;
    struct adapter_use *adapter; /* borrowed: each submit takes a reference of its own */
    enum gen_finish finish;
    /* Called on the engine's thread after new tokens. */
    void (*on_tokens)(struct job *j, const struct gen_output *out, void *arg);
    void *arg;
};

static pthread_mutex_t jobs_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t jobs_changed = PTHREAD_COND_INITIALIZER;

static void job_tokens(void *arg, const struct gen_output *out, uint32_t first)
{
    struct job *j = arg;

    assert(j->n_seen == first && out->n_tokens > first && j->n_done == 0);
    j->n_seen = out->n_tokens;
    if (j->on_tokens != NULL)
        j->on_tokens(j, out, j->arg);
}

static void job_done(void *arg, struct gen_output *out)
{
    struct job *j = arg;

    assert(j->n_seen == out->n_tokens);
    pthread_mutex_lock(&jobs_lock);
    j->finish = out->finish;
    if (!j->dropped)
        j->out = gen_output_take(out);
    j->n_done++;
    pthread_cond_broadcast(&jobs_changed);
    pthread_mutex_unlock(&jobs_lock);
}

static const struct gen_sink job_sink = {.tokens = job_tokens, .done = job_done};

/* The request is freed when it is refused. */
static inline int job_submit(struct engine *en, struct job *j, const uint32_t *prompt,
                             uint32_t n_prompt, const struct gen_params *p, struct err *e)
{
    struct gen_request r = {.n_prompt = n_prompt,
                            .params = *p,
                            .on_update = j->on_update,
                            .sink = &job_sink,
                            .sink_arg = j};

    if (j->adapter != NULL)
        r.adapter = adapter_use_ref(j->adapter);
    r.prompt = malloc((n_prompt > 0 ? n_prompt : 1) * sizeof *prompt);
    assert(r.prompt != NULL);
    memcpy(r.prompt, prompt, n_prompt * sizeof *prompt);
    for (uint32_t i = 0; i < p->n_stops; i++)
        r.params.stops[i] = strdup(p->stops[i]);
    if (en->ops->submit(en, &r, &j->id, e) == 0) {
        assert(r.prompt == NULL && j->id != 0);
        return 0;
    }
    assert(r.prompt != NULL);
    gen_request_fini(&r);
    return -1;
}

static inline void job_wait(struct job *j)
{
    pthread_mutex_lock(&jobs_lock);
    while (j->n_done == 0)
        pthread_cond_wait(&jobs_changed, &jobs_lock);
    pthread_mutex_unlock(&jobs_lock);
}

static inline void job_fini(struct job *j)
{
    gen_output_free(j->out);
    j->out = NULL;
}

#endif
