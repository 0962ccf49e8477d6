/* The forward pass. Reads the weights of a pinned version in their own dtype; keeps none of its
 * own, and nothing derived from them. Activations are float32. The result for a row does not
 * depend, to the bit, on what else is in the batch, on threads, or on the instruction set. */
#ifndef BATON_ENGINE_MODEL_MODEL_H
#define BATON_ENGINE_MODEL_MODEL_H

#include "base/err.h"
#include "engine/kernels/compute.h"
#include "engine/lora/adapter.h"
#include "engine/model/kv.h"
#include "weights/model/model_config.h"
#include "weights/store/store.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct model;

/* One token to run: its KV at `pos` is written, and it attends to positions 0..pos. Rows of one
 * sequence are in ascending order of position. */
struct model_row {
    uint32_t token;
    uint32_t pos;
    const struct kv_seq *kv; /* borrowed */
    bool want_logits;
    const struct adapter *adapter; /* borrowed for the step; NULL: the base model alone */
    uint16_t *routes; /* borrowed for the step; NULL, or [n_sparse_layers, n_per_token]: the ids of
                         the experts that computed the row are written there */
};

/* model_new - bind the model spec's tensors, allocate all activations for n_rows_max rows.
 * @model_spec   borrowed for the model's life; made by model_spec_of_config
 * @n_threads  compute threads, the caller's counted; >= 1
 * Errors: ERR_MISMATCH (a tensor that the model needs is not in the model spec), ERR_NO_MEMORY. */
int model_new(struct model **out, const struct model_config *cfg,
              const struct model_spec *model_spec, uint32_t n_rows_max, uint32_t n_threads,
              struct err *e);
void model_free(struct model *m);

/* model_take_adapters - rows may have adapters from now on: allocate what steps need for them.
 * @rank_max  of the adapters that will come
 * Threads: before the first step, once. Errors: ERR_NO_MEMORY. */
int model_take_adapters(struct model *m, uint32_t rank_max, struct err *e);

/* model_pin - tie the compute threads, and `caller`, which will call model_step, each to a
 * processor of its own. Errors: those of compute_pin. */
int model_pin(struct model *m, pthread_t caller, struct err *e);

/* model_compute - its threads, for other work between two steps. Borrowed. */
struct compute *model_compute(struct model *m);

/* model_step - run the rows through version `v`, each with its adapter.
 * @logits  [number of rows that want logits, vocab_size], in the order of those rows
 * Threads: the engine's. Blocks: for the computation. Cannot fail. No allocation. */
void model_step(struct model *m, const struct version *v, const struct model_row *rows,
                uint32_t n_rows, float *logits);

/* model_pulse - when (clock_now_us) a layer of a running step last ended; 0 before the first. A
 * step of a large model may take longer than the timeout of a health probe, but it is progress.
 * Threads: any. */
uint64_t model_pulse(const struct model *m);

#endif
