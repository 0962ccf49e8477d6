"""Answers with status 200 that are not a success, given to every command and to the Python client.

Usage: answers.py BATON CHECKPOINT ADAPTER"""

import contextlib
import http.server
import json
import os
import pty
import re
import subprocess
import sys
import threading

import baton

BATON, CHECKPOINT, ADAPTER = sys.argv[1:]
NOT_BATON = "this is not an answer of a baton server: "
UPDATE = {"update_id": "upd-1", "phase": "receiving", "nbytes_done": 4, "nbytes_total": 4}
COMMITTED = dict(UPDATE, phase="committed", serial=2, weight_version="step-1")
ENGINE = {"upstream": "http://127.0.0.1:1", "dialect": "vllm", "origin": "request", "name": None, "state": "serving",
          "outstanding": {"generate": 0, "text": 0}, "proof": {"state": "proven", "n_compared": 1}}
SLEEP = {"asleep": True, "weights": "asleep", "kv_cache": "released"}
GROUP = {"state": "none", "bootstrap": None}
GOOD = {  # "METHOD path" -> a success
    "POST /v1/update_weights/start": dict(UPDATE, phase="open"),
    "POST /v1/update_weights?update_id": UPDATE,
    "POST /v1/update_weights": COMMITTED,
    "POST /v1/update_weights/verify": dict(UPDATE, phase="verified"),
    "POST /v1/update_weights/finish": COMMITTED,
    "POST /v1/update_weights/abort": dict(UPDATE, phase="aborted"),
    "GET /v1/status": {"version": "0.1.0", "boot_id": "b", "life": "serving", "ready": True, "control_ready": True,
                       "update": {"update_id": "upd-1", "phase": "open"}, "admission": {"generate": {}},
                       "weights": {"state": "ready"}},
    "GET /v1/upstreams": {"min_ready": 1, "n_serving": 1, "n": 1, "list": [ENGINE]},
    "POST /v1/upstreams": ENGINE,
    "POST /v1/upstreams/remove": dict(ENGINE, state="removed"),
    "POST /v1/upstreams/prove": {"n": 1, "n_proven": 1, "list": [ENGINE]},
    "POST /v1/load_lora_adapter": {"status": "ok", "lora_name": "n", "revision": 1},
    "POST /v1/unload_lora_adapter": {"status": "ok", "lora_name": "n", "revision": 1},
    "GET /v1/lora_adapters": {"adapters": [{"lora_name": "n", "revision": 1}]},
    "POST /v1/pause": {"paused": True, "acknowledged": True, "mode": "keep", "running": 0, "waiting": 0, "aborted": 0},
    "POST /v1/resume": {"paused": False, "was_paused": True},
    "POST /v1/sleep": SLEEP,
    "POST /v1/wake": dict(SLEEP, asleep=False, weights="ready"),
    "POST /v1/abort_requests": {"aborted": 1},
    "GET /v1/weights": {"weight_version": "v", "serial": 1, "tensors": [
        {"name": "a", "dtype": "BF16", "shape": [1], "checksum": None}]},
    "GET /v1/weights/diff": {"changes": None, "n_tensors": 0, "tensors": [], "next_offset": None},
    "POST /v1/completions": None,
    "POST /v1/chat/completions": None,
    "GET /readyz": {"ready": True},
}
HTML = b"<!doctype html><title>Log in</title>"
WRONG = [HTML, b"", b"null", b"[1,2,3]", b"{}", b'{"phase": null}', b'{"phase": "aborted", "serial": null}',
         b'{"phase": "committed"}', b'{"serial": 1e999}', b"[" * 100000, b'{"a":' * 100000]
COMMANDS = {  # command line -> the requests that it makes, in order
    f"push {CHECKPOINT}": ["POST /v1/update_weights/start", "POST /v1/update_weights?update_id",
                           "POST /v1/update_weights/finish"],
    f"push {CHECKPOINT} --path": ["POST /v1/update_weights/start", "POST /v1/update_weights?update_id",
                                  "POST /v1/update_weights/finish"],
    "status": ["GET /v1/status"], "upstreams": ["GET /v1/upstreams", "GET /v1/status"],
    "upstreams add http://127.0.0.1:1": ["POST /v1/upstreams"],
    "upstreams remove http://127.0.0.1:1": ["POST /v1/upstreams/remove"],
    "upstreams prove": ["POST /v1/upstreams/prove"], "generate hello": ["POST /v1/completions"],
    "generate hello --chat": ["POST /v1/chat/completions"],
    f"lora load n {ADAPTER}": ["POST /v1/load_lora_adapter"],
    f"lora load n {ADAPTER} --path": ["POST /v1/load_lora_adapter"],
    "lora unload n": ["POST /v1/unload_lora_adapter"], "lora list": ["GET /v1/lora_adapters"],
    "pause": ["POST /v1/pause"], "resume": ["POST /v1/resume"], "sleep": ["POST /v1/sleep"],
    "wake": ["POST /v1/wake"], "abort --all": ["POST /v1/abort_requests"], "abort a": ["POST /v1/abort_requests"],
    "abort --update": ["GET /v1/status", "POST /v1/update_weights/abort"], "weights list": ["GET /v1/weights"],
    f"weights verify {CHECKPOINT}": ["GET /v1/weights"], "weights diff": ["GET /v1/weights/diff", "GET /v1/status"],
}
n_checks, failures = 0, []


def check(right, about):
    global n_checks
    n_checks += 1
    if not right:
        failures.append(about)


class Stub(http.server.BaseHTTPRequestHandler):
    """Answers with `wrong` to one route, else with its success."""
    protocol_version = "HTTP/1.1"
    route, wrong, kind, status = None, b"", "application/json", 200

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        route = f"{self.command} {path}"
        if route == "POST /v1/update_weights" and ("update_id" in query or b'"update_id"' in body[:65536]):
            route += "?update_id"
        answer = Stub.wrong if route == Stub.route or Stub.route is None else json.dumps(GOOD.get(route)).encode()
        self.send_response(Stub.status if answer is Stub.wrong else 200)
        self.send_header("Content-Type", Stub.kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_DELETE = do_POST

    def log_message(self, *_):
        pass


def broken(good):
    """Successes that lack a member, or have another value there."""
    for name, value in good.items():
        yield {k: v for k, v in good.items() if k != name}
        yield dict(good, **{name: [] if isinstance(value, dict) else {}})
        if isinstance(value, list) and value:
            yield dict(good, **{name: [{}]})


def cli_tells(url):
    def run(line, *more):
        return subprocess.run([BATON, *line.split(), "--url", url, *more], capture_output=True, text=True,
                              errors="replace", timeout=60, check=False)

    for line, routes in COMMANDS.items():
        for route in routes:
            for Stub.wrong in WRONG:
                Stub.route = route
                done = run(line)
                about = f"baton {line}: {Stub.wrong[:40]} to {route}: {done.returncode} {done.stdout!r} {done.stderr!r}"
                check(done.returncode == 3 and NOT_BATON in done.stderr and len(done.stderr) < 1000, about)
                check(done.stdout.strip() == "" or route != routes[0], f"it prints a result: {about}")
    for line, route, wrong in (("status --json", "GET /v1/status", {}), ("push --json " + CHECKPOINT,
                               "POST /v1/update_weights/finish", dict(COMMITTED, phase="aborted")),
                               ("push " + CHECKPOINT, "POST /v1/update_weights/finish", dict(COMMITTED, update_id="upd-2")),
                               ("lora load m " + ADAPTER, "POST /v1/load_lora_adapter", GOOD["POST /v1/load_lora_adapter"]),
                               ("pause", "POST /v1/pause", dict(GOOD["POST /v1/pause"], paused=False)),
                               ("resume", "POST /v1/resume", {"paused": True, "was_paused": True}),
                               ("sleep", "POST /v1/sleep", dict(SLEEP, asleep=False)),
                               ("upstreams prove", "POST /v1/upstreams/prove", {"n": 1, "n_proven": 1, "list": [{}]})):
        Stub.route, Stub.wrong = route, json.dumps(wrong).encode()
        done = run(line)
        check((done.returncode, done.stdout) == (3, "") and NOT_BATON in done.stderr, f"{line}: {done}")
    Stub.route, Stub.wrong = "POST /v1/upstreams/prove", b'{"n": 0, "n_proven": 0, "list": []}'
    done = run("upstreams prove")
    check(done.returncode == 1, f"nothing was proven: {done}")
    Stub.route = "none"
    for line in COMMANDS:
        if not line.startswith(("generate", "weights verify")):
            done = run(line)
            check(done.returncode == 0, f"baton {line}: a success is refused: {done}")


def client_tells(url):
    import numpy

    tensors = {"a": numpy.zeros(1, "<f4")}
    calls = {"POST /v1/update_weights": lambda: baton.push(tensors, url, via="body"),
             "POST /v1/update_weights/finish": lambda: baton.push(tensors, [url, url + "/"], via="shm"),
             "POST /v1/update_weights/start": lambda: baton.push(tensors, [url, url + "/"], via="shm"),
             "POST /v1/update_weights/verify": lambda: baton.push(tensors, [url, url + "/"], via="body"),
             "POST /v1/update_weights?update_id": lambda: baton.push(tensors, url, via="shm", update_id="upd-1"),
             "GET /readyz": lambda: baton.wait_ready(url, 60.0)}
    for route, call in calls.items():
        for wrong in WRONG + [json.dumps(w).encode() for w in broken({k: v for k, v in GOOD[route].items()
                                                                       if k != "nbytes_total" and (k != "nbytes_done" or "start" not in route)})]:
            Stub.route, Stub.wrong = route, wrong
            try:
                check(False, f"{route}: {wrong[:60]}: success: {call()}")
            except baton.BatonError as e:
                check(NOT_BATON in str(e) or "bad_answer" in e.code, f"{route}: {wrong[:60]}: {e.code} {e}")
            except Exception as e:  # pylint: disable=broad-except
                check(False, f"{route}: {wrong[:60]}: {type(e).__name__}: {str(e)[:100]}")
        Stub.route = "none"
        call()
    for Stub.route, Stub.wrong in ((None, w) for w in WRONG):
        for call in (lambda: baton.rollouts(url, [[1]], {}), lambda: list(baton.stream_rollouts(url, [[1]], {})),
                     lambda: baton.request(url, "GET", "/v1/x") and None):
            try:
                call()
            except baton.BatonError:
                pass
            except Exception as e:  # pylint: disable=broad-except
                check(False, f"{Stub.wrong[:60]}: {type(e).__name__}: {str(e)[:100]}")


EVIL = "x\n\x1b[31mRED\x1b]0;t\x07\x7f\u009b31m\u202eevil\u2028\u2066"
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffd]|^.{0,9}RED", re.M)
WORDS = {"phase", "state", "status", "update_id", "lora_name", "life"}  # a success has these values


def evil(value, name="", words=WORDS):
    if isinstance(value, dict):
        return {k: evil(v, k, words) for k, v in value.items()}
    if isinstance(value, list):
        return [evil(v, name, words) for v in value]
    return value + EVIL if isinstance(value, str) and name not in words else value


def on_a_terminal(command):
    """Its exit status, and what it prints to a terminal and to stderr."""
    ours, its = pty.openpty()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its, stderr=subprocess.PIPE) as process:
        os.close(its)
        out = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while piece := os.read(ours, 65536):
                out += piece
        err = process.stderr.read()
    os.close(ours)
    return process.returncode, out.decode(errors="replace").replace("\r\n", "\n"), err.decode(errors="replace")


def nothing_reaches_the_terminal(url):
    """What a server, an engine or a label says is shown, and does nothing to a terminal."""
    whole = dict(GOOD["GET /v1/status"], pause={"mode": "keep", "owner": "o", "held_s": 1}, stage={
        "serial": 1, "handed_serial": 1, "weight_version": "v", "upstreams": [{"upstream": "u", "error": "e"}],
        "error": {"message": "m"}}, sleep={"asleep": True, "weights": "w", "kv_cache": "k"})
    whole["upstreams"] = {"n": 2, "list": [dict(ENGINE, state="down", error={"message": "refused"}, weight_version="v")]}
    event = {"choices": [{"text": "t", "delta": {"content": "c"}, "finish_reason": "stop", "weight_versions": []}]}
    for line, routes in COMMANDS.items():
        for Stub.route in routes:
            good = whole if Stub.route == "GET /v1/status" else GOOD[Stub.route] or event
            error = {"error": {"code": "conflict", "message": "m", "param": "/p", "details": {}}}
            for status, body in ((200, evil(good)), (200, evil(good, words=())), (409, evil(error)), (409, EVIL),
                                 (200, EVIL), (200, {"phase": EVIL})):
                text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
                Stub.status, Stub.wrong = status, text.encode()
                if good is event and status == 200 and isinstance(body, dict):
                    Stub.wrong, Stub.kind = b"data: " + Stub.wrong + b"\n\n", "text/event-stream"
                json_too = [] if line.startswith("weights verify") else ["--json"]
                for more in ([], json_too):
                    rc, out, err = on_a_terminal([BATON, *line.split(), "--url", url, *more])
                    text = out.replace("\n", " ") if line.startswith("generate") else out  # a reply has lines
                    check(not HIDDEN.search(text + err), f"baton {line} {more}, {status} {Stub.route}: {out + err!r}")
                    check(rc or more or line != "status" or all(w in out for w in ("http://127.0.0.1:1x", ": down", "refusedx")),
                          f"{line} does not name the engine that is down: {out}")
                    check(not more or rc or not out or all(json.loads(one) for one in out.split("\n") if one),
                          f"baton {line} {more}: {out!r} is no JSON")
                Stub.status, Stub.kind = 200, "application/json"
    Stub.route, Stub.status, Stub.wrong = None, 409, json.dumps(evil(error)).encode()
    try:
        baton.wait_ready(url, 0)
    except baton.BatonError as e:
        check(not HIDDEN.search(str(e)) and EVIL in e.message, f"an error of the client: {str(e)!r}")
    Stub.status = 200


def batch(metadata):
    text = json.dumps({"__metadata__": {"format": "pt", "baton.rollouts": json.dumps(metadata)}}).encode()
    return len(text).to_bytes(8, "little") + text


def formats():
    baton.read_rollouts(batch({"format": 1}))
    for odd in ({"format": 2}, {}, {"format": "1"}, []):
        try:
            check(False, f"a batch of {odd} is read: {baton.read_rollouts(batch(odd))}")
        except baton.BatonError as e:
            check("format" in str(e), str(e))


def main():
    os.environ.pop("BATON_API_KEY", None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    cli_tells(url)
    client_tells(url)
    nothing_reaches_the_terminal(url)
    formats()
    server.shutdown()
    if failures:
        raise SystemExit(f"{len(failures)} of {n_checks} checks failed:\n" + "\n".join(f[:700] for f in failures[:40]))
    print(f"{n_checks} checks passed")


if __name__ == "__main__":
    main()
