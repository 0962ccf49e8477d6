#!/usr/bin/env bash
# `baton serve --check`, and the CUDA part of /v1/status: without CUDA, with a fake driver of two
# devices, with one that has none, breaks, or lacks a symbol. Usage: as lib.sh says, and then the
# paths of libfakecuda and of the one that lacks a symbol.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
FAKE=$(realpath "$4")
FAKE_OLD=$(realpath "$5")
export FAKECUDA_DEVICES=2 FAKECUDA_MEMORY=1000000 FAKECUDA_REPORT=$WORK/report

# check WANTED_STATUS [option...]: what it says lies in $WORK/body (and its errors).
check() {
  local want=$1 rc=0
  shift
  rm --force "$WORK/report"
  timeout 60 "$BATON" serve --check "$@" >"$WORK/body" 2>"$WORK/errors" || rc=$?
  cat "$WORK/errors" >>"$WORK/body"
  N_CHECKS=$((N_CHECKS + 1))
  ((rc == want)) || fail "--check $*: ended with $rc, wanted $want: $(cat "$WORK/body")"
}

# no_context: the driver was called, and no GPU was touched.
no_context() {
  N_CHECKS=$((N_CHECKS + 1))
  jq --exit-status '.calls > 0 and .contexts_made == 0 and .allocations == 0' "$WORK/report" \
    >/dev/null || fail "the driver was used: $(cat "$WORK/report")"
}

# What it would start with; nothing listens.
check 0 --model "$MODEL" --weights "$CHECKPOINTS/step-00000.safetensors" --weight-version step-0 \
  --cuda-library "$FAKE"
has "configuration: ok, would listen on 127.0.0.1:0"
has "tls: none, plain HTTP"
has "keys: none"
has "allowed paths: none"
has "values of the first weights: read, all are finite"
has "first weights: version step-0"
has "cuda: available, driver for CUDA 13.0, 2 devices"
has "cuda:1: Fake GPU, GPU-fa6ec0da-0000-4000-8000-000000000001, 1000000 bytes, compute capability 9.0"
no_context
NBYTES=$(sed --quiet 's/^weights: [0-9]* tensors, \([0-9]*\) bytes in each version$/\1/p' "$WORK/body")
[[ -n $NBYTES ]] || fail "it does not say what the weights need: $(cat "$WORK/body")"
KV=$((256 << 20))
has "host memory, with the KV cache: $((2 * NBYTES + KV)) bytes (272.1 MB) while an update is staged (two versions), "
has " are available"

# What it would listen with: the certificate, keys by role, allowed paths; memory that is not there.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$WORK/key.pem" -out "$WORK/cert.pem" \
  -days 30 -subj /CN=localhost 2>/dev/null
printf 'viewer viewer-0123456789abcdef\ncontrol control-0123456789abcdef\n' >"$WORK/keys"
chmod 600 "$WORK/keys"
check 0 --model "$MODEL" --weights none --tls-cert "$WORK/cert.pem" --tls-key "$WORK/key.pem" --api-key-file "$WORK/keys" \
  --allow-path "$WORK" --allow-path /tmp --kv-cache 900TiB
end=$(date --utc --date="$(openssl x509 -in "$WORK/cert.pem" -noout -enddate | cut --delimiter== --fields=2)" +%FT%TZ)
has "tls: certificate $WORK/cert.pem, it expires at $end; key $WORK/key.pem"
has "keys: 1 viewer, 0 generate, 1 control, 0 weights"
has "allowed paths: $WORK, /tmp"
has ": not enough, updates would be refused"

# The place of the word among the options does not matter; one of its own it is not.
check 0 --model "$MODEL" --weights none --check --cuda-library "$FAKE"
has "first weights: none, unsynced"
BATON_CHECK=true check 0 --model "$MODEL" --weights none --cuda-library "$FAKE"
has "unknown" # the variable is no option
check 0 --engine none --manifest "$CHECKPOINTS/step-00000.safetensors" --cuda-library "$FAKE"
has "weights: "

# What --device chooses, and what it would need there; no GPU is touched for it.
has "device: cpu, the weights are kept in host memory; there are GPUs, --device cuda:0 would use the first"
FAKECUDA_MEMORY=9000000 check 0 --model "$MODEL" --weights none --cuda-library "$FAKE" \
  --device GPU-fa6ec0da-0000-4000-8000-000000000001
has "device: cuda:0 is not used"
has "device: cuda:1 is rank 0, $NBYTES bytes in each version, the GPU has 9000000"
has "device: checksums on the "
has "device: each version is kept in host memory too, for the embedded engine"
no_context
FAKECUDA_MEMORY=9000000 check 0 --engine none --manifest "$CHECKPOINTS/step-00000.safetensors" \
  --cuda-library "$FAKE" --device cuda:1,cuda:0
has "device: cuda:0 is rank 1"
has "device: no copy in host memory"
check 2 --model "$MODEL" --weights none --cuda-library "$FAKE" --device cuda:1
has "baton: --device: one version of the weights has $NBYTES bytes, cuda:1 has 1000000"
# Two may share one, if not two too small ones.
FAKECUDA_MEMORY=$((NBYTES / 2 + 1)) check 0 --engine none \
  --manifest "$CHECKPOINTS/step-00000.safetensors" --cuda-library "$FAKE" --device cuda:0,cuda:1
has "device: cuda:1 is rank 1, $NBYTES bytes"
FAKECUDA_MEMORY=$((NBYTES / 2 - 1)) check 2 --engine none \
  --manifest "$CHECKPOINTS/step-00000.safetensors" --cuda-library "$FAKE" --device cuda:0,cuda:1
has "baton: --device: one version of the weights has $NBYTES bytes, these 2 GPUs together have"
check 2 --model "$MODEL" --weights none --cuda-library "$FAKE" --device cuda:2
has "baton: --device: there is no cuda:2; there is cuda:0 (GPU-fa6ec0da-0000-4000-8000-000000000000, Fake GPU), cuda:1"
check 2 --model "$MODEL" --weights none --cuda-library "$FAKE" --device cuda:0,cuda:0
has "baton: --device: cuda:0 is given twice"
check 2 --model "$MODEL" --weights none --cuda-library "$FAKE" --device cuda:0,GPU-fa6ec0da-0000-4000-8000-000000000000
has "is cuda:0, which is given already"
check 2 --model "$MODEL" --weights none --cuda-library "$FAKE" --device gpu0
has "'gpu0' is not a device"
check 2 --model "$MODEL" --weights none --cuda-library "$WORK/libcuda.so.1" --device cuda:0
has "baton: --device: 'cuda:0' needs CUDA, which is not available: libcuda.so.1 could not be loaded"
check 2 --model "$MODEL" --weights none --device=
has "--device"

# What a start would not have the memory for fails here too, and the report says what it needs.
"$PYTHON" - >"$WORK/huge.json" <<'P'
import json
n = 140
print(json.dumps({"names": [f"layers.{i}.weight.x" for i in range(n)], "dtypes": ["bfloat16"] * n, "shapes": [[1 << 29, 1000]] * n}))
P
HUGE=$((140 * (1 << 30) * 1000)) # 150 TB
fleet_check() { check "$1" --upstream http://127.0.0.1:1,vllm --manifest "$WORK/huge.json" --cuda-library "$FAKE" "${@:2}"; }
export FAKECUDA_MEMORY=$((HUGE / 2 + 1))
fleet_check 1 --stage host
has "host memory: $((2 * HUGE)) bytes (300.6 TB) while an update is staged (two versions), "
has ": not enough, a start would fail"
has "baton: --stage host takes the memory of two versions of the weights at the start: $((2 * HUGE)) bytes (300647.7 GB) are needed, "
has "(bound: "
rc=0
timeout 60 "$BATON" serve --listen 127.0.0.1:0 --upstream http://127.0.0.1:1,vllm --manifest "$WORK/huge.json" \
  --cuda-library "$FAKE" --stage host 2>"$WORK/body" || rc=$?
((rc == 1)) || fail "the start ended with $rc: $(cat "$WORK/body")"
has "--stage host takes the memory of two versions of the weights at the start: $((2 * HUGE)) bytes"
fleet_check 2 --stage cuda:0
has "baton: --stage: one version of the weights has $HUGE bytes, cuda:0 has $FAKECUDA_MEMORY: name more GPUs and --placement sharded, or use --stage host"
# Two GPUs have one version together; whole versions fit on neither, and one line says it for both.
fleet_check 0 --stage cuda:0,cuda:1
has "memory of each GPU: $((2 * HUGE)) bytes (300.6 TB) while an update is staged (two versions), $FAKECUDA_MEMORY bytes (75.2 TB) are all that cuda:0 has: not enough, only updates that bring each GPU a part of its own fit"
has "memory of each GPU by --placement sharded: $HUGE bytes (150.3 TB) while an update is staged (two shares; an update by NCCL: and one of its buckets), $FAKECUDA_MEMORY bytes (75.2 TB) are all that cuda:0 has: not enough, updates would be refused"
(($(grep --count "memory of" "$WORK/body") == 2)) || fail "more lines than placements: $(cat "$WORK/body")"
if grep --quiet "host memory: " "$WORK/body"; then fail "nothing is in host memory: $(cat "$WORK/body")"; fi
export FAKECUDA_MEMORY=9000000
whole=(--manifest "$CHECKPOINTS/step-00000.safetensors" --cuda-library "$FAKE")
FAKECUDA_MEMORY=$((NBYTES - 1)) check 2 --engine none "${whole[@]}" --device cuda:0,cuda:1 \
  --weights "$CHECKPOINTS/step-00000.safetensors"
has "baton: --device: one version of the weights has $NBYTES bytes, cuda:0 has $((NBYTES - 1))"
check 2 --engine none "${whole[@]}" --device cuda:0 --max-weight-bytes $((NBYTES - 1))
has "baton: --max-weight-bytes: a version of the weights has $NBYTES bytes, $((NBYTES - 1)) are allowed"
FAKECUDA_DEVICES=1 check 0 --engine none "${whole[@]}" --device cuda:0
has "cuda: available, driver for CUDA 13.0, 1 device"
if grep --quiet "1 devices" "$WORK/body"; then fail "one device is no 'devices'"; fi

# What --stage takes is another list than that of --device.
staged=(--upstream "http://127.0.0.1:1,vllm" "${whole[@]}")
for list in gpu:0 cuda:0,host host,host; do
  check 2 "${staged[@]}" --stage "$list"
  has "is not a device; expected cuda:<number>, the UUID of a GPU, host, or none; host stands first, as in host,cuda:1"
done
check 2 "${staged[@]}" --stage cuda:0,cuda:0
has "baton: --stage: cuda:0 is given twice: each rank needs a GPU of its own"
check 2 --upstream http://127.0.0.1:1,vllm --placement sharded
has "baton: --placement: it has no effect with --upstream and without --stage"
has "remove it, add --stage, or remove --upstream"

# An engine on one GPU maps the shares of the others.
whole+=(--placement sharded)
FAKECUDA_NO_PEER=1 check 2 --upstream http://127.0.0.1:1,vllm "${whole[@]}" --stage cuda:0,cuda:1
has "baton: --placement: cuda:0 has no peer access to cuda:1: an engine there could not map the share of cuda:1"
FAKECUDA_NO_PEER=1 check 0 --engine none "${whole[@]}" --device cuda:0,cuda:1
check 0 --upstream http://127.0.0.1:1,vllm "${whole[@]}" --stage cuda:0,cuda:1
export FAKECUDA_MEMORY=1000000

# No CUDA is a fact, not a failure, and it has a reason.
check 0 --model "$MODEL" --weights none --cuda-library "$WORK/libcuda.so.1"
has "cuda: not available: libcuda.so.1 could not be loaded: cannot open shared object file"
has "device: cpu, the weights are kept in host memory"
check 0 --model "$MODEL" --weights none --cuda-library "$FAKE_OLD"
has "has no symbol 'cuIpcOpenMemHandle_v2'"
FAKECUDA_DEVICES=0 check 0 --model "$MODEL" --weights none --cuda-library "$FAKE"
has "cuda: not available: cuInit: CUDA_ERROR_NO_DEVICE (100)"
FAKECUDA_FAIL_NTH=1 FAKECUDA_FAIL_CALL=cuDeviceTotalMem_v2 check 0 --model "$MODEL" --weights none \
  --cuda-library "$FAKE"
has "cuda: not available: cuDeviceTotalMem: CUDA_ERROR_UNKNOWN (999)"

# What start would refuse is refused, with the same words and status.
check 2 --model "$WORK/nobody"
has "baton: --model: "
check 2 --model "$MODEL" --no-such-option
has "baton: --no-such-option: unknown option"
check 2 --model "$MODEL" --weights none --listen 0.0.0.0:0
has "beyond loopback"
check 2 --model "$MODEL" --weights "$WORK/nothing.safetensors"
has "baton: --weights: "
"$PYTHON" - "$CHECKPOINTS/step-00000.safetensors" "$WORK/short.safetensors" <<'P'
import json, struct, sys
with open(sys.argv[1], "rb") as f:
    (n,) = struct.unpack("<Q", f.read(8))
    h, data = json.loads(f.read(n)), f.read()
last = max((k for k in h if k != "__metadata__"), key=lambda k: h[k]["data_offsets"][1])
end = h.pop(last)["data_offsets"][0]
text = json.dumps(h).encode()
with open(sys.argv[2], "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + data[:end])
P
check 2 --model "$MODEL" --weights "$WORK/short.safetensors"
has "1 tensors are missing, the first is "

# One number of the first weights is NaN: a start would refuse it, or say so, or not look.
"$PYTHON" - "$CHECKPOINTS/step-00000.safetensors" "$WORK/nan.safetensors" <<'P'
import json, struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
(n,) = struct.unpack("<Q", data[:8])
header = json.loads(data[8:8 + n])
tensor = header["model.layers.1.mlp.down_proj.weight"]
width = {"BF16": 2, "F16": 2, "F32": 4}[tensor["dtype"]]
at = 8 + n + tensor["data_offsets"][0] + 7 * width
data[at:at + width] = b"\xff" * width
open(sys.argv[2], "wb").write(data)
P
check 2 --model "$MODEL" --weights "$WORK/nan.safetensors"
has "baton: --weights: "
has "'model.layers.1.mlp.down_proj.weight'"
check 0 --model "$MODEL" --weights "$WORK/nan.safetensors" --non-finite warn
has "values of the first weights: read, 1 tensors have NaN or infinity (--non-finite warn)"
check 0 --model "$MODEL" --weights "$WORK/nan.safetensors" --non-finite allow
has "values of the first weights: not read (--non-finite allow)"

# Where it would listen: free, in use, or not to be had.
check 0 --model "$MODEL" --weights none --listen "127.0.0.1:0" --control-listen "unix:$WORK/c" \
  --health-listen "127.0.0.1:0"
has "listen: 127.0.0.1:0 is free"
has "control-listen: unix:$WORK/c is free"
has "health-listen: 127.0.0.1:0 is free"
[[ ! -e $WORK/c ]] || fail "a socket was left behind"
"$PYTHON" -c "import socket; socket.socket(socket.AF_UNIX).bind('$WORK/c')"
check 0 --model "$MODEL" --weights none --control-listen "unix:$WORK/c"
has "control-listen: unix:$WORK/c is a socket without a listener: a start would replace it"
[[ -S $WORK/c ]] || fail "a socket that was there has been removed"
rm "$WORK/c"
: >"$WORK/c"
check 1 --model "$MODEL" --weights none --control-listen "unix:$WORK/c"
has "control-listen: unix:$WORK/c is in use"
has "baton: --control-listen: unix:$WORK/c is in use: stop what listens there, or choose another address"
[[ -f $WORK/c ]] || fail "a file that was there has been removed"
rm "$WORK/c"
check 2 --model "$MODEL" --weights none --control-listen "unix:$WORK/nobody/c"
has "baton: --control-listen: cannot listen on unix:$WORK/nobody/c: No such file or directory"
check 2 --model "$MODEL" --weights none --listen 203.0.113.7:0 --insecure
has "baton: --listen: cannot listen on 203.0.113.7:0: "
check 2 --upstream http://127.0.0.1:1 --listen 203.0.113.7:0 --insecure
has "baton: --listen: cannot listen on 203.0.113.7:0: "

# A server says the same as JSON, and creates no context either.
serve_model --cuda-library "$FAKE"
expect 200 GET /v1/status
same .cuda.available true
same .cuda.driver_version 13.0
same .cuda.reason null
same '[.cuda.devices[] | "\(.index) \(.name) \(.uuid) \(.nbytes_total)"] | join(";")' \
  "0 Fake GPU GPU-fa6ec0da-0000-4000-8000-000000000000 1000000;1 Fake GPU GPU-fa6ec0da-0000-4000-8000-000000000001 1000000"
same .weights.nbytes "$NBYTES"
check 1 --model "$MODEL" --weights none --listen "${URL#http://}" --cuda-library "$FAKE"
has "baton: --listen: ${URL#http://} is in use: stop what listens there"
check 1 --upstream http://127.0.0.1:1 --health-listen "${URL#http://}"
has "baton: --health-listen: ${URL#http://} is in use"
has "upstream: http://127.0.0.1:1, baton"
stop_server
no_context

serve_model --cuda-library "$WORK/libcuda.so.1"
expect 200 GET /v1/status
same .cuda.available false
same .cuda.driver_version null
same '.cuda.devices | length' 0
same '.cuda.reason | startswith("libcuda.so.1 could not be loaded")' true

# The configurations of the examples.
for config in "$TESTS"/../examples/*/baton.json; do
  check 0 --config "$config" --model "$MODEL" --listen 127.0.0.1:0
done
done_testing
