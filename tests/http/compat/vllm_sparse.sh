#!/usr/bin/env bash
# vLLM's trainer of sparse patches, as it was recorded, over the fakes; what is refused, and its chain.
# Usage: as dialect_vllm.sh's. env SEED repeats a run.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
seed=${SEED:-$RANDOM}
output=$(timeout 290 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/vllm_sparse.py" "$BATON" "$MODEL" \
  "${CLIENT%/*}" "$(realpath "$4")" "$(realpath "$5")" "$(realpath "$6")" "$(realpath "$7")" \
  "$seed" "$TESTS") || fail "SEED=$seed: $output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks.*/\1/p' <<<"$output")
done_testing
