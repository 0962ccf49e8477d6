/* Request members about single tokens: logit_bias, allowed_token_ids, bad_words. */
#ifndef BATON_HANDLERS_GENERATE_LOGITS_PROCESSOR_PARSE_H
#define BATON_HANDLERS_GENERATE_LOGITS_PROCESSOR_PARSE_H

#include "base/err.h"
#include "engine/logits_processor.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <stdint.h>

enum {
    GENERATE_BAD_WORDS_MAX = LOGITS_PROCESSOR_BAD_WORDS_MAX /
                             2,     /* each is one or two token sequences */
    GENERATE_BAD_WORD_LEN_MAX = 256 /* bytes */
};

/* logits_processor_parse - read them from `object`.
 * @out         one reference, which the caller owns; NULL if none of the members is given
 * @at          JSON pointer of `object`: "" or "/sampling_params"
 * @vocab_size  ids must be below it
 * @t           tokenizes bad words, without and with a space before them, as vLLM does; NULL: bad
 *              words are refused
 * Errors: ERR_BAD_REQUEST at "<at>/<member>" or below it; ERR_NO_MEMORY. *out is then untouched. */
int logits_processor_parse(struct logits_processor **out, const json_t *object, const char *at,
                           uint32_t vocab_size, const struct tokenizer *t, struct err *e);

#endif
