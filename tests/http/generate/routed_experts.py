"""Which experts computed each position, as every route returns them: decoded as its clients do, and compared
with what transformers chose. Then through pauses and updates, and what is refused.
Usage: routed_experts.py BATON FIXTURES FOLDER (the last line says how many checks were made)"""

import base64
import contextlib
import http.client
import io
import json
import os
import struct
import subprocess
import sys

import numpy as np

from fleet_world import Server

BATON, FIXTURES, FOLDER = sys.argv[1:]
MOE, DENSE = f"{FIXTURES}/tiny-qwen3-moe", f"{FIXTURES}/kjv-qwen3-1m"
LAYERS, SPARSE, TOP_K, N_EXPERTS = 3, [1, 2], 2, 8
TOLD = {"return_routed_experts": True}
n_checks = 0

with open(f"{MOE}/golden.json", encoding="utf-8") as golden_file:
    CASES = json.load(golden_file)["cases"]


def check(condition, *what):
    global n_checks
    n_checks += 1
    assert condition, what


def same(found, wanted, what):
    check(found.shape == wanted.shape and (found == wanted).all(), what, found.shape, wanted.shape, found, wanted)


@contextlib.contextmanager
def serving(*options):
    with Server(BATON, f"{FOLDER}/log", *options) as server:
        yield server


# ---- the forms ----

def spread(routes):
    """Of every layer of the model, as vLLM and SGLang count them: zeros where it has no experts."""
    whole = np.zeros((len(routes), LAYERS, TOP_K), int)
    whole[:, SPARSE] = routes
    return whole


def unpacked(value):
    routes = np.frombuffer(base64.b64decode(value["data"], validate=True), np.dtype(value["dtype"]))
    return routes.reshape(value["shape"]).astype(int)


def from_native(value, start):
    check(value["start"] == start and value["layers"] == SPARSE and value["dtype"] == "uint8", value)
    return spread(unpacked(value))


def from_skyrl(value, _):
    check(list(value) == ["data", "shape", "dtype"] and value["dtype"] == "uint8", value)
    return unpacked(value)


def from_prime_rl(value, start):
    check(list(value) == ["data", "shape", "dtype", "start"] and value["start"] == start, value)
    check(value["dtype"] == "uint8", value)
    return unpacked(value)


def from_npy(value, _):
    routes = np.load(io.BytesIO(base64.b64decode(value, validate=True)), allow_pickle=False)
    check(routes.dtype == np.uint8, routes.dtype)
    return routes.astype(int)


def from_int32(value, _):
    routes = np.frombuffer(base64.b64decode(value, validate=True), np.int32)
    return routes.reshape(-1, LAYERS, TOP_K).astype(int)


def ids_body(ids, size, start=0, **more):
    return {"token_ids": ids, "sampling_params": {"max_tokens": size, "temperature": 0, "ignore_eos": True,
                                                  "routed_experts_prompt_start": start, **more}}


def prompt_body(ids, size, start=0, **more):
    return {"prompt": ids, "max_tokens": size, "temperature": 0, "ignore_eos": True,
            "routed_experts_prompt_start": start, "return_token_ids": True, **more}


def sglang_body(ids, size, start=0, **more):
    return {"input_ids": ids, "routed_experts_start_len": start,
            "sampling_params": {"max_new_tokens": size, "temperature": 0, "ignore_eos": True, **more}}


FORMS = {"/v1/generate": (ids_body, from_native), "/inference/v1/generate": (ids_body, from_npy),
         "/skyrl/v1/generate": (ids_body, from_skyrl), "/v1/completions": (prompt_body, from_npy),
         "/generate": (sglang_body, from_int32)}


def choices_of(path, reply):
    """(ids, routed_experts, weight_versions) of each choice or event."""
    if path != "/generate":
        return [(c["token_ids"], c["routed_experts"], c.get("weight_versions")) for c in reply["choices"]]
    replies = reply if isinstance(reply, list) else [reply]
    return [(r["output_ids"], r["meta_info"].get("routed_experts"), r["meta_info"].get("weight_versions"))
            for r in replies]


def golden(case):
    return spread(np.array(case["routed_experts"]))


def whole_replies(server):
    for case in CASES:
        prompt, ids = case["prompt_token_ids"], case["greedy_token_ids"]
        for path, (body, decoded) in FORMS.items():
            for start in 0, 1, len(prompt):
                n = 1 if path == "/skyrl/v1/generate" else 2
                said = server.post(path, {**body(prompt, len(ids), start, n=n), **TOLD})
                for found, routes, _ in choices_of(path, said):
                    check(found == ids, path, found)
                    same(decoded(routes, start), golden(case)[start:], f"{path} from {start}")
    prompts = [case["prompt_token_ids"] for case in CASES]
    said = server.post("/v1/completions", {**prompt_body(prompts, 16), **TOLD})
    for case, (_, routes, _) in zip(CASES, choices_of("/v1/completions", said)):
        same(from_npy(routes, 0), golden(case), "several prompts")
    for path, body in (("/v1/completions", prompt_body(prompts[0], 0, echo=True)),
                       ("/generate", sglang_body(prompts[0], 0))):  # scored: the last token has no row
        [(_, routes, _)] = choices_of(path, server.post(path, {**body, **TOLD}))
        same(FORMS[path][1](routes, 0), golden(CASES[0])[:len(prompts[0]) - 1], f"{path} without output")


def other_models():
    """Each with other layers that have experts, and other numbers of them."""
    for name in "tiny-mixtral", "tiny-deepseek", "tiny-deepseek-flat":
        with open(f"{FIXTURES}/{name}/config.json", encoding="utf-8") as f:
            n_layers = json.load(f)["num_hidden_layers"]
        with open(f"{FIXTURES}/{name}/golden.json", encoding="utf-8") as f:
            cases = json.load(f)["cases"]
        with serving("--model", f"{FIXTURES}/{name}") as server:
            for case in cases:
                wanted = np.array(case["routed_experts"])
                body = {**ids_body(case["prompt_token_ids"], len(case["greedy_token_ids"])), **TOLD}
                [(_, native, _)] = choices_of("/v1/generate", server.post("/v1/generate", body))
                same(unpacked(native), wanted, name)
                [(_, npy, _)] = choices_of("/inference/v1/generate", server.post("/inference/v1/generate", body))
                whole = from_npy(npy, 0)
                check(whole.shape[1] == n_layers, whole.shape)
                same(whole[:, native["layers"]], wanted, name)
                dense = [layer for layer in range(n_layers) if layer not in native["layers"]]
                check(not whole[:, dense].any(), name)


def without_asking(server):
    for path, (body, _) in FORMS.items():
        if path != "/skyrl/v1/generate":  # which its client calls only for them
            [(_, routes, _)] = choices_of(path, server.post(path, body([5, 6], 2)))
            check(routes is None, path, routes)


def events(server, path, body):
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    c.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
    answer = c.getresponse()
    assert answer.status == 200, answer.read()
    for line in answer:
        if line.startswith(b"data: ") and line != b"data: [DONE]\n":
            yield json.loads(line[6:])
    c.close()


def streams(server):
    """The last event of a choice has them, no other."""
    case = CASES[0]
    prompt, ids = case["prompt_token_ids"], case["greedy_token_ids"]
    for path, (body, decoded) in FORMS.items():
        if path == "/skyrl/v1/generate":
            continue
        told = [c for e in events(server, path, {**body(prompt, len(ids), 2), **TOLD})
                for c in choices_of(path, e)]
        check(len(told) > 2 and all(routes is None for _, routes, _ in told[:-1]), path)
        same(decoded(told[-1][1], 2), golden(case)[2:], f"stream of {path}")


def chat(server):
    """With a template; the prompt is what it renders."""
    body = {"messages": [{"role": "user", "content": "In the beginning"}], "max_tokens": 6, "temperature": 0,
            "return_token_ids": True, **TOLD}
    said = server.post("/v1/chat/completions", body)
    prompt, [choice] = said["prompt_token_ids"], said["choices"]
    wanted = server.post("/inference/v1/generate", {**ids_body(prompt, 6), **TOLD})["choices"][0]
    check(choice["routed_experts"] == wanted["routed_experts"] is not None, choice)
    told = [e["choices"][0].get("routed_experts") for e in events(server, "/v1/chat/completions", body)]
    check(told[-1] == wanted["routed_experts"] and not any(told[:-1]), told)


# ---- what happens in the middle ----

def turned(path):
    """The same weights with the experts of each router in reverse order, so that all routes differ."""
    with open(f"{MOE}/model.safetensors", "rb") as f:
        raw = bytearray(f.read())
    (n,) = struct.unpack("<Q", raw[:8])
    for name, t in json.loads(raw[8:8 + n]).items():
        if name.endswith("mlp.gate.weight"):
            begin, end = (8 + n + at for at in t["data_offsets"])
            rows = np.frombuffer(bytes(raw[begin:end]), np.uint16).reshape(N_EXPERTS, -1)
            raw[begin:end] = rows[::-1].tobytes()
    with open(path, "wb") as f:
        f.write(raw)
    return path


def routed(server, prompt, n, **more):
    [(ids, routes, spans)] = choices_of("/v1/generate", server.post(
        "/v1/generate", {**ids_body(prompt, n), **TOLD, **more}))
    return ids, from_native(routes, 0), spans


def disturbed(server, disturb, n, **more):
    """A stream in whose middle `disturb` is called."""
    ids, calls, last = [], 0, None
    for event in events(server, "/v1/generate", {**ids_body(CASES[0]["prompt_token_ids"], n), **TOLD, **more}):
        [(new, routes, spans)] = choices_of("/v1/generate", event)
        ids += new
        if len(ids) >= 8 and calls == 0:
            disturb()
            calls += 1
        if routes is not None:
            last = from_native(routes, 0), spans
    check(calls == 1 and len(ids) == n, len(ids))
    return ids, *last


def pauses(server):
    def pause():
        server.post("/v1/pause", {"mode": "keep"})
        server.post("/v1/reset_cache", {"running": True})  # the KV is computed again
        server.post("/v1/resume")
    wanted = routed(server, CASES[0]["prompt_token_ids"], 600)
    before = server.status()["engine"]["n_recomputed_tokens"]
    for _ in range(20):
        ids, routes, _ = disturbed(server, pause, 600)
        check(ids == wanted[0], "a pause changed tokens")
        same(routes, wanted[1], "a pause changed routes")
        if server.status()["engine"]["n_recomputed_tokens"] > before:
            return
    sys.exit("no pause came while a stream ran")


def updates(server, weights):
    """Rows of the tokens of a span are of its version; those of tokens made before are kept."""
    prompt = CASES[0]["prompt_token_ids"]
    p, n = len(prompt), 1200

    def push(name):
        server.post("/v1/update_weights", {"path": weights[name], "weight_version": name})
    push("old")
    ids, old, _ = routed(server, prompt, n)
    for mode in "finish", "continue", "recompute":
        for _ in range(20):
            push("old")
            found, routes, spans = disturbed(server, lambda: push("new"), n, on_update=mode)
            check(len(routes) == p + n - 1, len(routes))
            if mode == "finish" or len(spans) == 2:
                break
        else:
            sys.exit("no update came while a stream ran")
        if mode == "finish":
            check(found == ids and [s["version"] for s in spans] == ["old"], spans)
            same(routes, old, "finish")
            continue
        check([s["version"] for s in spans] == ["old", "new"], spans)
        m = spans[0]["end"]  # row i made the token at i + 1
        same(routes[:p + m - 1], old[:p + m - 1], f"{mode}: rows before the boundary")
        if mode == "recompute":  # a fresh request to the new weights
            fresh = routed(server, prompt + found[:m], n - m)
            check(fresh[0] == found[m:], "recompute is not a fresh request")
            same(routes[p + m - 1:], fresh[1][p + m - 1:], "recompute: rows behind the boundary")
            check((routes[:p + m - 1] != fresh[1][:p + m - 1]).any(), "the new weights have the same routes")


# ---- by an option, and what is refused ----

def by_option():
    case = CASES[0]
    prompt, n = case["prompt_token_ids"], len(case["greedy_token_ids"])
    with serving("--model", MOE, "--return-routed-experts", "vllm") as server:
        for path in "/inference/v1/generate", "/v1/completions":
            body = FORMS[path][0](prompt, n)
            [(_, routes, _)] = choices_of(path, server.post(path, body))
            same(from_npy(routes, 0), golden(case), path)
            [(_, routes, _)] = choices_of(path, server.post(path, {**body, "return_routed_experts": False}))
            check(routes is None, path)
        check(server.post("/v1/generate", ids_body(prompt, n))["choices"][0]["routed_experts"] is None, "native")
    with serving("--model", MOE, "--return-routed-experts", "prime-rl") as server:
        for start in 0, 3:
            [(_, routes, _)] = choices_of("/inference/v1/generate", server.post(
                "/inference/v1/generate", ids_body(prompt, n, start)))
            same(from_prime_rl(routes, start), golden(case)[start:], "prime-rl")
        [(_, routes, _)] = choices_of("/v1/completions", server.post("/v1/completions", prompt_body(prompt, n)))
        check(routes is None, "prime-rl reads them from one route")
    for options in (("--model", DENSE, "--weights", f"{DENSE}/checkpoints/step-00000.safetensors"),
                    ("--manifest", f"{MOE}/model.safetensors", "--engine", "none"), ("--upstream", "baton=http://127.0.0.1:9")):
        ended = subprocess.run([BATON, "serve", "--listen", "127.0.0.1:0", *options, "--return-routed-experts", "vllm"],
                               capture_output=True, text=True, timeout=60, check=False)
        check(ended.returncode != 0 and "return-routed-experts" in ended.stderr, options, ended.stderr)


def refusals(server):
    for path, (body, _) in FORMS.items():
        status, said = server.ask("POST", path, {**body([5, 6, 7], 2, 4), **TOLD})
        check(status == 400 and "from position 4 on" in said["error"]["message"] and
              "expected 0 to 3" in said["error"]["message"], path, said)
        status, said = server.ask("POST", path, {**body([5, 6, 7], 2), "return_routed_experts": "yes"})
        check(status == (200 if path == "/skyrl/v1/generate" else 400), path, said)
    check(server.get("/server_info")["enable_return_routed_experts"] is True, "slime compares it")
    with serving("--model", DENSE, "--weights", f"{DENSE}/checkpoints/step-00000.safetensors") as dense:
        for path, (body, _) in FORMS.items():
            status, said = dense.ask("POST", path, {**body([5, 6, 7], 2), **TOLD})
            check(status == 400 and "'kjv-qwen3-1m' has no experts" in said["error"]["message"], path, said)
        check(dense.get("/server_info")["enable_return_routed_experts"] is False, "slime compares it")
        check(dense.status()["engine"]["n_generated_tokens"] == 0, "something was computed")
    with serving("--manifest", f"{MOE}/model.safetensors", "--engine", "none") as store:
        for path, (body, _) in FORMS.items():
            status, said = store.ask("POST", path, {**body([5, 6, 7], 2), **TOLD})
            check(status // 100 == 4 and "--engine none" in said["error"]["message"], path, said)


def main():
    os.makedirs(f"{FOLDER}/moe")
    for name in "config.json", "generation_config.json", "tokenizer.json", "model.safetensors":
        os.symlink(f"{MOE}/{name}", f"{FOLDER}/moe/{name}")
    with open(f"{FOLDER}/moe/chat_template.jinja", "w", encoding="utf-8") as f:
        f.write("{% for m in messages %}{{ m.content }}{% endfor %}")
    weights = {"old": f"{MOE}/model.safetensors", "new": turned(f"{FOLDER}/turned.safetensors")}
    with serving("--model", f"{FOLDER}/moe", "--allow-path", FIXTURES, "--allow-path", FOLDER) as server:
        whole_replies(server)
        without_asking(server)
        streams(server)
        chat(server)
        refusals(server)
        pauses(server)
        updates(server, weights)
    by_option()
    other_models()
    print(n_checks)


main()
