#!/usr/bin/env bash
# Short runs of linear.sh with seeds of their own, in all its modes in turn, several at a time.
# Usage: as lib.sh says, then the paths of fake_engine and of the fakes of libcuda, SECONDS, how many at a time, SEEDS, MODE...
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
HERE=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
GIVEN=("${@:1:6}")
SECONDS_EACH=$7 AT_ONCE=$8 SEEDS=$9
MODES=("${@:10}")

one() { # SEED MODE
  local began=$EPOCHREALTIME
  if SEED=$1 bash "$HERE/linear.sh" "${GIVEN[@]}" "$SECONDS_EACH" "$2" --kill-every 1 --slack-s 1 >"$WORK/seed-$1" 2>&1; then
    printf '  seed %d, %s: %.1f s\n' "$1" "$2" "$(bc <<<"$EPOCHREALTIME - $began")"
    return
  fi
  cat "$WORK/seed-$1" >&2
  touch "$WORK/failed"
}

for ((seed = 0; seed < SEEDS; seed++)); do
  while (($(jobs -rp | wc --lines) >= AT_ONCE)); do
    wait -n
  done
  one $((100 + seed)) "${MODES[seed % ${#MODES[@]}]}" &
done
wait
[[ ! -e $WORK/failed ]] || fail "see above"
N_CHECKS=$SEEDS
done_testing
