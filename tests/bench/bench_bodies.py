"""How fast long bodies come in and go out, as ratios to plain sockets, in one run.

Usage: bench_bodies.py BATON [MIB [ROUNDS]]      (default 1024 MiB, 7 rounds)

In: an update by the body of POST /v1/update_weights, against one TCP connection whose receiver reads a MiB
at a time into memory that was touched before; the sender is the same process with the same bytes. Out: the
download of a tensor of a quarter of MIB (one body) and of the file of all (a stream), by HTTP, by TLS, and by
TLS from a peer that does nothing but send; the client is the same. Everything is taken by turns, the first
round left out; the medians of the ratios, round by round, are printed. Every reply is checked for its
length. Needs Python, openssl, and memory for six times MIB."""

import http.client
import json
import mmap
import multiprocessing
import os
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from update_world import Memory, Server

N_TENSORS = 4
PIECE = 1 << 20
WAIT_S = 120
TYPE = "application/vnd.safetensors"


def median_of(of, to):
    return statistics.median(a / b for a, b in zip(of, to))


def touched(nbytes):
    memory = mmap.mmap(-1, nbytes)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, nbytes, 4096):
        memory[at] = 1
    return memory


def accepting(work, *args):
    """A child process that calls work(connection, *args) for each connection; its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            peer, _ = listener.accept()
            with peer:
                work(peer, *args)

    child = multiprocessing.get_context("fork").Process(target=serve, daemon=True)
    child.start()
    return child, listener.getsockname()[1]


def receive(peer, memory):
    at, view = 0, memoryview(memory)
    while at < len(view):
        at += peer.recv_into(view[at : at + PIECE])
    peer.sendall(b"1")


def send(peer, memory, context):
    with context.wrap_socket(peer, server_side=True) as secret:
        secret.recv(PIECE)
        with memoryview(memory) as view:
            for at in range(0, len(view), PIECE):
                secret.sendall(view[at : at + PIECE])


def connect(port):
    s = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def raw_in(port, memory):
    with connect(port) as s:
        began = time.perf_counter()
        s.sendall(memory)
        assert s.recv(1) == b"1"
        return time.perf_counter() - began


def update(port, head, memory):
    """Seconds of the call, and of what the server calls receiving."""
    with connect(port) as s:
        start = (f"POST /v1/update_weights HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TYPE}\r\n"
                 f"Content-Length: {len(head) + len(memory)}\r\n\r\n").encode()
        began = time.perf_counter()
        s.sendall(start + head)
        s.sendall(memory)
        reply = http.client.HTTPResponse(s)
        reply.begin()
        found = json.loads(reply.read())
        took = time.perf_counter() - began
    assert reply.status == 200 and found["phase"] == "committed", found
    return took, found["timing"]["receive_ms"] / 1e3


def bodies_in(binary, named, memory, rounds):
    sizes = [2 * shape[0] for _, shape in named]
    head = json.dumps({name: {"dtype": "BF16", "shape": list(shape), "data_offsets": [sum(sizes[:i]), sum(sizes[: i + 1])]}
                       for i, (name, shape) in enumerate(named)}).encode()
    head = struct.pack("<Q", len(head)) + head
    data = memoryview(memory.bytes)[: sum(sizes)]
    child, port = accepting(receive, touched(len(data)))
    raw, call, inside = [], [], []
    with Server(binary, named) as server:
        for _ in range(3 + rounds):  # the first two updates go to fresh memory
            raw.append(raw_in(port, data))
            took, received = update(server.port, head, data)
            call.append(took)
            inside.append(received)
    child.terminate()
    raw, call, inside = raw[3:], call[3:], inside[3:]
    print(f"in: {len(data) / statistics.median(raw) / 1e9:.2f} GB/s raw; an update's reception is {median_of(raw, inside):.2f} "
          f"of it, its whole call {median_of(raw, call):.2f}")


def download(port, path, nbytes, context=None):
    """Seconds; nbytes: of a body without HTTP, or None."""
    with connect(port) as s:
        if context is not None:
            s = context.wrap_socket(s, server_hostname="localhost")
        buffer, got = bytearray(PIECE), 0
        began = time.perf_counter()
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        while n := s.recv_into(buffer):
            if got == 0 and path != "raw":
                assert buffer.startswith(b"HTTP/1.1 200 "), bytes(buffer[:200])
            got += n
        took = time.perf_counter() - began
        s.close()
    assert got >= nbytes, f"{path}: {got} bytes"
    return took


def bodies_out(binary, named, memory, rounds, folder):
    pem = [os.path.join(folder, n) for n in ("c.pem", "k.pem")]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-out", pem[0], "-keyout", pem[1], "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
                   check=True, capture_output=True)
    here = ssl.create_default_context(cafile=pem[0])
    there = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    there.load_cert_chain(*pem)
    weights = os.path.join(folder, "w.safetensors")
    each = 2 * named[0][1][0]
    with open(weights, "wb") as f:
        head = json.dumps({name: {"dtype": "BF16", "shape": list(shape), "data_offsets": [i * each, (i + 1) * each]}
                           for i, (name, shape) in enumerate(named)}).encode()
        f.write(struct.pack("<Q", len(head)) + head)
        f.write(memoryview(memory.bytes)[: each * len(named)])
    child, raw_port = accepting(send, memoryview(memory.bytes)[:each], there)
    with Server(binary, named, "--weights", weights) as plain, \
            Server(binary, named, "--weights", weights, "--tls-cert", pem[0], "--tls-key", pem[1]) as secret:
        leases = {}
        for s, kind in ((plain, http.client.HTTPConnection), (secret, lambda *a: http.client.HTTPSConnection(*a, context=here))):
            c = kind("localhost", s.port)
            c.request("POST", "/v1/weights/leases", b"{}", {"Content-Type": "application/json"})
            leases[s.port] = json.loads(c.getresponse().read())["lease_id"]
        for what, path, nbytes in (("a tensor", f"/v1/weights/{named[0][0]}", each),
                                   ("the file", "/v1/weights/file?lease_id=%s", each * len(named))):
            found = {"plain": [], "TLS": [], "raw TLS": []}
            for _ in range(1 + rounds):
                for name, port, context in (("plain", plain.port, None), ("TLS", secret.port, here)):
                    found[name].append(download(port, path.replace("%s", leases[port]), nbytes, context) / nbytes)
                found["raw TLS"].append(download(raw_port, "raw", each, here) / each)
            found = {k: v[1:] for k, v in found.items()}
            rates = ", ".join(f"{k} {1 / statistics.median(v) / 1e9:.2f}" for k, v in found.items())
            print(f"out, {what}: GB/s {rates}; TLS is {median_of(found['plain'], found['TLS']):.2f} of plain and "
                  f"{median_of(found['raw TLS'], found['TLS']):.2f} of raw TLS")
    child.terminate()


def main():
    mib = int(sys.argv[2]) if len(sys.argv) > 2 else 1024
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 7
    numel = (mib << 20) // N_TENSORS // 2
    named = [(f"layers.{i}.weight", (numel,)) for i in range(N_TENSORS)]
    memory = Memory(mib << 20)
    bodies_in(sys.argv[1], named, memory, rounds)
    with tempfile.TemporaryDirectory() as folder:
        bodies_out(sys.argv[1], named, memory, rounds, folder)


if __name__ == "__main__":
    main()
