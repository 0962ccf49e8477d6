"""libnccl by ctypes: one communicator of which no call blocks."""

import ctypes
import importlib.util
import os
import threading

from .errors import BatonError

LEAVE_S = 10.0  # for NCCL's abort, and for a server to let a group or an update go


def _find_nccl():
    """The libnccl that torch has loaded: all ranks of a group have to run the same. Else that of
    the package nvidia.nccl, else the system's."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as f:
        for line in f:
            path = line.rstrip("\n").partition("/")[2]
            if os.path.basename(path).startswith("libnccl.so"):
                return "/" + path
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        spec = None
    for folder in spec.submodule_search_locations or () if spec else ():
        path = os.path.join(folder, "lib", "libnccl.so.2")
        if os.path.exists(path):
            return path
    return "libnccl.so.2"


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class _Config(ctypes.Structure):
    """ncclConfig_t of 2.28; other versions read of it what they know."""
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                ("blocking", ctypes.c_int), ("cga", ctypes.c_int), ("cta_min", ctypes.c_int),
                ("cta_max", ctypes.c_int), ("net", ctypes.c_void_p), ("split", ctypes.c_int),
                ("traffic", ctypes.c_int), ("name", ctypes.c_void_p),
                ("more", ctypes.c_int * 6)]

    def __init__(self):
        unset = -2**31
        super().__init__(ctypes.sizeof(_Config), 0xcafebeef, 22800, 0, unset, unset, unset, None,
                         unset, unset, None, (ctypes.c_int * 6)(*[unset] * 6))


class Nccl:
    """libnccl by ctypes, and one communicator, none of whose calls blocks. They come one at a time,
    from whichever thread: NCCL wants no more."""
    SUCCESS, IN_PROGRESS, UINT8, FLOAT32, SUM = 0, 7, 1, 7, 0

    def __init__(self, library):
        self.path = library or _find_nccl()
        try:
            self.lib = ctypes.CDLL(self.path)
            self.lib.ncclGetLastError.restype = ctypes.c_char_p
        except (OSError, AttributeError) as e:
            raise BatonError(f"libnccl could not be loaded: {e}", code="no_nccl") from e
        version = ctypes.c_int()
        self._call("ncclGetVersion", ctypes.byref(version))
        v = version.value
        self.version = f"{v // 10000}.{v // 100 % 100}.{v % 100}"
        self._comm, self._lock = ctypes.c_void_p(), threading.Lock()

    def _failed(self, name, result):
        text = (self.lib.ncclGetLastError(None) or b"").decode("utf-8", "replace").strip()
        return BatonError(f"{name} of NCCL {self.version}: {text or f'result {result}'}",
                          code="nccl_error")

    def _call(self, name, *args):
        result = getattr(self.lib, name)(*args)
        if result not in (self.SUCCESS, self.IN_PROGRESS):
            raise self._failed(name, result)

    def _on_comm(self, name, *args):
        with self._lock:
            if not self._comm:
                raise BatonError("the group was closed", code="conflict")
            self._call(name, *args)

    def mint(self):
        unique_id = _UniqueId()
        self._call("ncclGetUniqueId", ctypes.byref(unique_id))
        return bytes(unique_id)

    def begin_join(self, world_size, unique_id):
        if os.environ.get("NCCL_COMM_BLOCKING", "0") not in ("", "0"):
            raise BatonError("NCCL_COMM_BLOCKING is set: joining could block for ever; unset it",
                             code="nccl_error")
        with self._lock:
            self._call("ncclCommInitRankConfig", ctypes.byref(self._comm), world_size,
                       _UniqueId.from_buffer_copy(unique_id), 0, ctypes.byref(_Config()))

    def begin_sum(self, at, stream):
        """An all-reduce of one float32, in place."""
        self._on_comm("ncclAllReduce", ctypes.c_void_p(at), ctypes.c_void_p(at),
                      ctypes.c_size_t(1), self.FLOAT32, self.SUM, self._comm,
                      ctypes.c_void_p(stream))

    def begin_broadcast(self, at, nbytes, stream):
        self._on_comm("ncclBroadcast", ctypes.c_void_p(at), ctypes.c_void_p(at),
                      ctypes.c_size_t(nbytes), self.UINT8, 0, self._comm, ctypes.c_void_p(stream))

    def ended(self):
        """Has the last call ended? Then what it began is on its stream."""
        state = ctypes.c_int()
        self._on_comm("ncclCommGetAsyncError", self._comm, ctypes.byref(state))
        if state.value not in (self.SUCCESS, self.IN_PROGRESS):
            raise self._failed("a call", state.value)
        return state.value == self.SUCCESS

    def abort(self):
        """Ends whatever it is doing; False when that did not come back in time. (Finalizing waits
        for peers that may never come.)"""
        with self._lock:
            comm, self._comm = self._comm, ctypes.c_void_p()
        if not comm:
            return True
        thread = threading.Thread(target=self.lib.ncclCommAbort, args=(comm,), daemon=True)
        thread.start()
        thread.join(LEAVE_S)
        return not thread.is_alive()
