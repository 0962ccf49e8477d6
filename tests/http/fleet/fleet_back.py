"""An upstream that returns gets the fleet's adapters; and a call that hangs at one upstream delays no other
request.

Usage: as fleet_control.py.
"""

import json
import os
import signal
import struct
import threading
import urllib.parse

import fleet_control
from fake_engine_world import Double, events, finish_of
from fleet_control import BROADCAST, LABELS, WHICH, Fleet, ok_of, reboot, refused, told
from fleet_world import Server, until

fleet_control.TIMEOUT_MS = 120000  # an update may hang for as long as it likes
OTHER, KEPT = (os.path.join(fleet_control.WORK, name) for name in ("other", "kept"))
os.makedirs(OTHER, exist_ok=True)
LOAD = {"lora_name": "mine", "lora_path": fleet_control.WORK}
BY_TENSORS = {"lora_name": "sent", "names": ["a"], "dtypes": ["float32"], "shapes": [[1]],
              "ipc_handles_pickled": "gASVAAAAAAAAAAB9lC4=", "adapter_config": {}}


def restart(f, d):
    """Seen: it does not answer before, and until it is another process. Another fault stays ordered."""
    d.order("who", "close_before", times=0)
    until("it is down", lambda: of(f, d)["state"] in ("down", "fenced"))
    reboot(d)
    d.good("DELETE", "/fault?on=who")


def theirs(f):
    return [sorted(d.state()["adapters"]) for d in f.doubles]


def of(f, d):
    return f.front.upstreams()[d.url]


def wait_all(f):
    f.wait(*["serving"] * len(f.doubles))
    assert [of(f, d)["missing_adapters"] for d in f.doubles] == [[]] * len(f.doubles), f.front.upstreams()


def one_token(f, model, n=1):
    """Its status, by the adapter's name as each dialect has it."""
    if f.doubles[0].dialect == "sglang":
        return f.front.ask("POST", "/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": n},
                                                 **({} if model is None else {"lora_path": model})})
    return f.front.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": n,
                                                   **({} if model is None else {"model": model})})


def states_of(d):
    """All that it was in, in order."""
    with open(fleet_control.LOG) as log:
        entries = [json.loads(line) for line in log if '"upstream.state"' in line]
    return [e["to"] for e in entries if e["upstream"] == d.url]


class Askers:
    """Clients of an adapter: none may find an upstream that lacks it. with Askers(f, "mine"): …"""

    def __init__(self, f, model):
        self.f, self.model, self.stop, self.bad, self.n = f, model, False, [], 0
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(4)]

    def __enter__(self):
        for t in self.threads:
            t.start()
        until("they are answered", lambda: self.n >= 8)
        return self

    def _run(self):
        while not self.stop:
            status, said = one_token(self.f, self.model)
            self.n += 1
            if status not in (200, 502):  # 502: it was there when the process ended
                self.bad.append((status, said))

    def __exit__(self, kind, *_):
        n = self.n
        if kind is None:
            until("they are answered by all", lambda: self.n >= n + 8)
        self.stop = True
        for t in self.threads:
            t.join()
        assert kind or not self.bad, self.bad[:3]


# ---- adapters ----

def loaded_again(f):
    """Before it gets a request; whether it was out of step besides or not."""
    d = f.doubles[1]
    f.front.post("/v1/load_lora_adapter", LOAD)
    f.front.post("/v1/load_lora_adapter", dict(LOAD, lora_name="two", lora_path=OTHER))
    for first in (True, False):
        if not first:
            f.update_all()
        f.clean()
        with Askers(f, "mine"):
            d.order("lora_load", "slow", ms=200)
            restart(f, d)
            until("it has them", lambda: theirs(f)[1] == ["mine", "two"])
            if not first:
                until("it is out of step", lambda: of(f, d)["state"] == "unsynced" and of(f, d)["missing_adapters"] == [])
                f.update_all()
            wait_all(f)
        assert theirs(f) == [["mine", "two"]] * len(f.doubles), theirs(f)
        loads = [json.loads(r["body"]) for r in d.journal("lora_load")]
        assert sorted((r["lora_name"], r["lora_path"]) for r in loads) == [
            ("mine", fleet_control.WORK), ("two", OTHER)], loads
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "two"})


def told_meanwhile(f):
    """The missing adapters are reported, and why it gets no requests."""
    d = f.doubles[1]
    d.order("lora_load", "status", status=500, text='{"error":{"message":"no room for it"}}', times=0)
    restart(f, d)
    until("it lacks it", lambda: of(f, d)["missing_adapters"] == ["mine"])
    f.update_all_but(1)
    until("it is refused", lambda: "no room" in (of(f, d)["error"] or {"message": ""})["message"])
    one = of(f, d)
    assert one["state"] == "unsynced" and "'mine'" in one["error"]["message"], one
    assert [u["missing_adapters"] for u in f.front.get("/v1/upstreams")["list"] if u["upstream"] != d.url] == [[]] * (
        len(f.doubles) - 1)
    d.good("DELETE", "/fault")
    until("it has it", lambda: theirs(f)[1] == ["mine"])
    wait_all(f)


def unloaded_instead(f):
    """An engine that cannot load the adapter again returns once no engine has it."""
    d, n = f.doubles[1], len(f.doubles)
    d.order("lora_load", "status", status=500, times=0)
    restart(f, d)
    until("it lacks it", lambda: of(f, d)["missing_adapters"] == ["mine"])
    said = f.front.post("/v1/unload_lora_adapter", {"lora_name": "mine"})
    assert ok_of(said) == [True] * n and said["loaded_adapters"] == {}, said
    f.update_all()
    wait_all(f)
    d.good("DELETE", "/fault")
    assert theirs(f) == [[]] * n


def unload_of_none(f):
    """What was asked for is so where there is none."""
    d, n = f.doubles[1], len(f.doubles)
    f.front.post("/v1/load_lora_adapter", LOAD)
    d.post("/unload_lora_adapter" if d.dialect == "sglang" else "/v1/unload_lora_adapter", {"lora_name": "mine"})
    said = f.front.post("/v1/unload_lora_adapter", {"lora_name": "mine"})
    assert ok_of(said) == [True] * n and said["revision"] == 1, said
    f.stays(*["serving"] * n)
    said = refused(f, 404, "POST", "/v1/unload_lora_adapter", {"lora_name": "mine"}, "not_found")
    assert "'mine'" in said["error"]["message"], said
    f.stays(*["serving"] * n)


def away_at_load(f):
    """Whoever does not answer when the others load, replace or unload one is made as they are, and then serves."""
    d, n = f.doubles[-1], len(f.doubles)

    def away():
        d.order("who", "close_before", times=0)
        f.wait(*["serving"] * (n - 1), "down")

    def back():
        d.good("DELETE", "/fault")
        until("it is as the others are", lambda: len({tuple(t) for t in theirs(f)}) == 1)
        f.update_all()
        wait_all(f)
    away()
    f.front.post("/v1/load_lora_adapter", LOAD)
    assert of(f, d)["missing_adapters"] == ["mine"] and theirs(f)[-1] == []
    back()
    away()
    assert f.front.post("/v1/load_lora_adapter", dict(LOAD, lora_path=OTHER))["revision"] == 2
    d.good("DELETE", "/journal")
    d.good("DELETE", "/fault")
    d.wait("it takes the other", lambda: [json.loads(r["body"])["lora_path"] for r in d.journal("lora_load")] == [OTHER])
    f.update_all()
    wait_all(f)
    away()
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "mine"})
    assert theirs(f) == [[]] * (n - 1) + [["mine"]]
    back()
    assert theirs(f) == [[]] * n


def failed_half(f):
    """One that did not follow, or did not let go, gets no request before it has."""
    d, n = f.doubles[0], len(f.doubles)
    f.front.post("/v1/load_lora_adapter", LOAD)
    d.order("lora_load", "status", status=500)
    status, said = f.front.ask("POST", "/v1/load_lora_adapter", dict(LOAD, lora_path=OTHER))
    assert status == 502 and ok_of(said) == [False] + [True] * (n - 1), said
    assert f.front.get("/v1/lora_adapters")["adapters"][0]["path"] == OTHER
    wait_all(f)
    assert json.loads(d.journal("lora_load")[-1]["body"])["lora_path"] == OTHER
    d.order("lora_unload", "status", status=500, times=2)
    status, said = f.front.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "mine"})
    assert status == 502 and ok_of(said) == [False] + [True] * (n - 1), said
    assert f.front.get("/v1/lora_adapters")["adapters"] == []
    until("it lets go", lambda: theirs(f) == [[]] * n)
    wait_all(f)


def keeps_the_old(f):
    """One that must unload the adapter before it loads another of that name, and fails, still has the one before."""
    d, n = f.doubles[0], len(f.doubles)
    if d.dialect != "sglang":  # the others replace it
        return
    f.front.post("/v1/load_lora_adapter", LOAD)
    d.order("lora_unload", "status", status=500)
    status, said = f.front.ask("POST", "/v1/load_lora_adapter", dict(LOAD, lora_path=OTHER))
    assert status == 502 and ok_of(said) == [False] + [True] * (n - 1), said  # the others have the new one
    wait_all(f)
    assert [d.state()["adapters"] for d in f.doubles] == [{"mine": OTHER}] * n
    for one in f.doubles:
        one.order("lora_unload", "status", status=500)
    assert f.front.ask("POST", "/v1/load_lora_adapter", LOAD)[0] == 400
    assert [a["path"] for a in f.front.get("/v1/lora_adapters")["adapters"]] == [OTHER], "all have it"
    wait_all(f)
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "mine"})
    assert theirs(f) == [[]] * n


def lets_go_of_the_old(f):
    """One that keeps the adapter before when it refuses another unloads it, by a request that names nothing else."""
    d, n = f.doubles[0], len(f.doubles)
    if d.dialect == "sglang":  # it unloads the one before first
        return
    f.front.post("/v1/load_lora_adapter", LOAD)
    d.order("lora_load", "status", status=404, times=0)
    assert f.front.ask("POST", "/v1/load_lora_adapter", dict(LOAD, lora_path=OTHER, load_inplace=True))[0] == 502
    until("it lets go", lambda: theirs(f)[0] == [])
    assert [json.loads(r["body"]) for r in d.journal("lora_unload")][-1] == {"lora_name": "mine"}, d.journal("lora_unload")
    d.good("DELETE", "/fault")
    wait_all(f)
    assert theirs(f) == [["mine"]] * n
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "mine"})


def beside_a_load_that_hangs(f):
    """A load that is tried again and hangs hides nothing else that its engine lacks, or still has."""
    d, n = f.doubles[0], len(f.doubles)
    f.front.post("/v1/load_lora_adapter", dict(LOAD, timeout_s=6))
    for one in f.doubles:
        one.order("lora_load", "status", status=404, times=0)
        restart(f, one)
    until("all are without", lambda: [of(f, one)["missing_adapters"] for one in f.doubles] == [["mine"]] * n)
    f.update_all_but()
    d.good("DELETE", "/fault")
    d.order("lora_load", "hang")
    n_loads = len(d.journal("lora_load"))
    d.wait("it is asked again", lambda: len(d.journal("lora_load")) > n_loads)
    for one in f.doubles:
        one.good("DELETE", "/fault")

    def stays_out(lacks):
        for _ in range(20):
            one = of(f, d)
            assert one["state"] == "unsynced" and ("two" in one["missing_adapters"]) == lacks, one
    two = dict(LOAD, lora_name="two")
    f.front.post("/v1/load_lora_adapter", two)
    d.order("lora_load", "status", status=404)
    d.order("lora_unload", "status", status=500, times=2)
    assert f.front.ask("POST", "/v1/load_lora_adapter", dict(two, lora_path=OTHER, load_inplace=True))[0] == 502
    stays_out(True)
    assert f.front.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "two"})[0] == 502
    stays_out(False)
    wait_all(f)
    assert theirs(f) == [["mine"]] * n
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "mine"})


def by_tensors(f):
    """An adapter that cannot be loaded again keeps engines without it out of rotation until it is loaded again;
    if all lack it, none is kept out."""
    d, n = f.doubles[1], len(f.doubles)
    if d.dialect != "baton":
        return
    f.front.post("/v1/load_lora_adapter", BY_TENSORS)
    restart(f, d)
    until("it is out", lambda: of(f, d)["missing_adapters"] == ["sent"])
    f.update_all_but(1)
    until(lambda: f"that is told: {of(f, d)}", lambda: "load it again" in (of(f, d)["error"] or {"message": ""})["message"])
    f.stays(*["unsynced" if i == 1 else "serving" for i in range(n)])
    assert d.journal("lora_load")[-1]["n"] < d.journal("who")[-1]["n"] and theirs(f)[1] == []
    with Askers(f, "sent"):
        assert f.front.post("/v1/load_lora_adapter", BY_TENSORS)["revision"] == 2
        wait_all(f)
    for one in f.doubles:
        restart(f, one)
    until("all are without", lambda: [of(f, one)["missing_adapters"] for one in f.doubles] == [["sent"]] * n)
    f.update_all_but()
    f.wait(*["serving"] * n)
    status, said = one_token(f, "sent")
    assert status == 404 and "sent" in json.dumps(said), said
    assert ok_of(f.front.post("/v1/unload_lora_adapter", {"lora_name": "sent"})) == [True] * n
    wait_all(f)


def changed_on_disk(f):
    """Another revision of the adapter is not taken for the same, if the upstream reports it."""
    d = f.doubles[1]
    if d.dialect != "baton":  # no other engine does
        return

    def says(double, digest, times):
        double.order("lora_load", "status", status=200, acts=True, times=times,
                     text=json.dumps({"status": "ok", "lora_name": "mine", "digest": digest}))
    for double, digest in zip(f.doubles, ("d1", "d2", *["d1"] * len(f.doubles))):
        says(double, digest, 1)
    status, said = f.front.ask("POST", "/v1/load_lora_adapter", LOAD)  # other files at the path of its host
    assert (status, said["error"]["code"]) == (502, "upstream_error") and "other files" in said["error"]["message"], said
    d1, d2 = [u["ok"] for u in said["error"]["details"]["upstreams"]][:2]
    assert d1 != d2, said  # the first to answer has what is taken for the right files
    assert theirs(f) == [[]] * len(f.doubles)
    for double in f.doubles:
        says(double, "d1", 1)
    f.front.post("/v1/load_lora_adapter", LOAD)
    says(d, "d2", 0)
    restart(f, d)
    until("it has another", lambda: theirs(f)[1] == ["mine"])
    f.update_all_but(1)
    until("that is told", lambda: "have changed since" in (of(f, d)["error"] or {"message": ""})["message"])
    assert of(f, d)["missing_adapters"] == ["mine"]
    n_loads, n_states = len(d.journal("lora_load")), len(states_of(d))
    d.wait("it loads others again", lambda: len(d.journal("lora_load")) > n_loads)
    assert "serving" not in states_of(d)[n_states:], "with other files"
    d.good("DELETE", "/fault")
    says(d, "d1", 0)
    wait_all(f)
    d.good("DELETE", "/fault")
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "mine"})


def gone_from_disk(f):
    """A path that cannot be read any more keeps no engine away if none has the adapter."""
    n = len(f.doubles)
    if f.doubles[0].dialect == "baton":  # whose double does not look
        return
    where = os.path.join(fleet_control.WORK, "short-lived")
    os.makedirs(where)
    f.front.post("/v1/load_lora_adapter", dict(LOAD, lora_path=where))
    os.rmdir(where)
    restart(f, f.doubles[1])
    until("it is refused", lambda: of(f, f.doubles[1])["missing_adapters"] == ["mine"])
    f.update_all_but(1)
    f.stays(*["unsynced" if i == 1 else "serving" for i in range(n)])
    for d in f.doubles:
        restart(f, d)
    until("all are without", lambda: [of(f, d)["missing_adapters"] for d in f.doubles] == [["mine"]] * n)
    f.update_all_but()
    f.wait(*["serving"] * n)
    assert one_token(f, "mine")[0] in (400, 404)
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "mine"})
    wait_all(f)


def update_all_but(f, *out):
    """A whole update, after which those engines still get no requests."""
    until("all answer", lambda: not {"down", "unknown"} & set(f.states()))
    if f.tensors() is BROADCAST:
        f.init()
    step, _, said = f.update(next(LABELS))
    assert step is None and all(ok_of(said)), said
    f.wait(*["unsynced" if i in out else "serving" for i in range(len(f.doubles))])


Fleet.update_all_but = update_all_but


# ---- adapters that are sent as tensors ----

def safetensors(value, n=4):
    """A file of one tensor."""
    head = json.dumps({"a": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}).encode()
    return struct.pack("<Q", len(head)) + head + bytes([value] * n)


def send(f, name, tensors, **query):
    """(status, answer)"""
    query = {"lora_name": name, "adapter_config": json.dumps({"r": sum(tensors[-1:])}), **query}
    return f.front.ask("POST", "/v1/load_lora_adapter?" + urllib.parse.urlencode(query), tensors,
                       {"Content-Type": "application/vnd.safetensors"})


def last_load(d):
    """The file that it was told to load last; None: it is not there any more."""
    where = json.loads(d.journal("lora_load")[-1]["body"])["lora_path"]
    try:
        with open(os.path.join(where, "adapter_config.json"), encoding="utf-8") as config, \
             open(os.path.join(where, "adapter_model.safetensors"), "rb") as tensors:
            found = tensors.read()
            assert json.load(config) == {"r": found[-1]}
            return found
    except FileNotFoundError:
        return None


def kept():
    return sorted(name for _, _, names in os.walk(KEPT) for name in names)


ONE_LOAD = ["adapter_config.json", "adapter_model.safetensors"]


def sent_and_healed(f):
    """One that restarts has it before its first request: of the last revision; and none that was unloaded."""
    d, n = f.doubles[1], len(f.doubles)
    for revision in (1, 2):
        status, said = send(f, "../mine", safetensors(revision))
        assert status == 200 and said["revision"] == revision and ok_of(said) == [True] * n, said
        assert all(last_load(one) == safetensors(revision) for one in f.doubles) and kept() == ONE_LOAD
        (listed,) = f.front.get("/v1/lora_adapters")["adapters"]
        assert listed["path"].startswith(os.path.join(KEPT, "%2E%2E%2Fmine/")), listed
    f.clean()
    with Askers(f, "../mine"):
        restart(f, d)
        until("it has it", lambda: theirs(f)[1] == ["../mine"])
        f.update_all()
        wait_all(f)
    assert last_load(d) == safetensors(2)
    assert "baton_adapter_dir_bytes " + str(len(safetensors(2)) + len('{"r": 2}')) in f.front.good("GET", "/metrics")
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "../mine"})
    f.clean()
    restart(f, d)
    until("it is out of step", lambda: of(f, d)["state"] == "unsynced")
    f.update_all()
    wait_all(f)
    assert d.journal("lora_load") == [] and kept() == os.listdir(KEPT) == []
    status, said = send(f, "ga", safetensors(1), adapter_config=json.dumps({"init_lora_weights": "LoRA_GA"}))
    assert status == 200, said
    with open(f.front.log, encoding="utf-8") as log:
        assert [line for line in log if '"event":"lora.base_changed"' in line and '"lora_name":"ga"' in line]
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "ga"})


def sent_to_some(f):
    """A load that fails at one leaves no file, or, of a known adapter, those of the last revision, which it gets."""
    d, n = f.doubles[0], len(f.doubles)
    d.order("lora_load", "status", status=500)
    status, said = send(f, "mine", safetensors(1))
    assert status == 502 and ok_of(said) == [False] + [True] * (n - 1) and kept() == [], (said, kept())
    until("none has it", lambda: theirs(f) == [[]] * n)
    send(f, "mine", safetensors(2))
    d.order("lora_load", "status", status=500)
    status, said = send(f, "mine", safetensors(3))
    assert status == 502 and ok_of(said) == [False] + [True] * (n - 1), said
    wait_all(f)
    assert last_load(d) == safetensors(3) and kept() == ONE_LOAD
    for one in f.doubles:
        one.order("lora_load", "status", status=500)
    assert send(f, "mine", safetensors(4))[0] == 502
    f.clean()
    wait_all(f)
    if d.dialect == "sglang":  # each had to unload the one before
        assert kept() == [] and theirs(f) == [[]] * n
        send(f, "mine", safetensors(3))
    d.order("lora_load", "restart", ms=300)
    status, said = send(f, "mine", safetensors(5))
    assert ok_of(said)[1:] == [True] * (n - 1), said
    d.wait_back(lambda: list(d.state()["adapters"]) == ["mine"])
    f.update_all()
    wait_all(f)
    assert last_load(d) == safetensors(5) and kept() == ONE_LOAD
    f.front.post("/v1/load_lora_adapter", dict(LOAD, lora_path=OTHER))
    assert kept() == []
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "mine"})


def sent_wrongly(f):
    """Refused before an upstream is asked, and nothing is kept; over the limit the last revision stays."""
    f.clean()
    for tensors, query, field in ((b"", {}, None), (safetensors(1)[:-1], {}, None), (safetensors(1) + b"x", {}, None),
                                  (safetensors(1), {"adapter_config": "[]"}, "/adapter_config"),
                                  (safetensors(1), {"adapter_config": "{"}, "/adapter_config"),
                                  (safetensors(1), {"load_inplace": "x"}, "/load_inplace"),
                                  (safetensors(1), {"lora_name": "." * 90}, "/lora_name"),
                                  (safetensors(1), {"timeout_s": 3601}, "/timeout_s")):
        status, said = send(f, "x", tensors, **query)
        assert status == 400 and (field is None or said["error"]["param"] == field), (query, said)
    assert all(d.journal("lora_load") == [] for d in f.doubles) and kept() == []
    assert send(f, "x", safetensors(1, 40000))[0] == 200
    status, said = send(f, "x", safetensors(1, 40000))
    assert status == 507 and "--max-lora-bytes" in said["error"]["message"], said
    assert kept() == ONE_LOAD and f.front.get("/v1/lora_adapters")["adapters"][0]["revision"] == 1
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "x"})


def sent_before_it_joined():
    """One that SIGHUP adds has it before its first request."""
    names = os.path.join(fleet_control.WORK, "names")
    with open(names, "w", encoding="utf-8") as file:
        file.write("# none")
    with Double(fleet_control.ENGINE, WHICH, "--weight-version", "step-0") as late, \
         Fleet(WHICH, options=("--adapter-dir", KEPT, "--upstream-file", names)) as f:
        assert send(f, "mine", safetensors(7))[0] == 200
        late.order("lora_load", "slow", ms=200)
        with open(names, "w", encoding="utf-8") as file:
            file.write(f"{late.url},{WHICH}")
        f.front.process.send_signal(signal.SIGHUP)
        until("it has it", lambda: late.url in f.front.upstreams() and list(late.state()["adapters"]) == ["mine"])
        assert last_load(late) == safetensors(7)


def sent_to_an_earlier_server():
    """A load or unload that reaches no engine removes none of the files that engines have loaded, of this server or an earlier one."""
    with Fleet(WHICH, options=("--adapter-dir", KEPT)) as f:
        (d,) = f.doubles
        assert send(f, "mine", safetensors(1))[0] == 200
        for known in (True, False):
            d.order("who", "close_before", times=0)
            f.wait("down")
            status, said = send(f, "mine", safetensors(2))
            assert status == 503 and last_load(d) == safetensors(1) and kept() == ONE_LOAD, (known, said, kept())
            status, said = f.front.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "mine"})
            assert status == 503 and last_load(d) == safetensors(1), (known, said, kept())
            reboot(d)
            d.good("DELETE", "/fault")
            if known:
                until("it has it again", lambda: theirs(f) == [["mine"]] and last_load(d) == safetensors(1))
                killed(f)
            f.wait("serving")
        d.order("lora_load", "status", status=404)
        status, said = send(f, "mine", safetensors(3))
        assert status == 404 and last_load(d) is None and kept() == ONE_LOAD, (said, kept())
        status, said = f.front.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "mine"})
        assert status == 404 and kept() == [], (said, kept())


# ---- what hangs ----

class Beside:
    """A request that hangs at one upstream, on a thread; what is done meanwhile does not wait for it."""

    def __init__(self, f, op, method, path, body=None, d=None):
        self.f, self.d, self.said = f, d or f.doubles[1], []
        n = len(self.d.journal(op))
        self.d.order(op, "hang")
        self.thread = threading.Thread(target=self._run, args=(method, path, body), daemon=True)
        self.thread.start()
        self.d.wait("it hangs", lambda: len(self.d.journal(op)) > n)

    def _run(self, *asked):
        self.said.append(self.f.front.ask(*asked, timeout=400))

    def hangs(self):
        assert self.thread.is_alive(), self.said

    def end(self):
        self.d.kill()  # its connections end
        self.thread.join()
        return self.said[0]


def sleep_hangs():
    with Fleet(*[WHICH] * 3, min_ready=2) as f:
        f.update_all()
        b = Beside(f, "sleep", "POST", "/v1/sleep", {"level": 1})
        assert all(ok_of(f.front.post("/v1/pause"))) and f.pauses() == ["keep"] * 3
        assert all(ok_of(f.front.post("/v1/resume"))) and f.pauses() == [None] * 3
        b.hangs()
        status, said = b.end()
        assert status >= 500 and ok_of(said) == [True, False, True], said


def back_while_still():
    """It was not paused: also before the first update it serves only once it is, or the others are resumed."""
    for stop, go in (("pause", "/v1/resume"), ("sleep", "/v1/wake")):
        with Fleet(*[WHICH] * 3, min_ready=2) as f:
            d = f.doubles[1]
            f.front.post(f"/v1/{stop}")
            d.order(stop, "close_before", times=0)
            restart(f, d)
            until(lambda: f"it is told: {of(f, d)}", lambda: of(f, d)["state"] == "unsynced")
            f.stays("serving", "unsynced", "serving")
            assert "when they resume" in of(f, d)["error"]["message"], of(f, d)
            d.good("DELETE", f"/fault?on={stop}")
            assert all(ok_of(f.front.post(go)))
            f.wait(*["serving"] * 3)
            assert f.pauses() == [None] * 3


def paused_while_still():
    """One that is restarted or added while the others are paused is paused like them, and counts as they do."""
    with Fleet(*[WHICH] * 3, min_ready=2) as f:
        d = f.doubles[1]
        f.front.post("/v1/pause")
        restart(f, d)
        until(lambda: f"it is paused: {f.pauses()}", lambda: f.pauses() == ["keep"] * 3)
        f.wait(*["serving"] * 3)
        f.front.post("/v1/upstreams/remove", {"upstream": d.url})
        reboot(d)
        f.front.post("/v1/upstreams", {"upstream": f"{d.url},{d.dialect}"})
        until(lambda: f"it is paused: {f.pauses()}", lambda: f.pauses() == ["keep"] * 3)
        f.front.post("/v1/resume")
        f.wait(*["serving"] * 3)
        assert f.pauses() == [None] * 3


def removed_while_paused():
    """What runs there goes on with the others, and ends."""
    names = os.path.join(fleet_control.WORK, "upstreams")
    slow = ("--weight-version", "step-0", "--interval-us", 20000)
    with Fleet(*[WHICH] * 2, min_ready=1, engine=slow) as f:
        f.front.__exit__(None)
        urls = [f"{d.url},{d.dialect}" for d in f.doubles]

        def write(urls):
            with open(names, "w", encoding="utf-8") as file:
                file.write("\n".join(urls) + "\n")
            os.chmod(names, 0o600)
        write(urls)
        f.front = Server(fleet_control.BATON, fleet_control.LOG, "--upstream-file", names, "--probe-interval", 30,
                         "--min-ready", 1, "--compat", "all")
        f.wait("serving", "serving")
        said = []
        threads = [threading.Thread(target=lambda: said.append(one_token(f, None, 100)[0]), daemon=True)
                   for _ in range(2)]
        for t in threads:
            t.start()
        until("both run", lambda: [d.state()["running"] for d in f.doubles] == [1] * 2)
        f.front.post("/v1/pause")
        write(urls[:1])
        f.front.process.send_signal(signal.SIGHUP)
        until("it is removed", lambda: f.doubles[1].url not in f.front.upstreams() or
              of(f, f.doubles[1])["state"] == "removed")
        assert all(ok_of(f.front.post("/v1/resume")))
        for t in threads:
            t.join()
        assert said == [200] * 2 and f.pauses() == [None] * 2, said


def named_within_update():
    """What serves is half of another version then: it has no name that could be changed."""
    if WHICH == "baton":  # which serves the whole one until the end
        return
    with Fleet(*[WHICH] * 2, min_ready=1) as f:
        f.update_all()
        label = next(LABELS)
        mine = {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": label})["update_id"]}
        f.front.post("/v1/update_weights", dict(f.tensors(), **mine))
        said = refused(f, 409, "POST", "/v1/weights/label", {"weight_version": "another"}, "conflict")
        assert mine["update_id"] in said["error"]["message"], said
        f.stays("serving", "serving")
        assert f.front.post("/v1/update_weights/finish", mine)["weight_version"] == label
        f.stays("serving", "serving")
        f.front.post("/v1/weights/label", {"weight_version": "another"})
        assert f.versions() == ["another"] * 2
        f.stays("serving", "serving")


def wake_hangs():
    """Beside an update, which can be given up."""
    with Fleet(*[WHICH] * 3, min_ready=2) as f:
        f.update_all()
        f.front.post("/v1/sleep", {"level": 2})
        mine = {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": "never"})["update_id"]}
        b = Beside(f, "wake", "POST", "/v1/wake", {"tags": ["weights"]})
        assert f.front.post("/v1/update_weights/abort", mine)["phase"] == "aborted"
        assert all(ok_of(f.front.post("/v1/pause")))
        b.hangs()
        b.end()


def finish_hangs():
    """A pause holds for all; an abort comes too late, and says what it is too late for."""
    with Fleet(*[WHICH] * 3, min_ready=2) as f:
        f.update_all()
        mine = {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": next(LABELS)})["update_id"]}
        f.front.post("/v1/update_weights", dict(f.tensors(), **mine))
        b = Beside(f, "finish", "POST", "/v1/update_weights/finish", dict(mine, weight_version="x"))
        assert all(ok_of(f.front.post("/v1/pause"))) and f.pauses() == ["keep"] * 3
        said = refused(f, 409, "POST", "/v1/update_weights/abort", mine, "conflict")
        assert "the end of an update is under way" in said["error"]["message"], said
        b.hangs()
        status, said = b.end()
        assert status == 200 and ok_of(said) == [True, False, True], said
        f.doubles.pop(1)
        assert f.pauses() == ["keep"] * 2 and f.front.status()["pause"] is not None
        assert ok_of(f.front.ask("POST", "/v1/resume")[1])[::2] == [True] * 2  # the dead one may be missed yet
        assert f.pauses() == [None] * 2


def pause_hangs_at_the_end():
    """An update that ends during a trainer's pause leaves the engines paused."""
    if WHICH == "baton":  # which is not paused for an update
        return
    with Fleet(*[WHICH] * 3, min_ready=2) as f:
        f.update_all()
        mine = {"update_id": f.front.post("/v1/update_weights/start", {"weight_version": next(LABELS)})["update_id"]}
        f.front.post("/v1/update_weights", dict(f.tensors(), **mine))
        b = Beside(f, "pause", "POST", "/v1/pause", {"timeout_s": 60})
        assert f.front.post("/v1/update_weights/finish", dict(mine, weight_version="y"))["phase"] == "committed"
        assert f.pauses()[0] == "keep"
        b.hangs()
        assert b.end()[0] >= 500
        f.doubles.pop(1)
        until("they go on", lambda: f.pauses() == [None] * 2)


def return_hangs():
    """Adapters that an upstream is given again keep no update and no load waiting."""
    with Fleet(*[WHICH] * 3, min_ready=2) as f:
        f.update_all()
        f.front.post("/v1/load_lora_adapter", LOAD)
        d = f.doubles[1]
        n = len(d.journal("lora_load"))
        d.order("lora_load", "hang")
        restart(f, d)
        d.wait("it hangs", lambda: len(d.journal("lora_load")) > n)
        f.update_all_but(1)
        assert ok_of(f.front.post("/v1/load_lora_adapter", dict(LOAD, lora_name="two", lora_path=OTHER))) == [True] * 3
        assert of(f, d)["missing_adapters"] == ["mine"], of(f, d)
        assert ok_of(f.front.post("/v1/unload_lora_adapter", {"lora_name": "two"})) == [True] * 3
        assert of(f, d)["state"] == "unsynced"


# ---- requests by their ids ----

def long(d, rid):
    member = {"rid": rid} if d.dialect == "sglang" else {"request_id": rid}
    return dict(member, prompt="a", max_tokens=1 << 20, stream=True)


def aborted_by_id():
    """As their clients named them, at each dialect."""
    with Fleet("baton", "vllm", "sglang") as f:
        for d in f.doubles:  # slow enough to be there
            d.process.kill()
            d.process.wait()
            d.process.stdout.close()
        f.front.__exit__(None)
        f.doubles = [fleet_control.Double(fleet_control.ENGINE, d, "--interval-us", 20000, "--weight-version", "step-0")
                     for d in ("baton", "vllm", "sglang")]
        f.serve()
        until("it is ready", f.front.ready)
        streams = {}
        for d in f.doubles:
            for name in ("a", "b", "c"):
                rid = f"{d.dialect}-{name}"
                streams[rid] = d.send("POST", "/v1/completions", long(d, rid))
        until("all run", lambda: all(d.state()["running"] >= 3 for d in f.doubles))
        said = f.front.post("/v1/abort_requests", {"request_ids": [r for r in streams if not r.endswith("-b")]})
        assert all(ok_of(said)) and said["aborted"] == 4, said  # an SGLang does not count
        for rid, answer in streams.items():
            if not rid.endswith("-b"):
                assert [finish_of(e) for e in events(answer) if e != "[DONE]"][-1] == "abort", rid
        assert [d.state()["running"] for d in f.doubles] == [1] * 3
        assert f.front.post("/v1/abort_requests", {"request_ids": []})["aborted"] == 0
        said = refused(f, 400, "POST", "/v1/abort_requests", {"request_ids": ["x", ""]}, "bad_request")
        assert said["error"]["param"] == "/request_ids/1", said
        refused(f, 400, "POST", "/v1/abort_requests", {"request_ids": [f"r{i}" for i in range(1025)]}, "bad_request")
        f.front.post("/abort_request", {"rid": "sglang-b"})
        until("it has ended", lambda: f.doubles[2].state()["running"] == 0)
        assert [d.state()["running"] for d in f.doubles[:2]] == [1] * 2
        for answer in streams.values():
            answer.connection.close()


# ---- a server that was killed ----

def killed(g):
    """The next one serves the same engines."""
    g.front.kill()
    g.serve()


def left_held(hold, release, code):
    """The next server names what its engines wait for, counts none as down because of it, and can end it."""
    with Fleet(*[WHICH] * 2) as g:
        g.update_all()
        g.front.post("/v1/" + hold)
        killed(g)
        g.wait("not_ready", "not_ready")
        g.stays("not_ready", "not_ready")
        errors = [of(g, d)["error"] for d in g.doubles]
        assert all(e["code"] == code and "/v1/" + release in e["message"] for e in errors), errors
        assert one_token(g, None)[0] == 503 and not g.front.ready()
        assert all(ok_of(g.front.post("/v1/" + release)))
        assert g.states() == ["serving"] * 2, g.front.upstreams()
        assert one_token(g, None)[0] == 200
        g.stays("serving", "serving")


def left_paused():
    left_held("pause", "resume", "paused")


def left_asleep():
    left_held("sleep", "wake", "asleep")


def left_paused_unseen():
    """An SGLang does not report a pause, so it counts as down when it makes no token; a resume reaches it all the same."""
    with Fleet(*[WHICH] * 2) as g:
        g.update_all()
        g.front.post("/v1/pause")
        killed(g)
        g.wait("down", "down")
        g.front.post("/v1/resume")
        until("they are resumed", lambda: g.pauses() == [None] * 2)
        g.wait("serving", "serving")
        assert one_token(g, None)[0] == 200


def updated_while_left_paused():
    """A trainer that goes on through the next server: its update and its resume."""
    with Fleet(*[WHICH] * 2) as g:
        g.front.post("/v1/pause")
        killed(g)
        g.wait("not_ready", "not_ready")
        step, _, said = g.update(next(LABELS))
        assert step is None, said
        assert all(ok_of(g.front.post("/v1/resume")))
        assert g.states() == ["serving"] * 2 and one_token(g, None)[0] == 200, g.front.upstreams()


def left_open():
    """The update that batons still had open ends when the next server starts its first one."""
    with Fleet("baton", "baton") as g:
        g.front.post("/v1/update_weights/start", {"weight_version": "never", "lease_s": 600})
        killed(g)
        g.wait("serving", "serving")
        g.update_all()
        assert one_token(g, None)[0] == 200


def main():
    if WHICH == "mixed":
        told("aborted_by_id", aborted_by_id)
        return
    with Fleet(*[WHICH] * 4, min_ready=3) as f:
        for p in (loaded_again, told_meanwhile, unloaded_instead, unload_of_none, away_at_load, failed_half,
                  keeps_the_old, lets_go_of_the_old, beside_a_load_that_hangs, by_tensors,
                  changed_on_disk, gone_from_disk):
            told(p.__name__, p, f)
    if WHICH != "baton":  # those are in fleet_batons.py
        with Fleet(*[WHICH] * 2, min_ready=1, options=("--adapter-dir", KEPT, "--max-lora-bytes", "64KiB")) as f:
            for p in (sent_and_healed, sent_to_some, sent_wrongly):
                told(p.__name__, p, f)
        told("sent_before_it_joined", sent_before_it_joined)
        told("sent_to_an_earlier_server", sent_to_an_earlier_server)
    for p in (sleep_hangs, wake_hangs, finish_hangs, pause_hangs_at_the_end, return_hangs,
              back_while_still, paused_while_still, removed_while_paused, named_within_update):
        told(p.__name__, p)
    left = {"baton": (left_paused, left_asleep, updated_while_left_paused, left_open),
            "vllm": (left_paused, left_asleep, updated_while_left_paused), "sglang": (left_paused_unseen,)}
    for p in left[WHICH]:
        told(p.__name__, p)


main()
