"""Revisions of an adapter as deltas of the one before, by every source and of every kind: each is the one that all tensors
would have made, and after whatever is refused the revision that was loaded still serves.
Usage: lora_delta.py BATON CLIENT_DIR FOLDER MODEL SEED"""

import json
import os
import random
import shutil
import sys
import threading
import urllib.parse

import numpy

BATON, CLIENT, FOLDER, MODEL, SEED = sys.argv[1:]
sys.path.insert(0, CLIENT)
import baton  # noqa: E402
from delta_parts import KINDS, packed, parts_of  # noqa: E402
from fleet_world import Server  # noqa: E402

DRAW = numpy.random.default_rng(int(SEED))
CHOOSE = random.Random(int(SEED))
LOAD, LIST = "/v1/load_lora_adapter", "/v1/lora_adapters"
LOG = os.path.join(FOLDER, "log")
SHOUT = os.path.join(MODEL, "adapters/shout")
WIDTH = {"F32": "<u4", "F16": "<u2", "BF16": "<u2"}
VIAS = ("body", "shm", "path")
n_checks = 0


def same(found, wanted, about):
    global n_checks
    n_checks += 1
    assert found == wanted, f"SEED={SEED}: {about}: {found!r}, wanted {wanted!r}"


with open(f"{SHOUT}/adapter_model.safetensors", "rb") as file:
    HEAD = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    BYTES = file.read()
HEAD.pop("__metadata__", None)
with open(f"{SHOUT}/adapter_config.json", encoding="utf-8") as file:
    CONFIG = json.load(file)
FIRST = {n: numpy.frombuffer(BYTES[slice(*t["data_offsets"])], WIDTH[t["dtype"]]) for n, t in HEAD.items()}


def changed(step):
    """The lowest bit of some elements of most tensors: finite stays finite."""
    return {n: a ^ (DRAW.random(a.size) < DRAW.choice([0, 0.01, 0.3, 1])).astype(a.dtype) for n, a in step.items()}


def delta_of(old, new):
    """[(name, dtype, shape, bytes)], each tensor's change of any kind, some compressed."""
    parts = []
    for name, a in old.items():
        if (a != new[name]).any():
            made = parts_of(name, HEAD[name]["dtype"], HEAD[name]["shape"], a, new[name], CHOOSE.choice(KINDS))
            parts += packed(made) if CHOOSE.random() < 0.5 else made
    return parts


def whole(step):
    return [(n, HEAD[n]["dtype"], HEAD[n]["shape"], a.tobytes()) for n, a in step.items()]


def file_of(parts, metadata=None):
    head, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, dtype, shape, data in parts:
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(p[3] for p in parts)


def delta_metadata(base=None, sums=()):
    out = {"format": "baton-delta-1", **{f"checksum.{n}": v for n, v in dict(sums).items()}}
    return out if base is None else {**out, "base_version": base}


def directory_of(name, data):
    place = os.path.join(FOLDER, name)
    shutil.rmtree(place, ignore_errors=True)
    os.mkdir(place)
    shutil.copy(f"{SHOUT}/adapter_config.json", place)
    with open(os.path.join(place, "adapter_model.safetensors"), "wb") as f:
        f.write(data)
    return place


def send(s, name, parts, via, metadata=None, **members):
    """(status, answer); a file has metadata, and a body if it is given."""
    if via == "body":
        query = urllib.parse.urlencode({"lora_name": name, "adapter_config": json.dumps(CONFIG), **{
            k: json.dumps(v) if isinstance(v, bool) else v for k, v in members.items()}})
        return s.ask("POST", f"{LOAD}?{query}", file_of(parts, metadata), {"Content-Type": "application/vnd.safetensors"})
    if via == "path":
        return s.ask("POST", LOAD, {"lora_name": name, "timeout_s": 5, "lora_path": directory_of("by-path", file_of(
            parts, metadata or (delta_metadata() if members.get("delta") else None))), **members})
    data = b"".join(p[3] for p in parts)
    with open(f"/dev/shm/baton-lora-delta-{os.getpid()}", "wb") as f:
        f.write(data)
    try:
        return s.ask("POST", LOAD, {
            "lora_name": name, "adapter_config": CONFIG, "names": [p[0] for p in parts], "dtypes": [p[1] for p in parts],
            "shapes": [p[2] for p in parts], "checksums": [baton.checksum(p[3]) for p in parts],
            "shm": {"name": f"/baton-lora-delta-{os.getpid()}", "nbytes": len(data)}, **members})
    finally:
        os.unlink(f"/dev/shm/baton-lora-delta-{os.getpid()}")


def load(s, name, parts, via, **more):
    status, said = send(s, name, parts, via, **more)
    same(status, 200, said)
    return said


def state(s):
    return [(a["lora_name"], a["revision"], a["digest"]) for a in s.get(LIST)["adapters"]]


def refused(s, what, status, code, param, *words):
    """`what` was asked; nothing has changed."""
    before = state(s)
    found, said = what()
    same((found, said["error"]["code"], said["error"]["param"]), (status, code, param), said)
    for word in words:
        same(word in said["error"]["message"], True, f"'{word}' in {said}")
    same(state(s), before, said)
    totals = s.get(LIST)["totals"]
    same((totals["loading"], totals["nbytes_reserved"], totals["users"]), (0, 0, 0), said)


def chains(s):
    """Three revisions by deltas; the same bytes by all tensors have the same digest."""
    step, said = FIRST, load(s, "chain", whole(FIRST), "body")
    for k in range(1, 10):
        new = changed(step)
        via, was = VIAS[k % 3], said
        parts = delta_of(step, new) or whole(new)[:1]
        said = load(s, "chain", parts, via, delta=True, if_digest=was["digest"],
                    **{"if_revision": was["revision"]} if k % 2 else {})
        same(said["revision"], was["revision"] + (said["digest"] != was["digest"]), f"revision {k} by {via}")
        same(load(s, "all", whole(new), VIAS[(k + 1) % 3])["digest"], said["digest"], f"revision {k} by {via}")
        same(said["nbytes"], was["nbytes"], f"revision {k} takes as much as the one before")
        step = new
    totals = s.get(LIST)["totals"]
    same((totals["loading"], totals["nbytes_reserved"], totals["users"]), (0, 0, 0), totals)
    return step, said


def by_the_client(s, step, said):
    """A file of the Python client, with the checksums of all tensors and the base's digest."""
    new = changed(step)
    place = directory_of("by-client", b"")
    to_write = [{n: baton.Tensor(HEAD[n]["dtype"], HEAD[n]["shape"], memoryview(a.tobytes())) for n, a in x.items()}
                for x in (step, new)]
    baton.delta.write(os.path.join(place, "adapter_model.safetensors"), *to_write, base_version=said["digest"])
    status, found = s.ask("POST", LOAD, {"lora_name": "chain", "lora_path": place, "delta": True,
                                         "if_digest": said["digest"]})
    same(status, 200, found)
    same(load(s, "all", whole(new), "shm")["digest"], found["digest"], "by a file of the client")
    refused(s, lambda: s.ask("POST", LOAD, {"lora_name": "all", "lora_path": place, "delta": True, "if_revision": 1,
                                            "if_digest": found["digest"]}), 409, "precondition_failed", "/if_revision", "not 1")
    refused(s, lambda: s.ask("POST", LOAD, {"lora_name": "chain", "lora_path": place, "delta": True,
                                            "if_digest": found["digest"], "timeout_s": 0}), 409, "precondition_failed",
            "/lora_path", said["digest"], found["digest"])
    return new, found


def wrong(s, step, said):
    new = changed(step)
    name = next(n for n in step if (step[n] != new[n]).any())
    parts = [p for n in step if (step[n] != new[n]).any() or n == name for p in parts_of(
        n, HEAD[n]["dtype"], HEAD[n]["shape"], step[n], new[n], "gap")]
    at = {"delta": True, "if_digest": said["digest"]}
    other = said["revision"] - 1
    few = sorted(parts, key=lambda p: len(p[3]))[:2]  # a body may be refused before it is read
    for via in VIAS:
        refused(s, lambda v=via: send(s, "chain", few, v, **at, if_revision=other), 409, "precondition_failed",
                "/if_revision", f"revision {said['revision']}", f"not {other}")
        refused(s, lambda v=via: send(s, "chain", few, v, delta=True, if_digest="0" * 64), 409, "precondition_failed",
                "/if_digest", said["digest"], "0" * 64)
        refused(s, lambda v=via: send(s, "none", few, v, **at), 409, "precondition_failed", "/if_digest", "(none)")
        refused(s, lambda v=via: send(s, "chain", few, v, delta=True), 400, "bad_request", "/delta", "if_digest")
        refused(s, lambda v=via: send(s, "chain", few, v, delta=True, if_revision=said["revision"]), 400, "bad_request", "/delta",
                "begin anew")
        refused(s, lambda v=via: send(s, "chain", few, v, {"format": "pt"}, allow_partial=True), 400, "bad_request", "/names/0",
                '"delta": true')
        refused(s, lambda v=via: send(s, "chain", [("no.such#xor", "U16", [1], b"xx")], v, **at), 422, "manifest_mismatch",
                "/names/0", "no.such")
    # Only one of the file and the load is a delta.
    for via in ("body", "path"):
        refused(s, lambda v=via: send(s, "chain", few, v, delta_metadata("x")), 400, "bad_request",
                "/lora_path" if via == "path" else None, '"delta": true')
        refused(s, lambda v=via: send(s, "chain", few, v, delta_metadata("x"), **at), 409, "precondition_failed",
                "/lora_path" if via == "path" else None, "'x'", said["digest"])
    refused(s, lambda: send(s, "chain", parts, "path", {"format": "pt"}, **at), 400, "bad_request", "/lora_path", "no delta")
    # A flipped bit: of a part that has a checksum, of one whose tensor has one, of a frame, of a position.
    i = next(i for i, p in enumerate(parts) if p[0].endswith("#xor"))
    bad = [*parts[:i], (*parts[i][:3], bytes([parts[i][3][0] ^ 1]) + parts[i][3][1:]), *parts[i + 1:]]
    sums = {n: baton.checksum(a.tobytes()) for n, a in new.items()}
    refused(s, lambda: send(s, "chain", bad, "body", delta_metadata(said["digest"], sums), **at), 422, "checksum_mismatch",
            None, parts[i][0].partition("#")[0])
    refused(s, lambda: send(s, "chain", bad, "shm", **at, checksums=[baton.checksum(p[3]) for p in parts]), 422,
            "checksum_mismatch", f"/checksums/{i}", parts[i][0])
    frames = packed(parts)
    for broken, word in (((*frames[i][:3], frames[i][3][:-1] + b"x"), "frame"), ((*frames[i][:3], b"x" * len(frames[i][3])), "frame")):
        refused(s, lambda b=broken: send(s, "chain", [*frames[:i], b, *frames[i + 1:]], "body", **at), 400, "bad_request",
                None, word)
    far = numpy.full(len(parts[i - 1][3]) // 2, 0xFFFF, "<u2").tobytes()
    refused(s, lambda: send(s, "chain", [*parts[:i - 1], (*parts[i - 1][:3], far), *parts[i:]], "shm", **at), 400,
            "bad_request", None, name, "beyond the tensor")
    refused(s, lambda: send(s, "chain", parts[:1], "shm", **at), 400, "bad_request", "/names/0", "no values")
    # A value that is not finite, and a config that fits another base.
    nan = [(f"{name}#index", "U32", [1], bytes(4)), (f"{name}#value", HEAD[name]["dtype"], [1], numpy.full(
        1, {"F32": 0x7FC00000, "F16": 0x7E00, "BF16": 0x7FC0}[HEAD[name]["dtype"]], WIDTH[HEAD[name]["dtype"]]).tobytes())]
    refused(s, lambda: send(s, "chain", nan, "shm", **at), 422, "non_finite_weights", None, name)
    refused(s, lambda: send(s, "chain", parts, "shm", **at, adapter_config={**CONFIG, "r": CONFIG["r"] * 2}), 422,
            "manifest_mismatch", "/adapter_config")
    # And the right one.
    found = load(s, "chain", parts, "body", **at, metadata=delta_metadata(said["digest"], sums))
    same(load(s, "all", whole(new), "path")["digest"], found["digest"], "the right one after wrong ones")
    scaled = {**CONFIG, "lora_alpha": CONFIG["lora_alpha"] * 2}
    again = load(s, "chain", nan[:1] + [(nan[1][0], nan[1][1], nan[1][2], new[name][:1].tobytes())], "shm", delta=True,
                 if_digest=found["digest"], adapter_config=scaled)
    same(again["digest"], load(s, "all", whole(new), "shm", adapter_config=scaled)["digest"], "another config alone")


def meanwhile(s):
    """What the base is decides the end, too: of many deltas of one revision the first to end is the next."""
    at = load(s, "many", whole(FIRST), "body")
    name, answers = min(FIRST, key=lambda n: FIRST[n].size), []
    news = [{**FIRST, name: FIRST[name] ^ (numpy.arange(FIRST[name].size) == k).astype(FIRST[name].dtype)} for k in range(8)]
    threads = [threading.Thread(target=lambda n=n: answers.append((n, send(
        s, "many", delta_of(FIRST, n), "body", delta=True, if_digest=at["digest"])))) for n in news]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    good = [(n, said) for n, (status, said) in answers if status == 200]
    bad = [said["error"]["param"] for _, (status, said) in answers if status == 409]
    same((len(good), bad, good[0][1]["revision"]), (1, ["/if_digest"] * 7, at["revision"] + 1), answers)
    same(load(s, "all", whole(good[0][0]), "shm")["digest"], good[0][1]["digest"], "the one that won")
    load(s, "gone", whole(FIRST), "body")
    s.post("/v1/unload_lora_adapter", {"lora_name": "gone"})
    refused(s, lambda: send(s, "gone", whole(FIRST)[:1], "body", delta=True, if_digest=at["digest"]), 409, "precondition_failed",
            "/if_digest", "(none)")


def fronts(s):
    with Server(BATON, LOG, "--upstream", s.url) as front:
        for where, body, kind in ((LOAD, {"lora_name": "chain", "lora_path": SHOUT, "delta": True, "if_digest": "0" * 64}, None),
                                  (LOAD, {"lora_name": "chain", "lora_path": SHOUT, "if_digest": "0" * 64}, None),
                                  (f"{LOAD}?lora_name=chain&adapter_config=%7B%7D&delta=true&if_digest={'0' * 64}",
                                   file_of(whole(FIRST)), "application/vnd.safetensors"),
                                  (f"{LOAD}?lora_name=chain&adapter_config=%7B%7D",
                                   file_of(whole(FIRST), delta_metadata("x")), "application/vnd.safetensors")):
            before = state(s)
            status, said = front.ask("POST", where, body, {"Content-Type": kind} if kind else None)
            same((status, said["error"]["code"]), (409, "unsupported_in_proxy_mode"), said)
            same(state(s), before, said)


with Server(BATON, LOG, "--model", MODEL, "--weights", f"{MODEL}/checkpoints/step-01500.safetensors", "--allow-path", MODEL,
            "--allow-path", FOLDER) as server:
    wrong(server, *by_the_client(server, *chains(server)))
    meanwhile(server)
    fronts(server)
print(f"ok: {n_checks} checks")
