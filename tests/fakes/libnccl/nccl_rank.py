"""A rank of a fake NCCL group, as Python trainers are one: through ctypes, blocking, warmed up by
an all-reduce of one float. Run as a program, it is the proof: two processes, a broadcast each way.

Usage: nccl_rank.py LIBFAKENCCL LIBFAKECUDA
"""

import ctypes
import multiprocessing
import sys
import time

UINT8, FLOAT32, SUM = 1, 7, 0
PATIENCE_S = 60


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Gpu:
    """Device 0 of libfakecuda.so, and a stream on it."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def call(self, name, *args):
        result = getattr(self.lib, name)(*args)
        if result != 0:
            raise RuntimeError(f"{name}: {result}")

    def put(self, data):
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(len(data)))
        self.call("cuMemcpyHtoD_v2", at, bytes(data), ctypes.c_size_t(len(data)))
        return at

    def get(self, at, nbytes):
        out = ctypes.create_string_buffer(nbytes)
        self.call("cuMemcpyDtoH_v2", out, at, ctypes.c_size_t(nbytes))
        return out.raw

    def free(self, at):
        self.call("cuMemFree_v2", at)

    def synchronize(self):
        self.call("cuStreamSynchronize", self.stream)


class Rank:
    """A communicator; load the Gpu first: the library looks for it."""

    def __init__(self, path, gpu):
        self.lib, self.gpu = ctypes.CDLL(path), gpu
        self.lib.ncclGetLastError.restype = ctypes.c_char_p
        self.comm = ctypes.c_void_p()

    def call(self, name, *args):
        result = getattr(self.lib, name)(*args)
        if result != 0:
            text = self.lib.ncclGetLastError(None).decode()
            raise RuntimeError(f"{name}: {result}: {text}")

    def mint(self):
        """The 128 bytes that every rank needs."""
        out = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(out))
        return bytes(out)

    def join(self, unique_id, rank, world_size):
        self.call("ncclCommInitRank", ctypes.byref(self.comm), world_size,
                  UniqueId.from_buffer_copy(unique_id), rank)

    def warm_up(self):
        at = self.gpu.put(bytes(4))
        self.call("ncclAllReduce", at, at, ctypes.c_size_t(1), FLOAT32, SUM, self.comm,
                  self.gpu.stream)
        self.gpu.synchronize()
        self.gpu.free(at)

    def broadcast(self, send, recv, nbytes, root):
        """Enqueued; `send` may be None but at the root."""
        self.call("ncclBroadcast", send, recv, ctypes.c_size_t(nbytes), UINT8, root, self.comm,
                  self.gpu.stream)

    def send(self, data, root):
        """All of it, and done."""
        at = self.gpu.put(data)
        self.broadcast(at, at, len(data), root)
        self.gpu.synchronize()
        self.gpu.free(at)

    def send_watched(self, data, root):
        """As a process group of torch: it ends by what NCCL reports of its peers, by an abort."""
        at, wrong = self.gpu.put(data), ctypes.c_int()
        self.broadcast(at, at, len(data), root)
        while self.gpu.lib.cuStreamQuery(self.gpu.stream) != 0:
            self.call("ncclCommGetAsyncError", self.comm, ctypes.byref(wrong))
            if wrong.value != 0:
                self.leave()
                raise RuntimeError(f"ncclCommGetAsyncError: {wrong.value}")
            time.sleep(0.01)
        self.gpu.free(at)

    def receive(self, nbytes, root):
        at = self.gpu.put(bytes(nbytes))
        self.broadcast(None, at, nbytes, root)
        self.gpu.synchronize()
        data = self.gpu.get(at, nbytes)
        self.gpu.free(at)
        return data

    def leave(self):
        self.call("ncclCommAbort", self.comm)
        self.comm = ctypes.c_void_p()


def _pattern(seed, nbytes=300007):
    return bytes((seed + i * 7 + (i >> 8)) & 0xff for i in range(nbytes))


def _be(rank, nccl, cuda, ids):
    me = Rank(nccl, Gpu(cuda))
    if rank == 0:
        unique_id = me.mint()
        ids.put(unique_id)
    else:
        unique_id = ids.get(timeout=PATIENCE_S)
    me.join(unique_id, rank, 2)
    me.warm_up()
    for root in (0, 1):
        data = _pattern(root)
        if rank == root:
            me.send(data, root)
        elif me.receive(len(data), root) != data:
            sys.exit(f"rank {rank} got other bytes than rank {root} sent")
    me.leave()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    spawn = multiprocessing.get_context("spawn")
    ids = spawn.Queue()
    ranks = [spawn.Process(target=_be, args=(i, *sys.argv[1:], ids)) for i in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(PATIENCE_S)
        if process.is_alive():
            process.kill()
    if any(process.exitcode != 0 for process in ranks):
        sys.exit(f"the ranks ended with {[process.exitcode for process in ranks]}")


if __name__ == "__main__":
    main()
