#!/usr/bin/env bash
# Is the version register linearizable (linear.py)?
# Usage: as lib.sh says, then the paths of the fakes of libcuda, SECONDS, a mode (single, fleet, cuda, host) and options of
# linear.py; env SEED repeats the choices of a run, LINEAR_WORK is where the history and logs are left.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
HERE=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
LINEAR_WORK=${LINEAR_WORK:-$WORK/linear}
export FAKECUDA_MEMORY=$((64 << 20))
case $7 in
  cuda) mode=(--mode stage --stage cuda:0) ;;
  host) mode=(--mode stage --stage host) ;;
  *) mode=(--mode "$7") ;;
esac
"$PYTHON" "$HERE/linear.py" --baton "$BATON" --model "$MODEL" --work "$LINEAR_WORK" --cuda "$(realpath "$4")" \
  --seconds "$6" --seed "${SEED:-1}" "${mode[@]}" "${@:8}" || { tail --lines=3 "$LINEAR_WORK"/*.log >&2; fail "see above"; }
N_CHECKS=$((N_CHECKS + 1))
done_testing
