#!/usr/bin/env bash
# Failed allocations on a running server. Usage: as lib.sh, then FAIL_MALLOC_SO SANITIZED(yes|no).
# shellcheck source=tests/http/lib.sh
source "$(dirname "$0")/lib.sh"
fail_malloc=$4
if [[ ${5:-no} == yes ]]; then
  echo "skipped: a sanitizer's allocator cannot be replaced"
  exit 77
fi
"$PYTHON" -B "$(dirname "$0")/_t.py" "$BATON" "$MODEL" "$(dirname "$CLIENT")" "$fail_malloc" "$WORK" \
  "${N_STARTS:-60}" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
