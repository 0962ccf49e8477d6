"""Does a flood of one kind of work starve the other?

Usage: bench_starve.py BATON MODEL_DIR [ROUNDS [SECONDS]] [--cores A,B,C,D,E,F[,...]]

Generations with a detokenize flood beside them against generations alone, and the reverse, in
interleaved rounds of one server. With six processors or more (those that may be used, or --cores)
each of ROLES has one of its own, in that order, and everything else has those that are left; no two
roles are threads of one core while there are cores enough. With fewer, the engine's threads are on
the first and the threads for text on the second, loop and clients wherever there is room.
Prints medians, also of the ratio in each round, and how busy the threads of each role were: a ratio
tells of the server only if no client was at its limit. It judges nothing but that everybody was
answered."""

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http", "lib"))
from front_crowd import Crowd, ask, post, wait  # noqa: E402

GENERATES = 16
TEXTS = 4
THREADS = {"engine": "engine", "compute": "engine", "text": "text", "generate": "generate",
           "http": "loop"}  # beginning of a thread's name -> its role
ROLES = ("engine", "text", "loop", "generate", "generate clients", "text clients")
POOLS = {"engine": 0, "text": 1}  # what is told apart where there are not enough for all ROLES


def siblings(core):
    """The processors that are threads of the same core, itself among them."""
    at = f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
    try:
        with open(at, encoding="ascii") as f:
            text = f.read().strip()
    except OSError:
        return {core}
    out = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        out.update(range(int(first), int(last or first) + 1))
    return out


def one_of_each_first(cores):
    """One processor of each core, then the others."""
    firsts, taken = [], set()
    for core in cores:
        if core not in taken:
            firsts.append(core)
            taken |= siblings(core)
    return firsts + [core for core in cores if core not in firsts]


class Places:
    """Which role may run where: role -> processors; those that are not in it, anywhere."""

    def __init__(self, given):
        mine = sorted(os.sched_getaffinity(0))
        cores = given or one_of_each_first(mine)
        self.of = {role: {cores[i % len(cores)]} for role, i in POOLS.items()}
        self.whole = len(cores) >= len(ROLES)
        self.rest = set(mine)
        if self.whole:
            self.of = {role: {core} for role, core in zip(ROLES, cores)}
            loose = set(cores[len(ROLES):]) - set().union(*self.of.values())
            self.rest = loose or self.of["loop"]

    def __str__(self):
        named = [f"{role} on {sorted(cores)[0]}" for role, cores in self.of.items()]
        return f"{', '.join(named)}, the rest on {','.join(map(str, sorted(self.rest)))}"


def load(port, n, data, cores, stop, out):
    """n clients that ask again as soon as they are answered."""
    os.sched_setaffinity(0, cores)
    crowd = Crowd(("127.0.0.1", port), n)
    bad = []

    def again(c):
        bad.extend(a for a in c.answers if a[0] != 200)
        c.answers.clear()
        c.send(data)

    crowd.send(data)
    while not stop.is_set():
        crowd.turn(0.05, again)
    crowd.close()
    out.send(bad[:3])


class Load:
    def __init__(self, *args):
        spawn = multiprocessing.get_context("spawn")
        self.stop, (self.there, here) = spawn.Event(), spawn.Pipe(False)
        self.process = spawn.Process(target=load, args=(*args, self.stop, here), daemon=True)
        self.process.start()

    def end(self):
        self.stop.set()
        bad = self.there.recv()
        self.process.join()
        assert not bad, bad


def threads(pid):
    """[(thread, name)] of a process."""
    out = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm", encoding="ascii") as f:
            out.append((int(task), f.read().strip()))
    return out


def role_of(name):
    return next((role for begin, role in THREADS.items() if name.startswith(begin)), None)


def pin(pid, places):
    """Each thread to the place of its role."""
    for task, name in threads(pid):
        os.sched_setaffinity(task, places.of.get(role_of(name), places.rest))


def busy_s(pid, clients):
    """role -> processor time of its threads so far; `clients`: role -> Load."""
    out = dict.fromkeys(ROLES, 0.0)
    tasks = [(pid, task, role_of(name)) for task, name in threads(pid)]
    for role, one in clients.items():
        tasks += [(one.process.pid, task, role) for task, _ in threads(one.process.pid)]
    for process, task, role in tasks:
        if role is not None:
            with open(f"/proc/{process}/task/{task}/schedstat", encoding="ascii") as f:
                out[role] += int(f.read().split()[0]) / 1e9
    return out


def done(url):
    status = ask(url, "/v1/status")
    return (status["engine"]["n_generated_tokens"], status["admission"]["detokenize"]["granted"],
            time.monotonic())


class Rates:
    """(tokens, detokenizations) a second, after a moment of warming; and how busy each role was."""

    def __init__(self, url, pid, seconds, clients):
        time.sleep(seconds / 4)
        tokens, texts, began = done(url)
        busy = busy_s(pid, clients)
        time.sleep(seconds)
        tokens_end, texts_end, ended = done(url)
        took = ended - began
        self.tokens, self.texts = (tokens_end - tokens) / took, (texts_end - texts) / took
        self.busy = {role: (s - busy[role]) / took for role, s in busy_s(pid, clients).items()}


def start(binary, model, log):
    child = subprocess.Popen(
        [binary, "serve", "--listen", "127.0.0.1:0", "--model", model, "--weights",
         f"{model}/checkpoints/step-00000.safetensors", "--engine-threads", "1",
         "--detokenize-concurrency", "1"], stderr=log)
    port = []

    def serving():
        log.seek(0)
        port.extend(json.loads(line)["port"] for line in log.read().decode().splitlines()
                    if '"event":"serving"' in line and line.endswith("}"))
        return port or child.poll() is not None

    wait("the server serves", serving)
    return child, port[0]


def measure(child, port, rounds, seconds, places):
    """The Rates of each round, by what was at work."""
    url, pid = f"http://127.0.0.1:{port}", child.pid
    generates = (GENERATES, post("/v1/generate", {"token_ids": [40, 77, 258], "sampling_params": {
        "max_tokens": 64, "ignore_eos": True, "temperature": 0}}))
    texts = (TEXTS, post("/detokenize", {"tokens": [40, 77, 258] * 300}))
    alone, both, flood = [], [], []
    for _ in range(rounds):
        one = Load(port, *generates, places.of.get("generate clients", places.rest))
        alone.append(Rates(url, pid, seconds, {"generate clients": one}))
        other = Load(port, *texts, places.of.get("text clients", places.rest))
        both.append(Rates(url, pid, seconds, {"generate clients": one, "text clients": other}))
        one.end()
        flood.append(Rates(url, pid, seconds, {"text clients": other}))
        other.end()
    return {"generate alone": alone, "both": both, "detokenize alone": flood}


def tell(found):
    alone, both, flood = found.values()
    ratios = {}
    for what, one, of in (("generate", alone, "tokens"), ("detokenize", flood, "texts")):
        for how, rounds in ((" alone", one), (", both", both)):
            r = [getattr(x, of) for x in rounds]
            print(f"{what + how:18} {statistics.median(r):10.0f} a second, of {min(r):.0f} to {max(r):.0f}")
        ratios[what] = [getattr(b, of) / getattr(a, of) for a, b in zip(one, both)]
    print(f"{'busy':18}" + "".join(f"{what:>18}" for what in found))
    for role in ROLES:
        shares = [statistics.median(x.busy[role] for x in rounds) for rounds in found.values()]
        print(f"{role:18}" + "".join(f"{share:18.2f}" for share in shares))
    for what, r in ratios.items():
        print(f"{what} with a flood beside: {statistics.median(r):.3f} of alone, round by round")


def cores_of(text):
    cores = [int(core) for core in text.split(",")]
    if not set(cores) <= os.sched_getaffinity(0):
        raise argparse.ArgumentTypeError(f"{text}: not all of them may be used here")
    return cores


def main():
    parser = argparse.ArgumentParser(description="Does a flood of one kind of work starve the other?")
    parser.add_argument("baton")
    parser.add_argument("model")
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    parser.add_argument("seconds", nargs="?", type=float, default=3)
    parser.add_argument("--cores", type=cores_of, default=None, help="processors for " + ", ".join(ROLES))
    args = parser.parse_args()
    places = Places(args.cores)
    with tempfile.TemporaryFile() as log:
        child, port = start(args.baton, args.model, log)
        try:
            pin(child.pid, places)
            print(places)
            found = measure(child, port, args.rounds, args.seconds, places)
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(60)
    assert child.returncode == 0, child.returncode
    tell(found)


if __name__ == "__main__":
    main()
