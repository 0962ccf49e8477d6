#!/usr/bin/env bash
# Versions of peers that are passed on while they are read. Usage: as lib.sh says.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
output=$(timeout 150 "$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/seed_chain.py" "$BATON" "$MODEL" "$WORK") || fail "$output"
echo "$output"
N_CHECKS=$(sed --quiet 's/^ok: \([0-9]*\) checks.*/\1/p' <<<"$output")
done_testing
