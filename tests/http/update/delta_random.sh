#!/usr/bin/env bash
# Random models and random deltas in chains. SEED: of the first model.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
output=$(timeout 400 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/delta_random.py" "$BATON" "${CLIENT%/*}" "$WORK" \
  "${SEED:-$RANDOM}" 15) || fail "$output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks$/\1/p' <<<"$output")
done_testing
