"""Trainers that use SGLang's API. Sessions of slime, AReaL and verl are replayed (sessions/sglang-*), while a
trainer broadcasts; after each, generation must match the pushed checkpoint. Then what the sessions do not
reach: old forms, refusals, information about the server.
Usage: dialect_sglang.py BATON MODEL CLIENT_DIR FAKECUDA FAKENCCL TRAINERS_FAKECUDA TRAINERS_FAKENCCL"""

import faulthandler
import http.client
import json
import os
import struct
import sys
import threading
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))

from ipc_world import WAIT_S, Server, Spec, must  # noqa: E402
from transfer_world import Ended, Groups  # noqa: E402

import replay  # noqa: E402

GIVE_UP_S = 280
NATIVE = {"BF16": "bfloat16"}
LONG = {"prompt": "In the", "max_tokens": 300, "ignore_eos": True, "temperature": 0}
PROMPT = {"prompt": "In the beginning", "max_tokens": 24, "temperature": 0}
DISTRIBUTED, DISK = "/update_weights_from_distributed", "/update_weights_from_disk"


class Checkpoint:
    """A safetensors file, in the order of its header."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as f:
            n = struct.unpack("<Q", f.read(8))[0]
            head, raw = json.loads(f.read(n)), f.read()
        head.pop("__metadata__", None)
        self.specs = [Spec(name, v["dtype"], v["shape"]) for name, v in head.items()]
        self.data = {name: raw[slice(*v["data_offsets"])] for name, v in head.items()}

    def columns(self, specs):
        return {"names": [s.name for s in specs], "dtypes": [NATIVE[s.dtype] for s in specs],
                "shapes": [s.shape for s in specs]}

    def blobs(self, specs):
        return [self.data[s.name] for s in specs]


class World(Groups):
    def __init__(self, *args):
        super().__init__(*args, 0)
        with open(os.path.join(self.model, "golden.json"), encoding="utf-8") as f:
            self.golden = json.load(f)["checkpoints"]
        self.steps = {step: Checkpoint(self.checkpoint(step)) for step in self.golden}
        self.trainers = []

    def checkpoint(self, step):
        return os.path.join(self.model, "checkpoints", step + ".safetensors")

    def text(self, step):
        return self.golden[step]["cases"][0]["greedy_text"]

    def serve_model(self, *options):
        self.n_reports += 1
        report = os.path.join(self.folder, f"nccl-{self.n_reports}")
        server = Server(self, "--model", self.model, "--weights", self.checkpoint("step-00000"),
                        "--weight-version", "step-00000", "--device", "cuda:0", "--nccl-library",
                        self.nccl, "--allow-path", self.model, *options, FAKENCCL_REPORT=report)
        return Ended(server, report)

    def serves(self, server, step, label):
        """Generation matches that checkpoint exactly, and each route reports its version."""
        choice = server.post(200, "/v1/completions", PROMPT, step)["choices"][0]
        must(choice["text"] == self.text(step), f"this is not {step}'s text: {choice['text']}")
        must({v["version"] for v in choice["weight_versions"]} == {label}, f"{step}: {choice}")
        found = server.ask("GET", "/get_weight_version").body
        must(found == {"weight_version": label}, f"{found}, wanted {label}")


class Run:
    """A generation that runs until it is aborted, on a connection of its own."""

    def __init__(self, server, body=None):
        self.server, self.body, self.found = server, body or LONG, None
        self.thread = threading.Thread(target=self._ask, daemon=True)
        self.thread.start()

    def _ask(self):
        self.found = self.server.ask("POST", "/v1/completions", self.body)

    def result(self):
        self.thread.join(WAIT_S)
        must(self.found is not None, "a generation has not ended")
        return self.found

    def reason(self):
        return self.result().body["choices"][0]["finish_reason"]


def running(server):
    return server.ask("GET", "/get_load").body[0]["num_running_reqs"]


def frozen(server, **more):
    """A generation that a pause found running: one may end before, then the next is tried."""
    for _ in range(1000):
        run = Run(server, {**LONG, **more})
        while run.found is None and running(server) == 0:
            pass
        server.post(200, "/pause_generation", {"mode": "in_place"})
        if running(server) == 1:
            return run
        server.post(200, "/continue_generation", {})
        run.result()
    raise AssertionError("no pause found anything running")


# Sessions

class Hooks:
    """What goes on beside a session."""

    def __init__(self, world, server):
        self.world, self.server, self.trainer, self.run = world, server, None, None
        self.specs = self.checkpoint = None
        self.all = {name: getattr(self, name) for name in
                    ("store", "join", "checkpoint_is", "send", "flat", "sent", "freeze", "ended",
                     "end")}

    def store(self):
        self.trainer = self.world.nccl_trainer()
        return {"port": self.trainer.ask("open_store")}

    def join(self, name):
        self.trainer.ask("await_count", 2)
        self.trainer.ask("first_collective", name, 2)

    def checkpoint_is(self, step):
        self.checkpoint = self.world.steps[step]
        return {"path": self.checkpoint.path, "text": json.dumps(self.world.text(step))[1:-1],
                "count": len(self.checkpoint.specs)}

    def part(self, first, last):
        n = len(self.checkpoint.specs)
        specs = self.checkpoint.specs[int(first):n if last == "end" else int(last)]
        return specs, self.checkpoint.columns(specs)

    def send(self, first, last):
        specs, columns = self.part(first, last)
        self.trainer.begin("send", self.checkpoint.blobs(specs))
        return columns

    def flat(self, first, last):
        specs, columns = self.part(first, last)
        self.trainer.begin("send", [b"".join(self.checkpoint.blobs(specs))])
        return columns

    def sent(self):
        self.trainer.result()

    def freeze(self):
        self.run = frozen(self.server)

    def ended(self, reason):
        must(self.run.reason() == reason, f"it ended with {self.run.found}")

    def end(self):
        self.trainer.kill()


def session(world, server, name):
    hooks = Hooks(world, server)
    path = os.path.join(HERE, "sessions", f"{name}.session")
    n, replies = replay.replay(path, "127.0.0.1", server.port,
                               {"model_path": world.model}, hooks.all)
    must.n += n
    for r in replies:
        if r.body:
            r.json()  # of every POST some clients read JSON


# Beside the sessions

def join(world, server, name="weight_update_group", **more):
    trainer = world.nccl_trainer()
    port = trainer.ask("open_store")
    said = server.post(200, "/init_weights_update_group",
                       {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1,
                        "world_size": 2, "group_name": name, **more})
    must(said["success"] is True and name in said["message"], f"{said}")
    trainer.ask("await_count", 2)
    trainer.begin("first_collective", name, 2)
    trainer.result()
    return trainer


def one_by_one(world, server):
    """A tensor a request, and a default name of the group."""
    checkpoint = world.steps["step-00100"]
    with join(world, server, backend="nccl", pp_rank=0) as trainer:
        for i, s in enumerate(checkpoint.specs):
            trainer.begin("send", checkpoint.blobs([s]))
            said = server.post(200, DISTRIBUTED,
                               {**checkpoint.columns([s]), "sizes": [s.numel], "x": {"names": ["y"]}, "flush_cache": True,
                                "weight_version": "one by one"}, s.name)
            trainer.result()
            last = i + 1 == len(checkpoint.specs)
            must(("one by one" in said["message"]) == last, f"{i}: {said}")
            if not last:
                must(f"{i + 1} of {len(checkpoint.specs)}" in said["message"], f"{i}: {said}")
    world.serves(server, "step-00100", "one by one")


def half(world, server):
    """An incomplete update is never served, and a request to continue generation is refused with the reason."""
    checkpoint = world.steps["step-01500"]
    before = server.ask("GET", "/get_weight_version").body["weight_version"]
    with join(world, server, "half") as trainer:
        specs = checkpoint.specs[:20]
        trainer.begin("send", checkpoint.blobs(specs))
        server.post(200, DISTRIBUTED, {**checkpoint.columns(specs), "group_name": "half",
                                       "weight_version": "half"})
        trainer.result()
        world.serves(server, "step-00100", before)
        said = server.post(400, "/continue_generation", {})
        must(said["success"] is False and "previous weights" in said["message"], f"{said}")
    world.serves(server, "step-00100", before)
    must(server.ask("GET", "/v1/status").body["update"] is None, "an update is open")


def anew(world, server):
    """A trainer that died in an update, or sent only wrong requests, does not block the next one."""
    checkpoint = world.steps["step-01500"]
    few = checkpoint.columns(checkpoint.specs[:20])
    for body, status in ((few, 200), ({**few, "dtypes": ["int8"] * 20}, 400)):
        with join(world, server, "first") as trainer:
            if status == 200:
                trainer.begin("send", checkpoint.blobs(checkpoint.specs[:20]))
            server.post(status, DISTRIBUTED, body)
        is_open = server.ask("GET", "/v1/status").body["update"] is not None
        must(is_open == (status == 200), f"after a {status} an update is open: {is_open}")
    with join(world, server, "second") as trainer:
        trainer.begin("send", checkpoint.blobs(checkpoint.specs))
        server.post(200, DISTRIBUTED, {**checkpoint.columns(checkpoint.specs),
                                       "weight_version": "anew"})
        trainer.result()
    world.serves(server, "step-01500", "anew")


def groups(world, server):
    """One at a time, by its name."""
    checkpoint = world.steps["step-00000"]
    few = {**checkpoint.columns(checkpoint.specs[:1]), "weight_version": "x"}
    leave = "/destroy_weights_update_group"
    with join(world, server, "pp_0"), join(world, server, "pp_1") as trainer:
        said = server.post(400, DISTRIBUTED, {**few, "group_name": "pp_0"})
        must("'pp_1'" in said["message"] and "'pp_0'" in said["message"], f"{said}")
        said = server.post(400, leave, {"group_name": "pp_0"})
        must("'pp_1'" in said["message"], f"{said}")
        # Neither of the two has put the group in doubt, nor has a file that is not there.
        server.post(400, DISK, {})
        trainer.begin("send", checkpoint.blobs(checkpoint.specs))
        server.post(200, DISTRIBUTED, {**checkpoint.columns(checkpoint.specs), "group_name": "pp_1",
                                       "weight_version": "pp_1"})
        trainer.result()
        world.serves(server, "step-00000", "pp_1")
        said = server.post(400, DISTRIBUTED, {**few, "group_name": "pp_1", "dtypes": ["int8"]})
        said = server.post(400, DISTRIBUTED, {**few, "group_name": "pp_1"})
        must("join a new group" in said["message"], f"{said}")
        for _ in range(2):
            must(server.post(200, leave, {"group_name": "pp_1"})["success"] is True, "left")
        must("group" in server.post(400, DISTRIBUTED, few)["message"], "there is no group")


def disk(world, server):
    """Whole, by path; and what runs ends if that is asked for."""
    before = dict(server.ask("GET", "/get_weight_version").body)
    must(server.post(403, DISK, {"model_path": "/etc"})["success"] is False, "it may not be read")
    for body, word in (({}, "model_path"),
                       ({"model_path": world.checkpoint("none")}, ""),
                       ({"model_path": 5}, "model_path"),
                       ({"model_path": world.checkpoint("step-00000"), "manifest": {}}, "manifest"),
                       ({"model_path": world.checkpoint("step-00000"), "load_format": "dummy"},
                        "dummy")):
        said = server.post(400, DISK, body, word)
        must(said["success"] is False and word in said["message"] + str(body), f"{body}: {said}")
        must(said["error"]["message"] == said["message"], f"{said}")
    must(server.ask("GET", "/get_weight_version").body == before, "a refusal changed something")
    run = frozen(server)
    body = {"model_path": world.checkpoint("step-01500"), "load_format": "auto", "is_async": False,
            "torch_empty_cache": True, "keep_pause": False, "token_step": 0, "flush_cache": True,
            "manifest": None, "weight_version": "disk", "abort_all_requests": True}
    said = server.post(200, DISK, body)
    must(said["success"] is True and said["message"].endswith("updated to disk.") and
         said["num_paused_requests"] == 0, f"{said}")
    must(run.reason() == "abort", f"{run.found}")
    server.post(200, "/continue_generation", {})
    world.serves(server, "step-01500", "disk")
    run = frozen(server)
    server.post(200, DISK, {**body, "abort_all_requests": False, "weight_version": "again"})
    must(run.found is None, "it was to go on")
    server.post(200, "/continue_generation", {})
    must(run.reason() == "length", f"{run.found}")


def labels(world, server):
    run = frozen(server)
    said = server.post(200, "/update_weight_version",
                       {"new_version": "named", "abort_all_requests": False})
    must(said["success"] is True and said["new_version"] == "named", f"{said}")
    must(run.found is None, "it was to go on")
    server.post(200, "/update_weight_version",
                {"new_version": "anew", "abort_all_requests": True})
    must(run.reason() == "abort", f"{run.found}")
    server.post(400, "/update_weight_version", {"new_version": "", "abort_all_requests": True})
    server.post(200, "/continue_generation", {})
    world.serves(server, "step-01500", "anew")


def requests(world, server):
    """Pauses, aborts, and the cache that is not there."""
    for mode, reason in (("abort", "abort"), (None, "abort")):
        run = frozen(server)
        server.post(200, "/pause_generation", {"mode": mode} if mode else None)
        must(run.reason() == reason, f"{mode}: {run.found}")
        must(server.ask("GET", "/flush_cache").status == 200, "nothing runs")
        server.post(200, "/continue_generation", {"torch_empty_cache": True})
    said = server.post(400, "/pause_generation", {"mode": "soon"})
    must("'soon'" in said["message"] and "retract" in said["message"], f"{said}")
    for mode in "in_place", "retract":
        run = frozen(server)
        server.post(200, "/pause_generation", {"mode": mode})
        must(server.post(200, "/flush_cache", None)["success"] is True, "what is frozen is no harm")
        server.post(200, "/continue_generation", None)
        must(run.reason() == "length", f"{mode}: {run.found}")
    flushes(server)
    for body, all_of_them in (({"rid": "", "abort_all": True}, True),
                              ({"rid": "nobody", "abort_all": False}, False)):
        run = frozen(server)
        must(server.post(200, "/abort_request", body) is None, "the answer is null")
        if not all_of_them:
            must(run.found is None, "it was another's")
        server.post(200, "/continue_generation", {})
        must(run.reason() == ("abort" if all_of_them else "length"), f"{body}: {run.found}")
    for body in {}, {"rid": ""}, {"rid": 5}, {"abort_all": "yes"}:
        must(server.post(400, "/abort_request", body)["success"] is False, f"{body}")


def flushes(server):
    """While something runs, a flush is refused; some client repeats it until it is not."""
    refused = False
    for _ in range(1000):
        run = Run(server)
        while run.found is None and running(server) == 0:
            pass
        answer = server.ask("GET", "/flush_cache")
        refused = answer.status == 400
        server.post(200, "/abort_request", {"abort_all": True})
        run.result()
        if refused:
            must("pause" in answer.body["message"], f"{answer}")
            break
    must(refused, "a flush was never refused")
    must(server.ask("GET", "/flush_cache").status == 200, "nothing runs any more")


def memory(world, server):
    """Staged, as trainers do that share the GPU; without a push nothing is generated."""
    release, resume = "/release_memory_occupation", "/resume_memory_occupation"
    for path in release, resume:
        must(server.post(200, path, {"tags": ["cuda_graph"]}) is None, "there are no graphs")
        said = server.post(400, path, {"tags": ["all"]})
        must("'all'" in said["message"], f"{said}")
    world.serves(server, "step-01500", "anew")
    must(server.post(200, release, {"tags": None}) is None, "null")
    must(server.ask("GET", "/health_generate").status == 503, "nothing can be generated")
    must(server.ask("GET", "/health_generate").raw == b"", "it says so without a word")
    must(server.post(200, resume, {"tags": ["weights"]}) is None, "null")
    must(server.post(503, "/v1/completions", PROMPT)["error"]["code"] == 503, "no weights")
    server.post(200, DISK, {"model_path": world.checkpoint("step-00100"), "weight_version": "back"})
    must(server.post(200, resume, {"tags": ["kv_cache", "cuda_graph"]}) is None, "null")
    must(server.ask("GET", "/health_generate").status == 200, "all is back")
    world.serves(server, "step-00100", "back")
    for path in release, resume:
        must(server.ask("GET", path, {"tags": ["kv_cache"]}).status == 200, "by GET too")
    world.serves(server, "step-00100", "back")


def floats_of(value):
    """JSON has their nearest decimals of nine digits."""
    if isinstance(value, list):
        return [floats_of(v) for v in value]
    return struct.unpack("<f", struct.pack("<f", value))[0]


def values(world, server):
    checkpoint, path = world.steps["step-00100"], "/get_weights_by_name"
    by_dims = {len(s.shape): s for s in checkpoint.specs}
    for s in by_dims.values():
        raw = struct.unpack(f"<{s.numel}H", checkpoint.data[s.name])
        floats = struct.unpack(f"<{s.numel}f", struct.pack(f"<{s.numel}I", *(v << 16 for v in raw)))
        width = s.numel // s.shape[0]
        rows = [list(floats[i * width:(i + 1) * width]) if len(s.shape) == 2 else floats[i]
                for i in range(s.shape[0])]
        for method in "GET", "POST":
            for n in (1, 3, 100, 10 ** 9):
                found = server.ask(method, path, {"name": s.name, "truncate_size": n})
                must(found.status == 200 and floats_of(found.body) == rows[:n], f"{s.name} {n}: {found}")
        found = server.ask("GET", path, {"name": s.name})
        must(floats_of(found.body) == rows[:100], f"{s.name}")
    for body in {"name": "nobody"}, {}, {"name": s.name, "truncate_size": 0}:
        must(server.post(400, path, body)["success"] is False, f"{body}")


def views(world, server):
    info = server.ask("GET", "/get_model_info").body
    must(info == {"model_path": world.model, "tokenizer_path": world.model, "is_generation": True,
                  "served_model_name": os.path.basename(world.model), "load_format": "auto", "reasoning_parser": None,
                  "tool_call_parser": None, "disaggregation_mode": "null", "has_image_understanding": False,
                  "has_audio_understanding": False, "preferred_sampling_params": None, "weight_version": "back"}, f"{info}")
    must(server.ask("GET", "/model_info").body == info, "both say the same")
    for path in "/get_server_info", "/server_info", "/server_info?config_format=json":
        found = server.ask("GET", path).body
        must((found["tp_size"], found["pp_size"], found["num_gpus"], found["world_size"]) ==
             (1, 1, 1, 1) and found["encoder_only"] is False and
             found["disaggregation_mode"] == "null" and found["model_path"] == world.model and
             found["disaggregation_bootstrap_port"] is None, f"{found}")
        must(found["internal_states"][0]["weight_version"] == "back", f"{found}")
        must(found["version"] == server.ask("GET", "/version").body["version"], f"{found}")
        must(isinstance(found["vllm_config"], dict if "json" in path else str), f"{found}")
        # slime's _sanity_check_server_args of an external engine, as its newest compares them
        must(found["enable_memory_saver"] is False and found["enable_return_routed_experts"] is False and
             found["dtype"] == "bfloat16", f"{found}")
        # what Miles' compares: all but those that it skips
        miles = dict(host="127.0.0.1", port=server.port, nnodes=1, node_rank=0, gpu_id_step=1, base_gpu_id=0,
                     tp_size=1, dp_size=1, pp_size=1, ep_size=1, enable_lora=True, max_lora_rank=64)
        must({k: found.get(k) for k in miles} == miles, f"{found}")
    run = frozen(server)
    for path in "/get_load", "/v1/loads?include=core":
        found = server.ask("GET", path).body
        for load in found if isinstance(found, list) else [found, *found["loads"]]:
            must((load["num_running_reqs"], load["num_waiting_reqs"], load["num_reqs"],
                  load["num_total_reqs"]) == (1, 0, 1, 1), f"{path}: {load}")
            must(load["num_used_tokens"] == load["num_tokens"] <= load["max_total_num_tokens"] and
                 abs(load["token_usage"] * load["max_total_num_tokens"] - load["num_tokens"]) < 1e-6, f"{path}: {load}")
    server.post(200, "/abort_request", {"abort_all": True})
    run.result()
    server.post(200, "/continue_generation", {})
    said = server.post(200, "/weights_checker", {"action": "checksum", "allow_quant_error": False})
    native = server.post(200, "/v1/weights/check", {"action": "checksum"})
    must(said["success"] is True and said["payload"] == native, "the native sums")
    must(server.post(200, "/weights_checker", None)["payload"] == native, "it is the default")
    for action in "compare", "odd":
        must(server.post(400, "/weights_checker", {"action": action})["success"] is False, action)
    must(server.post(400, "/weights_checker", {"action": "checksum", "selector": "draft"})["success"] is False, "draft")


def checker(world, server):
    """slime's --check-weight-update: what was taken of, dropped, and sent again whole is what it was."""
    path, disk = "/weights_checker", lambda step: {"model_path": world.checkpoint(step), "weight_version": step}
    server.post(200, DISK, disk("step-00100"))
    said = server.post(200, path, {"action": "snapshot"})
    must(said["success"] is True and said["payload"]["n_tensors"] == len(world.steps["step-00100"].specs), f"{said}")
    must(server.post(200, path, {"action": "compare", "allow_quant_error": True})["payload"]["match"], "as it was")
    must(server.post(200, path, {"action": "reset_tensors", "skip_tensor_list": None})["success"] is True, "dropped")
    must(server.ask("GET", "/health_generate").status == 503, "noise is never served")
    said = server.post(400, path, {"action": "compare"})
    must(said["success"] is False and "differ" in said["message"], f"{said}")
    server.post(200, "/pause_generation", {})
    server.post(200, DISK, disk("step-01500"))
    server.post(200, "/continue_generation", {})
    said = server.post(400, path, {"action": "compare"})
    must(said["success"] is False and "'model." in said["message"], f"{said}")
    said = server.post(400, path, {"action": "compare", "skip_tensor_list": ["model.", "lm_head"]})
    must("nothing would be checked" in said["message"], f"{said}")
    server.post(200, DISK, disk("step-00100"))
    must(server.post(200, path, {"action": "compare"})["success"] is True, "sent again")
    world.serves(server, "step-00100", "step-00100")
    native = server.post(200, "/v1/weights/check", {"action": "compare"})
    must(native["match"] is True and native["mismatches"] == [], f"{native}")
    must(native["n_compared"] > 1 and native["n_skipped"] == 0, f"{native}")
    some = server.post(200, "/v1/weights/check", {"action": "compare", "skip": ["layers"]})
    must(some["n_skipped"] > 1 and some["n_compared"] + some["n_skipped"] == native["n_compared"], f"{some}")
    must(server.ask("POST", "/v1/weights/check", {"action": "compare", "skip": [""]}).status == 400, "nothing")
    must(server.ask("POST", "/v1/weights/check", {"action": "checksum", "skip": "model"}).status == 400, "skip")


def refusals(world, server):
    group = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2}
    rows = (("/init_weights_update_group", {}, "world_size"),
            ("/init_weights_update_group", {**group, "master_port": "http"}, "master_port"),
            ("/init_weights_update_group", {**group, "master_port": "70000"}, "65535"),
            ("/init_weights_update_group", {**group, "backend": "gloo"}, "gloo"),
            ("/init_weights_update_group", {**group, "world_size": 1}, "world_size"),
            ("/init_weights_update_group", {**group, "rank_offset": 0}, "rank_offset"),
            (DISTRIBUTED, {}, "names"),
            (DISTRIBUTED, {"names": ["a"], "dtypes": ["bfloat16"], "shapes": [[1]],
                           "load_format": "pickle"}, "pickle"),
            (DISTRIBUTED, {"name": "a", "dtype": "bfloat16", "shape": [1]}, "names"),
            ("/update_weights_from_ipc", {"zmq_handles": {}}, "zmq"),
            ("/slow_down", {"forward_sleep_time": 0.1}, "/slow_down"),
            ("/set_internal_state", {"server_args": {"pp_max_micro_batch_size": 8}}, "/set_internal_state"),
            ("/start_profile", {"output_dir": "/tmp"}, "profiler"),
            ("/stop_profile", {}, "profile"),
            ("/post_process_weights", {"post_process_quantization": True}, "/end_weight_update"),
            ("/pull_weights", {"target_version": 1}, "source_dir"),
            ("/areal_update_weights", {}, "model_path"),
            ("/areal_init_weights_update_group", {**group, "backend": "hccl"}, "hccl"),
            ("/areal_set_update_weight_meta", {"names": ["a"], "dtypes": ["bfloat16"], "shapes": []}, "shapes"),
            ("/areal_set_update_weight_meta", {}, "names"),
            ("/areal_update_weights_xccl", {}, "/areal_set_update_weight_meta"),
            ("/areal_set_update_weight_meta_lora", {"lora_name": "a"}, "names"),
            ("/areal_update_weights_lora", {"lora_name": "a"}, "lora_model_path"),
            ("/areal_update_weights_lora_xccl", {"lora_name": "a"}, "names"),
            ("/load_lora_adapter_from_tensors", {"lora_name": "a"}, "pickled"),
            ("/release_memory_occupation", {"tags": "weights"}, "tags"))
    for path, body, word in rows:
        said = server.post(400, path, body, path)
        must(said["success"] is False and word in said["message"] + json.dumps(said),
             f"{path} {body}: {said}")
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    for path in DISTRIBUTED, DISK, "/load_lora_adapter":
        c.request("POST", path, b"\x08" + bytes(15), {"Content-Type": "application/vnd.safetensors"})
        answer = c.getresponse()
        must(answer.status in (400, 415) and not json.loads(answer.read())["success"],
             f"{path}: no route of theirs takes tensors as the body")
    before = server.metric('baton_dialect_unknown_members_total{dialect="sglang"}')
    server.post(200, "/pause_generation?now=1", {"mode": "abort", "soon": True})
    server.post(200, "/continue_generation", {"torch_empty_cache": True})
    after = server.metric('baton_dialect_unknown_members_total{dialect="sglang"}')
    must(after - before == 2, f"{after - before} unknown members were counted")


def adapters(world, server):
    """One path for SGLang's and prime-rl's clients; the reply holds what both read."""
    root = os.path.join(world.model, "adapters")
    a, b = (os.path.join(root, name) for name in sorted(os.listdir(root))[:2])
    load, unload = "/load_lora_adapter", "/unload_lora_adapter"
    for name, path, loaded in (("v1", a, {"v1": a}), ("v2", b, {"v1": a, "v2": b}),
                               ("v1", b, {"v1": b, "v2": b})):
        said = server.post(200, load, {"lora_name": name, "lora_path": path, "pinned": False,
                                       "lora_id": None})
        must(said == {"status": "ok", "success": True, "error_message": None,
                      "loaded_adapters": loaded}, f"{said}")
    for status, body in ((403, {"lora_name": "v3", "lora_path": "/etc"}),
                         (400, {"lora_name": "v3"}), (400, {"lora_path": a})):
        said = server.post(status, load, body)
        must(said["success"] is False and said["error_message"] == said["message"], f"{said}")
    for name, left in (("v1", {"v2": b}), ("v2", {})):
        said = server.post(200, unload, {"lora_name": name, "lora_id": None})
        must(said["success"] is True and said["loaded_adapters"] == left, f"{said}")
    must(server.post(404, unload, {"lora_name": "v1"})["success"] is False, "it is gone")
    said = server.post(200, "/areal_update_weights_lora", {"lora_model_path": a, "lora_name": "lora-v1", "lora_int_id": 1,
                                                           "base_model_name": "m"})
    must(said["success"] is True, f"{said}")
    server.post(200, unload, {"lora_name": "lora-v1"})


def bare(world):
    """A store without an engine says what it can say."""
    with world.serve() as server:
        must(server.ask("GET", "/health_generate").status == 503, "it cannot generate")
        found = server.ask("GET", "/server_info").body
        must(found["model_path"] == "" and found["num_gpus"] == 1 and
             found["weight_version"] == "default" and found["context_length"] is None, f"{found}")
        must(server.ask("GET", "/get_model_info").body["is_generation"] is False, "it has no engine")
        must(server.ask("GET", "/get_load").body[0]["num_reqs"] == 0, "nothing runs")
        must(server.post(409, "/load_lora_adapter", {"lora_name": "a", "lora_path": "/a"})
             ["success"] is False, "it has no adapters")
        for body in {"name": "large"}, {"name": "nobody"}:
            must(server.ask("POST", "/get_weights_by_name", body).status in (400, 503), f"{body}")


def off(world):
    """A dialect that is off is not there."""
    with world.serve_model("--compat", "vllm") as server:
        for path in "/pause_generation", DISTRIBUTED, "/abort_request", "/flush_cache":
            must(server.ask("POST", path, {}).status == 404, path)
    with world.serve_model("--compat", "sglang", "--sglang-memory-saver", "--sglang-base-gpu-id", "4") as server:
        args = server.ask("GET", "/server_info").body
        must((args["enable_memory_saver"], args["base_gpu_id"]) == (True, 4), "as slime and Miles want it")
        run = frozen(server)
        server.post(200, "/update_weight_version", {"new_version": "named"})
        must(run.reason() == "abort", "SGLang's label ends what runs, unless told otherwise")
        server.post(200, "/continue_generation", {})
        world.serves(server, "step-00000", "named")


def main():
    faulthandler.dump_traceback_later(GIVE_UP_S, exit=True)
    world = World(*sys.argv[1:8])
    with world.serve_model() as server:
        for name in "sglang-slime", "sglang-areal", "sglang-verl", "sglang-miles", "areal-vllm":
            session(world, server, name)
        for part in (one_by_one, half, anew, groups, disk, labels, requests, memory, values, views,
                     checker, refusals, adapters):
            began = time.monotonic()
            part(world, server)
            print(f"{part.__name__}: {time.monotonic() - began:.2f} s")
    bare(world)
    off(world)
    print(f"ok: {must.n} checks")


if __name__ == "__main__":
    main()
