#!/usr/bin/env bash
# Clients that disconnect, and floods: no work is done for the first, no client starves beside the second.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

check() {
  timeout 250 "$PYTHON" "$(dirname "$0")/serving.py" "$URL" "$1" || fail "$1"
  N_CHECKS=$((N_CHECKS + 1))
}

serve_model
check cancel
check flood
check prompts
expect 200 GET /v1/status
same '.admission.generate | .running + .waiting' 0
same '.admission.detokenize | .running + .waiting' 0
same '.engine | .running + .waiting + .kv_tokens_used' 0
stop_server

serve_model --generate-concurrency 4
check queued
expect 200 GET /v1/status
same '.admission.generate | .running + .waiting' 0
done_testing
