"""Requests and answers as the clients of OpenAI, vLLM and TRL have them. Usage: surface.py URL WORK_DIR
raw MODEL | processed (the number of checks is left in WORK_DIR/n_checks)"""

import json
import math
import os
import sys
import time
import urllib.error
import urllib.request
from concurrent import futures

URL, WORK, WHICH = sys.argv[1:4]
PROMPT = [40, 77, 258, 803, 264, 77, 290]  # "In the beginning"
VOCAB, CONTEXT = 1024, 1024
FLOOR = -9999.0  # the lowest logprob that is returned
ENTRIES_MAX = 2 * 1024 * 1024
PROMPT_ENTRIES_MAX = 262144
n_checks = 0


def check(condition, *what):
    global n_checks
    n_checks += 1
    assert condition, what


def ask(method, path, body=None):
    """(status, headers, JSON or text)"""
    data = None if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        answer = urllib.request.urlopen(request, timeout=120)
    except urllib.error.HTTPError as e:
        answer = e
    with answer as f:
        text = f.read().decode()
        kind = f.headers.get("Content-Type", "")
        return f.status, f.headers, json.loads(text) if kind.startswith("application/json") and text else text


def post(path, body, status=200):
    found = ask("POST", path, body)
    check(found[0] == status, path, body, str(found)[:600])
    return found[2]


def refused(path, body, *words):
    error = post(path, body, 400)["error"]
    for word in words:
        check(word in json.dumps(error), path, body, word, error)
    return error


def tops_of(choice):
    """[token of the output]{id: logprob} of a completion with return_tokens_as_token_ids."""
    return [{int(k[9:]): v for k, v in top.items()} for top in choice["logprobs"]["top_logprobs"]]


# ---- what a trainer reads before it begins ----

def server_info(logprobs_mode, max_logprobs):
    config = ask("GET", "/server_info?config_format=json")[2]["vllm_config"]
    check(config["model_config"]["dtype"] == "torch.bfloat16", config)
    check(config["model_config"]["logprobs_mode"] == logprobs_mode, config)
    check(config["model_config"]["max_logprobs"] == max_logprobs, config)
    check(config["model_config"]["max_model_len"] == CONTEXT, config)
    check(config["parallel_config"] == {"tensor_parallel_size": 1, "pipeline_parallel_size": 1,
                                        "data_parallel_size": 1}, config)
    check(config["lora_config"] == {"max_lora_rank": 64, "max_loras": 64}, config)
    check(config["weight_transfer_config"] is None, "without a GPU no trainer's GPU can send", config)


# ---- models ----

def models():
    cards, path = ask("GET", "/v1/models")[2]["data"], sys.argv[4]
    name = cards[0]["id"]
    check([c["id"] for c in cards] == [name, path] and dict(cards[1], id=name) == cards[0], "as vLLM names it", cards)
    for known in name, path:
        asked = {"prompt": "A", "max_tokens": 1, "model": known}
        for route in "/v1/completions", "/tokenize":
            check(post(route, asked).get("model") in (name, None), route)
        refused("/v1/load_lora_adapter", {"lora_name": known, "lora_path": f"{path}/adapters/shout"}, "base model")
    check(post("/v1/completions", {"prompt": "A", "model": path + "x"}, 404)["error"]["code"] == 404, "no name")
    post("/v1/load_lora_adapter", {"lora_name": "team/shout", "lora_path": f"{sys.argv[4]}/adapters/shout"})
    for card in ask("GET", "/v1/models")[2]["data"]:
        found = ask("GET", f"/v1/models/{card['id']}")
        check(found[0] == 200 and found[2] == card, card, found)
        check(found[2]["parent"] == (None if card["id"] in (name, path) else name), found)
    for missing in "nobody", name + "x", "team":
        found = ask("GET", f"/v1/models/{missing}")
        check(found[0] == 404 and found[2]["error"]["code"] == 404, found)
    post("/v1/unload_lora_adapter", {"lora_name": "team/shout"})


# ---- members ----

def nulls_at(found, *names):
    check(all(n in found and found[n] is None for n in names), names, found)


def members():
    """Those that clients index, though there is nothing to tell; whole numbers however they are written."""
    post("/reset_prefix_cache", {})
    found = post("/v1/completions", {"prompt": PROMPT, "max_tokens": 5.0, "seed": 3.0})
    check(found["usage"] == {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12,
                             "prompt_tokens_details": None, "completion_tokens_details": None}, found)
    check(found["system_fingerprint"].startswith("baton-") and found["service_tier"] is None, found)
    transfers = ("kv_transfer_params", "ec_transfer_params", "metrics")
    nulls_at(found, *transfers)
    found = post("/inference/v1/generate", {"token_ids": PROMPT, "sampling_params": {"max_tokens": 2}})
    check(found["output_mode"] == "tokens", found)
    nulls_at(found, *transfers, "prompt_token_id_logprobs", "prompt_token_ids", "mm_placeholders")
    nulls_at(found["choices"][0], "sampling_mask", "routed_experts")
    for value in 5.5, 1e300, "5", True:
        refused("/v1/completions", {"prompt": PROMPT, "max_tokens": value}, "max_tokens")
    found = ask("POST", "/v1/completions", {"prompt": PROMPT, "stream": True})
    check(found[1]["Content-Type"] == "text/event-stream; charset=utf-8", found[1])


def cached():
    """What was computed once is counted in each form, and is forgotten by each name, and for another salt."""
    def counted(route="/v1/completions", **more):
        asked = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "return_token_ids": True, **more}
        if route == "/generate":
            asked = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2, "temperature": 0}, **more}
        elif route != "/v1/completions":
            asked = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 2, "temperature": 0}, **more}
        found = post(route, asked)
        found = found[0] if isinstance(found, list) else found
        details = (found["usage"] if "usage" in found else found["meta_info"]).get("prompt_tokens_details")
        texts.append(found["output_ids"] if "output_ids" in found else found["choices"][0]["token_ids"])
        return found["meta_info"]["cached_tokens"] if "meta_info" in found else details and details["cached_tokens"]

    texts, rest = [], len(PROMPT) - 1
    for forget in "/reset_prefix_cache", "/flush_cache", "/v1/reset_cache":
        counted()
        check(counted() == rest, forget)
        post(forget, {})
        check(counted() is None, forget)
    check(counted("/v1/generate") == counted("/inference/v1/generate") == counted("/generate") == rest)
    check(counted(cache_salt="a") is None and counted("/v1/generate", cache_salt="a") == rest)
    check(counted("/generate", extra_key="a") == 0 and counted("/generate", extra_key="a") == rest)
    check(counted("/generate", extra_key="b") == 0)
    check(counted(n=4, cache_salt="n") is None and counted(prompt=[PROMPT, PROMPT], cache_salt="p") == rest)
    check(all(t == texts[0] for t in texts), "the same tokens, found or computed", texts)
    events = ask("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 2, "stream": True, "stream_options": {
        "include_usage": True, "continuous_usage_stats": True}})[2]
    check(str(events).count('"cached_tokens": 6') + str(events).count('"cached_tokens":6') >= 3, events)


# ---- how many logprobs ----

def all_logprobs():
    """-1 and the vocabulary are all of it, on every route; the best of them are what fewer would be."""
    base = {"prompt": PROMPT, "max_tokens": 3, "seed": 1, "return_tokens_as_token_ids": True}
    few = tops_of(post("/v1/completions", {**base, "logprobs": 20})["choices"][0])
    for k in (-1, VOCAB, 100):
        tops = tops_of(post("/v1/completions", {**base, "logprobs": k})["choices"][0])
        n = VOCAB if k == -1 else k
        for top, best in zip(tops, few):
            check(n <= len(top) <= n + 1, k, len(top))
            check(all(math.isclose(top[i], best[i], abs_tol=1e-6) for i in best), k)
            check(k == 100 or abs(sum(math.exp(v) for v in top.values()) - 1) < 1e-4, k)
    for k in (-1, VOCAB, 100):
        rows = post("/v1/completions", {**base, "prompt_logprobs": k})["choices"][0]["prompt_logprobs"]
        n = VOCAB if k == -1 else k
        check(rows[0] is None and len(rows) == len(PROMPT), k)
        for row, token in zip(rows[1:], PROMPT[1:]):
            check(n <= len(row) <= n + 1 and str(token) in row, k)
            ranks = sorted(v["rank"] for v in row.values())
            check(ranks[0] == 1 and ranks[n - 1] <= n + 1, k, ranks[-3:])
    for path in "/v1/generate", "/inference/v1/generate":
        sampling = {"max_tokens": 2, "logprobs": -1, "prompt_logprobs": -1}
        found = post(path, {"token_ids": PROMPT, "sampling_params": sampling})
        check(all(len(t["top_logprobs"]) == VOCAB for t in found["choices"][0]["logprobs"]["content"]), path)
        check(all(len(row) == VOCAB for row in found["prompt_logprobs"][1:]), path)
    found = post("/generate", {"input_ids": PROMPT, "return_logprob": True, "top_logprobs_num": VOCAB,
                               "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 2}})
    check(all(len(t) == VOCAB for t in found["meta_info"]["output_top_logprobs"]))


def too_many_logprobs():
    base = {"prompt": PROMPT, "max_tokens": 3}
    refused("/v1/completions", {**base, "logprobs": VOCAB + 1}, "logprobs is 1025", "-1 to 1024")
    refused("/v1/completions", {**base, "logprobs": -2}, "logprobs")
    # What an answer can hold is bounded before anything is computed.
    n = ENTRIES_MAX // (VOCAB * 512)
    found = refused("/v1/completions", {**base, "max_tokens": 513, "n": n, "logprobs": -1}, f"{ENTRIES_MAX}")
    check(found["param"] == "logprobs", found)
    post("/v1/completions", {**base, "max_tokens": 1, "n": n, "logprobs": -1})
    long = [40] * 700
    found = refused("/v1/completions", {"prompt": [long] * 3, "max_tokens": 1, "prompt_logprobs": -1})
    check(found["param"] == "prompt_logprobs", found)
    found = refused("/v1/generate", {"token_ids": PROMPT, "sampling_params":
                                     {"max_tokens": 1000, "n": 3, "logprobs": -1}})
    check(found["param"] == "/sampling_params/logprobs", found)
    found = refused("/generate", {"input_ids": [PROMPT] * 3, "return_logprob": True, "top_logprobs_num": VOCAB,
                                  "sampling_params": {"max_new_tokens": 1000}}, "top_logprobs_num")


def prompts_told_again():
    """Logprobs of a prompt count in each choice that has them."""
    long = [40] * 256
    body = {"prompt": long, "max_tokens": 1, "prompt_logprobs": 512}
    post("/v1/completions", {**body, "n": 2})
    found = refused("/v1/completions", {**body, "n": 3}, f"{PROMPT_ENTRIES_MAX}")
    check(found["param"] == "prompt_logprobs", found)
    refused("/v1/completions", {"prompt": long, "max_tokens": 0, "echo": True, "logprobs": 513}, f"{PROMPT_ENTRIES_MAX}")
    post("/v1/generate", {"token_ids": long, "sampling_params": {"n": 3, "max_tokens": 1, "prompt_logprobs": 512}})
    body = {"input_ids": long, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 512}
    post("/generate", {**body, "sampling_params": {"max_new_tokens": 1, "n": 2}})
    found = post("/generate", {**body, "sampling_params": {"max_new_tokens": 1, "n": 3}}, 400)
    check(f"{PROMPT_ENTRIES_MAX}" in json.dumps(found), found)
    post("/generate", {**body, "logprob_start_len": 250, "sampling_params": {"max_new_tokens": 1, "n": 3}})
    # What TRL asks a teacher of distillation: the best 100 of a context's tokens, of two sequences here.
    post("/v1/completions", {"prompt": [[40] * 1000] * 2, "max_tokens": 1, "prompt_logprobs": 100})


def all_logprobs_in_a_stream():
    """More than a reader at full speed has taken while they are told."""
    body = {"token_ids": PROMPT, "stream": True,
            "sampling_params": {"max_tokens": 200, "min_tokens": 200, "logprobs": -1}}
    text = post("/v1/generate", body)
    check(text.endswith("data: [DONE]\n\n"), text[-300:])
    events = [json.loads(line[6:]) for line in text.split("\n\n")[:-2]]
    contents = [e["choices"][0]["logprobs"]["content"] for e in events]
    check(sum(map(len, contents)) == 200, list(map(len, contents)))
    check(all(len(c) == 1 and len(c[0]["top_logprobs"]) == VOCAB for c in contents), list(map(len, contents)))


# ---- what fits ----

def context():
    """vLLM's words, by which clients know that they have to shorten the prompt."""
    words = f"maximum context length is {CONTEXT} tokens"
    for n in (CONTEXT, CONTEXT + 1, 3 * CONTEXT):
        refused("/v1/completions", {"prompt": [40] * n}, words, f"{n} input tokens")
        refused("/v1/completions", {"prompt": [PROMPT, [40] * n]}, words)
        refused("/v1/completions", {"prompt": " and" * n}, words)
        for path in "/v1/generate", "/inference/v1/generate":
            refused(path, {"token_ids": [40] * n, "sampling_params": {"max_tokens": 1}}, words)
        refused("/generate", {"input_ids": [40] * n}, words)
    refused("/v1/completions", {"prompt": PROMPT, "max_tokens": CONTEXT + 1}, "max_tokens=1025",
            "max_model_len=1024")
    # What the prompt leaves of the context is what there is, as in vLLM.
    found = post("/v1/completions", {"prompt": [40] * 1000, "max_tokens": CONTEXT, "ignore_eos": True})
    check(found["usage"]["completion_tokens"] == 24, found["usage"])


def sixteen():
    for body in ({}, {"max_tokens": None}):
        found = post("/v1/completions", {"prompt": PROMPT, "ignore_eos": True, **body})
        check(found["usage"]["completion_tokens"] == 16, body, found["usage"])


def scored():
    """echo without output: the prompt, and its logprobs as they are with an output."""
    base = {"prompt": PROMPT, "echo": True, "logprobs": 3, "temperature": 0}
    full = post("/v1/completions", {**base, "max_tokens": 1})["choices"][0]
    found = post("/v1/completions", {**base, "max_tokens": 0, "return_token_ids": True})
    choice = found["choices"][0]
    check(choice["text"] == "" and choice["finish_reason"] == "length", choice)  # as in vLLM: its ids are there
    check(choice["token_ids"] == [] and choice["prompt_token_ids"] == PROMPT, choice)
    check(found["usage"] == {**found["usage"], "prompt_tokens": 7, "completion_tokens": 0}, found)
    for member, values in choice["logprobs"].items():
        check(len(values) == 7 and values == full["logprobs"][member][:7], member, values)
    check(choice["prompt_logprobs"] == full["prompt_logprobs"] and len(choice["prompt_logprobs"]) == 7, choice)
    check([v["start"] == v["end"] == 0 for v in choice["weight_versions"]] == [True], choice)
    check(full["text"].startswith("In the beginning"), full)
    check(post("/v1/completions", {**base, "max_tokens": 0, "logprobs": None})["choices"][0]["text"] ==
          "In the beginning")
    several = post("/v1/completions", {**base, "max_tokens": 0, "prompt": [PROMPT, PROMPT[:3]], "n": 2})["choices"]
    check([len(c["logprobs"]["tokens"]) for c in several] == [7, 7, 3, 3], several)
    events = events_of("/v1/completions", {**base, "max_tokens": 0, "logprobs": None})
    check([e["choices"][0]["text"] for e in events] == ["In the beginning"], events)
    refused("/v1/completions", {"prompt": PROMPT, "max_tokens": 0}, "max_tokens")


# ---- streams ----

def events_of(path, body):
    found = ask("POST", path, {**body, "stream": True})
    check(found[0] == 200 and found[1]["Content-Type"].startswith("text/event-stream"), found)
    lines = [line[6:] for line in found[2].split("\n") if line.startswith("data: ")]
    check(lines[-1] == "[DONE]", lines[-1])
    return [json.loads(line) for line in lines[:-1]]


def an_event_for_each_token():
    """Of streams that are too short for their client to fall behind."""
    n, rest = 120, {"temperature": 0.9, "seed": 3, "ignore_eos": True}
    whole = post("/v1/completions", {"prompt": PROMPT, "max_tokens": n, **rest})["choices"][0]["text"]
    events = events_of("/v1/completions", {"prompt": PROMPT, "max_tokens": n, **rest})
    check(len(events) == n, len(events))
    check("".join(e["choices"][0]["text"] for e in events) == whole)
    check([e["choices"][0]["finish_reason"] for e in events] == [None] * (n - 1) + ["length"])
    events = events_of("/v1/completions", {"prompt": [PROMPT] * 2, "n": 2, "max_tokens": 25, "logprobs": 1, **rest})
    check(len(events) == 100 and all(len(e["choices"][0]["logprobs"]["tokens"]) == 1 for e in events))
    for path in "/v1/generate", "/inference/v1/generate":
        events = events_of(path, {"token_ids": PROMPT, "sampling_params": {"max_tokens": n, **rest}})
        check([len(e["choices"][0]["token_ids"]) for e in events] == [1] * n, path)
    events = events_of("/generate", {"input_ids": PROMPT, "sampling_params": {
        "max_new_tokens": 60, "ignore_eos": True}})
    check([len(e["output_ids"]) for e in events] == list(range(1, 61)))


# ---- aborts ----

def aborted(path, body, ids):
    """By each of vLLM's ids; the request is held by a pause meanwhile."""
    for request_id in ids:
        post("/pause?mode=keep", {})
        with futures.ThreadPoolExecutor() as pool:
            name = "rid" if path.startswith("/v1/c") else "request_id"  # as clients of SGLang call it
            run = pool.submit(post, path, {**body, name: "rid-7"})
            while ask("GET", "/v1/status")[2]["admission"]["generate"]["waiting"] + ask("GET", "/v1/status")[2]["admission"]["generate"]["running"] == 0:
                time.sleep(0.005)
            found = post("/abort_requests", {"request_ids": ["nobody", request_id]})
            check(found["aborted"] == 1, request_id, found)
            check(run.result()["choices"][0]["finish_reason"] == "abort", request_id)
        post("/resume", {})


def aborted_beside_generate():
    """vLLM 0.32's other route: only those that are named, and an empty reply."""
    path = "/inference/v1/abort_requests"
    post("/pause?mode=keep", {})
    with futures.ThreadPoolExecutor() as pool:
        run = pool.submit(post, "/inference/v1/generate", {"token_ids": PROMPT, "sampling_params": {}, "request_id": "rid-8"})
        while sum(ask("GET", "/v1/status")[2]["admission"]["generate"][m] for m in ("waiting", "running")) == 0:
            time.sleep(0.005)
        for ids in [], ["nobody"]:
            check(post(path, {"request_ids": ids}) == "", ids)
        refused(path, {}, "request_ids")
        check(not run.done())
        check(post(path, {"request_ids": ["rid-8"]}) == "")
        check(run.result()["choices"][0]["finish_reason"] == "abort")
    post("/resume", {})


def aborts():
    aborted_beside_generate()
    aborted("/v1/completions", {"prompt": PROMPT}, ("rid-7", "cmpl-rid-7", "cmpl-rid-7-0"))
    aborted("/inference/v1/generate", {"token_ids": PROMPT, "sampling_params": {}}, ("generate-tokens-rid-7",))


# ---- processed logprobs ----

def softmax(logits):
    best = max(logits.values())
    total = sum(math.exp(v - best) for v in logits.values())
    return {i: v - best - math.log(total) for i, v in logits.items()}


def processed_logprobs():
    """Against the raw ones, by hand: after temperature, top_k and top_p; greedy has none of these."""
    raw = raw_row()
    for temperature, top_k, top_p in ((2.0, -1, 1.0), (0.5, 5, 1.0), (1.5, 12, 0.7), (0, 3, 0.5), (1, -1, 1)):
        made = post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "seed": 5, "temperature": temperature,
                                        "top_k": top_k, "top_p": top_p, "logprobs": 20,
                                        "return_tokens_as_token_ids": True})["choices"][0]
        if temperature > 0:
            kept = softmax({i: v / temperature for i, v in raw.items()})
            if top_k > 0:
                kept = softmax(dict(sorted(kept.items(), key=lambda kv: -kv[1])[:top_k]))
            left, mass = {}, 0.0
            for i, v in sorted(kept.items(), key=lambda kv: -kv[1]):
                if mass < top_p:
                    left[i] = v
                mass += math.exp(v)
            kept = softmax(left)
        else:
            kept = raw
        for i, v in tops_of(made)[0].items():
            check(abs(v - kept.get(i, FLOOR)) < 1e-3, temperature, top_k, top_p, i, v, kept.get(i))


def keep_raw_row():
    """For the run with processed ones: {id: raw logprob} after the prompt."""
    made = post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "logprobs": -1,
                                    "return_tokens_as_token_ids": True})["choices"][0]
    with open(os.path.join(WORK, "raw_row"), "w", encoding="ascii") as f:
        json.dump(tops_of(made)[0], f)


def raw_row():
    """What keep_raw_row() kept. A prompt's logprobs are raw in every mode."""
    with open(os.path.join(WORK, "raw_row"), encoding="ascii") as f:
        row = {int(i): v for i, v in json.load(f).items()}
    check(sorted(row) == list(range(VOCAB)), len(row))
    prompts = [PROMPT + [i] for i in range(0, VOCAB, 32)]
    for choice in post("/v1/completions", {"prompt": prompts, "max_tokens": 1, "prompt_logprobs": 0})["choices"]:
        (token, entry), = choice["prompt_logprobs"][-1].items()
        check(math.isclose(entry["logprob"], row[int(token)], abs_tol=1e-6), token, entry, row[int(token)])
    return row


def limited():
    refused("/v1/completions", {"prompt": PROMPT, "logprobs": 21}, "at most 20", "--max-logprobs")
    refused("/v1/completions", {"prompt": PROMPT, "logprobs": -1}, "at most 20")
    refused("/v1/completions", {"prompt": PROMPT, "prompt_logprobs": 21}, "at most 20")
    post("/v1/completions", {"prompt": PROMPT, "logprobs": 20, "prompt_logprobs": 20})


def main():
    if WHICH == "raw":
        server_info("raw_logprobs", -1)
        models()
        members()
        cached()
        all_logprobs()
        too_many_logprobs()
        prompts_told_again()
        all_logprobs_in_a_stream()
        context()
        sixteen()
        scored()
        an_event_for_each_token()
        aborts()
        keep_raw_row()
    else:
        server_info("processed_logprobs", 20)
        processed_logprobs()
        limited()
    with open(os.path.join(WORK, "n_checks"), "w", encoding="ascii") as f:
        f.write(str(n_checks))


if __name__ == "__main__":
    main()
