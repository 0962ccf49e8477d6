"""Tensors as bytes, safetensors files, checksums."""

from __future__ import annotations

import array
import ctypes
import hashlib
import json
import mmap
import os
import struct
import sys
from typing import Any, Dict, Iterable, List, Tuple

from .errors import InputError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DELTA_FORMAT = "baton-delta-1"  # __metadata__ "format" of a delta file
LENGTH_NBYTES = 8  # of a safetensors file, which begin with its header's length
PIECE_NBYTES = 8 << 20  # of a body on its way out, and of a checksum
DTYPES = {  # canonical (safetensors) name -> bytes an element, other spellings
    "BOOL": (1, ("bool",)), "U8": (1, ("uint8",)), "I8": (1, ("int8",)),
    "F8_E5M2": (1, ("float8_e5m2",)), "F8_E4M3": (1, ("float8_e4m3fn",)),
    "F8_E8M0": (1, ("float8_e8m0fnu",)),
    "I16": (2, ("int16",)), "U16": (2, ("uint16",)),
    "F16": (2, ("float16", "half")), "BF16": (2, ("bfloat16",)),
    "I32": (4, ("int32",)), "U32": (4, ("uint32",)), "F32": (4, ("float32", "float")),
    "I64": (8, ("int64",)), "U64": (8, ("uint64",)), "F64": (8, ("float64", "double")),
    "C64": (8, ("complex64",)),
}
CANONICAL = {alias: name for name, (_, aliases) in DTYPES.items() for alias in aliases + (name,)}


class Tensor:
    """A tensor as plain bytes: dtype (any known spelling), shape, and a bytes-like object."""

    def __init__(self, dtype: str, shape: Iterable[int], data: Any):
        if str(dtype) not in CANONICAL:
            raise InputError(f"unknown dtype {str(dtype)!r}; known: {', '.join(sorted(CANONICAL))}")
        self.dtype, self.shape = CANONICAL[str(dtype)], tuple(int(d) for d in shape)
        self.data = memoryview(data).cast("B")
        numel = 1
        for dim in self.shape:
            numel *= dim
        self.numel, self.nbytes = numel, numel * DTYPES[self.dtype][0]
        if self.data.nbytes != self.nbytes:
            raise InputError(f"{self.dtype} of shape {list(self.shape)} takes {self.nbytes} bytes, "
                             f"got {self.data.nbytes}")


def _from_torch(t):
    dtype = str(t.dtype).rpartition(".")[2]
    host = t.detach().to("cpu").contiguous()
    nbytes = host.numel() * host.element_size()
    data = (ctypes.c_char * nbytes).from_address(host.data_ptr()) if nbytes else b""
    tensor = Tensor(dtype, t.shape, data)
    tensor.owner = host  # the bytes are its own
    return tensor


def _from_numpy(a):
    import numpy

    flat = numpy.ascontiguousarray(a).reshape(-1)
    if flat.dtype.byteorder == ">":
        flat = flat.astype(flat.dtype.newbyteorder("<"))
    return Tensor(a.dtype.name, a.shape, flat.view(numpy.uint8) if flat.size else b"")


def _tensor(name, value):
    if isinstance(value, Tensor):
        return value
    if not hasattr(value, "dtype"):
        raise InputError(f"tensor {name!r} is a {type(value).__name__}, not a torch tensor, a "
                         "numpy array or a baton.Tensor")
    try:
        if type(value).__module__.partition(".")[0] == "torch":
            return _from_torch(value)
        return _from_numpy(value)
    except (ValueError, TypeError, AttributeError, RuntimeError, ImportError) as e:
        raise InputError(f"tensor {name!r}: {e}") from e


def as_pairs(tensors):
    """Names and tensors, in a list: an iterable can be read once."""
    if callable(getattr(tensors, "state_dict", None)):
        raise InputError(f"tensors is a {type(tensors).__name__}: push its state_dict()")
    try:
        return [(name, value)
                for name, value in (tensors.items() if hasattr(tensors, "items") else tensors)]
    except (TypeError, ValueError) as e:
        raise InputError("tensors is a dict of name to tensor, an iterable of such pairs, or the "
                         f"path of a safetensors file, not {type(tensors).__name__}: {e}") from e


def as_tensors(tensors):
    out = [(str(name), _tensor(name, value)) for name, value in as_pairs(tensors)]
    if not out:
        raise InputError("there is nothing to push: no tensors were given")
    return out


def _map_file(path):
    try:
        with open(path, "rb") as f:
            if os.fstat(f.fileno()).st_size < LENGTH_NBYTES:
                raise InputError(f"{path}: not a safetensors file, it has less than 8 bytes")
            return memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as e:
        raise InputError(f"{path}: {e.strerror}") from e


def _shards(path: str) -> Dict[str, List[str]]:
    """file -> the tensors that it must have, of a checkpoint in a directory: those of its index, else
    model.safetensors, else every safetensors file."""
    try:
        here = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
        if INDEX not in os.listdir(path):
            return dict.fromkeys([SINGLE] if SINGLE in here else here, [])
        with open(os.path.join(path, INDEX), encoding="utf-8") as f:
            index = json.load(f)["weight_map"]
        files: Dict[str, List[str]] = {}
        for tensor, name in index.items():
            if os.path.basename(name) != name:
                raise ValueError(f"{tensor} is in {name!r}, no file of this directory")
            files.setdefault(name, []).append(tensor)
    except OSError as e:
        raise InputError(f"{path}: {e.strerror}") from e
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise InputError(f"{path}: its {INDEX} cannot be used: {e}") from e
    if SINGLE in here and SINGLE not in files:
        raise InputError(f"{path} has {SINGLE} beside an index ({INDEX}) of other files: remove "
                         "what does not belong to the checkpoint, or name one file")
    return files


def _load_dir(path: str) -> Dict[str, Tensor]:
    tensors: Dict[str, Tensor] = {}
    owners: Dict[str, str] = {}
    shards = _shards(path)
    if not shards:
        raise InputError(f"{path} has no .safetensors file")
    for name, expected in shards.items():
        found = load_file(os.path.join(path, name))
        for tensor in expected:
            if tensor not in found:
                raise InputError(f"{path}: {INDEX} says that {tensor} is in {name}, and it is not")
        for tensor in found:
            if tensor in owners:
                raise InputError(f"{path}: {tensor} is in {owners[tensor]} and in {name}: name one "
                                 "file, or remove those that do not belong to the checkpoint")
            owners[tensor] = name
        tensors.update(found)
    return tensors


def load_file(path: Any) -> Dict[str, Tensor]:
    """The tensors of a safetensors file, or of the files of a directory, name -> Tensor, over
    read-only maps of them. InputError if it is none, or a delta."""
    if os.path.isdir(path):
        return _load_dir(os.fspath(path))
    tensors, metadata = load_parts(path)
    if metadata.get("format") == DELTA_FORMAT:
        raise InputError(f"{path} is a delta: 'baton push' sends it, and baton.delta.read gives the "
                         "tensors that it makes of its base")
    return tensors


def load_parts(path: Any) -> Tuple[Dict[str, Tensor], Dict[str, str]]:
    """Those of one file, which may be a delta, as they are there; and its __metadata__."""
    mapped = _map_file(path)
    if mapped[:4] == b"PK\3\4" or mapped[:2] in (b"\x80\2", b"\x80\4", b"\x80\5"):
        raise InputError(f"{path}: not a safetensors file, but one of torch.save or pickle: load "
                         "it and push its tensors, or save it by safetensors.torch.save_file")
    (n,) = struct.unpack("<Q", mapped[:LENGTH_NBYTES])
    start = LENGTH_NBYTES + n
    if start > mapped.nbytes:
        raise InputError(f"{path}: not a safetensors file, or cut off: its first 8 bytes say that "
                         f"the header has {n} bytes, and the file has {mapped.nbytes}")
    try:
        header = json.loads(bytes(mapped[LENGTH_NBYTES:start]))
        metadata = dict(header.pop("__metadata__", None) or {})
        order = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        return {name: _slice(name, t, mapped[start:]) for name, t in order}, metadata
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as e:
        raise InputError(f"{path}: not a safetensors file, its header cannot be used: {e}") from e


def _slice(name, about, data):
    begin, end = about["data_offsets"]
    if not 0 <= begin <= end <= data.nbytes:
        raise ValueError(f"tensor {name!r} ends at byte {end} of {data.nbytes}: the file was cut")
    return Tensor(about["dtype"], about["shape"], data[begin:end])


def _sum_numpy(data, numpy):
    a = b = 0
    seen = 0
    for start in range(0, len(data), PIECE_NBYTES):
        piece = bytes(data[start:start + PIECE_NBYTES])
        piece += b"\0" * (-len(piece) % 4)
        words = numpy.frombuffer(piece, dtype="<u4").astype(numpy.uint64)
        places = numpy.arange(seen + 1, seen + 1 + len(words), dtype=numpy.uint64)
        a += int(words.sum(dtype=numpy.uint64))
        b += int((words * places).sum(dtype=numpy.uint64))
        seen += len(words)
    return a, b


def _sum_plain(data):
    a = b = 0
    seen = 0
    for start in range(0, len(data), PIECE_NBYTES):
        piece = bytes(data[start:start + PIECE_NBYTES])
        words = array.array("I", piece + b"\0" * (-len(piece) % 4))
        if sys.byteorder == "big":
            words.byteswap()
        a += sum(words)
        b += sum(i * w for i, w in enumerate(words, seen + 1))
        seen += len(words)
    return a, b


def checksum(data: Any) -> str:
    """baton's checksum of a tensor's bytes, 32 hex digits: over its little-endian 32-bit words w,
    A = sum of w[i] and B = sum of (i+1)*w[i], both mod 2**64; A first."""
    try:
        import numpy
    except ImportError:
        a, b = _sum_plain(data)
    else:
        a, b = _sum_numpy(data, numpy)
    return f"{a & (2**64 - 1):016x}{b & (2**64 - 1):016x}"


def plan_digest(named: Iterable[Tuple[str, Any]]) -> str:
    """The digest that names a plan: SHA-256 over name, dtype and shape of each tensor, in order."""
    lines = "".join(f"{name}\t{t.dtype}\t{','.join(map(str, t.shape))}\n" for name, t in named)
    return hashlib.sha256(lines.encode()).hexdigest()
