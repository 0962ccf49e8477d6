#!/usr/bin/env bash
# POST /v1/preflight over the fake driver, with a trainer that is another process. Usage: as lib.sh
# says, and then the path of libfakecuda, and of the trainer's.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
HERE=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
IPC=$(realpath "$2")/torch-ipc
FAKE=$(realpath "$4")
FOREIGN=$(realpath "$5")

# trainer WHAT...: each of them in a process of its own.
trainer() {
  local said what
  for what in "$@"; do
    said=$(timeout 120 "$PYTHON" "$HERE/preflight.py" "$URL" "${CLIENT%/*}" "$FOREIGN" "$what") ||
      fail "$what: $said"
    N_CHECKS=$((N_CHECKS + $(sed --quiet 's/.*: \([0-9]*\) checks$/\1/p' <<<"$said")))
  done
}

# ends: stops the server; every handle that it opened is closed.
ends() {
  rm --force "$WORK/report"
  stop_server
  N_CHECKS=$((N_CHECKS + 1))
  jq --exit-status '.mappings_made > 0 and ([.allocations, .mappings, .events, .contexts] | add) == 0' \
    "$WORK/report" >/dev/null || fail "left behind: $(cat "$WORK/report")"
}

on_gpu() { FAKECUDA_REPORT=$WORK/report serve_model --cuda-library "$FAKE" "$@"; }

export FAKECUDA_DEVICES=2
on_gpu --device cuda:0
trainer good wrong counters dead own
expect 200 GET /v1/status
same .weights.serial 1
same .update null

# A body that is no request.
post 400 /v1/preflight '{}'
has "neither is given"
post 400 /v1/preflight '{"ipc_handles": null, "ipc_handles_pickled": null}'
post 400 /v1/preflight '{"ipc_handles": {}, "ipc_handles_pickled": "gA=="}'
has "both are given"
post 400 /v1/preflight '{"ipc_handles": {}}'
same .error.param /ipc_handles
post 400 /v1/preflight '{"ipc_handles": {"0": {}}}'
post 400 /v1/preflight '{"ipc_handles_pickled": 7}'
same .error.param /ipc_handles_pickled
post 400 /v1/preflight '{"ipc_handles_pickled": "gAROLg=="}'
post 400 /v1/preflight '{"ipc_handles_pickled": "gAROLg==", "names": []}'
same .error.param /names
post 400 /v1/preflight '[]'
expect 405 GET /v1/preflight

# What means harm is refused here as in an update, but for the allocator's kind, which is an answer.
n=$(jq '.cases | length' "$IPC/hostile.json")
((n > 50)) || fail "only $n hostile inputs"
n_allocator=0
for i in $(seq 0 $((n - 1))); do
  jq --compact-output --argjson i "$i" '{ipc_handles_pickled: .cases[$i].payload_b64}' \
    "$IPC/hostile.json" >"$WORK/request"
  call POST /v1/preflight --header 'Content-Type: application/json' --data-binary @"$WORK/request"
  if [[ $STATUS == 200 ]]; then
    same '[.checks[] | select(.check == "allocator" and .ok == false)] | length' 1
    n_allocator=$((n_allocator + 1))
  else
    same .error.code bad_request
  fi
done
((n_allocator > 0 && n_allocator < 5)) || fail "$n_allocator hostile inputs were answered"
ends

on_gpu --device cuda:0,cuda:1
trainer two_ranks
ends

FAKECUDA_NO_PEER=1 on_gpu --device cuda:0
trainer no_peer good
ends

FAKECUDA_MIG=1 on_gpu --device cuda:0
trainer mig
ends

serve_model --cuda-library "$FAKE"
trainer no_device
stop_server
serve_model --cuda-library "$WORK/libcuda.so.1"
trainer no_cuda
done_testing
