"""Does a flood of one kind of work starve the other?

Usage: bench_starve.py BATON MODEL_DIR [ROUNDS [SECONDS]]

Generations with a detokenize flood beside them against generations alone, and the reverse, in
interleaved rounds of one server. One core for each pool: the engine's threads on the first
processor that may be used, the threads for text on the second, loops and clients wherever there is
room. Prints medians, also of the ratio in each round; it judges nothing but that everybody was answered."""

import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http"))
from front_crowd import Crowd, ask, post, wait  # noqa: E402

GENERATES = 16
TEXTS = 4
POOLS = {"engine": 0, "compute": 0, "text": 1}  # beginnings of thread names


def load(port, n, data, stop, out):
    """n clients that ask again as soon as they are answered."""
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


def pin(pid):
    """Each pool to a processor of its own; returns how many threads were tied."""
    cores = sorted(os.sched_getaffinity(0))
    n = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm", encoding="ascii") as f:
            name = f.read()
        for begin, i in POOLS.items():
            if name.startswith(begin):
                os.sched_setaffinity(int(task), {cores[i % len(cores)]})
                n += 1
    return n


def done(url):
    status = ask(url, "/v1/status")
    return (status["engine"]["n_generated_tokens"], status["admission"]["detokenize"]["granted"],
            time.monotonic())


def rates(url, seconds):
    """(tokens, detokenizations) a second, after a moment of warming."""
    time.sleep(seconds / 4)
    tokens, texts, began = done(url)
    time.sleep(seconds)
    tokens_end, texts_end, ended = done(url)
    return (tokens_end - tokens) / (ended - began), (texts_end - texts) / (ended - began)


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


def main():
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    seconds = float(sys.argv[4]) if len(sys.argv) > 4 else 3
    generates = (GENERATES, post("/v1/generate", {"token_ids": [40, 77, 258], "sampling_params": {
        "max_tokens": 64, "ignore_eos": True, "temperature": 0}}))
    texts = (TEXTS, post("/detokenize", {"tokens": [40, 77, 258] * 300}))
    found = {"generate alone": [], "generate, flood": [], "detokenize alone": [], "detokenize, flood": []}
    with tempfile.TemporaryFile() as log:
        child, port = start(sys.argv[1], sys.argv[2], log)
        url = f"http://127.0.0.1:{port}"
        print(f"{pin(child.pid)} threads tied to processors of their pools")
        try:
            for _ in range(rounds):
                one = Load(port, *generates)
                found["generate alone"].append(rates(url, seconds)[0])
                other = Load(port, *texts)
                both = rates(url, seconds)
                found["generate, flood"].append(both[0])
                found["detokenize, flood"].append(both[1])
                one.end()
                found["detokenize alone"].append(rates(url, seconds)[1])
                other.end()
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(60)
    assert child.returncode == 0, child.returncode
    median = {what: statistics.median(r) for what, r in found.items()}
    for what, r in found.items():
        print(f"{what:18} {median[what]:10.0f} a second, of {min(r):.0f} to {max(r):.0f}")
    for what in ("generate", "detokenize"):
        ratios = [b / a for a, b in zip(found[what + " alone"], found[what + ", flood"])]
        print(f"{what} with a flood beside: {statistics.median(ratios):.3f} of alone, round by round")


if __name__ == "__main__":
    main()
