/* The sampling members of a generate or completions request, parsed for the engine.
 *
 * Each member that vLLM or SGLang knows is in one of three groups: honoured; accepted because it
 * cannot change the output here; or refused unless its value is neutral. A member that would change
 * the output is never ignored. */
#ifndef BATON_HANDLERS_GENERATE_GENERATE_PARAMS_H
#define BATON_HANDLERS_GENERATE_GENERATE_PARAMS_H

#include "base/err.h"
#include "handlers/rows/generate_request.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* generate_params_init - set the defaults of gen_params_init, n = 1, special tokens skipped. */
void generate_params_init(struct generate_params *p);
void generate_params_fini(struct generate_params *p); /* accepts a zeroed one */

/* generate_params_parse - read the sampling members of `object`, vLLM's (sampling_rows).
 * @p           initialised; the caller calls generate_params_fini also after an error
 * @at          JSON pointer of `object`: "" or "/sampling_params"
 * @vocab_size  ids must be below it
 * @t           tokenizes bad words; NULL: they are refused
 * Errors: ERR_BAD_REQUEST at "<at>/<member>": wrong type, out of range, or a value that would
 *         change the output and is not supported; ERR_NO_MEMORY. */
int generate_params_parse(struct generate_params *p, const json_t *object, const char *at,
                          uint32_t vocab_size, const struct tokenizer *t, struct err *e);

/* generate_params_lists - the rest of generate_params_parse, for any rows: members stop,
 * stop_token_ids, allowed_token_ids, logit_bias and bad_words, and the ranges of all. */
int generate_params_lists(struct generate_params *p, const json_t *object, const char *at,
                          uint32_t vocab_size, const struct tokenizer *t, struct err *e);

/* generate_params_for - make the parameters of one sequence: its own stop strings and seed, a
 * reference to the logits_processor.
 * @choice   0..n-1; added to a given seed, so that choices differ and can be repeated: choice i is
 *           what a request with seed + i generates
 * @context  tokens that the context leaves after the prompt; max_tokens is reduced to it
 * Errors: ERR_NO_MEMORY; *out is then untouched. */
int generate_params_for(struct gen_params *out, const struct generate_params *p, uint32_t choice,
                        uint32_t context, struct err *e);

/* generate_parse_ids - parse an array of token ids.
 * @out, @n     on success a malloc'ed array of *n ids (NULL if 0), which the caller owns
 * @at          JSON pointer of the array
 * @vocab_size  ids must be below it
 * @n_max       longest array accepted; checked before anything is allocated
 * Errors: ERR_BAD_REQUEST at "<at>/<i>" or `at`; ERR_NO_MEMORY. */
int generate_parse_ids(uint32_t **out, uint32_t *n, const json_t *array, const char *at,
                       uint32_t vocab_size, uint32_t n_max, struct err *e);

#endif
