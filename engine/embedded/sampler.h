/* From the logits of one row to a token and its logprobs.
 *
 * The order is vLLM's: raw logprobs first; then allowed ids, masked ids (bad words, min_tokens),
 * bias, repetition, frequency and presence penalty; greedy ends here; temperature, min_p, top_k,
 * top_p, draw. Bias and penalties are single float operations, so that they have the same bits
 * everywhere.
 * The draw is counter-based: its randomness for a token id is a pure function of (seed, index of
 * the output token, id), so the same seed gives the same tokens whatever else runs. */
#ifndef BATON_ENGINE_EMBEDDED_SAMPLER_H
#define BATON_ENGINE_EMBEDDED_SAMPLER_H

#include "base/err.h"
#include "engine/embedded/seen.h"
#include "engine/engine.h"

#include <stdbool.h>
#include <stdint.h>

#define SAMPLER_LOGPROB_MIN (-9999.0F) /* the least logprob that is ever reported */

/* The logits of one row, measured. */
struct sampler_row {
    const float *logits; /* [n], borrowed */
    uint32_t n;
    double max;
    double scale;   /* 1, or after sampler_row_temper 1 / temperature */
    double log_sum; /* log of the sum of exp((logit - max) * scale): apart, or a large max would
                       swallow it */
};

/* sampler_row_init - measure a row; the sum runs in double.
 * Returns: false, with *out untouched, when a logit is not finite: nothing may be sampled then. */
bool sampler_row_init(struct sampler_row *out, const float *logits, uint32_t n);

/* sampler_row_temper - logprobs are those of logits / temperature from now on. 0 is greedy and
 * counts as 1; small ones count as sampler_pick says. */
void sampler_row_temper(struct sampler_row *row, float temperature);

/* sampler_logprob - log softmax of the row's logits at `id`, at least SAMPLER_LOGPROB_MIN. */
float sampler_logprob(const struct sampler_row *row, uint32_t id);

/* sampler_rank - how many tokens have a logprob >= that of `id`; >= 1, and ties raise it. */
uint32_t sampler_rank(const struct sampler_row *row, uint32_t id);

/* sampler_top - the k best tokens, best first, of equal ones the lowest id first.
 * @out  [k], k <= GEN_LOGPROBS_MAX
 * Returns: how many there are, min(k, n). */
uint32_t sampler_top(const struct sampler_row *row, uint32_t k, struct gen_top *out);

/* Scratch memory of one thread that samples. */
struct sampler;
int sampler_new(struct sampler **out, uint32_t vocab_size, struct err *e); /* ERR_NO_MEMORY */
void sampler_free(struct sampler *s);                                      /* accepts NULL */

/* What a draw depends on besides the logits. */
struct sampler_draw {
    const struct gen_params *params; /* borrowed; temperature, top_p, top_k, min_p, penalties,
                                        steering (without its bad words), seed */
    const struct seen *seen;         /* borrowed; NULL: nothing to penalise */
    uint64_t index;                  /* of the output token: 0, 1, ... */
    const uint32_t *masked;          /* [n_masked] ids that must not come, below row->n */
    uint32_t n_masked;
};

/* sampler_pick - choose the next token.
 * Temperature 0 is greedy (lowest id of equal ones); what is above it and below 0.01 counts as
 * 0.01, as in vLLM.
 * Returns: false, with *id untouched, when every token is masked. No allocation. */
bool sampler_pick(struct sampler *s, const struct sampler_row *row, const struct sampler_draw *d,
                  uint32_t *id);

#endif
