"""SIGQUIT: the server logs its state and goes on, also while a thread hangs with a lock.

Usage: state_dump.py BATON FAKE_ENGINE HOLD_LOCK LOG MODEL WORK; HOLD_LOCK "": a sanitizer's program cannot be held.
"""

import contextlib
import json
import os
import signal
import sys
import threading

from fake_engine_world import Double, completion
from fleet_world import Server, until

BATON, ENGINE, HOLD, LOG, MODEL, WORK = sys.argv[1:7]
FIRST = os.path.join(MODEL, "checkpoints", "step-00000.safetensors")
KEY = "0123456789abcdef-control"
CONTROL = {"Authorization": "Bearer " + KEY}
PROMPT = "nobody may read this in the log"
MTX_ADMISSION = 50


def key_file():
    path = os.path.join(WORK, "keys")
    with open(path, "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write(f"control {KEY} name=trainer-1\n")
    return path


class Dump:
    """The records of one SIGQUIT."""

    def __init__(self, s):
        at = os.path.getsize(LOG)
        s.process.send_signal(signal.SIGQUIT)
        until("the state is in the log", lambda: self.read(at))

    def read(self, at):
        with open(LOG, "rb") as f:
            f.seek(at)
            self.text = f.read().decode()
        lines = [line for line in self.text.splitlines(keepends=True) if line.startswith("{") and line.endswith("}\n")]
        self.records = [r for r in map(json.loads, lines) if r["event"].split(".")[0] == "state"]
        return any(r["event"] == "state.end" for r in self.records)

    def all(self, event, **members):
        return [r for r in self.records if r["event"] == event and members.items() <= r.items()]

    def one(self, event, **members):
        found = self.all(event, **members)
        assert len(found) == 1, (event, members, self.records)
        return found[0]


class Client(threading.Thread):
    """A completion that hangs somewhere."""

    def __init__(self, s):
        super().__init__(daemon=True)
        self.s = s
        self.start()

    def run(self):
        with contextlib.suppress(OSError):
            self.s.ask("POST", "/v1/completions", dict(completion(), prompt=PROMPT), CONTROL)


@contextlib.contextmanager
def fleet():
    """Two engines of one permit each, in which a request hangs, and one more waits; an open update; a pause."""
    with contextlib.ExitStack() as stack:
        doubles = [stack.enter_context(Double(ENGINE, "vllm", "--weight-version", "step-0")) for _ in range(2)]
        s = stack.enter_context(Server(BATON, LOG, "--probe-interval", 50, "--generate-concurrency", 1, "--drain-timeout",
                                       200, "--api-key-file", key_file(),
                                       *(o for d in doubles for o in ("--upstream", f"{d.url},vllm"))))
        until("it is ready", s.ready)
        for d in doubles:
            d.must_be_fresh = False
            d.order("completions", "hang", times=0)
        clients = [Client(s) for _ in range(3)]
        until("one waits", lambda: waiting(s) == (2, 1))
        update = s.post("/v1/update_weights/start", {"weight_version": "step-1"}, headers=CONTROL)["update_id"]
        s.post("/v1/pause", {"mode": "keep", "owner": "trainer-7", "lease_s": 60}, headers=CONTROL)
        yield s, update, [d.url for d in doubles]
        s.kill()
        for c in clients:
            c.join()


def waiting(s):
    queue = s.good("GET", "/v1/status", headers=CONTROL)["admission"]["generate"]
    return queue["running"], queue["waiting"]


def checks_fleet(dump, update):
    """What can be read while the table of engines cannot."""
    assert dump.one("state")["life"] == "serving", dump.records
    session = dump.one("state.update")
    assert session["update_id"] == update and session["weight_version"] == "step-1", session
    assert session["key"] == "trainer-1" and session["since_ms"] > 0 and session["lease_left_ms"] > 0, session
    pause = dump.one("state.pause")
    assert (pause["mode"], pause["owner"]) == ("keep", "trainer-7") and 0 < pause["lease_left_ms"] <= 60000, pause
    for executor in ("control", "generate", "text", "fleet"):
        pool = dump.one("state.executor", executor=executor)
        assert pool["idle"] <= pool["threads"], pool
    threads = {r["thread"]: r for r in dump.all("state.thread")}
    assert {"upstream", "events", "control/0", "log"} <= set(threads), sorted(threads)
    assert threads["control/0"]["waits_on_condition_of"] == "MTX_WORKERS", threads["control/0"]
    assert threads["control/0"]["waits_ms"] > 0, threads["control/0"]
    assert KEY not in dump.text and PROMPT not in dump.text, dump.text


def of_a_fleet():
    with fleet() as (s, update, urls):
        dump = Dump(s)
        checks_fleet(dump, update)
        for url in urls:
            engine = dump.one("state.engine", upstream=url)
            assert engine["state"] == "serving" and engine["generate"] == 1 and engine["gate"] == "paused", engine
        queue = dump.one("state.queue", queue="generate")
        assert (queue["running"], queue["waiting"]) == (2, 1) and queue["oldest_ms"] > 0, queue
        assert not dump.all("state.locked"), dump.records
        assert waiting(s) == (2, 1)  # it goes on
        Dump(s)  # and again


def of_a_fleet_that_hangs():
    """The thread `events` keeps the lock of the table of engines."""
    hold = os.path.join(WORK, "hold")
    preload = {"LD_PRELOAD": HOLD, "HOLD_LOCK": hold, "HOLD_LOCK_THREAD": "events", "HOLD_LOCK_RANK": str(MTX_ADMISSION)}
    os.environ.update(preload)
    with fleet() as (s, update, _):
        for name in preload:
            del os.environ[name]
        with open(hold, "w", encoding="ascii"):
            dumps = []
            until("it hangs", lambda: dumps.append(Dump(s)) or dumps[-1].all("state.thread", thread="upstream",
                                                                            locked_by="events"))
        dump = dumps[-1]
        checks_fleet(dump, update)
        assert {r["what"]: r["message"] for r in dump.all("state.locked")} == {
            what: "MTX_ADMISSION is locked by events" for what in ("engines", "queues")}, dump.records
        assert not dump.all("state.engine") and not dump.all("state.queue"), dump.records
        assert dump.one("state.thread", thread="events")["holds"] == "MTX_ADMISSION", dump.records
        stuck = dump.one("state.thread", thread="upstream")
        assert stuck["waits_for"] == "MTX_ADMISSION" and stuck["waits_ms"] > 0, stuck
        assert dump.one("state.end")["took_ms"] < 5000, dump.records
        os.remove(hold)
        until("it goes on", lambda: waiting(s) == (2, 1))
        dump = Dump(s)
        assert len(dump.all("state.engine")) == 2 and not dump.all("state.locked"), dump.records


def of_a_server_with_weights():
    with Server(BATON, LOG, "--model", MODEL, "--weights", FIRST, "--weight-version", "step-0", "--drain-timeout",
                20000) as s:
        update = s.post("/v1/update_weights/start", {"weight_version": "step-1"})["update_id"]
        s.post("/v1/pause", {"mode": "wait", "owner": "trainer-7"})
        dump = Dump(s)
        weights = dump.one("state.weights")
        assert (weights["state"], weights["weight_version"], weights["serial"]) == ("ready", "step-0", 1), weights
        session = dump.one("state.update")
        assert session["update_id"] == update and session["peer"].startswith("127.0.0.1:"), session
        assert dump.one("state.pause")["owner"] == "trainer-7", dump.records
        assert dump.one("state.engine")["engine"] == "embedded", dump.records
        assert {r["queue"] for r in dump.all("state.queue")} >= {"generate", "detokenize"}, dump.records
        s.process.terminate()  # main drains, as the update is open
        until("it drains", lambda: Dump(s).one("state")["life"] == "draining")
        s.process.terminate()


of_a_fleet()
if HOLD:
    of_a_fleet_that_hangs()
of_a_server_with_weights()
