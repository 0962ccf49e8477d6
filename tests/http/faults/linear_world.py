"""The servers of linear.py, what is done to them, and the history of the calls that clients make."""

import http.client
import itertools
import json
import os
import shutil
import signal
import subprocess
import threading
import time

import linear_doubles
from linear_contents import Contents
from soak_world import WAIT_S, Process, Trouble

TRIES_OF_A_LABEL = 100  # of two tags each, of 65521
CALL_S = 60
STOP_S, AWAY_S = 6, 3  # the longest time for which a process is stopped, or an engine removed
CONTROL, WEIGHTS = "control-0123456789ab", "weights-0123456789ab"  # keys of engines that read from each other
ENDS_WELL = (0, 3)  # 3: the deadline of the drain cut running work


class History:
    """Calls as dictionaries: `inv` and `resp` are when one was called and answered; resp None: it was not."""

    def __init__(self):
        self.calls, self.lock, self.ids, self.labels = [], threading.Lock(), itertools.count(1), itertools.count(1)
        self.began = time.monotonic()

    def now(self):
        return time.monotonic() - self.began

    def begin(self, client, op, **more):
        call = {"id": next(self.ids), "client": client, "op": op, "inv": self.now(), "resp": None, "status": None, **more}
        with self.lock:
            self.calls.append(call)
        return call

    def end(self, call, status, said, **more):
        call.update(status=status, **more)
        if status is not None:
            call["resp"] = self.now()
        if status != 200:
            call["said"] = json.dumps(said)[:300]


def ask(port, method, path, body=None, kind="application/json", timeout=CALL_S):
    """(status, JSON); the status is None if no answer came."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body)
    try:
        c.request(method, path, data, {"Content-Type": kind})
        answer = c.getresponse()
        text = answer.read()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, {"text": text[:200].decode("latin1")}
    except (OSError, http.client.HTTPException) as e:
        return None, {"lost": repr(e)}
    finally:
        c.close()


class Server:
    """A server that is killed and started again, at the same port."""

    def __init__(self, options, name, *arguments):
        self.name, self.arguments = name, (options.baton, options.work, name, *arguments)
        self.process, self.port = None, 0
        self.start()

    def start(self):
        self.process = Process(*self.arguments, port=self.port)
        self.port = self.process.port

    def lose_disk(self):
        """It has no weights when it starts again."""
        arguments = list(self.arguments)
        shutil.rmtree(arguments[arguments.index("--state-dir") + 1])
        arguments[arguments.index("--weights") + 1] = "none"
        self.arguments = tuple(arguments)

    def signal(self, number):
        self.process.process.send_signal(number)

    def stop(self):
        if self.process.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)

    def die(self, number):
        self.signal(number)
        self.process.process.wait(WAIT_S)

    def end(self):
        """What was wrong with how it ended, or None"""
        try:
            code = self.process.process.wait(WAIT_S)
            self.process.check_reports()
        except (subprocess.TimeoutExpired, Trouble) as e:
            self.process.kill()
            return f"{self.name}: {e}"
        return None if code in ENDS_WELL else f"{self.name} ended with {code}"


class World:
    """A server; or engines, and one in front of them."""

    def __init__(self, options):
        self.options, self.mode, self.stop = options, options.mode, threading.Event()
        self.contents, self.history, self.engines = Contents(options.model, options.work), History(), []
        self.tags = linear_doubles.Tags()
        self.takes_bodies = self.mode not in ("fleet", "passed")  # which pass on what engines take
        own = ("--model", options.model, "--weights", self.contents.path(0), "--allow-path", options.work,
               "--engine-threads", 1)
        if self.mode == "single":
            self.front = Server(options, "server", *self._common(), *own, *self._state("server"), *options.serve_arg)
        else:
            self._serve_engines(own)
            self._serve_front()
        self.port = self.front.port

    def _common(self):
        return "--access-log", "errors", "--drain-timeout", 20000

    def _state(self, name):
        return "--state-dir", f"{self.options.work}/state-{name}", "--snapshot", 1

    def _serve_engines(self, own):
        if self.mode in linear_doubles.MODES:
            self.engines = [linear_doubles.DoubleServer(self.options, f"engine{i}") for i in range(self.options.engines)]
            return
        gpu = ("--device", "cuda:0", "--cuda-library", self.options.cuda)
        if self.options.seeded:
            own = (*own, "--api-key-file", self.key_file("keys", f"control {CONTROL}\nweights {WEIGHTS}\n"), "--seed-cidr", "127.0.0.0/8",
                   "--seed-key-file", self.key_file("weights", WEIGHTS))
        for name in (f"engine{i}" for i in range(self.options.engines)):
            more = gpu if self.mode == "stage" else self._state(name)
            self.engines.append(Server(self.options, name, *self._common(), *own, *more))

    def _serve_front(self):
        o = self.options
        upstreams = [a for e in self.engines for a in ("--upstream", self.upstream(e))]
        staged = ("--stage", o.stage, "--cuda-library", o.cuda, "--manifest", self.contents.path(0), "--allow-path", o.work,
                  *self._state("front"))
        self.front = Server(o, "front", *self._common(), *upstreams, "--min-ready", o.min_ready, "--probe-interval", 100,
                            "--probe-timeout", 1000, *(staged if self.mode in ("stage", "staged") else ()), *o.serve_arg)

    def key_file(self, name, text):
        path = os.path.join(self.options.work, f"{name}.key")
        with open(path, "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(text)
        return path

    def upstream(self, engine):
        kind = self.options.engine if self.mode in linear_doubles.MODES else "baton"
        key = f",key-file={self.key_file('control', CONTROL)}" if self.options.seeded else ""
        return f"http://127.0.0.1:{engine.port},{kind}{key}"

    def body(self, call):
        """What a trainer sends in JSON"""
        path = self.contents.path(call["content"], call["partial"])
        return linear_doubles.body_of(self.options.engine, path) if self.mode == "passed" else {"path": path}

    def new_label(self, form):
        for _ in range(TRIES_OF_A_LABEL):
            label = form.format(next(self.history.labels))
            if self.tags.take(label):
                return label
        raise Trouble("the doubles have too few tags for this many versions")

    def ask(self, method, path, body=None, **more):
        return ask(self.port, method, path, body, **more)

    def wait_ready(self):
        deadline = time.monotonic() + WAIT_S
        while self.ask("GET", "/readyz?for=control")[0] != 200:
            if time.monotonic() > deadline:
                raise Trouble(f"not ready: {self.ask('GET', '/readyz?for=control')}")
            time.sleep(0.1)

    def end(self):
        """Ends all servers. What was wrong with how they ended."""
        servers = [self.front, *self.engines]
        for s in servers:
            s.stop()
        return [wrong for wrong in [s.end() for s in servers] if wrong]

    # ---- what is done to them ----

    def chaos(self, c):
        self.stop.wait(c.rand.random() * 2 * self.options.kill_every)
        if self.stop.is_set():
            return
        server = c.rand.choice([self.front, *self.engines * 2])
        if server is self.front and self.mode == "passed" and not linear_doubles.is_whole(self.ask):
            return  # the next one would not know that others had more
        kinds = ["kill"] * 3 + ["term"]
        if server is not self.front:
            kinds += ["stop", "leave"] * 2
            if self.options.seeded and self._is_served_without(server):
                kinds += ["lose"] * 4
        elif self.engines:
            kinds.append("reload")
        kind = c.rand.choice(kinds)
        call = self.history.begin(c.name, "kill" if kind == "lose" else kind, server=server.name, loses=kind == "lose")
        {"kill": self._restart, "term": self._restart, "stop": self._stop, "leave": self._leave,
         "reload": lambda server, *_: server.signal(signal.SIGHUP)}[call["op"]](server, c, call)
        self.history.end(call, 200, {})

    def _is_served_without(self, server):
        """Does another engine have the version too?"""
        engines = self.ask("GET", "/v1/status")[1].get("upstreams", {}).get("list", [])
        return any(u["state"] == "serving" and u["upstream"] != f"http://127.0.0.1:{server.port}" for u in engines)

    def _restart(self, server, c, call):
        server.die(signal.SIGTERM if call["op"] == "term" else signal.SIGKILL)
        if call["loses"]:
            server.lose_disk()
        self.stop.wait(c.rand.random() * (0.3 if server is self.front else 2))
        server.start()
        call["started"] = self.history.now()

    def _stop(self, server, c, _):
        server.signal(signal.SIGSTOP)
        self.stop.wait(c.rand.random() * STOP_S)
        server.signal(signal.SIGCONT)

    def _leave(self, server, c, _):
        """Removed by a request, and added again."""
        self.ask("POST", "/v1/upstreams/remove", {"upstream": f"http://127.0.0.1:{server.port}"})
        self.stop.wait(c.rand.random() * AWAY_S)
        while self.ask("POST", "/v1/upstreams", {"upstream": self.upstream(server)})[0] != 200 and not self.stop.is_set():
            self.stop.wait(0.3)


def quiet_server(options, contents):
    """A server that nobody else uses, ready."""
    server = Server(options, "reference", "--model", options.model, "--weights", contents.path(0), "--allow-path",
                    options.work, "--engine-threads", os.cpu_count() or 1)
    deadline = time.monotonic() + WAIT_S
    while ask(server.port, "GET", "/readyz")[0] != 200:
        assert time.monotonic() < deadline, "the reference is not ready"
        time.sleep(0.05)
    return server
