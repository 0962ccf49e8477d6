#!/usr/bin/env bash
# Revisions of an adapter as deltas. Usage: as lib.sh says; env SEED repeats a run.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
seed=${SEED:-$RANDOM}
output=$(timeout 290 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/lora_delta.py" "$BATON" "${CLIENT%/*}" "$WORK" "$MODEL" \
  "$seed") || fail "SEED=$seed: $output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks$/\1/p' <<<"$output")
done_testing
