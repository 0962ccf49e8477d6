#!/usr/bin/env bash
# Pauses of a fleet whose engines have fewer permits than there are requests. Usage: as lib.sh, then FAKE_ENGINE KIND.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

"$PYTHON" -B "$(dirname "$0")/fleet_paused.py" "$BATON" "$4" "$MODEL" "$WORK" "$5" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
