"""Doubles of vLLM and SGLang as the engines of linear.py, in front of which a server passes updates on (mode passed) or
hands its versions over (mode staged). Their tokens show which version made them, and whether from caches of another one."""

import http.client
import json
import signal
import subprocess

from fake_engine_world import STEPS, WAIT_S, fnv1a, ids_of, tag

MODES = ("passed", "staged")
COLUMNS = {"names": ["a", "b"], "dtypes": ["bfloat16", "bfloat16"], "shapes": [[1], [2, 3]]}
HANDLES = dict(COLUMNS, packed=True, tensor_sizes=[2, 12], ipc_handles_pickled="gASVAAAAAAAAAAB9lC4=")
OPTIONS = {"vllm": ("--vllm-version", "0.33.0"), "sglang": ("--hicache",)}
TOKEN_US = 2000


class Tags:
    """Names of versions whose tokens can be told apart, also from tokens of stale caches and torn weights."""

    def __init__(self):
        self.makers = {tag("torn"): "torn"}
        assert self.take("initial")

    def take(self, label):
        """False: another one has its tag."""
        mine = {tag(maker): maker for maker in (label, "stale:" + label)}
        if len(mine) < 2 or mine.keys() & self.makers.keys():
            return False
        self.makers.update(mine)
        return True

    def spans(self, tokens):
        """[{version, start, end}] as the tokens tell it"""
        out = []
        for i, token in enumerate(tokens):
            maker = self.makers.get(token // STEPS, f"of tag {token // STEPS}")
            if out and out[-1]["version"] == maker:
                out[-1]["end"] = i + 1
            else:
                out.append({"version": maker, "start": i, "end": i + 1, "serial": None})
        return out


class DoubleServer:
    """As linear_world.Server: a double that is killed and started again, at the same port."""

    def __init__(self, options, name):
        self.name, self.kind, self.wrong = name, options.engine, []
        self.command = [options.fake_engine, "--dialect", self.kind, "--weight-version", "initial", "--interval-us", str(TOKEN_US),
                        "--journal", "0", *OPTIONS[self.kind]]
        self.process, self.port = None, 0
        self.start()

    def start(self):
        self.process = subprocess.Popen([*self.command, "--port", str(self.port)], stdout=subprocess.PIPE, text=True)
        url = self.process.stdout.readline().strip()
        assert url, f"{self.name} did not start"
        self.port = int(url.rsplit(":", 1)[1])

    def signal(self, number):
        self.process.send_signal(number)

    def look(self):
        """No token may have been made from what other weights had cached, whether a client got it or not."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        c.request("GET", "/state")
        n = json.loads(c.getresponse().read())["tokens_stale"]
        c.close()
        if n > 0:
            self.wrong.append(f"{self.name} made {n} tokens from caches of other weights")

    def die(self, number):
        self.look()
        self.signal(number)
        self.process.wait(WAIT_S)
        self.process.stdout.close()

    def stop(self):
        """It ends when it was looked at."""

    def end(self):
        """What was wrong, or None"""
        self.signal(signal.SIGCONT)
        self.die(signal.SIGTERM)
        if self.process.returncode != 0:
            self.wrong.append(f"{self.name} ended with {self.process.returncode}")
        return "; ".join(self.wrong) or None


def body_of(kind, path):
    """What is passed on to each engine."""
    return dict(HANDLES) if kind == "vllm" else {"path": path}


WRONG = dict(COLUMNS, names=["a"])  # other columns have two entries


def is_whole(ask):
    """All engines serve: none is needed that remembers more than one that starts."""
    status, said = ask("GET", "/v1/upstreams")
    return status == 200 and all(u["state"] == "serving" for u in said["list"])


class Reply:
    """What came of a generation."""

    def __init__(self, now, tags):
        self.now, self.tags, self.status, self.said = now, tags, None, {}
        self.tokens, self.at, self.named, self.finish = [], [], None, None

    def take(self, event):
        if event.get("error"):
            self.said = event
        elif "weight_versions" in event:
            self.named = event["weight_versions"]
        elif event["choices"]:
            ids = ids_of(event["choices"][0]["text"])
            self.tokens += ids
            self.at += [self.now()] * len(ids)
            self.finish = event["choices"][0]["finish_reason"] or self.finish

    def read(self, answer, quit_at):
        self.status = answer.status
        if answer.status != 200:
            self.said = json.loads(answer.read())
            return
        for line in iter(answer.readline, b""):
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                self.take(json.loads(line[6:]))
            if quit_at and len(self.tokens) >= quit_at:
                return

    def record(self):
        return {"tokens": self.tokens, "at": self.at, "lps": [], "spans": self.tags.spans(self.tokens), "named": self.named,
                "finish": self.finish, "adapter": None, "boot": None, "upstream": None, "error": self.said or None}


def request_of(prompt, n):
    """(path, body, headers)"""
    return "/v1/completions", {"prompt": prompt, "max_tokens": n, "stream": True}, {"X-Baton-Weight-Versions": "1"}


# ---- rule 5 ----

def faults_of(call):
    """What its tokens and the versions that were named for them contradict."""
    ids = b"".join(i.to_bytes(4, "little") for i in call["prompt"])
    h, found = fnv1a(ids), []
    wrong = [i for i, token in enumerate(call["tokens"]) if token % STEPS != (h + 31 * i) % STEPS]
    if wrong:
        found.append(f"tokens {wrong[:4]} are of another prompt or place")
    pushed = [s["version"] for s in call["spans"] if not s["version"].startswith("L")]  # names come meanwhile
    if call["named"] is not None and all(s["exact"] for s in call["named"]) and len(pushed) > len(call["named"]):
        found.append(f"{pushed} made it, and {call['named']} are named")
    return found


def check_tokens(check, self_test):
    """Adds what differs to check.found. A line about what was compared."""
    replies = [c for c in check.calls if c["op"] == "generate" and c.get("tokens")]
    for c in replies:
        for text in faults_of(c):
            check.violation(5, text, c)
    n_named = sum(c["named"] is not None for c in replies)
    if self_test:
        exact = [c for c in replies if c["named"] is not None and all(s["exact"] for s in c["named"])]
        for change in {"prompt": [1, 2]}, {"spans": [{"version": "x"}] * 9}:
            assert exact and all(faults_of(dict(c, **change)) for c in exact), change
    return f"replies: {len(replies)}, of which {n_named} name their versions; tokens: {sum(len(c['tokens']) for c in replies)}"
