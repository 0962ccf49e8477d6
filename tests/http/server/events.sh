#!/usr/bin/env bash
# GET /v1/events: a snapshot, then each change in order; what ends a stream, and who may read it.
# Usage: events.sh BATON FIXTURES CLIENT_DIR FAKE_ENGINE
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
exec timeout 280 "$PYTHON" -B "$(dirname "$(realpath "$0")")/events.py" "$BATON" "$MODEL" "$(realpath "$4")" "$WORK"
