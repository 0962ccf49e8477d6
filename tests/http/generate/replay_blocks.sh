#!/usr/bin/env bash
# replay_layout: blocks of routed experts for the ranks of a trainer, from the server and from the client.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
output=$(timeout 280 "$PYTHON" "$(dirname "$0")/replay_blocks.py" "$BATON" "$(dirname "$MODEL")" "$WORK") ||
  fail "$output"
N_CHECKS=${output##*$'\n'}
done_testing
