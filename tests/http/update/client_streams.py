"""client_torch's stand-in with what NCCL needs of torch besides: GPU memory that has an address on
the fake GPU, and streams and events that are the fake driver's. A copy on a stream is done when the
stream comes to it and not before, so that a client that forgets to wait sends other bytes."""

import contextlib
import ctypes
import threading
import time

import client_torch
import fakegpu
import numpy

NOT_READY = 600
NON_BLOCKING, DISABLE_TIMING = 1, 2
FILLED_WITH = 85


class Event:
    def __init__(self, world):
        self.world, self.handle = world, None

    def record(self, stream):
        gpu = self.world.gpu(stream.index)
        if self.handle is None:
            self.handle = ctypes.c_void_p()
            gpu.call("cuEventCreate", ctypes.byref(self.handle), DISABLE_TIMING)
        gpu.call("cuEventRecord", self.handle, stream.handle)

    def query(self):
        return self.handle is None or self.world.reached("cuEventQuery", self.handle)


class Stream:
    def __init__(self, world, index):
        self.world, self.index, self.handle = world, index, ctypes.c_void_p()
        world.gpu(index).call("cuStreamCreate", ctypes.byref(self.handle), NON_BLOCKING)
        self.cuda_stream = self.handle.value

    def wait_stream(self, other):
        """The default stream's work is done at once here."""
        if isinstance(other, Stream):
            event = Event(self.world)
            event.record(other)
            self.wait_event(event)

    def wait_event(self, event):
        self.world.gpu(self.index).call("cuStreamWaitEvent", self.handle, event.handle, 0)

    def synchronize(self):
        self.world.gpu(self.index).call("cuStreamSynchronize", self.handle)


class World(client_torch.World):
    def __init__(self, library, n_devices=1):
        super().__init__(library, n_devices)
        self.lib = ctypes.CDLL(library)
        self.lib.fakecuda_view.restype = ctypes.c_void_p
        self.blocks, self.lock = [], threading.Lock()
        self.blind_until = 0.0  # by the monotonic clock: until then no event is seen done
        self.local = threading.local()
        client_torch.Tensor.data_ptr = lambda tensor: self.address(tensor)
        client_torch.Tensor.copy_ = lambda tensor, other, non_blocking=False: \
            self.copy(tensor, other, non_blocking)
        cuda = self.torch.cuda
        cuda.Event = lambda: Event(self)
        cuda.Stream = lambda index: Stream(self, index)
        cuda.stream, cuda.device = self.on_stream, self.on_device
        self.torch.empty = lambda n, dtype, device: self.made(
            numpy.full(n * dtype.itemsize, FILLED_WITH, numpy.uint8), dtype, (n,), device)
        self.torch.zeros = lambda n, dtype, device: self.made(
            numpy.zeros(n if isinstance(n, tuple) else (n,), dtype.np), dtype,
            n if isinstance(n, tuple) else (n,), device)

    def reached(self, call, handle):
        result = getattr(self.lib, call)(handle)
        if result not in (0, NOT_READY):
            raise fakegpu.CudaError(call, result)
        return result == 0 and time.monotonic() > self.blind_until

    def made(self, array, dtype, shape, device):
        """A tensor in memory of the GPU."""
        data = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
        storage = self.memory(client_torch.Device(device).index, max(len(data), 1))
        storage[:len(data)] = data
        return client_torch.Tensor(storage, dtype, shape, 0, device)

    def memory(self, index, nbytes):
        """Kept for ever, as torch keeps what is freed: a stream may still be working on it."""
        at = self.gpu(index).alloc(nbytes)
        host = self.lib.fakecuda_view(ctypes.c_uint64(at), ctypes.c_size_t(nbytes))
        with self.lock:
            self.blocks.append((host, host + nbytes, at))
        return numpy.frombuffer((ctypes.c_ubyte * nbytes).from_address(host), numpy.uint8)

    def address(self, tensor):
        """On the GPU, of what is there."""
        here = tensor.storage.ctypes.data + tensor.at
        with self.lock:
            for first, end, at in self.blocks:
                if first <= here < end or here == end and not tensor.numel():
                    return at + here - first
        return here

    def copy(self, tensor, other, non_blocking):
        stream = getattr(self.local, "stream", None)
        if stream is None:
            tensor.flat[:] = other.flat
        else:
            assert non_blocking and tensor.flat.nbytes == other.flat.nbytes
            self.gpu(stream.index).call(
                "cuMemcpyDtoDAsync_v2", ctypes.c_uint64(self.address(tensor)),
                ctypes.c_uint64(self.address(other)), ctypes.c_size_t(tensor.flat.nbytes),
                stream.handle)
        return tensor

    @contextlib.contextmanager
    def on_stream(self, stream):
        before, self.local.stream = getattr(self.local, "stream", None), stream
        self.gpu(stream.index)
        try:
            yield
        finally:
            self.local.stream = before

    @contextlib.contextmanager
    def on_device(self, index):
        self.gpu(index)
        yield
