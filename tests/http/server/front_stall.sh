#!/usr/bin/env bash
# Many clients at once, clients that die, requests that try to keep a loop busy. Usage: as lib.sh, then
# N_ANSWERS that each busy client waits for.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
serve_model --header-timeout 600000 --body-timeout 600000 --body-stall-timeout 600000 \
  --idle-timeout 600000

"$PYTHON" -B "$(dirname "$0")/front_stall.py" 127.0.0.1 "${URL##*:}" "$SERVER_PID" "$4" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
serves step-00000 step-0
done_testing
