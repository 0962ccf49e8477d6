#!/usr/bin/env bash
# Failed allocations or system calls on a running server.
# Usage: as lib.sh, then FAIL_SO allocation|call SANITIZED(yes|no).
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
if [[ $6 == yes ]]; then
  echo "skipped: a sanitizer's allocator and its wrappers of calls cannot be replaced"
  exit 77
fi
"$PYTHON" -B "$(dirname "$0")/torture.py" "$BATON" "$MODEL" "$(dirname "$CLIENT")" "$4" "$WORK" \
  "${N_STARTS:-60}" "$5" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
