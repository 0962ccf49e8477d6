/* Moving the bytes of one chunk: which go where, in as few calls of the source as possible.
 *
 * Neighbours that need no conversion are one call. Staged, the slab is laid out in the plan's
 * order, so a plain bucket is a single call and its tensors are views of the slab; in place, a run
 * ends where the served bytes are not neighbours. Everything else passes through scratch memory,
 * one tensor at a time. */
#include "base/clock.h"
#include "weights/update_priv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PART_ALIGN = 64 };

const uint32_t *match_targets(const struct manifest_match *m, uint32_t *n)
{
    if (m->alias == NULL) {
        *n = 1;
        return &m->index;
    }
    *n = m->alias->kind == ALIAS_FUSED ? m->alias->n_targets : 0;
    return m->alias->targets;
}

static enum part_how part_how(const struct manifest *m, const struct manifest_match *match,
                              enum dtype sent)
{
    uint32_t n;
    const uint32_t *targets = match_targets(match, &n);

    if (match->alias != NULL && match->alias->kind == ALIAS_TIED)
        return PART_TIED;
    if (match->alias != NULL && match->alias->kind == ALIAS_IGNORED)
        return PART_IGNORED;
    for (uint32_t i = 0; i < n; i++)
        if (m->plan->tensors[targets[i]].dtype != sent)
            return PART_CONVERT;
    return PART_DIRECT;
}

static void raise_to(uint64_t *largest, uint64_t nbytes)
{
    if (nbytes > *largest)
        *largest = nbytes;
}

/* Cannot overflow: what is kept is at most the manifest, and each tensor adds one alignment. */
static void layout_place(struct layout *l, const struct manifest *m, uint32_t i,
                         const struct tensor_spec *t)
{
    struct part *part = &l->parts[i];
    bool packed = i > 0 && part->how == PART_DIRECT && l->parts[i - 1].how == PART_DIRECT;
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);

    if (part->how != PART_DIRECT)
        raise_to(&l->nbytes_scratch, part->how == PART_TIED ? 0 : t->nbytes);
    if (part->how != PART_TIED && (part->how != PART_DIRECT || n > 1))
        raise_to(&l->nbytes_scratch_in_place, t->nbytes);
    if (n == 0)
        return;
    l->keeps = true;
    if (!packed)
        l->nbytes_kept = (l->nbytes_kept + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    part->offset = l->nbytes_kept;
    for (uint32_t k = 0; k < n; k++)
        l->nbytes_kept += m->plan->tensors[targets[k]].nbytes;
}

int layout_make(struct layout *out, const struct manifest *m, const struct plan *plan, bool convert,
                struct err *e)
{
    struct layout l = {.parts = calloc(plan->n_tensors, sizeof *l.parts)};

    if (l.parts == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a chunk of %u tensors",
                       plan->n_tensors);
    for (uint32_t i = 0; i < plan->n_tensors; i++) {
        const struct tensor_spec *t = &plan->tensors[i];

        if (manifest_match(m, t, convert, i, &l.parts[i].match, e) != 0) {
            free(l.parts);
            return -1;
        }
        l.parts[i].how = part_how(m, &l.parts[i].match, t->dtype);
        layout_place(&l, m, i, t);
    }
    *out = l;
    return 0;
}

void layout_fini(struct layout *l)
{
    free(l->parts);
    memset(l, 0, sizeof *l);
}

/* One chunk on its way; on the worker's stack. */
struct fill {
    struct staging *staging; /* borrowed */
    const struct manifest *m;
    const struct plan *plan;
    const struct layout *layout;
    const struct update_chunk *chunk;
    struct progress *progress;
    uint64_t pin_deadline_us; /* how long to wait for readers of older versions */
    struct slab *slab;        /* staged: where everything goes; or NULL */
    struct slab *scratch;     /* or NULL */
};

static int fill_stopped(const struct progress *p, struct err *e)
{
    if (!atomic_load_explicit(&p->stop, memory_order_relaxed))
        return 0;
    return err_set(e, ERR_CONFLICT, "", "the update was aborted while its bytes arrived");
}

static const struct tensor_spec *target_spec(const struct fill *f, uint32_t index)
{
    return &f->m->plan->tensors[index];
}

/* Where target k of a part lies or will lie. */
static char *place_of_target(const struct fill *f, const struct part *part, uint32_t k)
{
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);
    uint64_t before = 0;

    assert(k < n);
    if (staging_in_place(f->staging))
        return staging_place(f->staging, targets[k]);
    for (uint32_t i = 0; i < k; i++)
        before += target_spec(f, targets[i])->nbytes;
    return (char *)f->slab->base + part->offset + before;
}

/* Where a DIRECT part can be filled to as it comes, or NULL when its pieces lie apart. */
static char *place_of_part(const struct fill *f, const struct part *part)
{
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);
    char *start = place_of_target(f, part, 0), *end = start;

    for (uint32_t k = 0; k < n; k++) {
        if (place_of_target(f, part, k) != end)
            return NULL;
        end += target_spec(f, targets[k])->nbytes;
    }
    return start;
}

static int verify_tensor(const struct fill *f, uint32_t i, const void *data, struct err *e)
{
    const struct tensor_spec *t = &f->plan->tensors[i];
    char found[CHECKSUM_LEN + 1], wanted[CHECKSUM_LEN + 1], field[48];
    struct checksum sum;

    if (f->chunk->checksums == NULL ||
        (f->chunk->has_checksum != NULL && !f->chunk->has_checksum[i]))
        return 0;
    if (fill_stopped(f->progress, e) != 0)
        return -1;
    sum = checksum_of(data, t->nbytes);
    if (checksum_equal(sum, f->chunk->checksums[i]))
        return 0;
    checksum_text(&sum, found);
    checksum_text(&f->chunk->checksums[i], wanted);
    (void)snprintf(field, sizeof field, "/checksums/%u", i);
    return err_set(e, ERR_CHECKSUM, field, "the bytes of '%.*s' have checksum %s, not %s",
                   plan_name_cut(t->name), t->name, found, wanted);
}

/* Fills [first, first + n) at dst and verifies them there. */
static int fill_run(struct fill *f, uint32_t first, uint32_t n, void *dst, struct err *e)
{
    struct source *src = f->chunk->source;
    const char *at = dst;

    atomic_store_explicit(&f->progress->tensor, first, memory_order_relaxed);
    if (src->ops->fill(src, f->plan, first, n, dst, f->progress, e) != 0)
        return -1;
    for (uint32_t i = first; i < first + n; i++) {
        if (verify_tensor(f, i, at, e) != 0)
            return -1;
        at += f->plan->tensors[i].nbytes;
    }
    return 0;
}

/* From here on the bytes that part i brings may be written where they are served. */
static void touch_part(struct fill *f, uint32_t i)
{
    uint32_t n;
    const uint32_t *targets = match_targets(&f->layout->parts[i].match, &n);

    for (uint32_t k = 0; k < n && staging_in_place(f->staging); k++)
        (void)staging_target(f->staging, targets[k]);
}

/* How many DIRECT parts from `first` on lie back to back, starting at dst. */
static uint32_t run_length(const struct fill *f, uint32_t first, const char *dst)
{
    const char *end = dst + f->plan->tensors[first].nbytes;
    uint32_t i = first + 1;

    while (i < f->plan->n_tensors && f->layout->parts[i].how == PART_DIRECT &&
           place_of_part(f, &f->layout->parts[i]) == end) {
        end += f->plan->tensors[i].nbytes;
        i++;
    }
    return i - first;
}

static int scratch_get(struct fill *f, void **out, struct err *e)
{
    uint64_t nbytes = staging_in_place(f->staging) ? f->layout->nbytes_scratch_in_place
                                                   : f->layout->nbytes_scratch;

    if (f->scratch == NULL && staging_slab(f->staging, nbytes, &f->scratch, e) != 0)
        return -1;
    *out = f->scratch->base;
    return 0;
}

/* Through scratch: converted, split up, or dropped. */
static int fill_scratch(struct fill *f, uint32_t i, struct err *e)
{
    const struct tensor_spec *t = &f->plan->tensors[i];
    const struct part *part = &f->layout->parts[i];
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);
    const char *from;
    void *scratch;

    if (scratch_get(f, &scratch, e) != 0 || fill_run(f, i, 1, scratch, e) != 0)
        return -1;
    if (part->how == PART_IGNORED && manifest_check_ignored(f->m, t, scratch, e) != 0)
        return -1;
    from = scratch;
    touch_part(f, i);
    for (uint32_t k = 0; k < n; k++) {
        const struct tensor_spec *to = target_spec(f, targets[k]);

        dtype_convert(place_of_target(f, part, k), to->dtype, from, t->dtype, to->numel);
        from += to->numel * dtype_nbytes(t->dtype);
    }
    return 0;
}

static int tie_push(struct session *s, const struct tie *tie, struct err *e)
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

/* The bytes of a tied name stay apart until its target is there to compare with. */
static int fill_tied(struct fill *f, struct session *s, uint32_t i, struct err *e)
{
    const struct tensor_spec *t = &f->plan->tensors[i];
    const struct alias *alias = f->layout->parts[i].match.alias;
    const struct tensor_spec *to = target_spec(f, alias->targets[0]);
    struct slab *slab = NULL, *converted = NULL;
    struct tie tie = {.alias = alias};

    if (staging_slab(f->staging, t->nbytes, &slab, e) != 0)
        return -1;
    if (fill_run(f, i, 1, slab->base, e) != 0)
        goto err_slab_unref;
    if (to->dtype != t->dtype) {
        if (staging_slab(f->staging, to->nbytes, &converted, e) != 0)
            goto err_slab_unref;
        dtype_convert(converted->base, to->dtype, slab->base, t->dtype, to->numel);
        slab_unref(slab);
        slab = converted;
    }
    tie.slab = slab;
    tie.data = slab->base;
    if (tie_push(s, &tie, e) != 0)
        goto err_slab_unref;
    return 0;

err_slab_unref:
    slab_unref(slab);
    return -1;
}

static int fill_parts(struct fill *f, struct session *s, struct err *e)
{
    for (uint32_t i = 0; i < f->plan->n_tensors;) {
        const struct part *part = &f->layout->parts[i];
        char *dst = part->how == PART_DIRECT ? place_of_part(f, part) : NULL;
        uint32_t n = 1;

        if (dst != NULL) {
            n = run_length(f, i, dst);
            touch_part(f, i);
            if (fill_run(f, i, n, dst, e) != 0)
                return -1;
        } else if (part->how == PART_TIED) {
            if (fill_tied(f, s, i, e) != 0)
                return -1;
        } else if (fill_scratch(f, i, e) != 0) {
            return -1;
        }
        i += n;
    }
    return 0;
}

/* A source that says "done" early would leave whatever the memory held before. */
static int fill_ended(const struct fill *f, struct err *e)
{
    struct source *src = f->chunk->source;
    uint64_t done;

    if (src->ops->finish != NULL && src->ops->finish(src, f->progress, e) != 0)
        return -1;
    done = atomic_load_explicit(&f->progress->nbytes_done, memory_order_relaxed);
    if (done != f->plan->nbytes)
        return err_set(e, ERR_UNREADABLE, "", "the %s source brought %llu of %llu bytes",
                       src->ops->name, (unsigned long long)done,
                       (unsigned long long)f->plan->nbytes);
    if (f->chunk->gone != NULL && f->chunk->gone(f->chunk->done_arg))
        return err_set(e, ERR_GONE, "",
                       "the client went away while its tensors were read; they may have changed "
                       "under the reading and were not taken");
    return 0;
}

/* The bytes of `index` if this very chunk brought them. */
static const void *find_in_chunk(const struct fill *f, uint32_t index)
{
    for (uint32_t i = 0; i < f->plan->n_tensors; i++) {
        const struct part *part = &f->layout->parts[i];
        uint32_t n;
        const uint32_t *targets = match_targets(&part->match, &n);

        for (uint32_t k = 0; k < n; k++)
            if (targets[k] == index)
                return place_of_target(f, part, k);
    }
    return NULL;
}

static int tie_compare(const struct tie *tie, const struct manifest *m, const void *data,
                       struct err *e)
{
    const struct tensor_spec *t = &m->plan->tensors[tie->alias->targets[0]];

    if (memcmp(tie->data, data, t->nbytes) == 0)
        return 0;
    return err_set(e, ERR_MISMATCH, "/names",
                   "'%.*s' and '%.*s' are one tensor in this model, but their bytes differ",
                   plan_name_cut(tie->alias->name), tie->alias->name, plan_name_cut(t->name),
                   t->name);
}

/* Compares the ties whose target is there by now; those that agree are done with. */
static int compare_ties(struct fill *f, struct session *s, struct err *e)
{
    for (uint32_t i = 0; i < s->n_ties; i++) {
        uint32_t index = s->ties[i].alias->targets[0];
        const void *data = staging_has(f->staging, index) ? staging_data(f->staging, index)
                                                          : find_in_chunk(f, index);

        if (data != NULL && tie_compare(&s->ties[i], f->m, data, e) != 0)
            return -1;
    }
    return 0;
}

/* After registering: ties whose target arrived have been compared. */
static void drop_compared_ties(struct session *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_ties; i++) {
        if (staging_has(s->staging, s->ties[i].alias->targets[0]))
            slab_unref(s->ties[i].slab);
        else
            s->ties[n++] = s->ties[i];
    }
    s->n_ties = n;
}

static int register_target(struct fill *f, const struct part *part, uint32_t k, uint32_t index,
                           struct err *e)
{
    if (staging_in_place(f->staging))
        return staging_arrived(f->staging, index, e);
    return staging_view(f->staging, index, f->slab, place_of_target(f, part, k), e);
}

static void forget_parts(struct fill *f, uint32_t n_parts)
{
    if (staging_in_place(f->staging))
        return; /* written is written: the session ends */
    for (uint32_t i = 0; i < n_parts; i++) {
        uint32_t n;
        const uint32_t *targets = match_targets(&f->layout->parts[i].match, &n);

        for (uint32_t k = 0; k < n; k++)
            if (staging_has(f->staging, targets[k]))
                staging_forget(f->staging, targets[k]);
    }
}

static int register_parts(struct fill *f, struct err *e)
{
    for (uint32_t i = 0; i < f->plan->n_tensors; i++) {
        const struct part *part = &f->layout->parts[i];
        uint32_t n;
        const uint32_t *targets = match_targets(&part->match, &n);

        for (uint32_t k = 0; k < n; k++) {
            if (register_target(f, part, k, targets[k], e) != 0) {
                forget_parts(f, i + 1);
                return -1;
            }
        }
    }
    return 0;
}

/* An older version that someone still reads may hold the memory that is lacking. */
static int slab_for_chunk(struct fill *f, struct err *e)
{
    struct store *store = f->staging->store;
    struct store_info before;

    store_info(store, &before);
    if (staging_slab(f->staging, f->layout->nbytes_kept, &f->slab, e) == 0)
        return 0;
    if (before.n_live <= 1 || !store_wait_drained(store, f->pin_deadline_us, &f->progress->stop))
        return -1;
    err_clear(e);
    return staging_slab(f->staging, f->layout->nbytes_kept, &f->slab, e);
}

int chunk_fill(struct session *s, struct update_job *job, uint64_t pin_timeout_us, struct err *e)
{
    struct fill f = {
        .staging = s->staging,
        .m = store_manifest(s->staging->store),
        .plan = job->chunk->plan,
        .layout = &job->layout,
        .chunk = job->chunk,
        .progress = &job->progress,
        .pin_deadline_us = clock_after_us(pin_timeout_us),
    };
    uint32_t n_ties = s->n_ties;
    int rc = 0;

    if (!staging_in_place(f.staging) && f.layout->keeps)
        rc = slab_for_chunk(&f, e);
    if (rc == 0 && (fill_parts(&f, s, e) != 0 || fill_ended(&f, e) != 0 ||
                    compare_ties(&f, s, e) != 0 || register_parts(&f, e) != 0))
        rc = -1;
    if (rc == 0)
        drop_compared_ties(s);
    else
        session_drop_ties(s, n_ties);
    slab_unref(f.scratch);
    slab_unref(f.slab); /* the views hold their own */
    return rc;
}

/* A tie whose target came in no chunk brings the target's bytes itself. */
static int settle_ties(struct session *s, const struct manifest *m, struct err *e)
{
    struct staging *g = s->staging;

    for (uint32_t i = 0; i < s->n_ties; i++) {
        const struct tie *tie = &s->ties[i];
        uint32_t index = tie->alias->targets[0];

        if (staging_has(g, index)) {
            if (tie_compare(tie, m, staging_data(g, index), e) != 0)
                return -1;
        } else if (staging_in_place(g)) {
            memcpy(staging_target(g, index), tie->data, m->plan->tensors[index].nbytes);
            if (staging_arrived(g, index, e) != 0)
                return -1;
        } else if (staging_view(g, index, tie->slab, tie->data, e) != 0) {
            return -1;
        }
    }
    session_drop_ties(s, 0);
    return 0;
}

/* The checksum of a fused name: over its pieces, one after the other. */
static int sum_fused(const struct session *s, const struct manifest *m, const struct alias *alias,
                     struct checksum *out, struct err *e)
{
    struct slab *joined = NULL;
    uint64_t nbytes = 0, at = 0;

    for (uint32_t k = 0; k < alias->n_targets; k++)
        nbytes += m->plan->tensors[alias->targets[k]].nbytes;
    if (staging_slab(s->staging, nbytes, &joined, e) != 0)
        return -1;
    for (uint32_t k = 0; k < alias->n_targets; k++) {
        uint32_t index = alias->targets[k];

        memcpy((char *)joined->base + at, staging_effective(s->staging, index),
               m->plan->tensors[index].nbytes);
        at += m->plan->tensors[index].nbytes;
    }
    *out = checksum_of(joined->base, nbytes);
    slab_unref(joined);
    return 0;
}

static int prove_sum(const struct session *s, const struct manifest *m,
                     const struct finish_sum *want, struct err *e)
{
    const struct alias *alias = want->alias;
    uint32_t index = alias != NULL && alias->kind == ALIAS_TIED ? alias->targets[0] : want->index;
    const char *name = alias != NULL ? alias->name : m->plan->tensors[index].name;
    char found[CHECKSUM_LEN + 1], wanted[CHECKSUM_LEN + 1], field[ERR_FIELD_MAX];
    struct checksum sum;

    if (alias != NULL && alias->kind == ALIAS_IGNORED)
        return 0; /* nothing is served under it */
    if (alias != NULL && alias->kind == ALIAS_FUSED) {
        if (sum_fused(s, m, alias, &sum, e) != 0)
            return -1;
    } else {
        sum = checksum_of(staging_effective(s->staging, index), m->plan->tensors[index].nbytes);
    }
    if (checksum_equal(sum, want->sum))
        return 0;
    checksum_text(&sum, found);
    checksum_text(&want->sum, wanted);
    (void)snprintf(field, sizeof field, "/checksums/%.*s", plan_name_cut(name), name);
    return err_set(e, ERR_CHECKSUM, field, "the bytes of '%.*s' have checksum %s, not %s",
                   plan_name_cut(name), name, found, wanted);
}

static int prove_complete(const struct session *s, const struct manifest *m, struct err *e)
{
    uint32_t first = 0, n_missing;

    n_missing = s->staging != NULL ? staging_missing(s->staging, &first, 1) : m->plan->n_tensors;
    if (n_missing == 0 || (s->partial && n_missing < m->plan->n_tensors))
        return 0;
    if (s->partial)
        return err_set(e, ERR_INCOMPLETE, "", "no tensor of the model arrived in this update");
    return err_set(e, ERR_INCOMPLETE, "",
                   "%u of %u tensors are missing, '%.*s' first; an update that is to keep the "
                   "served ones says \"partial\": true when it starts",
                   n_missing, m->plan->n_tensors, plan_name_cut(m->plan->tensors[first].name),
                   m->plan->tensors[first].name);
}

int session_prove(struct session *s, const struct update_job *job, const struct manifest *m,
                  struct err *e)
{
    if (s->n_ties > 0 && settle_ties(s, m, e) != 0)
        return -1;
    if (prove_complete(s, m, e) != 0)
        return -1;
    for (uint32_t i = 0; i < job->n_sums; i++)
        if (fill_stopped(&job->progress, e) != 0 || prove_sum(s, m, &job->sums[i], e) != 0)
            return -1;
    return 0;
}
