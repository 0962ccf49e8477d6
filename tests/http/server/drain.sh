#!/usr/bin/env bash
# SIGTERM: running work is completed, new work is refused; the exit code says whether the drain was cut.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

# drained EXIT_CODE HOW [SEED]: drain.py ends the server.
drained() {
  local rc=0 want=$1
  shift
  "$PYTHON" -B "$(dirname "$0")/drain.py" 127.0.0.1 "${URL##*:}" "$SERVER_PID" "$WORK/log" "$@" || fail "$*: see above"
  wait "$SERVER_PID" || rc=$?
  SERVER_PID=
  ((rc == want)) || fail "$*: the server ended with $rc"
  N_CHECKS=$((N_CHECKS + 1))
}

for seed in 1 2 3; do
  serve_model --drain-timeout 600000 --generate-concurrency 8
  drained 0 whole "$seed"
done
serve_model --drain-timeout 100 --generate-concurrency 2
drained 3 deadline
serve_model --drain-timeout 600000 --generate-concurrency 2
drained 3 twice
serve_model --drain-timeout 600000
drained 0 doubled
serve_model --drain-timeout 600000
drained 0 update "$CHECKPOINTS/step-00100.safetensors"
# An update whose trainer sends nothing more does not hold the drain up for long.
serve_model
post 200 /v1/update_weights/start '{"lease_s": 600}'
stop_server
grep --quiet '"event":"drain.update_idle"' "$WORK/log" || fail "nothing says that the update was idle"
# An update that is not finished is cut, and the exit code says so.
serve_model --drain-timeout 300
post 200 /v1/update_weights/start '{"lease_s": 600}'
rc=0
kill -TERM "$SERVER_PID"
wait "$SERVER_PID" || rc=$?
SERVER_PID=
((rc == 3)) || fail "it ended with $rc"
done_testing
