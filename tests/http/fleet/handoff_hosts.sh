#!/usr/bin/env bash
# A fleet of hosts: a server in front of servers with --stage, each in front of the engines of its
# host, over the fakes of CUDA and NCCL. Usage: as lib.sh says, and then the path of fake_engine,
# those of libfakecuda and libfakenccl, those of the engines and trainers, and cases.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"
HERE=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
ENGINE=$(realpath "$4")
FAKE=$(realpath "$5")
export NCCL NCCL_FOREIGN
NCCL=$(realpath "$6")
FOREIGN=$(realpath "$7")
NCCL_FOREIGN=$(realpath "$8")
export FAKECUDA_DEVICES=2 PYTHONDONTWRITEBYTECODE=1
PYTHONPATH=$HERE/../lib:$HERE/../../fakes timeout 280 "$PYTHON" "$HERE/${HANDOFF_PY:=handoff_hosts.py}" "$BATON" "$MODEL" "$ENGINE" "$FAKE" "$FOREIGN" "$WORK" "${@:9}" ||
  fail "$HANDOFF_PY"
N_CHECKS=$((N_CHECKS + 1))
done_testing
