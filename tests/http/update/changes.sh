#!/usr/bin/env bash
# What a commit changed, for every source that comes through host memory, and over sleeps and restarts.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
output=$(timeout 250 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/changes.py" "$BATON" "${CLIENT%/*}" "$WORK") ||
  fail "$output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks$/\1/p' <<<"$output")
done_testing
