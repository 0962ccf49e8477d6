#!/usr/bin/env bash
# A server in front of servers with real weights. Usage: as lib.sh, then ROUNDS.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

"$PYTHON" -B "$(dirname "$0")/fleet_batons.py" "$BATON" "$MODEL" "$(dirname "$CLIENT")" "$WORK" "$4" ||
  fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
