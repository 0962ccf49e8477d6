#!/usr/bin/env bash
# Weights on a GPU, over the fake driver: served, downloaded, and mapped by another process under a
# lease. Usage: as lib.sh says, and then the path of libfakecuda, and of the other process's.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
HERE=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
FAKE=$(realpath "$4")
FOREIGN=$(realpath "$5")
FIRST=$CHECKPOINTS/step-00000.safetensors
SECOND=$CHECKPOINTS/step-00100.safetensors
HANDLES=/v1/weights/handles

# on_gpu [option...]: a server over the fake, which reports what it left behind.
on_gpu() { FAKECUDA_REPORT=$WORK/report serve_model --cuda-library "$FAKE" "$@"; }
# without an engine: nothing is kept in host memory.
store_on_gpu() {
  FAKECUDA_REPORT=$WORK/report start_server --engine none --manifest "$FIRST" --weights "$FIRST" \
    --weight-version step-0 --cuda-library "$FAKE" "$@"
}

# ends: stops it; nothing of the driver's is left.
ends() {
  rm --force "$WORK/report"
  stop_server
  N_CHECKS=$((N_CHECKS + 1))
  jq --exit-status '.contexts_made > 0 and
    ([.allocations, .mappings, .host_blocks, .streams, .events, .contexts, .modules] | add) == 0' \
    "$WORK/report" >/dev/null || fail "left behind: $(cat "$WORK/report")"
}

# other WHAT [argument...]: the other process.
other() {
  local said
  said=$(timeout 120 "$PYTHON" "$HERE/handles.py" "$URL" "${CLIENT%/*}" "$FOREIGN" "$@") || fail "$1: $said"
  N_CHECKS=$((N_CHECKS + $(sed --quiet 's/.*: \([0-9]*\) checks$/\1/p' <<<"$said")))
}

# The first weights go to the GPU and to the mirror, which generates what it should; so do later ones.
on_gpu --device cuda:0
serves step-00000 step-0
other bytes "$FIRST" "$SECOND"
greedy "In the beginning"
[[ $TEXT == "$(golden step-00100)" ]] || fail "the text is not that of step-00100: $TEXT"
expect 200 GET "/v1/weights"
same .serial 2
other bound

# A HEAD opens no lease, and tells the length of what a GET sends.
expect 200 GET "$HANDLES?lease_s=7"
length=$(header Content-Length)
same .lease_s 7
same '.aliases["lm_head.weight"]' model.embed_tokens.weight
expect 200 DELETE "$HANDLES/$(jq --raw-output .lease_id "$WORK/body")"
expect 200 HEAD "$HANDLES?lease_s=7" --head
[[ $(header Content-Length) == "$length" ]] || fail "HEAD says $(header Content-Length) and not $length"
expect 200 POST /v1/update_weights --header 'Content-Type: application/vnd.safetensors' --data-binary @"$FIRST"
expect 200 GET /v1/status
same .weights.versions_alive 1

# What is asked wrongly.
for query in lease_s=0 lease_s=3601 lease_s=soon lease=1; do expect 400 GET "$HANDLES?$query"; done
post 400 "$HANDLES/renew" '{}'
same .error.param /lease_id
post 400 "$HANDLES/renew" '{"lease_id": "lse-1", "lease_s": 0}'
same .error.param /lease_s
post 400 "$HANDLES/renew" '{"lease_id": "lse-1", "lease": 1}'
post 404 "$HANDLES/renew" '{"lease_id": "lse-1"}'
has "lse-1"
expect 404 DELETE "$HANDLES/lse-1"
expect 404 GET "$HANDLES/lse-1" # a tensor of that name
expect 405 POST "$HANDLES"
expect 405 PUT "$HANDLES/lse-1"

# The server ends while weights are mapped: it says so.
other kept
ends
grep --quiet '"event":"leases.cut"' "$WORK/log" || fail "nothing was said of open leases"

# No more than two versions: an update waits for leases of the last but one.
on_gpu --device cuda:0 --max-versions 2 --pin-timeout 100
other updates_wait "$FIRST" "$SECOND"
ends

# On two GPUs, the second first; chosen by UUID too. Without an engine there is no copy in host
# memory: bytes and checksums come from the GPU.
export FAKECUDA_DEVICES=2
store_on_gpu --device fa6ec0da-0000-4000-8000-000000000001,cuda:0
expect 200 GET "$HANDLES"
same '[.devices[] | "\(.place) \(.uuid[-1:])"] | join(",")' "cuda:1 1,cuda:0 0"
expect 200 DELETE "$HANDLES/$(jq --raw-output .lease_id "$WORK/body")"
ends
store_on_gpu --device cuda:0,cuda:1
other bytes "$FIRST" "$SECOND"
other partial "$SECOND" "$FIRST"
ends

store_on_gpu --device cuda:0
expect 200 GET /v1/weights
cp "$WORK/body" "$WORK/list"
"$PYTHON" - "$URL" "${CLIENT%/*}" "$FIRST" "$WORK/list" <<'P' || fail "downloads differ"
import json, sys
url, client, path, listed = sys.argv[1:]
sys.path.insert(0, client)
import baton
wanted = baton.load_file(path)
rows = json.load(open(listed))["tensors"]
assert {r["name"] for r in rows} == set(wanted) - {"lm_head.weight"}, rows
for row in rows:
    t = wanted[row["name"]]
    assert row["checksum"] == baton.checksum(t.data), row
    assert (row["version"], row["serial"]) == ("step-0", 1), row
    assert baton.request(url, "GET", "/v1/weights/" + row["name"]) == bytes(t.data), row
P
N_CHECKS=$((N_CHECKS + 1))
expect 200 HEAD /v1/weights/model.norm.weight --head
same_length=$(header Content-Length)
[[ $same_length == 256 ]] || fail "HEAD says $same_length bytes"
[[ $(header X-Baton-Serial) == 1 ]] || fail "no serial"
expect 200 GET "/v1/weights?checksums=false"
same '[.tensors[].checksum] | unique | tostring' "[null]"
ends

# A GPU that fails is told, and nothing is sent.
FAKECUDA_FAIL_NTH=1 FAKECUDA_FAIL_CALL=cuIpcGetMemHandle on_gpu --device cuda:0
expect 500 GET "$HANDLES"
same .error.code cuda_error
has cuIpcGetMemHandle
expect 200 GET "$HANDLES"
expect 200 DELETE "$HANDLES/$(jq --raw-output .lease_id "$WORK/body")"
expect 200 POST /v1/update_weights --header 'Content-Type: application/vnd.safetensors' --data-binary @"$SECOND"
expect 200 GET /v1/status
same .weights.versions_alive 1
ends

# Where there is no GPU to share, it says why.
serve_model --cuda-library "$FAKE"
expect 409 GET "$HANDLES"
same .error.code no_gpu
has "--device cpu"
expect 409 HEAD "$HANDLES" --head
stop_server
serve_model --cuda-library "$WORK/libcuda.so.1"
expect 409 GET "$HANDLES"
has "could not be loaded"
expect 404 DELETE "$HANDLES/lse-1"
stop_server

# no_start WORDS [option...]: what cannot start says what is in the way.
no_start() {
  local words=$1
  shift
  if timeout 60 "$BATON" serve --listen 127.0.0.1:0 --model "$MODEL" --weights "$FIRST" "$@" \
    2>"$WORK/body"; then
    fail "$*: it started and ended well"
  fi
  has "$words"
}
no_start "there is no cuda:2; there is cuda:0 (GPU-fa6ec0da" --cuda-library "$FAKE" --device cuda:2
no_start "not available" --cuda-library "$WORK/libcuda.so.1" --device cuda:0
FAKECUDA_MEMORY=1000000 no_start "cuda:0 has 1000000" --cuda-library "$FAKE" --device cuda:0
FAKECUDA_MEMORY=1840000 no_start "are available" --cuda-library "$FAKE" --device cuda:0
FAKECUDA_FAIL_NTH=1 FAKECUDA_FAIL_CALL=cuDevicePrimaryCtxRetain no_start cuDevicePrimaryCtxRetain \
  --cuda-library "$FAKE" --device cuda:0

# starts_or_says: one start and stop, in which a call of the driver fails; whatever it is, nothing is
# left, and a server that cannot start says why.
starts_or_says() {
  local rc=0
  : >"$WORK/log"
  rm --force "$WORK/report"
  FAKECUDA_REPORT=$WORK/report "$BATON" serve --listen 127.0.0.1:0 --model "$MODEL" --weights "$FIRST" \
    --cuda-library "$FAKE" --device cuda:0 2>"$WORK/log" &
  SERVER_PID=$!
  while kill -0 "$SERVER_PID" 2>/dev/null; do
    if grep --quiet '"event":"serving"' "$WORK/log"; then
      stop_server
      return
    fi
    sleep 0.01
  done
  wait "$SERVER_PID" || rc=$?
  SERVER_PID=
  ((rc == 1 || rc == 2)) || fail "call $FAKECUDA_FAIL_NTH of the driver: the server ended with $rc"
  grep --quiet '^baton: .*CUDA_ERROR_UNKNOWN (999)' "$WORK/log" || fail "it does not say what failed"
}

# Every call from start to stop, in turn; the last round is without a failure.
export FAKECUDA_FAIL_NTH=1
n_refused=0
while true; do
  starts_or_says
  N_CHECKS=$((N_CHECKS + 1))
  jq --exit-status '([.allocations, .mappings, .host_blocks, .streams, .events, .contexts, .modules] |
    add) == 0' "$WORK/report" >/dev/null || fail "call $FAKECUDA_FAIL_NTH: left $(cat "$WORK/report")"
  if grep --quiet '^baton: ' "$WORK/log"; then n_refused=$((n_refused + 1)); fi
  ((FAKECUDA_FAIL_NTH <= $(jq .calls "$WORK/report"))) || break
  FAKECUDA_FAIL_NTH=$((FAKECUDA_FAIL_NTH + 1))
done
((n_refused > 10 && FAKECUDA_FAIL_NTH > n_refused)) || fail "$n_refused of $FAKECUDA_FAIL_NTH calls refused"

done_testing
