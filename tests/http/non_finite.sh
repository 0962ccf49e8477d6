#!/usr/bin/env bash
# Weights and adapters that are not finite, and weights that compute what is not.
# shellcheck source=tests/http/lib.sh
source "$(dirname "$0")/lib.sh"

# filled FILE TENSOR HEX OUT: a safetensors file whose tensor has only elements of those bytes.
filled() {
  "$PYTHON" - "$@" <<'P'
import json, struct, sys
source, name, element, out = sys.argv[1:]
with open(source, "rb") as f:
    raw = bytearray(f.read())
begin = 8 + struct.unpack("<Q", raw[:8])[0]
first, last = json.loads(raw[8:begin])[name]["data_offsets"]
element = bytes.fromhex(element)
raw[begin + first:begin + last] = element * ((last - first) // len(element))
with open(out, "wb") as f:
    f.write(raw)
P
}

# send STATUS FILE LABEL: a whole update as the body.
send() {
  expect "$1" POST "/v1/update_weights?weight_version=$3" \
    --header 'Content-Type: application/vnd.safetensors' --data-binary @"$2"
}

ask() { post "$1" /v1/completions '{"model": "kjv-qwen3-1m", "prompt": "In the beginning", "max_tokens": 4'"${2:-}"'}'; }

# failing LABEL SERIAL: a generation fails and says with what, and the server is not ready.
failing() {
  ask 500
  has "with weights '$1' (serial $2)"
  post 500 /v1/generate '{"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 4}}'
  same .error.code non_finite_logits
  same .error.retryable false
  has "with weights '$1' (serial $2)"
  not_ready "$1" "$2"
}

not_ready() {
  expect 503 GET /readyz
  same .reason non_finite_logits
  has "weights '$1' (serial $2)"
  expect 200 GET /v1/status
  same .ready false
  same .reason.code non_finite_logits
  same .live true
  expect 200 GET /health
}

# Every number is finite; what they make of each other is not.
huge=$WORK/huge.safetensors
filled "$CHECKPOINTS/step-00100.safetensors" model.norm.weight 7f7f "$huge"

serve_model
expect 200 GET /readyz
send 200 "$huge" huge
expect 200 GET /readyz # nobody has asked them for anything
failing huge 2
failing huge 2 # still tried
post 200 /v1/weights/label '{"weight_version": "renamed"}'
not_ready renamed 2
post 200 /v1/sleep '{"level": 1}'
post 200 /v1/wake '{}'
not_ready renamed 2
send 200 "$CHECKPOINTS/step-00100.safetensors" step-100
expect 200 GET /readyz
serves step-00100 step-100

# The same bytes again are another version, which nobody has seen fail.
send 200 "$huge" huge
expect 200 GET /readyz
failing huge 4
send 200 "$CHECKPOINTS/step-01500.safetensors" step-1500

# What a request asks for does not make weights fail.
ask 200 ', "temperature": 0.000001, "logit_bias": {"5": 100, "6": -100}, "logprobs": 5'
ask 200 ', "temperature": 2, "frequency_penalty": 2, "presence_penalty": -2, "repetition_penalty": 1e30'
expect 200 GET /readyz
stop_server
done_testing
