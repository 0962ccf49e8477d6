#!/usr/bin/env bash
# The data plane in front of upstream engines. Usage: proxy.sh BATON FAKE_ENGINE N_CLIENTS
set -euo pipefail

here=$(dirname "$(realpath "$0")")
# shellcheck source=tests/http/lib/env.sh
source "$here/../lib/env.sh"
work=$(mktemp --directory)

# shellcheck disable=SC2317  # called by the trap
cleanup() {
  local rc=$?
  ((rc == 0)) || tail --lines=60 "$work/log" >&2 || true
  rm --recursive --force "$work"
  exit "$rc"
}
trap cleanup EXIT

"$PYTHON" -B "$here/proxy.py" "$1" "$2" "$work/log" "$3"
