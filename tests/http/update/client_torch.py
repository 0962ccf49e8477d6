"""As much of torch as the client uses, over numpy and libfakecuda.so, so that its GPU paths
run where there is no GPU. Whether torch itself does the same is for tests/gpu to find out.

A tensor's bytes are in host memory. What was exported is written to the fake GPU when its stream is
synchronized, as a GPU's work is done by then and not before: a client that posts without waiting
sends the bytes of before. What is mapped is read once, when it is mapped."""

import contextlib
import sys
import types

import fakegpu
import numpy

_NUMPY = {
    "bool": "?",
    "uint8": "u1",
    "int8": "i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "float16": "<f2",
    "bfloat16": "<u2",
    "float32": "<f4",
    "float64": "<f8",
    "float8_e4m3fn": "u1",
    "float8_e5m2": "u1",
}


class Dtype:
    __module__ = "torch"

    def __init__(self, name):
        self.name, self.np = name, numpy.dtype(_NUMPY[name])
        self.itemsize = self.np.itemsize

    def __reduce__(self):
        return self.name

    def __str__(self):
        return f"torch.{self.name}"


class Device:
    def __init__(self, name="cuda:0"):
        self.type, _, index = str(name).partition(":")
        self.index = int(index) if index else None

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"


class Size(tuple):
    def __reduce__(self):
        return Size, (tuple(self),)


class Tensor:
    """Contiguous. `flat` is a 1-D numpy array of its elements, a view of `storage` (bytes)."""

    def __init__(self, storage, dtype, shape, offset=0, device="cuda:0"):
        self.storage, self.dtype, self.shape = storage, dtype, Size(shape)
        self.device, self.at = Device(device), offset
        self.is_cuda = self.device.type == "cuda"
        n = self.numel() * dtype.itemsize
        self.flat = storage[offset : offset + n].view(dtype.np)

    def numel(self):
        return int(numpy.prod(self.shape, dtype=numpy.int64))

    def element_size(self):
        return self.dtype.itemsize

    def storage_offset(self):
        return self.at // self.dtype.itemsize

    def data_ptr(self):
        return self.storage.ctypes.data + self.at

    def detach(self):
        return self

    contiguous = detach

    def to(self, what):
        if isinstance(what, Dtype):
            return made(self.flat.astype(what.np), what, self.shape, self.device)
        return Tensor(self.storage.copy(), self.dtype, self.shape, self.at, what)

    def _seen(self, dtype, shape, at=None):
        return Tensor(self.storage, dtype, shape, self.at if at is None else at, self.device)

    def reshape(self, *shape):
        return self._seen(self.dtype, (self.numel(),) if shape == (-1,) else shape)

    def view(self, dtype):
        (n,) = self.shape
        if n * self.dtype.itemsize % dtype.itemsize or self.at % dtype.itemsize:
            raise RuntimeError(f"view of {n} {self.dtype} at byte {self.at} as {dtype}")
        return self._seen(dtype, (n * self.dtype.itemsize // dtype.itemsize,))

    def __getitem__(self, key):
        if not isinstance(key, slice):
            return self.flat.reshape(self.shape)[key]
        start, stop, _ = key.indices(self.shape[0])
        return self._seen(
            self.dtype, (max(stop - start, 0),), self.at + start * self.dtype.itemsize
        )

    def __setitem__(self, key, value):
        self.flat.reshape(self.shape)[key] = value

    def copy_(self, other, non_blocking=False):
        self.flat[:] = other.flat
        return self

    def bitwise_and_(self, mask):
        self.flat &= mask
        return self

    def mul_(self, other):
        self.flat *= other.flat
        return self

    def sum(self):
        return self.flat.sum(dtype=self.dtype.np)

    def tolist(self):
        return self.flat.reshape(self.shape).tolist()

    def set_(self, storage, offset, shape, strides):
        width = 1
        for dim, stride in zip(reversed(shape), reversed(strides)):
            assert stride == width, (shape, strides)
            width *= max(dim, 1)
        return Tensor(
            storage.bytes, self.dtype, shape, offset * self.dtype.itemsize, storage.device
        )


class Storage:
    """A mapped allocation of another process."""

    def __init__(self, data, device):
        self.bytes, self.device = numpy.frombuffer(bytearray(data), numpy.uint8), device


def made(array, dtype, shape, device):
    return Tensor(
        numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8), dtype, shape, 0, device
    )


class World:
    """One process's GPUs and what it has exported and mapped."""

    def __init__(self, library, n_devices=1, expandable=False):
        self.library, self.n_devices, self.expandable = library, n_devices, expandable
        self.exports, self.counters, self.n_collected = [], [], 0
        self.torch = self._install()

    def gpu(self, index):
        """Current, in whichever thread asks."""
        return fakegpu.Gpu(self.library, index)

    def synchronize(self, index=0):
        gpu = self.gpu(index)
        for tensor, at, _ in self.exports:
            gpu.write(at, tensor.storage.tobytes())

    def reduce_tensor(self, tensor):
        gpu = self.gpu(tensor.device.index)
        at = gpu.alloc(len(tensor.storage))
        handle = gpu.export(at)
        self.exports.append((tensor, at, handle))
        self.counters.append(fakegpu.Counter())
        head = b"\x02e" if self.expandable else b"\x02c"
        return self.torch.multiprocessing.reductions.rebuild_cuda_tensor, (
            Tensor,
            tensor.shape,
            (1,),
            0,
            self.torch.storage.TypedStorage,
            tensor.dtype,
            tensor.device.index,
            head + handle,
            len(tensor.storage),
            0,
            False,
            self.counters[-1].name.encode(),
            0,
            gpu.event(),
            True,
        )

    def new_shared_cuda(self, index, handle, nbytes, offset, counter, slot, event, wait):
        assert (len(handle), offset, slot, event, wait) == (64, 0, 0, b"", False)
        assert counter.startswith(b"/torch_")
        gpu = self.gpu(index)
        at = gpu.open(handle)
        try:
            return Storage(gpu.read(at, nbytes), f"cuda:{index}")
        finally:
            gpu.close(at)

    def properties(self, index):
        return types.SimpleNamespace(uuid=fakegpu.UUIDS[index].removeprefix("GPU-"))

    def collect(self):
        self.n_collected += 1

    def _cuda(self):
        cuda = types.ModuleType("torch.cuda")
        cuda.init = lambda: None
        cuda.device_count = lambda: self.n_devices
        cuda.current_device = lambda: 0
        cuda.get_device_properties = self.properties
        cuda.synchronize = self.synchronize
        cuda.ipc_collect = self.collect
        cuda.device = lambda index: contextlib.nullcontext()
        cuda.current_stream = lambda index: types.SimpleNamespace(synchronize=self.synchronize)
        return cuda

    def _install(self):
        """Under torch's names, which is also how they are pickled."""
        torch, multi = types.ModuleType("torch"), types.ModuleType("torch.multiprocessing")
        reductions = types.ModuleType("torch.multiprocessing.reductions")
        storage = types.ModuleType("torch.storage")

        def rebuild_cuda_tensor(*_):
            raise AssertionError("a pickle is read, never executed")

        def blank(n, dtype, device, value=0):
            shape = n if isinstance(n, tuple) else (n,)
            count = int(numpy.prod(shape))
            return made(numpy.full(count, value, dtype.np), dtype, shape, device)

        torch.empty = lambda n, dtype, device: blank(n, dtype, device, 85)
        torch.zeros = blank
        torch.arange = lambda a, b, dtype, device: made(
            numpy.arange(a, b, dtype=dtype.np), dtype, (b - a,), device
        )
        torch.device, torch.dtype, torch.cuda = Device, Dtype, self._cuda()
        torch.UntypedStorage = types.SimpleNamespace(_new_shared_cuda=self.new_shared_cuda)
        for module, name, value in (
            (torch, "Tensor", Tensor),
            (torch, "Size", Size),
            (storage, "TypedStorage", type("TypedStorage", (), {})),
            (reductions, "rebuild_cuda_tensor", rebuild_cuda_tensor),
        ):
            value.__module__, value.__qualname__ = module.__name__, name
            setattr(module, name, value)
        for name in _NUMPY:
            setattr(torch, name, Dtype(name))
        reductions.reduce_tensor = self.reduce_tensor
        torch.multiprocessing, torch.storage, multi.reductions = multi, storage, reductions
        for module in (torch, multi, reductions, storage, torch.cuda):
            sys.modules[module.__name__] = module
        return torch

    def remove_counters(self):
        for counter in self.counters:
            counter.remove()
