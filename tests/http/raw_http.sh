#!/usr/bin/env bash
# Malformed framing on raw sockets: what is refused, and that no second request hides in a body.
# shellcheck source=tests/http/lib.sh
source "$(dirname "$0")/lib.sh"
serve_model --header-timeout 600 --body-timeout 600 --idle-timeout 2500

port=${URL##*:}
"$PYTHON" "$(dirname "$0")/raw_http.py" 127.0.0.1 "$port" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
serves step-00000 step-0
stop_server

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$WORK/key.pem" \
  -out "$WORK/cert.pem" -days 30 -subj /CN=localhost -addext 'subjectAltName=IP:127.0.0.1' 2>/dev/null
serve_model --header-timeout 1000 --body-timeout 1000 --idle-timeout 2500 --tls-cert "$WORK/cert.pem" \
  --tls-key "$WORK/key.pem"
"$PYTHON" "$(dirname "$0")/raw_http.py" 127.0.0.1 "${URL##*:}" "$WORK/cert.pem" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
