#!/usr/bin/env bash
# A snapshot on a slow disk, and what comes meanwhile: updates, a sleep, a wake, a drain.
# Usage: as lib.sh, then FAIL_CALLS_SO.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
FAIL_SO=$(realpath "$4")
STATE=$WORK/state
CONTROL=$WORK/calls
head --bytes=4096 /dev/zero >"$CONTROL"

slow() { # MS: each write of a file takes so long (the 12th word of the page of fail_calls.c)
  local us=$(($1 * 1000))
  # shellcheck disable=SC2059
  printf "$(printf '\\x%02x\\x%02x\\x%02x\\x00' $((us & 255)) $((us >> 8 & 255)) $((us >> 16)))" |
    dd of="$CONTROL" bs=1 seek=88 conv=notrunc status=none
}
serve_slow() { LD_PRELOAD=$FAIL_SO FAIL_CALLS=$CONTROL start_server --model "$MODEL" --weights \
  "$CHECKPOINTS/step-00000.safetensors" --state-dir "$STATE" --snapshot 1 "$@"; }
push() { # CHECKPOINT LABEL
  expect 200 POST "/v1/update_weights?weight_version=$2" --header 'Content-Type: application/vnd.safetensors' \
    --data-binary @"$CHECKPOINTS/$1.safetensors"
}
snapshots() { expect 200 GET /v1/status && jq --raw-output ".state.snapshots.$1" "$WORK/body"; }
wait_until() { # MEMBER VALUE: of the snapshots in the status
  for _ in $(seq 1000); do
    [[ $(snapshots "$1") == "$2" ]] && return
    sleep 0.02
  done
  fail "$1 does not become $2: $(jq .state "$WORK/body")"
}
within() { # MS COMMAND...
  local began=$EPOCHREALTIME took
  "${@:2}"
  took=$(((${EPOCHREALTIME/./} - ${began/./}) / 1000))
  ((took < $1)) || fail "${*:2} took $took ms, the limit is $1"
}

# Updates: the third would have to wait for the version that is being written.
slow 200 # about 10 s for a snapshot
serve_slow --max-versions 2
wait_until writing true
push step-00100 v2
within 3000 push step-01500 v3
[[ $(snapshots given_up) -ge 1 ]] || fail "no snapshot was given up: $(jq .state "$WORK/body")"
[[ $(snapshots written) == 0 ]] || fail "a snapshot was written"

# A sleep and a wake: what was given up is written afterwards. Weights that were dropped are not.
within 3000 post 200 /v1/sleep '{"level": 1}'
within 3000 post 200 /v1/wake '{}'
slow 0
wait_until newest.serial 3
slow 200
push step-00100 v4
wait_until writing true
within 3000 post 200 /v1/sleep '{"level": 2}'
slow 0
push step-01500 v5
wait_until newest.serial 5

# A drain waits for the snapshot of the last version.
slow 20
push step-00100 v6
wait_until writing true
stop_server
[[ -f $STATE/snapshot-00000000000000000006.safetensors ]] || fail "it was not written: $(ls "$STATE")"
slow 0
serve_slow --drain-timeout 300
serves step-00100 v6

# Not for longer than --drain-timeout; what was begun is removed.
slow 200
push step-01500 v7
wait_until writing true
cut_drain() { # it ends with 3
  local rc=0
  kill -TERM "$SERVER_PID"
  wait "$SERVER_PID" || rc=$?
  SERVER_PID=
  ((rc == 3)) || fail "the server ended with $rc"
}
within 5000 cut_drain
[[ $(cd "$STATE" && echo *) == "journal.json lock snapshot-00000000000000000006.safetensors" ]] || fail "there are: $(ls "$STATE")"
done_testing
