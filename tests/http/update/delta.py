"""Updates whose tensors are parts of a delta. Whatever kind and source, the served bytes are those of the whole push; and
after whatever is refused, those of before.
Usage: delta.py BATON CLIENT_DIR FOLDER TESTS [engine] [OPTION...]: options of the servers that have weights, and whether these
have an engine"""

import contextlib
import hashlib
import json
import os
import sys
import threading

import numpy

BATON, CLIENT, FOLDER, TESTS, *OPTIONS = sys.argv[1:]
ENGINE = OPTIONS[:1] == ["engine"] and OPTIONS.pop(0)
N_RANKS = 1 if "sharded" in OPTIONS else "".join(OPTIONS).count("cuda:") or 1  # each GPU compares what it made
sys.path.insert(0, CLIENT)
import baton  # noqa: E402
import baton.host  # noqa: E402
from delta_parts import compressed, packed, parts_of  # noqa: E402
from fleet_world import WAIT_S, Server, until  # noqa: E402

LOG = os.path.join(FOLDER, "delta.log")
MODEL = os.path.join(TESTS, "fixtures/kjv-qwen3-1m")
EMBED, NORM = "model.embed_tokens.weight", "model.norm.weight"
VIAS = ("body", "shm", "path")
n_checks = 0


def same(found, wanted, about):
    global n_checks
    n_checks += 1
    assert found == wanted, f"{about}: {found!r}, wanted {wanted!r}"


def read(path):
    """{name: (shape, array of u16)}, of BF16."""
    with open(path, "rb") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    head.pop("__metadata__", None)
    return {n: (t["shape"], numpy.frombuffer(data[slice(*t["data_offsets"])], "<u2")) for n, t in head.items()}


STEP = {n: read(f"{MODEL}/checkpoints/step-{n:05}.safetensors") for n in (0, 100, 1500)}


def some_changed(step, seed, share=0.01):
    """A bf16 step up or down of a part of the elements; the norms stay."""
    draw = numpy.random.default_rng(seed)
    out = {}
    for name, (shape, old) in step.items():
        where = draw.random(old.size) < share if len(shape) > 1 else numpy.zeros(old.size, bool)
        out[name] = (shape, old + (where * draw.choice([1, 0xFFFF], old.size)).astype("<u2"))
    return out


def delta_of(old, new, kind="gap", zst=False, names=None):
    parts = []
    for name, (shape, before) in old.items():
        after = new[name][1]
        if names is None and (before == after).all() or names is not None and name not in names:
            continue
        made = parts_of(name, "BF16", shape, before, after, kind, "I32")
        parts += packed(made) if zst else made
    return parts


def tensors_of(parts):
    return {n: (dtype, shape, memoryview(data)) for n, dtype, shape, data in parts}


def all_of(step):
    return {n: ("BF16", shape, memoryview(a.tobytes())) for n, (shape, a) in step.items()}


def delta_file(parts, base, version=None, form="baton-delta-1", name="delta.safetensors", sums=()):
    head, at = {"__metadata__": {"format": form, "base_version": base, "note": "x" * 1000,
                                 **{f"checksum.{n}": v for n, v in dict(sums).items()}}}, 0
    if version:
        head["__metadata__"]["version"] = version
    for part, dtype, shape, data in parts:
        head[part] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head).encode()
    path = os.path.join(FOLDER, name)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(p[3] for p in parts))
    return path


def send(s, tensors, via, checksums=False, **members):
    """One request, with any members."""
    named = tensors if isinstance(tensors, str) else [(n, baton.Tensor(*t)) for n, t in tensors.items()]
    by = {"body": baton.host.by_body, "shm": baton.host.by_shm}
    with baton.host.by_path(named, WAIT_S) if via == "path" else by[via](named, checksums, WAIT_S) as ask:
        return ask(s.url, members, None)


def push(s, parts, via, base, label, **more):
    tensors = delta_file(parts, base) if via == "path" else tensors_of(parts)
    return send(s, tensors, via, weight_version=label, base_version=base, delta=True, **more)


def refused(call, status, code, *words):
    """Returns the error."""
    try:
        said = call()
    except baton.BatonError as e:
        same((e.status, e.code), (status, code), f"{words}: {e}")
        for word in words:
            same(word in str(e), True, f"{word!r} in {e}")
        return e
    raise AssertionError(f"{words}: not refused: {said}")


def served(s):
    said = s.post("/v1/weights/check", {"action": "checksum"})
    sums = said["checksums"]
    return {n: v if isinstance(v, str) else v["sha256"] for n, v in sums.items()}


def sha(step):
    return {n: hashlib.sha256(a.tobytes()).hexdigest() for n, (_, a) in step.items()}


def serves(s, step, label, about):
    same(served(s), sha(step), about)
    same(s.status()["weights"]["weight_version"], label, about)


def serve(*options, port=0):
    model = ("--model", MODEL, "--weights", "none") if ENGINE else (
        "--engine", "none", "--manifest", f"{MODEL}/checkpoints/step-00000.safetensors")
    return Server(BATON, LOG, *model, "--allow-path", FOLDER, *OPTIONS, *options, port=port)


def whole(s, step, label):
    return send(s, all_of(step), "shm", weight_version=label)


# every kind by every source, each on top of the one before

def every_kind():
    with serve() as s:
        sent = whole(s, STEP[0], "step-0")["nbytes_sent"]
        step, label, seed = STEP[0], "step-0", 0
        for kind in ("gap", "xor", "bitmap", "index", "range", "whole"):
            for via in VIAS:
                zst = seed % 2 == 1
                following = some_changed(step, seed)
                parts = delta_of(step, following, kind, zst)
                said = push(s, parts, via, label, f"s{seed}", checksums=seed % 3 == 0)
                about = f"{kind} by {via}, zst {zst}"
                n = len({p[0].partition("#")[0] for p in parts})
                same((said["delta"], said["base_version"], said["partial"], said["phase"]), (True, label, True, "committed"),
                     about)
                same(said["n_tensors_done"], n, about)
                same(said["nbytes_sent"], sum(len(p[3]) for p in parts), about)
                same(said["nbytes_done"], sum(a.nbytes for n, (_, a) in following.items()
                                              if any(p[0].partition("#")[0] == n for p in parts)), about)
                sent += said["nbytes_sent"]
                record = s.status()["recent_updates"][-1]
                same((record["delta"], record["base_version"], record["nbytes"], record["nbytes_made"]),
                     (True, label, said["nbytes_sent"], said["nbytes_done"]), about)
                step, label, seed = following, f"s{seed}", seed + 1
                serves(s, step, label, about)
        # A large change, and back.
        sent += push(s, delta_of(step, STEP[1500], "xor", True), "body", label, "step-1500")["nbytes_sent"]
        serves(s, STEP[1500], "step-1500", "all of it")
        # The file names its version; the request's counts.
        path = delta_file(delta_of(STEP[1500], STEP[100], "xor"), "step-1500", "from-file")
        said = s.post("/v1/update_weights", {"path": path, "base_version": "step-1500", "delta": True})
        same(said["weight_version"], "from-file", "the file's version")
        sent += said["nbytes_sent"]
        serves(s, STEP[100], "from-file", "by path")
        received = s.ask("GET", "/metrics")[1].split("\nbaton_updates_received_bytes_total ")[1].split("\n")[0]
        same(float(received), sent, "the metric counts what was sent")


def steps_with_the_same_names():
    """As trainers' steps: the names and dtypes stay, and the shapes do not. What is wrong with these is said as ever."""
    def flipped(step, seed, share):
        draw = numpy.random.default_rng(seed)
        return {n: (shape, old ^ (draw.random(old.size) < share).astype("<u2")) for n, (shape, old) in step.items()}

    with serve() as s:
        whole(s, STEP[0], "0")
        step, names = STEP[0], set(STEP[0])
        for k in range(6):
            following = flipped(step, k, (0.01, 0.02, 0.3)[k % 3])
            good = push(s, delta_of(step, following, names=names), "shm", str(k), str(k + 1), checksums=k % 2 == 0)
            same(good["n_tensors_done"], len(names), "all are named")
            step = following
            serves(s, step, str(k + 1), f"step {k + 1}")
        following = flipped(step, 6, 0.01)
        parts = delta_of(step, following, names=names)
        i = [p[0] for p in parts].index(f"{EMBED}#gap")
        name, dtype, (n,), data = parts[i]
        bad = [*parts[:i], (name, dtype, [n, 1], data), *parts[i + 1:]]
        e = refused(lambda: push(s, bad, "shm", "6", "7"), 422, "manifest_mismatch", name, f"[{n}, 1], and needs [n]")
        same(e.param, f"/shapes/{i}", str(e))
        few = [*parts[:i], (name, dtype, [n - 1], data[:-2]), *parts[i + 1:]]
        refused(lambda: push(s, few, "shm", "6", "7"), 400, "bad_request", EMBED)
        serves(s, step, "6", "after wrong shapes")
        push(s, parts, "shm", "6", "7")
        serves(s, following, "7", "and the right ones")


# what is refused; the served bytes stay

def wrong_bases():
    one, two = some_changed(STEP[0], 1), some_changed(STEP[0], 2)
    parts = delta_of(STEP[0], one)
    with serve() as s:
        refused(lambda: push(s, parts, "body", "step-0", "one"), 409, "precondition_failed", "step-0", "no weights")
        whole(s, STEP[0], "step-0")
        for via in VIAS:
            refused(lambda v=via: push(s, parts, v, "step-7", "one"), 409, "precondition_failed", "'step-7'", "'step-0'",
                    "whole model")
        # The file is of another base than the request says, or no delta.
        path = delta_file(parts, "step-9")
        refused(lambda: send(s, path, "path", base_version="step-0", delta=True), 409, "precondition_failed",
                "'step-9'", "'step-0'")
        path = delta_file(parts, "step-0", form="pt")
        refused(lambda: send(s, path, "path", base_version="step-0", delta=True), 400, "bad_request",
                "no delta")
        path = f"{FOLDER}/whole.safetensors"
        with open(f"{MODEL}/checkpoints/step-00100.safetensors", "rb") as f, open(path, "wb") as to:
            to.write(f.read())
        refused(lambda: send(s, path, "path", base_version="step-0", delta=True), 400, "bad_request",
                "no delta")
        # A file that says it is a delta is none of an update that is not, also if its tensors are whole.
        for kind in ("gap", "whole"):
            path = delta_file(delta_of(STEP[0], one, kind), "step-9")
            for more in ({}, {"base_version": "step-0"}):
                refused(lambda m=more: send(s, path, "path", partial=True, **m), 400, "bad_request", "'step-9'", '"delta"')
                with open(path, "rb") as f:
                    status, said = s.ask("POST", "/v1/update_weights?partial=true" + (
                        "&base_version=step-0" if more else ""), f.read(),
                        headers={"Content-Type": "application/vnd.safetensors"})
                same((status, said["error"]["code"], "'step-9'" in said["error"]["message"]), (400, "bad_request", True), said)
            start = s.post("/v1/update_weights/start", {"partial": True})
            refused(lambda u=start: send(s, path, "path", update_id=u["update_id"]), 400, "bad_request", "'step-9'")
            s.post("/v1/update_weights/abort", {"update_id": start["update_id"]})
        refused(lambda: push(s, parts, "body", "step-0", "one", convert=True), 400, "bad_request", "convert")
        refused(lambda: send(s, tensors_of(parts), "shm", delta=True), 400, "bad_request", "base_version")
        refused(lambda: send(s, tensors_of(parts), "shm"), 422, "manifest_mismatch", "#gap", '"delta": true')
        # Members that say two things.
        members = {"base_version": "step-0", "delta": True, "partial": False}
        with open(delta_file(parts, "step-0"), "rb") as f:
            body = f.read()
        for where, said in (("/start", members), ("", {**members, "path": path}), (
                "?delta=true&base_version=step-0&partial=false", body)):
            status, said = s.ask("POST", f"/v1/update_weights{where}", said,
                                 headers={"Content-Type": "application/vnd.safetensors"} if where[:1] == "?" else None)
            error = said["error"]
            same((status, error["param"], "delta is true" in error["message"]), (400, "/partial", True), said)
        serves(s, STEP[0], "step-0", "after refusals")

        # A precondition of any update.
        refused(lambda: send(s, all_of(two), "shm", weight_version="two", base_version="x"), 409,
                "precondition_failed", "'x'", "'step-0'")
        said = send(s, all_of(two), "shm", weight_version="two", base_version="step-0")
        same((said["delta"], said["partial"], said["base_version"]), (False, False, "step-0"), "a whole update on a base")
        serves(s, two, "two", "a whole update")

        # A session keeps to the bytes that it was started for, whatever their name is by then.
        start = s.post("/v1/update_weights/start", {"base_version": "two", "delta": True, "weight_version": "three"})
        s.post("/v1/weights/label", {"weight_version": "renamed"})
        three = some_changed(two, 3)
        send(s, tensors_of(delta_of(two, three)), "shm", update_id=start["update_id"])
        s.post("/v1/weights/label", {"weight_version": "again"})
        s.post("/v1/update_weights/finish", {"update_id": start["update_id"]})
        serves(s, three, "three", "renamed meanwhile")
        # Another version under the old name: the sums of the finish find it.
        whole(s, one, "two")
        start = s.post("/v1/update_weights/start", {"base_version": "two", "delta": True, "weight_version": "four"})
        send(s, tensors_of(delta_of(two, three, names=[EMBED])), "shm", update_id=start["update_id"])
        status, said = s.ask("POST", "/v1/update_weights/finish", {
            "update_id": start["update_id"], "checksums": {EMBED: baton.checksum(three[EMBED][1].tobytes())}})
        same((status, said["error"]["code"]), (422, "checksum_mismatch"), "another version under its name")
        serves(s, one, "two", "another version under its name")


def a_base_of_another_update():
    """A label that was given to other bytes is told from the base by the update that made it."""
    one, two = some_changed(STEP[0], 1), some_changed(STEP[0], 2)
    parts, state = delta_of(STEP[0], one), f"{FOLDER}/state-of-base"
    with serve("--state-dir", state, "--snapshot", 1) as s:
        mine = whole(s, STEP[0], "step-0")["update_id"]
        theirs = whole(s, two, "other")["update_id"]
        s.post("/v1/weights/label", {"weight_version": "step-0"})
        members = {"base_version": "step-0", "delta": True, "base_update_id": mine}
        start = s.ask("POST", "/v1/update_weights/start", members)
        path = s.ask("POST", "/v1/update_weights", {"path": delta_file(parts, "step-0"), **members})
        with open(f"{FOLDER}/delta.safetensors", "rb") as f:
            body = s.ask("POST", f"/v1/update_weights?delta=true&base_version=step-0&base_update_id={mine}", f.read(),
                         headers={"Content-Type": "application/vnd.safetensors"})
        for status, said in (start, path, body):
            error = said["error"]
            same((status, error["code"], error["param"]), (409, "precondition_failed", "/base_update_id"), said)
            same((mine in error["message"], theirs in error["message"]), (True, True), error)
        serves(s, two, "step-0", "after refusals")
        for more in ({}, {"update_id": "upd-x"}):
            status, said = s.ask("POST", "/v1/update_weights" + ("" if more else "/start"), {
                **more, **({"path": "/x", "base_update_id": mine} if more else {"base_update_id": mine})})
            same((status, said["error"]["param"]), (400, "/base_update_id"), said)
        said = push(s, delta_of(two, one), "shm", "step-0", "one", base_update_id=theirs)
        serves(s, one, "one", "the right base")
        until("the snapshot is written", lambda: (s.status()["state"]["snapshots"]["newest"] or {}).get("serial") == 3)
        s.kill()
    with serve("--state-dir", state, "--snapshot", 1) as s:
        push(s, delta_of(one, two), "body", "one", "two", base_update_id=said["update_id"])
        serves(s, two, "two", "the update that made the base is known after a restart")


def committed_meanwhile():
    """Two updates of one request build on the same version, and the first is not received yet when the second comes."""
    one, two = some_changed(STEP[0], 1), some_changed(STEP[0], 2)
    with serve() as s:
        whole(s, STEP[0], "step-0")
        path = delta_file(delta_of(STEP[0], one), "step-0")
        outcomes = []

        def ask():
            outcomes.append(s.ask("POST", "/v1/update_weights", {"path": path, "base_version": "step-0", "delta": True,
                                                                 "weight_version": "one"}))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        good = [o for o in outcomes if o[0] == 200]
        bad = [o[1]["error"]["code"] for o in outcomes if o[0] != 200]
        # the label makes equal requests one update, which is answered to each that comes after it
        same({o[1]["serial"] for o in good}, {2}, outcomes)
        same(set(bad) <= {"conflict", "precondition_failed"}, True, outcomes)
        serves(s, one, "one", "eight at once")
        path = delta_file(delta_of(STEP[0], two), "step-0", name="late.safetensors")
        refused(lambda: send(s, path, "path", base_version="step-0", delta=True), 409,
                "precondition_failed", "'step-0'", "'one'")
        serves(s, one, "one", "too late")


def repeated_and_broken():
    one = some_changed(STEP[0], 1)
    sums = {n: baton.checksum(a.tobytes()) for n, (_, a) in one.items()}
    parts = delta_of(STEP[0], one)
    half = len(parts) // 4 * 2
    with serve() as s:
        whole(s, STEP[0], "step-0")

        def start():
            return s.post("/v1/update_weights/start", {"base_version": "step-0", "delta": True,
                                                       "weight_version": "one"})["update_id"]

        # A chunk twice, by its id and without; the second half; the proof.
        update = start()
        chunk = lambda p, **more: send(s, tensors_of(p), "shm", update_id=update, **more)  # noqa: E731
        chunk(parts[:half], chunk_id="a")
        same(chunk(parts[:half], chunk_id="a")["n_tensors_done"], half // 2, "the same chunk")
        refused(lambda: chunk(parts[half:], chunk_id="a"), 409, "precondition_failed", "chunk 'a'")
        refused(lambda: chunk(parts[:half]), 409, "precondition_failed", "already")
        refused(lambda: chunk(parts[:half], partial=True), 400, "bad_request", "partial")
        refused(lambda: chunk(parts[:half], delta=True), 400, "bad_request", "delta")
        refused(lambda: chunk([p for p in parts[half:] if p[0].endswith("#gap")]), 400, "bad_request", "#gap and no values")
        chunk(parts[half:])
        s.post("/v1/update_weights/finish", {"update_id": update, "checksums": sums})
        serves(s, one, "one", "in two chunks")
        whole(s, STEP[0], "step-0")

        # A flipped bit of the values: the sum of the part, or of the tensor, finds it.
        name, dtype, shape, data = parts[1]
        flipped = [parts[0], (name, dtype, shape, bytes([data[0] ^ 1]) + data[1:])] + parts[2:]
        path = delta_file(flipped, "step-0")
        names, dtypes = [p[0] for p in parts], [p[1] for p in parts]
        status, said = s.ask("POST", "/v1/update_weights", {
            "path": path, "base_version": "step-0", "delta": True, "names": names, "dtypes": dtypes,
            "shapes": [p[2] for p in parts], "checksums": [baton.checksum(p[3]) for p in parts]})
        same((status, said["error"]["code"], said["error"]["param"]), (422, "checksum_mismatch", "/checksums/1"), said)
        same(name in said["error"]["message"], True, said)
        serves(s, STEP[0], "step-0", "a flipped bit, by the part's sum")
        update = start()
        chunk(flipped)
        status, said = s.ask("POST", "/v1/update_weights/finish", {"update_id": update, "checksums": sums})
        same((status, said["error"]["code"]), (422, "checksum_mismatch"), said)
        serves(s, STEP[0], "step-0", "a flipped bit, by the tensor's sum")

        # A flipped bit of a frame, a cut frame, a bomb; a body that is cut.
        frames = delta_of(STEP[0], one, zst=True)
        for about, change in (("damaged", lambda d: d[:20] + bytes([d[20] ^ 0x55]) + d[21:]), ("cut", lambda d: d[:-7]),
                              ("do not fit", lambda d: compressed(bytes(1 << 24)))):
            name, dtype, shape, data = frames[1]
            data = change(data)
            bad = [frames[0], (name, dtype, [len(data)], data)] + frames[2:]
            for via in VIAS:
                with contextlib.suppress(baton.BatonError):
                    push(s, bad, via, "step-0", "bad")
                    raise AssertionError(f"{about} by {via} is taken")
            if about != "damaged":  # which may only show in what it makes
                refused(lambda b=bad: push(s, b, "body", "step-0", "bad"), 400, "bad_request", about,
                        f"'{name.partition('#')[0]}'")
            serves(s, STEP[0], "step-0", about)
        with open(delta_file(parts, "step-0"), "rb") as f:
            body = f.read()
        url = "/v1/update_weights?delta=true&base_version=step-0"
        kind = {"Content-Type": "application/vnd.safetensors"}
        same(s.ask("POST", url, body[:-100], headers=kind)[0], 400, "a body that is cut")
        # Positions: beyond the tensor, twice.
        for dtype, positions, says in (("I32", [5, 10 ** 6], "beyond"), ("U32", [7, 7], "not above"),
                                       ("I32", [-1, 5], "beyond"), ("I64", [-1, 5], "beyond")):
            data = numpy.array(positions, "<" + dtype.lower()[0] + str(int(dtype[1:]) // 8)).tobytes()
            bad = [(f"{EMBED}#index", dtype, [2], data), (f"{EMBED}#value", "BF16", [2], bytes(4))]
            refused(lambda b=bad: push(s, b, "body", "step-0", "bad"), 400, "bad_request", says, f"'{EMBED}'")
        # Values that are not finite, made by a delta.
        bad = [(f"{NORM}#index", "U32", [1], bytes(4)), (f"{NORM}#value", "U16", [1], b"\x80\x7f")]
        e = refused(lambda: push(s, parts[:2] + bad, "body", "step-0", "bad"), 422, "non_finite_weights", NORM)
        same(e.param, "/names/3", "the field of a tensor's error is that of its values")
        serves(s, STEP[0], "step-0", "after all of it")
        push(s, parts, "body", "step-0", "one")
        serves(s, one, "one", "the right one after wrong ones")


def sums_of_the_file():
    """A file says the checksums of what it makes; what it says of other tensors is not looked at."""
    one = some_changed(STEP[0], 1)
    sums = {n: baton.checksum(a.tobytes()) for n, (_, a) in one.items()}
    kind = {"Content-Type": "application/vnd.safetensors"}
    names = sorted({p[0].partition("#")[0] for p in delta_of(STEP[0], one)})
    with serve() as s:
        for how in ("gap", "whole"):
            parts = delta_of(STEP[0], one, how, zst=True)
            for name in (names[0], names[-1]):
                whole(s, STEP[0], "step-0")
                path = delta_file(parts, "step-0", "one", sums={**sums, name: "0" * 32})
                members = {"path": path, "base_version": "step-0", "delta": True}
                said = [s.ask("POST", "/v1/update_weights", members)]
                with open(path, "rb") as f:
                    said.append(s.ask("POST", "/v1/update_weights?delta=true&base_version=step-0", f.read(), headers=kind))
                for status, answer in said:
                    same(status, 422, answer)
                    error = answer["error"]
                    same((error["code"], f"'{name}'" in error["message"]), ("checksum_mismatch", True), answer)
                    serves(s, STEP[0], "step-0", "a wrong checksum in the file")
            refused(lambda p=parts: send(s, delta_file(p, "step-0", sums={NORM: "1"}), "path", base_version="step-0",
                                         delta=True), 400, "bad_request", f"checksum.{NORM}")
            said = send(s, delta_file(parts, "step-0", sums=sums), "path", base_version="step-0", delta=True,
                        weight_version="one")
            same(said["n_checksums"], len(names) * N_RANKS, "each was compared")
            serves(s, one, "one", "the right checksums")
        # In two files of a directory, each with its own.
        parts, folder = delta_of(STEP[0], one), f"{FOLDER}/two"
        os.makedirs(folder)
        half = len(parts) // 4 * 2
        where = {p[0]: f"{int(k >= half)}.safetensors" for k, p in enumerate(parts)}
        with open(f"{folder}/model.safetensors.index.json", "w", encoding="utf-8") as f:
            json.dump({"weight_map": where}, f)
        for wrong in (True, False):
            whole(s, STEP[0], "step-0")
            for k, share in enumerate((parts[:half], parts[half:])):
                mine = {p[0].partition("#")[0] for p in share}
                given = {n: "0" * 32 if wrong and n == names[-1] else sums[n] for n in mine}
                delta_file(share, "step-0", "one", name=f"two/{k}.safetensors", sums=given)
            members = {"path": folder, "base_version": "step-0", "delta": True}
            status, said = s.ask("POST", "/v1/update_weights", members)
            same((status, said.get("n_checksums")), (422, None) if wrong else (200, len(names) * N_RANKS), said)
            serves(s, STEP[0] if wrong else one, "step-0" if wrong else "one", "two files")


def restarts():
    state = f"{FOLDER}/state"
    one = some_changed(STEP[0], 1)
    two = some_changed(one, 2)
    options = ("--state-dir", state, "--snapshot", 1)
    with serve(*options) as s:
        whole(s, STEP[0], "step-0")
        push(s, delta_of(STEP[0], one), "body", "step-0", "one")
        update = s.post("/v1/update_weights/start", {"base_version": "one", "delta": True, "weight_version": "two"})
        half = delta_of(one, two, names=[EMBED])
        send(s, tensors_of(half), "shm", update_id=update["update_id"])
        until("the snapshot is written", lambda: (s.status()["state"]["snapshots"]["newest"] or {}).get("serial") == 2)
        s.kill()
    with serve(*options) as s:
        serves(s, one, "one", "after a kill in the middle of a delta")
        push(s, delta_of(one, two, zst=True), "shm", "one", "two")
        serves(s, two, "two", "a delta on restored weights")


def fleets():
    """Without weights of its own a server has nothing to build on."""
    with Server(BATON, LOG, "--upstream", "http://127.0.0.1:9") as s:
        for path, members in (("/v1/update_weights/start", {}), ("/v1/update_weights", {"path": "/x"})):
            for more in ({"base_version": "a"}, {"base_update_id": "a"}, {"base_version": "a", "delta": True}):
                status, said = s.ask("POST", path, {**members, **more})
                same((status, said["error"]["code"]), (409, "unsupported_in_proxy_mode"), said)
                same("--stage" in said["error"]["message"], True, said)


for part in (every_kind, steps_with_the_same_names, wrong_bases, a_base_of_another_update, committed_meanwhile, repeated_and_broken, sums_of_the_file, restarts, fleets):
    part()
print(f"ok: {n_checks} checks")
