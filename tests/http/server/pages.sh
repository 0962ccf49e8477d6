#!/usr/bin/env bash
# Requests of web pages: what may use a server, and what may not.
# Usage: pages.sh BATON FIXTURES CLIENT_DIR PRINT_CONTRACT
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
# shellcheck source=tests/http/lib/env.sh
source "$here/../lib/env.sh"
work=$(mktemp --directory)
trap 'rm --recursive --force "$work"' EXIT
timeout 280 "$PYTHON" "$here/pages.py" "$(realpath "$4")" "$(realpath "$1")" \
  "$(realpath "$2")/kjv-qwen3-1m" "$here/browser.session" "$work"
