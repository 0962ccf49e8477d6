/* The logits of one row, measured in parts, so that several threads can share a vocabulary: the
 * result of a part depends on its logits alone, and the parts are joined in order. A row then has
 * the largest logit of each block, so that most searches can skip the blocks that cannot matter. */
#ifndef BATON_ENGINE_SAMPLER_SAMPLER_ROW_H
#define BATON_ENGINE_SAMPLER_SAMPLER_ROW_H

#include "engine/gen.h"
#include "engine/kernels/kernels.h"

#include <stdbool.h>
#include <stdint.h>

#define SAMPLER_LOGPROB_MIN (-9999.0F) /* the least logprob that is ever reported */

enum { SAMPLER_PART = 16 * KERNELS_BLOCK }; /* logits; a vocabulary's last part may be shorter */

struct sampler_part {
    double sum; /* of exp((logit - max) * scale); with logprobs only */
    float max;
    bool finite;
    float maxima[SAMPLER_PART / KERNELS_BLOCK];
    struct race race; /* of the tokens in this part; set by sampler_race */
};

struct sampler_row {
    const float *logits; /* [n], borrowed */
    uint32_t n;
    bool with_logprobs;
    const struct kernels *kernels; /* static */
    struct sampler_part *parts;    /* [sampler_n_parts(n)], borrowed */
    double scale;                  /* logprobs are those of logits * scale */

    double max;     /* of sampler_row_join, as log_sum */
    double log_sum; /* log of the sum of exp((logit - max) * scale): apart, or a large max would
                       swallow it */
};

/* sampler_n_parts - of a vocabulary of n tokens. */
uint32_t sampler_n_parts(uint32_t n);

/* sampler_row_init - before it is measured; without logprobs.
 * @parts  [sampler_n_parts(n)], the row's to write */
void sampler_row_init(struct sampler_row *out, const struct kernels *k, const float *logits,
                      uint32_t n, struct sampler_part *parts);

/* sampler_row_want_logprobs - of logits / temperature. Before it is measured. 0 is greedy and
 * counts as 1; small ones count as in sampler_pick. */
void sampler_row_want_logprobs(struct sampler_row *row, float temperature);

/* sampler_row_measure - parts [first, last). Any thread; no two the same part. */
void sampler_row_measure(struct sampler_row *row, uint32_t first, uint32_t last);

/* sampler_row_join - when all parts are measured.
 * Returns: false when a logit is not finite: nothing may be sampled then. */
bool sampler_row_join(struct sampler_row *row);

/* sampler_logprob - log softmax of the row's logits at `id`, at least SAMPLER_LOGPROB_MIN. This and
 * all below: of a row that was joined; logprobs and ranks, of one with logprobs. */
float sampler_logprob(const struct sampler_row *row, uint32_t id);

/* sampler_rank - how many tokens have a logprob >= that of `id`; >= 1, and ties raise it. */
uint32_t sampler_rank(const struct sampler_row *row, uint32_t id);

/* sampler_top - the k best tokens, best first, of equal ones the lowest id first.
 * @out  [k]
 * Returns: how many there are, min(k, n). */
uint32_t sampler_top(const struct sampler_row *row, uint32_t k, struct gen_top *out);

/* sampler_best - the lowest id of those with the largest logit. */
uint32_t sampler_best(const struct sampler_row *row);

/* sampler_n_blocks, sampler_block_max - of blocks of KERNELS_BLOCK logits. */
uint32_t sampler_n_blocks(const struct sampler_row *row);
float sampler_block_max(const struct sampler_row *row, uint32_t block);

/* sampler_scale - what a draw at a temperature multiplies logits by. */
double sampler_scale(float temperature);

#endif
