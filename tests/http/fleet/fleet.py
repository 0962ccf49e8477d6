"""Eight upstreams under load, with a fault in each phase of each operation: each request is answered, no mixed
version is served, and an engine with another version gets no requests and returns later.

The faults of the chaos rounds are random; a failure prints the seed, env SEED repeats it.

Usage: fleet.py BATON FAKE_ENGINE LOG DIALECT some|all|'PHASE:FAULT ...'
"""

import dataclasses
import itertools
import os
import random
import signal
import sys
import threading
import time

from fake_engine_world import Double, tag
from fleet_world import DATA_OPS, Load, Server, Versions, n_traffic, probes, until

BATON, ENGINE, LOG, DIALECT, HOW_MANY = sys.argv[1:6]
N_CROWD = 3
N, MIN_READY, RANKS, N_CLIENTS, N_TOKENS = 8, 9 - N_CROWD, 2, 12, 10
INTERVAL_US, PROBE_MS, PROBE_TIMEOUT_MS, TIMEOUT_MS = 2000, 100, 600, 1500
N_ROUNDS = 300 if HOW_MANY == "all" else int(os.environ.get("ROUNDS", 3))
DOWN_MS = 600  # a restart that cannot be missed
TWO_PHASE = DIALECT == "baton"
COLUMNS = {"names": ["a", "b"], "dtypes": ["bfloat16", "bfloat16"], "shapes": [[1], [2, 3]]}
HANDLES = dict(COLUMNS, packed=True, tensor_sizes=[2, 12], ipc_handles_pickled="gASVAAAAAAAAAAB9lC4=")
BROADCAST = dict(COLUMNS, packed=False, transport="nccl")
INIT = {"transport": "nccl", "master_address": "10.0.0.1", "master_port": 29500, "world_size": 1 + N * RANKS}

# What breaks, and what an upstream that broke so has done of it.
BREAKS = ("status", "close_before", "close_after", "half_stream", "hang", "dead", "restart", "blink")
FAULTS = BREAKS + ("slow", "wrong_version")
GONE = ("dead", "restart", "blink")  # it is another process then, or none
LIFE = ("idle", "data", "pause", "resume", "crowd_update", "crowd_finish")
PHASES = LIFE + {"baton": ("start", "update", "verify", "finish"),
                 "vllm": ("mark", "start", "update_pause", "update", "finish", "update_resume"),
                 "sglang": ("mark", "update_pause", "update", "finish", "update_resume")}[DIALECT]
SOME = {
    "baton": "idle:dead idle:hang idle:status idle:wrong_version start:status start:close_after update:half_stream "
             "verify:close_before verify:restart finish:status finish:close_after finish:restart finish:wrong_version "
             "pause:close_after resume:close_before data:dead data:half_stream data:blink crowd_update:status "
             "crowd_finish:close_after",
    "vllm": "idle:dead idle:restart mark:close_after start:wrong_version start:close_before "
            "update:status update:close_after finish:close_before "
            "finish:half_stream finish:dead pause:close_after resume:status update_pause:close_before "
            "update_resume:close_before data:dead data:half_stream data:blink crowd_update:close_after "
            "crowd_finish:status",
    "sglang": "idle:dead idle:wrong_version mark:close_before mark:wrong_version update:status "
              "update:close_after finish:close_before finish:restart "
              "finish:wrong_version pause:close_after resume:status update_pause:half_stream "
              "update_resume:close_before data:dead data:status data:blink crowd_update:status "
              "crowd_finish:close_before",
}[DIALECT]


@dataclasses.dataclass
class Said:
    """How an operation of several steps ended: the step that was refused, or None."""
    step: object
    status: int
    answer: object

    def of(self, name):
        """What it says of one upstream."""
        found = self.answer.get("upstreams") if self.step is None else self.answer["error"]["details"]["upstreams"]
        (one,) = [u for u in found if u["upstream"] == name]
        return one


class World:
    def __init__(self, front, doubles, load, versions):
        self.front, self.doubles, self.load, self.versions = front, doubles, load, versions
        self.label, self.used, self.n = "", {tag("step-0"), tag("torn")}, 0
        self.names = [d.url for d in doubles]

    def fresh(self, word):
        """A label whose tokens are no other's."""
        while True:
            self.n += 1
            label = f"{word}-{self.n}"
            if tag(label) not in self.used:
                self.used.add(tag(label))
                return label

    # ---- what a trainer does ----

    def init(self):
        """Only NCCL will do for SGLang; a restarted one has forgotten it."""
        if DIALECT == "sglang":
            self.front.post("/v1/weight_transfer/init", INIT)
            groups = [d.state()["group"] for d in self.doubles]
            assert [g["rank_offset"] for g in groups] == [1 + RANKS * i for i in range(N)], groups

    def update(self, label):
        body = BROADCAST if DIALECT == "sglang" else HANDLES
        status, said = self.front.ask("POST", "/v1/update_weights/start", {"weight_version": label, "lease_s": 60})
        if status != 200:
            return Said("start", status, said)
        mine = {"update_id": said["update_id"]}
        self.versions.begin(label) if DIALECT == "sglang" else None
        status, said = self.front.ask("POST", "/v1/update_weights", dict(body, **mine))
        if status != 200:
            self.front.ask("POST", "/v1/update_weights/abort", mine)
            return Said("update", status, said)
        self.versions.begin(label) if DIALECT != "sglang" else None
        status, said = self.front.ask("POST", "/v1/update_weights/finish", mine)
        if status != 200:
            return Said("finish", status, said)
        assert said["phase"] == "committed" and said["weight_version"] == label, said
        return Said(None, status, said)

    def update_all(self, label):
        """A whole update, which brings all engines back."""
        self.init()
        said = self.update(label)
        assert said.step is None, said
        assert all(u["ok"] for u in said.answer["upstreams"]) and len(said.answer["upstreams"]) == N, said
        self.committed(label)

    def committed(self, label):
        self.versions.end_before(label)
        self.label = label

    def pause(self):
        status, said = self.front.ask("POST", "/v1/pause", {"mode": "keep", "timeout_s": 2})
        if status != 200:
            return Said("pause", status, said)
        assert said["paused"] is True and not self.front.ready(), said
        status, said = self.front.ask("POST", "/v1/resume")
        return Said(None if status == 200 else "resume", status, said)

    # ---- what is true ----

    def lie(self):
        """What the front says that is not so, or None."""
        status, ready = self.front.status(), self.front.ready()
        upstreams = {u["upstream"]: u for u in status["upstreams"]["list"]}
        if list(upstreams) != self.names:
            return f"{list(upstreams)} are not {self.names}"
        serving = [u for u in upstreams.values() if u["state"] == "serving"]
        enough = len(serving) >= MIN_READY
        if status["upstreams"]["n_serving"] != len(serving) or ready != enough or status["ready"] != enough:
            return f"ready is {ready} with {len(serving)} that serve: {status}"
        for d in self.doubles:
            said = upstreams[d.url]
            if d.process.returncode is not None:
                if said["state"] not in ("down", "fenced"):
                    return f"{d.url} is dead, and {said['state']}"
                continue
            try:
                real = d.state()
            except OSError:
                return f"{d.url} is away"
            if said["state"] == "serving" and (
                    real["version"] != self.label or real["torn"] or real["pause"] or real["weights_asleep"]):
                return f"{d.url} is no {said} of {self.label}: {real}"
        return None

    def settle(self):
        """Each state that the server reports becomes true, and is logged."""
        until(lambda: self.lie(), lambda: self.lie() is None)
        return self.front.upstreams()

    def state_of(self, d):
        return self.front.upstreams()[d.url]["state"]

    def wait_for(self, d, *states):
        until(lambda: f"{d.url} is one of {states}: {self.front.upstreams()[d.url]}",
              lambda: self.state_of(d) in states)

    def check_no_traffic(self):
        """Who is not in rotation gets none, while the others go on."""
        out = [d for d in self.doubles if d.process.returncode is None and self.state_of(d) != "serving"]
        before = [n_traffic(d) for d in out]
        self.load.wait(2 * N_CLIENTS)
        got = [d.url for d, n in zip(out, before) if n_traffic(d) != n]
        # One that failed to resume is asked again meanwhile, and serves once it has resumed.
        assert not [d for d in out if d.url in got and self.state_of(d) != "serving"], f"{got} got requests"
        return out

    def victims(self, d, phase):
        """It, and as many of its neighbours as make too many of them."""
        at = self.doubles.index(d)
        return [self.doubles[(at + i) % N] for i in range(N_CROWD if phase.startswith("crowd") else 1)]

    def check_harm(self, mark, victims, phase):
        """Whoever was not served was with one that broke; with all of them, when all were changed half-way."""
        if phase == "crowd_update" and not TWO_PHASE:
            victims = self.doubles
        for r in self.load.since(mark):
            nobody = len(victims) == N and r.status == 503
            assert r.kind == "whole" or nobody or any(r.blames(v.url) for v in victims), self.versions.told(r)

    def check_once(self):
        """Each request is another's: none was worked on twice, whatever broke under it."""
        done = [(r["path"], r["body"]) for d in self.doubles if d.process.returncode is None for r in d.journal()
                if r["op"] in DATA_OPS and r["executed"] and not probes(r)]
        assert len(set(done)) == len(done), [r for r in done if done.count(r) > 1]

    # ---- faults ----

    def order(self, d, op, fault):
        """Returns what is to be called when it should have happened."""
        if fault == "dead":
            return self._kill_at(d, op)
        more = {"status": {"status": 500}, "half_stream": {"tokens": 3}, "slow": {"ms": 150},
                "restart": {"ms": DOWN_MS}, "blink": {"ms": 0}}.get(fault, {})
        if fault == "wrong_version":
            more = {"label": self.fresh("wrong")}
            self.versions.begin(more["label"], stray=True)
        if op == "who" and fault in ("restart", "blink", "wrong_version"):
            op = ""  # at once
        elif op in ("who", "*"):
            more["times"] = 0
        if fault == "blink":
            self.versions.begin("step-0", stray=True)
        d.order(op, "restart" if fault == "blink" else fault, **more)

        def happened():
            if fault not in GONE and op:
                d.wait(f"{fault} at {op}", lambda: any(f["fired"] for f in d.get("/fault")["faults"]))
            if fault in GONE:
                boots = 2 if fault in ("restart", "blink") else 1
                d.wait_back(lambda: d.state()["boots"] >= boots)
            return more.get("label") or ("step-0" if fault == "blink" else None)
        return happened

    def _kill_at(self, d, op):
        """Dead as soon as the request has come."""
        d.order(op, "hang")

        def wait_and_kill():
            d.wait(f"{op} comes", lambda: any(r["op"] == op and r["fault"] for r in d.journal()))
            d.kill()
        killer = threading.Thread(target=wait_and_kill, daemon=True)
        killer.start()
        return killer.join

    def clean(self):
        """Before a case: its journals and faults are its own."""
        for d in self.doubles:
            d.good("DELETE", "/fault")
            d.good("DELETE", "/journal")

    def revive(self, d):
        """Whoever died is started again where it was."""
        if d.process.returncode is not None:
            at = self.doubles.index(d)
            d = self.doubles[at] = double("--port", d.port)
        d.good("DELETE", "/fault")
        return d


def double(*more):
    return Double(ENGINE, DIALECT, "--world-size", RANKS, "--weight-version", "step-0", "--interval-us", INTERVAL_US,
                  *more)


# ---- cases ----

def idle(w, d, fault):
    """What it says of itself is broken; while it answers clients it goes on."""
    stray = w.order(d, "*" if fault == "hang" else "who", fault)()
    if fault in GONE + ("hang", "wrong_version"):
        w.wait_for(d, "down", "unsynced")
    return stray, Said(None, 200, {})


def data(w, d, fault):
    """One that takes everything and answers nothing is found by what it is asked about itself."""
    stray = w.order(d, "*" if fault == "hang" else "chat", fault)()
    if fault in GONE + ("hang", "wrong_version"):
        w.wait_for(d, "down", "unsynced", "fenced")  # fenced: the new process was asked for the canary of the old one
    return stray, Said(None, 200, {})


def paused(w, d, fault, op):
    happened = w.order(d, op, fault)
    said = w.pause()
    stray = happened()
    if fault == "slow" or fault == "wrong_version":
        assert said.step is None, said
    else:
        assert said.step == op and said.of(d.url)["ok"] is False, said
    return stray, said


def pause(w, d, fault):
    return paused(w, d, fault, "pause")


def resume(w, d, fault):
    return paused(w, d, fault, "resume")


def updated(w, d, fault, op):
    label = w.fresh("step")
    happened = w.order(d, op, fault)
    said = w.update(label)
    stray = happened()
    if said.step is None:
        w.committed(label)
    elif not w.label:
        w.versions.never(label)
    apart = ("pause", "resume", "mark") if DIALECT == "sglang" else ("pause", "resume")  # whose tensors have it too
    if fault == "slow" or (fault == "wrong_version" and (TWO_PHASE or op in apart)):
        assert said.step is None and said.of(d.url)["ok"], said  # before its first byte, or after its end
    else:  # the others are asked which update they have
        assert said.of(d.url)["ok"] is False, said
    if TWO_PHASE and op in ("start", "update", "verify") and fault in BREAKS:
        assert said.step == {"verify": "finish"}.get(op, op), said
        assert all(not any(r["op"] == "finish" for r in x.journal()) for x in w.doubles if x.process.returncode is None)
        assert {x.state()["version"] for x in w.doubles if x is not d} == {w.label}
    return stray, said


def crowd(w, d, fault, op):
    """More engines fail than allowed: the update fails, and the fleet is not reported ready."""
    label = w.fresh("step")
    for victim in w.victims(d, "crowd"):
        w.order(victim, op, fault)
    said = w.update(label)
    assert said.step == op, said
    if op == "finish":
        w.committed(label)  # by the others
    n = N - N_CROWD if op == "finish" else N if TWO_PHASE else 0
    until("it is ready if it may be", lambda: w.front.ready() == (n >= MIN_READY))
    assert w.front.status()["upstreams"]["n_serving"] == n, w.front.upstreams()
    return None, said


CASES = {"idle": idle, "crowd_update": lambda w, d, f: crowd(w, d, f, "update"),
         "crowd_finish": lambda w, d, f: crowd(w, d, f, "finish"), "data": data, "pause": pause, "resume": resume,
         "update_pause": lambda w, d, f: updated(w, d, f, "pause"),
         "update_resume": lambda w, d, f: updated(w, d, f, "resume"),
         **{op: lambda w, d, f, op=op: updated(w, d, f, op) for op in ("mark", "start", "update", "verify", "finish")}}


def case(w, phase, fault, at):
    began, d, mark = time.monotonic(), w.doubles[at % N], w.load.mark()
    victims = w.victims(d, phase)
    w.clean()
    stray, said = CASES[phase](w, d, fault)
    w.settle()
    if stray is not None:
        w.versions.end(stray)
    w.load.wait(N_CLIENTS)
    out = w.check_no_traffic()
    states = [w.state_of(x) for x in w.doubles]
    w.check_harm(mark, victims, phase)
    victims = [w.revive(v) for v in victims]
    w.front.probed(*[v.url for v in victims])
    w.update_all(w.fresh("step"))
    upstreams = w.settle()
    assert all(u["state"] == "serving" for u in upstreams.values()), upstreams
    back = [x for x in w.doubles if x in victims or x in out]
    before = [n_traffic(x) for x in back]
    until("who was out of step serves again", lambda: w.load.check() or all(
        n_traffic(x) > n for x, n in zip(back, before)))
    w.check_harm(mark, victims, phase)
    w.check_once()
    print(f"{phase}:{fault}: {said.step or 'done'} {said.status} {states} {time.monotonic() - began:.2f} s", flush=True)


# ---- chaos ----

OPS = {"baton": ("start", "update", "verify", "finish"),
       "vllm": ("mark", "start", "pause", "update", "finish", "resume"),
       "sglang": ("mark", "pause", "update", "finish", "resume")}[DIALECT] + ("chat", "who")
ODDS = ("status", "close_before", "close_after", "half_stream", "restart", "blink", "slow")


def random_round(w, dice):
    """Several engines fail at once, at random steps; those out of rotation stay out for some rounds."""
    began, mark = time.monotonic(), w.load.mark()
    w.clean()
    broken = dice.sample(w.doubles, dice.choice((0, 1, 1, 2, 3)))
    faults = [(d, dice.choice(OPS), dice.choice(ODDS)) for d in broken]
    print([f"{w.doubles.index(d)}:{op}:{fault}" for d, op, fault in faults], end=" ", flush=True)
    for d, op, fault in faults:
        w.order(d, op, fault)
    if DIALECT == "sglang" and dice.random() < 0.5:
        w.front.ask("POST", "/v1/weight_transfer/init", INIT)
    label = w.fresh("step")
    said = w.update(label)
    for d in broken:
        d.wait_back(lambda d=d: d.good("DELETE", "/fault"))
    if w.front.status()["weights"]["weight_version"] == label:
        w.committed(label)
    else:
        assert said.step is not None, said
        w.versions.never(label)
    w.front.probed(*[d.url for d in broken])
    upstreams = w.settle()
    if any(fault == "blink" for _, _, fault in faults):
        w.versions.end("step-0")
    out = [d for d in w.doubles if upstreams[d.url]["state"] != "serving"]
    for r in w.load.since(mark):
        nobody = len(out) == N and r.status == 503
        assert r.kind == "whole" or nobody or any(r.blames(d.url) for d in {*broken, *out}), w.versions.told(r)
    if dice.random() < 0.3 or len(out) > N - MIN_READY:
        w.front.probed(*[d.url for d in out])
        w.update_all(w.fresh("step"))
        w.settle()
    w.check_once()
    print(f"{said.step or 'done'} {said.status}, {len(out)} out, {time.monotonic() - began:.2f} s", flush=True)


def chaos(w, n_rounds, seed):
    print(f"seed {seed}", flush=True)
    dice = random.Random(seed)
    for _ in range(n_rounds):
        random_round(w, dice)
    w.front.probed(*[d.url for d in w.doubles])
    w.update_all(w.fresh("step"))
    assert all(u["state"] == "serving" for u in w.settle().values())


def cases():
    if HOW_MANY != "all":
        return [tuple(c.split(":")) for c in (SOME if HOW_MANY == "some" else HOW_MANY).split()]
    return [(p, f) for p in PHASES for f in FAULTS if is_case(p, f)]


def is_case(phase, fault):
    """vLLM does not say which version it serves; and a crowd has to fail, and to be there still."""
    if phase.startswith("crowd"):
        return fault in BREAKS and fault not in GONE
    return not (DIALECT == "vllm" and fault == "wrong_version")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    doubles = [double() for _ in range(N)]
    options = ["--min-ready", MIN_READY, "--probe-interval", PROBE_MS, "--probe-timeout", PROBE_TIMEOUT_MS,
               "--update-timeout", TIMEOUT_MS]
    options += itertools.chain.from_iterable(("--upstream", f"{d.url},{DIALECT}") for d in doubles)
    versions = Versions("step-0")
    try:
        with Server(BATON, LOG, *options) as front:
            until("it is ready", front.ready)
            with Load(front, DIALECT, N_CLIENTS, N_TOKENS, versions) as load:
                w = World(front, doubles, load, versions)
                load.wait(N_CLIENTS)
                until("all are here", lambda: all(u["last_heard_s"] is not None for u in front.upstreams().values()))
                w.update_all(w.fresh("step"))
                w.settle()
                for at, (phase, fault) in enumerate(cases()):
                    try:
                        case(w, phase, fault, at)
                    except BaseException:
                        print(f"--- in {phase}:{fault}", file=sys.stderr)
                        raise
                chaos(w, N_ROUNDS, int(os.environ.get("SEED", random.randrange(1 << 31))))
    finally:
        for d in doubles:
            d.process.kill()
    kinds = {k: sum(r.kind == k for r in load.records) for k in ("whole", "error", "cut")}
    print(f"ok: {len(cases())} cases, {N_ROUNDS} rounds, requests: {kinds}")


main()
