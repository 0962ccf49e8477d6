/* A source that shows bytes in the memory of GPUs: a trainer in the same process, without handles.
 * It logs what is asked of it and notes what a source must never see; when it is released its bytes
 * become others, as a trainer's do. Around it the calls that tests make. */
#ifndef BATON_TESTS_MAP_FIXTURE_H
#define BATON_TESTS_MAP_FIXTURE_H

#include "tests/unit/weights/gpus_fixture.h"

enum { MFX_GAP_NBYTES = 512 };

struct mfx_cfg {
    unsigned step;
    unsigned n_each;  /* tensors of a bucket; 0: all in one */
    bool scattered;   /* an address of its own for each, in another order */
    int corrupt_rank; /* -1: every rank */
    int corrupt_at;   /* the tensor whose last byte is wrong; -1: none */
    int fail_map;     /* the call of map that fails, counted from 0; -1: none */
    int fail_release; /* 1: says that the exporter has died */
    bool fail_join;
    unsigned n_not_ready; /* so many calls of map with SOURCE_TRY say "not yet", */
    int not_ready_at;     /* from this bucket on */
    struct fx_pause_controller
        *pause_controller; /* map waits there before bucket pause_controller_at; or NULL */
    int pause_controller_at;
    int id; /* in the log */
};
#define MFX_STEP(n)                                                                                \
    ((struct mfx_cfg){.step = (n), .corrupt_rank = -1, .corrupt_at = -1, .fail_map = -1})

struct mfx_scope {
    struct source_scope scope; /* first */
    struct mfx_watch *watch;
    unsigned n_users; /* joined and not released */
    struct source_counts counts;
};

struct mfx_rank {
    struct device *device;
    struct tensor_list *tensor_list; /* counted */
    uint64_t block, nbytes;
    uint64_t *at;      /* [n_tensors] */
    uint32_t n_mapped; /* tensors */
};

struct mfx_source {
    struct source source; /* first */
    struct mfx_cfg cfg;
    struct mfx_watch *watch;
    struct mfx_scope *scope; /* between join and release */
    bool joined, released;
    int n_maps;
    unsigned n_ranks;
    struct mfx_rank ranks[MFX_RANKS_MAX];
};

static inline void mfx_scope_counts(const struct source_scope *scope, struct source_counts *out)
{
    *out = ((const struct mfx_scope *)scope)->counts;
}

static inline void mfx_scope_close(struct source_scope *scope)
{
    struct mfx_scope *s = (struct mfx_scope *)scope;

    mfx_must(s->watch, s->n_users == 0, "a scope was closed before its sources were released");
    mfx_count(s->watch, &s->watch->n_scopes_closed);
    mfx_log(s->watch, 'S', -1);
    free(s);
}

static inline int mfx_join(struct source *src, struct source_scope **scope, struct err *e)
{
    static const struct source_scope_ops ops = {.counts = mfx_scope_counts,
                                                .close = mfx_scope_close};
    struct mfx_source *s = (struct mfx_source *)src;

    mfx_must(s->watch, !s->joined, "a source joined twice");
    s->joined = true;
    mfx_count(s->watch, &s->watch->n_joined);
    mfx_log(s->watch, 'J', s->cfg.id);
    if (s->cfg.fail_join)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to join");
    if (*scope == NULL) {
        struct mfx_scope *made = calloc(1, sizeof *made);

        if (made == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for a scope");
        made->scope.ops = &ops;
        made->watch = s->watch;
        mfx_count(s->watch, &s->watch->n_scopes);
        *scope = &made->scope;
    }
    s->scope = (struct mfx_scope *)*scope;
    s->scope->n_users++;
    return 0;
}

static inline int mfx_map(struct source *src, uint32_t rank, uint32_t first, enum source_wait wait,
                          const struct progress *p, uint32_t *n, struct err *e)
{
    struct mfx_source *s = (struct mfx_source *)src;
    struct mfx_rank *r = &s->ranks[rank];
    uint32_t n_each = s->cfg.n_each;

    mfx_must(s->watch, s->joined && !s->released, "map outside of join and release");
    mfx_must(s->watch, rank < s->n_ranks && r->tensor_list != NULL,
             "map of a rank that gets nothing");
    mfx_must(s->watch, first == r->n_mapped && first < r->tensor_list->n_tensors,
             "map out of order");
    if (s->cfg.pause_controller != NULL && s->cfg.pause_controller_at == s->n_maps &&
        fx_wait_pause_controller(s->cfg.pause_controller, (struct progress *)(uintptr_t)p, e) !=
            0) {
        mfx_log(s->watch, 'X', s->cfg.id);
        return -1;
    }
    if (wait == SOURCE_TRY && s->cfg.n_not_ready > 0 && s->n_maps >= s->cfg.not_ready_at) {
        s->cfg.n_not_ready--;
        mfx_log(s->watch, 'N', s->cfg.id);
        return 1;
    }
    if (s->n_maps++ == s->cfg.fail_map)
        return err_set(e, ERR_GONE, "", "the exporter died before its bucket was mapped");
    if (n_each == 0 || n_each > r->tensor_list->n_tensors - first)
        n_each = r->tensor_list->n_tensors - first;
    r->n_mapped += *n = n_each;
    s->scope->counts.n_opened++;
    s->scope->counts.n_mapped++;
    mfx_log(s->watch, 'M', s->cfg.id);
    return 0;
}

static inline uint64_t mfx_at(const struct source *src, uint32_t rank, uint32_t i)
{
    const struct mfx_source *s = (const struct mfx_source *)src;

    mfx_must(s->watch, s->joined && !s->released && i < s->ranks[rank].n_mapped,
             "an address was asked for outside of map and release");
    return s->ranks[rank].at[i];
}

static inline uint64_t mfx_block(const struct source *src, uint32_t rank, uint32_t i)
{
    (void)i;
    return ((const struct mfx_source *)src)->ranks[rank].block;
}

/* The trainer may do with its memory what it likes, and does. */
static inline void mfx_reuse(struct mfx_source *s)
{
    for (unsigned r = 0; r < s->n_ranks; r++) {
        struct mfx_rank *rank = &s->ranks[r];
        struct err e = {0};
        void *junk = rank->block != 0 ? malloc(rank->nbytes) : NULL;

        if (junk == NULL)
            continue;
        memset(junk, 0xee, rank->nbytes);
        (void)device_write(rank->device, rank->block, junk, rank->nbytes, &e);
        free(junk);
    }
}

static inline int mfx_release(struct source *src, struct err *e)
{
    struct mfx_source *s = (struct mfx_source *)src;
    bool early = s->n_maps > 0 && mfx_held(s->watch);

    mfx_must(s->watch, s->joined && !s->released, "a source was released twice, or not joined");
    mfx_must(s->watch, !early, "a source was released while the GPU read from it");
    s->released = true;
    mfx_count(s->watch, &s->watch->n_released);
    mfx_log(s->watch, 'R', s->cfg.id);
    if (s->scope != NULL)
        s->scope->n_users--;
    if (s->scope != NULL)
        s->scope->counts.n_mapped = 0;
    s->scope = NULL;
    if (!early)
        mfx_reuse(s);
    if (s->cfg.fail_release)
        return err_set(e, ERR_GONE, "", "the exporter died meanwhile");
    return 0;
}

static inline void mfx_close(struct source *src)
{
    struct mfx_source *s = (struct mfx_source *)src;

    mfx_must(s->watch, s->joined == s->released, "a source was closed before its release");
    for (unsigned r = 0; r < s->n_ranks; r++) {
        struct mfx_rank *rank = &s->ranks[r];

        if (rank->block != 0) {
            struct slab_memory m = device_memory(rank->device);

            m.give(m.arg, rank->block, rank->nbytes);
        }
        tensor_list_unref(rank->tensor_list);
        free(rank->at);
    }
    mfx_count(s->watch, &s->watch->n_closed);
    mfx_log(s->watch, 'C', s->cfg.id);
    free(s);
}

static inline bool mfx_corrupt(const struct mfx_cfg *c, unsigned rank, uint32_t i)
{
    return c->corrupt_at == (int)i && (c->corrupt_rank < 0 || c->corrupt_rank == (int)rank);
}

/* The name whose last element is sent as NaN, or NULL. */
static const char *mfx_nan;

/* Bytes as a rank sends them: of fx_model, of made-up names "made.<n>", or none. */
static inline void mfx_sent(const struct tensor_spec *t, unsigned step, unsigned char *out)
{
    unsigned n;

    if (sscanf(t->name, "made.%u", &n) == 1)
        for (uint64_t k = 0; k < t->nbytes; k++)
            out[k] = (unsigned char)((k * 5 + step * 11 + n * 3) & 0x3f);
    else if (t->nbytes > 0)
        fx_sent(t, step, out);
    if (mfx_nan != NULL && strcmp(t->name, mfx_nan) == 0)
        memset(out + t->nbytes - dtype_nbytes(t->dtype), 0xff, dtype_nbytes(t->dtype));
}

/* Puts a rank's tensors into its GPU's memory: packed as they come, each bucket on its own. */
static inline void mfx_place(struct mfx_source *s, unsigned rank)
{
    struct mfx_rank *r = &s->ranks[rank];
    uint32_t n = r->tensor_list->n_tensors, n_each = s->cfg.n_each == 0 ? n : s->cfg.n_each;
    struct slab_memory memory = device_memory(r->device);
    struct err e = {0};

    r->nbytes = r->tensor_list->nbytes + (uint64_t)(n + 1) * MFX_GAP_NBYTES;
    r->at = calloc(n, sizeof *r->at);
    assert_non_null(r->at);
    assert_int_equal(memory.take(memory.arg, r->nbytes, &r->block, &e), 0);
    for (uint32_t i = 0; i < n; i++) {
        const struct tensor_spec *t = &r->tensor_list->tensors[i];
        unsigned char sent[FX_NBYTES_MAX];

        r->at[i] = s->cfg.scattered
                       ? r->block + r->nbytes - (i + 1) * MFX_GAP_NBYTES - t->offset - t->nbytes
                       : r->block + t->offset + i / n_each * MFX_GAP_NBYTES;
        mfx_sent(t, s->cfg.step, sent);
        if (mfx_corrupt(&s->cfg, rank, i))
            sent[t->nbytes - 1] ^= 1;
        assert_int_equal(device_write(r->device, r->at[i], sent, t->nbytes, &e), 0);
    }
}

static inline struct source *mfx_source_new(struct gpus *g, struct tensor_list *const *tensor_lists,
                                            struct mfx_cfg cfg)
{
    static const struct source_ops ops = {.name = "mapped",
                                          .join = mfx_join,
                                          .map = mfx_map,
                                          .at = mfx_at,
                                          .block = mfx_block,
                                          .release = mfx_release,
                                          .close = mfx_close};
    struct mfx_source *s = calloc(1, sizeof *s);

    assert_non_null(s);
    s->source.ops = &ops;
    s->cfg = cfg;
    s->watch = &g->watch;
    s->n_ranks = g->n_devices;
    for (unsigned r = 0; r < g->n_devices; r++) {
        s->ranks[r].device = g->devices[r];
        if (tensor_lists[r] == NULL)
            continue;
        s->ranks[r].tensor_list = tensor_list_ref(tensor_lists[r]);
        mfx_place(s, r);
    }
    g->watch.n_sources++;
    return &s->source;
}

/* The checksums of a tensor list's tensors as sent; heap. */
static inline struct checksum *mfx_sums(const struct tensor_list *tensor_list, unsigned step)
{
    struct checksum *sums = calloc(tensor_list->n_tensors, sizeof *sums);
    unsigned char sent[FX_NBYTES_MAX];

    assert_non_null(sums);
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        mfx_sent(&tensor_list->tensors[i], step, sent);
        sums[i] = checksum_of(sent, tensor_list->tensors[i].nbytes);
    }
    return sums;
}

static inline struct update_chunk *mfx_chunk_empty(struct gpus *g, const char *id)
{
    struct update_chunk *c = calloc(1, sizeof *c);

    assert_non_null(c);
    (void)snprintf(c->update_id, sizeof c->update_id, "%s", id);
    c->done = fx_done;
    c->done_arg = &g->b.answer;
    return c;
}

/* A chunk that brings the same to every rank. @tensor_list moved in */
static inline struct update_chunk *mfx_chunk(struct gpus *g, const char *id,
                                             struct tensor_list *tensor_list, struct mfx_cfg cfg)
{
    struct tensor_list *tensor_lists[MFX_RANKS_MAX] = {tensor_list, tensor_list, tensor_list};
    struct update_chunk *c = mfx_chunk_empty(g, id);

    c->tensor_list = tensor_list;
    c->source = mfx_source_new(g, tensor_lists, cfg);
    return c;
}

/* A chunk of one tensor list for each rank, or NULL. @plans moved in */
static inline struct update_chunk *mfx_ranked(struct gpus *g, const char *id,
                                              struct tensor_list *const *tensor_lists,
                                              struct mfx_cfg cfg)
{
    struct update_chunk *c = mfx_chunk_empty(g, id);

    c->n_ranks = g->n_devices;
    c->ranks = calloc(c->n_ranks, sizeof *c->ranks);
    assert_non_null(c->ranks);
    for (unsigned r = 0; r < g->n_devices; r++) {
        c->ranks[r].tensor_list = tensor_lists[r];
        if (c->tensor_list == NULL && tensor_lists[r] != NULL)
            c->tensor_list = tensor_list_ref(tensor_lists[r]);
    }
    c->source = mfx_source_new(g, tensor_lists, cfg);
    return c;
}

static inline enum err_code mfx_send(struct gpus *g, struct update_chunk *c)
{
    submit(&g->b, c);
    return fx_await(&g->b.answer);
}

/* A whole update by itself of those tensors. */
static inline enum err_code mfx_push(struct gpus *g, unsigned step)
{
    return mfx_send(g, mfx_chunk(g, "", fx_tensor_list_of(FX_ALL), MFX_STEP(step)));
}

/* Fused names, tied ones, ignored ones, all in F32. */
static inline struct tensor_list *mfx_wide_tensor_list(void)
{
    const struct fx_tensor *from[] = {&fx_model[0], &fx_qkv,      &fx_lm_head, &fx_old_scale,
                                      &fx_model[5], &fx_model[6], &fx_model[4]};
    struct fx_tensor wide[FX_N];
    const struct fx_tensor *tensors[FX_N];

    for (int i = 0; i < FX_N; i++) {
        wide[i] = *from[i];
        if (wide[i].dtype == DTYPE_BF16)
            wide[i].dtype = DTYPE_F32;
        tensors[i] = &wide[i];
    }
    return fx_tensor_list(tensors, FX_N);
}

/* The model, and one of its names a second time. */
static inline struct tensor_list *mfx_tied_tensor_list(bool before)
{
    const struct fx_tensor *tensors[FX_N + 1];

    for (int i = 0; i < FX_N; i++)
        tensors[i + before] = &fx_model[i];
    tensors[before ? 0 : FX_N] = &fx_lm_head;
    return fx_tensor_list(tensors, FX_N + 1);
}

/* What is served. */

/* Exactly those bytes, where they are served in a place, aligned for their dtype. */
static inline void mfx_assert_view(struct gpus *g, const struct version *v, uint32_t place,
                                   uint32_t i, unsigned step)
{
    const struct tensor_spec *t = &store_model_spec(g->b.store)->tensor_list->tensors[i];
    const struct view *view = &v->places[place][i];
    struct device *d = store_device(g->b.store, place);
    unsigned char want[FX_NBYTES_MAX], is[FX_NBYTES_MAX];
    struct err e = {0};

    assert_non_null(view->slab);
    assert_int_equal(view->addr % dtype_nbytes(t->dtype), 0);
    assert_true(view->addr >= view->slab->addr &&
                view->addr + t->nbytes <= view->slab->addr + view->slab->nbytes);
    mfx_sent(t, step, want);
    if (d != NULL)
        assert_int_equal(device_read(d, is, view->addr, t->nbytes, &e), 0);
    else
        memcpy(is, view->data, t->nbytes);
    if (memcmp(is, want, t->nbytes) != 0)
        fail_msg("'%s' on %s is not that of step %u", t->name, store_place_name(g->b.store, place),
                 step);
}

/* Should a rank hold tensor i? @masks  [n_ranks]; NULL: all, or those it owns */
static inline bool mfx_holds(const struct store *s, const unsigned *masks, uint32_t place,
                             uint32_t i)
{
    if (place >= store_n_ranks(s))
        return true;
    if (masks != NULL)
        return (masks[place] & 1U << i) != 0;
    return !store_sharded(s) || store_owner(s, i) == place;
}

/* @masks  [n_ranks] which tensors a rank holds; NULL: all, or those it owns */
static inline void mfx_assert_held(struct gpus *g, const unsigned *masks, unsigned step)
{
    struct store *s = g->b.store;
    uint32_t n = store_model_spec(s)->tensor_list->n_tensors;
    const struct version *v = NULL;
    struct err e = {0};

    assert_int_equal(store_pin(s, &v, &e), 0);
    for (uint32_t p = 0; p < store_n_places(s); p++) {
        for (uint32_t i = 0; i < n; i++) {
            if (mfx_holds(s, masks, p, i))
                mfx_assert_view(g, v, p, i, step);
            else
                assert_null(v->places[p][i].slab);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct tensor_spec *t = &store_model_spec(s)->tensor_list->tensors[i];
        unsigned char want[FX_NBYTES_MAX], is[FX_NBYTES_MAX];

        mfx_sent(t, step, want);
        assert_int_equal(store_read(s, v, i, 0, t->nbytes, is, &e), 0);
        assert_memory_equal(is, want, t->nbytes);
    }
    store_unpin(s, v);
}

static inline void mfx_assert_step(struct gpus *g, unsigned step)
{
    mfx_assert_held(g, NULL, step);
}

static inline struct store_info mfx_info(struct gpus *g)
{
    struct store_info info;

    store_info(g->b.store, &info);
    return info;
}

static inline void mfx_abort(struct gpus *g, const char *id)
{
    struct update_info info;
    struct err e = {0};

    assert_int_equal(updates_abort(g->b.updates, id, "", &info, &e), 0);
}

#endif
