"""GET /v1/events as a client reads it: order, snapshot, resumption, types, a client that does not read,
the limit, keys, the end at a drain, and the events of a fleet.

Usage: events.py BATON MODEL FAKE_ENGINE WORK
"""

import http.client
import json
import os
import re
import socket
import sys
import time

from fake_engine_world import Double
from fleet_world import Server, until

BATON, MODEL, ENGINE, WORK = sys.argv[1:5]
WAIT_S = 60
SUBSCRIBERS_MAX = 32  # of control/event_watch.h
BURST = 5500  # events of 0.9 KB: more than sockets, the stream's buffer and the ring hold
OPTIONS = ("--model", MODEL, "--weights", os.path.join(MODEL, "checkpoints/step-00000.safetensors"), "--weight-version", "step-0",
           "--allow-path", MODEL)


class Stream:
    """An open stream; iterating gives its events as (id, name, data)."""

    def __init__(self, server, query="", headers=None, status=200):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        self.connection.request("GET", "/v1/events" + query, headers=headers or {})
        self.answer = self.connection.getresponse()
        assert self.answer.status == status, (self.answer.status, self.answer.read())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.answer.close()
        self.connection.close()

    def __iter__(self):
        event, began = {}, time.monotonic()
        for line in self.answer:
            assert time.monotonic() - began < WAIT_S, f"no event within {WAIT_S} s"
            line = line.decode().rstrip("\n")
            if line == "" and "data" in event:
                yield int(event["id"]) if "id" in event else None, event["event"], json.loads(event["data"])
                began = time.monotonic()
            if line == "":
                event = {}
            elif not line.startswith(":"):
                name, _, value = line.partition(": ")
                event[name] = value

    def first(self):
        self.at, name, self.state = next(iter(self))
        assert name == "state", name
        return self.state

    def until(self, *names):
        """The events up to the last of `names`; progress is left out. They come in this order, but for
        readiness, which another thread looks at every 250 ms."""
        seen, left = [], list(names)
        for at, name, data in self:
            if name == "update.progress":
                continue
            seen.append((at, name, data))
            if name in left:
                left.remove(name)
            if not left:
                got = [name for _, name, _ in seen if name in names and name != "readiness"]
                assert got == [name for name in names if name != "readiness"], got
                return seen
        raise AssertionError(f"the stream ended before {left}: {[name for _, name, _ in seen]}")


def data_of(seen, wanted):
    return next(data for _, name, data in seen if name == wanted)


def push(server, step, label, status=200):
    got, said = server.ask("POST", "/v1/update_weights", {"path": f"checkpoints/step-{step}.safetensors", "weight_version": label})
    assert got == status, said
    return said


def changes(server):
    with Stream(server) as s:
        assert s.answer.headers["Content-Type"].startswith("text/event-stream"), s.answer.headers
        assert s.answer.headers["Cache-Control"] == "no-store", s.answer.headers
        state = s.first()
        status = server.get("/v1/status")
        assert state.keys() == status.keys() and state["weights"].keys() == status["weights"].keys()
        assert state["weights"]["weight_version"] == "step-0" and state["life"] == "serving", state
        push(server, "01500", "step-1500")
        server.post("/v1/pause", {"mode": "keep"})
        seen = s.until("update.proven", "update.committed", "pause", "readiness")
        assert len(seen) == 4, seen
        ids = [at for at, _, _ in seen]
        assert ids == list(range(s.at + 1, s.at + 5)), (s.at, ids)
        committed, ready = (data_of(seen, name) for name in ("update.committed", "readiness"))
        assert committed["weight_version"] == "step-1500" and committed["serial"] == 2, committed
        assert committed["event"] == "update.committed" and re.match(r"\d{4}-\d\d-\d\dT.*Z$", committed["ts"]), committed
        assert (ready["state"], ready["code"]) == ("not_ready", "paused"), ready
        server.post("/v1/resume")
        update = server.post("/v1/update_weights/start", {})["update_id"]
        server.post("/v1/update_weights/abort", {"update_id": update, "reason": "test"})
        server.post("/v1/sleep", {"level": 1})
        server.post("/v1/wake", {})
        server.post("/v1/weights/label", {"weight_version": "renamed"})
        seen = s.until("resume", "readiness", "update.started", "update.aborted", "sleep", "wake", "weights.labelled")
        assert data_of(seen, "weights.labelled")["weight_version"] == "renamed", seen
        ask = server.ask("POST", "/v1/load_lora_adapter", {"lora_name": "<img src=x>", "lora_path": "/nowhere"})
        assert ask[0] >= 400, ask
        server.post("/v1/load_lora_adapter", {"lora_name": "shout", "lora_path": os.path.join(MODEL, "adapters/shout")})
        server.post("/v1/unload_lora_adapter", {"lora_name": "shout"})
        seen = s.until("lora.loaded", "lora.unloaded")
        assert seen[-1][2]["lora_name"] == "shout", seen
        push(server, "nothing", "refused", 404)
        both = {name: data for _, name, data in (next(iter(s)) for _ in range(2))}
        assert both.keys() == {"update.refused", "error"}, both
        error = both["error"]
        assert (error["code"], error["route"], error["count"]) == ("not_found", "/v1/update_weights", 1), error
        return ids


def resumption(server, ids):
    with Stream(server, headers={"Last-Event-ID": str(ids[1])}) as s:
        assert next(iter(s))[0] == ids[2]  # "pause", or the readiness that follows from it
    for other in ("0", "1", str(ids[0] + 10**6), str(2**64), "x", "-1"):  # too old, not yet, none
        with Stream(server, headers={"Last-Event-ID": other}) as s:
            s.first()
    with Stream(server, "?types=pause,weights") as s:
        s.first()
        push(server, "00100", "step-100")
        server.post("/v1/pause", {})
        assert next(iter(s))[1] == "pause"
        server.post("/v1/resume")
    with Stream(server, "?types=pause,nothing", status=400) as s:
        assert json.loads(s.answer.read())["error"]["param"] == "/types"
    status, said = server.ask("GET", "/v1/events?type=x")
    assert status == 400 and said["error"]["param"] == "/type", said


def progress(server):
    """The update that is open is sent while it grows, without an id."""
    with Stream(server, "?types=update") as s:
        s.first()
        update = server.post("/v1/update_weights/start", {})["update_id"]
        for at, name, data in s:
            if name == "update.progress":
                break
        assert at is None and data["update_id"] == update and data["phase"] == "open", (at, data)
        server.post("/v1/update_weights/abort", {"update_id": update})


def slow(server):
    """A client that reads nothing delays neither the server nor other clients, and is cut at last."""
    quiet = socket.socket()
    quiet.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    quiet.connect(("127.0.0.1", server.port))
    quiet.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with Stream(server, "?types=weights") as s:
        s.first()
        kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        for i in range(BURST):
            kept.request("POST", "/v1/weights/label", json.dumps({"weight_version": "\u00e9" * 120 + f"{i:05}"}),
                         {"Content-Type": "application/json"})
            assert kept.getresponse().read().startswith(b"{\"weight_version"), i
            at, name, data = next(iter(s))
            assert (at, name) == (s.at + 1 + i, "weights.labelled") and data["weight_version"].endswith(f"{i:05}"), data
        kept.close()
    quiet.settimeout(WAIT_S)
    got = b""
    while piece := quiet.recv(1 << 20):
        got += piece
    assert not got.endswith(b"0\r\n\r\n") and b"event: state" in got, got[-100:]


def limit(server):
    streams = [Stream(server) for _ in range(SUBSCRIBERS_MAX)]
    for s in streams:
        s.first()
    with Stream(server, status=503) as s:
        error = json.loads(s.answer.read())["error"]
        assert error["code"] == "overloaded" and str(SUBSCRIBERS_MAX) in error["message"], error
    streams.pop().__exit__()
    until("a place is free", lambda: free(server))
    for s in streams:
        s.__exit__()
    until("the places are free", lambda: free(server))


def free(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    connection.request("GET", "/v1/events")
    status = connection.getresponse().status
    connection.close()
    return status == 200


def drain(server):
    with Stream(server, "?types=drain") as s:
        s.first()
        began = time.monotonic()
        server.process.terminate()
        assert [name for _, name, _ in s] == ["drain"]  # and the end of a whole answer
        assert time.monotonic() - began < 20


def keys():
    path = os.path.join(WORK, "keys")
    with open(path, "w", encoding="utf-8") as f:
        f.write("viewer viewer-0123456789abcdef\ngenerate generate-0123456789abcdef\ncontrol control-0123456789abcdef\n")
    os.chmod(path, 0o600)
    with Server(BATON, os.path.join(WORK, "log-keys"), *OPTIONS, "--api-key-file", path) as server:
        Stream(server, status=401).__exit__()
        for role in "viewer", "generate", "control":
            with Stream(server, headers={"Authorization": f"Bearer {role}-0123456789abcdef"}) as s:
                s.first()


def fleet():
    with Double(ENGINE, "baton", "--weight-version", "step-0") as one, Double(ENGINE, "vllm", "--weight-version", "step-0") as two:
        with Server(BATON, os.path.join(WORK, "log-fleet"), "--upstream", f"{one.url},baton", "--upstream", f"{two.url},vllm",
                    "--min-ready", "1", "--probe-interval", "50") as server:
            until("both serve", lambda: server.get("/v1/upstreams")["n_serving"] == 2)
            with Stream(server) as s:
                assert s.first()["upstreams"]["n"] == 2
                server.post("/v1/pause", {"mode": "keep"})
                server.post("/v1/resume")
                seen = s.until("pause", "resume")
                two.kill()
                seen = s.until("upstream.state")
                assert (seen[-1][2]["upstream"], seen[-1][2]["from"]) == (two.url, "serving"), seen
                update = server.post("/v1/update_weights/start", {})["update_id"]
                server.post("/v1/update_weights/abort", {"update_id": update})
                seen = s.until("update.started", "update.aborted")
                assert seen[-1][2]["update_id"] == update, seen


def main():
    with Server(BATON, os.path.join(WORK, "log"), *OPTIONS, "--log-level", "info") as server:
        ids = changes(server)
        resumption(server, ids)
        progress(server)
        limit(server)
        slow(server)
        drain(server)
    keys()
    fleet()
    print("events: all well")


main()
