"""Thousands of generates that wait, and what everybody else notices of them.

Usage: bench_waiting.py BATON MODEL_DIR [N]      (default 8000 connections)

The server is paused, N clients ask for a generation and wait. Prints the server's memory for each
of them; how long GET /health takes on the main listener, and on one of its own where the server has
that option, while nobody waits, while they wait, with a flood of detokenizations beside, and while
all of them end at once (aborted, and served after resume); and how long after a client left its
slot is free. The probers are processes of their own. It times nothing that it does not print, and
checks that everybody was answered."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http", "lib"))
from front_crowd import (HEALTH, Client, Crowd, Process, ask, generate, post, room_for,  # noqa: E402
                         wait)

PROBE_EVERY_S = 0.002
PHASE_S = 3
N_LEAVING = 200
FLOOD_CLIENTS = 8


def start(binary, model, n, log):
    with_listener = b"--health-listen" in subprocess.run(
        [binary, "serve", "--help"], stdout=subprocess.PIPE, check=True).stdout
    options = ["--health-listen", "127.0.0.1:0"] if with_listener else []
    child = subprocess.Popen(
        [binary, "serve", "--listen", "127.0.0.1:0", "--model", model, "--weights",
         f"{model}/checkpoints/step-00000.safetensors", "--log-level", "warn", "--generate-queue",
         str(2 * n)] + options, stderr=log)
    return child, with_listener


def address_of(child, with_listener):
    """Listening ports as the kernel has them: the log need not say them."""
    ports = set()
    wait("the server listens", lambda: (ports.update(listening(child.pid)), len(ports))[1] == 1 + with_listener)
    main = None
    for port in ports:
        def answers(path, port=port):
            try:
                return ask(f"http://127.0.0.1:{port}", path) is not None
            except OSError:
                return False
        wait("the server serves", lambda: ask_health(port))
        if answers("/v1/status"):
            main = port
    others = ports - {main}
    return main, (others.pop() if others else None)


def ask_health(port):
    try:
        ask(f"http://127.0.0.1:{port}", "/health")
        return True
    except OSError:
        return False


def listening(pid):
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    with open(f"/proc/{pid}/net/tcp", encoding="ascii") as f:
        rows = [line.split() for line in f.readlines()[1:]]
    return {int(r[1].split(":")[1], 16) for r in rows if r[3] == "0A" and r[9] in inodes}


def probe(port, stop, out):
    """(when, how long) of each GET /health, until told to stop."""
    c = Client(("127.0.0.1", port))
    c.socket.setblocking(True)
    times = []
    while not stop.is_set():
        began = time.monotonic()
        c.socket.sendall(HEALTH)
        if not c.socket.recv(65536):
            break
        times.append((began, time.monotonic() - began))
        time.sleep(PROBE_EVERY_S)
    out.send(times)


def flood(port, stop, out):
    """Detokenizations as fast as they are answered."""
    crowd = Crowd(("127.0.0.1", port), FLOOD_CLIENTS)
    data = post("/detokenize", {"tokens": [40, 77, 258] * 300})
    crowd.send(data)
    while not stop.is_set():
        crowd.turn(0.05, lambda c: c.send(data))
    out.send(sum(c.n_answers for c in crowd))


class Aside:
    """A function in a process of its own, until `end`. Not a fork: that would hold our sockets."""

    def __init__(self, what, *args):
        spawn = multiprocessing.get_context("spawn")
        self.stop, (self.there, here) = spawn.Event(), spawn.Pipe(False)
        self.process = spawn.Process(target=what, args=(*args, self.stop, here), daemon=True)
        self.process.start()

    def end(self):
        self.stop.set()
        out = self.there.recv()
        self.process.join()
        return out


def line(what, times, spans, idle):
    for name, began, ended in spans:
        took = sorted(s for at, s in times if began <= at < ended)
        if len(took) < 2:
            continue
        p50, p99 = took[len(took) // 2], took[min(len(took) - 1, len(took) * 99 // 100)]
        idle.setdefault(what, p50)
        print(f"{what:14} {name:34} {len(took):6} {p50 * 1e3:8.2f} {p99 * 1e3:8.2f} "
              f"{took[-1] * 1e3:8.2f} {p50 / idle[what]:9.1f}")


def leaving(url, crowd):
    """Milliseconds from a client's end to its slot's, which /v1/status tells."""
    took = []
    for c in list(crowd)[:N_LEAVING]:
        before = ask(url, "/v1/status")["admission"]["generate"]["waiting"]
        began = time.monotonic()
        crowd.epoll.unregister(c.socket.fileno())
        del crowd.clients[c.socket.fileno()]
        c.close()
        while ask(url, "/v1/status")["admission"]["generate"]["waiting"] >= before:
            pass
        took.append((time.monotonic() - began) * 1e3)
    took.sort()
    return took[len(took) // 2], took[-1]


class Spans(list):
    def phase(self, name, during):
        began = time.monotonic()
        during()
        self.append((name, began, time.monotonic()))


def one_round(url, port, process, n, how, spans):
    waiting = lambda: ask(url, "/v1/status")["admission"]["generate"]["waiting"]  # noqa: E731
    ask(url, "/v1/pause", {})
    before = process.rss_nbytes()
    crowd = Crowd(("127.0.0.1", port), n)

    def arrive():
        crowd.send(generate(1))
        wait("all of them wait", lambda: waiting() == n)

    spans.phase(f"{n} come", arrive)
    print(f"{(process.rss_nbytes() - before) / n / 1024:.1f} KiB for each of {n} that wait")
    spans.phase("they wait", lambda: time.sleep(PHASE_S))
    beside = Aside(flood, port)
    spans.phase("they wait, a flood beside", lambda: time.sleep(PHASE_S))
    if how == "aborted":
        median, most = leaving(url, crowd)
        print(f"a client that left frees its slot in {median:.2f} ms, at most {most:.2f} ms, as "
              f"/v1/status tells (with the flood beside)")

    def end():
        ask(url, "/v1/status")  # which begins a new maximum
        ask(url, "/v1/abort_requests" if how == "aborted" else "/v1/resume",
            {"all": True} if how == "aborted" else {})
        crowd.gather("all are answered", lambda: all(c.n_answers == 1 for c in crowd))

    spans.phase(f"all end at once ({how}), flood", end)
    lag_ms = ask(url, "/v1/status")["http"]["loop_lag_ms_max"]
    print(f"{beside.end()} detokenizations; {n} {how} in {spans[-1][2] - spans[-1][1]:.2f} s, "
          f"the longest turn of the loop {lag_ms:.1f} ms; "
          f"{(process.rss_nbytes() - before) / n / 1024:.1f} KiB for each while still connected")
    assert all(c.answers[0][0] == 200 for c in crowd), {c.answers[0][0] for c in crowd}
    crowd.close()
    ask(url, "/v1/resume", {})
    wait("nobody is left", lambda: ask(url, "/v1/status")["http"]["connections"] < 8)


def main():
    n = int(sys.argv[3]) if len(sys.argv) > 3 else 8000
    n = room_for(n)
    with tempfile.TemporaryFile() as log:
        child, with_listener = start(sys.argv[1], sys.argv[2], n, log)
        try:
            port, health_port = address_of(child, with_listener)
            url, process, spans = f"http://127.0.0.1:{port}", Process(child.pid), Spans()
            probers = [("main", Aside(probe, port))]
            if health_port is not None:
                probers.append(("--health-listen", Aside(probe, health_port)))
            spans.phase("nobody waits", lambda: time.sleep(PHASE_S))
            for how in ("aborted", "served"):
                one_round(url, port, process, n, how, spans)
            print(f"{'listener':14} {'GET /health while':34} {'n':>6} {'p50 ms':>8} {'p99 ms':>8} "
                  f"{'max ms':>8} {'p50/idle':>9}")
            for name, prober in probers:
                line(name, prober.end(), spans, {})
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(60)
    assert child.returncode == 0, child.returncode


if __name__ == "__main__":
    main()
