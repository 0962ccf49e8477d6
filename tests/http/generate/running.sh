#!/usr/bin/env bash
# The list of running generations.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
exec timeout 200 "$PYTHON" -B "$(dirname "$(realpath "$0")")/running.py" "$BATON" "$MODEL" "$WORK"
