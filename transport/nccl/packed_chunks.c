/* vLLM's bucket boundaries, computed twice: once to count the chunks, once to fill them. */
#include "transport/nccl/packed_chunks.h"

#include <stdlib.h>
#include <string.h>

/* The chunk that begins at `first`, which is within the tensor list. Sums cannot overflow: a tensor
 * list's bytes are below 2^63. */
static struct packed_chunk packed_chunk_at(const struct tensor_list *tensor_list, uint32_t first,
                                           uint64_t bucket_nbytes)
{
    struct packed_chunk c = {.first = first};

    while (first + c.n < tensor_list->n_tensors && c.nbytes <= bucket_nbytes)
        c.nbytes += tensor_list->tensors[first + c.n++].nbytes;
    return c;
}

static int chunks_new(struct packed_chunks *out, uint32_t n, struct err *e)
{
    struct packed_chunk *chunks = calloc(n > 0 ? n : 1, sizeof *chunks);

    if (chunks == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the %u broadcasts of a tensor list",
                       (unsigned)n);
    *out = (struct packed_chunks){.chunks = chunks};
    return 0;
}

static void chunks_append(struct packed_chunks *to, const struct packed_chunk *c)
{
    to->chunks[to->n++] = *c;
    if (c->nbytes > to->nbytes_max)
        to->nbytes_max = c->nbytes;
}

int packed_chunks_init(struct packed_chunks *out, const struct tensor_list *tensor_list,
                       uint64_t bucket_nbytes, const char *field, struct err *e)
{
    struct packed_chunks all;
    struct packed_chunk c;
    uint32_t n = 0;

    if (bucket_nbytes == 0)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "a packed bucket has 0 bytes; at least 1 is required");
    for (uint32_t first = 0; first < tensor_list->n_tensors; first += c.n, n++)
        c = packed_chunk_at(tensor_list, first, bucket_nbytes);
    if (chunks_new(&all, n, e) != 0)
        return -1;
    for (uint32_t first = 0; first < tensor_list->n_tensors; first += c.n) {
        c = packed_chunk_at(tensor_list, first, bucket_nbytes);
        chunks_append(&all, &c);
    }
    *out = all;
    return 0;
}

int packed_chunks_each(struct packed_chunks *out, const struct tensor_list *tensor_list,
                       struct err *e)
{
    struct packed_chunks all;

    if (chunks_new(&all, tensor_list->n_tensors, e) != 0)
        return -1;
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++)
        chunks_append(&all, &(struct packed_chunk){i, 1, tensor_list->tensors[i].nbytes});
    *out = all;
    return 0;
}

void packed_chunks_fini(struct packed_chunks *c)
{
    free(c->chunks);
    memset(c, 0, sizeof *c);
}
