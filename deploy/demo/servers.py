"""Child processes of the demo: batons, and a trainer that is killed in the middle of a push."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "client"))
import baton  # noqa: E402  (the client of this source tree)

START_S, END_S, POLL_S = 60, 30, 0.02


class CheckFailed(Exception):
    """A claim of the demo is false."""


def check(true, claim):
    if not true:
        raise CheckFailed(claim)


def until(condition, limit_s, claim):
    """Waits until condition() is true and returns its value; CheckFailed after limit_s."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        check(time.monotonic() < deadline, f"{claim} within {limit_s} s")
        time.sleep(POLL_S)
    return value


class Server:
    """`baton serve` as a child process. Its port is read from its log."""

    def __init__(self, binary, *options, port=0):
        self.log = tempfile.NamedTemporaryFile()  # read by its name: a seek here would move the child
        self.child = subprocess.Popen(
            [binary, "serve", "--listen", f"127.0.0.1:{port}", *options], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=self.log, start_new_session=True)
        self.url = None

    def wait_until_it_serves(self):
        port = until(self._port, START_S, "a server starts")
        self.url = f"http://127.0.0.1:{port}"
        return self

    def _port(self):
        check(self.child.poll() is None, f"a server starts; its log: {self.read_log()}")
        return next((e["port"] for e in self.events("serving")), None)

    def read_log(self):
        with open(self.log.name, encoding="utf-8", errors="replace") as f:
            return f.read()

    def events(self, name):
        lines = [json.loads(line) for line in self.read_log().splitlines() if line.endswith("}")]
        return [e for e in lines if e["event"] == name]

    def get(self, path):
        return baton.request(self.url, "GET", path, timeout=30)

    def post(self, path, body):
        return baton.request(self.url, "POST", path, body, timeout=60)

    def kill(self):
        self.child.kill()
        self.child.wait()

    def stop(self):
        """SIGTERM, then the exit status; -9 if the server did not end in time."""
        if self.child.poll() is None:
            self.child.terminate()
        try:
            return self.child.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL


def body_of(tensors):
    """The tensors as the bytes of a safetensors file that also has a checksum for each of them."""
    header, offset = {"__metadata__": {f"baton.checksum.{name}": baton.checksum(t.data)
                                       for name, t in tensors.items()}}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": t.dtype, "shape": list(t.shape),
                        "data_offsets": [offset, offset + t.nbytes]}
        offset += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return bytearray(struct.pack("<Q", len(text)) + text + b"".join(t.data for t in tensors.values()))


def push_body(url, body, label):
    query = urllib.parse.urlencode({"weight_version": label})
    return baton.request(url, "POST", f"/v1/update_weights?{query}", bytes(body),
                         {"Content-Type": "application/vnd.safetensors"}, timeout=60)


def refusal_of(call, *args, **named):
    """The error with which the server refuses; CheckFailed if it does not."""
    try:
        answer = call(*args, **named)
    except baton.BatonError as e:
        return e
    raise CheckFailed(f"the server refuses it, but it answered {str(answer)[:200]}")


class HalfPush:
    """A trainer, as a process of its own, that sends half of a push and then waits."""

    def __init__(self, url, path, label):
        self.child = subprocess.Popen([sys.executable, os.path.abspath(__file__), url, path, label],
                                      stdin=subprocess.DEVNULL, start_new_session=True)

    def kill(self):
        self.child.kill()
        check(self.child.wait() == -signal.SIGKILL, "kill -9 ends the trainer, nothing else")


def send_half(url, path, label):
    parts = urllib.parse.urlsplit(url)
    with open(path, "rb") as f:
        body = f.read()
    with socket.create_connection((parts.hostname, parts.port), START_S) as s:
        s.sendall((f"POST /v1/update_weights?weight_version={label} HTTP/1.1\r\n"
                   f"Host: {parts.netloc}\r\nContent-Type: application/vnd.safetensors\r\n"
                   f"Content-Length: {len(body)}\r\n\r\n").encode() + body[:len(body) // 2])
        time.sleep(START_S)


if __name__ == "__main__":
    send_half(*sys.argv[1:4])
