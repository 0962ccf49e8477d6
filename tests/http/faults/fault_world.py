"""The server as fault_matrix.py sees it: how to send requests to it, and which weights it must serve.

The world keeps a model of the served version, name -> (checksum, label, serial), that only a 200 on
an update changes; check() compares it with GET /v1/weights, to the last tensor.
"""

import http.client
import json
import os
import secrets
import socket
import struct
import time
import urllib.parse

import baton

WAIT_S = 60  # longest time for any request; a longer wait is a hang
TENSORS = "application/vnd.safetensors"


class Fault(AssertionError):
    """The server did what it must not."""


class Answer:
    def __init__(self, status, headers, raw):
        self.status, self.headers, self.raw = status, headers, raw
        kind = headers.get("Content-Type", "")
        self.body = json.loads(raw) if raw and kind.startswith("application/json") else None

    def __str__(self):
        return f"{self.status} {self.raw[:700]!r}"


class Row:
    """One tensor of an update: what is said of it, and where its bytes are in its checkpoint."""

    def __init__(self, checkpoint, name, dtype, shape, offset, nbytes):
        self.checkpoint, self.name, self.dtype, self.shape = checkpoint, name, dtype, list(shape)
        self.offset, self.nbytes = offset, nbytes
        self.sum = None  # what is said to be its checksum; None: the true one

    def copy(self, **changes):
        row = Row(self.checkpoint, self.name, self.dtype, self.shape, self.offset, self.nbytes)
        row.sum = self.sum
        for key, value in changes.items():
            setattr(row, key, value)
        return row

    @property
    def data(self):
        return self.checkpoint.data[self.offset:self.offset + self.nbytes]

    @property
    def true_sum(self):
        return self.checkpoint.sum_at(self.offset, self.nbytes)

    @property
    def said_sum(self):
        return self.sum if self.sum is not None else self.true_sum


class Checkpoint:
    """A trained checkpoint, packed in one shared memory object."""

    def __init__(self, world, step, path):
        self.step, self.rows, pieces, at = step, [], [], 0
        for name, t in baton.load_file(path).items():
            self.rows.append(Row(self, name, t.dtype, t.shape, at, t.nbytes))
            pieces.append(bytes(t.data))
            at += t.nbytes
        self.data, self.nbytes, self._sums = b"".join(pieces), at, {}
        self.shm = world.shm(self.data)

    def sum_at(self, offset, nbytes):
        key = (offset, nbytes)
        if key not in self._sums:
            self._sums[key] = baton.checksum(memoryview(self.data)[offset:offset + nbytes])
        return self._sums[key]


class World:
    def __init__(self, url, model, root, rng, pid):
        self.url, self.root, self.rng, self.pid = url, root, rng, pid
        parts = urllib.parse.urlsplit(url)
        self.address = (parts.hostname, parts.port)
        self.connection = None
        self.prefix = f"baton-faults-{os.getpid()}-{secrets.token_hex(4)}-"
        self.n_objects = self.n_labels = 0
        self.checkpoints = [Checkpoint(self, step, f"{model}/checkpoints/{step}.safetensors")
                            for step in ("step-00000", "step-00100", "step-01500")]
        self.by_sums = {frozenset((r.name, r.true_sum) for r in c.rows): c for c in self.checkpoints}
        self.label, self.serial, self.tensors = None, None, None
        self.doing = "the start"

    # speaking

    def ask(self, method, path, body=None, headers=None):
        headers = dict(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        if self.connection is None:
            self.connection = http.client.HTTPConnection(*self.address, timeout=WAIT_S)
        try:
            try:
                self.connection.request(method, path, body=body, headers=headers)
            except (BrokenPipeError, ConnectionResetError):
                pass  # answered before it was all read: the answer says why
            answer = self.connection.getresponse()
            out = Answer(answer.status, answer.headers, answer.read())
        except (OSError, http.client.HTTPException) as e:
            self.hang_up()
            raise Fault(f"{method} {path}: no answer: {type(e).__name__} {e}") from e
        if answer.will_close:
            self.hang_up()
        return out

    def hang_up(self):
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def raw(self, data):
        """A connection of its own on which `data` has been sent."""
        s = socket.create_connection(self.address, timeout=WAIT_S)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.sendall(data)
        return s

    @staticmethod
    def cut(s, reset):
        if reset:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()

    @staticmethod
    def closed(s):
        """Waits until the server has ended the connection, whatever it says before."""
        try:
            while s.recv(65536):
                pass
        except ConnectionError:
            pass

    @staticmethod
    def answer_on(s):
        answer = http.client.HTTPResponse(s)
        answer.begin()
        return Answer(answer.status, answer.headers, answer.read())

    # things to push

    def shm(self, data):
        self.n_objects += 1
        name = f"{self.prefix}{self.n_objects}"
        with open(f"/dev/shm/{name}", "wb") as f:
            f.write(data)
        return name

    def unlink(self, name):
        os.unlink(f"/dev/shm/{name}")

    def left_over(self):
        return [n for n in os.listdir("/dev/shm") if n.startswith(self.prefix)]

    def new_label(self):
        self.n_labels += 1
        return f"v{self.n_labels}"

    # what is served

    def look(self):
        """Believe the server once, at the start; afterwards it must agree with the model."""
        a = self.ask("GET", "/v1/weights").body
        self.label, self.serial = a["weight_version"], a["serial"]
        self.tensors = {t["name"]: (t["checksum"], t["version"], t["serial"]) for t in a["tensors"]}
        if self.served_checkpoint() is None:
            raise Fault("the server did not start with a checkpoint")

    def check(self):
        a = self.ask("GET", "/v1/weights")
        if a.status != 200:
            raise Fault(f"GET /v1/weights: {a}")
        found = (a.body["weight_version"], a.body["serial"])
        if found != (self.label, self.serial):
            raise Fault(f"served is {found}, not {(self.label, self.serial)}")
        for t in a.body["tensors"]:
            if (t["checksum"], t["version"], t["serial"]) != self.tensors.get(t["name"]):
                raise Fault(f"served is {t}, not {self.tensors.get(t['name'])}")
        if len(a.body["tensors"]) != len(self.tensors):
            raise Fault(f"{len(a.body['tensors'])} tensors are listed")

    def committed(self, answer, rows, label):
        """The answer says that these rows are served now; from here on they must be."""
        if answer.status != 200 or answer.body["phase"] != "committed":
            raise Fault(f"a valid update was answered {answer}")
        if answer.body["weight_version"] != label or answer.body["serial"] <= self.serial:
            raise Fault(f"after serial {self.serial}, label {label}: {answer}")
        self.label, self.serial = label, answer.body["serial"]
        for r in rows:
            self.tensors[r.name] = (r.true_sum, label, self.serial)

    def served_checkpoint(self):
        """The checkpoint that is served whole, or None for a mixture of partial updates."""
        return self.by_sums.get(frozenset((name, t[0]) for name, t in self.tensors.items()))

    def status(self):
        a = self.ask("GET", "/v1/status")
        if a.status != 200:
            raise Fault(f"GET /v1/status: {a}")
        return a.body

    def wait(self, what, condition):
        end = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > end:
                raise Fault(f"after {WAIT_S} s still not so: {what}")
            time.sleep(0.002)

    def wait_no_update(self):
        self.wait("no update is open", lambda: self.status()["update"] is None)

    # judging an answer

    def refused_ready(self, reason):
        a = self.ask("GET", "/readyz")
        if a.status != 503 or a.body["reason"] != reason:
            raise Fault(f"ready should be 503 for {reason}: {a}")

    @staticmethod
    def refused(answer, statuses, *culprits):
        """A refusal with one of these statuses whose error holds each of the culprits."""
        statuses = statuses if isinstance(statuses, tuple) else (statuses,)
        if answer.status not in statuses:
            raise Fault(f"wanted {statuses}, got {answer}")
        error = answer.body["error"] if answer.body else {}
        if not error.get("message") or not error.get("code") or "param" not in error:
            raise Fault(f"an error that does not explain itself: {answer}")
        said = json.dumps(error, ensure_ascii=False)
        for culprit in culprits:
            if culprit not in said:
                raise Fault(f"{culprit!r} is not named: {answer}")
        return error


def pack(rows, texts=None, order=None, sums=True, metadata=None, base=0):
    """The head of a safetensors body for these rows, as bytes; `texts` replaces single entries."""
    at, entries, meta = base, [], dict(metadata or {})
    for i, r in enumerate(rows):
        entry = {"dtype": r.dtype, "shape": r.shape, "data_offsets": [at, at + r.nbytes]}
        entries.append(f"{json.dumps(r.name)}:{(texts or {}).get(i, json.dumps(entry))}")
        at += r.nbytes
        if sums:
            meta[f"baton.checksum.{r.name}"] = r.said_sum
    if order:
        order.shuffle(entries)
    if meta:
        entries.insert(0, f'"__metadata__":{json.dumps(meta)}')
    text = ("{" + ",".join(entries) + "}").encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def body_of(rows, **kw):
    return pack(rows, **kw) + b"".join(r.data for r in rows)


def members_of(rows, sums=True, label=None, **more):
    """A JSON request that pushes these rows from their checkpoints' shared memory."""
    out = {"names": [r.name for r in rows], "dtypes": [r.dtype for r in rows],
           "shapes": [r.shape for r in rows]}
    whole = rows and all(r.checkpoint is rows[0].checkpoint for r in rows)
    packed = whole and all(b.offset == a.offset + a.nbytes for a, b in zip(rows, rows[1:]))
    if packed:
        out["shm"] = {"name": rows[0].checkpoint.shm, "offset": rows[0].offset,
                      "nbytes": sum(r.nbytes for r in rows)}
    else:
        out["shm"] = [{"name": r.checkpoint.shm, "offset": r.offset, "nbytes": r.nbytes}
                      for r in rows]
    if sums:
        out["checksums"] = [r.said_sum for r in rows]
    if label is not None:
        out["weight_version"] = label
    out.update(more)
    return out


def push(w, via, rows, label=None, sums=True, **members):
    """POST these rows by one door, as they are."""
    if via == "shm":
        return w.ask("POST", "/v1/update_weights", members_of(rows, sums, label, **members))
    if label is not None:
        members["weight_version"] = label
    body = body_of(rows, sums=sums)
    if via == "path":
        path = os.path.join(w.root, "pushed.safetensors")
        with open(path, "wb") as f:
            f.write(body)
        return w.ask("POST", "/v1/update_weights", dict(members, path=path))
    query = urllib.parse.urlencode({k: str(v).lower() if isinstance(v, bool) else v
                                    for k, v in members.items()})
    path = "/v1/update_weights" + ("?" + query if query else "")
    if via == "body":
        return w.ask("POST", path, body, {"Content-Type": TENSORS})
    s = w.raw(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TENSORS}\r\n"
              "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode())
    with s:
        for at in range(0, len(body), 300000):
            piece = body[at:at + 300000]
            s.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        s.sendall(b"0\r\n\r\n")
        return w.answer_on(s)
