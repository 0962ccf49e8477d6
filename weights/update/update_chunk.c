/* One chunk, from its first byte to its place in the staging.
 *
 * The steps that all kinds of sources share: memory, checksums, ties, and the views at the end. A
 * chunk whose bytes are on GPUs may begin while the previous one is still being copied; its end
 * then comes later. */
#include "base/clock.h"
#include "base/utf8.h"
#include "weights/update/update_chunk_priv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BOUNCE_NBYTES = 64 << 20 };

int stop_check(const struct progress *p, struct err *e)
{
    if (!atomic_load_explicit(&p->stop, memory_order_relaxed))
        return 0;
    return err_set(e, ERR_CONFLICT, "", "the update was aborted while its bytes arrived");
}

uint64_t dst_region_target(const struct fill *f, struct dst_region at, const struct part *part,
                           uint32_t k)
{
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);
    uint64_t before = 0;

    assert(k < n);
    for (uint32_t i = 0; i < k; i++)
        before += target_spec(f, targets[i])->nbytes;
    return at.room->slab->addr + at.room->offset + part->offset + before;
}

int fill_verify(const struct fill *f, uint32_t rank, uint32_t i, const struct checksum *found,
                struct err *e)
{
    const struct rank_fill *r = &f->ranks[rank];
    const struct tensor_spec *t = &r->tensor_list->tensors[i];
    char is[CHECKSUM_LEN + 1], wanted[CHECKSUM_LEN + 1], field[48];

    if (!rank_has_sum(r, i))
        return 0;
    if (checksum_equal(*found, r->checksums[i])) {
        atomic_fetch_add_explicit(&f->job->session->n_checksums, 1, memory_order_relaxed);
        return 0;
    }
    checksum_text(found, is);
    checksum_text(&r->checksums[i], wanted);
    (void)snprintf(field, sizeof field, "/checksums/%u", i);
    (void)err_set(e, ERR_CHECKSUM, field, "the bytes of '%.*s' have checksum %s, not %s%s",
                  utf8_cut_name(t->name), t->name, is, wanted,
                  f->job->chunk->sent != NULL ? UPDATE_OTHER_BASE : "");
    chunk_refield(f->job->chunk, rank, e);
    return -1;
}

static uint64_t nbytes_largest(const struct fill *f)
{
    uint64_t largest = 0;

    for (uint32_t r = 0; r < f->n_ranks; r++)
        if (f->ranks[r].tensor_list != NULL && f->ranks[r].layout->nbytes_largest > largest)
            largest = f->ranks[r].layout->nbytes_largest;
    return largest;
}

static int scratch_of(struct fill *f, uint64_t nbytes, struct slab **slab, void **out,
                      struct err *e)
{
    if (*slab == NULL && staging_slab(f->staging, nbytes, slab, e) != 0)
        return -1;
    *out = (*slab)->base;
    return 0;
}

/* Without a host backup whole runs pass through scratch memory, as large as is worth a call. */
int fill_scratch(struct fill *f, void **out, struct err *e)
{
    uint64_t nbytes = nbytes_largest(f), run = f->job->chunk->tensor_list->nbytes;

    if (!store_has_host(f->store) && f->source->ops->fill != NULL)
        nbytes = run < BOUNCE_NBYTES ? run : nbytes > BOUNCE_NBYTES ? nbytes : BOUNCE_NBYTES;
    return scratch_of(f, nbytes, &f->scratch, out, e);
}

int fill_converted(struct fill *f, void **out, struct err *e)
{
    return scratch_of(f, nbytes_largest(f), &f->converted, out, e);
}

static const struct tie *find_tie(const struct session *s, const struct tie *like)
{
    for (uint32_t i = 0; i < s->n_ties; i++)
        if (s->ties[i].alias == like->alias && s->ties[i].place == like->place &&
            s->ties[i].everywhere == like->everywhere)
            return &s->ties[i];
    return NULL;
}

/* If a tied name arrives again before its target, one copy is kept. */
static int push_tie(struct session *s, const struct tie *tie, uint64_t nbytes, struct err *e)
{
    const struct tie *before = find_tie(s, tie);

    if (before == NULL)
        return tie_push(s, tie, e);
    if (memcmp(before->data, tie->data, nbytes) != 0)
        return err_set(e, ERR_MISMATCH, "/names",
                       "'%.*s' arrived before in this update, with other bytes",
                       utf8_cut_name(tie->alias->name), tie->alias->name);
    slab_unref(tie->slab);
    return 0;
}

int fill_keep_tie(struct fill *f, uint32_t rank, uint32_t i, uint32_t place, bool everywhere,
                  struct slab *slab, struct err *e)
{
    const struct tensor_spec *t = &f->ranks[rank].tensor_list->tensors[i];
    const struct alias *alias = f->ranks[rank].layout->parts[i].match.alias;
    const struct tensor_spec *to = target_spec(f, alias->targets[0]);
    struct tie tie = {.alias = alias, .place = place, .everywhere = everywhere};

    if (store_sharded(f->store))
        tie.place = store_owner(f->store, alias->targets[0]);

    if (to->dtype != t->dtype) {
        struct slab *converted;

        if (staging_slab(f->staging, to->nbytes, &converted, e) != 0)
            goto err_slab_unref;
        dtype_convert(converted->base, to->dtype, slab->base, t->dtype, to->numel);
        slab_unref(slab);
        slab = converted;
        if (finite_check_converted(f, rank, i, slab->base, to, e) != 0)
            goto err_slab_unref;
    }
    tie.slab = slab;
    tie.data = slab->base;
    if (push_tie(f->session, &tie, to->nbytes, e) == 0)
        return 0;

err_slab_unref:
    slab_unref(slab);
    return -1;
}

/* Of the ranks that bring the same tensor, the first one provides it for the host backup. A rank
 * that provides nothing needs no memory there. */
static int choose_mirrors(struct fill *f, struct err *e)
{
    f->mirrors = malloc(f->m->tensor_list->n_tensors);
    if (f->mirrors == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a chunk");
    memset(f->mirrors, MIRRORS_NONE, f->m->tensor_list->n_tensors);
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        struct rank_fill *rank = &f->ranks[r];

        for (size_t i = 0; rank->tensor_list != NULL && i < rank->layout->n_dst_slots; i++) {
            uint32_t index = rank->layout->dst_slots[i].index;

            if (f->mirrors[index] != MIRRORS_NONE)
                continue;
            f->mirrors[index] = (unsigned char)r;
            rank->mirrored = true;
        }
    }
    return 0;
}

/* The rank that keeps each tensor of the chunk: its owner, if the chunk brings it there. */
static uint8_t *keepers_new(const struct fill *f)
{
    uint32_t n = f->m->tensor_list->n_tensors;
    uint8_t *keepers = malloc(n);

    if (keepers == NULL)
        return NULL;
    memset(keepers, LAYOUT_KEEP_ALL, n);
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        const struct layout *l = f->ranks[r].layout;

        for (size_t i = 0; l != NULL && i < l->n_dst_slots; i++)
            if (store_owner(f->store, l->dst_slots[i].index) == r)
                keepers[l->dst_slots[i].index] = (uint8_t)r;
    }
    return keepers;
}

/* In a sharded store each rank gets a layout of its own. */
static int fill_share(struct fill *f, struct err *e)
{
    uint8_t *keepers;
    int rc = 0;

    if (!store_sharded(f->store))
        return 0;
    keepers = keepers_new(f);
    if (keepers == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a chunk");
    for (uint32_t r = 0; r < f->n_ranks && rc == 0; r++) {
        struct rank_fill *rank = &f->ranks[r];

        if (rank->layout != NULL)
            rc = layout_share(&rank->share, rank->layout, f->m, rank->tensor_list, keepers, r, e);
    }
    for (uint32_t r = 0; r < f->n_ranks && rc == 0; r++)
        if (f->ranks[r].share != NULL)
            f->ranks[r].layout = f->ranks[r].share;
    free(keepers);
    return rc;
}

static void fill_dispose(struct fill *f)
{
    for (uint32_t r = 0; r < f->n_ranks; r++)
        layout_unref(f->ranks[r].share);
    free(f->mirrors);
    free(f);
}

static struct fill *fill_new(struct session *s, struct update_job *job,
                             const struct updates_cfg *cfg, struct err *e)
{
    struct store *store = s->staging->store;
    uint32_t n_ranks = store_n_ranks(store);
    struct update_chunk *c = job->chunk;
    bool mirror = store_device(store, 0) != NULL && store_has_host(store);
    struct fill *f = calloc(1, sizeof *f + n_ranks * sizeof f->ranks[0]);

    if (f == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for a chunk");
        return NULL;
    }
    f->job = job;
    f->session = s;
    f->staging = s->staging;
    f->store = store;
    f->m = store_model_spec(store);
    f->source = c->source;
    if (f->source->ops->share != NULL)
        f->source->ops->share(f->source, &s->scope);
    f->pin_deadline_us = clock_after_us(cfg->pin_timeout_us);
    f->non_finite = cfg->non_finite;
    f->n_ranks = n_ranks;
    f->common = job_layout(job, 0);
    for (uint32_t r = 0; r < n_ranks; r++) {
        struct rank_fill *rank = &f->ranks[r];

        rank->tensor_list = chunk_tensor_list(c, r);
        rank->layout = job_layout(job, r);
        rank->checksums = c->ranks != NULL ? c->ranks[r].checksums : c->checksums;
        rank->has_checksum = c->ranks != NULL ? c->ranks[r].has_checksum : c->has_checksum;
        rank->mirrored = mirror && c->ranks == NULL && r == 0;
    }
    if (fill_share(f, e) == 0 && (!mirror || c->ranks == NULL || choose_mirrors(f, e) == 0))
        return f;
    fill_dispose(f);
    return NULL;
}

static void fill_memory_return(struct fill *f, struct staging *g)
{
    if (f->stuck)
        g = NULL; /* it may still be written to: no other user may get it */
    for (uint32_t r = f->n_ranks; r > 0; r--) {
        struct rank_fill *rank = &f->ranks[r - 1];

        if (rank->mirrored)
            staging_memory_return(g, store_host_place(f->store), &rank->mirror);
        staging_memory_return(g, r - 1, &rank->room);
    }
}

static int fill_memory_take_once(struct fill *f, struct err *e)
{
    for (uint32_t r = 0; r < f->n_ranks; r++) {
        struct rank_fill *rank = &f->ranks[r];

        if (rank->tensor_list == NULL || rank->layout->n_dst_slots == 0)
            continue;
        if (staging_memory(f->staging, r, rank->layout->nbytes_kept, &rank->room, e) != 0 ||
            (rank->mirrored && staging_memory(f->staging, store_host_place(f->store),
                                              rank->layout->nbytes_kept, &rank->mirror, e) != 0)) {
            fill_memory_return(f, f->staging);
            return -1;
        }
    }
    return 0;
}

static int memory_take_once(struct fill *f, struct err *e)
{
    if (fill_memory_take_once(f, e) != 0)
        return -1;
    if (f->source->ops->receive == NULL || chunk_recv_take(f, e) == 0)
        return 0;
    fill_memory_return(f, f->staging);
    return -1;
}

/* An older version that still has readers may hold the missing memory. */
static int fill_memory_take(struct fill *f, enum source_wait wait, struct err *e)
{
    struct store_info before;

    store_info(f->store, &before);
    if (memory_take_once(f, e) == 0)
        return 0;
    if (e->code != ERR_NO_STAGING || wait == SOURCE_TRY || before.n_live <= 1 ||
        !store_wait_drained(f->store, f->pin_deadline_us, &f->job->progress.stop))
        return -1;
    err_clear(e);
    return memory_take_once(f, e);
}

/* No copy reads or writes any more when this returns. */
static int fill_release(struct fill *f, struct err *e)
{
    int rc = 0;

    for (uint32_t r = 0; r < f->n_ranks; r++) {
        device_batch_free(f->ranks[r].batch);
        f->ranks[r].batch = NULL;
        for (uint32_t k = 0; k < BOUNCES_MAX; k++) {
            device_batch_free(f->ranks[r].bounces[k].batch);
            f->ranks[r].bounces[k].batch = NULL;
        }
    }
    if (f->joined)
        rc = f->source->ops->release(f->source, e);
    f->joined = false;
    return rc;
}

/* Frees what the fill still holds. @g  the staging, or NULL if that has ended */
static void fill_free(struct fill *f, struct staging *g)
{
    struct err none = {0};

    (void)fill_release(f, &none);
    fill_memory_return(f, g);
    chunk_recv_give(f);
    for (uint32_t r = 0; r < f->n_ranks; r++)
        free(f->ranks[r].made);
    slab_unref(f->scratch);
    slab_unref(f->converted);
    free(f->sums);
    free(f->marks);
    fill_dispose(f);
}

void chunk_drop(struct update_job *job)
{
    if (job->fill == NULL)
        return;
    fill_free(job->fill, job->session->staging);
    job->fill = NULL;
}

int chunk_begin(struct session *s, struct update_job *job, const struct updates_cfg *cfg,
                enum source_wait wait, struct err *e)
{
    struct fill *f = job->fill;

    if (f == NULL) {
        f = fill_new(s, job, cfg, e);
        if (f == NULL)
            return -1;
        if (fill_memory_take(f, wait, e) != 0) {
            bool later = wait == SOURCE_TRY && e->code == ERR_NO_STAGING;

            fill_free(f, s->staging);
            if (later) /* the chunk that is being copied now may free some */
                err_clear(e);
            return later ? 1 : -1;
        }
        job->fill = f;
    }
    if (f->source->ops->map != NULL)
        return chunk_map_begin(f, wait, e);
    return f->source->ops->receive != NULL ? chunk_recv_begin(f, e) : 0;
}

bool fill_mirrors(const struct fill *f, uint32_t rank, uint32_t index)
{
    return f->ranks[rank].mirrored && (f->mirrors == NULL || f->mirrors[index] == rank) &&
           !staging_has(f->staging, store_host_place(f->store), index);
}

/* All these tensors are claimed by the chunk, so none can have arrived before. */
static void register_dst_slots(struct fill *f, struct dst_region at, const struct dst_slot *l,
                               size_t n)
{
    staging_views(f->staging, at.place, l, n, at.room->slab, at.room->slab->addr + at.room->offset);
}

static void register_rank(struct fill *f, uint32_t rank)
{
    const struct rank_fill *r = &f->ranks[rank];

    if (r->tensor_list == NULL || r->layout->n_dst_slots == 0)
        return;
    register_dst_slots(f, dst_region_of_rank(f, rank), r->layout->dst_slots,
                       r->layout->n_dst_slots);
    for (size_t i = 0; r->mirrored && i < r->layout->n_dst_slots; i++)
        if (fill_mirrors(f, rank, r->layout->dst_slots[i].index))
            register_dst_slots(f, dst_region_of_mirror(f, rank), &r->layout->dst_slots[i], 1);
}

static int update_chunk_check_client(const struct fill *f, struct err *e)
{
    const struct update_chunk *c = f->job->chunk;

    if (c->gone == NULL || !c->gone(c->done_arg))
        return 0;
    return err_set(e, ERR_GONE, "",
                   "the client disconnected while its tensors were read; they may have changed "
                   "meanwhile and were not taken");
}

/* Moves all bytes that chunk_begin did not. */
static int chunk_move(struct fill *f, struct err *e)
{
    const struct source_ops *ops = f->source->ops;

    if (ops->map != NULL)
        return chunk_map_end(f, e);
    return ops->receive != NULL ? chunk_recv(f, e) : chunk_fill(f, e);
}

int chunk_end(struct session *s, struct update_job *job, struct err *e)
{
    struct fill *f = job->fill;
    struct err late = {0};
    int rc;

    f->n_ties = s->n_ties; /* only now: a chunk that began before the previous one ended would count
                              that one's ties */
    rc = chunk_move(f, e);
    if (fill_release(f, &late) != 0 && rc == 0) {
        *e = late;
        rc = -1;
    }
    if (rc == 0 && (update_chunk_check_client(f, e) != 0 || ties_compare(f, s, e) != 0))
        rc = -1;
    if (rc == 0) {
        for (uint32_t r = 0; r < f->n_ranks; r++) {
            register_rank(f, r);
            replicas_record(f, r);
            digests_set_copied(f, r);
        }
        ties_drop_compared(s);
    } else {
        digests_forget(f);
        session_drop_ties(s, f->n_ties);
    }
    fill_free(f, rc == 0 ? NULL : s->staging); /* the views hold their slabs */
    job->fill = NULL;
    return rc;
}
