#!/usr/bin/env bash
# Thousands of faulted updates between valid ones. Usage: as lib.sh, then N_CASES SANITIZED(yes|no).
# A failure prints the seed; env SEED repeats it.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
n_cases=${4:-1000}
sanitized=${5:-no}
mkdir "$WORK/allowed"
serve_model --allow-path "$WORK/allowed"

"$PYTHON" -B "$(dirname "$0")/fault_matrix.py" "$URL" "$MODEL" "$WORK/allowed" "$(dirname "$CLIENT")" \
  "$SERVER_PID" "$n_cases" "${SEED:-$RANDOM}" "$sanitized" || fail "see above"
N_CHECKS=$((N_CHECKS + n_cases))
done_testing
