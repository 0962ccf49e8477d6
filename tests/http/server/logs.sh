#!/usr/bin/env bash
# The log and the history of a server with weights, and of one in front of doubles. Usage: as lib.sh,
# then FAKE_ENGINE.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

mkdir "$WORK/files"
"$PYTHON" -B "$(dirname "$0")/logs.py" "$BATON" "$4" "$WORK/log" "$MODEL" "$WORK/files" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
