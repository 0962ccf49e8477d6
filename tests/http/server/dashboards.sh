#!/usr/bin/env bash
# The alert rules and the Grafana board against live scrapes. Usage: as lib.sh, then FAKE_ENGINE LIBFAKECUDA.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

"$PYTHON" -B "$(dirname "$0")/dashboards.py" "$BATON" "$4" "$(realpath "$5")" "$WORK/log" "$MODEL" "$TESTS/.." || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
