#include "weights/store/shares.h"

#include <assert.h>
#include <stdlib.h>

/* Where the share of `rank` ends if all are equal. */
static uint64_t end_of_share(uint64_t nbytes, uint32_t n_ranks, uint32_t rank)
{
    return nbytes / n_ranks * (rank + 1) + nbytes % n_ranks * (rank + 1) / n_ranks;
}

/* A tensor goes to the rank in whose part its middle is. */
int shares_new(uint8_t **out, const struct tensor_list *list, uint32_t n_ranks, struct err *e)
{
    uint8_t *owners = malloc(list->n_tensors > 0 ? list->n_tensors : 1);
    uint64_t before = 0;
    uint32_t rank = 0;

    assert(n_ranks >= 1 && n_ranks <= SHARES_RANKS_MAX);
    if (owners == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the shares of %u tensors",
                       list->n_tensors);
    for (uint32_t i = 0; i < list->n_tensors; i++) {
        uint64_t middle = before + list->tensors[i].nbytes / 2;

        while (rank + 1 < n_ranks && middle >= end_of_share(list->nbytes, n_ranks, rank))
            rank++;
        owners[i] = (uint8_t)rank;
        before += list->tensors[i].nbytes;
    }
    *out = owners;
    return 0;
}

uint64_t shares_nbytes(const uint8_t *owners, const struct tensor_list *list, uint32_t rank,
                       uint32_t *n_tensors)
{
    uint64_t nbytes = 0;

    *n_tensors = 0;
    for (uint32_t i = 0; i < list->n_tensors; i++) {
        if (owners[i] != rank)
            continue;
        nbytes += list->tensors[i].nbytes;
        ++*n_tensors;
    }
    return nbytes;
}
