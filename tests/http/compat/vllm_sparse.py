"""vLLM's trainer with its backend sparse_nccl: what it posted and broadcast, byte for byte (tests/fixtures/delta/vllm-sparse);
patches of other orders and counts, what is refused, and what its next patches may build on.
Usage: vllm_sparse.py BATON MODEL CLIENT_DIR FAKECUDA FAKENCCL TRAINERS_FAKECUDA TRAINERS_FAKENCCL SEED TESTS"""

import faulthandler
import hashlib
import json
import os
import random
import shutil
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[3])

import baton  # noqa: E402
from ipc_world import Server, must  # noqa: E402
from nccl_trainer import TrainerError  # noqa: E402
from transfer_world import Ended, Groups  # noqa: E402

TESTS = sys.argv[9]
RECORDED = os.path.join(TESTS, "fixtures/delta/vllm-sparse")
GIVE_UP_S = 280
EMBED, NORM, UP = "model.embed_tokens.weight", "model.norm.weight", "model.layers.0.mlp.up_proj.weight"
SOCKET = {"FAKENCCL_TRANSPORT": "socket"}
NAN = 0x7FC0

with open(os.path.join(TESTS, "fixtures/delta/expected.json"), encoding="utf-8") as _f:
    EXPECTED = json.load(_f)


class Stage:
    """A server that serves the base, and a trainer of its own group. The model changes with a finish, and by nothing else."""

    def __init__(self, world, *options, **environment):
        world.n_reports += 1
        report = os.path.join(world.folder, f"nccl-{world.n_reports}")
        self.base = f"{world.model}/checkpoints/step-00000.safetensors"
        self.world, self.environment, self.trainer = world, environment, None
        self.server = Ended(Server(
            world, "--model", world.model, "--weights", self.base, "--weight-version", "base", "--device", "cuda:0",
            "--nccl-library", world.nccl, "--allow-path", f"{world.model}/checkpoints", *options,
            FAKENCCL_REPORT=report, **environment), report)
        listed = self.server.server.ask("GET", "/v1/weights?checksums=false").body["tensors"]
        self.shapes = {t["name"]: t["shape"] for t in listed}
        self.model_is_base()

    def model_is_base(self):
        tensors = {n: bytes(t.data) for n, t in baton.load_file(self.base).items() if n in self.shapes}
        self.model = {n: list(struct.unpack(f"<{len(b) // 2}H", b)) for n, b in tensors.items()}

    def __enter__(self):
        self.ask, self.post = self.server.__enter__().ask, self.server.server.post
        return self

    def __exit__(self, *what):
        self.close()
        self.server.__exit__(*what)

    def close(self):
        if self.trainer is not None:
            self.trainer.__exit__(None, None, None)
        self.trainer = None

    def invite(self, **more):
        """A new trainer, as nothing is left of the group of one that was refused."""
        self.close()
        self.trainer = self.world.nccl_trainer(**self.environment)
        port = self.trainer.ask("open_store")
        self.trainer.begin("stateless", 2)
        self.post(200, "/init_weight_transfer_engine", {"init_info": {
            "master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2, **more}})
        self.trainer.result()

    def start(self):
        self.post(200, "/start_weight_update", None)

    def info(self, patches):
        """@patches  [(name, positions, values)]"""
        return {"names": [p[0] for p in patches], "dtype_names": ["bfloat16"] * len(patches),
                "shapes": [self.shapes.get(p[0], [4]) for p in patches], "num_updates_list": [len(p[1]) for p in patches]}

    def send(self, patches, status=200, **more):
        """A chunk; the trainer broadcasts while its request is under way."""
        blobs = []
        for _, positions, values in patches:
            blobs += [struct.pack(f"<{len(positions)}i", *positions), struct.pack(f"<{len(values)}H", *values)]
        self.trainer.begin("send", blobs)
        found = self.post(status, "/update_weights", {"update_info": {**self.info(patches), **more}})
        self.trainer.result()
        return found

    def finish(self, status=200, label=None):
        return self.post(status, "/finish_weight_update", None if label is None else {"weight_version": label})

    def now(self, patches):
        """They are served from now on."""
        for name, positions, values in patches:
            for i, value in zip(positions, values):
                self.model[name][i] = value

    def push(self, *chunks, label=None):
        """A whole update, of one chunk or several."""
        serial = self.served()["serial"]
        self.start()
        for patches in chunks:
            found = self.send(patches)
            must(found == {"message": "Weights updated", "base": "unchecked"}, f"{found}")
            must(self.served()["serial"] == serial, "it is served before its finish")
        found = self.finish(label=label)
        must(found == {"message": "Weight update finished", "base": "unchecked"}, f"{found}")
        must(self.served()["serial"] == serial + 1, f"{self.served()}")
        for patches in chunks:
            self.now(patches)
        self.check()

    def served(self):
        return self.ask("GET", "/v1/status").body["weights"]

    def sums(self):
        return self.post(200, "/v1/weights/check", {"action": "checksum"})

    def check(self, names=None):
        for name in names or (EMBED, NORM, UP):
            wanted = struct.pack(f"<{len(self.model[name])}H", *self.model[name])
            must(self.ask("GET", f"/v1/weights/{name}").raw == wanted, f"the bytes of {name}")

    def sha256(self, version):
        for name, wanted in EXPECTED[version].items():
            found = self.ask("GET", f"/v1/weights/{name}").raw
            must(hashlib.sha256(found).hexdigest() == wanted, f"version {version}: the bytes of {name}")

    def last(self):
        return self.ask("GET", "/v1/status").body["recent_updates"][-1]

    def refuse(self, info, status, *words, param=None):
        """A chunk that is refused before it is received. What came before it in the session goes with it."""
        serial = self.served()["serial"]
        found = self.ask("POST", "/update_weights", {"update_info": info})
        error = found.body["error"]
        must(found.status == status, f"{info}: {found}")
        for word in (*words, "join a new group"):
            must(word in error["message"], f"'{word}' is not in {error['message']}")
        must(param is None or error["param"] == param, f"{param}: {error}")
        must(self.ask("POST", "/finish_weight_update").status in (409, 422), "it was finished")
        must(self.served()["serial"] == serial, "something was committed")
        self.check()


def any_patch(rng, stage, name, n):
    """In any order."""
    return name, rng.sample(range(len(stage.model[name])), n), [rng.randrange(0x3C00, 0x3F00) for _ in range(n)]


def recorded(stage):
    """Init, start, updates, finish, as they were sent. Each chunk's broadcasts follow its post."""
    for version in "1", "2":
        with open(f"{RECORDED}/update-{version}/calls.json", encoding="utf-8") as f:
            calls = json.load(f)
        with open(f"{RECORDED}/update-{version}/broadcasts.bin", "rb") as f:
            data = f.read()
        serial = stage.served()["serial"]
        for i, call in enumerate(calls):
            if call.get("post") == "/init_weight_transfer_engine":
                known = {"master_address", "master_port", "rank_offset", "world_size"}
                more = {k: v for k, v in call["body"]["init_info"].items() if k not in known}
                stage.invite(**more)
            elif "post" in call:
                blobs = []
                for b in calls[i + 1:]:
                    if "post" in b:
                        break
                    blobs.append(data[b["offset"]:b["offset"] + b["nbytes"]])
                must(stage.served()["serial"] == serial, "it is served before its finish")
                stage.trainer.begin("send", blobs)
                stage.post(200, call["post"], call["body"])
                stage.trainer.result()
        stage.sha256(version)
        found = stage.last()
        must((found["outcome"], found["delta"], found["base"], found["source"]) == ("committed", True, "unchecked", "nccl"),
             f"{found}")
        must(found["base_version"] == ("base" if version == "1" else "serial-2"), f"{found}")
        must(0 < found["nbytes"] < found["nbytes_made"], f"{found}")
    must(stage.served()["weight_version"] == "step-2", f"{stage.served()}")


def orders(stage, rng):
    stage.invite()
    stage.push([any_patch(rng, stage, EMBED, 3000), any_patch(rng, stage, NORM, 1), any_patch(rng, stage, UP, 2)], label="a")
    n = len(stage.model[NORM])
    stage.push([(NORM, list(range(n - 1, -1, -1)), [0x3F80 + i for i in range(n)])])  # all of it, backwards
    stage.push([any_patch(rng, stage, NORM, 0), any_patch(rng, stage, UP, 7), any_patch(rng, stage, EMBED, 0)])
    stage.push([any_patch(rng, stage, NORM, 0)])
    stage.push([any_patch(rng, stage, EMBED, 5)], [any_patch(rng, stage, UP, 5)], [any_patch(rng, stage, NORM, 5)], label="b")
    stage.push([(EMBED, [5, 1], [0x8000, 0x0001])])  # bits, not numbers
    stage.push([any_patch(rng, stage, EMBED, 300)] * 1, label="c")


def refused(stage, rng):
    good = any_patch(rng, stage, UP, 3)
    info = stage.info([good])
    runtime = "model.layers.0.self_attn.qkv_proj.weight"
    gate_up = "model.layers.0.mlp.gate_up_proj.weight"
    qkv_rows = sum(stage.shapes[f"model.layers.0.self_attn.{x}_proj.weight"][0] for x in "qkv")
    width = stage.shapes["model.layers.0.self_attn.q_proj.weight"][1]
    cases = [
        ({**info, "num_updates_list": [3, 3]}, 400, "2 entries for 1", "update_info.num_updates_list"),
        ({**info, "num_updates_list": []}, 400, "0 entries for 1", "update_info.num_updates_list"),
        ({**info, "num_updates_list": [-1]}, 400, "an integer from 0 on", "update_info.num_updates_list.0"),
        ({**info, "num_updates_list": [1.5]}, 400, "integer", None),
        ({**info, "num_updates_list": [len(stage.model[UP]) + 1]}, 400, "elements", "update_info.num_updates_list.0"),
        ({**info, "names": ["model.stranger"]}, 422, "model.stranger", "update_info.names.0"),
        ({**info, "names": [runtime], "shapes": [[qkv_rows, width]]}, 400, "0.28", "update_info.names.0"),
        ({**info, "names": [gate_up + "s"]}, 422, "0.28", "update_info.names.0"),
        ({**info, "names": [UP + "#index"]}, 422, "#index", "update_info.names.0"),
        ({**info, "shapes": [[4]]}, 422, "shape", "update_info.shapes.0"),
        ({**info, "dtype_names": ["float16"]}, 422, "keeps it as BF16", None),
        ({**info, "dtype_names": ["uint16"]}, 422, "expects BF16", None),
        ({m: column * 2 for m, column in info.items()}, 400, "twice", "update_info.names.1"),
        ({**info, "packed": True}, 400, "not packed", "update_info.packed"),
        ({**info, "ipc_handles_pickled": "gA=="}, 400, "num_updates_list", "update_info.num_updates_list"),
        ({**info, "update_kind": "sparse_flat"}, 400, "0.29", "update_info.update_kind"),
        ({"names": [], "dtype_names": [], "shapes": [], "num_updates_list": []}, 400, "no tensors", "update_info.names"),
    ]
    for wrong, status, word, param in cases:
        stage.invite()
        stage.start()
        stage.refuse(wrong, status, word, param=param)
    for wrong, status, word, param in cases[3:6]:  # what came before it is not committed without it
        stage.invite()
        stage.start()
        stage.send([any_patch(rng, stage, NORM, 3)])
        stage.refuse(wrong, status, word, param=param)
    stage.invite()
    stage.start()
    stage.send([good])
    stage.refuse(info, 409, "already", param="update_info.names.0")
    stage.invite()
    stage.start()
    stage.send([any_patch(rng, stage, NORM, 3)])
    stage.refuse({m: info[m] for m in info if m != "num_updates_list"}, 409, "whole")
    # Members of the native request that say nothing of patches, or of the list of the update before.
    patches = {"transport": "nccl", **info, "dtypes": info["dtype_names"]}
    del patches["dtype_names"]
    for more, field in (({"bucket_nbytes": 4096}, "/bucket_nbytes"), ({"checksums": [None]}, "/checksums"),
                        ({"packed_buffer_size_bytes": 4096}, "/packed_buffer_size_bytes")):
        stage.invite()
        update = stage.post(200, "/v1/update_weights/start", {})["update_id"]
        error = stage.post(400, "/v1/update_weights", {**patches, **more, "update_id": update})["error"]
        must(error["param"] == field, f"{error}")
        stage.post(200, "/v1/update_weights/abort", {"update_id": update})
    for column in ("dtypes", "shapes"):
        stage.invite()
        error = stage.post(400, "/v1/update_weights", {
            "transport": "nccl", "plan_id": "last", column: patches[column], "partial": True})["error"]
        must(error["param"] == "/plan_id" and column in error["message"], f"{error}")
    stage.invite()  # without a start
    found = stage.ask("POST", "/update_weights", {"update_info": info})
    must(found.status == 409 and "start one" in found.body["error"]["message"], f"{found}")
    stage.invite()
    stage.push([good])


def in_its_broadcast(stage, rng):
    """Its trainer is in NCCL when the answer comes: the group is left, which NCCL reports there, over a network."""
    stage.invite()
    stage.push([any_patch(rng, stage, UP, 3)])
    stage.start()
    stage.trainer.begin("send_watched", [bytes(1 << 24)] * 2)  # more than sockets hold
    stage.refuse({**stage.info([any_patch(rng, stage, UP, 3)]), "names": ["no"]}, 422, "no")
    try:
        stage.trainer.result()
    except TrainerError as e:
        must(": 6" in str(e), f"{e}")  # ncclRemoteError
    else:
        must(False, "the broadcast was taken")


def received_and_refused(stage, rng):
    """Bytes that are wrong show when all have come. The group stays, and nothing of the update is served, nor built on."""
    n = len(stage.model[UP])
    for positions, values, word in (([7, 5, 7], [1, 2, 3], "(7)"), ([7, n, 0], [1, 2, 3], str(n)),
                                    ([3, -1], [1, 2], "4294967295"), ([1, 1], [5, 5], "(1)")):
        stage.invite()
        serial = stage.served()["serial"]
        stage.start()
        stage.send([any_patch(rng, stage, NORM, 2)])
        error = stage.send([any_patch(rng, stage, EMBED, 2), (UP, positions, values)], 400)["error"]
        must(UP in error["message"] and word in error["message"], f"{word}: {error}")
        must(error["param"] == "update_info.names.1", f"{error}")
        found = stage.last()  # the session has ended, as vLLM's does
        must((found["outcome"], found["base"], found["code"]) == ("aborted", "unchecked", "bad_request"), f"{found}")
        error = stage.finish(409)["error"]
        must("no weight update is open" in error["message"], f"{error}")
        must(stage.served()["serial"] == serial, "something was committed")
        stage.start()
        stage.refuse(stage.info([any_patch(rng, stage, UP, 1)]), 409, "not served", "send the whole model")
        stage.check()
    stage.invite()
    stage.push([any_patch(rng, stage, UP, 3)])


def chains(stage, rng):
    stage.invite()
    stage.push([any_patch(rng, stage, UP, 3)])
    stage.push([any_patch(rng, stage, UP, 3)])
    stage.post(200, "/update_weight_version", {"new_version": "renamed"})  # the same bytes
    stage.push([any_patch(rng, stage, UP, 3)])
    # By another way: it is not what the trainer has.
    stage.post(200, "/v1/update_weights", {"path": stage.base, "weight_version": "other"})
    stage.model_is_base()
    stage.start()
    stage.refuse(stage.info([any_patch(rng, stage, UP, 3)]), 409, "came in another way", "join a new group")
    stage.invite()
    stage.push([any_patch(rng, stage, UP, 3)])
    # Between the init and the first patches.
    stage.invite()
    stage.post(200, "/v1/update_weights", {"path": stage.base, "weight_version": "again"})
    stage.model_is_base()
    stage.start()
    stage.refuse(stage.info([any_patch(rng, stage, UP, 3)]), 409, "came in another way")
    # Received and never finished: the trainer goes on from there.
    stage.invite()
    stage.start()
    stage.send([any_patch(rng, stage, UP, 3)])
    update_id = stage.ask("GET", "/v1/status").body["update"]["update_id"]
    must(stage.ask("DELETE", f"/v1/update_weights/{update_id}").status == 200, "aborted")
    stage.start()
    stage.refuse(stage.info([any_patch(rng, stage, UP, 3)]), 409, "not finished")
    # A new init gives up what the one before has begun.
    stage.invite()
    stage.start()
    stage.send([any_patch(rng, stage, NORM, 3)])
    stage.invite()
    stage.push([any_patch(rng, stage, UP, 3)])


def whole_pushes(stage, rng):
    """By the same group: they are the trainer's own, and patches build on them. Empty lists never mean those of patches."""
    stage.invite()
    names = list(stage.shapes)
    dense = {"names": names, "dtype_names": ["bfloat16"] * len(names), "shapes": [stage.shapes[n] for n in names]}
    for info in dense, {"names": [], "dtype_names": [], "shapes": []}:
        stage.push([any_patch(rng, stage, UP, 3)])
        stage.start()
        stage.trainer.begin("send", [struct.pack(f"<{len(stage.model[n])}H", *stage.model[n]) for n in names])
        found = stage.post(200, "/update_weights", {"update_info": info})
        must(found == {"message": "Weights updated"}, f"{found}")
        stage.trainer.result()
        must(stage.finish() == {"message": "Weight update finished"}, "a whole one")
        must(stage.last()["base"] is None, f"{stage.last()}")
        stage.push([any_patch(rng, stage, UP, 3)])
    stage.start()  # given up: the trainer goes on from there
    stage.trainer.begin("send", [struct.pack(f"<{len(stage.model[names[0]])}H", *stage.model[names[0]])])
    stage.post(200, "/update_weights", {"update_info": {m: column[:1] for m, column in dense.items()}})
    stage.trainer.result()
    stage.refuse(stage.info([any_patch(rng, stage, UP, 3)]), 409, "not finished")


def not_finite(stage, rng):
    stage.invite()
    if "allow" in stage.server.server.process.args:
        stage.push([(UP, [3], [NAN])])
        return
    stage.start()
    error = stage.send([any_patch(rng, stage, NORM, 2), (UP, [3], [NAN])], 422)["error"]
    must("NaN" in error["message"] and error["param"] == "update_info.names.1", f"{error}")
    stage.finish(409)
    stage.check()


def by_other_routes(stage, rng):
    """Where whole tensors are taken by broadcast, patches are never taken for such."""
    stage.invite()
    stage.start()
    patch = any_patch(rng, stage, UP, 3)
    for path in "/collective_rpc", "/v1/update_weights":
        info = stage.info([patch])
        body = {"transport": "nccl", **info}
        if path == "/collective_rpc":
            body = {"method": "update_weights_ipc", "kwargs": {"update_info": {**info, "ipc_handles_pickled": "gA=="}}}
        found = stage.ask("POST", path, body)
        must(found.status in (400, 409), f"{path}: {found}")
    stage.invite()
    stage.start()
    _, positions, values = patch
    stage.trainer.begin("send", [struct.pack("<3i", *positions), struct.pack("<3H", *values)])
    stage.post(200, "/collective_rpc", {"method": "update_weights_nccl", "kwargs": {"update_info": stage.info([patch])}})
    stage.trainer.result()
    stage.post(200, "/collective_rpc", {"method": "skyrl_finish_weight_update"})
    stage.now([patch])
    stage.check()


def main():
    faulthandler.dump_traceback_later(GIVE_UP_S, exit=True)
    world, rng = Groups(*sys.argv[1:9]), random.Random(int(sys.argv[8]))
    try:
        for step, *options in ((lambda s, _: recorded(s),), (orders,), (refused,), (received_and_refused,), (chains,),
                               (whole_pushes,), (not_finite,), (not_finite, "--non-finite", "allow"),
                               (by_other_routes, "--compat", "vllm,skyrl")):
            with Stage(world, *options) as stage:
                step(stage, rng)
        with Stage(world, **SOCKET) as stage:
            in_its_broadcast(stage, rng)
    finally:
        shutil.rmtree(world.folder)
    print(f"ok: {must.n} checks")


if __name__ == "__main__":
    main()
