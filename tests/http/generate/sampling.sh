#!/usr/bin/env bash
# Sampling members on each route that takes them: refusals that name them, and their effect.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
serve_model
timeout 250 "$PYTHON" "$(dirname "$0")/sampling.py" "$URL" "$WORK" || fail "sampling"
N_CHECKS=$((N_CHECKS + $(cat "$WORK/n_checks")))
expect 200 GET /v1/status
same '.engine | .running + .waiting + .kv_tokens_used' 0
done_testing
