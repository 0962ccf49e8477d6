"""Many raw connections to one server, driven by one thread: for tests and benchmarks of the front."""

import json
import os
import re
import resource
import select
import socket
import struct
import time
import urllib.request

WAIT_S = 120  # longest time for any request; a longer wait is a stall
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LENGTH = re.compile(rb"(?im)^content-length: *(\d+)\r$")


def post(path, body, headers=b""):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%s"
            b"Content-Length: %d\r\n\r\n%s" % (path.encode(), headers, len(body), body))


def generate(max_tokens, **more):
    return post("/v1/generate", dict(token_ids=[40, 77, 258], sampling_params={
        "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}, **more))


def ask(url, path, body=None):
    """One request on a connection of its own; the JSON of its 200."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def wait(what, condition, within_s=WAIT_S):
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"after {within_s} s still not so: {what}"
        time.sleep(0.002)


def room_for(n):
    """Raises the descriptor limit; returns how many of n connections fit under it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(n, hard - 256)


class Client:
    """One connection. `answers` holds (status, body) of each whole answer; `closed` is how it ended."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.unsent, self.seen = b"", b""
        self.answers, self.n_answers, self.closed = [], 0, None
        self.last = False  # the last answer said that the connection ends

    def send(self, data):
        self.unsent += data
        self.flush()

    def flush(self):
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent):]
        except BlockingIOError:
            pass
        except OSError as e:
            self.unsent, self.closed = b"", self.closed or type(e).__name__

    def read(self):
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            return
        except OSError as e:
            self.closed = type(e).__name__
            return
        if not data:
            self.closed = "FIN"
        self.seen += data
        while self.take():
            pass

    def take(self):
        """Moves one whole answer from what was seen; knows lengths and chunks."""
        head, sep, rest = self.seen.partition(b"\r\n\r\n")
        if not sep:
            return False
        found = LENGTH.search(head + b"\r\n")
        if found:
            n = int(found[1])
            if len(rest) < n:
                return False
            body, rest = rest[:n], rest[n:]
        else:
            if not rest.endswith(b"0\r\n\r\n"):  # nobody here asks for more behind a stream
                return False
            body, at = [], 0
            while True:
                end = rest.find(b"\r\n", at)
                if end < 0:
                    return False
                n = int(rest[at:end], 16)
                if len(rest) < end + n + 4:
                    return False
                body.append(rest[end + 2:end + 2 + n])
                at = end + n + 4
                if n == 0:
                    break
            body, rest = b"".join(body), rest[at:]
        self.seen = rest
        self.last = b"\r\nconnection: close" in head.lower()
        self.answers.append((int(head[9:12]), body))
        self.n_answers += 1
        return True

    def close(self, reset=False):
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
        self.closed = self.closed or "us"


class Crowd:
    """n connections under one epoll."""

    def __init__(self, address, n):
        self.epoll, self.clients = select.epoll(), {}
        for _ in range(n):
            c = Client(address)
            self.clients[c.socket.fileno()] = c
            self.epoll.register(c.socket.fileno(), select.EPOLLIN)

    def __iter__(self):
        return iter(list(self.clients.values()))

    def send(self, data):
        for c in self:
            c.send(data)
            assert c.unsent == b"", "a small request did not fit"

    def turn(self, timeout_s, on_answer=None):
        """Reads what is there; on_answer(client) for each connection that has new answers."""
        for fd, _ in self.epoll.poll(timeout_s, 1024):
            c = self.clients[fd]
            before = c.n_answers
            c.read()
            if c.closed:
                self.epoll.unregister(fd)
            if on_answer is not None and c.n_answers > before:
                on_answer(c)

    def gather(self, what, done, on_answer=None, within_s=WAIT_S):
        """Turns until done(); a stall is an AssertionError that says how far each came."""
        end = time.monotonic() + within_s
        while not done():
            assert time.monotonic() < end, f"{what}: {self.said()}"
            self.turn(0.05, on_answer)

    def said(self):
        n = sorted(c.n_answers for c in self)
        ends = {c.closed for c in self if c.closed}
        return f"after {WAIT_S} s answers for each of {len(n)} clients: {n[:4]}...{n[-4:]}, {ends}"

    def close(self, reset=False):
        for c in self:
            c.close(reset)
        self.epoll.close()
        self.clients = {}


class Process:
    """What the kernel says of the server."""

    def __init__(self, pid):
        self.pid = pid

    def cpu_s(self):
        total = 0
        for task in os.listdir(f"/proc/{self.pid}/task"):
            try:
                with open(f"/proc/{self.pid}/task/{task}/schedstat", encoding="ascii") as f:
                    total += int(f.read().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                pass  # ended meanwhile
        return total / 1e9

    def n_sockets(self):
        n = 0
        for fd in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                n += os.readlink(f"/proc/{self.pid}/fd/{fd}").startswith("socket:")
            except FileNotFoundError:
                pass  # closed meanwhile
        return n

    def rss_nbytes(self):
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
