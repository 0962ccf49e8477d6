#!/usr/bin/env bash
# Faults of upstream engines under load. Usage: as lib.sh, then FAKE_ENGINE DIALECT some|all.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

"$PYTHON" -B "$(dirname "$0")/fleet.py" "$BATON" "$4" "$WORK/log" "$5" "$6" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
