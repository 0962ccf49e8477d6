#!/usr/bin/env bash
# --engine none: a store without generation.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
start_server --engine none --manifest "$CHECKPOINTS/step-00000.safetensors" --weights none
expect 200 GET /health
expect 503 GET /readyz
same .reason no_engine
post 409 /v1/generate '{"token_ids": [1], "sampling_params": {}}'
same .error.code no_engine
has "--engine none"
expect 503 GET /v1/weights
same .error.code no_weights
expect 200 POST '/v1/update_weights?weight_version=one' --header 'Content-Type: application/vnd.safetensors' \
  --data-binary @"$CHECKPOINTS/step-00100.safetensors"
expect 200 GET '/v1/weights?checksums=false'
same .weight_version one
same '.tensors[0].checksum' null
stop_server

columns "$CHECKPOINTS/step-00000.safetensors" | jq '{names, dtypes, shapes, aliases: {"lm_head.weight": "model.embed_tokens.weight"}}' >"$WORK/manifest.json"
start_server --engine none --manifest "$WORK/manifest.json"
expect 200 POST '/v1/update_weights?weight_version=one' --header 'Content-Type: application/vnd.safetensors' \
  --data-binary @"$CHECKPOINTS/step-00100.safetensors"
expect 200 GET /v1/weights/lm_head.weight
[[ $(header X-Baton-Shape) == 1024,128 ]] || fail "an alias gives its target's bytes"
done_testing
