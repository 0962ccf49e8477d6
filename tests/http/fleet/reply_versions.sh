#!/usr/bin/env bash
# The versions of relayed replies. Usage: reply_versions.sh BATON FIXTURES CLIENT FAKE_ENGINE
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

PYTHONPATH=$PYTHONPATH:$3 "$PYTHON" -B "$(dirname "$0")/reply_versions.py" "$BATON" "$4" "$WORK/log" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
