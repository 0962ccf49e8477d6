/* Windows: how a version in host memory (--stage host) gets to engines of this host. CUDA IPC
 * exports memory of a GPU only, and so its tensors pass through two halves of one allocation there:
 * while engines read the window in one half, the next is copied into the other.
 *
 * A half is overwritten when every engine has read the window in it. How is that known?
 * - vLLM: by its answer, but not if there is a handle for each tensor. A layer keeps them until its
 *   last tensor has come, some layers until the end of the update
 *   (model_executor/model_loader/reload/layerwise.py). Of packed handles it copies each tensor
 * before it is loaded (packed_ipc_consumer in distributed/weight_transfer/packed_tensor.py), and it
 * waits for the GPU before it answers (v1/worker/gpu_worker.py in 0.24, base.py of the transfer in
 * 0.32). So windows are packed, and an older vLLM is refused.
 * - baton: by its answer; its copies are done then.
 * - SGLang: by the counters of window_readers.h. Its answer says only that each rank has queued its
 *   copies: a barrier of the CPUs precedes it, and nothing waits for the GPU
 *   (managers/scheduler_components/weight_updater.py). A window is one tensor there, a flattened
 *   bucket, whose parts are views of it (weight_sync/tensor_bucket.py). When a rank drops the last
 *   of them, torch waits for the stream of the thread that drops it, then decrements the counter.
 * It is the stream on which that thread loaded them: loaders use other threads for tensors in host
 *   memory only (should_async_load in model_loader/utils.py), except those of dots3 and of
 * LongCat's draft model, which must not be given windows. A loader that keeps a view keeps the
 * counter up: it gets no more windows then, until its process has ended. The stages of a pipeline
 * share an entry, and so a counter, which torch decrements without an atomic operation: SGLang with
 * several is refused. A pickle names a counter in every release, but only since 0.5.6 may a bucket
 * have several dtypes: an older SGLang is refused. */
#ifndef BATON_FLEET_HANDOFF_HANDOFF_WINDOWS_H
#define BATON_FLEET_HANDOFF_HANDOFF_WINDOWS_H

#include "base/err.h"
#include "weights/store/store.h"

#include <stdint.h>

struct handoff_cfg;
struct handoff_request;
struct handoff_windows;

/* handoff_windows_new - take the memory of both halves, on the GPU of the store, which has one rank
 * in host memory. It is kept until the end, also between two hand-offs: an engine may have its
 * handle open for as long. Errors: ERR_NO_STAGING: the GPU has not so much; ERR_CUDA;
 * ERR_NO_MEMORY. */
int handoff_windows_new(struct handoff_windows **out, const struct handoff_cfg *cfg, struct err *e);
void handoff_windows_free(struct handoff_windows *w); /* accepts NULL */

/* handoff_windows_send - send a pinned version to the engines of an update, window by window. The
 * first two windows are on the GPU before any engine is quiesced. An upstream that cannot take
 * windows is out of the update before that; the others go on if they are enough.
 * @r  new, of this update
 * Threads: one at a time; no lock held.
 * Blocks: as fleet_send_tensors, for each window, and for its copy as long at most; then up to
 * READ_US. Errors: those of fleet_send_tensors and fleet_drop_engine; ERR_CONFLICT: too few
 * upstreams can take windows; ERR_CUDA; ERR_TIMEOUT; ERR_NO_MEMORY. */
int handoff_windows_send(struct handoff_windows *w, struct handoff_request *r,
                         const struct version *v, struct err *e);

#endif
