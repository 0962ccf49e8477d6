#!/usr/bin/env bash
# Sleep and wake: memory is released and taken again, and exactly the same weights are served.
# Usage: sleep.sh BATON FIXTURES CLIENT_DIR FAKECUDA
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
FAKECUDA=$4
update() { post "$1" /v1/update_weights "{\"path\": \"$CHECKPOINTS/$2.safetensors\", \"weight_version\": \"$3\"}"; }
sums() { expect 200 GET "/v1/weights?checksums=true" && jq --compact-output .weights "$WORK/body"; }
gauge() { call GET /metrics && sed --quiet "s/^$1 //p" "$WORK/body"; }

walk() {
  timeout 250 "$PYTHON" "$(dirname "$0")/sleep.py" "$URL" "$CHECKPOINTS" "$@" || fail "walk $*"
  N_CHECKS=$((N_CHECKS + 1))
}

# In host memory: the weights stay where they are and say so; the KV cache really goes.
serve_model --allow-path "$CHECKPOINTS" --kv-cache 512MiB
post 400 /v1/sleep '{"level": 3}'
post 400 /v1/sleep '{"tags": ["scheduler"]}'
same .error.param /tags/0
post 400 /v1/wake '{"level": 1}'
post 200 /v1/generate '{"token_ids": [40], "sampling_params": {"max_tokens": 200, "ignore_eos": true, "n": 64}}'
BEFORE=$(gauge process_resident_memory_bytes)
post 200 /v1/sleep '{"tags": ["kv_cache"]}'
same '.kv_cache + " " + .weights' 'released ready'
same '.freed.weights_device + .freed.weights_host' 0
FREED=$(jq .freed.kv_cache "$WORK/body")
AFTER=$(gauge process_resident_memory_bytes)
((FREED > 8 << 20)) || fail "only $FREED bytes of KV were freed"
((BEFORE - AFTER > FREED / 2)) || fail "$FREED bytes freed, but $BEFORE became $AFTER resident"
expect 503 GET /health/ready
same .reason asleep
expect 200 GET /health/live
post 503 /v1/generate '{"token_ids": [40], "sampling_params": {}}'
same .error.code asleep
expect 200 POST /v1/reset_cache
post 200 /v1/sleep '{"tags": ["kv_cache"]}'
same .freed.kv_cache 0
post 200 /v1/wake '{}'
same .asleep false
expect 200 GET /health/ready
serves step-00000 step-0
BEFORE=$(sums)
for _ in 1 2 3; do
  post 200 /v1/sleep '{"level": 1}'
  same '.freed.weights_device + .freed.weights_host' 0
  same '.kept > 1000000' true
  update 409 step-00100 no
  has 'weights asleep'
  has 'wake(weights)'
  post 409 /v1/update_weights/start '{}'
  expect 503 GET "/v1/weights?checksums=true"
  post 200 /v1/wake '{"tags": ["weights"]}'
  same '.weights + " " + .kv_cache' 'ready released'
  post 503 /v1/generate '{"token_ids": [40], "sampling_params": {}}'
  post 200 /v1/wake '{"tags": ["kv_cache"]}'
  serves step-00000 step-0
  [[ $(sums) == "$BEFORE" ]] || fail "the weights are not what they were"
done

# As colocated trainers do: drop, wake the weights' memory, push, reset, wake the cache.
post 200 /v1/sleep '{"level": 2}'
same '.weights + " " + (.freed.weights_host > 1000000 | tostring)' 'dropped true'
expect 200 GET /v1/status
same '.weights.state + " " + (.sleep.asleep | tostring)' 'dropped true'
post 200 /v1/wake '{"tags": ["weights"]}'
same .weights dropped
post 503 /v1/update_weights "{\"path\": \"$CHECKPOINTS/step-00100.safetensors\", \"partial\": true}"
update 200 step-00100 step-100
expect 200 POST /v1/reset_cache
post 200 /v1/wake '{"tags": ["kv_cache"]}'
same .asleep false
serves step-00100 step-100

# An open update keeps the weights awake; the cache may go.
post 200 /v1/update_weights/start '{}'
ID=$(jq --raw-output .update_id "$WORK/body")
post 409 /v1/sleep '{"level": 2}'
has 'an update is open'
post 200 /v1/sleep '{"tags": ["kv_cache"]}'
post 200 /v1/update_weights/abort "{\"update_id\": \"$ID\"}"
post 200 /v1/wake '{}'
walk 400 7
stop_server

# Where there are GPUs the weights leave them.
export FAKECUDA_DEVICES=2
serve_model --allow-path "$CHECKPOINTS" --cuda-library "$FAKECUDA" --device cuda:0,cuda:1
BEFORE=$(sums)
expect 200 GET "/v1/weights/handles?lease_s=60"
LEASE=$(jq --raw-output .lease_id "$WORK/body")
post 409 /v1/sleep '{"level": 1}'
has "$LEASE"
serves step-00000 step-0
expect 200 DELETE "/v1/weights/handles/$LEASE"
for _ in 1 2 3; do
  post 200 /v1/sleep '{"level": 1, "tags": ["weights"]}'
  same '.freed.weights_device > 2000000' true
  post 200 /v1/wake '{}'
  same '.restored > 2000000' true
  serves step-00000 step-0
  [[ $(sums) == "$BEFORE" ]] || fail "the weights are not what they were"
done
post 200 /v1/sleep '{"level": 2}'
update 200 step-00100 step-100
post 200 /v1/wake '{}'
serves step-00100 step-100
done_testing
