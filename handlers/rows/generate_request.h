/* What requests to generate ask for, as their rows read it (generate_rows.c,
 * sglang_generate_rows.c). */
#ifndef BATON_HANDLERS_ROWS_GENERATE_REQUEST_H
#define BATON_HANDLERS_ROWS_GENERATE_REQUEST_H

#include "engine/gen.h"
#include "handlers/rows/member.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    GENERATE_N_MAX = 128,            /* sequences for one prompt */
    GENERATION_REQUEST_ID_MAX = 256, /* bytes */
    GENERATION_CACHE_SALT_MAX = 1024 /* characters, as in vLLM */
};

struct generate_params {
    struct gen_params gen; /* owns its stop strings and a reference of its logits_processor; seed is
                              not set */
    int64_t seed;          /* of the first choice; -1: none, each draws its own */
    uint32_t n, best_of;   /* best_of 0: not given */
    bool skip_special_tokens, include_stop_str; /* for text output only */
    uint32_t routes_start; /* first position of a prompt whose routes are in the reply */
    bool no_effect;        /* members that are checked, and change nothing */
    uint32_t output_kind;  /* too; of vLLM's RequestOutputKind */
};

struct generation_stream {
    bool on;
    bool usage_last; /* send an event with the usage before the end */
    bool usage_each; /* and put the usage so far into each event */
};

/* Of /v1/generate, /v1/rollouts, /v1/completions and /v1/chat/completions; a route's rows say which
 * of these it has. Strings and JSON are borrowed from the body. */
struct generate_request {
    const char *model, *request_id, *rid, *cache_salt;
    const json_t *token_ids, *prompts, *prompt, *sampling_params, *stream_options, *replay_layout;
    int on_update; /* enum gen_on_update, as the row's words */
    bool stream, return_routed_experts;
    bool return_token_ids, return_tokens_as_token_ids, return_prompt_text;
    bool echo, add_special_tokens;
    bool logprobs;         /* of a chat */
    const char *no_effect; /* members that are checked, and change nothing */
    bool no_effect_flag;   /* too */
};

/* What a chat template is given, of /v1/chat/completions and /tokenize. */
struct chat_options {
    const json_t *messages, *tools, *documents, *kwargs;
    bool continue_final, add_generation_prompt, add_given, add_special;
};

/* Of SGLang's /generate, once a value stands for all prompts (M_EACH). */
struct sglang_request {
    const json_t *sampling_params;
    const char *lora_path;
    bool stream, return_logprob, return_text_in_logprobs, return_routed_experts;
    int logprob_start_len;
    uint32_t routed_experts_start_len;
};

struct tokenize_request {
    const char *model;
    struct member_text prompt;
    bool add_special_tokens, return_token_strs;
};

struct detokenize_request {
    const char *model;
    const json_t *tokens;
    bool skip_special_tokens;
};

/* The place of a prompt in its trajectory. */
struct step_request {
    const char *trajectory_id;
    uint32_t step;
};

#endif
