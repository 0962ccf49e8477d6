#!/usr/bin/env bash
# baton push, status, generate, lora, pause, weights …: what they do to a real server, what they print,
# and what they end with.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/lib.sh"

# run WANTED_STATUS ARG...: what the command prints lies in $WORK/body, its errors in $WORK/errors.
run() {
  local want=$1 rc=0
  shift
  BATON_URL=${URL:-} timeout 60 "$BATON" "$@" >"$WORK/body" 2>"$WORK/errors" </dev/null || rc=$?
  N_CHECKS=$((N_CHECKS + 1))
  ((rc == want)) || fail "$*: ended with $rc, wanted $want: $(cat "$WORK/body" "$WORK/errors")"
}

# complains TEXT: the errors of the last run contain it.
complains() {
  N_CHECKS=$((N_CHECKS + 1))
  grep --quiet --fixed-strings -- "$1" "$WORK/errors" || fail "'$1' is not in: $(cat "$WORK/errors")"
}

serve_model
STEP=$CHECKPOINTS/step-01500.safetensors

# push: proven, named, served
run 0 push "$STEP" --weight-version step-1500
has "step-1500 is served (serial 2): 46 tensors, 1.8 MB"
has ", at $URL"
[[ ! -s $WORK/errors ]] || fail "a push that changed all: $(cat "$WORK/errors")"
run 0 status
has "step-1500 (serial 2), ready, 46 tensors, 1.8 MB BF16"
has "ready       yes"
run 0 status --json
same .weights.weight_version step-1500
run 0 weights verify "$STEP"
has "the same: 46 tensors"
run 1 weights verify "$CHECKPOINTS/step-00100.safetensors"
has "differs: model.norm.weight: BF16 128 "
has "46 of 46 tensors differ"
run 0 weights list
has "# step-1500, serial 2"
has "1024x128         model.embed_tokens.weight"

# a directory of shards is one update; with an index, only what it names
mkdir "$WORK/shards"
"$PYTHON" - "$STEP" "$WORK/shards" <<'P'
import json, os, struct, sys
with open(sys.argv[1], "rb") as f:
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    at = f.tell()
    data = f.read()
head.pop("__metadata__", None)
rows = sorted(head.items(), key=lambda kv: kv[1]["data_offsets"])
index = {}
for k, part in enumerate((rows[:20], rows[20:])):
    name, out, body = f"model-{k + 1}-of-2.safetensors", {}, b""
    for tensor, row in part:
        a, b = row["data_offsets"]
        out[tensor] = dict(row, data_offsets=[len(body), len(body) + b - a])
        body += data[a:b]
        index[tensor] = name
    text = json.dumps(out).encode()
    with open(os.path.join(sys.argv[2], name), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)
with open(os.path.join(sys.argv[2], "model.safetensors.index.json"), "w") as f:
    json.dump({"weight_map": index}, f)
P
run 0 push "$WORK/shards" --weight-version sharded
has "sharded is served (serial 3): 46 tensors"
complains "baton push: warning: nothing_changed: every tensor that was sent has the bytes that it had in step-1500; 'baton"
run 0 weights diff "$WORK/shards" "$STEP"
has "the same: 46 tensors"
cp "$STEP" "$WORK/shards/other.safetensors" # the index does not name it
run 0 weights verify "$WORK/shards"
mv "$WORK/shards/other.safetensors" "$WORK/shards/model.safetensors" # which of the two is the checkpoint?
run 2 push "$WORK/shards"
complains "has model.safetensors beside an index (model.safetensors.index.json) of other files"
"$PYTHON" -m baton "$WORK/shards" --url "$URL" 2>"$WORK/errors" && fail "the client takes one of two checkpoints"
complains "has model.safetensors beside an index (model.safetensors.index.json) of other files"
rm "$WORK/shards/model.safetensors"

# two checkpoints in one directory, or an index that is wrong: which is meant is not known
for command in "push" "weights verify" "weights diff $STEP"; do
  # shellcheck disable=SC2086
  run 2 $command "$CHECKPOINTS"
  complains "step-00000.safetensors and in "
done
cp -r "$WORK/shards" "$WORK/ghost"
jq '.weight_map["ghost.weight"] = "model-1-of-2.safetensors"' "$WORK/shards/model.safetensors.index.json" \
  >"$WORK/ghost/model.safetensors.index.json"
run 2 push "$WORK/ghost"
complains "says that ghost.weight is in model-1-of-2.safetensors, and it is not"

# half of a model is refused by name, and what served goes on
cp "$WORK/shards/model-1-of-2.safetensors" "$WORK/half.safetensors"
run 1 push "$WORK/half.safetensors"
complains "422 incomplete_update"
complains "; missing: "
complains "hint: --partial"
run 0 weights verify "$STEP"
run 0 status --json
same .update null
run 1 weights diff # the same bytes under three labels
has "0 changed, 46 unchanged, 0 not sent, 0 not compared, 0 equal to another; warnings: 1"
has "warning: nothing_changed: every tensor that was sent has the bytes that it had in step-1500"
has "newly unchanged: model.embed_tokens.weight"
has "unchanged: and 25 more (--json lists up to 10000 tensors)"
run 1 weights diff --json
same '.changes.warnings[0]' nothing_changed
run 0 push "$STEP" --weight-version sharded
has "sharded is served (serial 4, with the bytes and the label of the one before): 46 tensors"
run 0 weights diff
has "repeated: nothing changed, and the label is that of the version before"
run 2 weights diff "$STEP"
complains "it takes two checkpoints, or none for the last commit"
run 2 weights diff "$STEP" "$STEP" --json
complains "--json is for the last commit"
run 1 weights diff "$WORK/half.safetensors" "$STEP"
has "only in $STEP: "
has "largest relative change: 0 in "
run 1 weights diff "$CHECKPOINTS/step-00000.safetensors" "$STEP"
has "46 of 46 tensors differ"
has "differs: model.norm.weight: BF16 128: relative change "
has "$("$PYTHON" - "$CHECKPOINTS/step-00000.safetensors" "$STEP" <<'P'
import array, json, struct, sys

def tensors(path):  # name -> its bfloat16 numbers
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    head.pop("__metadata__", None)
    for name, row in head.items():
        halves = array.array("H", data[slice(*row["data_offsets"])])
        yield name, array.array("f", array.array("I", (h << 16 for h in halves)).tobytes())

def change(old, new):
    return (sum((b - a) ** 2 for a, b in zip(old, new)) / sum(a * a for a in old)) ** 0.5

old, new = map(dict, map(tensors, sys.argv[1:]))
name = "model.layers.0.mlp.down_proj.weight"
print("differs: %s: BF16 128x384: relative change %.3g" % (name, change(old[name], new[name])))
print("largest relative change: %.3g in %s" % max((change(old[n], new[n]), n) for n in old))
P
)"

# dtypes are converted on request
"$PYTHON" - "$STEP" "$WORK/wide.safetensors" <<'P'
import json, struct, sys
with open(sys.argv[1], "rb") as f:
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    data = f.read()
head.pop("__metadata__", None)
out, body = {}, b""
for name, row in sorted(head.items(), key=lambda kv: kv[1]["data_offsets"]):
    a, b = row["data_offsets"]
    wide = b"".join(b"\0\0" + data[i:i + 2] for i in range(a, b, 2))
    out[name] = {"dtype": "F32", "shape": row["shape"], "data_offsets": [len(body), len(body) + len(wide)]}
    body += wide
text = json.dumps(out).encode()
with open(sys.argv[2], "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + body)
P
run 1 push "$WORK/wide.safetensors"
complains "hint: --convert"
"$PYTHON" - "$STEP" "$WORK/bent.safetensors" <<'P'
import json, struct, sys
with open(sys.argv[1], "rb") as f:
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    data = f.read()
head["model.norm.weight"]["shape"] = [2, 64]
text = json.dumps(head).encode()
with open(sys.argv[2], "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + data)
P
run 1 push "$WORK/bent.safetensors"
complains "model.norm.weight"
! grep --quiet "hint:" "$WORK/errors" || fail "no option helps here: $(cat "$WORK/errors")"
post 200 /v1/weights/label '{"weight_version": "a\u00a0b\u200dc\u05d0"}'
for hidden in 001b 007f 0085 009b 061c 200e 2028 202e 2069; do
  post 400 /v1/weights/label "{\"weight_version\": \"a\\u${hidden}b\"}"
  has "byte 1 of the weight version"
done
run 0 push "$WORK/wide.safetensors" --convert --weight-version converted
run 0 weights verify "$STEP"

# --partial takes it
run 0 push "$WORK/half.safetensors" --partial --weight-version half
has "half is served"

# generate streams text; --json its events
run 0 generate "In the beginning" --max-tokens 8 --temperature 0 --seed 7
call POST /v1/completions --header 'Content-Type: application/json' \
  --data '{"prompt": "In the beginning", "max_tokens": 8, "temperature": 0, "seed": 7}'
WANTED=$(jq --raw-output '.choices[0].text' "$WORK/body")
run 0 generate "In the beginning" --max-tokens=8 --temperature 0
has "$WANTED"
printf 'In the beginning' | BATON_URL=$URL "$BATON" generate - --max-tokens 8 --temperature 0 >"$WORK/body"
has "$WANTED"
run 0 generate "In the beginning" --max-tokens 2 --json
jq --exit-status .choices "$WORK/body" >/dev/null || fail "not a JSON value for each line: $(cat "$WORK/body")"
run 1 generate hello --model nobody
complains "404"
printf 'caf\xe9' | BATON_URL=$URL "$BATON" generate - 2>"$WORK/errors" && fail "a prompt that is no UTF-8 is sent"
complains "not valid UTF-8"

# a reply that was cut is no success
run 0 pause
BATON_URL=$URL "$BATON" generate hello >"$WORK/text" 2>"$WORK/cut" &
CUT=$!
until call GET /v1/status && jq --exit-status '.admission.generate.waiting > 0' "$WORK/body" >/dev/null; do
  sleep 0.05
done
until grep --quiet "waiting for the first token; 'baton status' shows" "$WORK/cut"; do
  sleep 0.05
done
run 0 abort --all
rc=0
wait "$CUT" || rc=$?
cp "$WORK/cut" "$WORK/errors"
has "aborted 1"
((rc == 1)) || fail "a cut reply ended with $rc"
complains "before it was complete"
run 0 resume

# adapters
run 0 lora load shout "$MODEL/adapters/shout"
has "shout: revision 1"
run 0 lora list
has "shout                           1    16"
run 0 generate "In the beginning" --model shout --max-tokens 8 --temperature 0
run 1 lora load shout "$MODEL/adapters/shout" --path
complains "--allow-path"
run 0 lora unload shout
run 1 lora unload shout
complains "there is no adapter 'shout'"
run 2 lora load shout "$WORK"
complains "adapter_config.json"
# PiSSA and others subtract from the base when they begin: over other weights the adapter is wrong
cp --recursive "$MODEL/adapters/shout" "$WORK/ga"
chmod --recursive u+w "$WORK/ga"
jq '.init_lora_weights = "lora_ga"' "$MODEL/adapters/shout/adapter_config.json" >"$WORK/ga/adapter_config.json"
run 0 lora load ga "$WORK/ga"
complains "warning: ga: the base weights were changed when its training began"
grep --quiet '"event":"lora.base_changed".*"lora_name":"ga"' "$WORK/log" || fail "the log does not warn"
run 0 lora load ga "$WORK/ga" --json
has "init_lora_weights"
same .base_changed true
run 0 lora load shout "$MODEL/adapters/shout" --json
same .warning null
[[ ! -s $WORK/errors ]] || fail "a warning of a plain adapter: $(cat "$WORK/errors")"
# what changed since a loaded revision, as two directories, as a delta file, and by its path
run 0 lora load shout "$MODEL/adapters/shout"
first=$(sed --quiet 's/.*, digest \([0-9a-f]\{64\}\)$/\1/p' "$WORK/body")
[[ -n $first ]] || fail "no digest: $(cat "$WORK/body")"
at=$(stat --format=%s "$MODEL/adapters/shout/adapter_model.safetensors")
for name in next last; do
  cp --recursive "$MODEL/adapters/shout" "$WORK/$name"
  chmod --recursive u+w "$WORK/$name"
  ((at -= 9))
  printf "\1" | dd of="$WORK/$name/adapter_model.safetensors" bs=1 conv=notrunc status=none seek=$at
done
run 0 lora load other "$WORK/next" --json
next=$(jq --raw-output .digest "$WORK/body")
run 0 lora load other "$WORK/last" --json
last=$(jq --raw-output .digest "$WORK/body")
[[ $next != "$first" && $last != "$first" && $last != "$next" ]] || fail "the adapters are one: $first $next $last"
run 0 lora load shout "$WORK/next" --delta-base "$MODEL/adapters/shout" --delta-from "$first"
has "digest $next"
[[ ! -s $WORK/errors ]] || fail "all was sent: $(cat "$WORK/errors")"
run 0 lora load shout "$WORK/last" --delta-base "$MODEL/adapters/shout" --delta-from "$first" # it is not loaded any more
has "digest $last"
complains "all is sent, not a delta"
complains "$first"
run 1 lora load shout "$WORK/next" --delta-base "$MODEL/adapters/shout" --delta-from "$last" # not the files of that digest
complains "checksum"
for here in next last; do mkdir "$WORK/$here.delta" && cp "$WORK/$here/adapter_config.json" "$WORK/$here.delta"; done
run 0 weights delta "$WORK/last/adapter_model.safetensors" "$WORK/next/adapter_model.safetensors" --delta-from "$last" \
  -o "$WORK/next.delta/adapter_model.safetensors"
run 0 weights delta "$WORK/next/adapter_model.safetensors" "$WORK/last/adapter_model.safetensors" \
  -o "$WORK/last.delta/adapter_model.safetensors"
run 0 lora load shout "$WORK/next.delta"
has "digest $next"
run 1 lora load shout "$WORK/next.delta" # its base is not loaded any more
complains "$last"
run 2 lora load shout "$WORK/last.delta"
complains "it needs --delta-from"
run 0 lora load shout "$WORK/last.delta" --delta-from "$next"
has "digest $last"
run 1 lora load shout "$WORK/next.delta" --path --delta-from "$last"
complains "--allow-path"
run 2 lora load shout "$WORK/next" --delta-from "$last"
complains "--delta-from needs --delta-base"
run 2 lora load shout "$WORK/next" --delta-base "$WORK/last"
complains "it needs --delta-from"
run 2 lora load shout "$WORK/next" --delta-base "$WORK/last" --path --delta-from "$last"
complains "the server reads the files"
run 2 lora load shout "$WORK/next" --delta-base "$WORK" --delta-from "$last"
complains "adapter_model.safetensors"
run 0 lora unload other
run 0 lora unload shout
run 0 lora unload ga

# pause, resume, sleep, wake, abort
run 0 pause --mode abort --reject --lease 60
has "paused (abort)"
run 0 status
has "paused      abort by baton pause"
run 1 generate hello
complains "503"
run 0 resume
has resumed
run 0 resume
has "it was not paused"
run 0 sleep --level 1 --tags weights
has "weights asleep, KV cache present"
run 0 wake --tags weights
has "weights ready"
run 0 abort --all
has "aborted 0"
run 0 abort nobody
run 1 upstreams
complains "no_upstreams"
run 1 upstreams add http://127.0.0.1:1,vllm
complains "no_upstreams"
run 1 upstreams prove
complains "no_upstreams"
run 2 upstreams remove
complains "expected URL"

# a watch ends well when it is interrupted; in a file an empty line is between two answers
BATON_URL=$URL "$BATON" status --watch >"$WORK/body" &
WATCH=$!
until (($(grep --count --regexp='^baton ' "$WORK/body") > 1)); do sleep 0.1; done
kill -INT "$WATCH"
wait "$WATCH" || fail "an interrupted watch ended with $?"
[[ $(grep --line-regexp --after-context=1 '' "$WORK/body") == *baton* ]] || fail "$(cat "$WORK/body")"

# an interrupted push leaves no open update: a proxy takes the tensors, and passes nothing on
"$PYTHON" -B "$(dirname "${BASH_SOURCE[0]}")/stall.py" "${URL##*:}" >"$WORK/stall" &
STALL=$!
until [[ -s $WORK/stall ]]; do sleep 0.1; done
BATON_URL=http://127.0.0.1:$(cat "$WORK/stall") "$BATON" push "$STEP" 2>"$WORK/errors" &
PUSH=$!
open() { call GET /v1/status && jq --exit-status '.update != null' "$WORK/body" >/dev/null; }
until open; do sleep 0.1; done
kill -INT "$PUSH"
rc=0
wait "$PUSH" || rc=$?
((rc == 130)) || fail "an interrupted push ended with $rc"
complains interrupted
call GET /v1/status
same .update null

# so does abort --update
run 0 abort --update
has "no update is open"
post 200 /v1/update_weights/start '{}'
run 1 push "$STEP"
complains "409 conflict"
complains "'baton abort --update' aborts it"
run 0 abort --update
has "aborted upd-"
call GET /v1/status
same .update null
run 2 abort --update --all
call GET /v1/status
same .weights.weight_version half
kill "$STALL"

# the Python client takes the same directories and URLs
for via in shm body; do
  "$PYTHON" -m baton "$WORK/shards" --url "${URL#http://}" --via "$via" --weight-version sharded >"$WORK/body"
  same .n_tensors_done 46
done
"$PYTHON" -m baton "$CHECKPOINTS" --url "$URL" 2>"$WORK/errors" && fail "two checkpoints were pushed"
complains "step-00000.safetensors and in "
"$PYTHON" -m baton "$STEP" --url "$URL/v1" 2>"$WORK/errors" && fail "a URL with a path"
complains "has more than scheme, host and port"
"$PYTHON" - "$URL" 2>"$WORK/errors" <<'P' && fail "a model that is not there"
import sys
import baton
try:
    baton.request(sys.argv[1], "POST", "/v1/completions", {"model": "zzz", "prompt": "a"})
except baton.BatonError as e:
    sys.exit(f"{e.status} [{e.code}] {e}")
P
complains "404 [] 404: model 'zzz'"

# what the command line gets wrong
run 2 push
complains "expected FILE|DIR"
run 2 push /nowhere
complains "/nowhere cannot be read"
run 2 push "$MODEL/config.json"
complains "this is JSON; a safetensors file is expected"
run 2 status --jsn
complains "did you mean --json?"
run 2 generate hello --max-tokens many
complains "--max-tokens: expected a number of 1 to 1048576, not 'many'"
run 2 lora lod
complains "unknown command 'lod'"
run 2 upstreams ad http://127.0.0.1:1,vllm
complains "unknown command 'ad'"
complains "baton upstreams add URL[,KIND]"
run 2 stats
complains "did you mean 'status'?"
for word in run list ls ps stop get; do
  run 2 "$word"
  complains "unknown command '$word'; did you mean "
done
run 0 -v
has "baton 0."
# of what others wrote nothing controls the terminal: words, options, a configuration file
printf '{"no\\u001b[31mmember\\u202e": 1}' >"$WORK/evil.json"
for words in $'no\e[31mcommand' $'serve --no\e[31moption' "serve --config $WORK/evil.json" $'serve --model no\e[31m\xe2\x80\xaedirectory'; do
  # shellcheck disable=SC2086
  run 2 $words
  ! grep --quiet --fixed-strings -e $'\e' -e $'\xe2\x80\xae' "$WORK/errors" || fail "controls the terminal: $(cat -v "$WORK/errors")"
done
run 2 status --url ftp://here
run 2 status --url "$URL/v1"
complains "has more than scheme, host and port"
run 0 status --url "${URL#http://}"
run 3 status --url "https://${URL#http://}"
complains "hint: a server without TLS has an http:// URL"
run 0 wait
has "$URL is ready for generate"
run 2 wait --for ever
complains "expected generate or control"
run 0 pause
run 1 wait --timeout 0.3
complains "is not ready for generate, the time is over: "
run 0 wait --for control --timeout 5
run 0 resume
run 0 status --url "$URL/"
run 3 status --url "unix:$WORK/nowhere"
complains "no server accepts connections at this socket"
run 0 help push
has "--no-checksums"
run 0 help lora load
has "usage: baton lora load"
run 0 help serve
has "--upstream"
run 2 help puhs
run 0 push --help
has "--no-checksums"
run 0 lora --help
has "baton lora load NAME DIR"
run 0 help
has "baton weights verify FILE|DIR"
# completion: of the server's options too; zsh, where there is one, with its own functions replaced
run 0 completion bash
mv "$WORK/body" "$WORK/completion"
bash -euo pipefail -c 'source "$1"; COMP_WORDS=(baton serve --max-w); COMP_CWORD=2; _baton
  printf "%s\n" "${COMPREPLY[@]}"; COMP_WORDS=(baton lora l); _baton; printf "%s\n" "${COMPREPLY[@]}"' \
  - "$WORK/completion" >"$WORK/body"
[[ $(<"$WORK/body") == $'--max-weight-bytes\nload\nlist' ]] || fail "bash completes: $(<"$WORK/body")"
run 0 completion zsh
mv "$WORK/body" "$WORK/completion"
zsh -f -c 'compdef() {}; compadd() { print -l -- ${@[2,-1]} }; _files() { print files }
  source $1; words=(baton serve --max-w); CURRENT=3; _baton
  words=(baton lora l); _baton; words=(baton push m); _baton' - "$WORK/completion" >"$WORK/body"
has "--max-weight-bytes"
has "unload"
has "files"

# a server that is not there, and one that asks for a key
stop_server
run 3 wait --timeout 0.3
complains "the time is over: "
run 3 status
complains "$URL: "
complains "hint: 'baton serve' starts a server"
run 3 status --url "https://${URL#http://}"
complains "hint: 'baton serve' starts a server"
printf 'control %s name=trainer-1\n' 0123456789abcdef0123456789abcdef >"$WORK/keys"
printf '%s\n' 0123456789abcdef0123456789abcdef >"$WORK/key"
chmod 600 "$WORK/keys" "$WORK/key"
serve_model --api-key-file "$WORK/keys"
run 0 wait
run 1 status
complains "401 unauthorized"
complains "hint: give a key by --key-file"
run 0 status --key-file "$WORK/key"
run 0 status --key-file "$WORK/keys"
BATON_API_KEY=another-0123456789abcdef run 1 status
complains "hint: the server knows another key"
BATON_API_KEY=0123456789abcdef0123456789abcdef run 0 status
stop_server

# over a unix socket
: >"$WORK/log"
"$BATON" serve --listen "unix:$WORK/s" --model "$MODEL" --weights "$STEP" 2>>"$WORK/log" &
SERVER_PID=$!
until grep --quiet '"event":"serving"' "$WORK/log"; do sleep 0.1; done
URL=unix:$WORK/s
run 0 weights verify "$STEP"
run 0 push "$CHECKPOINTS/step-00100.safetensors" --weight-version over-unix
stop_server

done_testing
