"""Adapters over HTTP, one command each: golden, chat, words, reload, failed, partial, written, unload,
races, sources, update, states, drain, limits, soak.

Usage: lora.py URL MODEL WORK COMMAND [RELOADS | PID LOG] (the last line says how many checks were made)
"""
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import sys
import threading
import time
import urllib.parse

URL, MODEL, WORK, COMMAND = sys.argv[1:5]
HOST, PORT = "127.0.0.1", int(URL.rsplit(":", 1)[1])
ADAPTERS = f"{MODEL}/adapters"
PATIENCE_S = 200
TOLERANCE = 1e-4
n_checks = 0


def check(condition, *what):
    global n_checks
    n_checks += 1
    assert condition, what


def ask(method, path, body=None, content_type="application/json"):
    """(status, answer)"""
    c = http.client.HTTPConnection(HOST, PORT, timeout=PATIENCE_S)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body)
    c.request(method, path, data, {"Content-Type": content_type} if data is not None else {})
    r = c.getresponse()
    text = r.read()
    c.close()
    return r.status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()


def call(method, path, body=None, want=200, **more):
    status, answer = ask(method, path, body, **more)
    check(status == want, method, path, status, want, answer)
    return answer


def post(path, body=None, want=200):
    return call("POST", path, body, want)


def load(name, path, want=200, **more):
    if not path.startswith("/"):
        path = f"{ADAPTERS}/{path}"
    return post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **more}, want)


def unload(name, want=200):
    return post("/v1/unload_lora_adapter", {"lora_name": name}, want)


def totals():
    return call("GET", "/v1/lora_adapters")["totals"]


def listed():
    return {a["lora_name"]: a for a in call("GET", "/v1/lora_adapters")["adapters"]}


def gauge(name):
    for line in call("GET", "/metrics").splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    raise AssertionError(name)


def wait_for(what, test, patience_s=PATIENCE_S):
    end = time.monotonic() + patience_s
    while not test():
        assert time.monotonic() < end, (what, totals())
        time.sleep(0.005)


def golden(kind):
    with open(f"{ADAPTERS}/{kind}/golden.json", encoding="utf-8") as f:
        return json.load(f)["cases"]


def golden_base(step):
    with open(f"{MODEL}/golden.json", encoding="utf-8") as f:
        return json.load(f)["checkpoints"][step]["cases"]


def body_of(case, model=None, **more):
    body = {"token_ids": case["prompt_token_ids"],
            "sampling_params": {"max_tokens": len(case["greedy_token_ids"]), "temperature": 0,
                                "ignore_eos": True, "logprobs": 0, "prompt_logprobs": 0}, **more}
    return body if model is None else dict(body, model=model)


def is_golden(answer, case):
    return answer["choices"][0]["token_ids"] == case["greedy_token_ids"]


def near(found, wanted):
    check(abs(found - wanted) < TOLERANCE, found, wanted)


def compare(answer, case):
    choice = answer["choices"][0]
    check(is_golden(answer, case), choice["token_ids"], case["greedy_token_ids"])
    for token, wanted in zip(choice["logprobs"]["content"], case["greedy_logprobs"]):
        near(token["logprob"], wanted)
    prompt = answer["prompt_logprobs"]
    check(len(prompt) == len(case["prompt_token_ids"]))
    for at, token, wanted in zip(prompt[1:], case["prompt_token_ids"][1:],
                                 case["prompt_logprobs"][1:]):
        near(at[str(token)]["logprob"], wanted)


def serves(name, kind, revision):
    """What `name` generates is exactly what that adapter does, and the reply says so."""
    case = golden(kind)[0]
    answer = post("/v1/generate", body_of(case, name))
    check(answer["model"] == name and answer["adapter"] == {"name": name, "revision": revision},
          answer["model"], answer["adapter"])
    compare(answer, case)


def in_threads(jobs):
    failures = []

    def run(job):
        try:
            job()
        except BaseException as e:  # noqa: BLE001
            failures.append(e)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]


# ---- files ----


def read_tensors(path):
    with open(path, "rb") as f:
        data = f.read()
    (n,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8:8 + n])
    head.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[8 + n:][slice(*v["data_offsets"])])
            for k, v in head.items()}


def safetensors(tensors, metadata=None):
    head, at = {}, 0
    if metadata:
        head["__metadata__"] = metadata
    for name, (dtype, shape, raw) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values())


def config_of(kind):
    with open(f"{ADAPTERS}/{kind}/adapter_config.json", encoding="utf-8") as f:
        return json.load(f)


def directory(name, tensors, config):
    path = f"{WORK}/{name}"
    os.makedirs(path, exist_ok=True)
    with open(f"{path}/adapter_config.json", "w", encoding="utf-8") as f:
        json.dump(config, f)
    with open(f"{path}/adapter_model.safetensors", "wb") as f:
        f.write(safetensors(tensors))
    return path


def tensors_of(kind):
    return read_tensors(f"{ADAPTERS}/{kind}/adapter_model.safetensors")


# ---- commands ----


def run_golden():
    """All cases of both adapters and of the base model, at once."""
    first = load("shout", "shout")
    check(first["revision"] == 1 and not first["unchanged"] and not first["replaced"], first)
    check(first["n_matched"] == len(first["matched"]) == len(tensors_of("shout")), first)
    check(first["unmatched"] == first["ignored"] == first["missing"] == [], first)
    load("rslora", "rslora")

    def one(model, case):
        answer = post("/v1/generate", body_of(case, model))
        check(answer["adapter"] == (model and {"name": model, "revision": 1}), answer["adapter"])
        check(answer["model"] == (model or os.path.basename(MODEL)), answer["model"])
        compare(answer, case)

    in_threads([lambda m=m, c=c: one(m, c) for m, cases in
                (("shout", golden("shout")), ("rslora", golden("rslora")),
                 (None, golden_base("step-01500"))) for c in cases])
    wait_for("nobody uses them", lambda: gauge("baton_lora_users") == 0)


def run_chat():
    """Chat through a template that makes the message itself: what an adapter does with that prompt."""
    load("shout", "shout")
    load("rslora", "rslora")

    def one(kind, case):
        body = {"model": kind, "messages": [{"role": "user", "content": case["prompt"]}],
                "max_tokens": len(case["greedy_token_ids"]), "temperature": 0, "ignore_eos": True,
                "logprobs": True, "top_logprobs": 1, "return_token_ids": True}
        answer = post("/v1/chat/completions", body)
        choice = answer["choices"][0]
        check(answer["prompt_token_ids"] == case["prompt_token_ids"], answer["prompt_token_ids"])
        check(choice["token_ids"] == case["greedy_token_ids"], kind, choice["token_ids"])
        check(choice["message"]["content"] == case["greedy_text"], choice["message"])
        check(answer["model"] == kind and answer["adapter"] == {"name": kind, "revision": 1}, answer)
        for token, wanted in zip(choice["logprobs"]["content"], case["greedy_logprobs"]):
            near(token["logprob"], wanted)

    in_threads([lambda k=k, c=c: one(k, c) for k in ("shout", "rslora") for c in golden(k)])
    case = golden("shout")[0]
    said = {"messages": [{"role": "user", "content": case["prompt"]}], "max_tokens": 24,
            "temperature": 0, "ignore_eos": True}
    error = post("/v1/chat/completions", {"model": "nope", **said}, 404)["error"]
    check(error["param"].lstrip("/") == "model" and "nope" in error["message"], error)
    base = golden_base("step-01500")[0]
    check(base["prompt"] == case["prompt"], base["prompt"])
    text = post("/v1/chat/completions", {"model": os.path.basename(MODEL), **said})
    check(base["greedy_text"].startswith(text["choices"][0]["message"]["content"]), text)
    check(text["adapter"] is None, text)
    c = http.client.HTTPConnection(HOST, PORT, timeout=PATIENCE_S)
    c.request("POST", "/v1/chat/completions", json.dumps({"model": "shout", "stream": True, **said}),
              {"Content-Type": "application/json"})
    events = [json.loads(e[len("data: "):]) for e in c.getresponse().read().decode().split("\n\n")
              if e[6:7] == "{"]
    check(all(e["model"] == "shout" and e["adapter"] == {"name": "shout", "revision": 1}
              for e in events), events[0])
    whole = "".join(choice["delta"].get("content") or "" for e in events for choice in e["choices"])
    check(whole and case["greedy_text"].startswith(whole), whole)
    cards = {m["id"]: m for m in call("GET", "/v1/models")["data"]}
    check({k: v["parent"] for k, v in cards.items()} ==
          {os.path.basename(MODEL): None, MODEL: None, "shout": os.path.basename(MODEL),
           "rslora": os.path.basename(MODEL)}, cards)


def run_races():
    """Loads, reloads and unloads of one name at once, with generations: a revision is one content for
    ever, each output is of the one that it reports, and nothing is left."""
    kinds = {"shout": golden("shout")[0], "rslora": golden("rslora")[0]}
    over, lock, content, counts = threading.Event(), threading.Lock(), {}, {}

    def count(what):
        with lock:
            counts[what] = counts.get(what, 0) + 1

    def means(revision, kind):
        with lock:
            assert content.setdefault(revision, kind) == kind, (revision, kind)

    def loader(k):
        for i in range(60):
            kind = ("shout", "rslora")[(i + k) % 2]
            body = {"lora_name": "x", "lora_path": f"{ADAPTERS}/{kind}"}
            if i % 3 == 1:
                body["load_inplace"] = False
            elif i % 3 == 2:
                body["if_revision"] = max(content, default=0)
            status, answer = ask("POST", "/v1/load_lora_adapter", body)
            assert status in ((200,), (200, 400), (200, 409))[i % 3], (body, status, answer)
            count(status)
            if status == 200:
                means(answer["revision"], kind)

    def unloader():
        while not over.is_set():
            status, answer = ask("POST", "/v1/unload_lora_adapter", {"lora_name": "x"})
            assert status in (200, 404), answer
            count(f"unload {status}")

    def client():
        while not over.is_set():
            case = kinds["shout"]
            status, answer = ask("POST", "/v1/generate", dict(body_of(case, "x"), stream=False))
            count(f"generate {status}")
            if status == 404:
                continue
            assert status == 200, answer
            check(case["prompt_token_ids"] == kinds["rslora"]["prompt_token_ids"])
            kind = next((k for k, c in kinds.items() if is_golden(answer, c)), None)
            assert kind is not None, answer
            means(answer["adapter"]["revision"], kind)

    def loaders():
        try:
            in_threads([lambda k=k: loader(k) for k in range(4)])
        finally:
            over.set()

    in_threads([loaders, unloader] + [client] * 3)
    check(counts[200] > 50 and counts["unload 200"] > 5 and counts["generate 200"] > 0, counts)
    ask("POST", "/v1/unload_lora_adapter", {"lora_name": "x"})
    wait_for("all is given back", lambda: gauge("baton_lora_bytes") == 0, 10)
    check(totals()["loading"] == totals()["nbytes_reserved"] == totals()["users"] == 0, totals())

    # Of those that ask for one and the same next revision, one gets it.
    first = load("y", "shout")["revision"]
    for i in range(20):
        kind = ("rslora", "shout")[i % 2]
        answers = []
        body = {"lora_name": "y", "lora_path": f"{ADAPTERS}/{kind}", "if_revision": first + i}
        in_threads([lambda: answers.append(ask("POST", "/v1/load_lora_adapter", body))] * 6)
        won = [a for status, a in answers if status == 200]
        check(len(won) == 1 and won[0]["revision"] == first + i + 1, answers)
        check({status for status, _ in answers} <= {200, 409}, answers)
        check(listed()["y"]["digest"] == won[0]["digest"])
    unload("y")


def run_words():
    """Selection on every route, unknown names, what lists say, what load refuses."""
    name = "größe-1 / x"
    load(name, "shout", pinned=True)
    case = golden("shout")[0]
    answer = post("/inference/v1/generate", body_of(case, name, request_id="r"))
    check(is_golden(answer, case) and answer["adapter"]["name"] == name, answer)
    text = {"model": name, "prompt": case["prompt"], "max_tokens": 24, "temperature": 0}
    answer = post("/v1/completions", text)
    check(answer["choices"][0]["text"] == case["greedy_text"][:len(answer["choices"][0]["text"])] and
          answer["adapter"] == {"name": name, "revision": 1} and answer["model"] == name, answer)
    c = http.client.HTTPConnection(HOST, PORT, timeout=PATIENCE_S)
    body = body_of(case, name, stream=True)
    del body["sampling_params"]["prompt_logprobs"]
    c.request("POST", "/v1/generate", json.dumps(body), {"Content-Type": "application/json"})
    events = [e for e in c.getresponse().read().decode().split("\n\n") if e][:-1]
    check(events)  # on a busy machine one event has several tokens
    ids = []
    for event in events:
        event = json.loads(event[len("data: "):])
        check(event["adapter"] == {"name": name, "revision": 1} and event["model"] == name, event)
        ids += [t for choice in event["choices"] for t in choice["token_ids"]]
    check(ids == case["greedy_token_ids"], ids)

    for path, body in (("/v1/generate", body_of(case, "nope")),
                       ("/inference/v1/generate", body_of(case, "nope")),
                       ("/v1/completions", dict(text, model="nope")),
                       ("/tokenize", {"model": "nope", "prompt": "x"})):
        error = post(path, body, 404)["error"]
        check(error["param"].lstrip("/") == "model" and "nope" in error["message"], error)
    post("/tokenize", {"model": name, "prompt": "x"})

    cards = {m["id"]: m for m in call("GET", "/v1/models")["data"]}
    check(set(cards) == {os.path.basename(MODEL), MODEL, name}, cards)
    check(cards[name]["parent"] == os.path.basename(MODEL) and
          cards[name]["root"] == f"{ADAPTERS}/shout" and cards[name]["revision"] == 1, cards[name])
    item = listed()[name]
    check(item["pinned"] and item["path"] == f"{ADAPTERS}/shout" and
          item["digest"] == cards[name]["digest"] and item["n_users_older"] == 0, item)
    check(call("GET", "/v1/status")["adapters"]["loaded"] == 1)

    for body, status, param in (
            ({"lora_path": "x"}, 400, "/lora_name"),
            ({"lora_name": "", "lora_path": f"{ADAPTERS}/shout"}, 400, "/lora_name"),
            ({"lora_name": os.path.basename(MODEL), "lora_path": f"{ADAPTERS}/shout"}, 400,
             "/lora_name"),
            ({"lora_name": "a\nb", "lora_path": f"{ADAPTERS}/shout"}, 400, "/lora_name"),
            ({"lora_name": "a"}, 400, None),
            ({"lora_name": "a", "lora_path": ""}, 400, "/lora_path"),
            ({"lora_name": "a", "lora_path": "/etc"}, 403, "/lora_path"),
            ({"lora_name": "a", "lora_path": f"{WORK}/../../etc"}, 403, "/lora_path"),
            ({"lora_name": "a", "lora_path": f"{WORK}/none", "timeout_s": 0}, 404, "/lora_path"),
            ({"lora_name": "a", "lora_path": f"{ADAPTERS}/shout", "timeout_s": 3601}, 400, "/timeout_s"),
            ({"lora_name": "a", "lora_path": f"{ADAPTERS}/shout", "if_revision": 3}, 409,
             "/if_revision"),
            ({"lora_name": "a", "lora_path": f"{ADAPTERS}/shout", "shm": {}}, 400, "/shm"),
            ({"lora_name": "a", "lora_path": f"{ADAPTERS}/shout", "lora_pth": 1}, 400, "/lora_pth"),
            ({"lora_name": "a", "lora_path": f"{ADAPTERS}/shout", "is_3d_lora_weight": True}, 400,
             "/is_3d_lora_weight"),
            ({"lora_name": name, "lora_path": f"{ADAPTERS}/rslora", "load_inplace": False}, 400,
             "/lora_name")):
        error = post("/v1/load_lora_adapter", body, status)["error"]
        check(error["param"] == param, body, error)
    unload("a", 404)
    check(set(listed()) == {name})
    check(totals()["nbytes_reserved"] == totals()["loading"] == 0, totals())


def run_reload():
    """The next revision, nothing for the same bytes, compare-and-swap, files written in place."""
    path = directory("r", tensors_of("shout"), config_of("shout"))
    first = load("r", path)
    again = load("r", path)
    check(again["unchanged"] and again["revision"] == 1 and again["digest"] == first["digest"])
    copy = directory("copy", dict(reversed(tensors_of("shout").items())), config_of("shout"))
    check(load("r", copy)["unchanged"], "the order of a file is not content")
    serves("r", "shout", 1)
    directory("r", tensors_of("rslora"), config_of("rslora"))
    serves("r", "shout", 1)  # nothing of the file is kept
    second = load("r", path)
    check(second["revision"] == 2 and second["replaced"] and second["digest"] != first["digest"])
    serves("r", "rslora", 2)
    check(load("r", "shout", if_revision=2)["revision"] == 3)
    error = load("r", "rslora", 409, if_revision=2)["error"]
    check("revision 3, not 2" in error["message"], error)
    serves("r", "shout", 3)
    check(load("new", "shout", if_revision=0)["revision"] >= 1)
    load("new", "rslora", 409, if_revision=0)
    shutil.rmtree(path)
    serves("r", "shout", 3)
    check(listed()["r"]["revision"] == 3)


def run_failed():
    """A load that fails changes nothing of what serves."""
    tensors, config = tensors_of("rslora"), config_of("rslora")
    load("f", "shout")
    name = next(iter(tensors))
    dtype, shape, raw = tensors[name]
    bad = {
        "shape": (dict(tensors, **{name: (dtype, [shape[0], shape[1] // 2], raw[:len(raw) // 2])}),
                  config, 422),
        "half": ({k: v for k, v in tensors.items() if k != name}, config, 422),
        "dora": (tensors, dict(config, use_dora=True), 400),
        "bias": (tensors, dict(config, bias="all"), 400),
        "rank": (tensors, dict(config, r=3), 422),
        "foreign": ({k.replace("model.model", "other.stack"): v for k, v in tensors.items()},
                    config, 422),
        "lm_head": (dict(tensors, **{"base_model.model.lm_head.lora_A.weight": (dtype, shape, raw)}),
                    config, 400),
    }
    for what, (t, c, status) in bad.items():
        error = load("f", directory(what, t, c), status)["error"]
        check(len(error["message"]) > 10, what, error)
        serves("f", "shout", 1)
    for what, blob in (("torn", safetensors(tensors)[:-100]), ("junk", b"x" * 5000)):
        path = directory(what, tensors, config)
        with open(f"{path}/adapter_model.safetensors", "wb") as f:
            f.write(blob)
        status, answer = ask("POST", "/v1/load_lora_adapter",
                             {"lora_name": "f", "lora_path": path, "timeout_s": 1})
        check(400 <= status < 500, status, answer)
        serves("f", "shout", 1)
    load("g", f"{WORK}/shape", 422)
    check(set(listed()) == {"f"} and totals()["nbytes_reserved"] == 0)


def run_partial():
    """What matches only in part is refused, unless it is allowed; then the reply says what."""
    tensors, config = tensors_of("shout"), config_of("shout")
    extra = {f"base_model.model.model.layers.99.self_attn.q_proj.lora_{h}.weight": tensors[
        f"base_model.model.model.layers.0.self_attn.q_proj.lora_{h}.weight"] for h in "AB"}
    path = directory("p", {**tensors, **extra}, config)
    error = load("p", path, 422)["error"]
    check("layers.99" in error["message"], error)
    reply = load("p", path, allow_partial=True)
    check(sorted(reply["unmatched"]) == sorted(extra) and reply["n_unmatched"] == 2, reply)
    check(reply["n_matched"] == len(tensors))
    serves("p", "shout", 1)
    some = {k: v for k, v in tensors.items() if "q_proj" in k}
    path = directory("some", some, config)
    load("some", path, 422)
    reply = load("some", path, allow_partial=True)
    check(reply["n_matched"] == len(some) and reply["n_missing"] > 0, reply)
    path = directory("nothing", extra, config)
    load("nothing", path, 422, allow_partial=True)


def run_written():
    """A directory that is still being written is waited for; other work is not kept waiting."""
    answers = {}

    def begin(name):
        status, answers[name] = ask("POST", "/v1/load_lora_adapter",
                                    {"lora_name": name, "lora_path": f"{WORK}/late-{name}",
                                     "timeout_s": 600})
        assert status == 200, answers[name]

    names = [f"w{i}" for i in range(12)]  # more than there are threads for
    threads = [threading.Thread(target=begin, args=(n,), daemon=True) for n in names]
    for t in threads:
        t.start()
    wait_for("all wait", lambda: totals()["loading"] == len(names))
    post("/v1/pause", {})
    post("/v1/resume")
    check(call("GET", "/v1/weights") is not None)
    check(load("there", "shout", timeout_s=600)["revision"] == 1)
    check(totals()["loading"] == len(names))
    began = time.monotonic()
    error = post("/v1/load_lora_adapter", {"lora_name": "typo", "lora_path": f"{WORK}/mistyped"}, 404)["error"]
    check("mistyped" in error["message"] and 4.5 < time.monotonic() - began < 60, error, time.monotonic() - began)
    error = load("short", f"{WORK}/late-never", 404, timeout_s=1)["error"]
    check("late-never" in error["message"] and totals()["loading"] == len(names), error)
    case = golden_base("step-01500")[0]
    check(is_golden(post("/v1/generate", body_of(case)), case))
    for n in names:
        post("/v1/generate", body_of(case, n), 404)  # being loaded is not loaded
        directory(f"late-{n}", tensors_of("shout"), config_of("shout"))
    for t in threads:
        t.join()
    for n in names:
        check(answers[n]["revision"] == 1, answers)
        serves(n, "shout", 1)

    # Nobody waits on for clients that went. So many may wait, and no more.
    for n in (1, 256):
        clients = [http.client.HTTPConnection(HOST, PORT, timeout=PATIENCE_S) for _ in range(n)]
        for c in clients:
            c.request("POST", "/v1/load_lora_adapter",
                      json.dumps({"lora_name": "gone", "lora_path": f"{WORK}/never", "timeout_s": 600}),
                      {"Content-Type": "application/json"})
        wait_for("they wait", lambda: totals()["loading"] == n)
        if n > 1:
            error = load("more", "shout", 503)["error"]
            check(error["code"] == "overloaded" and "256" in error["message"], error)
        for c in clients:
            c.close()
        wait_for("they were given up", lambda: totals()["loading"] == 0)
        check(load("after", "shout")["unchanged"] == (n > 1))
    unload("gone", 404)


class Held:
    """A streamed generate that is kept from ending by a pause."""

    def __init__(self, model):
        self.case = golden("shout")[0]
        body = body_of(self.case, model, stream=True)
        body["sampling_params"] = {"max_tokens": 1000, "temperature": 0, "ignore_eos": True}
        self.http = http.client.HTTPConnection(HOST, PORT, timeout=PATIENCE_S)
        self.http.request("POST", "/v1/generate", json.dumps(body),
                          {"Content-Type": "application/json"})
        self.answer = self.http.getresponse()
        assert self.answer.status == 200, self.answer.read()
        self.first = self.answer.readline()
        post("/v1/pause", {})

    def end(self):
        """(ids, adapter) of the whole."""
        post("/v1/resume")
        text = (self.first + self.answer.read()).decode()
        events = [json.loads(e[len("data: "):]) for e in text.split("\n\n") if e[6:7] == "{"]
        assert text.endswith("data: [DONE]\n\n"), text[-300:]
        check(all(e["adapter"] == events[0]["adapter"] for e in events))
        return ([t for e in events for c in e["choices"] for t in c["token_ids"]],
                events[0]["adapter"])


def run_unload():
    """Who uses a revision keeps it, through a reload and an unload; then the memory is back."""
    nbytes = load("u", "shout")["nbytes"]
    held = Held("u")
    check(listed()["u"]["n_users"] == 1, listed())
    reply = load("u", "rslora")
    check(reply["revision"] == 2 and reply["n_users_older"] == 1, reply)
    check(listed()["u"]["n_users"] == 0 and listed()["u"]["n_users_older"] == 1, listed())
    reply = unload("u")
    check(reply["n_users"] == 1 and reply["revision"] == 2, reply)
    unload("u", 404)
    check(listed() == {} and gauge("baton_lora_older_revisions") == 1)
    check(gauge("baton_lora_bytes") == nbytes, gauge("baton_lora_bytes"), nbytes)
    status, answer = ask("POST", "/v1/generate", body_of(held.case, "u"))
    check(status == 404, status, answer)
    ids, adapter = held.end()
    check(len(ids) == 1000 and adapter == {"name": "u", "revision": 1}, len(ids), adapter)
    n = len(held.case["greedy_token_ids"])
    check(ids[:n] == held.case["greedy_token_ids"])
    wait_for("the memory is back", lambda: gauge("baton_lora_bytes") == 0, 1.0)
    check(gauge("baton_lora_users") == 0)
    check(load("u", "shout")["revision"] == 3, "a name and a number never mean two things")
    serves("u", "shout", 3)


def run_sources():
    """The same tensors from shared memory and as the body are the same adapter."""
    tensors, config = tensors_of("shout"), config_of("shout")
    digest = load("s", "shout")["digest"]
    shm = f"baton-test-{os.getpid()}"
    columns = {"lora_name": "s", "names": list(tensors), "dtypes": [t[0] for t in tensors.values()],
               "shapes": [t[1] for t in tensors.values()], "adapter_config": config,
               "shm": {"name": "/" + shm, "nbytes": sum(len(t[2]) for t in tensors.values())}}
    with open(f"/dev/shm/{shm}", "wb") as f:
        f.write(b"".join(t[2] for t in tensors.values()))
    try:
        reply = post("/v1/load_lora_adapter", columns)
        check(reply["unchanged"] and reply["digest"] == digest, reply)
        check(post("/v1/load_lora_adapter", dict(columns, lora_name="t"))["revision"] == 1)
        wrong = ["0" * 32] + [None] * (len(tensors) - 1)
        error = post("/v1/load_lora_adapter", dict(columns, lora_name="w", checksums=wrong), 422)
        check(error["error"]["code"] == "checksum_mismatch", error)
        post("/v1/load_lora_adapter", {k: v for k, v in columns.items() if k != "adapter_config"},
             400)
        short = dict(columns, shm=dict(columns["shm"], nbytes=columns["shm"]["nbytes"] - 2))
        post("/v1/load_lora_adapter", short, 400)
    finally:
        os.unlink(f"/dev/shm/{shm}")
    post("/v1/load_lora_adapter", dict(columns, lora_name="w"), 404)
    serves("t", "shout", 1)

    def send(name, blob, want, **query):
        query = {"lora_name": name, "adapter_config": json.dumps(config), **query}
        query = {k: v for k, v in query.items() if v is not None}
        return call("POST", "/v1/load_lora_adapter?" + urllib.parse.urlencode(query), blob, want,
                    content_type="application/vnd.safetensors")

    blob = safetensors(tensors)
    reply = send("s", blob, 200)
    check(reply["unchanged"] and reply["digest"] == digest, reply)
    check(send("b", blob, 200, pinned="true")["n_matched"] == len(tensors))
    check(listed()["b"]["pinned"] and listed()["b"]["path"] is None)
    serves("b", "shout", 1)
    send("b", blob, 400, load_inplace="false")
    send("c", blob, 400, adapter_config=None)
    send("c", blob, 400, adapter_config="{")
    name = next(iter(tensors))
    torn = safetensors(tensors, {f"baton.checksum.{name}": "0" * 32})
    check(send("c", torn, 422)["error"]["code"] == "checksum_mismatch")
    half = safetensors({k: v for k, v in tensors.items() if k != name})
    send("c", half, 422)
    check(set(listed()) == {"s", "t", "b"} and totals()["nbytes_reserved"] == 0)


def run_update():
    """Adapters go on over new base weights; a commit's answer says so."""
    case = golden("shout")[0]
    load("v", "shout")
    load("w", "rslora")
    valid = [{"name": "v", "revision": 1, "valid": True}, {"name": "w", "revision": 1, "valid": True}]
    path = f"{MODEL}/checkpoints/step-%05d.safetensors"
    reply = post("/v1/update_weights", {"path": path % 0, "weight_version": "zero"})
    check(reply["phase"] == "committed" and reply["adapters"] == valid, reply)
    answer = post("/v1/generate", body_of(case, "v"))
    check(not is_golden(answer, case) and answer["adapter"]["revision"] == 1, answer)
    start = post("/v1/update_weights/start", {"weight_version": "late"})
    part = post("/v1/update_weights", {"update_id": start["update_id"], "path": path % 1500})
    check("adapters" not in part)
    reply = post("/v1/update_weights/finish", {"update_id": start["update_id"]})
    check(reply["phase"] == "committed" and reply["adapters"] == valid, reply)
    serves("v", "shout", 1)
    serves("w", "rslora", 1)


def run_states():
    """Adapters come and go in every state of a server that serves; what they do not change stays."""
    checkpoint = f"{MODEL}/checkpoints/step-01500.safetensors"
    name = iter(range(1000))

    def everything():
        at = f"n{next(name)}"
        check(load(at, "shout")["revision"] >= 1)
        check(load(at, "rslora")["replaced"])
        check(listed()[at]["revision"] >= 2)
        unload(at)
        unload(at, 404)

    everything()
    for mode in ("keep", "wait", "abort"):
        for word in ("queue", "reject"):
            post("/v1/pause", {"mode": mode, "new_requests": word})
            everything()
    post("/v1/resume")
    for body in ({"tags": ["kv_cache"]}, {"level": 1, "tags": ["weights"]}, {"level": 1},
                 {"level": 2, "tags": ["weights"]}, {"level": 2}):
        post("/v1/sleep", body)
        everything()
        post("/v1/wake")
        everything()  # dropped weights stay away until an update
        if body.get("level") == 2:
            post("/v1/update_weights", {"path": checkpoint})
    started = post("/v1/update_weights/start", {})["update_id"]
    everything()
    post("/v1/update_weights", {"update_id": started, "path": checkpoint})
    everything()
    post("/v1/update_weights/finish", {"update_id": started})
    load("last", "shout")
    serves("last", "shout", 1 + max(a["revision"] for a in listed().values()) - 1)


def run_drain():
    """A request that was begun before the end is refused when it is over: no adapter comes or goes
    while a server drains."""
    pid, log = int(sys.argv[5]), sys.argv[6]
    load("d", "shout")
    held = []
    for path, body in (("load", {"lora_name": "late", "lora_path": f"{ADAPTERS}/shout"}),
                       ("unload", {"lora_name": "d"})):
        text = json.dumps(body).encode()
        c = socket.create_connection((HOST, PORT), timeout=PATIENCE_S)
        c.sendall(b"POST /v1/%s_lora_adapter HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                  b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                  % (path.encode(), len(text)))
        check(c.recv(100).startswith(b"HTTP/1.1 100"), "its head was taken")
        c.sendall(text[:5])
        held.append((c, text[5:]))
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + PATIENCE_S
    while True:
        with open(log, encoding="utf-8") as f:
            if '"event":"drain"' in f.read():
                break
        assert time.monotonic() < end, "it does not drain"
        time.sleep(0.005)
    for c, rest in held:
        c.sendall(rest)
        answer = http.client.HTTPResponse(c)
        answer.begin()
        error = json.loads(answer.read())["error"]
        check(answer.status == 503 and error["code"] == "draining", answer.status, error)
        c.close()


def run_limits():
    """--max-loras 2, --max-lora-bytes for two: clear answers, nothing evicted."""
    load("a", "shout")
    load("b", "shout")
    error = load("c", "shout", 409)["error"]
    check("--max-loras" in error["message"], error)
    tensors = tensors_of("shout")
    name, (dtype, shape, raw) = next(iter(tensors.items()))
    other = directory("other", dict(tensors, **{name: (dtype, shape, bytes(len(raw)))}),
                      config_of("shout"))
    held = Held("a")
    error = load("a", other, 507)["error"]  # both revisions would have to fit, beside b
    check(error["code"] == "insufficient_staging" and error["retryable"], error)
    check(set(listed()) == {"a", "b"} and listed()["a"]["revision"] == 1)
    held.end()
    unload("b")
    serves("a", "shout", 1)
    check(load("a", other)["revision"] == 2)
    check(load("a", "rslora")["revision"] == 3)
    serves("a", "rslora", 3)
    unload("a")
    config = dict(config_of("shout"), r=32)
    tensors = {k: (d, [2 * s[0], s[1]] if "lora_A" in k else [s[0], 2 * s[1]], raw + raw)
               for k, (d, s, raw) in tensors_of("shout").items()}
    error = load("d", directory("d", tensors, config), 400)["error"]
    check("32" in error["message"] and "16" in error["message"], error)


def run_soak():
    """Reloads of one name under load: every output is exactly of the one revision it reports."""
    n_reloads, n_clients = int(sys.argv[5]), 4
    kinds = {1: golden("shout"), 0: golden("rslora")}  # by the revision's last bit
    over, seen = threading.Event(), set()
    load("x", "shout")

    def client(k):
        c = http.client.HTTPConnection(HOST, PORT, timeout=PATIENCE_S)
        for i in range(10**9):
            if over.is_set():
                return
            at = (i + k) % 4
            body = json.dumps(dict(body_of(kinds[0][at], "x"), stream=False))
            c.request("POST", "/v1/generate", body, {"Content-Type": "application/json"})
            r = c.getresponse()
            answer = json.loads(r.read())
            assert r.status == 200, answer
            revision = answer["adapter"]["revision"]
            matches = [bit for bit in kinds if is_golden(answer, kinds[bit][at])]
            assert matches == [revision % 2], (matches, revision, answer)
            seen.add(revision)

    def reloader():
        try:
            for i in range(n_reloads):
                n_seen = len(seen)
                reply = load("x", ("rslora", "shout")[i % 2])
                assert reply["revision"] == i + 2 and reply["replaced"], reply
                if i % 4 == 0:  # so that many revisions are seen
                    wait_for("an output of a newer revision", lambda: len(seen) > n_seen)
        finally:
            over.set()

    in_threads([reloader] + [lambda k=k: client(k) for k in range(n_clients)])
    check(len(seen) >= n_reloads // 4, len(seen))
    wait_for("old ones are gone", lambda: gauge("baton_lora_older_revisions") == 0, 10)
    check(gauge("baton_lora_bytes") == listed()["x"]["nbytes"])
    unload("x")
    check(gauge("baton_lora_bytes") == 0)
    print(f"{n_reloads} reloads, outputs of {len(seen)} revisions", file=sys.stderr)


{n[4:]: f for n, f in globals().items() if n.startswith("run_")}[COMMAND]()
print(n_checks)
