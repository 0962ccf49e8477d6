/* The engine as it ships over the fixture model, weights from files through update sessions.
 * Included with FIXTURES. */
#ifndef BATON_TESTS_SERVED_MODEL_H
#define BATON_TESTS_SERVED_MODEL_H

#include "tests/unit/engine/engine_jobs.h"

#include "base/clock.h"
#include "engine/scheduler/embedded.h"
#include "text/tokenizer.h"
#include "transport/file.h"
#include "weights/model/model_config.h"
#include "weights/update/update.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define MODEL_DIR FIXTURES "/kjv-qwen3-1m"

struct served {
    struct model_config cfg;
    struct tokenizer *tokenizer;
    struct store *store;
    struct updates *updates;
    struct engine *en;
};

/* A source over one checkpoint of the fixture. */
static inline struct source *open_checkpoint(const char *step, struct file_weights *w)
{
    struct source *src = NULL;
    struct err e = {0};
    char path[512];

    (void)snprintf(path, sizeof path, MODEL_DIR "/checkpoints/%s.safetensors", step);
    if (file_source_open_local(&src, w, path, &e) != 0)
        fail_msg("%s: %s", path, e.msg);
    return src;
}

/* @rank_max  of the adapters that requests bring; 0: none do */
static inline void serve_adapters(struct served *s, uint32_t n_running, uint32_t n_rows,
                                  uint32_t rank_max)
{
    struct updates_cfg uc = {.receive_timeout_us = 60000000, .pin_timeout_us = 60000000};
    struct store_cfg sc = {.n_versions_max = 4, .nbytes_max = UINT64_MAX};
    struct embedded_cfg cfg = {.model_path = MODEL_DIR,
                               .n_threads = 2,
                               .n_running_max = n_running,
                               .n_step_tokens_max = n_rows,
                               .kv_nbytes_max = 64 << 20,
                               .adapter_rank_max = rank_max};
    struct file_weights w = {0};
    struct err e = {0};

    memset(s, 0, sizeof *s);
    assert_int_equal(model_config_load(&s->cfg, MODEL_DIR, &e), 0);
    assert_int_equal(tokenizer_load(&s->tokenizer, MODEL_DIR, &e), 0);
    source_close(open_checkpoint("step-00000", &w));
    assert_int_equal(model_spec_of_config(&sc.model_spec, &s->cfg, w.tensor_list, &e), 0);
    file_weights_fini(&w);
    assert_int_equal(store_new(&s->store, &sc, &e), 0);
    uc.store = s->store;
    assert_int_equal(updates_new(&s->updates, &uc, &e), 0);
    cfg.model = &s->cfg;
    cfg.store = s->store;
    cfg.tokenizer = s->tokenizer;
    assert_int_equal(embedded_new(&s->en, &cfg, &e), 0);
}

static inline void serve(struct served *s, uint32_t n_running, uint32_t n_rows)
{
    serve_adapters(s, n_running, n_rows, 0);
}

static inline void close_served(struct served *s)
{
    s->en->ops->free(s->en);
    updates_free(s->updates);
    store_free(s->store);
    tokenizer_free(s->tokenizer);
}

struct pushed {
    bool done;
    struct err e;
    uint64_t serial;
};

static inline void push_done(void *arg, const struct update_info *info, const struct err *e)
{
    struct pushed *p = arg;

    pthread_mutex_lock(&jobs_lock);
    p->done = true;
    p->e = *e;
    p->serial = info->serial;
    pthread_cond_broadcast(&jobs_changed);
    pthread_mutex_unlock(&jobs_lock);
}

static inline uint64_t push_wait(struct pushed *p)
{
    pthread_mutex_lock(&jobs_lock);
    while (!p->done)
        pthread_cond_wait(&jobs_changed, &jobs_lock);
    pthread_mutex_unlock(&jobs_lock);
    if (p->e.code != ERR_NONE)
        fail_msg("update: %s", p->e.msg);
    return p->serial;
}

/* Sends a checkpoint: into session `id`, or as a whole update ("") with its name as the label. */
static inline uint64_t push(struct served *s, const char *id, const char *step)
{
    struct update_chunk *c = calloc(1, sizeof *c);
    struct file_weights w = {0};
    struct pushed p = {0};
    struct err e = {0};

    assert_non_null(c);
    c->source = open_checkpoint(step, &w);
    c->tensor_list = tensor_list_ref(w.tensor_list);
    c->done = push_done;
    c->done_arg = &p;
    (void)snprintf(c->update_id, sizeof c->update_id, "%s", id);
    if (id[0] == '\0')
        (void)snprintf(c->label, sizeof c->label, "%s", step);
    file_weights_fini(&w);
    if (updates_submit(s->updates, c, &e) != 0)
        fail_msg("%s", e.msg);
    return push_wait(&p);
}

static inline void same_tokens(const struct gen_token *x, const struct gen_token *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(x[i].id, y[i].id);
        assert_memory_equal(&x[i].logprob, &y[i].logprob, sizeof x[i].logprob);
        assert_int_equal(x[i].rank, y[i].rank);
        if (x[i].n_top > 0)
            assert_memory_equal(x[i].top, y[i].top, x[i].n_top * sizeof *x[i].top);
    }
}

#endif
