"""Requests of web pages, on every route of the program at a server's listeners: one for a name that is not
the server's is a 421, one that a page of another origin made is a 403, neither is carried out, and requests
of trainers and curl are served as usual.

Usage: as pages.sh says.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys

import replay  # noqa: E402

CONTRACT, BATON, MODEL, SESSION, WORK = sys.argv[1:6]
WAIT_S = 60
EVIL, APP = "http://evil.example", "https://app.example"
KEY = "control-0123456789abcdef"
WEIGHTS = os.path.join(MODEL, "checkpoints/step-00000.safetensors")


class Answer:
    def __init__(self, reply):
        self.status, self.headers = reply.status, reply.headers
        self.streams = reply.headers.get("Content-Type", "").startswith("text/event-stream")  # it does not end by itself
        self.raw = reply.readline() if self.streams else reply.read()

    def json(self):
        return json.loads(self.raw)

    def message(self):
        return self.json()["error"]["message"]

    def __str__(self):
        return f"{self.status} {dict(self.headers)} {self.raw[:300]!r}"


class Listener:
    """HOST:PORT or unix:PATH of a server; https where `tls` is its certificate."""

    def __init__(self, at, tls=None):
        self.at, self.tls = at, tls
        self.port = None if at.startswith("unix:") else int(at.rpartition(":")[2])
        self.kept = http.client.HTTPConnection("localhost", timeout=WAIT_S)

    def connect(self):
        if self.port is None:
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(WAIT_S)
            s.connect(self.at[5:])
        else:
            s = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is None:
            return s
        return ssl.create_default_context(cafile=self.tls).wrap_socket(s, server_hostname="localhost")

    def ask(self, method, path, headers=None, body=None, host="localhost"):
        """As no library would: with the headers that are given, and no other."""
        c = self.kept
        c.sock = c.sock or self.connect()
        c.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": host, **(headers or {})}.items():
            c.putheader(name, value)
        if body is not None or method == "POST":
            c.putheader("Content-Length", str(len(body or b"")))
        c.endheaders(body)
        answer = Answer(c.getresponse())
        if answer.streams:
            c.close()
        return answer


class Server:
    def __init__(self, *options, model=True):
        of_model = ("--model", MODEL, "--weights", WEIGHTS, "--weight-version", "step-0") if model else ()
        self.log = open(os.path.join(WORK, "log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen([BATON, "serve", "--listen", "127.0.0.1:0", *of_model, *options], stderr=self.log)
        line = None
        while line is None:
            assert self.process.poll() is None, self.text()
            line = next((json.loads(t) for t in self.text().splitlines() if '"event":"serving"' in t and t[-1] == "}"), None)
        self.said = line
        self.main = Listener(f"127.0.0.1:{line['port']}")

    def text(self):
        with open(self.log.name, encoding="utf-8") as f:
            return f.read()

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        self.process.send_signal(signal.SIGTERM)
        rc = self.process.wait(WAIT_S)
        assert rc == 0 or kind is not None, f"the server ended with {rc}: {self.text()[-2000:]}"


def must(answer, status, *texts):
    assert answer.status == status, f"{answer}, wanted {status}"
    for text in texts:
        assert text in answer.raw.decode(), f"{text} is not in {answer}"
    return answer


def routes():
    listed = json.loads(subprocess.run([CONTRACT], check=True, capture_output=True).stdout)["routes"]
    rows = {}
    for row in listed:
        path = row["path"].split("{")[0] + ("x" if "{" in row["path"] else "")
        for method in row["methods"]:
            rows.setdefault((method, path), row)
    assert len(rows) > 90, len(rows)
    return rows


def state(listener, headers=None):
    """All of it that a request could have changed."""
    s = must(listener.ask("GET", "/v1/status", headers), 200).json()
    weights = {k: v for k, v in s["weights"].items() if k != "age_s"}
    return {**{k: s[k] for k in ("life", "ready", "pause", "update", "sleep") if k in s}, "weights": weights}


# What a browser says of a page that may not use the server.
FOREIGN = [
    {"Origin": EVIL},
    {"Origin": "null"},
    {"Origin": EVIL, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
]


def refused_everywhere(listener, rows, key=None, named=False):
    """On each route and on none, with a key too, by each method. `named`: any name is good there."""
    with_key = {} if key is None else {"Authorization": "Bearer " + key}
    for method, path in [*rows, ("GET", "/nothing"), ("OPTIONS", "/v1/pause"), ("PATCH", "/v1/pause"), ("OPTIONS", "*")]:
        where = f"{listener.at} {method} {path}"
        body = b"{}" if method == "POST" else None
        for host in ("evil.example", "evil.example:8700", "localhost.evil.example", ""):
            if listener.port is None or named:
                break
            a = listener.ask(method, path, {"Content-Type": "text/plain", "X-Forwarded-Host": "localhost"}, body, host)
            assert a.status == 421, f"{where} of {host}: {a}"
            assert method == "HEAD" or a.json()["error"]["code"] == "misdirected_request", f"{where}: {a}"
        for headers in FOREIGN:
            a = listener.ask(method, path, {**headers, **with_key}, body)
            assert a.status == 403, f"{where} with {headers}: {a}"
            assert method == "HEAD" or a.json()["error"]["code"] == "forbidden", f"{where}: {a}"
            assert not [h for h in a.headers if h.startswith("Access-Control") or h == "Vary"], f"{where}: {a}"


# Routes that only a server in front of upstreams has, and control routes that take no body: what comes is dropped.
OF_FLEETS = {"/v1/upstreams", "/v1/upstreams/prove", "/v1/upstreams/remove", "/v1/upstreams/resync"}
UNREAD = {*OF_FLEETS, "/v1/resume", "/resume", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache",
          "/continue_generation", "/areal_continue_generation", "/flush_cache"}


def untyped_is_not_json(listener, rows):
    """A page may send a body without a type anywhere. Routes in vLLM's and SGLang's form say it as those do."""
    n = 0
    for (method, path), row in rows.items():
        if method != "POST" or row["role"] != "control":
            continue
        for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
            a = listener.ask(method, path, headers, b'{"nobody": "knows it"}')
            if path in UNREAD:
                must(a, 409 if path in OF_FLEETS else 200)
            else:
                assert a.status in (400, 415) and b"application/json" in a.raw, f"{method} {path} {headers}: {a}"
                n += 1
    assert n > 100, n
    must(listener.ask("POST", "/v1/update_weights", {}, b'{"path": "x"}'), 415, "no Content-Type",
         "send Content-Type: application/json or application/vnd.safetensors")
    must(listener.ask("POST", "/v1/pause", {}, b"{}"), 415, "send Content-Type: application/json")
    must(listener.ask("POST", "/tokenize", {}, b'{"prompt": "a"}'), 200)  # it acts on nothing


def served_as_before(s):
    """What trainers, curl and probes send."""
    p = s.main.port
    for host in ("localhost", f"LOCALHOST.:{p}", f"127.0.0.1:{p}", f"[::1]:{p}", "10.9.8.7", f"x.localhost:{p}"):
        must(s.main.ask("GET", "/v1/status", host=host), 200)
    with contextlib.closing(s.main.connect()) as c:
        c.sendall(b"GET /version HTTP/1.0\r\n\r\n")
        assert c.recv(65536).startswith(b"HTTP/1.1 200 "), "HTTP/1.0 names no host"
    for path in ("/v1/pause", "/v1/resume", "/pause?mode=keep", "/resume",
                 "/sleep?level=1", "/wake_up", "/v1/reset_cache"):
        must(s.main.ask("POST", path), 200)
    must(s.main.ask("GET", "/flush_cache"), 200)
    for headers in ({"Origin": f"http://localhost:{p}", "Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"},
                    {"Sec-Fetch-Site": "same-origin"}, {"Referer": EVIL}):
        must(s.main.ask("POST", "/v1/resume", headers, host=f"localhost:{p}"), 200)
    must(s.main.ask("GET", "/v1/status", {"Origin": f"https://localhost:{p}"}, host=f"localhost:{p}"), 403)
    must(s.main.ask("OPTIONS", "/v1/status"), 405)
    a = must(s.main.ask("GET", "/v1/status", host="baton.svc:8700"), 421, "--allowed-host baton.svc", "'baton.svc'")
    assert a.json()["error"]["retryable"] is False, a


# GETs that act; all others are views, which a person may open.
ACTING = {"/flush_cache", "/release_memory_occupation", "/resume_memory_occupation", "/v1/weights/handles"}
# Of Chromium at plain HTTP beyond loopback, for an image and for the address bar alike.
UNTOLD = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36"}


def untold_page_gets_views_only(s, rows):
    """No GET acts for a browser that does not say what page asks; trainers' do."""
    before = state(s.main)
    n = 0
    for method, path in rows:
        if method not in ("GET", "HEAD"):
            continue
        a = s.main.ask(method, path, UNTOLD)
        if method == "GET" and path in ACTING:
            must(a, 403, "Sec-Fetch-Site", "https")
            must(s.main.ask(method, path, {**UNTOLD, "Authorization": "Bearer " + KEY}), 403)
            n += 1
        else:
            assert a.status != 403, f"{method} {path}: {a}"
        assert state(s.main) == before, f"{method} {path}: {before}, {state(s.main)}"
    assert n == len(ACTING), n
    for path in ACTING - {"/v1/weights/handles"}:  # which wants a GPU
        for headers in ({"User-Agent": "python-requests/2.32.3"}, {**UNTOLD, "Sec-Fetch-Site": "none"}):
            must(s.main.ask("GET", path, headers), 200)
        must(s.main.ask("POST", path, UNTOLD), 200)


def as_recorded(s):
    n, answers = replay.replay(SESSION, "127.0.0.1", s.main.port)
    assert n >= 40 and {a.status for a in answers} == {403, 421}, n


def one_listener(rows):
    with Server("--allow-path", MODEL) as s:
        before = state(s.main)
        refused_everywhere(s.main, rows)
        as_recorded(s)
        assert state(s.main) == before, (before, state(s.main))
        assert '"status":421,"code":"misdirected_request"' in s.text()
        assert '"event":"request.misdirected"' in s.text() and '"host":"evil.example:8700"' in s.text()
        untold_page_gets_views_only(s, rows)
        served_as_before(s)
        untyped_is_not_json(s.main, rows)


def three_listeners(rows):
    """With keys: one of this server may use any name, and a page with a key is a page all the same."""
    cert = os.path.join(WORK, "tls.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", WORK + "/tls.key", "-out", cert,
                    "-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
                   check=True, capture_output=True)
    keys = os.path.join(WORK, "keys")
    with open(os.open(keys, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as f:
        f.write(f"control {KEY}\n")
    with_key, wrong = {"Authorization": "Bearer " + KEY}, {"Authorization": "Bearer x" + KEY}
    with Server("--api-key-file", keys, "--no-auth-cidr", "127.0.0.0/8", "--tls-cert", cert, "--tls-key", WORK + "/tls.key",
                "--control-listen", f"unix:{WORK}/control", "--no-auth-cidr", "unix", "--health-listen", "127.0.0.1:0") as s:
        data, control, health = Listener(s.main.at, cert), Listener(f"unix:{WORK}/control", cert), Listener(s.said["health"])
        before = state(data)
        refused_everywhere(data, rows, KEY)
        refused_everywhere(control, rows, KEY)
        refused_everywhere(health, rows, KEY, named=True)
        assert state(data) == before
        must(data.ask("GET", "/v1/status", with_key, host="baton.svc"), 200)
        must(data.ask("GET", "/v1/status", wrong, host="baton.svc"), 421)
        must(data.ask("GET", "/v1/status", host="baton.svc"), 421)
        must(data.ask("GET", "/v1/status"), 200)
        must(health.ask("GET", "/health", host="baton.svc"), 200)
        for host in ("baton.svc", "evil.example", ""):
            must(control.ask("POST", "/v1/resume", host=host), 200)
        must(data.ask("GET", "/version", {"Origin": "https://localhost"}), 200)
        must(data.ask("GET", "/version", {"Origin": "http://localhost"}), 403)
        must(health.ask("GET", "/health", {"Origin": "http://localhost"}), 200)


def keyed_by_any_name(rows):
    """A client with a wrong key gets that error, whatever its Host; probes need no key."""
    with_key, wrong = {"Authorization": "Bearer " + KEY}, {"Authorization": "Bearer x" + KEY}
    with Server("--api-key-file", os.path.join(WORK, "keys"), "--health-listen", "127.0.0.1:0") as s:
        before, health = state(s.main, with_key), Listener(s.said["health"])
        for method, path in rows:
            a = s.main.ask(method, path, wrong, host="baton.svc")
            assert a.status not in (403, 421), f"{method} {path}: {a}"
        for host in ("baton.svc", "evil.example:1", ""):
            must(s.main.ask("GET", "/v1/status", with_key, host=host), 200)
            must(s.main.ask("GET", "/v1/status", wrong, host=host), 401, "the key is unknown")
            a = must(s.main.ask("POST", "/v1/pause", host=host), 401, "a key is required")
            assert a.headers["WWW-Authenticate"].startswith("Bearer"), a
            for listener in (s.main, health):
                for path in ("/health", "/livez"):
                    must(listener.ask("GET", path, host=host), 200)
        must(s.main.ask("GET", "/v1/status", {**with_key, "Origin": EVIL}, host="baton.svc"), 403)
        assert state(s.main, with_key) == before


def allowed_hosts():
    with Server("--allowed-host", "baton", "--allowed-host", "*.svc") as s:
        for host, status in (("baton", 200), ("BATON.:8700", 200), ("a.b.svc:1", 200), ("svc", 421), ("baton.evil", 421)):
            must(s.main.ask("GET", "/v1/status", host=host), status)
        must(s.main.ask("GET", "/v1/status", {"Origin": EVIL}, host="baton"), 403)
    os.environ["BATON_ALLOWED_HOST"] = "a  *"
    with Server() as s:
        must(s.main.ask("GET", "/v1/status", host="evil.example"), 200)
    del os.environ["BATON_ALLOWED_HOST"]


def check_readable(a, origin, exposed=True):
    assert a.headers["Access-Control-Allow-Origin"] == origin and a.headers["Vary"] == "Origin", a
    assert a.headers["Access-Control-Expose-Headers"] == ("*" if exposed else None), a
    assert a.headers["Access-Control-Allow-Credentials"] is None, a


def allowed_origins():
    app = {"Origin": APP, "Sec-Fetch-Site": "cross-site"}
    json_app = {**app, "Content-Type": "application/json"}
    preflight = {**app, "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization,content-type,x-session-id",
                 "Access-Control-Request-Private-Network": "true"}
    with Server("--allow-origin", APP, "--allow-origin", "http://localhost:3000") as s:
        ask = s.main.ask
        for a, status in (
                (ask("GET", "/v1/status", app), 200), (ask("HEAD", "/version", app), 200), (ask("GET", "/nothing", app), 404),
                (ask("PUT", "/v1/status", app), 405), (ask("POST", "/v1/pause", app, b"{}"), 415),
                (ask("POST", "/v1/pause", json_app, b"{"), 400), (ask("POST", "/v1/resume", app), 200),
                (ask("OPTIONS", "/v1/status", app), 405), (ask("GET", "/version", app, host="evil.example"), 421),
                (ask("POST", "/v1/completions", json_app, b'{"prompt": "In", "max_tokens": 2}'), 200),
                (ask("POST", "/v1/completions", json_app, b'{"prompt": "In", "max_tokens": 2, "stream": true}'), 200)):
            check_readable(must(a, status), APP)
        check_readable(must(ask("GET", "/version", {"Origin": "http://localhost:3000"}), 200), "http://localhost:3000")
        for path in ("/v1/pause", "/nothing", "/v1/update_weights"):
            a = must(ask("OPTIONS", path, preflight), 204)
            check_readable(a, APP, exposed=False)
            assert a.raw == b"" and a.headers["Access-Control-Allow-Headers"] == "authorization,content-type,x-session-id", a
            assert a.headers["Access-Control-Allow-Methods"] == "GET, HEAD, POST, PUT, DELETE", a
            assert a.headers["Access-Control-Allow-Private-Network"] == "true" and a.headers["Access-Control-Max-Age"], a
        must(ask("OPTIONS", "/v1/pause", preflight, host="evil.example"), 421)
        long = {**preflight, "Access-Control-Request-Headers": "x" * 15000}  # the head of the answer stays in its bounds
        assert must(ask("OPTIONS", "/v1/pause", long), 204).headers["Access-Control-Allow-Headers"] is None
        for origin in (EVIL, "null", APP + ".evil.example", "http://app.example"):
            for method in ("OPTIONS", "GET", "POST"):
                a = must(ask(method, "/v1/status", {**preflight, "Origin": origin}), 403, "--allow-origin")
                assert a.headers["Access-Control-Allow-Origin"] is None and a.headers["Vary"] == "Origin", a
        a = must(ask("GET", "/version"), 200)
        assert a.headers["Vary"] == "Origin" and a.headers["Access-Control-Allow-Origin"] is None, a
        must(ask("GET", "/v1/status", {"Sec-Fetch-Site": "cross-site"}), 403)
        refused_upload(s, app)
    with Server("--allow-origin", "*") as s:
        for origin in (EVIL, "null"):
            check_readable(must(s.main.ask("GET", "/v1/status", {"Origin": origin}), 200), "*")


def refused_upload(s, headers):
    """An error before the end of the body is written past the library."""
    head = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    with contextlib.closing(s.main.connect()) as c:
        c.sendall((f"POST /v1/update_weights?weight_version=x HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: 100000000\r\n"
                   "Content-Type: application/vnd.safetensors\r\n\r\n").encode() + b"\x02" + bytes(7) + b"{}" + bytes(100000))
        said = b""
        while b"\r\n\r\n" not in said:
            said += c.recv(65536)
    assert b"HTTP/1.1 422 " in said or b"HTTP/1.1 400 " in said, said
    assert f"Access-Control-Allow-Origin: {APP}\r\n".encode() in said and b"Vary: Origin\r\n" in said, said


def checked():
    def check(*options):
        done = subprocess.run([BATON, "serve", "--check", "--listen", "127.0.0.1:0", *options], capture_output=True,
                              text=True, timeout=WAIT_S)
        return done.returncode, done.stdout + done.stderr

    for of in (("--model", MODEL), ("--upstream", "http://127.0.0.1:1")):
        rc, said = check(*of)
        assert rc == 0 and "allowed hosts of requests without a key: addresses, localhost\n" in said, said
        assert "allowed origins of web pages: its own\n" in said, said
        rc, said = check(*of, "--allowed-host", "baton", "--allowed-host", "*.svc", "--allow-origin", APP)
        assert rc == 0 and "addresses, localhost, baton, *.svc\n" in said and f"its own, {APP}\n" in said, said
        for bad in (("--allowed-host", "baton:8700"), ("--allowed-host", "http://baton"), ("--allow-origin", "app.example"),
                    ("--allow-origin", "null"), ("--allow-origin", APP + "/")):
            rc, said = check(*of, *bad)
            assert rc == 2 and f"{bad[0]}: '{bad[1]}' is not" in said, said


def main():
    rows = routes()
    one_listener(rows)
    three_listeners(rows)
    keyed_by_any_name(rows)
    allowed_hosts()
    allowed_origins()
    checked()
    print(f"ok: {len(rows)} routes")


main()
