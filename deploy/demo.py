"""The demo behind deploy/demo.sh. Usage: demo.py BATON MODEL_DIR

Every printed line is checked; the first wrong one ends the demo with exit code 1."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "client"))
import baton  # noqa: E402

PROMPT = "In the beginning"
N_STREAMS = 8  # generations that run while the weights change
START_S, END_S = 30, 30


class CheckFailed(Exception):
    """A claim of the demo is false."""


def check(true, claim):
    if not true:
        raise CheckFailed(claim)


class Server:
    """`baton serve` as a child process; the port is read from its log."""

    def __init__(self, binary, model, weights):
        self.log = tempfile.TemporaryFile("w+")
        self.child = subprocess.Popen(
            [binary, "serve", "--model", model, "--weights", weights, "--weight-version", "step-0",
             "--listen", "127.0.0.1:0"], stderr=self.log)
        self.port, self.url = None, ""

    def wait_until_it_serves(self):
        deadline = time.monotonic() + START_S
        while self.port is None:
            check(self.child.poll() is None, f"the server starts; its log: {self.read_log()}")
            check(time.monotonic() < deadline, "the server starts within 30 s")
            time.sleep(0.02)
            for line in self.read_log().splitlines():
                if '"event":"serving"' in line and line.endswith("}"):
                    self.port = json.loads(line)["port"]
        self.url = f"http://127.0.0.1:{self.port}"

    def read_log(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        try:
            return self.child.wait(END_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            return -1


class Stream(threading.Thread):
    """Streams one generation after another until `stop` is set; records the longest gap between two
    tokens of a generation, and the versions that made its tokens."""

    def __init__(self, url, seed):
        super().__init__(daemon=True)
        self.url, self.seed = url, seed
        self.stop, self.first = threading.Event(), threading.Event()
        self.gap_s, self.n_tokens, self.crossings, self.error = 0.0, 0, [], None

    def run(self):
        try:
            while not self.stop.is_set():
                self.generate()
        except Exception as e:  # reported by the main thread
            self.error = e

    def generate(self):
        connection, _, _ = baton.connection.open_connection(self.url, 60)
        body = {"prompt": PROMPT, "max_tokens": 900, "temperature": 1.0, "seed": self.seed,
                "ignore_eos": True, "stream": True, "return_token_ids": True}
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        check(answer.status == 200, f"a generation is accepted, not {answer.status}")
        last, ids, spans, done = None, 0, None, False
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                done = True
                break
            event = json.loads(line[6:])
            check("error" not in event, f"a running generation continues: {event.get('error')}")
            now = time.monotonic()
            for choice in event["choices"]:
                ids += len(choice.get("token_ids") or [])
                spans = choice.get("weight_versions") or spans
            if last is not None:
                self.gap_s = max(self.gap_s, now - last)
            last = now
            self.first.set()
        connection.close()
        check(done, "a stream ends with [DONE]")
        check(ids == 900, f"no token is lost over an update: {ids} of 900 arrived")
        check(spans and spans[0]["start"] == 0 and spans[-1]["end"] == ids and
              all(a["end"] == b["start"] for a, b in zip(spans, spans[1:])),
              f"every token has exactly one version: {spans}")
        self.n_tokens += ids
        if len(spans) > 1:
            self.crossings.append(spans)


def complete(url):
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    choice = baton.request(url, "POST", "/v1/completions", body)["choices"][0]
    versions = [span["version"] for span in choice["weight_versions"]]
    check(len(versions) == 1, f"one version made this text: {versions}")
    return choice["text"], versions[0]


def show(url, golden, step, label):
    text, version = complete(url)
    check(version == label, f"the text was made by {label}, not {version}")
    want = golden["checkpoints"][step]["cases"][0]["greedy_text"]
    check(text == want, f"the text equals that of transformers for {step}: {text!r}")
    print(f"  {version:>9}: {PROMPT}{text}".replace("\n", " / "))


def push(url, path, via, label):
    tensors = baton.load_file(path)
    began = time.monotonic()
    answer = baton.push(tensors, url, via=via, weight_version=label)
    took = time.monotonic() - began
    nbytes = sum(t.nbytes for t in tensors.values())
    check(answer["phase"] == "committed" and answer["weight_version"] == label and
          answer["nbytes_done"] == nbytes, f"{label} is committed whole: {answer}")
    served = baton.request(url, "GET", "/v1/weights")["tensors"]
    check({t["name"]: t["checksum"] for t in served} ==
          {name: baton.checksum(t.data) for name, t in tensors.items()},
          f"the served checksums are those of {os.path.basename(path)}")
    receive = answer["timing"]["receive_ms"] / 1e3
    print(f"  pushed {label} by {via}: {nbytes / 1e6:.2f} MB in {took * 1e3:.1f} ms in total, "
          f"received at {nbytes / max(receive, 1e-9) / 1e9:.2f} GB/s")


def demo(server, model):
    with open(os.path.join(model, "golden.json"), encoding="utf-8") as f:
        golden = json.load(f)
    checkpoints = os.path.join(model, "checkpoints")
    print(f"baton serves {os.path.basename(model)} at {server.url}; greedy text, before and after:")
    show(server.url, golden, "step-00000", "step-0")
    streams = [Stream(server.url, seed) for seed in range(N_STREAMS)]
    for s in streams:
        s.start()
    for s in streams:
        check(s.first.wait(30) and s.error is None, f"generations run: {s.error}")
    for step, via in (("step-00100", "shm"), ("step-01500", "body")):
        label = f"step-{int(step[5:])}"
        push(server.url, os.path.join(checkpoints, step + ".safetensors"), via, label)
        show(server.url, golden, step, label)
    for s in streams:
        s.stop.set()
    for s in streams:
        s.join(60)
        check(not s.is_alive() and s.error is None, f"every generation succeeded: {s.error}")
    crossings = [c for s in streams for c in s.crossings]
    check(crossings, "at least one generation ran across an update")
    longest = max(s.gap_s for s in streams)
    n_tokens = sum(s.n_tokens for s in streams)
    print(f"  {N_STREAMS} generations ran during the updates, {n_tokens} tokens, none lost; the longest "
          f"gap between two tokens of one was {longest * 1e3:.1f} ms")
    print("  one that ran across an update: " +
          ", ".join(f"tokens {c['start']}..{c['end'] - 1} by {c['version']}" for c in crossings[0]))


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    server = Server(sys.argv[1], sys.argv[2],
                    os.path.join(sys.argv[2], "checkpoints", "step-00000.safetensors"))
    try:
        server.wait_until_it_serves()
        demo(server, sys.argv[2])
        check(server.stop() == 0, "the server drains and exits with status 0 on SIGTERM")
    except CheckFailed as e:
        print(server.read_log()[-2000:], file=sys.stderr)
        print(f"demo: FAILED: {e}", file=sys.stderr)
        return 1
    finally:
        server.stop()
    print("every line above was checked; no process is left running")
    return 0


sys.exit(main())
