#!/usr/bin/env bash
# Two vLLM engines, one on each GPU, and baton in front of them at http://127.0.0.1:8700.
# Usage: start.sh MODEL      (a directory or a name on Hugging Face; ends all three with Ctrl-C)
# VLLM_OPTIONS: more options of vllm serve.
set -euo pipefail
model=${1:?usage: start.sh MODEL}
here=$(dirname "$(realpath "$0")")
read -ra options <<<"${VLLM_OPTIONS:-}"
pids=()

end() {
  kill "${pids[@]}" 2>/dev/null || true
  wait
}
trap end EXIT

for i in 0 1; do
  # Its routes for updates exist in development mode only.
  CUDA_VISIBLE_DEVICES=$i VLLM_SERVER_DEV_MODE=1 vllm serve "$model" --host 127.0.0.1 --port "800$((i + 1))" \
    --served-model-name policy --weight-transfer-config '{"backend": "nccl"}' \
    ${options[@]+"${options[@]}"} &
  pids+=($!)
done
# It waits for its engines: /readyz is true when one of them (min_ready) serves.
baton serve --config "$here/baton.json" &
pids+=($!)
wait -n # when one of the three ends, all do
