#!/usr/bin/env bash
# SIGHUP: certificate, keys and log level are read again, each on its own; what cannot be used is kept, and one log
# line says what happened to each.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

certificate() { # NAME DAYS: makes NAME.pem and NAME.key
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$WORK/$1.key" -out "$WORK/$1.pem" \
    -days "$2" -subj "/CN=$1" -addext 'subjectAltName=DNS:localhost,IP:127.0.0.1' 2>/dev/null
}
certificate old 30
certificate new 60

use() { # CERTIFICATE KEY
  cp "$WORK/$1.pem" "$WORK/cert.pem"
  cp "$WORK/$2.key" "$WORK/key.pem"
}

# shown PORT NAME: the certificate that a new connection gets.
shown() {
  local found
  found=$(openssl s_client -connect "127.0.0.1:$1" </dev/null 2>/dev/null | openssl x509 -noout -subject)
  N_CHECKS=$((N_CHECKS + 1))
  [[ $found == "subject=CN = $2" ]] || fail "port $1 shows '$found', expected $2"
}

# reload JQ_EXPRESSION...: SIGHUP; each must be true of the log line of it.
N_RELOADS=0
reload() {
  local line
  N_RELOADS=$((N_RELOADS + 1))
  kill -HUP "$SERVER_PID"
  for _ in $(seq 500); do
    line=$(grep '"event":"reload"' "$WORK/log" | sed --quiet "${N_RELOADS}p" || true)
    [[ $line != *"}" ]] || break
    sleep 0.02
  done
  for each in "$@"; do
    N_CHECKS=$((N_CHECKS + 1))
    jq --exit-status "$each" <<<"$line" >/dev/null || fail "not $each: $line"
  done
}

use old old
printf 'control %s\n' control-0123456789abcdef >"$WORK/keys"
printf '{"log_level": "info", "max_loras": 4}' >"$WORK/config.json"
serve_model --config "$WORK/config.json" --tls-cert "$WORK/cert.pem" --tls-key "$WORK/key.pem" \
  --api-key-file "$WORK/keys" --control-listen 127.0.0.1:0
main=${URL##*:}
control=$(grep '"event":"serving"' "$WORK/log" | jq --raw-output .control)
control=${control##*:}
shown "$main" old
shown "$control" old

# A connection that began before the reload lives on.
coproc HELD { openssl s_client -quiet -connect "127.0.0.1:$main" 2>/dev/null; }
held() {
  local status
  printf 'GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n' >&"${HELD[1]}"
  read -r -t 20 status <&"${HELD[0]}" || fail "the connection has ended"
  [[ $status == "HTTP/1.1 200 OK"* ]] || fail "the connection got '$status'"
  while read -r -t 20 status <&"${HELD[0]}" && [[ $status != $'\r' ]]; do :; done
}
held
reload '.level == "info"' '.certificate | test("^unchanged: it expires at 20")' '.config == "unchanged"' \
  '.log_level == "unchanged: info"' '.keys == "unchanged: 0 viewer, 0 generate, 1 control, 0 weights"' 'has("upstreams") | not'
use new new
printf 'control %s\n' control-fedcba9876543210 >"$WORK/keys"
printf '{"log_level": "debug", "max_loras": 5, "max_lora_rank": 8}' >"$WORK/config.json"
reload '.level == "warn"' '.message | test("changed options take effect at the next start")' \
  '.certificate | test("^changed: it expires at 20")' '.keys == "changed: 0 viewer, 0 generate, 1 control, 0 weights"' '.log_level == "changed: debug"' \
  '.config == "changed, from the next start on: --max-loras, --max-lora-rank"'
shown "$main" new
shown "$control" new
held
URL=https://localhost:$main
expect 200 GET /metrics --cacert "$WORK/new.pem" --header 'Authorization: Bearer control-fedcba9876543210'
end=$(date --date="$(openssl x509 -in "$WORK/new.pem" -noout -enddate | cut --delimiter== --fields=2)" +%s)
has "baton_tls_certificate_expiry_timestamp_seconds $end"
grep --quiet '"level":"debug"' "$WORK/log" || fail "the log level is not debug"

# A changed option without effect is named at the level warn too.
printf '{"log_level": "warn", "max_loras": 5}' >"$WORK/config.json"
reload '.level == "warn"' '.log_level == "changed: warn"' '.config == "changed, from the next start on: --max-loras"'

# What cannot be used is kept, and named.
use old new
reload '.level == "error"' '.certificate | test("^kept: --tls-key: .*key.pem.*cert.pem.*does not belong to")' \
  '.keys | test("^unchanged")'
shown "$main" new
echo nothing >"$WORK/key.pem"
reload '.certificate | test("^kept: --tls-key: .*key.pem. has no private key")'
rm "$WORK/cert.pem"
printf 'contrl x\n' >"$WORK/keys"
printf '{"log_level": "loud"}' >"$WORK/config.json"
reload '.level == "error"' '.certificate | test("^kept: --tls-cert: .*cert.pem. cannot be opened")' \
  '.keys | test("^kept: .*line 1")' '.config | test("^kept: .*config.json:1: log_level: .*loud")' 'has("log_level") | not'
shown "$main" new
expect 200 GET /v1/weights --cacert "$WORK/new.pem" --header 'Authorization: Bearer control-fedcba9876543210' \
  --connect-to "localhost:$main:localhost:$control"
held
# A pipe that nobody writes to delays a reload for 5 s, and no longer.
rm "$WORK/keys"
mkfifo "$WORK/keys"
reload '.keys | test("^kept: .*keys. is a pipe whose writer did not end within 5 s; use a file")'
held
# shellcheck disable=SC1083,SC2093  # it closes the file whose number the variable has
exec {HELD[1]}>&-
stop_server

serve_model
N_RELOADS=0
reload '.message == "SIGHUP: there is no file to read again"'
done_testing
