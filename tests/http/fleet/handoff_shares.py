"""A server with --stage on two GPUs, each of which keeps its share of a version (--placement sharded).

Usage: NCCL=LIBFAKENCCL NCCL_FOREIGN=LIBFAKENCCL_OF_TRAINERS
  handoff_shares.py BATON MODEL FAKE_ENGINE LIBFAKECUDA LIBFAKECUDA_OF_ENGINES WORK KIND [case...]
"""

import array
import base64
import json
import math
import os
import subprocess
import sys
import threading

from fleet_world import until
from handoff_world import BATON, FAKE, FOREIGN, MODEL, TORCH, WORK, Stage, checkpoint, content, run_cases
from nccl_trainer import Trainer

NBYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
N_RANKS = 2


def stage(kind, *options):
    """An engine on each GPU of a server that spreads a version over both."""
    options = ("--placement", "sharded", "--nccl-library", os.environ["NCCL"], "--allow-path", WORK, *options)
    return Stage(kind, kind, gpus=(0, 1), stage="cuda:0,cuda:1", options=options)


def owners(s):
    """{name: place}: each tensor is on one GPU, and each GPU has about half of the bytes."""
    lent = s.server.get("/v1/weights/handles")
    assert lent["placement"] == "sharded", lent["placement"]
    sizes = [NBYTES[dtype] * math.prod(shape) for dtype, shape in zip(lent["dtypes"], lent["shapes"])]
    found, shares = {}, {}
    for device in lent["devices"]:
        has = [slab is not None for slab in device["slab"]]
        shares[device["place"]] = sum(size for size, here in zip(sizes, has) if here)
        found.update((name, device["place"]) for name, here in zip(lent["names"], has) if here)
    assert set(found) == set(lent["names"]) and sum(shares.values()) == sum(sizes) == lent["nbytes"], shares
    assert abs(shares["cuda:0"] - shares["cuda:1"]) <= max(sizes), shares
    s.server.ask("DELETE", f"/v1/weights/handles/{lent['lease_id']}")
    return found


def split(step):
    """Columns of a checkpoint, and its bytes."""
    with open(checkpoint(step), "rb") as f:
        data = f.read()
    n = int.from_bytes(data[:8], "little")
    tensors = [(name, t) for name, t in json.loads(data[8:8 + n]).items() if name != "__metadata__"]
    tensors.sort(key=lambda t: t[1]["data_offsets"])
    return tensors, data[8 + n:]


def some_of(step, n_each):
    """A file with every n-th tensor of a checkpoint, and their names."""
    tensors, data = split(step)
    head, body = {}, b""
    for name, t in tensors[::n_each]:
        begin, end = t["data_offsets"]
        head[name] = {**t, "data_offsets": [len(body), len(body) + end - begin]}
        body += data[begin:end]
    text = json.dumps(head).encode()
    path = os.path.join(WORK, f"some-{step}.safetensors")
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + body)
    return path, set(head)


def serves(s, want):
    """These bytes, here and at the engines."""
    sums = {name: value[2] for name, value in want.items()}
    assert s.server.post("/v1/weights/check", {"action": "compare", "baseline": sums})["match"]
    assert all(tap.loaded == want for tap in s.taps)


def restored(s, want):
    """A restart brings each GPU its share again, and the engines the version."""
    before = owners(s)
    s.server.__exit__(None)
    for tap in s.taps:
        tap.loaded.clear()
    s.serve()
    until("they serve", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
    serves(s, want)
    assert owners(s) == before


def updates(kind):
    """Whole, partial and broken updates of a file, and a restart; each tensor stays with its owner."""
    with stage(kind, "--state-dir", os.path.join(WORK, "state"), "--snapshot", 1) as s:
        assert s.server.status()["stage"]["placement"] == "sharded"
        assert s.push("00100", "a")["placement"] == "sharded"
        serves(s, content("00100"))
        first = owners(s)
        path, names = some_of("01500", 3)
        s.server.post("/v1/update_weights", {"path": path, "partial": True, "weight_version": "b"})
        old, new = content("00100"), content("01500")
        mixed = {name: (new if name in names else old)[name] for name in old}
        serves(s, mixed)
        assert owners(s) == first
        rounds = [t.rounds for t in s.taps]
        started = s.server.post("/v1/update_weights/start", {"weight_version": "c"})
        needed = {room["place"]: room["needed"] for room in started["staging"]}
        whole = os.path.getsize(checkpoint("00100"))
        assert needed["cuda:0"] < 0.8 * whole and needed["cuda:1"] < 0.8 * whole, (needed, whole)
        s.server.post("/v1/update_weights", {"path": path, "update_id": started["update_id"]})
        got, said = s.server.ask("POST", "/v1/update_weights/finish", {"update_id": started["update_id"]})
        assert got == 422 and said["error"]["code"] == "incomplete_update", said
        assert [t.rounds for t in s.taps] == rounds
        serves(s, mixed)
        restored(s, mixed)


def broadcast(kind):
    """A trainer's group, of which each GPU is a rank, packed and not; a trainer that dies changes nothing."""
    with stage(kind) as s:
        for packed, step, label in ((True, "00100", "a"), (False, "01500", "b")):
            tensors, data = split(step)
            body = {"names": [name for name, _ in tensors], "dtypes": [TORCH[t["dtype"]] for _, t in tensors], "shapes": [t["shape"] for _, t in tensors],
                    "transport": "nccl", "packed": packed}
            with Trainer(os.environ["NCCL_FOREIGN"], FOREIGN) as trainer:
                unique_id = trainer.ask("mint")
                trainer.begin("join", unique_id, 1 + N_RANKS, True)
                s.server.post("/v1/weight_transfer/init", {"transport": "nccl", "world_size": 1 + N_RANKS, "rank_offset": 1,
                                                           "nccl_unique_id": base64.b64encode(unique_id).decode()})
                trainer.result()
                pieces = [data] if packed else [data[slice(*t["data_offsets"])] for _, t in tensors]
                trainer.begin("send", pieces)
                s.server.post("/v1/update_weights", {**body, "weight_version": label})
                trainer.result()
                serves(s, content(step))
                owners(s)
                if not packed:
                    break
                rounds, said = [t.rounds for t in s.taps], []
                asked = threading.Thread(target=lambda told=said, sent=body: told.append(
                    s.server.ask("POST", "/v1/update_weights", {**sent, "weight_version": "never"})))
                asked.start()
                until("it receives", lambda: s.server.status()["update"])
                trainer.kill()
                s.server.ask("DELETE", "/v1/weight_transfer")
                asked.join()
            assert said[0][0] >= 400 and [t.rounds for t in s.taps] == rounds, said
            serves(s, content(step))


def patches(kind):
    """A trainer of vLLM's sparse_nccl: each element in one of two requests, from the last to the first."""
    with stage(kind) as s, Trainer(os.environ["NCCL_FOREIGN"], FOREIGN) as trainer:
        s.push("00100", "a")
        unique_id = trainer.ask("mint")
        trainer.begin("join", unique_id, 1 + N_RANKS, True)
        s.server.post("/init_weight_transfer_engine", {"init_info": {
            "world_size": 1 + N_RANKS, "rank_offset": 1, "nccl_unique_id_b64": base64.b64encode(unique_id).decode()}})
        trainer.result()
        s.server.post("/start_weight_update")
        tensors, data = split("01500")
        for some in tensors[::2], tensors[1::2]:
            blobs, counts = [], [math.prod(t["shape"]) for _, t in some]
            for (_, t), n in zip(some, counts):
                blobs += [array.array("i", range(n - 1, -1, -1)).tobytes(),
                          array.array("H", data[slice(*t["data_offsets"])])[::-1].tobytes()]
            trainer.begin("send", blobs)
            s.server.post("/update_weights", {"update_info": {
                "names": [name for name, _ in some], "dtype_names": [TORCH[t["dtype"]] for _, t in some],
                "shapes": [t["shape"] for _, t in some], "num_updates_list": counts}})
            trainer.result()
            serves(s, content("00100"))
        assert s.server.post("/finish_weight_update", {"weight_version": "b"})["base"] == "unchecked"
        serves(s, content("01500"))
        owners(s)


def checked(kind):
    """--check says what both placements need; what cannot work is refused by name."""
    def check(*options):
        return subprocess.run([BATON, "serve", "--check", "--listen", "127.0.0.1:0", *options], capture_output=True, text=True,
                              check=False)

    manifest, cuda = ("--manifest", checkpoint("00000")), ("--cuda-library", FAKE)
    front = ("--upstream", f"http://127.0.0.1:1,{kind}", *manifest)
    for options in ((*front, "--stage", "cuda:0,cuda:1"), (*manifest, "--engine", "none", "--device", "cuda:0,cuda:1")):
        whole, shares = check(*options, *cuda), check(*options, *cuda, "--placement", "sharded")
        assert whole.returncode == shares.returncode == 0, (whole, shares)
        assert "memory of each GPU by --placement sharded: " in whole.stdout and "(two shares; " in whole.stdout, whole
        assert "memory of each GPU by --placement replicated: " in shares.stdout and "(two versions)" in shares.stdout, shares
    for options, said in (((*front, *cuda, "--stage", "cuda:0"), "names 1"), ((*front, "--stage", "host"), "--stage host"), (front, "without --stage"),
                          (("--model", MODEL, "--device", "cuda:0,cuda:1"), "--engine none"),
                          ((*manifest, "--engine", "none"), "--device names 0")):
        done = check(*options, "--placement", "sharded")
        assert done.returncode == 2 and "--placement" in done.stderr and said in done.stderr, (options, done)
    few = check(*front, "--stage", "cuda:0,cuda:1", "--placement", "both")
    assert few.returncode == 2 and "replicated, sharded" in few.stderr, few


CASES = {f.__name__: f for f in (updates, broadcast, patches, checked)}


if __name__ == "__main__":  # only the hand-off differs with the kind of engine
    run_cases({"updates": updates} if sys.argv[7] == "sglang" else CASES)
