"""A server in front of two batons: it ends in mid update; one of the batons is dead; the fleet sleeps.

Usage: fleet_stop.py BATON MODEL WORK
"""

import os
import sys

from fleet_world import Server, until

BATON, MODEL, WORK = sys.argv[1:4]
LOG = os.path.join(WORK, "log")


def engine():
    return Server(BATON, LOG, "--model", MODEL, "--weights",
                  os.path.join(MODEL, "checkpoints", "step-00000.safetensors"))


def front(engines):
    upstreams = [x for e in engines for x in ("--upstream", e.url)]
    return Server(BATON, os.path.join(WORK, "front"), "--probe-interval", 50, "--drain-timeout", 100, *upstreams)


def serving(f, n):
    return lambda: sum(u["state"] == "serving" for u in f.upstreams().values()) == n


def test_stop_aborts_the_open_update(engines):
    f = front(engines)
    until("both serve", serving(f, 2))
    f.post("/v1/update_weights/start", {"weight_version": "half", "lease_s": 600})
    assert all(e.status()["update"]["weight_version"] == "half" for e in engines)
    f.process.terminate()
    f.process.wait(30)
    for e in engines:
        update = e.status()["update"]
        assert update is None or update["phase"] == "aborted", f"an engine keeps its update: {update}"
    with front(engines) as f:
        until("both serve again", serving(f, 2))
        update = f.post("/v1/update_weights/start", {"weight_version": "next"})
        f.post("/v1/update_weights/abort", {"update_id": update["update_id"]})


def test_sleep_is_seen(engines):
    with front(engines) as f:
        until("both serve", serving(f, 2))
        assert f.status()["weights"]["state"] == "ready"
        f.post("/v1/sleep", {"level": 1})
        assert f.status()["weights"]["state"] == "asleep"
        f.post("/v1/wake")
        assert f.status()["weights"]["state"] == "ready"


def test_abort_at_those_that_answer(engines):
    with front(engines) as f:
        until("both serve", serving(f, 2))
        engines[1].kill()
        until("one is down", lambda: f.upstreams()[engines[1].url]["state"] == "down")
        said = f.post("/v1/abort_requests", {"all": True})
        assert [(u["upstream"], u["ok"]) for u in said["upstreams"]] == [
            (engines[0].url, True), (engines[1].url, False)], said
        assert said["upstreams"][1]["error"], said
        status, said = f.ask("POST", "/v1/pause", {})
        assert status == 503 and "1 of 2 upstreams are reachable" in said["error"]["message"], said


with engine() as first, engine() as second:
    for test in (test_stop_aborts_the_open_update, test_sleep_is_seen, test_abort_at_those_that_answer):
        test([first, second])
