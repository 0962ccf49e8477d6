/* The messages of checkpoint-engine's ParameterServer over its socket (0.4.2: ps.py
 * _update_per_bucket, worker.py update_weights_from_ipc): pickles, read by torch_pickle.c, which
 * executes nothing.
 *
 * In their order: a pair (rebuild_cuda_tensor, 15 arguments), the trainer's buffer of uint8;
 * lists of dicts {name, shape, dtype, offset}, each the tensors that are in the buffer now, with
 * offsets in bytes, with gaps or (for files that it pins in place) without; None: unmap the
 * buffer; None: commit. A RuntimeError instead of any of them means that another rank of the
 * trainer has failed and that the update must be aborted. */
#ifndef BATON_TRANSPORT_ZMQ_ZMQ_MESSAGES_H
#define BATON_TRANSPORT_ZMQ_ZMQ_MESSAGES_H

#include "base/err.h"
#include "transport/ipc/ipc_handle.h"
#include "weights/tensor_list.h"

#include <stddef.h>
#include <stdint.h>

enum zmq_message_kind {
    ZMQ_MESSAGE_BUFFER,
    ZMQ_MESSAGE_TENSORS,
    ZMQ_MESSAGE_NONE,
    ZMQ_MESSAGE_ERROR
};

struct zmq_message {
    enum zmq_message_kind kind;
    struct ipc_handle buffer; /* BUFFER: one dimension of U8 */
    char uuid[IPC_UUID_LEN +
              1]; /* BUFFER: the UUID in its device argument; "": it is an index of the sender */
    struct tensor_list *tensor_list; /* TENSORS: owned, one reference */
    uint64_t *offsets;               /* TENSORS: owned, [n_tensors] bytes, none checked yet */
};

/* zmq_message_read - read one message.
 * @out   written on success only; zmq_message_fini
 * @data  [nbytes], borrowed
 *
 * Threads: any. Linear time; memory at most a constant times nbytes.
 * Errors: ERR_BAD_REQUEST, ERR_TOO_LARGE, ERR_NO_MEMORY, without a field, with the mistake and
 *         its tensor, as torch_export_read and tensor_list_builder_add. */
int zmq_message_read(struct zmq_message *out, const void *data, size_t nbytes, struct err *e);
void zmq_message_fini(struct zmq_message *m); /* accepts a zeroed one */

/* zmq_message_place - make a handle for each tensor of a list, with its place in the buffer.
 * @out     [n_tensors], malloc'ed, the caller's; written on success only
 * @m       TENSORS
 * @buffer  of the BUFFER message before it
 *
 * Threads: any. Pure.
 * Errors: ERR_BAD_REQUEST, without a field: a tensor reaches beyond the buffer, or overlaps
 *         another one; ERR_NO_MEMORY. */
int zmq_message_place(struct ipc_handle **out, const struct zmq_message *m,
                      const struct ipc_handle *buffer, struct err *e);

#endif
