#!/usr/bin/env bash
# The data plane in front of upstream engines. Usage: relay.sh BATON FAKE_ENGINE N_CLIENTS
set -euo pipefail

PYTHON=${PYTHON:-/usr/bin/python3}
here=$(dirname "$(realpath "$0")")
work=$(mktemp --directory)
TSAN_OPTIONS="suppressions=$here/../tsan.supp ${TSAN_OPTIONS:-}"
export TSAN_OPTIONS

# shellcheck disable=SC2317  # called by the trap
cleanup() {
  local rc=$?
  ((rc == 0)) || tail --lines=60 "$work/log" >&2 || true
  rm --recursive --force "$work"
  exit "$rc"
}
trap cleanup EXIT

"$PYTHON" -B "$here/relay.py" "$1" "$2" "$work/log" "$3"
