#!/usr/bin/env bash
# A server that receives updates for its upstreams (--stage), over the fake driver.
# Usage: as lib.sh says, and then the path of fake_engine, that of libfakecuda, that of
# the engines', and cases.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
HERE=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
ENGINE=$(realpath "$4")
FAKE=$(realpath "$5")
FOREIGN=$(realpath "$6")
export FAKECUDA_DEVICES=2 PYTHONDONTWRITEBYTECODE=1
PYTHONPATH=$HERE/../lib:$HERE/../../fakes timeout 280 "$PYTHON" "$HERE/${HANDOFF_PY:=handoff.py}" "$BATON" "$MODEL" "$ENGINE" "$FAKE" "$FOREIGN" "$WORK" "${@:7}" ||
  fail "$HANDOFF_PY"
N_CHECKS=$((N_CHECKS + 1))
done_testing
