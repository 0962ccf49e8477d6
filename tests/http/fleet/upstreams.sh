#!/usr/bin/env bash
# What a server reports about upstream engines. Usage: upstreams.sh BATON FAKE_ENGINE FIXTURES [upstreams|upstreams_step]
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

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$work/tls.key" \
  -out "$work/tls.pem" -days 30 -subj /CN=localhost -addext 'subjectAltName=DNS:localhost' 2>/dev/null
"$PYTHON" -B "$here/${4:-upstreams}.py" "$1" "$2" "$3/kjv-qwen3-1m" "$work"
