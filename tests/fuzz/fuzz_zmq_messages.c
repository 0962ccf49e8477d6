/* A stranger's message over a socket: a refusal explains itself, and where a list's tensors are
 * placed they lie within the buffer. */
#include "tests/fuzz/fuzz.h"
#include "transport/zmq/zmq_messages.h"

enum { BUFFER_NBYTES = 64 << 10 };

static void check_buffer(const struct ipc_handle *h)
{
    CHECK(h->has_memory && h->dtype == DTYPE_U8 && h->ndim == 1 && h->type == 'c');
    CHECK(h->nbytes <= h->storage_nbytes);
    CHECK(h->tensor_offset <= h->storage_nbytes - h->nbytes);
    CHECK(h->storage_offset <= TENSOR_LIST_NBYTES_MAX - h->storage_nbytes);
    CHECK(h->ref_slot < IPC_REF_SLOTS && strlen(h->ref_name) <= IPC_REF_NAME_MAX);
}

static void check_list(const struct zmq_message *m)
{
    struct ipc_handle buffer = {.nbytes = BUFFER_NBYTES, .storage_nbytes = BUFFER_NBYTES};
    static const enum err_code codes[] = {ERR_BAD_REQUEST, ERR_NO_MEMORY, ERR_NONE};
    struct ipc_handle *handles = NULL;
    struct err e = {0};

    CHECK(m->tensor_list != NULL && m->tensor_list->n_tensors > 0);
    if (zmq_message_place(&handles, m, &buffer, &e) != 0) {
        check_refusal(&e, codes, "");
        return;
    }
    for (uint32_t i = 0; i < m->tensor_list->n_tensors; i++) {
        CHECK(handles[i].nbytes == m->tensor_list->tensors[i].nbytes);
        CHECK(handles[i].nbytes <= BUFFER_NBYTES);
        CHECK(handles[i].tensor_offset <= BUFFER_NBYTES - handles[i].nbytes);
    }
    free(handles);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const enum err_code codes[] = {ERR_BAD_REQUEST, ERR_TOO_LARGE, ERR_NO_MEMORY, ERR_NONE};
    struct zmq_message m = {0};
    struct err e = {0};

    if (zmq_message_read(&m, data, len, &e) != 0) {
        check_refusal(&e, codes, "");
        CHECK(m.tensor_list == NULL && m.offsets == NULL);
        return 0;
    }
    CHECK((m.kind == ZMQ_MESSAGE_TENSORS) == (m.tensor_list != NULL));
    if (m.kind == ZMQ_MESSAGE_BUFFER)
        check_buffer(&m.buffer);
    if (m.kind == ZMQ_MESSAGE_TENSORS)
        check_list(&m);
    zmq_message_fini(&m);
    return 0;
}
