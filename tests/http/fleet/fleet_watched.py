"""Requests about an update, and more tensors for it, while it finishes at the upstreams.

Usage: as fleet_control.py.
"""

import threading

import fleet_control
from fleet_control import LABELS, WHICH, Fleet, ok_of, refused, told

fleet_control.TIMEOUT_MS = 20000  # longer than what is only slow here
SLOW_MS = 700


def while_it_ends(f, label, then):
    """then(id, its end's answer so far) while the last upstream is slow to finish, or a little later."""
    last, said = f.doubles[-1], []
    f.clean()
    start = f.front.post("/v1/update_weights/start", {"weight_version": label})
    mine = {"update_id": start["update_id"]}
    f.front.post("/v1/update_weights", dict(f.tensors(), **mine))
    last.order("finish", "slow", ms=SLOW_MS)
    t = threading.Thread(target=lambda: said.append(f.front.ask("POST", "/v1/update_weights/finish", mine)))
    t.start()
    last.wait("it is told to finish", lambda: last.journal("finish"))
    then(mine, said)
    t.join()
    assert said[0][0] == 200 and all(ok_of(said[0][1])), said
    f.label = label
    return said[0][1]


def watched(f):
    """It can be looked at until it has ended."""
    seen = []

    def look(mine, said):
        over = False
        while not over:
            over = bool(said)
            seen.append(f.front.get("/v1/update_weights/" + mine["update_id"])["phase"])
    done = while_it_ends(f, next(LABELS), look)
    assert seen == sorted(seen, reverse=True) and set(seen) <= {"verifying", "committed"}, seen
    assert seen[-1] == done["phase"] == "committed", (seen, done)


def named_late(f):
    """Tensors that come too late change nothing, its name neither."""
    label = next(LABELS)

    def send(mine, _):
        refused(f, 409, "POST", "/v1/update_weights", dict(f.tensors(), weight_version="late", **mine))
    done = while_it_ends(f, label, send)
    assert done["weight_version"] == label, done
    mine = {"update_id": done["update_id"]}
    refused(f, 409, "POST", "/v1/update_weights", dict(f.tensors(), weight_version="later", **mine), "update_closed")
    assert f.front.get("/v1/update_weights/" + done["update_id"])["weight_version"] == label
    assert f.versions() == [label] * len(f.doubles), f.versions()
    f.stays(*["serving"] * len(f.doubles))


def main():
    with Fleet(*[WHICH] * 3) as f:
        f.update_all()
        for p in (watched, named_late):
            told(p.__name__, p, f)


main()
