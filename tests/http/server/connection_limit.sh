#!/usr/bin/env bash
# Near the limit of connections: which connections are closed for others, on plain sockets and over TLS.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$WORK/key.pem" \
  -out "$WORK/cert.pem" -days 30 -subj /CN=localhost -addext 'subjectAltName=IP:127.0.0.1' 2>/dev/null
tls=(--tls-cert "$WORK/cert.pem" --tls-key "$WORK/key.pem")

checks() { # CERTIFICATE CHECK...
  timeout 250 "$PYTHON" "$(dirname "$0")/connection_limit.py" "${URL#http://}" "$@" || fail "$* at ${URL}: see above"
  N_CHECKS=$((N_CHECKS + 1))
}

serve_model --max-connections 64 --header-timeout 3000
checks - keep_alive half_head
stop_server
serve_model --max-connections 64 --header-timeout 600000 --body-timeout 600000 --body-stall-timeout 600000
checks - silent late begun bodies keep_alive
stop_server
serve_model --max-connections 64 --header-timeout 3000 "${tls[@]}"
checks "$WORK/cert.pem" half_head
stop_server
serve_model --max-connections 64 --header-timeout 600000 --body-timeout 600000 --body-stall-timeout 600000 "${tls[@]}"
checks "$WORK/cert.pem" silent late begun bodies keep_alive
stop_server

# Few descriptors, for the server alone.
printf '#!/bin/sh\nulimit -n 256\nexec "%s" "$@"\n' "$BATON" >"$WORK/few"
chmod +x "$WORK/few"
BATON=$WORK/few
serve_model --header-timeout 600000 --body-timeout 600000
checks - silent
stop_server
serve_model --header-timeout 600000 --body-timeout 600000 "${tls[@]}"
checks "$WORK/cert.pem" silent
stop_server
done_testing
