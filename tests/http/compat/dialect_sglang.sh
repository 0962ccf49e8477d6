#!/usr/bin/env bash
# Trainers that speak SGLang: their sessions, and what is refused, over the fakes. Usage: as lib.sh
# says, and then the paths of libfakecuda, of libfakenccl, and of the trainers' two.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
said=$(timeout 290 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/dialect_sglang.py" "$BATON" "$MODEL" \
  "${CLIENT%/*}" "$(realpath "$4")" "$(realpath "$5")" "$(realpath "$6")" "$(realpath "$7")") ||
  fail "$said"
echo "$said"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks.*/\1/p' <<<"$said")
done_testing
