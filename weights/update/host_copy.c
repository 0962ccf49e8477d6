/* Copies one tensor after the other, by blocking copies: the tensors copied here (adapters) are
 * small compared to a model, and no other request waits for them. */
#include "weights/update/host_copy.h"

#include "base/mtx.h"
#include "memory/slab.h"
#include "weights/source.h"
#include "weights/store/store.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

/* ---- sources that write into host memory ---- */

static int copy_filled(const struct host_copy *c, struct err *e)
{
    for (uint32_t i = 0; i < c->tensor_list->n_tensors; i++) {
        void *at = c->place(c->arg, i);

        if (c->source->ops->fill(c->source, c->tensor_list, i, 1, at, c->progress, e) != 0 ||
            c->arrived(c->arg, i, at, e) != 0)
            return -1;
    }
    return 0;
}

/* ---- sources whose bytes are on GPUs ---- */

static int host_copy_read_tensor(const struct host_copy *c, uint32_t i, uint64_t from,
                                 struct err *e)
{
    uint64_t nbytes = c->tensor_list->tensors[i].nbytes;
    char *at = c->place(c->arg, i);

    for (uint64_t done = 0, n; done < nbytes; done += n) {
        n = nbytes - done < SOURCE_PIECE_NBYTES ? nbytes - done : SOURCE_PIECE_NBYTES;
        if (progress_check(c->progress, e) != 0 ||
            device_read(c->devices[0], at + done, from + done, n, e) != 0)
            return -1;
        (void)atomic_fetch_add_explicit(&c->progress->nbytes_done, n, memory_order_relaxed);
    }
    return c->arrived(c->arg, i, at, e);
}

static int copy_buckets(const struct host_copy *c, struct err *e)
{
    const struct source_ops *ops = c->source->ops;

    for (uint32_t first = 0, n; first < c->tensor_list->n_tensors; first += n) {
        atomic_store_explicit(&c->progress->tensor, first, memory_order_relaxed);
        if (ops->map(c->source, 0, first, SOURCE_WAIT, c->progress, &n, e) != 0)
            return -1;
        for (uint32_t i = first; i < first + n; i++)
            if (host_copy_read_tensor(c, i, ops->at(c->source, 0, i), e) != 0)
                return -1;
    }
    return 0;
}

/* All blocking copies have ended when the source is released. */
static int copy_mapped(const struct host_copy *c, struct err *e)
{
    struct source_scope *own = NULL;
    struct err late = {0};
    int rc = c->source->ops->join(c->source, c->scope != NULL ? c->scope : &own, e);

    if (rc == 0)
        rc = copy_buckets(c, e);
    if (c->source->ops->release(c->source, &late) != 0 && rc == 0) {
        *e = late;
        rc = -1;
    }
    source_scope_close(own);
    return rc;
}

/* ---- sources that are received ---- */

/* A bucket that was posted and has not arrived. */
struct posted {
    uint32_t first, n;
    uint64_t offset; /* in the window, bytes */
};

struct window {
    const struct host_copy *c;
    uint64_t nbytes;
    struct slab_pool *pools[STORE_DEVICES_MAX]; /* owned; [n] */
    struct slab *slabs[STORE_DEVICES_MAX];      /* owned; [n] */
    uint32_t n;
    struct posted posted[SOURCE_POSTED_MAX]; /* posted buckets, the oldest first */
    uint32_t n_posted;
};

static uint64_t host_copy_bucket_nbytes(const struct tensor_list *tensor_list, uint32_t first,
                                        uint32_t n)
{
    const struct tensor_spec *t = tensor_list->tensors, *last = &t[first + n - 1];

    return last->offset + last->nbytes - t[first].offset;
}

static uint64_t window_aligned(uint64_t nbytes)
{
    return (nbytes + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN;
}

/* Memory for the largest bucket, and for as many small ones as are worth a round. */
static uint64_t window_nbytes(const struct host_copy *c)
{
    uint64_t largest = 0, all = 0;

    for (uint32_t first = 0, n; first < c->tensor_list->n_tensors; first += n) {
        uint64_t nbytes;

        n = c->source->ops->bucket(c->source, first);
        assert(n > 0 && n <= c->tensor_list->n_tensors - first);
        nbytes = window_aligned(host_copy_bucket_nbytes(c->tensor_list, first, n));
        largest = nbytes > largest ? nbytes : largest;
        all += nbytes;
    }
    if (all < HOST_COPY_WINDOW_NBYTES)
        return all;
    return largest > HOST_COPY_WINDOW_NBYTES ? largest : HOST_COPY_WINDOW_NBYTES;
}

static void window_fini(struct window *w)
{
    for (; w->n > 0; w->n--) {
        slab_unref(w->slabs[w->n - 1]);
        slab_pool_free(w->pools[w->n - 1]);
    }
}

/* A separate pool, so that freed memory goes back to the GPU and is not kept for the next update.
 */
static int window_rank(struct window *w, struct device *device, struct err *e)
{
    struct slab_memory memory = device_memory(device);
    struct slab_pool *pool;

    if (slab_pool_new(&pool, &memory, UINT64_MAX, 0, e) != 0)
        return -1;
    if (slab_pool_check(pool, w->nbytes, e) != 0 ||
        slab_new(&w->slabs[w->n], pool, w->nbytes, e) != 0) {
        slab_pool_free(pool);
        return -1;
    }
    w->pools[w->n++] = pool;
    return 0;
}

static int window_init(struct window *w, const struct host_copy *c, struct err *e)
{
    *w = (struct window){.c = c, .nbytes = window_nbytes(c)};
    assert(c->n_devices > 0 && c->n_devices <= STORE_DEVICES_MAX);
    for (uint32_t r = 0; r < c->n_devices; r++) {
        if (window_rank(w, c->devices[r], e) != 0) {
            window_fini(w);
            return -1;
        }
    }
    return 0;
}

/* No bucket arrives any more. The first error is kept. */
static int window_lose(struct window *w, const struct err *late, struct err *e)
{
    struct source *source = w->c->source;

    if (w->n_posted > 0 && source->ops->stuck(source))
        for (uint32_t r = 0; r < w->n; r++)
            slab_quarantine(w->slabs[r]);
    if (e->code == ERR_NONE)
        *e = *late;
    return -1;
}

/* Posts the buckets from tensor `first` on that fit; *end is the first tensor that did not fit. */
static int post_window(struct window *w, uint32_t first, uint32_t *end, struct err *e)
{
    const struct host_copy *c = w->c;
    uint64_t used = 0, dst[STORE_DEVICES_MAX];
    struct err late = {0};

    for (w->n_posted = 0; first < c->tensor_list->n_tensors && w->n_posted < SOURCE_POSTED_MAX;) {
        uint32_t n = c->source->ops->bucket(c->source, first);
        uint64_t nbytes = window_aligned(host_copy_bucket_nbytes(c->tensor_list, first, n));

        if (nbytes > w->nbytes - used)
            break;
        for (uint32_t r = 0; r < w->n; r++)
            dst[r] = w->slabs[r]->addr + used;
        atomic_store_explicit(&c->progress->tensor, first, memory_order_relaxed);
        if (c->source->ops->post(c->source, first, n, dst, c->progress, &late) != 0)
            return window_lose(w, &late, e);
        w->posted[w->n_posted++] = (struct posted){first, n, used};
        used += nbytes;
        first += n;
    }
    *end = first;
    return 0;
}

/* Takes the bytes that arrived on the first rank. @e  as host_copy_run's; an error here is set in
 * it */
static void take_bucket(const struct window *w, const struct posted *b, struct err *e)
{
    const struct host_copy *c = w->c;
    const struct tensor_spec *t = c->tensor_list->tensors;
    uint64_t at = w->slabs[0]->addr + b->offset;

    for (uint32_t i = b->first; i < b->first + b->n && e->code == ERR_NONE; i++)
        (void)host_copy_read_tensor(c, i, at + (t[i].offset - t[b->first].offset), e);
}

static int receive_window(struct window *w, struct err *e)
{
    const struct host_copy *c = w->c;
    struct err late = {0};

    while (w->n_posted > 0) {
        struct posted b = w->posted[0];

        if (c->source->ops->receive(c->source, c->progress, &late) != 0)
            return window_lose(w, &late, e);
        w->n_posted--;
        memmove(w->posted, w->posted + 1, w->n_posted * sizeof w->posted[0]);
        if (e->code == ERR_NONE)
            take_bucket(w, &b, e);
    }
    return 0;
}

static int copy_received(const struct host_copy *c, struct err *e)
{
    struct window w;
    uint32_t first = 0;
    int rc = 0;

    if (window_init(&w, c, e) != 0)
        return -1;
    while (first < c->tensor_list->n_tensors && rc == 0)
        if (post_window(&w, first, &first, e) != 0 || receive_window(&w, e) != 0)
            rc = -1;
    window_fini(&w);
    return e->code == ERR_NONE ? rc : -1;
}

int host_copy_run(const struct host_copy *c, struct err *e)
{
    const struct source_ops *ops = c->source->ops;
    int rc;

    mtx_assert_none();
    if (ops->fill != NULL)
        rc = copy_filled(c, e);
    else
        rc = ops->map != NULL ? copy_mapped(c, e) : copy_received(c, e);
    if (rc != 0)
        return -1;
    return ops->finish != NULL ? ops->finish(c->source, c->progress, e) : 0;
}
