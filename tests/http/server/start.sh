#!/usr/bin/env bash
# Starting: configuration by flag, environment and file; refusals that name the wrong option; SIGTERM.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

refused() { # TEXT OPTION...
  local text=$1 rc=0
  shift
  timeout 60 "$BATON" serve "$@" >"$WORK/body" 2>&1 || rc=$?
  ((rc == 1 || rc == 2)) || fail "baton serve $* ended with $rc: $(cat "$WORK/body")"
  has "$text"
}
refused '--model' --listen 127.0.0.1:0
refused '--model' --modle "$MODEL"
refused 'insecure' --model "$MODEL" --listen 0.0.0.0:0
refused '70000' --model "$MODEL" --listen 127.0.0.1:70000
refused 'max-versions' --model "$MODEL" --max-versions 1
refused 'config.json' --model "$WORK"
refused 'nothing.safetensors' --model "$MODEL" --weights "$WORK/nothing.safetensors" --listen 127.0.0.1:0
"$BATON" serve --help >"$WORK/body"
has BATON_GENERATE_CONCURRENCY
"$BATON" --version >"$WORK/body"
has 'baton '

# Flag over environment over file.
jq --null-input '{generate_concurrency: 7, detokenize_concurrency: 3, max_num_seqs: 9}' >"$WORK/config.json"
BATON_GENERATE_CONCURRENCY=8 BATON_MAX_NUM_SEQS=11 serve_model --config "$WORK/config.json" --generate-concurrency=9
expect 200 GET /v1/status
same .admission.generate.concurrency 9
same .admission.detokenize.concurrency 3
stop_server INT
printf '{"generate_concurency": 7}' >"$WORK/config.json"
refused generate_concurrency --config "$WORK/config.json" --model "$MODEL"

# The name of a directory that is given as "..": its own.
start_server --model "$CHECKPOINTS/.." --weights none
expect 200 GET /v1/models
same '.data[0].id' "$(basename "$MODEL")"
stop_server

# No weights: live, not ready, and a generate says why; the first update makes it ready.
start_server --model "$MODEL" --weights none
expect 200 GET /health
expect 503 GET /health/ready
same .reason no_weights
post 503 /inference/v1/generate '{"token_ids": [1], "sampling_params": {"max_tokens": 1}}'
has committed
expect 200 POST '/v1/update_weights?weight_version=first' --header 'Content-Type: application/vnd.safetensors' \
  --data-binary @"$CHECKPOINTS/step-01500.safetensors"
expect 200 GET /health/ready
serves step-01500 first
done_testing
