#!/usr/bin/env bash
# Trainers that publish deltas in an object store. Usage: as lib.sh says, and then the path of libfakecuda.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
  -addext 'subjectAltName=DNS:localhost' -keyout "$WORK/store.key" -out "$WORK/store.pem" 2>/dev/null
output=$(timeout 290 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/fetch.py" "$BATON" "$MODEL" "$(realpath "$2")/delta" "$WORK" \
  "$(realpath "$4")") ||
  fail "$output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks.*/\1/p' <<<"$output")
done_testing
