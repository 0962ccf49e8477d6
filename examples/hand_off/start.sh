#!/usr/bin/env bash
# Two vLLM engines, one on each GPU, and a baton which receives updates on the first of these GPUs and hands each version
# over to both engines. It ends with baton; an engine that ends may be started again by hand.
# Usage: start.sh MODEL      (a directory with safetensors; Ctrl-C ends all three)
# ENGINE_PORT: of the first engine, 8001; the other takes the next one. VLLM_OPTIONS: more options of vllm serve. Those of
# baton serve have variables too: BATON_LISTEN, BATON_NO_AUTH_CIDR, …
set -euo pipefail
if (($# != 1)); then
  echo "usage: start.sh MODEL   (a directory with safetensors)" >&2
  exit 2
fi
model=$1
port=${ENGINE_PORT:-8001}
read -ra options <<<"${VLLM_OPTIONS:-}"
pids=()

end() {
  kill "${pids[@]}" 2>/dev/null || true
  wait
}
trap end EXIT

upstreams=()
for i in 0 1; do
  # Its routes for updates exist in development mode only, and it takes CUDA IPC handles as a pickle.
  CUDA_VISIBLE_DEVICES=$i VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_INSECURE_SERIALIZATION=1 vllm serve "$model" \
    --host 127.0.0.1 --port "$((port + i))" --served-model-name policy \
    --weight-transfer-config '{"backend": "ipc"}' ${options[@]+"${options[@]}"} &
  pids+=($!)
  upstreams+=(--upstream "http://127.0.0.1:$((port + i)),vllm")
done
# One engine is enough to serve, and to end an update; the other one gets the version once it answers.
baton serve "${upstreams[@]}" --min-ready 1 --stage cuda:0 --model "$model" --weights none --allow-path "$model" &
pids+=($!)
wait $! # the engines end with it
