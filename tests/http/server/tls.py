"""TLS at the level of records and sockets: bodies in odd pieces, replies in the middle of an upload, peers
that never finish a handshake or disconnect while they wait.

Usage: tls.py HOST PORT CERTIFICATE CHECKPOINT
The server runs with --header-timeout, --body-timeout and --body-stall-timeout of a second.
"""

import http.client
import io
import json
import random
import socket
import ssl
import struct
import sys
import time

WAIT_S = 60
N_TOKENS, N_CHOICES = 1000, 16  # seconds of work: a client leaves before it ends, on a busy machine too


class Wrong(AssertionError):
    pass


def must(true, what):
    must.n += 1
    if not true:
        raise Wrong(what)


must.n = 0


class Server:
    def __init__(self, host, port, certificate):
        self.at = host, int(port)
        self.context = ssl.create_default_context(cafile=certificate)

    def plain(self):
        return socket.create_connection(self.at, timeout=WAIT_S)

    def connect(self, context=None):
        return (context or self.context).wrap_socket(self.plain(), server_hostname=self.at[0])

    def ask(self, method, path, body=None):
        c = http.client.HTTPSConnection(*self.at, timeout=WAIT_S, context=self.context)
        c.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = c.getresponse()
        raw = answer.read()
        c.close()
        return answer.status, json.loads(raw) if raw else None


def answer_of(s):
    """One answer, to the end of the connection or of its body. Its status is 0 when none came."""
    raw = b""
    while True:
        head, end, body = raw.partition(b"\r\n\r\n")
        if end:
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if length and len(body) >= int(length[0].split(b":")[1]):
                break
        try:
            more = s.recv(65536)
        except (ssl.SSLError, ConnectionError):
            more = b""
        if not more:
            break
        raw += more
    status = int(raw.split()[1]) if raw.startswith(b"HTTP/1.1 ") else 0
    return status, raw.partition(b"\r\n\r\n")[2]


def ended(s):
    """The server says that it has ended, within TLS or by the socket alone; it does not say more."""
    try:
        return s.recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def post_head(path, length, kind="application/json"):
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {length}\r\n\r\n").encode()


def odd_pieces(server, checkpoint, rng):
    """The same update again and again, in records of one byte and of many: each is whole."""
    with open(checkpoint, "rb") as f:
        body = f.read()
    for i, largest in enumerate((1 << 10, 16383, 16384, 16385, 1 << 17, 1 << 20)):
        s = server.connect()
        s.sendall(post_head(f"/v1/update_weights?weight_version=odd-{i}", len(body),
                            "application/vnd.safetensors"))
        at = 0
        while at < len(body):
            n = rng.choice((1, rng.randint(1, largest), largest))
            s.sendall(body[at:at + n])
            at += n
        status, raw = answer_of(s)
        must(status == 200, f"pieces up to {largest}: {status} {raw[:300]!r}")
        must(json.loads(raw)["weight_version"] == f"odd-{i}", f"pieces up to {largest}: {raw!r}")
        s.sendall(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status, raw = answer_of(s)
        must(status == 200, f"a request after an update on one connection: {status}")
        must(json.loads(raw)["weights"]["weight_version"] == f"odd-{i}", raw[:300])
        s.close()


def two_in_one_record(server):
    s = server.connect()
    body = b'{"prompt": "a", "max_tokens": 3}'
    s.sendall((post_head("/v1/completions", len(body)) + body) * 2)
    for _ in range(2):
        status, raw = answer_of_exactly(s)
        must(status == 200, f"two requests in one record: {status} {raw!r}")
    s.close()


def answer_of_exactly(s):
    """As answer_of, but takes no byte of the next one."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = s.recv(1)
        if not byte:
            return 0, head
        head += byte
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    body = b""
    while len(body) < length:
        body += s.recv(length - len(body))
    return int(head.split()[1]), body


def late_bodies(server):
    """Answers past libmicrohttpd, in the middle of an upload, are encrypted as every other."""
    whole = server.connect()
    whole.sendall(post_head("/v1/completions", 1000) + b'{"prompt"')
    head = json.dumps({"nothing": {"dtype": "F32", "shape": [1 << 20], "data_offsets": [0, 4 << 20]}})
    streamed = server.connect()
    streamed.sendall(post_head("/v1/update_weights", 8 + len(head) + (4 << 20),
                               "application/vnd.safetensors") +
                     struct.pack("<Q", len(head)) + head.encode() + b"\0" * 1000)

    status, raw = answer_of(whole)
    must(status == 408, f"a body that does not come: {status} {raw!r}")
    must(json.loads(raw)["error"]["message"].startswith("the body did not come"), raw)
    status, raw = answer_of(streamed)
    must(status == 422, f"a tensor that is unknown, and a rest that does not come: {status} {raw!r}")
    must("nothing" in json.loads(raw)["error"]["message"], raw)
    for s in whole, streamed:
        must(ended(s), "a connection that was answered in mid-upload goes on")
        s.close()


def early_refusal(server):
    """Refused by its headers alone, while megabytes are under way: the answer arrives."""
    s = server.connect()
    s.settimeout(WAIT_S)
    try:
        s.sendall(post_head("/v1/completions", 1 << 30))
        for _ in range(64):
            s.sendall(b" " * (1 << 16))
    except (ssl.SSLError, ConnectionError, BrokenPipeError):
        pass
    status, raw = answer_of(s)
    must(status == 413, f"a body of 1 GiB: {status} {raw!r}")
    s.close()


def no_handshake(server):
    """Whoever opens a socket and says nothing, or half of it, is gone after the header's time."""
    hello = ssl.MemoryBIO()
    half = server.context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname=server.at[0])
    try:
        half.do_handshake()
    except ssl.SSLWantReadError:
        pass
    hello = hello.read()
    silent = server.connect()
    peers = []
    for what, data in (("nothing", b""), ("half a hello", hello[:len(hello) // 2]), ("a hello", hello),
                       ("plain HTTP", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                       ("noise", bytes(range(256)))):
        peers.append((what, server.plain()))
        peers[-1][1].sendall(data)
    for what, s in peers:
        got = b""
        try:
            while more := s.recv(65536):
                got += more
        except ConnectionError:
            pass
        if what == "plain HTTP":
            head, _, body = got.partition(b"\r\n\r\n")
            must(head.startswith(b"HTTP/1.1 400 ") and b"Connection: close" in head, got)
            must("this port speaks HTTPS" in json.loads(body)["error"]["message"], got)
        else:
            must(b"HTTP/1.1" not in got, f"{what} was answered: {got[:200]!r}")
        s.close()
    must(ended(silent), "a connection whose first header does not come goes on")
    silent.close()


def plain_bodies(server, checkpoint):
    """Plain HTTP is answered whole, also while its body is still under way."""
    with open(checkpoint, "rb") as f:
        body = f.read()
    for _ in range(20):
        s = server.plain()
        try:
            s.sendall(post_head("/v1/update_weights", len(body), "application/vnd.safetensors") + body)
        except ConnectionError:
            pass
        status, raw = answer_of(s)
        must(status == 400 and json.loads(raw)["error"]["code"] == "bad_request", raw)
        s.close()


def old_versions(server):
    context = ssl.create_default_context(cafile=CERTIFICATE)
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    try:
        server.connect(context).close()
    except (ssl.SSLError, ConnectionError):
        must(True, "")
    else:
        must(False, "TLS 1.1 was taken")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.create_default_context(cafile=CERTIFICATE)
        context.minimum_version = context.maximum_version = version
        s = server.connect(context)
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        must(answer_of(s)[0] == 200, f"{version} was not taken")
        s.close()


def wait_until(server, true, what):
    until = time.monotonic() + WAIT_S
    while not true(server.ask("GET", "/v1/status")[1]):
        must(time.monotonic() < until, what)
        time.sleep(0.01)


def gone_while_waiting(server):
    """Clients that end politely, end the socket only, or reset it: each frees what it waited for."""
    body = json.dumps({"prompt": "In the beginning", "max_tokens": N_TOKENS, "ignore_eos": True,
                       "n": N_CHOICES}).encode()

    def polite(s):
        s.setblocking(False)  # says that it ends, and does not wait to hear it
        s.unwrap()

    def shut(s):
        s.shutdown(socket.SHUT_RDWR)

    def reset(s):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    for leave in (polite, shut, reset):
        n_gone = server.ask("GET", "/v1/status")[1]["http"]["gone"]
        s = server.connect()
        s.settimeout(WAIT_S)
        s.sendall(post_head("/v1/completions", len(body)) + body)
        wait_until(server, lambda now: now["engine"]["running"] == N_CHOICES,
                   f"{leave.__name__}: the generation did not start")
        try:
            leave(s)
        except (ssl.SSLError, OSError):
            pass
        s.close()
        wait_until(server, lambda now, n=n_gone: now["http"]["gone"] > n,
                   f"{leave.__name__}: the client was not missed")
        wait_until(server, lambda now: now["engine"]["running"] == 0,
                   f"{leave.__name__}: the generation goes on without its client")


def stream(server):
    """A stream comes piece by piece, and ends."""
    body = json.dumps({"prompt": "In the beginning", "max_tokens": 200, "stream": True,
                       "temperature": 0, "ignore_eos": True}).encode()
    c = http.client.HTTPSConnection(*server.at, timeout=WAIT_S, context=server.context)
    c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = c.getresponse()
    raw = answer.read()
    events = [line for line in raw.split(b"\n") if line.startswith(b"data: ")]
    must(answer.status == 200 and events[-1] == b"data: [DONE]", raw[-300:])
    must(len(events) > 2, raw[:300])
    status, whole = server.ask("POST", "/v1/completions",
                               json.dumps(dict(json.loads(body), stream=False)).encode())
    text = "".join(json.loads(e[6:])["choices"][0]["text"] for e in events[:-1])
    must(status == 200 and text == whole["choices"][0]["text"], text)
    c.close()


def slow_readers(server, checkpoint):
    """Long answers, as one body and as a stream, whose client reads seldom and little: each byte is right."""
    right = tensors_of(checkpoint)
    name = max(right, key=lambda n: len(right[n]))
    lease = server.ask("POST", "/v1/weights/leases", b"{}")[1]["lease_id"]
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.create_default_context(cafile=CERTIFICATE)
        context.minimum_version = context.maximum_version = version
        must(slow_answer(server, context, "/v1/weights/" + name) == right[name], f"{name} by {version}")
        raw = slow_answer(server, context, "/v1/weights/file?lease_id=" + lease)
        must(tensors_of(io.BytesIO(raw)) == right, f"the file by {version}: {len(raw)} bytes")
    must(server.ask("DELETE", "/v1/weights/leases/" + lease)[0] == 200, lease)


def tensors_of(file):
    with open(file, "rb") if isinstance(file, str) else file as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    return {n: data[slice(*t["data_offsets"])] for n, t in head.items() if n != "__metadata__"}


def slow_answer(server, context, path):
    s = socket.socket()
    s.settimeout(WAIT_S)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # the server's buffer is then small, too
    s.connect(server.at)
    s = context.wrap_socket(s, server_hostname=server.at[0])
    s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    time.sleep(0.2)
    answer, got = http.client.HTTPResponse(s, method="GET"), b""
    answer.begin()
    must(answer.status == 200, f"{path}: {answer.status}")
    while more := answer.read1(30011):
        got += more
        time.sleep(0.001)
    s.close()
    return got


def main():
    global CERTIFICATE
    host, port, CERTIFICATE, checkpoint = sys.argv[1:]
    server = Server(host, port, CERTIFICATE)
    old_versions(server)
    odd_pieces(server, checkpoint, random.Random(8))
    two_in_one_record(server)
    stream(server)
    slow_readers(server, checkpoint)
    early_refusal(server)
    gone_while_waiting(server)
    late_bodies(server)
    plain_bodies(server, checkpoint)
    no_handshake(server)
    status = server.ask("GET", "/v1/status")
    must(status[0] == 200 and status[1]["live"], status)
    print(f"{must.n} checks")


main()
