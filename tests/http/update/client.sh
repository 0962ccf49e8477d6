#!/usr/bin/env bash
# The client with each source of weights, and its errors, which have the server's messages.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
serve_model --allow-path "$CHECKPOINTS"

for via in shm body path; do
  "$PYTHON" -m baton "$CHECKPOINTS/step-00100.safetensors" --url "$URL" --via "$via" \
    --weight-version "by-$via" >"$WORK/body" 2>"$WORK/warned"
  same .phase committed
  serves step-00100 "by-$via"
done
grep --quiet '^baton: warning: nothing_changed: .* in by-body; GET /v1/weights/diff' "$WORK/warned" ||
  fail "no warning of the same bytes under another label: $(cat "$WORK/warned")"
"$PYTHON" - "$URL" "$CHECKPOINTS/step-01500.safetensors" "$CLIENT" "$WORK/x" <<'P'
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[3]))
import baton
import contextlib
import io
import numpy

url, tensors = sys.argv[1], baton.load_file(sys.argv[2])
seen = []
answer = baton.push(tensors, url, via="body", weight_version="numpy", progress=lambda d, t: seen.append((d, t)))
assert answer["weight_version"] == "numpy" and seen[-1][0] == seen[-1][1] == 1837824, seen
for progress, wanted in ((True, 1), (None, 0)):  # the same bytes under another label
    with contextlib.redirect_stderr(io.StringIO()) as told:
        baton.push(tensors, url, weight_version=f"again-{wanted}", progress=progress)
    assert told.getvalue().count("\nbaton: warning: nothing_changed: ") == wanted, told.getvalue()

# float32 arrays of a bfloat16 model: refused by name, unless the push says convert.
wide = {n: (numpy.frombuffer(t.data, "<u2").astype("<u4") << 16).view("<f4").reshape(t.shape)
        for n, t in tensors.items()}
try:
    baton.push(wide, url)
    raise SystemExit("a dtype that differs was accepted")
except baton.BatonError as e:
    assert e.status == 422 and e.code == "manifest_mismatch" and "F32" in e.message, e
for via in ("shm", "body"):
    answer = baton.push(wide, url, via=via, convert=True, weight_version="converted")
    assert answer["phase"] == "committed", answer
served = baton.request(url, "GET", "/v1/weights")["tensors"]
assert {t["name"]: t["checksum"] for t in served} == {n: baton.checksum(t.data) for n, t in tensors.items()}
digest = baton.request(url, "GET", "/v1/weights")["plan_digest"]
assert len(digest) == 64

# One bit flipped on the way: the checksum names the tensor.
one = dict(tensors)
sums = baton.checksum
baton.host.checksum = lambda data: "0" * 32 if len(data) == 256 else sums(data)
try:
    baton.push(one, url, via="body")
    raise SystemExit("a wrong checksum was accepted")
except baton.BatonError as e:
    assert e.status == 422 and e.code == "checksum_mismatch", e
baton.host.checksum = sums

# A stored inv_freq is compared with what the configuration makes of rope_theta.
freq = 1.0 / numpy.float32(10000.0) ** (numpy.arange(0, 32, 2, dtype=numpy.float32) / numpy.float32(32))
named = "model.layers.0.self_attn.rotary_emb.inv_freq"
answer = baton.push(dict(tensors, **{named: freq.astype(numpy.float32)}), url, weight_version="with-rope")
assert answer["phase"] == "committed", answer
try:
    baton.push(dict(tensors, **{named: (freq * 2).astype(numpy.float32)}), url)
    raise SystemExit("another rope_theta was accepted")
except baton.BatonError as e:
    assert e.status == 422 and named in e.message, e

partial = {"model.norm.weight": tensors["model.norm.weight"]}
try:
    baton.push(partial, url)
    raise SystemExit("an update with holes was accepted")
except baton.BatonError as e:
    assert e.code == "incomplete_update" and len(e.details["missing"]) == 32, e
assert baton.push(partial, url, partial=True, weight_version="p")["n_tensors_done"] == 1
try:
    baton.push(partial, "http://127.0.0.1:9", partial=True)
    raise SystemExit("nobody listens there")
except baton.BatonError as e:
    assert e.retryable and e.code == "connection", e

# Mistakes: one line that names the file or the argument, and says what to do.
import types, zipfile

work = os.path.dirname(sys.argv[4])


def refused(kind, words, *args, **options):
    try:
        baton.push(*args, **options)
    except kind as e:
        assert all(word in str(e) for word in words), e
    else:
        raise SystemExit(f"accepted: {args}")


def file(name, content):
    with open(os.path.join(work, name), "wb") as f:
        f.write(content)
    return os.path.join(work, name)


with zipfile.ZipFile(os.path.join(work, "x.pt"), "w") as z:
    z.writestr("x/data.pkl", b"")
for name, words in {
        file("short", b"abc"): ["not a safetensors file, it has less"],
        file("empty", b""): ["not a safetensors file, it has less"],
        file("junk", b"hello hello hello"): ["not a safetensors file, or cut off"],
        file("list", b"\2\0\0\0\0\0\0\0[]"): ["not a safetensors file, its header"],
        file("pickle", b"\x80\2}q\0.abcdef"): ["torch.save or pickle", "save_file"],
        os.path.join(work, "x.pt"): ["torch.save or pickle", "safetensors.torch.save_file"]}.items():
    refused(ValueError, [name, *words], name, url, via="body")


class Model:
    def state_dict(self):
        return {}


refused(ValueError, ["tensors is a Model: push its state_dict()"], Model(), url)
refused(ValueError, ["tensors is a dict of name to tensor", "not int"], 5, url)
refused(ValueError, ["tensors is a dict of name to tensor", "not list"], [1, 2], url)
refused(ValueError, ["a list of servers', each once"], partial, [url, url])


def no_cuda():
    raise AssertionError("Torch not compiled with CUDA enabled")


sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(init=no_cuda))
for call in baton.attach, baton.join:
    try:
        call(url)
        raise SystemExit("there is no CUDA here")
    except baton.BatonError as e:
        assert e.code == "no_gpu" and "needs torch with CUDA in this process: Torch not" in e.message, e
P
N_CHECKS=$((N_CHECKS + 23))
serves step-01500 p
done_testing
