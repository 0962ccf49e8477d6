#include "weights/update/device_copy.h"

#include "base/mtx.h"
#include "memory/slab.h"
#include "weights/store/store.h"

#include <assert.h>
#include <stdlib.h>

uint64_t device_copy_places(const struct source *source, const struct tensor_list *tensor_list,
                            uint64_t *at)
{
    const struct tensor_spec *t = tensor_list->tensors;
    uint64_t end = 0;

    for (uint32_t first = 0, n; first < tensor_list->n_tensors; first += n) {
        uint64_t begin = (end + DEVICE_COPY_ALIGN - 1) / DEVICE_COPY_ALIGN * DEVICE_COPY_ALIGN;

        n = source->ops->bucket != NULL ? source->ops->bucket(source, first) : 1;
        for (uint32_t i = first; i < first + n; i++) {
            at[i] = begin + (t[i].offset - t[first].offset);
            end = at[i] + t[i].nbytes;
        }
    }
    return end > 0 ? end : 1;
}

/* ---- sources that map ---- */

static int queue_mapped(const struct device_copy *c, uint32_t rank, uint32_t first, uint32_t n,
                        struct device_batch *b, struct err *e)
{
    const struct source_ops *ops = c->source->ops;
    struct device_piece *pieces = malloc(n * sizeof *pieces);
    int rc;

    if (pieces == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a bucket's copies");
    for (uint32_t i = 0; i < n; i++) {
        const struct tensor_spec *t = &c->tensor_list->tensors[first + i];

        pieces[i] = (struct device_piece){ops->at(c->source, rank, first + i),
                                          c->slabs[rank]->addr + c->at[first + i], t->nbytes,
                                          DTYPE_NONE};
    }
    rc = device_batch_copy(b, pieces, n, NULL, e);
    free(pieces);
    return rc;
}

static int copy_rank(const struct device_copy *c, uint32_t rank, struct device_batch *b,
                     struct err *e)
{
    for (uint32_t first = 0, n; first < c->tensor_list->n_tensors; first += n)
        if (c->source->ops->map(c->source, rank, first, SOURCE_WAIT, c->progress, &n, e) != 0 ||
            queue_mapped(c, rank, first, n, b, e) != 0)
            return -1;
    return device_batch_wait(b, c->progress, e);
}

static int device_copy_mapped(const struct device_copy *c, struct err *e)
{
    struct source_scope *own = NULL;
    struct err late = {0};
    int rc = c->source->ops->join(c->source, c->scope != NULL ? c->scope : &own, e);

    for (uint32_t r = 0; r < c->n_devices && rc == 0; r++) {
        struct device_batch *b;

        rc = device_batch_new(c->devices[r], &b, e);
        if (rc == 0) {
            rc = copy_rank(c, r, b, e);
            device_batch_free(b);
        }
    }
    if (c->source->ops->release(c->source, &late) != 0 && rc == 0) {
        *e = late;
        rc = -1;
    }
    source_scope_close(own);
    return rc;
}

/* ---- sources that are received ---- */

static int copy_post(const struct device_copy *c, uint32_t first, uint32_t n, struct err *e)
{
    uint64_t dst[STORE_DEVICES_MAX];

    for (uint32_t r = 0; r < c->n_devices; r++)
        dst[r] = c->slabs[r]->addr + c->at[first];
    return c->source->ops->post(c->source, first, n, dst, c->progress, e);
}

/* All memory is there, so no error of ours can keep a bucket from being received. */
static int device_copy_received(const struct device_copy *c, struct err *e)
{
    const struct source_ops *ops = c->source->ops;
    uint32_t first = 0, n_posted = 0, n;
    int rc = 0;

    while (rc == 0 && (first < c->tensor_list->n_tensors || n_posted > 0)) {
        if (first < c->tensor_list->n_tensors && n_posted < SOURCE_POSTED_MAX) {
            n = ops->bucket(c->source, first);
            rc = copy_post(c, first, n, e);
            first += n;
            n_posted++;
        } else {
            rc = ops->receive(c->source, c->progress, e);
            n_posted--;
        }
    }
    if (rc != 0 && ops->stuck(c->source))
        for (uint32_t r = 0; r < c->n_devices; r++)
            slab_quarantine(c->slabs[r]);
    return rc;
}

int device_copy_run(const struct device_copy *c, struct err *e)
{
    const struct source_ops *ops = c->source->ops;

    mtx_assert_none();
    assert(ops->fill == NULL && c->n_devices > 0 && c->n_devices <= STORE_DEVICES_MAX);
    if ((ops->map != NULL ? device_copy_mapped(c, e) : device_copy_received(c, e)) != 0)
        return -1;
    return ops->finish != NULL ? ops->finish(c->source, c->progress, e) : 0;
}
