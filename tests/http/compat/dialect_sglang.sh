#!/usr/bin/env bash
# Trainers that use SGLang's API: their sessions, and refusals, over the fakes. Usage: as lib.sh
# says, and then the paths of libfakecuda, of libfakenccl, and of the trainers' two.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
output=$(timeout 290 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/dialect_sglang.py" "$BATON" "$MODEL" \
  "${CLIENT%/*}" "$(realpath "$4")" "$(realpath "$5")" "$(realpath "$6")" "$(realpath "$7")") ||
  fail "$output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks.*/\1/p' <<<"$output")
done_testing
