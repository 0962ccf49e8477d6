#!/usr/bin/env bash
# Routed experts in the reply of each route, through pauses and updates, and where there are none.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
output=$(timeout 280 "$PYTHON" "$(dirname "$0")/routed_experts.py" "$BATON" "$(dirname "$MODEL")" "$WORK") ||
  fail "$output"
N_CHECKS=${output##*$'\n'}
done_testing
