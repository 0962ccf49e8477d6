/* A checkpoint from another one and a delta. */
#include "cli/delta_file.h"

#include "cli/interrupt.h"
#include "weights/delta/delta.h"
#include "weights/safetensors_write.h"

#include <stdlib.h>
#include <string.h>

struct applying {
    const struct weight_files *base;
    const struct weight_file *delta;
    struct out_file *to;
    struct delta *d;           /* owned */
    struct delta_merge *merge; /* owned */
    unsigned char *room;       /* owned; of the largest tensor */
    uint64_t at;               /* bytes written */
    uint32_t n_proven;
};

/* The tensors of all files, as one list. */
static int spec_of_files(struct model_spec **out, const struct weight_files *w, struct err *e)
{
    struct tensor_list_builder *b;
    struct tensor_list *list;

    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    for (size_t k = 0; k < w->n; k++) {
        const struct tensor_list *l = w->files[k].head.tensor_list;

        for (uint32_t i = 0; i < l->n_tensors; i++) {
            const struct tensor_spec *t = &l->tensors[i];

            if (tensor_list_builder_add(b, t->name, t->dtype, t->shape, t->ndim, t->numel, e) == 0)
                continue;
            tensor_list_builder_free(b);
            return -1;
        }
    }
    return tensor_list_builder_finish(b, &list, e) != 0 ? -1
                                                        : model_spec_new(out, list, NULL, 0, e);
}

static struct delta_bytes part_bytes(const struct applying *a, const struct delta_part *p)
{
    const struct tensor_list *l = a->delta->head.tensor_list;

    return p->i == TENSOR_LIST_NO_TENSOR
               ? (struct delta_bytes){0}
               : (struct delta_bytes){weight_file_bytes(a->delta, p->i), l->tensors[p->i].nbytes};
}

static int tensor_prove(struct applying *a, const struct tensor_spec *t, const void *bytes,
                        struct err *e)
{
    const struct safetensors *head = &a->delta->head;
    uint32_t said = names_find(&head->made.names, t->name);
    struct checksum sum = checksum_of(bytes, t->nbytes);
    char is[CHECKSUM_LEN + 1], wanted[CHECKSUM_LEN + 1];

    if (said == NAMES_NONE)
        return 0;
    if (checksum_equal(sum, head->made.sums[said])) {
        a->n_proven++;
        return 0;
    }
    checksum_text(&sum, is);
    checksum_text(&head->made.sums[said], wanted);
    return err_set(e, ERR_CHECKSUM, "",
                   "tensor %.200s then has checksum %s, and the delta says %s: it builds on "
                   "another base%s%.128s",
                   t->name, is, wanted, head->delta_base[0] != '\0' ? ", version " : "",
                   head->delta_base);
}

static int tensor_write(struct applying *a, const struct tensor_spec *t, const unsigned char *bytes,
                        struct err *e)
{
    uint32_t k = tensor_list_find(a->d->result, t->name);

    if (interrupted())
        return err_set(e, ERR_ABORTED, "", "interrupted");
    if (k != TENSOR_LIST_NO_TENSOR) {
        const struct delta_tensor *d = &a->d->tensors[k];

        if (delta_apply(a->merge, a->room, t, d, bytes, part_bytes(a, &d->positions),
                        part_bytes(a, &d->values), e) != 0)
            return -1;
        bytes = a->room;
    }
    if (tensor_prove(a, t, bytes, e) != 0)
        return -1;
    if (out_file_write(a->to, bytes, t->nbytes, a->at, e) != 0)
        return -1;
    a->at += t->nbytes;
    return 0;
}

static int applied_write(struct applying *a, const struct tensor_list *list, struct err *e)
{
    json_t *metadata = json_pack("{s:s, s:s*}", "format", "pt", "baton.weight_version",
                                 a->delta->head.weight_version);
    char *head = NULL;
    size_t nbytes;
    int rc;

    if (safetensors_head_make(&head, &nbytes, list->tensors, list->n_tensors, metadata, e) != 0)
        return -1;
    rc = out_file_write(a->to, head, nbytes, 0, e);
    free(head);
    a->at = nbytes;
    for (size_t k = 0; k < a->base->n && rc == 0; k++) {
        const struct weight_file *f = &a->base->files[k];

        for (uint32_t i = 0; i < f->head.tensor_list->n_tensors && rc == 0; i++)
            rc = tensor_write(a, &f->head.tensor_list->tensors[i], weight_file_bytes(f, i), e);
    }
    return rc;
}

static int base_check(const struct applying *a, struct err *e)
{
    const char *wanted = a->delta->head.delta_base;

    for (size_t k = 0; k < a->base->n && wanted[0] != '\0'; k++) {
        const char *is = a->base->files[k].head.weight_version;

        if (is != NULL && strcmp(is, wanted) != 0)
            return err_set(e, ERR_PRECONDITION, "",
                           "%.300s says that it is version '%.128s', and the delta builds on "
                           "version '%.128s'",
                           a->base->files[k].path, is, wanted);
    }
    return 0;
}

static int room_make(struct applying *a, struct err *e)
{
    uint64_t most = 1;

    for (uint32_t i = 0; i < a->d->result->n_tensors; i++)
        if (a->d->result->tensors[i].nbytes > most)
            most = a->d->result->tensors[i].nbytes;
    a->room = malloc(most);
    return a->room != NULL ? 0 : err_set(e, ERR_NO_MEMORY, "", "no memory for a tensor");
}

int delta_file_apply(struct out_file *to, const struct weight_files *base,
                     const struct weight_file *delta, struct delta_applied *out, struct err *e)
{
    struct applying a = {.base = base, .delta = delta, .to = to};
    struct model_spec *m;
    int rc = -1;

    if (base_check(&a, e) != 0 || spec_of_files(&m, base, e) != 0)
        return -1;
    if (delta_of_parts(&a.d, m, delta->head.tensor_list, e) == 0 &&
        delta_merge_new(&a.merge, e) == 0 && room_make(&a, e) == 0)
        rc = applied_write(&a, m->tensor_list, e);
    if (rc == 0)
        *out = (struct delta_applied){a.d->result->n_tensors, a.n_proven};
    free(a.room);
    delta_merge_free(a.merge);
    delta_free(a.d);
    model_spec_free(m);
    return rc;
}
