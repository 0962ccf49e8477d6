#!/usr/bin/env bash
# Requests without a key while a trainer's group is joined. Usage: as weight_transfer.sh says.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
output=$(timeout 120 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/keys_group.py" "$BATON" "$MODEL" \
  "${CLIENT%/*}" "$(realpath "$4")" "$(realpath "$5")" "$(realpath "$6")" "$(realpath "$7")") || fail "$output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks.*/\1/p' <<<"$output")
done_testing
