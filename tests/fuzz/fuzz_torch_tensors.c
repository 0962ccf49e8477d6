/* A stranger's named tensors: a refusal explains itself, and what is accepted lies within its
 * storage. The input is base64 as it stands, or a pickle that is put into base64 here. */
#include "transport/ipc/torch_pickle.h"
#include "transport/ipc/torch_tensors.h"

#include <assert.h>
#include <nettle/base64.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_handle(const struct ipc_handle *h)
{
    assert(h->nbytes <= h->storage_nbytes);
    assert(h->tensor_offset <= h->storage_nbytes - h->nbytes);
    assert(h->storage_offset <= TENSOR_LIST_NBYTES_MAX - h->storage_nbytes);
    assert(h->has_memory || h->storage_nbytes == 0);
    assert(h->has_memory == (h->type == 'c') && h->version <= 3);
    assert(h->ref_slot < IPC_REF_SLOTS && strlen(h->ref_name) <= IPC_REF_NAME_MAX);
    assert(strchr(h->ref_name[0] != '\0' ? h->ref_name + 1 : "", '/') == NULL);
}

static void check_tensors(const struct torch_tensors *t)
{
    const struct ipc_handles *h = &t->handles;
    char uuid[IPC_UUID_LEN + 1];

    if (t->tensor_list == NULL) {
        assert(h->all == NULL);
        return;
    }
    assert(t->uuid[0] == '\0' || ipc_uuid_parse(uuid, t->uuid, strlen(t->uuid)));
    assert(h->n_gpus == 1 && h->gpus[0].handles == h->all);
    assert(h->n_handles == (h->packed ? 1 : t->tensor_list->n_tensors));
    assert(!h->packed || t->tensor_list->nbytes <= h->all[0].nbytes);
    for (uint32_t i = 0; i < h->n_handles; i++) {
        assert(h->packed || h->all[i].nbytes == t->tensor_list->tensors[i].nbytes);
        check_handle(&h->all[i]);
    }
}

static void read_text(const char *text, size_t len, uint32_t rank)
{
    struct torch_tensors t = {0};
    struct err e = {0};

    if (torch_tensors_read(&t, text, len, rank, "/serialized_named_tensors/0", &e) != 0) {
        assert(e.code == ERR_BAD_REQUEST || e.code == ERR_TOO_LARGE || e.code == ERR_NO_MEMORY);
        assert(e.msg[0] != '\0' && strlen(e.msg) < ERR_MSG_MAX && t.tensor_list == NULL);
        return;
    }
    assert(e.code == ERR_NONE);
    check_tensors(&t);
    torch_tensors_fini(&t);
}

static void read_pickle(const uint8_t *data, size_t len)
{
    size_t n = BASE64_ENCODE_RAW_LENGTH(len);
    char *text = malloc(n + 1); /* exactly, so that a read beyond it is seen */

    if (text == NULL)
        return;
    base64_encode_raw(text, len, data);
    read_text(text, n, 0);
    read_text(text, n, 1);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len > 0 && data[0] == 0x80)
        read_pickle(data, len);
    else
        read_text((const char *)data, len, 0);
    return 0;
}
