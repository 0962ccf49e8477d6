"""What bench_update.py measures with: a server of a made-up manifest, memory to copy between, a
trainer's object in shared memory, and a prober of health."""

import ctypes
import http.client
import itertools
import json
import mmap
import multiprocessing
import os
import struct
import subprocess
import tempfile
import time

import ipc_wire as wire

PAGE_NBYTES = 4096
PROBE_EVERY_S = 0.002
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

_libc = ctypes.CDLL(None)
_libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def address_of(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Memory:
    """Bytes of our own, no two pages alike and finite as bfloat16, and as many to copy them to; all
    of them touched."""

    def __init__(self, nbytes):
        self.nbytes = nbytes
        self.bytes, self._target = mmap.mmap(-1, nbytes), mmap.mmap(-1, nbytes)
        for one in (self.bytes, self._target):
            one.madvise(mmap.MADV_HUGEPAGE)
        piece = os.urandom(16 << 20).translate(bytes(b & 0x3F for b in range(256)))
        for at in range(0, nbytes, len(piece)):
            self.bytes[at : at + len(piece)] = piece[: nbytes - at]
        for at in range(0, nbytes - 8, PAGE_NBYTES):
            struct.pack_into("<Q", self.bytes, at, at)
        self._from, self._to = address_of(self.bytes), address_of(self._target)
        self.copy_s()

    def copy_s(self):
        """Seconds that one thread's memcpy of all of it takes."""
        began = time.perf_counter()
        _libc.memcpy(self._to, self._from, self.nbytes)
        return time.perf_counter() - began

    def write_to(self, target):
        _libc.memcpy(address_of(target), self._from, self.nbytes)


class Shared:
    """A POSIX shared memory object that its trainer keeps, and writes anew for each update."""

    def __init__(self, memory):
        self.memory, self.name = memory, f"/baton-bench-{os.getpid()}"
        self.fd = os.open("/dev/shm" + self.name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(self.fd, 0, memory.nbytes)
            self.bytes = mmap.mmap(self.fd, memory.nbytes)
        except BaseException:
            self.close()
            raise
        self.n_written = 0

    def write(self, places):
        """Everything, and at each of `places` what no earlier one had there."""
        self.memory.write_to(self.bytes)
        self.n_written += 1
        for at in places:
            struct.pack_into("<I", self.bytes, at, self.n_written)

    def range(self, nbytes):
        return {"name": self.name, "offset": 0, "nbytes": nbytes}

    def close(self):
        os.close(self.fd)
        os.unlink("/dev/shm" + self.name)


class Server:
    """`baton serve --engine none` with these bfloat16 tensors, and one connection to it."""

    def __init__(self, binary, named, *options):
        self.named, self.nbytes = named, wire.total_of(named)
        self.folder = tempfile.TemporaryDirectory()
        manifest = os.path.join(self.folder.name, "manifest.json")
        with open(manifest, "w", encoding="utf-8") as f:
            json.dump(columns(named), f)
        with open(os.path.join(self.folder.name, "log"), "w+", encoding="utf-8") as log:
            self.child = subprocess.Popen(
                [binary, "serve", "--engine", "none", "--manifest", manifest, "--listen", "127.0.0.1:0",
                 "--allow-path", self.folder.name, *options], stderr=log)
            self.port = self._port(log)
        self.url = f"http://127.0.0.1:{self.port}"
        self.connection = wire.Connection(self.port)

    def _port(self, log):
        while self.child.poll() is None:
            log.seek(0)
            for line in log.read().splitlines():
                if '"event":"serving"' in line and line.endswith("}"):
                    return json.loads(line)["port"]
            time.sleep(0.02)
        raise SystemExit("the server did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.socket.close()
        self.child.terminate()
        self.child.wait(60)
        self.folder.cleanup()

    def ask(self, ready, update_id=b""):
        """(seconds from the first byte sent to the whole answer, the answer)."""
        parts = ready.parts(update_id)
        began = time.perf_counter()
        answer = self.connection.ask(parts)
        return time.perf_counter() - began, json.loads(answer)

    def tensors(self):
        """What is served, with its checksums: name -> about it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=wire.WAIT_S)
        connection.request("GET", "/v1/weights")
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return {t["name"]: t for t in answer["tensors"]}


def columns(named):
    return {"names": [name for name, _ in named], "dtypes": ["BF16"] * len(named),
            "shapes": [list(shape) for _, shape in named]}


def plan_request(named):
    return wire.Ready("/v1/weights/plans", columns(named), with_id=False)


def offsets(named):
    """Where each tensor begins in the packed bucket."""
    sizes = [wire.nbytes_of(shape) for _, shape in named]
    return list(itertools.accumulate(sizes, initial=0))[:-1]


def joined_checksum(sums):
    """Of the bytes that lie back to back, from [(nbytes, hex)] of their parts; each nbytes but the
    last is a multiple of 4. With A = sum of w[i] and B = sum of (i+1)*w[i], a part that begins at
    word k adds its A to A, and its B + k*A to B."""
    a = b = words = 0
    for nbytes, text in sums:
        part_a, part_b = int(text[:16], 16), int(text[16:], 16)
        a, b = a + part_a, b + part_b + words * part_a
        words += nbytes // 4
    return f"{a & (2**64 - 1):016x}{b & (2**64 - 1):016x}"


def _probe(port, cores, stop, out):
    os.sched_setaffinity(0, cores)
    connection, took = wire.Connection(port), []
    while not stop.is_set():
        began = time.perf_counter()
        connection.ask([HEALTH])
        took.append(time.perf_counter() - began)
        time.sleep(PROBE_EVERY_S)
    out.send(sorted(took))


class Prober:
    """Asks for health on a connection, and in a process, of its own while the with lasts."""

    def __init__(self, port, cores):
        spawn = multiprocessing.get_context("spawn")
        self.stop, (self.there, here) = spawn.Event(), spawn.Pipe(False)
        self.process = spawn.Process(target=_probe, args=(port, cores, self.stop, here), daemon=True)

    def __enter__(self):
        self.process.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.took = self.there.recv()
        self.process.join()

    def quantile(self, share):
        return self.took[min(int(share * len(self.took)), len(self.took) - 1)]
