/* Which tokens a sequence has seen, and how often it made each: the input of the penalties.
 *
 * Everything is allocated at the start, by what the sequence can ever see, so that the step loop
 * does not allocate; a step walks the distinct tokens, not the history and not the vocabulary. */
#ifndef BATON_ENGINE_SAMPLER_TOKEN_COUNTS_H
#define BATON_ENGINE_SAMPLER_TOKEN_COUNTS_H

#include "base/err.h"

#include <stdint.h>

struct token_count {
    uint32_t id;
    uint32_t n_out; /* times in the output; 0: in the prompt only */
};

struct token_counts {
    struct token_count *tokens; /* owned; [n_max], in the order in which they came */
    uint32_t n, n_max;
    uint32_t *slots; /* owned; [mask + 1]: place in tokens plus one, 0 when free */
    uint32_t mask;
    uint64_t key; /* random: a client cannot choose ids that fall into one slot */
};

/* token_counts_init - @n_max  distinct tokens at most, >= 1. Errors: ERR_NO_MEMORY, *s is then
 * zeroed. */
int token_counts_init(struct token_counts *s, uint32_t n_max, struct err *e);
void token_counts_fini(struct token_counts *s); /* accepts a zeroed one */

/* token_counts_add_prompt, token_counts_add_output - one more token. Asserts that n_max is not
 * passed. */
void token_counts_add_prompt(struct token_counts *s, uint32_t id);
void token_counts_add_output(struct token_counts *s, uint32_t id);

#endif
