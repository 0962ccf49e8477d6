/* The layout of a chunk: which tensors it brings and where they go, decided before any byte moves.
 *
 * Staging is laid out in the order of the tensor list, so that a packed bucket is one copy and its
 * tensors are views of it. A tensor that would be misaligned for its dtype starts at the next
 * aligned address: that costs one more copy, and it never has to be moved later. */
#include "weights/update/update_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PART_ALIGN = 64 };

static enum part_how part_how(const struct model_spec *m, const struct model_spec_match *match,
                              enum dtype sent)
{
    uint32_t n;
    const uint32_t *targets = match_targets(match, &n);

    if (match->alias != NULL && match->alias->kind == ALIAS_TIED)
        return PART_TIED;
    if (match->alias != NULL && match->alias->kind == ALIAS_IGNORED)
        return PART_IGNORED;
    for (uint32_t i = 0; i < n; i++)
        if (m->tensor_list->tensors[targets[i]].dtype != sent)
            return PART_CONVERT;
    return PART_DIRECT;
}

static void update_layout_raise_to(uint64_t *largest, uint64_t nbytes)
{
    if (nbytes > *largest)
        *largest = nbytes;
}

/* Cannot overflow: at most the model spec is stored, and each tensor adds one alignment. */
static void layout_place(struct layout *l, const struct model_spec *m, uint32_t i,
                         const struct tensor_spec *t)
{
    struct part *part = &l->parts[i];
    uint32_t n;
    const uint32_t *targets = part_targets(part, &n);
    uint64_t nbytes = 0, end = l->nbytes_kept;
    bool behind = i > 0 && part->how == PART_DIRECT && l->parts[i - 1].how == PART_DIRECT;

    update_layout_raise_to(&l->nbytes_largest, t->nbytes);
    part->n_breaks = i > 0 ? l->parts[i - 1].n_breaks : 0;
    if (n == 0) {
        part->n_breaks++;
        return;
    }
    l->n_dst_slots += n;
    if (!behind || l->nbytes_kept % dtype_nbytes(t->dtype) != 0)
        l->nbytes_kept = (l->nbytes_kept + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    part->offset = l->nbytes_kept;
    part->n_breaks += !behind || part->offset != end;
    for (uint32_t k = 0; k < n; k++)
        nbytes += m->tensor_list->tensors[targets[k]].nbytes;
    l->nbytes_kept += nbytes;
    update_layout_raise_to(&l->nbytes_largest, nbytes);
}

static bool update_layout_is_kept(const uint8_t *keepers, uint32_t rank, uint32_t index)
{
    return keepers == NULL || keepers[index] == rank || keepers[index] == LAYOUT_KEEP_ALL;
}

/* Called once all parts have their places. @keepers  as layout_share; NULL: all are kept */
static int dst_slots_make(struct layout *l, const struct model_spec *m, uint32_t n_parts,
                          const uint8_t *keepers, uint32_t rank)
{
    struct dst_slot *at;

    if (l->n_dst_slots == 0)
        return 0;
    l->dst_slots = calloc(l->n_dst_slots, sizeof *l->dst_slots);
    if (l->dst_slots == NULL)
        return -1;
    at = l->dst_slots;
    for (uint32_t i = 0; i < n_parts; i++) {
        uint64_t offset = l->parts[i].offset;
        uint32_t n;
        const uint32_t *targets = part_targets(&l->parts[i], &n);

        for (uint32_t k = 0; k < n; k++) {
            if (update_layout_is_kept(keepers, rank, targets[k]))
                *at++ = (struct dst_slot){.index = targets[k], .part = i, .offset = offset};
            offset += m->tensor_list->tensors[targets[k]].nbytes;
        }
    }
    l->n_dst_slots = (size_t)(at - l->dst_slots);
    return 0;
}

bool layout_in_one(const struct layout *l, uint32_t first, uint32_t n)
{
    const struct part *parts = &l->parts[first];

    return parts[0].how == PART_DIRECT && parts[n - 1].n_breaks == parts[0].n_breaks;
}

static int layout_refuse_memory(const struct tensor_list *tensor_list, struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for a chunk of %u tensors",
                   tensor_list->n_tensors);
}

int layout_make(struct layout **out, const struct model_spec *m,
                const struct tensor_list *tensor_list, bool convert, struct err *e)
{
    struct model_spec_match last = {.index = TENSOR_LIST_NO_TENSOR};
    struct layout *l = calloc(1, sizeof *l);

    if (l != NULL)
        l->parts = calloc(tensor_list->n_tensors, sizeof *l->parts);
    if (l == NULL || l->parts == NULL) {
        free(l);
        return layout_refuse_memory(tensor_list, e);
    }
    atomic_init(&l->refs, 1);
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        const struct tensor_spec *t = &tensor_list->tensors[i];

        if (model_spec_match_next(m, &last, t, convert, i, &last, e) != 0) {
            layout_unref(l);
            return -1;
        }
        l->parts[i].match = last;
        l->parts[i].how = part_how(m, &last, t->dtype);
        l->ties = l->ties || l->parts[i].how == PART_TIED;
        layout_place(l, m, i, t);
    }
    if (dst_slots_make(l, m, tensor_list->n_tensors, NULL, 0) != 0) {
        layout_unref(l);
        return layout_refuse_memory(tensor_list, e);
    }
    *out = l;
    return 0;
}

/* The same tensors; the parts have no places yet. NULL: no memory. */
static struct layout *layout_like(const struct layout *l, const struct tensor_list *tensor_list)
{
    struct layout *copy = calloc(1, sizeof *copy);

    if (copy != NULL)
        copy->parts = calloc(tensor_list->n_tensors, sizeof *copy->parts);
    if (copy == NULL || copy->parts == NULL) {
        free(copy);
        return NULL;
    }
    atomic_init(&copy->refs, 1);
    copy->ties = l->ties;
    copy->nbytes_largest = l->nbytes_largest;
    return copy;
}

int layout_repeating(struct layout **out, const struct layout *l, const struct model_spec *m,
                     const struct tensor_list *tensor_list, const uint32_t *sent_by, struct err *e)
{
    struct layout *copy = layout_like(l, tensor_list);

    if (copy == NULL)
        return layout_refuse_memory(tensor_list, e);
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        struct part *part = &copy->parts[i];

        *part = (struct part){.match = l->parts[i].match, .how = l->parts[i].how};
        if (sent_by[i] != TENSOR_LIST_NO_TENSOR) {
            part->how = PART_REPEATED;
            part->sent_by = sent_by[i];
        }
        layout_place(copy, m, i, &tensor_list->tensors[i]);
    }
    if (dst_slots_make(copy, m, tensor_list->n_tensors, NULL, 0) != 0) {
        layout_unref(copy);
        return layout_refuse_memory(tensor_list, e);
    }
    *out = copy;
    return 0;
}

/* How a rank takes a part of which others keep tensors. */
static enum part_how how_shared(const struct part *part, const uint8_t *keepers, uint32_t rank)
{
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);

    if (part->how != PART_DIRECT && part->how != PART_CONVERT)
        return part->how;
    for (uint32_t k = 0; k < n; k++)
        if (update_layout_is_kept(keepers, rank, targets[k]))
            return part->how;
    return PART_ELSEWHERE;
}

int layout_share(struct layout **out, const struct layout *l, const struct model_spec *m,
                 const struct tensor_list *tensor_list, const uint8_t *keepers, uint32_t rank,
                 struct err *e)
{
    struct layout *copy = layout_like(l, tensor_list);

    if (copy == NULL)
        return layout_refuse_memory(tensor_list, e);
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        copy->parts[i] = (struct part){.match = l->parts[i].match,
                                       .how = how_shared(&l->parts[i], keepers, rank),
                                       .sent_by = l->parts[i].sent_by};
        layout_place(copy, m, i, &tensor_list->tensors[i]);
    }
    if (dst_slots_make(copy, m, tensor_list->n_tensors, keepers, rank) != 0) {
        layout_unref(copy);
        return layout_refuse_memory(tensor_list, e);
    }
    *out = copy;
    return 0;
}

void layout_unref(struct layout *l)
{
    if (l == NULL || atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) != 1)
        return;
    free(l->dst_slots);
    free(l->parts);
    free(l);
}

static struct tensor_list *update_layout_tensor_list_of_rank(const struct update_chunk *c,
                                                             uint32_t rank)
{
    return c->ranks != NULL ? c->ranks[rank].tensor_list : c->tensor_list;
}

int job_layouts_make(struct update_job *job, struct updates *u, bool convert, struct err *e)
{
    struct update_chunk *c = job->chunk;
    uint32_t n = c->ranks != NULL ? store_n_ranks(u->cfg.store) : 1;

    job->layouts = calloc(n, sizeof *job->layouts);
    if (job->layouts == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a chunk");
    job->n_layouts = n;
    for (uint32_t r = 0; r < n; r++) {
        struct tensor_list *tensor_list = update_layout_tensor_list_of_rank(c, r);

        if (tensor_list != NULL &&
            list_cache_layout(u->lists, tensor_list, convert, &job->layouts[r], e) != 0) {
            chunk_refield(c, r, e);
            return -1;
        }
    }
    return 0;
}

void job_layouts_free(struct update_job *job)
{
    for (uint32_t r = 0; r < job->n_layouts; r++)
        layout_unref(job->layouts[r]);
    free(job->layouts);
    job->layouts = NULL;
    job->n_layouts = 0;
}

const struct tensor_list *chunk_tensor_list(const struct update_chunk *c, uint32_t rank)
{
    return update_layout_tensor_list_of_rank(c, rank);
}

const struct layout *job_layout(const struct update_job *job, uint32_t rank)
{
    return job->layouts[job->n_layouts > 1 ? rank : 0];
}

uint64_t chunk_nbytes(const struct update_chunk *c, uint32_t n_ranks)
{
    uint64_t nbytes = 0;

    if (c->ranks == NULL)
        return c->tensor_list->nbytes;
    for (uint32_t r = 0; r < n_ranks; r++)
        nbytes += c->ranks[r].tensor_list != NULL ? c->ranks[r].tensor_list->nbytes : 0;
    return nbytes;
}

/* The origin of tensor i of a rank, or NULL. */
static const struct chunk_origin *origin_of(const struct update_chunk *c, uint32_t rank, uint32_t i)
{
    const struct chunk_origin *found = NULL;

    for (uint32_t k = 0; k < c->n_origins; k++)
        if (c->origins[k].rank == rank && c->origins[k].first <= i)
            found = &c->origins[k];
    return found;
}

void chunk_refield(struct update_chunk *c, uint32_t rank, struct err *e)
{
    const struct chunk_origin *origin;
    char member[16], field[ERR_FIELD_MAX];
    uint32_t i;

    c->refused_rank = rank + 1;
    if (sscanf(e->field, "/%15[a-z]/%u", member, &i) != 2)
        return;
    if (c->sent_at != NULL && i < c->tensor_list->n_tensors) {
        (void)snprintf(e->field, sizeof e->field, "/%s/%u", member, c->sent_at[i]);
        return;
    }
    origin = origin_of(c, c->ranks != NULL ? rank : 0, i);
    if (origin == NULL)
        return;
    (void)snprintf(field, sizeof field, "%s/%s/%u", origin->at, member, i - origin->first);
    memcpy(e->field, field, sizeof field);
}
