#!/usr/bin/env bash
# The requests that upstreams get, scenario by scenario, are those that are kept. Usage: as lib.sh says, then the paths of
# fake_engine, of libfakecuda and of the engines' one, KIND, and options of journals.py. JOURNALS_WRITE=1 renews what is kept.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

mkdir "$WORK/files"
export JOURNALS_MODEL=$MODEL
JOURNALS_CUDA=$(realpath "$5") JOURNALS_FOREIGN=$(realpath "$6") FAKECUDA_DEVICES=2 \
  "$PYTHON" -B "$(dirname "$0")/journals.py" "$BATON" "$(realpath "$4")" "$WORK/log" "$3" "$WORK/files" none "${@:7}" \
  ${JOURNALS_WRITE:+--write} || fail "other requests than those of journals/$7.txt: see above; if they are meant, JOURNALS_WRITE=1 renews it"
N_CHECKS=$((N_CHECKS + 1))
done_testing
