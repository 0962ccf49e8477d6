/* See the header. The fake obeys engine.h: done once for every submit, callbacks without locks. */
#include "tests/fakes/data_plane.h"

#include "base/clock.h"
#include "base/jobs/workers.h"
#include "control/admission.h"
#include "control/metrics.h"
#include "handlers/reply.h"
#include "server/operations.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t WAIT_US = 60000000;

static int fake_submit(struct engine *en, struct gen_request *r, uint64_t *id, struct err *e)
{
    struct plane *p = (struct plane *)(void *)en;
    struct gen_record_cfg cfg = {.n_tokens_max = PLANE_CONTEXT,
                                 .n_prompt = r->n_prompt,
                                 .logprobs = r->params.logprobs,
                                 .prompt_logprobs = r->params.prompt_logprobs};
    int rc = -1;

    mtx_lock(&p->lock);
    assert_true(p->n_seqs < PLANE_SEQS_MAX);
    if (p->refuse_from != 0 && p->n_seqs + 1 >= p->refuse_from) {
        (void)err_set(e, ERR_BAD_REQUEST, "/token_ids/1", "the fake engine refuses this one");
    } else if (gen_record_new(&p->seqs[p->n_seqs].rec, &cfg, e) == 0) {
        p->seqs[p->n_seqs].r = *r;
        memset(r, 0, sizeof *r);
        *id = ++p->n_seqs;
        rc = 0;
    }
    cnd_broadcast(&p->moved);
    mtx_unlock(&p->lock);
    if (p->hang_up != NULL)
        http_request_mark_disconnected(p->hang_up->x);
    return rc;
}

static void fake_cancel(struct engine *en, uint64_t id)
{
    struct plane *p = (struct plane *)(void *)en;

    mtx_lock(&p->lock);
    assert_true(id >= 1 && id <= p->n_seqs);
    if (p->seqs[id - 1].rec != NULL && !p->seqs[id - 1].cancelled) {
        p->seqs[id - 1].cancelled = true;
        p->n_cancels++;
    }
    cnd_broadcast(&p->moved);
    mtx_unlock(&p->lock);
}

static const struct engine_ops fake_ops = {
    .name = "fake", .submit = fake_submit, .cancel = fake_cancel};

enum { POOL_THREADS = 2 };

static struct workers *pool_new(const char *name)
{
    struct workers_cfg cfg = {.name = name, .n_threads = POOL_THREADS, .n_queue_max = 64};
    struct workers *w = NULL;
    struct err e = {0};

    assert_int_equal(workers_new(&w, &cfg, &e), 0);
    return w;
}

static const char *operation_name(size_t i)
{
    (void)i;
    return "generate";
}

static const char *const base_names[] = {"fake-model", "/models/fake-model", NULL};

struct plane *plane_new(size_t n_permits, size_t n_queue, const struct tokenizer *tokenizer)
{
    struct plane *p = calloc(1, sizeof *p);
    struct err e = {0};

    assert_non_null(p);
    p->engine.ops = &fake_ops;
    assert_int_equal(pthread_barrier_init(&p->all_here, NULL, POOL_THREADS + 1), 0);
    mtx_init(&p->lock, MTX_ENGINE);
    cnd_init(&p->moved);
    (void)snprintf(p->life.boot_id, sizeof p->life.boot_id, "feedfacefeedfacefeedfacefeedface");
    p->generate = (struct app_generate){.engine = &p->engine,
                                        .tokenizer = tokenizer,
                                        .model_name = "fake-model",
                                        .base_names = base_names,
                                        .model_path = "",
                                        .vocab_size = PLANE_VOCAB,
                                        .max_model_len = PLANE_CONTEXT};
    p->app = (struct app){.life = &p->life,
                          .weights = &p->weights,
                          .generate = &p->generate,
                          .settings = {.max_logprobs = UINT64_MAX, .max_unread_nbytes = 1 << 30},
                          .generate_executor = pool_new("generate"),
                          .text_executor = pool_new("text")};
    assert_int_equal(admission_new(&p->app.generate->admission, "generate", n_permits, n_queue, &e),
                     0);
    assert_int_equal(
        admission_new(&p->app.generate->prompt_admission, "completions", POOL_THREADS, 64, &e), 0);
    assert_int_equal(metrics_new(&p->app.metrics, 1, operation_name, &e), 0);
    return p;
}

void plane_free(struct plane *p)
{
    struct admission_stats s;

    workers_free(p->app.generate_executor);
    workers_free(p->app.text_executor);
    (void)pthread_barrier_destroy(&p->all_here);
    admission_stats(p->app.generate->admission, &s);
    assert_int_equal(s.n_running, 0);
    assert_int_equal(s.n_waiting, 0);
    for (uint64_t i = 0; i < p->n_seqs; i++)
        assert_null(p->seqs[i].rec);
    admission_stats(p->app.generate->prompt_admission, &s);
    assert_int_equal(s.n_running, 0);
    assert_int_equal(s.n_waiting, 0);
    admission_free(p->app.generate->admission);
    admission_free(p->app.generate->prompt_admission);
    metrics_free(p->app.metrics);
    cnd_fini(&p->moved);
    mtx_fini(&p->lock);
    free(p);
}

static void woken(struct http_request_http_server *http_server)
{
    struct plane_x *px = (struct plane_x *)(void *)http_server;

    mtx_lock(&px->lock);
    px->n_woken++;
    cnd_broadcast(&px->woken);
    mtx_unlock(&px->lock);
}

void plane_send(struct plane *p, struct plane_x *px, const struct route *route, const char *body)
{
    struct err e = {0};

    memset(px, 0, sizeof *px);
    px->http_server.wake = woken;
    mtx_init(&px->lock, MTX_LEAF);
    cnd_init(&px->woken);
    assert_int_equal(http_request_new(&px->x, &px->http_server, &e), 0);
    (void)snprintf(px->x->actor.request_id, sizeof px->x->actor.request_id, "req-1");
    px->x->method = METHOD_POST;
    px->x->route = route;
    px->x->body_len = strlen(body);
    px->x->body = strdup(body);
    assert_non_null(px->x->body);
    px->x->content_length = px->x->body_len;
    http_request_ref(px->x);
    if (operation_embedded(route->operation)->handle(&p->app, px->x, &e) != 0)
        reply_error(px->x, &e, NULL);
}

void plane_x_fini(struct plane_x *px)
{
    http_request_detach(px->x, true);
    http_request_unref(px->x);
    cnd_fini(&px->woken);
    mtx_fini(&px->lock);
}

static void wait_plane(struct plane *p, const uint64_t *what, uint64_t least)
{
    uint64_t deadline = clock_after_us(WAIT_US);

    mtx_lock(&p->lock);
    while (*what < least && cnd_wait(&p->moved, &p->lock, deadline)) {
    }
    if (*what < least)
        fail_msg("waited for %llu, have %llu", (unsigned long long)least,
                 (unsigned long long)*what);
    mtx_unlock(&p->lock);
}

void plane_wait_submitted(struct plane *p, uint64_t n_seqs)
{
    wait_plane(p, &p->n_seqs, n_seqs);
}

void plane_wait_cancels(struct plane *p, uint64_t n_cancels)
{
    wait_plane(p, &p->n_cancels, n_cancels);
}

/* Waits until the request has been woken more than `seen` times; returns how often. */
static uint64_t wait_woken(struct plane_x *px, uint64_t seen)
{
    uint64_t deadline = clock_after_us(WAIT_US), n;

    mtx_lock(&px->lock);
    while (px->n_woken <= seen && cnd_wait(&px->woken, &px->lock, deadline)) {
    }
    n = px->n_woken;
    mtx_unlock(&px->lock);
    if (n <= seen)
        fail_msg("the exchange was not answered");
    return n;
}

static uint64_t n_woken(struct plane_x *px)
{
    uint64_t n;

    mtx_lock(&px->lock);
    n = px->n_woken;
    mtx_unlock(&px->lock);
    return n;
}

void plane_wait_answer(struct plane_x *px)
{
    for (;;) {
        uint64_t seen = n_woken(px);

        if (http_request_answered(px->x) != ANSWER_NONE)
            return;
        (void)wait_woken(px, seen);
    }
}

json_t *plane_wait_reply(struct plane_x *px, int *status)
{
    struct http_reply r = {0};
    json_t *body = NULL;

    plane_wait_answer(px);
    assert_int_equal(http_request_answered(px->x), ANSWER_REPLY);
    http_reply_take(px->x, &r);
    *status = r.status;
    if (r.len > 0) {
        body = json_loadb(r.data, r.len, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(body);
    }
    if (r.release != NULL)
        r.release(r.release_arg);
    return body;
}

void plane_wait_stream_bytes(struct plane_x *px, char *out, size_t cap)
{
    uint64_t seen;
    size_t n = 0;

    plane_wait_answer(px);
    assert_int_equal(http_request_answered(px->x), ANSWER_STREAM);
    for (;;) {
        seen = n_woken(px);
        if (http_request_stream_take(px->x, out, cap - 1, &n) == STREAM_BYTES)
            break;
        (void)wait_woken(px, seen);
    }
    out[n] = '\0';
}

char *plane_wait_stream(struct plane_x *px, bool *complete)
{
    struct buf all = {0};
    char part[512];
    uint64_t seen;
    size_t len;

    plane_wait_answer(px);
    assert_int_equal(http_request_answered(px->x), ANSWER_STREAM);
    for (;;) {
        enum http_request_stream_state state;
        size_t n = 0;

        seen = n_woken(px);
        state = http_request_stream_take(px->x, part, sizeof part, &n);
        if (state == STREAM_BYTES) {
            buf_append(&all, part, n);
        } else if (state == STREAM_EMPTY) {
            (void)wait_woken(px, seen);
        } else {
            *complete = state == STREAM_END;
            break;
        }
    }
    buf_puts(&all, "");
    return buf_take(&all, &len);
}

static void meet(void *arg)
{
    (void)pthread_barrier_wait(arg);
}

/* Once every thread of the pool waits at the barrier, none runs an older job. */
static void settle_pool(struct plane *p, struct workers *pool)
{
    struct job jobs[POOL_THREADS];
    struct err e = {0};

    for (int i = 0; i < POOL_THREADS; i++) {
        jobs[i] = (struct job){.run = meet, .arg = &p->all_here};
        assert_int_equal(workers_post(pool, &jobs[i], WORKERS_URGENT, &e), 0);
    }
    (void)pthread_barrier_wait(&p->all_here);
}

void plane_settle(struct plane *p)
{
    settle_pool(p, p->app.generate_executor);
    settle_pool(p, p->app.text_executor);
}

static struct plane_seq *seq_of(struct plane *p, uint64_t id)
{
    struct plane_seq *s;

    mtx_lock(&p->lock);
    assert_true(id >= 1 && id <= p->n_seqs);
    s = &p->seqs[id - 1];
    mtx_unlock(&p->lock);
    assert_non_null(s->rec);
    return s;
}

static void make_tokens(struct plane_seq *s, const uint32_t *ids, uint32_t n, uint64_t serial,
                        enum gen_finish finish)
{
    uint32_t first = s->rec->out.n_tokens;
    struct version_label *name = version_label_new();

    assert_non_null(name);
    (void)snprintf(name->text, sizeof name->text, "step-%llu", (unsigned long long)serial);
    for (uint32_t i = 0; i < n; i++) {
        struct gen_token t = {.id = ids[i], .logprob = -0.5F, .rank = 1};
        struct gen_top *top = gen_record_top(s->rec, first + i);

        if (top != NULL) {
            for (int32_t k = 0; k < s->r.params.logprobs; k++)
                top[k] = (struct gen_top){.id = ids[i] + (uint32_t)k,
                                          .logprob = -0.5F - (float)k,
                                          .rank = (uint32_t)k + 1};
            t.n_top = (uint32_t)s->r.params.logprobs;
            t.top = top;
        }
        gen_record_append(s->rec, &t, serial, name);
    }
    version_label_unref(name);
    s->rec->out.finish = finish;
    if (s->r.sink->tokens != NULL)
        s->r.sink->tokens(s->r.sink_arg, &s->rec->out, first);
}

void plane_tokens(struct plane *p, uint64_t id, const uint32_t *ids, uint32_t n, uint64_t serial)
{
    make_tokens(seq_of(p, id), ids, n, serial, GEN_RUNNING);
}

void plane_last_token(struct plane *p, uint64_t id, uint32_t last, uint64_t serial,
                      enum gen_finish finish)
{
    make_tokens(seq_of(p, id), &last, 1, serial, finish);
    plane_settle(p);
    plane_end(p, id, finish);
}

void plane_stop_text(struct plane *p, uint64_t id, uint32_t i_stop, uint32_t cut)
{
    struct plane_seq *s = seq_of(p, id);

    (void)snprintf(s->rec->stop_text, sizeof s->rec->stop_text, "%s", s->r.params.stops[i_stop]);
    s->rec->out.stop_text = s->rec->stop_text;
    s->rec->out.stop_text_cut = cut;
}

static void fill_prompt(struct plane_seq *s)
{
    for (uint32_t i = 0; s->rec->prompt != NULL && i < s->r.n_prompt; i++)
        s->rec->prompt[i] = (struct gen_token){
            .id = s->r.prompt[i], .logprob = i > 0 ? -1.5F : 0.0F, .rank = 2};
}

void plane_end(struct plane *p, uint64_t id, enum gen_finish finish)
{
    struct plane_seq *s = seq_of(p, id);
    struct gen_record *rec = s->rec;
    const struct gen_sink *sink = s->r.sink;
    void *arg = s->r.sink_arg;

    fill_prompt(s);
    rec->out.finish = finish;
    if (finish == GEN_ERROR)
        (void)err_set(&rec->out.error, ERR_ENGINE, "", "the fake engine broke");
    mtx_lock(&p->lock);
    gen_request_fini(&s->r);
    s->rec = NULL;
    mtx_unlock(&p->lock);
    if (!gen_record_tell(rec, sink, arg))
        gen_record_free(rec);
}
