"""A double of an upstream engine (tests/fakes/engine.c), and what its tokens show."""

import http.client
import json
import os
import re
import socket
import subprocess
import time

WAIT_S = 60
TAGS, STEPS = 65521, 256
SGLANG = os.environ.get("FAKE_SGLANG", "0.5.23")  # the release that its doubles are of


def fnv1a(data):
    value = 2166136261
    for byte in data:
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value


def tag(maker):
    """What a version puts into each of its tokens."""
    return fnv1a(maker.encode()) % TAGS


def ids_of(text):
    ids, at = [], 0
    while at < len(text):
        found = re.compile(r" t(\d+)").match(text, at)
        if found and int(found[1]) < TAGS * STEPS:
            ids.append(int(found[1]))
            at = found.end()
        else:
            ids += [TAGS * STEPS + b for b in text[at].encode()]
            at += 1
    return ids


def expected(prompt, maker, start, end):
    """Tokens start..end of an answer to `prompt` (text or ids), made by `maker`."""
    ids = ids_of(prompt) if isinstance(prompt, str) else prompt
    h = fnv1a(b"".join(i.to_bytes(4, "little") for i in ids))
    return [STEPS * tag(maker) + (h + 31 * i) % STEPS for i in range(start, end)]


def text_of(tokens):
    return "".join(f" t{t}" for t in tokens)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=WAIT_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(self.path)


class Double:
    """A process; with Double(...) as d: … ends it, and it is an error unless that went well."""
    must_be_fresh = True

    def __init__(self, binary, dialect, *options):
        age = ["--sglang-version", SGLANG] if dialect == "sglang" else []
        self.dialect, self.process = dialect, subprocess.Popen(
            [binary, "--dialect", dialect, *age, *map(str, options)], stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        assert self.url, f"the double did not start: {self.process.wait(WAIT_S)}"
        self.host, self.port = None, None
        if not self.url.startswith("unix:"):
            self.host, port = self.url.removeprefix("http://").split(":")
            self.port = int(port)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        was_killed = self.process.returncode is not None
        if not kind and not was_killed and self.must_be_fresh:
            self.is_fresh()
        self.process.terminate()
        code = self.process.wait(WAIT_S)
        self.process.stdout.close()
        assert kind or was_killed or code == 0, f"the double ended with {code}"

    def is_fresh(self):
        """No token was made from what other weights had cached."""
        assert self.state()["tokens_stale"] == 0, self.journal()

    def kill(self):
        """Dead for good; its journal too."""
        self.process.kill()
        self.process.wait(WAIT_S)

    def connect(self):
        if self.port is None:
            return UnixConnection(self.url.removeprefix("unix:"))
        return http.client.HTTPConnection(self.host, self.port, timeout=WAIT_S)

    def socket(self):
        return socket.create_connection((self.host, self.port), timeout=WAIT_S)

    def send(self, method, path, body=None, headers=None, connection=None):
        """The answer's head is read; its connection is `connection`, or one that it closes itself."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        c = connection or self.connect()
        c.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        answer = c.getresponse()
        answer.connection = c
        return answer

    def ask(self, method, path, body=None, headers=None, connection=None):
        """(status, JSON or text) of a whole answer."""
        answer = self.send(method, path, body, headers, connection)
        text = answer.read()
        if connection is None:
            answer.connection.close()
        kind = answer.getheader("Content-Type", "")
        return answer.status, json.loads(text) if kind.startswith("application/json") else text.decode()

    def good(self, method, path, body=None, **more):
        status, said = self.ask(method, path, body, **more)
        assert status == 200, f"{method} {path}: {status} {said}"
        return said

    def post(self, path, body=None, **more):
        return self.good("POST", path, {} if body is None else body, **more)

    def get(self, path):
        return self.good("GET", path)

    def stream(self, path, body):
        """The events of a stream, with [DONE]; a caller that stops early closes it."""
        answer = self.send("POST", path, dict(body, stream=True))
        try:
            yield from events(answer)
        finally:
            answer.close()
            answer.connection.close()

    def order(self, on, do, **more):
        return self.post("/fault", dict(more, on=on, do=do))

    def state(self):
        return self.get("/state")

    def journal(self, op=None):
        """The requests that came, oldest first; of one op."""
        return [r for r in self.get("/journal")["requests"] if op in (None, r["op"])]

    def last(self):
        return self.journal()[-1]

    def wait(self, what, condition):
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, f"still not so: {what}; {self.state()}"
            time.sleep(0.002)

    def wait_back(self, is_back):
        """After a restart: it may refuse connections meanwhile."""
        end = time.monotonic() + WAIT_S
        while True:
            try:
                if is_back():
                    return
            except OSError:
                pass
            assert time.monotonic() < end, "it did not come back"
            time.sleep(0.002)


def events(answer):
    """What follows each data: line, parsed unless it is [DONE], which has to come."""
    said = None
    for line in iter(answer.readline, b""):
        if line.startswith(b"data: "):
            said = line[6:].strip()
            yield said.decode() if said == b"[DONE]" else json.loads(said)
    if said != b"[DONE]":
        raise ConnectionError("the stream ended early")


# ---- what a test asks of one that was started with --weight-version step-0 ----

PROMPT, N = "In the beginning", 5
LONG = 1 << 20  # tokens: more than any test waits for


def completion(max_tokens=N, **more):
    return dict(more, prompt=PROMPT, max_tokens=max_tokens)


def tokens_now(d, n=N, prompt=PROMPT, **more):
    return ids_of(d.post("/v1/completions", dict(more, prompt=prompt, max_tokens=n))["choices"][0]["text"])


def forget(d, **more):
    """Resets the prefix cache, as a client that changed the weights must do."""
    if d.dialect == "vllm":
        return d.post("/reset_prefix_cache", **more)["success"]
    return d.dialect == "baton" or d.ask("POST", "/flush_cache", {}, **more)[0] == 200


def serves(d, maker):
    found = tokens_now(d)
    assert found == expected(PROMPT, maker, 0, N), (d.dialect, maker, found)


def serves_afresh(d, maker):
    """Whatever was cached."""
    assert forget(d), d.dialect
    serves(d, maker)


def refused(d, status, method, path, body=None, **more):
    said = d.ask(method, path, body, **more)
    assert said[0] == status, (d.dialect, method, path, said)
    return said[1]


def finish_of(event):
    said = event["choices"][0]["finish_reason"] if "choices" in event else event["meta_info"]["finish_reason"]
    return said["type"] if isinstance(said, dict) else said


def events_of(answer):
    *said, _ = events(answer)
    answer.connection.close()
    return said


def pause(d, mode):
    if d.dialect == "baton":
        assert d.post("/v1/pause", {"mode": mode})["paused"] is True
    elif d.dialect == "vllm":
        assert d.post(f"/pause?mode={mode}&clear_cache=false")["status"] == "paused"
    else:
        assert d.post("/pause_generation", {"mode": mode.replace("keep", "in_place")})["status"] == "ok"


def resume(d):
    d.post({"baton": "/v1/resume", "vllm": "/resume", "sglang": "/continue_generation"}[d.dialect])
