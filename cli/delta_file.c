#include "cli/delta_file.h"

#include "cli/interrupt.h"
#include "weights/delta/delta_encode.h"
#include "weights/safetensors_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECKSUM_KEY "checksum."

enum {
    HEAD_ALIGN = 4096,
    TENSOR_HEAD_NBYTES_MAX = 1024, /* of all parts of a tensor and its checksum in the head, but for
                                      its name, which is there three times */
    NAME_TIMES = 3,
    ESCAPED = 2, /* bytes of JSON for one of a name */
    KEY_LEN_MAX = TENSOR_LIST_NAME_LEN_MAX + sizeof CHECKSUM_KEY
};

/* A delta on its way into a file. */
struct making {
    const struct delta_file_cfg *cfg;
    struct out_file *to;
    struct delta_encoder *encoder; /* owned */
    struct tensor_spec *specs;     /* owned; [n], of the parts; their names too */
    uint32_t n, cap;
    uint64_t begin, nbytes; /* where the tensors begin in the file, and how many bytes they have */
    struct delta_file made;
};

static int delta_file_no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for a delta");
}

/* Where a tensor is; false: not there. */
static bool delta_file_find(const struct weight_files *w, const char *name,
                            const struct weight_file **f, uint32_t *i)
{
    for (size_t k = 0; k < w->n; k++) {
        *f = &w->files[k];
        *i = tensor_list_find((*f)->head.tensor_list, name);
        if (*i != TENSOR_LIST_NO_TENSOR)
            return true;
    }
    return false;
}

static bool is_alike(const struct tensor_spec *a, const struct tensor_spec *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape) == 0;
}

static int spec_add(struct making *m, const char *name, const struct delta_encoding_part *p,
                    struct err *e)
{
    struct tensor_spec *t;
    char *copy = NULL;

    if (m->n == m->cap) {
        uint32_t cap = m->cap == 0 ? 64 : 2 * m->cap;

        t = realloc(m->specs, cap * sizeof *t);
        if (t == NULL)
            return delta_file_no_memory(e);
        m->specs = t;
        m->cap = cap;
    }
    if (asprintf(&copy, "%s%s", name, p->suffix) < 0)
        return delta_file_no_memory(e);
    t = &m->specs[m->n++];
    *t = (struct tensor_spec){
        .name = copy, .dtype = p->dtype, .ndim = p->ndim, .nbytes = p->nbytes, .offset = m->nbytes};
    memcpy(t->shape, p->shape, sizeof t->shape);
    return 0;
}

static int sum_add(struct making *m, const char *name, const void *bytes, uint64_t nbytes,
                   struct err *e)
{
    struct checksum sum = checksum_of(bytes, nbytes);
    char text[CHECKSUM_LEN + 1];

    checksum_text(&sum, text);
    return json_object_set_new(m->made.checksums, name, json_string(text)) == 0
               ? 0
               : delta_file_no_memory(e);
}

static int parts_write(struct making *m, const char *name, const struct delta_encoding *x,
                       struct err *e)
{
    for (uint32_t i = 0; i < x->n_parts; i++) {
        const struct delta_encoding_part *p = &x->parts[i];

        if (spec_add(m, name, p, e) != 0 ||
            out_file_write(m->to, p->data, p->nbytes, m->begin + m->nbytes, e) != 0)
            return -1;
        m->nbytes += p->nbytes;
    }
    return 0;
}

static int delta_tensor_add(struct making *m, const struct weight_file *g, uint32_t k,
                            struct err *e)
{
    const struct tensor_spec *t = &g->head.tensor_list->tensors[k];
    const void *bytes = weight_file_bytes(g, k);
    const struct weight_file *f;
    struct delta_encoding x;
    uint32_t i;

    if (interrupted())
        return err_set(e, ERR_ABORTED, "", "interrupted");
    if (!delta_file_find(m->cfg->base, t->name, &f, &i))
        return err_set(e, ERR_MISMATCH, "",
                       "tensor %.200s is not in the base: a delta has no new tensors", t->name);
    if (!is_alike(&f->head.tensor_list->tensors[i], t))
        return err_set(e, ERR_MISMATCH, "",
                       "tensor %.200s has another dtype or shape than in the base", t->name);
    if (delta_encode(&x, m->encoder, t, weight_file_bytes(f, i), bytes, e) != 0 ||
        sum_add(m, t->name, bytes, t->nbytes, e) != 0)
        return -1;
    m->made.nbytes_whole += t->nbytes;
    if (x.n_parts == 0)
        return 0;
    m->made.n_changed++;
    return parts_write(m, t->name, &x, e);
}

/* There is no update of nothing. */
static int smallest_add(struct making *m, struct err *e)
{
    const struct weight_files *w = m->cfg->to;
    const struct weight_file *f = NULL;
    struct delta_encoding whole = {.kind = DELTA_WHOLE, .n_parts = 1};
    struct tensor_spec least = {.nbytes = UINT64_MAX};
    const void *bytes = NULL;

    for (size_t k = 0; k < w->n; k++) {
        f = &w->files[k];
        for (uint32_t i = 0; i < f->head.tensor_list->n_tensors; i++) {
            const struct tensor_spec *t = &f->head.tensor_list->tensors[i];

            if (t->nbytes >= least.nbytes)
                continue;
            least = *t;
            bytes = weight_file_bytes(f, i);
        }
    }
    whole.parts[0] = (struct delta_encoding_part){.suffix = "",
                                                  .dtype = least.dtype,
                                                  .ndim = least.ndim,
                                                  .data = bytes,
                                                  .nbytes = least.nbytes};
    memcpy(whole.parts[0].shape, least.shape, sizeof least.shape);
    return parts_write(m, least.name, &whole, e);
}

/* Every tensor of the base has to be in the new checkpoint. */
static int base_covered(const struct delta_file_cfg *cfg, struct err *e)
{
    const struct weight_file *f;
    uint32_t found;

    for (size_t k = 0; k < cfg->base->n && !cfg->partial; k++) {
        const struct tensor_list *l = cfg->base->files[k].head.tensor_list;

        for (uint32_t i = 0; i < l->n_tensors; i++)
            if (!delta_file_find(cfg->to, l->tensors[i].name, &f, &found))
                return err_set(e, ERR_MISMATCH, "",
                               "tensor %.200s of the base is missing in what is to follow it",
                               l->tensors[i].name);
    }
    return 0;
}

static json_t *metadata_make(const struct making *m)
{
    json_t *out = json_pack("{s:s, s:s*, s:s*}", "format", SAFETENSORS_DELTA, "base_version",
                            m->cfg->base_version, "version", m->cfg->version);
    const char *name;
    json_t *sum;
    char key[KEY_LEN_MAX];

    json_object_foreach(m->made.checksums, name, sum)
    {
        (void)snprintf(key, sizeof key, CHECKSUM_KEY "%s", name);
        if (json_object_set(out, key, sum) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

/* The longest head that there can be; the tensors begin behind it. */
static uint64_t head_nbytes_max(const struct weight_files *w)
{
    uint64_t n = HEAD_ALIGN;

    for (size_t k = 0; k < w->n; k++)
        for (uint32_t i = 0; i < w->files[k].head.tensor_list->n_tensors; i++)
            n += TENSOR_HEAD_NBYTES_MAX +
                 NAME_TIMES * ESCAPED * strlen(w->files[k].head.tensor_list->tensors[i].name);
    return (n + HEAD_ALIGN - 1) / HEAD_ALIGN * HEAD_ALIGN;
}

static int delta_head_write(struct making *m, struct err *e)
{
    char *head = NULL;
    size_t nbytes;
    int rc;

    if (safetensors_head_make(&head, &nbytes, m->specs, m->n, metadata_make(m), e) != 0)
        return -1;
    if (nbytes > m->begin) {
        free(head);
        return err_set(e, ERR_INTERNAL, "", "the head of a delta has %zu bytes, expected %llu",
                       nbytes, (unsigned long long)m->begin);
    }
    m->made.offset = m->begin - nbytes;
    m->made.nbytes = nbytes + m->nbytes;
    rc = out_file_write(m->to, head, nbytes, m->made.offset, e);
    free(head);
    return rc;
}

static int delta_tensors_write(struct making *m, struct err *e)
{
    const struct weight_files *w = m->cfg->to;

    for (size_t k = 0; k < w->n; k++)
        for (uint32_t i = 0; i < w->files[k].head.tensor_list->n_tensors; i++)
            if (delta_tensor_add(m, &w->files[k], i, e) != 0)
                return -1;
    return m->n == 0 ? smallest_add(m, e) : 0;
}

int delta_file_make(struct delta_file *out, struct out_file *to, const struct delta_file_cfg *cfg,
                    struct err *e)
{
    struct making m = {.cfg = cfg, .to = to, .begin = head_nbytes_max(cfg->to)};
    int rc = -1;

    m.made.checksums = json_object();
    if (base_covered(cfg, e) == 0 && delta_encoder_new(&m.encoder, true, e) == 0)
        rc = delta_tensors_write(&m, e);
    if (rc == 0)
        rc = delta_head_write(&m, e);
    delta_encoder_free(m.encoder);
    for (uint32_t i = 0; i < m.n; i++)
        free((void *)(uintptr_t)m.specs[i].name);
    free(m.specs);
    if (rc != 0)
        delta_file_fini(&m.made);
    else
        *out = m.made;
    return rc;
}

void delta_file_fini(struct delta_file *d)
{
    json_decref(d->checksums);
    *d = (struct delta_file){0};
}
