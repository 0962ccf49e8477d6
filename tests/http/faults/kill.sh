#!/usr/bin/env bash
# kill -9 at any moment with --state-dir: whole versions, or none.
# Usage: as lib.sh, then FAIL_CALLS_SO N_ROUNDS SANITIZED(yes|no). SEED: of the random rounds.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

run() { # N_ROUNDS N_SNAPSHOTS random|calls: in a directory of its own
  local work=$WORK/$2-$3
  mkdir "$work"
  "$PYTHON" -B "$(dirname "$0")/kill.py" "$BATON" "$MODEL" "$work" "$1" "$2" "$SEED" "$3" "$(realpath "$4")"
}
SEED=${SEED:-$RANDOM}
run "$(($5 / 3))" 0 random "$4" &
without=$!
run "$(($5 / 3))" 2 random "$4" || fail "see above"
wait "$without" || fail "see above"
if [[ $6 == no ]]; then # a sanitizer must be the first library
  run "$(($5 / 6))" 0 calls "$4" &
  without=$!
  run "$(($5 / 6))" 2 calls "$4" || fail "see above"
  wait "$without" || fail "see above"
fi
N_CHECKS=$5
done_testing
