"""Faults that a test orders from a double, its journal, its connections."""

import http.client
import json

from fake_engine_world import LONG, N, completion, expected, pause, refused, resume, serves_afresh

LAST = b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"
GONE = (ConnectionError, http.client.HTTPException)
STEP = {"baton": "/v1/reset_cache", "vllm": "/reset_prefix_cache", "sglang": "/flush_cache"}
PAUSE = {"baton": "/v1/pause", "vllm": "/pause?mode=keep", "sglang": "/pause_generation"}


def broken(d, method, path, body=None):
    """The connection ended without an answer; how."""
    try:
        said = d.ask(method, path, body)
    except GONE as e:
        return type(e)
    raise AssertionError(f"{method} {path}: {said}")


def faults(d):
    reset, hold = STEP[d.dialect], PAUSE[d.dialect]
    d.order("reset_cache", "status", status=503, text="{\"error\":\"busy\"}", nth=2, times=2)
    assert [d.ask("POST", reset)[0] for _ in range(4)] == [200, 503, 503, 200]
    assert [r["executed"] for r in d.journal("reset_cache")] == [True, False, False, True]
    assert d.get("/fault")["faults"] == [
        {"on": "reset_cache", "do": "status", "nth": 2, "times": 2, "seen": 4, "fired": 2}]
    d.order(f"POST {reset}", "status")
    assert refused(d, 500, "POST", reset)["error"]["message"] == "ordered by the test"
    d.order("pause", "status", acts=True)  # it did, and says that it did not
    refused(d, 500, "POST", hold, {"mode": "keep"} if d.dialect == "baton" else {})
    assert d.last()["executed"] and d.state()["pause"] is not None
    resume(d)
    d.order("pause", "close_before")
    broken(d, "POST", hold, {})
    assert d.state()["pause"] is None and d.last()["end"] == "closed" and not d.last()["executed"]
    d.order("pause", "close_after", reset=True)
    assert broken(d, "POST", hold, {}) is ConnectionResetError
    assert d.state()["pause"] is not None and d.last()["end"] == "closed" and d.last()["executed"]
    resume(d)
    d.order("*", "raw", text="HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
    assert d.ask("POST", reset)[0] == 302
    d.order("reset_cache", "slow", ms=50)
    d.post(reset)
    slow = d.last()
    assert slow["ended_us"] - slow["came_us"] >= 50_000 and slow["executed"], slow
    d.order("completions", "slow", ms=50)
    serves_afresh(d, "step-0")
    assert d.last()["ended_us"] - d.last()["came_us"] >= 50_000
    d.order("completions", "status", times=0)
    assert [d.ask("POST", "/v1/completions", completion())[0] for _ in range(3)] == [500] * 3
    d.good("DELETE", "/fault")
    serves_afresh(d, "step-0")
    for bad in ({}, {"on": "x", "do": "odd"}, {"do": "hang"}, {"on": "x", "do": "hang", "nth": 0}):
        assert refused(d, 400, "POST", "/fault", bad)
    d.order("pause", "wrong_version", label="step-8")
    pause(d, "keep")
    resume(d)
    serves_afresh(d, "step-8")


def slow_pause(d):
    """An answer that is on its way is not given twice."""
    d.order("pause", "slow", ms=500)
    with d.socket() as s:
        s.sendall(b"POST %s HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}" % PAUSE[d.dialect].encode() + LAST)
        d.wait("it is paused", lambda: d.state()["pause"] is not None)
        resume(d)
        assert s.makefile("rb").read().count(b"HTTP/1.1 200") == 2
    assert [r["op"] for r in d.journal()] == ["pause", "resume", "health"]


def order_of_time(d):
    """What is due first comes first."""
    ms = [50 + 7 * i % 16 * 5 for i in range(16)]
    for i, each in enumerate(ms):
        d.order("health", "slow", nth=i + 1, ms=each)
    clients = [d.connect() for _ in ms]
    for c in clients:
        c.request("GET", "/health")
    for c in clients:
        assert c.getresponse().status == 200
        c.close()
    came = d.journal("health")
    both = [(r["came_us"] + 1000 * each, r["ended_us"]) for r, each in zip(came, ms)]
    assert all(due <= ended for due, ended in both), both
    assert all(e <= ended for d, e in both for due, ended in both if d + 1000 < due), both


def hangs(d):
    """What hangs is open until its client goes; what acts late acts without one."""
    hold = PAUSE[d.dialect]
    for acts in (False, True):
        d.order("pause", "hang", acts=acts)
        c = d.connect()
        c.request("POST", hold, "{}")
        d.wait("it came", lambda: len(d.journal("pause")) == 1 + acts)
        assert d.last()["end"] is None and d.last()["executed"] == acts
        assert (d.state()["pause"] is not None) == acts
        c.close()
        d.wait("the client's end arrived", lambda: d.last()["end"] == "client_left")
    resume(d)
    d.order("pause", "late", ms=100)
    c = d.connect()
    c.request("POST", hold, "{}")
    d.wait("it came", lambda: d.journal("pause")[-1]["fault"] == "late")
    c.close()
    d.wait("its client has gone", lambda: d.journal("pause")[-1]["end"] == "client_left")
    d.wait("it acts", lambda: d.state()["pause"] is not None)
    assert d.journal("pause")[-1]["executed"]
    resume(d)
    d.order("completions", "hang")
    c = d.connect()
    c.request("POST", "/v1/completions", json.dumps(completion()))
    d.wait("it came", lambda: d.journal("completions"))
    assert d.last()["end"] is None and d.state()["running"] == 0
    c.close()
    d.wait("the client's end arrived", lambda: d.last()["end"] == "client_left")


def halves(d):
    d.order("completions", "half_stream", tokens=2)
    said = d.send("POST", "/v1/completions", completion(stream=True))
    try:
        raise AssertionError(said.read())
    except http.client.IncompleteRead as e:
        assert e.partial.count(b"data: ") == 2, e.partial
    assert d.last()["end"] == "closed" and d.last()["tokens"] == 2
    d.order("completions", "half_stream")
    broken(d, "POST", "/v1/completions", completion())
    assert d.last()["end"] == "closed" and d.last()["executed"]
    d.order("health", "half_stream")  # its answer has no body
    broken(d, "GET", "/health")
    for stream in (True, False):
        d.order("completions", "stall_stream", tokens=2)
        said = d.send("POST", "/v1/completions", completion(stream=stream))
        n = sum(len(said.readline()) for _ in range(4)) if stream else len(said.read(50))
        pause(d, "abort")
        resume(d)
        assert n >= 50 and d.journal("completions")[-1]["end"] is None
        assert d.journal("completions")[-1]["tokens"] == (2 if stream else N)
        said.close()
        said.connection.close()
        d.wait("the client's end arrived", lambda: d.journal("completions")[-1]["end"] == "client_left")


def restarts(d):
    """All open connections are closed, and for a while there is no listener."""
    streams = [d.stream("/v1/completions", completion(LONG)) for _ in range(3)]
    for s in streams:
        next(s)
    pause(d, "keep")
    d.order("resume", "restart", ms=300)
    broken(d, "POST", {"baton": "/v1/resume", "vllm": "/resume", "sglang": "/continue_generation"}[d.dialect], {})
    try:
        d.ask("GET", "/health")
        raise AssertionError("it listens while it restarts")
    except ConnectionRefusedError:
        pass
    d.wait_back(lambda: d.state()["boots"] == 2)
    for s in streams:
        try:
            raise AssertionError(f"a stream outlived a restart: {list(s)[-1]}")
        except GONE:
            pass
    assert [r["end"] for r in d.journal("completions")] == ["restarted"] * 3
    assert d.state()["pause"] is None and d.state()["running"] == 0
    serves_afresh(d, "step-0")


def journal(d):
    c = d.connect()
    for i in range(3):
        d.ask("POST", "/tokenize?x=1&y=%20", {"prompt": "a"},
              {"Authorization": "Bearer x", "X-Session-ID": f"s{i}"}, connection=c)
    c.close()
    one = d.journal("tokenize")
    assert [r["nth_on_connection"] for r in one] == [1, 2, 3] and len({r["connection"] for r in one}) == 1, one
    assert one[2]["headers"]["authorization"] == "Bearer x" and one[2]["headers"]["x-session-id"] == "s2"
    assert (one[0]["method"], one[0]["path"], one[0]["query"]) == ("POST", "/tokenize", "x=1&y=%20")
    assert json.loads(one[0]["body"]) == {"prompt": "a"} and one[0]["status"] == 200
    body = json.dumps({"prompt": "x" * 100_000}).encode()
    d.post("/tokenize", body)
    assert d.last()["body_nbytes"] == len(body) and d.last()["body"] == body.decode()[:65536]
    assert [r["n"] for r in d.journal()] == [1, 2, 3, 4]
    d.good("DELETE", "/journal")
    assert d.journal() == [] and d.state()["requests"] == 4


def raw(d, data):
    with d.socket() as s:
        s.sendall(data)
        return s.makefile("rb").read()


def framing(d):
    said = raw(d, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3 + LAST)
    assert said.count(b"HTTP/1.1 200 OK") == 4 and said.count(b"Connection: close") == 1, said
    body = json.dumps(completion(stream=True)).encode()
    said = raw(d, b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert b"Transfer-Encoding" not in said and said.endswith(b"data: [DONE]\n\n"), said
    for bad in (b"nonsense\r\n\r\n", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
                b"POST / HTTP/1.1\r\nContent-Length: 1x\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"):
        assert raw(d, bad) == b"", bad
    with d.socket() as s:
        s.sendall(b"POST /tokenize HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n")
        f = s.makefile("rb")
        assert f.readline() == b"HTTP/1.1 100 Continue\r\n" and f.readline() == b"\r\n"
        s.sendall(b'{"prompt":"a"}')
        assert f.readline() == b"HTTP/1.1 200 OK\r\n"
    d.post("/tokenize", {"prompt": "y" * 3_000_000})
    refused(d, 400, "POST", "/tokenize", b"[1]")


def back_pressure(d):
    """Who does not read is not made tokens for without end."""
    with d.socket() as s:
        body = json.dumps(completion(LONG, stream=True)).encode()
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        made = [-1]

        def stands():
            made.append(d.state()["tokens_made"])
            return made[-1] == made[-2] > 0 and len(made) > 20

        d.wait("it stands still", stands)
        assert made[-1] < 100_000, made[-1]
        d.wait("it goes on", lambda: s.recv(1 << 20) and d.state()["tokens_made"] > made[-1])
    d.wait("it is cancelled", lambda: d.last()["end"] == "client_left")
    with d.socket() as s:
        body = json.dumps(completion(LONG)).encode()
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body + LAST)
        d.wait("it is made and not taken", lambda: (d.state()["running"], d.last()["tokens"]) == (0, LONG))
        assert d.last()["end"] is None
        pause(d, "keep")
        resume(d)
        said = s.makefile("rb").read()
        assert said.count(b" t") == LONG and said.count(b"HTTP/1.1 200") == 2


ALL = (faults, slow_pause, order_of_time, hangs, halves, journal, framing, back_pressure)
TIMED = (restarts,)
