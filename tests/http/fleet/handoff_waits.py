"""What waits for what, where this server hands versions to its upstreams.

Usage: as handoff.py says.
"""

import os
import threading
import time

from fleet_world import until
from handoff_world import WORK, Stage, run_cases

NAME = "/update_weight_version"
LOAD = {"vllm": "/update_weights", "sglang": "/update_weights_from_tensor"}
HANGS_S = 20  # longer than a test
SOON_S = 5
N_FAILURES = 5  # the next try is 4 s later then


def fails_at(s, i, kind, step, label):
    """A version that engine `i` does not get."""
    s.taps[i].fault = (LOAD[kind], 500)
    s.push(step, label)


def given_up(kind):
    """A repair that hangs does not delay the next version, which its engine gets with the others."""
    with Stage(kind, kind, min_ready=1) as s:
        s.push("00100", "a")
        fails_at(s, 0, kind, "01500", "b")
        calls = len(s.taps[0].calls)
        s.taps[0].slow, s.taps[0].fault = (LOAD[kind], HANGS_S), None
        until("its repair hangs", lambda: any(c[2] == LOAD[kind] for c in s.taps[0].calls[calls:]))
        s.taps[0].slow = None
        began = time.monotonic()
        s.push("00100", "c")
        assert time.monotonic() - began < SOON_S
        until("all serve", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        s.has("00100", "c")


def each_by_itself(kind):
    """An engine that cannot be repaired does not delay the repair of another."""
    with Stage(kind, kind, kind, min_ready=1) as s:
        s.push("00100", "a")
        fails_at(s, 0, kind, "01500", "b")
        until("it failed often", lambda: len([c for c in s.taps[0].calls if c[2] == LOAD[kind]]) > N_FAILURES)
        s.taps[1].loaded.clear()
        began = time.monotonic()
        s.doubles[1].order("who", "restart", ms=100)
        until("it left", lambda: s.server.get("/v1/upstreams")["n_serving"] == 1)
        until("it is back", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
        assert time.monotonic() - began < 3
        s.has("01500", "b", 1, 2)


def label(kind):
    """Another name for the same weights: at the engines, and here. An engine that does not take it is repaired."""
    with Stage(kind, kind, min_ready=1) as s:
        s.push("00100", "a")
        said = s.server.post("/v1/weights/label", {"weight_version": "a2", "if_serial": 1})
        assert (said["weight_version"], said["serial"]) == ("a2", 1), said
        s.has("00100", "a2")
        stage = s.server.status()["stage"]
        assert (stage["weight_version"], stage["serial"], stage["handed_serial"]) == ("a2", 1, 1), stage
        status, said = s.server.ask("POST", "/v1/weights/label", {"weight_version": "a3", "if_serial": 2})
        assert status == 409 and said["error"]["param"] == "/if_serial", said
        for name, faulty in ("a3", 1), ("a4", 2):
            for tap in s.taps[:faulty]:
                tap.fault = (NAME, 409)
            status, said = s.server.ask("POST", "/v1/weights/label", {"weight_version": name})
            assert status == 502 and "is the name of the version here now" in said["error"]["message"], (status, said)
            assert s.server.get("/v1/upstreams")["n_serving"] == 2 - faulty and s.server.status()["stage"]["weight_version"] == name
            for tap in s.taps:
                tap.fault = None
            until("they are repaired", lambda: s.server.get("/v1/upstreams")["n_serving"] == 2)
            s.has("00100", name)


def label_or_nothing(kind):
    """A name that is refused was at no engine, and no request was aborted for it."""
    state = os.path.join(WORK, f"state-label-{kind}")
    with Stage(kind, options=("--state-dir", state)) as s:
        s.push("00100", "a")
        tap, since = s.taps[0], len(s.taps[0].calls)

        def refused(status, **more):
            got, said = s.server.ask("POST", "/v1/weights/label", {"weight_version": "no", "abort_requests": True, **more})
            assert got == status and s.server.status()["stage"]["weight_version"] == "a", (got, said)
            paths = [c[2] for c in tap.calls[since:] if c[1] == "POST"]
            assert not [p for p in paths if p == NAME or "abort" in p], paths

        refused(409, if_serial=7)
        os.mkdir(os.path.join(state, "journal.tmp"))
        refused(500)
        os.rmdir(os.path.join(state, "journal.tmp"))
        named = []
        tap.slow = (NAME, 0.5)
        name = threading.Thread(target=lambda: named.append(s.server.ask("POST", "/v1/weights/label", {"weight_version": "a2"})))
        name.start()
        until("the engine is asked", lambda: NAME in [c[2] for c in tap.calls[since:]])
        tap.slow = None
        s.push("01500", "b")  # while the engine takes the name
        name.join()
        status, said = named[0]
        assert (status, said.get("serial")) == (200, 1), named
        s.has("01500", "b")
        s.doubles[0].kill()
        until("it is away", lambda: s.server.get("/v1/upstreams")["n_serving"] == 0)
        assert s.server.ask("POST", "/v1/weights/label", {"weight_version": "no"})[0] == 503
        assert s.server.status()["stage"]["weight_version"] == "b"


def resumed_at_the_end(kind):
    """A trainer that pauses in the midst of a hand-off, and resumes before it is over: no engine stays paused."""
    ask, end = {"vllm": ("/weight_info", "/finish_weight_update"), "sglang": ("/model_info", "/end_weight_update")}[kind]
    with Stage(kind) as s:
        s.push("00100", "a")
        tap, since = s.taps[0], len(s.taps[0].calls)

        def asked(path, after=None):
            paths = [c[2] for c in tap.calls[since:]]
            return path in (paths[paths.index(after):] if after in paths else [] if after else paths)

        tap.slow = (LOAD[kind], 0.5)
        push = threading.Thread(target=s.push, args=("01500", "b"))
        push.start()
        until("it loads", lambda: asked(LOAD[kind]))
        s.server.post("/v1/pause", {"mode": "keep"})
        tap.slow = (ask, 0.5)
        until("its version is compared", lambda: asked(ask, end))
        s.server.post("/v1/resume", {})
        push.join()
        until("it is resumed", lambda: s.doubles[0].ask("GET", "/is_paused")[1] == {"is_paused": False})


CASES = {f.__name__: f for f in (given_up, each_by_itself, label, label_or_nothing, resumed_at_the_end)}


if __name__ == "__main__":
    run_cases(CASES)
