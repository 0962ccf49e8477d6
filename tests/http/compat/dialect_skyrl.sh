#!/usr/bin/env bash
# A training step of each mode of SkyRL, over the fakes. Usage: as lib.sh says, and then the paths of
# libfakecuda, of libfakenccl, and of the trainers' two. env SEED repeats a run.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
seed=${SEED:-$RANDOM}
output=$(timeout 290 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/dialect_skyrl.py" "$BATON" "$MODEL" \
  "${CLIENT%/*}" "$(realpath "$4")" "$(realpath "$5")" "$(realpath "$6")" "$(realpath "$7")" \
  "$seed") || fail "SEED=$seed: $output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks.*/\1/p' <<<"$output")
done_testing
