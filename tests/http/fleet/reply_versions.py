"""Each relayed reply names the version at its start; asked for, it names the versions that made it, and not one other
byte differs. A double's tokens show which weights made them, so every span is checked.

Usage: reply_versions.py BATON FAKE_ENGINE LOG
"""

import contextlib
import http.client
import json
import re
import sys
import threading
import time

import baton
from fake_engine_world import LONG, N, STEPS, Double, completion, ids_of, tag
from fleet_world import Server, until

BATON, ENGINE, LOG = sys.argv[1:4]
ASK = {"X-Baton-Weight-Versions": "1"}
HANDLES = {"names": ["a"], "dtypes": ["bfloat16"], "shapes": [[1]], "packed": True, "tensor_sizes": [2],
           "ipc_handles_pickled": "gASVAAAAAAAAAAB9lC4="}
SLOW = ("--interval-us", 2000)


@contextlib.contextmanager
def world(*dialects, doubles=(), server=()):
    with contextlib.ExitStack() as stack:
        ds = [stack.enter_context(Double(ENGINE, d, "--weight-version", "step-0", *doubles)) for d in dialects]
        options = [o for d in ds for o in ("--upstream", f"{d.url},{d.dialect}")]
        s = stack.enter_context(Server(BATON, LOG, *options, *server))
        until("all serve", lambda: s.status()["upstreams"]["n_serving"] == len(ds))
        s.kind = dialects[0]
        yield s, *ds


def send(port, path, body, headers=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
    c.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "X-Request-Id": "one", **(headers or {})})
    answer = c.getresponse()
    answer.connection = c
    return answer


def fetch(port, path, body, headers=None):
    """(version of its header, headers, bytes)"""
    answer = send(port, path, body, headers)
    with contextlib.closing(answer.connection):
        text = answer.read()
    assert answer.status == 200, (path, answer.status, text)
    return answer.getheader("X-Baton-Weight-Version"), answer.headers, text


def tensors_of(s):
    """What its engines take."""
    if s.kind == "vllm":
        return HANDLES
    s.post("/v1/weight_transfer/init", {"transport": "nccl", "master_address": "10.0.0.1", "master_port": 29500,
                                        "world_size": 1 + len(s.upstreams())})
    return {"transport": "nccl", **{m: HANDLES[m] for m in ("names", "dtypes", "shapes")}}


def update(s, label):
    said = s.post("/v1/update_weights", dict(tensors_of(s), weight_version=label), timeout=90)
    assert all(u["ok"] for u in said["upstreams"]), said


def taken_out(text, stream):
    """(bytes without what was added, the added list)"""
    if stream:
        found = re.findall(rb'data: \{"weight_versions":.*\n\n', text)
        assert len(found) == 1, text[-2000:]
        rest = text.replace(found[0], b"")
        assert text.endswith(found[0] + b"data: [DONE]\n\n"), text[-2000:]
        return rest, json.loads(found[0][6:])["weight_versions"]
    spans = json.loads(text)["weight_versions"]
    at = text.rindex(b',"weight_versions":[')
    assert text.endswith(b"]}"), text[-200:]
    return text[:at] + b"}", spans


def tokens_of(text, stream):
    lines = [x[6:] for x in text.split(b"\n") if x.startswith(b"data: {")] if stream else [text]
    tokens = []
    for line in lines:
        said = json.loads(line)
        if "output_ids" in said:
            tokens = said["output_ids"]
        elif said.get("choices"):
            choice = said["choices"][0]
            tokens += choice["token_ids"] if "token_ids" in choice else ids_of(choice["text"])
    return tokens


def forms(dialect, n):
    ids = {"token_ids": [3, 1, 4], "sampling_params": {"max_tokens": n}}
    yield "/v1/completions", completion(n), False
    if dialect == "vllm":
        yield "/v1/completions", completion(n, return_weight_versions=True), True
        yield "/inference/v1/generate", ids, True
    else:
        yield "/generate", {"input_ids": [3, 1, 4], "sampling_params": {"max_new_tokens": n}}, True


def span(version, serial, start=None, end=None, exact=True):
    return {"version": version, "start": start, "end": end, "serial": serial, "exact": exact}


# ---- no update ----

def bytes_stay(dialect):
    with world(dialect) as (s, d):
        for n in (1, N, 20_000):
            for path, body, names in forms(dialect, n):
                for stream in (False, True) if n <= N or path != "/generate" else (False,):  # its events grow
                    body = dict(body, stream=stream)
                    fetch(d.port, path, body)  # its prompt is cached from now on
                    _, _, direct = fetch(d.port, path, body)
                    version, _, plain = fetch(s.port, path, body)
                    assert version == "step-0" and plain == direct, (version, path, stream)
                    version, headers, asked = fetch(s.port, path, body, ASK)
                    rest, spans = taken_out(asked, stream)
                    assert version == "step-0" and rest == direct, (path, n, stream)
                    assert spans == [span("step-0", 0, 0, n if names else None)], (path, spans)
                    if not stream and n <= N:
                        assert int(headers["Content-Length"]) == len(asked), headers
        sent = {k.lower() for e in d.journal() for k in e["headers"]}
        assert "x-request-id" in sent and "x-baton-weight-versions" not in sent, sent
        for value in ("0", "true", ""):
            assert fetch(s.port, "/v1/completions", completion(), {"X-Baton-Weight-Versions": value})[2].endswith(b"}")
            assert b"exact" not in fetch(s.port, "/v1/completions", completion(), {"X-Baton-Weight-Versions": value})[2]


def odd_replies():
    """What is no JSON object and no stream passes as it is; so does what is encoded, or has the member."""
    head = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\n{}Content-Length: {}\r\n\r\n"
    with world("vllm") as (s, d):
        for kind, text in (("text/plain", "{}"), ("application/json", '"{}"'), ("application/json", ""),
                           ("application/json", '{"weight_versions":[]}'), ("text/event-stream", 'data: {"cut')):
            d.order("completions", "raw", text=head.format(kind, "", len(text)) + text)
            version, headers, said = fetch(s.port, "/v1/completions", completion(), ASK)
            assert said == text.encode() and version == "step-0" and int(headers["Content-Length"]) == len(text), said
        d.order("completions", "raw", text=head.format("application/json", "Content-Encoding: x\r\n", 2) + "{}")
        assert fetch(s.port, "/v1/completions", completion(), ASK)[2] == b"{}"
        d.order("completions", "raw", text=head.format("application/json", "", 8) + '[{},{} ]')
        said = json.loads(fetch(s.port, "/v1/completions", completion(), ASK)[2])
        assert said == [{"weight_versions": [span("step-0", 0, 0)]}] * 2, said
        d.order("completions", "status", status=400, text='{"error":{}}')
        answer = send(s.port, "/v1/completions", completion(), ASK)
        with contextlib.closing(answer.connection):
            assert (answer.status, answer.read(), answer.getheader("X-Baton-Weight-Version")) == (400, b'{"error":{}}', None)


def labels():
    """Any label is safe in a header."""
    with world("vllm") as (s, d):
        for label, header in (("step 7: 50%", "step%207:%2050%25"), ("schön\u2014", "sch%C3%B6n%E2%80%94"),
                              ("é" * 64, "%C3%A9" * 64)):
            update(s, label)
            version, _, text = fetch(s.port, "/v1/completions", completion(), ASK)
            assert version == header and json.loads(text)["weight_versions"][0]["version"] == label, (version, text)
            s.post("/v1/weights/label", {"weight_version": "plain"})
            assert fetch(s.port, "/v1/completions", completion())[0] == "plain"


# ---- updates ----

class Running:
    """A request whose first event has come."""

    def __init__(self, s, path, body, names):
        self.path, self.stream, self.names = path, body.get("stream", False), names
        self.answer = send(s.port, path, body, ASK)
        self.head = self.answer.readline()

    def end(self):
        with contextlib.closing(self.answer.connection):
            text = self.head + self.answer.read()
        rest, spans = taken_out(text, self.stream)
        return tokens_of(rest, self.stream), spans, self.answer.getheader("X-Baton-Weight-Version")


def check_spans(tokens, spans, known):
    """@known  every label, in the order of its serial"""
    made_by = {tag(label): serial for serial, label in enumerate(known)}
    serials = [made_by[t // STEPS] for t in tokens]
    for v in spans:
        assert v["serial"] is None or known[v["serial"]] == v["version"], (v, known)
        if v["exact"]:
            end = len(tokens) if v["end"] is None else v["end"]
            assert set(serials[v["start"]:end]) <= {v["serial"]}, (v, serials)
        else:
            assert v["start"] is None and v["end"] is None, v
    if spans[0]["exact"]:
        assert spans[0]["start"] == 0 and spans[-1]["end"] in (None, len(tokens)), (spans, len(tokens))
    else:
        last = spans[-1]["serial"]
        assert spans[0]["serial"] <= min(serials) and (last is None or max(serials) <= last), (spans, serials)
    return len(set(serials)) > 1


def crossing(dialect, mode):
    """With recompute and continue a reply goes on under new weights; the engine's own versions say where."""
    with world(dialect, doubles=SLOW, server=("--on-update", mode)) as (s, d):
        d.must_be_fresh = mode == "recompute"
        serial = 0
        for path, body, names in forms(dialect, 120):
            old, new = f"step-{serial}", f"step-{serial + 1}"
            run = Running(s, path, dict(body, stream=True), names)
            update(s, new)
            tokens, spans, version = run.end()
            if mode == "recompute":  # else the new weights read old KV, and tokens show both
                assert check_spans(tokens, spans, [f"step-{i}" for i in range(serial + 2)]), spans
            assert version == old and [v["version"] for v in spans] == [old, new], (path, spans, version)
            assert all(v["exact"] == names for v in spans), spans
            assert not names or spans[0]["end"] == spans[1]["start"] > 0, spans
            until("its cache is empty", s.ready)
            after = json.loads(fetch(s.port, path, dict(body), ASK)[2])["weight_versions"]
            assert [(v["version"], v["serial"], v["exact"]) for v in after] == [(new, serial + 1, True)], after
            serial += 1
        text = s.get("/metrics")
        ages = dict(re.findall(r"^baton_generation_token_age_versions_(\w+) (\d+)", text, re.M))
        assert int(ages["sum"]) == serial and int(ages["count"]) == 2 * serial, ages


def same_label(dialect):
    """Two versions of one label: the engine's own versions do not tell them apart."""
    with world(dialect, doubles=SLOW) as (s, d):
        path, body, _ = list(forms(dialect, 100))[-1]
        run = Running(s, path, dict(body, stream=True), True)
        update(s, "step-0")
        _, spans, _ = run.end()
        assert [(v["version"], v["serial"], v["exact"]) for v in spans] == [("step-0", 0, False), ("step-0", 1, False)], spans


def failed_update(dialect):
    """An update that is aborted before any tensor: the reply names one version."""
    with world(dialect, doubles=SLOW) as (s, d):
        run = Running(s, "/v1/completions", completion(60, stream=True), False)
        started = s.post("/v1/update_weights/start", {"weight_version": "never"})
        s.post("/v1/update_weights/abort", {"update_id": started["update_id"]})
        assert run.end()[1:] == ([span("step-0", 0, 0)], "step-0")


def renamed(dialect):
    with world(dialect, doubles=SLOW) as (s, d):
        run = Running(s, "/v1/completions", completion(60, stream=True), False)
        s.post("/v1/weights/label", {"weight_version": "better"})
        assert run.end()[1:] == ([span("step-0", 0, 0)], "step-0")
        version, _, text = fetch(s.port, "/v1/completions", completion(), ASK)
        assert (version, json.loads(text)["weight_versions"]) == ("better", [span("better", 0, 0)])


def assembled():
    """A batch of relayed replies has the version of each token that is known, and -1 for the others."""
    with world("vllm", doubles=SLOW) as (s, d):
        prompt, bodies = [3, 1, 4], {p: b for p, b, _ in forms("vllm", 100)}
        body = bodies["/inference/v1/generate"]
        run = Running(s, "/inference/v1/generate", dict(body, stream=True), True)
        update(s, "step-1")
        tokens, spans, _ = run.end()
        logprobs = {"content": [{"logprob": -1.0}] * len(tokens)}
        choice = {"index": 0, "token_ids": tokens, "finish_reason": "length", "logprobs": logprobs}
        named = {"choices": [dict(choice, weight_versions=[{"version": "step-0", "start": 0, "end": 100}])], "weight_versions": spans}
        batch = baton.assemble_rollouts([prompt] * 2, [named, {"choices": [choice], "weight_versions": [span("a", 1, exact=False)]}])
        made = [batch.metadata["versions"][v]["serial"] if v >= 0 else None for v in batch["versions"][0][-100:]]
        assert made == [0] * spans[0]["end"] + [1] * (100 - spans[0]["end"]), (made, spans)
        assert set(batch["versions"][1]) == {-1}, batch["versions"][1]


# ---- finish ----

def updates_behind(s, label):
    done = {}

    def run():
        try:
            update(s, label)
            done["rc"] = True
        except BaseException as e:
            done["rc"] = e
    t = threading.Thread(target=run)
    t.start()
    return t, done


def finish(dialect):
    """Nothing crosses: what runs ends first, what comes waits, and each reply has one version."""
    n, late = 1000, []

    def ask_on(s):
        while not late or late[-1][0] != "step-1":
            late.append(fetch(s.port, "/v1/completions", completion(), ASK))

    with world(dialect, doubles=SLOW, server=("--on-update", "finish")) as (s, d):
        runs = [Running(s, path, dict(body, stream=True), names) for path, body, names in forms(dialect, n)]
        t, done = updates_behind(s, "step-1")
        waiter = threading.Thread(target=ask_on, args=(s,))
        waiter.start()
        until("one waits", lambda: s.status()["admission"]["generate"]["waiting"] == 1)
        for run in runs:
            tokens, spans, version = run.end()
            assert len(tokens) == n and not check_spans(tokens, spans, ["step-0", "step-1"]), spans
            assert version == "step-0" and spans == [span("step-0", 0, 0, n if run.names else None)], spans
        t.join()
        waiter.join()
        assert done["rc"] is True, done
        for version, _, text in late:
            assert json.loads(text)["weight_versions"] == [span(version, int(version == "step-1"), 0)], (version, text)
        (pause,) = d.journal("pause")
        assert dialect != "vllm" or "mode=wait" in pause["query"], pause


def finish_late(dialect):
    """What does not end within half of --update-timeout ends with what it has: it crosses no update either."""
    with world(dialect, doubles=SLOW, server=("--on-update", "finish", "--update-timeout", 2000)) as (s, d):
        run = Running(s, "/v1/completions", completion(LONG, stream=True), False)
        began = time.monotonic()
        update(s, "step-1")
        assert time.monotonic() - began < 30
        tokens, spans, _ = run.end()
        assert not check_spans(tokens, spans, ["step-0", "step-1"]) and spans == [span("step-0", 0, 0)], spans
        assert 0 < len(tokens) < LONG
        assert fetch(s.port, "/v1/completions", completion())[0] == "step-1"


def finish_paused(dialect):
    """What a trainer's own pause keeps cannot end: it goes on after the update, and says so."""
    with world(dialect, doubles=SLOW, server=("--on-update", "finish")) as (s, d):
        run = Running(s, "/v1/completions", completion(100, stream=True), False)
        s.post("/v1/pause", {"mode": "keep"})
        update(s, "step-1")
        s.post("/v1/resume")
        tokens, spans, _ = run.end()
        assert check_spans(tokens, spans, ["step-0", "step-1"]), spans
        assert spans == [span("step-0", 0, exact=False), span("step-1", 1, exact=False)], spans


def finish_aborted(dialect):
    """An update that waits can be aborted; what it waited for is not touched."""
    with world(dialect, doubles=SLOW, server=("--on-update", "finish")) as (s, d):
        run = Running(s, "/v1/completions", completion(600, stream=True), False)
        started = s.post("/v1/update_weights/start", {"weight_version": "never"})
        said = {}
        t = threading.Thread(target=lambda: said.update(it=s.ask(
            "POST", "/v1/update_weights", dict(tensors_of(s), update_id=started["update_id"]))))
        t.start()
        time.sleep(0.1)
        s.post("/v1/update_weights/abort", {"update_id": started["update_id"]})
        t.join()
        assert said["it"][0] in (409, 410), said
        assert not d.journal("pause"), d.journal("pause")
        assert fetch(s.port, "/v1/completions", completion())[0] == "step-0"
        tokens, spans, _ = run.end()
        assert len(tokens) == 600 and spans == [span("step-0", 0, 0)], spans


# ---- under load ----

def load(dialect, mode):
    """No span is wrong, and what no update crossed is exact."""
    records, failures, stop = [], [], threading.Event()

    def client(s, i):
        try:
            n = 0
            while not stop.is_set():
                for path, body, names in forms(dialect, 5 + 7 * i):
                    n += 1
                    stream = (n + i) % 2 == 0
                    version, _, text = fetch(s.port, path, dict(body, stream=stream), ASK)
                    rest, spans = taken_out(text, stream)
                    records.append((tokens_of(rest, stream), spans, version))
        except BaseException as e:
            failures.append(e)

    with world(dialect, dialect, doubles=("--interval-us", 500), server=("--on-update", mode)) as (s, *_):
        threads = [threading.Thread(target=client, args=(s, i)) for i in range(6)]
        for t in threads:
            t.start()
        known = ["step-0"]
        for i in range(1, 11):
            mark = len(records)
            until("requests ran", lambda: len(records) >= mark + 20 or failures)
            known.append(f"step-{i}")
            update(s, known[-1])
        stop.set()
        for t in threads:
            t.join()
    if failures:
        raise failures[0]
    mixed = [check_spans(tokens, spans, known) for tokens, spans, _ in records]
    pure = [spans for (_, spans, _), m in zip(records, mixed) if not m]
    exact = sum(spans[0]["exact"] for spans in pure)
    print(f"{dialect} {mode}: {len(records)} replies, {sum(mixed)} of two versions; of the others {exact} of {len(pure)} exact")
    assert exact >= 0.95 * len(pure), (exact, len(pure))
    assert mode != "finish" or (not any(mixed) and exact == len(records)), (sum(mixed), exact, len(records))


def of_a_baton():
    """A baton names the versions itself: the request header goes on to it, and its reply stays as it is."""
    with world("baton") as (s, d):
        for stream in (False, True):
            body = dict(completion(), stream=stream)
            fetch(d.port, "/v1/completions", body)
            assert fetch(s.port, "/v1/completions", body, ASK)[2] == fetch(d.port, "/v1/completions", body)[2]
        assert any(k.lower() == "x-baton-weight-versions" for e in d.journal() for k in e["headers"])


def behind_a_front():
    """A front over a baton over an engine: the reply is that of the baton beside the engine."""
    with world("vllm") as (s, d), Server(BATON, LOG, "--upstream", f"{s.url},baton") as front:
        until("it serves", front.ready)
        version, _, text = fetch(front.port, "/v1/completions", completion(), ASK)
        assert (version, json.loads(text)["weight_versions"]) == ("step-0", [span("step-0", 0, 0)]), text


def main():
    odd_replies()
    labels()
    of_a_baton()
    behind_a_front()
    assembled()
    for dialect in ("vllm", "sglang"):
        for promise in (bytes_stay, same_label, failed_update, renamed, finish, finish_late, finish_paused, finish_aborted):
            print(dialect, promise.__name__, flush=True)
            promise(dialect)
        for mode in ("recompute", "continue"):
            crossing(dialect, mode)
        for mode in ("recompute", "finish"):
            load(dialect, mode)
    print("ok")


if __name__ == "__main__":
    main()
