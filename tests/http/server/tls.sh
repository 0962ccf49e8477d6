#!/usr/bin/env bash
# TLS: routes, limits of its sockets, and which certificates are refused.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
here=$(dirname "$0")

certificate() { # NAME KIND...: makes NAME.pem and NAME.key
  openssl req -x509 -newkey "${@:2}" -nodes -keyout "$WORK/$1.key" -out "$WORK/$1.pem" -days 30 \
    -subj /CN=localhost -addext 'subjectAltName=DNS:localhost,IP:127.0.0.1' 2>/dev/null
}
certificate ec ec -pkeyopt ec_paramgen_curve:prime256v1
certificate rsa rsa:2048
tls=(--tls-cert "$WORK/ec.pem" --tls-key "$WORK/ec.key")

serve_tls() {
  serve_model "$@"
  same_log .scheme https
  URL=https://localhost:${URL##*:}
  export CURL_CA_BUNDLE=$WORK/ec.pem SSL_CERT_FILE=$WORK/ec.pem
}

same_log() { # JQ_EXPRESSION WANTED: of the line that says it serves
  local found
  found=$(grep '"event":"serving"' "$WORK/log" | jq --raw-output "$1")
  N_CHECKS=$((N_CHECKS + 1))
  [[ $found == "$2" ]] || fail "$1 is '$found', wanted '$2'"
}

serve_tls "${tls[@]}" --header-timeout 1000 --body-timeout 1000 --body-stall-timeout 1000
serves step-00000 step-0
timeout 250 "$PYTHON" -W ignore::DeprecationWarning "$here/tls.py" localhost "${URL##*:}" "$WORK/ec.pem" "$CHECKPOINTS/step-00000.safetensors" ||
  fail "see above"
serves step-00000 odd-5
"$PYTHON" -m baton --url "$URL" --via body --weight-version by-tls "$CHECKPOINTS/step-01500.safetensors" >"$WORK/body"
same .phase committed
serves step-01500 by-tls
curl --silent --max-time 20 "http://localhost:${URL##*:}/health" >"$WORK/body"
has "this port speaks HTTPS: send the request to https://"
grep --quiet '"event":"http.plain_on_tls"' "$WORK/log" || fail "plain HTTP was not logged"
! curl --silent --max-time 20 --cacert "$WORK/rsa.pem" "$URL/health" >/dev/null || fail "curl trusts anything"
stop_server

# Several loops, RSA, control on a unix socket: TLS there too, health without.
serve_model --tls-cert "$WORK/rsa.pem" --tls-key "$WORK/rsa.key" --front-threads 3 \
  --control-listen "unix:$WORK/control.sock" --health-listen 127.0.0.1:0
health=http://$(grep '"event":"serving"' "$WORK/log" | jq --raw-output .health)
URL=https://localhost:${URL##*:}
export CURL_CA_BUNDLE=$WORK/rsa.pem
for _ in 1 2 3 4 5 6; do
  expect 200 GET /v1/models
done
expect 200 GET /v1/weights --unix-socket "$WORK/control.sock"
curl --silent --max-time 20 --unix-socket "$WORK/control.sock" "http://localhost/v1/weights" >"$WORK/body"
has "this port speaks HTTPS"
URL=$health
expect 200 GET /livez
stop_server

refused() { # TEXT OPTION...
  local text=$1 rc=0
  shift
  timeout 60 "$BATON" serve --check --model "$MODEL" --listen 127.0.0.1:0 "$@" >"$WORK/body" 2>&1 || rc=$?
  ((rc == 2)) || fail "baton serve $* ended with $rc: $(cat "$WORK/body")"
  has "$text"
}
refused '--tls-key: --tls-cert and --tls-key' --tls-cert "$WORK/ec.pem"
refused '--tls-cert: --tls-cert and --tls-key' --tls-key "$WORK/ec.key"
refused 'ec.pem'\'': the key does not belong to the certificate' --tls-cert "$WORK/ec.pem" --tls-key "$WORK/rsa.key"
refused 'is a private key; a certificate in PEM is expected' --tls-cert "$WORK/ec.key" --tls-key "$WORK/ec.key"
refused "nothing.pem' cannot be opened" --tls-cert "$WORK/nothing.pem" --tls-key "$WORK/ec.key"
: >"$WORK/empty"
refused '--tls-key: ' --tls-cert "$WORK/ec.pem" --tls-key "$WORK/empty"
refused "--tls-cert: '$WORK/ec.key' is a private key, and '$WORK/ec.pem' of --tls-key is a certificate: swap the two" \
  --tls-cert "$WORK/ec.key" --tls-key "$WORK/ec.pem"
refused "--tls-key: '$WORK/ec.pem' is a certificate; a private key in PEM is expected" --tls-cert "$WORK/ec.pem" \
  --tls-key "$WORK/ec.pem"
echo 'no PEM' >"$WORK/text"
refused "--tls-cert: '$WORK/text' has no certificate; a certificate in PEM is expected" --tls-cert "$WORK/text" --tls-key "$WORK/ec.key"
refused "--tls-key: '$WORK/text' has no private key; a private key in PEM is expected" --tls-cert "$WORK/ec.pem" --tls-key "$WORK/text"
openssl x509 -in "$WORK/ec.pem" -outform der -out "$WORK/ec.der"
refused "PEM" --tls-cert "$WORK/ec.der" --tls-key "$WORK/ec.key"
openssl pkey -in "$WORK/ec.key" -aes128 -passout pass:secret -out "$WORK/locked.key"
refused "--tls-key: '$WORK/locked.key' is encrypted with a password" --tls-cert "$WORK/ec.pem" --tls-key "$WORK/locked.key"
done_testing
