"""A server in front of servers with the embedded engine and real weights.

Usage: fleet_batons.py BATON MODEL CLIENT_DIR WORK ROUNDS
"""

import contextlib
import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

from fleet_world import ANSWER_S, Server, until

BATON, MODEL, CLIENT, WORK = sys.argv[1:5]
ROUNDS = int(sys.argv[5])
sys.path.insert(0, CLIENT)
import baton  # noqa: E402  (the client, from where the test was told)

N, PROBE_MS, TIMEOUT_MS, N_CLIENTS, N_CASES = 3, 100, 3000, 2, 3
STEPS = ("step-00000", "step-00100", "step-01500")
CHECKPOINTS, ADAPTERS = os.path.join(MODEL, "checkpoints"), os.path.join(MODEL, "adapters")
LOG, KEPT = os.path.join(WORK, "log"), os.path.join(WORK, "kept")


def cases_of(path, *keys):
    with open(os.path.join(MODEL, path), encoding="utf-8") as f:
        said = json.load(f)
    for key in keys:
        said = said[key]
    return said["cases"][:N_CASES]


GOLDEN = {step: cases_of("golden.json", "checkpoints", step) for step in STEPS}
SHOUT = cases_of("adapters/shout/golden.json")


def checkpoint(step):
    return os.path.join(CHECKPOINTS, step + ".safetensors")


def body_of(case, **more):
    return {"token_ids": case["prompt_token_ids"], **more,
            "sampling_params": {"max_tokens": len(case["greedy_token_ids"]), "temperature": 0, "ignore_eos": True}}


def step_of(answer, at):
    """Whose ids these are, of the case `at`."""
    ids = answer["choices"][0]["token_ids"]
    found = [s for s in STEPS if GOLDEN[s][at]["greedy_token_ids"] == ids]
    assert len(found) == 1, f"{ids} are of no checkpoint: {answer}"
    return found[0]


def label_of(answer):
    (one,) = answer["choices"][0]["weight_versions"]
    return one["version"]


# ---- a way to an upstream that sees what comes, and may break it ----

class Tap:
    """Between the front and one upstream. `on[bytes]` is called when a request with them comes: before it is passed
    on, on the thread that would; returns False to close the connection instead."""

    def __init__(self, port):
        self.port, self.on, self.n, self.ended = port, {}, {}, False
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self.ended = True
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            try:
                upstream = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                client.close()
                continue
            threading.Thread(target=self._pump, args=(client, upstream, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(upstream, client, False), daemon=True).start()

    def _pass(self, data):
        for what, then in list(self.on.items()):
            if what in data:
                self.n[what] = self.n.get(what, 0) + 1
                if then is not None and then() is False:
                    return False
        return True

    def _pump(self, here, there, ours):
        try:
            while data := here.recv(65536):
                if ours and not self._pass(data):
                    break
                there.sendall(data)
        except OSError:
            pass
        for s in (here, there):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        here.close()


# ---- load ----

class Clients:
    """Golden prompts, again and again: every answer is all of one checkpoint, and says which."""

    def __init__(self, front):
        self.front, self.stop, self.failure, self.answers, self.errors = front, False, None, [], []
        self.steps = {}  # label -> checkpoint
        self.threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(N_CLIENTS)]

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, kind, *_):
        self.stop = True
        for t in self.threads:
            t.join(ANSWER_S)
        if kind is None:
            self.check()
            assert not any(t.is_alive() for t in self.threads), "a client has no answer"

    def check(self):
        if self.failure is not None:
            raise self.failure

    def _run(self, i):
        try:
            for n in itertools.count(i):
                if self.stop:
                    return
                self._ask(n % len(GOLDEN[STEPS[0]]))
        except BaseException as e:
            self.failure = e

    def _ask(self, at):
        begun = time.monotonic()
        c = http.client.HTTPConnection("127.0.0.1", self.front.port, timeout=ANSWER_S)
        try:
            c.request("POST", "/v1/generate", json.dumps(body_of(GOLDEN[STEPS[0]][at])),
                      {"Content-Type": "application/json"})
            r = c.getresponse()
            said = json.loads(r.read())
        finally:
            c.close()
        if r.status != 200:
            assert said["error"]["message"], said
            self.errors.append((r.status, said))
            return
        label = label_of(said)
        assert step_of(said, at) == self.steps.get(label), (label, said)
        self.answers.append((begun, label, r.getheader("X-Baton-Upstream")))

    def wait(self, n=2 * N_CLIENTS):
        """n answers of requests that begin after this; returns them."""
        begun = time.monotonic()

        def those():
            self.check()
            found = [a for a in self.answers if a[0] > begun]
            return found if len(found) >= n else None
        return until("clients are answered", those)


# ---- the fleet ----

class Fleet:
    def __init__(self):
        self.options = ["--model", MODEL, "--weights", checkpoint(STEPS[0]), "--weight-version", "step-0",
                        "--allow-path", MODEL, "--allow-path", WORK, "--engine-threads", 1, "--on-update", "finish",
                        "--drain-timeout", 1000]
        self.servers = [Server(BATON, LOG, *self.options) for _ in range(N)]
        self.taps = [Tap(s.port) for s in self.servers]
        self.front = Server(BATON, LOG, "--min-ready", 2, "--probe-interval", PROBE_MS, "--probe-timeout", 1000,
                            "--update-timeout", TIMEOUT_MS, "--adapter-dir", KEPT,
                            *itertools.chain.from_iterable(("--upstream", t.url) for t in self.taps))
        self.n_labels = 0

    def end(self, failed):
        for s in [self.front, *self.servers]:
            s.__exit__(failed)
        for t in self.taps:
            t.close()

    def restart(self, i):
        """The same, on another port, behind the same URL."""
        self.servers[i] = Server(BATON, LOG, *self.options)
        self.taps[i].port = self.servers[i].port

    def label(self, step):
        self.n_labels += 1
        return f"{step}-{self.n_labels}"

    def versions(self):
        return [s.status()["weights"]["weight_version"] for s in self.servers]

    def states(self):
        return [self.front.upstreams()[t.url]["state"] for t in self.taps]

    def wait_states(self, *states):
        until(lambda: f"{states}: {self.front.upstreams()}", lambda: self.states() == list(states))

    def serves(self, step, label):
        """All of them, by the front and by themselves."""
        assert self.versions() == [label] * N, self.versions()
        for where in [self.front, *self.servers]:
            for at, case in enumerate(GOLDEN[step][:1 if where is not self.front else None]):
                said = where.post("/v1/generate", body_of(case))
                assert step_of(said, at) == step and label_of(said) == label, said


def push(f, clients, step, via):
    label = f.label(step)
    clients.steps[label] = step
    said = baton.push(checkpoint(step), f.front.url, via=via, weight_version=label)
    assert said["phase"] == "committed" and said["weight_version"] == label, said
    assert [u["ok"] for u in said["upstreams"]] == [True] * N, said
    assert [u["upstream"] for u in said["upstreams"]] == [t.url for t in f.taps], said
    return label


def open_update(f, step):
    """Received everywhere, by one request in a session; proven nowhere. (its body, its label)"""
    label = f.label(step)
    said = f.front.post("/v1/update_weights/start", {"weight_version": label, "lease_s": 60})
    mine = {"update_id": said["update_id"]}
    f.front.post("/v1/update_weights", dict(mine, path=checkpoint(step)))
    return mine, label


def n_made(server):
    """Tokens, since it began."""
    (line,) = [x for x in server.get("/metrics").splitlines() if x.startswith("baton_engine_generated_tokens_total ")]
    return float(line.split()[1])


# ---- promises ----

def checkpoints(f, clients):
    """Each checkpoint, by path and by shared memory; after the reply no client gets another version."""
    before = len(clients.errors)
    for step, via in zip(STEPS, ("path", "shm", "path")):
        label = push(f, clients, step, via)
        f.serves(step, label)
        assert {a[1] for a in clients.wait()} == {label}
    until("each of them is asked", lambda: {a[2] for a in clients.answers} == {t.url for t in f.taps})
    assert len(clients.errors) == before, clients.errors[before]
    status, said = f.front.ask("POST", "/v1/update_weights", b"tensors",
                               {"Content-Type": "application/vnd.safetensors"})
    assert (status, said["error"]["code"]) == (409, "unsupported_in_proxy_mode"), said


def one_refuses(f, clients):
    """If one engine does not verify, none commits."""
    before = f.versions()
    mine, _ = open_update(f, "step-00000")
    theirs = f.servers[1].status()["update"]["update_id"]
    f.servers[1].post("/v1/update_weights/abort", {"update_id": theirs})
    status, said = f.front.ask("POST", "/v1/update_weights/finish", mine)
    assert status == 409 and f.taps[1].url in json.dumps(said["error"]), (status, said)
    results = {u["upstream"]: u["ok"] for u in said["error"]["details"]["upstreams"]}
    assert results[f.taps[1].url] is False, said
    assert f.versions() == before and {a[1] for a in clients.wait()} == {before[0]}
    until("nobody has an update open", lambda: [s.status()["update"] for s in f.servers] == [None] * N)
    f.wait_states(*["serving"] * N)
    push(f, clients, "step-00100", "path")


def one_is_cut(f, clients, word, then):
    """Verify changes no engine, even if one fails."""
    before = f.versions()
    mine, _ = open_update(f, "step-00000")
    f.taps[2].on[word] = then
    status, said = f.front.ask("POST", "/v1/update_weights/finish", mine)
    f.taps[2].on.clear()
    assert status >= 500 and f.taps[2].url in json.dumps(said["error"]), (status, said)
    return before


def one_is_lost_at_verify(f, clients):
    before = one_is_cut(f, clients, b"POST /v1/update_weights/verify", lambda: False)
    assert f.versions() == before and {a[1] for a in clients.wait()} == {before[0]}
    f.wait_states(*["serving"] * N)
    push(f, clients, "step-01500", "shm")
    f.wait_states(*["serving"] * N)


def one_stops_at_verify(f, clients):
    stopped = f.servers[2].process

    def go_on():
        until("the others have given up", lambda: [s.status()["update"] for s in f.servers[:2]] == [None] * 2)
        f.wait_states("serving", "serving", "down")
        stopped.send_signal(signal.SIGCONT)
    later = threading.Thread(target=go_on, daemon=True)

    def stop():
        stopped.send_signal(signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(stopped.pid, os.WUNTRACED)[1])  # all of its threads, that is
        later.start()
    before = one_is_cut(f, clients, b"POST /v1/update_weights/verify", stop)
    later.join()
    assert f.versions() == before
    f.wait_states(*["serving"] * N)  # the same process, with the same version
    push(f, clients, "step-00100", "path")
    f.wait_states(*["serving"] * N)


def one_dies_at_finish(f, clients):
    """After all have proven: those that live serve it, and that is the fleet's version."""
    mine, label = open_update(f, "step-01500")
    clients.steps[label] = "step-01500"
    f.taps[0].on[b"POST /v1/update_weights/finish"] = f.servers[0].kill
    said = f.front.post("/v1/update_weights/finish", mine)
    f.taps[0].on.clear()
    assert said["phase"] == "committed" and [u["ok"] for u in said["upstreams"]] == [False, True, True], said
    assert "changes" not in said and f.servers[1].get("/v1/weights/diff")["weight_version"] == label, said
    assert [s.status()["weights"]["weight_version"] for s in f.servers[1:]] == [label] * 2
    assert {a[1] for a in clients.wait()} == {label} and f.front.ready()
    f.wait_states("fenced", "serving", "serving")
    f.restart(0)
    until("it is heard again", lambda: f.front.upstreams()[f.taps[0].url]["process"] == f.servers[0].boot_id)
    f.wait_states("fenced", "serving", "serving")
    assert {a[2] for a in clients.wait()} <= {f.taps[1].url, f.taps[2].url}
    label = push(f, clients, "step-01500", "shm")
    f.wait_states(*["serving"] * N)
    f.serves("step-01500", label)
    until("it serves again", lambda: f.taps[0].url in {a[2] for a in clients.wait()})


def one_restarts(f, clients):
    """It has the weights that it started with: it gets no requests until a resync confirms them."""
    label = f.versions()[0]
    f.servers[1].kill()
    f.wait_states("serving", "down", "serving")
    f.restart(1)
    f.wait_states("serving", "unsynced", "serving")
    f.taps[1].n.clear()
    f.taps[1].on[b"POST /v1/generate"] = None
    clients.wait(6)
    assert f.taps[1].n == {}, f.taps[1].n
    baton.push(checkpoint("step-01500"), f.servers[1].url, via="path", weight_version=label)
    f.front.post("/v1/upstreams/resync", {"upstream": f.taps[1].url})
    f.wait_states(*["serving"] * N)
    until("it serves again", lambda: clients.wait() and f.taps[1].n)
    f.taps[1].on.clear()
    status, said = f.front.ask("POST", "/v1/upstreams/resync", {"upstream": "http://127.0.0.1:1"})
    assert status == 404, said
    f.serves("step-01500", label)


def pause(f, clients):
    """No token while it is paused; then each answer is what it would have been."""
    case, long = GOLDEN["step-01500"][0], 200
    body = dict(body_of(case), stream=True)
    body["sampling_params"]["max_tokens"] = long
    whole = f.front.post("/v1/generate", dict(body, stream=False))["choices"][0]["token_ids"]
    streams = [http.client.HTTPConnection("127.0.0.1", f.front.port, timeout=ANSWER_S) for _ in range(N)]
    answers = []
    for c in streams:
        c.request("POST", "/v1/generate", json.dumps(body), {"Content-Type": "application/json"})
        answers.append(c.getresponse())
    firsts = [a.readline() for a in answers]
    said = f.front.post("/v1/pause", {"mode": "keep"})
    assert said["paused"] is True and [u["ok"] for u in said["upstreams"]] == [True] * N, said
    assert [s.status()["pause"] is not None for s in f.servers] == [True] * N
    assert not f.front.ready() and f.front.status()["ready"] is False
    made = [n_made(s) for s in f.servers]
    for _ in range(10):
        assert f.front.get("/v1/upstreams") and [n_made(s) for s in f.servers] == made
    said = f.front.post("/v1/resume")
    assert said["paused"] is False and [u["ok"] for u in said["upstreams"]] == [True] * N, said
    for first, answer, c in zip(firsts, answers, streams):
        ids = []
        for line in [first, *answer]:
            if line.startswith(b"data: ") and b"[DONE]" not in line:
                ids += [t for choice in json.loads(line[6:])["choices"] for t in choice["token_ids"]]
        assert ids == whole, (len(ids), len(whole))
        c.close()
    assert f.front.ready() and clients.wait()


def adapters(f, clients):
    name = "shout"
    said = f.front.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": os.path.join(ADAPTERS, name)})
    assert [u["ok"] for u in said["upstreams"]] == [True] * N, said
    for where in [f.front] * N + f.servers:
        for case in SHOUT:
            said = where.post("/v1/generate", body_of(case, model=name))
            assert said["choices"][0]["token_ids"] == case["greedy_token_ids"], said
    f.front.post("/v1/unload_lora_adapter", {"lora_name": name})
    for where in [f.front] * N + f.servers:
        assert where.ask("POST", "/v1/generate", body_of(SHOUT[0], model=name))[0] == 404
    # One cannot: then none has it.
    mine = os.path.join(WORK, "mine")
    shutil.copytree(os.path.join(ADAPTERS, name), mine, dirs_exist_ok=True)
    f.taps[1].on[b"POST /v1/load_lora_adapter"] = lambda: False
    status, said = f.front.ask("POST", "/v1/load_lora_adapter", {"lora_name": "mine", "lora_path": mine})
    f.taps[1].on.clear()
    assert status >= 500 and f.taps[1].url in json.dumps(said), (status, said)
    for s in f.servers:
        assert s.get("/v1/lora_adapters")["adapters"] == [], s.get("/v1/lora_adapters")
    f.wait_states(*["serving"] * N)


def restart_again(f):
    """With the fleet's weights, confirmed by a resync; it needs more than that."""
    label = f.versions()[0]
    f.servers[1].kill()
    f.wait_states("serving", "down", "serving")
    f.restart(1)
    f.wait_states("serving", "unsynced", "serving")
    baton.push(checkpoint("step-01500"), f.servers[1].url, via="path", weight_version=label)
    return f.front.post("/v1/upstreams/resync", {"upstream": f.taps[1].url})


def adapters_come_back(f, clients):
    """Whoever is restarted gets them from where they were loaded, if what is there is still the same."""
    mine = os.path.join(WORK, "comes-back")
    shutil.copytree(os.path.join(ADAPTERS, "shout"), mine, dirs_exist_ok=True)
    f.front.post("/v1/load_lora_adapter", {"lora_name": "mine", "lora_path": mine})
    restart_again(f)
    f.wait_states(*["serving"] * N)
    for where in [f.front] * N + f.servers:
        for case in SHOUT:
            said = where.post("/v1/generate", body_of(case, model="mine"))
            assert said["choices"][0]["token_ids"] == case["greedy_token_ids"], said
    config = os.path.join(mine, "adapter_config.json")
    with open(config, encoding="utf-8") as file:
        said = json.load(file)
    with open(config, "w", encoding="utf-8") as file:
        json.dump(dict(said, lora_alpha=2 * said["lora_alpha"]), file)
    restart_again(f)
    until("what has changed is not taken", lambda: "changed since" in (
        f.front.upstreams()[f.taps[1].url]["error"] or {"message": ""})["message"])
    assert f.states() == ["serving", "unsynced", "serving"] and f.front.upstreams()[f.taps[1].url]["missing_adapters"] == ["mine"]
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "mine"})
    f.wait_states(*["serving"] * N)
    assert [s.get("/v1/lora_adapters")["adapters"] for s in f.servers] == [[]] * N


def sent_adapters_come_back(f, clients):
    """The same, of an adapter that a client of the front sent, whose files the client then has no more."""
    mine = os.path.join(WORK, "is-sent")
    shutil.copytree(os.path.join(ADAPTERS, "shout"), mine)
    done = subprocess.run([BATON, "lora", "load", "mine", mine, "--url", f.front.url], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("mine: revision 1, digest "), done
    shutil.rmtree(mine)
    restart_again(f)
    f.wait_states(*["serving"] * N)
    for where in [f.front] * N + f.servers:
        for case in SHOUT:
            said = where.post("/v1/generate", body_of(case, model="mine"))
            assert said["choices"][0]["token_ids"] == case["greedy_token_ids"], said
    f.front.post("/v1/unload_lora_adapter", {"lora_name": "mine"})
    assert os.listdir(KEPT) == []


def affinity(f):
    """One after another, a session's requests all go to one; sessions spread."""
    chosen = {}
    for session in (f"session {i}" for i in range(48)):
        for _ in range(2):
            c = http.client.HTTPConnection("127.0.0.1", f.front.port, timeout=ANSWER_S)
            c.request("POST", "/v1/generate", json.dumps({"token_ids": [5], "sampling_params": {"max_tokens": 1}}),
                      {"Content-Type": "application/json", "X-Session-ID": session})
            r = c.getresponse()
            assert r.status == 200, r.read()
            r.read()
            c.close()
            chosen.setdefault(session, set()).add(r.getheader("X-Baton-Upstream"))
    assert all(len(where) == 1 for where in chosen.values()), chosen
    assert set.union(*chosen.values()) == {t.url for t in f.taps}, chosen


def text(f):
    """What needs no weights is asked of any."""
    case = GOLDEN[STEPS[0]][0]
    for _ in range(N):
        tokens = f.front.post("/tokenize", {"prompt": case["prompt"], "add_special_tokens": False})["tokens"]
        assert tokens == case["prompt_token_ids"], tokens
        assert f.front.post("/detokenize", {"tokens": tokens})["prompt"] == case["prompt"]
    assert f.front.get("/v1/models") == f.servers[0].get("/v1/models") or f.front.get("/v1/models")["data"]


def fetch(port, path, body, **headers):
    """(status, type, bytes), without what differs from engine to engine."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    c.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "X-Request-Id": "batch", **headers})
    r = c.getresponse()
    said = r.status, r.getheader("Content-Type"), re.sub(rb'created\\":\d+|boot_id\\":\\"[0-9a-f]+', b"", r.read())
    c.close()
    return said


def rollouts(f):
    """One engine makes the batch; it is relayed as it is, whole and streamed. So is one prompt's, if the client accepts it."""
    params = {"n": 2, "max_tokens": 6, "temperature": 0}
    prompts = [case["prompt_token_ids"] for case in GOLDEN[STEPS[0]][:2]]
    for path, body, headers in (("/v1/rollouts", {"prompts": prompts, "sampling_params": params}, {}),
                                ("/v1/rollouts", {"prompts": prompts[:1], "sampling_params": params, "stream": True}, {}),
                                ("/v1/generate", {"token_ids": prompts[0], "sampling_params": params},
                                 {"Accept": "application/vnd.safetensors"})):
        for s in f.servers:  # each has the prompt in its cache then
            fetch(s.port, path, body, **headers)
        direct, said = (fetch(port, path, body, **headers) for port in (f.servers[0].port, f.front.port))
        assert said[0] == 200 and "json" not in said[1] and said == direct, (path, said, direct)


def refused_paths(f):
    """What an upstream says of a path its trainer gets to hear as from the upstream itself, and nothing about keys."""
    for path, body in (("/v1/update_weights", {"path": "/etc/passwd", "weight_version": "x"}),
                       ("/areal_update_weights", {"model_path": "/etc/passwd"}),
                       ("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "/etc"})):
        answers = [where.ask("POST", path, body) for where in (f.servers[0], f.front)]
        (alone, fleet) = [(status, *map(said.get("error", said).get, ("code", "param"))) for status, said in answers]
        assert alone == fleet and alone[0] == 403, answers
        assert "not below" in json.dumps(answers[1]) and "key" not in json.dumps(answers[1]), answers
    f.wait_states(*["serving"] * N)


def without_gpus(f):
    """Engines without GPUs cannot join a group: the fleet answers what each of them answers itself. None of them
    counts as a GPU, though each counts as one rank."""
    join = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 1 + N}
    for path, body in (("/init_weight_transfer_engine", {"init_info": join}),
                       ("/v1/weight_transfer/init", dict(join, transport="nccl"))):
        said, own = [s.ask("POST", path, body) for s in (f.front, f.servers[0])]
        assert (said[0], own[0]) == (409, 409), (said, own)
        assert said[1]["error"]["code"] == own[1]["error"]["code"], (said, own)
        assert "--device cuda:0" in said[1]["error"]["message"], said
    said, own = [s.get("/server_info") for s in (f.front, f.servers[0])]
    assert (said["num_gpus"], said["world_size"]) == (0, N), said
    assert own["num_gpus"] == 0, own
    for member in "model_path", "tokenizer_path", "context_length":
        assert said[member] == own[member] and own[member], (member, said[member], own[member])


def pause_while_one_hangs(f):
    """It is waited for until it is down; then the pause is as one that is sent when it is."""
    def stop(*which):
        for i in which:
            f.servers[i].process.send_signal(signal.SIGSTOP)
            assert os.WIFSTOPPED(os.waitpid(f.servers[i].process.pid, os.WUNTRACED)[1])

    def go_on(*which):
        for i in which:
            f.servers[i].process.send_signal(signal.SIGCONT)

    def paused(on):
        until(lambda: f"paused, each: {on}; {f.front.status()}",
              lambda: [s.status()["pause"] is not None for s in f.servers] == [on] * N)
    began = time.monotonic()
    stop(2)
    said = f.front.post("/v1/pause", {"timeout_s": 80})
    assert said["paused"] is True and [u["ok"] for u in said["upstreams"]] == [True, True, False], said
    assert time.monotonic() - began < 30 and f.states()[2] == "down", f.states()
    go_on(2)
    paused(True)
    f.front.post("/v1/resume")
    paused(False)
    f.wait_states(*["serving"] * N)
    began = time.monotonic()
    stop(1, 2)
    status, said = f.front.ask("POST", "/v1/pause", {})
    assert status == 503 and "went down" in said["error"]["message"], (status, said)
    assert time.monotonic() - began < 30 and f.servers[0].status()["pause"] is None
    go_on(1, 2)
    paused(False)
    f.wait_states(*["serving"] * N)


class Unwatched:
    """In front of two engines, without probes: it knows only their replies, and what a requested probe shows."""

    def __init__(self, options):
        self.options = options
        self.servers = [Server(BATON, LOG, *options) for _ in range(2)]
        self.taps = [Tap(s.port) for s in self.servers]
        names = os.path.join(WORK, "unwatched")
        with open(names, "w", encoding="utf-8") as file:
            file.write("\n".join(t.url for t in self.taps) + "\n")
        os.chmod(names, 0o600)
        self.front = Server(BATON, LOG, "--upstream-file", names, "--min-ready", 1, "--probe-interval", 600000)

    def restart(self):
        self.servers[1].kill()
        self.servers[1] = Server(BATON, LOG, *self.options)
        self.taps[1].port = self.servers[1].port

    def look(self):
        """When the second probe is sent, the first reply has been read."""
        what = b"GET /v1/status"
        self.taps[1].on[what], self.taps[1].n[what] = None, 0
        for n in (1, 2):
            until("it looks", lambda n=n: self.front.process.send_signal(signal.SIGHUP) or self.taps[1].n[what] >= n,
                  every_s=0.1)
        self.taps[1].on.clear()

    def states(self):
        return [self.front.upstreams()[t.url]["state"] for t in self.taps]

    def push(self, label):
        return self.front.post("/v1/update_weights", {"path": checkpoint("step-01500"), "weight_version": label})


def restarts_unseen(f):
    """Who takes a whole update serves it, by the process that took it: not by one before it, and not by one after."""
    u = Unwatched(f.options)
    failed = True
    try:
        until("it is ready", lambda: u.states() == ["serving"] * 2)
        u.push("v6")
        u.restart()
        said = u.push("v7")
        assert [x["ok"] for x in said["upstreams"]] == [True] * 2, said
        assert [s.status()["weights"]["weight_version"] for s in u.servers] == ["v7"] * 2
        assert u.states() == ["serving"] * 2, u.front.upstreams()
        assert [x["weight_version"] for x in u.front.upstreams().values()] == ["v7"] * 2, u.front.upstreams()
        u.look()
        assert u.states() == ["serving"] * 2, u.front.upstreams()

        u.restart()  # after the commit: it has what it began with
        u.look()
        assert u.states() == ["serving", "unsynced"], u.front.upstreams()
        u.push("v8")
        assert u.states() == ["serving"] * 2, u.front.upstreams()

        u.restart()  # a partial update keeps what it does not have
        status, said = u.front.ask("POST", "/v1/update_weights/start", {"weight_version": "v9", "partial": True})
        assert status == 502 and "was restarted" in said["error"]["message"], (status, said)
        assert u.taps[1].url in said["error"]["message"] and said["error"]["retryable"] is True, said
        assert [s.status()["update"] for s in u.servers] == [None] * 2
        assert u.states() == ["serving", "unsynced"], u.front.upstreams()
        said = u.front.post("/v1/update_weights/start", {"weight_version": "v9", "partial": True})
        u.front.post("/v1/update_weights/abort", {"update_id": said["update_id"]})
        u.push("v10")

        u.front.post("/v1/pause")  # which the next process does not know
        u.restart()
        u.push("v11")
        assert [s.status()["pause"] is not None for s in u.servers] == [True] * 2
        assert all(x["ok"] for x in u.front.post("/v1/resume")["upstreams"])
        u.look()
        assert u.states() == ["serving"] * 2, u.front.upstreams()
        failed = None
    finally:
        for s in [u.front, *u.servers]:
            s.__exit__(failed)
        for t in u.taps:
            t.close()


def one_restarts_in_update(f):
    """It restarts between two requests: the update fails as retryable, and the new process gets no requests
    from then on."""
    slow = Server(BATON, LOG, "--min-ready", 1, "--probe-interval", 60000, "--update-timeout", TIMEOUT_MS,
                  *itertools.chain.from_iterable(("--upstream", t.url) for t in f.taps))
    lost, served = f.taps[1].url, []
    with slow:
        until("it is ready", slow.ready)
        for steps in (1, 2):
            baton.push(checkpoint("step-00100"), slow.url, via="path", weight_version=f.label("step-00100"))
            mine = {"update_id": slow.post("/v1/update_weights/start", {"lease_s": 60})["update_id"]}
            asked = [("/v1/update_weights", dict(mine, path=checkpoint("step-01500"))),
                     ("/v1/update_weights/finish", mine)]
            for path, body in asked[:steps - 1]:
                slow.post(path, body)
            f.servers[1].kill()
            f.restart(1)
            status, said = slow.ask("POST", *asked[steps - 1])
            error = said["error"]
            assert (status, error["code"], error["param"], error["retryable"]) == (502, "upstream_error", None, True), said
            assert error["message"].startswith(lost + " was restarted during the update"), said
            assert slow.upstreams()[lost]["state"] != "serving", slow.upstreams()
            status, said = slow.ask("POST", *asked[1])
            assert (status, said["error"]["code"]) == (409, "update_closed"), said
            for _ in range(2 * N):
                served.append(step_of(slow.post("/v1/generate", body_of(GOLDEN[STEPS[0]][0])), 0))
            until("it is asked at once", lambda: slow.upstreams()[lost]["process"] == f.servers[1].boot_id)
            assert slow.upstreams()[lost]["state"] == "unsynced", slow.upstreams()
        assert set(served) == {"step-00100"}, served
        said = slow.post("/v1/update_weights/start", {"partial": True, "lease_s": 60})
        (why,) = [u["error"] for u in said["upstreams"] if u["upstream"] == lost]
        assert "did not serve the fleet's version" in why, said
        slow.post("/v1/update_weights/abort", {"update_id": said["update_id"]})
        said = baton.push(checkpoint("step-01500"), slow.url, via="path", weight_version=f.label("step-01500"))
        assert [u["ok"] for u in said["upstreams"]] == [True] * N, said


def restored(f):
    """A baton that restored the fleet's version from --state-dir gets requests again by itself; one into which another
    client pushed, under the same label, gets none."""
    options = [(*f.options, "--state-dir", os.path.join(WORK, f"restored-{i}"), "--snapshot", 1) for i in range(2)]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Server(BATON, LOG, *o)) for o in options]
        front = stack.enter_context(Server(BATON, LOG, "--min-ready", 1, "--probe-interval", PROBE_MS,
                                           "--upstream", servers[0].url, "--upstream", servers[1].url))

        def states():
            return [u["state"] for u in front.get("/v1/upstreams")["list"]]
        until("both serve", lambda: states() == ["serving"] * 2)
        push_to = dict(path=checkpoint("step-00100"), weight_version="restored")
        front.post("/v1/update_weights", push_to)
        until("its snapshot is written",
              lambda: (servers[0].status()["state"]["snapshots"]["newest"] or {}).get("weight_version") == "restored")
        servers[0].kill()
        until("it is down", lambda: states() == ["down", "serving"])
        stack.enter_context(Server(BATON, LOG, *options[0], port=servers[0].port))
        until("it serves again", lambda: states() == ["serving"] * 2)
        servers[1].post("/v1/update_weights", dict(push_to, path=checkpoint("step-01500")))
        until("that is noticed", lambda: states() == ["serving", "unsynced"])


def told(name, promise, *args):
    began = time.monotonic()
    try:
        promise(*args)
    except BaseException:
        print(f"--- in {name}", file=sys.stderr)
        raise
    print(f"{name}: {time.monotonic() - began:.2f} s", flush=True)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    f, failed = Fleet(), True
    try:
        until("it is ready", f.front.ready)
        f.wait_states(*["serving"] * N)
        for promise in (without_gpus, pause_while_one_hangs, restarts_unseen, restored, text, rollouts, affinity, refused_paths):
            told(promise.__name__, promise, f)
        clients = Clients(f.front)
        clients.steps["step-0"] = STEPS[0]
        with clients:
            for promise in ROUNDS * (checkpoints, one_refuses, one_is_lost_at_verify, one_stops_at_verify,
                                     one_dies_at_finish, one_restarts, pause, adapters,
                                     adapters_come_back, sent_adapters_come_back):
                told(promise.__name__, promise, f, clients)
        told("one_restarts_in_update", one_restarts_in_update, f)
        print(f"ok: {len(clients.answers)} answers, {len(clients.errors)} errors")
        failed = None
    finally:
        f.end(failed)


main()
