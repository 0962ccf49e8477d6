#!/usr/bin/env bash
# Usage: docs_blocks.sh BATON_BINARY ROOT [DOCUMENT...]
set -euo pipefail
# shellcheck source=tests/http/lib/env.sh
source "$(dirname "$(realpath "$0")")/../lib/env.sh"
exec "$PYTHON" "$(dirname "$(realpath "$0")")/docs_blocks.py" "$@"
