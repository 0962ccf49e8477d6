#!/usr/bin/env bash
# For the tests of models: cases of golden.json.

# golden_case DIR I: case I of DIR's goldens through /v1/generate, prompt and output.
golden_case() {
  local worst
  jq --argjson i "$2" '.cases[$i]' "$1/golden.json" >"$WORK/case"
  post 200 /v1/generate "$(jq '{token_ids: .prompt_token_ids, sampling_params: {temperature: 0, ignore_eos: true,
    max_tokens: (.greedy_token_ids | length), logprobs: 1, prompt_logprobs: 0}}' "$WORK/case")"
  same '.choices[0].token_ids | tojson' "$(jq --raw-output '.greedy_token_ids | tojson' "$WORK/case")"
  worst=$(jq --slurpfile want "$WORK/case" '$want[0] as $w
    | [.choices[0].logprobs.content[].logprob] as $out
    | [.prompt_logprobs, $w.prompt_token_ids] | transpose | .[1:] | map(.[0][.[1] | tostring].logprob) as $prompt
    | [$out + $prompt, $w.greedy_logprobs + $w.prompt_logprobs[1:]] | transpose
    | map(if .[0] == null or .[1] == null then 99 else .[0] - .[1] | fabs end) | max' "$WORK/body")
  awk -v w="$worst" 'BEGIN { exit !(w <= 1e-4) }' || fail "$1, case $2: logprobs differ by $worst"
}
