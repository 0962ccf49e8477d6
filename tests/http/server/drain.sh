#!/usr/bin/env bash
# SIGTERM: running work is completed, new work is refused, the exit code is 0.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

# drained HOW [SEED]: drain.py ends the server, which must end well.
drained() {
  local rc=0
  "$PYTHON" -B "$(dirname "$0")/drain.py" 127.0.0.1 "${URL##*:}" "$SERVER_PID" "$WORK/log" "$@" || fail "$*: see above"
  wait "$SERVER_PID" || rc=$?
  SERVER_PID=
  ((rc == 0)) || fail "$*: the server ended with $rc"
  N_CHECKS=$((N_CHECKS + 1))
}

for seed in 1 2 3; do
  serve_model --drain-timeout 600000 --generate-concurrency 8
  drained whole "$seed"
done
serve_model --drain-timeout 100 --generate-concurrency 2
drained deadline
serve_model --drain-timeout 600000 --generate-concurrency 2
drained twice
done_testing
