/* The end of a step: tokens and logprobs from its logits, computed by all threads together. Which
 * thread does which part is left to chance, and no token or logprob depends on it. */
#ifndef BATON_ENGINE_SAMPLER_TOKEN_SELECTOR_H
#define BATON_ENGINE_SAMPLER_TOKEN_SELECTOR_H

#include "base/err.h"
#include "engine/gen.h"
#include "engine/kernels/compute.h"
#include "engine/sampler/sampler.h"

#include <stdbool.h>
#include <stdint.h>

/* One row: the token, or the rules by which to choose it. */
struct choice {
    const float *logits; /* [vocab_size], borrowed */
    bool given;          /* the token is `id`, and only its logprob is computed */
    uint32_t id;
    struct sampler_draw draw;             /* else */
    int32_t logprobs;                     /* -1: none; the k best of the row as well */
    enum gen_logprobs_mode logprobs_mode; /* raw where the token is given */
    struct gen_top *top;                  /* [k], or NULL; borrowed */

    bool finite; /* the result: else nothing below is set */
    bool chosen; /* else every token was masked */
    struct gen_token token;
};

struct token_selector;

/* token_selector_new - for rows of vocab_size logits, n_max at a time, on the threads of c
 * (borrowed). Allocates all that is needed. Errors: ERR_NO_MEMORY. */
int token_selector_new(struct token_selector **out, struct compute *c, uint32_t vocab_size,
                       uint32_t n_max, struct err *e);
void token_selector_free(struct token_selector *ch); /* accepts NULL */

/* token_selector_run - fill in the results of choices [n], n <= n_max. Threads: those that
 * may call compute_run. Blocks: for the computation. No allocation. */
void token_selector_run(struct token_selector *ch, struct choice *choices, uint32_t n);

#endif
