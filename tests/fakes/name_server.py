"""A name server on a port of loopback, by UDP and TCP, for tests: says what it is told to say of its names.

with NameServer() as n: n.names["engines.test"] = ["127.0.0.2", "::1"]; n.fails = "servfail" (nxdomain, silent, truncated; None)
"""

import contextlib
import ipaddress
import socket
import struct
import threading

A, AAAA = 1, 28
NXDOMAIN, SERVFAIL = 3, 2


class NameServer:
    def __init__(self):
        self.names, self.fails, self.n_asked = {}, None, 0
        while True:  # the same port for both
            self.udp, self.tcp = socket.socket(type=socket.SOCK_DGRAM), socket.socket()
            self.udp.bind(("127.0.0.1", 0))
            self.port = self.udp.getsockname()[1]
            self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                self.tcp.bind(("127.0.0.1", self.port))
                break
            except OSError:
                self.udp.close()
                self.tcp.close()
        self.tcp.listen()

    def __enter__(self):
        for serve in self._serve_udp, self._serve_tcp:
            threading.Thread(target=serve, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.fails = "silent"
        self.udp.close()
        self.tcp.close()

    def _serve_udp(self):
        while True:
            try:
                query, peer = self.udp.recvfrom(4096)
                reply = self._reply(query, udp=True)
                if reply:
                    self.udp.sendto(reply, peer)
            except OSError:
                return

    def _serve_tcp(self):
        while True:
            try:
                c = self.tcp.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve_connection, args=(c,), daemon=True).start()

    def _serve_connection(self, c):
        with contextlib.suppress(OSError), c, c.makefile("rwb") as f:  # a resolver may leave early
            while len(head := f.read(2)) == 2:
                reply = self._reply(f.read(struct.unpack("!H", head)[0]), udp=False)
                f.write(struct.pack("!H", len(reply)) + reply)
                f.flush()

    def _reply(self, query, udp):
        self.n_asked += 1
        if self.fails == "silent":
            return None
        at, labels = 12, []
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode())
            at += 1 + query[at]
        kind, name = struct.unpack("!H", query[at + 1:at + 3])[0], ".".join(labels).lower()
        found = [ipaddress.ip_address(a) for a in self.names.get(name, ())]
        found = [a.packed for a in found if {4: A, 6: AAAA}[a.version] == kind]
        code, truncated = 0, 0
        if self.fails == "servfail":
            code, found = SERVFAIL, []
        elif self.fails == "nxdomain" or name not in self.names:
            code, found = NXDOMAIN, []
        elif self.fails == "truncated" and udp:
            truncated, found = 0x200, []
        rows = b"".join(b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 1, len(a)) + a for a in found)
        return query[:2] + struct.pack("!HHHHH", 0x8180 | truncated | code, 1, len(found), 0, 0) + query[12:at + 5] + rows
