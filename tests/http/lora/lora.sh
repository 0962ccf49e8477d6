#!/usr/bin/env bash
# Adapters: golden outputs, reloads, failures, limits, updates. Usage: lora.sh BATON FIXTURES CLIENT_DIR [RELOADS [alone]]
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
RELOADS=${4:-300}
ALONE=${5:-}
DIRS=$WORK/adapters
mkdir "$DIRS"

check() {
  local output
  output=$(timeout 1700 "$PYTHON" "$(dirname "$0")/lora.py" "$URL" "$MODEL" "$DIRS" "$@") || fail "$1: $output"
  N_CHECKS=$((N_CHECKS + ${output##*$'\n'}))
  expect 200 GET /v1/status
  same '.admission.generate | .running + .waiting' 0
  same '.adapters | .loading + .users + .nbytes_reserved' 0
}

serve_adapters() {
  start_server --model "$MODEL" --weights "$CHECKPOINTS/step-01500.safetensors" --allow-path "$MODEL" \
    --allow-path "$DIRS" "$@"
}

# Each in a server of its own: they count what is loaded.
commands=(golden words reload failed partial written unload races sources update states)
[[ -z $ALONE ]] || commands=()
for command in "${commands[@]}"; do
  serve_adapters
  check "$command"
  stop_server
done

serve_adapters
check soak "$RELOADS"
stop_server
if [[ -n $ALONE ]]; then
  done_testing
  exit
fi

nbytes=$("$PYTHON" -c 'import os, sys; print(2 * os.path.getsize(sys.argv[1]) * 11 // 10)' \
  "$MODEL/adapters/shout/adapter_model.safetensors")
serve_adapters --max-loras 2 --max-lora-rank 16 --max-lora-bytes "$nbytes"
check limits
stop_server

# A model whose chat template makes the message itself.
PLAIN=$MODEL
MODEL=$WORK/kjv-qwen3-1m
cp --recursive "$PLAIN" "$MODEL"
printf '%s\n' "{% for m in messages %}{{ m['content'] }}{% endfor %}" >"$MODEL/chat_template.jinja"
serve_adapters
check chat
stop_server
MODEL=$PLAIN

# What was begun before the end is refused after it.
serve_adapters --drain-timeout 20000
output=$(timeout 250 "$PYTHON" "$(dirname "$0")/lora.py" "$URL" "$MODEL" "$DIRS" drain "$SERVER_PID" "$WORK/log") ||
  fail "drain: $output"
N_CHECKS=$((N_CHECKS + ${output##*$'\n'}))
rc=0
wait "$SERVER_PID" || rc=$?
SERVER_PID=
((rc == 0)) || fail "the server ended with $rc"

# SIGTERM ends a load that waits, with an answer.
serve_adapters --drain-timeout 100
curl --silent --max-time 120 --output "$WORK/late" --header 'Content-Type: application/json' \
  --data '{"lora_name": "x", "lora_path": "'"$DIRS"'/never", "timeout_s": 600}' "$URL/v1/load_lora_adapter" &
CLIENT_PID=$!
for _ in $(seq 5000); do
  expect 200 GET /v1/status
  [[ $(jq .adapters.loading "$WORK/body") == 1 ]] && break
done
stop_server TERM 3
wait "$CLIENT_PID" || fail "the load that waited was cut"
jq --exit-status '.error.code == "conflict"' "$WORK/late" >/dev/null ||
  fail "the load that waited was not answered: $(head --bytes=300 "$WORK/late")"

# A store without an engine has no adapters, and no default path means no directories.
"$PYTHON" - "$MODEL/checkpoints/step-00000.safetensors" >"$WORK/manifest.json" <<'P'
import json, struct, sys
with open(sys.argv[1], "rb") as f:
    h = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
h.pop("__metadata__", None)
print(json.dumps({"names": list(h), "dtypes": [v["dtype"] for v in h.values()], "shapes": [v["shape"] for v in h.values()]}))
P
start_server --engine none --manifest "$WORK/manifest.json"
expect 409 GET /v1/lora_adapters
same .error.code no_engine
post 409 /v1/load_lora_adapter '{"lora_name": "x", "lora_path": "x"}'
expect 200 GET /v1/status
same .adapters null
stop_server
serve_model
post 403 /v1/load_lora_adapter '{"lora_name": "x", "lora_path": "x"}'
has --allow-path
done_testing
