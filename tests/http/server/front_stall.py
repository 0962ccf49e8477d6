"""Nothing stalls the front: neither how many clients are ready at once, nor clients that die in the
middle of an upload, nor a request made to keep a loop busy.

The server is stopped while clients write, so that one wake-up finds all of them ready, or a request
and the end of its connection together: what is rare on a live server then happens each time.

Usage: front_stall.py HOST PORT PID N_ANSWERS
"""

import os
import select
import signal
import sys
import time

from front_crowd import HEALTH, Client, Crowd, Process, ask, generate, post, room_for, wait

N_CLIENTS = (127, 128, 129, 255, 256, 257, 1000)
N_DYING = 1000
IDLE_S = 0.3
BUSY_MAX = 0.15  # of one processor, without requests
POOL_NBYTES = 16 << 10  # FRONT_POOL_NBYTES
GONE_S = 60
took_s = []


class Stopped:
    """The server's threads stand still, its sockets do not."""

    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        os.kill(self.pid, signal.SIGSTOP)
        wait("the server is stopped", self.is_stopped)

    def is_stopped(self):
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as f:
            return f.read().rpartition(")")[2].split()[0] == "T"

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGCONT)


def ready_at_once(address, pid, n):
    """One wake-up with exactly n ready connections: each is answered."""
    crowd = Crowd(address, n)
    crowd.send(HEALTH)
    crowd.gather(f"{n} clients, one by one", lambda: all(c.n_answers == 1 for c in crowd))
    for i in range(2, 5):
        with Stopped(pid):
            crowd.send(HEALTH)
        crowd.gather(f"{n} clients at once", lambda: all(c.n_answers == i for c in crowd))
    crowd.close()


def busy(address, n, n_each):
    """Each asks again as soon as it is answered, until the last of them has n_each answers."""
    crowd = Crowd(address, n)
    behind = set(crowd)
    fewest = n_each

    def again(c):
        if c.n_answers >= fewest:
            behind.discard(c)
        c.send(HEALTH)

    crowd.send(HEALTH)
    crowd.gather(f"{n} busy clients", lambda: not behind, again)
    assert all(status == 200 for c in crowd for status, _ in c.answers)
    most = max(c.n_answers for c in crowd)
    crowd.close()
    return most


def all_gone(process, before, what):
    """Within 2 s and what a busy machine takes; every timeout of the server is far longer."""
    began = time.monotonic()
    wait(f"{what}: no more than {before} sockets are left", lambda: process.n_sockets() <= before, GONE_S)
    took_s.append(time.monotonic() - began)


def dying(address, url, pid, n):
    """Bytes and the end of the connection come in one wake-up, or one after the other."""
    process = Process(pid)
    half = post("/v1/generate", b"x" * 1000)[:-400]
    upload = (b"POST /v1/update_weights HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/vnd.safetensors\r\n"
              b"Content-Length: 100000\r\n\r\n" + (2000).to_bytes(8, "little") + b'{"')
    wait("no connection is left", lambda: ask(url, "/v1/status")["http"]["connections"] == 1)
    before = process.n_sockets()
    for what, data, leave in (
            ("half a body", half, Client.close),
            ("half a body and a reset", half, lambda c: c.close(reset=True)),
            ("half a header of tensors", upload, Client.close),
            ("a whole request", HEALTH, Client.close),
            ("a request that waits", generate(100000), Client.close),
            ("nothing", b"", Client.close)):
        for together in (True, False):
            crowd = Crowd(address, n)
            if together:
                with Stopped(pid):
                    crowd.send(data)
                    for c in crowd:
                        leave(c)
            else:
                crowd.send(data)
                for c in crowd:
                    leave(c)
            crowd.close()
            all_gone(process, before, f"{n} clients left after {what}")
    half_closed(address, process, pid, before, n, half)
    wait("no generation is left",
         lambda: sum(ask(url, "/v1/status")["admission"]["generate"][k] for k in ("running", "waiting")) == 0)


def half_closed(address, process, pid, before, n, half):
    """They say that they will send no more, and wait: the server ends the connection."""
    for data in (half, HEALTH[:-2], b""):
        crowd = Crowd(address, n)
        with Stopped(pid):
            crowd.send(data)
            for c in crowd:
                c.socket.shutdown(1)
        crowd.gather("half-closed clients", lambda: all(c.closed for c in crowd))
        assert all(c.n_answers == 0 for c in crowd)
        all_gone(process, before, "half-closed clients")
        crowd.close()


CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"

HOSTILE = [
    ("chunk extension over the pool", [CHUNKED + b"5;" + b"a" * 65536]),
    ("trailer over the pool", [CHUNKED + b"1\r\nx\r\n0\r\nX: " + b"y" * 65536]),
    ("chunk size without an end", [CHUNKED + b"0" * 65536]),
    ("header blocks around the pool's size",
     [b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * (POOL_NBYTES - n) for n in range(-64, 1600, 8)]),
    ("whole header blocks around the pool's size",
     [b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nA: " + b"a" * (POOL_NBYTES - n) + b"\r\n\r\n"
      for n in range(-64, 1600, 8)]),
    ("targets around the pool's size",
     [b"GET /" + b"a" * (POOL_NBYTES - n) for n in range(-64, 1600, 8)]),
    ("blank lines", [b"\r\n" * 30000]),
    ("half a body", [post("/tokenize", b"x" * 100)[:-50]]),
    ("half a tensor body", [b"POST /v1/update_weights HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/"
                            b"vnd.safetensors\r\nContent-Length: 100000\r\n\r\n" + b"\x10\x27" + b"\0" * 6]),
    ("a TLS hello", [bytes.fromhex("16030100c8010000c40303") + b"\0" * 200]),
    ("requests behind one that waits", [generate(100000) + HEALTH * 2000]),
    ("answers that nobody reads", [(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n") * 2000]),
]


def busy_share(process):
    """Share of one processor over IDLE_S without requests."""
    cpu_s, began = process.cpu_s(), time.monotonic()
    select.select([], [], [], IDLE_S)
    return (process.cpu_s() - cpu_s) / (time.monotonic() - began)


def spin(address, url, pid):
    process, shares = Process(pid), []
    ask(url, "/v1/pause", {})  # what waits uses no processor
    for what, requests in HOSTILE:
        clients = [Client(address) for _ in requests]
        for c, data in zip(clients, requests):
            c.send(data)
        share = None
        for _ in range(40):  # until what could be done with it has been done
            share = busy_share(process)
            if share < BUSY_MAX:
                break
        assert share < BUSY_MAX, f"{what}: {share:.2f} of a processor, for nothing"
        shares.append(share)
        for c in clients:
            c.close()
        ask(url, "/health")
    wait("no connection is left", lambda: ask(url, "/v1/status")["http"]["connections"] == 1)
    share = min(busy_share(process) for _ in range(3))
    assert share < BUSY_MAX, f"after all have left: {share:.2f} of a processor"
    ask(url, "/v1/resume", {})
    return max(shares)


def main():
    address, pid, n_each = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4])
    url = f"http://{address[0]}:{address[1]}"
    room_for(2 * N_DYING)
    most = []
    for n in N_CLIENTS:
        ready_at_once(address, pid, n)
        most.append(f"{n}: {busy(address, n, n_each)}")
    print(f"every client had {n_each} answers; the busiest of " + ", ".join(most))
    dying(address, url, pid, N_DYING)
    print(f"{N_DYING} dead clients were gone after at most {max(took_s):.2f} s")
    print(f"at most {spin(address, url, pid):.3f} of a processor for {len(HOSTILE)} hostile requests")


if __name__ == "__main__":
    main()
