/* Chunks whose source writes into host memory: which bytes go where, in as few calls of the source
 * as possible.
 *
 * Adjacent tensors that need no conversion are one call. All others pass through scratch memory,
 * one tensor at a time. With GPUs the host backup is filled first, and the GPUs from it; without a
 * host backup a run is limited by the size of the scratch memory. */
#include "weights/update/update_chunk_priv.h"

#include <assert.h>
#include <string.h>

static struct progress *progress_of(const struct fill *f)
{
    return &f->job->progress;
}

/* All ranks get the same tensor list. */
static const struct rank_fill *fill_common(const struct fill *f)
{
    return &f->ranks[0];
}

/* The region of the host backup, if there is one. */
static struct dst_region host_dst_region(const struct fill *f)
{
    return store_device(f->store, 0) == NULL ? dst_region_of_rank(f, 0)
                                             : dst_region_of_mirror(f, 0);
}

/* Fills [first, first + n) at dst and verifies them there. */
static int update_fill_run(struct fill *f, uint32_t first, uint32_t n, void *dst, struct err *e)
{
    const struct rank_fill *r = fill_common(f);
    const char *at = dst;

    atomic_store_explicit(&progress_of(f)->tensor, first, memory_order_relaxed);
    if (pieces_fill(f, first, n, dst, e) != 0)
        return -1;
    for (uint32_t i = first; i < first + n; i++) {
        struct checksum sum = pieces_sum(f, i);

        if (fill_verify(f, 0, i, &sum, e) != 0 || finite_check_filled(f, i, at, e) != 0)
            return -1;
        digests_set_filled(f, i, at);
        at += r->tensor_list->tensors[i].nbytes;
    }
    return 0;
}

/* Writes that are adjacent on both sides are one. */
struct upload {
    uint64_t to, nbytes;
    const char *from;
};

static int upload_flush(const struct fill *f, uint32_t place, struct upload *u, struct err *e)
{
    uint64_t nbytes = u->nbytes;

    u->nbytes = 0;
    return nbytes == 0 ? 0 : place_write(f->store, place, u->to, u->from, nbytes, e);
}

/* Adds a part, whose bytes are at `from` and as large as `nbytes` when served. */
static int upload_part(const struct fill *f, uint32_t rank, const struct part *part,
                       const char *from, uint64_t nbytes, struct upload *u, struct err *e)
{
    uint64_t to;

    if (part->how == PART_ELSEWHERE)
        return 0;
    to = dst_region_target(f, dst_region_of_rank(f, rank), part, 0);
    if ((to != u->to + u->nbytes || from != u->from + u->nbytes) &&
        upload_flush(f, rank, u, e) != 0)
        return -1;
    if (u->nbytes == 0)
        *u = (struct upload){.to = to, .from = from};
    u->nbytes += nbytes;
    return 0;
}

static int upload_rank(struct fill *f, uint32_t rank, uint32_t first, uint32_t n, const char *from,
                       struct err *e)
{
    struct upload u = {0};

    for (uint32_t i = first; i < first + n; i++) {
        const struct part *part = &f->ranks[rank].layout->parts[i];
        uint32_t n_targets;
        const uint32_t *targets = match_targets(&part->match, &n_targets);
        uint64_t nbytes = 0;

        for (uint32_t k = 0; k < n_targets; k++)
            nbytes += target_spec(f, targets[k])->nbytes;
        if (upload_part(f, rank, part, from, nbytes, &u, e) != 0)
            return -1;
        from += nbytes;
    }
    return upload_flush(f, rank, &u, e);
}

/* Copies the bytes of [first, first + n), as they will be served, to every GPU that keeps them. */
static int fill_upload(struct fill *f, uint32_t first, uint32_t n, const void *from, struct err *e)
{
    for (uint32_t r = 0; r < f->n_ranks; r++)
        if (store_device(f->store, r) != NULL && upload_rank(f, r, first, n, from, e) != 0)
            return -1;
    return 0;
}

/* The number of DIRECT parts from `first` on that are adjacent in the host backup, starting at
 * dst. */
static uint32_t update_fill_run_length(const struct fill *f, uint32_t first, uint64_t dst)
{
    const struct rank_fill *r = fill_common(f);
    uint64_t end = dst + r->tensor_list->tensors[first].nbytes;
    uint32_t i = first + 1;

    while (i < r->tensor_list->n_tensors && f->common->parts[i].how == PART_DIRECT &&
           dst_region_target(f, host_dst_region(f), &f->common->parts[i], 0) == end) {
        end += r->tensor_list->tensors[i].nbytes;
        i++;
    }
    return i - first;
}

/* The number of DIRECT parts from `first` on that fit into `nbytes`; at least one. */
static uint32_t bounce_length(const struct fill *f, uint32_t first, uint64_t nbytes)
{
    const struct rank_fill *r = fill_common(f);
    uint64_t sum = r->tensor_list->tensors[first].nbytes;
    uint32_t i = first + 1;

    while (i < r->tensor_list->n_tensors && f->common->parts[i].how == PART_DIRECT &&
           r->tensor_list->tensors[i].nbytes <= nbytes - sum) {
        sum += r->tensor_list->tensors[i].nbytes;
        i++;
    }
    return i - first;
}

/* A run directly into the host backup, and from there to the GPUs. */
static int fill_in_copy(struct fill *f, uint32_t first, uint64_t dst, uint32_t *n, struct err *e)
{
    *n = update_fill_run_length(f, first, dst);
    if (update_fill_run(f, first, *n, (void *)(uintptr_t)dst, e) != 0)
        return -1;
    return fill_upload(f, first, *n, (const void *)(uintptr_t)dst, e);
}

/* A run through scratch memory to the GPUs, without a host backup. */
static int fill_bounced(struct fill *f, uint32_t first, uint32_t *n, struct err *e)
{
    void *bounce;

    if (fill_scratch(f, &bounce, e) != 0)
        return -1;
    *n = bounce_length(f, first, f->scratch->nbytes);
    if (update_fill_run(f, first, *n, bounce, e) != 0)
        return -1;
    return fill_upload(f, first, *n, bounce, e);
}

int fill_land(struct fill *f, uint32_t i, const void *from, struct err *e)
{
    const struct tensor_spec *t = &fill_common(f)->tensor_list->tensors[i];
    const struct part *part = &f->common->parts[i];
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);
    uint64_t nbytes_to = 0, at = 0;
    struct checksum sum;
    void *to;

    if (part->how == PART_IGNORED)
        return model_spec_check_ignored(f->m, t, from, e);
    if (part->how == PART_REPEATED)
        return repeat_compare(f, 0, fill_tied_place(f), i, from, e);
    if (fill_converted(f, &to, e) != 0)
        return -1;
    for (uint32_t k = 0; k < n; k++) {
        const struct tensor_spec *spec = target_spec(f, targets[k]);

        dtype_convert((char *)to + nbytes_to, spec->dtype, (const char *)from + at, t->dtype,
                      spec->numel);
        if (finite_check_converted(f, 0, i, (char *)to + nbytes_to, spec, e) != 0)
            return -1;
        sum = checksum_of((char *)to + nbytes_to, spec->nbytes);
        digest_set(f->session, targets[k], &sum);
        nbytes_to += spec->nbytes;
        at += spec->numel * dtype_nbytes(t->dtype);
    }
    nbytes_to = 0;
    for (uint32_t k = 0; k < n && store_has_host(f->store); k++) {
        if (place_write(f->store, store_host_place(f->store),
                        dst_region_target(f, host_dst_region(f), part, k), (char *)to + nbytes_to,
                        target_spec(f, targets[k])->nbytes, e) != 0)
            return -1;
        nbytes_to += target_spec(f, targets[k])->nbytes;
    }
    return fill_upload(f, i, 1, to, e);
}

/* One tensor through scratch memory: converted, split, or dropped. */
static int fill_through_scratch(struct fill *f, uint32_t i, struct err *e)
{
    void *from;

    if (fill_scratch(f, &from, e) != 0 || update_fill_run(f, i, 1, from, e) != 0)
        return -1;
    return fill_land(f, i, from, e);
}

/* The bytes of a tied name are kept separately until its target has arrived for the comparison. */
static int fill_tied(struct fill *f, uint32_t i, struct err *e)
{
    const struct tensor_spec *t = &fill_common(f)->tensor_list->tensors[i];
    struct slab *slab = NULL;

    if (staging_slab(f->staging, t->nbytes, &slab, e) != 0)
        return -1;
    if (update_fill_run(f, i, 1, slab->base, e) != 0) {
        slab_unref(slab);
        return -1;
    }
    return fill_keep_tie(f, 0, i, fill_tied_place(f), true, slab, e);
}

static int fill_parts(struct fill *f, struct err *e)
{
    const struct rank_fill *r = fill_common(f);
    bool has_host = store_has_host(f->store);

    for (uint32_t i = 0; i < r->tensor_list->n_tensors;) {
        const struct part *part = &f->common->parts[i];
        bool direct = part->how == PART_DIRECT;
        uint32_t n = 1;
        int rc;

        if (part->how == PART_TIED)
            rc = fill_tied(f, i, e);
        else if (direct && has_host)
            rc = fill_in_copy(f, i, dst_region_target(f, host_dst_region(f), part, 0), &n, e);
        else if (direct)
            rc = fill_bounced(f, i, &n, e);
        else
            rc = fill_through_scratch(f, i, e);
        if (rc != 0)
            return -1;
        i += n;
    }
    return 0;
}

/* A source that reports success early would leave old bytes in the memory. */
int chunk_fill(struct fill *f, struct err *e)
{
    const struct source_ops *ops = f->source->ops;
    uint64_t done;

    if (fill_parts(f, e) != 0)
        return -1;
    if (ops->finish != NULL && ops->finish(f->source, progress_of(f), e) != 0)
        return -1;
    done = atomic_load_explicit(&progress_of(f)->nbytes_done, memory_order_relaxed);
    if (done != fill_common(f)->tensor_list->nbytes)
        return err_set(e, ERR_UNREADABLE, "", "the %s source provided %llu of %llu bytes",
                       ops->name, (unsigned long long)done,
                       (unsigned long long)fill_common(f)->tensor_list->nbytes);
    return 0;
}
