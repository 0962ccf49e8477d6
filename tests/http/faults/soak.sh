#!/usr/bin/env bash
# Everything at once. Usage: as lib.sh, then SECONDS; env SEED repeats the choices of a run.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

# AddressSanitizer keeps freed memory to find its use, 256 MiB by default: more than the growth that is looked for.
export ASAN_OPTIONS="quarantine_size_mb=32${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
"$PYTHON" -B "$(dirname "$0")/soak.py" "$BATON" "$MODEL" "$(dirname "$CLIENT")" "$WORK" "${4:-1800}" \
  "${SEED:-$RANDOM}" || { tail --lines=3 "$WORK"/*.log >&2; fail "see above"; }
N_CHECKS=$((N_CHECKS + 1))
done_testing
