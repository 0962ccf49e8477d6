/* Makes tensors from the served version and the parts of a delta. */
#include "weights/delta/delta_source.h"

#include "base/utf8.h"
#include "memory/slab.h"
#include "weights/update/host_copy.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct delta_source {
    struct source source;  /* first: a struct source * is a struct delta_source * */
    struct source_ops ops; /* with the name of the parts' source */
    struct store *store;
    uint64_t base_serial;
    const struct version *base; /* pinned; NULL until the first fill */
    struct delta_link link;
    struct delta_merge *merge; /* owned */
    struct slab *parts;        /* one reference; NULL until they are read */
    uint32_t *bases;           /* owned; [n_tensors] of the model spec's list: whose bytes change;
                                  TENSOR_LIST_NO_TENSOR: nobody's */
    uint32_t *places;          /* owned; [n_tensors]: of the values in what was sent */
    struct device *const *devices;
    uint32_t n_devices;
};

void delta_link_fini(struct delta_link *l)
{
    source_close(l->source);
    tensor_list_unref(l->sent.tensor_list);
    free(l->sent.checksums);
    free(l->sent.has_checksum);
    delta_free(l->delta);
    memset(l, 0, sizeof *l);
}

static void delta_source_close(struct source *s)
{
    struct delta_source *d = (struct delta_source *)s;

    if (d == NULL)
        return;
    store_unpin(d->store, d->base);
    delta_link_fini(&d->link);
    delta_merge_free(d->merge);
    slab_unref(d->parts);
    free(d->bases);
    free(d->places);
    free(d);
}

/* ---- the parts ---- */

static void *part_place(void *arg, uint32_t i)
{
    const struct delta_source *d = arg;

    return (char *)d->parts->base + d->link.sent.tensor_list->tensors[i].offset;
}

static int part_arrived(void *arg, uint32_t i, const void *bytes, struct err *e)
{
    const struct delta_source *d = arg;
    const struct chunk_rank *sent = &d->link.sent;
    const struct tensor_spec *t = &sent->tensor_list->tensors[i];
    char field[ERR_FIELD_MAX], is[CHECKSUM_LEN + 1], wanted[CHECKSUM_LEN + 1];
    struct checksum sum;

    if (sent->checksums == NULL || (sent->has_checksum != NULL && !sent->has_checksum[i]))
        return 0;
    sum = checksum_of(bytes, t->nbytes);
    if (checksum_equal(sum, sent->checksums[i]))
        return 0;
    checksum_text(&sum, is);
    checksum_text(&sent->checksums[i], wanted);
    (void)snprintf(field, sizeof field, "/checksums/%u", (unsigned)i);
    return err_set(e, ERR_CHECKSUM, field, "the bytes of '%.*s' have checksum %s, not %s",
                   utf8_cut_name(t->name), t->name, is, wanted);
}

/* Has the fill to end? The parts' progress is not that of the fill, which counts what is made. */
static bool fill_ends(void *arg)
{
    const struct progress *p = arg;

    return atomic_load_explicit(&p->stop, memory_order_relaxed) ||
           (p->gone != NULL && p->gone(p->gone_arg));
}

static int read_parts(struct delta_source *d, struct progress *p, struct err *e)
{
    struct progress inner = {.deadline_us = p->deadline_us, .gone = fill_ends, .gone_arg = p};
    struct host_copy copy = {.source = d->link.source,
                             .tensor_list = d->link.sent.tensor_list,
                             .devices = d->devices,
                             .n_devices = d->n_devices,
                             .progress = &inner,
                             .place = part_place,
                             .arrived = part_arrived,
                             .arg = d};
    struct err why = {0};

    if (store_scratch(d->store, copy.tensor_list->nbytes + 1, &d->parts, e) != 0)
        return -1;
    if (host_copy_run(&copy, e) == 0)
        return 0;
    if (progress_check(p, &why) != 0) /* the reason, where it only is known as an end */
        *e = why;
    return -1;
}

static int pin_base(struct delta_source *d, struct err *e)
{
    const struct version *v;

    if (store_pin(d->store, &v, e) != 0)
        return -1;
    if (v->serial == d->base_serial) {
        d->base = v;
        return 0;
    }
    (void)err_set(e, ERR_PRECONDITION, "/base_version",
                  "the delta builds on serial %llu, and serial %llu ('%.128s') is served",
                  (unsigned long long)d->base_serial, (unsigned long long)v->serial, v->label);
    store_unpin(d->store, v);
    return -1;
}

static int source_begin(struct delta_source *d, struct progress *p, struct err *e)
{
    return d->parts == NULL && read_parts(d, p, e) != 0 ? -1 : pin_base(d, e);
}

/* ---- the tensors ---- */

static struct delta_bytes bytes_of(const struct delta_source *d, const struct delta_part *part)
{
    const struct tensor_list *list = d->link.sent.tensor_list;

    if (part->i == TENSOR_LIST_NO_TENSOR)
        return (struct delta_bytes){NULL, 0};
    return (struct delta_bytes){(const char *)d->parts->base + list->tensors[part->i].offset,
                                list->tensors[part->i].nbytes};
}

/* Bytes [from, from + n) of tensor i, at `out`. */
static int tensor_block(struct delta_source *d, uint32_t i, uint64_t from, uint64_t n, char *out,
                        struct err *e)
{
    if (d->link.delta->tensors[i].kind != DELTA_WHOLE &&
        store_read(d->store, d->base, d->bases[i], from, n, out, e) != 0)
        return -1;
    return delta_merge_next(d->merge, out, out, n, e);
}

static int tensor_make(struct delta_source *d, uint32_t i, char *out, struct progress *p,
                       struct err *e)
{
    const struct tensor_spec *t = &d->link.delta->result->tensors[i];
    const struct delta_tensor *change = &d->link.delta->tensors[i];

    if (delta_merge_begin(d->merge, t, change, bytes_of(d, &change->positions),
                          bytes_of(d, &change->values), e) != 0)
        return -1;
    for (uint64_t at = 0, n; at < t->nbytes; at += n) {
        n = t->nbytes - at < SOURCE_REPORT_NBYTES ? t->nbytes - at : SOURCE_REPORT_NBYTES;
        if ((at % SOURCE_PIECE_NBYTES == 0 && progress_check(p, e) != 0) ||
            tensor_block(d, i, at, n, out + at, e) != 0)
            return -1;
        progress_came(p, out + at, n);
        (void)atomic_fetch_add_explicit(&p->nbytes_done, n, memory_order_relaxed);
    }
    return delta_merge_end(d->merge, e);
}

static int delta_source_fill(struct source *s, const struct tensor_list *tensor_list,
                             uint32_t first, uint32_t n, void *dst, struct progress *p,
                             struct err *e)
{
    struct delta_source *d = (struct delta_source *)s;
    char *out = dst;

    assert(tensor_list->n_tensors == d->link.delta->result->n_tensors);
    if (d->base == NULL && source_begin(d, p, e) != 0)
        return -1;
    for (uint32_t i = first; i < first + n; out += tensor_list->tensors[i].nbytes, i++) {
        atomic_store_explicit(&p->tensor, i, memory_order_relaxed);
        if (tensor_make(d, i, out, p, e) != 0)
            return -1;
    }
    return 0;
}

/* Whose bytes each tensor's changes apply to. Fused and ignored names have none, and only come
 * whole. */
static int find_bases(struct delta_source *d, struct err *e)
{
    const struct model_spec *m = store_model_spec(d->store);
    const struct tensor_list *result = d->link.delta->result;
    struct model_spec_match match = {.index = TENSOR_LIST_NO_TENSOR};

    d->bases = malloc(result->n_tensors * sizeof *d->bases);
    d->places = malloc(result->n_tensors * sizeof *d->places);
    if (d->bases == NULL || d->places == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a delta of %u tensors",
                       (unsigned)result->n_tensors);
    for (uint32_t i = 0; i < result->n_tensors; i++) {
        d->bases[i] = TENSOR_LIST_NO_TENSOR;
        d->places[i] = d->link.delta->tensors[i].values.i;
        if (!model_spec_find(m, &match, result->tensors[i].name, &match))
            continue;
        if (match.alias == NULL)
            d->bases[i] = match.index;
        else if (match.alias->kind == ALIAS_TIED)
            d->bases[i] = match.alias->targets[0];
    }
    return 0;
}

int delta_source_new(struct source **out, struct tensor_list **result, struct delta_link *link,
                     const struct delta_source_cfg *cfg, struct err *e)
{
    struct delta_source *d = calloc(1, sizeof *d);

    if (d == NULL) {
        delta_link_fini(link);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a delta");
    }
    d->ops = (struct source_ops){
        .name = link->source->ops->name, .fill = delta_source_fill, .close = delta_source_close};
    d->source.ops = &d->ops;
    d->store = cfg->store;
    d->base_serial = cfg->base_serial;
    d->devices = cfg->devices;
    d->n_devices = cfg->n_devices;
    d->link = *link;
    memset(link, 0, sizeof *link);
    if (delta_merge_new(&d->merge, e) != 0 || find_bases(d, e) != 0) {
        delta_source_close(&d->source);
        return -1;
    }
    *out = &d->source;
    *result = tensor_list_ref(d->link.delta->result);
    return 0;
}

const struct chunk_rank *delta_source_sent(const struct source *s, const uint32_t **at)
{
    const struct delta_source *d = (const struct delta_source *)s;

    *at = d->places;
    return &d->link.sent;
}
