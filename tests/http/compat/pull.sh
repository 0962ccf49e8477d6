#!/usr/bin/env bash
# Trainers that publish deltas in directories: slime, Miles, SkyRL. Usage: as lib.sh
# says, and then the path of libfakecuda.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
output=$(timeout 290 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/pull.py" "$BATON" "$MODEL" "$(realpath "$2")/delta" "$WORK" \
  "$(realpath "$4")") ||
  fail "$output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks.*/\1/p' <<<"$output")
done_testing
