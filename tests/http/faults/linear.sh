#!/usr/bin/env bash
# Is the version register linearizable (linear.py)?
# Usage: as lib.sh says, then the paths of fake_engine and of the fakes of libcuda, SECONDS, a mode and options of linear.py;
# env SEED repeats the choices of a run, LINEAR_WORK is where the history and logs are left. Modes: single, fleet, seeded, cuda,
# host, and with doubles as engines vllm, sglang (updates are passed on), vllm_staged, sglang_staged.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
HERE=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
LINEAR_WORK=${LINEAR_WORK:-$WORK/linear}
export FAKECUDA_MEMORY=$((64 << 20))
case $8 in
  cuda) mode=(--mode stage --stage cuda:0) ;;
  host) mode=(--mode stage --stage host) ;;
  seeded) mode=(--mode fleet --engines 3 --seeded) ;;
  vllm | sglang) mode=(--mode passed --engine "$8") ;;
  *_staged) mode=(--mode staged --stage cuda:0 --engine "${8%_staged}") ;;
  *) mode=(--mode "$8") ;;
esac
"$PYTHON" "$HERE/linear.py" --baton "$BATON" --model "$MODEL" --work "$LINEAR_WORK" --fake-engine "$(realpath "$4")" \
  --cuda "$(realpath "$5")" --seconds "$7" --seed "${SEED:-1}" "${mode[@]}" "${@:9}" || { tail --lines=3 "$LINEAR_WORK"/*.log >&2; fail "see above"; }
N_CHECKS=$((N_CHECKS + 1))
done_testing
