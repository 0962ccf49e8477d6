/* Tables of objects within requests: ranges, handles, sampling parameters. Those of whole bodies
 * are declared beside their handlers, in handlers/control_plane.h and handlers/data_plane.h. */
#ifndef BATON_HANDLERS_ROWS_ROWS_H
#define BATON_HANDLERS_ROWS_ROWS_H

#include "handlers/rows/member.h"

extern const struct member no_members[];      /* none */
extern const struct member shm_rows[];        /* a range of shared memory */
extern const struct member ipc_handle_rows[]; /* a CUDA IPC handle of one GPU */
extern const struct member per_gpu_rows[];    /* the tensors of one GPU's bucket */
extern const struct member tensor_list_rows[], memory_rows[], handles_rows[];
extern const struct member broadcast_rows[], packing_rows[];
extern const struct member selector_rows[];
extern const struct member update_end_rows[]; /* a finish of a session that requests do not name */
extern const struct member bucket_rows[];     /* one bucket of several */
extern const struct member sampling_rows[];   /* as in vLLM: of /v1/generate, completions, chats */
extern const struct member sglang_sampling_rows[];
extern const struct member stream_options_rows[];
extern const struct member chat_rows[];  /* what a chat template is given */
extern const struct member batch_rows[]; /* how a batch is laid out */
extern const struct member replay_layout_rows[];
extern const struct member step_rows[]; /* the place of one sample in its trajectory */

#endif
