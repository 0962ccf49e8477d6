"""What the log says of requests and updates, and what /v1/status keeps of them.

Usage: logs.py BATON FAKE_ENGINE LOG MODEL WORK
"""

import contextlib
import hashlib
import http.client
import json
import os
import pty
import socket
import struct
import subprocess
import sys
import time

from fake_engine_world import Double, completion
from fleet_world import Server, until

BATON, ENGINE, LOG, MODEL, WORK = sys.argv[1:6]
KEYS = {"trainer-1": "0123456789abcdef-control", "": "0123456789abcdef-second", "reader": "0123456789abcdef-viewer"}
FIRST = os.path.join(MODEL, "checkpoints", "step-00000.safetensors")
NEXT = os.path.join(MODEL, "checkpoints", "step-00100.safetensors")
HANDLES = {"names": ["a", "b"], "dtypes": ["bfloat16", "bfloat16"], "shapes": [[1], [2, 3]], "packed": True,
           "tensor_sizes": [2, 12], "ipc_handles_pickled": "gASVAAAAAAAAAAB9lC4="}


def bearer(name):
    return {"Authorization": "Bearer " + KEYS[name]}


def key_file():
    path = os.path.join(WORK, "keys")
    with open(path, "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write(f"control {KEYS['trainer-1']} name=trainer-1\ncontrol {KEYS['']}\nviewer {KEYS['reader']} name=reader\n")
    return path


class Log:
    """The lines that were written since it was made."""

    def __init__(self):
        self.at = os.path.getsize(LOG) if os.path.exists(LOG) else 0

    def lines(self, event=None, **members):
        with open(LOG, "rb") as f:
            f.seek(self.at)
            found = [json.loads(line) for line in f if line.startswith(b"{") and line.endswith(b"}\n")]
        return [r for r in found if event in (None, r["event"]) and members.items() <= r.items()]

    def one(self, event, **members):
        """The only line of the request or update, once it has come; nothing else is said of it."""
        (found,) = until(lambda: (event, members, self.lines()), lambda: self.lines(event, **members))
        return found


def nan_file():
    """A checkpoint of which one value is not a number: it is refused when its bytes have arrived."""
    with open(NEXT, "rb") as f:
        data = bytearray(f.read())
    data[-2:] = struct.pack("<H", 0x7FC0) if b'"BF16"' in data[:4096] else b"\x00\x7e"
    if b'"F32"' in data[:4096]:
        data[-4:] = struct.pack("<f", float("nan"))
    path = os.path.join(WORK, "nan.safetensors")
    with open(path, "wb") as f:
        f.write(data)
    return path


def has_actor(line, key):
    assert line["peer"].startswith("127.0.0.1:") and line["key"] == key and line["request_id"], line


def last_update(s, **headers):
    return s.good("GET", "/v1/status", **headers)["recent_updates"][-1]


# ---- a server with weights ----

def serve(*options):
    return Server(BATON, LOG, "--model", MODEL, "--weights", FIRST, "--weight-version", "step-0",
                  "--allow-path", os.path.dirname(NEXT), "--allow-path", WORK, *options)


def names_who_did_it():
    fingerprint = "sha256:" + hashlib.sha256(KEYS[""].encode()).hexdigest()[:8]
    with serve("--api-key-file", key_file()) as s:
        for name, shown in (("trainer-1", "trainer-1"), ("", fingerprint)):
            log = Log()
            done = s.post("/v1/update_weights", {"path": NEXT, "weight_version": "step-" + shown[:3]},
                          headers=bearer(name))
            line = log.one("update.committed", update_id=done["update_id"])
            has_actor(line, shown)
            assert line["source"] == "path" and line["nbytes"] > 0 and line["serial"] == done["serial"], line
            assert abs(sum(line[p + "_ms"] for p in ("wait", "receive", "verify", "commit")) - line["duration_ms"]) < 1
            has_actor(log.one("request", route="/v1/update_weights"), shown)
            kept = last_update(s, headers=bearer("reader"))
            assert kept["outcome"] == "committed" and kept["update_id"] == done["update_id"], kept
            assert (kept["key"], kept["peer"], kept["code"]) == (shown, line["peer"], None), kept
            assert kept["seconds"]["whole"] - 1 <= kept["ended_at"] - kept["started_at"] <= kept["seconds"]["whole"] + 1
            assert abs(kept["ended_at"] - time.time()) < 60, kept
        log = Log()
        assert s.ask("POST", "/v1/update_weights/start", {}, bearer("reader"))[0] == 403
        has_actor(log.one("update.refused", code="forbidden"), "reader")
        with open(LOG, encoding="utf-8") as f:
            text = f.read()
        assert not any(key in text for key in KEYS.values()), "a key is in the log"


def one_line_for_each_failure():
    with serve() as s:
        # refused before any byte moved
        log = Log()
        body = {"names": ["model.norm.weight"], "dtypes": ["float32"], "shapes": [[1]], "shm": {"name": "/none"}}
        status, said = s.ask("POST", "/v1/update_weights", dict(body, partial=True), {"X-Request-Id": "wrong-1"})
        line = log.one("update.refused", request_id="wrong-1")
        assert status >= 400 and line["code"] == said["error"]["code"], (line, said)
        assert line["param"] == said["error"]["param"] and line["message"] == said["error"]["message"], (line, said)
        assert line["route"] == "/v1/update_weights" and "peer" in line, line
        # of a dialect
        s.ask("POST", "/update_weights_from_disk", {"model_path": "/nowhere"}, {"X-Request-Id": "wrong-2"})
        assert log.one("update.refused", request_id="wrong-2")["route"] == "/update_weights_from_disk"
        # ended by its bytes
        status, said = s.ask("POST", "/v1/update_weights", {"path": nan_file(), "weight_version": "bad"},
                             {"X-Request-Id": "wrong-3"})
        assert status == 422 and said["error"]["code"] == "non_finite_weights", said
        line = log.one("update.aborted", request_id="wrong-3")
        assert line["code"] == "non_finite_weights" and line["param"] and line["weight_version"] == "bad", line
        # aborted by its trainer: its request is answered well
        mine = {"update_id": s.post("/v1/update_weights/start")["update_id"]}
        s.post("/v1/update_weights/abort", dict(mine, reason="enough"), headers={"X-Request-Id": "fine"})
        assert "enough" in log.one("update.aborted", **mine)["message"]
        for i in (1, 2, 3):
            assert len(log.lines(request_id=f"wrong-{i}")) == 1, log.lines(request_id=f"wrong-{i}")
        kept = s.status()["recent_updates"]
        assert [u["outcome"] for u in kept] == ["committed", "refused", "refused", "aborted", "aborted"], kept
        assert kept[0]["peer"] is None and kept[0]["source"] == "path", kept[0]  # the first weights
        metrics = s.get("/metrics").splitlines()
        for code in {u["code"] for u in kept[1:]}:
            n = sum(u["code"] == code for u in kept[1:])
            assert f'baton_update_errors_total{{code="{code}"}} {n}' in metrics, (code, n, kept)
        assert kept[1]["param"] and kept[1]["route"] == "/v1/update_weights", kept[1]
        assert kept[3]["code"] == "non_finite_weights" and kept[3]["update_id"], kept[3]


def history_is_bounded():
    with serve() as s:
        for _ in range(40):  # in a row: one record
            s.ask("POST", "/v1/update_weights/finish", {"update_id": "upd-none"})
        kept = s.status()["recent_updates"]
        assert len(kept) == 2 and kept[-1]["count"] == 40, kept
        for i in range(40):
            s.post("/v1/update_weights", {"path": (NEXT, FIRST)[i % 2], "weight_version": f"v{i}"})
        kept = s.status()["recent_updates"]
        assert [u["weight_version"] for u in kept] == [f"v{i}" for i in range(8, 40)], kept
        before = s.status()["recent_errors"]
        s.ask("POST", "/v1/completions", {"prompt": 1.5})
        s.ask("GET", "/nothing")
        errors = s.status()["recent_errors"]
        assert [e["code"] for e in errors] == ["not_found", "bad_request", "not_found"], errors
        assert errors[0] == before[0] and errors[0]["count"] == 40 and errors[0]["param"] == "/update_id", errors
        assert errors[0]["last_at"] >= errors[0]["first_at"] > time.time() - 600, errors
        assert errors[1]["route"] == "/v1/completions" and errors[2]["route"] is None, errors


def probes_and_floods():
    with serve("--api-key-file", key_file(), "--access-log", "off") as s:
        log = Log()
        s.post("/v1/sleep", headers=bearer("trainer-1"))
        assert all(s.ask("GET", "/readyz")[0] == 503 for _ in range(20))
        s.post("/v1/wake", headers=bearer("trainer-1"))
        assert all(s.ask("GET", "/readyz")[0] == 200 for _ in range(20))
        for _ in range(100):
            assert s.ask("POST", "/v1/update_weights", {}, {"Authorization": "Bearer nonsense"})[0] == 401
        s.post("/v1/update_weights", {"path": NEXT, "weight_version": "seen"}, headers=bearer("trainer-1"))
        s.ask("POST", "/v1/update_weights", {}, bearer("trainer-1"))
        log.one("update.refused")
        assert log.one("update.committed")["weight_version"] == "seen"
        changes = log.lines("health.changed")
        assert [(c["status"], c.get("code", "ok"), c["previous"]) for c in changes] == [
            (503, "asleep", "ok"), (200, "ok", "asleep")], changes
        refused = log.lines("auth.refused")
        assert 1 <= len(refused) <= 10 and refused[0]["peer"].startswith("127.0.0.1:"), refused
        assert not log.lines("request") and len(log.lines(route="/v1/update_weights", event="update.refused")) <= 1
        outcomes = [u["outcome"] for u in s.good("GET", "/v1/status", headers=bearer("reader"))["recent_updates"]]
        assert outcomes == ["committed", "committed", "refused"], outcomes  # not those without a key
    with serve("--access-log", "errors") as s:
        log = Log()
        s.ask("GET", "/nothing", headers={"X-Request-Id": "bad"})
        s.post("/v1/completions", {"prompt": "In", "max_tokens": 1})
        s.ask("GET", "/nothing")
        until("the second line", lambda: len(log.lines("request")) == 2)
        assert {r["status"] for r in log.lines("request")} == {404}


def peer_of_a_unix_socket():
    path = os.path.join(WORK, "control.sock")
    with serve("--control-listen", "unix:" + path):
        log, s = Log(), socket.socket(socket.AF_UNIX)
        s.connect(path)
        s.sendall(b"POST /v1/pause HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        with contextlib.closing(s):
            assert http.client.HTTPResponse(s)
            log.one("request", route="/v1/pause", peer=f"unix:uid={os.getuid()}")


def text_for_people():
    """On a terminal by default, coloured; as told elsewhere."""
    command = [BATON, "serve", "--listen", "127.0.0.1:0", "--model", MODEL, "--weights", FIRST, "--weight-version", "a b"]
    for options, environment, is_text, is_coloured in (((), {}, True, True), ((), {"NO_COLOR": "1"}, True, False),
                                                       (("--log-format", "json"), {}, False, False)):
        ours, theirs = pty.openpty()
        process = subprocess.Popen([*command, *options], stderr=theirs, env={**os.environ, **environment})
        os.close(theirs)
        seen = b""
        while b"serving" not in seen:
            seen += os.read(ours, 65536)
        process.kill()
        process.wait()
        os.close(ours)
        line = next(one for one in seen.splitlines() if b"update.committed" in one)
        assert line.startswith(b"{") != is_text and (b"\x1b[32mINFO" in line) == is_coloured, line
        if is_text:
            assert b' weight_version="a b" ' in line and b" source=path " in line and b" serial=1 " in line, line


# ---- in front of a fleet ----

def a_fleet():
    doubles = [Double(ENGINE, "vllm", "--world-size", 1, "--weight-version", "step-0") for _ in range(2)]
    with contextlib.ExitStack() as all_of_it:
        for d in doubles:
            all_of_it.enter_context(d)
        s = all_of_it.enter_context(Server(BATON, LOG, "--probe-interval", 30, "--update-timeout", 2000,
                                           "--upstream", doubles[0].url + ",vllm", "--upstream", doubles[1].url + ",vllm"))
        until("it is ready", s.ready)
        log = Log()
        done = s.post("/v1/update_weights", dict(HANDLES, weight_version="step-1"))
        line = log.one("update.committed", update_id=done["update_id"])
        assert line["upstreams"] == 2 and line["source"] == "ipc_handles" and line["peer"], line
        kept = s.status()["recent_updates"]
        assert [(u["outcome"], u["weight_version"]) for u in kept] == [("committed", "step-1")], kept
        assert kept[0]["seconds"]["receive"] > 0 and kept[0]["seconds"]["commit"] > 0, kept
        # refused, without a session
        s.ask("POST", "/v1/update_weights", dict(HANDLES, names=["a"]), {"X-Request-Id": "wrong-1"})
        log.one("update.refused", request_id="wrong-1")
        # refused by the engines: the update ends with this request
        for d in doubles:
            d.order("update", "status", status=500)
        status, said = s.ask("POST", "/v1/update_weights", dict(HANDLES, weight_version="step-2"),
                             {"X-Request-Id": "wrong-2"})
        assert status >= 500, said
        assert log.one("update.aborted", request_id="wrong-2")["code"] == said["error"]["code"]
        assert [len(log.lines(request_id=r, level="warn")) for r in ("wrong-1", "wrong-2")] == [1, 1], log.lines()
        kept = s.status()["recent_updates"]
        assert [u["outcome"] for u in kept] == ["committed", "refused", "aborted"], kept
        for d in doubles:
            d.must_be_fresh = False


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
IN_TRACE = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"}


def trace_of(calls):
    """The traceparents and tracestates of calls that an engine received."""
    found = [{k.lower(): v for k, v in c["headers"].items()} for c in calls]
    return {(h.get("traceparent"), h.get("tracestate")) for h in found}


def passes_traces_on():
    malformed = {"traceparent": IN_TRACE["traceparent"].upper(), "tracestate": IN_TRACE["tracestate"]}
    with Double(ENGINE, "vllm", "--weight-version", "step-0") as d, \
            Server(BATON, LOG, "--probe-interval", 600_000, "--prove", "none", "--upstream", d.url + ",vllm") as s:
        until("it is ready", s.ready)
        for n, (method, path, body, events) in enumerate((
                ("POST", "/v1/completions", completion(), ["request"]),
                ("POST", "/v1/update_weights", dict(HANDLES, weight_version="step-1"), ["update.committed"]),
                ("POST", "/v1/pause", {}, ["request"]),
                ("POST", "/v1/update_weights", dict(HANDLES, names=["a"]), ["update.refused"]),
                ("POST", "/v1/resume", {}, ["request"]))):
            refused = events == ["update.refused"]
            for kind, headers in (("none", {}), ("malformed", malformed), ("trace", IN_TRACE)):
                log, name = Log(), f"{kind}-{n}"
                d.good("DELETE", "/journal")
                status, said = s.ask(method, path, body, dict(headers, **{"X-Request-Id": name}))
                assert (status == 200) != refused, (path, headers, status, said)
                line = log.one(events[0], request_id=name)
                calls = d.journal()
                assert refused or calls, path
                assert all({k.lower(): v for k, v in c["headers"].items()}["x-request-id"] == name for c in calls), calls
                if kind != "trace":
                    assert "trace_id" not in line and "span_id" not in line, line
                    assert refused or trace_of(calls) == {(None, None)}, (path, headers, calls)
                    continue
                assert line["trace_id"] == TRACE and len(line["span_id"]) == 16 and line["span_id"] != PARENT, line
                if not refused:
                    want = f"00-{TRACE}-{line['span_id']}-01"
                    assert trace_of(calls) == {(want, IN_TRACE["tracestate"])}, (path, line, calls)
        # two of one header: traceparents exclude each other, tracestates are one list
        for twice, want in (("traceparent", {(None, None)}), ("tracestate", "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7,last=1")):
            d.good("DELETE", "/journal")
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
            c.putrequest("GET", "/v1/models")
            for k, v in (*IN_TRACE.items(), (twice, "last=1" if twice == "tracestate" else IN_TRACE[twice])):
                c.putheader(k, v)
            c.endheaders()
            assert c.getresponse().status == 200
            c.close()
            got = trace_of(d.journal())
            assert got == want or twice == "tracestate" and {state for _, state in got} == {want}, got
        d.must_be_fresh = False


for case in (names_who_did_it, one_line_for_each_failure, history_is_bounded, probes_and_floods, peer_of_a_unix_socket, text_for_people,
             a_fleet, passes_traces_on):
    case()
    print(case.__name__, flush=True)
