"""Trainers that publish deltas, and the server that pulls them. Scripts that import this are called with
BATON MODEL DELTAS FOLDER FAKECUDA."""

import functools
import json
import os
import shutil
import sys

BATON, MODEL, DELTAS, FOLDER, FAKECUDA = sys.argv[1:6]
from fleet_world import Server  # noqa: E402

SOURCE, LOCAL = os.path.join(FOLDER, "published"), os.path.join(FOLDER, "local_checkpoint")
STEPS = os.path.join(MODEL, "checkpoints")
with open(os.path.join(DELTAS, "expected.json"), encoding="utf-8") as f:
    EXPECTED = {int(version): sums for version, sums in json.load(f).items()}
PROMPT = {"prompt": "In the beginning", "max_tokens": 8, "temperature": 0}
checks = [0]


def same(found, wanted, about):
    checks[0] += 1
    assert found == wanted, f"{about}: {found!r}, wanted {wanted!r}"


def has(text, word, about):
    checks[0] += 1
    assert word in text, f"{about}: {text!r} does not say {word!r}"


class Refused(Exception):
    pass


class Trainer:
    """The calls of slime's and Miles' trainers, in their order."""

    def __init__(self, server, made_by):
        self.server, self.made_by = server, made_by

    def post(self, path, body):
        status, answer = self.server.post(path, body)
        if status != 200 or not answer.get("success", True):
            raise Refused(f"{status}: {answer}")
        return answer

    def begin(self, source=SOURCE):
        shutil.rmtree(SOURCE, ignore_errors=True)
        os.mkdir(SOURCE)
        self.pull(0, source)

    def publish(self, version):
        name = f"weight_v{version:06d}"
        shutil.rmtree(os.path.join(SOURCE, name), ignore_errors=True)
        shutil.copytree(os.path.join(DELTAS, self.made_by, name), os.path.join(SOURCE, name))
        return os.path.join(SOURCE, name)

    def pull(self, version, source=SOURCE):
        return self.post("/pull_weights", {"local_checkpoint_dir": LOCAL, "source_dir": source,
                                           "target_version": version})

    def reload(self, version, path=LOCAL):
        self.post("/pause_generation", {})
        same(self.server.ask("GET", "/flush_cache")[0], 200, "flush_cache")
        try:
            return self.post("/update_weights_from_disk", {"model_path": path, "weight_version": str(version)})
        finally:
            self.post("/continue_generation", {})

    def update(self, version):
        self.publish(version)
        self.pull(version)
        self.reload(version)


class SkyRL(Trainer):
    """Its own calls."""

    def post(self, path, body):
        status, answer = self.server.post(path, body)
        if status != 200:
            raise Refused(f"{status}: {answer}")
        return answer

    def begin(self, base="/elsewhere/model"):
        shutil.rmtree(SOURCE, ignore_errors=True)
        os.mkdir(SOURCE)
        return self.post("/init_weight_transfer_engine", {"init_info": {
            "base_model_path": base, "local_checkpoint_dir": LOCAL, "cloud_download_workers": 4,
            "checkpoint_load_format": "vllm_multi_thread_safetensors", "multi_thread_safetensors_max_workers": 8}})

    def publish(self, version):
        name = f"delta-{version:08d}"
        shutil.rmtree(os.path.join(SOURCE, name), ignore_errors=True)
        shutil.copytree(os.path.join(DELTAS, self.made_by, name), os.path.join(SOURCE, name))
        return os.path.join(SOURCE, name)

    def info(self, version, source=SOURCE):
        return {"target_version": version, "sync_dir": source, "uri": f"{source}/delta-{version:08d}"}

    def pull(self, version, source=SOURCE):
        found = self.post("/fetch_weights", self.info(version, source))
        same((found["status"], found["result"][0]["status"], found["result"][0]["target_version"]),
             ("ok", "ok", version), "fetched")
        same(sorted(found["result"][0]["stats"]), ["apply_s", "fetch_s", "reset_s", "total_s"], "stats")
        stats = found["result"][0]["stats"]
        same((stats["fetch_s"] > 0, abs(stats["fetch_s"] + stats["apply_s"] - stats["total_s"]) < 1e-6, stats["reset_s"]),
             (True, True, 0.0), stats)

    def reload(self, version, path=SOURCE):
        self.post("/pause?mode=keep&clear_cache=false", {})
        try:
            self.post("/collective_rpc", {"method": "skyrl_start_weight_update", "kwargs": {"is_checkpoint_format": True}})
            self.post("/update_weights", {"update_info": {**self.info(version, path), "version": version}})
            self.post("/collective_rpc", {"method": "skyrl_finish_weight_update"})
        finally:
            self.post("/resume", {})


class World(Server):
    def __init__(self, *options, weights="step-00000"):
        super().__init__(BATON, os.path.join(FOLDER, "log"), "--model", MODEL, "--weights",
                         os.path.join(STEPS, weights + ".safetensors"), "--weight-version", "base",
                         "--allow-path", FOLDER, *options)

    def post(self, path, body):
        found = self.ask("POST", path, body)
        return found[0], found[1]

    def sums(self):
        status, found = self.post("/v1/weights/check", {"action": "checksum"})
        same(status, 200, f"checksums: {found}")
        return found

    def label(self):
        return self.ask("GET", "/get_weight_version")[1]["weight_version"]

    def serves(self, version, label=None):
        """Exactly the trainer's bytes, under its name; 0: the base."""
        same(self.label(), label if label is not None else str(version), "label")
        found = self.sums()["checksums"]
        if version == 0:
            same(found, base(), "the base")
        else:
            same({n: found[n] for n in EXPECTED[version]}, EXPECTED[version], f"version {version}")
        status, reply = self.post("/v1/completions", PROMPT)
        same((status, {v["version"] for v in reply["choices"][0]["weight_versions"]}), (200, {self.label()}),
             "generation")


def refused(word, call, *args):
    try:
        call(*args)
    except Refused as e:
        has(str(e), word, f"{call.__name__}{args}")
        return
    raise AssertionError(f"{call.__name__}{args} was not refused ({word})")


@functools.cache
def base():
    """Checksums of what the server starts with."""
    with World() as server:
        return server.sums()["checksums"]


def whole(server):
    """The base again, by other means: it ends the chain."""
    shutil.copy(os.path.join(STEPS, "step-00000.safetensors"), FOLDER)
    status, said = server.post("/v1/update_weights", {"path": "step-00000.safetensors", "weight_version": "base"})
    same(status, 200, said)
