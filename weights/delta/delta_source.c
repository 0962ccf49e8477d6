/* Makes tensors from the served version and their changes, each by one thread, in a pass for each
 * change: a block that stays in the cache is read, changed and hashed. */
#include "weights/delta/delta_source_priv.h"

#include "base/jobs/parallel.h"
#include "base/utf8.h"
#include "memory/slab.h"
#include "weights/update/host_copy.h"
#include "weights/update/list_cache.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void delta_link_fini(struct delta_link *l)
{
    pull_close(l->pull);
    source_close(l->source);
    tensor_list_unref(l->sent.tensor_list);
    free(l->sent.checksums);
    free(l->sent.has_checksum);
    delta_free(l->delta);
    memset(l, 0, sizeof *l);
}

static void said_free(void *said)
{
    delta_free(said);
}

/* The result becomes a cached list of its own, so that its layout is kept. */
static void keep_delta(struct list_cache *lists, struct list_entry *l, struct delta *d)
{
    struct list_key key = {LIST_BY_PARTS, {{l->tensor_list->digest, TENSOR_LIST_DIGEST_LEN}}};

    (void)list_cache_put(lists, &key, &d->result);
    if (!list_cache_keep(lists, l, d, said_free))
        delta_free(d);
}

int delta_of_list(struct delta **out, struct list_cache *lists, const struct model_spec *m,
                  const struct tensor_list *parts, struct err *e)
{
    const void *said;
    struct list_entry *l = list_cache_entry(lists, tensor_list_names_of(parts), &said);
    struct err ignored = {0};
    struct delta *kept;
    int rc = said != NULL ? delta_of_shapes(out, said, m, parts, e)
                          : delta_of_parts(out, m, parts, e);

    if (rc == 0 && l != NULL && said == NULL &&
        delta_of_shapes(&kept, *out, m, parts, &ignored) == 0)
        keep_delta(lists, l, kept);
    list_entry_unref(l);
    return rc;
}

static void delta_source_close(struct source *s)
{
    struct delta_source *d = (struct delta_source *)s;

    if (d == NULL)
        return;
    delta_device_free(d);
    store_unpin(d->store, d->base);
    delta_link_fini(&d->link);
    for (unsigned i = 0; i < PARALLEL_THREADS_MAX; i++) {
        delta_merge_free(d->makers[i].merge);
        slab_unref(d->makers[i].rooms.payload);
        slab_unref(d->makers[i].rooms.content);
    }
    slab_unref(d->parts);
    free(d->places);
    free(d);
}

/* ---- the parts of a transfer ---- */

static void *part_place(void *arg, uint32_t i)
{
    const struct delta_source *d = arg;

    return (char *)d->parts->base + d->link.sent.tensor_list->tensors[i].offset;
}

static bool part_has_sum(const struct chunk_rank *sent, uint32_t i)
{
    return sent->checksums != NULL && (sent->has_checksum == NULL || sent->has_checksum[i]);
}

int delta_part_verify(const struct delta_source *d, uint32_t i, const struct checksum *sum,
                      struct err *e)
{
    const struct chunk_rank *sent = &d->link.sent;
    const struct tensor_spec *t = &sent->tensor_list->tensors[i];
    char field[ERR_FIELD_MAX], is[CHECKSUM_LEN + 1], wanted[CHECKSUM_LEN + 1];

    if (!part_has_sum(sent, i) || checksum_equal(*sum, sent->checksums[i]))
        return 0;
    checksum_text(sum, is);
    checksum_text(&sent->checksums[i], wanted);
    (void)snprintf(field, sizeof field, "/checksums/%u", (unsigned)i);
    return err_set(e, ERR_CHECKSUM, field, "the bytes of '%.*s' have checksum %s, not %s",
                   utf8_cut_name(t->name), t->name, is, wanted);
}

static int part_arrived(void *arg, uint32_t i, const void *bytes, struct err *e)
{
    const struct delta_source *d = arg;
    struct checksum sum;

    if (!part_has_sum(&d->link.sent, i))
        return 0;
    sum = checksum_of(bytes, d->link.sent.tensor_list->tensors[i].nbytes);
    return delta_part_verify(d, i, &sum, e);
}

/* Has the fill to end? The parts' progress is not that of the fill, which counts what is made. */
static bool fill_ends(void *arg)
{
    const struct progress *p = arg;

    return atomic_load_explicit(&p->stop, memory_order_relaxed) ||
           (p->gone != NULL && p->gone(p->gone_arg));
}

static int read_to_host(struct delta_source *d, struct progress *p, struct err *e)
{
    struct host_copy copy = {.source = d->link.source,
                             .tensor_list = d->link.sent.tensor_list,
                             .devices = d->devices,
                             .n_devices = d->n_devices,
                             .scope = d->scope,
                             .progress = p,
                             .place = part_place,
                             .arrived = part_arrived,
                             .arg = d};

    if (store_scratch(d->store, copy.tensor_list->nbytes + 1, &d->parts, e) != 0)
        return -1;
    if (host_copy_run(&copy, e) == 0)
        return 0;
    slab_unref(d->parts);
    d->parts = NULL;
    return -1;
}

static int read_parts(struct delta_source *d, struct progress *p, struct err *e)
{
    struct progress inner = {.deadline_us = p->deadline_us, .gone = fill_ends, .gone_arg = p};
    struct err why = {0};
    int rc;

    if (delta_device_keeps(d))
        rc = delta_device_copy(d, &inner, e);
    else
        rc = read_to_host(d, &inner, e);
    if (rc == 0 && d->parts != NULL && d->device != NULL)
        rc = delta_device_upload(d, &inner, e);
    if (rc != 0 && progress_check(p, &why) != 0) /* the reason, where it only is known as an end */
        *e = why;
    return rc;
}

struct delta_bytes delta_part_bytes(const struct delta_source *d, const struct delta_part *part)
{
    const struct tensor_list *list = d->link.sent.tensor_list;

    if (part->i == TENSOR_LIST_NO_TENSOR)
        return (struct delta_bytes){NULL, 0};
    return (struct delta_bytes){(const char *)d->parts->base + list->tensors[part->i].offset,
                                list->tensors[part->i].nbytes};
}

/* ---- one change ---- */

/* Change k of a tensor that is made, and where its bytes are. */
struct step {
    struct maker *maker;
    const struct tensor_spec *t;
    uint32_t i, k;
    bool first, last; /* of the tensor's changes */
    char *out;
    struct delta_change change;
    struct hash *hash; /* owned; NULL: there is nothing to compare it with */
};

/* Puts a patch, whose parts are in memory of this source, in order. */
static void patch_sort(const struct delta_source *d, const struct delta_tensor *change)
{
    const struct tensor_spec *sent = d->link.sent.tensor_list->tensors;
    char *parts = d->parts->base;

    delta_sort(parts + sent[change->positions.i].offset, parts + sent[change->values.i].offset,
               sent[change->positions.i].numel, change->unit);
}

static int step_begin(struct delta_source *d, struct step *s, struct err *e)
{
    struct delta_change *c = &s->change;

    if (d->link.pull == NULL) {
        c->how = d->link.delta->tensors[s->i];
        if (c->how.patch)
            patch_sort(d, &c->how);
        c->positions = delta_part_bytes(d, &c->how.positions);
        c->values = delta_part_bytes(d, &c->how.values);
    } else if (pull_change(c, d->link.pull, d->link.pull->index[s->i], s->k, d->store,
                           &s->maker->rooms, e) != 0) {
        return -1;
    }
    if (c->sum != NULL && (s->hash = hash_new(c->hash)) == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a hash");
    if (c->file != NULL)
        return 0;
    return delta_merge_begin(s->maker->merge, s->t, &c->how, c->positions, c->values, e);
}

/* Bytes [at, at + n). */
static int step_block(struct delta_source *d, struct step *s, uint64_t at, uint64_t n,
                      struct err *e)
{
    const struct delta_change *c = &s->change;
    bool on_base = s->first && c->how.kind != DELTA_WHOLE;
    char *out = s->out + at;

    if (c->file != NULL)
        return pull_pread(c->file, out, n, c->offset + at, e);
    assert(!on_base || d->base != NULL);
    if ((on_base && store_read(d->store, d->base, c->how.base, at, n, out, e) != 0) ||
        delta_merge_next(s->maker->merge, out, out, n, e) != 0)
        return -1;
    if (s->hash != NULL)
        hash_add(s->hash, out, n);
    return 0;
}

static int step_blocks(struct delta_source *d, struct step *s, struct progress *p, struct err *e)
{
    for (uint64_t at = 0, n; at < s->t->nbytes; at += n) {
        n = s->t->nbytes - at < SOURCE_REPORT_NBYTES ? s->t->nbytes - at : SOURCE_REPORT_NBYTES;
        if ((at % SOURCE_PIECE_NBYTES == 0 && progress_check(p, e) != 0) ||
            step_block(d, s, at, n, e) != 0)
            return -1;
        if (!s->last)
            continue;
        progress_came(p, s->out + at, n);
        (void)atomic_fetch_add_explicit(&p->nbytes_done, n, memory_order_relaxed);
    }
    return 0;
}

static int step_end(const struct step *s, struct err *e)
{
    const struct delta_change *c = &s->change;
    char sum[HASH_TEXT_MAX + 1];

    if (c->file == NULL && delta_merge_end(s->maker->merge, e) != 0)
        return -1;
    if (s->hash == NULL)
        return 0;
    hash_text(s->hash, sum);
    if (strcmp(sum, c->sum) == 0)
        return 0;
    return err_set(e, ERR_CHECKSUM, "",
                   "tensor '%.*s' has %s %s after the delta, its trainer says %s: the delta is "
                   "damaged, or it was made from other weights than those that are served",
                   utf8_cut_name(s->t->name), s->t->name, hash_kind_name(c->hash), sum, c->sum);
}

/* ---- the source ---- */

/* The first change of tensor i from k on; PULL_NO_CHANGE: there is none. */
static uint32_t next_change(const struct delta_source *d, uint32_t i, uint32_t k)
{
    if (d->link.pull != NULL)
        return pull_next(d->link.pull, d->link.pull->index[i], k);
    return k == 0 ? 0 : PULL_NO_CHANGE;
}

static int changes_apply(struct delta_source *d, struct step *s, struct progress *p, struct err *e)
{
    uint32_t next = next_change(d, s->i, 0);
    int rc = 0;

    for (s->first = true; rc == 0 && next != PULL_NO_CHANGE; s->first = false) {
        s->k = next;
        next = next_change(d, s->i, s->k + 1);
        s->last = next == PULL_NO_CHANGE;
        s->change = (struct delta_change){0};
        s->hash = NULL;
        rc = step_begin(d, s, e) == 0 && step_blocks(d, s, p, e) == 0 ? step_end(s, e) : -1;
        hash_free(s->hash);
        if (rc != 0 && d->link.pull != NULL)
            (void)pull_say_version(e, d->link.pull->versions[s->k].number);
    }
    return rc;
}

struct filling {
    struct delta_source *d;
    const struct tensor_spec *first; /* of the tensors that are filled */
    uint32_t i;                      /* its number */
    char *dst;
    struct progress *p;
};

static int tensor_make(void *arg, unsigned thread, uint64_t k, struct err *e)
{
    const struct filling *f = arg;
    struct step s = {.maker = &f->d->makers[thread],
                     .t = &f->first[k],
                     .i = f->i + (uint32_t)k,
                     .out = f->dst + (f->first[k].offset - f->first->offset)};

    if (s.maker->merge == NULL && delta_merge_new(&s.maker->merge, e) != 0)
        return -1;
    atomic_store_explicit(&f->p->tensor, s.i, memory_order_relaxed);
    return changes_apply(f->d, &s, f->p, e);
}

static int refuse_base(const struct delta_source *d, const struct version *v, struct err *e)
{
    if (d->link.pull != NULL)
        return err_set(e, ERR_CONFLICT, "",
                       "another version was committed since the pull began: pull again");
    return err_set(e, ERR_PRECONDITION, "/base_version",
                   "the delta builds on serial %llu, and serial %llu ('%.128s') is served",
                   (unsigned long long)d->base_serial, (unsigned long long)v->serial, v->label);
}

/* An update is staged now: no other version can be committed until it ends. */
int delta_source_begin(struct delta_source *d, struct progress *p, struct err *e)
{
    const struct version *v;

    if (d->base != NULL || (d->link.pull != NULL && pull_is_whole(d->link.pull)))
        return 0;
    if ((d->link.pull == NULL && d->parts == NULL && read_parts(d, p, e) != 0) ||
        store_pin(d->store, &v, e) != 0)
        return -1;
    if (v->serial == d->base_serial) {
        d->base = v;
        return 0;
    }
    (void)refuse_base(d, v, e);
    store_unpin(d->store, v);
    return -1;
}

static int delta_source_fill(struct source *s, const struct tensor_list *tensor_list,
                             uint32_t first, uint32_t n, void *dst, struct progress *p,
                             struct err *e)
{
    struct filling f = {(struct delta_source *)s, &tensor_list->tensors[first], first, dst, p};
    const struct tensor_spec *last = &f.first[n - 1];

    if (delta_source_begin(f.d, p, e) != 0)
        return -1;
    return parallel_run(tensor_make, &f, n, last->offset + last->nbytes - f.first->offset, "delta",
                        e);
}

static void delta_source_share(struct source *s, struct source_scope **scope)
{
    ((struct delta_source *)s)->scope = scope;
}

static uint64_t delta_source_group(const struct source *s)
{
    return source_group(((const struct delta_source *)s)->link.source);
}

static int delta_source_finish(struct source *s, struct progress *p, struct err *e)
{
    const struct delta_source *d = (struct delta_source *)s;

    (void)p;
    return d->link.pull != NULL ? pull_finish(d->link.pull, e) : 0;
}

int delta_source_new(struct source **out, struct tensor_list **result, struct delta_link *link,
                     const struct delta_source_cfg *cfg, struct err *e)
{
    struct delta_source *d = calloc(1, sizeof *d);
    uint32_t n = link->delta != NULL ? link->delta->result->n_tensors : 0;

    if (d == NULL || (d->places = malloc((size_t)n * sizeof *d->places + 1)) == NULL) {
        delta_link_fini(link);
        free(d);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a delta of %u tensors", (unsigned)n);
    }
    d->link = *link;
    memset(link, 0, sizeof *link);
    d->ops = (struct source_ops){.name = d->link.pull != NULL ? "pull" : d->link.source->ops->name,
                                 .fill = delta_source_fill,
                                 .finish = delta_source_finish,
                                 .share = delta_source_share,
                                 .group = delta_source_group,
                                 .close = delta_source_close};
    d->source.ops = &d->ops;
    d->store = cfg->store;
    d->base_serial = cfg->base_serial;
    d->devices = cfg->devices;
    d->n_devices = cfg->n_devices;
    for (uint32_t i = 0; i < n; i++)
        d->places[i] = d->link.delta->tensors[i].patch ? i : d->link.delta->tensors[i].values.i;
    if (d->link.pull == NULL && delta_device_fits(d->store) && delta_device_new(d, e) != 0) {
        delta_source_close(&d->source);
        return -1;
    }
    *out = &d->source;
    *result = tensor_list_ref(d->link.pull != NULL ? pull_tensors(d->link.pull)
                                                   : d->link.delta->result);
    return 0;
}

const struct chunk_rank *delta_source_sent(const struct source *s, const uint32_t **at)
{
    const struct delta_source *d = (const struct delta_source *)s;

    *at = d->places;
    return &d->link.sent;
}

int pull_source(struct source **out, struct pull *p, struct store *store, uint64_t serial,
                struct err *e)
{
    struct delta_source_cfg cfg = {.store = store, .base_serial = serial};
    struct delta_link link = {.pull = p};
    struct tensor_list *made;

    if (delta_source_new(out, &made, &link, &cfg, e) != 0)
        return -1;
    tensor_list_unref(made);
    return 0;
}
