#!/usr/bin/env bash
# Reports to a service manager such as systemd: notify.py receives them.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
timeout 250 "$PYTHON" "$(dirname "$0")/notify.py" "$BATON" "$MODEL" "$WORK" >"$WORK/body" || fail "see above"
has ok
done_testing
