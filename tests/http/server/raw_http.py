"""Malformed framing, byte by byte: the expected reply to each request, and whether its connection may be
kept. A kept connection must still be in sync: a valid request follows on it.

Then hostile heads of all kinds, put together by chance from a seed: each request has one complete reply,
errors are JSON of the native form, and a connection that ends without a reply has ended by an error.

Usage: raw_http.py HOST PORT [CERTIFICATE [SEED N]]
  CERTIFICATE  ask over TLS and trust this one; "-": not
  SEED N       only N hostile heads, from this seed
"""

import concurrent.futures
import json
import random
import re
import select
import socket
import ssl
import sys
import time

WAIT_S = 60
HOST = b"Host: localhost\r\n"
TEXT = b'{"prompt":"a"}'
GOOD = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
HOSTILE_N = 400
OPEN, CLOSED = "open", "closed"


def get(headers=b"", target=b"/version", method=b"GET", version=b"HTTP/1.1", host=HOST):
    return method + b" " + target + b" " + version + b"\r\n" + host + headers + b"\r\n"


def post(headers, body, target=b"/tokenize", host=HOST):
    return b"POST " + target + b" HTTP/1.1\r\n" + host + headers + b"\r\n" + body


def chunks(*pieces, end=b"0\r\n\r\n"):
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + end


CHUNKED = b"Transfer-Encoding: chunked\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(TEXT)

# name, bytes, statuses of the answers in order, what becomes of the connection
ROWS = [
    ("a plain GET", get(), [200], OPEN),
    ("bare LF line ends", GOOD.replace(b"\r\n", b"\n"), [200], OPEN),
    ("blank lines first", b"\r\n\r\n" + GOOD, [200], OPEN),
    ("no Host", get(host=b""), [400], CLOSED),
    ("two Hosts", get(b"Host: y\r\n"), [400], CLOSED),
    ("two Hosts, HTTP/1.0", get(b"Host: localhost\r\n", version=b"HTTP/1.0"), [400], CLOSED),
    ("two Origins", get(b"Origin: http://localhost\r\nOrigin: http://evil.example\r\n"), [400], CLOSED),
    ("two Sec-Fetch-Sites", get(b"Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site\r\n"), [400], CLOSED),
    ("HTTP/1.0 needs no Host", get(version=b"HTTP/1.0", host=b""), [200], CLOSED),
    ("HTTP/1.0 and chunked", get(CHUNKED, b"/tokenize", b"POST", b"HTTP/1.0") + chunks(TEXT), [400], CLOSED),
    ("HTTP/1.2", get(version=b"HTTP/1.2"), [200], OPEN),
    ("HTTP/9.9", get(version=b"HTTP/9.9"), [505], CLOSED),
    ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [505], CLOSED),
    ("HTTP/0.9", b"GET /version\r\n\r\n", [400], CLOSED),
    ("unknown method", get(method=b"FOO!@"), [405], OPEN),
    ("wrong method", get(method=b"PUT"), [405], OPEN),
    ("unknown path", get(target=b"/nothing"), [404], OPEN),
    ("absolute form", get(target=b"http://localhost/version"), [200], OPEN),
    ("absolute form, another host", get(target=b"http://evil.example/version"), [421], OPEN),
    ("another Host", get(host=b"Host: evil.example\r\n"), [421], OPEN),
    ("another Host, a body", post(LENGTH, TEXT, host=b"Host: evil.example\r\n"), [421], OPEN),
    ("asterisk form", get(target=b"*", method=b"OPTIONS"), [404], OPEN),
    ("escaped path", get(target=b"/%76ersion"), [200], OPEN),
    ("escaped NUL in the path", get(target=b"/version%00x"), [400], CLOSED),
    ("broken escape in the path", get(target=b"/version%zz"), [400], CLOSED),
    ("control byte in the path", get(target=b"/ver\x01sion"), [400], CLOSED),
    ("too many query members", get(target=b"/version?" + b"a&" * 200), [400], CLOSED),
    ("64 query members", get(target=b"/version?" + b"a&" * 63), [200], OPEN),
    ("250 query members", get(target=b"/version?" + b"a&" * 250), [400], CLOSED),
    ("2000 query members", get(target=b"/version?" + b"a=b&" * 2000), [400], CLOSED),
    ("900 cookies", get(b"Cookie: " + b"a=b;" * 900 + b"\r\n"), [431], CLOSED),
    ("100 cookies", get(b"Cookie: " + b"a=b;" * 100 + b"\r\n"), [200], OPEN),
    ("target over the pool", get(target=b"/" + b"a" * 40000), [414], CLOSED),
    ("header over the pool", get(b"A: " + b"a" * 40000 + b"\r\n"), [431], CLOSED),
    ("1000 headers", get(b"".join(b"A%d: b\r\n" % i for i in range(1000))), [431], CLOSED),
    ("100 headers", get(b"".join(b"A%d: b\r\n" % i for i in range(100))), [200], OPEN),
    ("blank before the colon", get(b"A : b\r\n"), [400], CLOSED),
    ("control bytes in a name", get(b"\x01\x02: b\r\n"), [400], CLOSED),
    ("bare CR in a value", get(b"A: b\rX: y\r\n"), [400], CLOSED),
    ("header without colon", get(b"foobar\r\n"), [400], CLOSED),
    ("folded header", get(b"A: b\r\n c\r\n"), [400], CLOSED),
    ("folded length", post(b"Content-Length:\r\n 14\r\n", TEXT), [400], CLOSED),
    ("folded chunked", post(b"Transfer-Encoding:\r\n\tchunked\r\n", chunks(TEXT) + GOOD), [400], CLOSED),
    ("empty value", get(b"A:\r\nB: \t\r\n"), [200], OPEN),
    ("NUL in a value", get(b"A: b\0c\r\nB: c\r\n"), [400], CLOSED),
    ("NUL in the last value", get(b"A: b\0c\r\n"), [400], CLOSED),
    ("NUL in a name", get(b"A\0b: c\r\n"), [400], CLOSED),
    ("NUL in the path", get(target=b"/version\0x"), [400], CLOSED),
    ("colon first", get(b": x\r\nContent-Length: 5\r\n"), [400], CLOSED),
    ("colon first and last", get(b": x\r\n"), [400], CLOSED),
    ("a sound POST", post(LENGTH, TEXT), [200], OPEN),
    ("a sound chunked POST", post(CHUNKED, chunks(TEXT[:5], TEXT[5:])), [200], OPEN),
    ("chunked and a length", post(CHUNKED + LENGTH, chunks(TEXT) + GOOD), [400], CLOSED),
    ("gzip, chunked", post(b"Transfer-Encoding: gzip, chunked\r\n", chunks(TEXT) + GOOD), [400], CLOSED),
    ("xchunked", post(b"Transfer-Encoding: xchunked\r\n", chunks(TEXT) + GOOD), [400], CLOSED),
    ("identity and a length", post(b"Transfer-Encoding: identity\r\n" + LENGTH, TEXT), [400], CLOSED),
    ("two Transfer-Encodings", post(b"Transfer-Encoding: identity\r\n" + CHUNKED, chunks(TEXT)), [400], CLOSED),
    ("two lengths", post(b"Content-Length: 3\r\n" + LENGTH, TEXT + GOOD), [400], CLOSED),
    ("one length twice", post(LENGTH + LENGTH, TEXT + GOOD), [400], CLOSED),
    ("length 2^63", post(b"Content-Length: 9223372036854775808\r\n", TEXT), [413], CLOSED),
    ("length 2^64 - 1", post(b"Content-Length: 18446744073709551615\r\n", TEXT), [413], CLOSED),
    ("length 2^64", post(b"Content-Length: 18446744073709551616\r\n", TEXT), [413], CLOSED),
    ("length 10^22", post(b"Content-Length: 1%s\r\n" % (b"0" * 22), TEXT), [413], CLOSED),
    ("a list of lengths", post(b"Content-Length: 14, 14\r\n", TEXT), [400], CLOSED),
    ("length -1", post(b"Content-Length: -1\r\n", TEXT), [400], CLOSED),
    ("length +14", post(b"Content-Length: +14\r\n", TEXT), [400], CLOSED),
    ("length 0xe", post(b"Content-Length: 0xe\r\n", TEXT), [400], CLOSED),
    ("length empty", post(b"Content-Length: \r\n", TEXT), [400], CLOSED),
    ("length over the route's limit", post(b"Content-Length: 1000000000000\r\n", TEXT), [413], CLOSED),
    ("chunk size 2^64", post(CHUNKED, b"10000000000000000\r\n" + TEXT), [413], CLOSED),
    ("chunk size -5", post(CHUNKED, b"-5\r\nhello\r\n0\r\n\r\n"), [400], CLOSED),
    ("chunk size no number", post(CHUNKED, b"zz\r\nhello\r\n"), [400], CLOSED),
    ("chunk without its end", post(CHUNKED, b"5\r\nhelloXX0\r\n\r\n"), [400], CLOSED),
    ("chunks with bare LF", post(CHUNKED, chunks(TEXT).replace(b"\r\n", b"\n")), [400], CLOSED),
    ("two chunked POSTs at once", 2 * post(CHUNKED, chunks(TEXT)), [200, 200], CLOSED),
    ("chunk extension", post(CHUNKED, b"e;" + b"a" * 3000 + b"\r\n" + TEXT + b"\r\n0\r\n\r\n"), [200], OPEN),
    ("chunk extension over the pool", post(CHUNKED, b"e;" + b"a" * 65536 + b"\r\n" + TEXT + b"\r\n0\r\n\r\n"),
     [408], CLOSED),
    ("trailer", post(CHUNKED, chunks(TEXT, end=b"0\r\nX: y\r\n\r\n")), [200], OPEN),
    ("trailer over the pool", post(CHUNKED, chunks(TEXT, end=b"0\r\nX: " + b"y" * 65536 + b"\r\n\r\n")),
     [431], CLOSED),
    ("a line without a blank is no request", b"garbage\r\n\r\n", [], CLOSED),
    ("a line that begins with a blank neither", b" " + GOOD, [], CLOSED),
    ("target of 15,000 bytes", get(target=b"/" + b"a" * 15000), [404], OPEN),
    ("target of 16,000 bytes", get(target=b"/" + b"a" * 16000), [404], OPEN),
    ("target of 16,300 bytes", get(target=b"/" + b"a" * 16300), [431], CLOSED),
    ("bytes behind the body", post(LENGTH, TEXT + b"more garbage\r\n\r\n"), [200, 400], CLOSED),
    ("three GETs in one piece", GOOD * 3, [200, 200, 200], OPEN),
    ("POST and GET in one piece", post(LENGTH, TEXT) + GOOD, [200, 200], OPEN),
    ("GET with a body", get(LENGTH) + TEXT + GOOD, [200, 200], OPEN),
    ("refused POST and GET in one piece", post(LENGTH, TEXT, b"/nothing") + GOOD, [404, 200], OPEN),
    ("Expect: 100-continue", post(b"Expect: 100-continue\r\n" + LENGTH, TEXT), [100, 200], OPEN),
    ("Expect and a refusal", post(b"Expect: 100-continue\r\n" + LENGTH, b"", b"/nothing"), [404], CLOSED),
    ("Expect, no body, and the next", get(b"Expect: 100-continue\r\n") + GOOD, [200, 200], OPEN),
    ("Expect, length 0, and the next", post(b"Expect: 100-continue\r\nContent-Length: 0\r\n", b"") + GOOD,
     [400, 200], OPEN),
    ("Expect, a refusal, and the next", get(b"Expect: 100-continue\r\n", b"/nothing") + GOOD, [404, 200], OPEN),
    ("Expect: something else", post(b"Expect: foo\r\n" + LENGTH, TEXT), [417], CLOSED),
    ("big body to no route", post(b"Content-Length: 5000000\r\n", b"x" * 5000000, b"/nothing"), [404], CLOSED),
    ("small body to no route", post(b"Content-Length: 5000\r\n", b"x" * 5000, b"/nothing"), [404], OPEN),
    ("header that never ends", b"GET /version HTTP/1.1\r\nHo", [408], CLOSED),
    ("body that never ends", post(b"Content-Length: 50\r\n", TEXT), [408], CLOSED),
    ("chunks that never end", post(CHUNKED, b"e\r\n" + TEXT), [408], CLOSED),
]

# The client says FIN right behind these: it gave up, and gets no answer.
# Bodies that another server may read otherwise, and sound ones; each at once and byte by byte.
LINES = [
    ("a sound body", chunks(TEXT[:5], TEXT[5:]), 200),
    ("a sound body with a trailer", chunks(TEXT, end=b"0\r\nX: y\r\nZ: \r\n\r\n"), 200),
    ("a sound body with extensions", b"5;a=b\r\n%s\r\n9;c\r\n%s\r\n0;d\r\n\r\n" % (TEXT[:5], TEXT[5:]), 200),
    ("LF in a chunk", chunks(b'{"prompt":\n"a"\r\n}'), 200),
    ("LF after a size", chunks(TEXT).replace(b"\r\n", b"\n", 1), 400),
    ("LF after an extension", b"e;a\n%s\r\n0\r\n\r\n" % TEXT, 400),
    ("LF after a chunk", b"e\r\n%s\n0\r\n\r\n" % TEXT, 400),
    ("LF after the last size", b"e\r\n%s\r\n0\n\r\n" % TEXT, 400),
    ("LF at the end", b"e\r\n%s\r\n0\r\n\n" % TEXT, 400),
    ("LF after a trailer", b"e\r\n%s\r\n0\r\nX: y\n\r\n" % TEXT, 400),
    ("CR after an extension", b"e;a\rb\r\n%s\r\n0\r\n\r\n" % TEXT, 400),
    ("CR after a chunk", b"e\r\n%s\r0\r\n\r\n" % TEXT, 400),
]

HALF_CLOSED = [
    ("half-closed body", post(b"Content-Length: 50\r\n", TEXT)),
    ("half-closed chunk", post(CHUNKED, b"e\r\n" + TEXT[:3])),
    ("half-closed xchunked", post(b"Transfer-Encoding: xchunked\r\nContent-Length: 14\r\n", b"")[:-2]),
    ("half-closed header", b"GET /version HTTP/1.1\r\nHo"),
    ("nothing at all", b""),
]


class Peer:
    tls = None  # an ssl.SSLContext

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if Peer.tls is not None:
            self.socket = Peer.tls.wrap_socket(self.socket, server_hostname=address[0])
        self.seen = b""

    def more(self):
        data = self.socket.recv(65536)
        self.seen += data
        return len(data) > 0

    def send(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            pass  # refused before it was all sent: what it says is read below

    def answer(self):
        """The next answer: its status, headers and body."""
        while b"\r\n\r\n" not in self.seen:
            if not self.more():
                raise AssertionError(f"closed after {self.seen!r}")
        head, self.seen = self.seen.split(b"\r\n\r\n", 1)
        n = re.search(rb"(?im)^content-length: *(\d+)\r?$", head)
        n = int(n[1]) if n else 0
        while len(self.seen) < n:
            if not self.more():
                raise AssertionError(f"closed within the body of {head!r}")
        body, self.seen = self.seen[:n], self.seen[n:]
        return int(head.split(b" ", 2)[1]), head, body

    def all(self):
        """Everything up to the end of the connection, which must come."""
        try:
            while self.more():
                pass
        except ConnectionResetError:
            pass
        return self.seen


def check_error(status, head, body):
    """Our own refusals explain themselves."""
    allow = re.search(rb"(?im)^allow: *([A-Z, ]+)\r?$", head)
    assert (allow is not None) == (status == 405), head
    if status < 400:
        return
    error = json.loads(body)["error"]
    assert error["message"] and "code" in error and "param" in error, body
    assert re.search(rb"(?im)^x-request-id: [A-Za-z0-9._-]+\r?$", head), head


def answers(said, heads=()):
    """Everything that came on a connection, as (status, head, body): nothing of it is left over.
    heads: which ones answer HEAD, and have no body."""
    found = []
    while said:
        head, end, said = said.partition(b"\r\n\r\n")
        assert end and re.match(rb"HTTP/1\.1 \d{3} [^\r\n]*\r\n", head + end), (found, head)
        status = int(head.split(b" ", 2)[1])
        lengths = re.findall(rb"(?im)^content-length: *(\d+)\r?$", head)
        if status == 100:
            assert not lengths, head
            found.append((status, head, b""))
            continue
        assert len(lengths) == 1, head
        n_final = sum(1 for one in found if one[0] != 100)
        closes = re.search(rb"(?im)^connection: *close\r?$", head)
        # Of a head that was refused unread the method is not known: it may have a body that ends all.
        n = 0 if n_final in heads and not (status >= 400 and closes and said) else int(lengths[0])
        assert len(said) >= n, (head, said)
        body, said = said[:n], said[n:]
        found.append((status, head, body))
        assert not (closes and said), (head, said)
    return found


def run_row(address, data, wanted, end):
    peer = Peer(address)
    with peer.socket:
        peer.send(data)
        if end == OPEN:
            found = []
            for _ in wanted:
                status, head, body = peer.answer()
                found.append(status)
                check_error(status, head, body)
            assert found == wanted, found
            peer.send(GOOD)
            status, _, body = peer.answer()
            assert status == 200 and b'"version"' in body, (status, body)
            assert peer.seen == b"", peer.seen
            return
        said = answers(peer.all())
        found = [status for status, _, _ in said]
        assert found == wanted, said
        for status, head, body in said:
            check_error(status, head, body)
        if found:
            assert re.search(rb"(?im)^connection: *close\r?$", said[-1][1]), said[-1][1]


def run_lines(address, body, wanted, step):
    """A refusal ends the connection; so does nothing else."""
    peer = Peer(address)
    with peer.socket:
        data = post(CHUNKED, body)
        for i in range(0, len(data), step):
            peer.send(data[i:i + step])
            if step < len(data):
                time.sleep(0.002)
        if wanted == 200:
            status, head, said = peer.answer()
            assert status == 200, (status, said)
            peer.send(GOOD)
            assert peer.answer()[0] == 200
            return
        found = answers(peer.all())
        assert [status for status, _, _ in found] == [wanted], found
        check_error(*found[0])


def run_half_closed(address, data):
    peer = Peer(address)
    with peer.socket:
        peer.send(data)
        peer.socket.shutdown(socket.SHUT_WR)
        said = peer.all()
        assert said == b"", said


def run_drip(address, head, drops, wanted):
    """A byte now and then does not extend a deadline."""
    peer = Peer(address)
    began = time.monotonic()
    with peer.socket:
        peer.send(head)
        for byte in drops:
            peer.send(bytes([byte]))
            if select.select([peer.socket], [], [], 0.02)[0]:
                break
        said = peer.all()
        assert [int(s) for s in re.findall(rb"HTTP/1\.1 (\d{3}) ", said)] == wanted, said
    assert time.monotonic() - began < WAIT_S


def run_idle(address, asked):
    """A connection that says nothing is closed, before its first request and after one."""
    peer = Peer(address)
    with peer.socket:
        if asked:
            peer.send(GOOD)
            assert peer.answer()[0] == 200
        assert peer.all() == b"", peer.seen


def run_head(address):
    """HEAD has the length of what GET would say, and no body."""
    peer = Peer(address)
    with peer.socket:
        peer.send(GOOD)
        _, _, body = peer.answer()
        peer.send(get(method=b"HEAD") + get(b"Connection: close\r\n", b"/nothing"))
        said = peer.all()
        assert re.search(rb"(?im)^content-length: *%d\r$" % len(body), said), said
        assert said.split(b"\r\n\r\n", 1)[1].startswith(b"HTTP/1.1 404 "), said


def run_late_fin(address, data):
    """A whole request and FIN: answered if it was seen first, else given up; never half."""
    peer = Peer(address)
    with peer.socket:
        peer.send(data)
        peer.socket.shutdown(socket.SHUT_WR)
        said = peer.all()
        n = re.search(rb"(?im)^content-length: *(\d+)\r?$", said)
        assert said == b"" or len(said.split(b"\r\n\r\n", 1)[1]) == int(n[1]), said


def hostile_head(rng):
    """One request of odd parts, each of them rare enough that many requests are sound."""
    def pick(common, *odd):
        return common if rng.random() < 0.7 else rng.choice(odd)

    method = rng.choice([b"GET", b"GET", b"HEAD", b"POST", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"FOO"])
    body = TEXT if method in (b"POST", b"PUT") else b""
    target = pick(rng.choice([b"/version", b"/tokenize", b"/nothing", b"/v1/completions"]),
                  *(b"/" + b"a" * n for n in (100, 4000, 8000, 15900, 16300, 17000, 40000)), b"*", b"/%zz")
    target += b"?" * rng.randint(0, 1) + pick(b"", b"a&", b"a=b&") * rng.choice([1, 63, 64, 65, 250, 900, 2000])
    length = pick(b"%d" % len(body), b"5, 5", b"+5", b"-1", b"0x10", b"", b"1" + b"0" * 22, b"18446744073709551616",
                  b"9223372036854775808", b"1e3", b"5;5", None)
    coding = pick(None, b"chunked", b"gzip, chunked", b"identity", b"chunked, chunked", b"")
    lines = [b"Host: localhost"] * pick(1, 0, 2)
    lines += [b"A%d: %s" % (i, b"b" * pick(1, 40, 300)) for i in range(pick(1, 10, 100, 300, 1000))]
    lines += [b"Cookie: " + b"a=b;" * pick(1, 100, 400, 900, 4000)] if rng.random() < 0.3 else []
    lines += [b"Content-Length: " + length] * pick(1, 2) if length is not None and (body or rng.random() < 0.3) else []
    lines += [b"Transfer-Encoding: " + coding] if coding is not None else []
    lines += [b"Expect: " + pick(b"100-continue", b"foo", b"")] if rng.random() < 0.3 else []
    lines += [b"Connection: " + pick(b"keep-alive", b"close", b"Upgrade", b"close, keep-alive")] if rng.random() < 0.3 else []
    lines += [b"Upgrade: " + pick(b"h2c", b"websocket")] if rng.random() < 0.1 else []
    lines += [rng.choice([b"no colon", b": none", b"A\0: b", b"A: b\0c", b" folded", b"A : b", b"X-Request-Id: mine"])
              ] if rng.random() < 0.15 else []
    rng.shuffle(lines)
    if coding is not None:
        body = pick(chunks(body or TEXT), b"zz\r\n" + TEXT, b"e\r\n" + TEXT + b"XX", b"f" * 20 + b"\r\n" + TEXT,
                    chunks(TEXT, end=b"0\r\nno colon\r\n\r\n"), chunks(TEXT, end=b"0\r\nT: " + b"y" * 20000 + b"\r\n\r\n"))
    version = pick(b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"")
    return method, b"%s %s %s\r\n%s\r\n" % (method, target, version, b"".join(line + b"\r\n" for line in lines)) + body


def run_hostile(address, seed):
    """However they are cut: one whole answer to each, in order; one that closes may be the last."""
    rng = random.Random(seed)
    requests = [hostile_head(rng) for _ in range(rng.choice([1, 1, 2, 3]))]
    requests.append((b"GET", get(b"Connection: close\r\n")))
    data = b"".join(request for _, request in requests)
    cuts = sorted(rng.randrange(len(data)) for _ in range(rng.choice([0, 0, 1, 3])))
    peer = Peer(address)
    with peer.socket:
        for begin, end in zip([0] + cuts, cuts + [len(data)]):
            peer.send(data[begin:end])
            # OpenSSL reads nothing any more once it has failed to write: what came is read first.
            if end < len(data) and select.select([peer.socket], [], [], 0.003)[0] and not peer.more():
                break
        said = answers(peer.all(), [i for i, (method, _) in enumerate(requests) if method == b"HEAD"])
    final = [answer for answer in said if answer[0] != 100]
    assert 1 <= len(final) <= len(requests), (data[:300], said)
    for status, head, body in final:
        if body:
            check_error(status, head, body)
    assert re.search(rb"(?im)^connection: *close\r?$", final[-1][1]), (data[:300], final[-1])


def hostile_checks(seed, n):
    return [(f"hostile head {i}", run_hostile, (i,)) for i in range(seed, seed + n)]


def connections(address):
    peer = Peer(address)
    with peer.socket:
        peer.send(get(target=b"/v1/status"))
        status, _, body = peer.answer()
        assert status == 200, body
        return json.loads(body)["http"]["connections"]


def row_checks():
    checks = [(row[0], run_row, row[1:]) for row in ROWS]
    checks += [(f"{name}, {step} at once", run_lines, (body, wanted, step)) for name, body, wanted in LINES for step in (1, 9, 9999)]
    checks += [
        ("a header's byte now and then", run_drip, (b"GET /version HTTP/1.1\r\nHost: localhost\r\nA: ", b"a" * 10000, [408])),
        ("a body's byte now and then", run_drip, (post(b"Content-Length: 10000\r\n", b""), b"a" * 10000, [408])),
        ("a chunk's byte now and then", run_drip, (post(CHUNKED, b"2000\r\n"), b"a" * 10000, [408])),
        ("silence", run_idle, (False,)),
        ("silence after a request", run_idle, (True,)),
        ("HEAD", run_head, ()),
    ]
    if Peer.tls is not None:
        return checks
    checks += [(name, run_half_closed, (data,)) for name, data in HALF_CLOSED]
    return checks + [
        ("FIN right behind a GET", run_late_fin, (GOOD,)),
        ("FIN right behind a POST", run_late_fin, (post(LENGTH, TEXT),)),
    ]


def main():
    address = (sys.argv[1], int(sys.argv[2]))
    failed = []
    if len(sys.argv) > 3 and sys.argv[3] != "-":
        Peer.tls = ssl.create_default_context(cafile=sys.argv[3])
    if len(sys.argv) > 4:
        checks = hostile_checks(int(sys.argv[4]), int(sys.argv[5]))
    else:
        checks = row_checks() + hostile_checks(1, HOSTILE_N)

    def run(row):
        name, check, args = row
        try:
            check(address, *args)
        except (AssertionError, OSError, ValueError, KeyError) as e:
            failed.append(f"{name}: {type(e).__name__}: {e}")

    with concurrent.futures.ThreadPoolExecutor(16) as pool:  # many of them wait for a deadline
        list(pool.map(run, checks))
    end = time.monotonic() + WAIT_S
    while connections(address) > 1:
        time.sleep(0.02)
        assert time.monotonic() < end, "connections are left over"
    assert not failed, "\n" + "\n".join(failed)
    print(f"{len(checks)} shapes of requests")


if __name__ == "__main__":
    main()
