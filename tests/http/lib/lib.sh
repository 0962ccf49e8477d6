# Sourced by each http test: a real server on a free port, curl, and checks that say what they found.
# Usage of a test: NAME.sh BATON_BINARY FIXTURES CLIENT_DIR
set -euo pipefail
# shellcheck source=tests/http/lib/env.sh
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/env.sh"

BATON=$(realpath "$1")
MODEL=$(realpath "$2")/kjv-qwen3-1m
CLIENT=$(realpath "$3")/baton
export PYTHONPATH=${CLIENT%/*}:$PYTHONPATH
CHECKPOINTS=$MODEL/checkpoints
WORK=$(mktemp --directory)
SERVER_PID=
SHM_FILES=()
N_CHECKS=0

# shellcheck disable=SC2317  # called by the trap
cleanup() {
  local rc=$?
  if [[ -n $SERVER_PID ]] && kill -0 "$SERVER_PID" 2>/dev/null; then
    kill -KILL "$SERVER_PID" 2>/dev/null || true
    wait "$SERVER_PID" 2>/dev/null || true
  fi
  if ((rc != 0)) && [[ -f $WORK/log ]]; then
    # a sanitizer's report may be far from the end; it names what deploy/test.sh looks for
    grep --text --extended-regexp --after-context=60 'WARNING: ThreadSanitizer|ERROR: (Address|Leak)Sanitizer|runtime error:' \
      "$WORK/log" | head --lines=400 >&2 || true
    echo "--- end of the server's log" >&2
    tail --lines=40 "$WORK/log" >&2
  fi
  rm --recursive --force "$WORK" "${SHM_FILES[@]}"
  exit "$rc"
}
trap cleanup EXIT

fail() {
  echo "FAIL ${BASH_SOURCE[-1]##*/}:${BASH_LINENO[-2]}: $*" >&2
  exit 1
}

# start_server [option...]: serves with --listen 127.0.0.1:0; sets URL, BOOT_ID and SERVER_PID.
start_server() {
  local line
  : >"$WORK/log"
  "$BATON" serve --listen 127.0.0.1:0 "$@" 2>"$WORK/log" &
  SERVER_PID=$!
  for _ in $(seq 3000); do
    kill -0 "$SERVER_PID" 2>/dev/null || fail "the server did not start: $(cat "$WORK/log")"
    line=$(grep --max-count=1 '"event":"serving"' "$WORK/log" || true)
    if [[ $line == *"}" ]]; then
      URL=http://127.0.0.1:$(jq --raw-output .port <<<"$line")
      BOOT_ID=$(jq --raw-output .boot_id <<<"$line")
      export URL BOOT_ID
      return
    fi
    sleep 0.02
  done
  fail "the server did not say within 60 s that it serves"
}

serve_model() { start_server --model "$MODEL" --weights "$CHECKPOINTS/step-00000.safetensors" \
  --weight-version step-0 "$@"; }

# stop_server [SIGNAL [EXIT_CODE]]: ends it and checks that it ended well (a sanitizer's report is no good end).
stop_server() {
  local rc=0
  kill -s "${1:-TERM}" "$SERVER_PID"
  wait "$SERVER_PID" || rc=$?
  SERVER_PID=
  ((rc == ${2:-0})) || fail "the server ended with $rc"
}

# call METHOD PATH [curl option...]: STATUS, $WORK/body, $WORK/head.
call() {
  local method=$1 path=$2
  shift 2
  STATUS=$(curl --silent --show-error --max-time 280 --request "$method" --output "$WORK/body" \
    --dump-header "$WORK/head" --write-out '%{http_code}' "$@" "$URL$path") ||
    fail "$method $path: curl failed with $?"
}

# expect STATUS METHOD PATH [curl option...]
expect() {
  local want=$1
  shift
  call "$@"
  N_CHECKS=$((N_CHECKS + 1))
  [[ $STATUS == "$want" ]] || fail "$1 $2: status $STATUS, wanted $want: $(head --bytes=600 "$WORK/body")"
}

# post STATUS PATH JSON: a JSON body from a string.
post() { printf '%s' "$3" >"$WORK/request" && expect "$1" POST "$2" --header 'Content-Type: application/json' \
  --data-binary @"$WORK/request"; }

# same JQ_EXPRESSION WANTED: of the last body.
same() {
  local found
  found=$(jq --raw-output "$1" "$WORK/body") || fail "no JSON: $(head --bytes=300 "$WORK/body")"
  N_CHECKS=$((N_CHECKS + 1))
  [[ $found == "$2" ]] || fail "$1 is '$found', wanted '$2' in: $(head --bytes=600 "$WORK/body")"
}

# has TEXT: the last body contains it.
has() {
  N_CHECKS=$((N_CHECKS + 1))
  grep --quiet --fixed-strings -- "$1" "$WORK/body" || fail "'$1' is not in: $(head --bytes=600 "$WORK/body")"
}

# header NAME: value of a header of the last answer.
header() { tr --delete '\r' <"$WORK/head" | sed --quiet "s/^$1: //Ip"; }

# columns FILE: names, dtypes, shapes and sizes of a safetensors file, in the order of its bytes.
columns() {
  "$PYTHON" - "$1" <<'P'
import json, struct, sys
with open(sys.argv[1], "rb") as f:
    (n,) = struct.unpack("<Q", f.read(8))
    h = json.loads(f.read(n))
h.pop("__metadata__", None)
rows = sorted(h.items(), key=lambda kv: kv[1]["data_offsets"])
numel = lambda s: numel(s[:-1]) * s[-1] if s else 1
print(json.dumps({"names": [k for k, _ in rows], "dtypes": [v["dtype"] for _, v in rows],
                  "shapes": [v["shape"] for _, v in rows], "sizes": [numel(v["shape"]) for _, v in rows]}))
P
}

# to_shm FILE: its tensor bytes as a POSIX shared memory object; sets SHM (name) and SHM_NBYTES.
to_shm() {
  local n
  n=$(od --address-radix=n --format=u8 --read-bytes=8 "$1" | tr --delete ' ')
  SHM=/baton-test-$$-$RANDOM$RANDOM
  tail --bytes=+$((8 + n + 1)) "$1" >"/dev/shm$SHM"
  SHM_FILES+=("/dev/shm$SHM")
  SHM_NBYTES=$(stat --format=%s "/dev/shm$SHM")
}

# greedy PROMPT: what the server makes of it now; sets TEXT and VERSION.
greedy() {
  post 200 /v1/completions "$(jq --null-input --arg p "$1" '{prompt: $p, max_tokens: 24, temperature: 0}')"
  TEXT=$(jq --raw-output '.choices[0].text' "$WORK/body")
  VERSION=$(jq --raw-output '[.choices[0].weight_versions[].version] | join(",")' "$WORK/body")
}

# golden STEP: the greedy text that transformers makes of that checkpoint for "In the beginning".
golden() { jq --raw-output --arg s "$1" '.checkpoints[$s].cases[0].greedy_text' "$MODEL/golden.json"; }

# serves STEP LABEL: generation is exactly that checkpoint's, and says so.
serves() {
  greedy "In the beginning"
  N_CHECKS=$((N_CHECKS + 1))
  [[ $TEXT == "$(golden "$1")" ]] || fail "the text is not that of $1: $TEXT"
  [[ $VERSION == "$2" ]] || fail "the text was made by '$VERSION', wanted '$2'"
}

done_testing() {
  [[ -z $SERVER_PID ]] || stop_server
  ((N_CHECKS > 0)) || fail "nothing was checked"
  echo "ok: $N_CHECKS checks"
}
