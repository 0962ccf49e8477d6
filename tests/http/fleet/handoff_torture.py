"""Hand-off while everything around it fails: each call to an engine and each call of the driver in turn, engines that
hang, restart or are killed, trainers that die in mid transfer, and this server itself, killed in mid hand-off.

Whatever happens: each request of a client is answered, ran at one engine once, and has tokens of whole versions that
were committed; no push changes an engine before it is committed; and once nothing fails any more, every engine has the
last version byte for byte and generates with it, without another push.

Usage: handoff_torture.py BATON MODEL FAKE_ENGINE LIBFAKECUDA LIBFAKECUDA_OF_ENGINES WORK [--seconds N] [--seed N] [case...]
"""

import argparse
import contextlib
import functools
import json
import os
import random
import socket
import sys
import threading
import time

from fake_engine_world import Double
from fleet_world import DATA_OPS, Load, Server, Versions, chat_form, completion_form, probes, until
from handoff_tap import Tap

BATON, MODEL, ENGINE, FAKE, FOREIGN, WORK = sys.argv[1:7]
KINDS = ("vllm", "sglang", "vllm")
DATA = ("/v1/completions", "/v1/chat/completions")
CHECKPOINTS = ("00000", "00100", "01500")
PROBE_MS, UPDATE_MS, DOWN_MS = 50, 1000, 600
HEAL_S = 60
HANG_S = 1.3  # longer than --update-timeout
N_CLIENTS, N_TOKENS, INTERVAL_US = 4, 12, 1000
N_CALLS_MAX = 14  # of one hand-off to one engine
# Of one call: refused; not forwarded, and no answer; forwarded, and another answer, or none; no answer in time; the engine
# restarts before it, or after it; it is killed.
FAULTS = ("500", "drop", "500 after", "drop after", "hang", "hang after", "restart", "restart after", "kill")
# What the server asks of the driver while it receives or hands over, and cannot do.
DRIVER_CALLS = ("cuIpcGetMemHandle", "cuMemGetAddressRange_v2", "cuMemAlloc_v2", "cuMemcpyHtoDAsync_v2", "cuEventRecord",
                "cuEventSynchronize", "cuStreamSynchronize", "cuLaunchKernel")


def checkpoint(step):
    return os.path.join(MODEL, f"checkpoints/step-{step}.safetensors")


@functools.cache
def content(step):
    from handoff import content as read  # not by the processes of the driver, which import this file too
    return read(step)


class FaultTap(Tap):
    """Fails the nth control call of a hand-off, counted from arm() on."""

    def __init__(self, fake, double):
        super().__init__(fake, 0, double)
        self.lock, self.left, self.kind, self.fired, self.wrong = threading.Lock(), 0, None, None, []
        self.on_fire = None

    def arm(self, nth, kind):
        with self.lock:
            self.left, self.kind, self.fired = nth, kind, None

    def disarm(self):
        with self.lock:
            self.kind = None
            return self.fired

    def take(self, path):
        with self.lock:
            self.left -= self.left > 0
            if self.kind is None or self.left > 0 or self.fired is not None:
                return None
            self.fired = path
            kind, self.kind = self.kind, None
        if self.on_fire is not None:
            self.on_fire(path)
        return kind

    def load(self, body):
        wrong = super().load(body)
        if wrong is not None:
            self.wrong.append(wrong)
        return wrong

    def restart(self):
        self.loaded = {}
        self.double.order("", "restart", ms=DOWN_MS)

    def relay(self, handler):
        path = handler.path.partition("?")[0]
        kind = self.take(path) if handler.command == "POST" and path not in DATA else None
        if kind is None:
            super().relay(handler)
            return
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        handler.close_connection = True
        if "after" in kind:
            self.forward(handler, path, body)
        what = kind.split()[0]
        if what == "500":
            self.answer(handler, 500, [], b'{"error": "ordered by the test"}')
        elif what == "hang":
            time.sleep(HANG_S)
        elif what == "restart":
            self.restart()
        elif what == "kill":
            self.double.kill()
            self.loaded = {}


def double(kind):
    return Double(ENGINE, kind, "--weight-version", "old", "--interval-us", INTERVAL_US)


class World(contextlib.ExitStack):
    """Engines behind taps, a server that stages for them, and clients."""

    def __init__(self, *options, kinds=KINDS, load=True):
        super().__init__()
        self.kinds, self.options, self.n, self.taps = kinds, options, 0, []
        doubles = [double(kind) for kind in kinds]
        self.callback(lambda: [d.process.kill() for d in (*doubles, *(t.double for t in self.taps))])
        try:
            for d in doubles:
                self.taps.append(self.enter_context(FaultTap(FOREIGN, d)))
            self.start()
        except BaseException:  # nobody enters this
            self.close()
            raise
        self.versions, self.step, self.label = Versions("old"), None, None
        if load:
            self.load = Load(self.server, "vllm", N_CLIENTS, N_TOKENS, self.versions)
            self.load.forms = [form(stream) for form in (completion_form, chat_form) for stream in (True, False)]
            self.enter_context(self.load)

    def start(self):
        specs = [a for tap, kind in zip(self.taps, self.kinds) for a in ("--upstream", f"{tap.url},{kind}")]
        self.server = Server(
            BATON, os.path.join(WORK, "log"), *specs, "--min-ready", 1, "--stage", "cuda:0", "--cuda-library", FAKE,
            "--manifest", checkpoint(CHECKPOINTS[0]), "--allow-path", MODEL, "--probe-interval", PROBE_MS,
            "--update-timeout", UPDATE_MS, *self.options)
        self.enter_context(self.server)

    def serve_all(self):
        return self.server.get("/v1/upstreams")["n_serving"] == len(self.taps)

    def push(self, step):
        """Returns the status. A version that was committed is expected at every engine in the end."""
        self.n += 1
        label = f"v{self.n}"
        self.versions.begin(label)
        status, said = self.server.ask("POST", "/v1/update_weights", {"path": checkpoint(step), "weight_version": label})
        stage = self.server.status()["stage"]
        committed = stage is not None and stage["weight_version"] == label
        assert committed or status >= 500, (status, said)
        assert status == 200 or status >= 409 and said["error"]["message"], (status, said)
        if not committed:
            self.versions.never(label)
        else:
            self.step, self.label = step, label
        if status == 200:
            self.versions.end_before(label)
        return status

    def revive(self):
        for i, tap in enumerate(self.taps):
            if tap.double.process.poll() is not None:
                time.sleep(DOWN_MS / 1000)  # an SGLang that is back before a probe failed may answer with the weights it began with
                tap.loaded, tap.double = {}, double(self.kinds[i])

    def is_right(self, tap):
        state = tap.double.state()
        return (tap.loaded == content(self.step) and state["version"] == self.label and not state["torn"]
                and state["pause"] is None and state["update"] != "open")

    def heal(self, after=None):
        """Nothing fails any more: every engine gets the last version without another push."""
        fired = [tap.disarm() for tap in self.taps]
        self.revive()
        until(lambda: f"every engine is right after {after}, {fired}; {self.told()}", self.is_whole, wait_s=HEAL_S, every_s=0.05)
        self.versions.end_before(self.label)
        return fired

    def is_whole(self):
        try:
            return self.serve_all() and all(self.is_right(tap) for tap in self.taps)
        except OSError:  # it restarts
            return False

    def told(self):
        members = ("upstream", "state", "weight_version", "error")
        about = [{k: u.get(k) for k in members} for u in self.server.get("/v1/upstreams")["list"]]
        right = []
        for tap in self.taps:
            state = tap.double.state()
            right.append((self.is_right(tap), state["version"], state["torn"], state["pause"], state["update"]))
        return about, right, self.server.status()["stage"]

    def check(self):
        """Each request is another's: none was worked on twice, whatever broke under it."""
        if hasattr(self, "load"):
            self.load.check()
        done = [(r["path"], r["body"]) for tap in self.taps for r in tap.double.journal()
                if r["op"] in DATA_OPS and r["executed"] and not probes(r)]
        twice = [r for r in set(done) if done.count(r) > 1] if len(set(done)) != len(done) else []
        assert not twice, twice
        assert not any(tap.wrong for tap in self.taps), [tap.wrong for tap in self.taps]

    def close_well(self):
        self.heal()
        if hasattr(self, "load"):
            self.load.wait(2 * N_CLIENTS)
        self.check()


# ---- cases ----

def sweep(seed, seconds, faults=FAULTS):
    """Each call of a hand-off in turn × each fault, until the time is over."""
    rng = random.Random(seed)
    end, n_fired = time.monotonic() + seconds, {}
    with World() as w:
        until("all serve", w.serve_all)
        w.push(CHECKPOINTS[1])
        w.heal()
        cases = [(i, nth, kind) for i in (0, 1) for nth in range(1, N_CALLS_MAX + 1) for kind in faults]
        rng.shuffle(cases)
        for i, nth, kind in cases:
            if time.monotonic() > end and n_fired:
                break
            w.taps[i].arm(nth, kind)
            status = w.push(rng.choice(CHECKPOINTS))
            fired = w.heal((i, nth, kind, status))[i]
            assert status == 200, (i, nth, kind, status)  # two others are enough
            if fired is not None:
                n_fired[kind] = n_fired.get(kind, 0) + 1
        w.close_well()
    assert n_fired, "nothing failed"
    return n_fired


def storm(seed, seconds):
    """Several engines fail at once, at any call, and trainers die in mid transfer."""
    rng = random.Random(seed)
    end, statuses = time.monotonic() + seconds, {}
    with World() as w:
        until("all serve", w.serve_all)
        w.push(CHECKPOINTS[1])
        w.heal()
        while time.monotonic() < end:
            for tap in w.taps:
                if rng.random() < 0.6:
                    tap.arm(rng.randint(1, N_CALLS_MAX), rng.choice(FAULTS))
            if rng.random() < 0.3:
                die_in_transfer(w)
            for _ in range(rng.randint(1, 3)):
                status = w.push(rng.choice(CHECKPOINTS))
                statuses[status] = statuses.get(status, 0) + 1
            w.heal()
        w.close_well()
    return statuses


def die_in_transfer(w):
    """A trainer sends half of its tensors and dies: no engine gets a request of the update."""
    calls = [len(tap.calls) for tap in w.taps]
    with open(checkpoint(CHECKPOINTS[2]), "rb") as f:
        data = f.read()
    with socket.create_connection(("127.0.0.1", w.server.port)) as s:
        s.sendall(f"POST /v1/update_weights?weight_version=dead HTTP/1.1\r\nHost: x\r\nContent-Type: application/vnd.safetensors\r\n"
                  f"Content-Length: {len(data)}\r\n\r\n".encode() + data[:len(data) // 2])
    until("its update is over", lambda: w.server.status()["update"] is None)
    paused = [c for tap, n in zip(w.taps, calls) for c in tap.calls[n:] if c[2] in ("/pause", "/pause_generation")]
    assert not paused, paused


def driver(seed, seconds):
    """Each call of the driver in turn: nothing is committed, or it is handed over in the end."""
    end, found = time.monotonic() + seconds, {}
    cases = [(call, nth) for nth in (1, 2, 3, 5, 8, 13, 21) for call in DRIVER_CALLS]
    for call, nth in cases:
        if time.monotonic() > end:
            break
        os.environ.update(FAKECUDA_FAIL_CALL=call, FAKECUDA_FAIL_NTH=str(nth))
        try:
            with contextlib.ExitStack() as started:
                try:
                    w = started.enter_context(World(kinds=("vllm", "sglang"), load=False))
                except AssertionError:
                    found["no start"] = found.get("no start", 0) + 1
                    continue
                until("all serve", w.serve_all)
                statuses = [w.push(step) for step in CHECKPOINTS]
                if w.label is not None:
                    w.heal()
                w.check()
                for status in statuses:
                    found[status] = found.get(status, 0) + 1
        except AssertionError as e:
            raise AssertionError(f"{call} {nth}: {e}") from e
        finally:
            del os.environ["FAKECUDA_FAIL_CALL"], os.environ["FAKECUDA_FAIL_NTH"]
    return found


def reborn(seed, seconds):
    """The server is killed at a call of a hand-off. The next one finds its last version in --state-dir and hands it over; if
    its snapshot was not written yet, no half version serves until the trainer pushes again."""
    rng = random.Random(seed)
    end, found = time.monotonic() + seconds, {}
    while time.monotonic() < end or not found:
        state = os.path.join(WORK, f"state-{rng.randrange(1 << 40)}")
        os.mkdir(state, 0o700)
        with World("--state-dir", state, "--snapshot", 1, kinds=("vllm", "sglang"), load=False) as w:
            until("all serve", w.serve_all)
            w.push(CHECKPOINTS[1])
            w.heal()
            killed = w.server
            victim = rng.choice(w.taps)
            victim.on_fire = lambda _: killed.kill()
            victim.arm(rng.randint(1, N_CALLS_MAX), "drop after")
            label, step = f"v{w.n + 1}", rng.choice(CHECKPOINTS)
            with contextlib.suppress(OSError, ConnectionError, ValueError):
                killed.ask("POST", "/v1/update_weights", {"path": checkpoint(step), "weight_version": label})
            fired = victim.disarm()
            if fired is None:
                continue
            victim.on_fire = None
            w.n += 1
            w.start()
            stage = w.server.status()["stage"]
            about = stage["weight_version"] if stage else None
            assert about in (None, label, w.label), stage
            found[about == label] = found.get(about == label, 0) + 1
            if about == label:
                w.step, w.label = step, label
            elif about is None:
                up = w.server.get("/v1/upstreams")["list"]
                assert not any(t.double.state()["torn"] and u["state"] == "serving" for t, u in zip(w.taps, up)), up
                w.push(CHECKPOINTS[2])
            w.heal()
            for tap in w.taps:
                tap.wrong.clear()  # what was mapped when its owner died
            w.check()
    return found


CASES = {f.__name__: f for f in (sweep, storm, driver, reborn)}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=2.0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("cases", nargs="*")
    a = p.parse_args(sys.argv[7:])
    for name in a.cases or CASES:
        began = time.monotonic()
        found = CASES[name](a.seed, a.seconds)
        print(f"  {name}, seed {a.seed}: {json.dumps({str(k): v for k, v in found.items()})}; {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
