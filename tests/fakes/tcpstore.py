"""torch's TCPStore server, as a trainer's process has one: the calls that joining takes, by the rules
of the older of torch's two servers. Keys are as on the wire, with the slash."""

import socket
import socketserver
import struct
import threading

VALIDATE, SET, GET, ADD, CHECK, WAIT, CANCEL_WAIT, PING = 0, 1, 3, 4, 5, 6, 12, 13
MAGIC = 0x3C85F7CE
LENGTH_MAX = 1 << 20


class _Hangup(Exception):
    """What torch's server closes the connection for."""


class _Client(socketserver.BaseRequestHandler):
    def take(self, nbytes):
        data = b""
        while len(data) < nbytes:
            piece = self.request.recv(nbytes - len(data))
            if not piece:
                raise _Hangup
            data += piece
        return data

    def number(self, form="<Q"):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self):
        nbytes = self.number()
        if nbytes > LENGTH_MAX:
            raise _Hangup
        return self.take(nbytes)

    def keys(self):
        return [self.string() for _ in range(self.number())]

    def handle(self):
        try:
            if self.take(1)[0] != VALIDATE or self.number("<I") != MAGIC:
                return
            while True:
                self.one(self.take(1)[0])
        except (_Hangup, OSError):
            pass

    def one(self, op):
        store = self.server.store
        if op == PING:
            self.request.sendall(self.take(4))
        elif op == SET:
            key, value = self.string(), self.string()
            store.set(key.decode(), value)
        elif op == ADD:
            key, delta = self.string(), self.number("<q")
            self.request.sendall(struct.pack("<q", store.add(key.decode(), delta)))
        elif op == GET:
            value = store.get(self.string().decode())
            if value is None:
                raise _Hangup
            self.request.sendall(struct.pack("<Q", len(value)) + value)
        elif op == CHECK:
            self.request.sendall(bytes([0 if store.has(self.keys()) else 1]))
        elif op == WAIT:
            self.wait(store, self.keys())
        elif op == CANCEL_WAIT:
            self.request.sendall(b"\x01")
        else:
            raise _Hangup

    def wait(self, store, keys):
        """Until they are there, or the client takes it back or goes."""
        with store.changed:
            store.n_waiting += 1
            store.changed.notify_all()
        try:
            while not store.await_keys(keys, 0.02):
                if self.readable():
                    return  # the next request is CANCEL_WAIT, or it has gone
            self.request.sendall(b"\x00")
        finally:
            store.n_waiting -= 1

    def readable(self):
        self.request.setblocking(False)
        try:
            self.request.recv(1, socket.MSG_PEEK)
            return True
        except BlockingIOError:
            return False
        finally:
            self.request.setblocking(True)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


class Store:
    def __init__(self):
        self.values, self.changed, self.n_waiting = {}, threading.Condition(), 0
        self.server = _Server(("127.0.0.1", 0), _Client)
        self.server.store = self
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key):
        with self.changed:
            return self.values.get(key)

    def add(self, key, delta):
        with self.changed:
            value = int(self.values.get(key, b"0")) + delta
            self.values[key] = str(value).encode()
            self.changed.notify_all()
            return value

    def has(self, keys):
        with self.changed:
            return all(k.decode() in self.values for k in keys)

    def await_keys(self, keys, timeout_s):
        with self.changed:
            return self.changed.wait_for(lambda: all(k.decode() in self.values for k in keys),
                                         timeout_s)

    def await_count(self, n, timeout_s):
        """As torch's server-side process does before it goes on: until n ranks are counted."""
        with self.changed:
            return self.changed.wait_for(lambda: int(self.values.get("init/", b"0")) >= n, timeout_s)
