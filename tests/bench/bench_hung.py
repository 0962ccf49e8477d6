"""What one engine that hangs costs the others: each figure beside that of the same server without it, from one run.

Usage: bench_hung.py BATON FAKE_ENGINE LOOP_TURNS [N [ROUNDS]]      (default 256 doubles of vLLM, 15 rounds)

Three servers one after the other, each in front of doubles of its own with --min-ready N - 1: N - 1 engines (the
base); N of which one hangs since before the server started; N of which one begins to hang at this moment (stopped by
a signal before each request, and let go after it). Prints for each the median and the longest time of GET /v1/status,
of a whole update, and of a pause (of 5 s at most), their ratios to the base, how long after its start all engines
served, and how long the turns of the loop were that talks to the engines (LOOP_TURNS: the path of libloop_turns.so).
"""

import array
import collections
import concurrent.futures
import itertools
import os
import signal
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http", "lib"))
from fake_engine_world import Double  # noqa: E402
from fleet_world import Server, until  # noqa: E402

PROBE_MS, TIMEOUT_MS = 2000, 60000
PAUSE_S = 5  # its timeout_s
TENSORS = {"names": ["a", "b"], "dtypes": ["bfloat16", "bfloat16"], "shapes": [[1], [2, 3]], "packed": True,
           "tensor_sizes": [2, 12], "ipc_handles_pickled": "gASVAAAAAAAAAAB9lC4="}
NUMBERS = itertools.count()
LABELS = (f"step-{i}" for i in itertools.count(1))


def timed(call):
    began = time.monotonic()
    call()
    return time.monotonic() - began


class World:
    def __init__(self, programs, n, n_needed, work):
        binary, engine, loop_turns = programs
        self.turns = os.path.join(work, f"turns-{next(NUMBERS)}")
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            self.doubles = list(pool.map(lambda _: Double(engine, "vllm", "--weight-version", "step-0"), range(n)))
        os.environ.update(LD_PRELOAD=loop_turns, LOOP_TURNS=self.turns, LOOP_TURNS_THREAD="upstream")
        self.began = time.monotonic()
        self.front = Server(binary, os.path.join(work, "log"), "--probe-interval", PROBE_MS, "--probe-timeout", 1000,
                            "--update-timeout", TIMEOUT_MS, "--min-ready", n_needed, "--compat", "all", "--prove", "none",
                            *itertools.chain.from_iterable(("--upstream", f"{d.url},vllm") for d in self.doubles))
        del os.environ["LD_PRELOAD"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for d in self.doubles:
            d.process.kill()
            d.process.wait()
            d.process.stdout.close()
        self.front.kill()

    def serve(self, n):
        """Seconds from the start until so many serve"""
        until(lambda: f"{n} serve: {self.others()}", lambda: self.states().count("serving") >= n)
        return time.monotonic() - self.began

    def others(self):
        return collections.Counter((u["state"], (u.get("error") or {}).get("message"))
                                   for u in self.front.status()["upstreams"]["list"] if u["state"] != "serving")

    def states(self):
        return [u["state"] for u in self.front.status()["upstreams"]["list"]]

    def update(self):
        mine = {"update_id": self.front.post("/v1/update_weights/start", {"weight_version": next(LABELS)})["update_id"]}
        self.front.post("/v1/update_weights", dict(TENSORS, **mine))
        self.front.post("/v1/update_weights/finish", mine)

    def pause(self):
        """It fails at its own deadline if an engine hangs."""
        self.front.ask("POST", "/v1/pause", {"mode": "keep", "timeout_s": PAUSE_S})

    def heal(self):
        """The one that hung may lack a version, or a resume."""
        def all_serve():
            self.front.ask("POST", "/v1/resume", {})
            self.update()
            return self.states().count("serving") == len(self.doubles)
        until(lambda: f"all serve: {self.others()}", all_serve, every_s=1)

    def turns_us(self):
        """(how many, 99 % are not longer, the longest): µs"""
        with open(self.turns, "rb") as file:
            n_of = array.array("Q", file.read())
        n, so_far = sum(n_of), itertools.accumulate(n_of)
        return n, next(us for us, n_shorter in enumerate(so_far) if n_shorter >= 0.99 * n), max(us for us, k in enumerate(n_of) if k)


def measure(world, rounds, hang=None):
    """{what: seconds of each round}; `hang` is stopped for each."""
    times = {"status": [], "update": [], "pause": []}
    for _ in range(rounds):
        for what, call in (("status", world.front.status), ("update", world.update), ("pause", world.pause)):
            if hang is not None:
                os.kill(hang.process.pid, signal.SIGSTOP)
            times[what].append(statistics.median(timed(call) for _ in range(9 if what == "status" else 1)))
            if hang is not None:
                os.kill(hang.process.pid, signal.SIGCONT)
                world.heal()
            elif what == "pause":
                world.front.post("/v1/resume")
    return times


def main():
    programs = sys.argv[1:4]
    n = int(sys.argv[4]) if len(sys.argv) > 4 else 256
    rounds = int(sys.argv[5]) if len(sys.argv) > 5 else 15
    found = {}
    with tempfile.TemporaryDirectory() as work:
        with World(programs, n - 1, n - 1, work) as w:
            serve_s = w.serve(n - 1)
            w.update()
            found["base"] = measure(w, rounds), serve_s, w.turns_us()
        with World(programs, n, n - 1, work) as w:
            os.kill(w.doubles[-1].process.pid, signal.SIGSTOP)
            serve_s = w.serve(n - 1)
            until(lambda: f"one is down: {w.others()}", lambda: "down" in w.states())
            w.update()
            found["down"] = measure(w, rounds), serve_s, w.turns_us()
        with World(programs, n, n - 1, work) as w:
            serve_s = w.serve(n)
            w.update()
            found["hangs"] = measure(w, max(rounds // 5, 1), w.doubles[-1]), serve_s, w.turns_us()
    for name, (times, serve_s, (n_turns, p99_us, most_us)) in found.items():
        print(f"{name}: all serve after {serve_s:.1f} s; {n_turns} turns of the loop, 99 % of them at most {p99_us / 1000:.2f} ms, "
              f"the longest {most_us / 1000:.2f} ms")
        for what, all_of in times.items():
            base = statistics.median(found["base"][0][what])
            print(f"  {what:16}  median {statistics.median(all_of) * 1000:9.2f} ms ({statistics.median(all_of) / base:6.2f} x base), "
                  f"longest {max(all_of) * 1000:9.2f} ms")


main()
