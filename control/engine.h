/* The engine, as the rest of the server knows it: how it is steered, what it reports, and the words
 * of requests that are words of the configuration too. The embedded engine implements it;
 * engine/gen.h says what it is asked for, and what it yields. */
#ifndef BATON_CONTROL_ENGINE_H
#define BATON_CONTROL_ENGINE_H

#include "base/clock.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct gen_request;

/* The distribution that logprobs of output tokens come from; those of a prompt are always raw. */
enum gen_logprobs_mode {
    GEN_LOGPROBS_RAW,       /* log softmax of the model's logits, before any sampling rule */
    GEN_LOGPROBS_TEMPERED,  /* of logits / temperature, as SGLang */
    GEN_LOGPROBS_PROCESSED, /* of what the token is drawn from: after masks, bias, penalties,
                               temperature, min_p, top_k and top_p, as vLLM; greedy ends after the
                               penalties */
    GEN_LOGPROBS_N_MODES
};

/* gen_logprobs_mode_name - "raw_logprobs", "tempered_logprobs", "processed_logprobs". */
const char *gen_logprobs_mode_name(enum gen_logprobs_mode mode);

enum gen_finish { GEN_RUNNING, GEN_STOP, GEN_LENGTH, GEN_ABORT, GEN_ERROR };
const char *gen_finish_name(enum gen_finish f); /* "stop", "length", "abort", "error" */

/* What happens to a sequence when a version is committed between two of its tokens. */
#define GEN_ON_UPDATE(X)                                                                           \
    X(GEN_ON_UPDATE_CONTINUE, "continue")   /* the next token reads the new weights; KV stays */   \
    X(GEN_ON_UPDATE_FINISH, "finish")       /* it ends on the version it began with */             \
    X(GEN_ON_UPDATE_RECOMPUTE, "recompute") /* KV is made again with the new weights first */
enum gen_on_update {
#define X(constant, name) constant,
    GEN_ON_UPDATE(X)
#undef X
};
const char *gen_on_update_name(enum gen_on_update mode);

/* gen_on_update_parse - Errors: ERR_BAD_REQUEST at `field`; *out is then untouched. */
int gen_on_update_parse(enum gen_on_update *out, const char *text, const char *field,
                        struct err *e);

struct engine_stats {
    uint64_t heartbeat_us; /* when the step loop last turned or a layer ended (monotonic);
                                   an idle loop turns too */
    uint32_t n_running, n_waiting;
    uint64_t n_prompt_tokens, n_generated_tokens, n_steps;
    uint64_t n_recomputed_tokens;       /* tokens whose KV was made again, for `recompute` */
    uint64_t n_finished[GEN_ERROR + 1]; /* by enum gen_finish */
    uint64_t n_prefix_queried_tokens;   /* of prompts that were looked up in the KV cache */
    uint64_t n_prefix_found_tokens;     /* of them, whose KV was there: not in n_prompt_tokens */
    uint64_t kv_tokens_used, kv_tokens_max;
    uint64_t kv_tokens_kept; /* not used: of ended generations, kept until the room is needed */
    uint64_t failing_serial; /* of the latest weights that alone made logits which are not finite;
                                0: there are none */
    bool frozen, kv_released;
    uint64_t step_us_max; /* longest step since start */
};

struct engine_info {
    const char *model_path; /* borrowed */
    uint32_t vocab_size, max_model_len;
    /* Experts of a sparse layer, sparse layers, experts of a token; 0: the model has no experts. */
    uint32_t n_experts, n_route_layers, n_routes_per_token;
    uint32_t n_layers;            /* dense ones too */
    const uint16_t *route_layers; /* borrowed from the engine; [n_route_layers], ascending: which of
                                     the n_layers, from 0, are sparse */
};

struct engine;

struct engine_ops {
    const char *name;

    /* Checks, moves the request in on success, and returns its id (never 0) for cancel.
     * Errors: ERR_BAD_REQUEST at /token_ids/<i> (not in the vocabulary), /token_ids (longer than
     *         the context), /return_routed_experts (routes, and the model has no experts),
     *         /sampling_params/... ; ERR_TOO_LARGE (its KV can never fit);
     *         ERR_UNSYNCED (nothing to generate with); ERR_ASLEEP (no weights or no KV cache, and
     *         not frozen); ERR_DRAINING; ERR_NO_MEMORY. Threads: any; takes MTX_STORE, then
     *         MTX_ENGINE, not together; the sink may run before this returns, but not before *id is
     *         written. Blocks: no. */
    int (*submit)(struct engine *en, struct gen_request *r, uint64_t *id, struct err *e);

    /* Ends it within one step and 100 ms with GEN_ABORT. An unknown or ended id is harmless. */
    void (*cancel)(struct engine *en, uint64_t id);

    /* Any thread, never waits on a step. Errors: of mtx_lock_by, which takes the engine's lock by
     * the deadline; none with CLOCK_NEVER (engine_stats_get). */
    int (*stats)(struct engine *en, uint64_t deadline_us, struct engine_stats *out, struct err *e);
    void (*info)(struct engine *en, struct engine_info *out);

    /* Stop between two tokens: no token is made until thaw, and running sequences stay as they are.
     * Cancel and submit still work. Repeating is harmless. Blocks: until the step in progress has
     * ended. Errors: ERR_TIMEOUT (not before the deadline; it is not frozen then). */
    int (*freeze)(struct engine *en, uint64_t deadline_us, struct err *e);
    void (*thaw)(struct engine *en); /* repeating is harmless */

    /* Give the memory of the KV cache back to the system, or take it again. Between the two calls
     * nothing is computed. Running generations compute their KV again afterwards, and then continue
     * as if it had stayed.
     * @nbytes  written on success: resident bytes that went back; 0 when repeated
     * Threads: one at a time. Blocks, errors: as freeze. */
    int (*kv_release)(struct engine *en, uint64_t deadline_us, uint64_t *nbytes, struct err *e);
    int (*kv_restore)(struct engine *en, uint64_t deadline_us, struct err *e);

    /* What is submitted from now on, and what waits, reads no KV that was computed before.
     * @running  every running sequence also computes its KV again before its next token, with the
     *           weights that this token reads; a step in progress ends first
     * Returns: about how many tokens of ended generations are dropped. Threads: any, one leaf lock.
     * Blocks: no. */
    uint64_t (*kv_forget)(struct engine *en, bool running);

    /* Refuse new work; running generations go on. */
    void (*drain)(struct engine *en);

    /* Aborts what runs (done is called) and joins the threads; submit refuses from now on, the
     * other calls stay allowed. Repeating is harmless. Threads: the owner's. */
    void (*stop)(struct engine *en);

    void (*free)(struct engine *en); /* stops first; accepts NULL */
};

/* First member of every engine. */
struct engine {
    const struct engine_ops *ops;
};

static inline void engine_stats_get(struct engine *en, struct engine_stats *out)
{
    (void)en->ops->stats(en, CLOCK_NEVER, out, NULL);
}

#endif
