/* Makes tensors from the served version and the parts of one delta, or of a chain of them. */
#include "weights/delta/delta_source.h"

#include "base/utf8.h"
#include "memory/slab.h"
#include "weights/update/host_copy.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct link {
    struct delta_link l;
    struct delta_merge *merge; /* owned */
    struct slab *parts;        /* one reference; NULL until they are read */
};

struct delta_source {
    struct source source; /* first: a struct source * is a struct delta_source * */
    struct store *store;
    uint64_t base_serial;
    const struct version *base; /* pinned; NULL until the first fill */
    struct tensor_list *result; /* one reference */
    uint32_t *bases;            /* owned; [result->n_tensors] of the model spec's list: whose bytes
                                   change; TENSOR_LIST_NO_TENSOR: nobody's */
    uint32_t *places;           /* owned; [result->n_tensors]: of the values in what the first link
                                   was sent, if there is one link */
    struct delta_check check;   /* its members are NULL: none */
    struct device *const *devices;
    uint32_t n_devices;
    uint32_t n_links;
    struct link links[];
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
    for (uint32_t k = 0; k < d->n_links; k++) {
        delta_link_fini(&d->links[k].l);
        delta_merge_free(d->links[k].merge);
        slab_unref(d->links[k].parts);
    }
    tensor_list_unref(d->result);
    free(d->bases);
    free(d->places);
    free(d);
}

/* ---- the parts ---- */

static void *part_place(void *arg, uint32_t i)
{
    const struct link *link = arg;

    return (char *)link->parts->base + link->l.sent.tensor_list->tensors[i].offset;
}

static int part_arrived(void *arg, uint32_t i, const void *bytes, struct err *e)
{
    const struct link *link = arg;
    const struct chunk_rank *sent = &link->l.sent;
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

static int read_parts(struct delta_source *d, uint32_t k, struct progress *p, struct err *e)
{
    struct link *link = &d->links[k];
    struct progress inner = {.deadline_us = p->deadline_us, .gone = fill_ends, .gone_arg = p};
    struct host_copy copy = {.source = link->l.source,
                             .tensor_list = link->l.sent.tensor_list,
                             .devices = d->devices,
                             .n_devices = d->n_devices,
                             .progress = &inner,
                             .place = part_place,
                             .arrived = part_arrived,
                             .arg = link};
    struct err why = {0};

    if (store_scratch(d->store, copy.tensor_list->nbytes + 1, &link->parts, e) != 0)
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
    d->base = v;
    if (v->serial == d->base_serial)
        return 0;
    return err_set(e, ERR_PRECONDITION, "/base_version",
                   "the delta builds on serial %llu, and serial %llu ('%.128s') is served",
                   (unsigned long long)d->base_serial, (unsigned long long)v->serial, v->label);
}

static int source_begin(struct delta_source *d, struct progress *p, struct err *e)
{
    for (uint32_t k = 0; k < d->n_links; k++)
        if (d->links[k].parts == NULL && read_parts(d, k, p, e) != 0)
            return -1;
    return pin_base(d, e);
}

/* ---- the tensors ---- */

static struct delta_bytes part_bytes(const struct link *link, const struct delta_part *part)
{
    const struct tensor_list *list = link->l.sent.tensor_list;

    if (part->i == TENSOR_LIST_NO_TENSOR)
        return (struct delta_bytes){NULL, 0};
    return (struct delta_bytes){(const char *)link->parts->base + list->tensors[part->i].offset,
                                list->tensors[part->i].nbytes};
}

/* The tensor's number in the result of a link, or TENSOR_LIST_NO_TENSOR. */
static uint32_t link_tensor(const struct link *link, const struct tensor_spec *t, uint32_t near)
{
    return tensor_list_find_near(link->l.delta->result, t->name, near);
}

/* Begins tensor i in every link that has it. *whole: no byte of the base is needed. */
static int tensor_begin(struct delta_source *d, uint32_t i, bool *whole, struct err *e)
{
    const struct tensor_spec *t = &d->result->tensors[i];
    bool first = true;

    for (uint32_t k = 0; k < d->n_links; k++) {
        struct link *link = &d->links[k];
        uint32_t at = link_tensor(link, t, i);
        const struct delta_tensor *change;

        if (at == TENSOR_LIST_NO_TENSOR)
            continue;
        change = &link->l.delta->tensors[at];
        if (first)
            *whole = change->kind == DELTA_WHOLE;
        first = false;
        if (delta_merge_begin(link->merge, t, change, part_bytes(link, &change->positions),
                              part_bytes(link, &change->values), e) != 0)
            return -1;
    }
    assert(!first);
    return 0;
}

/* Bytes [from, from + n) of tensor i, at `out`. */
static int tensor_block(struct delta_source *d, uint32_t i, bool whole, uint64_t from, uint64_t n,
                        char *out, struct err *e)
{
    const struct tensor_spec *t = &d->result->tensors[i];

    if (!whole && store_read(d->store, d->base, d->bases[i], from, n, out, e) != 0)
        return -1;
    for (uint32_t k = 0; k < d->n_links; k++) {
        uint32_t at = link_tensor(&d->links[k], t, i);

        if (at == TENSOR_LIST_NO_TENSOR)
            continue;
        if (delta_merge_next(d->links[k].merge, out, out, n, e) != 0)
            return -1;
        if (d->check.bytes != NULL)
            d->check.bytes(d->check.arg, k, at, out, n);
    }
    return 0;
}

static int tensor_end(struct delta_source *d, uint32_t i, struct err *e)
{
    for (uint32_t k = 0; k < d->n_links; k++) {
        uint32_t at = link_tensor(&d->links[k], &d->result->tensors[i], i);

        if (at == TENSOR_LIST_NO_TENSOR)
            continue;
        if (delta_merge_end(d->links[k].merge, e) != 0 ||
            (d->check.made != NULL && d->check.made(d->check.arg, k, at, e) != 0))
            return -1;
    }
    return 0;
}

static int tensor_make(struct delta_source *d, uint32_t i, char *out, struct progress *p,
                       struct err *e)
{
    uint64_t nbytes = d->result->tensors[i].nbytes;
    bool whole = false;

    if (tensor_begin(d, i, &whole, e) != 0)
        return -1;
    for (uint64_t at = 0, n; at < nbytes; at += n) {
        n = nbytes - at < SOURCE_REPORT_NBYTES ? nbytes - at : SOURCE_REPORT_NBYTES;
        if ((at % SOURCE_PIECE_NBYTES == 0 && progress_check(p, e) != 0) ||
            tensor_block(d, i, whole, at, n, out + at, e) != 0)
            return -1;
        progress_came(p, out + at, n);
        (void)atomic_fetch_add_explicit(&p->nbytes_done, n, memory_order_relaxed);
    }
    return tensor_end(d, i, e);
}

static int delta_source_fill(struct source *s, const struct tensor_list *tensor_list,
                             uint32_t first, uint32_t n, void *dst, struct progress *p,
                             struct err *e)
{
    struct delta_source *d = (struct delta_source *)s;
    char *out = dst;

    assert(tensor_list->n_tensors == d->result->n_tensors);
    if (d->base == NULL && source_begin(d, p, e) != 0)
        return -1;
    for (uint32_t i = first; i < first + n; out += d->result->tensors[i].nbytes, i++) {
        atomic_store_explicit(&p->tensor, i, memory_order_relaxed);
        if (tensor_make(d, i, out, p, e) != 0)
            return -1;
    }
    return 0;
}

static const struct source_ops ops = {
    .name = "delta", .fill = delta_source_fill, .close = delta_source_close};

/* ---- made ---- */

/* The results of all links, in the order in which they first appear. */
static int join_results(struct delta_source *d, struct err *e)
{
    struct tensor_list_builder *b;

    if (d->n_links == 1) {
        d->result = tensor_list_ref(d->links[0].l.delta->result);
        return 0;
    }
    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    for (uint32_t k = 0; k < d->n_links; k++) {
        const struct tensor_list *list = d->links[k].l.delta->result;

        for (uint32_t i = 0; i < list->n_tensors; i++) {
            const struct tensor_spec *t = &list->tensors[i];

            if (tensor_list_builder_find(b, t->name) == TENSOR_LIST_NO_TENSOR &&
                tensor_list_builder_add(b, t->name, t->dtype, t->shape, t->ndim, t->numel, e) !=
                    0) {
                tensor_list_builder_free(b);
                return -1;
            }
        }
    }
    return tensor_list_builder_finish(b, &d->result, e);
}

/* Whose bytes each tensor's changes apply to. Fused and ignored names have none, and only come
 * whole. */
static int find_bases(struct delta_source *d, struct err *e)
{
    const struct model_spec *m = store_model_spec(d->store);
    struct model_spec_match match = {.index = TENSOR_LIST_NO_TENSOR};

    d->bases = malloc(d->result->n_tensors * sizeof *d->bases);
    d->places = malloc(d->result->n_tensors * sizeof *d->places);
    if (d->bases == NULL || d->places == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a delta of %u tensors",
                       (unsigned)d->result->n_tensors);
    for (uint32_t i = 0; i < d->result->n_tensors; i++) {
        d->bases[i] = TENSOR_LIST_NO_TENSOR;
        d->places[i] = d->n_links == 1 ? d->links[0].l.delta->tensors[i].values.i : 0;
        if (!model_spec_find(m, &match, d->result->tensors[i].name, &match))
            continue;
        if (match.alias == NULL)
            d->bases[i] = match.index;
        else if (match.alias->kind == ALIAS_TIED)
            d->bases[i] = match.alias->targets[0];
    }
    return 0;
}

int delta_source_new(struct source **out, struct tensor_list **result,
                     const struct delta_source_cfg *cfg, struct err *e)
{
    struct delta_source *d = calloc(1, sizeof *d + cfg->n_links * sizeof d->links[0]);
    int rc = 0;

    assert(cfg->n_links > 0);
    if (d == NULL) {
        for (uint32_t k = 0; k < cfg->n_links; k++)
            delta_link_fini(&cfg->links[k]);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a delta");
    }
    d->source.ops = &ops;
    d->store = cfg->store;
    d->base_serial = cfg->base_serial;
    d->devices = cfg->devices;
    d->n_devices = cfg->n_devices;
    d->n_links = cfg->n_links;
    if (cfg->check != NULL)
        d->check = *cfg->check;
    for (uint32_t k = 0; k < d->n_links; k++) {
        d->links[k].l = cfg->links[k];
        memset(&cfg->links[k], 0, sizeof cfg->links[k]);
    }
    for (uint32_t k = 0; k < d->n_links && rc == 0; k++)
        rc = delta_merge_new(&d->links[k].merge, e);
    if (rc != 0 || join_results(d, e) != 0 || find_bases(d, e) != 0) {
        delta_source_close(&d->source);
        return -1;
    }
    *out = &d->source;
    *result = tensor_list_ref(d->result);
    return 0;
}

const struct chunk_rank *delta_source_sent(const struct source *s, const uint32_t **at)
{
    const struct delta_source *d = (const struct delta_source *)s;

    *at = d->n_links == 1 ? d->places : NULL;
    return &d->links[0].l.sent;
}
