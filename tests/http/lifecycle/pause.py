"""What a pause promises, one command each: words, keep, wait, gone, abort, requests, lease, reject,
cycles.

Usage: pause.py URL COMMAND [CYCLES CHECKPOINTS]
Environment: PAUSE_CLIENTS, of cycles (default 256); PAUSE_LONG, tokens of a long generation
(default 990)
"""
import http.client
import json
import os
import socket
import sys
import threading
import time

URL, COMMAND = sys.argv[1:3]
HOST, PORT = "127.0.0.1", int(URL.rsplit(":", 1)[1])
PATIENCE_S = 120
N_CLIENTS = int(os.environ.get("PAUSE_CLIENTS", "256"))
LONG = int(os.environ.get("PAUSE_LONG", "990"))
PROMPT = [40, 77, 258, 803, 264, 77, 290]


def call(method, path, body=None, want=200):
    c = http.client.HTTPConnection(HOST, PORT, timeout=PATIENCE_S)
    data = None if body is None else json.dumps(body)
    c.request(method, path, data, {"Content-Type": "application/json"} if data else {})
    r = c.getresponse()
    text = r.read()
    c.close()
    assert r.status == want, f"{method} {path}: {r.status}, wanted {want}: {text[:600]}"
    call.headers = r.headers
    return json.loads(text) if text else None


def post(path, body=None, want=200):
    return call("POST", path, body, want)


def status():
    return call("GET", "/v1/status")


def wait_for(what, test):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = test()
        if found:
            return found
        time.sleep(0.002)
    sys.exit(f"{what}: not within {PATIENCE_S} s; {json.dumps(status())}")


def running(n):
    wait_for(f"{n} running", lambda: status()["admission"]["generate"]["running"] == n)


def generate(max_tokens, **more):
    params = {"max_tokens": max_tokens, "ignore_eos": True, "temperature": 1.0, "logprobs": 0}
    params.update({k: more.pop(k) for k in ("n", "seed", "temperature") if k in more})
    return {"token_ids": PROMPT, "sampling_params": params, **more}


class Client(threading.Thread):
    """One request on a thread of its own, and what came of it."""

    def __init__(self, body, path="/v1/generate"):
        super().__init__(daemon=True)
        self.body, self.path, self.reply, self.code, self.tokens = body, path, None, None, []
        self.start()

    def run(self):
        c = http.client.HTTPConnection(HOST, PORT, timeout=PATIENCE_S * 20)
        c.request("POST", self.path, json.dumps(self.body), {"Content-Type": "application/json"})
        r = c.getresponse()
        self.code = r.status
        if self.body.get("stream") and r.status == 200:
            for line in r:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[6:])
                for choice in event.get("choices", []):
                    self.tokens += choice["token_ids"]
                    if choice["finish_reason"] is not None:
                        self.reply = choice
        else:
            self.reply = json.loads(r.read())

    def result(self):
        self.join(PATIENCE_S * 20)
        assert not self.is_alive() and self.reply is not None, "a reply was lost"
        return self.reply


def spans_add_up(choice):
    """Each token was made by exactly one version, in order; versions only ever grow."""
    at, serial = 0, 0
    for span in choice["weight_versions"]:
        assert span["start"] == at and span["end"] > at, choice["weight_versions"]
        assert span["serial"] > serial, choice["weight_versions"]
        at, serial = span["end"], span["serial"]
    return at


def whole(choice):
    ids = choice["token_ids"]
    return ids, [t["logprob"] for t in choice["logprobs"]["content"]]


def words():
    """What is asked wrongly is refused by name; repeating is harmless; status and health are true."""
    for body, field in (({"mode": "now"}, "/mode"), ({"new_requests": "drop"}, "/new_requests"),
                        ({"lease_s": 0}, "/lease_s"), ({"lease_s": 3601}, "/lease_s"),
                        ({"timeout_s": 0}, "/timeout_s"), ({"timeout_s": 3601}, "/timeout_s"),
                        ({"owner": ""}, "/owner"), ({"owner": "h" * 65}, "/owner"),
                        ({"modus": "keep"}, "/modus")):
        assert post("/v1/pause", body, 400)["error"]["param"] == field
    assert post("/v1/resume")["was_paused"] is False
    first = post("/v1/pause", {"owner": "trainer-0", "lease_s": 100})
    assert first["state"] == "held" and first["mode"] == "keep" and first["new_requests"] == "queue" and first["acknowledged"]
    again = post("/v1/pause", {"owner": "trainer-1", "new_requests": "reject"})
    assert again["epoch"] == first["epoch"] + 1 and again["lease_s"] is None
    p = status()["pause"]
    assert p["owner"] == "trainer-1" and p["since"] == first["since"] and p["until"] is None, p
    ready = call("GET", "/health/ready", want=503)
    assert ready["reason"] == "paused" and "trainer-1" in ready["message"], ready
    assert call("GET", "/health/live")["live"] is True
    call("GET", "/health")
    for mode in ("wait", "abort", "keep"):
        assert post("/v1/pause", {"mode": mode})["mode"] == mode
    assert post("/v1/reset_cache")["prefix_cache"] is None
    assert post("/v1/resume")["was_paused"] is True
    assert post("/v1/resume")["was_paused"] is False
    assert call("GET", "/health/ready")["ready"] is True
    assert status()["pause"] is None


def keep():
    """Frozen between two tokens; nothing comes until resume, and then it is bit-identical."""
    alone = whole(Client(generate(200, seed=5)).result()["choices"][0])
    post("/v1/pause", {"mode": "keep"})  # so that all four begin together
    kept = [Client(generate(200, seed=5)) for _ in range(3)]
    stream = Client(generate(200, seed=5, stream=True))
    wait_for("queued", lambda: status()["admission"]["generate"]["waiting"] == 4)
    post("/v1/resume")
    n_frozen = 0
    for _ in range(20):
        answer = post("/v1/pause", {"mode": "keep"})
        made = status()["engine"]["n_generated_tokens"]
        n_frozen += answer["running"]
        if answer["running"] == 4:
            late = Client(generate(3, seed=5))
            wait_for("queued", lambda: status()["admission"]["generate"]["waiting"] == 1)
            steps = status()["engine"]["n_steps"]
            for _ in range(20):
                now = status()["engine"]
                assert now["n_generated_tokens"] == made and now["n_steps"] == steps
        post("/v1/resume")
        if answer["running"] == 4:
            assert whole(late.result()["choices"][0])[0] == alone[0][:3]
    assert n_frozen > 0, "nothing was ever frozen"
    for c in kept:
        assert whole(c.result()["choices"][0]) == alone
    stream.result()
    assert stream.tokens == alone[0]


def wait():
    """Answers when all is done, and not before; meanwhile new ones queue."""
    post("/v1/pause", {"mode": "keep"})  # so that all four run while the pause waits for them
    c = [Client(generate(LONG, n=2)) for _ in range(4)]
    wait_for("queued", lambda: status()["admission"]["generate"]["waiting"] == 4)
    post("/v1/resume")
    running(4)
    pausing = Client({"mode": "wait", "owner": "w"}, "/v1/pause")
    p = wait_for("a pause", lambda: status()["pause"])
    late = Client(generate(5))
    wait_for("queued", lambda: status()["admission"]["generate"]["waiting"] == 1)
    answer = pausing.result()
    assert pausing.code == 200 and answer["acknowledged"] and answer["running"] == 0, answer
    assert p["mode"] == "wait" and p["owner"] == "w"
    for x in c:
        for choice in x.result()["choices"]:
            assert choice["finish_reason"] == "length" and len(choice["token_ids"]) == LONG
    assert late.reply is None
    post("/v1/resume")
    assert len(late.result()["choices"][0]["token_ids"]) == 5
    # Too slow: 408, and the server is not paused.
    c = Client(generate(LONG, n=4))
    running(1)
    slow = Client({"mode": "wait", "timeout_s": 1}, "/v1/pause")
    slow.result()
    assert slow.code in (200, 408), slow.reply
    if slow.code == 408:
        assert status()["pause"] is None
    # Resumed meanwhile: a conflict that says so. Another pause takes its place.
    post("/v1/resume")
    c.result()
    for after, path in ((None, "/v1/resume"), ({"mode": "keep"}, "/v1/pause")):
        c = Client(generate(LONG, n=4))
        running(1)
        first = Client({"mode": "wait"}, "/v1/pause")
        wait_for("a pause", lambda: status()["pause"])
        post(path, after)
        answer = first.result()
        assert first.code in (200, 409), answer
        post("/v1/resume")
        c.result()


def gone():
    """A client that leaves while its pause is not acknowledged takes the pause along."""
    c = Client(generate(LONG, n=6))
    running(1)
    s = socket.create_connection((HOST, PORT), timeout=PATIENCE_S)
    body = b'{"mode": "wait"}'
    s.sendall(b"POST /v1/pause HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    wait_for("a pause", lambda: status()["pause"])
    p = status()["pause"]
    assert p["state"] == "pending" and p["acknowledged"] is False, p
    s.close()
    wait_for("no pause", lambda: status()["pause"] is None)
    c.result()


def abort():
    """All that run end with what they have; what comes later waits, also if the pause is repeated."""
    c = [Client(generate(LONG, n=2, stream=i % 2 == 0)) for i in range(6)]
    running(6)
    answer = post("/v1/pause", {"mode": "abort"})
    assert answer["running"] == 0 and answer["acknowledged"], answer
    n = 0
    for x in c:
        last = x.result()
        for choice in [last] if x.body.get("stream") else last["choices"]:
            assert choice["finish_reason"] in ("abort", "length"), choice
            if not x.body.get("stream"):
                assert spans_add_up(choice) == len(choice["token_ids"])
            n += choice["finish_reason"] == "abort"
    assert n > 0 and answer["aborted"] > 0, answer
    late = Client(generate(3))
    wait_for("queued", lambda: status()["admission"]["generate"]["waiting"] == 1)
    assert post("/v1/pause", {"mode": "abort"})["aborted"] == 0
    post("/v1/resume")
    assert late.result()["choices"][0]["finish_reason"] == "length"


def requests():
    """abort_requests: some by id, queued ones too, or all; an unknown id is harmless."""
    for body in ({}, {"all": False}, {"all": True, "request_ids": []}, {"request_ids": [1]}):
        post("/v1/abort_requests", body, 400)
    for ids, field in ((["x", "y" * 257], "/request_ids/1"), (["x"] * 65537, "/request_ids")):
        assert post("/v1/abort_requests", {"request_ids": ids}, 400)["error"]["param"] == field
    assert post("/v1/abort_requests", {"request_ids": ["nobody"]}) == {"aborted": 0}
    long = [Client(generate(LONG, n=2, request_id=f"r{i}")) for i in range(3)]
    running(3)
    assert post("/v1/abort_requests", {"request_ids": ["r1", "nobody"]}) == {"aborted": 1}
    reply = long[1].result()
    assert reply["request_id"] == "r1"
    assert all(c["finish_reason"] == "abort" for c in reply["choices"])
    post("/v1/pause")
    queued = [Client(generate(9, request_id="q", stream=i == 0)) for i in range(3)]
    text = Client({"prompt": "In the", "max_tokens": 9, "echo": True, "logprobs": 1}, "/v1/completions")
    wait_for("queued", lambda: status()["admission"]["generate"]["waiting"] == 4)
    assert post("/v1/abort_requests", {"request_ids": ["q"]}) == {"aborted": 3}
    for x in queued:
        last = x.result()
        last = last if x.body["stream"] else last["choices"][0]
        assert last["finish_reason"] == "abort" and last["token_ids"] == [], last
    assert post("/v1/abort_requests", {"all": True})["aborted"] == 3
    for x in (long[0], long[2]):
        assert x.result()["choices"][0]["finish_reason"] == "abort"
    assert text.result()["choices"][0]["finish_reason"] == "abort"
    assert text.reply["choices"][0]["text"] == "In the", text.reply
    post("/v1/resume")


def lease():
    """A pause with a lease ends by itself; a later pause renews it."""
    before = status()
    post("/v1/pause", {"lease_s": 3600})
    p, now = status()["pause"], time.time()
    assert now - PATIENCE_S < p["since"] <= now and 3599 - PATIENCE_S < p["until"] - now <= 3600, p
    p = post("/v1/pause", {"lease_s": 1})  # a status may come after its end
    assert p["lease_s"] == 1, p
    c = Client(generate(5))
    assert c.result()["choices"][0]["finish_reason"] == "length"
    assert status()["pause"] is None and before["pause"] is None
    post("/v1/resume")


def reject():
    """New requests are refused with 503, when to come again, and whose pause it is."""
    c = Client(generate(LONG // 2, n=2))
    running(1)
    post("/v1/pause", {"new_requests": "reject", "owner": "trainer-7"})
    for path, body in (("/v1/generate", generate(3)), ("/v1/completions", {"prompt": "In"})):
        e = post(path, body, 503)["error"]
        assert "trainer-7" in e["message"] and call.headers["Retry-After"], e
        assert e["code"] in ("paused", 503), e
    assert post("/v1/resume")["was_paused"]
    assert all(len(x["token_ids"]) == LONG // 2 for x in c.result()["choices"])


def cycles(n, checkpoints):
    """Pause, update, resume over and over with N_CLIENTS generations running: none is lost or doubled,
    and the versions of every reply add up."""
    files = [os.path.join(checkpoints, f) for f in sorted(os.listdir(checkpoints))
             if f.endswith(".safetensors")]
    stop, lock = threading.Event(), threading.Lock()
    asked, got, n_versions = set(), {}, []

    def client(k):
        c = http.client.HTTPConnection(HOST, PORT, timeout=PATIENCE_S)
        # Not finish: frozen, it holds its version, and --max-versions would refuse the next.
        modes = ("continue", "recompute") if k % 16 == 0 else ("continue",)
        i = 0
        while not stop.is_set():
            name, length = f"{k}-{i}", 20 + (k * 37 + i * 11) % 200
            with lock:
                asked.add(name)
            body = generate(length, seed=k, request_id=name, on_update=modes[i % len(modes)])
            c.request("POST", "/v1/generate", json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            reply = json.loads(r.read())
            assert r.status == 200, reply
            choice = reply["choices"][0]
            with lock:
                assert reply["request_id"] == name and name not in got, f"{name} came twice"
                assert len(choice["token_ids"]) == length and choice["finish_reason"] == "length"
                assert len(choice["logprobs"]["content"]) == length
                assert spans_add_up(choice) == length, choice["weight_versions"]
                got[name] = length
                n_versions.append(len(choice["weight_versions"]))
            i += 1

    failed = []

    def guarded(k):
        try:
            client(k)
        except BaseException as e:  # pylint: disable=broad-except
            failed.append(repr(e)[:600])
            stop.set()

    before = status()
    post("/v1/pause", {"mode": "keep"})  # so that all begin together
    threads = [threading.Thread(target=guarded, args=(k,), daemon=True) for k in range(N_CLIENTS)]
    for t in threads:
        t.start()
    wait_for("all queued", lambda: failed or status()["admission"]["generate"]["waiting"] == N_CLIENTS)
    post("/v1/resume")
    n_kept = 0
    for i in range(n):
        if stop.is_set():
            break
        answer = post("/v1/pause", {"mode": "keep", "lease_s": 600})
        n_kept += answer["running"]
        made = status()["engine"]["n_generated_tokens"]
        post("/v1/update_weights", {"path": files[i % len(files)], "weight_version": f"c-{i}"})
        assert status()["engine"]["n_generated_tokens"] == made
        post("/v1/resume")
        wait_for("more tokens",
                 lambda: stop.is_set() or status()["engine"]["n_generated_tokens"] > made)
    stop.set()
    for t in threads:
        t.join(PATIENCE_S)
    assert not failed, failed[:3]
    assert set(got) == asked, f"{len(asked - set(got))} of {len(asked)} lost"
    s = status()
    assert s["weights"]["n_commits"] == before["weights"]["n_commits"] + n
    done = s["admission"]["generate"]["granted"] - before["admission"]["generate"]["granted"]
    assert done == len(asked), f"{done} permits for {len(asked)} requests"
    made = s["engine"]["n_generated_tokens"] - before["engine"]["n_generated_tokens"]
    assert made == sum(got.values()), f"{made} tokens made, {sum(got.values())} received"
    # On a busy machine clients need their time between two requests.
    assert n_kept > N_CLIENTS * n // 4 and max(n_versions) > 1, (n_kept, max(n_versions))
    print(f"{n} cycles, {len(got)} replies, up to {max(n_versions)} versions in one, "
          f"{n_kept / n:.0f} frozen at a time")


if __name__ == "__main__":
    if COMMAND == "cycles":
        cycles(int(sys.argv[3]), sys.argv[4])
    else:
        {"words": words, "keep": keep, "wait": wait, "gone": gone, "abort": abort, "requests": requests,
         "lease": lease, "reject": reject}[COMMAND]()
