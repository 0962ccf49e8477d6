"""The same requests to a real vLLM and to baton's own engine, which serve the same checkpoint: are
their answers alike? What may differ stands in DIFFERS and nowhere else, with the words that
docs/compatibility.md has for it."""

import re

import real_world
from real_world import MODEL, ask, paths_of, record

TOLERANCE = 2e-3  # of a logprob
MOST_CHOICES = 2  # of a stream
IDS = [40, 77, 258, 803, 264, 77, 290]  # "In the beginning"
USAGE = {"stream_options": {"include_usage": True}}
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 8}


def completion(**more):
    return ("POST", "/v1/completions", {**GREEDY, "prompt": "In the beginning", **more})


def chat(**more):
    body = {**GREEDY, "messages": real_world.CHAT, **more}
    return ("POST", "/v1/chat/completions", body)


def inference(**params):
    sampling = {"temperature": 0, "max_tokens": 8, **params}
    return ("POST", "/inference/v1/generate", {"token_ids": IDS, "sampling_params": sampling})


REQUESTS = {
    "completion": completion(),
    "of token ids": completion(prompt=IDS, return_token_ids=True),
    "two prompts": completion(prompt=["In the beginning", "And the LORD"]),
    "logprobs": completion(logprobs=3, return_token_ids=True),
    "all logprobs refused or told": completion(logprobs=1024),
    "echo": completion(echo=True, logprobs=1),
    "echo scores a prompt": completion(echo=True, logprobs=1, max_tokens=0),
    "prompt_logprobs": completion(prompt=IDS, prompt_logprobs=2),
    "max_tokens null": completion(max_tokens=None, return_token_ids=True),
    "stop": completion(stop=[" the"]),
    "stop, kept": completion(stop=[" the"], include_stop_str_in_output=True),
    "stop_token_ids": completion(stop_token_ids=[258], return_token_ids=True),
    "penalties": completion(presence_penalty=1.5, frequency_penalty=0.5, repetition_penalty=1.2),
    "logit_bias": completion(logit_bias={"11": -100}),
    "allowed_token_ids": completion(allowed_token_ids=[11, 13, 258], return_token_ids=True),
    "bad_words": completion(bad_words=[" the"]),
    "min_tokens": completion(min_tokens=4, stop=[","]),
    "ignore_eos": completion(ignore_eos=True),
    "tokens as ids": completion(return_tokens_as_token_ids=True, logprobs=1),
    "stream": completion(stream=True),
    "stream with usage": completion(stream=True, **USAGE),
    "stream with usage in each event": completion(
        stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}
    ),
    "stream of two prompts with usage": completion(
        prompt=["In the beginning", "And the LORD"], stream=True, **USAGE
    ),
    "stream with usage, stopped": completion(stream=True, stop=[" the"], **USAGE),
    "stream with logprobs": completion(stream=True, logprobs=1, return_token_ids=True),
    "chat": chat(),
    "chat with logprobs": chat(logprobs=True, top_logprobs=2),
    "chat as a stream": chat(stream=True),
    "chat as a stream with usage": chat(stream=True, **USAGE),
    "chat, max_completion_tokens": chat(max_tokens=None, max_completion_tokens=4),
    "generate": inference(logprobs=1),
    "abort of no request": ("POST", "/inference/v1/abort_requests", {"request_ids": ["none"]}),
    "abort without a list": ("POST", "/inference/v1/abort_requests", {}),
    "models": ("GET", "/v1/models", None),
    "health": ("GET", "/health", None),
    "version": ("GET", "/version", None),
    "tokenize": ("POST", "/tokenize", {"model": MODEL, "prompt": "In the beginning"}),
    "detokenize": ("POST", "/detokenize", {"model": MODEL, "tokens": IDS}),
    "world size": ("GET", "/get_world_size", None),
    "is paused": ("GET", "/is_paused", None),
    "is sleeping": ("GET", "/is_sleeping", None),
    "reset": ("POST", "/reset_prefix_cache", {}),
    "pause": ("POST", "/pause?mode=keep", None),
    "is paused, yes": ("GET", "/is_paused", None),
    "resume": ("POST", "/resume", None),
    "no such model": completion(model="another"),
    "no such model, chat": chat(model="another"),
    "no prompt": ("POST", "/v1/completions", dict(GREEDY)),
    "temperature -1": completion(temperature=-1),
    "top_p 2": completion(top_p=2),
    "n 0": completion(n=0),
    "logprobs -5": completion(logprobs=-5),
    "too long": completion(prompt=[11] * 600),
    "no JSON": ("POST", "/v1/completions", "{"),
    "token out of range": completion(prompt=[99999]),
    "no route": ("GET", "/v1/no/such/route", None),
    "pause, no such mode": ("POST", "/pause?mode=never", None),
    "unload of no adapter": ("POST", "/v1/unload_lora_adapter", {"lora_name": "none"}),
    "load of no folder": (
        "POST",
        "/v1/load_lora_adapter",
        {"lora_name": "x", "lora_path": str(real_world.MODELS / "none")},
    ),
}

# Request -> what differs on purpose, as docs/compatibility.md says: "+member" is told by baton
# only, "-member" by vLLM only, "=member" has another value. "*": in all of them.
OURS = ("adapter", "boot_id", "choices[].weight_versions")
# Counts of vLLM's cache; null without its --enable-prompt-tokens-details too.
THEIRS = ("usage.prompt_tokens_details",)
# The nulls of a whole answer are told in each event too.
NULLS_OF_EVENTS = {"+events[].service_tier", "+events[].usage"}
NULLS_OF_TEXTS = {"+events[].choices[].prompt_logprobs", "+events[].choices[].routed_experts"}
CALLS = {"+choices[].message.tool_calls"}  # [] where vLLM leaves it out
# As vLLM 0.24 tells them; the newest has only ids.
SPELLED = {
    f"+choices[].logprobs.content[].{at}{m}"
    for at in ("", "top_logprobs[].")
    for m in ("token", "bytes")
}
OWN_ERRORS = {"+error.details", "+error.retryable"}
DIFFERS = {
    "*": {f"+{at}{m}" for at in ("", "events[].") for m in OURS}
    | {f"-{at}{m}" for at in ("", "events[].") for m in THEIRS},
    "all logprobs refused or told": {"status 400 -> 200"},  # --max-logprobs is not bounded by 20
    "no route": {"+error", "-detail"},
    # vLLM counts the one token that it makes and does not tell.
    "echo scores a prompt": {"=usage.completion_tokens", "=usage.total_tokens"},
    "reset": {"+status"},
    "tokens as ids": {"=choices[].logprobs.text_offset[]"},  # into the text that is told
    "stream": NULLS_OF_EVENTS | NULLS_OF_TEXTS,
    "stream with usage": NULLS_OF_EVENTS | NULLS_OF_TEXTS,
    "stream with usage in each event": NULLS_OF_EVENTS | NULLS_OF_TEXTS,
    "stream of two prompts with usage": NULLS_OF_EVENTS | NULLS_OF_TEXTS,
    "stream with usage, stopped": NULLS_OF_EVENTS | NULLS_OF_TEXTS,
    "stream with logprobs": NULLS_OF_EVENTS | NULLS_OF_TEXTS,
    "chat": CALLS,
    "chat with logprobs": CALLS,
    "chat, max_completion_tokens": CALLS,
    "chat as a stream": NULLS_OF_EVENTS,
    "chat as a stream with usage": NULLS_OF_EVENTS,
    "generate": SPELLED,
    "unload of no adapter": OWN_ERRORS,
    "load of no folder": OWN_ERRORS,
}


def send(url, request):
    method, path, body = request
    if body == "{":
        return _raw(url, path)
    return ask(url, method, path, body)


def _raw(url, path):
    import urllib.error
    import urllib.request

    headers = {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, b"{", headers)) as f:
            return real_world.Reply(f.status, f.headers.get_content_type(), f.read())
    except urllib.error.HTTPError as e:
        return real_world.Reply(e.code, e.headers.get_content_type(), e.read())


def differences(theirs, ours):
    """What a client could see: status, type, members, tokens, texts, logprobs."""
    found = set()
    if theirs.status != ours.status:
        found.add(f"status {theirs.status} -> {ours.status}")
    if theirs.kind != ours.kind:
        found.add(f"type {theirs.kind} -> {ours.kind}")
    if theirs.status != ours.status or theirs.shape() is None or ours.shape() is None:
        return found
    a, b = set(paths_of(theirs.shape())), set(paths_of(ours.shape()))
    found |= {f"-{p}" for p in a - b} | {f"+{p}" for p in b - a}
    if theirs.status == 200:
        found |= _values(theirs, ours)
    return found


def _values(theirs, ours):
    if theirs.kind == "text/event-stream":
        return _streams(theirs, ours)
    a, b = dict(real_world.leaves(theirs.body)), dict(real_world.leaves(ours.body))
    found = set()
    for path in a.keys() & b.keys():
        what = re.sub(r"\[\d+\]|\.\d+$|\.\d+(?=\.)", "[]", path)
        if _volatile(what) or _equal(a[path], b[path]):
            continue
        found.add(f"={what}")
    return found


def _streams(theirs, ours):
    """The text, the end and the counts are alike; vLLM too may put several tokens into one event,
    so that of the counts in each event the last ones are compared."""

    def counts(event):
        usage = event.get("usage") or {}
        return {name: n for name, n in usage.items() if isinstance(n, int)}

    def text_of(choices, index):
        of = [c for c in choices if c["index"] == index]
        return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in of)

    def whole(reply):
        events = [record.json.loads(e) for e in reply.events() if e != "[DONE]"]
        choices = [c for e in events for c in e["choices"]]
        return (
            [text_of(choices, i) for i in range(MOST_CHOICES)],
            sorted((c["index"], c["finish_reason"]) for c in choices if c.get("finish_reason")),
            [bool(counts(e)) for e in events if not e["choices"]],
            next((counts(e) for e in reversed(events) if counts(e)), None),
            all(counts(e) for e in events),
            "[DONE]" in reply.events(),
        )

    return set() if whole(theirs) == whole(ours) else {"=stream"}


VOLATILE = re.compile(
    r"(^|\.)(id|created|system_fingerprint|request_id|root|owned_by|version|max_model_len|"
    r"permission.*)$"
)


def _volatile(path):
    return VOLATILE.search(path) is not None


def _equal(a, b):
    number = (int, float)
    if isinstance(a, number) and isinstance(b, number) and not isinstance(a, bool):
        return abs(a - b) <= TOLERANCE
    return a == b


def _is_of(difference, allowed):
    """A member that is allowed to differ, or what is inside it."""
    return any(difference == a or difference.startswith((a + ".", a + "[")) for a in allowed)


def compare(checks, vllm, baton):
    for name, request in REQUESTS.items():
        theirs, ours = send(vllm, request), send(baton, request)
        allowed = tuple(DIFFERS.get(name, set()) | DIFFERS["*"])
        more = sorted(d for d in differences(theirs, ours) if not _is_of(d, allowed))
        checks.same(more, [], f"{name}: as vLLM")
        if any(d[0] not in "+-" for d in more):
            print(f"    vLLM  {theirs}\n    baton {ours}", flush=True)
