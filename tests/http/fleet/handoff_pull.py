"""slime's trainer in front of SGLangs, and SkyRL's in front of vLLMs: a version is pulled while the engines generate, and
the request that follows hands it over.

Usage: as handoff.py says, with the published versions in DELTAS.
"""

import json
import os
import shutil
import subprocess

from fleet_world import until
from handoff_world import BATON, MODEL, WORK, Stage, checkpoint, run_cases

DELTAS, SOURCE = os.environ["DELTAS"], os.path.join(WORK, "published")
SLIME = {"local_checkpoint_dir": "/elsewhere", "source_dir": SOURCE}
with open(os.path.join(DELTAS, "expected.json"), encoding="utf-8") as f:
    EXPECTED = {int(version): sums for version, sums in json.load(f).items()}
FROM = {"vllm": "skyrl/many-files/delta-{:08d}", "sglang": "slime/overwrite-blake3/weight_v{:06d}"}
STEPS = {  # what an engine is asked, without what it is asked for its state
    "vllm": ["/pause", "/update_weight_version", "/start_weight_update", "/update_weights", "/finish_weight_update", "/resume"],
    "sglang": ["/pause_generation", "/update_weight_version", "/begin_weight_update", "/update_weights_from_tensor",
               "/end_weight_update", "/update_weight_version", "/continue_generation"]}


class Trainer:
    """The calls of each, in their order."""

    def __init__(self, stage, kind):
        self.stage, self.kind = stage, kind
        shutil.rmtree(SOURCE, ignore_errors=True)
        os.mkdir(SOURCE)

    def post(self, path, body, status=200):
        got, said = self.stage.server.ask("POST", path, body)
        assert got == status and said.get("success", got == 200) == (status == 200), (path, got, said)
        return json.dumps(said)

    def begin(self, status=200):
        if self.kind == "sglang":
            return self.post("/pull_weights", {**SLIME, "target_version": 0}, status)
        return self.post("/init_weight_transfer_engine", {"init_info": {"base_model_path": MODEL, "local_checkpoint_dir": "/elsewhere"}}, status)

    def pull(self, version, status=200):
        path = FROM[self.kind].format(version)
        shutil.copytree(os.path.join(DELTAS, path), os.path.join(SOURCE, os.path.basename(path)), dirs_exist_ok=True)
        if self.kind == "sglang":
            return self.post("/pull_weights", {**SLIME, "target_version": version}, status)
        return self.post("/fetch_weights", {"target_version": version, "sync_dir": SOURCE}, status)

    def reload(self, version, status=200):
        if self.kind == "sglang":
            self.post("/pause_generation", {})
            assert self.stage.server.ask("GET", "/flush_cache")[0] == 200
            body = {"model_path": "/elsewhere", "weight_version": str(version), "abort_all_requests": version == 2}
            said = self.post("/update_weights_from_disk", body, status)
            self.post("/continue_generation", {})
            return said
        self.post("/pause?mode=keep&clear_cache=false", {})
        self.post("/reset_prefix_cache", {"reset_running_requests": True})
        self.post("/collective_rpc", {"method": "skyrl_start_weight_update", "kwargs": {"is_checkpoint_format": True}})
        said = self.post("/update_weights", {"update_info": {"target_version": version, "sync_dir": SOURCE}}, status)
        if status == 200:  # its trainer goes on with the resume otherwise
            self.post("/collective_rpc", {"method": "skyrl_finish_weight_update"})
        self.post("/resume", {})
        return said


def stage(*kinds, weights="00000", **how):
    s = Stage(*kinds, options=("--weights", checkpoint(weights), "--weight-version", "base", "--allow-path", WORK), **how)
    until("the base is handed over", lambda: s.server.get("/v1/upstreams")["n_serving"] == len(kinds) and all(t.loaded for t in s.taps))
    return s


def has(s, version, *taps):
    for i in taps or range(len(s.taps)):
        s.taps[i].settle()
        assert {n: s.taps[i].loaded[n][2] for n in EXPECTED[version]} == EXPECTED[version], f"the bytes at {i} are not those of {version}"
        said = s.doubles[i].ask("GET", "/weight_info" if s.doubles[i].dialect == "vllm" else "/model_info")[1]
        assert said["weight_version"] == str(version), said


def chain(kind):
    """A pull alone asks the engines nothing and changes nothing; version 3 changes the name only."""
    with stage(kind) as s:
        t = Trainer(s, kind)
        assert "unchecked" not in t.begin()
        tap = s.taps[0]
        for version in range(1, 5):
            rounds, label = tap.rounds, s.server.status()["weights"]["weight_version"]
            t.pull(version)
            reply = s.server.post("/v1/completions", {"prompt": "In the beginning", "max_tokens": 4})
            assert reply["choices"] and s.server.status()["weights"]["weight_version"] == label and tap.rounds == rounds
            since = len(tap.calls)
            if version != 3:
                tap.loaded.clear()  # it gets all tensors, whichever the delta changed
            t.reload(version)
            has(s, version)
            if version != 3:
                asked = [c[2] for c in tap.calls[since:] if c[2] in STEPS[kind]]
                assert asked == STEPS[kind], asked
            assert tap.rounds == rounds + (version != 3), version
            assert ("/abort_request" in [c[2] for c in tap.calls[since:]]) == (kind == "sglang" and version == 2), version
        t.pull(4)
        t.reload(4)  # again: nothing changes
        has(s, 4)


def dies(kind):
    """An engine that ends between the pull and the commit gets the version when it is back."""
    with stage(kind, kind, min_ready=1) as s:
        t = Trainer(s, kind)
        t.begin()
        t.pull(1)
        s.taps[0].loaded.clear()
        s.doubles[0].order("who", "restart", ms=600)
        until("it left", lambda: s.server.get("/v1/upstreams")["n_serving"] == 1)
        t.reload(1)
        has(s, 1, 1)
        until("it is back", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        has(s, 1)
        t.pull(2)
        s.taps[0].fault = (STEPS[kind][3], 500)
        t.reload(2)
        s.taps[0].fault = None
        until("it is repaired", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        has(s, 2)
        t.pull(3)
        s.taps[0].fault = ("/update_weight_version", 500)
        said = t.reload(3, 502)  # the name alone; it is recorded here
        assert "is the name of the version here now" in said, said
        s.taps[0].fault = None
        until("it has the name", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        has(s, 3)
        t.pull(4)
        t.reload(4)
        has(s, 4)


def blinks(kind):
    """An engine that was restarted, which no probe has seen yet, is not given a name alone: it has other bytes."""
    with stage(kind, kind, min_ready=1, probe_ms=1000) as s:
        t = Trainer(s, kind)
        t.begin()
        for version in 1, 2:
            t.pull(version)
            t.reload(version)
        until("both have it", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        has(s, 2)
        t.pull(3)
        s.taps[0].loaded.clear()
        s.doubles[0].order("", "restart", ms=0)
        t.reload(3)
        has(s, 3, 1)
        until("it got the bytes", lambda: len(s.taps[0].loaded) == len(s.taps[1].loaded))
        until("it is back", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        has(s, 3)


def base(kind):
    """Version 0 is the model that the server started with; another one is served: it says so, and nothing else begins."""
    with stage(kind) as s:
        t = Trainer(s, kind)
        t.begin()
        s.push("00100", "other")
        said = t.begin(409 if kind == "vllm" else 400)
        assert "is not the base model's" in said, said
        said = t.pull(1, 409 if kind == "vllm" else 400)
        assert "begin" in said, said
        s.has("00100", "other")


def not_staged(kind):
    """Without --stage it has no weights to apply a delta to."""
    with Stage(kind, stage=None) as s:
        t = Trainer(s, kind)
        for call in t.begin, lambda status: t.pull(1, status), lambda status: t.post("/update_weights", {"update_info": {"target_version": 1}}, status):
            said = call(409 if kind == "vllm" else 400)
            assert "is not supported in front of upstream engines without --stage: start this server with it, or send it to an engine" in said, said
            if kind == "sglang":
                break  # a reload names a path as far as it knows
            named = "'target_version'" if "/update" in said else "'base_model_path'" if "/init" in said else ""
            assert named in said, said
        done = subprocess.run([BATON, "push", checkpoint("01500"), "--delta-from", "x", "--delta-base", checkpoint("00100"),
                               "--url", s.server.url], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1 and "start it with --stage" in done.stderr and "hint" not in done.stderr, done


CASES = {f.__name__: f for f in (chain, dies, blinks, base, not_staged)}


if __name__ == "__main__":
    run_cases(CASES)
