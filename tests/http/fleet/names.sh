#!/usr/bin/env bash
# Engines by name, with a name server of our own. Usage: as lib.sh, then FAKE_ENGINE USE_NAME_SERVER.so
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

for name in engines.test other.test; do
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$WORK/$name.key" -out "$WORK/$name.pem" \
    -days 30 -subj "/CN=$name" -addext "subjectAltName=DNS:$name" 2>/dev/null
done
cat "$WORK/engines.test.pem" "$WORK/other.test.pem" >"$WORK/ca.pem"
USE_NAME_SERVER=$5 "$PYTHON" -B "$(dirname "$0")/names.py" "$BATON" "$4" "$MODEL" "$WORK" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
