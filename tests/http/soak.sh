#!/usr/bin/env bash
# Everything at once. Usage: as lib.sh, then SECONDS; env SEED repeats the choices of a run.
# shellcheck source=tests/http/lib.sh
source "$(dirname "$0")/lib.sh"

"$PYTHON" -B "$(dirname "$0")/soak.py" "$BATON" "$MODEL" "$(dirname "$CLIENT")" "$WORK" "${4:-1800}" \
  "${SEED:-$RANDOM}" || { tail --lines=3 "$WORK"/*.log >&2; fail "see above"; }
N_CHECKS=$((N_CHECKS + 1))
done_testing
