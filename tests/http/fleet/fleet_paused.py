"""A pause of a fleet covers the requests that came before it: those that wait for a permit in front of the engines,
and those that are on the way to one.

Usage: fleet_paused.py BATON FAKE_ENGINE MODEL WORK KIND
KIND: baton (servers with real weights), vllm, sglang (doubles)
Environment: PAUSE_LONG, tokens of a long generation (default 900)
"""

import contextlib
import http.client
import json
import os
import socket
import sys
import threading
import time

from fake_engine_world import Double
from fleet_world import Server, until

BATON, ENGINE, MODEL, WORK, KIND = sys.argv[1:6]
LOG = os.path.join(WORK, "log")
LONG, PROMPT, WAIT_S = int(os.environ.get("PAUSE_LONG", "900")), [40, 77, 258], 120
HANDLES = {"names": ["a"], "dtypes": ["bfloat16"], "shapes": [[1]], "packed": True, "tensor_sizes": [2],
           "ipc_handles_pickled": "gASVAAAAAAAAAAB9lC4="}
SHORT, SLOW = (LONG, LONG) if KIND == "baton" else (30, 250)  # tokens: a wait for some ends soon; takes seconds
CHECKPOINT = os.path.join(MODEL, "checkpoints", "step-00000.safetensors")


class Way:
    """A proxy before an engine. It holds back a request that contains the mark, until `go` is set."""

    def __init__(self, port):
        self.port, self.mark, self.kept, self.go = port, None, threading.Event(), threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            near = self.listener.accept()[0]
            far = socket.create_connection(("127.0.0.1", self.port))
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(a, b, a is near), daemon=True).start()

    def _pass(self, a, b, forth):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                if forth and self.mark is not None and self.mark in data:
                    self.kept.set()
                    self.go.wait(WAIT_S)
                b.sendall(data)
        with contextlib.suppress(OSError):
            b.shutdown(socket.SHUT_WR)


class Client(threading.Thread):
    def __init__(self, s, path, body):
        super().__init__(daemon=True)
        self.port, self.path, self.body, self.status, self.said = s.port, path, body, None, None
        self.start()

    def run(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        c.request("POST", self.path, json.dumps(self.body), {"Content-Type": "application/json"})
        r = c.getresponse()
        text = r.read().decode()
        if r.getheader("Content-Type", "").startswith("text/event-stream"):
            assert text.endswith("data: [DONE]\n\n"), text
            events = [json.loads(e.removeprefix("data: ")) for e in text.split("\n\n")[:-2]]
            self.said = events
        else:
            self.said = json.loads(text)
        self.status = r.status

    def result(self):
        self.join(WAIT_S)
        assert not self.is_alive() and self.status is not None, f"{self.path}: no reply"
        return self.said

    def ends(self):
        """(reason, number of tokens or, of text, of bytes) of each sequence."""
        said = self.result()
        assert self.status == 200, said
        if self.body.get("stream"):
            return self._ends_of_stream(said)
        if "choices" not in said:
            return [(o["meta_info"]["finish_reason"]["type"], len(o["output_ids"]))
                    for o in (said if isinstance(said, list) else [said])]
        return [(c["finish_reason"], len(c.get("token_ids") or c.get("text") or c.get("message", {}).get("content") or
                                         "")) for c in said["choices"]]

    def _ends_of_stream(self, events):
        if "meta_info" in events[0]:
            last = {e.get("index", 0): e for e in events}
            return [(e["meta_info"]["finish_reason"]["type"], len(e["output_ids"])) for e in last.values()]
        ends, n = {}, {}
        for c in (c for e in events for c in e["choices"]):
            n[c["index"]] = n.get(c["index"], 0) + len(c.get("token_ids") or c.get("text") or
                                                      c.get("delta", {}).get("content") or "")
            ends[c["index"]] = c["finish_reason"] or ends.get(c["index"])
        return [(ends[i], n[i]) for i in ends]


def forms(max_tokens):
    """Requests of each generate route of these engines."""
    params = {"max_tokens": max_tokens, "ignore_eos": True}
    completion = ("/v1/completions", {"prompt": PROMPT, **params})
    if KIND == "baton":
        generate = ("/v1/generate", {"token_ids": PROMPT, "sampling_params": params})
        return [generate, completion, ("/v1/generate", dict(generate[1], sampling_params=dict(params, n=2), stream=True)),
                ("/v1/completions", {"prompt": ["In", "the"], "n": 2, **params})]
    chat = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "In"}], **params})
    if KIND == "vllm":
        return [completion, ("/v1/completions", dict(completion[1], stream=True)), chat,
                ("/v1/chat/completions", dict(chat[1], stream=True)),
                ("/inference/v1/generate", {"token_ids": PROMPT, "sampling_params": params})]
    sglang = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": max_tokens, "ignore_eos": True}}
    return [("/generate", sglang), ("/generate", dict(sglang, stream=True, rid="r-1")), completion, chat]


@contextlib.contextmanager
def world(*options):
    """Two engines of one permit each, and the ways to them."""
    with contextlib.ExitStack() as stack:
        if KIND == "baton":
            engines = [stack.enter_context(Server(BATON, LOG, "--model", MODEL, "--weights", CHECKPOINT,
                                                  "--weight-version", "step-0")) for _ in range(2)]
        else:
            engines = [stack.enter_context(Double(ENGINE, KIND, "--weight-version", "step-0", "--interval-us", 4000))
                       for _ in range(2)]
        ways = [Way(e.port) for e in engines]
        s = stack.enter_context(Server(BATON, LOG, "--probe-interval", 50, "--generate-concurrency", 1, *options,
                                       *(o for w in ways for o in ("--upstream", f"{w.url},{KIND}"))))
        until("both serve", lambda: s.status()["upstreams"]["n_serving"] == 2)
        s.engines = engines
        yield s, ways


def load(s):
    """Running and waiting requests."""
    queue = s.status()["admission"]["generate"]
    return queue["running"], queue["waiting"]


def begin(s, max_tokens):
    """Two that run, and some of each form that wait."""
    two = forms(max_tokens)[0]
    first = [Client(s, *two) for _ in range(2)]
    until("two run", lambda: load(s) == (2, 0))
    more = [Client(s, *form) for form in forms(max_tokens)]
    until("the others wait", lambda: load(s) == (2, len(more)))
    return first, more


def waits(s, late):
    until("it waits somewhere", lambda: sum(load(s)) == 1)
    assert late.status is None


def covers(s, mode):
    max_tokens = LONG if mode == "abort" else SHORT
    first, more = begin(s, max_tokens)
    said = s.post("/v1/pause", {"mode": mode})
    assert said["acknowledged"], said
    for x in first + more:  # all of them have ended
        x.join(0.5)
        assert x.status is not None, (mode, x.path, x.body)
    if mode == "abort":
        assert said["aborted"] >= len(more), said
        assert {end for x in more for end in x.ends()} == {("abort", 0)}, [(x.path, x.ends(), x.said) for x in more]
        own = [x for x in more if x.path == "/v1/generate"]
        assert bool(own) == (KIND == "baton") and all("boot_id" in str(x.said) for x in own), [(x.path, x.said) for x in more]
        assert {reason for x in first for reason, _ in x.ends()} == {"abort"}
    else:
        assert all(reason == "length" and n > 0 for x in first + more for reason, n in x.ends())
    late = Client(s, *forms(5)[0])
    waits(s, late)
    assert s.post("/v1/pause", {"mode": mode, "lease_s": 60})["acknowledged"]  # renewed: it waits on
    waits(s, late)
    s.post("/v1/resume")
    assert [reason for reason, _ in late.ends()] == ["length"]
    assert load(s) == (0, 0)


def is_cut(s, ways):
    """A request that was sent and comes to its engine after the pause."""
    for w in ways:
        w.mark = b"on-the-way"
    x = Client(s, "/v1/completions", {"prompt": PROMPT, "max_tokens": 5, "user": "on-the-way"})
    until("it is on the way", lambda: any(w.kept.is_set() for w in ways))
    went = threading.Timer(0.5, lambda: [w.go.set() for w in ways])
    pausing = Client(s, "/v1/pause", {"mode": "abort"})
    went.start()
    assert pausing.result()["acknowledged"]
    x.join(0.5)
    assert x.ends() == [("abort", 0)]
    s.post("/v1/resume")
    assert load(s) == (0, 0)


def ends_early(s):
    """A wait whose time is over, and one that is resumed: what waits goes on."""
    first, more = begin(s, SLOW)
    status, said = s.ask("POST", "/v1/pause", {"mode": "wait", "timeout_s": 1})
    assert status == 408 and "wait here" in said["error"]["message"], said
    assert s.status()["pause"] is None
    pausing = Client(s, "/v1/pause", {"mode": "wait"})
    until("it is pending", lambda: s.status()["pause"])
    late = Client(s, *forms(5)[0])
    s.post("/v1/resume")
    pausing.result()
    assert pausing.status == 409, pausing.said
    for x in first + more + [late]:
        assert {reason for reason, _ in x.ends()} == {"length"}, x.said


def aborts_all(s):
    """abort_requests, without a pause."""
    first, more = begin(s, LONG)
    assert s.post("/v1/abort_requests", {"all": True})["aborted"] >= len(more)
    for x in first + more:
        assert {reason for reason, _ in x.ends()} == {"abort"}
    assert [reason for reason, _ in Client(s, *forms(5)[0]).ends()] == ["length"]


def gives_way(s):
    """A wait whose requests an update has begun to hold."""
    first, more = begin(s, SLOW)
    pausing = Client(s, "/v1/pause", {"mode": "wait"})
    until("it is pending", lambda: s.status()["pause"])
    pushing = Client(s, "/v1/update_weights", dict(HANDLES, weight_version="step-1"))
    assert pausing.result()["acknowledged"], pausing.said
    pushing.result()
    assert pushing.status == 200, pushing.said
    assert load(s)[1] > 0
    s.post("/v1/resume")
    for x in first + more:
        assert {reason for reason, _ in x.ends()} == {"length"}, x.said


def refused(s):
    """By an engine: no 4xx once requests were aborted, and none is aborted for a name that no engine took."""
    first, more = begin(s, LONG)
    for e in s.engines:
        e.order("relabel", "status", status=400)
    status, said = s.ask("POST", "/v1/weights/label", {"weight_version": "no", "abort_requests": True})
    assert status == 400, said
    assert load(s) == (2, len(more)), load(s)
    s.engines[0].order("pause", "status", status=400)
    status, said = s.ask("POST", "/v1/pause", {"mode": "abort"})
    assert (status, said["error"]["code"]) == (502, "upstream_error"), said
    assert s.status()["pause"] is None
    s.post("/v1/abort_requests", {"all": True})
    for x in first + more:
        assert {reason for reason, _ in x.ends()} == {"abort"}, x.said


def main():
    with world() as (s, ways):
        covers(s, "abort")
        aborts_all(s)
        is_cut(s, ways)
        if KIND != "sglang":  # knows no wait
            covers(s, "wait")
            ends_early(s)
        if KIND == "vllm":
            refused(s)
            gives_way(s)
    with world("--drain-timeout", 20000) as (s, _):  # a pause that waits does not keep a stop waiting
        first, more = begin(s, SHORT)
        if KIND != "sglang":
            pausing = Client(s, "/v1/pause", {"mode": "wait"})
            until("it is pending", lambda: s.status()["pause"])
        began = time.monotonic()
        s.__exit__(None)
        assert time.monotonic() - began < 20
        if KIND != "sglang":
            pausing.result()
            assert pausing.status == 503, pausing.said
        for x in first + more:
            assert {reason for reason, _ in x.ends()} == {"length"}, x.said


main()
