#!/usr/bin/env bash
# Deltas as the client and the command line send them.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
output=$(timeout 400 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/client_delta.py" "$BATON" "${CLIENT%/*}" "$WORK" "$TESTS") ||
  fail "$output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks$/\1/p' <<<"$output")
done_testing
