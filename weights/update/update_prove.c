/* The checks before a commit: tied names agree, no tensor is missing, and the bytes have the given
 * checksums. */
#include "weights/update/update_chunk_priv.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMPARE_NBYTES = 4 << 20, PIECE_NOWHERE = STORE_PLACES_MAX };

int tie_push(struct session *s, const struct tie *tie, struct err *e)
{
    if (s->n_ties == s->ties_cap) {
        uint32_t cap = s->ties_cap == 0 ? 4 : s->ties_cap * 2;
        struct tie *grown = realloc(s->ties, cap * sizeof *grown);

        if (grown == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for a tied tensor");
        s->ties = grown;
        s->ties_cap = cap;
    }
    s->ties[s->n_ties++] = *tie;
    return 0;
}

void session_drop_ties(struct session *s, uint32_t n_kept)
{
    while (s->n_ties > n_kept)
        slab_unref(s->ties[--s->n_ties].slab);
}

/* Are the bytes at an address of a place equal to these? On a GPU they are read back piece by
 * piece. */
static int place_equal(const struct store *s, uint32_t place, uint64_t addr, const char *bytes,
                       uint64_t nbytes, bool *equal, struct err *e)
{
    char *piece;
    uint64_t cap = nbytes < COMPARE_NBYTES ? nbytes : COMPARE_NBYTES, n;
    int rc = 0;

    *equal = true;
    if (store_device(s, place) == NULL) {
        *equal = memcmp((const void *)(uintptr_t)addr, bytes, nbytes) == 0;
        return 0;
    }
    piece = malloc(cap > 0 ? cap : 1);
    if (piece == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to compare a tied tensor");
    for (uint64_t at = 0; at < nbytes && *equal && rc == 0; at += n) {
        n = nbytes - at < cap ? nbytes - at : cap;
        rc = place_read(s, place, piece, addr + at, n, e);
        *equal = rc == 0 && memcmp(piece, bytes + at, n) == 0;
    }
    free(piece);
    return rc;
}

static int tie_compare(const struct store *s, const struct tie *tie, uint32_t place, uint64_t addr,
                       struct err *e)
{
    const struct tensor_spec *t =
        &store_model_spec(s)->tensor_list->tensors[tie->alias->targets[0]];
    bool equal;

    if (place_equal(s, place, addr, tie->data, t->nbytes, &equal, e) != 0)
        return -1;
    if (equal)
        return 0;
    return err_set(e, ERR_MISMATCH, "/names",
                   "'%.*s' and '%.*s' are one tensor in this model, but their bytes differ",
                   utf8_cut_name(tie->alias->name), tie->alias->name, utf8_cut_name(t->name),
                   t->name);
}

/* Compares one tensor of a repeated part. @bytes  in the dtype of the model spec */
static int compare_target(struct fill *f, uint32_t place, uint32_t index, uint32_t sent_by,
                          const char *field, const char *bytes, struct err *e)
{
    const struct tensor_spec *spec = target_spec(f, index);
    bool equal;

    place = staging_keeper(f->staging, place, index);
    if (!staging_has(f->staging, place, index))
        return err_set(e, ERR_CONFLICT, field,
                       "'%.*s' was to come from trainer rank %u, whose request failed: send this "
                       "request again",
                       utf8_cut_name(spec->name), spec->name, sent_by);
    if (place_equal(f->store, place, staging_effective(f->staging, place, index), bytes,
                    spec->nbytes, &equal, e) != 0)
        return -1;
    if (equal)
        return 0;
    return err_set(e, ERR_MISMATCH, field,
                   "'%.*s' has other bytes than trainer rank %u has sent: the trainer's ranks have "
                   "different weights",
                   utf8_cut_name(spec->name), spec->name, sent_by);
}

int repeat_compare(struct fill *f, uint32_t rank, uint32_t place, uint32_t i, const void *from,
                   struct err *e)
{
    const struct tensor_spec *t = &f->ranks[rank].tensor_list->tensors[i];
    const struct part *part = &f->ranks[rank].layout->parts[i];
    const char *at = from;
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);
    char field[48];

    (void)snprintf(field, sizeof field, "/names/%u", i);
    for (uint32_t k = 0; k < n; k++) {
        const struct tensor_spec *spec = target_spec(f, targets[k]);
        const char *bytes = at;
        void *converted;

        at += spec->numel * dtype_nbytes(t->dtype);
        if (spec->dtype != t->dtype) {
            if (fill_converted(f, &converted, e) != 0)
                return -1;
            dtype_convert(converted, spec->dtype, bytes, t->dtype, spec->numel);
            bytes = converted;
        }
        if (compare_target(f, place, targets[k], part->sent_by, field, bytes, e) != 0) {
            chunk_refield(f->job->chunk, rank, e);
            return -1;
        }
    }
    return 0;
}

/* The address of the bytes of `index` if this chunk brought them from a rank to a region, or 0. */
static uint64_t find_from_rank(const struct fill *f, uint32_t rank, struct dst_region at,
                               uint32_t index)
{
    const struct rank_fill *r = &f->ranks[rank];

    for (uint32_t i = 0; r->tensor_list != NULL && i < r->tensor_list->n_tensors; i++) {
        const struct part *part = &r->layout->parts[i];
        uint32_t n;
        const uint32_t *targets = part_targets(part, &n);

        for (uint32_t k = 0; k < n; k++)
            if (targets[k] == index)
                return dst_region_target(f, at, part, k);
    }
    return 0;
}

/* The same for a place: the host backup gets a tensor from the first rank that brings it. */
static uint64_t find_in_chunk(const struct fill *f, uint32_t place, uint32_t index)
{
    uint64_t addr = 0;

    if (place < f->n_ranks)
        return find_from_rank(f, place, dst_region_of_rank(f, place), index);
    for (uint32_t r = 0; r < f->n_ranks && addr == 0; r++)
        if (fill_mirrors(f, r, index))
            addr = find_from_rank(f, r, dst_region_of_mirror(f, r), index);
    return addr;
}

int ties_compare(struct fill *f, struct session *s, struct err *e)
{
    for (uint32_t i = 0; i < s->n_ties; i++) {
        const struct tie *tie = &s->ties[i];
        uint32_t index = tie->alias->targets[0];
        uint64_t addr = staging_has(f->staging, tie->place, index)
                            ? staging_effective(f->staging, tie->place, index)
                            : find_in_chunk(f, tie->place, index);

        if (addr != 0 && tie_compare(f->store, tie, tie->place, addr, e) != 0)
            return -1;
    }
    return 0;
}

/* After the chunk's tensors are registered: drops the ties whose target arrived, because they were
 * compared. */
void ties_drop_compared(struct session *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_ties; i++) {
        if (staging_has(s->staging, s->ties[i].place, s->ties[i].alias->targets[0]))
            slab_unref(s->ties[i].slab);
        else
            s->ties[n++] = s->ties[i];
    }
    s->n_ties = n;
}

bool session_only_ties(const struct session *s)
{
    return s->staging != NULL && s->staging->n_arrived == 0;
}

int ties_compare_served(const struct session *s, const struct version *served, struct err *e)
{
    const struct version_owned *v = (const struct version_owned *)(const void *)served;
    const struct store *store = s->staging->store;

    for (uint32_t i = 0; i < s->n_ties; i++) {
        const struct tie *tie = &s->ties[i];

        for (uint32_t p = 0; p < store_n_places(store); p++) {
            uint64_t addr = version_view(v, p, tie->alias->targets[0])->addr;

            if (addr != 0 && (tie->everywhere || p == tie->place) &&
                tie_compare(store, tie, p, addr, e) != 0)
                return -1;
        }
    }
    return 0;
}

/* Copies the bytes of a tie to its target in one place. */
static int settle_tie_at(struct staging *g, const struct tie *tie, uint32_t place, struct err *e)
{
    struct store *s = g->store;
    uint32_t index = tie->alias->targets[0];
    uint64_t nbytes = s->model_spec->tensor_list->tensors[index].nbytes, addr;
    struct staging_memory room = {0};
    int rc;

    if (staging_has(g, place, index))
        return 0;
    if (store_device(s, place) == NULL)
        return staging_view(g, place, index, tie->slab, (uint64_t)(uintptr_t)tie->data, e);
    if (staging_memory(g, place, nbytes, &room, e) != 0)
        return -1;
    addr = room.slab->addr + room.offset;
    rc = place_write(s, place, addr, tie->data, nbytes, e);
    if (rc == 0)
        rc = staging_view(g, place, index, room.slab, addr, e);
    slab_unref(room.slab);
    return rc;
}

/* Does a place get its target's bytes from a tie? In a sharded store the owner does, unless another
 * rank has got them. */
static bool tie_provides(const struct staging *g, const struct tie *tie, uint32_t place,
                         bool target_came)
{
    if (store_device(g->store, place) == NULL)
        return true;
    if (store_sharded(g->store))
        return place == tie->place && !target_came;
    return tie->everywhere || place == tie->place;
}

/* If the target of a tie came in no chunk, the tie provides the target's bytes. */
static int settle_ties(struct session *s, struct err *e)
{
    struct staging *g = s->staging;
    struct store *store = g->store;

    for (uint32_t i = 0; i < s->n_ties; i++) {
        const struct tie *tie = &s->ties[i];
        uint32_t index = tie->alias->targets[0];
        bool target_came = g->spread[index].n_ranks > 0;
        struct checksum sum;

        sum = checksum_of(tie->data, store->model_spec->tensor_list->tensors[index].nbytes);
        digest_set(s, index, &sum);
        /* The target may have arrived on another rank than the tied name. */
        for (uint32_t p = 0; p < store_n_places(store); p++)
            if (staging_has(g, p, index) &&
                tie_compare(store, tie, p, staging_effective(g, p, index), e) != 0)
                return -1;
        for (uint32_t p = 0; p < store_n_places(store); p++)
            if (tie_provides(g, tie, p, target_came) && settle_tie_at(g, tie, p, e) != 0)
                return -1;
    }
    session_drop_ties(s, 0);
    return 0;
}

/* A place that will have tensor `index`: `place`, or the first rank. PIECE_NOWHERE: none. */
static uint32_t piece_place(const struct session *s, uint32_t place, uint32_t index)
{
    if (staging_effective(s->staging, place, index) != 0)
        return place;
    for (uint32_t p = 0; p < s->n_ranks; p++)
        if (staging_effective(s->staging, p, index) != 0)
            return p;
    return PIECE_NOWHERE;
}

/* The checksum of a fused name in a place, over its pieces in order; those that only other ranks
 * have are read there. *has is false if a piece is missing everywhere. */
static int sum_fused(const struct session *s, uint32_t place, const struct alias *alias, bool *has,
                     struct checksum *out, struct err *e)
{
    const struct tensor_list *tensor_list = s->staging->store->model_spec->tensor_list;
    struct slab *joined = NULL;
    uint64_t nbytes = 0, at = 0;
    int rc = 0;

    *has = false;
    for (uint32_t k = 0; k < alias->n_targets; k++) {
        if (piece_place(s, place, alias->targets[k]) == PIECE_NOWHERE)
            return 0;
        nbytes += tensor_list->tensors[alias->targets[k]].nbytes;
    }
    *has = true;
    if (staging_slab(s->staging, nbytes, &joined, e) != 0)
        return -1;
    for (uint32_t k = 0; k < alias->n_targets && rc == 0; k++) {
        uint32_t index = alias->targets[k];

        uint32_t p = piece_place(s, place, index);

        rc = place_read(s->staging->store, p, (char *)joined->base + at,
                        staging_effective(s->staging, p, index), tensor_list->tensors[index].nbytes,
                        e);
        at += tensor_list->tensors[index].nbytes;
    }
    if (rc == 0)
        *out = checksum_of(joined->base, nbytes);
    slab_unref(joined);
    return rc;
}

static int sum_at(const struct session *s, uint32_t place, const struct finish_sum *want,
                  uint32_t index, bool *has, struct checksum *out, struct err *e)
{
    uint64_t addr;

    if (want->alias != NULL && want->alias->kind == ALIAS_FUSED)
        return sum_fused(s, place, want->alias, has, out, e);
    addr = staging_effective(s->staging, place, index);
    *has = addr != 0;
    if (addr == 0)
        return 0;
    return place_sum(s->staging->store, place, addr,
                     s->staging->store->model_spec->tensor_list->tensors[index].nbytes, out, e);
}

/* A tensor that was widened (model_spec_hold) may have the checksum of its bytes before. */
static int sum_before_widening(const struct session *s, uint32_t place, uint32_t index,
                               const struct checksum *want, bool *same, struct err *e)
{
    static const enum dtype narrow[] = {DTYPE_BF16, DTYPE_F16};
    const struct store *store = s->staging->store;
    const struct tensor_spec *t = &store->model_spec->tensor_list->tensors[index];
    char *wide, *back, *half;
    struct slab *slab;
    int rc;

    *same = false;
    if (store->model_spec->held == NULL || !store->model_spec->held[index])
        return 0;
    if (staging_slab(s->staging, 2 * t->nbytes + t->numel * 2, &slab, e) != 0)
        return -1;
    wide = slab->base;
    back = wide + t->nbytes;
    half = back + t->nbytes;
    rc = place_read(store, place, wide, staging_effective(s->staging, place, index), t->nbytes, e);
    for (size_t i = 0; rc == 0 && i < sizeof narrow / sizeof narrow[0]; i++) {
        struct checksum sum;

        dtype_convert(half, narrow[i], wide, t->dtype, t->numel);
        dtype_convert(back, t->dtype, half, narrow[i], t->numel);
        sum = checksum_of(half, t->numel * 2);
        *same = *same || (memcmp(back, wide, t->nbytes) == 0 && checksum_equal(sum, *want));
    }
    slab_unref(slab);
    return rc;
}

static int refuse_sum(const struct session *s, uint32_t place, const char *name,
                      const struct checksum *found, const struct checksum *want, struct err *e)
{
    const struct store *store = s->staging->store;
    char is[CHECKSUM_LEN + 1], wanted[CHECKSUM_LEN + 1], field[ERR_FIELD_MAX];
    bool several = store_n_places(store) > 1;

    checksum_text(found, is);
    checksum_text(want, wanted);
    (void)snprintf(field, sizeof field, "/checksums/%.*s", utf8_cut_name(name), name);
    return err_set(e, ERR_CHECKSUM, field, "the bytes of '%.*s' have checksum %s%s%s, not %s%s",
                   utf8_cut_name(name), name, is, several ? " on " : "",
                   several ? store_place_name(store, place) : "", wanted,
                   s->base.delta ? UPDATE_OTHER_BASE : "");
}

static int refuse_unsent(const char *name, struct err *e)
{
    char field[ERR_FIELD_MAX];

    (void)snprintf(field, sizeof field, "/checksums/%.*s", utf8_cut_name(name), name);
    return err_set(e, ERR_CHECKSUM, field,
                   "'%.*s' has a checksum, and no bytes of it arrived in this update",
                   utf8_cut_name(name), name);
}

/* Checks the bytes of a tensor in every place that has it. */
static int prove_sum(struct session *s, const struct finish_sum *want, struct err *e)
{
    const struct store *store = s->staging->store;
    const struct alias *alias = want->alias;
    uint32_t index = alias != NULL && alias->kind == ALIAS_TIED ? alias->targets[0] : want->index;
    const char *name = alias != NULL ? alias->name
                                     : store->model_spec->tensor_list->tensors[index].name;
    bool has, same, compared = false;
    struct checksum sum;

    if (alias != NULL && alias->kind == ALIAS_IGNORED)
        return 0; /* no tensor is served under this name */
    for (uint32_t p = 0; p < store->n_places; p++) {
        if (sum_at(s, p, want, index, &has, &sum, e) != 0)
            return -1;
        if (!has)
            continue;
        compared = true;
        same = checksum_equal(sum, want->sum);
        if (!same && alias == NULL && sum_before_widening(s, p, index, &want->sum, &same, e) != 0)
            return -1;
        if (!same)
            return refuse_sum(s, p, name, &sum, &want->sum, e);
    }
    if (!compared)
        return refuse_unsent(name, e);
    atomic_fetch_add_explicit(&s->n_checksums, 1, memory_order_relaxed);
    return 0;
}

static int prove_complete(const struct session *s, const struct model_spec *m, struct err *e)
{
    uint32_t first = 0, n_missing = m->tensor_list->n_tensors;
    const char *hint =
        s->anonymous || s->one_shot
            ? "; the update must contain all of them"
            : "; to keep the served ones, send \"partial\": true to /v1/update_weights/start";

    if (s->staging != NULL)
        n_missing = staging_missing(s->staging, &first, 1);
    if (n_missing == 0)
        return 0;
    if (s->partial && s->staging != NULL && s->staging->n_arrived > 0)
        return 0; /* the store checks which tensors must be on every rank */
    if (s->partial)
        return err_set(e, ERR_INCOMPLETE, "", "no tensor of the model arrived in this update");
    return err_set(e, ERR_INCOMPLETE, "", "%u of %u tensors are missing, '%.*s' first%s", n_missing,
                   m->tensor_list->n_tensors, utf8_cut_name(m->tensor_list->tensors[first].name),
                   m->tensor_list->tensors[first].name, hint);
}

int session_prove_devices(const struct session *session, struct err *e)
{
    const struct store *s = session->staging->store;

    for (uint32_t p = 0; p < store_n_places(s); p++)
        if (store_device(s, p) != NULL && device_check(store_device(s, p), e) != 0)
            return -1;
    return 0;
}

int session_prove(struct session *s, const struct update_job *job, const struct model_spec *m,
                  struct err *e)
{
    if (s->n_ties > 0 && settle_ties(s, e) != 0)
        return -1;
    if (prove_complete(s, m, e) != 0 || replicas_prove(s, e) != 0)
        return -1;
    for (uint32_t i = 0; i < job->n_sums; i++)
        if (stop_check(&job->progress, e) != 0 || prove_sum(s, &job->sums[i], e) != 0)
            return -1;
    return session_prove_devices(s, e);
}
