/* A stranger's handles: a refusal explains itself, and what is accepted lies within its storage.
 * The input is base64 as it stands, a pickle that is put into base64 here, or JSON. */
#include "transport/ipc/torch_handle.h"
#include "transport/ipc/torch_pickle.h"

#include <assert.h>
#include <nettle/base64.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_handle(const struct ipc_handle *h)
{
    uint64_t numel, nbytes, wanted = 1;

    assert(tensor_list_measure(h->dtype, h->shape, h->ndim, &numel, &nbytes));
    assert(nbytes == h->nbytes && nbytes <= h->storage_nbytes);
    assert(h->tensor_offset <= h->storage_nbytes - nbytes);
    assert(h->storage_offset <= TENSOR_LIST_NBYTES_MAX - h->storage_nbytes);
    assert(h->has_memory || h->storage_nbytes == 0);
    assert(h->has_memory == (h->type == 'c') && h->version <= 3);
    assert(h->ref_slot < IPC_REF_SLOTS && strlen(h->ref_name) <= IPC_REF_NAME_MAX);
    assert(strchr(h->ref_name[0] != '\0' ? h->ref_name + 1 : "", '/') == NULL);
    for (uint32_t i = h->ndim; i-- > 0 && numel > 0;) {
        assert(h->shape[i] == 1 || h->stride[i] == wanted);
        wanted *= h->shape[i];
    }
}

static void check(int rc, struct ipc_handles *h, const struct err *e)
{
    if (rc != 0) {
        assert(e->code == ERR_BAD_REQUEST || e->code == ERR_TOO_LARGE || e->code == ERR_NO_MEMORY);
        assert(e->msg[0] != '\0' && strlen(e->msg) < ERR_MSG_MAX - 1 && h->all == NULL);
        return;
    }
    assert(e->code == ERR_NONE && h->n_gpus >= 1 && h->n_gpus <= IPC_GPUS_MAX);
    assert(h->n_handles >= 1 && (uint64_t)h->n_handles * h->n_gpus <= IPC_HANDLES_MAX);
    for (uint32_t i = 0; i < h->n_gpus; i++) {
        char uuid[IPC_UUID_LEN + 1];
        assert(ipc_uuid_parse(uuid, h->gpus[i].uuid, strlen(h->gpus[i].uuid)));
        assert(strcmp(uuid, h->gpus[i].uuid) == 0);
        for (uint32_t k = 0; k < i; k++)
            assert(strcmp(uuid, h->gpus[k].uuid) != 0);
        for (uint32_t k = 0; k < h->n_handles; k++)
            check_handle(&h->gpus[i].handles[k]);
    }
    ipc_handles_fini(h);
}

static void read_text(const char *text, size_t len)
{
    struct ipc_handles h = {0};
    struct err e = {0};

    check(torch_handles_read(&h, text, len, "/ipc_handles_pickled", &e), &h, &e);
}

static void read_pickle(const uint8_t *data, size_t len)
{
    size_t n = BASE64_ENCODE_RAW_LENGTH(len);
    char *text = malloc(n + 1); /* exactly, so that a read beyond it is seen */

    if (text == NULL)
        return;
    base64_encode_raw(text, len, data);
    read_text(text, n);
    free(text);
}

static void read_json(const uint8_t *data, size_t len)
{
    json_t *j = json_loadb((const char *)data, len, JSON_REJECT_DUPLICATES, NULL);
    struct ipc_handles h = {0};
    struct err e = {0};

    if (j == NULL)
        return;
    check(ipc_handles_from_json(&h, j, "/ipc_handles", &e), &h, &e);
    json_decref(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len > 0 && data[0] == '{')
        read_json(data, len);
    else if (len > 0 && data[0] == 0x80)
        read_pickle(data, len);
    else
        read_text((const char *)data, len);
    return 0;
}
