#!/usr/bin/env bash
# Requests and replies in the forms that clients of OpenAI, vLLM and TRL use: logprobs, limits.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
PART() { timeout 280 "$PYTHON" -B "$(dirname "$0")/surface.py" "$URL" "$WORK" "$@" || fail "$*"
  N_CHECKS=$((N_CHECKS + $(cat "$WORK/n_checks"))); }

serve_model --allow-path "$MODEL"
PART raw "$MODEL"
stop_server
serve_model --logprobs-mode processed_logprobs --max-logprobs 20
PART processed
stop_server
start_server --engine none --manifest "$MODEL/checkpoints/step-00000.safetensors"
expect 200 GET '/server_info?config_format=json'
same '.vllm_config | .model_config.logprobs_mode, .lora_config, .weight_transfer_config | tojson' $'null\nnull\nnull'
done_testing
