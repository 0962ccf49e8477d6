#!/usr/bin/env bash
# Updates with a part of the model, in front of doubles of upstream engines. Usage: as fleet_control.sh.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

mkdir "$WORK/files"
"$PYTHON" -B "$(dirname "$0")/fleet_cover.py" "$BATON" "$4" "$WORK/log" "$3" \
  "$WORK/files" "$5" "$MODEL" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
