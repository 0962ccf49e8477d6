"""What each upstream gets while a scenario is played: a text that is compared with one that is kept.

A scenario is a list of steps, of which each begins with what a client asks, or with what is done to an engine, and ends
when the next one begins: so a scenario waits for the states that a step ends in. Of each step the requests that change
something are written, in order, with their bodies. Requests that are sent together arrive in any order: they are one
line. Left out are questions (each GET), tokens, and what differs by chance: ids, ports, paths and handles are replaced
by names.
"""

import json
import os
import re

from fake_engine_world import Double
from fleet_control import BATON, ENGINE, FILE, LOG, RANKS, WORK, Fleet, reboot
from fleet_world import DATA_OPS, Server, until
from handoff_tap import Tap

MODEL, FAKE, FOREIGN = os.environ["JOURNALS_MODEL"], os.environ["JOURNALS_CUDA"], os.environ["JOURNALS_FOREIGN"]
LEFT_OUT = (*DATA_OPS, "canary", "checksums")
WAIT_S = 20
SHOWN, LONG = 3, 100  # entries of a longer list; characters of a text

# What is sent at the same time, by ops of the doubles.
TOGETHER = {"baton": (),
            "vllm": ({"finish", "reset_cache", "reset_encoder"}, {"relabel", "reset_cache", "reset_encoder"}),
            "sglang": ({"end", "reset_cache"}, {"finish", "reset_storage"}),
            "sglang_old": ({"finish", "reset_cache"},)}
RESETS = {"baton": set(), "vllm": {"reset_cache", "reset_encoder"}, "sglang": {"reset_cache", "reset_storage"}}
# Across engines: of a step each of the first comes before any of the second.
BARRIERS = (("pause", "update"), ("mark", "update"), ("start", "update"), ("update", "verify"), ("update", "finish"),
            ("update", "end"), ("verify", "finish"), ("finish", "resume"), ("end", "resume"))

OPTIONS = {"vllm": ("vllm", "--vllm-version", "0.33.0"),
           "vllm_old": ("vllm", "--vllm-version", "0.24.0", "--silent-reset", "--plain-finish"),
           "sglang": ("sglang", "--sglang-version", "0.5.23", "--hicache"),
           "sglang_old": ("sglang", "--sglang-version", "0.5.16"),
           "baton": ("baton",)}


class Names:
    """Of what differs from run to run, in the order in which it came."""
    ID = re.compile(r"(?:upd-|boot-)?\b[0-9a-f]{16,64}\b")

    def __init__(self, fixed, known=None):
        self.fixed, self.ids, self.known = fixed, {}, {} if known is None else known

    def of(self, text):
        for what, name in self.fixed.items():
            text = text.replace(what, name)
        return self.ID.sub(lambda found: self.known.get(found[0]) or
                           self.ids.setdefault(found[0], f"<{'own ' if self.known else ''}id {len(self.ids) + 1}>"), text)

    def json(self, value):
        if isinstance(value, dict):
            return {k: self.json(v) for k, v in sorted(self.columns(value).items())}
        if isinstance(value, list):
            some = [self.json(v) for v in value[:SHOWN]]
            return some if len(value) <= SHOWN else [*some, f"… {len(value)}"]
        if isinstance(value, str):
            value = self.of(value)
            return value if len(value) <= LONG else f"<over {LONG} characters>"
        return value

    @staticmethod
    def columns(value):
        """The lists of names, dtypes and shapes as one, under their names."""
        names = [k for k in ("names", "dtypes", "dtype_names", "shapes") if isinstance(value.get(k), list)]
        if len(names) != 3:
            return value
        rows = [" ".join(str(v).replace(" ", "") for v in row) for row in zip(*(value[k] for k in names))]
        return {**{k: v for k, v in value.items() if k not in names}, "/".join(names): rows}

    def body(self, text):
        """Of a request, shortened."""
        if not text:
            return ""
        try:
            return " " + json.dumps(self.json(json.loads(text)), ensure_ascii=False)
        except ValueError:
            return " <no JSON>"


class Journal(Fleet):
    """with Journal("vllm", "vllm") as f: … doubles, a server in front of them, and what the doubles get from it."""

    def __init__(self, name, *kinds, stage=False, ages=(), **more):
        self.name, self.kinds, self.stage, self.taps = name, kinds, stage, []
        self.barriers, self.lone_resets, self.apart = True, True, ()
        self.lines, self.seen = [], [0] * len(kinds)
        self.log = f"{LOG}-{name}"
        super().__init__(*[(*OPTIONS[k], *ages) for k in kinds], **more)
        self.client = Names(self.known())
        self.names = [Names({**self.known(), d.url: "<this>"}, self.client.ids) for d in self.doubles]

    def known(self):
        return {**{d.url: f"<engine {i}>" for i, d in enumerate(self.doubles)}, WORK: "WORK", MODEL: "MODEL"}

    def urls(self):
        return [tap.url for tap in self.taps] if self.stage else [d.url for d in self.doubles]

    def serve(self):
        more = ()
        if self.stage:
            self.taps = self.taps or [Tap(FOREIGN, 0, d) for d in self.doubles]
            more = ("--stage", "cuda:0", "--cuda-library", FAKE, "--manifest", f"{MODEL}/checkpoints/step-00000.safetensors",
                    "--allow-path", MODEL)
        self.front = Server(BATON, self.log, "--probe-interval", 30, "--probe-timeout", 5000, "--compat", "all", "--prove",
                            "none", *more, *self.options,
                            *[a for url, d in zip(self.urls(), self.doubles) for a in ("--upstream", f"{url},{d.dialect}")])

    def states(self):
        found = self.front.upstreams()
        shown = [found.get(url) for url in self.urls()]
        return ["gone" if u is None else u["state"] if u["last_heard_s"] is not None else None for u in shown]

    def __enter__(self):
        self.lines.append(f"== {self.name}: {', '.join(self.kinds)}")
        super().__enter__()
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.flush()
                self.lines.append("  ends: " + self.shown())
        finally:
            for tap in self.taps:
                tap.__exit__()
            super().__exit__(kind)

    # ---- what is written ----

    def requests(self, i):
        """New ones that change something; last those ops that come at any time."""
        d = self.doubles[i]
        new = [r for r in d.journal() if r["n"] > self.seen[i]]
        self.seen[i] = max([self.seen[i], *(r["n"] for r in new)])
        changing = [r for r in new if r["method"] != "GET" and r["op"] not in LEFT_OUT]
        return sorted(changing, key=lambda r: r["op"] in self.apart)

    def flush(self):
        """What came in the step that ends."""
        all_of = [self.requests(i) for i in range(len(self.doubles))]
        self.check_barriers(all_of)
        texts = [self.sets(i, requests) for i, requests in enumerate(all_of)]
        if len(texts) > 1 and texts.count(texts[0]) == len(texts):
            self.lines += [f"  each  {line}" for line in texts[0]]
        else:
            self.lines += [f"  {i}     {line}" for i, lines in enumerate(texts) for line in lines]

    def check_barriers(self, all_of):
        """Between engines, of their first times; an engine's own clearing up before does not count."""
        for first, then in BARRIERS if self.barriers else ():
            lasts, begins = [], []
            for requests in all_of:
                came = {op: [r["came_us"] for r in requests if r["op"] == op] for op in (first, then)}
                after = [us for us in came[then] if came[first] and us > came[first][0]][:1]
                lasts += [us for us in came[first] if not after or us < after[0]][-1 if after else 0:][:1]
                begins += after
            assert not begins or max(lasts) < min(begins), f"{self.name}: a '{then}' came before the last '{first}'"

    def sets(self, i, requests):
        """A line for each request, or for those that were sent together."""
        together, lines, at = TOGETHER["sglang_old" if self.kinds[i] == "sglang_old" else self.doubles[i].dialect], [], 0
        while at < len(requests):
            n = 1
            while at + n < len(requests) and self.are_together(together, [r["op"] for r in requests[at:at + n + 1]]):
                n += 1
            if self.lone_resets or not {r["op"] for r in requests[at:at + n]} <= RESETS[self.doubles[i].dialect]:
                lines.append(" + ".join(sorted(self.written(i, r) for r in requests[at:at + n])))
            at += n
        return lines

    @staticmethod
    def are_together(together, ops):
        return len(set(ops)) == len(ops) and any(set(ops) <= one for one in together)

    def written(self, i, r):
        query = f"?{r['query']}" if r["query"] else ""
        end = r["status"] if r["end"] == "answered" else r["end"]
        outcome = "" if end == 200 else f" -> {end}"
        method = "" if r["method"] == "POST" else f"{r['method']} "
        return self.names[i].of(method + r["path"] + query) + self.names[i].body(r["body"]) + outcome

    def shown(self):
        """The state of each engine, as the server and as the engine has it."""
        found, out = self.front.upstreams(), []
        for url, d in zip(self.urls(), self.doubles):
            u, state = found.get(url), d.state()
            flags = [state["version"] or "-", *[f"pause {state['pause']}"] * (state["pause"] is not None),
                     *["torn"] * state["torn"], *["asleep"] * state["weights_asleep"], *["without KV"] * state["kv_released"],
                     *[f"update {state['update']}"] * (state["update"] == "open"), *["in a group"] * (state["group"] is not None),
                     *(f"{name}={path}" for name, path in sorted(state["adapters"].items()))]
            error = f" ({u['error']['code']})" if u is not None and u["error"] else ""
            out.append(("gone" if u is None else u["state"]) + error + ", " + self.client.of(", ".join(flags)))
        return out[0] if len(set(out)) == 1 else "; ".join(out)

    def step(self, text):
        self.flush()
        self.lines.append(text)

    # ---- the steps ----

    def adopt(self, d):
        """Another engine, which is the test's own."""
        self.doubles.append(d)
        self.kinds, self.seen = (*self.kinds, self.kinds[0]), [*self.seen, 0]
        self.names.append(Names({**self.known(), d.url: "<this>"}, self.client.ids))
        self.client.fixed = self.known()

    def disown(self):
        self.doubles.pop()
        self.kinds, self.seen = self.kinds[:-1], self.seen[:-1]

    def ask(self, method, path, body=None):
        """(status, answer)"""
        self.step(f"> {method} {self.client.of(path)}{self.client.body(json.dumps(body) if body is not None else '')}")
        status, said = self.front.ask(method, path, body)
        self.client.of(said.get("update_id") or "" if isinstance(said, dict) else "")
        self.lines[-1] += f" -> {self.told(status, said)}"
        return status, said

    def told(self, status, said):
        if not isinstance(said, dict):
            return str(status)
        error = said.get("error") if isinstance(said.get("error"), dict) else None
        marks = [m for m in [error and error.get("code"), said.get("phase"), said.get("coverage")] if m]
        list_of = said.get("upstreams") or ((error or {}).get("details") or {}).get("upstreams")
        if isinstance(list_of, list) and not all(u.get("ok", True) for u in list_of):
            marks.append("at " + " ".join("+" if u["ok"] else "-" for u in list_of))
        return " ".join([str(status), *marks])

    def post(self, path, body=None):
        return self.ask("POST", path, {} if body is None else body)[1]

    def order(self, i, on, do, **more):
        """What engine `i` does next."""
        self.step(f"! {i}: {on} {do}{''.join(f', {k} {v}' for k, v in more.items())}")
        self.doubles[i].order(on, do, **more)

    def heal(self, i):
        self.step(f"! {i}: no faults")
        self.doubles[i].good("DELETE", "/fault")

    def away(self, i, *states):
        """Its questions are not answered, and nor is what one order of a fault says."""
        self.step(f"! {i}: away")
        self.doubles[i].order("who", "close_before", times=0)
        self.wait(*states)

    def back(self, i, *states):
        self.step(f"! {i}: back")
        self.doubles[i].good("DELETE", "/fault?on=who")
        self.wait(*states)

    def restart(self, i, down, *states, resets=True):
        """It is another process: first it is down, which is seen. Then its caches are emptied, but within an update."""
        d = self.doubles[i]
        self.away(i, *down)
        self.step(f"! {i}: another process")
        reboot(d)
        self.seen[i] = d.state()["requests"]
        d.good("DELETE", "/fault?on=who")
        if resets:
            self.emptied(i)
        self.wait(*states)

    def got(self, i, *ops):
        """In this step it gets them."""
        d, n = self.doubles[i], self.seen[i]
        self.until_seen(f"{i} gets {ops}", lambda: set(ops) <= {r["op"] for r in d.journal() if r["n"] > n})

    def emptied(self, i):
        """Its caches are, in this step."""
        self.got(i, *RESETS[self.doubles[i].dialect])

    def until_seen(self, what, condition):
        def told():
            return f"{self.name}: {what}: {self.states()} {[u['error'] for u in self.front.upstreams().values()]}"
        until(told, condition, WAIT_S)

    def wait(self, *states):
        self.until_seen(states, lambda: self.states() == list(states))


__all__ = ["Double", "ENGINE", "FILE", "Journal", "RANKS"]
