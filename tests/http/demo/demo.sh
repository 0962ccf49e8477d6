#!/usr/bin/env bash
# The demonstration, with and without a terminal. Usage: as lib.sh.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

"$PYTHON" -B "$(dirname "$0")/demo.py" "$BATON" "$MODEL" "$WORK" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
