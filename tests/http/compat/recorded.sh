#!/usr/bin/env bash
# Requests of real clients and engines, replayed to baton and to the doubles.
# Usage: as lib.sh says, and then the path of fake_engine.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
here=$(dirname "${BASH_SOURCE[0]}")
output=$(timeout 290 "$PYTHON" -B "$here/recorded.py" "$BATON" "$(realpath "$4")" "$MODEL" \
  "$here/recorded" "$WORK/log") || fail "$output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) answers.*/\1/p' <<<"$output")
done_testing
