"""kill -9 at any moment, again and again, with --state-dir: what is served afterwards is a whole version, that whose
commit was answered last or the one in flight; or nothing is served.

Versions differ in every tensor, so that a mixture of two is noticed. Half of the commits on a served version are deltas, in a
session or in one request. Rounds:
- in `random` ones a trainer commits versions and renames them until a kill, at a random moment, also of the start;
- in `calls` ones the process ends before or after each call that changes a file, of a start and of a commit.

Usage: kill.py BATON MODEL_DIR WORK_DIR N_ROUNDS N_SNAPSHOTS SEED random|calls [FAIL_CALLS_SO]
"""

import http.client
import json
import mmap
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.parse

import numpy

BATON, MODEL, WORK = sys.argv[1:4]
N_ROUNDS, N_SNAPSHOTS, SEED, KIND = int(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6]), sys.argv[7]
N_CONTENTS, WAIT_S = 8, 60
RANDOM = random.Random(SEED)


class Fault(Exception):
    pass


def checksum(data):
    words = numpy.frombuffer(data + b"\0" * (-len(data) % 4), "<u4").astype(numpy.uint64)
    with numpy.errstate(over="ignore"):
        b = (words * numpy.arange(1, len(words) + 1, dtype=numpy.uint64)).sum(dtype=numpy.uint64)
    return f"{int(words.sum(dtype=numpy.uint64)):016x}{int(b):016x}"


def make_contents():
    """Files of weights that differ in every tensor; of each, the checksums, and what makes it of any other."""
    with open(f"{MODEL}/checkpoints/step-00100.safetensors", "rb") as f:
        data = f.read()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    sums, deltas = [], []
    for k in range(N_CONTENTS):
        body = bytearray(data[8 + n:])
        for t in header.values():
            struct.pack_into("<H", body, t["data_offsets"][1] - 2, 0x3c00 + k)  # BF16, or the upper half of F32
        with open(f"{WORK}/content-{k}.safetensors", "wb") as f:
            f.write(safetensors(header, body))
        sums.append({name: checksum(bytes(body[slice(*t["data_offsets"])])) for name, t in header.items()})
        deltas.append(delta_of(header, body))
    return sums, deltas


def safetensors(header, body):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def delta_of(header, body):
    """The last element of each tensor."""
    parts, out = {}, b""
    for name, t in header.items():
        first, end = t["data_offsets"]
        numel = int(numpy.prod(t["shape"], dtype=numpy.int64))
        width = (end - first) // numel
        for part, dtype, data in (("index", "U64", struct.pack("<Q", numel - 1)), ("value", t["dtype"], body[end - width:end])):
            parts[f"{name}#{part}"] = {"dtype": dtype, "shape": [1], "data_offsets": [len(out), len(out) + len(data)]}
            out += data
    return safetensors(parts, out)


class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(f"{WORK}/socket")


def call(method, path, body=None, connection=None):
    """Status and JSON; the connection is a new one unless one is given."""
    c = connection or Connection("localhost")
    raw = isinstance(body, bytes)
    c.request(method, path, body if raw or body is None else json.dumps(body),
              {"Content-Type": "application/vnd.safetensors" if raw else "application/json"})
    reply = c.getresponse()
    text = reply.read()
    return reply.status, json.loads(text) if text else None


class Server:
    running = None

    def __init__(self, env=None):
        self.log = open(f"{WORK}/log", "wb")
        if os.path.exists(f"{WORK}/socket"):
            os.unlink(f"{WORK}/socket")
        self.process = subprocess.Popen(
            [BATON, "serve", "--listen", f"unix:{WORK}/socket", "--model", MODEL, "--weights",
             f"{WORK}/content-0.safetensors", "--state-dir", f"{WORK}/state", "--snapshot", str(N_SNAPSHOTS),
             "--allow-path", WORK, "--engine-threads", "1", "--log-level", "warn"],
            stderr=self.log, env=dict(os.environ, **(env or {})))

    def kill(self):
        self.process.send_signal(signal.SIGKILL)

    def ended(self):
        """Waits for its end, which must be by the kill: a sanitizer's report, say, is another."""
        rc = self.process.wait(WAIT_S)
        self.log.close()
        if rc != -signal.SIGKILL:
            with open(f"{WORK}/log", encoding="utf-8", errors="replace") as f:
                raise Fault(f"the server ended with {rc}: {f.read()[-3000:]}")

    def wait_serving(self):
        """Its status; None when it was killed before it served."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            try:
                _, status = call("GET", "/v1/status")
                if status["life"] == "serving":
                    return status
            except (OSError, http.client.HTTPException):
                if self.process.poll() is not None:
                    return None
            time.sleep(0.002)
        raise Fault("it neither serves nor ends")


class History:
    """What was committed, and what may be served after the next start."""

    def __init__(self, sums, deltas):
        self.sums, self.deltas, self.n = sums, deltas, 0
        self.contents = {}  # of serials
        self.answered = None  # (label, content) of the last answer
        self.in_flight = None  # one without an answer, or None
        self.serves = False  # is `answered` served, so that a delta can build on it?
        self.update_id = None  # of the update that made it, if that is known
        self.step = "commit"
        self.counts = {"ready": 0, "in flight": 0, "not ready": 0, "during start": 0, "during check": 0, "snapshots": 0}

    def saw(self, serial, content):
        if self.contents.setdefault(serial, content) != content:
            raise Fault(f"serial {serial} names contents {self.contents[serial]} and {content}")

    def allowed(self):
        return [v for v in (self.answered, self.in_flight) if v is not None]

    def check_served(self, weights):
        label, serial = weights["weight_version"], weights["serial"]
        tensors = {t["name"]: t["checksum"] for t in weights["tensors"]}
        found = [k for k, sums in enumerate(self.sums) if sums == tensors]
        if len(found) != 1:
            raise Fault(f"'{label}' (serial {serial}) is not one whole version")
        if self.answered is not None and (label, found[0]) not in self.allowed():
            raise Fault(f"'{label}' with content {found[0]} is served; allowed: {self.allowed()}")
        self.saw(serial, found[0])
        self.counts["in flight"] += (label, found[0]) == self.in_flight
        if (label, found[0]) != self.answered:
            self.update_id = None
        self.serves = True
        self.answered, self.in_flight = (label, found[0]), None

    def check_unready(self, status):
        journal = status["state"]["journal"]
        named = [v for v in self.allowed() if journal is not None and v[0] == journal["weight_version"]]
        if len(named) != 1:
            raise Fault(f"the journal names {journal}; allowed: {self.allowed()}")
        self.serves = False
        self.answered, self.in_flight = named[0], None  # only another entry may replace it now
        code, answer = call("POST", "/inference/v1/generate", {"token_ids": [1], "sampling_params": {"max_tokens": 1}})
        if code != 503 or "the version served last" not in answer["error"]["message"]:
            raise Fault(f"not ready, and a generate is answered {code}: {answer}")

    def check(self, status):
        """After a start."""
        code, _ = call("GET", "/readyz")
        if code == 200:
            self.counts["ready"] += 1
            self.counts["snapshots"] += status["state"]["started_from"] == "snapshot"
            self.check_served(call("GET", "/v1/weights")[1])
        else:
            self.counts["not ready"] += 1
            self.check_unready(status)

    def commit(self, connection):
        self.n += 1
        content = RANDOM.randrange(N_CONTENTS)
        base, self.in_flight = self.answered, (f"v{self.n}", content)
        if self.serves and RANDOM.random() < 0.5:
            answer = self.delta(base, content, connection)
        else:
            answer = self.ask("commit", "", {"weight_version": f"v{self.n}", "path": f"{WORK}/content-{content}.safetensors"},
                              connection)
        self.saw(answer["serial"], content)
        self.answered, self.in_flight, self.serves = self.in_flight, None, True
        self.update_id = answer["update_id"]
        return answer["serial"]

    def ask(self, step, path, body, connection):
        self.step = step
        code, answer = call("POST", f"/v1/update_weights{path}", body, connection)
        if code != 200:
            raise Fault(f"the {step} is answered {code}: {answer}")
        return answer

    def delta(self, base, content, connection):
        """One request, or a session that is killed at any of its steps."""
        start = {"weight_version": f"v{self.n}", "base_version": base[0], "delta": True}
        if self.update_id is not None:
            start["base_update_id"] = self.update_id
        if RANDOM.random() < 0.5:
            return self.ask("delta of one request", f"?{urllib.parse.urlencode({**start, 'delta': 'true'})}",
                            self.deltas[content], connection)
        mine = {"update_id": self.ask("delta's start", "/start", start, connection)["update_id"]}
        self.ask("delta's chunk", f"?update_id={mine['update_id']}", self.deltas[content], connection)
        return self.ask("delta's finish", "/finish", mine, connection)

    def rename(self, connection):
        self.n += 1
        self.step, self.in_flight = "rename", (f"v{self.n}", self.answered[1])
        code, answer = call("POST", "/v1/weights/label", {"weight_version": f"v{self.n}"}, connection)
        if code != 200:
            raise Fault(f"the label is answered {code}: {answer}")
        self.answered, self.in_flight = self.in_flight, None


def train(history, wait_snapshot=False):
    """Commits and renames until the server is gone."""
    connection, ends = Connection("localhost"), time.monotonic() + WAIT_S
    try:
        while True:
            if time.monotonic() > ends:
                raise Fault("the server was not killed")
            serial = history.commit(connection)
            end = time.monotonic() + 1
            while wait_snapshot and time.monotonic() < end:
                newest = call("GET", "/v1/status", None, connection)[1]["state"]["snapshots"]["newest"]
                if newest is not None and newest["serial"] == serial:
                    break
            if RANDOM.random() < 0.2:
                history.rename(connection)
    except (OSError, http.client.HTTPException):
        connection.close()
        history.counts[history.step] = history.counts.get(history.step, 0) + 1


def random_round(history):
    server = Server.running = Server()
    if RANDOM.random() < 0.3:
        time.sleep(RANDOM.random() * 0.1)
        server.kill()
        history.counts["during start"] += 1
    else:
        status = server.wait_serving()
        if status is None:
            server.ended()
        history.check(status)
        timer = threading.Timer(RANDOM.random() * 0.05, server.kill)
        timer.start()
        train(history, N_SNAPSHOTS > 0 and RANDOM.random() < 0.5)
    server.ended()


class Calls:
    """The control page of fail_calls.c."""

    def __init__(self):
        self.path = f"{WORK}/calls"
        with open(self.path, "wb") as f:
            f.write(b"\0" * 4096)
        with open(self.path, "r+b") as f:
            self.page = mmap.mmap(f.fileno(), 4096)
        self.words = memoryview(self.page).cast("q")

    def arm(self, number, kill):
        self.words[1], self.words[2], self.words[8], self.words[9] = 1, 0, 1, kill
        self.words[0] = number

    def env(self):
        return {"LD_PRELOAD": sys.argv[8], "FAIL_CALLS": self.path}


def call_round(history, calls, number):
    """Ends the process at that call; in even rounds counted from the start on, in odd ones from the first commit."""
    from_start = number % 2 == 0
    at, kill = 1 + number // 4, 1 + number // 2 % 2
    calls.arm(at if from_start else 0, kill)
    server = Server.running = Server(calls.env())
    status = server.wait_serving()
    try:
        if status is not None:
            history.check(status)
            if not from_start:
                calls.arm(at, kill)
            train(history, N_SNAPSHOTS > 0)
        else:
            history.counts["during start"] += 1
    except (OSError, http.client.HTTPException):
        history.counts["during check"] += 1  # the first snapshot was being written
    server.ended()


def main():
    history = History(*make_contents())
    calls = Calls() if KIND == "calls" else None
    began = time.monotonic()
    for i in range(N_ROUNDS):
        try:
            random_round(history) if calls is None else call_round(history, calls, i)
        except Fault as e:
            Server.running.kill()
            sys.exit(f"round {i} of seed {SEED}: {e}")
    server = Server.running = Server()
    history.check(server.wait_serving())
    server.kill()
    server.ended()
    left = [name for name in os.listdir(f"{WORK}/state") if name.startswith("snapshot-")]
    if len(left) > N_SNAPSHOTS + 1:
        sys.exit(f"{len(left)} snapshots are left")
    print(f"{KIND}, --snapshot {N_SNAPSHOTS}: {N_ROUNDS} rounds in {time.monotonic() - began:.0f} s, {history.n} versions, "
          f"{history.counts}")


main()
