#!/usr/bin/env bash
# Keys: every route, without one, with a wrong one, with each role's, on every listener; what is read
# again on SIGHUP; addresses that need none; and that no key is to be found anywhere afterwards.
# Usage: keys.sh BATON FIXTURES CLIENT_DIR PRINT_CONTRACT
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
contract=$(realpath "$4")
here=$(dirname "$0")
watch=watch-$(openssl rand -hex 16)
generate=generate-$(openssl rand -hex 16)
control=control-$(openssl rand -hex 16)
weights=weights-$(openssl rand -hex 16)
keys=$WORK/keys

write_keys() {
  (umask 077 && printf 'viewer %s\n# a comment\ngenerate %s\ncontrol %s\nweights %s\n' "$watch" "$generate" "$1" "$weights" >"$keys")
}

every_route() { # LISTENER...
  timeout 300 "$PYTHON" "$here/keys.py" "$contract" "$watch" "$generate" "$control" "$weights" "$@" || fail "see above"
  N_CHECKS=$((N_CHECKS + 1))
}

with() { # KEY: what curl is given besides
  AUTH=(--header "Authorization: Bearer $1")
}

# In what the server logged, and in its memory: a core file would have no more.
no_key_left() {
  local key
  for key in "$watch" "$generate" "$control" "$weights"; do
    ! grep --quiet --fixed-strings -- "$key" "$WORK/log" || fail "a key is in the log"
    N_CHECKS=$((N_CHECKS + 1))
  done
  timeout 280 "$PYTHON" "$here/keys_left.py" "$SERVER_PID" "$watch" "$generate" "$control" "$weights" || fail "see above"
  N_CHECKS=$((N_CHECKS + 1))
}

said() { # REGEX: waits until a line of the log matches it
  for _ in $(seq 6000); do
    ! grep --quiet "$1" "$WORK/log" || return 0
    sleep 0.01
  done
  fail "the log does not say $1"
}

# raw STATUS LINE...: one request of raw lines, whose connection stays open.
raw() {
  local want=$1 fd line
  shift
  exec {fd}<>"/dev/tcp/127.0.0.1/${URL##*:}"
  printf '%s\r\n' "$@" 'Host: localhost' '' >&"$fd"
  read -r -t 60 line <&"$fd" || fail "no answer to: $*"
  [[ $line == "HTTP/1.1 $want "* ]] || fail "'$line', wanted $want, to: $*"
  N_CHECKS=$((N_CHECKS + 1))
}

# Two keys, of which a proxy may have judged the other one; requests refused before their key is.
write_keys "$control"
serve_model --api-key-file "$keys"
raw 200 'GET /v1/weights HTTP/1.1' "authorization:  bearer $control "
raw 400 'GET /v1/weights HTTP/1.1' "Authorization: Bearer $control" "Authorization: Bearer $watch"
raw 400 'GET /v1/weights HTTP/1.1' "Authorization: Bearer $watch" "authorization: Bearer $control"
raw 400 'GET /v1/weights HTTP/1.1' "Authorization: Bearer $control" "Authorization: Bearer $control"
raw 400 'GET /v1/weights%2 HTTP/1.1' "Authorization: Bearer $control"
raw 400 'GET /v1/weights HTTP/1.1' 'A Name: x' "Authorization: Bearer $control"
raw 400 'POST /v1/sleep HTTP/1.1' 'Content-Length: x' "Authorization: Bearer $control"
raw 401 'GET /v1/weights HTTP/1.1' "Proxy-Authorization: Bearer $control"
raw 403 'GET /v1/%77eights HTTP/1.1' "Authorization: Bearer $watch"
raw 403 'GET http://localhost/v1/weights HTTP/1.1' "Authorization: Bearer $watch"
raw 404 'GET /V1/weights HTTP/1.1' "Authorization: Bearer $control"
raw 404 'GET //v1/weights HTTP/1.1' "Authorization: Bearer $control"
no_key_left
raw 401 'POST /v1/resume HTTP/1.1' 'Transfer-Encoding: chunked' 'Trailer: Authorization' 'Host: localhost' '' 0 \
  "Authorization: Bearer $control"
stop_server

# One listener.
write_keys "$control"
serve_model --api-key-file "$keys"
! grep --quiet secret.bad_mode "$WORK/log" || fail "a private file is called exposed"
every_route "both=${URL#http://}"
no_key_left

# The client takes its key from the environment.
for key in "" "$watch"; do
  if BATON_API_KEY=$key "$PYTHON" -m baton --url "$URL" "$CHECKPOINTS/step-01500.safetensors" >"$WORK/body" 2>&1; then
    fail "the client could push with '$key'"
  fi
  has "${key:+"the key has the role viewer"}"
done
BATON_API_KEY=$control "$PYTHON" -m baton --url "$URL" "$CHECKPOINTS/step-01500.safetensors" >"$WORK/body"
same .phase committed

# SIGHUP: the file is read again, whole or not at all; connections stay.
old=$control
control=control-$(openssl rand -hex 16)
write_keys "$control"
kill -HUP "$SERVER_PID"
said '"event":"reload".*"keys":"changed: '
with "$old"
expect 401 GET /v1/weights "${AUTH[@]}"
with "$control"
expect 200 GET /v1/weights "${AUTH[@]}"
printf 'contrl %s\n' "$old" >"$keys"
kill -HUP "$SERVER_PID"
said '"event":"reload".*"keys":"kept: '
expect 200 GET /v1/weights "${AUTH[@]}"
with "$old"
expect 401 GET /v1/weights "${AUTH[@]}"
control=$old no_key_left
stop_server

# Three listeners; a file that others may read is told of.
write_keys "$control"
chmod 644 "$keys"
serve_model --api-key-file "$keys" --control-listen 127.0.0.1:0 --health-listen "unix:$WORK/health.sock"
said '"event":"secret.bad_mode"'
at=$(grep '"event":"serving"' "$WORK/log" | jq --raw-output .control)
every_route "data=${URL#http://}" "control=$at" "health=unix:$WORK/health.sock"
no_key_left
stop_server

# The other way round: control on a unix socket, whose peers are trusted.
serve_model --api-key-file "$keys" --control-listen "unix:$WORK/control.sock" --no-auth-cidr unix
expect 401 GET /v1/models
expect 404 GET /v1/weights
expect 200 GET /v1/weights --unix-socket "$WORK/control.sock"
expect 200 POST /v1/resume --unix-socket "$WORK/control.sock"
stop_server

# Trusted addresses need no key; where there are no keys, all others come in vain.
serve_model --no-auth-cidr 127.0.0.0/8 --api-key-file "$keys"
expect 200 GET /v1/weights
stop_server
serve_model --no-auth-cidr 192.0.2.0/24
expect 200 GET /health
expect 200 GET /health/ready
with "$control"
expect 403 GET /v1/status "${AUTH[@]}"
same .error.code forbidden
has '--no-auth-cidr'
expect 403 POST /v1/completions "${AUTH[@]}" --data '{"prompt": "a"}'
expect 404 GET /nothing
stop_server

# A file that has no control key is told of; what is wrong with one, by line, not by content.
printf 'generate %s\n' "$generate" >"$keys"
serve_model --api-key-file "$keys"
said '"event":"keys.no_control"'
stop_server
printf 'generate %s\n%s\n' "$generate" "$control" >"$keys"
rc=0
timeout 60 "$BATON" serve --check --model "$MODEL" --api-key-file "$keys" >"$WORK/body" 2>&1 || rc=$?
((rc == 2)) || fail "--check ended with $rc"
has '--api-key-file: line 2'
! grep --quiet --fixed-strings -- "$control" "$WORK/body" || fail "--check says the key"
done_testing
