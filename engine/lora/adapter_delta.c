#include "engine/lora/adapter_delta.h"

#include "weights/delta/delta.h"
#include "weights/safetensors.h"

#include <stdlib.h>
#include <string.h>

struct adapter_delta {
    struct model_spec *spec; /* owned; the tensors of the base */
    const struct tensor_list *parts;
    struct delta *delta;       /* owned */
    struct delta_merge *merge; /* owned */
    char *bytes;               /* owned; of the parts, packed; NULL until reserved */
};

void adapter_delta_free(struct adapter_delta *d)
{
    if (d == NULL)
        return;
    delta_merge_free(d->merge);
    delta_free(d->delta);
    model_spec_free(d->spec);
    free(d->bytes);
    free(d);
}

int adapter_delta_new(struct adapter_delta **out, struct tensor_list *base,
                      const struct tensor_list *parts, struct err *e)
{
    struct adapter_delta *d = calloc(1, sizeof *d);

    if (d == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the delta of an adapter");
    d->parts = parts;
    if (model_spec_new(&d->spec, tensor_list_ref(base), NULL, 0, e) != 0 ||
        delta_of_parts(&d->delta, d->spec, d->parts, e) != 0 ||
        delta_merge_new(&d->merge, e) != 0) {
        adapter_delta_free(d);
        return -1;
    }
    *out = d;
    return 0;
}

int adapter_delta_reserve(struct adapter_delta *d, struct err *e)
{
    d->bytes = malloc(d->parts->nbytes + 1);
    return d->bytes != NULL ? 0
                            : err_set(e, ERR_NO_MEMORY, "", "no memory for %llu bytes of a delta",
                                      (unsigned long long)d->parts->nbytes);
}

void *adapter_delta_place(const struct adapter_delta *d, uint32_t i)
{
    return d->bytes + d->parts->tensors[i].offset;
}

static struct delta_bytes bytes_of(const struct adapter_delta *d, const struct delta_part *part)
{
    if (part->i == TENSOR_LIST_NO_TENSOR)
        return (struct delta_bytes){NULL, 0};
    return (struct delta_bytes){adapter_delta_place(d, part->i), d->parts->tensors[part->i].nbytes};
}

int adapter_delta_make(struct adapter_delta *d, uint32_t i, const void *base, void *out,
                       struct err *e)
{
    const struct tensor_spec *t = &d->spec->tensor_list->tensors[i];
    uint32_t k = tensor_list_find(d->delta->result, t->name);
    const struct delta_tensor *how;

    if (k == TENSOR_LIST_NO_TENSOR) {
        memcpy(out, base, t->nbytes);
        return 0;
    }
    how = &d->delta->tensors[k];
    if (delta_apply(d->merge, out, t, how, base, bytes_of(d, &how->positions),
                    bytes_of(d, &how->values), e) == 0)
        return 0;
    e->field[0] = '\0'; /* it counts within the tensor's own parts */
    return -1;
}

int adapter_delta_check(const char *file_base, const char *base, bool must_say, const char *field,
                        struct err *e)
{
    if (base == NULL && file_base != NULL)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "its __metadata__ says that it is a delta of '%.64s', and the load is none: "
                       "send \"delta\": true and \"if_digest\"",
                       file_base);
    if (base != NULL && file_base == NULL && must_say)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "it is no delta: its __metadata__ has no \"format\": \"%s\"",
                       SAFETENSORS_DELTA);
    if (base != NULL && file_base != NULL && file_base[0] != '\0' && strcmp(file_base, base) != 0)
        return err_set(e, ERR_PRECONDITION, field,
                       "its __metadata__ says that it is a delta of the revision with digest "
                       "'%.64s', and the one that is loaded has %s",
                       file_base, base);
    return 0;
}
