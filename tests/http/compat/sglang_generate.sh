#!/usr/bin/env bash
# SGLang's /generate: golden ids and logprobs, batches, streams, versions, adapters, refusals; aborts are in sglang_generate.py.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
serve_model --allow-path "$MODEL" --kv-cache 256MiB --max-num-seqs 128

# Golden: text and ids in, by POST and PUT; logprobs of output and prompt.
n_cases=$(jq '.checkpoints["step-00000"].cases | length' "$MODEL/golden.json")
for i in $(seq 0 $((n_cases - 1))); do
  jq --argjson i "$i" '.checkpoints["step-00000"].cases[$i]' "$MODEL/golden.json" >"$WORK/case"
  rest='sampling_params: {temperature: 0, max_new_tokens: (.greedy_token_ids | length), ignore_eos: true}, return_logprob: true, logprob_start_len: 0'
  jq "{text: .prompt, $rest}" "$WORK/case" >"$WORK/by_text"
  jq "{input_ids: .prompt_token_ids, $rest}" "$WORK/case" >"$WORK/by_ids"
  for how in "POST text" "PUT ids"; do
    expect 200 "${how% *}" /generate --header 'Content-Type: application/json' --data-binary @"$WORK/by_${how#* }"
    same '.output_ids | tojson' "$(jq --raw-output '.greedy_token_ids | tojson' "$WORK/case")"
    same .text "$(jq --raw-output .greedy_text "$WORK/case")"
    same '[.meta_info.input_token_logprobs[][1]] | tojson' "$(jq --raw-output '.prompt_token_ids | tojson' "$WORK/case")"
    same '.meta_info.input_token_logprobs[0][0]' null
    same .meta_info.prompt_tokens "$(jq '.prompt_token_ids | length' "$WORK/case")"
    worst=$(jq --slurpfile want "$WORK/case" '
      [[.meta_info.output_token_logprobs[][0], .meta_info.input_token_logprobs[1:][][0]],
       [$want[0].greedy_logprobs[], $want[0].prompt_logprobs[1:][]]] | transpose | map(.[0] - .[1] | fabs) | max' "$WORK/body")
    awk -v w="$worst" 'BEGIN { exit !(w <= 1e-4) }' || fail "logprobs differ by $worst"
  done
done
same '.meta_info.weight_versions | length' 1
same .meta_info.weight_version step-0
same .meta_info.boot_id "$BOOT_ID"
same '.meta_info.finish_reason | tojson' "{\"type\":\"length\",\"length\":$(jq '.output_ids | length' "$WORK/body")}"

# A batch is its prompts one by one, in their order.
params='"sampling_params": {"temperature": 0, "max_new_tokens": 12}'
post 200 /generate "{\"text\": [\"In the beginning\", \"And God said\", \"The LORD\"], $params}"
jq --compact-output '[.[] | [.text, .output_ids]]' "$WORK/body" >"$WORK/batch"
for prompt in "In the beginning" "And God said" "The LORD"; do
  post 200 /generate "{\"text\": \"$prompt\", $params}"
  jq --compact-output '[.text, .output_ids]' "$WORK/body"
done | jq --slurp --compact-output . >"$WORK/single"
cmp "$WORK/batch" "$WORK/single" || fail "a batch differs: $(cat "$WORK/batch" "$WORK/single")"

# The last event of a stream is the answer; those before it are its beginning.
body="{\"text\": \"In the beginning\", \"rid\": \"same\", \"return_logprob\": true, \"logprob_start_len\": 2, \"top_logprobs_num\": 2,
  \"sampling_params\": {\"temperature\": 0.8, \"max_new_tokens\": 300, \"sampling_seed\": 11}"
post 200 /generate "$body}"
same '.meta_info | [.num_retractions, .reasoning_tokens, .dp_rank, .cached_tokens_details] | tojson' '[0,0,null,null]'
same '.meta_info | .output_token_logprobs_length == .completion_tokens and .e2e_latency > 0 and .e2e_latency < 600' true
jq --sort-keys 'del(.meta_info.e2e_latency)' "$WORK/body" >"$WORK/whole"
post 200 /generate "$body, \"stream\": true}"
[[ $(header Content-Type) == text/event-stream* ]] || fail "a stream is text/event-stream"
[[ $(tail --lines=2 "$WORK/body" | head --lines=1) == 'data: [DONE]' ]] || fail "no [DONE]"
sed --quiet 's/^data: {/{/p' "$WORK/body" >"$WORK/events"
tail --lines=1 "$WORK/events" | jq --sort-keys 'del(.meta_info.e2e_latency)' >"$WORK/last"
cmp "$WORK/whole" "$WORK/last" || fail "the last event is not the answer: $(cat "$WORK/last")"
jq --slurp 'last.text as $all | last.output_ids as $ids | map(select(.text as $t | $all | startswith($t) | not)) +
  map(select(.output_ids != $ids[:(.output_ids | length)])) | length' "$WORK/events" >"$WORK/n"
[[ $(cat "$WORK/n") == 0 ]] || fail "events do not grow into the answer"
(($(wc --lines <"$WORK/events") > 1)) || fail "only $(wc --lines <"$WORK/events") events"
same=$(jq --raw-output '.meta_info.input_token_logprobs | length' "$WORK/last")
[[ $same == 5 ]] || fail "$same logprobs of the prompt from its token 2 on"

# Logprobs of the output are of the logits over the temperature: differences of two tokens scale with it.
post 200 /v1/generate '{"token_ids": [40, 77, 258], "sampling_params": {"temperature": 0.5, "seed": 5, "max_tokens": 16, "logprobs": 2}}'
cp "$WORK/body" "$WORK/raw"
post 200 /generate '{"input_ids": [40, 77, 258], "return_logprob": true, "top_logprobs_num": 2,
  "sampling_params": {"temperature": 0.5, "sampling_seed": 5, "max_new_tokens": 16}}'
same '.output_ids | tojson' "$(jq --raw-output '.choices[0].token_ids | tojson' "$WORK/raw")"
worst=$(jq --slurpfile raw "$WORK/raw" '[[.meta_info | .output_token_logprobs, .output_top_logprobs] | transpose[] | .[0][0] - .[1][0][0]] as $here |
  [$raw[0].choices[0].logprobs.content[] | 2 * (.logprob - .top_logprobs[0].logprob)] as $there |
  [$here, $there] | transpose | map(.[0] - .[1] | fabs) | max' "$WORK/body")
awk -v w="$worst" 'BEGIN { exit !(w <= 1e-4) }' || fail "tempered logprobs differ by $worst"

# Nothing but the prompt's logprobs.
post 200 /generate '{"text": "In the beginning", "return_logprob": true, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}}'
same '[.text, .output_ids, (.meta_info | .completion_tokens, .finish_reason.length, .output_token_logprobs)] | tojson' '["",[],0,0,[]]'
same '.meta_info.input_token_logprobs | length' 7

# An adapter by its name; the next weights by theirs.
post 200 /v1/load_lora_adapter "$(jq --null-input --arg p "$MODEL/adapters/shout" '{lora_name: "shout", lora_path: $p}')"
post 200 /inference/v1/generate '{"token_ids": [40, 77, 258], "model": "shout", "sampling_params": {"temperature": 0, "max_tokens": 12}}'
ids=$(jq --compact-output '.choices[0].token_ids' "$WORK/body")
post 200 /generate '{"input_ids": [40, 77, 258], "lora_path": "shout", "sampling_params": {"temperature": 0, "max_new_tokens": 12}}'
same '.output_ids | tojson' "$ids"
same .meta_info.adapter.name shout
post 400 /generate '{"input_ids": [40], "lora_path": "whisper"}'
has whisper
post 200 /v1/update_weights "$(jq --null-input --arg p "$CHECKPOINTS/step-01500.safetensors" '{path: $p, weight_version: "step-1500"}')"
post 200 /generate '{"text": "In the beginning", "sampling_params": {"temperature": 0, "max_new_tokens": 24}}'
same .text "$(golden step-01500)"
same .meta_info.weight_version step-1500
same '[.meta_info.weight_versions[].version] | tojson' '["step-1500"]'

# Refusals, in SGLang's form; what nobody knows is ignored and counted.
post 400 /generate '{"text": "a", "sampling_params": {"regex": "a*"}}'
same .error.message "$(jq --raw-output .message "$WORK/body")"
has "/sampling_params/regex: 'regex' is not supported"
post 400 /generate '{"text": "a", "sampling_params": {"max_tokens": 4}}'
has "unknown member 'max_tokens'"
post 400 /generate '{"text": "a"'
has 'not JSON'
post 400 /generate ''
expect 200 GET /metrics
before=$(sed --quiet 's/^baton_dialect_unknown_members_total{dialect="sglang"} //p' "$WORK/body")
post 200 /generate '{"text": "a", "a_new_member": 1, "another": 2, "sampling_params": {"max_new_tokens": 1}}'
expect 200 GET /metrics
has "baton_dialect_unknown_members_total{dialect=\"sglang\"} $((before + 2))"

timeout 280 "$PYTHON" "$(dirname "$0")/sglang_generate.py" "$URL" || fail "sglang_generate.py"
stop_server
serve_model --compat vllm
post 404 /generate '{"text": "a"}'
done_testing
