#!/usr/bin/env bash
# The client from GPU to GPU, push and attach, over a fake driver and a stand-in for torch.
# Usage: as lib.sh says, and then the path of libfakecuda, and of the other process's.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
HERE=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
FAKE=$(realpath "$4")
FOREIGN=$(realpath "$5")
FIRST=$CHECKPOINTS/step-00000.safetensors
SECOND=$CHECKPOINTS/step-00100.safetensors
export FAKECUDA_DEVICES=2 PYTHONDONTWRITEBYTECODE=1

# trainer WHAT: the process that pushes and maps.
trainer() {
  local output
  output=$(timeout 200 "$PYTHON" "$HERE/client_ipc.py" "$URL" "${CLIENT%/*}" "$FOREIGN" "$1" "$FIRST" "$SECOND") ||
    fail "$1: $output"
  N_CHECKS=$((N_CHECKS + $(sed --quiet 's/.*: \([0-9]*\) checks$/\1/p' <<<"$output")))
}

serve_model --cuda-library "$FAKE" --device cuda:0
trainer whole
serves step-00100 last
stop_server

serve_model --cuda-library "$FAKE" --device cuda:0,cuda:1
trainer several
stop_server

serve_model --cuda-library "$FAKE"
trainer hostless
serves step-00000 auto
done_testing
