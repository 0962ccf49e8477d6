#!/usr/bin/env bash
# A real browser against a real server; skipped where there is none. Usage: browser.sh BATON FIXTURES
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
# shellcheck source=tests/http/lib/env.sh
source "$here/../lib/env.sh"
exec timeout 280 "$PYTHON" "$here/browser.py" "$(realpath "$1")" "$(realpath "$2")/kjv-qwen3-1m"
