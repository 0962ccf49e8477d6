#!/usr/bin/env bash
# A real browser against a real server; skipped where there is none. Usage: browser.sh BATON FIXTURES
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
export TSAN_OPTIONS="suppressions=$here/../tsan.supp ${TSAN_OPTIONS:-}"
exec timeout 280 "${PYTHON:-/usr/bin/python3}" "$here/browser.py" "$(realpath "$1")" "$(realpath "$2")/kjv-qwen3-1m"
