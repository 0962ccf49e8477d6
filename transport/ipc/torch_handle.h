/* The base64 pickles in which torch trainers send CUDA IPC handles (SkyRL, vLLM's trainer half).
 * torch_pickle.c reads them and executes nothing; the values are then checked for their form here.
 */
#ifndef BATON_TRANSPORT_IPC_TORCH_HANDLE_H
#define BATON_TRANSPORT_IPC_TORCH_HANDLE_H

#include "base/err.h"
#include "transport/ipc/ipc_handle.h"

#include <stdbool.h>
#include <stddef.h>

/* torch_handles_read - the handles of one `ipc_handles_pickled`.
 * @out    written on success only; ipc_handles_fini
 * @text   [len], base64
 * @field  the member's JSON pointer
 *
 * Forms: a dict of GPU UUID -> export is packed (SkyRL; vLLM's packed form); a list of such dicts
 * has one handle for each tensor (vLLM), and all its dicts name the same GPUs. An export is the 15
 * arguments of torch's rebuild_cuda_tensor, alone or as the second item of a pair whose first is
 * that function.
 *
 * Threads: any. Linear time; memory at most a constant times len.
 * Errors: ERR_BAD_REQUEST at `field`, with the mistake and its place: base64, pickle, form, an
 *         argument's type or value, a handle of the wrong length, an expandable segment (type 'e'),
 *         an unknown version, a tensor that is not contiguous or reaches beyond its storage;
 *         ERR_TOO_LARGE (too many bytes, values or handles); ERR_NO_MEMORY. */
int torch_handles_read(struct ipc_handles *out, const char *text, size_t len, const char *field,
                       struct err *e);

/* torch_handles_check - torch_handles_read that also reports one reason of a refusal.
 * @expandable  always written: was it refused because its memory is an expandable segment? That is
 *              a setting of the trainer's allocator, and not a mistake in the request */
int torch_handles_check(struct ipc_handles *out, const char *text, size_t len, const char *field,
                        bool *expandable, struct err *e);

struct pickle;
struct pickle_value;

/* torch_export_read - read one tensor's arguments from a pickle that has been read.
 * @out, @uuid  written on success only. uuid: the UUID in the device argument, or "" if that is an
 *              index, which has no meaning outside the sender
 * @args        a tuple of the arguments, or a PICKLE_EXPORT
 * @what        names the tensor in a message
 * Errors: ERR_BAD_REQUEST at `field`, as above. */
int torch_export_read(struct ipc_handle *out, char uuid[IPC_UUID_LEN + 1], const struct pickle *p,
                      const struct pickle_value *args, const char *what, const char *field,
                      struct err *e);

#endif
