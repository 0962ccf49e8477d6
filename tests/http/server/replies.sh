#!/usr/bin/env bash
# The members of replies are those of openapi/baton.json.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
start_server --model "$MODEL/../tiny-qwen3-moe"
experts=$URL experts_pid=$SERVER_PID
start_server --upstream "$experts"
front=$URL front_pid=$SERVER_PID
start_server --model "$MODEL" --weights none --sglang-base-gpu-id 0
"$PYTHON" "$(dirname "$0")/replies.py" "$URL" "$(dirname "$CLIENT")/../openapi/baton.json" \
  "$CHECKPOINTS/step-00100.safetensors" "$experts" "$front" || {
  kill "$experts_pid" "$front_pid"
  fail "replies and openapi/baton.json differ"
}
expect 200 GET /readyz
stop_server
for SERVER_PID in "$front_pid" "$experts_pid"; do
  stop_server
done
done_testing
