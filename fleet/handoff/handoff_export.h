/* A version of the store as requests that let engines of this host map it: CUDA IPC handles of its
 * slabs, in the form of each kind of engine. */
#ifndef BATON_FLEET_HANDOFF_HANDOFF_EXPORT_H
#define BATON_FLEET_HANDOFF_HANDOFF_EXPORT_H

#include "base/err.h"
#include "driver/cuda_info.h"
#include "weights/store/store.h"

#include <stdint.h>

struct handoff_export;

/* handoff_export_new - export the slabs of a version.
 * @store    with at least one GPU
 * @version  pinned by the caller for as long as engines may map it
 * @cuda     GPUs of this host that engines may be on; those that the store does not use map a
 * peer's memory Threads: any. Errors: ERR_CUDA; ERR_NO_MEMORY. */
int handoff_export_new(struct handoff_export **out, struct store *store,
                       const struct version *version, const struct cuda_info *cuda, struct err *e);
void handoff_export_free(struct handoff_export *x); /* accepts NULL */

/* handoff_export_handles - the handles of an update for vLLM and baton.
 * handoff_export_named - the tensors of an update for SGLang: the string of each of its ranks.
 * New text. Threads: any. Errors: ERR_NO_MEMORY; NULL then. */
char *handoff_export_handles(const struct handoff_export *x, struct err *e);
char *handoff_export_named(const struct handoff_export *x, struct err *e);

/* handoff_export_list - the tensors, in the order of the handles; borrowed. */
struct tensor_list *handoff_export_list(const struct handoff_export *x);

#endif
