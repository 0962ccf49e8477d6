/* Makes the tensors of a delta on the GPUs that keep them, each from that GPU's base: a kernel
 * copies, changes and sums it in one pass (memory/scatter.h).
 *
 * The parts come into scratch memory of each GPU: those that are there already stay there, others
 * are uploaded, decompressed. The kernel says only whether a tensor's parts are wrong. A patch
 * whose positions do not ascend the host puts in order, once the kernel has refused it. What else
 * is wrong the host finds out, as for a store without GPUs: it makes the tensor again. It also
 * makes what the kernel cannot: ranges, and tensors of which a GPU has no base. */
#include "weights/delta/delta_source_priv.h"

#include "memory/slab.h"
#include "weights/store/store_priv.h"
#include "weights/update/device_copy.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A GPU needs longer for it than the host to queue it. */
static const uint64_t bucket_nbytes = UINT64_C(2) << 30;

/* A bucket that was posted and not received. */
struct posted {
    struct device_batch *batches[STORE_DEVICES_MAX]; /* owned; [n_ranks], NULL: none */
    uint64_t dst[STORE_DEVICES_MAX];                 /* [n_ranks] */
    uint32_t first, n;
};

struct delta_device {
    struct device *devices[STORE_DEVICES_MAX]; /* [n_ranks] the store's */
    uint32_t n_ranks;
    struct delta_merge *merge; /* owned */
    uint64_t *at, *nbytes;    /* owned; [n of the parts]: each as the kernel reads it, in `parts` */
    struct device_made *made; /* owned; [n_ranks][n of the tensors] */
    struct slab_pool *pools[STORE_DEVICES_MAX]; /* owned; of `parts` */
    struct slab *parts[STORE_DEVICES_MAX];      /* one reference each; NULL until they are there */
    struct slab *host; /* the same in host memory; one reference, or NULL */
    struct posted posted[SOURCE_POSTED_MAX];
    uint32_t i_posted, n_posted;
};

bool delta_device_fits(const struct store *s)
{
    if (store_sharded(s) || store_in_host_memory(s))
        return false;
    for (uint32_t r = 0; r < store_n_ranks(s); r++)
        if (!device_has_kernels(store_device(s, r)))
            return false;
    return true;
}

static const struct tensor_list *list_sent(const struct delta_source *d)
{
    return d->link.sent.tensor_list;
}

static const struct tensor_list *list_made(const struct delta_source *d)
{
    return d->link.delta->result;
}

/* ---- the parts ---- */

static bool has_frames(const struct delta_source *d)
{
    const struct delta_tensor *t = d->link.delta->tensors;

    for (uint32_t i = 0; i < list_made(d)->n_tensors; i++)
        if (t[i].positions.zstd || t[i].values.zstd)
            return true;
    return false;
}

bool delta_device_keeps(const struct delta_source *d)
{
    return d->device != NULL && d->link.source->ops->fill == NULL && !has_frames(d);
}

/* From pools of their own: idle in the store's, they would displace the memory of a version. */
static int parts_take(struct delta_source *d, uint64_t nbytes, struct err *e)
{
    struct delta_device *g = d->device;

    for (uint32_t r = 0; r < g->n_ranks; r++) {
        struct slab_memory memory = device_memory(g->devices[r]);

        if (slab_pool_new(&g->pools[r], &memory, UINT64_MAX, 0, e) != 0 ||
            slab_pool_check(g->pools[r], nbytes, e) != 0 ||
            slab_new(&g->parts[r], g->pools[r], nbytes, e) != 0)
            return -1;
    }
    return 0;
}

/* Sums the parts on a rank. @pieces, @made  [n of the parts] */
static int parts_sum(const struct delta_source *d, uint32_t rank, struct device_piece *pieces,
                     struct device_made *made, const struct progress *p, struct err *e)
{
    const struct delta_device *g = d->device;
    struct device_batch *b;
    int rc;

    for (uint32_t i = 0; i < list_sent(d)->n_tensors; i++) {
        uint64_t at = g->parts[rank]->addr + g->at[i];

        pieces[i] = (struct device_piece){at, at, g->nbytes[i], DTYPE_NONE};
    }
    if (device_batch_new(g->devices[rank], &b, e) != 0)
        return -1;
    rc = device_batch_copy(b, pieces, list_sent(d)->n_tensors, made, e);
    if (rc == 0)
        rc = device_batch_wait(b, p, e);
    device_batch_free(b);
    return rc;
}

static int parts_verify(const struct delta_source *d, uint32_t rank, const struct progress *p,
                        struct err *e)
{
    uint32_t n = list_sent(d)->n_tensors;
    struct device_piece *pieces = calloc(n, sizeof *pieces);
    struct device_made *made = calloc(n, sizeof *made);
    int rc = pieces != NULL && made != NULL
                 ? parts_sum(d, rank, pieces, made, p, e)
                 : err_set(e, ERR_NO_MEMORY, "", "no memory for the checksums of a delta");

    for (uint32_t i = 0; i < n && rc == 0; i++)
        rc = delta_part_verify(d, i, &made[i].sum, e);
    free(pieces);
    free(made);
    return rc;
}

int delta_device_copy(struct delta_source *d, struct progress *p, struct err *e)
{
    struct delta_device *g = d->device;
    struct device_copy copy = {.source = d->link.source,
                               .tensor_list = list_sent(d),
                               .devices = g->devices,
                               .n_devices = g->n_ranks,
                               .slabs = g->parts,
                               .at = g->at,
                               .scope = d->scope,
                               .progress = p};

    if (parts_take(d, device_copy_places(copy.source, copy.tensor_list, g->at), e) != 0)
        return -1;
    if (device_copy_run(&copy, e) != 0)
        return -1;
    for (uint32_t r = 0; r < g->n_ranks && d->link.sent.checksums != NULL; r++)
        if (parts_verify(d, r, p, e) != 0)
            return -1;
    return 0;
}

/* A part's place once it is decompressed, behind those that end at *end, which it moves. */
static void part_place(struct delta_device *g, const struct delta_part *part, uint64_t nbytes,
                       uint64_t *end)
{
    if (part->i == TENSOR_LIST_NO_TENSOR)
        return;
    *end = (*end + DEVICE_COPY_ALIGN - 1) / DEVICE_COPY_ALIGN * DEVICE_COPY_ALIGN;
    g->at[part->i] = *end;
    g->nbytes[part->i] = nbytes;
    *end += nbytes;
}

static int change_begin(const struct delta_source *d, struct delta_merge *merge, uint32_t i,
                        struct err *e)
{
    const struct delta_tensor *t = &d->link.delta->tensors[i];

    return delta_merge_begin(merge, &list_made(d)->tensors[i], t,
                             delta_part_bytes(d, &t->positions), delta_part_bytes(d, &t->values),
                             e);
}

struct expanding {
    struct delta_source *d;
    struct progress *p;
};

static int tensor_expand(void *arg, unsigned thread, uint64_t i, struct err *e)
{
    const struct expanding *x = arg;
    const struct delta_device *g = x->d->device;
    const struct delta_tensor *t = &x->d->link.delta->tensors[i];
    struct delta_merge **merge = &x->d->makers[thread].merge;
    char *base = g->host->base;
    char *positions = t->positions.i != TENSOR_LIST_NO_TENSOR ? base + g->at[t->positions.i] : NULL;

    if (progress_check(x->p, e) != 0 || (*merge == NULL && delta_merge_new(merge, e) != 0) ||
        change_begin(x->d, *merge, (uint32_t)i, e) != 0)
        return -1;
    return delta_merge_expand(*merge, positions, base + g->at[t->values.i], e);
}

/* Decompresses d->parts into g->host. */
static int parts_expand(struct delta_source *d, struct progress *p, struct err *e)
{
    struct expanding x = {d, p};
    uint64_t end = 0, nbytes[2];

    for (uint32_t i = 0; i < list_made(d)->n_tensors; i++) {
        const struct delta_tensor *t = &d->link.delta->tensors[i];

        if (change_begin(d, d->device->merge, i, e) != 0)
            return -1;
        delta_merge_sizes(d->device->merge, &nbytes[0], &nbytes[1]);
        part_place(d->device, &t->positions, nbytes[0], &end);
        part_place(d->device, &t->values, nbytes[1], &end);
    }
    if (store_scratch(d->store, end + 1, &d->device->host, e) != 0 ||
        parallel_run(tensor_expand, &x, list_made(d)->n_tensors, end, "delta", e) != 0)
        return -1;
    slab_unref(d->parts);
    d->parts = NULL;
    return 0;
}

int delta_device_upload(struct delta_source *d, struct progress *p, struct err *e)
{
    struct delta_device *g = d->device;

    assert(list_made(d)->n_tensors == 0 || !d->link.delta->tensors[0].patch); /* from a group */
    if (has_frames(d)) {
        if (parts_expand(d, p, e) != 0)
            return -1;
    } else {
        for (uint32_t i = 0; i < list_sent(d)->n_tensors; i++)
            g->at[i] = list_sent(d)->tensors[i].offset;
        g->host = d->parts;
        d->parts = NULL;
    }
    if (parts_take(d, g->host->nbytes, e) != 0)
        return -1;
    for (uint64_t at = 0, n; at < g->host->nbytes; at += n) {
        n = g->host->nbytes - at < SOURCE_PIECE_NBYTES ? g->host->nbytes - at : SOURCE_PIECE_NBYTES;
        for (uint32_t r = 0; r < g->n_ranks; r++)
            if (progress_check(p, e) != 0 || device_write(g->devices[r], g->parts[r]->addr + at,
                                                          (char *)g->host->base + at, n, e) != 0)
                return -1;
    }
    return 0;
}

/* ---- a tensor on the host ---- */

static struct delta_bytes part_bytes(const struct delta_device *g, const struct delta_part *part)
{
    if (part->i == TENSOR_LIST_NO_TENSOR)
        return (struct delta_bytes){NULL, 0};
    return (struct delta_bytes){g->host != NULL ? (char *)g->host->base + g->at[part->i] : NULL,
                                g->nbytes[part->i]};
}

/* Checks the sizes of a tensor's parts. Without g->host nothing more may follow. */
static int tensor_begin(struct delta_source *d, uint32_t i, struct err *e)
{
    struct delta_tensor t = d->link.delta->tensors[i];

    t.positions.zstd = t.values.zstd = false; /* no more */
    return delta_merge_begin(d->device->merge, &list_made(d)->tensors[i], &t,
                             part_bytes(d->device, &t.positions), part_bytes(d->device, &t.values),
                             e);
}

static int parts_to_host(struct delta_source *d, struct err *e)
{
    struct delta_device *g = d->device;

    if (g->host != NULL)
        return 0;
    if (store_scratch(d->store, g->parts[0]->nbytes, &g->host, e) != 0)
        return -1;
    return device_read(g->devices[0], g->host->base, g->parts[0]->addr, g->host->nbytes, e);
}

/* @piece  for SOURCE_PIECE_NBYTES. @to  [n_ranks] where the tensor belongs, or NULL */
static int host_pieces(struct delta_source *d, uint32_t i, void *piece, const uint64_t *to,
                       struct progress *p, struct err *e)
{
    const struct delta_device *g = d->device;
    uint64_t nbytes = list_made(d)->tensors[i].nbytes;

    for (uint64_t at = 0, n; at < nbytes; at += n) {
        n = nbytes - at < SOURCE_PIECE_NBYTES ? nbytes - at : SOURCE_PIECE_NBYTES;
        if (progress_check(p, e) != 0 ||
            store_read(d->store, d->base, d->link.delta->tensors[i].base, at, n, piece, e) != 0 ||
            delta_merge_next(d->device->merge, piece, piece, n, e) != 0)
            return -1;
        for (uint32_t r = 0; r < g->n_ranks && to != NULL; r++)
            if (device_write(g->devices[r], to[r] + at, piece, n, e) != 0)
                return -1;
    }
    return delta_merge_end(d->device->merge, e);
}

/* Brings the parts to the host, and there those of a patch in order. */
static int parts_in_order(struct delta_source *d, uint32_t i, struct err *e)
{
    const struct delta_tensor *t = &d->link.delta->tensors[i];
    const struct delta_device *g = d->device;

    if (parts_to_host(d, e) != 0)
        return -1;
    if (t->patch)
        delta_sort((char *)g->host->base + g->at[t->positions.i],
                   (char *)g->host->base + g->at[t->values.i], g->nbytes[t->values.i] / t->unit,
                   t->unit);
    return 0;
}

/* Makes a tensor, which has a base; with `to` NULL only to see what is wrong. */
static int host_make(struct delta_source *d, uint32_t i, const uint64_t *to, struct progress *p,
                     struct err *e)
{
    struct slab *piece;
    int rc;

    if (parts_in_order(d, i, e) != 0 || tensor_begin(d, i, e) != 0 ||
        store_scratch(d->store, SOURCE_PIECE_NBYTES, &piece, e) != 0)
        return -1;
    rc = host_pieces(d, i, piece->base, to, p, e);
    slab_unref(piece);
    return rc;
}

/* ---- a bucket ---- */

static const struct view *base_view(const struct delta_source *d, uint32_t rank, uint32_t i)
{
    return &d->base->places[rank][d->link.delta->tensors[i].base];
}

/* Is a tensor made on the host? One that came whole is only copied. */
static bool on_host(const struct delta_source *d, uint32_t i)
{
    enum delta_kind kind = d->link.delta->tensors[i].kind;

    for (uint32_t r = 0; r < d->device->n_ranks && kind != DELTA_WHOLE; r++)
        if (base_view(d, r, i)->slab == NULL)
            return true;
    return kind == DELTA_RANGE;
}

/* A xor of everything has wider units where all is aligned for them. */
static void piece_widen(struct scatter_piece *p)
{
    uint8_t unit = 8;

    while ((p->copy.dst | p->values | p->copy.nbytes) % unit != 0)
        unit /= 2;
    p->unit = unit;
    p->n_values = p->copy.nbytes / unit;
}

/* Tensor i of a bucket on a rank. */
static struct scatter_piece piece_of(const struct delta_source *d, const struct posted *b,
                                     uint32_t rank, uint32_t i)
{
    static const uint8_t kinds[DELTA_KIND_COUNT] = {[DELTA_XOR] = SCATTER_ALL,
                                                    [DELTA_GAP] = SCATTER_GAP,
                                                    [DELTA_BITMAP] = SCATTER_BITMAP,
                                                    [DELTA_INDEX] = SCATTER_INDEX};
    const struct delta_device *g = d->device;
    const struct delta_tensor *t = &d->link.delta->tensors[i];
    const struct tensor_spec *spec = &list_made(d)->tensors[i];
    uint64_t parts = g->parts[rank]->addr, values = parts + g->at[t->values.i];
    struct scatter_piece p = {
        .copy = {.dst = b->dst[rank] + (spec->offset - list_made(d)->tensors[b->first].offset),
                 .nbytes = spec->nbytes},
        .kind = SCATTER_INDEX, /* a copy: there are no values */
        .unit = (uint8_t)dtype_nbytes(spec->dtype),
        .dtype = (uint8_t)spec->dtype};

    p.copy.src = t->kind == DELTA_WHOLE ? values
                 : on_host(d, i)        ? p.copy.dst
                                        : base_view(d, rank, i)->addr;
    if (t->kind == DELTA_WHOLE || on_host(d, i))
        return p;
    p.kind = kinds[t->kind];
    p.unit = (uint8_t)t->unit;
    p.values = values;
    p.n_values = g->nbytes[t->values.i] / t->unit;
    if (t->kind == DELTA_XOR) {
        piece_widen(&p);
        return p;
    }
    p.positions = parts + g->at[t->positions.i];
    if (t->kind == DELTA_INDEX) /* either fits, as tensor_begin has seen */
        p.position_nbytes = g->nbytes[t->positions.i] == 4 * p.n_values ? 4 : 8;
    return p;
}

/* Checks the tensors of a bucket, and makes those that a kernel cannot. */
static int bucket_on_host(struct delta_source *d, const struct posted *b, struct progress *p,
                          struct err *e)
{
    const struct tensor_spec *t = list_made(d)->tensors;
    uint64_t to[STORE_DEVICES_MAX];

    for (uint32_t i = b->first; i < b->first + b->n; i++) {
        if (tensor_begin(d, i, e) != 0)
            return -1;
        if (!on_host(d, i))
            continue;
        for (uint32_t r = 0; r < d->device->n_ranks; r++)
            to[r] = b->dst[r] + (t[i].offset - t[b->first].offset);
        if (host_make(d, i, to, p, e) != 0)
            return -1;
    }
    return 0;
}

/* Queues tensors [first, first + n) of a bucket on a rank. @pieces  room for them */
static int queue_rank(struct delta_source *d, struct posted *b, uint32_t rank, uint32_t first,
                      uint32_t n, struct scatter_piece *pieces, struct err *e)
{
    struct delta_device *g = d->device;

    for (uint32_t k = 0; k < n; k++)
        pieces[k] = piece_of(d, b, rank, first + k);
    if (b->batches[rank] == NULL && device_batch_new(g->devices[rank], &b->batches[rank], e) != 0)
        return -1;
    return device_batch_scatter(b->batches[rank], pieces, n,
                                g->made + (size_t)rank * list_made(d)->n_tensors + first, e);
}

static int queue_tensors(struct delta_source *d, struct posted *b, uint32_t first, uint32_t n,
                         struct err *e)
{
    struct scatter_piece *pieces = malloc(n * sizeof *pieces);
    int rc = 0;

    if (pieces == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a delta of %u tensors", (unsigned)n);
    for (uint32_t r = 0; r < d->device->n_ranks && rc == 0; r++)
        rc = queue_rank(d, b, r, first, n, pieces, e);
    free(pieces);
    return rc;
}

/* Nothing is written any more when this returns. */
static void posted_drop(struct delta_device *g)
{
    struct posted *b = &g->posted[g->i_posted];

    for (uint32_t r = 0; r < g->n_ranks; r++)
        device_batch_free(b->batches[r]);
    *b = (struct posted){0};
    g->i_posted = (g->i_posted + 1) % SOURCE_POSTED_MAX;
    g->n_posted--;
}

static void all_drop(struct delta_device *g)
{
    while (g->n_posted > 0)
        posted_drop(g);
}

static const struct device_made *delta_device_made(const struct source *s, uint32_t rank)
{
    const struct delta_source *d = (const struct delta_source *)s;

    return d->device->made + (size_t)rank * list_made(d)->n_tensors;
}

static bool is_refused(const struct delta_source *d, uint32_t i)
{
    for (uint32_t r = 0; r < d->device->n_ranks; r++)
        if (delta_device_made(&d->source, r)[i].refused)
            return true;
    return false;
}

static int batches_wait(const struct delta_source *d, const struct posted *b, struct progress *p,
                        struct err *e)
{
    for (uint32_t r = 0; r < d->device->n_ranks; r++)
        if (device_batch_wait(b->batches[r], p, e) != 0)
            return -1;
    return 0;
}

/* Makes a patch again, in order: that of its positions may be all that was wrong. */
static int patch_again(struct delta_source *d, struct posted *b, uint32_t i, struct progress *p,
                       struct err *e)
{
    const struct delta_tensor *t = &d->link.delta->tensors[i];
    const struct delta_part *parts[] = {&t->positions, &t->values};
    struct delta_device *g = d->device;

    if (parts_in_order(d, i, e) != 0)
        return -1;
    for (uint32_t r = 0; r < g->n_ranks; r++)
        for (uint32_t k = 0; k < 2; k++)
            if (device_write(g->devices[r], g->parts[r]->addr + g->at[parts[k]->i],
                             (char *)g->host->base + g->at[parts[k]->i], g->nbytes[parts[k]->i],
                             e) != 0)
                return -1;
    return queue_tensors(d, b, i, 1, e) == 0 ? batches_wait(d, b, p, e) : -1;
}

/* The first tensor that the kernel refuses on a rank, as the host refuses it. */
static int posted_judge(struct delta_source *d, struct posted *b, struct progress *p, struct err *e)
{
    for (uint32_t i = b->first; i < b->first + b->n; i++) {
        if (is_refused(d, i) && d->link.delta->tensors[i].patch && patch_again(d, b, i, p, e) != 0)
            return -1;
        if (!is_refused(d, i))
            continue;
        if (host_make(d, i, NULL, p, e) != 0)
            return -1;
        return err_set(e, ERR_CUDA, "",
                       "a GPU refused the delta of '%.256s', which the host does not refuse",
                       list_made(d)->tensors[i].name);
    }
    return 0;
}

/* ---- the source ---- */

/* What an alias or another dtype brings passes through more memory, and comes apart from others. */
static bool goes_alone(const struct delta_source *d, uint32_t i)
{
    const struct tensor_spec *t = &list_made(d)->tensors[i], *base;
    uint32_t index = d->link.delta->tensors[i].base;

    if (index == TENSOR_LIST_NO_TENSOR)
        return true;
    base = &store_model_spec(d->store)->tensor_list->tensors[index];
    return t->dtype != base->dtype || strcmp(t->name, base->name) != 0;
}

/* All tensors of a bucket are aligned for their dtypes. */
static uint32_t delta_device_bucket(const struct source *s, uint32_t first)
{
    const struct delta_source *d = (const struct delta_source *)s;
    const struct tensor_list *list = list_made(d);
    const struct tensor_spec *t = list->tensors;
    uint32_t i = first + 1;

    while (i < list->n_tensors && !goes_alone(d, i - 1) && !goes_alone(d, i) &&
           t[i].offset + t[i].nbytes - t[first].offset <= bucket_nbytes &&
           (t[i].offset - t[first].offset) % dtype_nbytes(t[i].dtype) == 0)
        i++;
    return i - first;
}

static int delta_device_post(struct source *s, uint32_t first, uint32_t n, const uint64_t *dst,
                             struct progress *p, struct err *e)
{
    struct delta_source *d = (struct delta_source *)s;
    struct delta_device *g = d->device;
    struct posted *b = &g->posted[(g->i_posted + g->n_posted) % SOURCE_POSTED_MAX];

    if (delta_source_begin(d, p, e) != 0)
        return -1;
    g->n_posted++;
    *b = (struct posted){.first = first, .n = n};
    memcpy(b->dst, dst, g->n_ranks * sizeof *dst);
    if (bucket_on_host(d, b, p, e) == 0 && queue_tensors(d, b, first, n, e) == 0)
        return 0;
    all_drop(g);
    return -1;
}

static int delta_device_receive(struct source *s, struct progress *p, struct err *e)
{
    struct delta_source *d = (struct delta_source *)s;
    struct delta_device *g = d->device;
    struct posted *b = &g->posted[g->i_posted];

    if (batches_wait(d, b, p, e) != 0 || posted_judge(d, b, p, e) != 0) {
        all_drop(g);
        return -1;
    }
    posted_drop(g);
    return 0;
}

static bool delta_device_stuck(const struct source *s)
{
    (void)s;
    return false;
}

void delta_device_free(struct delta_source *d)
{
    struct delta_device *g = d->device;

    if (g == NULL)
        return;
    all_drop(g);
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        slab_unref(g->parts[r]);
        slab_pool_free(g->pools[r]);
    }
    slab_unref(g->host);
    delta_merge_free(g->merge);
    free(g->at);
    free(g->nbytes);
    free(g->made);
    free(g);
    d->device = NULL;
}

int delta_device_new(struct delta_source *d, struct err *e)
{
    uint32_t n = list_sent(d)->n_tensors, n_ranks = store_n_ranks(d->store);
    struct delta_device *g = calloc(1, sizeof *g);

    d->device = g;
    if (g != NULL) {
        g->at = calloc(n, sizeof *g->at);
        g->nbytes = calloc(n, sizeof *g->nbytes);
        g->made = calloc((size_t)n_ranks * list_made(d)->n_tensors, sizeof *g->made);
    }
    if (g == NULL || g->at == NULL || g->nbytes == NULL || g->made == NULL) {
        delta_device_free(d);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a delta of %u parts", (unsigned)n);
    }
    if (delta_merge_new(&g->merge, e) != 0) {
        delta_device_free(d);
        return -1;
    }
    for (uint32_t i = 0; i < n; i++)
        g->nbytes[i] = list_sent(d)->tensors[i].nbytes;
    g->n_ranks = n_ranks;
    for (uint32_t r = 0; r < g->n_ranks; r++)
        g->devices[r] = store_device(d->store, r);
    d->ops.fill = NULL;
    d->ops.bucket = delta_device_bucket;
    d->ops.post = delta_device_post;
    d->ops.receive = delta_device_receive;
    d->ops.stuck = delta_device_stuck;
    d->ops.made = delta_device_made;
    return 0;
}
