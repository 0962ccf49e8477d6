#!/usr/bin/env bash
# Pause, resume, abort_requests: what each guarantees to clients that run meanwhile.
# Usage: pause.sh BATON FIXTURES CLIENT_DIR [CYCLES]: that many pauses with an update each.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
CYCLES=${4:-40}

check() {
  timeout 280 "$PYTHON" "$(dirname "$0")/pause.py" "$URL" "$@" || fail "$*"
  N_CHECKS=$((N_CHECKS + 1))
}

serve_model --allow-path "$CHECKPOINTS" --kv-cache 256MiB --max-num-seqs 256
if ((CYCLES > 100)); then
  timeout 3000 "$PYTHON" "$(dirname "$0")/pause.py" "$URL" cycles "$CYCLES" "$CHECKPOINTS" || fail cycles
  N_CHECKS=$((N_CHECKS + 1))
  done_testing
  exit
fi
check words
check keep
check wait
check gone
check abort
check requests
check lease
check reject
check cycles "$CYCLES" "$CHECKPOINTS"
expect 200 GET /v1/status
same '.admission.generate | .running + .waiting' 0
same '.engine | .running + .waiting + .kv_tokens_used' 0
same .pause null
stop_server

queued() {
  timeout 280 "$PYTHON" "$(dirname "$0")/pause_queued.py" "$URL" "$@" || fail "$*"
  N_CHECKS=$((N_CHECKS + 1))
}
serve_model --generate-concurrency 2
queued native vllm sglang areal asleep
stop_server
serve_model --generate-concurrency 2 --compat prime-rl
queued prime-rl
stop_server
serve_model --detokenize-concurrency 1
queued tokenizing
expect 200 GET /v1/status
same '.admission.generate | .running + .waiting' 0

# SIGTERM while paused: what is frozen ends well, what queues too, and whoever waits hears of it.
post 200 /v1/pause '{}'
body='{"token_ids": [40], "sampling_params": {"max_tokens": 50, "ignore_eos": true, "n": 4}}'
curl --silent --max-time 120 --output "$WORK/late" --header 'Content-Type: application/json' --data "$body" \
  "$URL/v1/generate" &
CLIENT_PID=$!
for _ in $(seq 5000); do
  expect 200 GET /v1/status
  [[ $(jq .admission.generate.waiting "$WORK/body") == 1 ]] && break
done
stop_server
wait "$CLIENT_PID" || fail "the generation that queued was cut"
jq --exit-status '[.choices[].token_ids | length] | add == 200' "$WORK/late" >/dev/null ||
  fail "the generation that queued did not end well: $(head --bytes=300 "$WORK/late")"

serve_model --drain-timeout 300000
curl --silent --max-time 120 --output "$WORK/late" --header 'Content-Type: application/json' \
  --data '{"token_ids": [40], "sampling_params": {"max_tokens": 900, "ignore_eos": true, "n": 4}}' "$URL/v1/generate" &
CLIENT_PID=$!
for _ in $(seq 5000); do
  expect 200 GET /v1/status
  [[ $(jq .engine.n_generated_tokens "$WORK/body") -gt 0 ]] && break
done
post 200 /v1/pause '{"mode": "keep"}'
same .running 1
stop_server
wait "$CLIENT_PID" || fail "the frozen generation was cut"
jq --exit-status '[.choices[].token_ids | length] | add == 3600' "$WORK/late" >/dev/null ||
  fail "the frozen generation did not end well: $(head --bytes=300 "$WORK/late")"
N_CHECKS=$((N_CHECKS + 2))
done_testing
