/* Tensors that have come are copied out of the memory of the update, which may change as soon as
 * its source has returned; so the source takes them back. Once the version is committed they are
 * read from there. */
#include "transport/peer/pass.h"

#include "base/clock.h"
#include "base/mtx.h"
#include "weights/safetensors_write.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pass {
    struct store *store;
    struct version_file *file; /* owned */
    char label[VERSION_LABEL_MAX + 1];
    uint64_t base;
    bool *wanted; /* owned; [n_tensors], as of pass_new */
    atomic_uint n_refs;

    struct mtx lock; /* rank MTX_LEAF; guards the rest */
    struct cnd changed;
    const void **at; /* owned; [n_tensors]; NULL: not there */
    unsigned n_copying;
    bool ended;
    uint64_t serial; /* that it became */
};

static const struct tensor_list *spec_of(const struct pass *p)
{
    return store_model_spec(p->store)->tensor_list;
}

int pass_new(struct pass **out, struct store *store, const char *label, const struct checksum *sums,
             const bool *wanted, uint64_t base, struct err *e)
{
    uint32_t n = store_model_spec(store)->tensor_list->n_tensors;
    struct pass *p = calloc(1, sizeof *p);

    if (p == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to pass a version on");
    p->store = store;
    p->base = base;
    atomic_init(&p->n_refs, 1);
    (void)snprintf(p->label, sizeof p->label, "%s", label);
    mtx_init(&p->lock, MTX_LEAF);
    cnd_init(&p->changed);
    p->wanted = calloc(n, sizeof *p->wanted);
    p->at = calloc(n, sizeof *p->at);
    if (p->wanted == NULL || p->at == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory to pass %u tensors on", (unsigned)n);
    if (e->code != ERR_NONE || version_file_of(&p->file, spec_of(p), label, sums, e) != 0) {
        pass_unref(p);
        return -1;
    }
    memcpy(p->wanted, wanted, n * sizeof *wanted);
    *out = p;
    return 0;
}

struct pass *pass_ref(struct pass *p)
{
    (void)atomic_fetch_add(&p->n_refs, 1);
    return p;
}

void pass_unref(void *pass)
{
    struct pass *p = pass;

    if (p == NULL || atomic_fetch_sub(&p->n_refs, 1) != 1)
        return;
    cnd_fini(&p->changed);
    mtx_fini(&p->lock);
    version_file_free(p->file);
    free(p->wanted);
    free(p->at);
    free(p);
}

const struct version_file *pass_file(const struct pass *p)
{
    return p->file;
}

const char *pass_label(const struct pass *p)
{
    return p->label;
}

void pass_put(struct pass *p, const char *name, uint32_t near, const void *at)
{
    if (p == NULL)
        return;
    mtx_lock(&p->lock);
    p->at[tensor_list_find_near(spec_of(p), name, near)] = at;
    cnd_broadcast(&p->changed);
    mtx_unlock(&p->lock);
}

void pass_take_back(struct pass *p)
{
    if (p == NULL)
        return;
    mtx_lock(&p->lock);
    memset(p->at, 0, spec_of(p)->n_tensors * sizeof *p->at);
    while (p->n_copying > 0)
        (void)cnd_wait(&p->changed, &p->lock, CLOCK_NEVER);
    mtx_unlock(&p->lock);
}

void pass_end(struct pass *p, uint64_t serial)
{
    mtx_lock(&p->lock);
    p->ended = true;
    p->serial = serial;
    cnd_broadcast(&p->changed);
    mtx_unlock(&p->lock);
}

static int refuse_ended(const struct pass *p, struct err *e)
{
    return err_set(e, ERR_LEASE_ENDED, "",
                   "the version '%s', which was being read from a peer, did not come or is not "
                   "served any more",
                   p->label);
}

/* @label  that it must have; NULL: any. Returns 1 if another version is served. */
static int read_served(const struct pass *p, uint64_t serial, const char *label, uint32_t i,
                       uint64_t offset, uint64_t n, void *out, struct err *e)
{
    const struct version *v = NULL;
    int rc;

    if (store_pin(p->store, &v, e) != 0)
        return -1;
    if (v->serial == serial && (label == NULL || strcmp(v->label, label) == 0))
        rc = store_read(p->store, v, i, offset, n, out, e);
    else
        rc = 1;
    store_unpin(p->store, v);
    return rc;
}

struct pass_reading {
    struct pass *pass;
    uint64_t n_read;
    bool lacks; /* what follows is not there yet */
};

static int pass_read_tensor(void *arg, uint32_t i, uint64_t offset, uint64_t n, void *out,
                            struct err *e)
{
    struct pass_reading *r = arg;
    struct pass *p = r->pass;
    const char *at;
    uint64_t serial;
    int rc = 0;

    mtx_lock(&p->lock);
    at = p->at[i];
    serial = p->serial;
    p->n_copying += at != NULL;
    mtx_unlock(&p->lock);
    if (at != NULL)
        memcpy(out, at + offset, n);
    else if (serial != 0 || !p->wanted[i])
        rc = read_served(p, serial != 0 ? serial : p->base, serial != 0 ? p->label : NULL, i,
                         offset, n, out, e);
    else
        rc = 1;
    mtx_lock(&p->lock);
    p->n_copying -= at != NULL;
    if (p->at[i] != at) /* it was taken back: others that wait here would wake each other */
        cnd_broadcast(&p->changed);
    r->lacks = rc == 1 && (!p->ended || p->serial != serial); /* committed just now */
    if (r->lacks && !p->ended && p->at[i] == NULL && r->n_read == 0)
        (void)cnd_wait(&p->changed, &p->lock, clock_after_us(PASS_WAIT_US));
    mtx_unlock(&p->lock);
    if (rc == 0)
        r->n_read += n;
    return rc == 1 && !r->lacks ? refuse_ended(p, e) : -(rc != 0);
}

int pass_check(struct pass *p, struct err *e)
{
    bool ended;

    mtx_lock(&p->lock);
    ended = p->ended && p->serial == 0;
    mtx_unlock(&p->lock);
    return ended ? refuse_ended(p, e) : 0;
}

int pass_read(struct pass *p, uint64_t at, uint64_t *n, void *out, struct err *e)
{
    uint64_t head = p->file->nbytes_head, left = at < head ? head - at : 0;
    struct pass_reading r = {.pass = p, .n_read = left < *n ? left : *n};
    const struct safetensors_parts parts = {p->file->head, head, spec_of(p), pass_read_tensor, &r};

    if (pass_check(p, e) != 0)
        return -1;
    if (safetensors_read_parts(&parts, at, *n, out, e) != 0 && !r.lacks)
        return -1;
    *n = r.n_read;
    return 0;
}
