/* Compares ranks that were given separate lists, and so separate buckets: a tensor that several of
 * them received must have the same bytes on each. Lists that were swapped between GPUs, or ranks
 * of a trainer that have diverged, are found by no other check, because every length is right.
 *
 * Received bytes are summed in the pass that copies them, so this costs almost nothing. Only a
 * tensor that was converted or split on one of the ranks is read again. */
#include "weights/update/update_chunk_priv.h"

#include "base/utf8.h"

#include <stdlib.h>

struct replica {
    enum { REPLICA_NONE, REPLICA_UNSUMMED, REPLICA_SUMMED } state;
    struct checksum sum; /* of REPLICA_SUMMED */
};

bool replicas_wanted(const struct fill *f)
{
    return f->job->chunk->ranks != NULL && f->n_ranks > 1;
}

static struct replica *replica_at(const struct session *s, uint32_t rank, uint32_t index,
                                  uint32_t n_tensors)
{
    return &s->replicas[(size_t)rank * n_tensors + index];
}

int replicas_prepare(struct fill *f, struct err *e)
{
    size_t n = (size_t)f->n_ranks * f->m->tensor_list->n_tensors;

    if (!replicas_wanted(f) || f->session->replicas != NULL)
        return 0;
    f->session->replicas = calloc(n, sizeof *f->session->replicas);
    if (f->session->replicas == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to compare the GPUs' tensors");
    return 0;
}

/* Is the checksum that was made while tensor i was copied that of the tensor as it is served? */
static bool is_summed(const struct fill *f, uint32_t rank, uint32_t i)
{
    const struct part *part = &f->ranks[rank].layout->parts[i];
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);

    return (part->how == PART_DIRECT || part->how == PART_ELSEWHERE) && n == 1 &&
           target_spec(f, targets[0])->dtype == f->ranks[rank].tensor_list->tensors[i].dtype;
}

bool replicas_need(const struct fill *f, uint32_t rank, uint32_t i)
{
    return replicas_wanted(f) && f->ranks[rank].layout->parts[i].how == PART_ELSEWHERE &&
           !is_summed(f, rank, i);
}

void replicas_note(const struct fill *f, uint32_t rank, uint32_t index, const struct checksum *sum)
{
    *replica_at(f->session, rank, index,
                f->m->tensor_list->n_tensors) = (struct replica){REPLICA_SUMMED, *sum};
}

/* Its pieces may be kept by several GPUs, and are summed here, where it is whole. */
int replicas_sum_pieces(const struct fill *f, uint32_t rank, uint32_t i, struct err *e)
{
    const struct part *part = &f->ranks[rank].layout->parts[i];
    uint32_t n;
    const uint32_t *targets = part_targets(part, &n);

    for (uint32_t k = 0; k < n && n > 1 && replicas_wanted(f) && store_sharded(f->store); k++) {
        struct checksum sum;

        if (place_sum(f->store, rank, dst_region_target(f, dst_region_of_rank(f, rank), part, k),
                      target_spec(f, targets[k])->nbytes, &sum, e) != 0)
            return -1;
        replicas_note(f, rank, targets[k], &sum);
    }
    return 0;
}

static void replicas_record_part(const struct fill *f, uint32_t rank, uint32_t i)
{
    const struct rank_fill *r = &f->ranks[rank];
    uint32_t n;
    const uint32_t *targets = part_targets(&r->layout->parts[i], &n);

    if (is_summed(f, rank, i)) {
        replicas_note(f, rank, targets[0], &r->made[i].sum);
        return;
    }
    for (uint32_t k = 0; k < n; k++)
        if (n == 1 || !store_sharded(f->store))
            replica_at(f->session, rank, targets[k], f->m->tensor_list->n_tensors)->state =
                REPLICA_UNSUMMED;
}

void replicas_record(const struct fill *f, uint32_t rank)
{
    const struct tensor_list *tensor_list = f->ranks[rank].tensor_list;

    for (uint32_t i = 0; replicas_wanted(f) && tensor_list != NULL && i < tensor_list->n_tensors;
         i++)
        replicas_record_part(f, rank, i);
}

/* Computes the checksum of a tensor from what is staged. */
static int replica_sum(const struct session *s, const struct store *store, uint32_t rank,
                       uint32_t index, struct replica *replica, struct err *e)
{
    if (replica->state == REPLICA_SUMMED)
        return 0;
    replica->state = REPLICA_SUMMED;
    return place_sum(store, rank, staging_effective(s->staging, rank, index),
                     store_model_spec(store)->tensor_list->tensors[index].nbytes, &replica->sum, e);
}

static int replica_compare(const struct session *s, const struct store *store, uint32_t index,
                           struct err *e)
{
    const struct tensor_list *tensor_list = store_model_spec(store)->tensor_list;
    struct replica *first = NULL;
    uint32_t first_rank = 0;

    for (uint32_t r = 0; r < s->n_ranks; r++) {
        struct replica *replica = replica_at(s, r, index, tensor_list->n_tensors);

        if (replica->state == REPLICA_NONE)
            continue;
        if (first != NULL && (replica_sum(s, store, first_rank, index, first, e) != 0 ||
                              replica_sum(s, store, r, index, replica, e) != 0))
            return -1;
        if (first == NULL) {
            first = replica;
            first_rank = r;
        } else if (!checksum_equal(first->sum, replica->sum)) {
            return err_set(e, ERR_MISMATCH, "",
                           "'%.*s' has other bytes on %s than on %s: their lists are swapped, or "
                           "the trainer's ranks have different weights",
                           utf8_cut_name(tensor_list->tensors[index].name),
                           tensor_list->tensors[index].name, store_place_name(store, r),
                           store_place_name(store, first_rank));
        }
    }
    return 0;
}

int replicas_prove(const struct session *s, struct err *e)
{
    const struct store *store;

    if (s->replicas == NULL || s->staging == NULL)
        return 0;
    store = s->staging->store;
    for (uint32_t i = 0; i < store_model_spec(store)->tensor_list->n_tensors; i++)
        if (replica_compare(s, store, i, e) != 0)
            return -1;
    return 0;
}
