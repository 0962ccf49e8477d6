#!/usr/bin/env bash
# /v1/generate and /inference/v1/generate: golden ids and logprobs, versions, refusals, cancel.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
serve_model

# The first golden case of step 0, token ids in and out.
jq '.checkpoints["step-00000"].cases[0]' "$MODEL/golden.json" >"$WORK/case"
for path in /v1/generate /inference/v1/generate; do
  post 200 "$path" "$(jq '{token_ids: .prompt_token_ids, sampling_params: {temperature: 0, max_tokens: 24, logprobs: 1, prompt_logprobs: 0}}' "$WORK/case")"
  same '.choices[0].token_ids | tojson' "$(jq --raw-output '.greedy_token_ids | tojson' "$WORK/case")"
  same '.choices[0].finish_reason' length
  same '.choices[0].weight_versions | tojson' '[{"version":"step-0","start":0,"end":24,"serial":1}]'
  same .boot_id "$BOOT_ID"
  same .model kjv-qwen3-1m
  worst=$(jq --slurpfile want "$WORK/case" '
    [[.choices[0].logprobs.content[].logprob], $want[0].greedy_logprobs] | transpose | map(.[0] - .[1] | fabs) | max' "$WORK/body")
  awk -v w="$worst" 'BEGIN { exit !(w <= 1e-4) }' || fail "logprobs differ by $worst"
  same '.prompt_logprobs | length' 7
  same '.prompt_logprobs[0]' null
done

# A seed makes the same tokens again; n choices differ.
body='{"token_ids": [40, 77, 258], "sampling_params": {"temperature": 1.0, "seed": 7, "max_tokens": 16, "n": 2}}'
post 200 /v1/generate "$body"
first=$(jq --compact-output '[.choices[].token_ids]' "$WORK/body")
post 200 /v1/generate "$body"
same '[.choices[].token_ids] | tojson' "$first"

# As vLLM's: logprobs 0 and 1 both tell the sampled token's, in all the forms of an entry; what clients and routers say in
# headers; no length is the rest of the context; a salt has 1 to 1024 characters.
for k in 0 1; do
  expect 200 POST /inference/v1/generate --header 'Content-Type: application/json' --header 'X-Session-ID: s-1' --header 'X-data-parallel-rank: 3' \
    --data-binary "{\"token_ids\": [40, 77, 258], \"sampling_params\": {\"temperature\": 0, \"max_tokens\": 4, \"logprobs\": $k, \"prompt_logprobs\": $k}}"
  same '[.choices[0].logprobs.content[] | .token == "token_id:\(.token_id)" and .logprob < 0 and .rank == 1 and .bytes == null] | tojson' '[true,true,true,true]'
  same ".choices[0].logprobs.content[0].top_logprobs | length" "$k"
  same '[.choices[0].logprobs.content[].token_id] == .choices[0].token_ids' true
  same '.prompt_logprobs | .[0] == null and has(2) and (.[1] | has("77")) and (.[2]["258"] | has("logprob") and has("rank") and has("decoded_token"))' true
done
post 200 /inference/v1/generate "$(jq --null-input '{token_ids: [range(1000)], sampling_params: {temperature: 0, ignore_eos: true}}')"
same '.choices[0].token_ids | length' 24
same '[.choices[0].finish_reason, .kv_transfer_params, .usage.total_tokens] | tojson' '["length",null,1024]'
post 200 /inference/v1/generate "$(jq --null-input '{token_ids: [1], sampling_params: {max_tokens: 1}, cache_salt: ("é" * 1024)}')"
post 400 /inference/v1/generate "$(jq --null-input '{token_ids: [1], sampling_params: {max_tokens: 1}, cache_salt: ("é" * 1025)}')"
same .error.param cache_salt
post 400 /inference/v1/generate '{"token_ids": [1], "sampling_params": {}, "cache_salt": ""}'
post 404 /inference/v1/generate '{"token_ids": [1], "sampling_params": {}, "model": "nobody"}'
same '[.error.type, .error.param, .error.code] | tojson' '["NotFoundError","model",404]'
expect 400 POST /inference/v1/generate --header 'Content-Type: text/plain' --data-binary '{}'
same .error.code 400

# Strict on the native route, lenient on the dialect's.
post 400 /v1/generate '{"token_idz": [1], "sampling_params": {}}'
same .error.param /token_idz
has token_ids
post 200 /inference/v1/generate '{"token_ids": [1], "sampling_params": {"max_tokens": 1}, "something_new": 1}'
bad() { # STATUS PARAM JSON
  post "$1" /v1/generate "$3"
  same '.error.param // ""' "$2"
  post "$1" /inference/v1/generate "$3"
  same .error.code "$1"
}
bad 400 /token_ids '{"sampling_params": {}}'
bad 400 /token_ids '{"token_ids": [], "sampling_params": {}}'
bad 400 /token_ids/1 '{"token_ids": [1, 1024], "sampling_params": {}}'
bad 400 /token_ids/0 '{"token_ids": [-1], "sampling_params": {}}'
bad 400 /token_ids/0 '{"token_ids": [1.5], "sampling_params": {}}'
bad 400 /sampling_params/temperature '{"token_ids": [1], "sampling_params": {"temperature": -1}}'
bad 400 /sampling_params/top_p '{"token_ids": [1], "sampling_params": {"top_p": 0}}'
bad 400 /sampling_params/max_tokens '{"token_ids": [1], "sampling_params": {"max_tokens": 0}}'
bad 400 /sampling_params/guided_regex '{"token_ids": [1], "sampling_params": {"guided_regex": "a*"}}'
bad 404 /model '{"token_ids": [1], "sampling_params": {}, "model": "other"}'
post 400 /v1/generate '{"token_ids": [1], "token_ids": [2], "sampling_params": {}}'
has token_ids
post 400 /v1/generate '{"token_ids": [1]'
post 400 /v1/generate '[1]'
post 400 /v1/generate "$(printf '[%.0s' $(seq 5000))"
post 400 /v1/generate "$(jq --null-input '{token_ids: [range(1100) | . % 1000], sampling_params: {max_tokens: 1}}')"
expect 415 POST /v1/generate --header 'Content-Type: text/plain' --data-binary '{}'
head --bytes=17000000 /dev/zero >"$WORK/huge"
expect 413 POST /v1/generate --header 'Content-Type: application/json' --data-binary @"$WORK/huge"

# Streaming: one event a token or more, versions on the last, [DONE] at the end.
post 200 /v1/generate '{"token_ids": [40, 77], "stream": true, "sampling_params": {"temperature": 0, "max_tokens": 8}}'
[[ $(header Content-Type) == text/event-stream* ]] || fail "a stream is text/event-stream"
[[ $(tail --lines=2 "$WORK/body" | head --lines=1) == 'data: [DONE]' ]] || fail "no [DONE]"
grep '^data: {' "$WORK/body" | sed 's/^data: //' | jq --slurp --compact-output '[.[].choices[].token_ids[]] | length' >"$WORK/n"
[[ $(cat "$WORK/n") == 8 ]] || fail "a stream of 8 tokens has $(cat "$WORK/n")"

# A client that goes away frees its slot.
for _ in 1 2 3; do
  curl --silent --max-time 0.2 --output /dev/null "$URL/v1/generate" --header 'Content-Type: application/json' \
    --data '{"token_ids": [40], "sampling_params": {"max_tokens": 1000, "ignore_eos": true, "n": 64}}' || true
done
for _ in $(seq 2400); do
  expect 200 GET /v1/status
  [[ $(jq '.engine.running + .engine.waiting + .admission.generate.running' "$WORK/body") == 0 ]] && break
  sleep 0.05
done
same '.engine.running + .admission.generate.running' 0
done_testing
