"""Another process of the host, as baton's server sees it: libfakecuda.so by ctypes, and the pickles
that torch makes of exported tensors, without torch."""

import atexit
import base64
import ctypes
import json
import os
import pickle
import random
import sys
import types

COUNTER_NBYTES = 64 + 8 * 10000  # of torch's shared memory objects
UUIDS = [f"GPU-fa6ec0da-0000-4000-8000-{i:012x}" for i in range(16)]


class Blob(ctypes.Structure):
    """CUipcMemHandle and CUipcEventHandle: 64 bytes, passed by value."""
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]

    @classmethod
    def of(cls, data):
        return cls.from_buffer_copy(data)


class CudaError(Exception):
    def __init__(self, call, result):
        super().__init__(f"{call}: {result}")
        self.result = result


class Gpu:
    """A device of the fake, with its primary context current."""

    def __init__(self, library, device=0):
        self.lib = ctypes.CDLL(library)
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *args):
        result = getattr(self.lib, name)(*args)
        if result != 0:
            raise CudaError(name, result)

    def alloc(self, nbytes):
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(nbytes))
        return at.value

    def free(self, at):
        self.call("cuMemFree_v2", ctypes.c_uint64(at))

    def write(self, at, data):
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(at), bytes(data), ctypes.c_size_t(len(data)))

    def read(self, at, nbytes):
        out = ctypes.create_string_buffer(max(nbytes, 1))
        if nbytes:
            self.call("cuMemcpyDtoH_v2", out, ctypes.c_uint64(at), ctypes.c_size_t(nbytes))
        return out.raw[:nbytes]

    def export(self, at):
        handle = Blob()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(at))
        return bytes(handle.bytes)

    def open(self, handle):
        at = ctypes.c_uint64()
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(at), Blob.of(handle), 1)
        return at.value

    def close(self, at):
        self.call("cuIpcCloseMemHandle", ctypes.c_uint64(at))

    def event(self):
        """An event as torch exports them; recorded, so it has happened. Its 64 bytes."""
        event, handle = ctypes.c_void_p(), Blob()
        self.call("cuEventCreate", ctypes.byref(event), 2 | 4 | 1)  # no timing, interprocess
        self.call("cuEventRecord", event, None)
        self.call("cuIpcGetEventHandle", ctypes.byref(handle), event)
        return bytes(handle.bytes)


class Counter:
    """torch's shared memory object of counters; slot 0 is 1, as after an export."""

    def __init__(self, pid=None, nbytes=COUNTER_NBYTES, made=True):
        self.name = f"/torch_{os.getpid() if pid is None else pid}_{random.getrandbits(32)}_0"
        self.path = "/dev/shm" + self.name
        atexit.register(self.remove)  # also of a test that fails
        if made:
            with open(self.path, "wb") as f:
                f.write((1).to_bytes(4, "little") + bytes(60) + (1).to_bytes(8, "little"))
                f.truncate(nbytes)

    def count(self):
        with open(self.path, "rb") as f:
            f.seek(64)
            return int.from_bytes(f.read(8), "little")

    def remove(self):
        if os.path.exists(self.path):
            os.unlink(self.path)


def _torch():
    """Modules that pickle by torch's names."""
    torch, multi = types.ModuleType("torch"), types.ModuleType("torch.multiprocessing")
    reductions = types.ModuleType("torch.multiprocessing.reductions")
    storage = types.ModuleType("torch.storage")
    for module in (torch, multi, reductions, storage):
        sys.modules[module.__name__] = module

    def rebuild_cuda_tensor(*_):
        raise AssertionError("nobody rebuilds here")

    class Size(tuple):
        def __reduce__(self):
            return Size, (tuple(self),)

    class dtype:
        __module__ = "torch"

        def __init__(self, name):
            self.name = name

        def __reduce__(self):
            return self.name

    for module, name, value in ((reductions, "rebuild_cuda_tensor", rebuild_cuda_tensor),
                                (torch, "Size", Size), (torch, "Tensor", type("Tensor", (), {})),
                                (storage, "TypedStorage", type("TypedStorage", (), {}))):
        value.__module__, value.__qualname__, value.__name__ = module.__name__, name, name
        setattr(module, name, value)
    for name in ("uint8", "bfloat16", "float32"):
        setattr(torch, name, dtype(name))
    torch.storage, torch.multiprocessing, multi.reductions = storage, multi, reductions
    return torch


_TORCH = _torch()


def export_args(handle, nbytes, counter=None, event=None, offset=0, kind=b"\x01c"):
    """What torch's reduce_tensor makes of a uint8 tensor of nbytes at `offset` of an allocation;
    handle None: of an empty one."""
    function = _TORCH.multiprocessing.reductions.rebuild_cuda_tensor
    shared = handle is not None
    return (function,
            (_TORCH.Tensor, _TORCH.Size((nbytes,)), (1,), 0, _TORCH.storage.TypedStorage,
             _TORCH.uint8, 0, kind + handle if shared else None, nbytes if shared else 0,
             offset if shared else 0, False, counter.name.encode() if counter else None, 0,
             (event or bytes(64)) if shared else None, (event is not None) if shared else None))


def pickled(exports):
    """{uuid: export} as SkyRL posts it."""
    return base64.b64encode(pickle.dumps(exports, 4)).decode()


def plain(uuid, handle, nbytes, offset=0, event=None):
    return {uuid: {"handle": base64.b64encode(handle).decode(), "offset": offset, "nbytes": nbytes,
                   "event": base64.b64encode(event).decode() if event else None}}


def exporter_main(library, nbytes):
    """As a program: exports memory, says how, and lives until its input ends."""
    gpu = Gpu(library)
    handle = gpu.export(gpu.alloc(nbytes))
    print(json.dumps({"handle": base64.b64encode(handle).decode()}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    exporter_main(sys.argv[1], int(sys.argv[2]))
