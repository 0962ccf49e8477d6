/* From the logits of one row to a token.
 *
 * The order is vLLM's: allowed ids, masked ids (bad words, min_tokens), bias, repetition, frequency
 * and presence penalty; greedy ends here; temperature, min_p, top_k, top_p, draw. Bias and
 * penalties are single float operations, so that they have the same bits everywhere.
 * The draw is counter-based: its randomness for a token id is a pure function of (seed, index of
 * the output token, id), so the same seed gives the same tokens whatever else runs. */
#ifndef BATON_ENGINE_SAMPLER_SAMPLER_H
#define BATON_ENGINE_SAMPLER_SAMPLER_H

#include "base/err.h"
#include "engine/gen.h"
#include "engine/sampler/sampler_row.h"
#include "engine/sampler/token_counts.h"

#include <stdbool.h>
#include <stdint.h>

/* Scratch memory of one sampling thread; pages are allocated when a rule first uses them. */
struct sampler;
int sampler_new(struct sampler **out, uint32_t vocab_size, struct err *e); /* ERR_NO_MEMORY */
void sampler_free(struct sampler *s);                                      /* accepts NULL */

/* What a draw depends on besides the logits. */
struct sampler_draw {
    const struct gen_params *params;   /* borrowed; temperature, top_p, top_k, min_p, penalties,
                                          logits_processor (without its bad words), seed */
    const struct token_counts *counts; /* borrowed; NULL: nothing to penalise */
    uint64_t index;                    /* of the output token: 0, 1, ... */
    const uint32_t *masked;            /* [n_masked] ids that must not come, below row->n */
    uint32_t n_masked;
};

/* sampler_pick - choose the next token.
 * @row  joined
 * Temperature 0 is greedy (lowest id of equal ones); one above 0 and below 0.01 counts as 0.01,
 * as in vLLM.
 * Returns: false, with *id untouched, when every token is masked. No allocation. */
bool sampler_pick(struct sampler *s, const struct sampler_row *row, const struct sampler_draw *d,
                  uint32_t *id);

/* sampler_process - what sampler_pick draws from, as a row with logprobs: after the rules on single
 * tokens, at the draw's temperature, without the tokens that min_p, top_k and top_p leave out,
 * which have the least logprob.
 * @row  joined, with logprobs at that temperature
 * Returns: row itself where nothing else applies, else out, which lasts until the next call with s.
 * No allocation. */
const struct sampler_row *sampler_process(struct sampler *s, struct sampler_row *out,
                                          const struct sampler_row *row,
                                          const struct sampler_draw *d);

/* sampler_is_open - does every token take part, with its own logit? Then threads can share the
 * draw: after sampler_race of all parts, sampler_winner is what sampler_pick would choose. */
bool sampler_is_open(const struct sampler_draw *d);

/* sampler_race - parts [first, last) of a joined row. Any thread; no two the same part. */
void sampler_race(const struct sampler_row *row, const struct sampler_draw *d, uint32_t first,
                  uint32_t last);
uint32_t sampler_winner(const struct sampler_row *row);

#endif
