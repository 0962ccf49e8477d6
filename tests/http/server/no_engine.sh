#!/usr/bin/env bash
# A build without the engine (-DBATON_ENGINE=OFF): what it refuses, with the package that has it, and what it answers as a
# store. What it does in front of engines: tests/http/fleet/.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

[[ $("$BATON" --version) == "baton "*" (baton-control: without the embedded engine)" ]] || fail "$("$BATON" --version)"
! "$BATON" serve --help | grep --quiet '^  --kv-cache' || fail "--help has an option of the engine"
# What completion offers: nothing of the engine either.
! "$BATON" completion bash | grep --quiet -e '--kv-cache' || fail "completion has an option of the engine"

# refused WORD ARG...: baton serve ends with 2, names the word, and says what to install.
refused() {
  local word=$1 rc=0
  shift
  timeout 10 "$BATON" serve "$@" >"$WORK/body" 2>&1 || rc=$?
  ((rc == 2)) || fail "serve $*: status $rc"
  has "baton: $word: this build of baton has no engine (baton-control): install baton-server"
  N_CHECKS=$((N_CHECKS + 1))
}
refused --engine "$MODEL"
refused --engine --engine embedded --model "$MODEL"
refused --engine --check "$MODEL"
has "--engine none"
has "--upstream"
refused --max-loras --max-loras 3 --engine none --manifest "$CHECKPOINTS/step-00000.safetensors"
refused --logprobs-mode --logprobs-mode raw_logprobs --upstream http://127.0.0.1:1
BATON_KV_CACHE=1GiB refused BATON_KV_CACHE --engine none

start_server --engine none --manifest "$CHECKPOINTS/step-00000.safetensors" --weights "$CHECKPOINTS/step-00100.safetensors"
expect 200 GET '/v1/weights?checksums=false'
expect 200 GET /v1/status
same .engine null
same .adapters null
expect 200 GET /v1/models
same '.data | length' 0
expect 404 GET /v1/models/any
expect 200 GET /v1/generations
same '.generations | length' 0
expect 200 GET /metrics
for path in /v1/generate /v1/completions /v1/chat/completions /v1/rollouts /tokenize /detokenize \
  /v1/load_lora_adapter /v1/unload_lora_adapter; do
  post 409 "$path" '{"model": "any"}'
  has baton-server
done
post 400 /generate '{"text": "any"}' # SGLang's form
has baton-server
expect 409 GET /v1/lora_adapters
same .error.code no_engine
expect 409 POST '/v1/load_lora_adapter?lora_name=a' --header 'Content-Type: application/vnd.safetensors' \
  --data-binary @"$CHECKPOINTS/step-00100.safetensors"
expect 200 POST '/v1/update_weights?weight_version=one' --header 'Content-Type: application/vnd.safetensors' \
  --data-binary @"$CHECKPOINTS/step-00000.safetensors"
same '.adapters | length' 0
done_testing
