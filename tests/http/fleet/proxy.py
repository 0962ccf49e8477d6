"""What a server in front of upstream engines does with requests for tokens and text: they go on as they came, once,
and their answers come back as they are.

Usage: proxy.py BATON FAKE_ENGINE LOG N_CLIENTS
"""

import base64
import contextlib
import http.client
import io
import json
import os
import random
import re
import signal
import socket
import sys
import tempfile
import threading

import numpy as np
from fake_engine_world import LONG, N, PROMPT, Double, completion, expected, ids_of, tag
from fleet_world import Server, until

BATON, ENGINE, LOG, N_CLIENTS = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
NEVER_MS = 600_000  # an interval of probes that no test lives to see
ID = {"X-Request-Id": "test.request-1"}


@contextlib.contextmanager
def world(*dialects, doubles=(), server=(), specs=""):
    """A server in front of one double for each dialect, when all of them serve."""
    with contextlib.ExitStack() as stack:
        ds = [stack.enter_context(Double(ENGINE, d, "--weight-version", "step-0", *doubles)) for d in dialects]
        options = [o for d in ds for o in ("--upstream", f"{d.url},{d.dialect}{specs}")]
        s = stack.enter_context(Server(BATON, LOG, *options, *server))
        until("all serve", lambda: s.status()["upstreams"]["n_serving"] == len(ds))
        for d in ds:
            d.good("DELETE", "/journal")
        yield s, *ds
        until(lambda: f"a permit is held: {outstanding(s)}", lambda: sum(outstanding(s)) == 0)


def outstanding(s):
    """Of each upstream, in both lanes."""
    return [sum(u["outstanding"].values()) for u in s.status()["upstreams"]["list"]]


def send(port, method, path, data, headers):
    """The head of an answer; its body is the caller's to read."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
    c.request(method, path, data, headers)
    answer = c.getresponse()
    answer.connection = c
    return answer


def fetch(port, method, path, data=None, headers=None):
    """(status, type, Retry-After, bytes, upstream) of a whole answer."""
    answer = send(port, method, path, data, headers or {})
    with contextlib.closing(answer.connection):
        text = answer.read()
    return (answer.status, answer.getheader("Content-Type"), answer.getheader("Retry-After"), text,
            answer.getheader("X-Baton-Upstream"))


def post(s, body, path="/v1/completions", headers=None):
    return fetch(s.port, "POST", path, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})})


def code_of(said, status):
    assert said[0] == status, said
    return json.loads(said[3])["error"]["code"], json.loads(said[3])["error"]["message"]


def stream(s, body, headers=None):
    """An answer whose first event has come."""
    answer = send(s.port, "POST", "/v1/completions", json.dumps(dict(body, stream=True)),
                  {"Content-Type": "application/json", **(headers or {})})
    assert answer.status == 200 and answer.readline().startswith(b"data: {"), answer.status
    return answer


class Asked:
    """A request on a thread of its own: what became of it."""

    def __init__(self, s, body, path="/v1/completions"):
        self.said, self.socket = None, socket.create_connection(("127.0.0.1", s.port), timeout=90)
        data = json.dumps(body).encode()
        self.socket.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            b"Content-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)

    def leave(self):
        self.socket.close()

    def answer(self):
        with contextlib.closing(self.socket):
            answer = http.client.HTTPResponse(self.socket)
            answer.begin()
            return (answer.status, answer.getheader("Content-Type"), answer.getheader("Retry-After"), answer.read(),
                    answer.getheader("X-Baton-Upstream"))


def old_client(s, body):
    """HTTP/1.0 knows no chunks: the end of the connection is the end of the answer."""
    data = json.dumps(body).encode()
    c = socket.create_connection(("127.0.0.1", s.port), timeout=90)
    c.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
              % len(data) + data)
    return c


# ---- as it came ----

TEXT = b'{ "prompt" :"In the \\u0062eginning \xc3\xa9", "max_tokens": 5 , "stream":%s, "odd":[1e0,  -0.0] }'


PROXIED = ["/v1/responses", "/v1/messages", "/v1/chat/completions/batch", "/v1/systemone", "/cohere/v2/chat", "/invocations",
           "/generative_scoring", "/v1/score", "/score", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/classify", "/classify",
           "/v1/embeddings", "/v2/embed", "/encode", "/pooling", "/v1/audio/transcriptions", "/v1/audio/translations",
           "/v1/completions/render", "/v1/completions/derender", "/v1/chat/completions/derender", "/v1/responses/render",
           "/v1/messages/render", "/v1/messages/count_tokens", "/cohere/v2/chat/render", "/v1/tokenize", "/v1/detokenize",
           "/parse_function_call", "/separate_reasoning", "/v1/responses/resp_1/cancel"]


def requests_of(dialect):
    """method, path, body"""
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": N}
    ids = {"token_ids": [3, 1, 4], "sampling_params": {"max_tokens": N}}
    sglang = {"input_ids": [3, 1, 4], "sampling_params": {"max_new_tokens": N}}
    yield "POST", "/v1/completions", TEXT % b"false"
    yield "POST", "/v1/completions?a=%2B%20b+c&d", TEXT % b"true"
    for path, body in (("/v1/chat/completions", chat), ("/inference/v1/generate", ids), ("/v1/generate", ids),
                       ("/generate", sglang)):
        yield "POST", path, json.dumps(body).encode()
        query = "" if path == "/v1/generate" else "?x=1"  # a native route takes none
        yield "POST", path + query, json.dumps(dict(body, stream=True), indent=3).encode()
    yield "POST", "/v1/completions", json.dumps(completion(20_000)).encode()  # an answer that is not collected
    yield "POST", "/v1/completions", json.dumps(completion(prompt=[7] * 300_000)).encode()
    yield "POST", "/v1/chat/completions/render", json.dumps(chat).encode()
    yield "POST", "/tokenize", b'{"prompt":"H\xc3\xa9llo"}'
    yield "POST", "/detokenize", b'{"tokens":[16773449, 16773486]}'
    yield "GET", "/v1/models", None
    yield "GET", "/v1/models?x=%20y", None
    for path in PROXIED:
        yield "POST", path + "?x=%20y", json.dumps({"path": path, "stream": True}).encode()
    yield "GET", "/v1/responses/resp_1?stream=true", None
    yield "GET", "/tokenizer_info", None
    yield "POST", "/v1/audio/transcriptions", b"--b\r\n\x00\xff\r\n--b--\r\n"
    # what the upstream refuses is the upstream's to refuse
    yield "POST", "/v1/completions", b"{not json"
    yield "POST", "/v1/completions", json.dumps(completion(LONG + 1)).encode()
    yield "POST", "/detokenize", json.dumps({"tokens": [1 << 30]}).encode()
    if dialect != "sglang":
        yield "POST", "/v1/completions", json.dumps(completion(model="other")).encode()


def as_it_came(dialect):
    headers = {"Content-Type": "application/json; charset=utf-8", "X-Session-ID": "s " * 2000 + "1",
               "Authorization": "Bearer mine",
               "Accept-Encoding": "gzip", "Cookie": "a=b", **ID}
    with world(dialect, server=("--probe-interval", NEVER_MS)) as (s, d):
        for method, path, body in requests_of(dialect):
            fetch(d.port, method, path, body, headers)  # its prompt is cached from now on
            n = len(d.journal())
            said = fetch(s.port, method, path, body, headers)
            direct = fetch(d.port, method, path, body, headers)
            assert said[:4] == direct[:4] and said[4] == d.url, (path, said, direct)
            proxied, asked = [r for r in d.journal()[n:] if r["op"] != "canary"]
            for member in ("method", "path", "query", "body", "body_nbytes", "status"):
                assert proxied[member] == asked[member], (path, member, proxied, asked)
            sent = {k.lower(): v for k, v in proxied["headers"].items()}
            assert {"content-type", "x-session-id", "x-request-id", "accept-encoding", "host"} <= sent.keys(), sent
            assert not {"authorization", "cookie", "expect"} & sent.keys(), sent
            assert sent["content-type"] == headers["Content-Type"] and sent["x-session-id"] == headers["X-Session-ID"], sent
            assert sent["x-request-id"] == ID["X-Request-Id"] and sent["accept-encoding"] == "identity", sent
        assert fetch(s.port, "HEAD", "/v1/models")[:2] == (200, "application/json")
        head = send(s.port, "HEAD", "/v1/models", None, {})
        assert int(head.getheader("Content-Length")) == len(fetch(d.port, "GET", "/v1/models")[3])
        head.connection.close()
        assert fetch(s.port, "POST", "/v1/%63ompletions", json.dumps(completion()).encode())[0] in (200, 404)
        assert fetch(s.port, "GET", "/v1/completions")[0] == 405
        n = len(d.journal())
        for path in ("x/../../../pause", "..%2f..%2fpause", "%2e%2e/%2e%2e/pause", "x/./y", "x/..", ".."):
            assert fetch(s.port, "POST", "/v1/responses/" + path, b"{}", headers)[0] == 400, path
            assert fetch(s.port, "GET", "/v1/models/" + path)[0] == 400, path
        assert len(d.journal()) == n, d.journal()[n:]


# ---- routed experts ----

HANDLES = {"names": ["a"], "dtypes": ["bfloat16"], "shapes": [[1]], "ipc_handles_pickled": "gASVAAAAAAAAAAB9lC4="}
EXPERTS = {"vllm": [("/v1/completions", {"prompt": [3, 1, 4], "max_tokens": N, "routed_experts_prompt_start": 1}),
                    ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 20_000}),
                    ("/inference/v1/generate",
                     {"token_ids": [3, 1, 4], "sampling_params": {"max_tokens": N, "routed_experts_prompt_start": 2}}),
                    ("/skyrl/v1/generate", {"token_ids": [3, 1, 4], "sampling_params": {"max_tokens": N}})],
           "sglang": [("/generate", {"input_ids": [3, 1, 4], "sampling_params": {"max_new_tokens": N},
                                     "return_routed_experts": True, "routed_experts_start_len": 1})]}


def last_event(text):
    """Of a stream, or the whole reply."""
    found = [e for e in re.findall(rb"^data: (.*)$", text, re.M) if e != b"[DONE]"]
    return json.loads(found[-1] if found else text)


def rows_of(said):
    """[rows, layers, top_k], whichever form the reply has it in."""
    found = said["meta_info"] if "meta_info" in said else said["choices"][0]
    experts = found["routed_experts"]
    if "meta_info" in said:
        return np.frombuffer(base64.b64decode(experts), "<i4").reshape(-1, 3, 2)
    if isinstance(experts, str):
        return np.load(io.BytesIO(base64.b64decode(experts)))
    return np.frombuffer(base64.b64decode(experts["data"]), experts["dtype"]).reshape(experts["shape"])


def absent_route(dialect):
    """The 404 of a route that the engine lacks says so; another 404 is forwarded as it came."""
    with world(dialect, server=("--probe-interval", NEVER_MS)) as (s, d):
        for text, ours in (('{"detail":"Not Found"}', True), ('{"detail": "Not Found"}', True), ('{"detail":"no model"}', False),
                           ('{"detail":"Not Found","a":1}', False), ("Not Found", False), ("", False)):
            d.order("completions", "status", status=404, text=text)
            status, _, _, said, by = post(s, completion())
            assert status == 404 and by == d.url, (status, by)
            if not ours:
                assert said == text.encode(), (text, said)
                continue
            error = json.loads(said)["error"]
            assert f"{d.url} ({dialect}) has no route /v1/completions" in error["message"], error
            assert error["type"] == "NotFoundError" and error["code"] == 404, error


def routed_experts(dialect):
    """Asked for and returned in the engine's own form, whole and streamed, short and long."""
    with world(dialect, doubles=("--experts", "vllm"), server=("--probe-interval", NEVER_MS)) as (s, d):
        for path, body in EXPERTS[dialect]:
            for more in ({}, {"stream": True}):
                data, headers = json.dumps(dict(body, **more)).encode(), {"Content-Type": "application/json", **ID}
                fetch(d.port, "POST", path, data, headers)  # its prompt is cached from now on
                said, direct = fetch(s.port, "POST", path, data, headers), fetch(d.port, "POST", path, data, headers)
                assert said[:4] == direct[:4] and said[0] == 200, (path, said, direct)
                rows = rows_of(last_event(said[3]))
                n_prompt = len(ids_of(f"user:{PROMPT}\n")) if "messages" in body else 3
                n = body.get("max_tokens") or body["sampling_params"].get("max_tokens", N)
                start = {"/v1/completions": 1, "/inference/v1/generate": 2, "/generate": 1}.get(path, 0)
                assert rows.shape == (n_prompt + n - 1 - start, 3, 2), (path, rows.shape)


def rollouts_refused(dialect):
    """Engines of others make no batch; the refusal says what to do instead."""
    with world("baton", dialect, server=("--probe-interval", NEVER_MS)) as (s, a, b):
        code, message = code_of(post(s, {"prompts": [[1]], "sampling_params": {}}, "/v1/rollouts"), 409)
        assert code == "unsupported_in_proxy_mode" and b.url in message and "assemble_rollouts" in message, message
        assert not a.journal("rollouts") and not b.journal("rollouts")


def experts_of_two_versions():
    """The spans of the tokens mark the rows that each version computed; prime-rl's form is relayed too."""
    for form in ("vllm", "prime-rl"):
        with world("vllm", doubles=("--experts", form, "--interval-us", 2000)) as (s, d):
            d.must_be_fresh = True
            s.post("/v1/update_weights", dict(HANDLES, weight_version="one"))
            answer = send(s.port, "POST", "/inference/v1/generate",
                          json.dumps({"token_ids": [3, 1, 4], "sampling_params": {"max_tokens": 100}, "stream": True}), {})
            with contextlib.closing(answer.connection):
                head = answer.readline()
                s.post("/v1/update_weights", dict(HANDLES, weight_version="two"))
                said = last_event(head + answer.read())
            choice, rows = said["choices"][0], rows_of(said)
            spans = choice["weight_versions"]
            assert [v["version"] for v in spans] == ["one", "two"] and spans[0]["end"] == spans[1]["start"], spans
            assert len(rows) == 3 + 100 - 1 and (form == "vllm" or choice["routed_experts"]["start"] == 0), len(rows)
            made_by = [v["version"] for v in spans for _ in range(v["start"], v["end"])]
            for row, ids in enumerate(rows):
                first = tag(made_by[max(row - 2, 0)]) % 128
                assert ids.ravel().tolist() == list(range(first, first + 6)), (row, ids, first)


def keys():
    with tempfile.TemporaryDirectory() as folder:
        path, key, ours = (os.path.join(folder, name) for name in ("socket", "key", "ours"))
        for name, text in ((key, "upstreams-own-secret\n"), (ours, "control a-key-of-ours-that-is-long\n")):
            with open(name, "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
                f.write(text)
        mine = {"Authorization": "Bearer a-key-of-ours-that-is-long"}
        with Double(ENGINE, "vllm", "--unix", path, "--key", "upstreams-own-secret") as d:
            with Server(BATON, LOG, "--api-key-file", ours, "--upstream", f"{d.url},vllm,key-file={key}") as s:
                until("it serves", lambda: s.ask("GET", "/health/ready")[0] == 200)
                d.good("DELETE", "/journal")
                assert post(s, completion())[0] == 401 and d.journal("completions") == []
                said = post(s, completion(), headers=mine)
                assert said[0] == 200 and said[4] == d.url, said
                (came,) = [e for e in d.journal("completions") if e["body"] == json.dumps(completion())]
                given = {k.lower(): v for k, v in came["headers"].items()}["authorization"]
                assert given == "Bearer upstreams-own-secret", came


# ---- what an upstream says of itself ----

def odd_answers(dialect):
    with world(dialect, server=("--probe-interval", NEVER_MS)) as (s, d):
        d.order("completions", "status", status=503, text='{"busy":true}')
        assert post(s, completion())[::3] == (503, b'{"busy":true}')
        head = "HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nContent-Type: text/plain;\tcharset=utf-8\r\n"
        d.order("completions", "raw", text=head + "Content-Length: 4\r\n\r\nslow")
        assert post(s, completion())[:4] == (429, "text/plain; charset=utf-8", "7", b"slow")
        # what may not go into a head becomes blank
        d.order("completions", "raw", text="HTTP/1.1 200 OK\r\nContent-Type: a\rX-Evil:\x01b\r\nContent-Length: 2\r\n\r\nok")
        assert post(s, completion())[:4] == (200, "a X-Evil: b", None, b"ok")
        d.order("completions", "raw", text="HTTP/1.1 200 OK\r\nContent-Encoding: x-odd\r\nContent-Length: 2\r\n\r\nok")
        answer = send(s.port, "POST", "/v1/completions", json.dumps(completion()), {})
        with contextlib.closing(answer.connection):
            assert (answer.getheader("Content-Encoding"), answer.read()) == ("x-odd", b"ok")
        d.order("completions", "raw", text="HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nHTTP/9: no\r\n\r\n")
        assert post(s, completion())[::3] == (200, b"x")
        d.order("completions", "raw", text="HTTP/1.1 200 OK\r\n\r\nto the end of the connection")
        assert post(s, completion())[::3] == (200, b"to the end of the connection")
        d.order("completions", "raw", text="HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        assert post(s, completion())[::3] == (200, b"")
        d.order("completions", "raw", text="HTTP/1.1 204 No Content\r\n\r\n")
        assert post(s, completion())[::3] == (204, b"")
        d.order("completions", "raw", text="HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 1\r\n\r\nx")
        assert post(s, completion())[::3] == (201, b"x")
        bad = {"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 4\r\n\r\nthere": "redirects",
               "SSH-2.0-OpenSSH_9.2\r\n": "", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort": "",
               "HTTP/1.1 200 OK\r\nX-Long: " + "x" * 100_000 + "\r\n\r\n": "headers"}
        for text, why in bad.items():
            d.order("completions", "raw", text=text)
            said = post(s, completion())
            status, message = code_of(said, 502)
            assert status == 502 and why in message and d.url in message and said[4] == d.url, said
            assert post(s, completion())[0] == 200  # a miss is none any more when it answers


# ---- once ----

def not_twice(dialect):
    """What was sent is not sent again: not to another upstream, and not on a connection that died."""
    with world(dialect, dialect, server=("--probe-interval", NEVER_MS)) as (s, a, b):
        for kind, more in (("close_after", {}), ("close_before", {}), ("close_after", {"reset": True})):
            for d in (a, b):
                d.good("DELETE", "/fault")
                d.good("DELETE", "/journal")
                d.order("completions", kind, **more)
            said = post(s, completion())
            assert "may have been processed" in code_of(said, 502)[1], said
            assert len(a.journal("completions")) + len(b.journal("completions")) == 1
            for d in (a, b):
                d.good("DELETE", "/fault")
            for _ in range(4):  # a miss is none any more when it answers
                assert post(s, completion())[0] == 200
        for d in (a, b):
            came = d.journal("completions")
            assert came and all(e["nth_on_connection"] == 1 for e in came), came
    with world(dialect, doubles=("--idle-ms", 5), server=("--probe-interval", NEVER_MS)) as (s, d):
        for _ in range(100):  # kept connections can die at any moment: clients do not notice
            assert fetch(s.port, "POST", "/tokenize", b'{"prompt":"x"}')[0] == 200
            assert post(s, completion(1))[0] == 200
    with world(dialect, server=("--probe-interval", NEVER_MS)) as (s, d):
        for _ in range(5):
            assert fetch(s.port, "POST", "/tokenize", b'{"prompt":"x"}')[0] == 200
        assert [e["nth_on_connection"] for e in d.journal("tokenize")] == [1, 2, 3, 4, 5]


def elsewhere(dialect):
    """A request that was not sent goes to another engine; if none is left, the error says so."""
    with world(dialect, dialect, dialect, server=("--probe-interval", NEVER_MS)) as (s, a, b, c):
        a.kill()
        b.kill()
        for _ in range(6):
            said = post(s, completion())
            assert said[0] == 200 and said[4] == c.url, said
        assert len(c.journal("completions")) == 6
        states = {u["upstream"]: u["state"] for u in s.status()["upstreams"]["list"]}
        assert states == {a.url: "down", b.url: "down", c.url: "serving"}, states
        c.kill()
        for _ in range(3):
            said = post(s, completion())
            assert said[0] == 503 and said[2] == "1", said
            assert "no upstream serves" in code_of(said, 503)[1], said


def refused_text(dialect):
    """Of what an upstream wants a key for it has done nothing: another one does it, on either lane."""
    with world(dialect, dialect, server=("--probe-interval", NEVER_MS)) as (s, a, b):
        a.order("tokenize", "status", times=0, status=401, text='{"error":"Unauthorized"}')
        for _ in range(4):
            said = fetch(s.port, "POST", "/tokenize", b'{"prompt":"x"}')
            assert said[0] == 200 and said[4] == b.url, said
        assert a.journal("tokenize")
    with world(dialect, server=("--probe-interval", NEVER_MS)) as (s, d):  # our name for it is none of its own
        d.order("completions", "status", times=0, status=421, text='{"error":{"code":"misdirected_request"}}')
        said = code_of(post(s, completion()), 502)
        assert said[0] == 502 and "421" in said[1] and "--allowed-host" in said[1], said


def broken_streams(dialect):
    with world(dialect, server=("--probe-interval", NEVER_MS)) as (s, d):
        d.order("completions", "half_stream", tokens=3)
        answer = stream(s, completion(10))
        try:
            raise AssertionError(f"the end was hidden: {answer.read()}")
        except http.client.IncompleteRead as e:
            assert e.partial.count(b"data: ") == 2, e.partial
        assert post(s, completion())[0] == 200
        d.order("completions", "half_stream", tokens=3)
        old = old_client(s, completion(10, stream=True))
        with contextlib.closing(old):
            try:
                while old.recv(1 << 16):
                    pass
                raise AssertionError("to a client of HTTP/1.0 the end was hidden")
            except ConnectionResetError:
                pass
        d.order("completions", "half_stream")  # of an answer that is no stream
        assert "may have been processed" in code_of(post(s, completion()), 502)[1]
        assert post(s, completion())[0] == 200
        d.order("completions", "half_stream", times=3)  # one that always breaks off gets no requests
        for _ in range(3):
            assert "may have been processed" in code_of(post(s, completion()), 502)[1]
        assert "no upstream serves" in code_of(post(s, completion()), 503)[1]


# ---- clients that leave, and slow ones ----

def leaving(dialect):
    with world(dialect, server=("--generate-concurrency", 2, "--probe-interval", NEVER_MS),
               doubles=("--interval-us", 1000)) as (s, d):
        d.order("completions", "hang")
        silent = Asked(s, completion())
        d.wait("it came", lambda: len(d.journal("completions")) == 1)
        begun = stream(s, completion(LONG))
        waiting = Asked(s, completion(3))
        until("it waits", lambda: s.status()["admission"]["generate"]["waiting"] == 1)
        waiting.leave()
        until("it does not wait", lambda: s.status()["admission"]["generate"]["waiting"] == 0)
        for leave in (silent.leave, begun.connection.close):
            leave()
        begun.close()
        d.wait("both have left", lambda: [e["end"] for e in d.journal("completions")] == ["client_left"] * 2)
        assert s.status()["admission"]["generate"]["cancelled"] == 1


def slow_reader(dialect):
    """A client that does not read slows only its own upstream down; nothing is lost."""
    n = 30_000
    with world(dialect, doubles=("--pad", 1000), server=("--probe-interval", NEVER_MS)) as (s, d):
        with socket.socket() as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
            c.connect(("127.0.0.1", s.port))
            data = json.dumps(completion(n, stream=True)).encode()
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            d.wait("it came", lambda: d.journal("completions"))
            same, before = 0, -1
            while same < 20:  # others are served meanwhile, and it has come no further
                assert fetch(s.port, "POST", "/tokenize", b'{"prompt":"x"}')[0] == 200
                made = d.journal("completions")[0]["tokens"]
                same, before = same + 1 if made == before else 0, made
            assert 0 < made < 0.75 * n, made  # the buffers of four sockets hold the rest
            answer = http.client.HTTPResponse(c)
            answer.begin()
            text = answer.read()
        events = [json.loads(line[6:]) for line in text.split(b"\n") if line.startswith(b"data: {")]
        tokens = [t for e in events for t in ids_of(e["choices"][0]["text"])]
        assert tokens == expected(PROMPT, "step-0", 0, n) and text.rstrip().endswith(b"data: [DONE]")


# ---- choice of the engine ----

def placement(dialect):
    with world(dialect, dialect, dialect, server=("--probe-interval", NEVER_MS)) as (s, *ds):
        where = {}
        for i in range(30):
            session = {"X-Session-ID": f"session {i}"}
            where[i] = {post(s, completion(1), headers=session)[4] for _ in range(3)}
            assert len(where[i]) == 1, where[i]
        assert set().union(*where.values()) == {d.url for d in ds}, where
        ds[0].order("completions", "hang", times=0)
        ds[1].order("completions", "hang", times=0)
        held = []
        while sum(outstanding(s)) < 2:  # least outstanding: the third is tried only when both hang
            held.append(Asked(s, completion()))
            until("it is somewhere", lambda: sum(len(d.journal("completions")) for d in ds) == 90 + len(held))
            assert len(held) <= 3
        for _ in range(10):
            assert post(s, completion())[4] == ds[2].url
        for h in held:
            h.leave()
        until("they have left", lambda: sum(outstanding(s)) == 0)


def full(dialect):
    with world(dialect, server=("--generate-concurrency", 1, "--generate-queue", 1, "--probe-interval", NEVER_MS)) as (
            s, d):
        d.order("completions", "hang")
        running = Asked(s, completion())
        d.wait("it came", lambda: d.journal("completions"))
        waiting = Asked(s, completion())
        until("one waits", lambda: s.status()["admission"]["generate"]["waiting"] == 1)
        said = post(s, completion())
        assert said[0] == 503 and said[2] == "1" and "full" in code_of(said, 503)[1], said
        assert fetch(s.port, "POST", "/tokenize", b'{"prompt":"x"}')[0] == 200  # another lane
        running.leave()
        assert waiting.answer()[0] == 200


# ---- upstreams that leave ----

def silent_upstream(dialect):
    """It accepts and never answers: what it has is cut, with an answer, and what waits goes elsewhere or is told."""
    with world(dialect, server=("--probe-interval", 50, "--probe-timeout", 100, "--generate-concurrency", 2),
               doubles=("--interval-us", 1000)) as (s, d):
        d.order("completions", "hang")
        unanswered = Asked(s, completion())
        d.wait("it came", lambda: any(e["body"] == json.dumps(completion()) for e in d.journal("completions")))
        begun = stream(s, completion(LONG))
        waiting = Asked(s, completion())
        until("one waits", lambda: s.status()["admission"]["generate"]["waiting"] == 1)
        d.process.send_signal(signal.SIGSTOP)
        try:
            said = unanswered.answer()
            assert "left rotation" in code_of(said, 502)[1] and "may have been" in code_of(said, 502)[1], said
            try:
                raise AssertionError(f"the end was hidden: {begun.read()[-100:]}")
            except http.client.IncompleteRead:
                begun.connection.close()
            assert code_of(waiting.answer(), 503) and code_of(post(s, completion()), 503)
        finally:
            d.process.send_signal(signal.SIGCONT)
        until("it is back", lambda: post(s, completion())[0] == 200)


# ---- the end ----

def drain(dialect):
    with Double(ENGINE, dialect, "--weight-version", "step-0", "--interval-us", 1000) as d:
        with Server(BATON, LOG, "--upstream", f"{d.url},{dialect}", "--probe-interval", NEVER_MS) as s:
            until("it serves", s.ready)
            answer = stream(s, completion(300))
            s.process.terminate()
            text = answer.read()
            assert text.rstrip().endswith(b"data: [DONE]") and text.count(b"finish_reason\":null") == 299, text[-200:]
            assert s.process.wait(90) == 0
        with Server(BATON, LOG, "--upstream", f"{d.url},{dialect}", "--probe-interval", NEVER_MS, "--drain-timeout", 50,
                    "--generate-concurrency", 2) as s:
            until("it serves", s.ready)
            d.good("DELETE", "/journal")
            d.order("completions", "hang")
            unanswered = Asked(s, completion())
            d.wait("it came", lambda: d.journal("completions"))
            begun = stream(s, completion(LONG))
            waiting = Asked(s, completion())
            until("one waits", lambda: s.status()["admission"]["generate"]["waiting"] == 1)
            s.process.terminate()
            for each in (unanswered, waiting):
                said = each.answer()
                assert said[0] == 503 and "stopped" in code_of(said, 503)[1], said
            try:
                raise AssertionError(f"the end was hidden: {begun.read()[-100:]}")
            except http.client.IncompleteRead:
                begun.connection.close()
            assert s.process.wait(90) == 3  # its work was cut
            d.wait("all have left", lambda: [e["end"] for e in d.journal("completions")] == ["client_left"] * 2)


# ---- many ----

def crowd(dialect):
    """Clients on several loops, few permits, and some leave at any point: each answer is its own."""
    failures = []

    def client(s, i):
        chance = random.Random(i)
        try:
            for n in range(12):
                prompt, leaves = f"{i}.{n} {PROMPT}", chance.random()
                body = completion(6, stream=chance.random() < 0.5)
                body["prompt"] = prompt
                asked = Asked(s, body)
                if leaves < 0.2:
                    asked.leave()
                    continue
                if leaves < 0.4:
                    asked.socket.recv(chance.randrange(1, 400))
                    asked.leave()
                    continue
                status, _, _, text, _ = asked.answer()
                assert status == 200, (status, text)
                lines = [x[6:] for x in text.split(b"\n") if x.startswith(b"data: {")] if body["stream"] else [text]
                tokens = [t for x in lines for t in ids_of(json.loads(x)["choices"][0]["text"])]
                assert tokens == expected(prompt, "step-0", 0, 6), (prompt, text)
        except BaseException as e:
            failures.append(e)

    with world(dialect, dialect, doubles=("--interval-us", 500),
               server=("--front-threads", 3, "--generate-concurrency", 3)) as (s, a, b):
        threads = [threading.Thread(target=client, args=(s, i)) for i in range(N_CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if failures:
            raise failures[0]
        until("none waits", lambda: s.status()["admission"]["generate"]["waiting"] == 0)
        for d in (a, b):
            d.wait("none is left", lambda d=d: d.state()["running"] == 0)
            assert d.journal("completions")


def main():
    keys()
    routed_experts("vllm")
    routed_experts("sglang")
    experts_of_two_versions()
    rollouts_refused("vllm")
    rollouts_refused("sglang")
    absent_route("vllm")
    absent_route("sglang")
    for dialect in ("baton", "vllm", "sglang"):
        for promise in (as_it_came, odd_answers, not_twice, elsewhere, refused_text, broken_streams, leaving, slow_reader,
                        placement, full, silent_upstream, drain, crowd):
            print(dialect, promise.__name__, flush=True)
            promise(dialect)
    print("ok")


main()
