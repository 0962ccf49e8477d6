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

void replicas_record(const struct fill *f, uint32_t rank)
{
    const struct rank_fill *r = &f->ranks[rank];

    if (!replicas_wanted(f) || r->tensor_list == NULL)
        return;
    for (uint32_t i = 0; i < r->tensor_list->n_tensors; i++) {
        const struct part *part = &r->layout->parts[i];
        uint32_t n;
        const uint32_t *targets = part_targets(part, &n);
        bool summed = part->how == PART_DIRECT && n == 1;

        for (uint32_t k = 0; k < n; k++)
            *replica_at(f->session, rank, targets[k], f->m->tensor_list->n_tensors) =
                summed ? (struct replica){REPLICA_SUMMED, r->made[i].sum}
                       : (struct replica){.state = REPLICA_UNSUMMED};
    }
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
