"""Rule 5 of linear.py: spans of replies are computed again by a quiet server, from the version that they name."""

import collections
import signal
import threading

from linear_check import pushes_as_seen
from linear_contents import N_CONTENTS
from linear_world import ask, quiet_server

LOGPROB_MAX = 1e-4
N_ASKERS = 8
SELF_TEST_SPANS = 60  # of each kind of version

Span = collections.namedtuple("Span", "start end call")


def merged(spans):
    """A renamed version is one span."""
    out = []
    for s in spans:
        if out and out[-1]["serial"] == s["serial"]:
            out[-1] = dict(out[-1], end=s["end"])
        else:
            out.append(dict(s))
    return out


class Adapters:
    """Which content an adapter of a reply has: by the server's process, of which there are several, and the revision."""

    def __init__(self, calls):
        self.boots = [c for c in calls if c["op"] in ("kill", "term") and c.get("started")]
        self.revisions = {(self._boot_of(c), c["revision"]): c["content"]
                          for c in calls if c["op"] == "load" and c["status"] == 200}

    def _boot_of(self, call):
        """None: not known, since the server was started again meanwhile"""
        if any(b["inv"] < (call["resp"] or float("inf")) and b["started"] > call["inv"] for b in self.boots):
            return None
        return 1 + sum(b["started"] < call["inv"] for b in self.boots)

    def content_of(self, call):
        """None: not known"""
        boot = self._boot_of(call)
        return None if boot is None else self.revisions.get((boot, (call["adapter"] or {}).get("revision")))


class Spans:
    """What is to be compared: {(content, adapter): {prefix: [Span]}}"""

    def __init__(self, check):
        self.check, self.pushed, self.adapters = check, pushes_as_seen(check), Adapters(check.calls)
        self.todo, self.n, self.n_skipped = collections.defaultdict(lambda: collections.defaultdict(list)), 0, 0
        for c in check.calls:
            if c["op"] == "generate" and c.get("spans") and c["tokens"]:
                self._add(c)

    def _add(self, call):
        adapter = self.adapters.content_of(call) if call["model"] else None
        if call["model"] and adapter is None:
            self.n_skipped += 1
            return
        for i, s in enumerate(merged(call["spans"])):
            if i and call["on_update"] == "continue":  # it goes on with the KV of the version before
                return
            content = self._content_of(call, s)
            if content is None:
                self.n_skipped += 1
                continue
            prefix = (*call["prompt"], *call["tokens"][:s["start"]])
            self.todo[content, adapter][prefix].append(Span(s["start"], s["end"], call))
            self.n += 1

    def _content_of(self, call, s):
        """Serials in front of engines are the engine's: a push by its label, or what else had that serial there."""
        if self.check.mode == "single":
            return self.check.contents.get(s["serial"])
        push = self.check.pushes.get(s["version"]) or self.pushed.get((call["boot"], s["serial"]))
        if push is None or not push["partial"]:
            return push and (push["content"], None)
        return self.check.contents.get(push.get("serial"))

    def exchanged(self):
        """A few of them, of other versions than theirs: each must be found."""
        out = collections.defaultdict(dict)
        for ((content, part), adapter), prefixes in self.todo.items():
            long = {p: [s for s in spans if s.end - s.start >= 8] for p, spans in prefixes.items()}
            some = [(p, spans) for p, spans in long.items() if spans][:SELF_TEST_SPANS]
            out[((content + 1) % N_CONTENTS, part), adapter].update(some)
        return out


class Reference:
    """with Reference(world) as r: r.compare(…)"""

    def __init__(self, world):
        self.world, self.server, self.n_tokens, self.lock = world, None, 0, threading.Lock()

    def __enter__(self):
        self.server = quiet_server(self.world.options, self.world.contents)
        return self

    def __exit__(self, kind, *_):
        self.server.signal(signal.SIGTERM)
        wrong = self.server.end()
        assert kind or wrong is None, wrong

    def _good(self, path, body, **more):
        status, said = ask(self.server.port, "POST", path, body, **more)
        assert status == 200, said
        return said

    def serve(self, content, adapter):
        data = self.world.contents.mixed(*content)
        self._good("/v1/update_weights?weight_version=x", data, kind="application/vnd.safetensors")
        if adapter is not None:
            self._good("/v1/load_lora_adapter", {"lora_name": "ad", "lora_path": self.world.contents.adapter_path(adapter)})

    def compare(self, todo):
        """[(text, call)]: what differs"""
        differ = []
        for (content, adapter), prefixes in sorted(todo.items(), key=str):
            self.serve(content, adapter)
            left = list(prefixes.items())
            askers = [threading.Thread(target=self._ask_all, args=(left, (content, adapter), differ))
                      for _ in range(N_ASKERS)]
            for t in askers:
                t.start()
            for t in askers:
                t.join()
            assert not left, "an asker failed: see above"
        return differ

    def _ask_all(self, left, version, differ):
        content, adapter = version
        while True:
            with self.lock:
                if not left:
                    return
                prefix, spans = left.pop()
            try:
                ids, lps = self._greedy(prefix, max(s.end - s.start for s in spans), adapter)
            except Exception:
                left.append((prefix, spans))
                raise
            for s in spans:
                text = self._difference(s, ids, lps)
                if text:
                    differ.append((f"{text} of content {content} adapter {adapter}, {s.call['on_update']}", s.call))

    def _greedy(self, prefix, n, adapter):
        body = {"token_ids": list(prefix), **({} if adapter is None else {"model": "ad"}),
                "sampling_params": {"max_tokens": n, "temperature": 0, "ignore_eos": True, "logprobs": 1}}
        choice = self._good("/v1/generate", body)["choices"][0]
        return choice["token_ids"], [one["logprob"] for one in choice["logprobs"]["content"]]

    def _difference(self, s, ids, lps):
        got, said = s.call["tokens"][s.start:s.end], s.call["lps"][s.start:s.end]
        self.n_tokens += len(got)
        for i, (a, b) in enumerate(zip(got, ids)):
            if a != b:
                return f"token {s.start + i}: {a}, alone {b}"
        off = max((abs(a - b) for a, b in zip(said, lps)), default=0)
        return f"logprobs off by {off}" if off > LOGPROB_MAX else None


def check_tokens(world, check, self_test):
    """Adds what differs to check.found. A line about what was compared."""
    spans, found = Spans(check), ""
    with Reference(world) as reference:
        for text, call in reference.compare(spans.todo):
            check.violation(5, text, call)
        if self_test:
            exchanged = spans.exchanged()
            n = sum(len(s) for prefixes in exchanged.values() for s in prefixes.values())
            n_found = len(reference.compare(exchanged))
            assert n > 0 and n_found > 0.9 * n, f"of {n} spans of other versions {n_found} were found"
            found = f"; of {n} spans of other versions {n_found} were found"
    return f"spans compared: {spans.n}, tokens: {reference.n_tokens}, skipped: {spans.n_skipped}{found}"
