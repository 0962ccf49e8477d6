#!/usr/bin/env bash
# The client's groups, over the fakes and a stand-in for torch. Usage: as lib.sh says, and then
# the paths of libfakecuda, of libfakenccl, and of the trainer's two. env SEED repeats a run.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
seed=${SEED:-$RANDOM}
output=$(FAKECUDA_DEVICES=2 timeout 290 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/client_nccl.py" \
  "$BATON" "$MODEL" "${CLIENT%/*}" "$(realpath "$4")" "$(realpath "$5")" "$(realpath "$6")" \
  "$(realpath "$7")" "$seed") || fail "SEED=$seed: $output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks.*/\1/p' <<<"$output")
done_testing
