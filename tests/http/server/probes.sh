#!/usr/bin/env bash
# Readiness for generation and for control, on every listener, while a server starts, has no weights, is paused,
# asleep, leaves and drains; --drain-delay.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

# ready GENERATE CONTROL [REASON]: the statuses of both on each listener, and the reason that generation has.
ready() {
  local at
  for at in "$URL" "$CONTROL" "$HEALTH"; do
    URL=$at soon "$1" /readyz "${3:-}"
    URL=$at soon "$2" '/readyz?for=control'
  done
  expect 200 GET /v1/status
  same .ready "$([[ $1 == 200 ]] && echo true || echo false)"
  same .control_ready "$([[ $2 == 200 ]] && echo true || echo false)"
}

# soon STATUS PATH [REASON]: the health listener looks every 50 ms.
soon() {
  for _ in $(seq 200); do
    call GET "$2"
    [[ $STATUS != "$1" ]] || break
    sleep 0.02
  done
  N_CHECKS=$((N_CHECKS + 1))
  [[ $STATUS == "$1" ]] || fail "$2: status $STATUS, wanted $1: $(cat "$WORK/body")"
  [[ -z ${3:-} ]] || same .reason "$3"
}

begin() { # OPTION...
  start_server --control-listen 127.0.0.1:0 --health-listen 127.0.0.1:0 "$@"
  CONTROL=http://$(grep '"event":"serving"' "$WORK/log" | jq --raw-output .control)
  HEALTH=http://$(grep '"event":"serving"' "$WORK/log" | jq --raw-output .health)
}

control() { # STATUS METHOD PATH [curl option...]: on the control listener
  URL=$CONTROL expect "$@"
}

begin --engine none --manifest "$CHECKPOINTS/step-00000.safetensors" --weights none
ready 503 200 no_engine
for at in "$URL" "$CONTROL" "$HEALTH"; do
  for path in /readyz /health/ready /v2/health/ready; do
    URL=$at soon 503 "$path?for=generate" no_engine
    URL=$at soon 200 "$path?for=control"
    URL=$at expect 400 GET "$path?for=pushes"
    same .error.code bad_request
    same .error.param /for
    has "'pushes' is not one of generate, control"
  done
done
stop_server

begin --model "$MODEL" --weights none
ready 503 200 no_weights
control 200 POST '/v1/update_weights?weight_version=one' --header 'Content-Type: application/vnd.safetensors' \
  --data-binary @"$CHECKPOINTS/step-00100.safetensors"
ready 200 200
control 200 POST /v1/pause --json '{"mode": "wait", "lease_s": 60}'
ready 503 200 paused
control 200 POST /v1/resume
control 200 POST /v1/sleep --json '{"level": 1}'
ready 503 200 asleep
"$BATON" status --url "$CONTROL" >"$WORK/body"
has "ready       no: "
has "for control yes"
control 200 POST /v1/wake
ready 200 200
URL=$HEALTH expect 200 GET '/readyz?probe=7' # a member that readiness does not have
stop_server

# --drain-delay: not ready, and everything is served, until a second signal.
begin --model "$MODEL" --weights "$CHECKPOINTS/step-00000.safetensors" --weight-version step-0 --drain-delay 300000
kill -TERM "$SERVER_PID"
ready 503 503 draining
same .life leaving
same .reason.code draining
serves step-00000 step-0
control 200 POST '/v1/update_weights?weight_version=two' --header 'Content-Type: application/vnd.safetensors' \
  --data-binary @"$CHECKPOINTS/step-01500.safetensors"
serves step-01500 two
expect 200 GET /metrics
has 'baton_life_state{state="leaving"} 1'
has 'baton_control_ready 0'
sleep 1.1 # a signal within a second of the first is taken for the first
stop_server TERM 3
[[ $(jq --slurp '[.[] | .event] | join(" ")' --raw-output <(grep --extended-regexp '"event":"(drain|shutdown)' "$WORK/log")) == \
  "drain.delay shutdown.forced" ]] || fail "the log: $(grep drain "$WORK/log")"
done_testing
