"""The actions that run at the same time in the soak, on one server: each is a few requests and checks of their
replies."""

import json
import os
import shutil
import signal
import socket
import time

import fault_cases
import fault_sessions
from fault_world import Fault, body_of, members_of
from soak_world import NOT_NOW, WAIT_S, Trouble, ask, explains

LIVE_S = 15  # on a machine that others use too
TEXT = "In the beginning God created the heaven and the earth."
CASES = fault_cases.CASES + fault_sessions.CASES


def good(soak, method, path, body=None, want=(200,), **more):
    reply = ask(soak.server.port, method, path, body, **more)
    if reply.status not in want:
        raise Trouble(f"{method} {path}: {reply}")
    if reply.status >= 400 and not explains(reply):
        raise Trouble(f"{method} {path}: an error that does not explain itself: {reply}")
    return reply


# ---- generations ----

def params(rng, n_tokens):
    out = {"max_tokens": n_tokens, "temperature": 0 if rng.random() < 0.7 else 1.0, "ignore_eos": rng.random() < 0.9}
    if rng.random() < 0.2:
        out["seed"] = rng.randrange(1000)
    if rng.random() < 0.2:
        out["n"] = 2
    if rng.random() < 0.2:
        out["logprobs"] = 1
    return out


def not_now(reply):
    """Refused for what a pause, a sleep or load may answer?"""
    if reply.status == 200:
        return False
    if reply.status != 503 or reply.code not in NOT_NOW | {503} or not explains(reply):  # OpenAI's form has the status
        raise Trouble(f"a generation was answered {reply}")
    return True


def joined(events):
    """Choices of a stream: ids, spans and the reason of the end, by index."""
    out = {}
    for event in events:
        if "error" in event:
            return None, event["error"]
        for choice in event.get("choices", []):
            made = out.setdefault(choice["index"], {"token_ids": [], "finish_reason": None, "weight_versions": []})
            if made["finish_reason"] is not None:
                raise Trouble(f"tokens after the end of a choice: {event}")
            made["token_ids"] = made["token_ids"] + (choice.get("token_ids") or [])
            made["finish_reason"] = choice["finish_reason"]
            made["weight_versions"] = choice.get("weight_versions", [])
    return list(out.values()), None


def judge_choices(soak, choices, floor, n_tokens, prompt, n=1):
    if len(choices) != n:
        raise Trouble(f"{len(choices)} choices, wanted {n}")
    for c in choices:
        if c["finish_reason"] not in ("length", "stop", "abort") or len(c["token_ids"]) > n_tokens:
            raise Trouble(f"it ended otherwise: {c}")
        if c["finish_reason"] == "length" and len(c["token_ids"]) != n_tokens:
            raise Trouble(f"it is shorter than it says: {c}")
        soak.truth.check(c["weight_versions"], c["token_ids"], floor, prompt)


def ids(soak, rng, path="/v1/generate", **more):
    at, n_tokens, floor = rng.randrange(len(soak.prompts)), rng.randint(1, 24), soak.truth.floor
    p = params(rng, n_tokens)
    body = {"token_ids": soak.prompts[at], "sampling_params": p, "stream": rng.random() < 0.5, **more}
    if path == "/v1/generate" and rng.random() < 0.5:
        body["on_update"] = rng.choice(["continue", "finish", "recompute"])
    reply = good(soak, "POST", path, body, (200, 503))
    if not_now(reply):
        return f"generate refused: {reply.code}"
    choices, error = joined(reply.events) if body["stream"] else (reply.body["choices"], None)
    if error is not None:
        if error["code"] not in NOT_NOW | {503}:
            raise Trouble(f"a stream ended with {error}")
        return f"generate ended: {error['code']}"
    made_by = (soak.loaded[body["model"]], at) if "model" in body else at  # an adapter's is another text
    judge_choices(soak, choices, floor, n_tokens, made_by if p["temperature"] == 0 else None, p.get("n", 1))
    return f"generate {'streamed' if body['stream'] else 'whole'}"


def ids_of_vllm(soak, rng):
    return ids(soak, rng, "/inference/v1/generate")


def ids_of_sglang(soak, rng):
    at, n_tokens, floor = rng.randrange(len(soak.prompts)), rng.randint(1, 24), soak.truth.floor
    body = {"input_ids": soak.prompts[at], "stream": rng.random() < 0.5,
            "sampling_params": {"max_new_tokens": n_tokens, "temperature": 0, "ignore_eos": True}}
    reply = ask(soak.server.port, "POST", "/generate", body)
    if reply.status != 200:
        if reply.status != 503 or not explains(reply):
            raise Trouble(f"/generate: {reply}")
        return "sglang refused"
    last = reply.events[-1] if body["stream"] else reply.body
    if "error" in last:
        return "sglang ended"
    soak.truth.check(last["meta_info"]["weight_versions"], last["output_ids"], floor, at)
    return "sglang"


def text(soak, rng):
    chat, n_tokens = rng.random() < 0.5, rng.randint(1, 24)
    body = {"max_tokens": n_tokens, "temperature": 0, "stream": rng.random() < 0.5, "return_token_ids": True}
    floor, words = soak.truth.floor, soak.texts[rng.randrange(len(soak.texts))]
    if rng.random() < 0.3:
        body["stop"] = ["the", "\n"]
    if chat:
        body["messages"] = [{"role": "user", "content": words}]
    else:
        body["prompt"] = words
    reply = good(soak, "POST", "/v1/chat/completions" if chat else "/v1/completions", body, (200, 503))
    if not_now(reply):
        return f"text refused: {reply.code}"
    choices, error = joined(reply.events) if body["stream"] else (reply.body["choices"], None)
    if error is not None:
        return f"text ended: {error['code']}"
    judge_choices(soak, choices, floor, n_tokens, None if "stop" in body else soak.texts.index(words))
    return "chat" if chat else "completion"


def left(soak, rng):
    """Its client hangs up."""
    body = {"token_ids": soak.prompts[0], "stream": True, "sampling_params": {"max_tokens": 400, "ignore_eos": True}}
    n = rng.randint(1, 5)
    ask(soak.server.port, "POST", "/v1/generate", body, then=lambda events: len(events) < n)
    return "generate left"


def slow(soak, rng):
    """It reads its stream a few bytes at a time, and goes before the end or stays."""
    n_tokens, keep = rng.randint(20, 60), rng.random() < 0.5
    body = json.dumps({"token_ids": soak.prompts[0], "stream": True, "sampling_params": {
        "max_tokens": n_tokens, "ignore_eos": True, "n": 2}}).encode()
    with socket.create_connection(("127.0.0.1", soak.server.port), timeout=WAIT_S) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.sendall(b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        said = b""
        for _ in range(60):
            said += s.recv(200)
            time.sleep(0.01)
        while keep and (piece := s.recv(65536)):
            said += piece
    if not said.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 ")) or (
            keep and b" 200 " in said[:16] and b"data: [DONE]" not in said):
        raise Trouble(f"a slow reader got {said[:200]!r} to {said[-300:]!r}")
    return "generate slowly"


def aborted(soak, rng):
    """By its id, while it runs."""
    name = f"soak-{rng.randrange(1 << 40)}"
    body = {"token_ids": soak.prompts[0], "stream": True, "request_id": name,
            "sampling_params": {"max_tokens": 600, "ignore_eos": True}}

    def abort(events):
        if len(events) == 2:
            good(soak, "POST", "/v1/abort_requests", {"request_ids": [name]})
    reply = good(soak, "POST", "/inference/v1/generate", body, (200, 503), then=abort)
    if not_now(reply):
        return f"generate refused: {reply.code}"
    return "generate aborted"


# ---- readers, and unrelated requests ----

def live(soak, rng):
    """Whatever goes on."""
    path, began = rng.choice(["/health", "/health/live", "/livez", "/ping", "/v2/health/live"]), time.monotonic()
    good(soak, "GET", path)
    if time.monotonic() - began > LIVE_S:
        raise Trouble(f"{path} took {time.monotonic() - began:.1f} s")
    return "live"


def views(soak, rng):
    path = rng.choice(["/v1/status", "/v1/models", "/version", "/load", "/get_model_info", "/get_server_info",
                       "/is_paused", "/is_sleeping", "/v1/lora_adapters", "/weight_info", "/get_weight_version"])
    if not isinstance(good(soak, "GET", path).body, (dict, list)):
        raise Trouble(f"{path} is no JSON")
    return "views"


def metrics(soak, rng):
    for line in good(soak, "GET", "/metrics").raw.decode().splitlines():
        if not line.startswith("#"):
            float(line.rsplit(" ", 1)[1])


def upstreams(soak, rng):
    good(soak, "GET", "/v1/upstreams", want=(409,))


def flood(soak, rng):
    words = TEXT * rng.choice([1, 20, 500]) + rng.choice(["", "é😀", "\n\n"])
    tokens = good(soak, "POST", "/tokenize", {"prompt": words}).body["tokens"]
    if good(soak, "POST", "/detokenize", {"tokens": tokens}).body["prompt"] != words:
        raise Trouble("a text does not come back from its tokens")
    reply = good(soak, "POST", "/detokenize", {"tokens": [1, rng.choice([-1, 1 << 40, "x", 1.5, None])]}, want=(400,))
    if reply.body["error"]["param"] != "tokens.1":
        raise Trouble(f"the id is not named: {reply}")
    return "tokenize"


HOSTILE = [b"", b"\r\n", b"GET", b"GET / HTTP/1.1\r\n", b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 90000,
           b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n{", b"\x16\x03\x01\x02\x00" * 40,
           b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
           b"BREW /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n",
           b"POST /v1/pause HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]",
           b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n{}\n"]


def hostile(soak, rng):
    """It is answered with a refusal, or closed; it never delays other clients."""
    with socket.create_connection(("127.0.0.1", soak.server.port), timeout=WAIT_S) as s:
        data = rng.choice(HOSTILE)
        for piece in (data[:len(data) // 2], data[len(data) // 2:]):  # slowly
            try:
                s.sendall(piece)
            except OSError:
                return
            time.sleep(rng.random() * 0.1)
        if rng.random() < 0.5:
            return
        said = b""
        try:
            s.shutdown(socket.SHUT_WR)
            while piece := s.recv(65536):
                said += piece
        except TimeoutError as e:
            raise Trouble(f"{data[:60]!r} was neither answered nor closed") from e
        except OSError:
            pass  # closed
        if said and not said.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501", b"HTTP/1.1 505", b"HTTP/1.1 100")):
            raise Trouble(f"{data[:60]!r} was answered {said[:300]!r}")


def bad_requests(soak, rng):
    path, body = rng.choice([("/v1/generate", {"token_ids": [-1]}), ("/v1/generate", {"token_ids": "x"}),
                             ("/v1/generate", {"token_ids": [1], "sampling_params": {"temperature": "hot"}}),
                             ("/v1/completions", {"prompt": []}), ("/v1/chat/completions", {"messages": []}),
                             ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "x"}]}]}),
                             ("/v1/pause", {"mode": "now"}), ("/v1/sleep", {"level": 9}), ("/v1/wake", {"tags": [1]}),
                             ("/v1/abort_requests", {}), ("/v1/load_lora_adapter", {"lora_name": ""})])
    good(soak, "POST", path, body, want=(400,))


# ---- adapters, on a thread of their own ----

def load_adapter(soak, rng):
    name, kind = rng.choice(["one", "two"]), rng.choice(["shout", "rslora"])
    reply = good(soak, "POST", "/v1/load_lora_adapter", {
        "lora_name": name, "lora_path": os.path.join(soak.adapters, kind), "load_inplace": True}, (200, 409, 503))
    if reply.status == 200:
        soak.loaded[name] = kind
    return f"lora load {reply.status}"


def unload_adapter(soak, rng):
    name = rng.choice(["one", "two", "nobody"])
    reply = good(soak, "POST", "/v1/unload_lora_adapter", {"lora_name": name}, (200, 404))
    if (reply.status == 200) != (name in soak.loaded):
        raise Trouble(f"{name} of {soak.loaded}: {reply}")
    soak.loaded.pop(name, None)
    return f"lora unload {reply.status}"


def generate_adapted(soak, rng):
    if not soak.loaded:
        return "lora generate: none"
    return "lora " + ids(soak, rng, model=rng.choice(sorted(soak.loaded)))


def broken_adapter(soak, rng):
    """Refused, and what has that name stays as it was."""
    path = os.path.join(soak.root, "broken")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(os.path.join(soak.adapters, "shout"), path)
    how = rng.choice(["config", "cut", "missing", "rank"])
    if how == "missing":
        os.unlink(os.path.join(path, "adapter_model.safetensors"))
    else:
        name = "adapter_model.safetensors" if how == "cut" else "adapter_config.json"
        with open(os.path.join(path, name), "r+b") as f:
            data = f.read()
            f.seek(0)
            f.truncate()
            if how == "cut":
                f.write(data[:len(data) // 2])
            else:
                f.write(json.dumps(dict(json.loads(data), **({"r": 0} if how == "rank" else {"use_dora": True}))).encode())
    good(soak, "POST", "/v1/load_lora_adapter", {"lora_name": rng.choice(["broken", "one"]), "lora_path": path,
                                                 "load_inplace": True}, (400, 404, 413, 422, 503))
    return f"lora broken: {how}"


# ---- what changes what is served: one thread, which knows exactly what that is ----

def valid(soak, rng):
    case = rng.choice(fault_sessions.VALID)
    case(soak.world)
    soak.world.check()
    return f"update {case.__name__}"


def faulted(soak, rng):
    case = rng.choice(CASES) if rng.random() < 0.98 else fault_sessions.lease_lost
    soak.doing = case.__name__
    try:
        case(soak.world)
        soak.world.check()
    except Fault as e:
        raise Trouble(f"{case.__name__}: {e}") from e
    return "update faulted"


def by_plan(soak, rng):
    w = soak.world
    rows, label = fault_cases.rows_of(w), w.new_label()
    body = members_of(rows, sums=False, label=label)
    plan = w.ask("POST", "/v1/weights/plans", {k: body[k] for k in ("names", "dtypes", "shapes")})
    answer = w.ask("POST", "/v1/update_weights", {"plan_id": plan.body["plan_id"], "shm": body["shm"],
                                                  "weight_version": label})
    w.committed(answer, rows, label)
    w.check()


def by_dialect(soak, rng):
    """As clients of SGLang and prime-rl push a checkpoint from the disk."""
    w = soak.world
    rows = fault_cases.rows_of(w)
    directory = os.path.join(w.root, "dialect")
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "model.safetensors"), "wb") as f:
        f.write(body_of(rows))
    path, body = rng.choice([("/update_weights_from_disk", {"model_path": directory}),
                             ("/update_weights", {"weight_dir": directory})])
    answer = w.ask("POST", path, body)
    if answer.status != 200:
        raise Trouble(f"{path}: {answer}")
    w.adopt(rows)
    w.check()
    return f"update {path}"


def relabelled(soak, rng):
    soak.world.relabel(soak.world.new_label())
    soak.world.check()
    if soak.world.status()["weights"]["weight_version"] != soak.world.label:
        raise Trouble("status has another label")


def ready(soak, rng):
    """Nobody pauses or sleeps now: it is ready, and a generation is served."""
    w = soak.world
    said = w.ask("GET", "/readyz")
    if said.status != 200 or said.body["ready"] is not True:
        raise Trouble(f"it should be ready: {said}")
    reply = ask(soak.server.port, "POST", "/v1/generate", {"token_ids": soak.prompts[0], "sampling_params": {
        "max_tokens": 24, "temperature": 0, "ignore_eos": True}})
    if reply.status != 200:
        raise Trouble(f"it was ready: {reply}")
    choice = reply.body["choices"][0]
    if [s["serial"] for s in choice["weight_versions"]] != [w.serial]:
        raise Trouble(f"{w.label} serves: {reply}")
    soak.truth.check(choice["weight_versions"], choice["token_ids"], w.serial, 0)


def paused(soak, rng):
    """In any mode, with what goes on meanwhile; ended by its owner or by its lease."""
    mode, reject, lease = rng.choice(["keep", "wait", "abort"]), rng.random() < 0.3, rng.random() < 0.3
    body = {"mode": mode, "new_requests": "reject" if reject else "queue", "lease_s": 1 if lease else 300,
            "timeout_s": 60}
    w = soak.world
    answer = w.ask("POST", "/v1/pause", body)
    if answer.status != 200 or answer.body["paused"] is not True:
        raise Trouble(f"a pause was answered {answer}")
    if not lease:
        if w.ask("GET", "/readyz").status != 503:
            raise Trouble("paused, and ready")
        for _ in range(rng.randint(0, 2)):
            rng.choice([valid, faulted, by_plan])(soak, rng)
        w.ask("POST", "/v1/resume")
    w.wait("nobody pauses", lambda: w.status()["pause"] is None)
    return f"pause {mode}{', rejecting' if reject else ''}{', to its lease' if lease else ''}"


def asleep(soak, rng):
    level, tags = rng.choice([1, 2]), rng.choice([None, ["weights"], ["kv_cache"], ["weights", "kv_cache"]])
    w = soak.world
    answer = w.ask("POST", "/v1/sleep", dict({"level": level}, **({"tags": tags} if tags else {})))
    if answer.status != 200:
        raise Trouble(f"a sleep was answered {answer}")
    if w.ask("GET", "/readyz").status != 503:
        raise Trouble("asleep, and ready")
    if level == 2 and (tags is None or "weights" in tags):
        fault_sessions.valid(w)
    answer = w.ask("POST", "/v1/wake", {})
    if answer.status != 200:
        raise Trouble(f"a wake was answered {answer}")
    w.check()
    ready(soak, rng)
    return f"sleep level {level}, {' '.join(tags or ['all'])}"


def hang_up_signal(soak, rng):
    os.kill(soak.server.pid, signal.SIGHUP)


def preflight(soak, rng):
    good(soak, "POST", "/v1/preflight", {}, want=(200, 400, 409))
    good(soak, "GET", "/v1/weights/handles", want=(409,))  # the weights lie in host memory
    good(soak, "POST", "/v1/weights/handles/renew", {"lease_id": "none", "lease_s": 5}, want=(404, 409))
    good(soak, "POST", "/v1/reset_cache")


CHANGES = [valid] * 6 + [faulted] * 14 + [by_plan, by_dialect, relabelled, ready, ready, paused, paused, asleep,
                                          hang_up_signal, preflight]
GENERATES = [ids] * 5 + [ids_of_vllm, ids_of_sglang, text, text, text, left, aborted, slow]
READS = [live] * 3 + [views, views, metrics, upstreams, flood, hostile, hostile, bad_requests]
ADAPTERS = [load_adapter, load_adapter, generate_adapted, generate_adapted, generate_adapted, unload_adapter,
            broken_adapter]
