"""Near the limit of connections: ordinary clients lose no request, and idle connections do not prevent health
and control requests.

Usage: connection_limit.py HOST:PORT CERTIFICATE CHECK...   (CERTIFICATE "-": plain HTTP)
  keep_alive  60 clients that think between two requests, at a limit of 64
  half_head   one that has sent half of a head, and a crowd; needs --header-timeout 3000
  silent      600 connections that say nothing
  late        clients that send their first byte 50 ms after they have connected, with few places left
  begun       400 connections that send one byte
  bodies      150 control requests, and 150 refused ones, whose body does not come
"""

import http.client
import json
import random
import socket
import ssl
import sys
import threading
import time

WAIT_S = 60
SOON_S = 20  # on a busy machine; without a place it would wait for WAIT_S
N_CLIENTS, CLIENTS_S = 60, 2
HEADER_TIMEOUT_S = 3
ATTEMPTS = 5
BODY = json.dumps({"prompt": "a"})


class Server:
    def __init__(self, at, certificate):
        host, port = at.split(":")
        self.at = (host, int(port))
        self.tls = None if certificate == "-" else ssl.create_default_context(cafile=certificate)

    def raw(self):
        return socket.create_connection(self.at, timeout=WAIT_S)

    def connect(self):
        s = self.raw()
        return self.tls.wrap_socket(s, server_hostname=self.at[0]) if self.tls else s

    def client(self):
        if self.tls:
            return http.client.HTTPSConnection(*self.at, timeout=WAIT_S, context=self.tls)
        return http.client.HTTPConnection(*self.at, timeout=WAIT_S)

    def is_heard(self):
        for method, path in (("GET", "/health"), ("POST", "/v1/resume")):
            began = time.monotonic()
            c = self.client()
            c.request(method, path)
            status = c.getresponse().status
            c.close()
            took_s = time.monotonic() - began
            assert status == 200 and took_s < SOON_S, (path, status, took_s)


def keep_alive(server):
    lost, n_answers = [], []

    def work(seed):
        think, c = random.Random(seed), server.client()
        end = time.monotonic() + CLIENTS_S
        n = 0
        try:
            while time.monotonic() < end or n < 2:
                c.request("POST", "/tokenize", BODY, {"Content-Type": "application/json"})
                answer = c.getresponse()
                answer.read()
                assert answer.status == 200, answer.status
                n += 1
                time.sleep(think.uniform(0.02, 0.3))
        except Exception as e:  # pylint: disable=broad-except
            lost.append(repr(e))
        n_answers.append(n)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(N_CLIENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not lost, f"{len(lost)} of {N_CLIENTS} clients lost a request: {sorted(set(lost))}"


def half_head(server):
    crowd = []
    for _ in range(ATTEMPTS):
        half, began = server.connect(), time.monotonic()
        half.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Ty")
        crowd += [server.raw() for _ in range(200)]
        server.is_heard()
        half.sendall(b"pe: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY.encode()))
        sent_s, answer = time.monotonic() - began, half.recv(4096)
        half.close()
        if sent_s < 0.8 * HEADER_TIMEOUT_S:
            break  # else the machine was so slow that the timeout may have passed
    assert answer.startswith(b"HTTP/1.1 200 "), f"half of a head was not waited for: {answer}, {sent_s} s"
    half, began = server.connect(), time.monotonic()
    half.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Ty")
    crowd += [server.raw() for _ in range(200)]
    said = half.recv(4096)
    took_s = time.monotonic() - began
    assert said.startswith(b"HTTP/1.1 408 ") and took_s > 0.9 * HEADER_TIMEOUT_S, (said, took_s)
    half.close()
    for s in crowd:
        s.close()


def silent(server):
    crowd = [server.raw() for _ in range(600)]
    server.is_heard()
    for s in crowd:
        s.close()


def late(server):
    held = []
    for _ in range(61):
        held.append(server.connect())
        held[-1].sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                         b"Content-Length: 20\r\n\r\n{")
    time.sleep(0.2)
    for _ in range(10):
        s = server.raw()
        time.sleep(0.05)
        if server.tls:
            s = server.tls.wrap_socket(s, server_hostname=server.at[0])
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        said = s.recv(4096)
        assert said.startswith(b"HTTP/1.1 200 "), said
        s.close()
    for s in held:
        s.close()


def begun(server):
    crowd = []
    for _ in range(400):
        crowd.append(server.raw())
        crowd[-1].sendall(b"\x16" if server.tls else b"G")
    server.is_heard()
    said = crowd[0].recv(4096)
    assert said == b"" if server.tls else said.startswith(b"HTTP/1.1 408 "), said
    for s in crowd:
        s.close()


def bodies(server):
    for target, host in ((b"/health", b"localhost"), (b"/v1/pause", b"evil.example"), (b"/v1/pause", b"localhost")):
        held = []
        for _ in range(150):
            held.append(server.connect())
            held[-1].sendall(b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                             b"Content-Length: 20\r\n\r\n{" % (target, host))
        server.is_heard()
    said = held[0].recv(4096)
    assert said.startswith(b"HTTP/1.1 503 "), f"the oldest is not answered without its body: {said}"


def main():
    server = Server(sys.argv[1], sys.argv[2])
    for name in sys.argv[3:]:
        began = time.monotonic()
        {"keep_alive": keep_alive, "half_head": half_head, "silent": silent, "late": late, "begun": begun,
         "bodies": bodies}[name](server)
        print(f"{name}: {time.monotonic() - began:.1f} s")


main()
