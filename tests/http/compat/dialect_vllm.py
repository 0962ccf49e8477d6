"""vLLM's trainers: the sessions of tests/http/compat/sessions/ are replayed byte for byte, over the fakes;
after each, generation must match the pushed checkpoint.
Usage: dialect_vllm.py BATON MODEL CLIENT_DIR FAKECUDA FAKENCCL TRAINERS_FAKECUDA TRAINERS_FAKENCCL
SEED"""

import base64
import faulthandler
import hashlib
import http.client
import json
import os
import shutil
import struct
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, sys.argv[3])

import baton  # noqa: E402
import replay  # noqa: E402
from ipc_trainer import pickled_dict, pickled_list  # noqa: E402
from ipc_world import WAIT_S, TORCH, Server, Spec, bucket, columns, fill, must, packed  # noqa: E402
from nccl_trainer import TrainerError  # noqa: E402
from transfer_world import Ended, Groups, cut_each, cut_vllm  # noqa: E402

STEPS = ("step-00000", "step-00100", "step-01500")
GIVE_UP_S = 280
OPTIONS = {"vllm-off.session": ("--compat", "none"),
           "vllm-lora.session": ("--allow-path", f"{sys.argv[2]}/adapters")}
PROMPT_IDS = [40, 77, 258, 803, 264, 77, 290]  # "In the beginning"
UNKNOWN = {"vllm-errors.session": 1}  # members that are ignored
TIED = "lm_head.weight"  # in the files too, but not in the model's own list
CUDA_PAGE = 512  # what torch's allocator rounds its blocks to


def in_json(text):
    """Escaped for a JSON string, without the quotes."""
    return json.dumps(text)[1:-1]


class Checkpoint:
    def __init__(self, model, step):
        tensors = baton.load_file(f"{model}/checkpoints/{step}.safetensors")
        self.specs = [Spec(n, t.dtype, t.shape) for n, t in tensors.items() if n != TIED]
        self.data = {n: bytes(t.data) for n, t in tensors.items()}

    def sums(self):
        return {s.name: hashlib.sha256(self.data[s.name]).hexdigest() for s in self.specs}


def values_of(world):
    """What the sessions mean by their ${names}, before any hook has run."""
    with open(f"{world.model}/golden.json", encoding="utf-8") as f:
        golden = json.load(f)["checkpoints"]
    values = {"model": os.path.basename(world.model), "model_path": world.model}
    for step in STEPS:
        made = Checkpoint(world.model, step)
        values["sums_" + step[5:]] = made.sums()
        for i, case in enumerate(golden[step]["cases"]):
            values[f"prompt_{i}"] = json.dumps(case["prompt"])
            values[f"{step.replace('-', '_')}_{i}"] = in_json(case["greedy_text"])
    values["sums_stranger"] = {**values["sums_00100"], "no.such.weight": "0" * 64}
    values.update(wire(made.specs))
    return values


def wire(specs):
    found = columns(specs)
    return {"names": found["names"], "dtype_names": found["dtypes"], "shapes": found["shapes"]}


def served(server, values):
    """All names, in the model's own order; and those that two checkpoints differ in."""
    listed = server.ask("GET", "/v1/weights?checksums=false").body["tensors"]
    names = [t["name"] for t in listed]
    first, second = values["sums_00000"], values["sums_00100"]
    must(set(names) == set(first), f"{names} are served")
    return {"served": names, "changed": [name for name in names if first[name] != second[name]]}


class Hooks:
    """What a trainer does between its requests."""

    def __init__(self, world, server):
        self.world, self.server = world, server
        self.made, self.rank0, self.gpu = None, None, None

    def all(self):
        return {name: getattr(self, name) for name in
                ("listen", "mint", "joined", "load", "broadcast", "sent", "export", "chunk", "spent")}

    def close(self):
        for process in (self.rank0, self.gpu):
            if process is not None:
                process.__exit__(None, None, None)

    def load(self, step):
        """What is pushed from now on."""
        self.made = Checkpoint(self.world.model, step)
        return wire(self.made.specs)

    # NCCL

    def listen(self):
        """The trainer's store is there, and it waits for us in a thread of its own."""
        if self.rank0 is not None:
            self.rank0.__exit__(None, None, None)
        self.rank0 = self.world.nccl_trainer()
        port = self.rank0.ask("open_store")
        self.rank0.begin("stateless", 2)
        return {"master_port": port}

    def mint(self):
        """The trainer makes the unique id itself, and waits in it."""
        self.rank0 = self.rank0 or self.world.nccl_trainer()
        unique_id = self.rank0.ask("mint")
        self.rank0.begin("join", unique_id, 2, True)
        return {"unique_id": base64.b64encode(unique_id).decode()}

    def joined(self):
        self.rank0.result()

    sent = joined

    def broadcast(self, bound):
        """Everything; packed into buffers of that many bytes, or 0: each tensor by itself."""
        specs, data = self.made.specs, self.made.data
        self.rank0.begin("send", cut_vllm(specs, data, int(bound)) if int(bound) > 0
                         else cut_each(specs, data))

    # IPC

    def trainer(self):
        if self.gpu is None:
            self.gpu = self.world.trainer(self.server)
        return self.gpu

    def export(self, form):
        """Each tensor by itself, as they lie in one allocation."""
        content, exports, trainer = bytearray(), [], self.trainer()
        offsets = []
        for s in self.made.specs:
            content += bytes(-len(content) % CUDA_PAGE)
            offsets.append(len(content))
            content += self.made.data[s.name]
        address = fill(trainer, 0, bytes(content))
        for s, offset in zip(self.made.specs, offsets):
            x = trainer.export(address, offset, s.nbytes, s.shape, TORCH[s.dtype])
            exports.append({x.uuid: x})
        return {"handles": pickled_list(exports, form == "functions")}

    def chunk(self, i, n):
        """The i-th of n buffers, with its own columns."""
        specs = self.made.specs[len(self.made.specs) * int(i) // int(n):
                                len(self.made.specs) * (int(i) + 1) // int(n)]
        content, trainer = packed(specs, self.made.data), self.trainer()
        x = trainer.export(fill(trainer, 0, content), 0, len(content)).seen_as((len(content),),
                                                                               "uint8")
        return {**wire(specs), "tensor_sizes": [s.nbytes for s in specs],
                "by_gpu": {x.uuid: wire(specs)},
                "handles": pickled_dict({x.uuid: x}, pair=False)}

    def spent(self):
        """Each export was counted down exactly once."""
        counters = self.gpu.counters()
        must(counters and not any(counters), f"{counters}")


def serve(world, *options, **environment):
    world.n_reports += 1
    report = os.path.join(world.folder, f"nccl-{world.n_reports}")
    return Ended(Server(world, "--model", world.model, "--weights",
                        f"{world.model}/checkpoints/{STEPS[0]}.safetensors", "--weight-version",
                        STEPS[0], "--device", "cuda:0", "--nccl-library", world.nccl, *options,
                        FAKENCCL_REPORT=report, **environment), report)


def session(world, values, name, *options):
    with serve(world, *options) as server:
        hooks = Hooks(world, server)
        try:
            n, _ = replay.replay(os.path.join(HERE, "sessions", name), "127.0.0.1", server.port,
                                 {**values, **served(server, values)}, hooks.all())
        finally:
            hooks.close()
        must.n += n
        check_metrics(server, name)


def check_metrics(server, name):
    """Gauges in vLLM's words while its dialect is spoken; of unknown members, how many there were."""
    text = server.ask("GET", "/metrics").raw.decode()
    off = name == "vllm-off.session"
    must(("vllm:" in text) != off, f"{name}: metrics in vLLM's words")
    found = [line for line in text.splitlines()
             if line.startswith('baton_dialect_unknown_members_total{dialect="vllm"}')]
    wanted = UNKNOWN.get(name, 0)
    must(len(found) == 1 and found[0].endswith(f" {wanted}"), f"{name}: {found}, wanted {wanted}")


GREEDY = {"max_tokens": 60, "temperature": 0, "ignore_eos": True}


class Frozen:
    """A generation that a pause has frozen behind its first token; tried again while it was quicker."""

    def __init__(self, server):
        running = 0
        while running == 0:
            server.post(200, "/resume", {})
            self.http = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
            self.http.request("POST", "/v1/generate", json.dumps(
                {"token_ids": PROMPT_IDS, "stream": True, "sampling_params": GREEDY}),
                {"Content-Type": "application/json"})
            self.answer = self.http.getresponse()
            self.first = self.answer.readline()
            must(self.answer.status == 200 and self.first.startswith(b"data: "), f"{self.first}")
            running = server.post(200, "/v1/pause", {"mode": "keep"})["running"]

    def choices(self):
        """All of it, once it can end."""
        lines = [self.first, *self.answer.read().split(b"\n")]
        self.http.close()
        return [json.loads(line[6:])["choices"][0] for line in lines if line.startswith(b"data: {")]


def renamed_while_it_runs(world):
    """A generation reports both labels, each for its own tokens, and nothing else of it changes."""
    prompt = {"prompt": "In the beginning", **GREEDY}
    with serve(world) as server:
        whole = server.post(200, "/v1/completions", prompt)["choices"][0]
        frozen = Frozen(server)
        found = server.post(200, "/v1/weights/label", {"weight_version": "other", "if_serial": 1})
        must(found == {"weight_version": "other", "serial": 1}, f"{found}")
        server.post(200, "/resume", {})
        choices = frozen.choices()
        n = sum(len(c["token_ids"]) for c in choices)
        spans = [s for c in choices for s in c.get("weight_versions") or []]
        must(n == GREEDY["max_tokens"], f"{n} tokens")
        must({s["serial"] for s in spans} == {1}, f"{spans}")
        must({s["version"] for s in spans} == {STEPS[0], "other"}, f"{spans}")
        again = server.post(200, "/v1/completions", prompt)["choices"][0]
        must(again["text"] == whole["text"], f"{again} is not {whole}")
        must([s["version"] for s in again["weight_versions"]] == ["other"], f"{again}")
        must(server.ask("GET", "/v1/status").body["weights"]["weight_version"] == "other", "status")


def aborted(world):
    """Without a body: all; what is frozen ends at once, with its tokens so far."""
    with serve(world) as server:
        frozen = Frozen(server)
        must(server.ask("GET", "/load").body == {"server_load": 1}, "one runs")
        found = server.ask("POST", "/abort_requests")
        must(found.status == 200 and found.body == {"status": "aborted", "aborted": 1}, f"{found}")
        choices = frozen.choices()
        must(choices[-1]["finish_reason"] == "abort", f"{choices[-1]}")
        must(server.ask("GET", "/is_paused").body == {"is_paused": True}, "it stays paused")
        server.post(200, "/resume", {})


def as_float32(world):
    """As trainers hold their weights; vLLM converts what it loads, and its clients cannot ask for that."""
    made = Checkpoint(world.model, STEPS[1])
    wide = [Spec(s.name, "F32", s.shape) for s in made.specs]
    words = {s.name: struct.unpack(f"<{s.numel}H", made.data[s.name]) for s in made.specs}
    sent = [struct.pack(f"<{len(w)}I", *(x << 16 | 1 for x in w)) for w in words.values()]
    with serve(world) as server, world.nccl_trainer() as trainer:
        invite(server, trainer)
        server.post(200, "/start_weight_update", {})
        trainer.begin("send", sent)
        server.post(200, "/update_weights", {"update_info": wire(wide)})
        trainer.result()
        server.post(200, "/finish_weight_update", {})
        for s in made.specs:
            found = server.ask("GET", f"/v1/weights/{s.name}")
            must(found.raw == made.data[s.name], f"{s.name} is not what was sent, rounded")


REFUSED = {
    "another backend": {"schema_version": 1, "names": ["a"]},
    "patches of nothing": {"num_updates_list": [1], "names": ["a"]},
    "unequal columns": {"names": ["a", "b"], "dtype_names": ["bfloat16"], "shapes": [[1]]},
    "half of the model": {"names": ["a"], "dtype_names": ["bfloat16"], "shapes": [[1]]},
    "not an object": "nothing",
}


def strays(server, *paths):
    """Refused before they are understood, and not the trainer's: its group lives on."""
    for path in paths:
        found = server.ask("POST", path, {"update_info": "nothing", "lora_nmae": "x"})
        must(found.status == 400 and "the group" not in found.body["error"]["message"], f"{path}: {found}")
    found = server.ask("GET", "/v1/weight_transfer").body
    must(found["state"] == "joined", f"{paths}: {found}")


def invite(server, trainer):
    port = trainer.ask("open_store")
    trainer.begin("stateless", 2)
    server.post(200, "/init_weight_transfer_engine", {"init_info": {
        "master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2}})
    trainer.result()


def refused_late(world):
    """For lack of memory, which is found when its turn comes; the next round's empty lists change nothing."""
    specs = Checkpoint(world.model, STEPS[1]).specs
    with serve(world, "--max-versions", "2", "--pin-timeout", "300", "--allow-path", f"{world.model}/checkpoints",
               FAKENCCL_TRANSPORT="socket") as server, world.nccl_trainer(FAKENCCL_TRANSPORT="socket") as trainer:
        invite(server, trainer)
        must(server.ask("GET", "/v1/weights/handles").status == 200, "a lease")
        update(server, world, STEPS[1])
        server.post(200, "/start_weight_update", {})
        for info in wire(specs), {"names": [], "dtype_names": [], "shapes": []}:
            found = server.ask("POST", "/update_weights", {"update_info": info})
            must(found.status == 409 and "join a new group" in found.body["error"]["message"], f"{found}")
    folder = f"{world.model}/adapters/shout"
    with open(f"{folder}/adapter_config.json", encoding="utf-8") as f:
        config = json.load(f)
    specs = [Spec(name.replace("layers.0", "layers.99"), t.dtype, t.shape)
             for name, t in baton.load_file(f"{folder}/adapter_model.safetensors").items()]
    body = {"transport": "nccl", **columns(specs)}
    with serve(world) as server:
        for path, more in (("/v1/load_lora_adapter", {"lora_name": "x", "adapter_config": config}),
                           ("/v1/update_weights", {})):
            with world.nccl_trainer() as trainer:
                invite(server, trainer)
                found = server.ask("POST", path, {**body, **more})
                must(found.status == 422 and "join a new group" in found.body["error"]["message"], f"{found}")


def refused_in_its_broadcast(world):
    """Its trainer is in NCCL when the answer comes: the group is left, which NCCL reports there, over a network."""
    made, socket = Checkpoint(world.model, STEPS[1]), {"FAKENCCL_TRANSPORT": "socket"}
    with serve(world, **socket) as server:
        for what, info in REFUSED.items():
            with world.nccl_trainer(**socket) as trainer:
                invite(server, trainer)
                strays(server, "/v1/load_lora_adapter", "/v1/update_weights")
                server.post(200, "/start_weight_update", {})
                trainer.begin("send", cut_each(made.specs, made.data))
                server.post(200, "/update_weights", {"update_info": wire(made.specs)})
                trainer.result()
                strays(server, "/v1/load_lora_adapter", "/v1/update_weights")
                server.post(200, "/finish_weight_update", {"weight_version": what})
                server.post(200, "/start_weight_update", {})
                trainer.begin("send_watched", cut_each(made.specs, made.data))
                found = server.ask("POST", "/update_weights", {"update_info": info})
                must(found.status in (400, 422), f"{what}: {found}")
                must("join a new group" in found.body["error"]["message"], f"{what}: {found}")
                try:
                    trainer.result()
                except TrainerError as e:
                    must(": 6" in str(e), f"{what}: {e}")  # ncclRemoteError, of whichever call
                else:
                    must(False, f"{what}: the broadcast was taken")
                again = server.ask("POST", "/update_weights", {"update_info": wire(made.specs)})
                must(again.status == 409 and "join a new" in again.body["error"]["message"], f"{again}")
                again = server.ask("POST", "/v1/update_weights", {"transport": "nccl", **columns(made.specs)})
                must((again.status, again.body["error"]["code"]) == (409, "group_left"), f"{again}")
                must(server.ask("GET", "/weight_info").body == {"weight_version": what}, "unchanged")


def remade(world):
    """A reset that includes what runs: its KV is made again, by the weights that have come."""
    with serve(world, "--allow-path", f"{world.model}/checkpoints") as server:
        for reset, *ask in (
                (False, "POST", "/reset_prefix_cache"),
                (False, "POST", "/reset_prefix_cache?reset_running_requests=False"),
                (False, "POST", "/v1/reset_cache"),
                (True, "POST", "/reset_prefix_cache", {"reset_running_requests": True}),
                (True, "POST", "/reset_prefix_cache?reset_running_requests=true"),
                (True, "POST", "/v1/reset_cache", {"running": True}),
                (True, "GET", "/flush_cache")):
            update(server, world, STEPS[0])
            before = engine(server)["n_recomputed_tokens"]
            frozen = Frozen(server)
            update(server, world, STEPS[2])
            must(server.ask(*ask).status == 200, f"{ask}")
            server.post(200, "/resume", {})
            choices = frozen.choices()
            ids = [i for c in choices for i in c["token_ids"]]
            n = next(s for c in choices for s in c.get("weight_versions") or []
                     if s["version"] == STEPS[2])["start"]
            rest = {**GREEDY, "max_tokens": len(ids) - n}
            again = server.post(200, "/v1/generate", {"token_ids": PROMPT_IDS + ids[:n],
                                                      "sampling_params": rest})["choices"][0]
            made = engine(server)["n_recomputed_tokens"] - before
            must((made > 0) == reset, f"{ask}: KV of {made} tokens was made again")
            must(not reset or again["token_ids"] == ids[n:], f"{ask}: old KV was read")
        for wrong in ("?reset_running_requests=perhaps",), ("", {"reset_external": 5}):
            found = server.ask("POST", "/reset_prefix_cache" + wrong[0], *wrong[1:])
            must(found.status == 400 and "reset_" in found.body["error"]["message"], f"{wrong}: {found}")


def engine(server):
    return server.ask("GET", "/v1/status").body["engine"]


def update(server, world, step):
    server.post(200, "/v1/update_weights", {"path": f"{world.model}/checkpoints/{step}.safetensors",
                                            "weight_version": step})


def flags(world):
    """As Python's clients spell them; aborting what was to be waited for could not be undone."""
    with serve(world) as server:
        for said, mode in (("true", "wait"), ("True", "wait"), ("1", "wait"), ("false", "abort"),
                           ("False", "abort"), ("0", "abort")):
            found = server.ask("POST", f"/pause?wait_for_inflight_requests={said}")
            must(found.status == 200 and found.body == {"status": "paused"}, f"{said}: {found}")
            pause = server.ask("GET", "/v1/status").body["pause"]
            must(pause["mode"] == mode, f"{said}: {pause}")
            server.post(200, "/resume", {})
        found = server.ask("POST", "/pause?wait_for_inflight_requests=perhaps")
        must(found.status == 400 and "perhaps" in found.body["error"]["message"], f"{found}")
        must(server.ask("GET", "/is_paused").body == {"is_paused": False}, "it is paused")


def sums_of_gpus(world):
    """What lies on a GPU alone is read back for its SHA-256; odd lengths, and nothing at all."""
    with world.serve() as server, world.trainer(server) as trainer:
        data = world.data()
        _, body = bucket(trainer, 0, world.specs, data, weight_version="pushed")
        server.update(body, data, "pushed")
        found = server.post(200, "/v1/weights/check", {"action": "checksum"})
        wanted = {name: hashlib.sha256(raw).hexdigest() for name, raw in data.items()}
        must(found["checksums"] == wanted and found["weight_version"] == "pushed", f"{found}")
        data["large"] = data["large"][:-1] + bytes([data["large"][-1] ^ 1])
        _, body = bucket(trainer, 0, world.specs, data)
        server.update(body, data, "one bit")
        found = server.post(200, "/v1/weights/check", {"action": "compare", "baseline": wanted})
        must(found["mismatches"] == ["large"] and not found["match"], f"{found}")


# The replayer itself: what it must not let pass.
DIFFERENT = [(1, True), (1, 1.0), (0, False), ("a", "b"), ("ab", "~c"), ([1], [1, 2]), ({}, {"a": 1}),
             ({"a": {"b": 1}}, {"a": {"b": 2}}), (None, {}), ([{"a": 1}], [{"a": "1"}])]
ALIKE = [(1, 1), (1, "*"), (None, "*"), ("abc", "~b"), ({"a": 1, "b": 2}, {"b": 2}),
         ([{"a": 1, "b": 2}], [{"a": 1}]), (None, None)]


def the_replayer():
    for found, wanted in DIFFERENT:
        must(replay.differs(found, wanted), f"{found} was taken for {wanted}")
    for found, wanted in ALIKE:
        must(not replay.differs(found, wanted), f"{found} was not taken for {wanted}")
    step = replay.Step("here")
    for wanted, headers in ((["201"], {}), (["200", "A: b"], {}), (["200", "A: b"], {"a": "c"}),
                            (["200", "A: -"], {"a": "c"}), (["200", "", "{}"], {})):
        step.wanted = wanted
        try:
            replay.check(step, replay.Reply(200, headers, b"no JSON"), {})
        except replay.Mismatch:
            must(True, "")
        else:
            must(False, f"{headers} was taken for {wanted}")


def main():
    faulthandler.dump_traceback_later(GIVE_UP_S, exit=True)  # where it hangs, rather than that it does
    the_replayer()
    world = Groups(*sys.argv[1:9])
    try:
        values = {**values_of(world), "adapter": f"{world.model}/adapters/shout"}
        for name in sorted(os.listdir(os.path.join(HERE, "sessions"))):
            if name.startswith("vllm-"):
                session(world, values, name,
                        *OPTIONS.get(name, ()))
        for step in (as_float32, refused_in_its_broadcast, refused_late, renamed_while_it_runs, aborted, remade, flags,
                     sums_of_gpus):
            step(world)
    finally:
        shutil.rmtree(world.folder)
    print(f"ok: {must.n} checks")


if __name__ == "__main__":
    main()
