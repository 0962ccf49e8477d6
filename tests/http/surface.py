"""Requests and answers as the clients of OpenAI, vLLM and TRL have them. Usage: surface.py URL WORK_DIR
raw MODEL | processed (the number of checks is left in WORK_DIR/n_checks)"""

import json
import math
import os
import sys
import urllib.error
import urllib.request

URL, WORK, WHICH = sys.argv[1:4]
PROMPT = [40, 77, 258, 803, 264, 77, 290]  # "In the beginning"
VOCAB, CONTEXT = 1024, 1024
FLOOR = -9999.0  # the least logprob that is told
ENTRIES_MAX = 2 * 1024 * 1024
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


def raw_row():
    """{id: raw logprob} after the prompt: a prompt's logprobs are raw in every mode."""
    row = {}
    for first in range(0, VOCAB, 256):
        prompts = [PROMPT + [i] for i in range(first, first + 256)]
        for choice in post("/v1/completions", {"prompt": prompts, "max_tokens": 1, "prompt_logprobs": 0})["choices"]:
            last = choice["prompt_logprobs"][-1]
            (token, entry), = last.items()
            row[int(token)] = entry["logprob"]
    return row


def limited():
    refused("/v1/completions", {"prompt": PROMPT, "logprobs": 21}, "at most 20", "--max-logprobs")
    refused("/v1/completions", {"prompt": PROMPT, "logprobs": -1}, "at most 20")
    refused("/v1/completions", {"prompt": PROMPT, "prompt_logprobs": 21}, "at most 20")
    post("/v1/completions", {"prompt": PROMPT, "logprobs": 20, "prompt_logprobs": 20})


def main():
    if WHICH == "raw":
        server_info("raw_logprobs", -1)
        all_logprobs()
        too_many_logprobs()
    else:
        server_info("processed_logprobs", 20)
        processed_logprobs()
        limited()
    with open(os.path.join(WORK, "n_checks"), "w", encoding="ascii") as f:
        f.write(str(n_checks))


if __name__ == "__main__":
    main()
