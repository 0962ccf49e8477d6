#!/usr/bin/env bash
# The pages in a real browser; skipped where there is none. Usage: page.sh BATON FIXTURES CLIENT_DIR FAKE_ENGINE
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
exec timeout 280 "$PYTHON" -B "$(dirname "$(realpath "$0")")/page.py" "$BATON" "$MODEL" "$(realpath "$4")" "$WORK"
