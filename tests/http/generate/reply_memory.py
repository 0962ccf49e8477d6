"""One reply with every logprob of the vocabulary. The server's peak of memory (VmHWM) may grow by a
small multiple of the text: a tree of values takes ten times it, and more.
Usage: reply_memory.py URL PID completions|chat|generate|skyrl|sglang|prompt"""

import json
import sys
import urllib.request

URL, PID, FORM = sys.argv[1:]
IDS = [40, 77, 258, 803, 264, 77, 290]
VOCABULARY = 1024
PARAMS = {"max_tokens": 250, "logprobs": VOCABULARY, "ignore_eos": True}
SGLANG = {"max_new_tokens": 250, "ignore_eos": True}
FORMS = {
    "completions": ("/v1/completions", {"prompt": IDS, **PARAMS}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "In"}], **PARAMS, "logprobs": True,
                                      "top_logprobs": VOCABULARY}),
    "generate": ("/v1/generate", {"token_ids": IDS, "sampling_params": PARAMS}),
    "skyrl": ("/skyrl/v1/generate", {"token_ids": IDS, "sampling_params": PARAMS}),
    "sglang": ("/generate", {"input_ids": IDS, "return_logprob": True, "top_logprobs_num": VOCABULARY,
                             "sampling_params": SGLANG}),
    "prompt": ("/v1/completions", {"prompt": [11] * 250, "max_tokens": 1, "prompt_logprobs": VOCABULARY}),
}
TIMES = 4  # the text, once more while it is put together, and once more as the buffer grows
REST = 16e6  # the engine's own of 250 * 1024 logprobs, the KV cache, stacks


def peak():
    with open(f"/proc/{PID}/status", encoding="utf-8") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))


path, body = FORMS[FORM]
before = peak()
request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=240) as answer:
    n = len(answer.read())
grown = peak() - before
print(f"{FORM}: a reply of {n / 1e6:.1f} MB, peak +{grown / 1e6:.1f} MB")
if grown > TIMES * n + REST:
    sys.exit(f"at most {(TIMES * n + REST) / 1e6:.1f} MB are allowed")
