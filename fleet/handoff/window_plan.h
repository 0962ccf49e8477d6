/* Which tensors share a window (handoff_windows.h), and where they are in it.
 *
 * Tensors of one group are in one window: those whose names differ in the last two components only,
 * as layers.0.self_attn.q_a_proj.weight and layers.0.self_attn.kv_a_proj_with_mqa.weight. SGLang's
 * loaders of such models need both in one request: what the first leaves for the second is
 * forgotten at its end (cached_a_proj in models/deepseek_common/deepseek_weight_loader.py), and a
 * weight and its scale are converted together. */
#ifndef BATON_FLEET_HANDOFF_WINDOW_PLAN_H
#define BATON_FLEET_HANDOFF_WINDOW_PLAN_H

#include "base/err.h"
#include "transport/ipc/torch_export.h"
#include "weights/tensor_list.h"

#include <stdint.h>

enum { WINDOW_HALVES = 2 }; /* of the memory on the GPU; a window is in each */

/* window_nbytes_choose - the size of a window for these tensors.
 * @wanted  --stage-window; 0: WINDOW_NBYTES_DEFAULT, or as much as the largest group has. More
 *          than all tensors have is not used
 * Errors: ERR_BAD_REQUEST: at --stage-window: less than the largest group has; at --stage: a
 * tensor without a dimension, which vLLM's form of packed tensors cannot express. ERR_NO_MEMORY. */
#define WINDOW_NBYTES_DEFAULT ((uint64_t)1 << 30)
int window_nbytes_choose(uint64_t *out, const struct tensor_list *list, uint64_t wanted,
                         struct err *e);

/* window_n_halves - how many of them there are; one if a window holds the whole version. */
static inline uint32_t window_n_halves(uint64_t window_nbytes, uint64_t version_nbytes)
{
    return window_nbytes < version_nbytes ? WINDOW_HALVES : 1;
}

/* Groups in the order of their first tensors, as many in each window as it holds. In a window,
 * tensors with larger elements come first, so that each is aligned for its elements, and no byte is
 * between two. */
struct window_plan {
    uint32_t n;                  /* windows */
    uint32_t *first;             /* owned; [n + 1]: window k has tensors first[k]..first[k+1]-1 */
    struct torch_place *tensors; /* owned; [n_tensors]; of the list, in the one slab of a window */
};

/* window_plan_init - @nbytes  of a window; not less than the largest group has
 * Errors: ERR_NO_MEMORY. */
int window_plan_init(struct window_plan *out, const struct tensor_list *list, uint64_t nbytes,
                     struct err *e);
void window_plan_fini(struct window_plan *p); /* accepts a zeroed one */

#endif
