/* Chunks whose source writes whole buckets into GPU memory itself, on all ranks at once.
 *
 * A bucket is received at its final address if its tensors have the same layout there. Otherwise
 * it is received in a bounce buffer, scratch memory of that GPU, from which it is copied while the
 * next bucket arrives. Buckets that other GPUs keep are received and dropped. Checksums and the
 * host backup are made meanwhile too. Buckets are posted ahead of those that have arrived, as long
 * as there is memory to receive them: no peer waits for this thread between two buckets.
 *
 * Once the first bucket was posted, the sender and all ranks take part in the broadcast together:
 * not to post the last bucket would cost them their group. So all memory is allocated before, and
 * an error after that is reported at the end, while the remaining buckets are received and
 * dropped. */
#include "weights/update/update_chunk_priv.h"

#include <assert.h>
#include <stdlib.h>

/* Small buckets received at their final address are summed, and copied to the host, several at
 * once. */
enum { QUEUE_NBYTES = 16 << 20 };

static const struct tensor_list *recv_tensor_list_of(const struct fill *f)
{
    return f->job->chunk->tensor_list;
}

static uint32_t bucket_at(const struct fill *f, uint32_t first)
{
    uint32_t n = f->source->ops->bucket(f->source, first);

    assert(n > 0 && n <= recv_tensor_list_of(f)->n_tensors - first);
    return n;
}

static uint64_t recv_nbytes_of(const struct fill *f, uint32_t first, uint32_t n)
{
    const struct tensor_spec *t = recv_tensor_list_of(f)->tensors, *last = &t[first + n - 1];

    return last->offset + last->nbytes - t[first].offset;
}

/* Do other GPUs keep all tensors of a span? Those that need the host are read from rank 0. */
static bool is_dropped(const struct fill *f, struct span span)
{
    for (uint32_t i = span.first; i < span.first + span.n; i++)
        if (f->ranks[span.rank].layout->parts[i].how != PART_ELSEWHERE ||
            (span.rank == 0 && f->common->parts[i].how != PART_DIRECT))
            return false;
    return true;
}

static void update_recv_raise_to(uint64_t *largest, uint64_t nbytes)
{
    if (nbytes > *largest)
        *largest = nbytes;
}

static int bounce_take(struct fill *f, uint32_t rank, uint32_t k, uint64_t nbytes, struct err *e)
{
    struct slab_pool *pool = store_slabs(f->store, rank);

    return slab_pool_check(pool, nbytes, e) == 0
               ? slab_new(&f->ranks[rank].bounces[k].slab, pool, nbytes, e)
               : -1;
}

/* One bounce buffer suffices: then no bucket arrives while it is being emptied. */
static int bounces_take(struct fill *f, uint32_t rank, struct err *e)
{
    struct rank_fill *r = &f->ranks[rank];
    uint32_t wanted = 0;
    uint64_t largest = 0, dropped = 0;
    bool drops = false;

    for (uint32_t first = 0, n; first < recv_tensor_list_of(f)->n_tensors; first += n) {
        struct span span = {rank, first, n = bucket_at(f, first)};

        if (span_place(f, span) != 0)
            continue;
        if (is_dropped(f, span)) {
            drops = true;
            update_recv_raise_to(&dropped, recv_nbytes_of(f, first, n));
            continue;
        }
        wanted += wanted < BOUNCES_MAX;
        update_recv_raise_to(&largest, recv_nbytes_of(f, first, n));
    }
    if (drops && bounce_take(f, rank, BOUNCE_DROPPED, dropped, e) != 0)
        return -1;
    while (r->n_bounces < wanted) {
        if (bounce_take(f, rank, r->n_bounces, largest, e) == 0) {
            r->n_bounces++;
        } else if (r->n_bounces > 0 && e->code == ERR_NO_STAGING) {
            err_clear(e);
            wanted = r->n_bounces;
        } else {
            return -1;
        }
    }
    return 0;
}

/* Allocates host memory for parts that need the host. The last tied name's memory first: it is
 * used from the end. */
static int host_take(struct fill *f, struct err *e)
{
    const struct tensor_list *tensor_list = recv_tensor_list_of(f);
    void *ignored;

    f->tied = calloc(tensor_list->n_tensors, sizeof(struct slab *));
    if (f->tied == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a chunk");
    for (uint32_t i = tensor_list->n_tensors; i > 0; i--) {
        enum part_how how = f->common->parts[i - 1].how;

        if (how == PART_TIED) {
            if (staging_slab(f->staging, tensor_list->tensors[i - 1].nbytes, &f->tied[f->n_tied],
                             e) != 0)
                return -1;
            f->n_tied++;
        }
        if ((how == PART_CONVERT || how == PART_IGNORED || how == PART_REPEATED) &&
            fill_scratch(f, &ignored, e) != 0)
            return -1;
        if ((how == PART_CONVERT || how == PART_REPEATED) && fill_converted(f, &ignored, e) != 0)
            return -1;
    }
    return 0;
}

void chunk_recv_give(struct fill *f)
{
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        struct rank_fill *rank = &f->ranks[r];

        for (uint32_t k = 0; k <= BOUNCE_DROPPED; k++) {
            slab_unref(rank->bounces[k].slab);
            rank->bounces[k].slab = NULL;
        }
        rank->n_bounces = 0;
    }
    while (f->n_tied > 0)
        slab_unref(f->tied[--f->n_tied]);
    free(f->tied);
    f->tied = NULL;
}

int chunk_recv_take(struct fill *f, struct err *e)
{
    int rc = host_take(f, e);

    for (uint32_t r = 0; r < f->n_ranks && rc == 0; r++)
        rc = bounces_take(f, r, e);
    if (rc != 0)
        chunk_recv_give(f);
    return rc;
}

int chunk_recv_begin(struct fill *f, struct err *e)
{
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        struct rank_fill *rank = &f->ranks[r];

        if (rank_prepare(f, r, e) != 0)
            return -1;
        for (uint32_t k = 0; k < rank->n_bounces; k++)
            if (device_batch_new(store_device(f->store, r), &rank->bounces[k].batch, e) != 0)
                return -1;
    }
    return 0;
}

static struct end arrived_in_place(const struct fill *f, uint32_t rank, uint32_t i)
{
    return dst_region_end(f, dst_region_of_rank(f, rank), &f->ranks[rank].layout->parts[i], 0);
}

static struct end arrived_in_bounce(const struct fill *f, uint32_t rank, uint32_t i)
{
    const struct rank_fill *r = &f->ranks[rank];
    const struct slab *slab = r->bounces[r->bounce].slab;
    const struct tensor_spec *t = r->tensor_list->tensors;

    assert(r->bounce < BOUNCES_MAX);
    return (struct end){slab->addr + t[i].offset - t[r->bucket].offset, (uint64_t)(uintptr_t)slab};
}

/* The address at which a rank receives a bucket, and its bounce buffer, or BOUNCE_NONE. After an
 * error the address is still valid: the bucket is dropped. */
static uint64_t dst_slot(struct fill *f, struct span span, uint8_t *bounce, struct err *e)
{
    struct rank_fill *r = &f->ranks[span.rank];
    uint64_t addr = span_place(f, span);

    *bounce = BOUNCE_NONE;
    if (addr != 0)
        return addr;
    *bounce = BOUNCE_DROPPED;
    if (is_dropped(f, span))
        return r->bounces[BOUNCE_DROPPED].slab->addr;
    r->bounce_posted = (r->bounce_posted + 1) % r->n_bounces;
    *bounce = (uint8_t)r->bounce_posted;
    if (e->code == ERR_NONE)
        (void)device_batch_wait(r->bounces[*bounce].batch, &f->job->progress, e);
    return r->bounces[*bounce].slab->addr;
}

/* What the source made of tensors at their final address, as span_copy would have. */
static void take_made(struct fill *f, struct span span)
{
    const struct device_made *made = f->source->ops->made(f->source, span.rank);
    struct rank_fill *r = &f->ranks[span.rank];

    for (uint32_t i = span.first; i < span.first + span.n; i++) {
        r->made[i] = made[i];
        r->made[i].suspect &= finite_copied(f, span.rank, i) != DTYPE_NONE;
    }
}

/* Queues the checksums and the host backup of the tensors before `end` that were received at their
 * final address. */
static int queue_in_place(struct fill *f, uint32_t rank, uint32_t end, struct err *e)
{
    struct rank_fill *r = &f->ranks[rank];
    struct span span = {rank, r->next, end - r->next};

    r->next = end;
    if (span.n == 0)
        return 0;
    if (r->made != NULL && f->source->ops->made != NULL)
        take_made(f, span);
    else if (r->made != NULL && span_copy(f, span, r->batch, arrived_in_place, e) != 0)
        return -1;
    return r->mirrored ? span_mirror(f, span, r->batch, e) : 0;
}

/* Queues the copies of a received bucket, without waiting for them. */
static int update_recv_queue_bucket(struct fill *f, struct span span, struct err *e)
{
    struct rank_fill *r = &f->ranks[span.rank];
    struct device_batch *b;

    if (r->bounce == BOUNCE_NONE) {
        uint32_t end = span.first + span.n;

        return recv_nbytes_of(f, r->next, end - r->next) < QUEUE_NBYTES
                   ? 0
                   : queue_in_place(f, span.rank, end, e);
    }
    if (queue_in_place(f, span.rank, span.first, e) != 0)
        return -1;
    r->next = span.first + span.n;
    if (r->bounce == BOUNCE_DROPPED)
        return 0;
    b = r->bounces[r->bounce].batch;
    if (span_copy(f, span, b, arrived_in_bounce, e) != 0)
        return -1;
    return r->mirrored ? span_mirror(f, span, b, e) : 0;
}

/* A part that a copy alone cannot bring, before the bounce buffer is used again. The bytes of rank
 * 0 are those of all ranks. */
static int host_part(struct fill *f, uint32_t i, struct err *e)
{
    const struct tensor_spec *t = &recv_tensor_list_of(f)->tensors[i];
    const struct part *part = &f->common->parts[i];
    uint64_t at = arrived_in_bounce(f, 0, i).addr;
    struct slab *tied;
    void *from;

    if (part->how != PART_TIED)
        return fill_scratch(f, &from, e) != 0 ||
                       place_read(f->store, 0, from, at, t->nbytes, e) != 0 ||
                       finite_check_host(f, 0, i, from, e) != 0
                   ? -1
                   : fill_land(f, i, from, e);
    tied = f->tied[--f->n_tied];
    if (place_read(f->store, 0, tied->base, at, t->nbytes, e) != 0 ||
        finite_check_host(f, 0, i, tied->base, e) != 0) {
        slab_unref(tied);
        return -1;
    }
    return fill_keep_tie(f, 0, i, fill_tied_place(f), true, tied, e);
}

static int host_parts(struct fill *f, uint32_t first, uint32_t n, struct err *e)
{
    for (uint32_t i = first; i < first + n; i++)
        if (f->common->parts[i].how != PART_DIRECT && host_part(f, i, e) != 0)
            return -1;
    return 0;
}

/* Memory that a stuck broadcast may still write to is never used again. */
static void bucket_quarantine(struct fill *f, const struct posted *b)
{
    for (uint32_t k = 0; k < f->n_ranks; k++) {
        struct rank_fill *r = &f->ranks[k];

        slab_quarantine(b->bounces[k] != BOUNCE_NONE ? r->bounces[b->bounces[k]].slab
                                                     : r->room.slab);
    }
}

/* No bucket arrives any more. The first error is kept. */
static int recv_lose(struct fill *f, const struct err *late, struct err *e)
{
    f->stuck = f->n_posted > 0 && f->source->ops->stuck(f->source);
    for (uint32_t k = 0; k < f->n_posted && f->stuck; k++)
        bucket_quarantine(f, &f->posted[(f->i_posted + k) % SOURCE_POSTED_MAX]);
    if (e->code == ERR_NONE)
        *e = *late;
    return -1;
}

/* @e  may be set: the bucket is then dropped. -1: the source has failed */
static int post_bucket(struct fill *f, uint32_t first, uint32_t n, struct err *e)
{
    struct posted *b = &f->posted[(f->i_posted + f->n_posted) % SOURCE_POSTED_MAX];
    struct progress *p = &f->job->progress;
    uint64_t dst[STORE_DEVICES_MAX];
    struct err late = {0};

    *b = (struct posted){.first = first, .n = n};
    for (uint32_t r = 0; r < f->n_ranks; r++)
        dst[r] = dst_slot(f, (struct span){r, first, n}, &b->bounces[r], e);
    if (f->n_posted == 0) /* post may wait until the trainer has formed its group */
        atomic_store_explicit(&p->tensor, first, memory_order_relaxed);
    if (f->source->ops->post(f->source, first, n, dst, p, &late) != 0)
        return recv_lose(f, &late, e);
    for (uint32_t r = 0; r < f->n_ranks; r++)
        f->ranks[r].n_bounces_posted += b->bounces[r] < BOUNCES_MAX;
    f->n_posted++;
    return 0;
}

/* Receives the oldest posted bucket. @e  may be set: it is then dropped. -1: it did not arrive */
static int receive_bucket(struct fill *f, struct err *e)
{
    const struct posted *b = &f->posted[f->i_posted];
    struct progress *p = &f->job->progress;
    struct err late = {0};

    atomic_store_explicit(&p->tensor, b->first, memory_order_relaxed);
    if (f->source->ops->receive(f->source, p, &late) != 0)
        return recv_lose(f, &late, e);
    f->i_posted = (f->i_posted + 1) % SOURCE_POSTED_MAX;
    f->n_posted--;
    (void)atomic_fetch_add_explicit(&p->nbytes_done, recv_nbytes_of(f, b->first, b->n),
                                    memory_order_relaxed);
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        f->ranks[r].n_bounces_posted -= b->bounces[r] < BOUNCES_MAX;
        f->ranks[r].bounce = b->bounces[r];
        f->ranks[r].bucket = b->first;
        if (e->code == ERR_NONE)
            (void)update_recv_queue_bucket(f, (struct span){r, b->first, b->n}, e);
    }
    if (e->code == ERR_NONE)
        (void)host_parts(f, b->first, b->n, e);
    return 0;
}

/* Does every rank have memory to receive the bucket at `first`? A bucket that will be dropped may
 * be received where others are. */
static bool can_post(const struct fill *f, uint32_t first, const struct err *e)
{
    if (first == recv_tensor_list_of(f)->n_tensors || f->n_posted == SOURCE_POSTED_MAX)
        return false;
    for (uint32_t r = 0; r < f->n_ranks && e->code == ERR_NONE; r++) {
        const struct rank_fill *rank = &f->ranks[r];

        struct span span = {r, first, bucket_at(f, first)};

        if (rank->n_bounces > 0 && rank->n_bounces_posted == rank->n_bounces &&
            span_place(f, span) == 0 && !is_dropped(f, span))
            return false;
    }
    return true;
}

static int rank_wait(struct fill *f, uint32_t rank, struct err *e)
{
    struct rank_fill *r = &f->ranks[rank];

    for (uint32_t k = 0; k < r->n_bounces; k++)
        if (device_batch_wait(r->bounces[k].batch, &f->job->progress, e) != 0)
            return -1;
    return device_batch_wait(r->batch, &f->job->progress, e);
}

/* All buckets have arrived; waits for the queued copies. */
static int recv_settle(struct fill *f, struct err *e)
{
    const struct source_ops *ops = f->source->ops;

    for (uint32_t r = 0; r < f->n_ranks; r++)
        if (queue_in_place(f, r, recv_tensor_list_of(f)->n_tensors, e) != 0)
            return -1;
    for (uint32_t r = 0; r < f->n_ranks; r++)
        if (rank_wait(f, r, e) != 0)
            return -1;
    for (uint32_t r = 0; r < f->n_ranks; r++)
        if (rank_verify(f, r, e) != 0)
            return -1;
    return ops->finish != NULL ? ops->finish(f->source, &f->job->progress, e) : 0;
}

int chunk_recv(struct fill *f, struct err *e)
{
    uint32_t next = 0;

    for (;;) {
        while (can_post(f, next, e)) {
            uint32_t n = bucket_at(f, next);

            if (post_bucket(f, next, n, e) != 0)
                return -1;
            next += n;
        }
        if (f->n_posted == 0)
            return e->code == ERR_NONE ? recv_settle(f, e) : -1;
        if (receive_bucket(f, e) != 0)
            return -1;
    }
}
