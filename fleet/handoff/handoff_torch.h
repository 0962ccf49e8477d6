/* What the two exports of a version (handoff_export.h, handoff_windows.h) say alike to torch. */
#ifndef BATON_FLEET_HANDOFF_HANDOFF_TORCH_H
#define BATON_FLEET_HANDOFF_HANDOFF_TORCH_H

#include "driver/cuda_info.h"
#include "transport/ipc/ipc_handle.h"
#include "weights/store/store.h"

#include <stdint.h>

/* UUIDs of the host's GPUs, bare: first those of the store, by place, then the others that engines
 * may be on. */
struct handoff_gpus {
    uint32_t n_store, n;
    char uuids[IPC_GPUS_MAX][IPC_UUID_LEN + 1];
};
void handoff_gpus_list(struct handoff_gpus *out, struct store *store, const struct cuda_info *cuda);

/* handoff_ref_name - a new name in torch's form for a counter of references (ref_counter.h), which
 * nothing has. If no object is made under it, torch counts nothing. */
void handoff_ref_name(char out[IPC_REF_NAME_MAX + 1]);

#endif
