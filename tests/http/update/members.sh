#!/usr/bin/env bash
# Each member of a request beside each source: it counts there, or it is refused by its name.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
output=$(timeout 120 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/members.py" "$BATON" "$WORK" "$TESTS") || fail "$output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks$/\1/p' <<<"$output")
done_testing
