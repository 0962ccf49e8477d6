/* The head of a safetensors file from a stranger: a refusal explains itself, and what is accepted
 * keeps every promise that readers of the tensor list rely on. */
#include "weights/safetensors.h"

#include "memory/checksum.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_refusal(const struct err *e)
{
    assert(e->code == ERR_BAD_REQUEST || e->code == ERR_TOO_LARGE || e->code == ERR_NO_MEMORY);
    assert(e->msg[0] != '\0');
    assert(strlen(e->msg) < ERR_MSG_MAX);
}

static void check_accepted(const struct safetensors *s, uint64_t nbytes_head, uint64_t nbytes_total)
{
    uint64_t at = 0;

    assert(s->nbytes_head == nbytes_head);
    assert(s->nbytes_total == s->nbytes_head + s->tensor_list->nbytes);
    assert(nbytes_total == UINT64_MAX || s->nbytes_total == nbytes_total);
    assert(s->tensor_list->n_tensors >= 1 && s->tensor_list->n_tensors <= TENSOR_LIST_TENSORS_MAX);
    for (uint32_t i = 0; i < s->tensor_list->n_tensors; i++) {
        const struct tensor_spec *t = &s->tensor_list->tensors[i];
        uint64_t numel = 1;
        assert(t->ndim <= TENSOR_LIST_NDIM_MAX && strlen(t->name) <= TENSOR_LIST_NAME_LEN_MAX);
        for (uint32_t k = 0; k < t->ndim && numel != 0; k++)
            numel = t->shape[k] == 0 ? 0 : numel * t->shape[k];
        for (uint32_t k = 0; k < t->ndim; k++)
            if (t->shape[k] == 0)
                numel = 0;
        assert(t->numel == numel && t->nbytes == numel * dtype_nbytes(t->dtype));
        assert(t->offset == at);
        assert(tensor_list_find(s->tensor_list, t->name) == i);
        at += t->nbytes;
    }
    assert(at == s->tensor_list->nbytes);
}

static void parse(const uint8_t *head, uint64_t nbytes_head, uint64_t nbytes_total)
{
    struct safetensors s = {0};
    struct err e = {0};

    if (safetensors_parse(&s, head, nbytes_head, nbytes_total, &e) != 0) {
        check_refusal(&e);
        assert(s.tensor_list == NULL);
        return;
    }
    assert(e.code == ERR_NONE);
    check_accepted(&s, nbytes_head, nbytes_total);
    safetensors_fini(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct err e = {0};
    uint64_t nbytes_head;
    uint8_t *head;

    if (safetensors_head_nbytes(data, len, &nbytes_head, &e) != 0) {
        check_refusal(&e);
        return 0;
    }
    assert(nbytes_head <= SAFETENSORS_PREFIX + (uint64_t)SAFETENSORS_HEADER_MAX);
    if (nbytes_head == 0 || nbytes_head > len)
        return 0;
    head = malloc(nbytes_head); /* exactly, so that a read beyond it is seen */
    if (head == NULL)
        return 0;
    memcpy(head, data, nbytes_head);
    parse(head, nbytes_head, len);
    parse(head, nbytes_head, UINT64_MAX);
    free(head);
    return 0;
}
