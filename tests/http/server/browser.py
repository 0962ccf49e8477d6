"""What web pages of a real browser may do with a server: nothing at all, unless --allow-origin names
them. Chromium without a window opens pages that this test serves; its resolver maps their names to
the loopback interface, and every other name to nothing.

Usage: browser.py BATON MODEL [RECORD]   With RECORD the requests of the pages that are refused lie in
that file, as a session of tests/http/lib/replay.py (http_pages replays it without a browser).
Exit status 77: there is no chromium here (apt-get install chromium).
"""

import http.client
import http.server
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

WAIT_S = 120  # a browser that has not reported by then has hung
WEIGHTS = "checkpoints/step-00000.safetensors"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEY = "control-0123456789abcdef"

STEPS = """<!doctype html><meta charset=utf-8><title>page</title><body><script>
const B = "%(baton)s", done = {};
async function step(name, act) {
  try { done[name] = await act(); } catch (e) { done[name] = e.name; }
}
const kind = async answer => (await answer).type;
const read = async answer => { answer = await answer; return [answer.status, await answer.text()]; };
const post = (url, body, more) => fetch(url, {method: "POST", body, ...more});
const json = {headers: {"Content-Type": "application/json"}};
const secret = {headers: {"Content-Type": "application/json", "Authorization": "Bearer %(key)s", "X-Session-ID": "s"}};
const image = url => new Promise(r => {
  const i = new Image(); i.onload = () => r("load"); i.onerror = () => r("error"); i.src = url; });
const script = url => new Promise(r => { const s = document.createElement("script");
  s.onload = () => r("load"); s.onerror = () => r("error"); s.src = url; document.body.append(s); });
const frame = more => new Promise(r => {
  const f = document.createElement("iframe"); Object.assign(f, more); f.onload = () => r("load"); document.body.append(f); });
const form = url => new Promise(r => {
  const f = document.createElement("iframe"), o = document.createElement("form");
  f.name = "f" + document.forms.length; document.body.append(f, o);
  f.onload = () => r("load"); o.method = "POST"; o.action = url; o.target = f.name; o.submit(); });
const sandboxed = url => new Promise(r => {
  onmessage = m => r(m.data);
  frame({sandbox: "allow-scripts", srcdoc: "<script>fetch('" + url + "', {method: 'POST', mode: 'no-cors'})" +
    ".then(a => parent.postMessage(a.type, '*'), e => parent.postMessage(e.name, '*'))</scr" + "ipt>"}); });
(async () => {
%(steps)s
  await fetch("/report", {method: "POST", body: JSON.stringify(done)});
})();
</script>"""

# What a page of another site tries; of each, what it must see.
FOREIGN = [
    ("text", 'kind(post(B + "/sleep?level=2", "", {mode: "no-cors"}))', "opaque"),
    ("typed", 'kind(post(B + "/v1/sleep", JSON.stringify({level: 2}), {mode: "no-cors"}))', "opaque"),
    ("form", 'form(B + "/v1/pause?mode=keep")', "load"),
    ("blob", 'kind(post(B + "/v1/update_weights", new Blob([JSON.stringify({path: "checkpoints/step-01500.safetensors", weight_version: "evil"})]),'
             ' {mode: "no-cors"}))', "opaque"),
    ("bodyless", 'kind(fetch(B + "/pause?mode=abort", {method: "POST", mode: "no-cors", keepalive: true}))', "opaque"),
    ("null origin", 'sandboxed(B + "/v1/pause")', "opaque"),
    ("preflight", 'read(post(B + "/v1/pause", "{}", json))', "TypeError"),
    ("delete", 'read(fetch(B + "/v1/weights/handles/x", {method: "DELETE"}))', "TypeError"),
    ("image", 'image(B + "/release_memory_occupation")', "error"),
    ("lease", 'image(B + "/v1/weights/handles")', "error"),
    ("script", 'script(B + "/v1/status")', "error"),
    ("frame", 'frame({src: B + "/flush_cache"})', "load"),
    ("read", 'read(fetch(B + "/v1/status"))', "TypeError"),
    ("health", 'read(fetch(B + "/health"))', "TypeError"),
]
FOREIGN_SEEN = [  # on its way to the server, each refused
    ("POST", "/sleep"), ("POST", "/v1/sleep"), ("POST", "/v1/pause"), ("POST", "/v1/update_weights"), ("POST", "/pause"),
    ("OPTIONS", "/v1/pause"), ("OPTIONS", "/v1/weights/handles/x"), ("GET", "/release_memory_occupation"),
    ("GET", "/v1/weights/handles"), ("GET", "/v1/status"), ("GET", "/flush_cache"), ("GET", "/health")]

# What a page does whose own name has become this server's address.
REBOUND = [
    ("status", 'read(fetch("/v1/status"))', 421),
    ("weights", 'read(fetch("/v1/weights"))', 421),
    ("health", 'read(fetch("/health"))', 421),
    ("nothing", 'read(fetch("/nothing"))', 421),
    ("pause", 'read(post("/v1/pause", "{}", json))', 421),
    ("untyped", 'read(post("/v1/pause", new Blob(["{}"])))', 421),
]

# What a page of --allow-origin does.
ALLOWED = [
    ("status", 'read(fetch(B + "/v1/status"))', 200),
    ("pause", 'read(post(B + "/v1/pause", \'{"mode": "keep"}\', json))', 200),
    ("resume", 'read(fetch(B + "/v1/resume", {method: "POST"}))', 200),
    ("untyped", 'read(post(B + "/v1/pause", new Blob(["{}"])))', 415),
    ("nothing", 'read(fetch(B + "/nothing"))', 404),
    ("stream", 'read(post(B + "/v1/completions", JSON.stringify({prompt: "In", max_tokens: 3, stream: true}), json))', 200),
    ("headers", '(async () => { const a = await fetch(B + "/version");'
                ' return [a.status, a.headers.get("X-Request-Id") + " " + a.headers.get("X-Baton-Boot-Id")]; })()', 200),
    ("with a key", 'read(post(B + "/v1/resume", "{}", secret))', 200),
]


class Recorder:
    """The requests of the page in order, as a session."""

    def __init__(self, path):
        self.path, self.lock, self.steps = path, threading.Lock(), []

    def add(self, handler, body, answer):
        lines = [f"> {handler.command} {handler.path} {handler.request_version}"]
        for name, value in handler.headers.items():
            if name == "Content-Length" or name == "Host" and value.startswith("127."):
                value = "${length}" if name == "Content-Length" else "${host}"
            lines.append(f"> {name}: {value.replace(f':{handler.server.page_port}', '')}")
        lines += [">"] + [f"> {line}" for line in body.decode().split("\n") if line]
        lines += [f"< {answer.status}", "< Access-Control-Allow-Origin: -"]
        with self.lock:
            if self.steps[-1:] != ["\n".join(lines)]:  # a 421 is asked again, on another connection
                self.steps.append("\n".join(lines))

    def write(self):
        with open(self.path, "w", encoding="utf-8") as f:
            f.write("# What " + subprocess.run([BROWSER, "--version"], capture_output=True, check=True,
                                               text=True).stdout.split("built")[0].strip() +
                    " sends when a page of another site, and then one whose name is rebound, tries to control a server\n"
                    "# on the loopback interface. Recorded by tests/http/server/browser.py BATON MODEL FILE.\n\n" + "\n\n".join(self.steps) + "\n")


class Pages(http.server.ThreadingHTTPServer):
    """Serves one page and takes its report. What else it is asked goes to the server as it came."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.page, self.reports, self.server_at, self.record = "", queue.Queue(), None, None
        self.asked = []  # (method, path, status) of what went to the server
        self.page_port = self.server_port
        self.handle_error = lambda *at: None  # the browser is killed in the middle of things
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, headers, body):
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def relay(self, body):
        c = http.client.HTTPConnection("127.0.0.1", self.server.server_at, timeout=WAIT_S)
        c.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            c.putheader(name, value)
        c.endheaders(body)
        said = c.getresponse()
        self.server.asked.append((self.command, self.path.partition("?")[0], said.status))
        if self.server.record is not None:
            self.server.record.add(self, body, said)
        self.answer(said.status, said.headers.items(), said.read())
        c.close()

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/page":
            self.answer(200, [("Content-Type", "text/html")], self.server.page.encode())
        elif self.path == "/report":
            self.answer(200, [], b"")
            self.server.reports.put(json.loads(body))
        elif self.path == "/favicon.ico":
            self.answer(404, [], b"")
        else:
            self.relay(body)

    do_GET = do_POST = do_DELETE = do_OPTIONS = handle_any


class Baton:
    """A server of its own for each page."""

    def __init__(self, program, model, work, *options):
        self.log = os.path.join(work, f"log{len(os.listdir(work))}")
        with open(self.log, "w", encoding="utf-8") as to:
            self.process = subprocess.Popen(
                [program, "serve", "--listen", "127.0.0.1:0", "--model", model, "--weights", os.path.join(model, WEIGHTS),
                 "--weight-version", "step-0", "--allow-path", model, *options], stderr=to)
        self.port = None
        while self.port is None:
            assert self.process.poll() is None, open(self.log, encoding="utf-8").read()
            self.port = next((line["port"] for line in self.lines("serving")), None)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.terminate()
        assert self.process.wait(WAIT_S) == 0, "the server ended badly"

    def lines(self, event):
        with open(self.log, encoding="utf-8") as f:
            return [line for line in map(json.loads, filter(lambda t: t.endswith("}\n"), f)) if line["event"] == event]

    def get(self, path, key=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        c.request("GET", path, headers={} if key is None else {"Authorization": "Bearer " + key})
        answer = c.getresponse()
        assert answer.status == 200, answer.status
        return json.loads(answer.read())

    def requests(self, least):
        """(method, path, status) of what it was asked, once its log has so many."""
        until = time.monotonic() + WAIT_S
        while len(asked := self.lines("request")) < least and time.monotonic() < until:
            time.sleep(0.01)
        return [(r["method"], r.get("path", r.get("route")), r["status"]) for r in asked]

    def untouched(self):
        status = self.get("/v1/status")
        assert status["pause"] is None, status["pause"]
        assert status["weights"]["weight_version"] == "step-0" and status["weights"]["state"] == "ready", status["weights"]
        assert status["ready"] is True, status


def browse(url, work, pages):
    """Opens a page; returns its report."""
    profile = tempfile.mkdtemp(dir=work)
    with subprocess.Popen(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
             f"--user-data-dir={profile}", "--remote-debugging-port=0",
             "--host-resolver-rules=MAP *.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", url],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as browser:
        try:
            return pages.reports.get(timeout=WAIT_S)
        finally:
            os.killpg(browser.pid, signal.SIGKILL)


def page(baton_url, steps):
    lines = [f"  await step({json.dumps(name)}, async () => {act});" for name, act, _ in steps]
    return STEPS % {"baton": baton_url, "steps": "\n".join(lines), "key": KEY}


def foreign(program, model, work, pages, record):
    with Baton(program, model, work) as s, Pages() as recorder:
        recorder.record, recorder.server_at, recorder.page_port = record, s.port, pages.page_port
        pages.page = page(f"http://127.0.0.1:{recorder.server_port}", FOREIGN)
        report = browse(f"http://evil.example:{pages.server_port}/page", work, pages)
        recorder.shutdown()
        wrong = [(name, report.get(name), want) for name, _, want in FOREIGN if report.get(name) != want]
        assert not wrong, wrong
        s.untouched()
        for method, path in FOREIGN_SEEN:
            assert (method, path) in [r[:2] for r in recorder.asked], (method, path, recorder.asked)
        assert {r[2] for r in recorder.asked} == {403}, recorder.asked


def rebound(program, model, work, pages, record):
    with Baton(program, model, work) as s:
        pages.record, pages.server_at = record, s.port
        pages.page = page("", REBOUND)
        report = browse(f"http://evil.example:{pages.server_port}/page", work, pages)
        for name, _, want in REBOUND:
            status, text = report[name]
            assert status == want and "--allowed-host evil.example" in text and "step-0" not in text, (name, report[name])
        s.untouched()


def allowed(program, model, work, pages):
    keys = os.path.join(work, "keys")
    with open(os.open(keys, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as f:
        f.write(f"control {KEY}\n")
    origin = ("--allow-origin", f"http://app.example:{pages.server_port}")
    with Baton(program, model, work, *origin) as s:
        pages.page = page(f"http://127.0.0.1:{s.port}", ALLOWED)
        report = browse(f"http://app.example:{pages.server_port}/page", work, pages)
        assert {name: report[name][0] for name, _, _ in ALLOWED} == {name: want for name, _, want in ALLOWED}, report
        assert '"step-0"' in report["status"][1] and report["stream"][1].endswith("data: [DONE]\n\n"), report
        assert "Content-Type: application/json" in report["untyped"][1] and "null" not in report["headers"][1], report
        assert ("OTHER", "/v1/pause", 204) in s.requests(len(ALLOWED)), "it was asked before"
        # of the same name and another port: another origin
        with Pages() as others:
            others.page = page(f"http://127.0.0.1:{s.port}", [("read", 'read(fetch(B + "/version"))', "TypeError")])
            assert browse(f"http://app.example:{others.server_port}/page", work, others) == {"read": "TypeError"}
            others.shutdown()
    with Baton(program, model, work, *origin, "--api-key-file", keys) as s:
        pages.page = page(f"http://127.0.0.1:{s.port}", ALLOWED)
        report = browse(f"http://app.example:{pages.server_port}/page", work, pages)
        assert report["with a key"][0] == 200 and report["status"][0] == report["resume"][0] == 401, report
        assert "a key is required" in report["status"][1], report


def main():
    program, model = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    if BROWSER is None:
        sys.exit("there is no chromium: deploy/setup.sh test")
    record = Recorder(sys.argv[3]) if len(sys.argv) > 3 else None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work, Pages() as pages:
        foreign(program, model, work, pages, record)
        rebound(program, model, work, pages, record)
        if record is not None:
            record.write()
        allowed(program, model, work, pages)
        pages.shutdown()
    print(f"ok: {len(FOREIGN)} tries of a foreign page, {len(REBOUND)} of a rebound one, {2 * len(ALLOWED)} of an allowed one")


main()
