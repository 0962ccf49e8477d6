#!/usr/bin/env bash
# Malicious updates, and updates that are cut off: each gets a correct reply, and the served version
# stays.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

TENSORS=(--header 'Content-Type: application/vnd.safetensors')
file=$CHECKPOINTS/step-00100.safetensors

# untouched: what was served at the start still is.
untouched() {
  expect 200 GET /v1/status
  same .weights.serial "$1"
  same .weights.weight_version "$2"
  same .weights.state ready
}

# A label of the command line is held to the same rules as any other.
rc=0
timeout 60 "$BATON" serve --listen 127.0.0.1:0 --model "$MODEL" --weights "$CHECKPOINTS/step-00000.safetensors" \
  --weight-version $'\xff' 2>"$WORK/log" || rc=$?
((rc != 0 && rc != 124)) || fail "a label that is not UTF-8 was served"
grep --quiet 'weight-version' "$WORK/log" || fail "the culprit is not named: $(cat "$WORK/log")"

serve_model --allow-path "$CHECKPOINTS" --body-stall-timeout 30000

# No JSON can carry a label that is not UTF-8: neither this answer nor any later one.
for label in %ff %c3 a%ed%a0%80b %c0%af; do
  expect 400 POST "/v1/update_weights?weight_version=$label" "${TENSORS[@]}" --data-binary @"$file"
  same .error.param /weight_version
done
untouched 1 step-0

# Text that is cut is cut between characters.
post 200 /v1/update_weights/start '{"weight_version": "x"}'
id=$(jq --raw-output .update_id "$WORK/body")
post 200 /v1/update_weights/abort "$(jq --null-input --arg id "$id" --arg r "x$(printf '€%.0s' {1..300})" '{update_id: $id, reason: $r}')"
same .phase aborted
expect 200 GET "/v1/update_weights/$id"
same .phase aborted
has '€€€'

# Checksums without names belong to nothing: they are not passed over.
post 400 /v1/update_weights "$(jq --null-input --arg p "$file" '{path: $p, checksums: ["00000000000000000000000000000000"]}')"
same .error.param /checksums
untouched 1 step-0

# The longest label is told whole, in a header too.
label=$(printf 'l%.0s' {1..256})
expect 200 POST "/v1/update_weights?weight_version=$label" "${TENSORS[@]}" --data-binary @"$file"
same .weight_version "$label"
expect 200 GET /v1/weights/model.norm.weight
[[ $(header X-Baton-Weight-Version) == "$label" ]] || fail "the label in the header is cut"
expect 400 POST "/v1/update_weights?weight_version=${label}x" "${TENSORS[@]}" --data-binary @"$file"
expect 200 POST "/v1/update_weights?weight_version=two" "${TENSORS[@]}" --data-binary @"$file"
untouched 3 two

# A client that goes away half-way, and one that never ends its body: neither keeps the next one out.
"$PYTHON" - "$URL" "$file" <<'P'
import http.client, json, socket, sys, time, urllib.parse

at = urllib.parse.urlparse(sys.argv[1])
body = open(sys.argv[2], "rb").read()

def ask(method, path, data=None):
    c = http.client.HTTPConnection(at.hostname, at.port, timeout=60)
    c.request(method, path, data, {"Content-Type": "application/json"} if data else {})
    r = c.getresponse()
    return r.status, json.loads(r.read())

def upload(path, chunked, n):
    s = socket.create_connection((at.hostname, at.port), timeout=60)
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n"
              "Content-Type: application/vnd.safetensors\r\n\r\n".encode())
    data = body[:n]
    s.sendall(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
    return s

def await_update(want):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        update = ask("GET", "/v1/status")[1]["update"]
        if want(update):
            return update
        time.sleep(0.01)
    sys.exit(f"the update never came to that: {update}")

upload("/v1/update_weights?weight_version=gone", False, 200000).close()
await_update(lambda u: u is None)

# Every byte is there but the end of the body is not: whoever aborts it need not wait for that,
# nor need the next one.
s = upload("/v1/update_weights?weight_version=endless", True, len(body))
update = await_update(lambda u: u is not None and u["nbytes_done"] == u["nbytes_total"])
status, reply = ask("DELETE", "/v1/update_weights/" + update["update_id"])
assert status == 200 and reply["phase"] == "aborted", reply
began = time.monotonic()
status, reply = ask("POST", "/v1/update_weights", json.dumps({"path": sys.argv[2], "weight_version": "next"}).encode())
assert status == 200 and reply["phase"] == "committed", reply
assert time.monotonic() - began < 25, "the next update waited for the end of an aborted one"
s.close()
P
untouched 4 next
expect 200 POST "/v1/update_weights?weight_version=three" "${TENSORS[@]}" --data-binary @"$file"
untouched 5 three
stop_server

# No room: 507 before a byte moves, whichever way it is asked.
serve_model --max-weight-bytes 2500000
for _ in 1 2 3; do
  post 507 /v1/update_weights/start '{}'
  [[ $(header Retry-After) == 1 ]] || fail "no Retry-After"
  expect 507 POST /v1/update_weights "${TENSORS[@]}" --data-binary @"$file"
  same .error.code insufficient_staging
done
untouched 1 step-0
# ... but by dropping what serves first.
post 200 /v1/sleep '{"level": 2}'
post 200 /v1/update_weights/start '{}'
id=$(jq --raw-output .update_id "$WORK/body")
expect 200 POST "/v1/update_weights?update_id=$id" "${TENSORS[@]}" --data-binary @"$file"
post 200 /v1/update_weights/finish "{\"update_id\": \"$id\", \"weight_version\": \"step-100\"}"
post 200 /v1/wake '{}'
serves step-00100 step-100
stop_server

# An end in the middle of a flood of text: every part comes to its end.
serve_model --detokenize-concurrency 1 --detokenize-queue 512 --drain-timeout 1
seq 100000 | jq --slurp --raw-input '{prompt: .}' >"$WORK/text"
pids=()
for _ in $(seq 24); do
  curl --silent --output /dev/null --header 'Content-Type: application/json' --data-binary @"$WORK/text" \
    "$URL/tokenize" &
  pids+=($!)
done
for _ in $(seq 1000); do
  expect 200 GET /v1/status
  (($(jq .admission.detokenize.waiting "$WORK/body") >= 4)) && break
done
stop_server TERM 3
wait "${pids[@]}" || true
done_testing
