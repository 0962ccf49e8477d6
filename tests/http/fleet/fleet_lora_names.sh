#!/usr/bin/env bash
# Names of parameters in front of vLLM with --enable-lora. Usage: as fleet_control.sh.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

mkdir "$WORK/files"
"$PYTHON" -B "$(dirname "$0")/fleet_lora_names.py" "$BATON" "$4" "$WORK/log" "$3" "$WORK/files" "$5" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
done_testing
