/* Batches: copies queued on a stream, and the checksums of the copied bytes.
 *
 * What a kernel reads and writes besides the bytes themselves (its table, its sums) lies in blocks
 * that go back to the device when the batch is done, and so do the batches: an update like the last
 * one makes no driver calls except copies and launches. Rejected: a table that the kernel reads
 * from host memory, where each of its blocks would wait for the bus. */
#include "memory/device_priv.h"

#include "base/clock.h"
#include "memory/copy_sum.h"
#include "memory/non_finite.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The driver needs 3 us to queue a copy; a launch needs a table that is uploaded first. */
enum {
    DMA_PIECES_MAX = 16,
    BLOCK_NBYTES_MIN = 1 << 20,
    BLOCKS_IDLE_NBYTES_MAX = 32 << 20,
    BATCHES_IDLE_MAX = 8,
    TABLE_ALIGN = 256,
    READ_BACK_NBYTES = 4 << 20, /* whole words; of one poll */
    SPIN_US = 200,
    SPIN_PAUSES = 32,
    NAP_US_MIN = 10,
    NAP_US_MAX = 1000
};

enum { READ_BACK_ALIGN = 8 }; /* sums are joined at words, and no element is cut */
_Static_assert(READ_BACK_NBYTES % READ_BACK_ALIGN == 0, "whole elements of every dtype");
_Static_assert(sizeof(struct copy_sum_made) == 24, "the kernel's three words");

struct range {
    uint64_t addr, nbytes;
    enum dtype dtype;
};

/* Sums that the batch owes its caller. */
struct owed {
    struct owed *next;
    struct device_made *out; /* borrowed; [n] */
    uint32_t n;
    const struct copy_sum_made *made; /* the kernel's, in a block, once it is done; or NULL */
    struct range ranges[];            /* [n] to be read back, without a kernel */
};

/* One thread's; no lock. */
struct device_batch {
    struct device_batch *next;   /* of the device's idle ones */
    struct device *device;       /* borrowed */
    CUstream stream;             /* the device's */
    CUevent event;               /* owned */
    bool busy;                   /* something was queued and is not known to be done */
    bool marked;                 /* the event was recorded after all queued work */
    struct device_block *blocks; /* owned; used by queued work; the newest first */
    struct owed *owed, **owed_tail;

    /* How far the first of `owed` has been read back. */
    uint32_t i;
    uint64_t nbytes_read;
    struct device_made made;
    struct device_block *bounce; /* owned */
};

static void block_destroy(const struct device *d, struct device_block *b)
{
    if (b == NULL)
        return;
    device_released(d, d->cu->mem_free(b->dev), "cuMemFree");
    device_released(d, d->cu->mem_free_host(b->host), "cuMemFreeHost");
    free(b);
}

static int block_new(const struct device *d, uint64_t nbytes, struct device_block **out,
                     struct err *e)
{
    const struct cu_api *cu = d->cu;
    struct device_block *b = calloc(1, sizeof *b);
    CUdeviceptr dev = 0;
    void *host = NULL;

    if (b == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the record of a table");
    for (b->nbytes = BLOCK_NBYTES_MIN; b->nbytes < nbytes;)
        b->nbytes *= 2;
    if (cu_try(cu, cu->mem_host_alloc(&host, b->nbytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc",
               e) != 0)
        goto err_block;
    if (cu_try(cu, cu->mem_alloc(&dev, b->nbytes), "cuMemAlloc", e) != 0)
        goto err_host;
    b->host = host;
    b->dev = dev;
    *out = b;
    return 0;

err_host:
    device_released(d, cu->mem_free_host(host), "cuMemFreeHost");
err_block:
    free(b);
    return -1;
}

/* An idle block, or a new one. */
static int block_take(struct device *d, uint64_t nbytes, struct device_block **out, struct err *e)
{
    struct device_block *found = NULL;

    mtx_lock(&d->lock);
    for (struct device_block **at = &d->blocks; *at != NULL; at = &(*at)->next) {
        if ((*at)->nbytes >= nbytes) {
            found = *at;
            *at = found->next;
            d->nbytes_blocks -= found->nbytes;
            break;
        }
    }
    mtx_unlock(&d->lock);
    if (found == NULL)
        return block_new(d, nbytes, out, e);
    found->next = NULL;
    found->nbytes_used = 0;
    *out = found;
    return 0;
}

/* No queued work uses them. */
static void blocks_give(struct device *d, struct device_block *b)
{
    while (b != NULL) {
        struct device_block *next = b->next;
        bool kept;

        mtx_lock(&d->lock);
        kept = d->nbytes_blocks + b->nbytes <= BLOCKS_IDLE_NBYTES_MAX;
        if (kept) {
            b->next = d->blocks;
            d->blocks = b;
            d->nbytes_blocks += b->nbytes;
        }
        mtx_unlock(&d->lock);
        if (!kept)
            block_destroy(d, b);
        b = next;
    }
}

static void batch_destroy(const struct device *d, struct device_batch *b)
{
    device_released(d, d->cu->event_destroy(b->event), "cuEventDestroy");
    free(b);
}

/* The device is being freed: no other thread uses it. */
void device_batches_drop(struct device *d)
{
    while (d->batches != NULL) {
        struct device_batch *next = d->batches->next;

        batch_destroy(d, d->batches);
        d->batches = next;
    }
    while (d->blocks != NULL) {
        struct device_block *next = d->blocks->next;

        block_destroy(d, d->blocks);
        d->blocks = next;
    }
}

/* A blocking event: a thread that waits for it in device_batch_free does not spin. */
static int batch_create(struct device *d, struct device_batch **out, struct err *e)
{
    const struct cu_api *cu = d->cu;
    struct device_batch *b = calloc(1, sizeof *b);
    int rc;

    if (b == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a batch of copies");
    if (device_enter(d, e) != 0)
        goto err_batch;
    rc = cu_try(cu, cu->event_create(&b->event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC),
                "cuEventCreate", e);
    device_leave(d);
    if (rc != 0)
        goto err_batch;
    b->device = d;
    b->owed_tail = &b->owed;
    mtx_lock(&d->lock);
    d->n_batches_out++;
    mtx_unlock(&d->lock);
    *out = b;
    return 0;

err_batch:
    free(b);
    return -1;
}

int device_batch_on(struct device *d, CUstream stream, struct device_batch **out, struct err *e)
{
    struct device_batch *b;

    mtx_lock(&d->lock);
    b = d->batches;
    if (b != NULL) {
        d->batches = b->next;
        d->n_batches_idle--;
        d->n_batches_out++;
    }
    mtx_unlock(&d->lock);
    if (b == NULL && batch_create(d, &b, e) != 0)
        return -1;
    b->next = NULL;
    b->stream = stream;
    *out = b;
    return 0;
}

int device_batch_new(struct device *d, struct device_batch **out, struct err *e)
{
    return device_batch_on(d, d->copies, out, e);
}

/* Records the event after all queued work. */
static int batch_mark(struct device_batch *b, struct err *e)
{
    const struct cu_api *cu = b->device->cu;

    if (cu_try(cu, cu->event_record(b->event, b->stream), "cuEventRecord", e) != 0)
        return -1;
    b->marked = true;
    return 0;
}

/* Enters the context: from here on something may be queued. */
static int batch_begin(struct device_batch *b, struct err *e)
{
    if (device_enter(b->device, e) != 0)
        return -1;
    b->busy = true;
    b->marked = false;
    return 0;
}

/* @rc  of the queueing */
static int batch_end(struct device_batch *b, int rc, struct err *e)
{
    if (rc == 0)
        rc = batch_mark(b, e);
    device_leave(b->device);
    return rc;
}

/* @made  room for n ranges, where no kernel makes the sums */
static struct owed *owed_new(const struct device_piece *pieces, uint32_t n,
                             struct device_made *made, bool read_back)
{
    struct owed *o = calloc(1, sizeof *o + (read_back ? n * sizeof o->ranges[0] : 0));

    if (o == NULL)
        return NULL;
    o->out = made;
    o->n = n;
    for (uint32_t i = 0; read_back && i < n; i++)
        o->ranges[i] = (struct range){pieces[i].dst, pieces[i].nbytes, pieces[i].dtype};
    return o;
}

static int queue_dma(struct device_batch *b, const struct device_piece *pieces, uint32_t n,
                     struct err *e)
{
    const struct cu_api *cu = b->device->cu;

    for (uint32_t i = 0; i < n; i++) {
        const struct device_piece *p = &pieces[i];

        if (p->nbytes > 0 && p->src != p->dst &&
            cu_try(cu, cu->memcpy_dtod_async(p->dst, p->src, p->nbytes, b->stream),
                   "cuMemcpyDtoDAsync", e) != 0)
            return -1;
    }
    return 0;
}

/* What the kernels need besides the bytes: pieces, the piece of each tile (and run), what is made
 * of each, and what stays on the GPU; in this order. */
struct table {
    uint64_t n_tiles;
    uint64_t tiles_at, made_at, rest_at, nbytes; /* offsets */
    char *host;
    uint64_t dev;
};

static int table_add_tiles(struct table *t, uint64_t n_tiles, struct err *e)
{
    t->n_tiles += n_tiles;
    if (t->n_tiles <= INT32_MAX)
        return 0;
    return err_set(e, ERR_NO_MEMORY, "", "a launch of more than %d blocks", INT32_MAX);
}

/* Once its tiles are counted. */
static void table_arrange(struct table *t, uint64_t nbytes_rows, uint64_t n_made,
                          uint64_t nbytes_rest)
{
    t->tiles_at = nbytes_rows;
    t->made_at = (t->tiles_at + t->n_tiles * sizeof(uint32_t) + 15) / 16 * 16;
    t->rest_at = (t->made_at + n_made * sizeof(struct copy_sum_made) + 15) / 16 * 16;
    t->nbytes = t->rest_at + nbytes_rest;
}

static uint64_t tiles_of(const struct device_piece *p, bool summed)
{
    return p->src != p->dst || summed ? copy_sum_tiles(p->dst, p->nbytes, COPY_SUM_TILE_NBYTES) : 0;
}

static int table_measure(struct table *t, const struct device_piece *pieces, uint32_t n,
                         bool summed, struct err *e)
{
    *t = (struct table){0};
    for (uint32_t i = 0; i < n; i++) {
        assert(pieces[i].nbytes <= INT64_MAX);
        if (table_add_tiles(t, tiles_of(&pieces[i], summed), e) != 0)
            return -1;
    }
    table_arrange(t, n * sizeof(struct copy_sum_piece), summed ? n : 0, 0);
    return 0;
}

/* Room in the batch's newest block, or in another. */
static int table_place(struct table *t, struct device_batch *b, struct err *e)
{
    struct device_block *block = b->blocks;
    uint64_t at = 0;

    if (block != NULL)
        at = (block->nbytes_used + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
    if (block == NULL || at > block->nbytes || t->nbytes > block->nbytes - at) {
        if (block_take(b->device, t->nbytes, &block, e) != 0)
            return -1;
        block->next = b->blocks;
        b->blocks = block;
        at = 0;
    }
    block->nbytes_used = at + t->nbytes;
    t->host = block->host + at;
    t->dev = block->dev + at;
    return 0;
}

/* The kernel looks at aligned words of 32 bits. What does not lie whole in one of them it could not
 * judge: the reader of the answer checks that. Returns whether it is so. */
static bool piece_look(struct copy_sum_piece *row, const struct device_piece *p)
{
    const struct non_finite_bits bits = non_finite_bits(p->dtype);
    uint64_t size;

    if (bits.top == 0)
        return false;
    size = p->dtype == DTYPE_C64 ? 4 : dtype_nbytes(p->dtype);
    if (size > 4 || p->dst % size != 0)
        return true;
    row->mask = (uint32_t)bits.mask;
    row->step = (uint32_t)bits.step;
    row->top = (uint32_t)bits.top;
    row->keep = (uint32_t)bits.keep;
    return false;
}

static void table_fill(const struct table *t, const struct device_piece *pieces, uint32_t n,
                       bool summed)
{
    struct copy_sum_made *made = (struct copy_sum_made *)(void *)(t->host + t->made_at);
    struct copy_sum_piece *rows = (struct copy_sum_piece *)(void *)t->host;
    uint32_t *tile_piece = (uint32_t *)(void *)(t->host + t->tiles_at);
    uint32_t at = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t n_tiles = tiles_of(&pieces[i], summed);

        rows[i] = (struct copy_sum_piece){.src = pieces[i].src,
                                          .dst = pieces[i].dst,
                                          .nbytes = pieces[i].nbytes,
                                          .first_tile = at};
        for (uint64_t k = 0; k < n_tiles; k++)
            tile_piece[at++] = i;
        if (summed)
            made[i] = (struct copy_sum_made){.found = piece_look(&rows[i], &pieces[i])};
    }
}

static int table_upload(struct device_batch *b, const struct table *t, struct err *e)
{
    const struct cu_api *cu = b->device->cu;

    return cu_try(cu, cu->memcpy_htod_async(t->dev, t->host, t->rest_at, b->stream),
                  "cuMemcpyHtoDAsync", e);
}

static int launch(struct device_batch *b, enum device_kernel kernel, uint64_t n_blocks,
                  unsigned n_threads, void **params, struct err *e)
{
    const struct cu_api *cu = b->device->cu;

    return cu_try(cu,
                  cu->launch_kernel(b->device->kernels[kernel], (unsigned)n_blocks, 1, 1, n_threads,
                                    1, 1, 0, b->stream, params, NULL),
                  "cuLaunchKernel", e);
}

/* What was made of the pieces, if there is something. */
static int table_download(struct device_batch *b, const struct table *t, struct err *e)
{
    const struct cu_api *cu = b->device->cu;

    if (t->made_at == t->rest_at)
        return 0;
    return cu_try(cu,
                  cu->memcpy_dtoh_async(t->host + t->made_at, t->dev + t->made_at,
                                        t->rest_at - t->made_at, b->stream),
                  "cuMemcpyDtoHAsync", e);
}

static int queue_launch(struct device_batch *b, const struct table *t, struct err *e)
{
    CUdeviceptr pieces = t->dev, tile_piece = t->dev + t->tiles_at;
    CUdeviceptr made = t->rest_at > t->made_at ? t->dev + t->made_at : 0;
    void *params[] = {&pieces, &tile_piece, &made};

    if (table_upload(b, t, e) != 0 ||
        launch(b, KERNEL_COPY_SUM, t->n_tiles, COPY_SUM_THREADS, params, e) != 0)
        return -1;
    return table_download(b, t, e);
}

/* @o  NULL, or the pending result */
static int queue_kernel(struct device_batch *b, const struct device_piece *pieces, uint32_t n,
                        struct owed *o, struct err *e)
{
    struct table t;

    if (table_measure(&t, pieces, n, o != NULL, e) != 0 || table_place(&t, b, e) != 0)
        return -1;
    table_fill(&t, pieces, n, o != NULL);
    if (o != NULL)
        o->made = (const struct copy_sum_made *)(const void *)(t.host + t.made_at);
    return t.n_tiles == 0 ? 0 : queue_launch(b, &t, e);
}

/* @o  NULL: nothing is owed. @rc  of the queueing */
static int batch_owe(struct device_batch *b, struct owed *o, int rc)
{
    if (rc != 0 || o == NULL) {
        free(o);
        return rc;
    }
    *b->owed_tail = o;
    b->owed_tail = &o->next;
    return 0;
}

int device_batch_copy(struct device_batch *b, const struct device_piece *pieces, uint32_t n,
                      struct device_made *made, struct err *e)
{
    bool kernel = device_has_kernels(b->device) && (made != NULL || n > DMA_PIECES_MAX);
    struct owed *o = NULL;

    if (n == 0)
        return 0;
    if (made != NULL && (o = owed_new(pieces, n, made, !kernel)) == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to sum %u pieces", n);
    if (batch_begin(b, e) != 0)
        return batch_owe(b, o, -1);
    return batch_owe(
        b, o,
        batch_end(b, kernel ? queue_kernel(b, pieces, n, o, e) : queue_dma(b, pieces, n, e), e));
}

/* @n_tiles, @n_runs  of all pieces */
static int scatter_measure(struct table *t, struct scatter_piece *pieces, uint32_t n,
                           uint64_t *n_tiles, uint64_t *n_runs, struct err *e)
{
    *t = (struct table){0};
    *n_tiles = *n_runs = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct scatter_piece *p = &pieces[i];
        uint64_t entries = scatter_entries(p);
        uint64_t runs = entries / SCATTER_RUN + (entries % SCATTER_RUN != 0);
        uint64_t tiles = copy_sum_tiles(p->copy.dst, p->copy.nbytes, SCATTER_TILE_NBYTES);

        assert(p->copy.dst % p->unit == 0 && p->copy.nbytes % p->unit == 0);
        if (table_add_tiles(t, tiles, e) != 0 || table_add_tiles(t, runs, e) != 0)
            return -1;
        p->copy.first_tile = (uint32_t)*n_tiles;
        p->n_tiles = (uint32_t)tiles;
        p->first_run = (uint32_t)*n_runs;
        p->n_runs = (uint32_t)runs;
        *n_tiles += tiles;
        *n_runs += runs;
    }
    table_arrange(t, n * sizeof *pieces, n,
                  *n_tiles * sizeof(struct scatter_mark) + *n_runs * sizeof(uint64_t));
    return 0;
}

static void scatter_fill(const struct table *t, struct scatter_piece *pieces, uint32_t n,
                         uint64_t n_tiles)
{
    struct copy_sum_made *made = (struct copy_sum_made *)(void *)(t->host + t->made_at);
    uint32_t *tile_piece = (uint32_t *)(void *)(t->host + t->tiles_at);

    for (uint32_t i = 0; i < n; i++) {
        struct scatter_piece *p = &pieces[i];
        struct device_piece looked = {.dst = p->copy.dst, .dtype = (enum dtype)p->dtype};

        made[i] = (struct copy_sum_made){.found = piece_look(&p->copy, &looked)};
        for (uint32_t k = 0; k < p->n_tiles; k++)
            tile_piece[p->copy.first_tile + k] = i;
        for (uint32_t k = 0; k < p->n_runs; k++)
            tile_piece[n_tiles + p->first_run + k] = i;
    }
    memcpy(t->host, pieces, n * sizeof *pieces);
}

static int queue_scatter(struct device_batch *b, struct scatter_piece *pieces, uint32_t n,
                         struct owed *o, struct err *e)
{
    CUdeviceptr rows, tile_piece, run_piece, sums, marks, made;
    void *sum[] = {&rows, &run_piece, &sums}, *scan[] = {&rows, &sums, &made};
    void *mark[] = {&rows, &run_piece, &sums, &marks, &made};
    void *apply[] = {&rows, &tile_piece, &marks, &made};
    uint64_t n_tiles, n_runs;
    struct table t;

    if (scatter_measure(&t, pieces, n, &n_tiles, &n_runs, e) != 0 || table_place(&t, b, e) != 0)
        return -1;
    scatter_fill(&t, pieces, n, n_tiles);
    o->made = (const struct copy_sum_made *)(const void *)(t.host + t.made_at);
    rows = t.dev;
    tile_piece = t.dev + t.tiles_at;
    run_piece = tile_piece + n_tiles * sizeof(uint32_t);
    made = t.dev + t.made_at;
    marks = t.dev + t.rest_at;
    sums = marks + n_tiles * sizeof(struct scatter_mark);
    if (table_upload(b, &t, e) != 0 ||
        (n_runs > 0 && (launch(b, KERNEL_SCATTER_SUM, n_runs, SCATTER_THREADS, sum, e) != 0 ||
                        launch(b, KERNEL_SCATTER_SCAN, n, SCATTER_THREADS, scan, e) != 0 ||
                        launch(b, KERNEL_SCATTER_MARK, n_runs, SCATTER_THREADS, mark, e) != 0)) ||
        (n_tiles > 0 && launch(b, KERNEL_SCATTER_APPLY, n_tiles, SCATTER_THREADS, apply, e) != 0))
        return -1;
    return table_download(b, &t, e);
}

int device_batch_scatter(struct device_batch *b, struct scatter_piece *pieces, uint32_t n,
                         struct device_made *made, struct err *e)
{
    struct owed *o;

    assert(device_has_kernels(b->device));
    if (n == 0)
        return 0;
    if ((o = owed_new(NULL, n, made, false)) == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to change %u tensors", n);
    if (batch_begin(b, e) != 0)
        return batch_owe(b, o, -1);
    return batch_owe(b, o, batch_end(b, queue_scatter(b, pieces, n, o, e), e));
}

int device_batch_to_host(struct device_batch *b, void *dst, uint64_t src, uint64_t nbytes,
                         struct err *e)
{
    const struct cu_api *cu = b->device->cu;

    if (nbytes == 0)
        return 0;
    if (batch_begin(b, e) != 0)
        return -1;
    return batch_end(
        b, cu_try(cu, cu->memcpy_dtoh_async(dst, src, nbytes, b->stream), "cuMemcpyDtoHAsync", e),
        e);
}

int device_batch_from_host(struct device_batch *b, uint64_t dst, const void *src, uint64_t nbytes,
                           struct err *e)
{
    const struct cu_api *cu = b->device->cu;

    if (nbytes == 0)
        return 0;
    if (batch_begin(b, e) != 0)
        return -1;
    return batch_end(
        b, cu_try(cu, cu->memcpy_htod_async(dst, src, nbytes, b->stream), "cuMemcpyHtoDAsync", e),
        e);
}

/* The next bytes of o's ranges, at most *budget (of READ_BACK_ALIGN), which they lower. */
static int read_back(struct device_batch *b, struct owed *o, uint64_t *budget, struct err *e)
{
    const struct range *r = &o->ranges[b->i];
    uint64_t nbytes = r->nbytes - b->nbytes_read < *budget ? r->nbytes - b->nbytes_read : *budget;
    struct device *d = b->device;

    if (b->bounce == NULL && block_take(d, READ_BACK_NBYTES, &b->bounce, e) != 0)
        return -1;
    if (nbytes > 0) {
        if (cu_try(d->cu, d->cu->memcpy_dtoh(b->bounce->host, r->addr + b->nbytes_read, nbytes),
                   "cuMemcpyDtoH", e) != 0)
            return -1;
        checksum_add(&b->made.sum, b->bounce->host, nbytes, b->nbytes_read);
        b->made.suspect |= non_finite_in(b->bounce->host, nbytes, r->dtype);
    }
    *budget -= (nbytes + READ_BACK_ALIGN - 1) / READ_BACK_ALIGN * READ_BACK_ALIGN;
    b->nbytes_read += nbytes;
    if (b->nbytes_read == r->nbytes) {
        o->out[b->i++] = b->made;
        b->nbytes_read = 0;
        b->made = (struct device_made){.suspect = false};
    }
    return 0;
}

static void give_made(const struct owed *o)
{
    for (uint32_t i = 0; o->made != NULL && i < o->n; i++)
        o->out[i] = (struct device_made){.sum = {o->made[i].a, o->made[i].b},
                                         .suspect = (o->made[i].found & SCATTER_NOT_FINITE) != 0,
                                         .refused = (o->made[i].found & SCATTER_REFUSED) != 0};
}

/* Delivers pending results, the oldest first. Returns 1 if none is left, 0 if a later call
 * continues. */
static int batch_settle(struct device_batch *b, struct err *e)
{
    uint64_t budget = READ_BACK_NBYTES;

    while (b->owed != NULL) {
        struct owed *o = b->owed;

        give_made(o);
        while (o->made == NULL && b->i < o->n) {
            if (budget == 0)
                return 0;
            if (read_back(b, o, &budget, e) != 0)
                return -1;
        }
        b->i = 0;
        b->owed = o->next;
        if (b->owed == NULL)
            b->owed_tail = &b->owed;
        free(o);
    }
    return 1;
}

static int poll_entered(struct device_batch *b, struct err *e)
{
    const struct cu_api *cu = b->device->cu;
    CUresult result;
    int rc;

    if (b->busy) {
        if (!b->marked && batch_mark(b, e) != 0)
            return -1;
        result = cu->event_query(b->event);
        if (result == CUDA_ERROR_NOT_READY)
            return 0;
        if (cu_try(cu, result, "cuEventQuery", e) != 0)
            return -1;
        b->busy = false;
    }
    rc = batch_settle(b, e);
    if (rc == 1) {
        blocks_give(b->device, b->blocks);
        b->blocks = NULL;
    }
    return rc;
}

int device_batch_poll(struct device_batch *b, struct err *e)
{
    int rc;

    if (device_enter(b->device, e) != 0)
        return -1;
    rc = poll_entered(b, e);
    device_leave(b->device);
    return rc;
}

static void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A copy of a bucket takes less time than a sleep can overrun; a longer wait may end late by a
 * share of its length. */
static void pause_since(uint64_t start_us)
{
    uint64_t waited = clock_now_us() - start_us;
    uint64_t nap = waited / 16;
    struct timespec ts = {0, 0};

    if (waited < SPIN_US) {
        for (int i = 0; i < SPIN_PAUSES; i++)
            cpu_pause();
        return;
    }
    nap = nap < NAP_US_MIN ? NAP_US_MIN : nap > NAP_US_MAX ? NAP_US_MAX : nap;
    ts.tv_nsec = (long)nap * 1000;
    (void)nanosleep(&ts, NULL);
}

/* @p  NULL: no deadline */
static int wait_entered(struct device_batch *b, const struct progress *p, struct err *e)
{
    uint64_t start = clock_now_us();

    for (;;) {
        int rc = poll_entered(b, e);

        if (rc != 0)
            return rc < 0 ? -1 : 0;
        if (p != NULL && progress_check(p, e) != 0)
            return -1;
        if (b->busy)
            pause_since(start);
    }
}

int device_batch_wait(struct device_batch *b, const struct progress *p, struct err *e)
{
    int rc;

    if (device_enter(b->device, e) != 0)
        return -1;
    rc = wait_entered(b, p, e);
    device_leave(b->device);
    return rc;
}

/* Waits until the GPU no longer uses the memory. Waiting for the whole stream is slower, but safe.
 */
static void batch_drain(struct device_batch *b)
{
    const struct cu_api *cu = b->device->cu;

    if (!b->busy || (b->marked && cu->event_synchronize(b->event) == CUDA_SUCCESS))
        return;
    device_released(b->device, cu->stream_synchronize(b->stream), "cuStreamSynchronize");
}

static void forget_owed(struct device_batch *b)
{
    while (b->owed != NULL) {
        struct owed *next = b->owed->next;

        free(b->owed);
        b->owed = next;
    }
}

void device_batch_free(struct device_batch *b)
{
    struct device *d;
    bool in_context, kept;

    if (b == NULL)
        return;
    d = b->device;
    forget_owed(b);
    in_context = device_enter_release(d);
    if (in_context) { /* else it is lost: the GPU may still write to its blocks */
        batch_drain(b);
        blocks_give(d, b->blocks);
        blocks_give(d, b->bounce);
        *b = (struct device_batch){.device = d, .event = b->event, .owed_tail = &b->owed};
    }
    mtx_lock(&d->lock);
    d->n_batches_out--;
    kept = in_context && d->n_batches_idle < BATCHES_IDLE_MAX;
    if (kept) {
        b->next = d->batches;
        d->batches = b;
        d->n_batches_idle++;
    }
    mtx_unlock(&d->lock);
    if (!in_context)
        return;
    if (!kept)
        batch_destroy(d, b);
    device_leave(d);
}
