#!/usr/bin/env bash
# Hosts that lack the fleet's version get it from others. Usage: as lib.sh.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

timeout 280 "$PYTHON" -B "$(dirname "$0")/fleet_seed.py" "$BATON" "$MODEL" "$(dirname "$CLIENT")" "$WORK" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
