#!/usr/bin/env bash
# What is reported of a fleet of doubles. Usage: as lib.sh, then FAKE_ENGINE.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

mkdir "$WORK/files"
"$PYTHON" -B "$(dirname "$0")/fleet_reports.py" "$BATON" "$4" "$WORK/log" "$WORK/files" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
