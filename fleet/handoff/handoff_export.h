/* A version of the store as text that lets engines of this host map it: CUDA IPC handles of its
 * slabs, in the form of each kind of engine; and what windows (handoff_windows.h) say alike. */
#ifndef BATON_FLEET_HANDOFF_HANDOFF_EXPORT_H
#define BATON_FLEET_HANDOFF_HANDOFF_EXPORT_H

#include "base/err.h"
#include "driver/cuda_info.h"
#include "transport/ipc/ipc_handle.h"
#include "weights/store/store.h"

#include <stdbool.h>
#include <stdint.h>

struct handoff_export {
    struct store *store;          /* with at least one GPU */
    const struct version *v;      /* pinned by the caller for as long as engines may map it */
    const struct cuda_info *cuda; /* GPUs of this host that engines may be on; those that the store
                                     does not use map a peer's memory */
    bool for_sglang;

    struct tensor_list *list; /* borrowed from the store; in the order of `handles` */
    char *handles;            /* owned; for vLLM and baton */
    char *named;              /* owned; for each rank of an SGLang; NULL unless `for_sglang` */
    struct err *e;            /* borrowed */
    int rc;
};

/* handoff_export_make - export the slabs of a version, for workers_call.
 * @export  struct handoff_export, zero but for the first four and `e`
 * Threads: any. Blocks: on the driver. Errors: ERR_CUDA; ERR_NO_MEMORY. */
void handoff_export_make(void *export);
void handoff_export_fini(struct handoff_export *x);

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
