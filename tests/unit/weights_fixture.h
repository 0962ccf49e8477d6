/* A small model with one of everything, made-up bytes for any step of its training, and a source
 * that a test can hold, break or shorten. */
#ifndef BATON_TESTS_WEIGHTS_FIXTURE_H
#define BATON_TESTS_WEIGHTS_FIXTURE_H

#include "base/clock.h"
#include "base/mtx.h"
#include "memory/checksum.h"
#include "weights/store/store.h"
#include "weights/update/update.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FX_N = 7, FX_NBYTES_MAX = 4096, FX_POLL_US = 10000 };

struct fx_tensor {
    const char *name;
    enum dtype dtype;
    uint32_t ndim;
    uint64_t shape[2];
};

/* `bias` has 3 bytes, so that in a packed bucket whatever follows is misaligned. */
static const struct fx_tensor fx_model[FX_N] = {
    {"embed.weight", DTYPE_BF16, 2, {16, 8}}, {"layers.0.q", DTYPE_BF16, 2, {8, 8}},
    {"layers.0.k", DTYPE_BF16, 2, {4, 8}},    {"layers.0.v", DTYPE_BF16, 2, {4, 8}},
    {"norm.weight", DTYPE_F32, 1, {8}},       {"bias", DTYPE_U8, 1, {3}},
    {"last.weight", DTYPE_BF16, 2, {5, 3}},
};
static const struct fx_tensor fx_lm_head = {"lm_head.weight", DTYPE_BF16, 2, {16, 8}};
static const struct fx_tensor fx_qkv = {"layers.0.qkv", DTYPE_BF16, 2, {16, 8}};
static const struct fx_tensor fx_old_scale = {"old.scale", DTYPE_F32, 1, {5}};

static inline struct tensor_list *fx_tensor_list(const struct fx_tensor *const *tensors, uint32_t n)
{
    struct tensor_list_builder *b = NULL;
    struct tensor_list *tensor_list = NULL;
    struct err e = {0};

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(tensor_list_builder_add(b, tensors[i]->name, tensors[i]->dtype,
                                                 tensors[i]->shape, tensors[i]->ndim, UINT64_MAX,
                                                 &e),
                         0);
    assert_int_equal(tensor_list_builder_finish(b, &tensor_list, &e), 0);
    return tensor_list;
}

/* A tensor list of the model's tensors whose bit is set, in order. */
static inline struct tensor_list *fx_tensor_list_of(unsigned mask)
{
    const struct fx_tensor *some[FX_N];
    uint32_t n = 0;

    for (uint32_t i = 0; i < FX_N; i++)
        if (mask & 1U << i)
            some[n++] = &fx_model[i];
    return fx_tensor_list(some, n);
}
enum { FX_ALL = (1U << FX_N) - 1 };

static inline struct model_spec *fx_model_spec(void)
{
    static const char *const embed[] = {"embed.weight", NULL};
    static const char *const qkv[] = {"layers.0.q", "layers.0.k", "layers.0.v", NULL};
    const struct alias_spec aliases[] = {
        {.name = "lm_head.weight", .kind = ALIAS_TIED, .targets = embed},
        {.name = "layers.0.qkv", .kind = ALIAS_FUSED, .targets = qkv, .ndim = 2, .shape = {16, 8}},
        {.name = "old.scale", .kind = ALIAS_IGNORED},
    };
    struct model_spec *m = NULL;
    struct err e = {0};

    assert_int_equal(model_spec_new(&m, fx_tensor_list_of(FX_ALL), aliases, 3, &e), 0);
    return m;
}

/* The bytes of a tensor of the model at a step; finite as BF16 and F32. Returns how many. */
static inline uint64_t fx_bytes(const char *name, unsigned step, unsigned char *out)
{
    uint64_t n = 0, numel = 1;
    uint32_t i = 0;

    if (strcmp(name, "lm_head.weight") == 0)
        name = "embed.weight";
    if (strcmp(name, "layers.0.qkv") == 0) {
        n += fx_bytes("layers.0.q", step, out + n);
        n += fx_bytes("layers.0.k", step, out + n);
        return n + fx_bytes("layers.0.v", step, out + n);
    }
    if (strcmp(name, "old.scale") == 0) {
        memset(out, 0x55, 20);
        return 20;
    }
    while (strcmp(fx_model[i].name, name) != 0)
        i++;
    for (uint32_t d = 0; d < fx_model[i].ndim; d++)
        numel *= fx_model[i].shape[d];
    n = numel * dtype_nbytes(fx_model[i].dtype);
    for (uint64_t k = 0; k < n; k++)
        out[k] = (unsigned char)((k * 7 + step * 13 + i * 29 + k / 16 * 3) & 0x3f);
    return n;
}

/* Are these exactly the bytes of that step? */
static inline bool fx_is_step(const struct version *v, uint32_t index, unsigned step)
{
    unsigned char want[FX_NBYTES_MAX];
    uint64_t n = fx_bytes(fx_model[index].name, step, want);

    return memcmp(v->views[index].data, want, n) == 0;
}

static inline void fx_assert_step(struct store *s, unsigned step)
{
    const struct version *v = NULL;
    struct err e = {0};

    assert_int_equal(store_pin(s, &v, &e), 0);
    for (uint32_t i = 0; i < FX_N; i++) {
        assert_true(fx_is_step(v, i, step));
        assert_int_equal((uintptr_t)v->views[i].data % dtype_nbytes(fx_model[i].dtype), 0);
    }
    store_unpin(s, v);
}

/* the source */

/* A door in a fill: the test waits until somebody stands at it, and opens it. */
struct fx_pause_controller {
    struct mtx lock;
    struct cnd changed;
    bool entered, open;
    bool late;           /* who comes finds its deadline passed; set before */
    uint64_t stopped_us; /* when a fill was told to stop here */
};

static inline void fx_pause_controller_init(struct fx_pause_controller *g)
{
    memset(g, 0, sizeof *g);
    mtx_init(&g->lock, MTX_LEAF);
    cnd_init(&g->changed);
}

static inline void fx_pause_controller_fini(struct fx_pause_controller *g)
{
    cnd_fini(&g->changed);
    mtx_fini(&g->lock);
}

static inline void fx_pause_controller_await(struct fx_pause_controller *g)
{
    mtx_lock(&g->lock);
    while (!g->entered)
        (void)cnd_wait(&g->changed, &g->lock, CLOCK_NEVER);
    mtx_unlock(&g->lock);
}

static inline void fx_pause_controller_open(struct fx_pause_controller *g)
{
    mtx_lock(&g->lock);
    g->open = true;
    cnd_broadcast(&g->changed);
    mtx_unlock(&g->lock);
}

struct fx_source_cfg {
    unsigned step;
    int fail_at;       /* tensor at which it fails half-way; -1 never */
    int corrupt_at;    /* tensor whose last byte is wrong; -1 never */
    bool short_by_one; /* says done with a byte less */
    bool trailing;     /* finish finds bytes that nobody declared */
    struct fx_pause_controller
        *pause_controller; /* waits there before pause_controller_at; or NULL */
    int pause_controller_at;
    atomic_uint *n_filled, *n_closed; /* counted up; or NULL */
};
#define FX_STEP(n) ((struct fx_source_cfg){.step = (n), .fail_at = -1, .corrupt_at = -1})

struct fx_source {
    struct source source; /* first */
    struct fx_source_cfg cfg;
};

static inline int fx_wait_pause_controller(struct fx_pause_controller *g, struct progress *p,
                                           struct err *e)
{
    int rc = 0;

    mtx_lock(&g->lock);
    g->entered = true;
    cnd_broadcast(&g->changed);
    if (g->late)
        rc = err_set(e, ERR_TIMEOUT, "", "the bytes did not arrive before the deadline");
    while (!g->open && rc == 0) {
        (void)cnd_wait(&g->changed, &g->lock, clock_after_us(FX_POLL_US));
        rc = progress_check(p, e);
    }
    if (rc != 0)
        g->stopped_us = clock_now_us();
    mtx_unlock(&g->lock);
    return rc;
}

/* Bytes as sent: in F32 when the tensor list says so of a BF16 tensor. */
static inline void fx_sent(const struct tensor_spec *t, unsigned step, unsigned char *out)
{
    unsigned char own[FX_NBYTES_MAX];
    uint64_t n = fx_bytes(t->name, step, own);

    if (n == t->nbytes)
        memcpy(out, own, n);
    else
        dtype_convert(out, t->dtype, own, DTYPE_BF16, t->numel);
}

static inline int fx_fill(struct source *src, const struct tensor_list *tensor_list, uint32_t first,
                          uint32_t n, void *dst, struct progress *p, struct err *e)
{
    const struct fx_source_cfg *c = &((struct fx_source *)src)->cfg;
    unsigned char *at = dst, sent[FX_NBYTES_MAX];

    if (c->n_filled != NULL)
        (void)atomic_fetch_add(c->n_filled, 1);
    for (uint32_t i = first; i < first + n; i++) {
        const struct tensor_spec *t = &tensor_list->tensors[i];

        atomic_store(&p->tensor, i);
        if (c->pause_controller != NULL && c->pause_controller_at == (int)i &&
            fx_wait_pause_controller(c->pause_controller, p, e) != 0)
            return -1;
        fx_sent(t, c->step, sent);
        if (c->fail_at == (int)i) {
            memcpy(at, sent, t->nbytes / 2);
            return err_set(e, ERR_UNREADABLE, "", "the object shrank at '%s'", t->name);
        }
        if (c->corrupt_at == (int)i)
            sent[t->nbytes - 1] ^= 1;
        memcpy(at, sent, t->nbytes);
        at += t->nbytes;
        (void)atomic_fetch_add(&p->nbytes_done,
                               t->nbytes - (c->short_by_one && i + 1 == tensor_list->n_tensors));
    }
    return 0;
}

static inline int fx_finish(struct source *src, struct progress *p, struct err *e)
{
    (void)p;
    if (((struct fx_source *)src)->cfg.trailing)
        return err_set(e, ERR_UNREADABLE, "", "1 byte more than declared");
    return 0;
}

static inline void fx_close(struct source *src)
{
    struct fx_source *s = (struct fx_source *)src;

    if (s->cfg.n_closed != NULL)
        (void)atomic_fetch_add(s->cfg.n_closed, 1);
    free(s);
}

static inline struct source *fx_source_new(struct fx_source_cfg cfg)
{
    static const struct source_ops ops = {
        .name = "fake", .fill = fx_fill, .finish = fx_finish, .close = fx_close};
    struct fx_source *s = calloc(1, sizeof *s);

    assert_non_null(s);
    s->source.ops = &ops;
    s->cfg = cfg;
    return &s->source;
}

/* answers */

struct fx_answer {
    struct mtx lock;
    struct cnd came;
    unsigned n;
    struct update_info info;
    struct err e;
};

static inline void fx_answer_init(struct fx_answer *a)
{
    memset(a, 0, sizeof *a);
    mtx_init(&a->lock, MTX_LEAF);
    cnd_init(&a->came);
}

static inline void fx_answer_fini(struct fx_answer *a)
{
    cnd_fini(&a->came);
    mtx_fini(&a->lock);
}

static inline void fx_done(void *arg, const struct update_info *info, const struct err *e)
{
    struct fx_answer *a = arg;

    mtx_assert_none();
    mtx_lock(&a->lock);
    a->info = *info;
    a->e = *e;
    a->n++;
    cnd_broadcast(&a->came);
    mtx_unlock(&a->lock);
}

/* Waits for one more answer and takes it. */
static inline enum err_code fx_await(struct fx_answer *a)
{
    enum err_code code;

    mtx_lock(&a->lock);
    while (a->n == 0)
        (void)cnd_wait(&a->came, &a->lock, CLOCK_NEVER);
    a->n--;
    code = a->e.code;
    mtx_unlock(&a->lock);
    return code;
}

#endif
