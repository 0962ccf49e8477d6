#!/usr/bin/env bash
# Upstreams that are fenced are paused (--pause-fenced). Usage: as fleet_control.sh.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

mkdir "$WORK/files"
"$PYTHON" -B "$(dirname "$0")/fleet_held.py" "$BATON" "$4" "$WORK/log" "$3" "$WORK/files" "$5" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
