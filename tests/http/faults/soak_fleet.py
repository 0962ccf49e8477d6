"""The second half of the soak: a server in front of three, of which one is killed or stopped again and again,
while updates, pauses and generations go on.

A generation that began after an update's success shows that version or a later one; a generation that began
after a failed update shows nothing of it; each greedy text matches its version."""

import json
import signal
import threading
import time

from soak_world import Actor, Process, Trouble, ask, explains

N, STEPS = 3, ("step-00000", "step-00100", "step-01500")
ENGINE_LOST = (502, 503, 504)
SETTLE_S = 180


class Fleet:
    def __init__(self, binary, model, work, tally):
        self.binary, self.model, self.work, self.tally = binary, model, work, tally
        with open(f"{model}/golden.json", encoding="utf-8") as f:
            golden = json.load(f)["checkpoints"]
        self.golden = {step: golden[step]["cases"] for step in STEPS}
        self.lock = threading.Lock()
        self.steps, self.order, self.current, self.failed = {"step-0": STEPS[0]}, {"step-0": 0}, "step-0", {}
        self.n_labels, self.n_kills, self.is_hurt = 0, 0, False
        self.servers = [self._start(i) for i in range(N)]
        options = [x for s in self.servers for x in ("--upstream", s.url)]
        self.front = Process(binary, work, "front", "--min-ready", 2, "--probe-interval", 200, "--probe-timeout", 5000,
                             "--update-timeout", 60000, "--drain-timeout", 20000, *options)
        self._wait(lambda: ask(self.front.port, "GET", "/readyz").status == 200, "it is ready")

    def _start(self, i, port=0):
        return Process(self.binary, self.work, f"engine-{i}", "--model", self.model, "--weights",
                       f"{self.model}/checkpoints/step-00000.safetensors", "--weight-version", "step-0",
                       "--allow-path", self.model, "--engine-threads", 1, "--drain-timeout", 5000, port=port)

    @staticmethod
    def _wait(condition, what, seconds=SETTLE_S):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise Trouble(f"the fleet: after {seconds} s not so: {what}")
            time.sleep(0.1)

    def actors(self, rng):
        of = lambda name, actions: Actor(self, name, rng.random(), actions)  # noqa: E731
        return [of("fleet changes", [push, push, push, pause]), of("fleet hurts", [kill, stop]),
                of("fleet generates", [generate]), of("fleet generates", [generate]), of("fleet reads", [read])]

    def check(self):
        self.front.check()
        for s in self.servers:
            s.check_reports()

    def status(self):
        return ask(self.front.port, "GET", "/v1/status").body

    def states(self):
        return [u["state"] for u in self.status()["upstreams"]["list"]]

    def quiet(self):
        """All serve one version again. (descriptors, threads, memory) of the one in front"""
        self._wait(lambda: "down" not in self.states(), "all are heard")
        self._wait(lambda: push(self, None) == "fleet update 200", "an update succeeds")
        self._wait(lambda: self.states() == ["serving"] * N, f"all serve: {self.states()}")
        for s in self.servers:
            said = ask(s.port, "GET", "/v1/status").body
            if said["weights"]["weight_version"] != self.current or said["update"] is not None:
                raise Trouble(f"{self.current} was committed: {said}")
        for at in range(len(self.golden[STEPS[0]])):
            generate(self, None, at)
        self._wait(lambda: self.status()["http"]["connections"] <= 1, "no connection is left")
        return self.front.uses()

    def end(self):
        for s in [self.front, *self.servers]:
            s.end()

    def kill(self):
        for s in [self.front, *self.servers]:
            s.kill()


def push(fleet, rng):
    """A whole checkpoint, by its path."""
    with fleet.lock:
        fleet.n_labels += 1
        label, step = f"fleet-{fleet.n_labels}", STEPS[fleet.n_labels % len(STEPS)]
        fleet.steps[label], fleet.order[label] = step, fleet.n_labels
    reply = ask(fleet.front.port, "POST", "/v1/update_weights", {
        "path": f"{fleet.model}/checkpoints/{step}.safetensors", "weight_version": label})
    with fleet.lock:
        if reply.status == 200:
            fleet.current = label
        else:
            fleet.failed[label] = time.monotonic()
    if reply.status == 200 and reply.body["weight_version"] != label:
        raise Trouble(f"{label}: {reply}")
    if reply.status not in (200, 408, 409, 422, *ENGINE_LOST) or (reply.status != 200 and not explains(reply)):
        raise Trouble(f"an update of the fleet was answered {reply}")
    return f"fleet update {reply.status}"


def pause(fleet, rng):
    mode = rng.choice(["keep", "wait", "abort"])
    reply = ask(fleet.front.port, "POST", "/v1/pause", {"mode": mode, "lease_s": 60})
    if reply.status not in (200, 409, *ENGINE_LOST):
        raise Trouble(f"a pause of the fleet was answered {reply}")
    time.sleep(rng.random())
    for _ in range(3):
        ended = ask(fleet.front.port, "POST", "/v1/resume", {})
        if ended.status == 200:
            return f"fleet pause {mode} {reply.status}"
        if ended.status not in (409, *ENGINE_LOST):
            raise Trouble(f"a resume of the fleet was answered {ended}")
        time.sleep(1)
    return f"fleet pause {mode}, resume {ended.status}"


def kill(fleet, rng):
    """-9, and the same again after a while."""
    i = rng.randrange(N)
    time.sleep(rng.uniform(1, 4))
    fleet.servers[i].kill()
    time.sleep(rng.uniform(0, 2))
    fleet.servers[i] = fleet._start(i, fleet.servers[i].port)  # pylint: disable=protected-access
    time.sleep(rng.uniform(1, 4))


def stop(fleet, rng):
    """It is stopped for a while, and continued."""
    time.sleep(rng.uniform(1, 4))
    process = fleet.servers[rng.randrange(N)].process
    process.send_signal(signal.SIGSTOP)
    time.sleep(rng.uniform(0.1, 6))
    process.send_signal(signal.SIGCONT)


def generate(fleet, rng, at=None):
    at = rng.randrange(len(fleet.golden[STEPS[0]])) if at is None else at
    stream = rng is not None and rng.random() < 0.5
    with fleet.lock:
        floor, began = fleet.order[fleet.current], time.monotonic()
    body = {"token_ids": fleet.golden[STEPS[0]][at]["prompt_token_ids"], "stream": stream, "on_update": "finish",
            "sampling_params": {"max_tokens": 24, "temperature": 0, "ignore_eos": True}}
    try:
        reply = ask(fleet.front.port, "POST", "/v1/generate", body)
    except (OSError, Trouble, ValueError) as e:
        if isinstance(e, TimeoutError) or not stream:
            raise Trouble(f"no whole answer: {type(e).__name__} {e}") from e
        return "fleet generate cut"  # its engine was killed in mid stream
    except Exception as e:  # http.client's: the stream was cut
        if not stream:
            raise Trouble(f"no whole answer: {type(e).__name__} {e}") from e
        return "fleet generate cut"
    if reply.status != 200:
        if rng is None or reply.status not in ENGINE_LOST or not explains(reply):
            raise Trouble(f"a generation of the fleet was answered {reply}")
        return f"fleet generate {reply.status}"
    if stream and "error" in reply.events[-1]:
        return "fleet generate ended with an error"
    choices = [e["choices"][0] for e in reply.events] if stream else reply.body["choices"]
    judge(fleet, at, [t for c in choices for t in c["token_ids"]], choices[-1], floor, began)
    return "fleet generate 200"


def judge(fleet, at, ids, last, floor, began):
    if last["finish_reason"] == "abort":
        return  # by a pause
    labels = [s["version"] for s in last["weight_versions"]]
    if len(labels) != 1 or labels[0] not in fleet.steps:
        raise Trouble(f"made by {last['weight_versions']}")
    with fleet.lock:
        failed = fleet.failed.get(labels[0], float("inf"))
    if fleet.order[labels[0]] < floor or failed < began:
        raise Trouble(f"made by {labels[0]}, which failed {began - failed:.1f} s before, or number {floor} was committed")
    if ids != fleet.golden[fleet.steps[labels[0]]][at]["greedy_token_ids"]:
        raise Trouble(f"{labels[0]} does not make {ids}")


def read(fleet, rng):
    path = rng.choice(["/health", "/livez", "/v1/status", "/v1/upstreams", "/metrics", "/v1/models"])
    reply = ask(fleet.front.port, "GET", path)
    if reply.status != 200 and not (path == "/v1/models" and reply.status in ENGINE_LOST):
        raise Trouble(f"{path}: {reply}")
    time.sleep(0.02)
    return f"fleet reads {path}"
