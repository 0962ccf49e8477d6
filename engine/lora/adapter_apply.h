/* y[row] += B (scale * (A x[row])), for the rows of a step that have an adapter.
 *
 * Canonical dots (kernels.h): t = A x, t = scale * t, then y += B t, each output its own dot and
 * one addition. A row's result depends, to the bit, on nothing but the row and its adapter: not on
 * what else is in the batch, on threads, or on the instruction set. Rows that share an adapter go
 * together, so that A and B are read once for all of them. */
#ifndef BATON_ENGINE_LORA_ADAPTER_APPLY_H
#define BATON_ENGINE_LORA_ADAPTER_APPLY_H

#include "base/err.h"
#include "engine/kernels/compute.h"
#include "engine/kernels/kernels.h"
#include "engine/lora/adapter.h"

#include <stddef.h>
#include <stdint.h>

enum { ADAPTER_OUTPUTS_MAX = 3 };

/* Everything that is needed while a step runs, allocated once. Used by the engine's thread. */
struct adapter_apply;

/* adapter_apply_new - @rank_max  the largest rank of the adapters that will be used
 * Errors: ERR_NO_MEMORY. */
int adapter_apply_new(struct adapter_apply **out, const struct model_config *cfg,
                      uint32_t n_rows_max, uint32_t rank_max, struct err *e);
void adapter_apply_free(struct adapter_apply *s); /* accepts NULL */

/* adapter_apply_rows - which adapter each row of the step has; the adapters are borrowed until the
 * next call. No allocation. @adapters  [n_rows]; NULL: none. Returns the number of adapters. */
uint32_t adapter_apply_rows(struct adapter_apply *s, const struct adapter *const *adapters,
                            uint32_t n_rows);

/* Modules that read the same x: q, k and v; gate and up; each of the others alone. */
struct adapter_linears {
    uint32_t layer;
    const float *x; /* [n_rows][ldx], as the base layer read it */
    size_t ldx;
    struct adapter_output {
        enum adapter_module module;
        float *y; /* [n_rows][ldy], what the base layer made of it, bias included */
        size_t ldy;
    } outputs[ADAPTER_OUTPUTS_MAX];
    uint32_t n;
};

/* adapter_apply - add what the rows' adapters add. After adapter_apply_rows, for each layer and
 * group of modules. No allocation. Returns at once when no row has an adapter.
 * @kernels  those of the model
 * Threads: as compute_run. Blocks: for the computation. Cannot fail. */
void adapter_apply(struct adapter_apply *s, struct compute *c, const struct kernels *kernels,
                   const struct adapter_linears *l);

#endif
