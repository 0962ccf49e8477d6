/* The state of each tensor of the model spec in a session: queued, arrived, or arrived under a tied
 * name.
 *
 * Tensors are claimed when a chunk is queued, so that two chunks in flight can never bring the same
 * tensor. A chunk that fails releases its claims, and may be sent again. */
#include "weights/update/update_priv.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One tensor of a chunk, on ranks that get the same list. */
struct tensor_target {
    uint32_t first, n;  /* the ranks */
    uint32_t part;      /* in their tensor list */
    uint32_t index;     /* in the model spec */
    unsigned char *are; /* [n] CLAIM_* */
};

static unsigned char *tensor_state_at(const struct session *s, uint32_t rank, uint32_t index)
{
    return &s->tensor_states[(size_t)index * s->n_ranks + rank];
}

/* Does a tensor have one of these states on every rank; if sharded, on any rank? */
static bool tensor_state_claimed(const struct session *s, uint32_t index, unsigned mask)
{
    for (uint32_t r = 0; r < s->n_ranks; r++)
        if (((*tensor_state_at(s, r, index) & mask) != 0) == s->sharded)
            return s->sharded;
    return !s->sharded;
}

bool tensor_states_has_locked(const struct session *s, uint32_t index, uint32_t first_rank,
                              uint32_t n_ranks)
{
    for (uint32_t r = first_rank; r < first_rank + n_ranks; r++)
        if ((*tensor_state_at(s, r, index) & (TENSOR_QUEUED | TENSOR_ARRIVED)) == 0)
            return false;
    return true;
}

bool tensor_states_uneven(const struct update_job *job, uint32_t n_ranks, uint32_t n_tensors)
{
    bool *first = job->n_layouts > 1 ? calloc(n_tensors, sizeof *first) : NULL;
    bool uneven = false;

    for (uint32_t r = 0; first != NULL && r < n_ranks && !uneven; r++) {
        const struct layout *l = job_layout(job, r), *l0 = job_layout(job, 0);

        uneven = l == NULL || l0 == NULL || l->n_dst_slots != l0->n_dst_slots;
        for (size_t i = 0; !uneven && i < l->n_dst_slots; i++) {
            if (r == 0)
                first[l->dst_slots[i].index] = true;
            uneven = !first[l->dst_slots[i].index];
        }
    }
    free(first);
    return uneven;
}

void tensor_states_shard_locked(struct updates *u, struct session *s)
{
    const struct tensor_list *tensor_list = u->model_spec->tensor_list;

    mtx_assert_held(&u->lock);
    s->sharded = true;
    s->n_arrived = s->n_here = s->n_claimed = 0;
    s->nbytes_claimed = 0;
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        s->n_arrived += tensor_state_claimed(s, i, TENSOR_ARRIVED);
        s->n_here += tensor_state_claimed(s, i, TENSOR_ARRIVED | TENSOR_TIED);
        s->counted[i] = tensor_state_claimed(s, i, TENSOR_QUEUED | TENSOR_ARRIVED);
        s->n_claimed += s->counted[i];
        s->nbytes_claimed += s->counted[i] ? tensor_list->tensors[i].nbytes : 0;
    }
}

static int tensor_state_refuse(const struct updates *u, const struct update_job *job,
                               const struct tensor_target *c, uint32_t k, struct err *e)
{
    const char *sent = chunk_tensor_list(job->chunk, c->first + k)->tensors[c->part].name;
    const char *name = u->model_spec->tensor_list->tensors[c->index].name;
    char field[48];

    (void)snprintf(field, sizeof field, "/names/%u", c->part);
    if (c->are[k] & TENSOR_MINE)
        (void)err_set(e, ERR_BAD_REQUEST, field, "'%.*s' brings '%.*s' a second time",
                      utf8_cut_name(sent), sent, utf8_cut_name(name), name);
    else if (c->are[k] & TENSOR_ARRIVED) /* for good: no repetition of the request succeeds */
        (void)err_set(e, ERR_PRECONDITION, field, "'%.*s' has already arrived in this update",
                      utf8_cut_name(name), name);
    else
        (void)err_set(e, ERR_CONFLICT, field, "'%.*s' is being received already in this update",
                      utf8_cut_name(name), name);
    chunk_refield(job->chunk, c->first + k, e);
    return -1;
}

/* Calls `fn` for each tensor of the model spec that the chunk brings. A tensor list may have a
 * hundred thousand tensors and u->lock is held meanwhile: the loop is made for each fn, so that a
 * tensor costs no call, and once for all ranks that get the same. */
typedef int tensor_state_fn(struct updates *u, struct session *s, const struct update_job *job,
                            const struct tensor_target *c, struct err *e);

static inline __attribute__((always_inline)) int
tensor_states_of_ranks(struct updates *u, struct session *s, const struct update_job *job,
                       uint32_t first, uint32_t n, tensor_state_fn *fn, struct err *e)
{
    const struct layout *l = job_layout(job, first);

    for (size_t i = 0; l != NULL && i < l->n_dst_slots; i++) {
        uint32_t index = l->dst_slots[i].index;
        struct tensor_target c = {first, n, l->dst_slots[i].part, index,
                                  tensor_state_at(s, first, index)};

        if (fn(u, s, job, &c, e) != 0)
            return -1;
    }
    return 0;
}

static inline __attribute__((always_inline)) int
tensor_states_each(struct updates *u, struct session *s, const struct update_job *job,
                   tensor_state_fn *fn, struct err *e)
{
    mtx_assert_held(&u->lock);
    if (job->chunk->ranks == NULL)
        return tensor_states_of_ranks(u, s, job, 0, s->n_ranks, fn, e);
    for (uint32_t r = 0; r < s->n_ranks; r++)
        if (tensor_states_of_ranks(u, s, job, r, 1, fn, e) != 0)
            return -1;
    return 0;
}

static int tensor_state_mark(struct updates *u, struct session *s, const struct update_job *job,
                             const struct tensor_target *c, struct err *e)
{
    (void)s;
    for (uint32_t k = 0; k < c->n; k++) {
        if (c->are[k] & (TENSOR_MINE | TENSOR_QUEUED | TENSOR_ARRIVED))
            return tensor_state_refuse(u, job, c, k, e);
        c->are[k] |= TENSOR_MINE;
    }
    return 0;
}

static int tensor_state_unmark(struct updates *u, struct session *s, const struct update_job *job,
                               const struct tensor_target *c, struct err *e)
{
    (void)u, (void)s, (void)job, (void)e;
    for (uint32_t k = 0; k < c->n; k++)
        c->are[k] &= (unsigned char)~TENSOR_MINE;
    return 0;
}

static int tensor_state_queue(struct updates *u, struct session *s, const struct update_job *job,
                              const struct tensor_target *c, struct err *e)
{
    (void)job, (void)e;
    for (uint32_t k = 0; k < c->n; k++)
        c->are[k] = (unsigned char)((c->are[k] & ~TENSOR_MINE) | TENSOR_QUEUED);
    if (!s->counted[c->index] &&
        tensor_state_claimed(s, c->index, TENSOR_QUEUED | TENSOR_ARRIVED)) {
        s->counted[c->index] = true;
        s->n_claimed++;
        s->nbytes_claimed += u->model_spec->tensor_list->tensors[c->index].nbytes;
    }
    return 0;
}

/* Has a tensor, or its tied name, arrived on every rank that needs it? */
static bool has_arrived(const struct session *s, uint32_t index)
{
    return tensor_state_claimed(s, index, TENSOR_ARRIVED | TENSOR_TIED);
}

static int tensor_state_arrive(struct updates *u, struct session *s, const struct update_job *job,
                               const struct tensor_target *c, struct err *e)
{
    bool before = tensor_state_claimed(s, c->index, TENSOR_ARRIVED),
         was_here = has_arrived(s, c->index);

    (void)u, (void)job, (void)e;
    for (uint32_t k = 0; k < c->n; k++)
        c->are[k] = (unsigned char)(TENSOR_ARRIVED | (c->are[k] & TENSOR_NAMED));
    if (!was_here && has_arrived(s, c->index))
        s->n_here++;
    if (!before && tensor_state_claimed(s, c->index, TENSOR_ARRIVED))
        s->n_arrived++;
    return 0;
}

static int tensor_state_release(struct updates *u, struct session *s, const struct update_job *job,
                                const struct tensor_target *c, struct err *e)
{
    (void)job, (void)e;
    for (uint32_t k = 0; k < c->n; k++)
        c->are[k] &= (unsigned char)~TENSOR_QUEUED;
    if (s->counted[c->index] &&
        !tensor_state_claimed(s, c->index, TENSOR_QUEUED | TENSOR_ARRIVED)) {
        s->counted[c->index] = false;
        s->n_claimed--;
        s->nbytes_claimed -= u->model_spec->tensor_list->tensors[c->index].nbytes;
    }
    return 0;
}

int tensor_states_take_locked(struct updates *u, struct session *s, struct update_job *job,
                              struct err *e)
{
    struct err none = {0};
    int rc = senders_repeats_locked(u, s, job, e);

    if (rc == 0)
        rc = tensor_states_each(u, s, job, tensor_state_mark, e);
    if (rc != 0) {
        (void)tensor_states_each(u, s, job, tensor_state_unmark, &none);
        return -1;
    }
    (void)tensor_states_each(u, s, job, tensor_state_queue, &none);
    senders_queue_locked(u, s, job);
    s->nbytes_accepted += chunk_nbytes(job->chunk, s->n_ranks);
    return 0;
}

static void tensor_state_tie(struct session *s, uint32_t rank, uint32_t index)
{
    bool was_here = has_arrived(s, index);

    *tensor_state_at(s, rank, index) |= TENSOR_TIED | TENSOR_NAMED;
    if (!was_here && has_arrived(s, index))
        s->n_here++;
}

void tensor_states_tie_locked(struct updates *u, struct session *s, const struct update_job *job)
{
    mtx_assert_held(&u->lock);
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        const struct tensor_list *tensor_list = chunk_tensor_list(job->chunk, r);
        const struct layout *l = job_layout(job, r);

        for (uint32_t i = 0; tensor_list != NULL && l->ties && i < tensor_list->n_tensors; i++)
            if (l->parts[i].how == PART_TIED)
                tensor_state_tie(s, r, l->parts[i].match.alias->targets[0]);
    }
}

void tensor_states_arrive_locked(struct updates *u, struct session *s, const struct update_job *job)
{
    struct err none = {0};

    (void)tensor_states_each(u, s, job, tensor_state_arrive, &none);
    tensor_states_tie_locked(u, s, job);
    s->nbytes_done += chunk_nbytes(job->chunk, s->n_ranks);
}

void tensor_states_release_locked(struct updates *u, struct session *s,
                                  const struct update_job *job)
{
    struct err none = {0};

    (void)tensor_states_each(u, s, job, tensor_state_release, &none);
    senders_release_locked(s, job);
    s->nbytes_accepted -= chunk_nbytes(job->chunk, s->n_ranks);
}

bool tensor_states_lack_locked(const struct session *s, uint32_t index, unsigned mask)
{
    return !tensor_state_claimed(s, index, mask);
}

/* A tensor that has arrived stays, so the search continues where it last ended. It examines at
 * most the tensors that arrived out of order: every reply needs it, and a model spec has a hundred
 * thousand names. */
uint32_t tensor_states_missing_locked(struct updates *u, struct session *s, const char **out,
                                      uint32_t cap)
{
    const struct tensor_list *tensor_list = u->model_spec->tensor_list;
    uint32_t n_missing = tensor_list->n_tensors - s->n_here, n = 0;

    mtx_assert_held(&u->lock);
    if (s->partial)
        return 0;
    if (s->tensor_states == NULL) {
        memcpy(out, s->missing,
               (cap < UPDATE_MISSING_MAX ? cap : UPDATE_MISSING_MAX) * sizeof *out);
        return s->n_missing;
    }
    while (s->missing_from < tensor_list->n_tensors && has_arrived(s, s->missing_from))
        s->missing_from++;
    for (uint32_t i = s->missing_from; i < tensor_list->n_tensors && n < cap && n < n_missing; i++)
        if (!has_arrived(s, i))
            out[n++] = tensor_list->tensors[i].name;
    return n_missing;
}
