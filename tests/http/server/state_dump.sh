#!/usr/bin/env bash
# SIGQUIT writes the state to the log. Usage: as lib.sh, then FAKE_ENGINE and HOLD_LOCK, or "no".
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

hold=$5
[[ $hold != no ]] || hold=
mkdir "$WORK/files"
"$PYTHON" -B "$(dirname "$0")/state_dump.py" "$BATON" "$4" "$hold" "$WORK/log" "$MODEL" "$WORK/files" ||
  fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
