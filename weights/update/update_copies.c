/* The copies queued on a GPU: from where tensors arrived to where they will be served, their
 * checksums, and their copies to the host backup.
 *
 * Tensors that are adjacent on both sides are one copy. With checksums every tensor is a copy of
 * its own, summed in the pass that copies it. */
#include "weights/update/update_chunk_priv.h"

#include <stdlib.h>

/* A growing array of pieces of one kind. */
struct pieces {
    struct device_piece *items; /* owned */
    uint32_t n, cap;
    uint64_t src_block, dst_block; /* the allocations of the last piece */
};

static int piece_push(struct pieces *p, struct device_piece piece, struct err *e)
{
    if (p->n == p->cap) {
        uint32_t cap = p->cap == 0 ? 64 : p->cap * 2;
        struct device_piece *grown = realloc(p->items, cap * sizeof *grown);

        if (grown == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for a bucket's copies");
        p->items = grown;
        p->cap = cap;
    }
    p->items[p->n++] = piece;
    return 0;
}

/* As piece_push, but extends the last piece if both sides continue in the same allocations: the
 * driver refuses a copy across two allocations. */
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
    return piece_push(p, (struct device_piece){src.addr, dst.addr, nbytes, DTYPE_NONE}, e);
}

struct end dst_region_end(const struct fill *f, struct dst_region at, const struct part *part,
                          uint32_t k)
{
    return (struct end){dst_region_target(f, at, part, k), (uint64_t)(uintptr_t)at.room->slab};
}

static uint64_t staged_place(const struct fill *f, uint32_t rank, uint32_t i)
{
    const struct staging_memory *room = &f->ranks[rank].room;

    return room->slab->addr + room->offset + f->ranks[rank].layout->parts[i].offset;
}

uint64_t span_place(const struct fill *f, struct span span)
{
    const struct rank_fill *r = &f->ranks[span.rank];

    return layout_in_one(r->layout, span.first, span.n) ? staged_place(f, span.rank, span.first)
                                                        : 0;
}

/* The copies of a part: one for each of its pieces that has a place of its own. */
static int join_part(const struct fill *f, uint32_t rank, uint32_t i, struct end src,
                     struct pieces *p, struct err *e)
{
    const struct part *part = &f->ranks[rank].layout->parts[i];
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);

    for (uint32_t k = 0; k < n; k++) {
        uint64_t nbytes = target_spec(f, targets[k])->nbytes;

        if (piece_join(p, src, dst_region_end(f, dst_region_of_rank(f, rank), part, k), nbytes,
                       e) != 0)
            return -1;
        src.addr += nbytes;
    }
    return 0;
}

/* Every tensor is one piece, so that each gets its checksum; a tensor that cannot be copied as it
 * arrived is only summed in place. */
static int queue_summed(const struct fill *f, struct span span, struct device_batch *b,
                        arrived_at_fn *came, struct pieces *rest, struct err *e)
{
    const struct rank_fill *r = &f->ranks[span.rank];
    struct pieces p = {0};
    int rc = 0;

    for (uint32_t i = span.first; i < span.first + span.n && rc == 0; i++) {
        struct end src = came(f, span.rank, i);
        uint64_t dst = span_place(f, (struct span){span.rank, i, 1});

        rc = piece_push(&p,
                        (struct device_piece){
                            src.addr, dst != 0 ? dst : src.addr,
                            rank_sums(f, span.rank, i) ? r->tensor_list->tensors[i].nbytes : 0,
                            finite_copied(f, span.rank, i)},
                        e);
        if (rc == 0 && dst == 0 && r->layout->parts[i].how == PART_DIRECT)
            rc = join_part(f, span.rank, i, src, rest, e);
    }
    if (rc == 0)
        rc = device_batch_copy(b, p.items, p.n, r->made + span.first, e);
    free(p.items);
    return rc;
}

int span_copy(const struct fill *f, struct span span, struct device_batch *b, arrived_at_fn *came,
              struct err *e)
{
    const struct rank_fill *r = &f->ranks[span.rank];
    struct pieces p = {0};
    int rc = 0;

    if (r->made != NULL)
        rc = queue_summed(f, span, b, came, &p, e);
    for (uint32_t i = span.first; r->made == NULL && i < span.first + span.n && rc == 0; i++)
        if (r->layout->parts[i].how == PART_DIRECT)
            rc = join_part(f, span.rank, i, came(f, span.rank, i), &p, e);
    if (rc == 0 && p.n > 0)
        rc = device_batch_copy(b, p.items, p.n, NULL, e);
    free(p.items);
    return rc;
}

/* The copies of a part to the host backup. */
static int join_mirror(const struct fill *f, uint32_t rank, uint32_t i, struct pieces *p,
                       struct err *e)
{
    const struct part *part = &f->ranks[rank].layout->parts[i];
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);

    for (uint32_t k = 0; k < n && part->how == PART_DIRECT; k++)
        if (fill_mirrors(f, rank, targets[k]) &&
            piece_join(p, dst_region_end(f, dst_region_of_rank(f, rank), part, k),
                       dst_region_end(f, dst_region_of_mirror(f, rank), part, k),
                       target_spec(f, targets[k])->nbytes, e) != 0)
            return -1;
    return 0;
}

int span_mirror(const struct fill *f, struct span span, struct device_batch *b, struct err *e)
{
    struct pieces p = {0};
    int rc = 0;

    for (uint32_t i = span.first; i < span.first + span.n && rc == 0; i++)
        rc = join_mirror(f, span.rank, i, &p, e);
    for (uint32_t i = 0; i < p.n && rc == 0; i++)
        rc = device_batch_to_host(b, (void *)(uintptr_t)p.items[i].dst, p.items[i].src,
                                  p.items[i].nbytes, e);
    free(p.items);
    return rc;
}

int rank_prepare(struct fill *f, uint32_t rank, struct err *e)
{
    struct rank_fill *r = &f->ranks[rank];

    if (r->tensor_list == NULL || r->batch != NULL)
        return 0;
    if (replicas_prepare(f, e) != 0)
        return -1;
    if ((r->checksums != NULL || replicas_wanted(f) || f->job->chunk->sent != NULL) &&
        r->made == NULL) {
        r->made = calloc(r->tensor_list->n_tensors, sizeof *r->made);
        if (r->made == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for the checksums");
    }
    return device_batch_new(store_device(f->store, rank), &r->batch, e);
}

int rank_verify(struct fill *f, uint32_t rank, struct err *e)
{
    const struct rank_fill *r = &f->ranks[rank];

    for (uint32_t i = 0; r->made != NULL && i < r->tensor_list->n_tensors; i++)
        if ((rank_sums(f, rank, i) && fill_verify(f, rank, i, &r->made[i].sum, e) != 0) ||
            (r->made[i].suspect && finite_check_copied(f, rank, i, e) != 0))
            return -1;
    return 0;
}
