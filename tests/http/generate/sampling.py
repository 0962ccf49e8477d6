"""Sampling members through each route that takes them. Usage: sampling.py URL WORK_DIR
(the number of checks is left in WORK_DIR/n_checks)
Environment: SAMPLING_LOAD, choices of each of the twelve requests of the load (default 8)"""

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request

URL, WORK = sys.argv[1:]
PROMPT = [40, 77, 258, 803, 264, 77, 290]  # "In the beginning"
VOCAB = 1024
N_TOP = 64
n_checks = 0


class Route:
    """How a route spells a request and its choices."""

    def __init__(self, path, flat):
        self.path, self.at = path, "" if flat else "/sampling_params"
        self.flat = flat

    def place(self, member):
        """How an error names it: a JSON pointer, or vLLM's way."""
        pointer = f"{self.at}/{member}"
        return pointer if self.path == "/v1/generate" else pointer[1:].replace("/", ".")

    def body(self, members):
        """JSON text; `members` is JSON text too, so that it may be no JSON."""
        if self.flat:
            extra = "" if members == "{}" else ", " + members[1:-1]
            return f'{{"prompt": {PROMPT}, "return_token_ids": true, ' \
                   f'"return_tokens_as_token_ids": true{extra}}}'
        return f'{{"token_ids": {PROMPT}, "sampling_params": {members}}}'

    def send(self, members):
        text = self.body(members if isinstance(members, str) else json.dumps(members))
        request = urllib.request.Request(URL + self.path, text.encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as f:
                return f.status, json.load(f)
        except urllib.error.HTTPError as e:
            return e.code, json.load(e)

    def choices(self, **members):
        status, reply = self.send(dict({"max_tokens": 16}, **members))
        assert status == 200, (self.path, members, reply)
        found = reply["choices"]
        assert [c["index"] for c in found] == list(range(len(found)))
        return found

    def ids(self, **members):
        return self.choices(**members)[0]["token_ids"]

    def all_ids(self, **members):
        return [c["token_ids"] for c in self.choices(**members)]


ROUTES = [Route("/v1/generate", False), Route("/inference/v1/generate", False),
          Route("/v1/completions", True)]


def check(condition, *what):
    global n_checks
    n_checks += 1
    assert condition, what


# Member -> values as JSON text that are refused, each with what follows the member's pointer.
NUMBERS = ['"1"', "true", "[]", "{}"]  # of another type
REFUSED = {
    "temperature": NUMBERS + ["-0.001", "100.5", "1e30", "1e308"],
    "top_p": NUMBERS + ["0", "1.0001", "-1", "1e-60"],
    "min_p": NUMBERS + ["-0.1", "1.1", "1e300"],
    "top_k": NUMBERS + ["-2", "1.5", "2147483648", "9223372036854775807"],
    "repetition_penalty": NUMBERS + ["0", "-1", "1e-60", "1e39"],
    "frequency_penalty": NUMBERS + ["2.5", "-2.5", "1e300"],
    "presence_penalty": NUMBERS + ["2.5", "-2.5", "-1e39"],
    "n": NUMBERS + ["0", "129", "-1", "1.5", "9223372036854775807"],
    "best_of": NUMBERS + ["0", "2", "1.5"],
    "max_tokens": NUMBERS + ["0", "-1", "1.5", "4294967296"],
    "min_tokens": NUMBERS + ["-1", "1.5", "1000"],  # above the max_tokens of 16
    "seed": NUMBERS + ["0.5"],
    "logprobs": NUMBERS + ["-2", "1025", "1.5"],
    "prompt_logprobs": NUMBERS + ["-2", "1025", "1.5"],
    "ignore_eos": ["0", '"true"', "[]"],
    "skip_special_tokens": ["0", '"true"', "[]"],
    "include_stop_str_in_output": ["1", "{}"],
    "stop": ["7", "{}", '""', ('[""]', "/0"), ('["a", 1]', "/1"), ('["a", null]', "/1"),
             json.dumps(["a"] * 17), json.dumps("x" * 257), '"\\u0000"'],
    "stop_token_ids": ["7", "{}", '"7"', ("[1024]", "/0"), ("[1, -1]", "/1"), ("[1.0]", "/0"),
                       ("[null]", "/0"), json.dumps([1] * 65)],
    "logit_bias": ["7", "[]", '"5"', '{"1024": 1}', '{"-1": 1}', '{"x": 1}', '{"05": 1}',
                   '{"": 1}', ('{"5": null}', "/5"), ('{"5": "1"}', "/5"), ('{"5": {}}', "/5"),
                   json.dumps({str(i): 1 for i in range(1025)})],
    "allowed_token_ids": ["7", "{}", "[]", '"7"', ("[1024]", "/0"), ("[1, -1]", "/1"),
                          ("[1.0]", "/0"), ('["1"]', "/0"), json.dumps([1] * 1025)],
    "bad_words": ["7", "{}", '"the"', ('[""]', "/0"), ('["a", 1]', "/1"), ('[" "]', "/0"),
                  (json.dumps(["x" * 257]), "/0"), json.dumps(["a"] * 129)],
    "length_penalty": ["2", '"1"'],
    "use_beam_search": ["true", "1"],
    "guided_json": ["{}"], "guided_regex": ['"a*"'], "guided_choice": ["[]"],
    "guided_grammar": ['"x"'], "guided_decoding": ["{}"], "structured_outputs": ["{}"],
    "logits_processors": ['["x"]'], "logprob_token_ids": ["[1]"],
    "response_format": ['{"type": "json_object"}'],
}
NO_JSON = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400, "0x10", "nil"]


def refusals():
    for route in ROUTES:
        for member, values in REFUSED.items():
            for value in values:
                value, below = value if isinstance(value, tuple) else (value, "")
                more = "" if member == "max_tokens" else ', "max_tokens": 16'
                status, reply = route.send(f'{{"{member}": {value}{more}}}')
                error = reply.get("error", {})
                check(status == 400 and error.get("param") == route.place(member + below),
                      route.path, member, value[:80], status, reply)
                check(error["message"], member)
            for value in NO_JSON:
                status, reply = route.send(f'{{"{member}": {value}}}')
                check(status == 400 and reply["error"]["message"], member, value, reply)
            status, reply = route.send(f'{{"{member}": null, "max_tokens": 2}}'
                                       if member != "max_tokens" else '{"max_tokens": 2}')
            check(status == 200, route.path, member, "null", reply)
    for route in ROUTES:
        status, reply = route.send('{"allowed_token_ids": [5, 6], "min_tokens": 1, '
                                   '"max_tokens": 2, "stop_token_ids": [6, 5]}')
        check(status == 400 and reply["error"]["param"] == route.place("allowed_token_ids"), reply)
        status, reply = route.send('{"temperature": 1, "temperature": 0}')
        check(status == 400, "twice", reply)


def neutral(route):
    """Neutral values change no token and no logprob."""
    plain = route.choices(seed=3, logprobs=2)
    same = route.choices(seed=3, logprobs=2, repetition_penalty=1, frequency_penalty=0,
                         presence_penalty=0.0, logit_bias={}, bad_words=[], best_of=1, top_k=-1,
                         allowed_token_ids=list(range(VOCAB)), min_p=0, top_p=1, stop=[])
    check(plain == same, route.path, plain, same)


def lists(route):
    few = [5, 290, 900, 41, 8]
    for seed in range(4):
        check(set(route.ids(seed=seed, allowed_token_ids=few, temperature=2, ignore_eos=True)) <=
              set(few), "allowed")
    check(route.ids(temperature=0, logit_bias={"5": 100, "6": -100}) == [5] * 16, "bias")
    check(route.ids(temperature=0, logit_bias={"5": 1e300}) == [5] * 16, "a bias is cut")
    check(route.ids(temperature=0, logit_bias={"5": 100}, allowed_token_ids=few[1:]).count(5) == 0,
          "no bias brings back what is not allowed")
    greedy = route.ids(temperature=0)
    never = route.ids(temperature=0, logit_bias={str(i): -100 for i in greedy})
    check(not set(never) & set(greedy), never, greedy)
    # " of" and "of" are one token each: one word forbids both. " found" is one and "found" is two:
    # vLLM's rule, and ours, then forbids the two only.
    for i in (268, 605):
        bias = {str(i): 100}
        check(route.ids(temperature=0, logit_bias=bias) == [i] * 16, i)
        for word in ("of", " of", "\t of"):
            check(i not in route.ids(temperature=0, logit_bias=bias, bad_words=["x", word]), word)
    check(route.ids(temperature=0, bad_words=["found"]) == greedy == [873] * 16, greedy)
    # Of two tokens, the second is forbidden behind the first.
    members = {"allowed_token_ids": [38, 329], "temperature": 5, "ignore_eos": True}
    pairs = [pair for seed in range(4) for pair in pairs_of(route.ids(seed=seed, **members))]
    check((38, 329) in pairs and (329, 329) in pairs, pairs)
    pairs = [pair for seed in range(4)
             for pair in pairs_of(route.ids(seed=seed, bad_words=["God"], **members))]
    check((38, 329) not in pairs and (38, 38) in pairs, pairs)


def pairs_of(ids):
    return list(zip(ids, ids[1:]))


def text_of(ids):
    request = urllib.request.Request(URL + "/detokenize", json.dumps({"tokens": ids}).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as f:
        return json.load(f)["prompt"]


def tops(route, choice):
    """For each token: id -> raw logprob of the best."""
    if route.flat:
        return [{int(k[9:]): v for k, v in top.items()} for top in choice["logprobs"]["top_logprobs"]]
    return [{t["token_id"]: t["logprob"] for t in entry["top_logprobs"]}
            for entry in choice["logprobs"]["content"]]


def penalties(route):
    """Greedy under penalties is what the raw logprobs and the tokens before say it is."""
    moved = n_judged = 0
    plain = route.ids(temperature=0, max_tokens=24)
    for frequency, presence in ((1.5, 0), (0, 1.5), (0.5, 1), (-2, 2), (2, -2)):
        choice = route.choices(temperature=0, frequency_penalty=frequency, max_tokens=24,
                               presence_penalty=presence, logprobs=N_TOP)[0]
        out = choice["token_ids"]
        for i, top in enumerate(tops(route, choice)):
            def penalty(k):
                return frequency * out[:i].count(k) + presence * (k in out[:i])
            score = {k: v - penalty(k) for k, v in top.items()}
            # Tokens not returned are below all returned ones, but a penalty below 0 can lift them.
            unseen = min(top.values()) - min([0] + [penalty(k) for k in out[:i] if k not in top])
            best = max(score.values())
            if best <= unseen:
                continue
            check(score.get(out[i], -1e9) >= best - 1e-4, route.path, frequency, presence, i)
            n_judged += 1
            moved += out[i] != max(top, key=top.get)
    check(moved > 20 and n_judged > 90, "judged, and moved by the penalties", n_judged, moved)
    once = route.ids(temperature=0, repetition_penalty=1e6, max_tokens=24)
    check(len(set(once)) == 24 and not set(once) & set(PROMPT), once)
    check(len(set(plain)) < 24, plain)


class Load:
    """Long generations on every route, from when all run until they are ended: no later than needed,
    for a sanitizer's engine makes few tokens in a second."""

    EACH, PER_ROUTE = int(os.environ.get("SAMPLING_LOAD", "8")), 4
    SIZE = EACH * PER_ROUTE * len(ROUTES)

    def __init__(self):
        self.ends = []
        self.threads = [threading.Thread(target=self.client, args=(r,), daemon=True)
                        for r in ROUTES for _ in range(self.PER_ROUTE)]

    def client(self, route):
        self.ends += [c["finish_reason"] for c in
                      route.choices(n=self.EACH, max_tokens=900, ignore_eos=True)]

    @staticmethod
    def running():
        with urllib.request.urlopen(URL + "/v1/status", timeout=60) as f:
            return json.load(f)["engine"]["running"]

    def __enter__(self):
        for t in self.threads:
            t.start()
        end = time.monotonic() + 60
        while self.running() < self.SIZE:
            assert time.monotonic() < end, "the load does not run"
        return self

    def __exit__(self, *_):
        request = urllib.request.Request(URL + "/v1/abort_requests", b'{"all": true}',
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as f:
            assert f.status == 200
        for t in self.threads:
            t.join(120)
        check(self.ends == ["abort"] * self.SIZE, self.ends)


def seeds(route):
    """Choice i is the lone request with the i-th seed, also among others."""
    members = dict(temperature=1.0, repetition_penalty=1.2, frequency_penalty=0.3, top_p=0.9,
                   logit_bias={"290": 1.5}, bad_words=["the"], max_tokens=24)
    together = route.all_ids(n=5, best_of=5, seed=100, **members)
    check(len({tuple(ids) for ids in together}) > 1, "all choices are one")
    for i, ids in enumerate(together):
        check(route.ids(seed=100 + i, **members) == ids, route.path, i)
    with Load() as load:
        check(route.all_ids(n=5, seed=100, **members) == together, "a load changed tokens")
        check(load.running() == load.SIZE, "the load ended too soon")
    check(route.all_ids(n=3, seed=-7, **members) == route.all_ids(n=3, seed=-7, **members), "-7")
    check(len({tuple(route.ids(seed=-1, **members)) for _ in range(6)}) > 1, "-1 is no seed")


def stopping(route):
    greedy = route.ids(temperature=0)
    early = route.choices(temperature=0, stop_token_ids=[greedy[3]])[0]
    check(early["finish_reason"] == "stop" and early["stop_reason"] == greedy[3], early)
    first = greedy.index(greedy[3])
    check(early["token_ids"] == greedy[:first + 1], early)
    late = route.choices(temperature=0, stop_token_ids=[greedy[3]], min_tokens=9)[0]["token_ids"]
    check(len(late) >= 9 and greedy[3] not in late[:9], late)
    word = text_of(greedy)[:5]
    early = route.choices(temperature=0, stop=["never there", word])[0]
    check(early["finish_reason"] == "stop" and early["stop_reason"] == word, early)
    forced = route.choices(temperature=0, max_tokens=4, allowed_token_ids=[5], ignore_eos=True)[0]
    check(forced["token_ids"] == [5] * 4 and forced["finish_reason"] == "length", forced)


def prompt_lists():
    """Several prompts with several choices: index = prompt * n + choice, the same seeds for each."""
    members = {"max_tokens": 8, "n": 2, "seed": 5, "return_token_ids": True, "frequency_penalty": 1}
    request = urllib.request.Request(
        URL + "/v1/completions", json.dumps({"prompt": [PROMPT, PROMPT[:3]], **members}).encode(),
        {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as f:
        found = [c["token_ids"] for c in json.load(f)["choices"]]
    check(len(found) == 4 and found[:2] == ROUTES[2].all_ids(n=2, seed=5, max_tokens=8,
                                                            frequency_penalty=1), found)


def main():
    refusals()
    for route in ROUTES:
        for test in (neutral, lists, penalties, seeds, stopping):
            test(route)
    wanted = ROUTES[0].all_ids(n=3, seed=9, frequency_penalty=1)
    for route in ROUTES[1:]:
        check(route.all_ids(n=3, seed=9, frequency_penalty=1) == wanted, "routes differ")
    prompt_lists()
    with open(WORK + "/n_checks", "w", encoding="utf-8") as f:
        f.write(str(n_checks))
    print(f"{n_checks} checks")


main()
