/* A store with its updates and one place where answers come, and the calls that tests make on them.
 */
#ifndef BATON_TESTS_UPDATE_FIXTURE_H
#define BATON_TESTS_UPDATE_FIXTURE_H

#include "tests/unit/weights_fixture.h"
#include "weights/update/update_priv.h"

enum { LEASE_S = 60 };
#define RECEIVE_US UINT64_C(60000000)

/* A store, its updates, and one place where answers come. */
struct bench {
    struct store *store;
    struct updates *updates;
    struct fx_answer answer;
    struct mtx lock; /* rank MTX_LEAF; guards down to the end */
    struct cnd changed;
    unsigned n_changes;
};

static inline void on_change(void *arg)
{
    struct bench *b = arg;

    mtx_assert_none();
    mtx_lock(&b->lock);
    b->n_changes++;
    cnd_broadcast(&b->changed);
    mtx_unlock(&b->lock);
}

/* Of the updates that bench_open makes, and what they serve; NULL: fx_model_spec. */
static enum non_finite_policy bench_non_finite = NON_FINITE_REFUSE;
static struct model_spec *(*bench_model_spec)(void);

static inline void bench_open_with(struct bench *b, uint64_t nbytes_max, uint64_t receive_us)
{
    struct store_cfg store_cfg = {.model_spec = bench_model_spec != NULL ? bench_model_spec()
                                                                         : fx_model_spec(),
                                  .n_versions_max = 3,
                                  .nbytes_max = nbytes_max};
    struct updates_cfg cfg = {.receive_timeout_us = receive_us,
                              .pin_timeout_us = RECEIVE_US,
                              .non_finite = bench_non_finite,
                              .on_change = on_change,
                              .arg = b};
    struct err e = {0};

    memset(b, 0, sizeof *b);
    mtx_init(&b->lock, MTX_LEAF);
    cnd_init(&b->changed);
    fx_answer_init(&b->answer);
    assert_int_equal(store_new(&b->store, &store_cfg, &e), 0);
    cfg.store = b->store;
    assert_int_equal(updates_new(&b->updates, &cfg, &e), 0);
}

static inline void bench_open(struct bench *b)
{
    bench_open_with(b, UINT64_MAX, RECEIVE_US);
}

/* The checksums made while bytes arrived are those of the bytes that are served. @n_unknown  how
 * many may have none */
static inline void assert_digests(struct store *s, struct updates *u, uint64_t n_unknown)
{
    uint32_t n = store_model_spec(s)->tensor_list->n_tensors, n_known = 0;
    const struct version *v = NULL;
    struct err e = {0};

    updates_stop(u);
    if (store_pin(s, &v, &e) != 0)
        return;
    if (u->stats.n_committed == 0) { /* the test committed by itself */
        store_unpin(s, v);
        return;
    }
    assert_int_equal(u->served.serial, v->serial);
    for (uint32_t i = 0; i < n; i++) {
        struct checksum sum;

        if (store_checksum(s, v, i, &sum, &e) != 0) { /* its GPU was lost */
            assert_int_equal(e.code, ERR_CUDA);
            break;
        }
        n_known += u->served.digests[i].known;
        assert_true(!u->served.digests[i].known || checksum_equal(sum, u->served.digests[i].sum));
    }
    assert_true(e.code != ERR_NONE || n_known + n_unknown >= n);
    store_unpin(s, v);
}

/* store_free asserts that no slab and no version is left. */
static inline void bench_close(struct bench *b)
{
    if (b->updates != NULL)
        assert_digests(b->store, b->updates, 0);
    updates_free(b->updates);
    store_free(b->store);
    fx_answer_fini(&b->answer);
    cnd_fini(&b->changed);
    mtx_fini(&b->lock);
}

/* Waits until an update is in that phase, woken by on_change only. */
static inline void await_phase(struct bench *b, const char *id, enum update_phase phase)
{
    struct update_info info;
    unsigned seen;

    for (;;) {
        struct err e = {0};

        mtx_lock(&b->lock);
        seen = b->n_changes;
        mtx_unlock(&b->lock);
        assert_int_equal(updates_get(b->updates, id, &info, &e), 0);
        if (info.phase == phase)
            return;
        mtx_lock(&b->lock);
        while (b->n_changes == seen)
            (void)cnd_wait(&b->changed, &b->lock, CLOCK_NEVER);
        mtx_unlock(&b->lock);
    }
}

static inline struct update_chunk *
chunk_of(struct bench *b, const char *id, struct tensor_list *tensor_list, struct fx_source_cfg cfg)
{
    struct update_chunk *c = calloc(1, sizeof *c);

    assert_non_null(c);
    (void)snprintf(c->update_id, sizeof c->update_id, "%s", id);
    c->tensor_list = tensor_list;
    c->source = fx_source_new(cfg);
    c->done = fx_done;
    c->done_arg = &b->answer;
    return c;
}

static inline struct update_chunk *named_chunk(struct bench *b, const char *id, unsigned mask,
                                               struct fx_source_cfg cfg)
{
    struct update_chunk *c = chunk_of(b, id, fx_tensor_list_of(mask), cfg);

    (void)snprintf(c->chunk_id, sizeof c->chunk_id, "bucket-0");
    return c;
}

static inline void submit(struct bench *b, struct update_chunk *c)
{
    struct err e = {0};
    int rc = updates_submit(b->updates, c, &e);

    if (rc != 0)
        print_error("refused: %s\n", e.msg);
    assert_int_equal(rc, 0);
}

static inline struct err refused(struct bench *b, struct update_chunk *c)
{
    struct err e = {0};

    assert_int_equal(updates_submit(b->updates, c, &e), -1);
    update_chunk_free(c);
    return e;
}

/* A whole update by itself, waited for. */
static inline enum err_code push(struct bench *b, unsigned step, const char *label)
{
    struct update_chunk *c = chunk_of(b, "", fx_tensor_list_of(FX_ALL), FX_STEP(step));

    (void)snprintf(c->label, sizeof c->label, "%s", label);
    submit(b, c);
    return fx_await(&b->answer);
}

static inline struct update_info start(struct bench *b, struct update_start req)
{
    struct update_info info;
    struct err e = {0};

    if (req.lease_s == 0)
        req.lease_s = LEASE_S;
    assert_int_equal(updates_start(b->updates, &req, &info, &e), 0);
    assert_int_equal(info.phase, UPDATE_OPEN);
    return info;
}

static inline enum err_code send_mask(struct bench *b, const char *id, unsigned mask, unsigned step)
{
    submit(b, chunk_of(b, id, fx_tensor_list_of(mask), FX_STEP(step)));
    return fx_await(&b->answer);
}

static inline enum err_code finish(struct bench *b, const char *id, const char *label)
{
    struct err e = {0};

    assert_int_equal(updates_finish(b->updates, id, label, NULL, 0, fx_done, &b->answer, &e), 0);
    return fx_await(&b->answer);
}

static inline void assert_served(struct bench *b, unsigned step, const char *label, uint64_t serial)
{
    struct store_info info;

    fx_assert_step(b->store, step);
    store_info(b->store, &info);
    assert_string_equal(info.label, label);
    assert_int_equal(info.serial, serial);
}

static inline void assert_idle(struct bench *b)
{
    struct update_info info;

    updates_current(b->updates, &info);
    assert_int_equal(info.phase, UPDATE_NONE);
}

static inline void give_checksums(struct update_chunk *c, unsigned step)
{
    unsigned char sent[FX_NBYTES_MAX];

    c->checksums = calloc(c->tensor_list->n_tensors, sizeof *c->checksums);
    c->has_checksum = calloc(c->tensor_list->n_tensors, sizeof *c->has_checksum);
    assert_non_null(c->checksums);
    assert_non_null(c->has_checksum);
    for (uint32_t i = 0; i < c->tensor_list->n_tensors; i++) {
        fx_sent(&c->tensor_list->tensors[i], step, sent);
        c->checksums[i] = checksum_of(sent, c->tensor_list->tensors[i].nbytes);
        c->has_checksum[i] = true;
    }
}

#endif
