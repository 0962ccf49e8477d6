"""A server in front of doubles, the load on it, and what must be true of every answer.

A double's tokens show which version made them, from which prompt, and at which position: so a reply that lost a
token, got one of another client, or mixed versions is detected.
"""

import asyncio
import dataclasses
import http.client
import itertools
import json
import signal
import subprocess
import threading
import time

from fake_engine_world import STEPS, fnv1a, ids_of, tag

WAIT_S = 90
ANSWER_S = 75  # what has not even begun to be answered by then never will be
DATA_OPS = ("completions", "chat", "generate")
PROBE = [0]  # the prompt of a server's own question for one token


def until(what, condition, wait_s=WAIT_S, every_s=0.02):
    """The first true value of condition()."""
    end = time.monotonic() + wait_s
    while True:
        said = condition()
        if said:
            return said
        assert time.monotonic() < end, f"still not so: {what() if callable(what) else what}"
        time.sleep(every_s)


# ---- a server ----

class Server:
    """`baton serve` with options; with Server(...) as s: … ends it, and it must end well."""

    def __init__(self, binary, log, *options, host="127.0.0.1", port=0):
        self.log = log
        with open(log, "ab") as out:
            at = out.tell()
            self.process = subprocess.Popen([binary, "serve", "--listen", f"{host}:{port}", *map(str, options)],
                                            stdout=subprocess.DEVNULL, stderr=out)
        serving = until("it serves", lambda: self._serving(at))
        self.port, self.boot_id = serving["port"], serving["boot_id"]
        self.url = f"http://{host}:{self.port}"

    def _serving(self, at):
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}: see {self.log}"
        with open(self.log, "rb") as log:
            log.seek(at)
            for line in log:
                if b'"event":"serving"' in line and line.endswith(b"}\n"):
                    return json.loads(line)
        return None

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            code = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = "nothing: it had to be killed"
        assert kind or code == 0, f"the server ended with {code}: see {self.log}"

    def kill(self):
        self.process.kill()
        self.process.wait(WAIT_S)

    def ask(self, method, path, body=None, headers=None, timeout=WAIT_S):
        """(status, JSON or text)."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            c.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            answer = c.getresponse()
            text = answer.read()
        finally:
            c.close()
        kind = answer.getheader("Content-Type", "")
        return answer.status, json.loads(text) if kind.startswith("application/json") else text.decode()

    def good(self, method, path, body=None, **more):
        status, said = self.ask(method, path, body, **more)
        assert status == 200, f"{method} {path}: {status} {said}"
        return said

    def post(self, path, body=None, **more):
        return self.good("POST", path, {} if body is None else body, **more)

    def get(self, path):
        return self.good("GET", path)

    def status(self):
        return self.get("/v1/status")

    def upstreams(self):
        """By name."""
        return {u["upstream"]: u for u in self.status()["upstreams"]["list"]}

    def probed(self, *urls):
        """Each has answered a status probe that was sent after this began: the second that ends after it. The first may
        be of before an update had ended, and is not believed then."""
        for _ in range(2):
            began = time.monotonic()
            until(lambda: f"{urls} are probed: {self.upstreams()}", lambda: self._heard_since(began, urls))

    def _heard_since(self, at, urls):
        asked, known = time.monotonic(), self.upstreams()  # the age is of after `asked`
        ages = [known[url]["last_heard_s"] for url in urls]
        return all(age is not None and asked - age > at for age in ages)

    def ready(self):
        return self.ask("GET", "/health/ready")[0] == 200


# ---- load ----

@dataclasses.dataclass
class Record:
    """A request, and what became of it."""
    path: str
    stream: bool
    prompt: object  # as the double counts it: text or ids
    n: int
    begun: float
    ended: float = 0.0
    kind: str = "nothing"  # whole, error, cut: it had begun, nothing: not even that
    status: int = 0
    upstream: str = ""
    said: str = ""  # of an error; of a cut, what cut it
    tokens: list = dataclasses.field(default_factory=list)
    finish: str = ""

    def blames(self, url):
        return self.upstream == url or url in self.said


def completion_form(stream):
    def make(prompt, n):
        return "/v1/completions", prompt, {"prompt": prompt, "max_tokens": n, "stream": stream}
    return make


def chat_form(stream):
    def make(prompt, n):
        return "/v1/chat/completions", f"user:{prompt}\n", {
            "messages": [{"role": "user", "content": prompt}], "max_tokens": n, "stream": stream}
    return make


def tokens_form(stream):
    def make(prompt, n):
        ids = [1 + b for b in prompt.encode()]
        return "/inference/v1/generate", ids, {"token_ids": ids, "stream": stream, "sampling_params": {"max_tokens": n}}
    return make


def sglang_form(stream):
    def make(prompt, n):
        ids = [1 + b for b in prompt.encode()]
        return "/generate", ids, {"input_ids": ids, "stream": stream, "sampling_params": {"max_new_tokens": n}}
    return make


FORMS = {"baton": (completion_form, chat_form, tokens_form, sglang_form),
         "vllm": (completion_form, chat_form, tokens_form),
         "sglang": (completion_form, chat_form, sglang_form)}


def added(event, so_far):
    """The tokens of an event or a whole answer, and why it is the last."""
    if "output_ids" in event:
        ids, reason = event["output_ids"], event["meta_info"]["finish_reason"]
        assert ids[:len(so_far)] == so_far, f"{ids} after {so_far}"
        return ids, reason["type"] if reason else ""
    if not event["choices"]:
        return so_far, ""
    choice = event["choices"][0]
    if "token_ids" in choice:
        ids = choice["token_ids"]
    elif "text" in choice:
        ids = ids_of(choice["text"])
    else:
        ids = ids_of(choice.get("delta", choice.get("message")).get("content") or "")
    return so_far + ids, choice["finish_reason"] or ""


def request_bytes(path, body, headers):
    data = json.dumps(body).encode()
    lines = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{lines}"
            f"Content-Length: {len(data)}\r\n\r\n").encode() + data


async def read_head(r):
    head = (await r.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {}
    for line in head[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(head[0].split()[1]), headers


async def pieces(r, headers):
    """The body as it comes; raises IncompleteReadError when it ends early."""
    if headers.get("transfer-encoding", "").lower() != "chunked":
        yield await r.readexactly(int(headers["content-length"]))
        return
    while True:
        n = int((await r.readuntil(b"\r\n")).split(b";")[0], 16)
        data = await r.readexactly(n + 2)
        if n == 0:
            return
        yield data[:-2]


class Load:
    """n_clients that ask again as soon as they were answered, on a thread; with Load(...) as load: …"""

    def __init__(self, server, dialect, n_clients, n_tokens, versions):
        self.port, self.n_clients, self.n_tokens, self.versions = server.port, n_clients, n_tokens, versions
        self.forms = [form(stream) for form in FORMS[dialect] for stream in (True, False)]
        self.records, self.n_done, self.stop, self.failure = [], 0, False, None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, *_):
        self.stop = True
        self.thread.join(ANSWER_S + WAIT_S)
        assert kind or not self.thread.is_alive(), "clients did not end"
        if kind is None:
            self.check()

    def check(self):
        """Of what was answered so far."""
        if self.failure is not None:
            raise self.failure

    def mark(self):
        self.check()
        return len(self.records)

    def wait(self, n):
        """n more answers, each asked for after this."""
        begun, at = time.monotonic(), self.mark()

        def enough():
            self.check()
            return sum(r.begun > begun for r in self.records[at:]) >= n
        until("clients are answered", enough, ANSWER_S + WAIT_S)

    def since(self, mark):
        self.check()
        return self.records[mark:]

    def _run(self):
        try:
            asyncio.run(self._all())
        except BaseException as e:
            self.failure = e

    async def _all(self):
        tasks = [asyncio.create_task(self._client(i)) for i in range(self.n_clients)]
        done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for t in left:
            t.cancel()
        for t in done:
            t.result()

    async def _client(self, i):
        """Every other one keeps its connection."""
        keep, held = i % 2 == 1, None
        for n in itertools.count():
            if self.stop:
                break
            path, prompt, body = self.forms[(i + n) % len(self.forms)](f"{i}.{n} In the beginning", self.n_tokens)
            record = Record(path, body["stream"], prompt, self.n_tokens, time.monotonic())
            headers = {"X-Session-ID": f"session {i}"} if i % 4 < 2 else {}
            if not keep:
                headers["Connection"] = "close"
            held = await self._ask(record, path, body, headers, held)
            record.ended = time.monotonic()
            self.versions.check(record)
            self.records.append(record)
            if record.kind != "whole":
                await asyncio.sleep(0.01)
        if held is not None:
            held[1].close()

    async def _ask(self, record, path, body, headers, held):
        """Returns the connection if it may be used again."""
        try:
            if held is None:
                held = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
            held[1].write(request_bytes(path, body, headers))
            status, said = await asyncio.wait_for(read_head(held[0]), ANSWER_S)
            record.status, record.upstream = status, said.get("x-baton-upstream", "")
            record.kind = "cut"
            await self._body(record, held[0], said)
            if said.get("connection", "").lower() != "close" and "Connection" not in headers:
                return held
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as e:
            record.said += f" {type(e).__name__}: {e}"
        if held is not None:
            held[1].close()
        return None

    async def _body(self, record, r, headers):
        if record.status != 200 or not record.stream:
            text = b""
            async for piece in pieces(r, headers):
                text += piece
            if record.status != 200:
                record.kind, record.said = "error", text.decode()
                return
            record.tokens, record.finish = added(json.loads(text), [])
            record.kind = "whole"
            return
        text, last = b"", b""
        async for piece in pieces(r, headers):
            *lines, text = (text + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data: "):
                    last = line[6:].strip()
                    if last != b"[DONE]":
                        record.tokens, why = added(json.loads(last), record.tokens)
                        record.finish = record.finish or why
        record.kind = "whole" if last == b"[DONE]" else "cut"
        if record.kind == "cut":
            record.said = f"it ended whole, without [DONE], after {last!r}"


# ---- versions ----

@dataclasses.dataclass
class Version:
    label: str
    since: float
    until: float = float("inf")
    stray: bool = False  # no update made it: it serves until that is noticed


class Versions:
    """Which version may have made a token that a client got, and when."""

    def __init__(self, *labels):
        self.list, self.lock = [Version(label, 0.0) for label in labels], threading.Lock()

    def begin(self, label, stray=False):
        """From now on it may serve; what came before may too, until end_before."""
        with self.lock:
            self.list.append(Version(label, time.monotonic(), stray=stray))

    def never(self, label):
        """It was not committed: no client may have got tokens of it, nor may in the future."""
        with self.lock:
            for v in self.list:
                if v.label == label:
                    v.since = float("inf")

    def end(self, *labels):
        with self.lock:
            for v in self.list:
                if v.label in labels:
                    v.until = min(v.until, time.monotonic())

    def end_before(self, label):
        """Not what strayed, also where it has the name of one that ends."""
        with self.lock:
            for v in self.list:
                if v.label != label and not v.stray:
                    v.until = min(v.until, time.monotonic())

    def _places(self, record):
        """For each token, the index of a version that may have made it. Raises."""
        with self.lock:
            makers = {tag(v.label): i for i, v in enumerate(self.list)
                      if v.since <= record.ended and v.until >= record.begun}
        ids = ids_of(record.prompt) if isinstance(record.prompt, str) else record.prompt
        h = fnv1a(b"".join(i.to_bytes(4, "little") for i in ids))
        for i, token in enumerate(record.tokens):
            assert token % STEPS == (h + 31 * i) % STEPS, f"token {i} is another's: {self.told(record)}"
            assert token // STEPS in makers, (
                f"token {i} was made by {self.name(token)}, when {[self.list[m].label for m in makers.values()]} "
                f"might: {self.told(record)}")
            yield makers[token // STEPS]

    def check(self, record):
        assert record.kind != "nothing", f"no answer: {self.told(record)}"
        places = list(self._places(record))
        assert places == sorted(places), f"back to a version before: {self.told(record)}"
        if record.kind == "whole":
            assert record.finish == "length" and len(record.tokens) == record.n, self.told(record)
        if record.kind == "error":
            assert json.loads(record.said)["error"]["message"], self.told(record)

    def name(self, token):
        names = {tag(v.label): v.label for v in self.list}
        names[tag("torn")] = "TORN WEIGHTS"
        return names.get(token // STEPS, "nobody known")

    def told(self, record):
        makers = [k for k, _ in itertools.groupby(self.name(t) for t in record.tokens)]
        return f"{dataclasses.replace(record, tokens=len(record.tokens))} by {makers}"


# ---- doubles ----

def probes(entry):
    """Is it the server's own question for a token?"""
    try:
        return json.loads(entry["body"] or "{}").get("prompt") == PROBE
    except ValueError:
        return False


def n_traffic(double):
    """Requests of clients that came to it so far."""
    return sum(e["op"] in DATA_OPS and not probes(e) for e in double.journal())
