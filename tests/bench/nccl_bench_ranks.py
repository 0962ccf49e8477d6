"""What runs in the processes of bench_nccl.py: rank 0 of a group, which is the trainer, and peers
that receive what it broadcasts without any baton. ctypes on the driver and on libnccl, no torch: a
trainer takes half a second to start, and is there to be killed.

The functions are called in a gpu_world.Worker, with its state first."""

import ctypes
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fakes"))
import nccl_trainer  # noqa: E402  # makes nccl_rank and tcpstore to be found, too
import nccl_rank  # noqa: E402
import nccl_bench_wire  # noqa: E402
import tcpstore  # noqa: E402
import ipc_wire as wire  # noqa: E402

NOT_READY = 600
STORE_KEY = "/broadcast_from/0/0"
LOOK_S = 0.00002  # between two looks at a stream


class Gpu(nccl_rank.Gpu):
    """One of several, and a stream on it."""

    def __init__(self, path, index):
        self.lib, self.index = ctypes.CDLL(path), index
        context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), index)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def alloc(self, nbytes):
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(nbytes))
        return at.value

    def write(self, at, data):
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(at), bytes(data), ctypes.c_size_t(len(data)))

    def repeat(self, at, have, nbytes):
        """What is there in the first bytes, again and again."""
        while have < nbytes:
            n = min(have, nbytes - have)
            self.call(
                "cuMemcpyDtoD_v2",
                ctypes.c_uint64(at + have),
                ctypes.c_uint64(at),
                ctypes.c_size_t(n),
            )
            have += n

    def memory(self):
        """(free, total) bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def done(self):
        result = self.lib.cuStreamQuery(self.stream)
        if result not in (0, NOT_READY):
            raise RuntimeError(f"cuStreamQuery: {result}")
        return result == 0

    def wait(self, limit_s):
        """Until the stream is done."""
        deadline = time.monotonic() + limit_s
        while not self.done():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the stream is not done within {limit_s} s")
            time.sleep(LOOK_S)


class Comm(nccl_rank.Rank):
    """A communicator whose collectives are only enqueued."""

    def join(self, unique_id, rank, world_size):
        super().join(unique_id, rank, world_size)
        self.check_device()
        self.one = ctypes.c_uint64(self.gpu.alloc(4))
        self.gpu.write(self.one.value, bytes(4))

    def check_device(self):
        """NCCL has no word for it: it takes the thread's GPU."""
        if not hasattr(self.lib, "ncclCommCuDevice"):
            return
        found = ctypes.c_int(-1)
        self.call("ncclCommCuDevice", self.comm, ctypes.byref(found))
        if found.value != self.gpu.index:
            raise RuntimeError(f"a rank is on GPU {found.value} instead of {self.gpu.index}")

    def meet(self):
        """An all-reduce: done when every rank has come to it."""
        self.call(
            "ncclAllReduce",
            self.one,
            self.one,
            ctypes.c_size_t(1),
            nccl_rank.FLOAT32,
            nccl_rank.SUM,
            self.comm,
            self.gpu.stream,
        )

    def broadcast_all(self, prepared):
        """In place, from rank 0. @prepared  as prepare() made them"""
        call, comm, stream = self.lib.ncclBroadcast, self.comm, self.gpu.stream
        for at, nbytes in prepared:
            result = call(at, at, nbytes, nccl_rank.UINT8, 0, comm, stream)
            if result != 0:
                text = self.lib.ncclGetLastError(None).decode(errors="replace")
                raise RuntimeError(f"ncclBroadcast: {result}: {text}")


def prepare(base, broadcasts):
    return [(ctypes.c_uint64(base + at), ctypes.c_size_t(n)) for at, n in broadcasts if n]


# --- both kinds


def begin(state, cuda, nccl, index, nbytes):
    """A GPU, and memory on it: the trainer's model, or where a peer receives."""
    state.gpu, state.nccl = Gpu(cuda, index), nccl
    state.image, state.nbytes = state.gpu.alloc(nbytes), nbytes
    state.jobs, state.store = {}, None


def memory(state):
    return state.gpu.memory()


def join(state, which, unique_id, rank, world_size):
    """Blocks until all ranks are in. which: 'raw', the peers' group, or 'group', baton's."""
    comm = Comm(state.nccl, state.gpu)
    comm.join(unique_id, rank, world_size)
    comm.meet()
    state.gpu.wait(60)
    setattr(state, which, comm)


def learn_raw(state, name, broadcasts):
    """Where they are in this process's memory, which may be smaller than the model."""
    room = state.nbytes
    state.jobs[name] = prepare(
        state.image,
        [(at % room if at % room + n <= room else 0, n) for at, n in broadcasts],
    )


def raw(state, name, limit_s):
    """All broadcasts, one behind the other. Returns (first call, all done) by the monotonic clock,
    which is one for all processes of a host."""
    prepared, comm = state.jobs[name], state.raw
    comm.meet()
    if comm.is_root:
        state.gpu.wait(limit_s)  # every peer is in, with its receives right behind
    first = time.monotonic()
    comm.broadcast_all(prepared)
    state.gpu.wait(limit_s)
    return first, time.monotonic()


def join_raw(state, unique_id, rank, world_size):
    join(state, "raw", unique_id, rank, world_size)
    state.raw.is_root = rank == 0


# --- the trainer


def mint(state):
    return Comm(state.nccl, state.gpu).mint()


def leave(state):
    state.group.leave()


def fill(state, base):
    """The model's bytes, as nccl_bench_wire.Content has them."""
    data = base[: state.nbytes]
    state.gpu.write(state.image, data)
    state.gpu.repeat(state.image, len(data), state.nbytes)


def open_store(state):
    """torch's TCPStore in this process. Returns its port; join_by_store is to follow."""
    state.store = tcpstore.Store()
    state.store.add("init/", 1)
    return state.store.port


def join_by_store(state, world_size, limit_s):
    """As vLLM's trainer does it."""
    if not state.store.await_count(world_size, limit_s):
        raise RuntimeError(f"the store counted no {world_size} ranks within {limit_s} s")
    unique_id = mint(state)
    state.store.set(STORE_KEY, nccl_trainer.vllm_pickle(unique_id))
    join(state, "group", unique_id, 0, world_size)


def connect(state, port, patience_s):
    state.http = nccl_bench_wire.Connection(port, patience_s)


def learn(state, name, job):
    state.jobs[name] = (job, [prepare(state.image, b) for b in job.broadcasts])


def _whole(state, job, prepared):
    state.http.send(job.requests[0].parts(b""))
    first = time.monotonic()
    state.group.broadcast_all(prepared[0])
    return first, state.http.answer()


def _session(state, job, prepared):
    started = state.http.ask(wire.Wire.START.parts(b""))
    at = started.index(b'"upd-') + 1
    update_id, first = started[at : at + wire.UPDATE_ID_LEN], None
    for request, broadcasts in zip(job.requests, prepared):
        state.http.send(request.parts(update_id))
        first = first or time.monotonic()
        state.group.broadcast_all(broadcasts)
        if job.how == "step":
            state.http.answer()
    if job.how == "line":
        for _ in job.requests:
            state.http.answer()
    return first, state.http.ask(wire.Wire.FINISH.parts(update_id))


def update(state, name):
    """One update. Returns the clock before the first request is sent, before the first broadcast is
    called, and when the answer that says that it is committed is there; and that answer. After a
    refusal nobody receives the broadcasts: this process is then good for nothing more."""
    job, prepared = state.jobs[name]
    asked = time.monotonic()
    first, answer = (_whole if job.how == "whole" else _session)(state, job, prepared)
    answered = time.monotonic()
    state.gpu.wait(state.http.patience_s)  # what was received has been sent
    return asked, first, answered, json.loads(answer)


def broadcast_only(state, name, limit_s):
    """Somebody else has sent the request."""
    state.group.broadcast_all([b for part in state.jobs[name][1] for b in part])
    state.gpu.wait(limit_s)


def push_back_to_back(state, names, seconds):
    """Updates by turns, each as soon as the one before is committed. Returns how many."""
    state.connection.send("pushing")
    n, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        update(state, names[n % len(names)])
        n += 1
    return n


def write(state, offset, data):
    state.gpu.write(state.image + offset, data)
