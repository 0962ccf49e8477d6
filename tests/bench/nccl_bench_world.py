"""What bench_nccl.py runs: a trainer, peers and a server, each in a process of its own, every wait
for them bounded; and what is sent between them."""

import base64
import contextlib
import ctypes
import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

import gpu_world as world
import ipc_wire as wire
import nccl_bench_ranks as ranks
import nccl_bench_wire

INIT, GROUP = "/v1/weight_transfer/init", "/v1/weight_transfer"
START_S = 30  # for a process to have its GPU, its memory, and a group
UPDATE_S = 20  # --update-timeout of servers whose updates are to succeed
STOP_S = 15  # for a server to end
GIB = 1 << 30


# --- which libraries


def _in_packages():
    """torch's wheels bring NCCL as a package of its own."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        return None
    for folder in (spec and spec.submodule_search_locations) or ():
        path = os.path.join(folder, "lib", "libnccl.so.2")
        if os.path.exists(path):
            return path
    return None


def _of_torch():
    """The file that torch itself has loaded, where it is another one."""
    said = subprocess.run(
        [sys.executable, "-c", "import torch; print(open('/proc/self/maps').read())"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    found = re.search(r"(/\S*libnccl\.so\S*)", said.stdout)
    return found and found[1]


def find_nccl():
    return _in_packages() or _of_torch() or "libnccl.so.2"


def nccl_version(path):
    code = ctypes.c_int()
    if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code)) != 0:
        return "unknown"
    return f"{code.value // 10000}.{code.value // 100 % 100}.{code.value % 100}"


def gpus(path):
    """Names of those that this process sees."""
    try:
        cuda = ctypes.CDLL(path)
    except OSError:
        return []
    n, name = ctypes.c_int(), ctypes.create_string_buffer(128)
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(n)) != 0:
        return []
    out = []
    for i in range(n.value):
        device = ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), i)
        cuda.cuDeviceGetName(name, len(name), device)
        out.append(name.value.decode(errors="replace"))
    return out


# --- processes


class Server(world.Server):
    """One that does not make anybody wait when it does not end, and does not stay when it does not
    begin."""

    def __init__(self, *options):
        self.child = None
        try:
            super().__init__(*options)
        except BaseException:
            if self.child is not None:
                self.child.kill()
                self.child.wait()
            raise

    def stop(self):
        if self.child.poll() is None:
            self.child.terminate()
            self.child.wait(STOP_S)
        return self.child.returncode

    def __exit__(self, kind, *about):
        if kind is not None:
            self.child.kill()  # its drain would wait for what has failed
        super().__exit__(kind, *about)


class Process(world.Worker):
    """A rank's. At the end it is killed: what a rank leaves undone may hang for ever."""

    def strike(self):
        """SIGKILL, without waiting until the driver has cleaned up."""
        os.kill(self.pid, signal.SIGKILL)

    def call(self, limit_s, function, *args):
        self.tell(function, *args)
        return self.hear(limit_s)

    def __exit__(self, *_):
        if self.process.exitcode is None:
            self.kill()


def hear_all(processes, limit_s):
    return [p.hear(limit_s) for p in processes]


class World:
    """What every part shares: the program, the libraries, the GPUs, and the model."""

    def __init__(self, args, names, setting):
        self.baton, self.cuda, self.nccl = args.baton, args.cuda_library, args.nccl_library
        self.setting, self.n_ranks = setting, len(names)
        self.places = ",".join(f"cuda:{i}" for i in range(1, self.n_ranks))
        self.named = setting.named
        self.tensors = nccl_bench_wire.placed(self.named)
        self.nbytes = wire.total_of(self.named)
        self.buckets = nccl_bench_wire.cut_vllm(self.tensors, setting.bucket_nbytes)
        self.content = nccl_bench_wire.Content("first")
        self.folder = tempfile.TemporaryDirectory(prefix="baton-bench-")
        self.manifest = world.write_manifest(
            self.folder.name, [(n, "bfloat16", s) for n, s in self.named]
        )

    def server(self, *options):
        return Server(
            self.baton,
            *("--device", self.places, "--json-body-max", 256 << 20),
            *("--cuda-library", self.cuda, "--nccl-library", self.nccl),
            *options,
        )

    def store(self, update_timeout_s=UPDATE_S):
        """A server without an engine, for the model."""
        return self.server(
            *("--engine", "none", "--manifest", self.manifest),
            *("--update-timeout", int(update_timeout_s * 1000)),
        )

    def trainer(self, nbytes=None, **environment):
        """Rank 0, with the whole model in its GPU's memory, or with other memory."""
        out = Process(**environment)
        try:
            out.call(START_S, ranks.begin, self.cuda, self.nccl, 0, nbytes or self.nbytes)
            if nbytes is None:
                out.call(START_S, ranks.fill, self.content.base)
        except BaseException:
            out.kill()
            raise
        return out

    @contextlib.contextmanager
    def group_of_peers(self, trainer, nbytes=0):
        """A process on each other GPU, in one group with the trainer; it receives into nbytes again
        and again, which leave room for two versions beside them unless they are given."""
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(Process()) for _ in range(1, self.n_ranks)]
            room = min(nbytes or self.setting.peer_nbytes, self.nbytes)
            for i, peer in enumerate(peers, 1):
                peer.tell(ranks.begin, self.cuda, self.nccl, i, room)
            hear_all(peers, START_S)
            unique_id = trainer.call(START_S, ranks.mint)
            every = [trainer, *peers]
            for i, process in enumerate(every):
                process.tell(ranks.join_raw, unique_id, i, self.n_ranks)
            hear_all(every, START_S)
            yield Peers(every)

    # groups with the server

    def join_by_id(self, trainer, port, limit_s=START_S):
        """Returns seconds from the id to both sides' having joined."""
        began = time.monotonic()
        unique_id = trainer.call(limit_s, ranks.mint)
        trainer.tell(ranks.join, "group", unique_id, 0, self.n_ranks)
        self._init(port, limit_s, nccl_unique_id=base64.b64encode(unique_id).decode())
        trainer.hear(limit_s)
        return time.monotonic() - began

    def join_by_store(self, trainer, port, limit_s=START_S):
        began = time.monotonic()
        at = trainer.call(limit_s, ranks.open_store)
        trainer.tell(ranks.join_by_store, self.n_ranks, limit_s)
        self._init(port, limit_s, master_address="127.0.0.1", master_port=at)
        trainer.hear(limit_s)
        return time.monotonic() - began

    def _init(self, port, limit_s, **form):
        body = {"transport": "nccl", "world_size": self.n_ranks, "timeout_s": int(limit_s) - 5}
        with connected(port, limit_s) as connection:
            found = connection.post(INIT, {**body, **form})
        if found["state"] != "joined":
            raise AssertionError(f"the group was not joined: {found}")


class Peers:
    """Raw broadcasts of the trainer to all of them."""

    def __init__(self, every):
        self.every = every

    def learn(self, name, broadcasts):
        for process in self.every:
            process.tell(ranks.learn_raw, name, broadcasts)
        hear_all(self.every, START_S)

    def run(self, name):
        """Seconds from the first call of the trainer until the last rank has everything."""
        for process in self.every:
            process.tell(ranks.raw, name, UPDATE_S)
        ends = hear_all(self.every, UPDATE_S + 5)
        return max(done for _, done in ends) - ends[0][0]


# --- speaking with the server


@contextlib.contextmanager
def connected(port, patience_s=UPDATE_S + 10):
    connection = nccl_bench_wire.Connection(port, patience_s)
    try:
        yield connection
    finally:
        connection.socket.close()


class Pending:
    """A request that is answered later."""

    def __init__(self, port, request, patience_s):
        self.connection = nccl_bench_wire.Connection(port, patience_s)
        self.asked = time.monotonic()
        self.connection.send(request.parts(b""))

    def is_answered(self):
        return bool(select.select([self.connection.socket], [], [], 0)[0])

    def answer(self):
        """(status, body, the clock)"""
        status, body = self.connection.next()
        return status, json.loads(body), time.monotonic()

    def close(self):
        self.connection.socket.close()


def await_bytes(server, pending, over, limit_s):
    """Until the update that runs has more bytes than that; returns how many it had then. An answer
    before that is a failure."""

    def look():
        if pending is not None and pending.is_answered():
            raise AssertionError(f"it was answered before: {pending.answer()[:2]}")
        found = (server.status()["update"] or {}).get("nbytes_done") or 0
        return found if found > over else None

    return world.until(look, f"an update with more than {over} bytes", limit_s)
