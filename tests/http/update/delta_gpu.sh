#!/usr/bin/env bash
# Deltas where weights are on GPUs, over the fakes: what delta.sh checks, on two GPUs, sharded and mirrored; and parts that
# are on GPUs. Usage: as weight_transfer.sh. env SEED repeats a run.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
seed=${SEED:-$RANDOM}
here=$(dirname "${BASH_SOURCE[0]}")
cuda=$(realpath "$4") n=0
count() {
  echo "$output"
  n=$((n + $(sed --quiet 's/^ok: \([0-9]*\) checks.*/\1/p' <<<"$output")))
}
for options in "--device cuda:0,cuda:1" "--device cuda:0,cuda:1 --placement sharded" "engine --device cuda:0"; do
  folder=$(mktemp --directory "$WORK/XXXXXX")
  # shellcheck disable=SC2086
  output=$(FAKECUDA_DEVICES=2 timeout 290 "$PYTHON" -B "$here/delta.py" "$BATON" "${CLIENT%/*}" "$folder" "$TESTS" $options \
    --cuda-library "$cuda") || fail "$options: $output"
  count
done
output=$(timeout 290 "$PYTHON" -B "$here/delta_gpu.py" "$BATON" "$MODEL" "${CLIENT%/*}" "$cuda" "$(realpath "$5")" \
  "$(realpath "$6")" "$(realpath "$7")" "$seed") || fail "SEED=$seed: $output"
count
N_CHECKS=$n
done_testing
