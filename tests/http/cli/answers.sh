#!/usr/bin/env bash
# Only what docs/protocol.md and openapi/baton.yaml call success is success, for each command and each
# function of the Python client: a server that answers 200 with anything else was not a baton's.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
N_CHECKS=$((N_CHECKS + 1))
"$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/answers.py" "$BATON" "$CHECKPOINTS/step-00100.safetensors" \
  "$MODEL/adapters/shout"
done_testing
