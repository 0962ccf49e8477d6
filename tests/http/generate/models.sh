#!/usr/bin/env bash
# Models of other architectures than the one that the other tests serve: golden ids, logprobs and
# text through the routes; a checkpoint in shards; defaults of generation_config.json; refusals.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
source "$(dirname "$0")/golden.sh"
FIXTURES=$(dirname "$MODEL")

for name in tiny-llama3 tiny-qwen2 tiny-llama2-spm; do
  start_server --model "$FIXTURES/$name"
  for i in 0 1 2 3; do golden_case "$FIXTURES/$name" "$i"; done
  if [[ $name != tiny-llama2-spm ]]; then
    stop_server
    continue
  fi

  # Byte fallback, whole and in pieces; the space that a text loses only at its beginning.
  jq --compact-output '.encode[]' "$FIXTURES/$name/tokenizer_golden.json" >"$WORK/cases"
  while read -r row; do
    post 200 /tokenize "$(jq '{prompt: .text}' <<<"$row")"
    same '.tokens | tojson' "$(jq --raw-output '.ids | tojson' <<<"$row")"
    post 200 /detokenize "$(jq '{tokens: .ids}' <<<"$row")"
    same '.prompt | tojson' "$(jq --raw-output '.decoded | tojson' <<<"$row")"
  done <"$WORK/cases"
  for i in 0 1 2 3; do
    jq --argjson i "$i" '.cases[$i]' "$FIXTURES/$name/golden.json" >"$WORK/case"
    body=$(jq '{prompt: .prompt_token_ids, temperature: 0, max_tokens: 16, ignore_eos: true}' "$WORK/case")
    post 200 /v1/completions "$body"
    same '.choices[0].text | tojson' "$(jq --raw-output '.greedy_text | tojson' "$WORK/case")"
    post 200 /v1/completions "$(jq '. + {stream: true}' <<<"$body")"
    sed --quiet 's/^data: {/{/p' "$WORK/body" | jq --slurp --raw-output '[.[].choices[]?.text] | add | tojson' >"$WORK/text"
    [[ $(cat "$WORK/text") == "$(jq --raw-output '.greedy_text | tojson' "$WORK/case")" ]] ||
      fail "streamed: $(cat "$WORK/text")"
  done

  # A stop string of bytes that another byte could still undo ends the sequence where it stands.
  ids=$(jq '.cases[3].greedy_token_ids | index(35)' "$FIXTURES/$name/golden.json") # <0x20>
  post 200 /v1/completions "$(jq '{prompt: .cases[3].prompt_token_ids, temperature: 0, max_tokens: 16, ignore_eos: true,
    stop: " ", return_token_ids: true}' "$FIXTURES/$name/golden.json")"
  same '.choices[0].finish_reason' stop
  same '.choices[0].token_ids | length' "$((ids + 1))"
  same '.choices[0].text | endswith("tabernac")' true
  stop_server
done

# The same tensors in two files.
mkdir "$WORK/sharded"
cp "$FIXTURES"/tiny-qwen2/{config,tokenizer}.json "$WORK/sharded"
"$PYTHON" - "$FIXTURES/tiny-qwen2/model.safetensors" "$WORK/sharded" <<'P'
import json, struct, sys
with open(sys.argv[1], "rb") as f:
    (n,) = struct.unpack("<Q", f.read(8))
    header, data = json.loads(f.read(n)), f.read()
header.pop("__metadata__", None)
index = {}
for i in range(2):
    name, head, body = f"model-{i + 1:05}-of-00002.safetensors", {}, b""
    for tensor in sorted(header)[i::2]:
        begin, end = header[tensor]["data_offsets"]
        head[tensor] = {**header[tensor], "data_offsets": [len(body), len(body) + end - begin]}
        body += data[begin:end]
        index[tensor] = name
    text = json.dumps(head).encode()
    with open(f"{sys.argv[2]}/{name}", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)
with open(f"{sys.argv[2]}/model.safetensors.index.json", "w") as f:
    json.dump({"metadata": {"total_size": len(data)}, "weight_map": index}, f)
P
# Its author wants it sampled so that only the best token is left: completions do, generate does not.
jq --null-input '{top_k: 1, max_new_tokens: 5}' >"$WORK/sharded/generation_config.json"
start_server --model "$WORK/sharded"
golden_case "$FIXTURES/tiny-qwen2" 2
jq '.cases[2]' "$FIXTURES/tiny-qwen2/golden.json" >"$WORK/case"
post 200 /v1/completions "$(jq '{prompt: .prompt_token_ids, max_tokens: 9, ignore_eos: true, return_token_ids: true}' "$WORK/case")"
same '.choices[0].token_ids | tojson' "$(jq --raw-output '.greedy_token_ids[:5] | tojson' "$WORK/case")"
post 200 /v1/completions "$(jq '{prompt: .prompt_token_ids, max_tokens: 5, top_k: 0, temperature: 2, seed: 1, ignore_eos: true, return_token_ids: true}' "$WORK/case")"
same ".choices[0].token_ids == $(jq --compact-output '.greedy_token_ids[:5]' "$WORK/case")" false
stop_server
start_server --model "$WORK/sharded" --generation-config vllm
post 200 /v1/completions "$(jq '{prompt: .prompt_token_ids, max_tokens: 9, temperature: 2, seed: 1, ignore_eos: true, return_token_ids: true}' "$WORK/case")"
same '.choices[0].token_ids | length' 9
same ".choices[0].token_ids[:5] == $(jq --compact-output '.greedy_token_ids[:5]' "$WORK/case")" false
stop_server

# refused KEY JQ_EDIT: of the sharded model's config.json.
refused() {
  local rc=0
  jq "$2" "$FIXTURES/tiny-qwen2/config.json" >"$WORK/sharded/config.json"
  timeout 60 "$BATON" serve --listen 127.0.0.1:0 --model "$WORK/sharded" >"$WORK/body" 2>&1 || rc=$?
  ((rc == 1 || rc == 2)) || fail "baton serve with $2 ended with $rc"
  has "$1"
}
refused /architectures '.architectures = ["GPT2LMHeadModel"]'
refused /use_sliding_window '.use_sliding_window = true'
refused /rope_parameters/rope_type '.rope_parameters.rope_type = "dynamic"'
refused /quantization_config '.quantization_config = {"quant_method": "awq"}'
refused /hidden_act '.hidden_act = "gelu"'
refused /vocab_size '.vocab_size = 1000'
done_testing
