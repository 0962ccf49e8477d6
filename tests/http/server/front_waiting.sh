#!/usr/bin/env bash
# Clients that wait in the queue. Usage: as lib.sh, then N_CLIENTS SANITIZED(yes|no).
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
serve_model --generate-queue 4096

"$PYTHON" -B "$(dirname "$0")/front_waiting.py" 127.0.0.1 "${URL##*:}" "$SERVER_PID" "$4" "$5" || fail "see above"
N_CHECKS=$((N_CHECKS + 1))
serves step-00000 step-0
done_testing
