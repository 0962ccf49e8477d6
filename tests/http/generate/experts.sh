#!/usr/bin/env bash
# Models with experts: goldens through the routes; a checkpoint that holds a layer's experts as one
# tensor, as transformers 5 names them, loaded and pushed; an expert that is missing is named.
# A DeepSeek file may have layers for further tokens, which are dropped; its router is float32 here,
# whether the file has it so, as transformers saves it, or in bfloat16, and is never narrowed.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
source "$(dirname "$0")/golden.sh"
FIXTURES=$(dirname "$MODEL")

# fuse IN OUT [LAYER]: the experts of IN fused, and with LAYER some tensors of that layer besides;
# OUT.short lacks one expert of IN
cat >"$WORK/fuse.py" <<'P'
import json, re, struct, sys

with open(sys.argv[1], "rb") as f:
    (n,) = struct.unpack("<Q", f.read(8))
    header, data = json.loads(f.read(n)), f.read()
header.pop("__metadata__", None)
tensors = {}
for name, t in header.items():
    begin, end = t["data_offsets"]
    tensors[name] = (t["dtype"], t["shape"], data[begin:end])


def write(path, tensors):
    head, body = {}, b""
    for name, (dtype, shape, bytes_) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(bytes_)]}
        body += bytes_
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


last = max(name for name in tensors if ".experts." in name)
write(sys.argv[2] + ".short", {k: v for k, v in tensors.items() if k != last})
print(last)
parts = {}
for name in list(tensors):
    m = re.fullmatch(r"(model\.layers\.\d+)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight", name)
    if m:
        kind = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.get(m[3], m[3])
        parts.setdefault(m[1], {}).setdefault(int(m[2]), {})[kind] = tensors.pop(name)
    elif name.endswith("block_sparse_moe.gate.weight"):
        tensors[name.replace("block_sparse_moe", "mlp")] = tensors.pop(name)
for layer, experts in parts.items():
    order = [experts[i] for i in range(len(experts))]
    dtype, (rows, columns), _ = order[0]["gate_proj"]
    tensors[f"{layer}.mlp.experts.gate_up_proj"] = (
        dtype, [len(order), 2 * rows, columns], b"".join(e["gate_proj"][2] + e["up_proj"][2] for e in order))
    tensors[f"{layer}.mlp.experts.down_proj"] = (
        dtype, [len(order), columns, rows], b"".join(e["down_proj"][2] for e in order))
for name in ["eh_proj.weight", "mlp.experts.0.up_proj.weight"] if len(sys.argv) > 3 else []:
    tensors[f"model.layers.{sys.argv[3]}.{name}"] = ("BF16", [2, 3], bytes(12))
write(sys.argv[2], tensors)
P

push() { # STATUS FILE LABEL
  expect "$1" POST "/v1/update_weights?weight_version=$3" \
    --header 'Content-Type: application/vnd.safetensors' --data-binary @"$2"
}

for name in tiny-qwen3-moe tiny-mixtral tiny-deepseek; do
  mtp=()
  [ $name = tiny-deepseek ] && mtp=(3) # num_nextn_predict_layers is 1, after 3 layers
  start_server --model "$FIXTURES/$name"
  for i in 0 1 2 3; do golden_case "$FIXTURES/$name" "$i"; done
  stop_server

  missing=$("$PYTHON" "$WORK/fuse.py" "$FIXTURES/$name/model.safetensors" "$WORK/fused.safetensors" "${mtp[@]}")
  start_server --model "$FIXTURES/$name" --weights none
  push 422 "$WORK/fused.safetensors.short" step-0
  same .error.code incomplete_update
  has "$missing"
  push 200 "$WORK/fused.safetensors" step-1
  same .coverage whole
  for i in 0 1 2 3; do golden_case "$FIXTURES/$name" "$i"; done
  push 200 "$FIXTURES/$name/model.safetensors" step-2
  golden_case "$FIXTURES/$name" 0
  stop_server

  rm -rf "$WORK/model"
  mkdir "$WORK/model"
  cp "$FIXTURES/$name"/{config,generation_config,tokenizer}.json "$WORK/model"
  cp "$WORK/fused.safetensors" "$WORK/model/model.safetensors"
  start_server --model "$WORK/model"
  golden_case "$FIXTURES/$name" 1
  if [ $name = tiny-deepseek ]; then
    "$PYTHON" "$WORK/fuse.py" "$FIXTURES/$name/model.safetensors" "$WORK/other.safetensors" 4 >/dev/null
    push 422 "$WORK/other.safetensors" step-3
    has "the model has no tensor 'model.layers.4.eh_proj.weight'"
  fi
  stop_server
done

# served NAME: the dtype and the checksum of a tensor
served() {
  expect 200 GET /v1/weights
  jq --raw-output --arg name "$1" '.tensors[] | select(.name == $name) | .dtype + " " + .checksum' <"$WORK/body"
}

gate=model.layers.1.mlp.gate.weight
start_server --model "$FIXTURES/tiny-deepseek-flat" # float32
golden_case "$FIXTURES/tiny-deepseek-flat" 0
before=$(served $gate)
[[ $before == "F32 "* ]] || fail "$gate is $before"
expect 200 POST "/v1/update_weights?weight_version=converted&convert=true" \
  --header 'Content-Type: application/vnd.safetensors' --data-binary @"$FIXTURES/tiny-deepseek-flat/model.safetensors"
[[ $(served $gate) == "$before" ]] || fail "convert changed $gate"
golden_case "$FIXTURES/tiny-deepseek-flat" 1
stop_server

start_server --model "$FIXTURES/tiny-deepseek" --weights none # bfloat16
"$BATON" push "$FIXTURES/tiny-deepseek/model.safetensors" --url "$URL" >/dev/null || fail "bfloat16 routers are refused"
[[ $(served $gate) == "F32 "* ]] || fail "$gate was not widened"
golden_case "$FIXTURES/tiny-deepseek" 0
"$BATON" weights verify "$FIXTURES/tiny-deepseek/model.safetensors" --url "$URL" >"$WORK/verify" ||
  fail "verify: $(cat "$WORK/verify")"
"$BATON" weights verify "$FIXTURES/tiny-deepseek-flat/model.safetensors" --url "$URL" >"$WORK/verify" &&
  fail "verify takes other weights for the same"
stop_server
done_testing
