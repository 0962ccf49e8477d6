#!/usr/bin/env bash
# Weights and adapters with values that are not finite, and weights whose logits are not finite.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

# changed FILE TENSOR HEX OUT [INDEX]: a safetensors file of whose tensor all elements, or that one,
# have those bytes.
changed() {
  "$PYTHON" - "$@" <<'P'
import json, struct, sys
source, name, element, out, *index = sys.argv[1:]
with open(source, "rb") as f:
    raw = bytearray(f.read())
begin = 8 + struct.unpack("<Q", raw[:8])[0]
first, last = (begin + at for at in json.loads(raw[8:begin])[name]["data_offsets"])
element = bytes.fromhex(element)
if index:
    first += len(element) * int(index[0])
    last = first + len(element)
raw[first:last] = element * ((last - first) // len(element))
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
changed "$CHECKPOINTS/step-00100.safetensors" model.norm.weight 7f7f "$huge"

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

# One element among many: refused by the name of its tensor, whatever it came by.
bad=$WORK/bad.safetensors
name=model.layers.1.mlp.down_proj.weight
changed "$CHECKPOINTS/step-00100.safetensors" $name c0ff "$bad" 1234

# push STATUS VIA [option...]
push() {
  local status=0
  "$PYTHON" -m baton "$bad" --url "$URL" --via "$2" --weight-version bad "${@:3}" \
    >"$WORK/body" 2>"$WORK/said" || status=$?
  N_CHECKS=$((N_CHECKS + 1))
  [[ $status == "$1" ]] || fail "push by $2 ended with $status: $(cat "$WORK/body" "$WORK/said")"
}

says() {
  N_CHECKS=$((N_CHECKS + 1))
  grep --quiet --fixed-strings -- "$1" "$WORK/said" || fail "'$1' is not in: $(cat "$WORK/said")"
}

serve_model --allow-path "$WORK"
send 422 "$bad" bad
same .error.code non_finite_weights
same .error.retryable false
has "'$name' of 'bad': 1 of its "
has 'the first is NaN at index 1234'
for via in shm body path; do
  for sums in "" --no-checksums; do
    push 1 $via ${sums:+"$sums"}
    says "'$name' of 'bad'"
    says 'is NaN at index 1234'
  done
done
# A partial update, and a session, as well.
"$PYTHON" - "$bad" "$WORK/one.safetensors" $name <<'P'
import json, struct, sys
with open(sys.argv[1], "rb") as f:
    raw = f.read()
begin = 8 + struct.unpack("<Q", raw[:8])[0]
of = json.loads(raw[8:begin])[sys.argv[3]]
first, last = of["data_offsets"]
head = json.dumps({sys.argv[3]: of | {"data_offsets": [0, last - first]}}).encode()
with open(sys.argv[2], "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head + raw[begin + first:begin + last])
P
expect 422 POST '/v1/update_weights?partial=true' --header 'Content-Type: application/vnd.safetensors' \
  --data-binary @"$WORK/one.safetensors"
same .error.code non_finite_weights
post 200 /v1/update_weights/start '{"partial": true, "weight_version": "delta"}'
id=$(jq --raw-output .update_id "$WORK/body")
expect 422 POST "/v1/update_weights?update_id=$id" --header 'Content-Type: application/vnd.safetensors' \
  --data-binary @"$WORK/one.safetensors"
has "of 'delta'"
expect 200 GET "/v1/update_weights/$id"
same .phase receiving
same .n_tensors_done 0
expect 200 DELETE "/v1/update_weights/$id"
expect 200 GET /readyz
serves step-00000 step-0

# Adapters too, by their directory.
cp --recursive "$MODEL/adapters/shout" "$WORK/shout"
read -r lora nan < <("$PYTHON" - "$WORK/shout/adapter_model.safetensors" <<'P'
import json, struct, sys
with open(sys.argv[1], "rb") as f:
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
name = sorted(set(head) - {"__metadata__"})[1]
print(name, {"F32": "0000c07f", "BF16": "c07f", "F16": "007e"}[head[name]["dtype"]])
P
)
changed "$MODEL/adapters/shout/adapter_model.safetensors" "$lora" "$nan" "$WORK/shout/adapter_model.safetensors"
load='{"lora_name": "shout", "lora_path": "'$WORK'/shout"}'
post 422 /v1/load_lora_adapter "$load"
same .error.code non_finite_weights
has "'$lora' of the adapter"
stop_server

# The first weights: the server does not start.
rc=0
timeout 60 "$BATON" serve --listen 127.0.0.1:0 --model "$MODEL" --weights "$bad" 2>"$WORK/said" || rc=$?
((rc != 0 && rc != 124)) || fail "a server with weights that are not finite ended with $rc"
says "$name"
says 'NaN at index 1234'

# warn: taken, and told.
serve_model --non-finite warn --allow-path "$WORK"
send 200 "$bad" bad
same .n_non_finite 1
same '.non_finite[0]' $name
says_log() { grep --quiet --fixed-strings -- "$1" "$WORK/log" || fail "'$1' is not in the log"; }
says_log '"event":"weights.non_finite"'
says_log "\"tensor\":\"$name\",\"weight_version\":\"bad\""
failing bad 2
send 200 "$CHECKPOINTS/step-00100.safetensors" good
same .n_non_finite 0
expect 200 GET /readyz

# An adapter is to blame for what is computed with it, and the base is ready.
post 200 /v1/load_lora_adapter "$load"
same .n_non_finite 1
same '.non_finite[0]' "$lora"
same .revision 1
post 500 /v1/completions '{"model": "shout", "prompt": "In the beginning", "max_tokens": 4}'
has "with LoRA adapter 'shout' (revision 1) on weights 'good' (serial 3)"
expect 200 GET /readyz
serves step-00100 good
stop_server

# allow: nobody looks.
serve_model --non-finite allow
send 200 "$bad" bad
same .n_non_finite 0
stop_server
rc=0
"$BATON" serve --non-finite perhaps 2>"$WORK/said" || rc=$?
((rc != 0)) || fail "--non-finite perhaps was taken"
says 'refuse'
done_testing
