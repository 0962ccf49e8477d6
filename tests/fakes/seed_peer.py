"""A double of a server that gives its weights to others: leases, and one safetensors file in ranges. What it does wrong,
`faults` says; how much it sent, and what it was asked, is counted.
"""

import hashlib
import http.server
import json
import re
import struct
import threading
import time

import numpy


def checksum(data):
    """As memory/checksum.h has it."""
    words = numpy.frombuffer(data + bytes(-len(data) % 4), "<u4").astype(numpy.uint64)
    weights = numpy.arange(1, len(words) + 1, dtype=numpy.uint64)
    return f"{int(words.sum(dtype=numpy.uint64)):016x}{int((words * weights).sum(dtype=numpy.uint64)):016x}"


def tensors_of(path):
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        head, body = json.loads(f.read(n)), f.read()
    head.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], body[v["data_offsets"][0]:v["data_offsets"][1]]) for k, v in head.items()}


class Version:
    """The file of one version, and its digest. @order  names, in the order of the model's list"""

    def __init__(self, tensors, order, plan_digest, label, sums=True):
        self.label, self.plan_digest, self.n = label, plan_digest, len(order)
        text, head, at = plan_digest, {"__metadata__": {"format": "pt", "baton.weight_version": label}}, 0
        for name in order:
            dtype, shape, data = tensors[name]
            head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
            text += checksum(data)
            if sums:
                head["__metadata__"]["baton.checksum." + name] = checksum(data)
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        raw = json.dumps(head).encode()
        raw += b" " * (-len(raw) % 8)
        self.head = 8 + len(raw)
        self.file = struct.pack("<Q", len(raw)) + raw + b"".join(tensors[name][2] for name in order)


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_one_request(self):
        if self.server.dead:
            self.close_connection = True
            return
        super().handle_one_request()

    def reply(self, status, body, *headers):
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        self.send_response(status)
        for header in (("Content-Length", str(len(data))), ("Content-Type", "application/json"), *headers):
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        peer = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if peer.key and self.headers["Authorization"] != f"Bearer {peer.key}":
            return self.reply(401, {"error": {"code": "unauthorized"}})
        if self.path.endswith("/renew"):
            peer.renewed += 1
            return self.reply(200, {"lease_id": body["lease_id"]})
        if peer.faults.get("lease"):
            return self.reply(*peer.faults["lease"])
        v, lease = peer.version, f"lse-{len(peer.leases)}"
        peer.leases[lease] = v
        return self.reply(200, {
            "lease_id": lease, "lease_s": body["lease_s"], "boot_id": peer.boot_id, "weight_version": v.label, "serial": 7,
            "plan_digest": v.plan_digest, "digest": v.digest, "nbytes": len(v.file), "n_tensors": v.n, **peer.faults.get("says", {})})

    def do_DELETE(self):
        self.server.ended.append(self.path.rsplit("/", 1)[1])
        self.reply(200, {})

    def do_GET(self):
        peer, faults = self.server, self.server.faults
        v = peer.leases.get(self.path.partition("?lease_id=")[2])
        begin, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        if v is None or faults.get("gone_at", 1 << 60) <= peer.sent:
            return self.reply(410, {"error": {"code": "lease_ended"}})
        if faults.get("redirect"):
            return self.reply(302, b"", ("Location", "/elsewhere"))
        if begin < v.head and faults.get("holds_head"):
            peer.held = True
            peer.release.wait(60)
        data, more = v.file[begin:last + 1], b"more" if faults.get("more") else b""
        flips = {at for at in faults.get("flips", []) if begin <= at <= last}
        for at in flips:  # each as often as it is in the list
            data = data[:at - begin] + bytes([data[at - begin] ^ 1]) + data[at - begin + 1:]
            faults["flips"].remove(at)
        self.send_response(faults.get("status", 206))
        self.send_header("Content-Range", f"bytes {begin + faults.get('shift', 0)}-{last}/{len(v.file)}")
        self.send_header("ETag", f'"{faults.get("etag", v.digest)}"')
        if faults.get("encoding"):
            self.send_header("Content-Encoding", faults["encoding"])
        if more:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if more:
            self.wfile.write(b"%x\r\n" % (len(data) + 4) + data + more + b"\r\n0\r\n\r\n")
            return None
        return self.send(data, begin >= v.head)

    def send(self, data, counts):
        """In pieces, so that a fault is in the middle of an answer. Only tensors are counted."""
        peer = self.server
        for at in range(0, len(data), 8192):
            piece = data[at:at + 8192]
            if counts and peer.faults.get("stall_at", 1 << 60) <= peer.sent:
                peer.release.wait(60)
            if counts and (peer.dead or peer.faults.get("die_at", 1 << 60) <= peer.sent or
                           peer.faults.get("cut_at", 1 << 60) <= peer.sent):
                peer.dead = peer.dead or "die_at" in peer.faults
                self.close_connection = True
                return
            if counts and peer.faults.get("drips_at", 1 << 60) <= peer.sent:
                for i in range(len(piece)):
                    self.wfile.write(piece[i:i + 1])
                    peer.release.wait(0.1)
                return
            if counts and peer.rate:
                time.sleep(len(piece) / peer.rate)
            self.wfile.write(piece)
            with peer.lock:
                peer.sent += len(piece) * counts

    def log_message(self, *_):
        pass


class Peer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, version, key=None, **faults):
        super().__init__(("127.0.0.1", 0), Answer)
        self.version, self.key, self.faults, self.boot_id = version, key, faults, "peer"
        self.sent, self.leases, self.ended, self.renewed, self.rate, self.dead = 0, {}, [], 0, 0, False
        self.held = False
        self.lock, self.release = threading.Lock(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, *_):
        pass  # the server has hung up
