#!/usr/bin/env bash
# Updates that are read out of a trainer's memory, over the double of NIXL.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
output=$(timeout 250 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/nixl.py" "$BATON" "${CLIENT%/*}" "$WORK" "$4" "$5") ||
  fail "$output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks$/\1/p' <<<"$output")
done_testing
