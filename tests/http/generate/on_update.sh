#!/usr/bin/env bash
# Commits during streams, in each mode of on_update: spans, exact tokens, limit of versions, defaults.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

check() {
  local output
  output=$(timeout 250 "$PYTHON" "$(dirname "$0")/on_update.py" "$URL" "$MODEL" "$CLIENT" "$1") ||
    fail "$1: $output"
  N_CHECKS=$((N_CHECKS + ${output##*$'\n'}))
  expect 200 GET /v1/status
  same '.admission.generate | .running + .waiting' 0
}

serve_model --allow-path "$CHECKPOINTS"
expect 200 GET /v1/status
same .engine.on_update continue
check modes
post 400 /v1/generate '{"token_ids": [1], "sampling_params": {}, "on_update": "later"}'
same .error.param /on_update
has 'not one of continue, finish, recompute'
stop_server

serve_model --allow-path "$CHECKPOINTS" --max-versions 2 --pin-timeout 100
check room
check frozen
stop_server

serve_model --allow-path "$CHECKPOINTS" --on-update finish
check default
stop_server

rc=0
"$BATON" serve --model "$MODEL" --on-update later 2>"$WORK/refusal" || rc=$?
N_CHECKS=$((N_CHECKS + 1))
if [[ $rc == 0 ]] || ! grep --quiet -- "--on-update" "$WORK/refusal"; then
  fail "--on-update later: $(cat "$WORK/refusal")"
fi
done_testing
