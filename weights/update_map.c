/* Chunks whose source shows where the bytes lie on GPUs: the copies are queued here, bucket by
 * bucket, while the next one is being mapped.
 *
 * Neighbours on both sides are one copy. With checksums every tensor is a piece of its own, summed
 * in the pass that copies it. What a copy alone cannot do (convert, compare, drop) waits until the
 * copies are done and passes through the host. */
#include "weights/update_chunk_priv.h"

#include <stdlib.h>
#include <string.h>

/* One side of a copy: an address, and the allocation that it lies in. */
struct end {
    uint64_t addr, block;
};

/* Pieces of one kind, growing. */
struct pieces {
    struct device_piece *items; /* owned */
    uint32_t n, cap;
    uint64_t src_block, dst_block; /* of the last one */
};

static int piece_push(struct pieces *p, uint64_t src, uint64_t dst, uint64_t nbytes, struct err *e)
{
    if (p->n == p->cap) {
        uint32_t cap = p->cap == 0 ? 64 : p->cap * 2;
        struct device_piece *grown = realloc(p->items, cap * sizeof *grown);

        if (grown == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for a bucket's copies");
        p->items = grown;
        p->cap = cap;
    }
    p->items[p->n++] = (struct device_piece){src, dst, nbytes};
    return 0;
}

/* As piece_push, but prolongs the last one where both sides go on in the same allocations: the
 * driver refuses a copy that reaches into two. */
static int piece_join(struct pieces *p, struct end src, struct end dst, uint64_t nbytes,
                      struct err *e)
{
    struct device_piece *last = p->n > 0 ? &p->items[p->n - 1] : NULL;

    if (nbytes == 0)
        return 0;
    if (last != NULL && last->src + last->nbytes == src.addr && p->src_block == src.block &&
        last->dst + last->nbytes == dst.addr && p->dst_block == dst.block) {
        last->nbytes += nbytes;
        return 0;
    }
    p->src_block = src.block;
    p->dst_block = dst.block;
    return piece_push(p, src.addr, dst.addr, nbytes, e);
}

static struct end end_of_spot(const struct fill *f, struct spot at, const struct part *part,
                              uint32_t k)
{
    return (struct end){spot_target(f, at, part, k),
                        (uint64_t)(uintptr_t)spot_slab(f, at, part, k)};
}

static uint64_t source_at(const struct fill *f, uint32_t rank, uint32_t i)
{
    return f->source->ops->at(f->source, rank, i);
}

/* Where the whole of a DIRECT part lies back to back on its rank, or 0. */
static uint64_t place_of_part(const struct fill *f, uint32_t rank, const struct part *part)
{
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);
    uint64_t start, end;

    if (part->how != PART_DIRECT)
        return 0;
    start = end = spot_target(f, spot_of_rank(f, rank), part, 0);
    for (uint32_t k = 0; k < n; k++) {
        if (spot_target(f, spot_of_rank(f, rank), part, k) != end ||
            spot_slab(f, spot_of_rank(f, rank), part, k) !=
                spot_slab(f, spot_of_rank(f, rank), part, 0))
            return 0;
        end += target_spec(f, targets[k])->nbytes;
    }
    return start;
}

/* The copies of a part, one for each piece of it that lies elsewhere. */
static int join_part(const struct fill *f, uint32_t rank, uint32_t i, struct pieces *p,
                     struct err *e)
{
    const struct part *part = &f->ranks[rank].layout->parts[i];
    struct end src = {source_at(f, rank, i), f->source->ops->block(f->source, rank, i)};
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);

    for (uint32_t k = 0; k < n; k++) {
        uint64_t nbytes = target_spec(f, targets[k])->nbytes;

        if (piece_join(p, src, end_of_spot(f, spot_of_rank(f, rank), part, k), nbytes, e) != 0)
            return -1;
        src.addr += nbytes;
    }
    return 0;
}

/* Every tensor of [first, first + n) is one piece, so that each gets its sum; what cannot be copied
 * as it comes is only summed where it lies. */
static int queue_summed(struct fill *f, uint32_t rank, uint32_t first, uint32_t n,
                        struct pieces *rest, struct err *e)
{
    struct rank_fill *r = &f->ranks[rank];
    struct pieces p = {0};
    int rc = 0;

    for (uint32_t i = first; i < first + n && rc == 0; i++) {
        const struct part *part = &r->layout->parts[i];
        uint64_t src = source_at(f, rank, i), dst = place_of_part(f, rank, part);

        rc = piece_push(&p, src, dst != 0 ? dst : src, r->plan->tensors[i].nbytes, e);
        if (rc == 0 && dst == 0 && part->how == PART_DIRECT)
            rc = join_part(f, rank, i, rest, e);
    }
    if (rc == 0)
        rc = device_batch_copy(r->batch, p.items, p.n, r->sums + first, e);
    free(p.items);
    return rc;
}

static int queue_copies(struct fill *f, uint32_t rank, uint32_t first, uint32_t n, struct err *e)
{
    struct rank_fill *r = &f->ranks[rank];
    struct pieces p = {0};
    int rc = 0;

    if (r->sums != NULL)
        rc = queue_summed(f, rank, first, n, &p, e);
    for (uint32_t i = first; r->sums == NULL && i < first + n && rc == 0; i++)
        if (r->layout->parts[i].how == PART_DIRECT)
            rc = join_part(f, rank, i, &p, e);
    if (rc == 0 && p.n > 0)
        rc = device_batch_copy(r->batch, p.items, p.n, NULL, e);
    free(p.items);
    return rc;
}

/* From the rank's place to the host's copy, behind the copies that bring it there. */
static int queue_mirror(struct fill *f, uint32_t rank, uint32_t first, uint32_t n, struct err *e)
{
    struct rank_fill *r = &f->ranks[rank];
    struct pieces p = {0};
    int rc = 0;

    for (uint32_t i = first; i < first + n && rc == 0; i++) {
        const struct part *part = &r->layout->parts[i];
        uint32_t n_targets;
        const uint32_t *targets = match_targets(&part->match, &n_targets);

        for (uint32_t k = 0; k < n_targets && rc == 0 && part->how == PART_DIRECT; k++)
            if (fill_mirrors(f, rank, targets[k]))
                rc = piece_join(&p, end_of_spot(f, spot_of_rank(f, rank), part, k),
                                end_of_spot(f, spot_of_mirror(f, rank), part, k),
                                target_spec(f, targets[k])->nbytes, e);
    }
    for (uint32_t i = 0; i < p.n && rc == 0; i++)
        rc = device_batch_to_host(r->batch, (void *)(uintptr_t)p.items[i].dst, p.items[i].src,
                                  p.items[i].nbytes, e);
    free(p.items);
    return rc;
}

static void touch(struct fill *f, uint32_t rank, uint32_t i)
{
    const struct part *part = &f->ranks[rank].layout->parts[i];

    fill_touch(f, rank, part);
    if (f->ranks[rank].mirrored)
        fill_touch(f, store_host_place(f->store), part);
}

/* The next bucket of a rank. */
static int queue_bucket(struct fill *f, uint32_t rank, enum source_wait wait, struct err *e)
{
    struct rank_fill *r = &f->ranks[rank];
    uint32_t n, first = r->next;
    int rc = f->source->ops->map(f->source, rank, first, wait, &f->job->progress, &n, e);

    if (rc != 0)
        return rc;
    atomic_store_explicit(&f->job->progress.tensor, first, memory_order_relaxed);
    for (uint32_t i = first; i < first + n; i++)
        if (r->layout->parts[i].how == PART_DIRECT)
            touch(f, rank, i);
    if (queue_copies(f, rank, first, n, e) != 0 ||
        (r->mirrored && queue_mirror(f, rank, first, n, e) != 0))
        return -1;
    r->next = first + n;
    return 0;
}

static int rank_prepare(struct fill *f, uint32_t rank, struct err *e)
{
    struct rank_fill *r = &f->ranks[rank];

    if (r->plan == NULL || r->batch != NULL)
        return 0;
    if (r->checksums != NULL && r->sums == NULL) {
        r->sums = calloc(r->plan->n_tensors, sizeof *r->sums);
        if (r->sums == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for the checksums");
    }
    return device_batch_new(store_device(f->store, rank), &r->batch, e);
}

int chunk_map_begin(struct fill *f, enum source_wait wait, struct err *e)
{
    bool more = true;

    if (!f->joined) {
        f->joined = true; /* to be released, whatever comes of it */
        if (f->source->ops->join(f->source, &f->session->scope, e) != 0)
            return -1;
    }
    for (uint32_t r = 0; r < f->n_ranks; r++)
        if (rank_prepare(f, r, e) != 0)
            return -1;
    while (more) { /* a bucket of each rank in turn, so that all GPUs copy at the same time */
        more = false;
        for (uint32_t r = 0; r < f->n_ranks; r++) {
            int rc;

            if (f->ranks[r].plan == NULL || f->ranks[r].next == f->ranks[r].plan->n_tensors)
                continue;
            more = true;
            rc = queue_bucket(f, r, wait, e);
            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

/* Converted on the host, and brought to the rank and the host's copy. */
static int slow_convert(struct fill *f, uint32_t rank, uint32_t i, const char *from, struct err *e)
{
    const struct tensor_spec *t = &f->ranks[rank].plan->tensors[i];
    const struct part *part = &f->ranks[rank].layout->parts[i];
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);
    void *to;

    if (fill_converted(f, &to, e) != 0)
        return -1;
    touch(f, rank, i);
    for (uint32_t k = 0; k < n; k++) {
        const struct tensor_spec *spec = target_spec(f, targets[k]);

        dtype_convert(to, spec->dtype, from, t->dtype, spec->numel);
        from += spec->numel * dtype_nbytes(t->dtype);
        if (place_write(f->store, rank, spot_target(f, spot_of_rank(f, rank), part, k), to,
                        spec->nbytes, e) != 0)
            return -1;
        if (fill_mirrors(f, rank, targets[k]) &&
            place_write(f->store, store_host_place(f->store),
                        spot_target(f, spot_of_mirror(f, rank), part, k), to, spec->nbytes, e) != 0)
            return -1;
    }
    return 0;
}

/* What no copy can do by itself. */
static int slow_part(struct fill *f, uint32_t rank, uint32_t i, struct err *e)
{
    const struct tensor_spec *t = &f->ranks[rank].plan->tensors[i];
    const struct part *part = &f->ranks[rank].layout->parts[i];
    struct slab *slab;
    void *from;

    if (stop_check(&f->job->progress, e) != 0)
        return -1;
    if (part->how == PART_TIED) {
        if (staging_slab(f->staging, t->nbytes, &slab, e) != 0)
            return -1;
        if (place_read(f->store, rank, slab->base, source_at(f, rank, i), t->nbytes, e) != 0) {
            slab_unref(slab);
            return -1;
        }
        return fill_keep_tie(f, rank, false, t, part->match.alias, slab, e);
    }
    if (fill_scratch(f, &from, e) != 0 ||
        place_read(f->store, rank, from, source_at(f, rank, i), t->nbytes, e) != 0)
        return -1;
    if (part->how == PART_IGNORED)
        return manifest_check_ignored(f->m, t, from, e);
    return slow_convert(f, rank, i, from, e);
}

static int rank_end(struct fill *f, uint32_t rank, struct err *e)
{
    struct rank_fill *r = &f->ranks[rank];

    for (uint32_t i = 0; r->sums != NULL && i < r->plan->n_tensors; i++)
        if (fill_verify(f, rank, i, &r->sums[i], e) != 0)
            return -1;
    for (uint32_t i = 0; i < r->plan->n_tensors; i++)
        if (r->layout->parts[i].how != PART_DIRECT && slow_part(f, rank, i, e) != 0)
            return -1;
    return 0;
}

bool chunk_copying(struct update_job *job)
{
    struct fill *f = job->fill;
    struct err ignored = {0}; /* chunk_end finds it again */

    if (f->source->ops->map == NULL || progress_check(&job->progress, &ignored) != 0)
        return false;
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        int rc = f->ranks[r].batch != NULL ? device_batch_poll(f->ranks[r].batch, &ignored) : 1;

        if (rc <= 0)
            return rc == 0;
    }
    return false;
}

int chunk_map_end(struct fill *f, struct err *e)
{
    for (uint32_t r = 0; r < f->n_ranks; r++)
        if (f->ranks[r].plan != NULL &&
            device_batch_wait(f->ranks[r].batch, &f->job->progress, e) != 0)
            return -1;
    for (uint32_t r = 0; r < f->n_ranks; r++)
        if (f->ranks[r].plan != NULL && rank_end(f, r, e) != 0)
            return -1;
    atomic_store_explicit(&f->job->progress.nbytes_done, chunk_nbytes(f->job->chunk, f->n_ranks),
                          memory_order_relaxed);
    return 0;
}
