"""What commits do to streams that run, one command each: modes, room, frozen, default.

Usage: on_update.py URL MODEL CLIENT COMMAND (the last line says how many checks were made)
"""
import http.client
import json
import os
import sys
import time
import urllib.request

URL, MODEL, CLIENT, COMMAND = sys.argv[1:]
sys.path.insert(0, os.path.dirname(CLIENT))
import baton  # noqa: E402

PROMPT = [40, 77, 258, 803, 264, 77, 290]
STEPS = ["step-00000", "step-00100", "step-01500"]
PATIENCE_S = 200
n_checks = 0


def check(condition, *what):
    global n_checks
    n_checks += 1
    assert condition, what


def push(step):
    """Commits a checkpoint under its own name; the serial that it got."""
    return baton.push(f"{MODEL}/checkpoints/{step}.safetensors", URL, via="path",
                      weight_version=step)["serial"]


def engine():
    with urllib.request.urlopen(URL + "/v1/status", timeout=PATIENCE_S) as f:
        return json.load(f)["engine"]


def wait_idle():
    end = time.monotonic() + PATIENCE_S
    while engine()["running"] + engine()["waiting"] > 0:
        assert time.monotonic() < end
        time.sleep(0.01)


def body_of(n_tokens, mode, prompt=None, n=1, temperature=0):
    body = {"token_ids": prompt or PROMPT,
            "sampling_params": {"max_tokens": n_tokens, "ignore_eos": True, "n": n, "seed": 5,
                                "temperature": temperature, "logprobs": 1}}
    return body if mode is None else dict(body, on_update=mode)


def tokens_of(choice):
    return [(t["token_id"], t["logprob"]) for t in choice["logprobs"]["content"]]


def generate(*args, **kwargs):
    """The choices: pairs of id and logprob, and spans."""
    answer = baton.request(URL, "POST", "/v1/generate", body_of(*args, **kwargs))
    return [(tokens_of(c), c["weight_versions"]) for c in answer["choices"]]


class Stream:
    """A streamed generate that is read as it comes."""

    def __init__(self, body, path="/v1/generate"):
        self.n = body.get("sampling_params", body).get("n", 1)
        self.tokens = [[] for _ in range(self.n)]
        self.spans = [None] * self.n
        self.http = http.client.HTTPConnection("127.0.0.1", int(URL.rsplit(":", 1)[1]),
                                               timeout=PATIENCE_S)
        self.http.request("POST", path, json.dumps(dict(body, stream=True)),
                          {"Content-Type": "application/json"})
        self.answer = self.http.getresponse()
        assert self.answer.status == 200, self.answer.read()

    def event(self):
        """Reads one event; False after the last."""
        line = b""
        while not line.startswith(b"data: "):
            line = self.answer.readline()
            assert line, "the stream broke off"
        if line == b"data: [DONE]\n":
            return False
        for choice in json.loads(line[6:])["choices"]:
            i = choice["index"]
            assert self.spans[i] is None, "tokens after the last event of a choice"
            if choice["logprobs"] is not None:
                self.tokens[i] += tokens_of(choice)
            if choice["finish_reason"] is not None:
                self.spans[i] = choice["weight_versions"]
        return True

    def read_until(self, n_tokens):
        while min(map(len, self.tokens)) < n_tokens:
            assert self.event(), "it ended before"

    def rest(self):
        while self.event():
            pass
        assert self.answer.read() == b"\n"
        self.http.close()

    def leave(self):
        self.answer.close()
        self.http.close()


def check_spans(spans, n_tokens):
    ends = [0] + [s["end"] for s in spans]
    check(ends[-1] == n_tokens and all(s["start"] == e < s["end"] for s, e in zip(spans, ends)),
          spans, n_tokens)
    check(all(a["serial"] < b["serial"] for a, b in zip(spans, spans[1:])), spans)


def lengths():
    """How many tokens to stream so that commits come inside: more where the engine outran them."""
    return [110, 220, 440] + [900] * 17


def disturbed(mode, temperature):
    """Streams four choices with commits inside; two of them without a token between."""
    for n_tokens in lengths():
        first = push(STEPS[0])
        stream = Stream(body_of(n_tokens, mode, n=4, temperature=temperature))
        stream.read_until(8)
        push(STEPS[1])
        stream.read_until(24)
        push(STEPS[0])
        last = push(STEPS[2])
        inside = engine()["running"] == 4
        stream.rest()
        for tokens, spans in zip(stream.tokens, stream.spans):
            check(len(tokens) == n_tokens, len(tokens))
            check_spans(spans, n_tokens)
            check(all(first <= s["serial"] <= last for s in spans), spans)
        if inside and (mode == "finish" or min(map(len, stream.spans)) >= 2):
            return first, stream
    sys.exit("no commit came while the stream ran")


def undisturbed(n_tokens):
    """The same four choices with nothing but the first weights: what came before a commit."""
    push(STEPS[0])
    return [tokens for tokens, _ in generate(n_tokens, None, n=4, temperature=0.7)]


def check_recomputed(stream):
    """Each span is a fresh request to its weights, whose prompt is all that came before."""
    fresh, served = {}, None  # choices that are alike are made again once
    for tokens, spans in zip(stream.tokens, stream.spans):
        for span in spans:
            start, end, version = span["start"], span["end"], span["version"]
            prompt = PROMPT + [i for i, _ in tokens[:start]]
            key = (version, end, *prompt)
            if key not in fresh:
                if served != version:
                    push(version)
                served = version
                [(fresh[key], _)] = generate(end - start, None, prompt=prompt)
            check(tokens[start:end] == fresh[key], "recompute is not a fresh request", span)


def modes():
    first, stream = disturbed("finish", 0.7)
    quiet = undisturbed(len(stream.tokens[0]))
    for tokens, spans, alone in zip(stream.tokens, stream.spans, quiet):
        check([s["serial"] for s in spans] == [first], spans)
        check(spans[0]["version"] == STEPS[0] and tokens == alone, "finish saw an update")
    first, stream = disturbed("continue", 0.7)
    if len(stream.tokens[0]) > len(quiet[0]):
        quiet = undisturbed(len(stream.tokens[0]))
    for tokens, spans, alone in zip(stream.tokens, stream.spans, quiet):
        end = spans[0]["end"]
        check(spans[0]["serial"] == first and tokens[:end] == alone[:end], spans)
        check(tokens != alone[:len(tokens)], spans)
    before = engine()["n_recomputed_tokens"]
    first, stream = disturbed("recompute", 0)
    check(engine()["n_recomputed_tokens"] > before, "nothing was made again")
    check_recomputed(stream)


def room():
    """With --max-versions 2 --pin-timeout 100: a commit waits for nobody, its successor for room."""
    push(STEPS[0])
    stream = Stream(body_of(1000, "finish", n=48))
    stream.read_until(1)
    check(engine()["kv_tokens_used"] + 64 <= engine()["kv_tokens_max"], "the fresh one would wait")
    push(STEPS[1])
    check(engine()["running"] > 0, "the commit waited for the sequences")
    try:
        push(STEPS[2])
        sys.exit("there was room for a third version")
    except baton.BatonError as e:
        check(e.status == 409 and "2 versions of the weights are alive" in str(e), e.status, str(e))
    check(engine()["running"] > 0, "the sequences ended")
    fresh = Stream(body_of(2, None))  # generation goes on, on what is served
    fresh.rest()
    check([s["version"] for s in fresh.spans[0]] == [STEPS[1]], fresh.spans)
    stream.leave()
    wait_idle()
    push(STEPS[2])
    [(_, spans)] = generate(4, "finish")
    check([s["version"] for s in spans] == [STEPS[2]], spans)


def frozen():
    """With --max-versions 2 --pin-timeout 100: what a pause freezes holds its version. An update that
    lacks the room is told in time, leaves no session behind, and works when room was made."""
    push(STEPS[0])
    stream = Stream(body_of(1000, "finish", n=4))
    stream.read_until(1)
    baton.request(URL, "POST", "/v1/pause", {"mode": "keep"})
    push(STEPS[1])  # commits beside what is frozen
    path = f"{MODEL}/checkpoints/{STEPS[2]}.safetensors"
    for _ in range(2):
        update = baton.request(URL, "POST", "/v1/update_weights/start", {})["update_id"]
        began = time.monotonic()
        try:
            baton.request(URL, "POST", "/v1/update_weights", {"update_id": update, "path": path})
            sys.exit("what is frozen let go")
        except baton.BatonError as e:
            check(e.status == 409 and "frozen" in str(e), e.status, str(e))
        check(time.monotonic() - began < 30, "the deadline is --pin-timeout")
        baton.request(URL, "POST", "/v1/update_weights/abort", {"update_id": update})
    with urllib.request.urlopen(URL + "/v1/status", timeout=PATIENCE_S) as f:
        status = json.load(f)
    check(status["weights"]["weight_version"] == STEPS[1] and status["update"] is None, status)
    check(status["engine"]["running"] == 4, "the frozen ones ended")
    check(baton.request(URL, "POST", "/v1/abort_requests", {"all": True})["aborted"] == 1)
    stream.rest()
    check(all(s[-1]["version"] == STEPS[0] for s in stream.spans), stream.spans)
    push(STEPS[2])  # still paused
    baton.request(URL, "POST", "/v1/resume", {})
    [(_, spans)] = generate(4, "finish")
    check([s["version"] for s in spans] == [STEPS[2]], spans)


def default():
    """With --on-update finish: for requests without on_update."""
    check(engine()["on_update"] == "finish", engine())
    for mode in (None, "continue"):
        for n_tokens in lengths():
            push(STEPS[0])
            stream = Stream(body_of(n_tokens, mode, n=4))
            stream.read_until(5)
            push(STEPS[2])
            inside = engine()["running"] == 4
            stream.rest()
            if inside and (mode is None or max(map(len, stream.spans)) > 1):
                break
        check(inside and {len(s) > 1 for s in stream.spans} == {mode is not None}, stream.spans)
    push(STEPS[0])
    stream = Stream({"prompt": PROMPT, "max_tokens": n_tokens, "ignore_eos": True, "n": 4},
                    "/v1/completions")
    stream.event()
    push(STEPS[1])
    stream.rest()
    check([len(s) for s in stream.spans] == [1] * 4, stream.spans)
    for wrong in ('"later"', '""', "1", "true", '["finish"]'):
        data = json.dumps(body_of(2, None))[:-1] + f', "on_update": {wrong}}}'
        for path in ("/v1/generate", "/inference/v1/generate"):
            try:
                baton.request(URL, "POST", path, json.loads(data))
                sys.exit(f"{path} took {wrong}")
            except baton.BatonError as e:
                check(e.status == 400, path, wrong, e.status)
    check(len(generate(2, None)[0][0]) == 2, "null")
    for mode in ("continue", "finish", "recompute"):
        check(len(generate(2, mode)[0][0]) == 2, mode)


{"modes": modes, "room": room, "frozen": frozen, "default": default}[COMMAND]()
print(n_checks)
