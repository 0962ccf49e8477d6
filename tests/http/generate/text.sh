#!/usr/bin/env bash
# /v1/completions, /tokenize, /detokenize.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
serve_model

post 200 /tokenize '{"prompt": "In the beginning"}'
same '.tokens | tojson' '[40,77,258,803,264,77,290]'
same .count 7
same .max_model_len 1024
post 200 /detokenize '{"tokens": [40, 77, 258, 803, 264, 77, 290]}'
same .prompt 'In the beginning'
post 400 /detokenize '{"tokens": [40, 5000]}'
same .error.param tokens.1
post 400 /tokenize '{"messages": [{"role": "user", "content": "x"}]}'
jq --compact-output '.encode[:16][]' "$MODEL/tokenizer_golden.json" >"$WORK/cases"
while read -r row; do
  post 200 /tokenize "$(jq '{prompt: .text}' <<<"$row")"
  same '.tokens | tojson' "$(jq --raw-output '.ids | tojson' <<<"$row")"
done <"$WORK/cases"

serves step-00000 step-0
post 200 /v1/completions '{"prompt": ["In the beginning", "And God said"], "max_tokens": 4, "temperature": 0, "logprobs": 2, "return_token_ids": true}'
same '.choices | length' 2
same '.choices[1].index' 1
same '.choices[0].token_ids | length' 4
same '.choices[0].logprobs.tokens | length' 4
same '.choices[0].logprobs.top_logprobs[0] | length >= 2' true
same .usage.completion_tokens 8
same .object text_completion
post 200 /v1/completions '{"prompt": [40, 77, 258, 803, 264, 77, 290], "max_tokens": 3, "temperature": 0, "echo": true}'
same '.choices[0].text' 'In the beginning found found found'
post 200 /v1/completions '{"prompt": "In the beginning", "max_tokens": 20, "temperature": 0, "stop": [" found f"]}'
same '.choices[0].text' ''
same '.choices[0].finish_reason' stop
same '.choices[0].stop_reason' ' found f'

# Streamed text is the same text.
post 200 /v1/completions '{"prompt": "In the beginning", "max_tokens": 24, "temperature": 0, "stream": true, "stream_options": {"include_usage": true}}'
sed --quiet 's/^data: {/{/p' "$WORK/body" | jq --slurp --raw-output '[.[].choices[]?.text] | add' >"$WORK/text"
[[ $(cat "$WORK/text") == "$(golden step-00000)" ]] || fail "streamed: $(cat "$WORK/text")"
[[ $(tail --lines=2 "$WORK/body" | head --lines=1) == 'data: [DONE]' ]] || fail "no [DONE]"
sed --quiet 's/^data: {/{/p' "$WORK/body" | jq --slurp --compact-output '.[-1].usage.completion_tokens' >"$WORK/n"
[[ $(cat "$WORK/n") == 24 ]] || fail "usage: $(cat "$WORK/n")"

post 400 /v1/completions '{"prompt": ""}'
post 400 /v1/completions '{"max_tokens": 4}'
post 404 /v1/completions '{"prompt": "x", "model": "nobody"}'
same '[.error.type, .error.param, .error.code] | tojson' '["NotFoundError","model",404]'
for path in /tokenize /detokenize; do
  post 404 "$path" '{"prompt": "x", "tokens": [1], "model": "nobody"}'
  same .error.param model
done

# As AReaL asks: the sampled token's logprob by its id, with logprobs 0.
post 200 /v1/completions '{"prompt": [40, 77, 258], "max_tokens": 5, "temperature": 0, "logprobs": 0, "return_tokens_as_token_ids": true, "return_token_ids": true}'
same '[.choices[0].logprobs.tokens[] | sub("token_id:"; "") | tonumber] == .choices[0].token_ids' true
same '.choices[0].logprobs.token_logprobs | map(. < 0 and . >= -9999) | all' true
same '.choices[0] | has("stop_reason") and has("prompt_logprobs") and has("routed_experts")' true
# The default length; a longer one ends with the context.
post 200 /v1/completions '{"prompt": "In", "temperature": 0, "ignore_eos": true}'
same .usage.completion_tokens 16
post 200 /v1/completions "$(jq --null-input '{prompt: [range(1000)], temperature: 0, ignore_eos: true, max_tokens: 100}')"
same .usage.completion_tokens 24
post 400 /v1/completions '{"prompt": "x", "suffix": "y"}'

# A member that nobody knows is ignored, as by vLLM; it is counted, and the log names it once.
n_unknown() { sed --quiet 's/^baton_dialect_unknown_members_total{dialect="native"} //p' "$WORK/body"; }
expect 200 GET /metrics
before=$(n_unknown)
unknown() { # ROUTE MEMBER MESSAGE: the only line about it
  cp "$WORK/log" "$WORK/body"
  [[ $(jq --slurp --raw-output --arg r "$1" --arg m "$2" '[.[] | select(.event == "request.unknown_member" and
    .route == $r and .member == $m)] | map([.level, .message, has("peer")] | tojson) | join(" ")' "$WORK/body") == \
    "[\"warn\",\"$3\",true]" ]] || fail "$1 $2: $(grep unknown_member "$WORK/log")"
}
for _ in 1 2; do
  post 200 /v1/completions '{"prompt": "x", "max_tokens": 1, "temprature": 0.5}'
  post 200 /detokenize '{"tokens": [1], "qqq\n": 1}'
  post 200 /inference/v1/generate '{"token_ids": [1], "sampling_params": {"max_tokens": 1, "topp": 1}}'
done
unknown /v1/completions temprature "it has no effect; did you mean 'temperature'?"
unknown /detokenize $'qqq\n' 'it has no effect'
unknown /inference/v1/generate sampling_params/topp "it has no effect; did you mean 'top_p'?"
post 200 /v1/completions "$(jq --null-input '{prompt: "x", max_tokens: 1} + ([range(80) | {"unknown-\(.)": 1}] | add)')"
[[ $(grep --count '"event":"request.unknown_member"' "$WORK/log") == 64 ]] || fail "not 64 names were logged"
expect 200 GET /metrics
[[ $(n_unknown) == $((before + 86)) ]] || fail "$(n_unknown) unknown members were counted, $before before"
done_testing
