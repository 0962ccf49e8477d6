/* The embedded engine: continuous batching over the store's weights, on the CPU. */
#ifndef BATON_ENGINE_SCHEDULER_EMBEDDED_H
#define BATON_ENGINE_SCHEDULER_EMBEDDED_H

#include "engine/gen.h"
#include "weights/model/model_config.h"

struct tokenizer;

struct embedded_cfg {
    const char *model_path;            /* borrowed; for engine_info */
    const struct model_config *model;  /* borrowed, copied */
    struct store *store;               /* borrowed */
    const struct tokenizer *tokenizer; /* borrowed; NULL: stop strings are refused */
    uint32_t n_threads;                /* compute threads; 0: one for each processor */
    bool pin_threads;                  /* each to a processor of its own */
    uint32_t n_running_max;            /* sequences in one batch */
    uint32_t n_step_tokens_max;        /* rows of one step: decode first, the rest prefill */
    uint32_t max_model_len;            /* 0: the model's own */
    uint64_t kv_nbytes_max;
    bool no_prefix_cache;      /* each sequence computes all of its KV */
    uint32_t adapter_rank_max; /* of the adapters that requests will bring; 0: none will */
};

/* embedded_new - start the engine thread and its compute pool.
 * Errors: ERR_NO_MEMORY, ERR_MISMATCH, ERR_INTERNAL (no thread), ERR_BAD_REQUEST (more threads than
 * processors to pin them to, or than COMPUTE_THREADS_MAX). */
int embedded_new(struct engine **out, const struct embedded_cfg *cfg, struct err *e);

#endif
