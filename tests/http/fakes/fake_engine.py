"""Checks that the double of an upstream engine does what the tests rely on, in each dialect.

Usage: fake_engine.py FAKE_ENGINE N_STREAMS
"""

import json
import os
import select
import sys
import tempfile

import fake_engine_control as control
import fake_engine_faults as faults
from fake_engine_world import (LONG, N, PROMPT, Double, completion, events_of, expected, finish_of, forget,
                               ids_of, pause, refused, resume, serves_afresh, text_of, tokens_now)

Double.must_be_fresh = False  # what is stale is made on purpose here
BINARY, N_STREAMS = sys.argv[1], int(sys.argv[2])


def double(dialect, *more):
    return Double(BINARY, dialect, "--world-size", 2, "--weight-version", "step-0", *more)


# ---- the data plane ----

def forms(dialect):
    """path, request of n tokens, what an event says that it added, what a whole answer says."""
    yield ("/v1/completions", lambda n: completion(n), lambda e: ids_of(e["choices"][0]["text"]), PROMPT)
    yield ("/v1/chat/completions", lambda n: {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": n},
           lambda e: ids_of(e["choices"][0].get("delta", e["choices"][0].get("message"))["content"]),
           f"user:{PROMPT}\n")
    if dialect != "sglang":
        for path in ["/inference/v1/generate"] + ["/v1/generate"] * (dialect == "baton"):
            yield (path, lambda n: {"token_ids": [3, 1, 4], "sampling_params": {"max_tokens": n}},
                   lambda e: e["choices"][0]["token_ids"], [3, 1, 4])
    if dialect != "vllm":
        yield ("/generate", lambda n: {"input_ids": [3, 1, 4], "sampling_params": {"max_new_tokens": n}},
               lambda e: e["output_ids"], [3, 1, 4])


def data_plane(d):
    for path, request, made, prompt in forms(d.dialect):
        want = expected(prompt, "step-0", 0, N)
        whole = d.post(path, request(N))
        assert made(whole) == want and finish_of(whole) == "length", (path, whole)
        *said, last = d.stream(path, request(N))
        assert last == "[DONE]" and finish_of(said[-1]) == "length", (path, said, last)
        if path == "/generate":
            assert [made(e) for e in said] == [want[:i + 1] for i in range(N)] + [want], said
            assert said[-1]["text"] == text_of(want) and said[0]["meta_info"]["weight_version"] == "step-0"
        else:
            assert [t for e in said for t in made(e)] == want, said
            assert {finish_of(e) for e in said[:-1]} == {None}
        if d.dialect == "baton" and path != "/generate":
            assert said[-1]["choices"][0]["weight_versions"] == [
                {"version": "step-0", "start": 0, "end": N, "serial": 1}], said[-1]
    *_, usage, _ = d.stream("/v1/completions", completion(stream_options={"include_usage": True}))
    assert usage["usage"]["completion_tokens"] == N and usage["choices"] == [], usage
    assert len(tokens_now(d, prompt=ids_of(PROMPT))) == N and tokens_now(d, prompt=ids_of(PROMPT)) == tokens_now(d)
    assert tokens_now(d, prompt=[[7, 8]]) == expected([7, 8], "step-0", 0, N)
    assert len(ids_of(d.post("/v1/completions", {"prompt": PROMPT})["choices"][0]["text"])) == 16  # --tokens
    text = "Héllo\n\"x\" t12 t9999999"
    tokens = d.post("/tokenize", {"prompt": text})
    assert tokens["tokens"] == ids_of(text) and tokens["count"] == len(ids_of(text)), tokens
    member = "text" if d.dialect == "sglang" else "prompt"
    assert d.post("/detokenize", {"tokens": tokens["tokens"]})[member] == text
    for body in ({"prompt": {}}, {"prompt": ["a", "b"]}, {"prompt": [-1]}, {"prompt": "x", "max_tokens": LONG + 1}):
        refused(d, 400, "POST", "/v1/completions", body)
    assert d.last()["status"] == 400 and not d.last()["executed"]
    refused(d, 400, "POST", "/detokenize", {"tokens": [1 << 30]})
    refused(d, 404, "POST", "/v1/nothing", {})
    if d.dialect != "sglang":
        refused(d, 404, "POST", "/v1/completions", completion(model="other"))


# ---- identity ----

def identity(d):
    ask = {"baton": lambda: [d.get("/v1/status")[k] for k in ("boot_id", "weights")],
           "vllm": lambda: [line for line in d.get("/metrics").split("\n") if line.startswith("process_start")],
           "sglang": lambda: [d.get("/get_model_info"), d.state()["boots"]]}[d.dialect]
    ranks = {"baton": lambda: len(d.get("/v1/status")["cuda"]["ranks"]),
             "vllm": lambda: d.get("/get_world_size")["world_size"],
             "sglang": lambda: d.get("/get_server_info")["tp_size"]}[d.dialect]
    assert d.get("/health") == "" and ranks() == 2
    assert [m["id"] for m in d.get("/v1/models")["data"]] == ["double"]
    before = ask()
    assert ask() == before and len(before) > 0
    d.order("", "wrong_version", label="step-9")
    serves_afresh(d, "step-9")
    d.order("", "restart")
    after = ask()
    assert after[0] != before[0] or d.dialect == "sglang" and after[1] != before[1], (before, after)
    serves_afresh(d, "step-0")  # what it was started with


def request_of(n_tokens):
    body = json.dumps(completion(n_tokens, stream=True)).encode()
    return b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def crowd(d):
    """Streams all at once; every other client wants more than it stays for."""
    poll, clients, said, leaving = select.epoll(), {}, {}, set()
    pause(d, "keep")
    for i in range(N_STREAMS):
        s = d.socket()
        clients[s.fileno()], said[s.fileno()] = s, b""
        if i % 2 == 1:
            leaving.add(s.fileno())
        s.sendall(request_of(LONG if i % 2 == 1 else 40))
        poll.register(s.fileno(), select.EPOLLIN)
    d.wait("all are there", lambda: d.state()["waiting"] == N_STREAMS)
    resume(d)
    while clients:
        for fd, _ in poll.poll(60):
            data = clients[fd].recv(65536)
            said[fd] += data
            assert data, "a stream ended early"
            if said[fd].count(b"data: ") >= 3 if fd in leaving else said[fd].endswith(b"0\r\n\r\n"):
                poll.unregister(fd)
                clients.pop(fd).close()
    poll.close()
    for fd in said.keys() - leaving:
        assert said[fd].count(b'"finish_reason":null') == 40, said[fd][-200:]
    d.wait("none is left", lambda: d.state()["running"] == 0)
    ends = [r["end"] for r in d.journal("completions")]
    assert ends == ["answered", "client_left"] * (N_STREAMS // 2), ends
    assert d.state()["connections"] == 1


def idle_end(d):
    """A connection is closed when it is idle for long, not while it is busy. False: it was idle too early."""
    d.good("DELETE", "/fault")
    d.good("DELETE", "/journal")
    d.order("health", "hang", nth=2)
    busy, idle = d.connect(), d.connect()
    try:
        assert d.ask("GET", "/health", connection=busy)[0] == 200
        busy.request("GET", "/health")
        assert d.ask("GET", "/v1/models", connection=idle)[0] == 200
        assert idle.sock.recv(1) == b""
    except ConnectionError:
        pass  # it was
    busy.close()
    idle.close()
    d.wait("both have ended", lambda: d.state()["connections"] == 1)
    ends = [r["end"] for r in d.journal("health")]
    assert len(ends) == 1 or ends == ["answered", "client_left"], ends
    return len(ends) == 2


def options():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "engine.socket")
        with Double(BINARY, "vllm", "--unix", path) as d:
            assert d.url == "unix:" + path
            serves_afresh(d, "v1")  # nameless
            d.order("health", "restart", ms=50)
            faults.broken(d, "GET", "/health")
            d.wait_back(lambda: d.state()["boots"] == 2)
        assert not os.path.exists(path)
    with Double(BINARY, "sglang", "--key", "secret", "--journal", 2, "--pad", 1000) as d:
        refused(d, 401, "POST", "/v1/completions", completion())
        refused(d, 401, "POST", "/v1/completions", completion(), headers={"Authorization": "Bearer Secret"})
        assert not d.last()["executed"] and d.get("/health") == ""
        right = {"Authorization": "Bearer secret"}
        assert d.post("/v1/completions", completion(), headers=right)["choices"]
        answer = d.send("POST", "/v1/completions", completion(stream=True), right)
        assert len(events_of(answer)) == N + 1 and d.get("/journal")["dropped"] == 3
        text = d.send("POST", "/v1/completions", completion(stream=True), right).read()
        assert len(text) > 1000 * N
    with Double(BINARY, "baton", "--idle-ms", 50, "--port", 0) as d:
        while not idle_end(d):
            pass
    with Double(BINARY, "vllm") as d:
        d.kill()
        try:
            faults.broken(d, "GET", "/health")
        except ConnectionRefusedError:
            pass
    with Double(BINARY, "baton", "--journal", 0) as d:
        assert d.get("/health") == "" and d.journal() == [] and d.state()["requests"] == 1
    for bad in (["--dialect", "odd"], ["--dialect", "vllm", "--tokens", "0"], ["--dialect", "vllm", "x"]):
        assert os.spawnv(os.P_WAIT, BINARY, [BINARY, *bad]) == 2, bad


def held_by_old(dialect):
    """As older engines do it: an SGLang keeps what it retracts, a vLLM does not say what it did."""
    options = {"vllm": ["--silent-reset"], "sglang": ["--sglang-version", "0.5.16"]}[dialect]
    with double(dialect, "--interval-us", 2000, *options) as d:
        running = d.stream("/v1/completions", completion(LONG))
        next(running)
        pause(d, "keep")
        if dialect == "vllm":
            assert d.good("POST", "/reset_prefix_cache") == ""
        else:
            d.post("/pause_generation", {"mode": "retract"})
            assert not forget(d)
        running.close()


def main():
    for dialect in ("baton", "vllm", "sglang"):
        for promise in (data_plane, identity, *control.of(dialect), *faults.ALL):
            with double(dialect) as d:
                promise(d)
        for promise in (*control.TIMED, *faults.TIMED, crowd):
            with double(dialect, "--interval-us", 2000) as d:
                promise(d)
    held_by_old("vllm")
    held_by_old("sglang")
    options()
    print("ok")


main()
