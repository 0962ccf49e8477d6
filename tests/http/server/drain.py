"""SIGTERM with clients at every phase: each accepted request is answered.

whole: one client keeps the drain open with half a body until all others have been checked. deadline, twice:
running requests are ended by the drain's deadline, or by a second SIGTERM. doubled: a SIGTERM that comes twice within
a second counts once. update: an open update is brought to its end.

Usage: drain.py HOST PORT PID LOG whole|deadline|twice|doubled [SEED]
       drain.py HOST PORT PID LOG update CHECKPOINT
"""

import json
import os
import random
import re
import signal
import sys
import time
import urllib.error
import urllib.request

from front_crowd import HEALTH, Client, Crowd, ask, generate, post, wait

N_CLIENTS = 200
TEXT = post("/tokenize", {"prompt": "In the beginning"})
SAME_SIGNAL_S = 1.0  # SAME_SIGNAL_US in server/serve_stop.c
LATE = ("idle", "silent", "half a header", "half a body", "running", "stream", "busy", "new")
HEAD = TEXT.index(b"\r\n\r\n")


def stream(max_tokens):
    return post("/v1/completions", {"prompt": "In the beginning", "max_tokens": max_tokens, "temperature": 0,
                                    "ignore_eos": True, "stream": True})


class Clients:
    def __init__(self, address, rng):
        self.address, self.rng = address, rng
        self.crowd, self.kinds = Crowd(address, 0), {}
        self.n_sent, self.n_begun = {}, {}

    def add(self, kind):
        c = Client(self.address)
        self.crowd.clients[c.socket.fileno()] = c
        self.crowd.epoll.register(c.socket.fileno(), 1)
        self.kinds.setdefault(kind, []).append(c)
        self.n_sent[c] = 0
        return c

    def send(self, c, data):
        c.send(data)
        self.n_sent[c] += 1

    def begin(self, kind):
        c, rng = self.add(kind), self.rng
        if kind in ("idle", "busy"):
            self.send(c, TEXT)
        elif kind == "half a header":
            self.part(c, rng.randint(1, HEAD + 2))
        elif kind == "half a body":
            self.part(c, rng.randint(HEAD + 4, len(TEXT) - 1))
        elif kind == "running":
            self.send(c, generate(rng.randint(1, 40)))
        elif kind == "stream":
            self.send(c, stream(rng.randint(1, 40)))

    def part(self, c, n):
        c.send(TEXT[:n])
        self.n_begun[c] = n

    def rest(self, c):
        self.send(c, TEXT[self.n_begun[c]:])

    def answered(self, kinds):
        return all(c.n_answers == self.n_sent[c] for k in kinds for c in self.kinds[k])

    def gather(self, what, done):
        self.crowd.gather(what, done, self.keep_busy)

    def keep_busy(self, c):
        """A busy client sends requests until a reply says that its connection closes."""
        if c in self.kinds["busy"] and c.n_answers == self.n_sent[c] and not c.last:
            self.send(c, TEXT)


def is_stopped(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        return f.read().rpartition(")")[2].split()[0] == "T"


def logged(path, event):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f'"event":"{event}"' in f.read()


def terminate(pid, during):
    """SIGTERM to a stopped process, so that `during` happens before it handles the signal."""
    os.kill(pid, signal.SIGSTOP)
    wait("the server is stopped", lambda: is_stopped(pid))
    os.kill(pid, signal.SIGTERM)
    during()
    os.kill(pid, signal.SIGCONT)


def is_draining(answer):
    return answer[0] == 503 and \
        re.search("the server (is draining|ends)", json.loads(answer[1])["error"]["message"]) is not None


def check_generation(answer, reasons):
    status, body = answer
    assert status == 200, answer
    choice = json.loads(body)["choices"][0]
    assert choice["finish_reason"] in reasons and choice["weight_versions"] is not None, body


def check_stream(answer, reasons):
    """Whole: Crowd has seen its last chunk; and by its own rules."""
    status, body = answer
    assert status == 200, answer
    events = [e[6:] for e in body.decode().split("\n\n") if e.startswith("data: ")]
    assert events and events[-1] == "[DONE]", events[-2:]
    said = [json.loads(e) for e in events[:-1]]
    ends = [c["finish_reason"] for e in said for c in e.get("choices", []) if c["finish_reason"]]
    assert ends and ends[-1] in reasons or any("error" in e for e in said), said[-2:]


def refused(address):
    try:
        Client(address).close()
        return False
    except (ConnectionRefusedError, ConnectionResetError):  # reset: it was in the queue as the listener closed
        return True


def n_admitted(address):
    """Generations that run, wait for a permit, or have ended."""
    generate = ask("http://%s:%d" % address, "/v1/status")["admission"]["generate"]
    return generate["granted"] + generate["waiting"]


def come(address, seed):
    """All kinds but new ones, at random points of their lives."""
    w = Clients(address, random.Random(seed))
    holder = w.add("holder")
    holder.send(TEXT[:-1])
    kinds = [k for k in LATE if k != "new"]
    for kind in kinds:
        w.kinds[kind] = []
    for i in range(N_CLIENTS):
        w.begin(kinds[i % len(kinds)])
        w.crowd.turn(0, w.keep_busy)
    stop_after = w.rng.randint(1, 40)
    w.gather("some answers", lambda: sum(c.n_answers for c in w.crowd) >= stop_after)
    w.gather("those that will be idle", lambda: w.answered(["idle"]))
    # a completion whose prompt is not tokenized yet as the drain begins is refused, and rightly so
    n_generations = len(w.kinds["running"] + w.kinds["stream"])
    w.gather("generations are in the queue", lambda: n_admitted(address) == n_generations)
    return w, holder


def newcomers(w):
    """Connections and requests that the kernel has taken, and the server has not."""
    w.kinds["new"] = []
    for i in range(25):
        c = w.add("new")
        w.send(c, HEALTH if i % 2 else TEXT)


def whole(address, pid, log, seed):
    w, holder = come(address, seed)
    terminate(pid, lambda: newcomers(w))
    wait("it drains", lambda: logged(log, "drain"))
    wait("no new connection is taken", lambda: refused(address))
    for c in w.kinds["idle"]:
        w.send(c, TEXT)
    for c in w.kinds["half a header"] + w.kinds["half a body"]:
        w.rest(c)
    w.gather("everybody", lambda: w.answered([k for k in LATE if k != "silent"]))
    for c in w.kinds["running"]:
        check_generation(c.answers[0], ("length",))
    for c in w.kinds["stream"]:
        check_stream(c.answers[0], ("length",))
    for kind in ("idle", "half a header"):
        for c in w.kinds[kind]:
            assert is_draining(c.answers[-1]), (kind, c.answers[-1])
    for kind in ("half a body", "new", "busy"):
        for c in w.kinds[kind]:
            assert c.answers[-1][0] == 200 or is_draining(c.answers[-1]), (kind, c.answers)
            assert c.last or kind == "new", (kind, c.answers)
    assert all(c.answers[0][0] == 200 for c in w.kinds["new"][1::2]), "health answers to the end"
    w.gather("refused connections are closed", lambda: all(c.closed for c in w.kinds["idle"]))
    os.kill(pid, 0)  # the holder holds it
    holder.send(TEXT[-1:])
    w.gather("the holder and the silent", lambda: holder.closed and all(c.closed for c in w.kinds["silent"]))
    assert holder.n_answers == 1 and is_draining(holder.answers[0]), holder.answers
    assert all(c.n_answers == 0 for c in w.kinds["silent"])


def long_ones(address):
    """Work that would take long after any deadline: a stream, many tokens, one in the queue behind
    them, and half a body."""
    crowd = Crowd(address, 0)
    clients = []
    for data in (stream(900), post("/v1/generate", {"token_ids": [40], "sampling_params": {
            "max_tokens": 900, "ignore_eos": True, "n": 64}}), generate(900), TEXT[:-1]):
        c = Client(address)
        crowd.clients[c.socket.fileno()] = c
        crowd.epoll.register(c.socket.fileno(), 1)
        c.send(data)
        clients.append(c)
        if c is clients[0]:
            crowd.gather("the stream has begun", lambda: b"data: " in clients[0].seen)
    return crowd, clients


def check_cut(crowd, clients):
    """Running requests were ended, and each was answered."""
    crowd.gather("the last answers", lambda: all(c.closed for c in crowd))
    for c in clients:
        assert c.n_answers == 1, (c.answers, c.seen[-300:], c.closed)
    for c in clients[1:3]:
        if not is_draining(c.answers[0]):
            check_generation(c.answers[0], ("abort", "length"))
    check_stream(clients[0].answers[0], ("abort", "length"))
    assert is_draining(clients[3].answers[0]), clients[3].answers


def doubled(address, pid, log):
    """As timeout(1) and a terminal send it: to the process, and to its group."""
    crowd = Crowd(address, 0)
    c = Client(address)
    crowd.clients[c.socket.fileno()] = c
    crowd.epoll.register(c.socket.fileno(), 1)
    c.send(stream(900))
    crowd.gather("the stream has begun", lambda: b"data: " in c.seen)
    os.kill(pid, signal.SIGTERM)
    wait("it drains", lambda: logged(log, "drain"))
    os.kill(pid, signal.SIGTERM)
    crowd.gather("the stream ends", lambda: c.closed)
    check_stream(c.answers[0], ("length",))


def call(address, path, body, kind="application/json"):
    """The status and the JSON that a new connection gets."""
    r = urllib.request.Request("http://%s:%d%s" % (*address, path), data=body, headers={"Content-Type": kind})
    try:
        with urllib.request.urlopen(r, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def update(address, pid, log, checkpoint):
    status, opened = call(address, "/v1/update_weights/start", b'{"lease_s": 60}')
    assert status == 200, opened
    os.kill(pid, signal.SIGTERM)
    wait("it drains", lambda: logged(log, "drain.update"))
    for path, body in (("/v1/update_weights/start", b"{}"), ("/v1/pause", b"{}"), ("/tokenize", b'{"prompt": "x"}')):
        status, refused = call(address, path, body)
        assert status == 503 and "draining" in refused["error"]["message"], (path, status, refused)
    with open(checkpoint, "rb") as f:
        status, chunk = call(address, f"/v1/update_weights?update_id={opened['update_id']}", f.read(),
                             "application/vnd.safetensors")
    assert status == 200, chunk
    finish = json.dumps({"update_id": opened["update_id"], "weight_version": "last"}).encode()
    status, finished = call(address, "/v1/update_weights/finish", finish)
    assert status == 200 and finished["weight_version"] == "last", finished


def main():
    address, pid, log, how = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    if how == "whole":
        whole(address, pid, log, int(sys.argv[6]))
        return
    if how == "doubled":
        doubled(address, pid, log)
        return
    if how == "update":
        update(address, pid, log, sys.argv[6])
        return
    crowd, clients = long_ones(address)
    os.kill(pid, signal.SIGTERM)
    if how == "twice":
        wait("it drains", lambda: logged(log, "drain"))
        time.sleep(SAME_SIGNAL_S)
        os.kill(pid, signal.SIGTERM)
    check_cut(crowd, clients)
    assert re.search("shutdown.forced" if how == "twice" else "the deadline has passed", open(log, encoding="utf-8").read())


if __name__ == "__main__":
    main()
