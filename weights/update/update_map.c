/* Chunks whose source maps bytes on GPUs: the copies are queued here, bucket by bucket, while the
 * next bucket is being mapped.
 *
 * Tensors that a copy alone cannot bring (convert, compare, drop) wait until the copies are done
 * and pass through the host. */
#include "weights/update/update_chunk_priv.h"

static struct end arrived_mapped(const struct fill *f, uint32_t rank, uint32_t i)
{
    const struct source_ops *ops = f->source->ops;

    return (struct end){ops->at(f->source, rank, i), ops->block(f->source, rank, i)};
}

/* Maps the next bucket of a rank and queues its copies. */
static int update_map_queue_bucket(struct fill *f, uint32_t rank, enum source_wait wait,
                                   struct err *e)
{
    struct rank_fill *r = &f->ranks[rank];
    struct span span = {.rank = rank, .first = r->next};
    int rc = f->source->ops->map(f->source, rank, span.first, wait, &f->job->progress, &span.n, e);

    if (rc != 0)
        return rc;
    atomic_store_explicit(&f->job->progress.tensor, span.first, memory_order_relaxed);
    if (span_copy(f, span, r->batch, arrived_mapped, e) != 0 ||
        (r->mirrored && span_mirror(f, span, r->batch, e) != 0))
        return -1;
    r->next += span.n;
    return 0;
}

int chunk_map_begin(struct fill *f, enum source_wait wait, struct err *e)
{
    bool more = true;

    if (!f->joined) {
        f->joined = true; /* must be released, also after an error */
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

            if (f->ranks[r].tensor_list == NULL ||
                f->ranks[r].next == f->ranks[r].tensor_list->n_tensors)
                continue;
            more = true;
            rc = update_map_queue_bucket(f, r, wait, e);
            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

/* Converts a tensor on the host, and copies it to the rank and to the host backup. */
static int slow_convert(struct fill *f, uint32_t rank, uint32_t i, const char *from, struct err *e)
{
    const struct tensor_spec *t = &f->ranks[rank].tensor_list->tensors[i];
    const struct part *part = &f->ranks[rank].layout->parts[i];
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);
    void *to;

    if (fill_converted(f, &to, e) != 0)
        return -1;
    for (uint32_t k = 0; k < n; k++) {
        const struct tensor_spec *spec = target_spec(f, targets[k]);

        dtype_convert(to, spec->dtype, from, t->dtype, spec->numel);
        from += spec->numel * dtype_nbytes(t->dtype);
        if (finite_check_converted(f, rank, i, to, spec, e) != 0 ||
            place_write(f->store, rank, dst_region_target(f, dst_region_of_rank(f, rank), part, k),
                        to, spec->nbytes, e) != 0)
            return -1;
        if (fill_mirrors(f, rank, targets[k]) &&
            place_write(f->store, store_host_place(f->store),
                        dst_region_target(f, dst_region_of_mirror(f, rank), part, k), to,
                        spec->nbytes, e) != 0)
            return -1;
    }
    return 0;
}

/* A tensor that another rank keeps, and that is converted or split: its checksums as it would be
 * served here, which must be those of the other rank. */
static int slow_note(struct fill *f, uint32_t rank, uint32_t i, const char *from, struct err *e)
{
    enum dtype sent = f->ranks[rank].tensor_list->tensors[i].dtype;
    uint32_t n;
    const uint32_t *targets = match_targets(&f->ranks[rank].layout->parts[i].match, &n);
    void *to;

    if (fill_converted(f, &to, e) != 0)
        return -1;
    for (uint32_t k = 0; k < n; k++) {
        const struct tensor_spec *spec = target_spec(f, targets[k]);
        struct checksum sum;

        dtype_convert(to, spec->dtype, from, sent, spec->numel);
        from += spec->numel * dtype_nbytes(sent);
        sum = checksum_of(to, spec->nbytes);
        replicas_note(f, rank, targets[k], &sum);
    }
    return 0;
}

/* A part that a copy alone cannot bring. */
static int slow_part(struct fill *f, uint32_t rank, uint32_t i, struct err *e)
{
    const struct tensor_spec *t = &f->ranks[rank].tensor_list->tensors[i];
    const struct part *part = &f->ranks[rank].layout->parts[i];
    struct slab *slab;
    void *from;

    if (stop_check(&f->job->progress, e) != 0)
        return -1;
    if (part->how == PART_TIED) {
        if (staging_slab(f->staging, t->nbytes, &slab, e) != 0)
            return -1;
        if (place_read(f->store, rank, slab->base, arrived_mapped(f, rank, i).addr, t->nbytes, e) !=
                0 ||
            finite_check_host(f, rank, i, slab->base, e) != 0) {
            slab_unref(slab);
            return -1;
        }
        return fill_keep_tie(f, rank, i, rank, false, slab, e);
    }
    if (fill_scratch(f, &from, e) != 0 ||
        place_read(f->store, rank, from, arrived_mapped(f, rank, i).addr, t->nbytes, e) != 0 ||
        finite_check_host(f, rank, i, from, e) != 0)
        return -1;
    if (part->how == PART_IGNORED)
        return model_spec_check_ignored(f->m, t, from, e);
    if (part->how == PART_REPEATED)
        return repeat_compare(f, rank, rank, i, from, e);
    if (part->how == PART_ELSEWHERE)
        return slow_note(f, rank, i, from, e);
    return slow_convert(f, rank, i, from, e);
}

static bool is_slow(const struct fill *f, uint32_t rank, uint32_t i)
{
    enum part_how how = f->ranks[rank].layout->parts[i].how;

    return how == PART_ELSEWHERE ? replicas_need(f, rank, i) : how != PART_DIRECT;
}

static int rank_end(struct fill *f, uint32_t rank, struct err *e)
{
    struct rank_fill *r = &f->ranks[rank];

    if (rank_verify(f, rank, e) != 0)
        return -1;
    for (uint32_t i = 0; i < r->tensor_list->n_tensors; i++)
        if ((is_slow(f, rank, i) && slow_part(f, rank, i, e) != 0) ||
            replicas_sum_pieces(f, rank, i, e) != 0)
            return -1;
    return 0;
}

bool chunk_copying(struct update_job *job)
{
    struct fill *f = job->fill;
    struct err ignored = {0}; /* chunk_end gets the same error again */

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
        if (f->ranks[r].tensor_list != NULL &&
            device_batch_wait(f->ranks[r].batch, &f->job->progress, e) != 0)
            return -1;
    for (uint32_t r = 0; r < f->n_ranks; r++)
        if (f->ranks[r].tensor_list != NULL && rank_end(f, r, e) != 0)
            return -1;
    atomic_store_explicit(&f->job->progress.nbytes_done, chunk_nbytes(f->job->chunk, f->n_ranks),
                          memory_order_relaxed);
    return 0;
}
