"""Replays a recorded session, byte for byte, and holds the answers against what it wants.

A session is a text file of steps, in order:

    # a comment
    ! name word...            a hook of the test: hooks[name](word...); what it returns, if it is a
                              dict, are new values. `! reconnect` is ours: a connection of its own
    > POST /pause?mode=keep HTTP/1.1
    > Host: ${host}
    > Content-Type: application/json
    > Content-Length: ${length}
    >
    > {"update_info": {"ipc_handles_pickled": "${handles}"}}
    < 200
    < Content-Type: application/json
    <
    < {"message": "Weights updated"}

Of `>`: the request's lines, sent as they are (line ends of the head are CRLF; the body's lines are
joined by LF, and nothing follows the last). ${name} is one of the test's values: a string as it is,
anything else as JSON; ${length} is the number of the body's bytes; ${host} is HOST:PORT. Head and
body go in segments of their own, as `requests` and `http.client` send them, and all on one
connection until it is closed or `! reconnect`.

Of `<`: the status; headers that the answer must have (value `*`: any; `-`: it must not be there);
and, behind an empty line, JSON that its body must contain. Members that are not named may be
anything, arrays are compared whole, and numbers and booleans are never equal to each other.
Strings: "*" is any value at all, "~text" is a string that has this text in it; ${name} as above.
Without JSON the body may be anything. Every answer must have a Content-Length and be whole.
"""

import json
import re
import socket
import sys

WAIT_S = 60  # longest time for a reply; a longer wait is a hang
HEAD_MAX = 1 << 16
NAME = re.compile(r"\$\{(\w+)\}")


class Mismatch(AssertionError):
    """The session went another way."""


class Step:
    """One request and what is wanted of its answer, or one hook."""

    def __init__(self, where, words=None):
        self.where, self.words = where, words
        self.request, self.wanted = [], []

    def request_bytes(self, values):
        cut = self.request.index("") if "" in self.request else len(self.request)
        body = fill("\n".join(self.request[cut + 1:]), values, self.where).encode()
        known = {**values, "length": len(body)}
        head = "".join(fill(line, known, self.where) + "\r\n" for line in self.request[:cut])
        return head.encode() + b"\r\n", body


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def __str__(self):
        return f"{self.status} {self.headers} {self.body[:700]!r}"

    def json(self):
        return json.loads(self.body)


def fill(text, values, where):
    def value(m):
        if m[1] not in values:
            raise Mismatch(f"{where}: there is no value '{m[1]}'")
        found = values[m[1]]
        return found if isinstance(found, str) else json.dumps(found)

    return NAME.sub(value, text)


def parse(path):
    """The steps of a file."""
    steps = []
    with open(path, encoding="utf-8") as f:
        for n, line in enumerate(f.read().split("\n"), 1):
            where = f"{path}:{n}"
            kind, text = line[:1], line[2:]
            if kind in ("", "#"):
                continue
            if kind not in "!<>" or line[1:2] not in ("", " "):
                raise Mismatch(f"{where}: a line begins with '# ', '! ', '> ' or '< '")
            if kind == "!":
                steps.append(Step(where, text.split()))
            elif kind == ">":
                if not steps or steps[-1].words is not None or steps[-1].wanted:
                    steps.append(Step(where))
                steps[-1].request.append(text)
            elif not steps or not steps[-1].request:
                raise Mismatch(f"{where}: an answer to nothing")
            else:
                steps[-1].wanted.append(text)
    for step in steps:
        if step.request and not step.wanted:
            raise Mismatch(f"{step.where}: a request without an answer")
    return steps


# Comparing

def differs(found, wanted, at=""):
    """None, or where and how `found` is not what is wanted."""
    if wanted == "*":
        return None
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name in wanted:
            if name not in found:
                return f"{at}/{name} is not there"
            worse = differs(found[name], wanted[name], f"{at}/{name}")
            if worse:
                return worse
        return None
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        each = (differs(f, w, f"{at}/{i}") for i, (f, w) in enumerate(zip(found, wanted)))
        return next((worse for worse in each if worse), None)
    if isinstance(wanted, str) and wanted[:1] == "~" and isinstance(found, str):
        return None if wanted[1:] in found else f"{at or '/'}: '{wanted[1:]}' is not in '{found}'"
    if type(found) is type(wanted) and found == wanted:
        return None
    return f"{at or '/'} is {json.dumps(found)[:300]}, wanted {json.dumps(wanted)[:300]}"


def check_headers(step, reply, lines):
    for line in lines:
        name, _, value = line.partition(":")
        found, value = reply.headers.get(name.lower()), value.strip()
        right = found is None if value == "-" else found is not None and value in ("*", found)
        if not right:
            raise Mismatch(f"{step.where}: header {name} is {found!r}, wanted '{value}': {reply}")


def check(step, reply, values):
    """The number of things that were looked at."""
    status, *rest = step.wanted
    cut = rest.index("") if "" in rest else len(rest)
    if str(reply.status) != status:
        raise Mismatch(f"{step.where}: status {reply.status}, wanted {status}: {reply}")
    check_headers(step, reply, rest[:cut])
    text = fill("\n".join(rest[cut + 1:]), values, step.where)
    if text:
        try:
            found = reply.json()
        except ValueError:
            raise Mismatch(f"{step.where}: the body is not JSON: {reply}") from None
        worse = differs(found, json.loads(text))
        if worse:
            raise Mismatch(f"{step.where}: {worse}; in {reply}")
    return 1 + cut + (text != "")


# The wire

class Wire:
    """One connection, opened when it is needed."""

    def __init__(self, host, port):
        self.address, self.socket, self.rest = (host, port), None, b""

    def close(self):
        if self.socket is not None:
            self.socket.close()
        self.socket, self.rest = None, b""

    def send(self, head, body):
        if self.socket is None:
            self.socket = socket.create_connection(self.address, timeout=WAIT_S)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(head)
        if body:
            self.socket.sendall(body)

    def more(self):
        piece = self.socket.recv(1 << 16)
        if not piece:
            raise Mismatch(f"the connection ended within an answer: {self.rest[:300]!r}")
        self.rest += piece

    def reply(self):
        while b"\r\n\r\n" not in self.rest:
            if len(self.rest) > HEAD_MAX:
                raise Mismatch("the answer's head does not end")
            self.more()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (h.partition(":") for h in lines)}
        if not line.startswith("HTTP/1.1 ") or "content-length" not in headers or \
           "transfer-encoding" in headers:
            raise Mismatch(f"an answer without a length: {line} {headers}")
        nbytes = int(headers["content-length"])
        while len(self.rest) < nbytes:
            self.more()
        body, self.rest = self.rest[:nbytes], self.rest[nbytes:]
        if headers.get("connection", "").lower() == "close":
            self.close()
        elif self.rest:
            raise Mismatch(f"bytes behind the answer: {self.rest[:300]!r}")
        return Reply(int(line.split()[1]), headers, body)


def replay(path, host, port, values=None, hooks=None):
    """All steps of a file. Returns how many things were looked at, and the answers in their order.
    @values  what ${name} stands for; what hooks return is added to it"""
    values = {"host": f"{host}:{port}"} if values is None else values
    values.setdefault("host", f"{host}:{port}")
    wire, replies, n = Wire(host, port), [], 0
    try:
        for step in parse(path):
            if step.words == ["reconnect"]:
                wire.close()
            elif step.words is not None:
                values.update((hooks or {})[step.words[0]](*step.words[1:]) or {})
            else:
                wire.send(*step.request_bytes(values))
                try:
                    replies.append(wire.reply())
                except (OSError, Mismatch) as e:
                    raise Mismatch(f"{step.where}: no answer: {e}") from e
                n += check(step, replies[-1], values)
    finally:
        wire.close()
    return n, replies


def main():
    path, host, port, *pairs = sys.argv[1:]
    n, _ = replay(path, host, int(port), dict(p.split("=", 1) for p in pairs))
    print(f"ok: {n} checks")


if __name__ == "__main__":
    main()
