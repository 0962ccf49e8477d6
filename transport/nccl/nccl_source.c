/* The broadcasts of a group as a source: which tensors of the tensor list each broadcast contains,
 * and in which order. */
#include "transport/nccl/nccl_group.h"

#include "transport/nccl/packed_chunks.h"

#include <assert.h>
#include <stdlib.h>

struct nccl_source {
    struct source source;            /* first */
    struct nccl_group *group;        /* borrowed */
    struct tensor_list *tensor_list; /* owned: one reference */
    struct packed_chunks all;        /* owned */
};

static const struct nccl_source *nccl_source_of(const struct source *s)
{
    return (const struct nccl_source *)(const void *)s;
}

/* The chunk that begins with tensor `first`. */
static const struct packed_chunk *nccl_source_chunk_at(const struct nccl_source *s, uint32_t first)
{
    uint32_t low = 0, high = s->all.n;

    while (low + 1 < high) {
        uint32_t middle = low + (high - low) / 2;

        if (s->all.chunks[middle].first <= first)
            low = middle;
        else
            high = middle;
    }
    assert(low < s->all.n && s->all.chunks[low].first == first);
    return &s->all.chunks[low];
}

static uint32_t nccl_bucket(const struct source *source, uint32_t first)
{
    return nccl_source_chunk_at(nccl_source_of(source), first)->n;
}

static int nccl_post(struct source *source, uint32_t first, uint32_t n, const uint64_t *dst,
                     struct progress *p, struct err *e)
{
    const struct nccl_source *s = nccl_source_of(source);
    const struct packed_chunk *c = nccl_source_chunk_at(s, first);

    assert(c->n == n);
    (void)n;
    (void)p;
    return nccl_group_post(s->group, dst, c->nbytes, e);
}

static int nccl_receive(struct source *source, struct progress *p, struct err *e)
{
    return nccl_group_receive(nccl_source_of(source)->group, p, e);
}

static bool nccl_stuck(const struct source *source)
{
    struct nccl_group_info info;

    nccl_group_info(nccl_source_of(source)->group, &info);
    return info.state == NCCL_GROUP_STUCK;
}

static void nccl_close(struct source *source)
{
    struct nccl_source *s = (struct nccl_source *)(void *)source;

    if (s == NULL)
        return;
    packed_chunks_fini(&s->all);
    tensor_list_unref(s->tensor_list);
    free(s);
}

static const struct source_ops nccl_ops = {
    .name = "nccl",
    .bucket = nccl_bucket,
    .post = nccl_post,
    .receive = nccl_receive,
    .stuck = nccl_stuck,
    .close = nccl_close,
};

int nccl_source_new(struct source **out, struct nccl_group *group, struct tensor_list *tensor_list,
                    struct packed_chunks *chunks, struct err *e)
{
    struct nccl_source *s = calloc(1, sizeof *s);

    if (s == NULL) {
        packed_chunks_fini(chunks);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the record of a transfer by NCCL");
    }
    assert(chunks->n == 0 ||
           chunks->chunks[chunks->n - 1].first + chunks->chunks[chunks->n - 1].n ==
               tensor_list->n_tensors);
    *s = (struct nccl_source){.source.ops = &nccl_ops,
                              .group = group,
                              .tensor_list = tensor_list_ref(tensor_list),
                              .all = *chunks};
    *chunks = (struct packed_chunks){0};
    *out = &s->source;
    return 0;
}
