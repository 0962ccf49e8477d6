#!/usr/bin/env bash
# POST /v1/rollouts: equal to the JSON replies bit for bit, for random prompts, n, layouts and
# multiples; streams; pauses, commits, aborts and failures in mid batch; what is refused.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

check() {
  local output
  output=$(timeout 250 "$PYTHON" "$(dirname "$0")/rollouts.py" "$URL" "$MODEL" "$WORK" "$1") ||
    fail "$1: $output"
  N_CHECKS=$((N_CHECKS + ${output##*$'\n'}))
}

serve_model --allow-path "$CHECKPOINTS" --allow-path "$WORK" --access-log all
check equal
check streams
check refusals
check arguments
check disturbed
check failed
grep --quiet '"route":"/v1/rollouts"' "$WORK/log" || fail "no access line of /v1/rollouts"
stop_server

serve_model --max-unread-bytes 40MiB --body-timeout 600000
check unread
stop_server

start_server --model "$(dirname "$MODEL")/tiny-qwen3-moe"
check equal
check arguments
check routed
stop_server
done_testing
