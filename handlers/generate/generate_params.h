/* The sampling members of a generate or completions request, parsed for the engine.
 *
 * Each member that vLLM or SGLang knows is in one of three groups: honoured; accepted because it
 * cannot change the output here; or refused unless its value is neutral. A member that would change
 * the output is never ignored. */
#ifndef BATON_HANDLERS_GENERATE_GENERATE_PARAMS_H
#define BATON_HANDLERS_GENERATE_GENERATE_PARAMS_H

#include "base/err.h"
#include "engine/gen.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GENERATE_N_MAX = 128 }; /* sequences for one prompt */

/* Which value of an unsupported member changes nothing. */
enum neutral {
    NEUTRAL_NULL,         /* null only */
    NEUTRAL_EMPTY,        /* null, {}, [] or "" */
    NEUTRAL_FALSE,        /* null or false */
    NEUTRAL_NUMBER,       /* null or this number */
    NEUTRAL_TEXT,         /* null or {"type": "text"} */
    NEUTRAL_LOGPROBS_FORM /* null, {}, or {"prl_compact_logprobs": BOOLEAN}: prime-rl requests
                         compact logprobs, and its client also accepts the normal form */
};
struct neutral_rule {
    const char *member;
    enum neutral kind;
    double number;
};

/* Sampling members that are refused unless neutral: member, kind, number. */
#define GENERATE_SAMPLING_NEUTRAL(X)                                                               \
    X("length_penalty", NEUTRAL_NUMBER, 1)                                                         \
    X("use_beam_search", NEUTRAL_FALSE, 0)                                                         \
    X("early_stopping", NEUTRAL_FALSE, 0)                                                          \
    X("logits_processors", NEUTRAL_EMPTY, 0)                                                       \
    X("structured_outputs", NEUTRAL_NULL, 0)                                                       \
    X("guided_decoding", NEUTRAL_NULL, 0)                                                          \
    X("guided_json", NEUTRAL_NULL, 0)                                                              \
    X("guided_regex", NEUTRAL_NULL, 0)                                                             \
    X("guided_choice", NEUTRAL_NULL, 0)                                                            \
    X("guided_grammar", NEUTRAL_NULL, 0)                                                           \
    X("response_format", NEUTRAL_TEXT, 0)                                                          \
    X("truncate_prompt_tokens", NEUTRAL_NULL, 0)                                                   \
    X("thinking_token_budget", NEUTRAL_NULL, 0)                                                    \
    X("repetition_detection", NEUTRAL_NULL, 0)                                                     \
    X("trace_decode_token_ids", NEUTRAL_NULL, 0)                                                   \
    X("logprob_token_ids", NEUTRAL_EMPTY, 0)                                                       \
    X("prompt_logprob_token_ids", NEUTRAL_EMPTY, 0)                                                \
    X("prompt_logprob_start", NEUTRAL_NUMBER, 0)                                                   \
    X("flat_logprobs", NEUTRAL_FALSE, 0)                                                           \
    X("extra_args", NEUTRAL_LOGPROBS_FORM, 0)                                                      \
    X("vllm_xargs", NEUTRAL_EMPTY, 0)

/* All sampling members, each followed by a comma: for the lists of members that a route accepts. */
#define GENERATE_MEMBER(member, kind, number) member,
#define GENERATE_SAMPLING_MEMBERS                                                                  \
    "n", "best_of", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p",          \
        "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias",               \
        "allowed_token_ids", "bad_words", "seed", "logprobs", "prompt_logprobs", "ignore_eos",     \
        "stop", "stop_token_ids", "skip_special_tokens", "include_stop_str_in_output",             \
        "spaces_between_special_tokens", "detokenize", "output_kind", "skip_reading_prefix_cache", \
        "routed_experts_prompt_start", GENERATE_SAMPLING_NEUTRAL(GENERATE_MEMBER)

struct generate_params {
    struct gen_params gen; /* owns its stop strings and a reference of its logits_processor; seed is
                              unset unless `seeded` */
    bool seeded;
    uint32_t n;
    bool skip_special_tokens, include_stop_str; /* for text output only */
    uint32_t routes_start; /* first position of a prompt whose routes are in the reply */
};


/* generate_params_init - set the defaults of gen_params_init, n = 1, special tokens skipped. */
void generate_params_init(struct generate_params *p);
void generate_params_fini(struct generate_params *p); /* accepts a zeroed one */

/* generate_params_parse - read the sampling members of `object`; the others keep their value in *p.
 * @p           initialised; the caller calls generate_params_fini also after an error
 * @at          JSON pointer of `object`: "" or "/sampling_params"
 * @vocab_size  ids must be below it
 * @t           tokenizes bad words; NULL: they are refused
 * Errors: ERR_BAD_REQUEST at "<at>/<member>": wrong type, out of range, or a value that would
 *         change the output and is not supported; ERR_NO_MEMORY. */
int generate_params_parse(struct generate_params *p, const json_t *object, const char *at,
                          uint32_t vocab_size, const struct tokenizer *t, struct err *e);

/* generate_params_for - make the parameters of one sequence: its own stop strings and seed, a
 * reference to the logits_processor.
 * @choice   0..n-1; added to a given seed, so that choices differ and can be repeated: choice i is
 *           what a request with seed + i generates
 * @context  tokens that the context leaves after the prompt; max_tokens is reduced to it
 * Errors: ERR_NO_MEMORY; *out is then untouched. */
int generate_params_for(struct gen_params *out, const struct generate_params *p, uint32_t choice,
                        uint32_t context, struct err *e);

/* generate_check_neutral - refuse members of `object` whose value is not neutral.
 * @rules  ends with a row whose member is NULL
 * Errors: ERR_BAD_REQUEST at "<at>/<member>", saying which value is accepted. */
int generate_check_neutral(const json_t *object, const char *at, const struct neutral_rule *rules,
                           struct err *e);

/* generate_parse_ids - parse an array of token ids.
 * @out, @n     on success a malloc'ed array of *n ids (NULL if 0), which the caller owns
 * @at          JSON pointer of the array
 * @vocab_size  ids must be below it
 * @n_max       longest array accepted; checked before anything is allocated
 * Errors: ERR_BAD_REQUEST at "<at>/<i>" or `at`; ERR_NO_MEMORY. */
int generate_parse_ids(uint32_t **out, uint32_t *n, const json_t *array, const char *at,
                       uint32_t vocab_size, uint32_t n_max, struct err *e);

#endif
