#!/usr/bin/env bash
# Updates of an SGLang are sent between begin and end. Usage: as lib.sh, then FAKE_ENGINE.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

mkdir "$WORK/files"
"$PYTHON" -B "$(dirname "$0")/fleet_begin.py" "$BATON" "$4" "$WORK/log" "$3" "$WORK/files" sglang || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
