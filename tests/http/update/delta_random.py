"""Random models of every dtype, and chains of random deltas in every encoding, by every source: what is served is, bit for bit,
what the whole push would have brought; after a delta with a flipped bit, that or what was served before.
Usage: delta_random.py BATON CLIENT_DIR FOLDER SEED N_MODELS"""

import json
import os
import sys

import numpy

BATON, CLIENT, FOLDER, SEED, N_MODELS = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
sys.path.insert(0, CLIENT)
import baton  # noqa: E402
import baton.host  # noqa: E402
from baton.tensors import DTYPES  # noqa: E402
from delta_parts import KINDS, packed, parts_of  # noqa: E402
from fleet_world import WAIT_S, Server  # noqa: E402

CHAIN_MAX, SHARES = 5, (0, 0, 0.0001, 0.01, 0.3, 1)
SHAPES = ((), (1,), (7,), (0, 3), (5, 13), (64, 65), (3, 1, 100), (70001,), (2, 66000))
n_checks = n_taken = 0


class Model:
    """name -> [dtype, shape, words]"""

    def __init__(self, draw):
        dtypes = draw.permutation(list(DTYPES)).tolist()[:draw.integers(1, len(DTYPES) + 1)]
        self.draw, self.tensors = draw, {}
        for i, dtype in enumerate(dtypes):
            shape = SHAPES[draw.integers(len(SHAPES))]
            self.tensors[f"layers.{i}.weight"] = (dtype, shape, self.random_words(dtype, shape))
        if not any(len(words) for _, _, words in self.tensors.values()):
            self.tensors["one"] = ("U8", (1,), self.random_words("U8", (1,)))

    def random_words(self, dtype, shape):
        width = DTYPES[dtype][0]
        return numpy.frombuffer(self.draw.bytes(int(numpy.prod(shape, dtype=int)) * width), f"<u{width}")

    def stepped(self):
        """The next version."""
        out = {}
        for name, (dtype, shape, words) in self.tensors.items():
            where = self.draw.random(len(words)) < self.draw.choice(SHARES)
            out[name] = (dtype, shape, numpy.where(where, self.random_words(dtype, shape), words).astype(words.dtype))
        return out

    def delta(self, new):
        parts, draw = [], self.draw
        for name, (dtype, shape, words) in self.tensors.items():
            if (words == new[name][2]).all() and draw.random() < 0.8 or len(words) == 0:
                continue
            index = draw.choice(["U32", "I32", "U64", "I64"])
            made = parts_of(name, dtype, shape, words, new[name][2], draw.choice(KINDS), index)
            parts += packed(made) if draw.random() < 0.5 else made
        if not parts:  # there is no update of nothing
            name = next(n for n, (_, _, words) in self.tensors.items() if len(words))
            parts = [(name, *new[name][:2], new[name][2].tobytes())]
        return parts


def tensors_of(parts):
    return [(name, baton.Tensor(dtype, shape, data)) for name, dtype, shape, data in parts]


def sums_of(tensors):
    return {name: baton.checksum(words.tobytes()) for name, (_, _, words) in tensors.items()}


def served(s):
    said = s.ask("GET", "/v1/weights")[1]
    return said["weight_version"], {t["name"]: t["checksum"] for t in said["tensors"]}


def post(s, path, body):
    status, said = s.ask("POST", path, body)
    if status != 200:
        raise baton.BatonError(said["error"]["message"], status=status)
    return said


def save(parts, metadata):
    path = os.path.join(FOLDER, "random.safetensors")
    head, _ = baton.host.safetensors_head(tensors_of(parts), False)
    text = json.dumps({"__metadata__": metadata, **json.loads(head[8:])}).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(p[3] for p in parts))
    return path


def send(s, parts, via, members, base):
    if via == "path":
        path = save(parts, {"format": "baton-delta-1", "base_version": base})
        return post(s, "/v1/update_weights", {**members, "path": path})
    by = {"body": baton.host.by_body, "shm": baton.host.by_shm}[via]
    with by(tensors_of(parts), False, WAIT_S) as ask:
        return ask(s.url, members, None)


def push(s, draw, parts, base, label, sums):
    """In one session, in one request or more, each by another source."""
    update = post(s, "/v1/update_weights/start", {"base_version": base, "delta": True, "weight_version": label})["update_id"]
    names = list(dict.fromkeys(p[0].partition("#")[0] for p in parts))
    try:
        while names:
            n = draw.integers(1, len(names) + 1)
            share, names = names[:n], names[n:]
            chunk = [p for p in parts if p[0].partition("#")[0] in share]
            send(s, chunk, draw.choice(["body", "shm", "path"]), {"update_id": update}, base)
        post(s, "/v1/update_weights/finish", {"update_id": update, "checksums": sums})
    except baton.BatonError:
        s.ask("POST", "/v1/update_weights/abort", {"update_id": update})
        raise


def flipped(draw, parts):
    """One bit of one part is another."""
    out = [list(p) for p in parts]
    part = out[draw.integers(len(out))]
    if part[3]:
        data = bytearray(part[3])
        data[draw.integers(len(data))] ^= 1 << int(draw.integers(8))
        part[3] = bytes(data)
    return out


def check(s, label, tensors, about):
    global n_checks
    n_checks += 1
    found, wanted = served(s), (label, sums_of(tensors))
    wrong = [name for name in wanted[1] if found[1].get(name) != wanted[1][name]]
    assert found == wanted, f"{about}: {found[0]} instead of {label} is served; other bytes: {wrong}"


def chain(seed):
    global n_taken
    draw = numpy.random.default_rng(seed)
    model = Model(draw)
    whole = [(name, dtype, shape, words.tobytes()) for name, (dtype, shape, words) in model.tensors.items()]
    path = save(whole, {})
    with Server(BATON, os.path.join(FOLDER, "random.log"), "--engine", "none", "--manifest", path, "--allow-path", FOLDER,
                "--non-finite", "allow") as s:
        s.post("/v1/update_weights", {"path": path, "weight_version": "v0"})
        for k in range(int(draw.integers(1, CHAIN_MAX + 1))):
            new, about = model.stepped(), f"seed {seed}, delta {k}"
            parts, sums = model.delta(new), sums_of(new)
            base, label, bad = f"v{k}", f"v{k + 1}", f"bad{k}"
            try:
                push(s, draw, flipped(draw, parts), base, bad, sums)
                n_taken += 1  # the bit meant nothing
                check(s, bad, new, f"{about}, with a flipped bit")
                s.post("/v1/weights/label", {"weight_version": label})
            except baton.BatonError as e:
                assert e.status in (400, 422), f"{about}, with a flipped bit: {e.status} {e}"
                check(s, base, model.tensors, f"{about}, refused")
                push(s, draw, parts, base, label, sums if draw.random() < 0.5 else {})
            check(s, label, new, about)
            model.tensors = new


for number in range(SEED, SEED + N_MODELS):
    chain(number)
print(f"{n_taken} deltas with a flipped bit were the same")
print(f"ok: {n_checks} checks")
