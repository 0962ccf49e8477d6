#!/usr/bin/env bash
# Listeners: addresses and unix sockets, separate control and health listeners, and what may not be opened to a
# network.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

# Sockets lie here: a path of one has no more than 107 bytes.
SOCKETS=$(mktemp --directory /tmp/baton.XXXXXX)
SHM_FILES+=("$SOCKETS")

refused() { # TEXT OPTION...
  local text=$1 rc=0
  shift
  timeout 60 "$BATON" serve --model "$MODEL" "$@" >"$WORK/body" 2>&1 || rc=$?
  ((rc == 1 || rc == 2)) || fail "baton serve $* ended with $rc: $(cat "$WORK/body")"
  has "$text"
}

serves_at() { # ADDRESS OPTION...: start_server, on a given address
  local at=$1
  shift
  start_server --model "$MODEL" --weights "$CHECKPOINTS/step-00000.safetensors" --listen "$at" "$@"
}

# until_said TEXT: the last answer of health has it, soon.
until_said() {
  for _ in $(seq 6000); do
    call GET /readyz "${HEALTH[@]}"
    ! grep --quiet --fixed-strings -- "$1" "$WORK/body" || return 0
    sleep 0.01
  done
  fail "health does not say '$1': $(cat "$WORK/body")"
}

# A unix socket: for its owner; for its group as the umask has it; never for others.
at=unix:$SOCKETS/main.sock
over=(--unix-socket "$SOCKETS/main.sock")
umask 000
serves_at "$at"
umask 022
[[ $(stat --format=%a "$SOCKETS/main.sock") == 660 ]] || fail "the socket's mode: $(stat --format=%a "$SOCKETS/main.sock")"
URL=http://localhost
expect 200 GET /v1/status "${over[@]}"
expect 200 POST '/v1/update_weights?weight_version=unix' "${over[@]}" --header 'Content-Type: application/vnd.safetensors' \
  --data-binary @"$CHECKPOINTS/step-01500.safetensors"
expect 200 POST /v1/completions "${over[@]}" --header 'Content-Type: application/json' \
  --data '{"prompt": "In the beginning", "max_tokens": 24, "temperature": 0}'
same '.choices[0].text' "$(golden step-01500)"
refused 'Address already in use' --listen "$at"
expect 200 GET /health "${over[@]}"
kill -KILL "$SERVER_PID"
wait "$SERVER_PID" 2>/dev/null || true
[[ -S $SOCKETS/main.sock ]] || fail "a killed server removed its socket"
serves_at "$at" --front-threads 3
[[ $(stat --format=%a "$SOCKETS/main.sock") == 640 ]] || fail "the socket's mode: $(stat --format=%a "$SOCKETS/main.sock")"
URL=http://localhost
for _ in 1 2 3 4 5 6; do
  expect 200 GET /health "${over[@]}"
done
stop_server
[[ ! -e $SOCKETS/main.sock ]] || fail "the socket is still there"

# A file that is not a socket is not touched, nor is a socket that somebody has put in its place.
printf 'precious' >"$SOCKETS/file"
refused 'Address already in use' --listen "unix:$SOCKETS/file"
[[ $(cat "$SOCKETS/file") == precious ]] || fail "the file is gone"
serves_at "$at"
mv "$SOCKETS/file" "$SOCKETS/main.sock"
stop_server
[[ $(cat "$SOCKETS/main.sock") == precious ]] || fail "the file is gone"
refused 'No such file or directory' --listen "unix:$SOCKETS/nothing/main.sock"
refused 'at most 107 bytes' --listen "unix:$SOCKETS/$(printf 'x%.0s' {1..107})"

# The loops of one server share its port; a second server gets no part of it.
serve_model --front-threads 2
refused 'Address already in use' --listen "${URL#http://}" --front-threads 2
refused 'Address already in use' --listen "${URL#http://}"
stop_server

# Control apart: updates there, text here, status on both.
serve_model --control-listen 127.0.0.1:0 --health-listen "unix:$SOCKETS/health.sock" --drain-timeout 600000
data=$URL
control=http://$(grep '"event":"serving"' "$WORK/log" | jq --raw-output .control)
HEALTH=(--unix-socket "$SOCKETS/health.sock")
update=(--header 'Content-Type: application/vnd.safetensors' --data-binary @"$CHECKPOINTS/step-01500.safetensors")
expect 404 POST '/v1/update_weights?weight_version=no' "${update[@]}"
has 'on this listener'
expect 404 GET /v1/weights
URL=$control
expect 404 POST /v1/completions --header 'Content-Type: application/json' --data '{"prompt": "a"}'
same .error.code 404
expect 200 GET /v1/status
accepted=$(jq .http.accepted "$WORK/body")
expect 200 POST '/v1/update_weights?weight_version=control' "${update[@]}"
"$PYTHON" -m baton --url "$URL" --weight-version client "$CHECKPOINTS/step-01500.safetensors" >"$WORK/body"
URL=$data
serves step-01500 client
expect 200 GET /v1/status
same ".http.accepted > $accepted" true
refused 'Address already in use' --listen 127.0.0.1:0 --control-listen "${control#http://}"
refused 'Address already in use' --listen 127.0.0.1:0 --health-listen "${control#http://}"

# Health on its own: what the main listener says, a moment later; through a drain, to the end.
URL=http://localhost
expect 200 GET /livez "${HEALTH[@]}"
expect 200 GET /health "${HEALTH[@]}"
expect 200 POST /ping "${HEALTH[@]}"
until_said '"ready":true'
expect 404 GET /v1/status "${HEALTH[@]}"
expect 404 GET /metrics "${HEALTH[@]}"
expect 404 GET /version "${HEALTH[@]}"
expect 405 POST /livez "${HEALTH[@]}"
[[ $(header Allow) == 'GET, HEAD' ]] || fail "Allow is '$(header Allow)'"
URL=$control
expect 200 POST /v1/pause
URL=http://localhost
until_said '"reason":"paused"'
expect 200 GET /livez "${HEALTH[@]}"
URL=$control
expect 200 POST /v1/resume
URL=http://localhost
until_said '"ready":true'
curl --silent --max-time 280 --output "$WORK/late" --header 'Content-Type: application/json' \
  --data '{"token_ids": [40], "sampling_params": {"max_tokens": 500, "ignore_eos": true, "n": 8}}' "$data/v1/generate" &
client=$!
URL=$data
for _ in $(seq 6000); do
  expect 200 GET /v1/status
  [[ $(jq .engine.running "$WORK/body") -gt 0 ]] && break
  sleep 0.01
done
kill -TERM "$SERVER_PID"
URL=http://localhost
until_said '"reason":"draining"'
expect 200 GET /livez "${HEALTH[@]}"
wait "$client" || fail "the running generation was cut"
rc=0
wait "$SERVER_PID" || rc=$?
((rc == 0)) || fail "the server ended with $rc"
SERVER_PID=
[[ ! -e $SOCKETS/health.sock ]] || fail "the socket of health is still there"

# Whoever asks on one listener how the server is, while it ends, is told of the other one too.
serve_model --listen "unix:$SOCKETS/end.sock" --control-listen 127.0.0.1:0 --drain-timeout 100
control=$(grep '"event":"serving"' "$WORK/log" | jq --raw-output .control)
"$PYTHON" -B "$(dirname "$0")/listeners_end.py" "$SOCKETS/end.sock" "${control%:*}" "${control##*:}" \
  "$SERVER_PID" "$WORK/log" || fail "see above"
rc=0
wait "$SERVER_PID" || rc=$?
SERVER_PID=
((rc == 3)) || fail "the server ended with $rc"
N_CHECKS=$((N_CHECKS + 1))

# Beyond loopback somebody has to say who may come in; each of three ways will do.
for option in --listen --control-listen; do
  for word in "$option: '0.0.0.0:0' is beyond loopback" --api-key-file --no-auth-cidr --insecure; do
    refused "$word" --listen 127.0.0.1:0 "$option" 0.0.0.0:0
  done
  refused 'beyond loopback' --listen 127.0.0.1:0 "$option" '[::]:0' --check
done
(umask 077 && printf 'control %s\n' "$(openssl rand -hex 16)" >"$WORK/keys")
for allowed in --insecure --no-auth-cidr=127.0.0.0/8 "--api-key-file=$WORK/keys"; do
  start_server --model "$MODEL" --listen 0.0.0.0:0 --control-listen 0.0.0.0:0 --health-listen 0.0.0.0:0 "$allowed"
  expect 200 GET /health
  if [[ $allowed == --api-key-file* ]]; then
    grep --quiet listen.plain "$WORK/log" || fail "it is not said that keys cross the network in clear text"
    expect 401 GET /v1/status
  else
    expect 200 GET /v1/status
  fi
  stop_server
done
refused "--health-listen: '127.0.0.1'" --listen 127.0.0.1:0 --health-listen 127.0.0.1
refused "--no-auth-cidr" --listen 127.0.0.1:0 --no-auth-cidr 10.1.2.3/8
done_testing
