#!/usr/bin/env bash
# Hand-off while engines, the driver, trainers and the server itself fail.
# Usage: as lib.sh says, and then the path of fake_engine, that of libfakecuda, that of
# the engines', and options.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
HERE=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
ENGINE=$(realpath "$4")
FAKE=$(realpath "$5")
FOREIGN=$(realpath "$6")
export FAKECUDA_DEVICES=2 PYTHONDONTWRITEBYTECODE=1
PYTHONPATH=$HERE/../lib:$HERE/../../fakes timeout "${TORTURE_TIMEOUT_S:-280}" "$PYTHON" "$HERE/handoff_torture.py" "$BATON" "$MODEL" "$ENGINE" "$FAKE" "$FOREIGN" "$WORK" "${@:7}" ||
  fail "handoff_torture.py"
N_CHECKS=$((N_CHECKS + 1))
done_testing
