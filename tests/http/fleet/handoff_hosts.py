"""A fleet of hosts: a server in front of two servers with --stage, one in front of vLLMs, the other of SGLangs.

Usage: NCCL=LIBFAKENCCL NCCL_FOREIGN=LIBFAKENCCL_OF_TRAINERS
  handoff_hosts.py BATON MODEL FAKE_ENGINE LIBFAKECUDA LIBFAKECUDA_OF_ENGINES WORK [case...]
"""

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

from fake_engine_world import PROMPT, Double, completion, expected, ids_of
from fleet_world import Server, until
from handoff_tap import Tap
from handoff_world import BATON, ENGINE, FAKE, FOREIGN, MODEL, PROBE_MS, TORCH, WORK, Stage, checkpoint
from nccl_trainer import Trainer

KINDS = ("vllm", "sglang")
LOAD = {"vllm": "/update_weights", "sglang": "/update_weights_from_tensor"}
STEPS = ("00100", "01500")
N_ENGINES = 2  # of each host
ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
EXAMPLES, SYSTEMD = os.path.join(ROOT, "examples"), os.path.join(ROOT, "deploy", "systemd")
STAYS_S = 0.4  # some probes


class Hosts(contextlib.ExitStack):
    """The first host has a state directory."""

    def __init__(self):
        super().__init__()
        nccl = ("--nccl-library", os.environ["NCCL"])
        options = (*nccl, "--state-dir", os.path.join(WORK, "state"), "--snapshot", 1), nccl
        self.hosts = [self.enter_context(Stage(*[kind] * N_ENGINES, min_ready=1, options=o)) for kind, o in zip(KINDS, options)]
        self.n = 0
        self.serve()

    def serve(self):
        specs = [a for h in self.hosts for a in ("--upstream", h.server.url)]
        self.front = self.enter_context(Server(BATON, os.path.join(WORK, "log-front"), *specs, "--min-ready", 1,
                                               "--probe-interval", PROBE_MS))
        self.wait("serving", "serving")

    def states(self):
        return [u["state"] for u in self.front.get("/v1/upstreams")["list"]]

    def wait(self, *states):
        until(lambda: f"{states}: {self.front.get('/v1/upstreams')}", lambda: self.states() == list(states))

    def next(self):
        """A checkpoint that is not served yet, and its label."""
        self.n += 1
        return STEPS[self.n % 2], f"v{self.n}"

    def push(self, step, label, status=200):
        got, said = self.front.ask("POST", "/v1/update_weights", {"path": checkpoint(step), "weight_version": label})
        assert got == status, (got, said)
        return said

    def push_next(self):
        self.serves(*self.next(), lambda step, label: self.push(step, label))

    def send_next(self):
        """Received by all hosts, not proven. (the update, its checkpoint, its label)"""
        step, label = self.next()
        update = {"update_id": self.front.post("/v1/update_weights/start", {"weight_version": label})["update_id"]}
        self.front.post("/v1/update_weights", {**update, "path": checkpoint(step)})
        return update, step, label

    def fault(self, fault, *hosts):
        for h in hosts:
            for tap, double in zip(h.taps, h.doubles):
                tap.fault = fault and (LOAD[double.dialect], fault)

    def rounds(self):
        return [t.rounds for h in self.hosts for t in h.taps]

    def serves(self, step, label, after=None):
        """All engines have it, and clients get nothing else."""
        if after is not None:
            after(step, label)
        self.wait("serving", "serving")
        until("all engines serve", lambda: all(h.server.get("/v1/upstreams")["n_serving"] == N_ENGINES for h in self.hosts))
        for h in self.hosts:
            h.has(step, label)
        assert self.front.ready() and self.front.status()["weights"]["weight_version"] == label
        for session in range(4):
            status, said = self.front.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2},
                                          headers={"X-Session-ID": str(session)})
            assert status == 200, said


def whole(f):
    """One push reaches every engine of every host, by one request or in a session."""
    step, label = f.next()
    said = f.push(step, label)
    assert [u["ok"] for u in said["upstreams"]] == [True, True], said
    f.serves(step, label)
    rounds = f.rounds()
    update, step, label = f.send_next()
    f.front.post("/v1/update_weights/verify", update)
    assert f.rounds() == rounds
    f.front.post("/v1/update_weights/finish", update)
    f.serves(step, label)


def refuses(f):
    """A host that cannot verify: nothing is committed anywhere, and no engine is touched."""
    f.push_next()
    rounds, before = f.rounds(), f.front.status()["weights"]["weight_version"]
    update, _, _ = f.send_next()
    theirs = f.hosts[1].server.status()["update"]["update_id"]
    f.hosts[1].server.post("/v1/update_weights/abort", {"update_id": theirs})
    status, said = f.front.ask("POST", "/v1/update_weights/finish", update)
    assert status == 409, said
    assert f.rounds() == rounds and [h.server.status()["update"] for h in f.hosts] == [None, None]
    assert [h.server.status()["weights"]["weight_version"] for h in f.hosts] == [before] * 2
    f.push_next()


def heals(f):
    """The engines of a host fail in the hand-off: the host gets no requests until they have the version, then it
    does without another push."""
    step, label = f.next()
    f.fault(500, f.hosts[1])
    said = f.push(step, label)
    assert [u["ok"] for u in said["upstreams"]] == [True, False], said
    f.hosts[0].has(step, label)
    time.sleep(STAYS_S)
    assert f.states() == ["serving", "fenced"] and not f.hosts[1].server.ready()
    f.fault(None, f.hosts[1])
    f.serves(step, label)
    f.push_next()


def all_heal(f):
    """The same at every host: the trainer gets an error, and the fleet comes back with the version it committed."""
    step, label = f.next()
    f.fault(500, *f.hosts)
    said = f.push(step, label, 502)
    assert (said["error"]["code"], said["error"]["retryable"]) == ("not_handed_over", False), said
    assert "committed" in said["error"]["message"] and said["error"]["details"]["phase"] == "committed", said
    assert not f.front.ready()
    f.fault(None, *f.hosts)
    f.serves(step, label)
    f.fault(500, *f.hosts)
    update, step, label = f.send_next()
    for path, status, code in (("finish", 502, "not_handed_over"), ("finish", 502, "not_handed_over"), ("abort", 409, "update_closed")):
        got, said = f.front.ask("POST", f"/v1/update_weights/{path}", update)
        assert (got, said["error"]["code"]) == (status, code), said
    f.fault(None, *f.hosts)
    f.serves(step, label)
    assert f.front.post("/v1/update_weights/finish", update)["phase"] == "committed"
    f.push_next()


def restarts(f):
    """A host that is killed in mid update and started again restores its version from --state-dir, hands it over and
    gets requests again; one without the directory waits for the next push."""
    step, label = f.next()
    f.push(step, label)
    until("its snapshot is written",
          lambda: (f.hosts[0].server.status()["state"]["snapshots"]["newest"] or {}).get("weight_version") == label)
    update, _, _ = f.send_next()
    for i, h in enumerate(f.hosts):
        h.server.kill()
        f.wait(*("down" if k == i else "serving" for k in range(2)))
        for t in h.taps:
            t.loaded.clear()
        h.serve(h.server.port)
        f.wait("serving", "serving" if i == 0 else "unsynced")
        until("its engines serve", lambda h=h: h.server.get("/v1/upstreams")["n_serving"] == N_ENGINES)
    f.hosts[0].has(step, label)
    assert f.states() == ["serving", "unsynced"]
    status, said = f.front.ask("POST", "/v1/update_weights/finish", update)
    assert status in (409, 502), (status, said)
    f.push_next()


def front_dies(f):
    """A front that is killed in mid update leaves an update open at each host; the next one ends it."""
    f.push_next()
    f.send_next()
    f.front.kill()
    assert all(h.server.status()["update"] for h in f.hosts)
    f.serve()
    f.push_next()


def controls(f):
    """Pause, sleep and adapters reach the engines. After a sleep that drops the weights the hosts hand them over again."""
    doubles = [d for h in f.hosts for d in h.doubles]
    step, label = f.next()
    f.push(step, label)
    f.front.post("/v1/pause", {"mode": "keep"})
    assert [d.state()["pause"] for d in doubles] == ["keep"] * len(doubles)
    f.front.post("/v1/resume")
    f.serves(step, label)
    for level in (1, 2):
        f.front.post("/v1/sleep", {"level": level})
        assert all(d.state()["weights_asleep"] for d in doubles)
        rounds = f.rounds()
        f.front.post("/v1/wake", {})
        f.serves(step, label)
        assert (f.rounds() == rounds) == (level == 1)
    f.front.post("/v1/load_lora_adapter", {"lora_name": "mine", "lora_path": WORK})
    for h in f.hosts:
        h.doubles[0].order("who", "restart", ms=300)
        until("it left", lambda h=h: h.server.get("/v1/upstreams")["n_serving"] == N_ENGINES - 1)
    f.serves(step, label)
    assert [list(d.state()["adapters"]) for d in doubles] == [["mine"]] * len(doubles)
    host = f.hosts[0].server
    host.kill()
    f.wait("down", "serving")
    f.hosts[0].serve(host.port)
    f.serves(step, label)
    assert [a["lora_name"] for a in f.hosts[0].server.get("/v1/lora_adapters")["adapters"]] == ["mine"]
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "mine"})
    assert not any(d.state()["adapters"] for d in doubles)


def columns(step):
    """The tensors of a checkpoint as a tensor list, and their bytes one after another."""
    with open(checkpoint(step), "rb") as f:
        data = f.read()
    n = int.from_bytes(data[:8], "little")
    tensors = [(name, t) for name, t in json.loads(data[8:8 + n]).items() if name != "__metadata__"]
    tensors.sort(key=lambda t: t[1]["data_offsets"])
    return {"names": [name for name, _ in tensors], "dtypes": [TORCH[t["dtype"]] for _, t in tensors],
            "shapes": [t["shape"] for _, t in tensors]}, data[8 + n:]


def group(f):
    """A trainer's group through the front: each host is a rank. Its trainer dies in mid transfer: nothing changes."""
    step, label = f.next()
    body, data = columns(step)
    with Trainer(os.environ["NCCL_FOREIGN"], FOREIGN) as trainer:
        unique_id = trainer.ask("mint")
        trainer.begin("join", unique_id, 1 + len(f.hosts), True)
        f.front.post("/v1/weight_transfer/init", {"transport": "nccl", "world_size": 1 + len(f.hosts), "rank_offset": 1,
                                                  "nccl_unique_id": base64.b64encode(unique_id).decode()})
        trainer.result()
        trainer.begin("send", [data])
        f.front.post("/v1/update_weights", {**body, "transport": "nccl", "packed": True, "weight_version": label})
        trainer.result()
        f.serves(step, label)
        rounds = f.rounds()
        asked = threading.Thread(target=lambda: said.append(f.front.ask("POST", "/v1/update_weights", {
            **body, "transport": "nccl", "packed": True, "weight_version": "never"})))
        said = []
        asked.start()
        until("they receive", lambda: all(h.server.status()["update"] for h in f.hosts))
        trainer.kill()
        f.front.ask("DELETE", "/v1/weight_transfer")
        asked.join()
    assert said[0][0] >= 400, said
    assert f.rounds() == rounds
    f.serves(step, label)
    f.push_next()


def write(file, line):
    with open(file, "w", encoding="utf-8") as out:
        out.write(line + "\n")
    os.chmod(file, 0o600)


def joins(_):
    """On one host: an engine that SIGHUP adds gets the version before its first request; one whose version another
    client changed gets it back; one that SIGHUP removes is left alone."""
    file = os.path.join(WORK, "upstreams")
    write(file, "# none")
    with Double(ENGINE, "sglang", "--weight-version", "old") as double, Tap(FOREIGN, 0, double) as tap, \
         Stage("vllm", min_ready=1, options=("--upstream-file", file)) as s:
        def reload(line, n):
            write(file, line)
            s.server.process.send_signal(signal.SIGHUP)
            until("it is reloaded", lambda: s.server.get("/v1/upstreams")["n"] == n)

        with urllib.request.urlopen(f"{s.server.url}/v1/events?types=handoff") as events:
            s.push("00100", "a")
            until("it is an event", lambda: events.readline() == b"event: handoff.done\n")
        reload(f"{tap.url},sglang", 2)
        until("it serves", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        s.taps.append(tap)
        s.doubles.append(double)
        s.has("00100", "a")
        assert tap.rounds == 1 and s.taps[0].rounds == 1
        paths = [c[2] for c in tap.calls]
        assert "/generate" not in paths[:paths.index(LOAD["sglang"])], paths
        double.post("/update_weight_version", {"new_version": "drifted"})
        until("it is repaired", lambda: tap.rounds == 2)
        until("it serves again", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        s.has("00100", "a")
        reload("# none", 1)
        s.taps.pop()
        s.doubles.pop()
        s.push("01500", "b")
        s.has("01500", "b")
        assert tap.rounds == 2


def launched(_):
    """On one host: a server that starts without engines, and gets them by requests, the first after the first version.
    No client gets a token of what they loaded; one that comes during a hand-off, or again, gets the version too."""
    file = os.path.join(WORK, "upstreams")
    write(file, "# engines join by requests")
    with Stage(options=("--upstream-file", file), min_ready=1) as s, contextlib.ExitStack() as stack:
        def engine(kind):
            double = stack.enter_context(Double(ENGINE, kind, "--weight-version", "old"))
            return stack.enter_context(Tap(FOREIGN, 0, double)), double

        def add(tap, double):
            s.server.post("/v1/upstreams", {"upstream": f"{tap.url},{double.dialect}"})
            s.taps.append(tap)
            s.doubles.append(double)

        def serve(n):
            until(lambda: s.server.get("/v1/upstreams"), lambda: s.server.get("/v1/upstreams")["n_serving"] == n)

        def ask():
            while not over.is_set():
                status, text = s.server.ask("POST", "/v1/completions", completion(4))
                if status == 200 and ids_of(text["choices"][0]["text"]) not in [expected(PROMPT, v, 0, 4) for v in "ab"]:
                    wrong.append(text)
                over.wait(0.01)

        over, wrong = threading.Event(), []
        client = threading.Thread(target=ask, daemon=True)
        client.start()
        (first, second), third = [engine(kind) for kind in KINDS], engine("vllm")
        said = s.push("00100", "a", 502)
        assert (said["error"]["code"], said["error"]["retryable"]) == ("not_handed_over", False), said
        assert "committed here" in said["error"]["message"] and said["error"]["details"]["upstreams"] == [], said
        add(*first)
        add(*second)
        serve(2)
        s.has("00100", "a")
        first[0].slow = (LOAD["vllm"], 0.5)
        push = threading.Thread(target=s.push, args=("01500", "b"))
        push.start()
        until("it is handed over", lambda: s.server.status()["stage"]["handoff"])
        add(*third)
        push.join()
        serve(3)
        s.has("01500", "b")
        n = third[0].rounds
        s.server.post("/v1/upstreams/remove", {"upstream": third[0].url})
        s.server.post("/v1/upstreams", {"upstream": f"{third[0].url},vllm"})
        until("it has it again", lambda: third[0].rounds == n + 1)
        serve(3)
        over.set()
        client.join()
        assert not wrong, wrong


def free_port():
    """The first of two free ones."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = first.getsockname()[1]
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", port + 1)):
            return port


def example(_):
    """examples/hand_off/start.sh, with a double as vllm, and the configurations of deploy/systemd."""
    programs, port, listen = os.path.join(WORK, "programs"), free_port(), free_port()
    os.mkdir(programs)
    os.symlink(BATON, os.path.join(programs, "baton"))
    with open(os.path.join(programs, "vllm"), "w", encoding="utf-8") as out:
        out.write('#!/bin/sh\n# serve MODEL --host HOST --port PORT …\n'
                  f'echo $$ > {WORK}/engine-$6\n'
                  f'exec {ENGINE} --dialect vllm --weight-version none --port "$6"\n')
    os.chmod(out.name, 0o755)
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "ENGINE_PORT": str(port), "BATON_CUDA_LIBRARY": FAKE,
           "BATON_LISTEN": f"127.0.0.1:{listen}", "BATON_PROBE_INTERVAL": str(PROBE_MS)}
    with open(os.path.join(WORK, "log-example"), "wb") as log:
        started = subprocess.Popen([os.path.join(EXAMPLES, "hand_off", "start.sh"), MODEL], env=env, stdout=log, stderr=log)
    again = None
    key = os.path.join(WORK, "key")
    write(key, "control 0123456789abcdef0123456789abcdef")
    write(f"{key}-upstream", "0123456789abcdef0123456789abcdef")
    for name in ("host", "front"):
        with open(os.path.join(SYSTEMD, f"{name}.json"), encoding="utf-8") as file:
            text = file.read()
        for there, here in (("/etc/baton/upstream", f"{key}-upstream"), ("/etc/baton/keys", key), ("/var/lib/baton/model", MODEL),
                            ("/var/lib/baton", os.path.join(WORK, name)), ('0.0.0.0:8700', "0.0.0.0:0"), ("0.0.0.0:8710", "0.0.0.0:0")):
            text = text.replace(there, here)
        os.mkdir(os.path.join(WORK, name))
        write(os.path.join(WORK, f"{name}.json"), text)
        driver = ("--cuda-library", FAKE) if name == "host" else ()
        report = subprocess.run([BATON, "serve", "--check", "--config", os.path.join(WORK, f"{name}.json"), *driver], check=True,
                                capture_output=True, text=True).stdout
        assert name == "front" or f"allowed paths: {MODEL}" in report, f"a push by --path would be refused: {report}"
    try:
        def serving(n):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{listen}/v1/upstreams") as reply:
                return json.load(reply)["n_serving"] == n
        until("both serve", lambda: serving(2))
        subprocess.run([BATON, "push", checkpoint("00100"), "--path", "--url", f"http://127.0.0.1:{listen}", "--weight-version", "step"],
                       check=True, stdout=subprocess.DEVNULL, env=env)
        with urllib.request.urlopen(f"http://127.0.0.1:{listen}/v1/status") as reply:
            status = json.load(reply)
        assert status["weights"]["weight_version"] == "step" and status["stage"]["handed_serial"] == 1, status
        with open(os.path.join(WORK, f"engine-{port + 1}"), encoding="utf-8") as file:
            os.kill(int(file.read()), signal.SIGKILL)
        until("one serves", lambda: serving(1))
        again = subprocess.Popen([os.path.join(programs, "vllm"), "serve", MODEL, "--host", "127.0.0.1", "--port", str(port + 1)],
                                 stdout=subprocess.DEVNULL)
        until("both serve again", lambda: serving(2))
        with urllib.request.urlopen(f"http://127.0.0.1:{port + 1}/weight_info") as reply:
            assert json.load(reply)["weight_version"] == "step"
    finally:
        if again is not None:
            again.terminate()
            again.wait()
        started.terminate()
        started.wait()


CASES = {f.__name__: f for f in (whole, refuses, heals, all_heal, restarts, front_dies, controls, group, joins, launched, example)}


def main():
    with Hosts() as f:
        for name in sys.argv[7:] or CASES:
            began = time.monotonic()
            CASES[name](f)
            print(f"  {name}: {time.monotonic() - began:.2f} s", flush=True)


if __name__ == "__main__":
    main()
