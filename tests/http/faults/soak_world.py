"""The server under test in the soak: how requests are sent and replies checked, and the text of each version.

Every reply arrives within WAIT_S and is complete; its status is one that its kind of request may have, never
500; an error has a message. Every token was made by one version that was committed, not before the one that
served when the request began, and greedy text is what that version makes."""

import collections
import http.client
import json
import os
import random
import signal
import subprocess
import threading
import time

from fault_world import World

WAIT_S = 120  # under a sanitizer, on a machine that others use too
NOT_NOW = {"paused", "asleep", "no_weights", "overloaded"}  # what a pause, a sleep or load may answer


class Trouble(AssertionError):
    """The server did what it must not."""


class Tally:
    """How often, and how long it took at most."""

    def __init__(self):
        self.lock, self.n, self.longest = threading.Lock(), collections.Counter(), {}

    def add(self, what, seconds=0.0):
        with self.lock:
            self.n[what] += 1
            self.longest[what] = max(self.longest.get(what, 0.0), seconds)

    def lines(self):
        return [f"  {what:44} {n:8}  longest {self.longest[what]:7.2f} s" for what, n in sorted(self.n.items())]


class Process:
    """`baton serve`, whose sanitizer writes to files of its own."""

    def __init__(self, binary, work, name, *options, port=0):
        self.log, self.reports = os.path.join(work, name + ".log"), os.path.join(work, name + ".sanitizer")
        extra = f"log_path={self.reports}:quarantine_size_mb=16:malloc_context_size=8"
        env = dict(os.environ, ASAN_OPTIONS=f"{os.environ.get('ASAN_OPTIONS', '')}:{extra}",
                   UBSAN_OPTIONS=f"print_stacktrace=1:log_path={self.reports}")
        with open(self.log, "ab") as out:
            at = out.tell()
            self.process = subprocess.Popen([binary, "serve", "--listen", f"127.0.0.1:{port}", *map(str, options)],
                                            stdout=subprocess.DEVNULL, stderr=out, env=env)
        self.port = self._wait_serving(at)
        self.pid, self.url = self.process.pid, f"http://127.0.0.1:{self.port}"

    def _wait_serving(self, at):
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise Trouble(f"a server ended with {self.process.returncode} as it started: see {self.log}")
            with open(self.log, "rb") as log:
                log.seek(at)
                for line in log:
                    if b'"event":"serving"' in line and line.endswith(b"}\n"):
                        return json.loads(line)["port"]
            time.sleep(0.05)
        raise Trouble(f"a server does not serve: see {self.log}")

    def check(self):
        """It runs, and no sanitizer has anything to say."""
        if self.process.poll() is not None:
            raise Trouble(f"a server ended with {self.process.returncode}: see {self.log}")
        self.check_reports()

    def check_reports(self):
        where, prefix = os.path.split(self.reports)
        for name in os.listdir(where):
            if name.startswith(prefix + "."):
                with open(os.path.join(where, name), encoding="utf-8", errors="replace") as f:
                    raise Trouble(f"{name}: {f.read()[:6000]}")

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            code = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Trouble(f"a server does not end: see {self.log}") from None
        self.check_reports()
        if code != 0:
            raise Trouble(f"a server ended with {code}: see {self.log}")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)

    def uses(self):
        """(descriptors, threads, bytes of memory)"""
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as f:
            rss = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return len(os.listdir(f"/proc/{self.pid}/fd")), len(os.listdir(f"/proc/{self.pid}/task")), rss


class Reply:
    def __init__(self, status, raw, kind):
        self.status, self.raw = status, raw
        self.body = json.loads(raw) if kind.startswith("application/json") and raw else None
        self.events = None

    def __str__(self):
        return f"{self.status} {self.raw[:1500]!r}"

    @property
    def code(self):
        error = (self.body or {}).get("error")
        return error.get("code", "") if isinstance(error, dict) else ""


def read_events(answer, then):
    """The JSON of a stream's events, to [DONE]. @then  called with each; False: leave"""
    events, data = [], None
    for line in answer:
        if not line.startswith(b"data: "):
            if line.strip():
                raise Trouble(f"a stream has the line {line!r}")
            continue
        data = line[6:].strip()
        if data == b"[DONE]":
            return events
        events.append(json.loads(data))
        if then is not None and then(events) is False:
            return None
    raise Trouble(f"a stream ended without [DONE], after {data!r}")


def ask(port, method, path, body=None, headers=None, then=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        c.request(method, path, data, dict({"Content-Type": "application/json"} if data is not None else {},
                                           **(headers or {})))
        answer = c.getresponse()
        kind = answer.getheader("Content-Type", "")
        if kind.startswith("text/event-stream"):
            out = Reply(answer.status, b"", "")
            out.events = read_events(answer, then)
            return out
        return Reply(answer.status, answer.read(), kind)
    finally:
        c.close()


def explains(reply):
    """An error with a code and a message, in whichever form."""
    error = (reply.body or {}).get("error") if isinstance(reply.body, dict) else None
    said = error.get("message") if isinstance(error, dict) else error or (reply.body or {}).get("message")
    return bool(said)


# ---- what may be generated ----

class Version:
    def __init__(self, labels, content):
        self.labels, self.content = set(labels), content


class Truth:
    """Committed versions by serial: what they are called, what they are made of, and what they make of a prompt."""

    def __init__(self, golden):
        self.changed = threading.Condition()
        self.versions, self.floor = {}, 0
        self.golden, self.made = golden, {}  # (content, prompt) -> ids

    def note(self, serial, label, content):
        with self.changed:
            version = self.versions.setdefault(serial, Version([], content))
            version.labels.add(label)
            if version.content != content:
                raise Trouble(f"serial {serial} was something else before")
            self.floor = max(self.floor, serial)
            self.changed.notify_all()

    def expect_label(self, serial, label):
        """It may be called so from now on."""
        with self.changed:
            self.versions[serial].labels.add(label)

    def _version(self, span):
        """Its commit may be in progress: the actor that sent it gets the reply soon."""
        with self.changed:
            if not self.changed.wait_for(lambda: span["serial"] in self.versions, WAIT_S):
                raise Trouble(f"{span} was never committed")
            version = self.versions[span["serial"]]
            if not self.changed.wait_for(lambda: span["version"] in version.labels, WAIT_S):
                raise Trouble(f"{span} is of a version that is called {sorted(version.labels)}")
            return version

    def check(self, spans, ids, floor, prompt=None):
        """@floor  the version that served when the request began; @prompt  what greedy ids were made of, else None"""
        at, before = 0, 0
        for span in spans:
            if span["start"] != at or span["end"] <= at or span["serial"] < before:
                raise Trouble(f"tokens without exactly one version: {spans} of {len(ids)}")
            at, before = span["end"], span["serial"]
            self._version(span)
        if at != len(ids) or (spans and spans[0]["serial"] < floor):
            raise Trouble(f"{spans} of {len(ids)} tokens; {floor} served when it began")
        if prompt is not None and spans:
            first = [s for s in spans if s["serial"] == spans[0]["serial"]]
            self._same(self.versions[spans[0]["serial"]].content, prompt, ids[:first[-1]["end"]])

    def _same(self, content, prompt, ids):
        with self.changed:
            known = self.golden.get((content, prompt)) or self.made.get((content, prompt), [])
            n = min(len(known), len(ids))
            if known[:n] != ids[:n]:
                raise Trouble(f"prompt {prompt}: {ids}, but {content} makes {known}")
            if (content, prompt) not in self.golden and len(ids) > len(known):
                self.made[content, prompt] = list(ids)


class SoakWorld(World):
    """The only actor that changes weights; it records the expected version."""

    def __init__(self, truth, *arguments):
        self.truth = truth
        super().__init__(*arguments)

    def content(self):
        """A checkpoint's name, or what a mixture is made of."""
        whole = self.served_checkpoint()
        return whole.step if whole else hash(frozenset((name, t[0]) for name, t in self.tensors.items()))

    def look(self):
        super().look()
        self.truth.note(self.serial, self.label, self.content())

    def committed(self, answer, rows, label):
        super().committed(answer, rows, label)
        self.truth.note(self.serial, self.label, self.content())

    def adopt(self, rows):
        """Another server's words committed these rows: what are they called?"""
        listed = self.ask("GET", "/v1/weights")
        if listed.status != 200 or listed.body["serial"] <= self.serial:
            raise Trouble(f"a success, after serial {self.serial}: {listed}")
        self.label, self.serial = listed.body["weight_version"], listed.body["serial"]
        for r in rows:
            self.tensors[r.name] = (r.true_sum, self.label, self.serial)
        self.truth.note(self.serial, self.label, self.content())

    def relabel(self, label):
        self.truth.expect_label(self.serial, label)
        answer = self.ask("POST", "/v1/weights/label", {"weight_version": label})
        if answer.status != 200:
            raise Trouble(f"a label was answered {answer}")
        self.tensors = {name: (t[0], label if t[2] == self.serial else t[1], t[2]) for name, t in self.tensors.items()}
        self.label = label


# ---- actors ----

class Actor(threading.Thread):
    """Runs its actions one after another until it is stopped; the first failure is kept."""

    def __init__(self, soak, name, seed, actions):
        super().__init__(name=name, daemon=True)
        self.soak, self.rng, self.actions, self.stopping, self.failure = soak, random.Random(seed), actions, False, None
        self.doing = ""

    def run(self):
        try:
            while not self.stopping:
                action = self.rng.choice(self.actions)
                self.doing = action.__name__
                began = time.monotonic()
                what = action(self.soak, self.rng)
                self.soak.tally.add(what or f"{self.name} {self.doing}", time.monotonic() - began)
        except BaseException as e:  # pylint: disable=broad-except
            self.failure = e

    def check(self):
        if self.failure is not None:
            raise Trouble(f"{self.name}, {self.doing}: {type(self.failure).__name__}: {self.failure}") from self.failure
