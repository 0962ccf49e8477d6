/* A source that writes buckets into the memory of every GPU itself, as a broadcast does. It notes
 * where each bucket went, and what became of those that take part in it. */
#ifndef BATON_TESTS_RECV_FIXTURE_H
#define BATON_TESTS_RECV_FIXTURE_H

#include "tests/unit/weights/map_fixture.h"
#include "weights/update/update_chunk_priv.h"

enum { RFX_BUCKETS_MAX = 64, RFX_GROUP = 7 };

/* What the senders of a test saw. Written by the worker; read when its sources are closed, or while
 * it waits at a gate. */
struct rfx_group {
    unsigned n_buckets;                           /* posted, of the last source */
    unsigned n_ahead;                             /* at most so many were under way, of any */
    uint64_t dst[RFX_BUCKETS_MAX][MFX_RANKS_MAX]; /* of its buckets */
    unsigned n_whole, n_torn; /* sources of which all was received, or only a part */
};

struct rfx_cfg {
    unsigned step;
    unsigned n_each;         /* tensors of a bucket; 0: all in one */
    int corrupt_rank;        /* -1: every rank */
    int corrupt_at;          /* the tensor whose last byte is wrong; -1: none */
    int fail_at;             /* the bucket of which only half comes; -1: none */
    int fail_post_at;        /* the bucket that cannot be posted any more; -1: none */
    enum err_code fail_code; /* what is said then */
    bool stuck;              /* and its bucket may be written to for ever */
    bool more;               /* in the end there is something that nobody declared */
    struct fx_pause_controller
        *pause_controller; /* waits there in the middle of bucket pause_controller_at; or NULL */
    int pause_controller_at;
    int unheld_at;           /* from this bucket on nothing comes while the GPUs are held; -1 */
    struct rfx_group *group; /* or NULL */
};
#define RFX_STEP(n)                                                                                \
    ((struct rfx_cfg){.step = (n),                                                                 \
                      .corrupt_rank = -1,                                                          \
                      .corrupt_at = -1,                                                            \
                      .fail_at = -1,                                                               \
                      .fail_post_at = -1,                                                          \
                      .unheld_at = -1})

struct rfx_source {
    struct source source; /* first */
    struct rfx_cfg cfg;
    struct mfx_watch *watch;
    struct tensor_list *tensor_list; /* counted */
    fakecuda_view_fn *view;
    unsigned n_ranks;
    uint32_t n_posted, n_received; /* tensors */
    int n_buckets;                 /* posted */
    int i_bucket;                  /* ... and of those the next that comes: */
    uint64_t dst[SOURCE_POSTED_MAX][MFX_RANKS_MAX];
    bool failed, finished;
};

static inline uint32_t rfx_bucket(const struct source *src, uint32_t first)
{
    const struct rfx_source *s = (const struct rfx_source *)src;
    uint32_t left = s->tensor_list->n_tensors - first;

    mfx_must(s->watch, first < s->tensor_list->n_tensors, "a bucket behind the last tensor");
    return s->cfg.n_each == 0 || s->cfg.n_each > left ? left : s->cfg.n_each;
}

/* As mfx_sent, and tensors that are too large for it: all bytes alike. */
static inline void rfx_sent(const struct tensor_spec *t, unsigned step, unsigned char *out)
{
    if (t->nbytes > FX_NBYTES_MAX)
        memset(out, (int)(step * 16 + strlen(t->name)), t->nbytes);
    else
        mfx_sent(t, step, out);
}

/* Tensors [first, first + n) to one rank, past the driver: nothing is counted as a copy. */
static inline void rfx_write(struct rfx_source *s, unsigned rank, uint32_t first, uint32_t n,
                             uint64_t dst)
{
    for (uint32_t i = first; i < first + n; i++) {
        const struct tensor_spec *t = &s->tensor_list->tensors[i];
        uint64_t at = dst + t->offset - s->tensor_list->tensors[first].offset;
        unsigned char *to = t->nbytes > 0 ? s->view(at, t->nbytes) : NULL;

        mfx_must(s->watch, to != NULL || t->nbytes == 0, "a bucket has no memory to come to");
        if (to == NULL)
            continue;
        rfx_sent(t, s->cfg.step, to);
        if (s->cfg.corrupt_at == (int)i &&
            (s->cfg.corrupt_rank < 0 || s->cfg.corrupt_rank == (int)rank))
            to[t->nbytes - 1] ^= 1;
    }
}

static inline void rfx_write_all(struct rfx_source *s, uint32_t first, uint32_t n, uint64_t skipped,
                                 const uint64_t *dst)
{
    const struct tensor_spec *t = s->tensor_list->tensors;

    for (unsigned r = 0; r < s->n_ranks && n > 0; r++)
        rfx_write(s, r, first, n, dst[r] + t[first].offset - skipped);
}

/* What is posted may be written to from now on: whoever still needs what was there finds it gone.
 */
static inline void rfx_spoil(struct rfx_source *s, uint32_t first, uint32_t n, const uint64_t *dst)
{
    const struct tensor_spec *t = s->tensor_list->tensors, *last = &t[first + n - 1];
    uint64_t nbytes = last->offset + last->nbytes - t[first].offset;

    for (unsigned r = 0; r < s->n_ranks && nbytes > 0; r++) {
        unsigned char *to = s->view(dst[r], nbytes);

        mfx_must(s->watch, to != NULL, "a bucket has no memory to come to");
        if (to != NULL)
            memset(to, 0xee, nbytes);
    }
}

static inline int rfx_post(struct source *src, uint32_t first, uint32_t n, const uint64_t *dst,
                           struct progress *p, struct err *e)
{
    struct rfx_source *s = (struct rfx_source *)src;
    const struct rfx_cfg *c = &s->cfg;
    int bucket = s->n_buckets;
    unsigned ahead = (unsigned)(bucket - s->i_bucket) + 1;

    (void)p;
    mtx_assert_none();
    mfx_must(s->watch, first == s->n_posted && n == rfx_bucket(src, first),
             "a bucket out of order");
    mfx_must(s->watch, !s->failed && !s->finished, "a bucket behind the end");
    mfx_must(s->watch, ahead <= SOURCE_POSTED_MAX, "too many buckets at once");
    mfx_must(s->watch, c->unheld_at < 0 || bucket < c->unheld_at || !mfx_held(s->watch),
             "a bucket may come to memory that is still read");
    if (c->fail_post_at == bucket) {
        s->failed = true;
        return err_set(e, c->fail_code, "", "the sender died");
    }
    mfx_log(s->watch, 'P', bucket);
    s->n_buckets++;
    s->n_posted = first + n;
    memcpy(s->dst[bucket % SOURCE_POSTED_MAX], dst, s->n_ranks * sizeof *dst);
    rfx_spoil(s, first, n, dst);
    if (c->group == NULL || bucket >= RFX_BUCKETS_MAX)
        return 0;
    c->group->n_buckets = (unsigned)bucket + 1;
    c->group->n_ahead = ahead > c->group->n_ahead ? ahead : c->group->n_ahead;
    memcpy(c->group->dst[bucket], dst, s->n_ranks * sizeof *dst);
    return 0;
}

static inline int rfx_receive(struct source *src, struct progress *p, struct err *e)
{
    struct rfx_source *s = (struct rfx_source *)src;
    const struct rfx_cfg *c = &s->cfg;
    uint32_t first = s->n_received, n = rfx_bucket(src, first);
    uint64_t start = s->tensor_list->tensors[first].offset;
    const uint64_t *dst = s->dst[s->i_bucket % SOURCE_POSTED_MAX];
    int bucket = s->i_bucket++, rc = 0;

    mtx_assert_none();
    mfx_must(s->watch, bucket < s->n_buckets, "a bucket is waited for that was not posted");
    mfx_must(s->watch, !s->failed && !s->finished, "a bucket behind the end");
    mfx_log(s->watch, 'V', bucket);
    rfx_write_all(s, first, n / 2, start, dst);
    if (c->pause_controller != NULL && c->pause_controller_at == bucket)
        rc = fx_wait_pause_controller(c->pause_controller, p, e);
    else
        rc = progress_check(p, e);
    if (rc == 0 && c->fail_at == bucket)
        rc = err_set(e, c->fail_code, "", "the sender died");
    s->failed = rc != 0;
    if (rc == 0) {
        rfx_write_all(s, first + n / 2, n - n / 2, start, dst);
        s->n_received = first + n;
    }
    return rc;
}

static inline bool rfx_stuck(const struct source *src)
{
    const struct rfx_source *s = (const struct rfx_source *)src;

    mfx_must(s->watch, s->failed, "asked whether it is stuck before it failed");
    return s->cfg.stuck;
}

static inline int rfx_finish(struct source *src, struct progress *p, struct err *e)
{
    struct rfx_source *s = (struct rfx_source *)src;

    (void)p;
    mfx_must(s->watch, s->n_received == s->tensor_list->n_tensors && !s->finished,
             "finished half-way");
    s->finished = true;
    return s->cfg.more ? err_set(e, ERR_UNREADABLE, "", "more than was declared") : 0;
}

static inline void rfx_close(struct source *src)
{
    struct rfx_source *s = (struct rfx_source *)src;

    if (s->cfg.group != NULL && s->n_posted > 0)
        (*(s->n_received == s->tensor_list->n_tensors ? &s->cfg.group->n_whole
                                                      : &s->cfg.group->n_torn))++;
    tensor_list_unref(s->tensor_list);
    mfx_count(s->watch, &s->watch->n_closed);
    mfx_log(s->watch, 'C', -1);
    free(s);
}

static inline uint64_t rfx_group_of(const struct source *src)
{
    (void)src;
    return RFX_GROUP;
}

/* A chunk that is received. @tensor_list moved in */
static inline struct update_chunk *rfx_chunk(struct gpus *g, const char *id,
                                             struct tensor_list *tensor_list, struct rfx_cfg cfg)
{
    static const struct source_ops ops = {.name = "received",
                                          .bucket = rfx_bucket,
                                          .post = rfx_post,
                                          .receive = rfx_receive,
                                          .stuck = rfx_stuck,
                                          .group = rfx_group_of,
                                          .finish = rfx_finish,
                                          .close = rfx_close};
    struct update_chunk *c = mfx_chunk_empty(g, id);
    struct rfx_source *s = calloc(1, sizeof *s);

    assert_non_null(s);
    s->source.ops = &ops;
    s->cfg = cfg;
    s->watch = &g->watch;
    s->tensor_list = tensor_list_ref(tensor_list);
    s->n_ranks = g->n_devices;
    mfx_bind(g->lib, &s->view, "fakecuda_view");
    c->tensor_list = tensor_list;
    c->source = &s->source;
    g->watch.n_sources++;
    return c;
}

/* The model in an order in which nothing comes to lie misaligned: the tensor of 3 bytes is last. */
static inline struct tensor_list *rfx_tensor_list(void)
{
    static const struct fx_tensor *const tensors[FX_N] = {&fx_model[0], &fx_model[1], &fx_model[2],
                                                          &fx_model[3], &fx_model[4], &fx_model[6],
                                                          &fx_model[5]};

    return fx_tensor_list(tensors, FX_N);
}

static inline enum err_code rfx_push(struct gpus *g, struct rfx_cfg cfg)
{
    return mfx_send(g, rfx_chunk(g, "", rfx_tensor_list(), cfg));
}

#endif
