#!/usr/bin/env bash
# CUDA IPC handles without a GPU: errors in the handles are reported first, then the missing GPU.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
IPC=$(realpath "$2")/torch-ipc
UUID=11111111-2222-3333-4444-000000000000
serve_model

untouched() {
  expect 200 GET /v1/status
  same .weights.serial 1
  same .weights.weight_version step-0
  same .weights.state ready
  same .update null
}

# info FILE [I]: what a trainer posts, less what baton does not take.
info() {
  jq --compact-output --argjson i "${2:-0}" '.requests[$i] | (.kwargs // .).update_info | del(.metadata_by_gpu)' "$IPC/$1.json"
}

# judged STATUS CODE PARAM FILE [JQ_FILTER]: the fixture, changed, is answered so.
judged() {
  post "$1" /v1/update_weights "$(info "$4" | jq --compact-output "${5:-.}")"
  same .error.code "$2"
  same '.error.param // ""' "$3"
  same .error.retryable false
}

# Every container that a trainer sends is understood, to the point where a GPU is wanted.
for file in skyrl_packed_1gpu skyrl_packed_4gpu skyrl_per_gpu_metadata vllm_unpacked_func_args vllm_unpacked_400 \
  vllm_packed_args_only; do
  judged 409 no_gpu /ipc_handles_pickled "$file"
  has "this server has no CUDA: libcuda.so.1 could not be loaded"
  has "$UUID"
done
post 409 /v1/update_weights "$(info vllm_packed_args_only 1)"
same .error.code no_gpu
same .error.type conflict_error
untouched

# Whatever means harm is a bad request that says why.
jq --compact-output --slurpfile h "$IPC/hostile.json" \
  '.requests[0].kwargs.update_info | .ipc_handles_pickled = $h[0].cases[].payload_b64' \
  "$IPC/skyrl_packed_1gpu.json" >"$WORK/hostile"
n=$(wc --lines <"$WORK/hostile")
((n > 50)) || fail "only $n hostile inputs"
while IFS= read -r hostile; do
  printf '%s' "$hostile" >"$WORK/request"
  expect 400 POST /v1/update_weights --header 'Content-Type: application/json' --data-binary @"$WORK/request"
  same .error.code bad_request
  same .error.param /ipc_handles_pickled
done <"$WORK/hostile"
untouched

# Columns that disagree with the handles.
judged 400 bad_request /ipc_handles_pickled skyrl_packed_1gpu '.dtype_names[1] = "float16"'
has "k_proj"
judged 400 bad_request /ipc_handles_pickled skyrl_packed_1gpu '.shapes[2] = [33] | .sizes[2] = 33'
has "5184 bytes"
judged 400 bad_request /ipc_handles_pickled skyrl_packed_1gpu '.shapes[2] = [31] | .sizes[2] = 31'
has "make only 5182"
judged 400 bad_request /sizes/2 skyrl_packed_1gpu '.sizes[2] = 31'
judged 400 bad_request /packed skyrl_packed_1gpu '.packed = false'
judged 400 bad_request /packed vllm_unpacked_func_args '.packed = true'
judged 400 bad_request /tensor_sizes vllm_packed_args_only '.tensor_sizes = [8192]'
judged 400 bad_request /tensor_sizes/1 vllm_packed_args_only '.tensor_sizes[1] = 8'
judged 400 bad_request /ipc_handles_pickled vllm_packed_args_only '.shapes[0] = [8192, 1024] | .tensor_sizes[0] = 8388608'
judged 400 bad_request /ipc_handles_pickled vllm_unpacked_func_args '.names |= .[1:] | .shapes |= .[1:] | .dtype_names |= .[1:]'
has "7 handles for 6 tensors"
judged 400 bad_request /ipc_handles_pickled vllm_unpacked_func_args '.shapes[4] = [2, 3, 5, 4]'
has "model.conv.weight"
judged 400 bad_request /ipc_handles_pickled vllm_unpacked_func_args '.dtype_names[6] = "uint64"'
has "model.buffer_ids"
judged 400 bad_request /ipc_handles_pickled vllm_unpacked_func_args '.ipc_handles_pickled = 7'
judged 400 bad_request /names vllm_packed_args_only 'del(.names) | .packed = null'

# Plain JSON.
handle=$(head --bytes=64 /dev/zero | base64 --wrap=0)
plain() { # STATUS CODE PARAM JQ_FILTER
  judged "$1" "$2" "$3" skyrl_packed_1gpu "del(.ipc_handles_pickled) | .ipc_handles =
    {\"GPU-$UUID\": {handle: \"$handle\", offset: 512, nbytes: 5184, event: null}} | $4"
}
plain 409 no_gpu /ipc_handles .
plain 409 no_gpu /ipc_handles ".ipc_handles[].event = \"$handle\""
plain 400 bad_request /ipc_handles '.ipc_handles[].nbytes = 5186'
plain 400 bad_request /ipc_handles '.ipc_handles[].nbytes = 5182'
plain 400 bad_request /ipc_handles '.ipc_handles = {}'
plain 400 bad_request "/ipc_handles/GPU-$UUID/handle" '.ipc_handles[].handle = "AAAA"'
plain 400 bad_request "/ipc_handles/GPU-$UUID/nbytes" 'del(.ipc_handles[].nbytes)'
plain 400 bad_request /ipc_handles '.ipc_handles = {"0": {}}'
has "'0' is not the UUID"

# One source, whichever it is.
plain 400 bad_request /ipc_handles '.shm = {name: "/x", nbytes: 5184}'
plain 400 bad_request /ipc_handles_pickled '.ipc_handles_pickled = "gAROLg=="'
judged 400 bad_request "" skyrl_packed_1gpu '.ipc_handles_pickled = null'
has "exactly one source"
judged 400 bad_request /tensor_sizes skyrl_packed_1gpu 'del(.ipc_handles_pickled) | .tensor_sizes = [1] | .path = "/x"'
untouched

# A list for each GPU (SkyRL's name for it is in the fixture): each GPU's bucket by its own list only.
PEER=11111111-2222-3333-4444-000000000001
metadata() { # STATUS CODE PARAM JQ_FILTER
  jq --compact-output ".requests[0].kwargs.update_info | $4" "$IPC/skyrl_per_gpu_metadata.json" >"$WORK/request"
  expect "$1" POST /v1/update_weights --header 'Content-Type: application/json' --data-binary @"$WORK/request"
  same .error.code "$2"
  same '.error.param // ""' "$3"
}
renamed='.per_gpu = .metadata_by_gpu | del(.metadata_by_gpu)'
metadata 409 no_gpu /ipc_handles_pickled .
metadata 409 no_gpu /ipc_handles_pickled "$renamed"
metadata 409 no_gpu /ipc_handles_pickled "$renamed | .per_gpu |= with_entries(.key |= \"GPU-\" + ascii_upcase)"
metadata 409 no_gpu /ipc_handles_pickled 'del(.names, .dtype_names, .shapes, .sizes)'
metadata 409 no_gpu /ipc_handles_pickled ".names = [\"of rank 0, for nobody\"]"
metadata 409 no_gpu /ipc_handles_pickled "del(.metadata_by_gpu[\"$PEER\"])" # whose server is another one
metadata 400 bad_request /metadata_by_gpu "$renamed | .metadata_by_gpu = .per_gpu"
metadata 400 bad_request /metadata_by_gpu '.metadata_by_gpu = {}'
metadata 400 bad_request /metadata_by_gpu '.metadata_by_gpu = []'
metadata 400 bad_request /metadata_by_gpu '.metadata_by_gpu |= with_entries(.key = .key[:-1] + "f")'
has "has no list for it"
metadata 400 bad_request "/metadata_by_gpu/$PEER/shapes/1" ".metadata_by_gpu[\"$PEER\"].shapes[1] = [-1]"
metadata 400 bad_request "/metadata_by_gpu/$PEER/sizes/1" ".metadata_by_gpu[\"$PEER\"].sizes[1] = 31"
metadata 400 bad_request "/metadata_by_gpu/$PEER/nmaes" ".metadata_by_gpu[\"$PEER\"].nmaes = []"
metadata 400 bad_request "/metadata_by_gpu/$PEER/names/1" ".metadata_by_gpu[\"$PEER\"].names[1] = \"l.0.experts.2.w\""
has "named twice, at /metadata_by_gpu/$PEER/names/0 and at /metadata_by_gpu/$PEER/names/1"
metadata 400 bad_request /ipc_handles_pickled ".metadata_by_gpu[\"$PEER\"] |= (.shapes[1] = [5, 8] | .sizes[1] = 40)"
has "GPU $PEER"
metadata 400 bad_request /ipc_handles_pickled ".metadata_by_gpu[\"$PEER\"].dtype_names[0] = \"float16\""
metadata 400 bad_request /tensor_sizes '.tensor_sizes = [64, 64]'
metadata 400 bad_request /checksums '.checksums = [null, null]'
metadata 400 bad_request /plan_id '.plan_id = "x"'
metadata 400 bad_request /metadata_by_gpu 'del(.ipc_handles_pickled) | .path = "/x"'
judged 400 bad_request /ipc_handles_pickled skyrl_packed_4gpu '.shapes[2] = [33] | .sizes[2] = 33'
has "if the GPUs hold different tensors, list them in per_gpu"

# Several buckets; each is judged where it stands.
several() { # STATUS CODE PARAM JQ_FILTER
  jq --compact-output --null-input --slurpfile a "$IPC/vllm_packed_args_only.json" --slurpfile b "$IPC/skyrl_per_gpu_metadata.json" \
    "{buckets: [\$a[0].requests[].update_info, \$b[0].requests[0].kwargs.update_info]} | $4" >"$WORK/request"
  expect "$1" POST /v1/update_weights --header 'Content-Type: application/json' --data-binary @"$WORK/request"
  same .error.code "$2"
  same '.error.param // ""' "$3"
}
several 409 no_gpu /buckets/0/ipc_handles_pickled .
several 409 no_gpu /buckets/0/ipc_handles_pickled '.placement = "sharded" | .update_id = null'
several 400 bad_request /placement '.placement = "mirrored"'
several 400 bad_request /buckets/1/ipc_handles_pickled '.buckets[1].shapes[0] = [1048576] | .buckets[1].tensor_sizes = null'
several 400 bad_request /buckets/1/tensor_sizes/0 '.buckets[1].tensor_sizes = [601]'
several 400 bad_request /buckets/1/names/0 '.buckets[1].names[0] = "a.weight"'
has "named twice, at /buckets/0/names/0 and at /buckets/1/names/0"
several 400 bad_request "/buckets/2/metadata_by_gpu/$PEER/names/1" ".buckets[2].metadata_by_gpu[\"$PEER\"].names[1] = \"l.0.experts.2.w\""
several 400 bad_request /buckets/2 '.buckets[2].ipc_handles_pickled = null'
several 400 bad_request /buckets/2/shm '.buckets[2].shm = {}'
several 400 bad_request /buckets '.buckets = []'
several 400 bad_request /buckets '.buckets = {}'
several 400 bad_request /names '.names = ["x"]'
several 400 bad_request /buckets '.shm = {name: "/x", nbytes: 1}'
untouched

# In a session too, which goes on.
post 200 /v1/update_weights/start '{"weight_version": "step-100"}'
id=$(jq --raw-output .update_id "$WORK/body")
judged 409 no_gpu /ipc_handles_pickled skyrl_packed_1gpu ". + {update_id: \"$id\"}"
judged 400 bad_request /placement skyrl_packed_1gpu ". + {update_id: \"$id\", placement: \"replicated\"}"
has "may only be set at"
expect 200 POST "/v1/update_weights?update_id=$id" --header 'Content-Type: application/vnd.safetensors' \
  --data-binary @"$CHECKPOINTS/step-00100.safetensors"
post 200 /v1/update_weights/finish "{\"update_id\": \"$id\"}"
serves step-00100 step-100
done_testing
