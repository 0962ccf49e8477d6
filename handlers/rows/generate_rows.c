/* What requests may contain: generate. See handlers/rows/member.h. */
#include "handlers/batch/batch.h"
#include "handlers/batch/replay_layout.h"
#include "handlers/data_plane.h"
#include "handlers/rows/generate_request.h"
#include "handlers/rows/rows.h"

/* Defaults that the model's generation_config.json replaces in completions and chats are in the
 * text only. */
const struct member sampling_rows[] = {
    {"n", M_INT, .min = 1, .max = GENERATE_N_MAX, .def = "1", M_IN(struct generate_params, n),
     .doc = "choices for each prompt, in `choices` by index: prompt * n + choice"},
    {"best_of", M_INT, .min = 1, .max = GENERATE_N_MAX, M_IN(struct generate_params, best_of),
     .doc = "accepted when it equals n"},
    {"max_tokens", M_INT, .min = 1, .max = GEN_MAX_TOKENS_REST - 1,
     M_IN(struct generate_params, gen.max_tokens),
     .doc = "default: the rest of the context (completions: 16). A larger value is cut to the rest "
            "of the context; completions and chats refuse one above the whole context. Completions "
            "with echo accept 0: the prompt is scored"},
    {"min_tokens", M_INT, .min = 0, .max = GEN_MAX_TOKENS_REST - 1, .def = "0",
     M_IN(struct generate_params, gen.min_tokens),
     .doc = "before that neither eos nor a stop token is sampled; a stop string ends the "
            "generation when a later token completes it"},
    {"temperature", M_NUMBER, .min = 0, .max = 100, M_IN(struct generate_params, gen.temperature),
     .doc = "0 is greedy; default: 1, in completions and chats the model's"},
    {"top_p", M_NUMBER, .min = 0, .max = 1, .flags = M_ABOVE,
     M_IN(struct generate_params, gen.top_p),
     .doc = "default: 1, in completions and chats the model's"},
    {"top_k", M_INT, .min = -1, M_IN(struct generate_params, gen.top_k),
     .doc = "0 and -1 are off; default: off, in completions and chats the model's"},
    {"min_p", M_NUMBER, .min = 0, .max = 1, M_IN(struct generate_params, gen.min_p),
     .doc = "default: 0, in completions and chats the model's"},
    {"repetition_penalty", M_NUMBER, .min = 0, .flags = M_ABOVE,
     M_IN(struct generate_params, gen.repetition_penalty),
     .doc = "Of tokens in prompt or output: a logit above 0 is divided by it, any other is "
            "multiplied. The order is vLLM's: allowed ids, bad words, min_tokens, logit_bias, "
            "repetition, frequency and presence penalty, temperature, min_p, top_k, top_p. "
            "Logprobs are those of the model, before all of these, or with --logprobs-mode "
            "processed_logprobs those of the sampled distribution, after all of these. Default: "
            "1, in completions and chats the model's"},
    {"frequency_penalty", M_NUMBER, .min = -2, .max = 2, .def = "0",
     M_IN(struct generate_params, gen.frequency_penalty),
     .doc = "subtracted from the logit once for each occurrence of the token in the output"},
    {"presence_penalty", M_NUMBER, .min = -2, .max = 2, .def = "0",
     M_IN(struct generate_params, gen.presence_penalty),
     .doc = "subtracted from the logits of tokens in the output"},
    {"logit_bias", M_MAP, .items = M_NUMBER, .max = LOGITS_PROCESSOR_BIASES_MAX,
     .doc = "token id in decimal digits -> value added to its logit; clamped to -100 and 100"},
    {"allowed_token_ids", M_ARRAY, .items = M_INT, .min = 1,
     .doc = "only these are sampled; at most as many as the vocabulary has"},
    {"bad_words", M_ARRAY, .items = M_STRING, .max = 128,
     .doc = "Words whose last token is not sampled after their other tokens. As in vLLM, a word is "
            "tokenized as at the beginning of a text, and also after a space if that gives another "
            "first token and the same number of tokens. Together at most 4096 tokens"},
    {"seed", M_INT, .def = "-1", M_IN(struct generate_params, seed),
     .doc = "the same seed, weights and members give the same tokens under any load; choice i uses "
            "the seed plus i; -1: no seed"},
    {"logprobs", M_INT, .min = -1,
     .doc =
         "how many of the best are reported beside the sampled token; 0 and 1 both give only the "
         "sampled one; -1: the whole vocabulary. At most --max-logprobs, and at most 2097152 in a "
         "request, counted for each token that it can generate, over all its sequences"},
    {"prompt_logprobs", M_INT, .min = -1,
     .doc = "as logprobs, for the prompt's tokens; raw in every mode. At most 262144 in an answer, "
            "counted in each choice that repeats them (choices of /v1/completions do)"},
    {"ignore_eos", M_BOOL, .def = "false", M_IN(struct generate_params, gen.ignore_eos)},
    {"stop", M_STRING | M_ARRAY, .items = M_STRING, .max = GEN_STOPS_MAX,
     .doc = "searched in the text of the answer, which has special tokens when skip_special_tokens "
            "is false"},
    {"stop_token_ids", M_ARRAY, .items = M_INT, .max = GEN_STOP_IDS_MAX},
    {"skip_special_tokens", M_BOOL, .def = "true",
     M_IN(struct generate_params, skip_special_tokens)},
    {"include_stop_str_in_output", M_BOOL, .def = "false",
     M_IN(struct generate_params, include_stop_str)},
    {"spaces_between_special_tokens", M_BOOL, M_IN(struct generate_params, no_effect),
     .doc = "accepted; changes nothing"},
    {"detokenize", M_BOOL, M_IN(struct generate_params, no_effect),
     .doc = "accepted; changes nothing"},
    {"output_kind", M_INT, .max = 2, M_IN(struct generate_params, output_kind),
     .doc = "accepted; changes nothing"},
    {"skip_reading_prefix_cache", M_BOOL, M_IN(struct generate_params, gen.skip_prefix),
     .doc = "compute the KV of the whole prompt, also if it is there already; tokens and logprobs "
            "are the same either way"},
    {"length_penalty", .neutral = "1"},
    {"use_beam_search", .neutral = "false"},
    {"early_stopping", .neutral = "false"},
    {"logits_processors", .neutral = "empty"},
    {"structured_outputs", .neutral = "null"},
    {"guided_decoding", .neutral = "null"},
    {"guided_json", .neutral = "null"},
    {"guided_regex", .neutral = "null"},
    {"guided_choice", .neutral = "null"},
    {"guided_grammar", .neutral = "null"},
    {"response_format", .neutral = "{\"type\": \"text\"}"},
    {"truncate_prompt_tokens", .neutral = "null"},
    {"thinking_token_budget", .neutral = "null"},
    {"repetition_detection", .neutral = "null"},
    {"trace_decode_token_ids", .neutral = "null"},
    {"logprob_token_ids", .neutral = "empty"},
    {"flat_logprobs", .neutral = "false"},
    {"prompt_logprob_token_ids", .neutral = "empty"},
    {"prompt_logprob_start", .neutral = "0"},
    {"routed_experts_prompt_start", M_INT, .max = UINT32_MAX,
     M_IN(struct generate_params, routes_start),
     .doc = "Position of the prompt from which on `routed_experts` has rows: those before it are "
            "not sent again; at most the length of the prompt"},
    {"extra_args", M_OBJECT,
     .doc = "accepted if empty or with `prl_compact_logprobs` (a boolean) alone, which selects a "
            "form of logprobs that prime-rl's client does not need"},
    {"vllm_xargs", .neutral = "empty"},
    {0},
};

/* Layers are counted by the model: their limits are checked by the parser. */
const struct member replay_layout_rows[] = {
    {"pipeline_parallel_size", M_INT, .min = 1, .flags = M_REQUIRED,
     .doc = "stages that share the model's layers, dense ones included: consecutive layers each; "
            "at most as many as the model has layers"},
    {"context_parallel_size", M_INT, .min = 1, .max = REPLAY_CONTEXT_MAX, .flags = M_REQUIRED,
     M_IN(struct replay_layout, n_contexts),
     .doc = "ranks that share the positions of a sequence: of twice as many chunks of one length, "
            "rank r has chunk r and chunk `2 * context_parallel_size - 1 - r`, in this order"},
    {"num_layers_in_first_pipeline_stage", M_INT, .min = 1,
     .doc = "layers of the first stage; the stages without a number share the rest evenly, at "
            "least one layer each, or the request is a 400 with the numbers"},
    {"num_layers_in_last_pipeline_stage", M_INT, .min = 1, .doc = "the same of the last stage"},
    {"num_leading_dense_layers", M_INT, .min = 0,
     .doc = "the model's own layers decide; if given, exactly so many first ones must be dense"},
    {"sequence_multiple", M_INT, .min = 1, .max = REPLAY_MULTIPLE_MAX,
     M_IN(struct replay_layout, sequence_multiple),
     .doc = "the padded length of a sequence is a multiple of it. It is a multiple of `2 * "
            "context_parallel_size`, which is the default (1 for one context rank); trainers with "
            "tensor parallelism use that times its size"},
    {0},
};

const struct member step_rows[] = {
    {"trajectory_id", M_STRING, .min = 1, .max = BATCH_TRAJECTORY_ID_MAX, .flags = M_REQUIRED,
     M_IN(struct step_request, trajectory_id)},
    {"step", M_INT, .min = 0, .max = INT32_MAX, .flags = M_REQUIRED,
     M_IN(struct step_request, step)},
    {0},
};

const struct member stream_options_rows[] = {
    {"include_usage", M_BOOL, M_IN(struct generation_stream, usage_last),
     .doc = "A last event has the counts of tokens"},
    {"continuous_usage_stats", M_BOOL, M_IN(struct generation_stream, usage_each),
     .doc = "With include_usage: each event has them"},
    {0},
};

static int check_salt(const char *text, const char *field, struct err *e)
{
    size_t n = 0;

    for (const char *c = text; *c != '\0'; c++)
        n += ((unsigned char)*c & 0xC0U) != 0x80U;
    if (n >= 1 && n <= GENERATION_CACHE_SALT_MAX)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, field, "a string of %zu characters; expected 1 to %d", n,
                   GENERATION_CACHE_SALT_MAX);
}

/* What all routes of generation in vLLM's form have. */
static const struct member generation_rows[] = {
    {"model", M_STRING, M_IN(struct generate_request, model),
     .doc = "The served name, or that of a loaded adapter; any other is a 404"},
    {"request_id", M_STRING, .min = 1, .max = GENERATION_REQUEST_ID_MAX,
     M_IN(struct generate_request, request_id)},
    {"session_id", M_STRING, M_IN(struct generate_request, no_effect)},
    {"cache_salt", M_STRING, .min = 1, .max = GENERATION_CACHE_SALT_MAX,
     M_IN(struct generate_request, cache_salt), .check = check_salt,
     .doc = "KV of prompts is shared with requests of the same salt only"},
    {"priority", .neutral = "0"},
    {0},
};

const struct member generate_members[] = {
    {"token_ids", M_ARRAY, .items = M_INT, .min = 1, .flags = M_REQUIRED,
     M_IN(struct generate_request, token_ids)},
    {"sampling_params", M_OBJECT, .flags = M_REQUIRED | M_OPEN, .of = sampling_rows,
     M_IN(struct generate_request, sampling_params)},
    {"", M_ROWS_WITH(generation_rows)},
    {"stream", M_BOOL, .def = "false", M_IN(struct generate_request, stream),
     .doc = "Server-sent events; the last one is data: [DONE]"},
    {"stream_options", M_OBJECT, .flags = M_OPEN, .of = stream_options_rows,
     M_IN(struct generate_request, stream_options)},
    {"on_update", M_STRING, M_IN(struct generate_request, on_update),
     M_WORDS("continue", "finish", "recompute"),
     .doc = "The effect of a commit between two tokens; default: the server's `--on-update`. "
            "`continue`: the next token is computed with the new weights, and the KV of earlier "
            "tokens stays as the older versions made it. `finish`: every token is computed with "
            "the version that was served when the sequence left the queue and its prompt was "
            "started, as if there had been no update; that version stays in memory until then and "
            "counts against `--max-versions`. `recompute`: the KV of prompt and output so far is "
            "recomputed with the new weights before the next token, which then equals that of a "
            "new request with that prompt and the same sampling state; tokens and logprobs already "
            "sent do not change. If another commit arrives before the recomputation is done, the "
            "second attempt completes its token regardless of further commits. An update commits "
            "without waiting for generations. An update that needs memory for another version "
            "waits at its start for the generations that use an old one, up to `--pin-timeout`, "
            "and is a 409 after that; the generations continue"},
    {"features", .neutral = "null"},
    {"kv_transfer_params", .neutral = "null"},
    {"ec_transfer_params", .neutral = "null"},
    {"return_token_ids", M_BOOL, M_IN(struct generate_request, return_token_ids)},
    {"output_mode", M_STRING, M_IN(struct generate_request, no_effect), M_WORDS("tokens")},
    {"content_parts", .neutral = "empty"},
    {"reasoning_ended", .neutral = "false"},
    {"reasoning_parser_kwargs", .neutral = "empty"},
    {"token_offsets", .neutral = "false"},
    {"assistant_tokens_mask", .neutral = "false"},
    {"return_routed_experts", M_BOOL, M_IN(struct generate_request, return_routed_experts),
     .doc = "Which experts computed each position, as `routed_experts` of a choice; 400 if the "
            "model has none. Default: --return-routed-experts"},
    {"replay_layout", M_OBJECT, .of = replay_layout_rows,
     M_IN(struct generate_request, replay_layout),
     .doc = "With return_routed_experts: `replay_blocks` of a choice are the routed experts cut "
            "for the ranks of a trainer, as Megatron-LM splits layers and positions. A layout that "
            "the model cannot have is a 400"},
    {0},
};

const struct member batch_rows[] = {
    {"layout", M_STRING, .def = "left_padded", M_IN(struct batch_options, layout),
     M_WORDS("left_padded", "tight"),
     .doc = "`left_padded`: prompts end and responses begin at one column, as TRL and verl pad "
            "them. `tight`: prompt and response together at the right, as SkyRL does"},
    {"sequence_multiple", M_INT, .min = 1, .max = BATCH_SEQUENCE_MULTIPLE_MAX, .def = "1",
     M_IN(struct batch_options, sequence_multiple), .doc = "widths are padded to a multiple of it"},
    {"pad_token_id", M_INT, .min = 0, .def = "0"},
    {"steps", M_ARRAY, .items = M_OBJECT, .of = step_rows,
     .doc = "One for each prompt: which step of which trajectory it is. Steps of one trajectory "
            "are adjacent and ascend by 1, or the request is a 400 that names the place"},
    {0},
};

const struct member rollouts_members[] = {
    {"prompts", M_ARRAY, .items = M_INTS, .min = 1, .max = 1024, .flags = M_REQUIRED,
     M_IN(struct generate_request, prompts),
     .doc = "token ids of each prompt; prompts times n are at most 1024 sequences. `/tokenize` and "
            "`/v1/chat/completions/render` make them from text and messages"},
    {"sampling_params", M_OBJECT, .flags = M_REQUIRED | M_OPEN, .of = sampling_rows,
     M_IN(struct generate_request, sampling_params),
     .doc =
         "as `/v1/generate` takes them, `n` too; it may be {}. `max_tokens` (default: the rest of "
         "the context) is cut to the context. One `seed` is that of every prompt: sample i of "
         "each uses `seed` + i, so equal prompts get equal samples; without it all differ. The "
         "logprob of each sampled token is always returned; `logprobs` above 1 and "
         "`prompt_logprobs` are refused"},
    {"", M_ROWS_WITH(generation_rows)},
    {"stream", M_BOOL, .def = "false", M_IN(struct generate_request, stream),
     .doc = "each group as soon as it has ended"},
    {"on_update", M_STRING, M_IN(struct generate_request, on_update),
     M_WORDS("continue", "finish", "recompute"), .doc = "as /v1/generate"},
    {"return_routed_experts", M_BOOL, .def = "false",
     M_IN(struct generate_request, return_routed_experts),
     .doc = "the experts that computed each position; a 400 if the model has none"},
    {"", M_ROWS_OF(batch_rows)},
    {0},
};

/* What completions and chats have. The members from lora_path on are taken by SGLang's servers on
 * these routes and not by vLLM's; by them a prompt, tokens or the reply would be others. */
static const struct member openai_rows[] = {
    {"", M_ROWS_WITH(generation_rows)},
    {"rid", M_STRING, .min = 1, .max = GENERATION_REQUEST_ID_MAX,
     M_IN(struct generate_request, rid), .doc = "SGLang's name of `request_id`, which wins"},
    {"user", M_STRING, M_IN(struct generate_request, no_effect)},
    {"stream", M_BOOL, .def = "false", M_IN(struct generate_request, stream)},
    {"stream_options", M_OBJECT, .flags = M_OPEN, .of = stream_options_rows,
     M_IN(struct generate_request, stream_options)},
    {"return_token_ids", M_BOOL, M_IN(struct generate_request, return_token_ids)},
    {"return_tokens_as_token_ids", M_BOOL,
     M_IN(struct generate_request, return_tokens_as_token_ids)},
    {"kv_transfer_params", .neutral = "null"},
    {"ec_transfer_params", .neutral = "null"},
    {"return_routed_experts", M_BOOL, M_IN(struct generate_request, return_routed_experts),
     .doc = "Which experts computed each position, as `routed_experts` of a choice; 400 if the "
            "model has none. Default: --return-routed-experts"},
    {"lora_path", .neutral = "empty"},
    {"json_schema", .neutral = "empty"},
    {"regex", .neutral = "empty"},
    {"ebnf", .neutral = "empty"},
    {"structural_tag", .neutral = "empty"},
    {"stop_regex", .neutral = "empty"},
    {"no_stop_trim", .neutral = "false"},
    {"custom_logit_processor", .neutral = "empty"},
    {"input_ids", .neutral = "null"},
    {"task", .neutral = "empty"},
    {"watermark", .neutral = "empty"},
    {"session_params", .neutral = "empty"},
    {"sampling_logprobs_mode", .neutral = "null"},
    {"routed_experts_start_len", .neutral = "0"},
    {"return_prompt_token_ids", .neutral = "false"},
    {"return_meta_info", .neutral = "false"},
    {"return_input_ids_in_sglext", .neutral = "false"},
    {"return_output_ids_in_sglext", .neutral = "false"},
    {"return_cached_tokens_details", .neutral = "false"},
    {"return_spec_tokens_details", .neutral = "false"},
    {"return_sampling_mask", .neutral = "false"},
    {"return_flat_raw_output_top_logprobs", .neutral = "false"},
    {"return_hidden_states", .neutral = "false"},
    {0},
};

const struct member completions_members[] = {
    {"", M_ROWS_WITH(openai_rows)},
    {"prompt", M_STRING | M_ARRAY, .flags = M_REQUIRED, M_IN(struct generate_request, prompt),
     .doc = "Text, a list of texts, token ids, or a list of lists of them"},
    {"echo", M_BOOL, .def = "false", M_IN(struct generate_request, echo),
     .doc = "with return_token_ids the text has no prompt, as in vLLM: prompt_token_ids has it"},
    {"suffix", .neutral = "empty"},
    {"add_special_tokens", M_BOOL, .def = "true",
     M_IN(struct generate_request, add_special_tokens)},
    {"prompt_embeds", .neutral = "null"},
    {"", M_ROWS_OF(sampling_rows)},
    {0},
};

const struct member chat_rows[] = {
    {"messages", M_ARRAY, .items = M_OBJECT, .min = 1, .max = 16384, .flags = M_REQUIRED,
     M_IN(struct chat_options, messages)},
    {"tools", M_ARRAY, .items = M_OBJECT, M_IN(struct chat_options, tools)},
    {"tool_choice", M_STRING, M_WORDS("auto", "none")},
    {"documents", M_ARRAY, M_IN(struct chat_options, documents)},
    {"add_generation_prompt", M_BOOL, M_IN(struct chat_options, add_generation_prompt),
     M_GIVEN(struct chat_options, add_given),
     .doc = "default: true, unless the final message is continued"},
    {"continue_final_message", M_BOOL, M_IN(struct chat_options, continue_final),
     .doc = "end the prompt where the last message's text does, which may be empty"},
    {"chat_template", .neutral = "null"},
    {"chat_template_kwargs", M_OBJECT, M_IN(struct chat_options, kwargs),
     .doc = "Additional variables of the template"},
    {"add_special_tokens", M_BOOL, .def = "false", M_IN(struct chat_options, add_special)},
    {0},
};

const struct member chat_members[] = {
    {"", M_ROWS_OF(chat_rows)},
    {"", M_ROWS_WITH(openai_rows)},
    {"echo", .neutral = "false"},
    {"top_logprobs", M_INT, .min = -1, .doc = "as logprobs of /v1/completions"},
    {"max_completion_tokens", M_INT, .min = 1, .max = GEN_MAX_TOKENS_REST - 1,
     .doc = "newer name of max_tokens; takes precedence"},
    {"parallel_tool_calls", M_BOOL, M_IN(struct generate_request, no_effect_flag)},
    {"reasoning_effort", .neutral = "null"},
    {"functions", .neutral = "empty"},
    {"function_call", .neutral = "null"},
    {"mm_processor_kwargs", .neutral = "empty"},
    {"return_prompt_text", M_BOOL, M_IN(struct generate_request, return_prompt_text)},
    {"logprobs", M_BOOL, M_IN(struct generate_request, logprobs)},
    {"", M_ROWS_OF(sampling_rows)},
    {0},
};

const struct member tokenize_members[] = {
    {"messages", M_ARRAY, .doc = "Instead of prompt: as in /v1/chat/completions, with its members"},
    {"add_special_tokens", M_BOOL, M_IN(struct tokenize_request, add_special_tokens),
     .doc = "default: true for a prompt, false for messages"},
    {"model", M_STRING, M_IN(struct tokenize_request, model)},
    {"prompt", M_STRING, M_IN(struct tokenize_request, prompt)},
    {"return_token_strs", M_BOOL, M_IN(struct tokenize_request, return_token_strs)},
    {"", M_ROWS_OF(chat_rows)},
    {0},
};

const struct member detokenize_members[] = {
    {"model", M_STRING, M_IN(struct detokenize_request, model)},
    {"tokens", M_ARRAY, .items = M_INT, .flags = M_REQUIRED,
     M_IN(struct detokenize_request, tokens)},
    {"skip_special_tokens", M_BOOL, .def = "false",
     M_IN(struct detokenize_request, skip_special_tokens)},
    {0},
};
