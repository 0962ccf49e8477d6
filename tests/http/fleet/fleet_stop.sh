#!/usr/bin/env bash
# A server in front of batons that ends, and one with a dead engine. Usage: as lib.sh.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

"$PYTHON" -B "$(dirname "$0")/fleet_stop.py" "$BATON" "$MODEL" "$WORK" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
