"""The generations of the demo: eight streams that are shown, and a load that is not."""

import collections
import http.client
import json
import socket
import statistics
import threading
import time
import urllib.parse

from servers import check

PROMPTS = ("In the beginning", "And the LORD said", "Behold, the king", "And it came to pass",
           "The children of Israel", "Blessed is the man", "Then answered David", "Hear my voice")
CONTEXT = 160  # tokens of its own text that a stream continues from
N_NEW = 480  # tokens of one generation, unless something ends it before
LOAD_PART, LOAD_TOKENS = 16, 600  # sequences of one request of the load; tokens of each
ANSWER_S = 60

Cell = collections.namedtuple("Cell", "text version adapter")


class Broken(Exception):
    """The server ended a request without its result."""


def connect(url):
    return http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=ANSWER_S)


def events_of(answer):
    """The events of a stream; Broken if it ends without [DONE]."""
    try:
        for line in answer:
            if line.strip() == b"data: [DONE]":
                return
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
    except (OSError, http.client.HTTPException) as e:
        raise Broken(type(e).__name__) from e
    raise Broken("the stream ended without [DONE]")


class Meter:
    """Times between two tokens of one stream, from all streams."""

    def __init__(self):
        self.gaps = []  # (when, seconds); list.append is atomic

    def add(self, when, gap_s):
        self.gaps.append((when, gap_s))

    def between(self, begin, end):
        return [gap for when, gap in list(self.gaps) if begin <= when <= end]

    def median_ms(self, begin=0.0):
        gaps = self.between(begin, float("inf"))
        return statistics.median(gaps) * 1e3 if gaps else 0.0

    def longest_ms(self, begin=0.0, end=float("inf")):
        return max(self.between(begin, end), default=0.0) * 1e3


def message_of(body):
    """That of an error of the server, in the form of either route."""
    try:
        said = json.loads(body)
        return said.get("error", said)["message"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return str(body[:100])


class Stream(threading.Thread):
    """Streams one generation after another until stop(). `cells` has every token with the version
    that made it; `outcomes` counts how each request ended; `broken` has (boot_id, message) of each
    request that the server did not finish."""

    def __init__(self, url, index, meter):
        super().__init__(daemon=True)
        self.url, self.prompt, self.meter = url, PROMPTS[index % len(PROMPTS)], meter
        self.adapter = None  # set by the main thread; the stream continues with it at its next token
        self.ended, self.cells, self.context = False, [], []
        self.outcomes, self.broken, self.crossings = collections.Counter(), [], []
        self.boot_id, self.failure = None, None

    def run(self):
        try:
            while not self.ended:
                self._generate()
        except Exception as e:  # the main thread reports it
            self.failure = e

    def _body(self, adapter):
        start = {"input_ids": self.context} if self.context else {"text": self.prompt}
        return {**start, "stream": True, **({"lora_path": adapter} if adapter else {}),
                "sampling_params": {"max_new_tokens": N_NEW, "temperature": 0.8, "ignore_eos": True}}

    def _generate(self):
        adapter, connection = self.adapter, connect(self.url)
        if not self.context:
            self.cells.append(Cell("\n" + self.prompt, None, None))
        try:
            self._read(connection, adapter)
        except (Broken, OSError, http.client.HTTPException) as e:
            self._note_broken(str(e) or type(e).__name__)
        finally:
            connection.close()

    def _note_broken(self, message):
        self.outcomes["broken"] += 1
        self.broken.append((self.boot_id, message))
        self.cells.append(Cell(" [cut]\n", None, None))
        self.context = []
        time.sleep(0.1)  # a server that refuses everything is not asked in a busy loop

    def _read(self, connection, adapter):
        self.boot_id = None
        connection.request("POST", "/generate", json.dumps(self._body(adapter)),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise Broken(f"{answer.status}: {message_of(answer.read())}")
        text, ids, live, last, spans = "", [], [], None, None
        for event in events_of(answer):
            if "error" in event:
                raise Broken(f"in mid stream: {message_of(json.dumps(event))}")
            now, meta = time.monotonic(), event["meta_info"]
            if last is not None:
                self.meter.add(now, now - last)
            last, ids, self.boot_id = now, event["output_ids"], meta["boot_id"]
            live.append((len(ids), meta["weight_version"]))
            self.cells.append(Cell(event["text"][len(text):], meta["weight_version"], adapter))
            text, spans = event["text"], meta.get("weight_versions")
            if spans is None and (self.ended or self.adapter != adapter):
                break  # by this program: the server sees a client that disconnects
        if adapter is None:
            self.context = (self.context + ids)[-CONTEXT:]
        if spans is None:
            self.outcomes["continued" if not self.ended else "closed"] += 1
            return
        check_spans(spans, ids, live)
        self.outcomes["finished"] += 1
        if len(spans) > 1:
            self.crossings.append(spans)
        self.context = []


def check_spans(spans, ids, live):
    """No token is lost, each has exactly one version, and it is the one it was shown with."""
    check(len(ids) == N_NEW, f"no token is lost: {len(ids)} of {N_NEW} arrived")
    check(spans[0]["start"] == 0 and spans[-1]["end"] == len(ids) and
          all(a["end"] == b["start"] for a, b in zip(spans, spans[1:])),
          f"every token has exactly one version: {spans}")
    for n, version in live:
        made_by = next(s["version"] for s in spans if s["start"] < n <= s["end"])
        check(version == made_by, f"token {n} is shown as of {made_by}, its version, not {version}")


class Load:
    """Requests without streams, so that the batch of the engine is full: a step of this small model
    would else be too short to watch."""

    def __init__(self, url):
        self.url, self.ended, self.threads, self.connections = url, False, [], set()
        self.finished, self.broken, self.failure = 0, 0, None

    def add(self):
        thread = threading.Thread(target=self._run, daemon=True)
        self.threads.append(thread)
        thread.start()

    def n_sequences(self):
        return len(self.threads) * LOAD_PART

    def _run(self):
        while not self.ended:
            connection = connect(self.url)
            self.connections.add(connection)
            try:
                connection.request("POST", "/v1/generate", json.dumps({
                    "token_ids": [40, 77, 258], "sampling_params": {
                        "max_tokens": LOAD_TOKENS, "n": LOAD_PART, "ignore_eos": True}}),
                    {"Content-Type": "application/json"})
                answer = connection.getresponse()
                json.loads(answer.read())
                self._count(answer.status == 200)
            except (OSError, http.client.HTTPException, ValueError):
                self._count(False)
            self.connections.discard(connection)
            connection.close()

    def _count(self, ok):
        if ok:
            self.finished += 1
        elif not self.ended:
            self.broken += 1
            time.sleep(0.1)

    def stop(self):
        self.ended = True
        for connection in list(self.connections):
            if connection.sock is not None:
                try:
                    connection.sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        for thread in self.threads:
            thread.join(ANSWER_S)


class Streams:
    """Eight streams and the load behind one URL."""

    def __init__(self, url, n=8):
        self.meter, self.load = Meter(), Load(url)
        self.list = [Stream(url, i, self.meter) for i in range(n)]
        for s in self.list:
            s.start()

    def wait_for_text(self, until):
        until(lambda: self.check() or all(s.boot_id for s in self.list), ANSWER_S, "all streams run")

    def slow_down(self, step_ms, n_max):
        """Adds load until a step takes step_ms."""
        while self.load.n_sequences() < n_max:
            begin = time.monotonic()
            time.sleep(0.25)
            self.check()
            if self.meter.median_ms(begin) >= step_ms:
                return
            self.load.add()

    def check(self):
        for s in self.list:
            if s.failure is not None:
                raise s.failure

    def check_unbroken(self):
        self.check()
        broken = [b for s in self.list for b in s.broken]
        check(not broken and not self.load.broken, f"no request fails: {broken}, and "
              f"{self.load.broken} of the load")

    def n_tokens(self):
        return sum(1 for s in self.list for c in list(s.cells) if c.version)

    def n_outcomes(self, name):
        return sum(s.outcomes[name] for s in self.list)

    def set_adapter(self, name):
        for s in self.list:
            s.adapter = name

    def text_since(self, marks):
        return "".join(c.text for s, n in zip(self.list, marks) for c in s.cells[n:] if c.version)

    def marks(self):
        return [len(s.cells) for s in self.list]

    def stop(self):
        for s in self.list:
            s.ended = True
        self.load.stop()
        for s in self.list:
            s.join(ANSWER_S)
        check(not any(s.is_alive() for s in self.list), "every stream has ended")
        self.check()
