#!/usr/bin/env bash
# --state-dir, --snapshot, --serve-base: which weights a server has after the one before it has ended.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

STATE=$WORK/state
serve_state() { start_server --model "$MODEL" --weights "$CHECKPOINTS/step-00000.safetensors" \
  --weight-version step-0 --state-dir "$STATE" "$@"; }
kill_server() { kill -KILL "$SERVER_PID" && { wait "$SERVER_PID" || true; } 2>/dev/null && SERVER_PID=; }
push() { # CHECKPOINT LABEL
  expect 200 POST "/v1/update_weights?weight_version=$2" --header 'Content-Type: application/vnd.safetensors' \
    --data-binary @"$CHECKPOINTS/$1.safetensors"
}
not_ready() { # TEXT: and every kind of generation is refused
  expect 503 GET /readyz
  same .reason no_weights
  has "$1"
  post 503 /inference/v1/generate '{"token_ids": [1], "sampling_params": {"max_tokens": 1}}'
  has "$1"
  expect 200 GET /health
  expect 200 GET /v1/status
  same .weights.state unsynced
  same .state.started_from none
}
logged() { cp "$WORK/log" "$WORK/body" && has "$1"; }
refused() { # TEXT OPTION...
  local text=$1 rc=0
  shift
  timeout 60 "$BATON" serve --listen 127.0.0.1:0 "$@" >"$WORK/body" 2>&1 || rc=$?
  ((rc == 1 || rc == 2)) || fail "baton serve $* ended with $rc: $(cat "$WORK/body")"
  has "$text"
}
wait_snapshot() { # SERIAL
  for _ in $(seq 500); do
    expect 200 GET /v1/status
    [[ $(jq .state.snapshots.newest.serial "$WORK/body") == "$1" ]] && return
    sleep 0.02
  done
  fail "no snapshot of serial $1: $(jq .state "$WORK/body")"
}

# Options.
refused 'it has no effect with --upstream' --upstream http://127.0.0.1:1 --state-dir "$STATE"
refused 'it has no effect without --state-dir' --model "$MODEL" --snapshot 1
refused 'it has no effect without --state-dir' --model "$MODEL" --serve-base
touch "$WORK/file"
refused '--state-dir' --model "$MODEL" --state-dir "$WORK/file"
refused '--state-dir' --model "$MODEL" --state-dir "$WORK/no/dir"
refused "--state-dir: $WORK/file: this directory cannot be opened" --check --model "$MODEL" --state-dir "$WORK/file"
refused "--state-dir: $WORK/no/dir: this directory cannot be made" --check --model "$MODEL" --state-dir "$WORK/no/dir"
checked() { # TEXT DIRECTORY OPTION...: of --check, which changes nothing
  local before
  before=$(ls -l --time-style=full-iso "$2" 2>/dev/null || true)
  timeout 60 "$BATON" serve --check --listen 127.0.0.1:0 --model "$MODEL" --state-dir "${@:2}" >"$WORK/body" 2>&1 ||
    fail "--check of $2 failed: $(cat "$WORK/body")"
  has "$1"
  [[ $(ls -l --time-style=full-iso "$2" 2>/dev/null) == "$before" ]] || fail "--check changed $2"
}
STEP_0=(--weights "$CHECKPOINTS/step-00000.safetensors")
checked "state directory: $STATE: it does not exist, a start makes it" "$STATE"
mkdir "$WORK/empty"
checked 'it has no journal, so no version was served; 0 snapshots' "$WORK/empty"
has 'state directory: a start records the first version'

# The first weights are the version, until another is committed; another server is refused.
serve_state
expect 200 GET /readyz
refused "another server uses this directory (process $SERVER_PID)" --model "$MODEL" --state-dir "$STATE"
refused "another server uses this directory (process $SERVER_PID)" --check --model "$MODEL" --state-dir "$STATE"
kill_server
checked "the version served last is 'step-0' (serial 1); 0 snapshots" "$STATE" "${STEP_0[@]}"
has 'state directory: a start compares the first weights with that version: it is not ready if they are not the same'
serve_state --weight-version other
logged '"event":"weights.restored"'
serves step-00000 step-0
kill_server
start_server --model "$MODEL" --weights "$CHECKPOINTS/step-00100.safetensors" --state-dir "$STATE"
not_ready "'step-0' (serial 1)"
kill_server

# Another version: not ready until an update; serials continue; a label is kept.
serve_state
push step-00100 v2
same .serial 2
kill_server
serve_state
not_ready "'v2' (serial 2)"
post 503 /v1/update_weights/start '{"partial": true}'
same .error.code no_weights
push step-01500 v3
same .serial 3
expect 200 GET /readyz
serves step-01500 v3
post 200 /v1/weights/label '{"weight_version": "renamed"}'
kill_server
serve_state
not_ready "'renamed' (serial 3)"
kill_server
serve_state --serve-base
logged '"event":"weights.base"'
serves step-00000 step-0
expect 200 GET /v1/status
same .weights.serial 4
same .state.started_from first_weights
stop_server
start_server --model "$MODEL" --weights none --state-dir "$STATE"
not_ready "'step-0' (serial 4)"
stop_server

# Snapshots: of the newest; the last one is restored, under its label of today.
serve_state --snapshot 2
wait_snapshot 4
push step-00100 v5
wait_snapshot 5
push step-01500 v6
wait_snapshot 6
post 200 /v1/weights/label '{"weight_version": "six"}'
kill_server
[[ $(find "$STATE" -name 'snapshot-*.safetensors' | wc --lines) == 2 ]] || fail "not 2 snapshots: $(ls "$STATE")"
serve_state --snapshot 2
serves step-01500 six
expect 200 GET /v1/status
same .weights.serial 6
same .state.started_from snapshot
stop_server # it waits for the file that has the new label
checked "the version served last is 'six' (serial 6); 2 snapshots" "$STATE"
has 'state directory: a start restores that version from its snapshot, whose head is good'
N6=$STATE/snapshot-00000000000000000006.safetensors
grep --quiet --text six "$N6" || fail "the label is not in $N6"
start_server --model "$MODEL" --weights "$N6"
serves step-01500 six
stop_server

# A damaged snapshot is skipped by name; an older one only with --serve-base.
cp "$N6" "$WORK/good"
for at in 3 40 900 $(($(stat --format=%s "$N6") - 5)); do
  cp "$WORK/good" "$N6"
  printf '\x01' | dd of="$N6" bs=1 seek="$at" conv=notrunc status=none
  serve_state
  logged '"event":"snapshot.skipped","file":"snapshot-00000000000000000006.safetensors"'
  not_ready "'six' (serial 6)"
  kill_server
done
head --bytes=-1 "$WORK/good" >"$N6"
checked 'state directory: the snapshot of that version cannot be used: ' "$STATE" "${STEP_0[@]}"
has 'state directory: a start is not ready until a whole update'
checked "a start serves the older snapshot of 'v5' (serial 5, --serve-base)" "$STATE" --serve-base
serve_state --serve-base
logged snapshot.skipped
serves step-00100 v5
expect 200 GET /v1/status
same .weights.serial 7
same .state.started_from older_snapshot
kill_server

# A damaged journal, one that is missing, one of another model: named, and not ready.
cp "$STATE/journal.json" "$WORK/journal"
for damage in 's/v5/v6/' 's/"serial": 7/"serial": 8/' 's/}//' 's/"format": 2/"format": 3/' 'd'; do
  sed "$damage" "$WORK/journal" >"$STATE/journal.json"
  checked "state directory: $STATE: its journal is damaged: " "$STATE"
  has 'state directory: a start is not ready until a whole update'
  serve_state
  not_ready 'the journal in --state-dir is damaged'
  kill_server
done
rm "$STATE/journal.json"
serve_state
not_ready 'it is missing, and there are snapshots'
push step-00100 v8 # larger than every serial that a snapshot has
same .serial 7
stop_server
start_server --model "$MODEL/../tiny-qwen2" --state-dir "$STATE"
not_ready 'is of another model'
stop_server

# A journal that a backup, or a disk that lost it, took back: the snapshots of the versions after it stay, and the
# next versions would get their serials.
BACK=$WORK/taken-back
serve_back() { start_server --model "$MODEL" --weights none --state-dir "$BACK" --snapshot 2 "$@"; }
serve_back
push step-00000 one
wait_snapshot 1
cp "$BACK/journal.json" "$WORK/journal"
push step-00100 two
wait_snapshot 2
stop_server
cp "$WORK/journal" "$BACK/journal.json"
serve_back
not_ready 'it names serial 1, and there is a snapshot of serial 2'
push step-01500 two-again
same .serial 3
wait_snapshot 3
kill_server
cp "$WORK/journal" "$BACK/journal.json"
serve_back --serve-base
serves step-01500 two-again
stop_server

# Copies of one directory: each server gives serial 2 to a commit of its own, under the same label. The snapshot of
# the other is not restored.
COPIED=$WORK/copied
serve_copy() { start_server --model "$MODEL" --weights none --state-dir "$@"; }
serve_copy "$COPIED" --snapshot 2
push step-00000 one
wait_snapshot 1
stop_server
cp --recursive "$COPIED" "$COPIED-2"
for directory in "$COPIED" "$COPIED-2"; do
  serve_copy "$directory" --snapshot 2
  serves step-00000 one
  if [[ $directory == "$COPIED" ]]; then push step-00100 two; else push step-01500 two; fi
  same .serial 2
  wait_snapshot 2
  stop_server
done
N2=snapshot-00000000000000000002.safetensors
cp "$COPIED-2/$N2" "$WORK/own"
cp "$COPIED/$N2" "$COPIED-2/$N2"
checked 'cannot be used: it is not the commit of serial 2 that the journal names' "$COPIED-2"
serve_copy "$COPIED-2"
logged 'it is not the commit of serial 2 that the journal names, but one of a copy of this directory'
not_ready "'two' (serial 2)"
stop_server
cp "$WORK/own" "$COPIED-2/$N2"
serve_copy "$COPIED-2"
serves step-01500 two
stop_server

# Nobody else can read the weights, whatever the umask is.
[[ $(stat --format=%a "$COPIED" "$COPIED/journal.json" "$COPIED/lock" "$COPIED/$N2" | tr '\n' ' ') == '700 600 600 600 ' ]] ||
  fail "modes: $(stat --format='%a %n' "$COPIED" "$COPIED"/*)"

# A journal that cannot be written: the update fails, and what was served is served.
serve_state --serve-base
mkdir "$STATE/journal.tmp"
expect 500 POST '/v1/update_weights?weight_version=v9' --header 'Content-Type: application/vnd.safetensors' \
  --data-binary @"$CHECKPOINTS/step-01500.safetensors"
same .error.code not_recorded
post 500 /v1/weights/label '{"weight_version": "v9"}'
same .error.code not_recorded
expect 200 GET /metrics
has 'baton_journal_failures_total 2'
rmdir "$STATE/journal.tmp"
push step-01500 v9
serves step-01500 v9
stop_server
done_testing
