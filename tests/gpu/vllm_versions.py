"""Which versions made the replies of two real vLLM behind baton, under updates and load: no span is
wrong against what each checkpoint generates, and what no update crossed is exact."""

import json
import threading
import time
import urllib.request

import gpu_world as world
import vllm_engines
from dialects_world import MODEL, STEPS, say

MODES = ("recompute", "finish")
HEADERS = {"Content-Type": "application/json", "X-Baton-Weight-Versions": "1"}
WAIT_S = 120
N_UPDATES = 6
LEAST_EXACT = 0.95


def goldens():
    """{step: {prompt: the tokens that follow}}"""
    return {
        step: {tuple(prompt): ids for prompt, ids, _ in vllm_engines.questions(step)}
        for step in STEPS
    }


class Load:
    """Clients that ask all the while, one prompt after the other."""

    def __init__(self, url, prompts, n_tokens):
        self.url, self.prompts, self.n = url, prompts, n_tokens
        self.over, self.found = threading.Event(), []  # (prompt, reply, (from, to))
        self.threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(4)]

    def _run(self, i):
        while not self.over.is_set():
            prompt = self.prompts[i % len(self.prompts)]
            body = {"model": MODEL, "prompt": list(prompt), "max_tokens": self.n[prompt], "temperature": 0,
                    "ignore_eos": True, "return_token_ids": True}
            began = time.monotonic()
            self.found.append((prompt, self.ask(body), (began, time.monotonic())))
            i += 1

    def ask(self, body):
        """The reply, or why there is none."""
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), HEADERS)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as f:
                return json.load(f)
        except OSError as e:
            return str(e)

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for t in self.threads:
            t.join(WAIT_S)

    def wait(self):
        n = len(self.found)
        world.until(lambda: len(self.found) > n + 8, "requests are answered")


def makers_of(prompt, tokens, known):
    """The steps that alone make these tokens of it."""
    return {step for step, made in known.items() if made.get(prompt) == tokens}


def is_wrong(span, makers, step_of):
    """Of a reply that one checkpoint made: does the span name another one?"""
    return span["exact"] and step_of.get(span["serial"]) not in makers


def crosses(a, b):
    return a[0] < b[1] and b[0] < a[1]


def judge(play, mode, found, known, step_of, updates):
    bad = [r for _, r, _ in found if isinstance(r, str)]
    play.checks.same(bad, [], f"{mode}: all of {len(found)} requests are answered")
    apart = exact = mixed = 0
    wrong = []
    for prompt, reply, when in found:
        if isinstance(reply, str):
            continue
        spans, tokens = reply["weight_versions"], reply["choices"][0]["token_ids"]
        makers = makers_of(prompt, tokens, known)
        mixed += not makers
        if not any(crosses(when, u) for u in updates):
            apart += 1
            exact += spans[0]["exact"]
        if any(is_wrong(s, makers, step_of) for s in spans):
            wrong.append((spans, makers))
    play.checks.same(wrong, [], f"{mode}: no span is wrong")
    play.checks.that(apart > 0 and exact >= LEAST_EXACT * apart, f"{mode}: exact of those that no update crossed",
                     f"{exact} of {apart}")
    play.checks.that(mode != "finish" or mixed == 0, f"{mode}: replies of two checkpoints", mixed)
    return mixed


def push(play, server, what, step_of):
    """From when to when it was under way."""
    began = time.monotonic()
    step = play.push(server, "ipc", what, {}, cached=False)
    ended = time.monotonic()
    step_of[server.status()["weights"]["serial"]] = step
    return began, ended


def one_mode(play, server, mode, load_of=Load):
    """The step that the engines have at its end, and how many replies two checkpoints made.
    @server  baton in front of both engines, with --on-update MODE"""
    known = goldens()
    prompts = sorted(set.intersection(*(set(made) for made in known.values())))
    lengths = {p: min(len(made[p]) for made in known.values()) for p in prompts}
    known = {step: {p: made[p][: lengths[p]] for p in prompts} for step, made in known.items()}
    step_of, play.pauses = {}, mode != "finish"  # a trainer's pause by keep would decide
    say(server, "/init_weight_transfer_engine", {"init_info": {}})
    push(play, server, f"before the load, {mode}", step_of)
    with load_of(server.url, prompts, lengths) as load:
        updates = []
        for _ in range(N_UPDATES):
            load.wait()
            updates.append(push(play, server, f"under load, {mode}", step_of))
        load.wait()
    play.pauses = True
    return step_of[max(step_of)], judge(play, mode, load.found, known, step_of, updates)
