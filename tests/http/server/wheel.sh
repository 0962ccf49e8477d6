#!/usr/bin/env bash
# The wheels as a user installs them: the program and the client from one, the client alone from the
# other. Skipped without python3-venv, or when pip cannot download its tools.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
ROOT=$(realpath "$TESTS/..")
unset PYTHONPATH # what is tested is installed
export PYTHON PIP_DISABLE_PIP_VERSION_CHECK=1

rc=0
wheel=$("$ROOT/deploy/wheel.sh" "$(dirname "$BATON")" "$WORK/dist" 2>"$WORK/body") || rc=$?
((rc != 77)) || { echo "skipped: $(cat "$WORK/body")"; exit 77; }
((rc == 0)) || fail "wheel.sh ended with $rc: $(tail --bytes=2000 "$WORK/body")"
[[ $wheel == *-py3-none-manylinux_2_*.whl ]] || fail "the wheel is $wheel"

"$PYTHON" -m venv "$WORK/venv"
bin=$WORK/venv/bin
"$bin/pip" install --quiet --no-index "$wheel"
[[ $("$bin/baton" --version) == "$("$BATON" --version)" ]] || fail "another version"
program=$("$bin/python" -c 'import baton; print(baton.__path__[0] + "/bin/baton")')
! ldd "$program" | grep --fixed-strings 'not found' || fail "libraries are missing"
BATON=$bin/baton
serve_model
"$bin/python" - "$URL" "$CHECKPOINTS/step-00100.safetensors" <<'P' || fail "see above"
import sys
import baton
url, path = sys.argv[1:]
baton.wait_ready(url, 20)
assert baton.push(path, url, weight_version="by-wheel")["phase"] == "committed"
assert baton.__version__ == baton.request(url, "GET", "/version")["version"]
P
serves step-00100 by-wheel
stop_server # the command is the program itself: the signal reaches it, and it ends with 0

cmp "$ROOT/LICENSE" "$ROOT/client/LICENSE" || fail "client/LICENSE is another license"
"$bin/pip" install --quiet --target "$WORK/alone" "$ROOT/client"
cd "$WORK/alone"
[[ -f baton/py.typed && -f baton/ready.py && ! -e baton/bin ]] || fail "the client has $(find .)"
rc=0
"$PYTHON" -m baton "$WORK/nothing" --url "$URL" >"$WORK/body" 2>&1 || rc=$?
((rc == 1)) || fail "it ended with $rc"
has "baton: $WORK/nothing: No such file"
N_CHECKS=$((N_CHECKS + 8))
done_testing
