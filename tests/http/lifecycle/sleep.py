"""A long random walk over pause, resume, sleep, wake, updates and generations, compared with a model of the
expected state after each.

Usage: sleep.py URL CHECKPOINTS STEPS SEED
"""
import http.client
import json
import os
import random
import sys
import threading

URL, CHECKPOINTS, STEPS, SEED = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
PORT = int(URL.rsplit(":", 1)[1])
FILE = os.path.join(CHECKPOINTS, "step-00100.safetensors")


def post(path, body=None, method="POST"):
    c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
    c.request(method, path, None if body is None else json.dumps(body),
              {} if body is None else {"Content-Type": "application/json"})
    r = c.getresponse()
    text = r.read()
    c.close()
    return r.status, json.loads(text) if text else None


class Model:
    """What the documents promise."""

    def __init__(self):
        self.pause, self.reject = "none", False
        self.weights, self.kv, self.update = "ready", "present", None
        self.waiting = []  # generations that were queued by a pause
        self.n = {}

    def generate_code(self):
        if self.pause != "none":
            return "paused" if self.reject else "queued"
        if self.weights in ("asleep", "dropped") or self.kv == "released":
            return "asleep"
        return "served"

    def count(self, what):
        self.n[what] = self.n.get(what, 0) + 1


def generate(m):
    expected = m.generate_code()
    m.count("generate " + expected)
    body = {"token_ids": [40], "sampling_params": {"max_tokens": 3, "ignore_eos": True}}
    if expected == "queued":
        if len(m.waiting) < 32:
            out = []
            t = threading.Thread(target=lambda: out.append(post("/v1/generate", body)), daemon=True)
            t.start()
            m.waiting.append((t, out))
        return
    code, reply = post("/v1/generate", body)
    if expected == "served":
        assert code == 200, (code, reply)
    else:
        assert code == 503 and reply["error"]["code"] == expected, (code, reply, vars(m))


def settle(m):
    """Nobody is paused any more: what queued is answered, with tokens or with the reason."""
    for t, out in m.waiting:
        t.join(60)
        assert out, "a queued generation was lost"
        code, reply = out[0]
        # One that reached the queue only after the resume met what was so then.
        assert code == 200 or code == 503 and reply["error"]["code"] in ("asleep", "paused"), out
    m.waiting = []


def step(m, rng):
    call = rng.choice(["generate"] * 3 + ["pause", "resume", "sleep", "wake", "start", "abort",
                                           "finish", "whole", "reset", "aborts"])
    tags = rng.choice([None, ["weights"], ["kv_cache"], ["weights", "kv_cache"]])
    has_w, has_k = tags is None or "weights" in tags, tags is None or "kv_cache" in tags
    m.count(call)
    if call == "generate":
        generate(m)
    elif call == "pause":
        mode, reject = rng.choice(["keep", "wait", "abort"]), rng.random() < 0.5
        code, reply = post("/v1/pause",
                           {"mode": mode, "new_requests": "reject" if reject else "queue"})
        assert code == 200 and reply["mode"] == mode, (code, reply)
        m.pause, m.reject = mode, reject
    elif call == "resume":
        code, reply = post("/v1/resume")
        assert code == 200 and reply["was_paused"] == (m.pause != "none"), (code, reply)
        m.pause, m.reject = "none", False
        settle(m)
    elif call == "sleep":
        level = rng.choice([1, 2])
        code, reply = post("/v1/sleep", dict(level=level, **({"tags": tags} if tags else {})))
        if has_w and m.update:
            assert code == 409 and "an update is open" in reply["error"]["message"], (code, reply)
            return
        assert code == 200, (code, reply)
        if has_w:
            m.weights = "dropped" if level == 2 or m.weights == "dropped" else "asleep"
        if has_k:
            m.kv = "released"
    elif call == "wake":
        code, reply = post("/v1/wake", {"tags": tags} if tags else {})
        if code == 409:  # the room that it would take is being filled
            assert m.update and m.weights == "dropped" and has_w, reply
            return
        assert code == 200, (code, reply)
        m.weights = "ready" if has_w and m.weights == "asleep" else m.weights
        m.kv = "present" if has_k else m.kv
    elif call == "start":
        code, reply = post("/v1/update_weights/start", {})
        refused = m.weights == "asleep" or m.update
        assert code == (409 if refused else 200), (code, reply)
        if not refused:
            m.update = reply["update_id"]
    elif call == "abort" and m.update:
        code, reply = post("/v1/update_weights/abort", {"update_id": m.update})
        assert code == 200, (code, reply)
        m.update = None
    elif call == "finish" and m.update:
        code, reply = post("/v1/update_weights", {"path": FILE, "update_id": m.update})
        assert code == 200, (code, reply)
        code, reply = post("/v1/update_weights/finish", {"update_id": m.update})
        assert code == 200, (code, reply)
        m.update, m.weights = None, "ready"
    elif call == "whole":
        code, reply = post("/v1/update_weights", {"path": FILE})
        refused = m.weights == "asleep" or m.update
        assert code == (409 if refused else 200), (code, reply)
        m.weights = m.weights if refused else "ready"
    elif call == "reset":
        assert post("/v1/reset_cache")[0] == 200
    elif call == "aborts":
        assert post("/v1/abort_requests", {"request_ids": ["nobody"]}) == (200, {"aborted": 0})


def compare(m):
    code, s = post("/v1/status", method="GET")
    assert code == 200
    assert (s["pause"]["mode"] if s["pause"] else "none") == m.pause, (s["pause"], vars(m))
    assert (s["sleep"]["weights"], s["sleep"]["kv_cache"]) == (m.weights, m.kv), (s["sleep"], vars(m))
    assert (s["update"] is not None) == (m.update is not None), s["update"]
    ready = m.pause == "none" and m.generate_code() == "served"
    assert s["ready"] == ready and s["live"] is True, (s["ready"], s["reason"], vars(m))


def main():
    m, rng = Model(), random.Random(SEED)
    for i in range(STEPS):
        step(m, rng)
        compare(m)
        if i % 100 == 99:
            print(i + 1, m.n)
    if m.update:
        post("/v1/update_weights/abort", {"update_id": m.update})
    for path in ("/v1/wake", "/v1/resume"):
        assert post(path)[0] == 200
    m.pause = "none"
    settle(m)
    assert post("/v1/update_weights", {"path": FILE})[0] == 200
    generate_code = post("/v1/generate", {"token_ids": [40], "sampling_params": {}})[0]
    assert generate_code == 200, generate_code


main()
