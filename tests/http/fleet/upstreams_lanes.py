"""Requests that must never wait in front of upstreams (pause, resume, abort, renew), while many others wait for
an operation that takes long.

Usage: upstreams_lanes.py BATON FAKE_ENGINE MODEL WORK [NAME ...]
"""

import contextlib
import json
import socket
import threading
import time

from fleet_world import until
from upstreams_world import check, commit, metric, run, same, world

N_WAITERS = 40
AT_ONCE_S = 10  # on a busy machine; a request that waits for the held operation takes longer
HOLD_MS = 60_000  # at most
WAITING = 'baton_pool_waiting{pool="fleet"}'
HEAD = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class Waiter:
    """A client that asks, and may go away."""

    def __init__(self, s, path, body):
        data = json.dumps(body).encode()
        self.socket = socket.create_connection(("127.0.0.1", s.port), timeout=90)
        self.socket.sendall(HEAD % (path.encode(), len(data)) + data)

    def leave(self):
        self.socket.close()

    def status(self):
        with contextlib.closing(self.socket):
            return int(self.socket.makefile("rb").readline().split()[1])


def at_once(s, method, path, body=None, wanted=200):
    began = time.monotonic()
    status, said = s.ask(method, path, body)
    took = time.monotonic() - began
    same(status, wanted, f"{path}: {said}")
    check(took < AT_ONCE_S, f"{path} took {took:.1f} s")
    return took


def all_at_once(s):
    for method, path, body, wanted in (
            ("POST", "/v1/pause", {"mode": "keep"}, 200), ("POST", "/v1/resume", None, 200),
            ("POST", "/resume", None, 200), ("POST", "/v1/pause", {"mode": "abort"}, 200),
            ("POST", "/v1/update_weights/abort", {"update_id": "upd-none"}, 404),
            ("POST", "/v1/update_weights/renew", {"update_id": "upd-none"}, 404),
            ("POST", "/v1/abort_requests", {"all": True}, 200), ("POST", "/v1/resume", None, 200),
            ("GET", "/metrics", None, 200)):
        at_once(s, method, path, body, wanted)


@contextlib.contextmanager
def held(s, d):
    """Something has its turn at the upstreams, until the end."""
    d.order("sleep", "slow", ms=HOLD_MS)
    asleep = threading.Thread(target=lambda: s.post("/v1/sleep", {"level": 1}))
    asleep.start()
    d.wait("it sleeps", lambda: d.journal("sleep"))
    yield
    check(asleep.is_alive(), "it is held until here")
    d.good("DELETE", "/fault")
    asleep.join()


def they_wait(s, what):
    until(f"they wait for {what}", lambda: metric(s, WAITING) > N_WAITERS)  # the held one too


WAITERS = {
    "start": ("/v1/update_weights/start", {}),
    "label": ("/v1/weights/label", {"weight_version": "step-9"}),
    "resync": ("/v1/upstreams/resync", {"upstream": "http://nobody:1"}),
    "unload": ("/v1/unload_lora_adapter", {"lora_name": "policy"}),
    "wake": ("/v1/wake", {}),
    "group": ("/destroy_weights_update_group", {}),
}


def nobody_keeps_a_pause_waiting():
    """However many wait for their turn: a pause does not wait for theirs. Those that leave take none."""
    with world("baton", "baton") as (s, a, b):
        commit(s, "step-1")
        with held(s, a):
            for path, body in WAITERS.values():
                waiters = [Waiter(s, path, body) for _ in range(N_WAITERS)]
                they_wait(s, path)
                all_at_once(s)
                for w in waiters:
                    w.leave()
                until("they have left", lambda: metric(s, WAITING) == 1)
            for d in (a, b):
                d.good("DELETE", "/journal")
        same([e["op"] for d in (a, b) for e in d.journal() if e["op"] in ("start", "label", "wake", "unload")], [])
        same(s.status()["update"], None, "of those that left nothing was begun")
        s.post("/v1/wake")
        same(commit(s, "step-2")["weight_version"], "step-2")


def who_stays_is_answered():
    """In its turn, not one that its place behind others made late."""
    with world("baton") as (s, d):
        with held(s, d):
            waiters = [Waiter(s, *WAITERS["resync"]) for _ in range(N_WAITERS)]
            they_wait(s, "a resync")
        same([w.status() for w in waiters], [404] * N_WAITERS)


def nor_do_those_who_hang():
    """So it is with calls that wait for an upstream."""
    with world("baton") as (s, d):
        d.order("reset_cache", "hang", times=0)
        waiters = [Waiter(s, "/v1/reset_cache", {}) for _ in range(N_WAITERS)]
        until("they hang", lambda: len(d.journal("reset_cache")) >= N_WAITERS)
        for path, body in (("/v1/pause", {"mode": "keep"}), ("/v1/resume", None)):
            at_once(s, "POST", path, body)
        for w in waiters:
            w.leave()
        d.good("DELETE", "/fault")


run({test.__name__: test for test in (nobody_keeps_a_pause_waiting, who_stays_is_answered, nor_do_those_who_hang)})
