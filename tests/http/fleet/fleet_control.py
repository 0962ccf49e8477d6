"""Control requests of a trainer to a server in front of upstreams: all or nothing, or with --min-ready a quorum.

Usage: fleet_control.py BATON FAKE_ENGINE LOG CLIENT_DIR WORK baton|vllm|sglang|mixed
"""

import itertools
import http.client
import json
import os
import struct
import subprocess
import sys
import threading
import time

from fake_engine_world import SGLANG, Double, serves
from fleet_world import Server, until

BATON, ENGINE, LOG, CLIENT, WORK, WHICH = sys.argv[1:7] or [""] * 6  # processes that fork trainers have none
sys.path.insert(0, CLIENT)
import baton  # noqa: E402  (the client, from where the test was told)

RANKS, PROBE_MS = 2, 30
TIMEOUT_MS = 1500  # what hangs takes so long: less than the 2 s in which others are enough without it
COLUMNS = {"names": ["a", "b"], "dtypes": ["bfloat16", "bfloat16"], "shapes": [[1], [2, 3]]}
HANDLES = dict(COLUMNS, packed=True, tensor_sizes=[2, 12], ipc_handles_pickled="gASVAAAAAAAAAAB9lC4=")
BROADCAST = dict(COLUMNS, transport="nccl")
JOIN = {"transport": "nccl", "master_address": "10.0.0.1", "master_port": 29500}
FILE = os.path.join(WORK, "two.safetensors")
RESETS = ("reset_cache", "reset_encoder", "reset_storage")
LABELS = (f"step-{i}" for i in itertools.count(1))


def ops_of(step):
    return step if isinstance(step, tuple) else (step,)


def has_in_order(found, wanted):
    """A tuple is what is sent at the same time, and so comes in any order."""
    at = 0
    for step in wanted:
        if any(one not in found[at:] for one in ops_of(step)):
            return False
        at = max(found.index(one, at) for one in ops_of(step)) + 1
    return True


def model_dir(architecture, name=None, **members):
    """A folder with the configuration of a model; it is named after it, or so."""
    folder = os.path.join(WORK, name or architecture)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump({"architectures": [architecture], **members}, f)
    return folder


def reboot(d, ms=1):
    """Another process of it, which was away for that long."""
    boots = d.state()["boots"]
    d.order("GET /health", "restart", ms=ms)
    try:
        d.ask("GET", "/health")
    except (OSError, http.client.HTTPException):
        pass
    d.wait_back(lambda: d.state()["boots"] > boots)


class Fleet:
    """with Fleet("baton", "vllm", …) as f: … doubles, and a server in front of them. patient: it waits as long as any
    machine may take, so a double that hangs stops the test."""
    patient = False

    def __init__(self, *dialects, min_ready=None, options=(), engine=("--weight-version", "step-0"), patient=False):
        named = [(d,) if isinstance(d, str) else d for d in dialects]  # or with options of its own
        says = {"sglang": ("--sglang-config", json.dumps({"model_path": model_dir("Qwen3ForCausalLM")}))}
        self.doubles = [Double(ENGINE, d, "--world-size", RANKS, *says.get(d, ()), *engine, *own) for d, *own in named]
        self.label = "step-0"
        more = [] if min_ready is None else ["--min-ready", min_ready]
        self.options, self.patient = [*more, *options], patient
        self.serve()

    def serve(self):
        waits = (60000, 60000) if self.patient else (1000, TIMEOUT_MS)
        self.front = Server(BATON, LOG, "--probe-interval", PROBE_MS, "--probe-timeout", waits[0], "--update-timeout",
                            waits[1], "--compat", "all", *self.options,
                            *itertools.chain.from_iterable(("--upstream", f"{d.url},{d.dialect}")
                                                           for d in self.doubles))

    def __enter__(self):
        until("it is ready", self.front.ready)
        self.wait(*["serving"] * len(self.doubles))
        return self

    def __exit__(self, kind, *_):
        try:
            for d in self.doubles:
                if not kind and d.process.poll() is None and d.must_be_fresh:
                    d.is_fresh()
            self.front.__exit__(kind)
        finally:
            for d in self.doubles:
                d.process.kill()
                d.process.wait()
                d.process.stdout.close()

    # ---- what is so ----

    def states(self):
        """None: not probed yet. One that was removed and added again is fenced before it is probed."""
        found = [self.front.upstreams()[d.url] for d in self.doubles]
        return [u["state"] if u["last_heard_s"] is not None else None for u in found]

    def wait(self, *states):
        until(lambda: f"{states}: {self.front.upstreams()}", lambda: self.states() == list(states))

    def probed(self):
        self.front.probed(*[d.url for d in self.doubles])

    def stays(self, *states):
        self.probed()
        assert self.states() == list(states), self.front.upstreams()

    def versions(self):
        return [d.state()["version"] for d in self.doubles]

    def pauses(self):
        return [d.state()["pause"] for d in self.doubles]

    def ops(self, d, *but):
        """What was done there, in order, questions left out."""
        return [r["op"] for r in self.doubles[d].journal()
                if r["op"] not in ("who", "weight_info", "version", "is_paused", "is_sleeping", "ranks", "completions", "canary", "health", *but)]

    def did(self, d, wanted, *but):
        """Just that was done there, in that order. Caches may be emptied once more at any time: of an engine that may
        be another process, whenever that is noticed."""
        ops = self.ops(d, *but)
        assert has_in_order(ops, wanted), (ops, wanted)
        alone = [op for step in wanted for op in ops_of(step)]
        assert [op for op in ops if op not in RESETS] == [op for op in alone if op not in RESETS], (ops, wanted)

    def clean(self):
        for d in self.doubles:
            d.good("DELETE", "/fault")
            d.good("DELETE", "/journal")

    def came(self, op):
        return [r["came_us"] for d in self.doubles for r in d.journal(op)]

    # ---- what a trainer does ----

    def init(self):
        return self.front.post("/v1/weight_transfer/init", dict(JOIN, world_size=1 + RANKS * len(self.doubles)))

    def tensors(self):
        if any(d.dialect == "sglang" for d in self.doubles):
            return BROADCAST
        return HANDLES

    def part(self, i):
        """One of the two, by itself."""
        return dict(self.tensors(), **{m: column[i:i + 1] for m, column in COLUMNS.items()})

    def update(self, label, tensors=None):
        """(step that was refused or None, status, answer)"""
        status, said = self.front.ask("POST", "/v1/update_weights/start", {"weight_version": label})
        if status != 200:
            return "start", status, said
        self.id = {"update_id": said["update_id"]}
        status, said = self.front.ask("POST", "/v1/update_weights", dict(tensors or self.tensors(), **self.id))
        if status != 200:
            return "update", status, said
        status, said = self.front.ask("POST", "/v1/update_weights/finish", self.id)
        if status != 200:
            return "finish", status, said
        self.label = label
        return None, status, said

    def update_all(self):
        if self.tensors() is BROADCAST:
            self.init()
        step, _, said = self.update(next(LABELS))
        assert step is None and all(u["ok"] for u in said["upstreams"]), (step, said)
        assert [u["upstream"] for u in said["upstreams"]] == [d.url for d in self.doubles], said
        self.wait(*["serving"] * len(self.doubles))
        assert self.versions() == [self.label] * len(self.doubles), self.versions()
        assert self.pauses() == [None] * len(self.doubles), self.pauses()


def ok_of(said):
    found = said["upstreams"] if "upstreams" in said else said["error"]["details"]["upstreams"]
    return [u["ok"] for u in found]


def refused(f, status, method, path, body=None, code=None):
    found, said = f.front.ask(method, path, body)
    assert found == status, (method, path, found, said)
    assert code is None or said["error"]["code"] == code, said
    return said


# ---- that it goes well ----

ORDER = {"baton": ["start", "update", "verify", "finish"],
         "vllm": ["pause", "mark", "start", "update", ("finish", "reset_cache", "reset_encoder"), "resume"],
         "sglang": ["pause", "mark", "start", "update", ("end", "reset_cache"), ("finish", "reset_storage"), "resume"]}
if SGLANG != "0.5.23":  # which has no start, and says so
    ORDER["sglang"][4:6] = [("finish", "reset_cache"), "reset_storage"]


def goes_well(f):
    f.clean()
    f.update_all()
    f.clean()
    f.update_all()
    for i, d in enumerate(f.doubles):
        f.did(i, ORDER[d.dialect], "init")
        serves(d, f.label)
    for first, then in (("verify", "finish"), ("pause", "update"), ("update", "verify"), ("update", "finish"),
                        ("finish", "resume")):
        a, b = f.came(first), f.came(then)
        assert not a or not b or max(a) < min(b), (first, then, a, b)
    f.wait(*["serving"] * len(f.doubles))
    assert f.front.status()["update"] is None and f.front.status()["weights"]["weight_version"] == f.label


def one_request(f):
    """A whole update by itself, and that ids are theirs."""
    label = next(LABELS)
    said = f.front.post("/v1/update_weights", dict(f.tensors(), weight_version=label))
    assert (said["phase"], said["weight_version"]) == ("committed", label) and all(ok_of(said)), said
    assert f.front.get("/v1/update_weights/" + said["update_id"])["phase"] == "committed"
    assert said["update_id"] not in [r["body"].get("update_id") for d in f.doubles for r in d.journal("finish")
                                     for r in [dict(r, body=json.loads(r["body"] or "{}"))]]
    assert f.versions() == [label] * len(f.doubles)
    f.label = label


def whole_session(f):
    """Every request that has to do with a session."""
    for path in ("/v1/update_weights/start", "/v1/weights/label"):  # such a label would fence the engine that has it
        said = refused(f, 400, "POST", path, {"weight_version": "baton:unfinished:mine"}, "bad_request")
        assert said["error"]["param"] == "/weight_version" and "baton:unfinished:" in said["error"]["message"], said
    start = f.front.post("/v1/update_weights/start", {"weight_version": "never", "lease_s": 30})
    mine = {"update_id": start["update_id"]}
    assert start["phase"] == "open" and start["lease_left_s"] <= 30 and all(ok_of(start)), start
    said = refused(f, 409, "POST", "/v1/update_weights/start", {}, "conflict")
    assert mine["update_id"] in said["error"]["message"], said
    refused(f, 409, "POST", "/v1/update_weights", dict(f.tensors()), "conflict")
    assert f.front.get("/v1/update_weights/" + mine["update_id"])["phase"] == "open"
    assert f.front.status()["update"]["update_id"] == mine["update_id"]
    assert f.front.post("/v1/update_weights/renew", dict(mine, lease_s=40))["lease_left_s"] > 30
    refused(f, 409, "POST", "/v1/sleep", {}, "conflict")
    for path, body in (("", f.tensors()), ("/finish", {}), ("/verify", {}), ("/abort", {}), ("/renew", {})):
        refused(f, 404, "POST", "/v1/update_weights" + path, dict(body, update_id="upd-none"), "not_found")
    refused(f, 400, "POST", "/v1/update_weights", dict(f.tensors(), partial=True, **mine))
    refused(f, 400, "POST", "/v1/update_weights", dict(f.tensors(), names=["a"], **mine))
    refused(f, 400, "POST", "/v1/update_weights", mine)
    refused(f, 400, "POST", "/v1/update_weights/start", {"mode": "staged"})
    for i in range(2):
        assert f.front.post("/v1/update_weights", dict(f.part(i), **mine))["phase"] == "receiving"
    assert f.front.post("/v1/update_weights/verify", mine)["phase"] == "verified"
    refused(f, 409, "POST", "/v1/update_weights", dict(f.tensors(), **mine), "update_closed")
    label = f.label = next(LABELS)
    done = f.front.post("/v1/update_weights/finish", dict(mine, weight_version=label))
    assert (done["phase"], done["weight_version"]) == ("committed", label), done
    again = f.front.post("/v1/update_weights/finish", mine)
    assert (again["serial"], again["weight_version"]) == (done["serial"], label), again
    refused(f, 409, "POST", "/v1/update_weights/abort", mine, "update_closed")
    assert f.versions() == [label] * len(f.doubles)


def given_up(f):
    """Nothing was sent: all is as it was. By each way to say so."""
    before, states = f.versions(), f.states()
    for n, way in enumerate(("abort", "delete", "empty")):
        mine = {"update_id": f.front.post("/v1/update_weights/start")["update_id"]}
        if way == "delete":
            assert f.front.good("DELETE", "/v1/update_weights/" + mine["update_id"])["phase"] == "aborted"
        elif way == "abort":
            said = f.front.post("/v1/update_weights/abort", dict(mine, reason="so it is"))
            assert said["phase"] == "aborted" and "so it is" in said["error"]["message"], said
        else:
            said = refused(f, 422, "POST", "/v1/update_weights/finish", mine, "incomplete_update")
            assert said["error"]["details"]["phase"] == "aborted", said
        refused(f, 409, "POST", "/v1/update_weights/finish", mine, "update_closed")
    assert f.versions() == before and f.pauses() == [None] * len(before)
    f.stays(*states)


def by_lease(f):
    """The trainer died: a partial update is never served."""
    batons = [d.dialect == "baton" for d in f.doubles]
    before = f.versions()
    mine = {"update_id": f.front.post("/v1/update_weights/start", {"lease_s": 30})["update_id"]}
    f.front.post("/v1/update_weights", dict(f.tensors(), **mine))
    f.front.post("/v1/update_weights/renew", dict(mine, lease_s=1))
    until("its lease ended", lambda: f.front.get("/v1/update_weights/" + mine["update_id"])["phase"] == "aborted")
    said = refused(f, 409, "POST", "/v1/update_weights/finish", mine, "update_closed")
    assert "lease" in said["error"]["message"], said
    f.wait(*["serving" if b else "fenced" for b in batons])
    f.stays(*["serving" if b else "fenced" for b in batons])
    assert f.pauses() == [None if b else "keep" for b in batons]
    # What overwrites says which update it has a part of.
    told = [v if b else "baton:unfinished:" + mine["update_id"] for b, v in zip(batons, before)]
    assert f.versions() == told, (f.versions(), told)
    f.update_all()


# ---- pauses, sleep, adapters, the group ----

def pauses(f):
    n = len(f.doubles)
    said = f.front.post("/v1/pause", {"mode": "keep", "owner": "me"})
    assert said["paused"] and said["owner"] == "me" and all(ok_of(said)) and not f.front.ready(), said
    p = f.front.status()["pause"]
    assert f.pauses() == ["keep"] * n and p["owner"] == "me" and p["state"] == "held", p
    f.clean()
    if f.tensors() is BROADCAST:
        f.init()
    step, _, said = f.update(next(LABELS))
    assert step is None, said
    assert f.pauses() == ["keep"] * n  # the trainer's, which ends it
    assert all("pause" not in f.ops(i) and "resume" not in f.ops(i) for i in range(n))
    said = f.front.post("/v1/resume")
    assert said["was_paused"] and all(ok_of(said)), said
    assert f.pauses() == [None] * n and f.front.ready() and f.front.status()["pause"] is None
    f.front.post("/v1/pause", {"lease_s": 1})
    until("its lease ended", lambda: f.pauses() == [None] * n and f.front.status()["pause"] is None)
    refused(f, 400, "POST", "/v1/pause", {"mode": "odd"})
    f.doubles[-1].order("pause", "status", status=503)
    said = f.front.ask("POST", "/v1/pause", {})
    assert said[0] != 200 and ok_of(said[1]) == [True] * (n - 1) + [False], said
    assert f.pauses() == [None] * n
    f.stays(*["serving"] * n)


def resumed_while_held(f):
    """A resume lets nothing go that has half an update in it."""
    n = len(f.doubles)
    f.front.post("/v1/pause")
    mine = {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": "x"})["update_id"]}
    f.front.post("/v1/update_weights", dict(f.tensors(), **mine))
    f.front.post("/v1/resume")
    assert f.pauses() == [None if d.dialect == "baton" else "keep" for d in f.doubles], f.pauses()
    f.front.post("/v1/update_weights/finish", mine)
    assert f.pauses() == [None] * n
    f.update_all()


def sleeps(f):
    n = len(f.doubles)
    f.clean()
    said = f.front.post("/v1/sleep", {"level": 1})
    assert said["asleep"] and said["weights"] == "asleep" and all(ok_of(said)), said
    assert [d.state()["weights_asleep"] for d in f.doubles] == [True] * n and not f.front.ready()
    assert f.front.status()["sleep"]["asleep"] is True
    said = f.front.post("/v1/wake", {"tags": ["weights"]})
    assert said["asleep"] and said["weights"] == "ready", said
    said = f.front.post("/v1/wake", {})
    assert not said["asleep"] and f.front.ready(), said
    assert [d.state()["kv_released"] for d in f.doubles] == [False] * n
    assert all(ok_of(f.front.post("/v1/wake", {})))
    for d in f.doubles:
        if d.dialect == "sglang":  # a second wake of anything would end it
            assert [json.loads(r["body"]) for r in d.journal("wake")] == [{"tags": ["weights"]}, {"tags": ["kv_cache"]}]
    f.doubles[0].order("sleep", "status")
    said = f.front.ask("POST", "/v1/sleep", {})
    assert said[0] != 200 and ok_of(said[1]) == [False] + [True] * (n - 1), said
    f.wait(*["fenced"] + ["serving"] * (n - 1))
    f.front.post("/v1/wake", {})
    f.update_all()


def drops(f):
    """After a sleep at level 2 an engine has no weights, however it is woken: it gets no requests before the
    next update."""
    n = len(f.doubles)
    f.front.post("/v1/sleep", {"level": 2})
    assert f.front.post("/v1/wake", {})["asleep"] is False
    f.stays(*["fenced"] * n)
    assert not f.front.ready()
    f.update_all()
    f.wait(*["serving"] * n)
    assert f.front.ready()


def sleep_breaks(f):
    """A sleep that an engine answers with an error of its own may have been executed: at level 2 its weights may be
    dropped, although it did not say that it sleeps."""
    n = len(f.doubles)
    for level in 1, 2:
        for d in f.doubles:
            d.order("sleep", "status")
        said = f.front.ask("POST", "/v1/sleep", {"level": level})
        assert said[0] == 502 and ok_of(said[1]) == [False] * n, said
        f.wait(*["fenced" if level == 2 and d.dialect != "baton" else "serving" for d in f.doubles])
    until("they are known to be awake", lambda: "may be asleep" not in str(f.front.upstreams()))
    f.update_all()


def others(f):
    n = len(f.doubles)
    for path, body in (("/v1/reset_cache", {}), ("/v1/abort_requests", {"all": True})):
        assert all(ok_of(f.front.post(path, body)))
        f.doubles[0].order("reset_cache" if "cache" in path else "abort_requests", "status")
        assert ok_of(f.front.ask("POST", path, body)[1]) == [False] + [True] * (n - 1)
    f.stays(*["serving"] * n)
    refused(f, 400, "POST", "/v1/abort_requests", {})
    refused(f, 400, "POST", "/v1/pause", {"new_requests": "maybe"})
    refused(f, 400, "POST", "/v1/reset_cache", {"running": 1})
    assert refused(f, 400, "POST", "/v1/wake", {"tags": ["kv_cache", "x"]})["error"]["param"] == "/tags/1"
    refused(f, 400, "POST", "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/a", "pinned": "yes"})
    if f.doubles[0].dialect == "baton":
        assert f.front.post("/v1/pause", {"new_requests": "reject"})["new_requests"] == "reject"
        assert f.front.status()["pause"]["new_requests"] == "reject"
        f.front.post("/v1/resume")
    assert f.pauses() == [None] * n
    refused(f, 400, "POST", "/v1/update_weights", {"path": WORK, "serialized_format": "direct"})
    refused(f, 409, "GET", "/v1/weights", None, "unsupported_in_proxy_mode")
    refused(f, 409, "GET", "/v1/weights/diff", None, "unsupported_in_proxy_mode")
    said = subprocess.run([BATON, "weights", "diff", "--url", f.front.url], capture_output=True, text=True, timeout=60)
    assert said.returncode == 1 and "409 unsupported_in_proxy_mode" in said.stderr and "hint" not in said.stderr, said
    if f.doubles[0].dialect != "baton":
        refused(f, 400, "POST", "/v1/weights/plans", COLUMNS)
        return
    assert f.front.post("/v1/weights/plans", COLUMNS)["plan_id"] == "plan-of-2"
    other = {"plan_id": "another", "covers_manifest": True}
    f.doubles[1].order("plan", "status", status=200, text=json.dumps(other))
    said = refused(f, 502, "POST", "/v1/weights/plans", COLUMNS, "upstream_error")
    assert f.doubles[1].url in said["error"]["message"], said


def named_later(f):
    """One that did not take another name of the version that it serves is given it again."""
    d, n = f.doubles[1], len(f.doubles)
    f.clean()
    for fault in ("status", "close_before", "close_after"):
        label = next(LABELS)
        d.order("finish" if d.dialect == "sglang" else "relabel", fault)
        status, said = f.front.ask("POST", "/v1/weights/label", {"weight_version": label})
        assert status == 502 and ok_of(said) == [i != 1 for i in range(n)], said
        until("it takes it", lambda label=label: f.versions() == [label] * n)
        f.wait(*["serving"] * n)
        f.label = label
    assert not {"start", "update", "mark", "pause"} & set(f.ops(1)), f.ops(1)


def adapters(f):
    n, load = len(f.doubles), {"lora_name": "mine", "lora_path": WORK}

    def theirs():
        return [sorted(d.state()["adapters"]) for d in f.doubles]
    said = f.front.post("/v1/load_lora_adapter", load)
    assert said["lora_name"] == "mine" and said["loaded_adapters"] == {"mine": WORK} and all(ok_of(said)), said
    assert theirs() == [["mine"]] * n
    assert [a["lora_name"] for a in f.front.get("/v1/lora_adapters")["adapters"]] == ["mine"]
    assert f.front.post("/v1/load_lora_adapter", load)["revision"] == 2  # in place, also where that is no word
    refused(f, 400, "POST", "/v1/load_lora_adapter", dict(load, load_inplace=False), "bad_request")
    f.doubles[0].order("lora_load", "status", status=500)
    said = f.front.ask("POST", "/v1/load_lora_adapter", dict(load, lora_name="other"))
    assert said[0] != 200 and ok_of(said[1]) == [False] + [True] * (n - 1), said
    assert theirs() == [["mine"]] * n  # taken back
    f.stays(*["serving"] * n)
    for d in f.doubles:  # another in its place, which is refused
        d.order("lora_load", "status", status=500)
    assert f.front.ask("POST", "/v1/load_lora_adapter", load)[0] == 502
    f.stays(*["serving"] * n)
    left = ["mine"] if f.doubles[0].dialect != "sglang" else []
    assert theirs() == [left] * n and [a["lora_name"] for a in f.front.get("/v1/lora_adapters")["adapters"]] == left
    f.front.post("/v1/load_lora_adapter", load)
    assert f.front.post("/v1/unload_lora_adapter", {"lora_name": "mine"})["loaded_adapters"] == {}
    assert theirs() == [[]] * n
    assert f.front.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "mine"})[0] in (400, 404)
    f.stays(*["serving"] * n)


def group(f):
    n = len(f.doubles)
    said = f.init()
    assert said["state"] == "joined" and len(said["ranks"]) == n * RANKS and all(ok_of(said)), said
    assert [d.state()["group"]["rank_offset"] for d in f.doubles] == [1 + RANKS * i for i in range(n)]
    said = refused(f, 400, "POST", "/v1/weight_transfer/init", dict(JOIN, world_size=3))
    assert str(1 + RANKS * n) in said["error"]["message"], said
    assert f.front.good("DELETE", "/v1/weight_transfer")["state"] == "none"
    refused(f, 409, "POST", "/v1/update_weights", BROADCAST)
    f.clean()
    f.doubles[0].order("init", "status")
    said = f.front.ask("POST", "/v1/weight_transfer/init", dict(JOIN, world_size=1 + RANKS * n))
    assert said[0] != 200 and ok_of(said[1]) == [False] + [True] * (n - 1), said
    for d in f.doubles[1:]:
        assert d.dialect == "vllm" or d.state()["group"] is None
    assert f.front.get("/v1/weight_transfer")["state"] == "none"
    f.doubles[0].order("who" if f.doubles[0].dialect == "baton" else "ranks", "hang", times=0)
    said = f.front.ask("POST", "/v1/weight_transfer/init", dict(JOIN, world_size=1 + RANKS * n))
    f.clean()
    assert said[0] >= 500 and f.doubles[0].url in said[1]["error"]["message"], said
    f.wait(*["serving"] * n)
    f.init()


def named_group(f):
    """It is the group of its name at each upstream; those of vLLM have no names."""
    n = len(f.doubles)
    f.front.good("DELETE", "/v1/weight_transfer")
    f.front.post("/v1/weight_transfer/init", dict(JOIN, world_size=1 + RANKS * n, group_name="g"))
    for tensors in (BROADCAST, dict(BROADCAST, group_name="g")):
        step, _, said = f.update(next(LABELS), tensors)
        assert step is None and ok_of(said) == [True] * n, (step, said)
    for d in f.doubles:
        d.good("DELETE", "/journal")
    said = refused(f, 409, "POST", "/v1/update_weights", dict(BROADCAST, group_name="h"))
    assert "'g', not 'h'" in said["error"]["message"], said
    assert not any(d.journal("update") for d in f.doubles)
    assert f.front.good("DELETE", "/v1/weight_transfer")["state"] == "none"
    assert all(d.state()["group"] is None for d in f.doubles)
    f.stays(*["serving"] * n)
    f.init()


def groups_of_stages(f):
    """slime and AReaL join a group for each pipeline stage of the trainer: an SGLang is in all of them."""
    n = len(f.doubles)
    join = dict(JOIN, rank_offset=1, world_size=1 + n * RANKS)
    f.front.good("DELETE", "/v1/weight_transfer")
    for name in ("pp_0", "pp_1"):
        f.front.post("/init_weights_update_group", dict(join, group_name=name))
    label = next(LABELS)
    f.front.post("/pause_generation", {"mode": "in_place"})
    for d in f.doubles:
        d.good("DELETE", "/journal")
    for name in ("pp_0", "pp_1"):
        step = dict(COLUMNS, group_name=name, weight_version=label)
        assert f.front.post("/update_weights_from_distributed", step)["success"] is True
    f.front.post("/continue_generation", {})
    assert f.versions() == [label] * n
    for d in f.doubles:
        told = [json.loads(entry["body"])["group_name"] for entry in d.journal("update")]
        assert told == ["pp_0", "pp_1"], told
    said = refused(f, 409, "POST", "/v1/update_weights", dict(BROADCAST, group_name="pp_2"))
    assert "'pp_2'" in said["error"]["message"], said
    f.front.post("/destroy_weights_update_group", {"group_name": "pp_0"})
    refused(f, 409, "POST", "/v1/update_weights", dict(BROADCAST, group_name="pp_0"))
    step, _, said = f.update(next(LABELS), dict(BROADCAST, group_name="pp_1"))
    assert step is None and ok_of(said) == [True] * n, (step, said)
    f.front.post("/init_weights_update_group", dict(join, group_name="pp_0"))
    step, _, said = f.update(next(LABELS), BROADCAST)  # by the one that was joined last
    assert step is None and ok_of(said) == [True] * n, (step, said)
    assert all(json.loads(d.journal("update")[-1]["body"])["group_name"] == "pp_0" for d in f.doubles)
    assert f.front.good("DELETE", "/v1/weight_transfer")["state"] == "none"
    assert all(d.state()["group"] is None for d in f.doubles)
    f.stays(*["serving"] * n)
    # Of trainers that ended without leaving theirs the oldest are forgotten.
    f.front.post("/init_weights_update_group", dict(join, group_name="pp_0"))
    for i in range(70):
        f.front.post("/init_weights_update_group", dict(join, group_name=f"g_{i}"))
    refused(f, 409, "POST", "/v1/update_weights", dict(BROADCAST, group_name="pp_0"))
    assert f.front.get("/v1/weight_transfer")["group_name"] == "g_69"
    assert f.front.good("DELETE", "/v1/weight_transfer")["state"] == "none"
    f.init()
    # Joined without a name it has SGLang's own there.
    step, _, said = f.update(next(LABELS), dict(BROADCAST, group_name="weight_update_group"))
    assert step is None and ok_of(said) == [True] * n, (step, said)


# ---- that something breaks ----

BREAKS = {"status": {}, "hang": {}, "close_before": {}, "close_after": {}, "restart": {"ms": 200}}


def breaks(f, i, op, fault):
    """One engine fails at one op; the others succeed. Returns the trainer's reply."""
    f.clean()
    d = f.doubles[i]
    d.order(op, fault, **BREAKS[fault])
    step, status, said = f.update(next(LABELS))
    if fault == "restart":
        d.wait_back(lambda: d.state()["boots"] >= 2)
    return step, status, said


def mend(f):
    """A whole update brings all engines back."""
    for d in f.doubles:
        d.wait_back(lambda d=d: d.good("DELETE", "/fault") and d.good("DELETE", "/journal"))
    for d in f.doubles:  # the reply to the first is read before the second is sent
        d.wait("it is heard", lambda d=d: len(d.journal("who")) >= 2)
    f.update_all()


def two_phases(f):
    """If one does not verify, none commits; and an engine that did not commit with the others is fenced."""
    n, bad = len(f.doubles), 1
    for op, fault in itertools.product(("start", "update", "verify"), BREAKS):
        before = f.versions()
        step, status, said = breaks(f, bad, op, fault)
        assert step == {"verify": "finish"}.get(op, op) and status >= 500, (op, fault, step, said)
        assert (status == 504) == (fault == "hang"), (op, fault, status, said)
        assert f.doubles[bad].url in said["error"]["message"] and ok_of(said)[bad] is False, (op, fault, said)
        assert f.came("finish") == [], (op, fault)
        good = [v for i, v in enumerate(f.versions()) if i != bad]
        assert good == [v for i, v in enumerate(before) if i != bad], (op, fault, good)
        until("nobody has one open", lambda: all(
            d.state()["update"] in (None, "aborted", "committed") for i, d in enumerate(f.doubles) if i != bad))
        mend(f)
    for fault in BREAKS:
        step, status, said = breaks(f, bad, "finish", fault)
        assert step is None and ok_of(said) == [i != bad for i in range(n)], (fault, step, said)
        f.wait(*["fenced" if i == bad else "serving" for i in range(n)])
        mend(f)


def own_words(f):
    """A refusal of an upstream with one of our codes is passed on unchanged."""
    text = {"error": {"message": "checksum of 'a'", "code": "checksum_mismatch", "param": "/checksums/0"}}
    f.doubles[0].order("verify", "status", status=422, text=json.dumps(text))
    step, status, said = f.update(next(LABELS))
    assert (step, status) == ("finish", 422) and said["error"]["code"] == "checksum_mismatch", said
    assert said["error"]["param"] == "/checksums/0" and f.doubles[0].url in said["error"]["message"], said
    mend(f)


def one_phase(f):
    """The quorum goes on: 3 of 4. Who was touched and did not get there is fenced and stays paused."""
    dialect, bad = f.doubles[0].dialect, 2
    n = len(f.doubles)
    ops = [op for step in ORDER[dialect] for op in ops_of(step) if op not in (*RESETS, "resume")]
    for op, fault in itertools.product(ops, BREAKS):
        step, _, said = breaks(f, bad, op, fault)
        assert step is None and ok_of(said) == [i != bad for i in range(n)], (op, fault, step, said)
        assert [v for i, v in enumerate(f.versions()) if i != bad] == [f.label] * (n - 1), f.versions()
        state = f.doubles[bad].state()
        if (op in ("pause", "start") and fault != "restart") or (op, fault) == ("mark", "status"):
            assert state["pause"] is None and not state["torn"], (op, fault, state)
            f.wait(*["unsynced" if i == bad else "serving" for i in range(n)])
        elif fault != "restart":
            assert state["pause"] == "keep", (op, fault, state)
            f.wait(*["fenced" if i == bad else "serving" for i in range(n)])
        mend(f)
    for fault in BREAKS:
        step, _, said = breaks(f, bad, "resume", fault)
        assert step is None and ok_of(said) == [i != bad for i in range(n)], (fault, said)
        if fault == "restart":  # it does not have the update
            f.wait(*["fenced" if i == bad else "serving" for i in range(n)])
            mend(f)
        else:  # it does, and is asked again
            f.wait(*["serving"] * n)
            assert f.pauses() == [None] * n and "update" not in f.ops(bad)[f.ops(bad).index("resume"):], f.ops(bad)


def no_quorum(f):
    """All are needed: of the engines that received bytes, those that finished serve the new version, the others
    are fenced."""
    bad, n = 0, len(f.doubles)
    before = f.versions()
    step, status, said = breaks(f, bad, "pause", "status")
    assert step == "update" and status >= 500 and f.versions() == before, (step, said)
    assert f.pauses() == [None] * n
    f.stays(*["serving"] * n)
    step, _, said = breaks(f, bad, "update", "status")
    assert step == "update", said
    f.wait(*["fenced"] * n)
    assert f.pauses() == ["keep"] * n
    mend(f)
    step, status, said = breaks(f, bad, "finish", "close_before")
    assert step == "finish" and status >= 500 and ok_of(said) == [False] + [True] * (n - 1), (status, said)
    f.wait("fenced", *["serving"] * (n - 1))
    assert len(set(f.versions()[1:])) == 1 and f.front.status()["weights"]["weight_version"] == f.versions()[1]
    assert not f.front.ready() and f.pauses() == ["keep"] + [None] * (n - 1)
    mend(f)


def too_few(f):
    """Fewer answer than must: nothing is begun."""
    d = f.doubles[0]
    d.kill()
    f.wait("down", *["serving"] * (len(f.doubles) - 1))
    for other in f.doubles[1:]:
        other.good("DELETE", "/journal")
    for path, body in (("/v1/update_weights/start", {}), ("/v1/pause", {}), ("/v1/sleep", {}),
                       ("/v1/update_weights", f.tensors())):
        said = refused(f, 503, "POST", path, body, "no_weights")
        assert d.url in said["error"]["message"], said
    f.doubles.pop(0)
    for i in range(len(f.doubles)):
        f.did(i, [])


def mixed(f):
    """Batons, vLLM and SGLang in one fleet: each gets its own words, and batons prove first."""
    f.update_all()
    f.clean()
    f.update_all()
    for i, d in enumerate(f.doubles):
        f.did(i, ORDER[d.dialect], "init")
    assert max(f.came("verify")) < min(f.came("finish")) and max(f.came("pause")) < min(f.came("update"))
    i = [d.dialect for d in f.doubles].index("baton")
    before = f.versions()
    step, _, said = breaks(f, i, "verify", "status")
    assert step == "finish" and f.came("finish") == [], said
    assert [v for v, d in zip(f.versions(), f.doubles) if d.dialect == "baton"] == before[:f.doubles.__len__() - 2]
    f.wait(*["serving" if d.dialect == "baton" else "fenced" for d in f.doubles])
    mend(f)


# ---- other dialects' trainers ----

VLLM_INFO = {"names": COLUMNS["names"], "dtype_names": COLUMNS["dtypes"], "shapes": COLUMNS["shapes"]}
VLLM_JOIN = {"master_address": "10.0.0.1", "master_port": 29500, "rank_offset": 1}


def as_vllm(f):
    n = len(f.doubles)
    f.front.post("/init_weight_transfer_engine", {"init_info": dict(VLLM_JOIN, world_size=1 + n * RANKS)})
    refused(f, 409, "POST", "/finish_weight_update", {})
    f.front.post("/pause?mode=keep")
    f.front.post("/start_weight_update", {"is_checkpoint_format": True})
    starts = [json.loads(d.journal("start")[-1]["body"]) for d in f.doubles if d.dialect == "baton"]
    assert all(body["convert"] for body in starts), starts
    f.front.post("/update_weights", {"update_info": VLLM_INFO})
    label = next(LABELS)
    assert f.front.post("/finish_weight_update", {"weight_version": label})["message"]
    f.front.post("/resume")
    assert f.versions() == [label] * n and f.pauses() == [None] * n
    # Before it had a start and a finish: resume is the end.
    f.front.post("/pause?mode=keep")
    for i in range(2):
        f.front.post("/update_weights", {"update_info": {m: column[i:i + 1] for m, column in VLLM_INFO.items()}})
    assert f.front.post("/resume")["status"] == "resumed"
    assert len(set(f.versions())) == 1 and f.versions()[0] not in (label, None), f.versions()
    assert f.pauses() == [None] * n
    label = next(LABELS)
    assert f.front.post("/update_weight_version", {"new_version": label})["new_version"] == label
    assert f.versions() == [label] * n
    f.stays(*["serving"] * n)


def as_sglang(f):
    n = len(f.doubles)
    group = dict(JOIN, rank_offset=1, world_size=1 + n * RANKS, group_name="g")
    f.front.post("/init_weights_update_group", group)
    f.front.post("/pause_generation", {"mode": "in_place"})
    label = next(LABELS)
    for _ in range(2):
        said = f.front.post("/update_weights_from_distributed", dict(COLUMNS, group_name="g", weight_version=label))
        assert said["success"] is True
    assert f.front.post("/continue_generation", {})["status"] == "ok"
    assert f.versions() == [label] * n and f.pauses() == [None] * n
    # Not paused: the name is the last word.
    f.front.post("/update_weights_from_distributed", dict(COLUMNS, group_name="g"))
    label = next(LABELS)
    f.front.post("/update_weight_version", {"new_version": label, "abort_all_requests": False})
    assert f.versions() == [label] * n and f.pauses() == [None] * n
    # Two steps without a word between them: the second's name ends the first, where nobody counts.
    one, two = next(LABELS), next(LABELS)
    f.front.post("/update_weights_from_distributed", dict(COLUMNS, group_name="g", weight_version=one))
    step = dict(COLUMNS, group_name="g", weight_version=two)
    if f.doubles[0].dialect == "baton":
        refused(f, 400, "POST", "/update_weights_from_distributed", step)
        assert f.front.post("/continue_generation", {})["status"] == "ok" and f.versions() == [one] * n
        f.front.post("/init_weights_update_group", group)  # a refusal ends it: the trainer may be in its broadcast
    f.front.post("/update_weights_from_distributed", step)
    assert f.front.status()["weights"]["weight_version"] == one
    f.front.post("/continue_generation", {})
    assert f.versions() == [two] * n
    if f.doubles[0].dialect == "sglang":
        label = next(LABELS)
        f.front.post("/update_weights_from_disk", {"model_path": WORK, "weight_version": label})
        assert f.versions() == [label] * n
        # Its content cannot be read here, so missing tensors cannot be known.
        for path, members in (("/update_weights_from_tensor", {"serialized_named_tensors": ["bm90aGluZw=="] * RANKS}),
                              ("/update_weights_from_distributed", dict(COLUMNS, group_name="g"))):
            for form in (None, "flattened_bucket"):
                label = next(LABELS)
                f.front.post(path, dict(members, load_format=form, weight_version=label))
                f.front.post("/continue_generation", {})
                assert f.versions() == [label] * n
                for d in f.doubles:
                    said = d.journal("update")[-1]
                    assert said["path"] == path and json.loads(said["body"]).get("load_format") == form, said
    f.wait(*["serving"] * n)


def as_skyrl(f):
    n = len(f.doubles)
    f.front.post("/init_weight_transfer_engine", {"init_info": dict(VLLM_JOIN, world_size=1 + n * RANKS)})
    for _ in range(2):  # of the first nothing came: it ends
        f.front.post("/collective_rpc", {"method": "skyrl_start_weight_update", "kwargs": {}})
    f.front.post("/collective_rpc", {"method": "update_weights_nccl", "kwargs": {"update_info": VLLM_INFO}})
    refused(f, 409, "POST", "/collective_rpc", {"method": "skyrl_start_weight_update", "kwargs": {}})
    label = next(LABELS)
    f.front.post("/collective_rpc", {"method": "skyrl_finish_weight_update", "kwargs": {"weight_version": label}})
    assert f.versions() == [label] * n


# ---- our client ----

def write_file():
    header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
                         "b": {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 32]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(FILE, "wb") as out:
        out.write(struct.pack("<Q", len(header)) + header + bytes(32))


def by_client(f):
    write_file()
    for via in ("path", "shm"):
        label = next(LABELS)
        said = baton.push(FILE, f.front.url, via=via, weight_version=label)
        assert (said["phase"], said["weight_version"]) == ("committed", label), said
        assert f.versions() == [label] * len(f.doubles)
    mine = f.front.post("/v1/update_weights/start", {"weight_version": "x"})["update_id"]
    baton.push(FILE, f.front.url, via="path", update_id=mine)
    assert f.front.post("/v1/update_weights/finish", {"update_id": mine})["weight_version"] == "x"
    try:
        baton.push(FILE, f.front.url, via="body")
        raise AssertionError("a body was taken")
    except baton.BatonError as e:
        assert e.code == "unsupported_in_proxy_mode" and "ipc_handles_pickled for vLLM" in str(e), e


# ---- at the same time ----

def overtaken(f):
    """A pause that waits for what runs, and a resume that does not wait for it."""
    d, said = f.doubles[0], []
    f.clean()  # pauses of before
    d.order("pause", "slow", ms=700)
    t = threading.Thread(target=lambda: said.append(f.front.ask("POST", "/v1/pause", {"timeout_s": 30})))
    t.start()
    d.wait("the pause comes", lambda: d.journal("pause"))
    p = f.front.status()["pause"]
    assert p["state"] == "pending" and p["acknowledged"] is False, p
    assert f.front.get("/is_paused") == {"is_paused": True}
    f.front.post("/v1/resume")
    assert t.is_alive(), said
    t.join()
    assert said[0][0] == 409, said
    assert f.pauses() == [None] * len(f.doubles) and f.front.status()["pause"] is None


def at_once(f):
    """Two tensors' requests in one session; a finish meanwhile is refused; an abort is not."""
    mine = {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": next(LABELS)})["update_id"]}
    said = []
    f.doubles[0].order("update", "slow", ms=500, times=2)
    threads = [threading.Thread(target=lambda: said.append(
        f.front.ask("POST", "/v1/update_weights", dict(f.tensors(), **mine)))) for _ in range(2)]
    for t in threads:
        t.start()
    f.doubles[0].wait("they come", lambda: len(f.doubles[0].journal("update")) >= 1)
    refused(f, 409, "POST", "/v1/update_weights/finish", mine, "conflict")
    assert f.front.post("/v1/update_weights/abort", mine)["phase"] == "aborted"
    for t in threads:
        t.join()
    assert all(s[0] == 409 for s in said), said
    mend(f)


def wholes_queue(f):
    """Whole updates by themselves come one after the other."""
    said = []
    threads = [threading.Thread(target=lambda: said.append(f.front.ask(
        "POST", "/v1/update_weights", dict(f.tensors(), weight_version=next(LABELS))))) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [s[0] for s in said] == [200] * 3 and len({s[1]["serial"] for s in said}) == 3, said


def told(name, what, *args):
    began = time.monotonic()
    try:
        what(*args)
    except BaseException:
        print(f"--- in {name}", file=sys.stderr)
        raise
    print(f"{name}: {time.monotonic() - began:.2f} s", flush=True)


def of_dialect(dialect):
    with Fleet(*[dialect] * 4, min_ready=3) as f:
        promises = [goes_well, one_request, whole_session, given_up, by_lease, pauses, resumed_while_held, sleeps, sleep_breaks,
                    drops, others, named_later, adapters, group, at_once, wholes_queue, overtaken, as_vllm]
        if dialect != "vllm":  # whose groups have no name
            promises += [named_group, as_sglang]
        if dialect == "sglang":
            promises.append(groups_of_stages)
        if dialect == "baton":
            promises.append(as_skyrl)
        promises += [own_words, two_phases, by_client] if dialect == "baton" else [one_phase]
        f.update_all()
        for p in promises:
            told(p.__name__, p, f)
    with Fleet(*[dialect] * 3) as f:
        f.update_all()
        for p in [too_few] if dialect == "baton" else [no_quorum, too_few]:
            told(p.__name__, p, f)


def main():
    if WHICH != "mixed":
        of_dialect(WHICH)
        return
    with Fleet(*["baton"] * 3, "vllm", "sglang", min_ready=3) as f:
        told("mixed", mixed, f)


if __name__ == "__main__":
    main()
