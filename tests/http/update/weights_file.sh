#!/usr/bin/env bash
# A version as one file under a lease: ranges, what ends a lease, many readers at once, hosts and
# GPUs. Usage: as lib.sh says, and then the path of libfakecuda.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
HERE=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
FAKE=$(realpath "$4")
FIRST=$CHECKPOINTS/step-00000.safetensors
SECOND=$CHECKPOINTS/step-00100.safetensors
"$PYTHON" "$HERE/weights_file.py" make "$WORK"

# reads WHAT [argument...]: another host.
reads() {
  local said
  said=$(timeout 280 "$PYTHON" "$HERE/weights_file.py" "$@") || fail "$1: $said"
  N_CHECKS=$((N_CHECKS + $(sed --quiet 's/.*: \([0-9]*\) checks$/\1/p' <<<"$said")))
}
store() { # FILE [option...]
  start_server --engine none --manifest "$1" --weights "$1" --weight-version one "${@:2}"
}

# Every range of a small file, and what is asked wrongly.
store "$WORK/tiny.safetensors"
reads ranges "$URL" "$WORK/tiny.safetensors"
stop_server

# A large one: the lease ends while it is read, or its version is followed by others; readers that read nothing.
store "$WORK/large.safetensors" --max-versions 2
reads ended "$URL" "$WORK/large.safetensors"
reads overtaken "$URL" "$WORK/large.safetensors"
reads crowd "$URL" "$WORK/large.safetensors" "$SERVER_PID"
reads sleeping "$URL"
stop_server

# A stop cuts what is being read, and waits for no reader.
store "$WORK/large.safetensors" --drain-timeout 60000
reads stop "$URL" "$SERVER_PID"
wait "$SERVER_PID" || fail "the server ended with $?"
SERVER_PID=

serve_model --max-lora-rank 1024
reads adapter "$URL" "$MODEL/adapters/shout" "$SERVER_PID"
stop_server

# The same version has the same bytes on each host: after a restart too, and from GPUs.
files=()
version() { files+=("$WORK/file-${#files[@]}") && reads whole "$URL" "$SECOND" "${files[-1]}"; }
push() { BATON_URL=$URL "$PYTHON" -m baton --url "$URL" --weight-version step-100 "$SECOND" >"$WORK/body"; }
store "$FIRST" --state-dir "$WORK/state" --snapshot 1
push
version
stop_server
start_server --engine none --manifest "$FIRST" --state-dir "$WORK/state" --snapshot 1
version
stop_server
for options in "--device cuda:0" "--device cuda:0,cuda:1 --placement sharded"; do
  # shellcheck disable=SC2086  # several options
  FAKECUDA_DEVICES=2 store "$FIRST" --cuda-library "$FAKE" $options
  push
  version
  stop_server
done
for file in "${files[@]}"; do
  cmp "$file" "${files[0]}" || fail "$file is not ${files[0]}"
  N_CHECKS=$((N_CHECKS + 1))
done
done_testing
