#!/usr/bin/env bash
# Malformed framing on raw sockets: refusals, and no second request is smuggled in a body.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
serve_model --header-timeout 2000 --body-timeout 2000 --idle-timeout 3000

port=${URL##*:}
"$PYTHON" "$(dirname "$0")/raw_http.py" 127.0.0.1 "$port" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
serves step-00000 step-0
stop_server

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$WORK/key.pem" \
  -out "$WORK/cert.pem" -days 30 -subj /CN=localhost -addext 'subjectAltName=IP:127.0.0.1' 2>/dev/null
serve_model --header-timeout 2000 --body-timeout 2000 --idle-timeout 3000 --tls-cert "$WORK/cert.pem" \
  --tls-key "$WORK/key.pem"
"$PYTHON" "$(dirname "$0")/raw_http.py" 127.0.0.1 "${URL##*:}" "$WORK/cert.pem" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
stop_server

# With few descriptors: slow bodies of generates and hundreds of connections that say nothing keep
# nobody from health and control.
ulimit -n 256
heard() { # CERTIFICATE, or "-"
  "$PYTHON" - "${URL##*:}" "$1" <<'P' || fail "health or control were kept out"
import http.client, socket, ssl, sys, time
at = ("127.0.0.1", int(sys.argv[1]))
head = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 20\r\n\r\n{")
tls = ssl.create_default_context(cafile=sys.argv[2]) if sys.argv[2] != "-" else None
held = []
for _ in range(12):
    one = socket.create_connection(at)
    held.append(tls.wrap_socket(one, server_hostname=at[0]) if tls else one)
    held[-1].sendall(head)
held += [socket.create_connection(at) for _ in range(200)]
for method, path in (("GET", "/health"), ("GET", "/v1/status"), ("POST", "/v1/pause"), ("POST", "/v1/resume")):
    began = time.monotonic()
    c = http.client.HTTPSConnection(*at, timeout=60, context=tls) if tls else http.client.HTTPConnection(*at, timeout=60)
    c.request(method, path)
    status = c.getresponse().status
    assert status == 200 and time.monotonic() - began < 5, (path, status, time.monotonic() - began)
P
  N_CHECKS=$((N_CHECKS + 1))
  stop_server
}
serve_model --header-timeout 600000 --body-timeout 600000
heard -
serve_model --header-timeout 600000 --body-timeout 600000 --tls-cert "$WORK/cert.pem" --tls-key "$WORK/key.pem"
heard "$WORK/cert.pem"
done_testing
