#!/usr/bin/env bash
# The client with several servers, with a Unix socket, and with answers that are none of baton's.
# Usage: as lib.sh, then LIBFAKECUDA.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
  -addext subjectAltName=DNS:localhost -keyout "$WORK/key.pem" -out "$WORK/cert.pem" 2>/dev/null
output=$(timeout 120 "$PYTHON" -W error::ResourceWarning "$(dirname "$0")/client_servers.py" "$BATON" "$MODEL" "$WORK" "$(realpath "$4")") ||
  fail "$output"
N_CHECKS=$((N_CHECKS + ${output##* }))
done_testing
