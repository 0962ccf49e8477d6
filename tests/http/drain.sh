#!/usr/bin/env bash
# SIGTERM: running work ends well, new work is refused, the exit code is 0.
# shellcheck source=tests/http/lib.sh
source "$(dirname "$0")/lib.sh"
serve_model --drain-timeout 60000

body='{"token_ids": [40], "sampling_params": {"max_tokens": 500, "ignore_eos": true, "temperature": 1.0, "n": 4}}'
curl --silent --max-time 120 --output "$WORK/late" --header 'Content-Type: application/json' --data "$body" \
  "$URL/v1/generate" &
CLIENT_PID=$!
for _ in $(seq 500); do
  expect 200 GET /v1/status
  [[ $(jq .engine.running "$WORK/body") -gt 0 ]] && break
  sleep 0.01
done
same '.engine.running > 0' true
stop_server
wait "$CLIENT_PID" || fail "the running generation was cut"
jq --exit-status '[.choices[].token_ids | length] | add == 2000' "$WORK/late" >/dev/null ||
  fail "the running generation did not end well: $(head --bytes=300 "$WORK/late")"
N_CHECKS=$((N_CHECKS + 1))

# Past the deadline what runs is aborted, and still answered.
serve_model --drain-timeout 1
curl --silent --max-time 120 --output "$WORK/late" --write-out '%{http_code}' --header 'Content-Type: application/json' \
  --data "$body" "$URL/v1/generate" >"$WORK/status" &
CLIENT_PID=$!
for _ in $(seq 500); do
  expect 200 GET /v1/status
  [[ $(jq .engine.running "$WORK/body") -gt 0 ]] && break
  sleep 0.01
done
stop_server
wait "$CLIENT_PID" || true
[[ $(cat "$WORK/status") =~ ^(200|503|000)$ ]] || fail "status $(cat "$WORK/status")"
done_testing
