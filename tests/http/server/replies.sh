#!/usr/bin/env bash
# The members of replies are those of openapi/baton.yaml.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
start_server --model "$MODEL" --weights none
"$PYTHON" "$(dirname "$0")/replies.py" "$URL" "$(dirname "$CLIENT")/../openapi/baton.yaml" \
  "$CHECKPOINTS/step-00100.safetensors" || fail "replies and openapi/baton.yaml differ"
expect 200 GET /readyz
done_testing
