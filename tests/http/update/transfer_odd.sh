#!/usr/bin/env bash
# NCCL groups in odd orders, and updates by them with every option of other updates. Usage: as
# weight_transfer.sh says.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
seed=${SEED:-$RANDOM}
output=$(timeout 290 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/transfer_odd.py" "$BATON" "$MODEL" \
  "${CLIENT%/*}" "$(realpath "$4")" "$(realpath "$5")" "$(realpath "$6")" "$(realpath "$7")" \
  "$seed") || fail "SEED=$seed: $output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks.*/\1/p' <<<"$output")
done_testing
