#!/usr/bin/env bash
# Ranks of a trainer that hold different experts, over the fake driver. Usage: as lib.sh says, and then the path of libfakecuda, and
# of the trainers'. env SEED repeats a run.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
seed=${SEED:-$RANDOM}
output=$(timeout 290 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/update_experts.py" "$BATON" "$MODEL" \
  "${CLIENT%/*}" "$(realpath "$4")" "$(realpath "$5")" "$seed") || fail "SEED=$seed: $output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks;.*/\1/p' <<<"$output")
done_testing
