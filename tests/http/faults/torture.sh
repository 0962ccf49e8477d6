#!/usr/bin/env bash
# Failed allocations or system calls on a running server.
# Usage: as lib.sh, then FAIL_SO allocation|call.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
"$PYTHON" -B "$(dirname "$0")/torture.py" "$BATON" "$MODEL" "$(dirname "$CLIENT")" "$4" "$WORK" \
  "${N_STARTS:-60}" "$5" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
