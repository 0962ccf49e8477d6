#!/usr/bin/env bash
# Trainers that use prime-rl's API: a directory per step, adapters by name, and refusals.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

# what [JSON]: of a POST without a body, and with one.
none() { expect "$1" POST "$2"; }
directory=$WORK/steps
mkdir "$directory" "$directory/"{empty,step_1,step_2}
cp "$CHECKPOINTS/step-00100.safetensors" "$directory/step_1/model.safetensors"
cp "$CHECKPOINTS/step-01500.safetensors" "$directory/step_2/model.safetensors"
touch "$directory/step_1/NCCL_READY"

serve_model --allow-path "$directory" --allow-path "$MODEL/adapters"
expect 200 GET /health
expect 200 GET /liveness
same .status ok
expect 200 GET /v1/models
same '.data[0].id' kjv-qwen3-1m
post 400 /init_broadcaster '{"host": "10.0.0.5", "port": 29501, "rank_offset": 0, "inference_world_size": 1,
  "timeout": 1200, "quantize_in_weight_transfer": false}'
has 'filesystem broadcast'

# A step: frozen, replaced, resumed; again and again, as its client repeats what fails.
step=1
for golden in step-00100 step-01500; do
  for _ in 1 2; do none 200 '/pause?mode=keep&clear_cache=false' && same .status paused; done
  for _ in 1 2; do
    post 200 /update_weights "{\"weight_dir\": \"$directory/step_$step\"}"
    same '.status, length' $'ok\n1'
  done
  for _ in 1 2; do none 200 /resume && same .status resumed; done
  greedy "In the beginning"
  N_CHECKS=$((N_CHECKS + 1))
  [[ $TEXT == "$(golden $golden)" ]] || fail "the text is not that of $golden: $TEXT"
  step=$((step + 1))
done

# What is refused changes nothing; only what a repetition may mend is told by a 404 or a 5xx.
post 400 /update_weights '{"weight_dir": null}'
same .error.code 400
has 'broadcaster'
post 400 /update_weights '{"weight_dir": 5}'
for missing in "$directory/none" "$directory/empty"; do
  post 404 /update_weights "{\"weight_dir\": \"$missing\"}"
  same .error.code 404
done
post 403 /update_weights '{"weight_dir": "/etc"}'
greedy "In the beginning"
[[ $TEXT == "$(golden step-01500)" ]] || fail "a refusal changed the weights: $TEXT"

# One name, a new path at every step.
for adapter in shout rslora shout; do
  post 200 /load_lora_adapter "{\"lora_name\": \"policy\", \"lora_path\": \"$MODEL/adapters/$adapter\"}"
  same '.status, .loaded_adapters.policy' "ok
$MODEL/adapters/$adapter"
  expect 200 GET /v1/models
  same '[.data[].id] | join(" ")' "kjv-qwen3-1m $MODEL policy"
done
post 403 /load_lora_adapter '{"lora_name": "policy", "lora_path": "/etc"}'
post 404 /unload_lora_adapter '{"lora_name": "nobody"}'
same '.success, .error_message == .message' $'false\ntrue'
post 200 /unload_lora_adapter '{"lora_name": "policy"}'
same '.loaded_adapters | length' 0
stop_server

# By itself it has the pauses that it shares with vLLM; switched off it has nothing.
serve_model --compat prime-rl --allow-path "$directory"
none 200 '/pause?mode=keep&clear_cache=false'
post 200 /update_weights "{\"weight_dir\": \"$directory/step_1\"}"
none 200 /resume
serves step-00100 "$(curl --silent "$URL/v1/status" | jq --raw-output .weights.weight_version)"
expect 404 POST /sleep
stop_server
serve_model --compat vllm
expect 404 GET /liveness
post 400 /update_weights '{"weight_dir": "/"}'
done_testing
