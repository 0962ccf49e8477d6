#!/usr/bin/env bash
# Whole updates from files beneath --allow-path; .. and symbolic links cannot leave it.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
mkdir "$WORK/allowed" "$WORK/allowed/sharded" "$WORK/outside"
cp "$CHECKPOINTS/step-00100.safetensors" "$WORK/allowed/"
cp "$CHECKPOINTS/step-01500.safetensors" "$WORK/allowed/sharded/model-00001-of-00001.safetensors"
cp "$CHECKPOINTS/step-01500.safetensors" "$WORK/outside/secret.safetensors"
ln --symbolic "$WORK/outside/secret.safetensors" "$WORK/allowed/link.safetensors"
ln --symbolic "$WORK/outside" "$WORK/allowed/dir"
columns "$CHECKPOINTS/step-01500.safetensors" | jq '{metadata: {total_size: 1837824},
  weight_map: (.names | map({(.): "model-00001-of-00001.safetensors"}) | add)}' \
  >"$WORK/allowed/sharded/model.safetensors.index.json"
cd "$WORK" && serve_model --allow-path ./allowed

post 200 /v1/update_weights '{"path": "step-00100.safetensors", "weight_version": "step-100"}'
serves step-00100 step-100
post 200 /v1/update_weights "$(jq --null-input --arg p "$WORK/allowed/sharded" '{path: $p, weight_version: "step-1500"}')"
serves step-01500 step-1500

for path in ../outside/secret.safetensors link.safetensors dir/secret.safetensors "$WORK/outside/secret.safetensors" \
  sharded/../../outside/secret.safetensors /etc/passwd; do
  post 403 /v1/update_weights "$(jq --null-input --arg p "$path" '{path: $p}')"
  same .error.param /path
done
post 404 /v1/update_weights '{"path": "nothing.safetensors"}'
mkfifo "$WORK/allowed/fifo.safetensors"
post 422 /v1/update_weights '{"path": "fifo.safetensors"}'
printf 'short' >"$WORK/allowed/short.safetensors"
post 400 /v1/update_weights '{"path": "short.safetensors"}'
post 400 /v1/update_weights '{"path": "step-00100.safetensors", "shm": {"name": "/x", "nbytes": 1}}'
# A file that lacks tensors: nothing else says which they are.
"$PYTHON" -c 'import struct, sys
head = b"""{"model.norm.weight": {"dtype": "BF16", "shape": [128], "data_offsets": [0, 256]}}"""
sys.stdout.buffer.write(struct.pack("<Q", len(head)) + head + bytes(256))' >"$WORK/allowed/norm.safetensors"
post 422 /v1/update_weights '{"path": "norm.safetensors"}'
same .error.code incomplete_update
same .error.param /path
expect 422 POST /v1/update_weights --header 'Content-Type: application/vnd.safetensors' \
  --data-binary @"$WORK/allowed/norm.safetensors"
same .error.code incomplete_update
same '.error.param // ""' ""
serves step-01500 step-1500
stop_server

serve_model
post 403 /v1/update_weights "$(jq --null-input --arg p "$WORK/allowed/step-00100.safetensors" '{path: $p}')"
has allow-path
done_testing
