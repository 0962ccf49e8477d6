#!/usr/bin/env bash
# Health, status, models, version, metrics; request ids; unknown routes and methods.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
serve_model

for path in /health /ping /health/live /livez /v2/health/live /health/ready /readyz /v2/health/ready; do
  expect 200 GET "$path"
  [[ -n $(header Content-Length) ]] || fail "$path has no Content-Length"
  [[ $(header X-Baton-Boot-Id) == "$BOOT_ID" ]] || fail "$path does not say the boot id"
  expect 200 GET "$path" --head
done
expect 200 POST /ping
expect 200 GET /health --header 'X-Request-Id: train-7.step_3'
[[ $(header X-Request-Id) == train-7.step_3 ]] || fail "the request id is not echoed"
expect 200 GET /health --header 'X-Request-Id: no good id'
[[ $(header X-Request-Id) =~ ^[0-9a-f]{32}$ ]] || fail "a bad request id is not replaced"

expect 200 GET /v1/status
same .boot_id "$BOOT_ID"
same .life serving
[[ $(tail --bytes=1 "$WORK/body" | od --address-radix=n --format=x1) == ' 0a' ]] || fail "the JSON does not end with a newline"
post 200 /v1/pause '{"lease_s": 60}'
! grep --quiet pause.no_lease "$WORK/log" || fail "a pause with a lease is warned of"
post 200 /v1/pause '{}'
post 200 /v1/resume '{}'
post 200 /v1/pause '{}'
post 200 /v1/resume '{}'
[[ $(grep --count '"event":"pause.no_lease"' "$WORK/log") == 1 ]] || fail "pauses without a lease are not logged once"
expect 200 GET /v1/status
same .ready true
same .weights.state ready
same .weights.weight_version step-0
same .weights.serial 1
same .weights.n_tensors 46
same .update null
same .admission.generate.concurrency 512
same '.engine.heartbeat_age_ms < 5000' true
expect 200 GET /v1/models
same '.data[0].id' kjv-qwen3-1m
same '.data[0].max_model_len' 1024
expect 200 GET /version
same .boot_id "$BOOT_ID"
expect 200 GET /metrics
has 'baton_'
grep --quiet '^vllm:num_requests_running' "$WORK/body" || fail "vllm:num_requests_running is missing"

expect 404 GET /v1/nothing
same .error.code not_found
same .error.retryable false
has /v1/nothing
expect 405 POST /v1/status
same .error.code method_not_allowed
expect 405 GET /v1/update_weights/start
has POST
expect 405 PATCH /health
done_testing
