"""Upstreams whose replies are not HTTP, or too large: each request ends soon, with an error that names the
upstream, which is out of rotation while it answers probes like that, and returns afterwards.

Usage: upstreams_hostile.py BATON FAKE_ENGINE MODEL WORK [NAME ...]
"""

import contextlib
import http.client
import json
import socket
import threading
import time

from fake_engine_world import Double, completion
from fleet_world import PROBE, Server, until
from upstreams_world import BATON, ENGINE, LOG, becomes, check, run, same, state_of

SOON_S = 20
MANY = 8 << 20  # bytes of what never ends
GOOD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
PAUSE = {"baton": b"/v1/pause", "vllm": b"/pause", "sglang": b"/pause_generation"}


def endless(begin, again):
    return [begin] + [again * 1024] * (MANY // len(again) // 1024)


ANSWERS = {
    "a header line of 200 KB": GOOD + b"X: " + b"x" * 200_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
    "10,000 header lines": GOOD + b"X-Long: xxxxxxxx\r\n" * 10_000 + b"Content-Length: 2\r\n\r\n{}",
    "a head that never ends": endless(GOOD, b"X: y\r\n"),
    "a header line that never ends": endless(GOOD + b"X: ", b"yyyyyyyy"),
    "a flood of interim answers": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a chunk size out of range": GOOD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "a chunk size below 0": GOOD + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    "a chunk that ends early": GOOD + b"Transfer-Encoding: chunked\r\n\r\n10\r\n{}\r\n",
    "a length that is too big": GOOD + b"Content-Length: 200\r\n\r\n{}",
    "a length beyond any": GOOD + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
    "a length below 0": GOOD + b"Content-Length: -2\r\n\r\n{}",
    "two lengths": GOOD + b"Content-Length: 2\r\nContent-Length: 1\r\n\r\n{}",
    "a length and chunks": GOOD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "garbage": bytes(range(128, 256)) * 40,
    "HTTP/0.9": b"{}",
    "status 999": b"HTTP/1.1 999 Odd\r\nContent-Length: 2\r\n\r\n{}",
    "status 700": b"HTTP/1.1 700 Odd\r\nContent-Length: 2\r\n\r\n{}",
    "gzip as transfer coding": GOOD + b"Transfer-Encoding: gzip\r\n\r\n{}",
    "gzip and chunks": GOOD + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "nothing": b"",
}
BEGIN_WELL = ["a chunk that ends early"]  # its head is passed on before what is wrong
SHORT = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Hostile:
    """In front of a double: what `hits` says yes to gets `answer`, and everything else the double's own."""

    def __init__(self, d):
        self.double, self.answer, self.hits = d, b"", lambda *_: False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @contextlib.contextmanager
    def answering(self, answer, hits):
        self.answer, self.hits = answer, hits
        yield
        self.hits = lambda *_: False

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self.listener.accept()[0],), daemon=True).start()

    def _serve(self, client):
        with contextlib.suppress(OSError), contextlib.closing(client):
            request = self._read(client)
            if self.hits(request.partition(b"\r\n")[0], request.partition(b"\r\n\r\n")[2]):
                for piece in self.answer if isinstance(self.answer, list) else [self.answer]:
                    client.sendall(piece)
                client.shutdown(socket.SHUT_WR)
                client.settimeout(1)
                client.recv(1)
            elif request:
                self._forward(client, request)

    @staticmethod
    def _read(client):
        text, want = b"", None
        while want is None or len(text) < want:
            more = client.recv(1 << 16)
            if not more:
                return b""
            text += more
            head, end, _ = text.partition(b"\r\n\r\n")
            if end and want is None:
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                want = len(head) + 4 + (int(length[0].split(b":")[1]) if length else 0)
        return text

    def _forward(self, client, request):
        with self.double.socket() as s:
            s.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            while piece := s.recv(1 << 16):
                client.sendall(piece)


def is_data(line, body):
    """Of a client: the server's own may come at any time after the engine has returned."""
    return b"/v1/completions" in line and json.loads(body)["prompt"] != PROBE


def is_question(line, _):
    return line.startswith(b"GET")


@contextlib.contextmanager
def world(dialect):
    with contextlib.ExitStack() as stack:
        h = Hostile(stack.enter_context(Double(ENGINE, dialect, "--weight-version", "step-0")))
        s = stack.enter_context(Server(BATON, LOG, "--upstream", f"{h.url},{dialect}", "--probe-interval", 20,
                                       "--probe-timeout", 500))
        becomes(s, h.url, "serving")
        yield s, h


def blames(said, what, h):
    """(status, JSON) of an answer that came to nothing upstream."""
    status, body = said
    check(status in (502, 504), f"{what}: {said}")
    message = body["error"]["message"]
    check(body["error"]["code"] in ("upstream_error", "upstream_timeout", status), f"{what}: {said}")
    check("may have been processed" in message and h.url in message, f"{what}: {message}")
    check("this server" not in message, f"{what}: {message}")


def timed(fn, what):
    began = time.monotonic()
    said = fn()
    check(time.monotonic() - began < SOON_S, f"{what}: it took {time.monotonic() - began:.1f} s")
    return said


def generate(s):
    """The answer; "cut": it had begun, and broke off in a way that its client sees."""
    with contextlib.suppress(http.client.IncompleteRead):
        return s.ask("POST", "/v1/completions", completion())
    return "cut"


def one(s, h, what, answer, dialect):
    """To a client, to a call of the trainer's, and to the server's own questions."""
    with h.answering(answer, is_data):
        said = timed(lambda: generate(s), what)
        if what in BEGIN_WELL:
            same(said, "cut", what)
        else:
            blames(said, what, h)
    with h.answering(answer, lambda line, _: PAUSE[dialect] in line):
        said = timed(lambda: s.ask("POST", "/v1/pause", {"mode": "keep", "timeout_s": 5}), what)
        blames(said, what, h)
    s.post("/v1/resume")
    with h.answering(answer, is_question):
        until(f"{what}: it leaves rotation: {s.upstreams()}", lambda: state_of(s, h.url) == "down", SOON_S)
        said = s.upstreams()[h.url]
        error = said["error"]
        check(abs(time.time() - said["last_error_at"]) < SOON_S, said)
        check(error["code"] in ("upstream_timeout", "upstream_error"), f"{what}: {error}")
    becomes(s, h.url, "serving")
    same([s.upstreams()[h.url][m] for m in ("error", "last_error_at")], [None, None], what)
    same(generate(s)[0], 200, what)


def hostile(dialect):
    with world(dialect) as (s, h):
        for what, answer in ANSWERS.items():
            one(s, h, what, answer, dialect)


def closed_at_each_byte():
    """Whatever part of an answer came, it is no answer, and the upstream's own doing."""
    with world("vllm") as (s, h):
        for n in range(len(SHORT)):
            becomes(s, h.url, "serving")
            with h.answering(SHORT[:n], is_data):
                blames(timed(lambda: generate(s), n), f"closed after {n} bytes", h)
        becomes(s, h.url, "serving")
        with h.answering(SHORT, is_data):
            same(generate(s)[0], 200, "all of it")


def a_head_that_stops():
    """It is cut once probes show that the upstream does not answer."""
    def stop(*_):
        time.sleep(5)
        return True

    with world("vllm") as (s, h):
        h.answer, h.hits = GOOD, stop
        blames(timed(lambda: generate(s), "stops"), "stops", h)
        h.hits = lambda *_: False
        becomes(s, h.url, "serving")


def a_name_without_an_address():
    """It was not reached and was sent nothing: three questions, and it is down."""
    with Server(BATON, LOG, "--upstream", "http://nobody.invalid:1,vllm", "--probe-interval", 20) as s:
        until("it is asked", lambda: s.upstreams()["http://nobody.invalid:1"]["n_missed"] >= 3, SOON_S)
        one_of = s.upstreams()["http://nobody.invalid:1"]
        check("resolve" in one_of["error"]["message"], one_of)
        status, said = generate(s)
        check(status == 503 and "resolve" in said["error"]["message"], said)


run({"baton": lambda: hostile("baton"), "vllm": lambda: hostile("vllm"), "sglang": lambda: hostile("sglang"),
     "closed_at_each_byte": closed_at_each_byte, "a_head_that_stops": a_head_that_stops,
     "a_name_without_an_address": a_name_without_an_address})
