"""A proxy that writes down what passes: one JSON line for each control call, and for each GET and
generation that is unlike those before.

A line has method, path, body, status, type and answer. The body is what was sent, but for folders
of this machine, ports and handles, which are masked. Of the answer only the shape is kept, so that
nothing volatile is in a recording: each value is named by its JSON type; of a list, the shapes of
its elements are merged, and those of members that are token ids, as "0"; a member that not all
elements have ends in "?"; of a stream of events the shapes are merged likewise.
tests/http/compat/recorded.py replays recordings."""

import http.client
import http.server
import json
import re
import threading
import urllib.parse

HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "host", "date", "server"}
DATA = re.compile(r"completions|generate$|/(de)?tokenize")  # what changes no state
NAMES = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}


def shape(value):
    if isinstance(value, dict):
        if value and all(k.isdigit() for k in value):
            return {"0": merged_all([shape(v) for v in value.values()])[0]}
        return {k: shape(v) for k, v in value.items()}
    if isinstance(value, list):
        return merged_all([shape(v) for v in value])
    return NAMES[type(value)]


def merged_all(shapes):
    """[] or [what all elements have in common]."""
    found = []
    for s in shapes:
        found = [merged(found[0], s)] if found else [s]
    return found


def merged(a, b):
    if isinstance(a, dict) and isinstance(b, dict):
        return _merged_members(a, b)
    if isinstance(a, list) and isinstance(b, list):
        return [merged(a[0], b[0])] if a and b else a or b
    if a == b:
        return a
    if isinstance(a, str) and isinstance(b, str):
        return "|".join(sorted(set(a.split("|")) | set(b.split("|"))))
    kept = b if isinstance(a, str) else a  # null, or a structure
    return kept


def _merged_members(a, b):
    found = {}
    for key in {**a, **b}:
        bare = key.rstrip("?")
        sides = [s[k] for s in (a, b) for k in (bare, bare + "?") if k in s]
        whole = bare in a and bare in b
        found[bare if whole else bare + "?"] = sides[0] if len(sides) == 1 else merged(*sides)
    return found


def answer_shape(content_type, raw):
    """None for what has no JSON in it."""
    if content_type == "text/event-stream":
        events = [line[6:] for line in raw.decode().splitlines() if line.startswith("data: ")]
        return {
            "events": merged_all([shape(json.loads(e)) for e in events if e != "[DONE]"]),
            "done": "[DONE]" in events,
        }
    try:
        return shape(json.loads(raw))
    except ValueError:
        return None


class Recorder:
    """@masks  [(pattern, what stands for it)]"""

    def __init__(self, path, masks=()):
        self.path, self.masks, self.seen, self.lock = path, list(masks), set(), threading.Lock()
        self.masks.append((r'("ipc_handles_pickled": )"[^"]*"', r'\1"${handles}"'))
        self.masks.append((r'("serialized_named_tensors": )\[[^]]*\]', r'\1["${tensors}"]'))
        self.masks.append((r'("master_port": )\d+', r"\g<1>0"))
        self.masks.append((r"(127\.0\.0\.1):\d+", r"\1:0"))
        self.masks.append((r"upd-[0-9a-f]{32}", "upd-" + "0" * 32))
        open(path, "w").close()

    def masked(self, text):
        for pattern, stand_in in self.masks:
            text = re.sub(pattern, stand_in, text)
        return text

    def begin(self, method, path):
        """Before it is passed on."""

    def write(self, method, path, body, status, content_type, raw):
        try:
            sent = json.loads(self.masked(json.dumps(json.loads(body)))) if body else None
        except ValueError:
            sent = None
        line = {
            "method": method,
            "path": self.masked(path),
            "body": sent,
            "status": status,
            "type": content_type,
            "answer": answer_shape(content_type, raw),
        }
        key = json.dumps({**line, "body": shape(sent)}, sort_keys=True)
        changes_nothing = method == "GET" or DATA.search(path)
        with self.lock:
            if key in self.seen and changes_nothing:
                return
            self.seen.add(key)
            with open(self.path, "a", encoding="utf-8") as f:
                f.write(json.dumps(line) + "\n")


class Proxy:
    """In front of one server, on a port of its own; a context manager."""

    def __init__(self, url, recorder):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(url, recorder))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def _handler(url, recorder):
    at = urllib.parse.urlsplit(url)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_):
            pass

        def relay(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            behind = http.client.HTTPConnection(at.hostname, at.port, timeout=300)
            headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP}
            recorder.begin(self.command, self.path)
            try:
                behind.request(self.command, self.path, body or None, headers)
                answer = behind.getresponse()
                raw = self.pass_on(answer)
            except (OSError, http.client.HTTPException):
                self.close_connection = True  # as it was there: no answer
                return
            finally:
                behind.close()
            kind = (answer.getheader("Content-Type") or "").partition(";")[0]
            recorder.write(self.command, self.path, body, answer.status, kind, raw)

        def pass_on(self, answer):
            """As it comes: whole, or in chunks; returns all of it."""
            whole = answer.getheader("Content-Length") is not None
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP or (whole and name.lower() == "content-length"):
                    self.send_header(name, value)
            if not whole:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            found = b""
            while piece := answer.read1(65536):
                self.wfile.write(piece if whole else b"%x\r\n%s\r\n" % (len(piece), piece))
                found += piece
            if not whole:
                self.wfile.write(b"0\r\n\r\n")
            return found

        do_GET = do_POST = do_PUT = do_DELETE = relay

    return Handler
