#!/usr/bin/env bash
# What people type wrong, and what they are told: mistakes.py has a row for each mistake.
# shellcheck source=tests/http/lib.sh
source "$(dirname "$0")/lib.sh"
timeout 250 "$PYTHON" "$(dirname "$0")/mistakes.py" command "$BATON" "$MODEL" "$WORK" >"$WORK/body" || fail "see above"
has "mistakes"
done_testing
