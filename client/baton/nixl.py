"""Pushes by NIXL: this process registers the memory of its tensors, and the server reads it.

The process has one NIXL agent, made at the first push. The memory is registered while a push lasts. After any answer
of the server it reads it no more; if there was none, or only a proxy's, the tensors stay registered, and are kept,
until the process ends."""

import base64
import contextlib
import importlib
import os
import secrets
import socket
import threading

from .connection import ask
from .errors import BatonError
from .gpu import gpu_checksums, is_cuda, on_gpus
from .progress import Watch
from .tensors import as_tensors, checksum

NOT_SENT = (ConnectionRefusedError, FileNotFoundError, socket.gaierror)
SEGMENTS = ("UCX_TCP_TX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE")  # each takes a copy of its own out of a GPU
MODULES = ("nixl._api", "nixl_cu13._api", "nixl_cu12._api")
_lock = threading.Lock()
_agents = {}  # by process: a child of fork() has none
_kept = []  # what a server may still read


def _api():
    missing = None
    for name in MODULES:
        try:
            return importlib.import_module(name)
        except ImportError as e:
            missing = missing or e
    raise BatonError(f"via 'nixl' needs the package nixl-cu12 or nixl-cu13 of PyPI in this process: {missing}",
                     code="no_nixl") from missing


def _failed(what, e):
    return BatonError(f"NIXL failed in this process: {what}: {e}", code="nixl_error")


@contextlib.contextmanager
def _large_segments():
    """What UCX reads when the agent is made. Only servers read from it, and they take as much."""
    given = any(name in os.environ for name in SEGMENTS)
    if not given:
        os.environ.update(dict.fromkeys(SEGMENTS, "512k"))
    try:
        yield
    finally:
        for name in () if given else SEGMENTS:
            os.environ.pop(name, None)


def _agent():
    """(agent, its name) of this process. Its name is no other's, also not of a process that had this one's id."""
    with _lock:
        if os.getpid() not in _agents:
            api = _api()
            name = f"trainer-{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(8)}"
            try:
                config = api.nixl_agent_config(enable_prog_thread=True, backends=["UCX"])
                with _large_segments():
                    _agents[os.getpid()] = api.nixl_agent(name, config), name
            except Exception as e:  # the bindings have errors of their own
                raise _failed("no agent", e) from e
        return _agents[os.getpid()]


class _Memory:
    """The bytes of a tensor, where they are: (memory, address, length, device)."""

    def __init__(self, name, value):
        if is_cuda(value):
            ((_, on_gpu),) = on_gpus([(name, value)], "nixl")
            self.raw = on_gpu.raw()
            self.dtype, self.shape, self.numel, self.nbytes = on_gpu.dtype, on_gpu.shape, on_gpu.numel, on_gpu.nbytes
            self.mem, self.device, self.addr = "VRAM", on_gpu.index, self.raw.data_ptr()
            return
        import numpy

        ((_, self.raw),) = as_tensors([(name, value)])
        raw = self.raw
        self.dtype, self.shape, self.numel, self.nbytes = raw.dtype, raw.shape, raw.numel, raw.nbytes
        self.mem, self.device = "DRAM", 0
        self.addr = numpy.frombuffer(self.raw.data, numpy.uint8).ctypes.data if self.nbytes else 0

    def shards(self):
        return [] if not self.nbytes else [{"agent": 0, "mem": self.mem, "device": self.device, "offset": 0,
                                            "numel": self.numel, "addr": self.addr}]


def _checksums(memories):
    raws = [m.raw for m in memories if m.mem == "VRAM"]
    on_gpu = iter(gpu_checksums(raws) if raws else ())
    return [next(on_gpu) if m.mem == "VRAM" else checksum(m.raw.data) for m in memories]


def _synchronize(memories):
    devices = {m.device for m in memories if m.mem == "VRAM"}
    if devices:
        import torch

        for device in devices:  # the server reads without these streams
            torch.cuda.synchronize(device)


@contextlib.contextmanager
def by_nixl(pairs, checksums, timeout):
    """As the others in host.py, for tensors on GPUs and in host memory."""
    if isinstance(pairs, (str, os.PathLike)):
        raise BatonError("via 'nixl' needs tensors, not the path of a file: push by 'path'", code="bad_request")
    named = [(str(name), _Memory(name, value)) for name, value in pairs]
    memories = [m for _, m in named]
    _synchronize(memories)
    agent, name = _agent()
    registered = []
    unanswered = []
    try:
        try:
            for mem in ("DRAM", "VRAM"):
                ranges = sorted({(m.addr, m.nbytes, m.device, "") for m in memories if m.mem == mem and m.nbytes})
                if ranges:
                    registered.append(agent.register_memory(ranges, mem))
            metadata = base64.b64encode(agent.get_agent_metadata()).decode()
        except Exception as e:
            raise _failed("the tensors cannot be registered", e) from e
        body = {"transport": "nixl", "agents": [{"name": name, "metadata": metadata}],
                "names": [n for n, _ in named], "dtypes": [m.dtype for m in memories],
                "shapes": [list(m.shape) for m in memories], "shards": [m.shards() for m in memories]}
        body.update({"checksums": _checksums(memories)} if checksums else {"unchecked": True})

        def send(url, members, progress):
            unanswered.append(url)  # also if this thread is interrupted
            try:
                with Watch(url, progress):
                    answer = ask(url, "POST", "/v1/update_weights", dict(body, **members), timeout=timeout)
            except BatonError as e:
                if e.code if e.status else isinstance(e.__cause__, NOT_SENT):  # a proxy's answer has no code
                    unanswered.remove(url)
                raise
            unanswered.remove(url)
            return answer

        yield send
    finally:
        if unanswered:
            _kept.append((memories, registered))
        else:
            for reg in registered:
                with contextlib.suppress(Exception):
                    agent.deregister_memory(reg)
