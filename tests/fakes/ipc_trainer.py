"""A trainer that shares its GPU memory as torch does, over libfakecuda.so: a process of its own that
allocates, fills, exports and can be killed; and the pickles in which torch trainers send exports.

No torch is needed: the pickles are made by pickle itself, from stand-ins that bear torch's names.
"""

import base64
import contextlib
import ctypes
import glob
import mmap
import os
import pickle
import secrets
import struct
import sys
import types

import forked

ANSWER_S = 60  # longest that a trainer may take for anything
HANDLE_NBYTES = 64
COUNTER_HEAD, COUNTER_SLOTS = 64, 10000
LAZY_PEER_ACCESS = 1
BLOCKING_SYNC, DISABLE_TIMING, INTERPROCESS = 1, 2, 4


class CudaError(RuntimeError):
    pass


class Export:
    """What torch says of one exported tensor."""

    def __init__(self, uuid, handle, storage_offset, storage_nbytes, ref_name, slot, event,
                 shape=(), dtype="uint8", tensor_offset=0):
        self.uuid, self.handle, self.event = uuid, handle, event
        self.storage_offset, self.storage_nbytes = storage_offset, storage_nbytes
        self.ref_name, self.slot = ref_name, slot
        self.shape, self.dtype, self.tensor_offset = tuple(shape), dtype, tensor_offset

    def seen_as(self, shape, dtype, tensor_offset=0):
        """The same export, its storage seen as another tensor."""
        return Export(self.uuid, self.handle, self.storage_offset, self.storage_nbytes,
                      self.ref_name, self.slot, self.event, shape, dtype, tensor_offset)

    @property
    def plain(self):
        """As `ipc_handles` has it; no counter goes with that."""
        value = {"handle": base64.b64encode(self.handle).decode(), "offset": self.storage_offset,
                 "nbytes": self.storage_nbytes}
        if self.event is not None:
            value["event"] = base64.b64encode(self.event).decode()
        return value


# The pickles

class _Size(tuple):
    def __reduce__(self):
        return _Size, (tuple(self),)


class _Dtype:
    def __init__(self, name):
        self.name = name
        self.__module__ = "".join(("tor", "ch"))  # a string of its own, as torch's is

    def __reduce__(self):
        return self.name


def _stand_in(kind, name, module):
    made = type(name, (), {}) if kind is None else kind
    made.__module__, made.__qualname__ = module, name
    return made


def _modules():
    torch = types.ModuleType("torch")
    names = {"torch": torch}
    for name in ("torch.multiprocessing", "torch.multiprocessing.reductions", "torch.nn",
                 "torch.nn.parameter", "torch.storage"):
        names[name] = types.ModuleType(name)
    own = "torch"
    torch.Tensor = _stand_in(None, "Tensor", own)
    torch.Size = _stand_in(_Size, "Size", own)
    for name in ("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
                 "float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"):
        setattr(torch, name, _Dtype(name))
    names["torch.nn.parameter"].Parameter = _stand_in(None, "Parameter", "torch.nn.parameter")
    names["torch.storage"].TypedStorage = _stand_in(None, "TypedStorage", "torch.storage")

    def rebuild_cuda_tensor():
        raise AssertionError("a pickle is read, never executed")

    rebuild_cuda_tensor.__module__ = "torch.multiprocessing.reductions"
    rebuild_cuda_tensor.__qualname__ = "rebuild_cuda_tensor"
    names["torch.multiprocessing.reductions"].rebuild_cuda_tensor = rebuild_cuda_tensor
    return names


_MODULES = _modules()


@contextlib.contextmanager
def _as_torch():
    """pickle looks a global up by its module's name, so for a moment ours bear torch's."""
    before = {name: sys.modules.get(name) for name in _MODULES}
    sys.modules.update(_MODULES)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _strides(shape):
    strides, step = [], 1
    for dim in reversed(shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def _arguments(x):
    """The 15 arguments of torch's rebuild_cuda_tensor."""
    torch = _MODULES["torch"]
    return (torch.Tensor, torch.Size(x.shape), _strides(x.shape), x.tensor_offset,
            _MODULES["torch.storage"].TypedStorage, getattr(torch, x.dtype), 0,
            *_shared(x))


def _shared(x):
    if x.handle is None:
        return None, 0, 0, False, None, 0, None, None
    return (b"\x02c" + x.handle, x.storage_nbytes, x.storage_offset, False, x.ref_name, x.slot,
            x.event if x.event is not None else bytes(HANDLE_NBYTES), x.event is not None)


def _pickled(value):
    with _as_torch():
        return base64.b64encode(pickle.dumps(value, protocol=4)).decode()


def _value(x, pair):
    rebuild = _MODULES["torch.multiprocessing.reductions"].rebuild_cuda_tensor
    return (rebuild, _arguments(x)) if pair else _arguments(x)


def pickled_dict(exports, pair=True):
    """One packed bucket on each GPU: {uuid: export}. SkyRL sends pairs, vLLM's packed form none."""
    return _pickled({uuid: _value(x, pair) for uuid, x in exports.items()})


def pickled_list(dicts, pair=True):
    """vLLM's list: for each tensor {uuid: export}."""
    return _pickled([{uuid: _value(x, pair) for uuid, x in d.items()} for d in dicts])


# The process

class _Gpus:
    """Runs in the trainer's process."""

    def __init__(self, library):
        self.cuda = ctypes.CDLL(library)
        self.call("cuInit", ctypes.c_uint(0))
        self.contexts, self.streams, self.sizes, self.homes = {}, {}, {}, {}
        self.blocks, self.counter, self.n_counters, self.n_slots = [], None, 0, COUNTER_SLOTS
        self.exports = []

    def call(self, name, *args):
        result = getattr(self.cuda, name)(*args)
        if result != 0:
            raise CudaError(f"{name}: {result}")

    def use(self, device):
        if device not in self.contexts:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.contexts[device] = context
        self.call("cuCtxSetCurrent", self.contexts[device])

    def stream(self, device):
        if device not in self.streams:
            stream = ctypes.c_void_p()
            self.call("cuStreamCreate", ctypes.byref(stream), 1)
            self.streams[device] = stream
        return self.streams[device]

    def uuid(self, device):
        raw = ctypes.create_string_buffer(16)
        self.call("cuDeviceGetUuid_v2", raw, device)
        h = raw.raw.hex()
        return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"

    def alloc(self, device, nbytes):
        self.use(device)
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        self.sizes[address.value], self.homes[address.value] = nbytes, device
        return address.value

    def free(self, address):
        self.use(self.homes.pop(address))
        del self.sizes[address]
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def write(self, address, offset, data):
        """Queued on the device's stream, as a trainer's own work is; from page-locked memory, or the
        call itself would wait."""
        if not data:
            return
        self.use(self.homes[address])
        host = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(len(data)), 0)
        ctypes.memmove(host, data, len(data))
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address + offset), host,
                  ctypes.c_size_t(len(data)), self.stream(self.homes[address]))
        self.blocks.append(host)

    def settle(self):
        """Until all that was queued is done."""
        for device, stream in self.streams.items():
            self.use(device)
            self.call("cuStreamSynchronize", stream)
        while self.blocks:
            self.call("cuMemFreeHost", self.blocks.pop())

    def hold(self, on):
        """While on, nothing that is queued begins."""
        self.cuda.fakecuda_hold(ctypes.c_bool(on))

    def slot(self):
        """The next slot of the counter file, a new file when that is full."""
        if self.n_slots == COUNTER_SLOTS:
            name = f"torch_{os.getpid()}_{secrets.randbelow(1 << 32)}_{self.n_counters}"
            fd = os.open(f"/dev/shm/{name}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.ftruncate(fd, COUNTER_HEAD + 8 * COUNTER_SLOTS)
            self.counter = (name, mmap.mmap(fd, 0))
            os.close(fd)
            self.counter[1][:4] = struct.pack("<i", 1)
            self.n_counters, self.n_slots = self.n_counters + 1, 0
        name, memory = self.counter
        slot, self.n_slots = self.n_slots, self.n_slots + 1
        memory[COUNTER_HEAD + 8 * slot:COUNTER_HEAD + 8 * slot + 8] = struct.pack("<Q", 1)
        self.exports.append((memory, slot))
        return b"/" + name.encode(), slot

    def event(self, device):
        event, handle = ctypes.c_void_p(), ctypes.create_string_buffer(HANDLE_NBYTES)
        self.call("cuEventCreate", ctypes.byref(event),
                  ctypes.c_uint(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS))
        self.call("cuEventRecord", event, self.stream(device))
        self.call("cuIpcGetEventHandle", handle, event)
        return handle.raw

    def export(self, address, offset, nbytes, with_event):
        """One export of a storage within an allocation: a slot of its own, an event of its own."""
        device = self.homes[address]
        if nbytes == 0:  # torch shares nothing of an empty storage
            return self.uuid(device), None, 0, 0, None, 0, None
        self.use(device)
        handle = ctypes.create_string_buffer(HANDLE_NBYTES)
        self.call("cuIpcGetMemHandle", handle, ctypes.c_uint64(address))
        name, slot = self.slot()
        return (self.uuid(device), handle.raw, offset, nbytes, name, slot,
                self.event(device) if with_event else None)

    def counters(self):
        """What is left of each export so far, in their order."""
        return [struct.unpack_from("<Q", memory, COUNTER_HEAD + 8 * slot)[0]
                for memory, slot in self.exports]

    def read_foreign(self, device, handle, pieces):
        """Bytes [offset, offset + nbytes) of another process's allocation."""
        self.use(device)
        address = ctypes.c_uint64()
        raw = (ctypes.c_char * HANDLE_NBYTES).from_buffer_copy(handle)

        class ByValue(ctypes.Structure):
            _fields_ = [("reserved", ctypes.c_char * HANDLE_NBYTES)]

        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), ByValue.from_buffer(raw),
                  ctypes.c_uint(LAZY_PEER_ACCESS))
        out = []
        for offset, nbytes in pieces:
            data = ctypes.create_string_buffer(nbytes)
            if nbytes > 0:
                self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address.value + offset),
                          ctypes.c_size_t(nbytes))
            out.append(data.raw)
        self.call("cuIpcCloseMemHandle", address)
        return out


def _serve(connection, library, environment):
    os.environ.update(environment)
    gpus = _Gpus(library)
    connection.send((None, os.getpid()))
    while True:
        try:
            name, args = connection.recv()
        except EOFError:
            return
        try:
            connection.send((None, getattr(gpus, name)(*args)))
        except Exception as e:  # reported to the caller
            connection.send((f"{type(e).__name__}: {e}", None))


class Trainer:
    """A trainer's process. `environment` is the fake's, the server's own."""

    def __init__(self, library, **environment):
        context = forked.context()
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, library, environment),
                                       daemon=True)
        self.process.start()
        theirs.close()
        self.pid = self._answer()

    def _answer(self):
        if not self.connection.poll(ANSWER_S):
            raise CudaError("the trainer does not answer")
        wrong, value = self.connection.recv()
        if wrong is not None:
            raise CudaError(wrong)
        return value

    def __getattr__(self, name):
        if name.startswith("_") or not hasattr(_Gpus, name):
            raise AttributeError(name)

        def ask(*args):
            self.connection.send((name, args))
            return self._answer()

        return ask

    def export(self, address, offset, nbytes, shape=None, dtype="uint8", with_event=True):
        self.connection.send(("export", (address, offset, nbytes, with_event)))
        return Export(*self._answer(), shape=(nbytes,) if shape is None else shape, dtype=dtype)

    def kill(self):
        """As the kernel kills: nothing is cleaned up by the process itself."""
        self.process.kill()
        self.process.join()

    def close(self):
        if self.process.is_alive():
            self.connection.close()
            self.process.join(10)
        self.kill()
        for path in glob.glob(f"/dev/shm/torch_{self.pid}_*"):
            os.unlink(path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
