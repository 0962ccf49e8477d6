#!/usr/bin/env bash
# The pages and the API document that the server serves, without a browser.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
exec timeout 100 "$PYTHON" -B "$(dirname "$(realpath "$0")")/page_files.py" "$BATON" "$MODEL" "$(realpath "$TESTS/..")" "$WORK"
