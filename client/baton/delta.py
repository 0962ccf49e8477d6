"""Deltas: what changed between two versions of a model, instead of the whole. docs/delta.md has the
form. Needs numpy, or torch for tensors on GPUs; compresses with zstd if this Python has a module of it
(compression.zstd of Python 3.14, or zstandard)."""

from __future__ import annotations

import json
import os
import re
import struct
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from .connection import ask
from .errors import BatonError, InputError
from .gpu import is_cuda
from .tensors import (DELTA_FORMAT, DTYPES, Tensor, as_pairs, as_tensors, checksum, load_file,
                      load_parts)

CHECKSUM_KEY = "checksum."
UPDATE = "/v1/update_weights"
LEASE_S = 60  # of a session: how long the server waits for a trainer that has died
GAP_MAX = 65535
PART_NBYTES_HEAD = 96  # of a part in the head of a file, but for its tensor's name
# With zstd, fractions of the elements from which one encoding is smaller than the other: a bitmap
# than gaps, a dense xor than a bitmap, as measured with random positions. Without, sizes are compared.
BITMAP_FROM, XOR_FROM = 0.047, 0.875
UNSIGNED = {1: "U8", 2: "U16", 4: "U32", 8: "U64"}
# The server's answers that mean: not this delta, or none at all, but the whole may be sent.
NO_DELTA = ("precondition_failed", "unsupported_in_proxy_mode")
# Those that mean: not these parts, where `param` says which.
NO_PART = ("bad_request", "manifest_mismatch")
PART_PARAM = re.compile("/(?:names|dtypes|shapes)/([0-9]+)")


def _numpy():
    try:
        import numpy
    except ImportError as e:
        raise InputError("a delta of tensors in host memory needs numpy") from e
    return numpy


class _Zstd:
    """zstd of level 1, by whatever module there is; `there` says if there is one."""

    def __init__(self):
        self.there, self._new, self._old = True, None, None
        try:
            from compression import zstd  # Python 3.14
            self._new = zstd
        except ImportError:
            try:
                import zstandard
                self._old = zstandard
            except ImportError:
                self.there = False

    def pack(self, data) -> bytes:
        if self._new is not None:
            return self._new.compress(data, level=1)  # in one call, so the frame says its size
        return self._old.ZstdCompressor(level=1).compress(data)

    def unpack(self, data) -> bytes:
        if not self.there:
            raise InputError("the delta is compressed, and this Python has no zstd: install zstandard")
        try:
            if self._new is not None:
                return self._new.decompress(data)
            return self._old.ZstdDecompressor().decompress(data)
        except Exception as e:  # each module has its own
            raise InputError(f"a part of the delta is no zstd frame: {e}") from e


class _Found:
    """What changed in one tensor, as arrays of numpy: n elements, of `unit` bytes each."""

    def __init__(self, dtype, shape, at, xors, new):
        self.dtype, self.shape, self.at, self.xors, self.new = dtype, shape, at, xors, new
        self.n, self.unit = len(at), DTYPES[dtype][0]
        self.numel = 1
        for dim in shape:
            self.numel *= dim


def _find_on_host(base: Tensor, new: Tensor) -> _Found:
    numpy = _numpy()
    words = f"<u{DTYPES[new.dtype][0]}"
    xor = numpy.frombuffer(base.data, words) ^ numpy.frombuffer(new.data, words)
    at = numpy.flatnonzero(xor)
    return _Found(new.dtype, new.shape, at, xor[at], lambda: new)


def _find_on_gpu(name, base, value) -> _Found:
    """torch finds it where the tensor is; what changed, a small part, is brought to the host."""
    import torch

    ints = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()]
    a, b = (t.detach().contiguous().reshape(-1).view(ints) for t in (base.to(value.device), value))
    xor = a ^ b
    at = xor.nonzero().reshape(-1)
    dtype = Tensor(str(value.dtype).rpartition(".")[2], (0,), b"").dtype
    xors = xor[at].cpu().numpy()
    return _Found(dtype, tuple(value.shape), at.cpu().numpy(), xors.view(f"<u{xors.itemsize}"),
                  lambda: as_tensors([(name, value)])[0][1])


def _gaps(found: _Found) -> List[Any]:
    numpy = _numpy()
    gap = numpy.diff(found.at, prepend=-1) - 1
    bridges = gap // (GAP_MAX + 1)
    last = numpy.cumsum(bridges + 1) - 1
    n = int(last[-1]) + 1
    gaps = numpy.full(n, GAP_MAX, "<u2")
    gaps[last] = gap - bridges * (GAP_MAX + 1)
    xors = numpy.zeros(n, found.xors.dtype)
    xors[last] = found.xors
    return [("#gap", gaps), ("#xor", xors)]


def _bitmap(found: _Found) -> List[Any]:
    numpy = _numpy()
    bits = numpy.zeros(found.numel, "u1")
    bits[found.at] = 1
    return [("#bitmap", numpy.packbits(bits, bitorder="little")), ("#xor", found.xors)]


def _index(found: _Found) -> List[Any]:
    numpy = _numpy()
    whole = numpy.frombuffer(found.new().data, found.xors.dtype)
    return [("#index", found.at.astype(f"<u{_index_nbytes(found)}")), ("#value", whole[found.at])]


def _dense(found: _Found) -> List[Any]:
    xor = _numpy().zeros(found.numel, found.xors.dtype)
    xor[found.at] = found.xors
    return [("#xor", xor.reshape(found.shape))]


def _index_nbytes(found):
    return 4 if found.numel < 2**32 else 8


def _choose(found: _Found, zstd: bool):
    """What makes the parts of the shortest encoding, or of one to be compared with the whole."""
    density = found.n / found.numel
    if zstd and density >= BITMAP_FROM:
        return _dense if density >= XOR_FROM else _bitmap
    gap = _numpy().diff(found.at, prepend=-1) - 1
    bridges = int((gap // (GAP_MAX + 1)).sum())
    sizes = {_gaps: (found.n + bridges) * (2 + found.unit),
             _index: found.n * (_index_nbytes(found) + found.unit)}
    if not zstd:
        sizes[_bitmap] = (found.numel + 7) // 8 + found.n * found.unit
    return min(sizes, key=lambda kind: sizes[kind])


def _parts_of(name: str, found: _Found, zstd: _Zstd) -> List[Tuple[str, Tensor]]:
    """The parts of one tensor that changed, or the whole of it where they are no smaller."""
    parts = []
    for suffix, array in _choose(found, zstd.there)(found):
        data = memoryview(_numpy().ascontiguousarray(array).reshape(-1)).cast("B")
        packed = zstd.pack(data) if zstd.there else data
        if len(packed) < data.nbytes:
            parts.append((f"{name}{suffix}.zst", Tensor("U8", (len(packed),), packed)))
        else:
            parts.append((name + suffix, Tensor(UNSIGNED[array.itemsize], array.shape, data)))
    one = PART_NBYTES_HEAD + len(name)
    if sum(t.nbytes + one for _, t in parts) < found.numel * found.unit + one:
        return parts
    return [(name, found.new())]


class Delta:
    """parts: what is sent, name -> Tensor. checksums: of the tensors that it makes. nbytes: of the
    parts; nbytes_whole: of the whole model."""

    def __init__(self, parts: Dict[str, Tensor], checksums: Dict[str, str], nbytes_whole: int):
        self.parts, self.checksums, self.nbytes_whole = parts, checksums, nbytes_whole
        self.nbytes = sum(t.nbytes for t in parts.values())
        self._whole: Dict[str, Callable[[], Tensor]] = {}  # of the tensors that are sent as parts

    def _without(self, e: BatonError) -> bool:
        """Makes the tensor whole whose part the server refused, and those of the same name but for the
        numbers in it: other layers'. False: the error names no part."""
        found = PART_PARAM.fullmatch(e.param or "") if e.code in NO_PART else None
        names = list(self.parts)
        if found is None or int(found[1]) >= len(names):
            return False
        name = names[int(found[1])].rpartition("#")[0]
        if name not in self._whole:
            return False
        like = re.sub("[0-9]+", "#", name)
        whole = {n for n in self._whole if re.sub("[0-9]+", "#", n) == like}
        parts: Dict[str, Tensor] = {}
        for part, t in self.parts.items():
            of = part.rpartition("#")[0]
            if of not in whole:
                parts[part] = t
            elif of not in parts:
                parts[of] = self._whole[of]()
        for n in whole:
            del self._whole[n]
        self.parts, self.nbytes = parts, sum(t.nbytes for t in parts.values())
        return True


def _loaded(tensors):
    return load_file(tensors) if isinstance(tensors, (str, os.PathLike)) else tensors


def _find(name, base, value):
    if is_cuda(value):
        if base.dtype != value.dtype or tuple(base.shape) != tuple(value.shape):
            raise InputError(f"tensor {name!r} has another dtype or shape than in the base")
        return _find_on_gpu(name, base, value)
    [(_, new)], [(_, old)] = as_tensors([(name, value)]), as_tensors([(name, base)])
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        raise InputError(f"tensor {name!r} has another dtype or shape than in the base")
    return _find_on_host(old, new)


def encode(base: Any, new: Any, partial: bool = False) -> Delta:
    """What changed from `base` to `new`, in the fewest bytes. Both are dicts of name to tensor,
    iterables of such pairs, or paths of safetensors files or of directories of them; `base` must have
    every tensor of `new` with its dtype and shape, and, unless `partial`, no other. If nothing
    changed, the delta is the smallest tensor, whole: there is no update of nothing."""
    zstd, parts, sums, whole = _Zstd(), {}, {}, 0
    news: Dict[str, Callable[[], Tensor]] = {}
    old = {str(name): value for name, value in as_pairs(_loaded(base))}
    pairs = [(str(name), value) for name, value in as_pairs(_loaded(new))]
    missing = set(old) - {name for name, _ in pairs}
    if missing and not partial:
        raise InputError(f"tensor {min(missing)!r} of the base is missing in what is to follow it")
    least = None
    for name, value in pairs:
        if name not in old:
            raise InputError(f"tensor {name!r} is not in the base: a delta has no new tensors")
        found = _find(name, old[name], value)
        nbytes = found.numel * found.unit
        whole += nbytes
        if least is None or nbytes < least[0]:
            least = (nbytes, name, value)
        if found.n:
            made = dict(_parts_of(name, found, zstd))
            parts.update(made)
            sums[name] = checksum(found.new().data)
            if name not in made:
                news[name] = found.new
    if least is None:
        raise InputError("there is nothing to push: no tensors were given")
    if not parts:
        _, name, value = least
        parts[name] = as_tensors([(name, value)])[0][1]
        sums[name] = checksum(parts[name].data)
    delta = Delta(parts, sums, whole)
    delta._whole = news
    return delta


def write(path: Any, base: Any, new: Any, base_version: Optional[str] = None,
          version: Optional[str] = None) -> Delta:
    """Writes a delta file, which `baton push`, `path` of an update and read() take. It has the checksums
    of all tensors: those that did not change prove the base."""
    new = as_pairs(_loaded(new))
    delta = encode(base, new)
    for name, value in new:
        if str(name) not in delta.checksums:
            delta.checksums[str(name)] = checksum(as_tensors([(name, value)])[0][1].data)
    head: Dict[str, Any] = {"__metadata__": {k: v for k, v in (
        ("format", DELTA_FORMAT), ("base_version", base_version), ("version", version))
        if v is not None}}
    head["__metadata__"].update((CHECKSUM_KEY + k, v) for k, v in delta.checksums.items())
    offset = 0
    for name, t in delta.parts.items():
        head[name] = {"dtype": t.dtype, "shape": list(t.shape),
                      "data_offsets": [offset, offset + t.nbytes]}
        offset += t.nbytes
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    unfinished = f"{os.fspath(path)}.{os.getpid()}"
    try:
        with open(unfinished, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for t in delta.parts.values():
                f.write(t.data)
        os.replace(unfinished, path)
    except OSError as e:
        raise InputError(f"{path}: {e.strerror}") from e
    return delta


def _places(parts, numel):
    """Positions of one tensor's parts, ascending."""
    numpy = _numpy()
    if "gap" in parts:
        return numpy.cumsum(numpy.frombuffer(parts["gap"], "<u2").astype("i8") + 1) - 1
    if "bitmap" in parts:
        bits = numpy.unpackbits(numpy.frombuffer(parts["bitmap"], "u1"), bitorder="little")
        return numpy.flatnonzero(bits)
    if "index" in parts:
        width = 8 if parts["index_is_wide"] else 4
        return numpy.frombuffer(parts["index"], f"<u{width}").astype("i8")
    if "range" in parts:
        pairs = numpy.frombuffer(parts["range"], "<u8").reshape(-1, 2).astype("i8")
        return numpy.concatenate([numpy.arange(a, a + n) for a, n in pairs])
    return numpy.arange(numel)


def _applied(name, base: Tensor, parts) -> Tensor:
    numpy = _numpy()
    unit = DTYPES[base.dtype][0]
    out = numpy.frombuffer(base.data, f"<u{unit}").copy()
    values = numpy.frombuffer(parts["xor" if "xor" in parts else "value"], out.dtype)
    if "index" in parts:
        parts["index_is_wide"] = len(parts["index"]) == 8 * len(values)
    at = _places(parts, len(out))
    if len(at) != len(values) or (numpy.diff(at) <= 0).any() or (len(at) and at[-1] >= len(out)):
        raise InputError(f"the delta's positions of tensor {name!r} do not fit it or its values")
    out[at] = out[at] ^ values if "xor" in parts else values
    return Tensor(base.dtype, base.shape, memoryview(out).cast("B") if len(out) else b"")


def read(path: Any, base: Any) -> Dict[str, Tensor]:
    """The model that a delta file makes of `base`, name -> Tensor; proven by the file's checksums."""
    try:
        (parts_of_all, metadata), zstd = load_parts(path), _Zstd()
        if metadata.get("format") != DELTA_FORMAT:
            raise InputError(f"{path} is no delta: its __metadata__ has no format {DELTA_FORMAT!r}")
        found: Dict[str, Dict[str, Any]] = {}
        out = dict(as_tensors(_loaded(base)))
        for part, t in parts_of_all.items():
            name, mark, kind = part.rpartition("#")
            if part in out or not mark:
                name, kind = part, ""
            elif kind.endswith(".zst"):
                kind, t = kind[:-4], zstd.unpack(t.data)
            if name not in out:
                raise InputError(f"the base has no tensor {name!r}")
            found.setdefault(name, {})[kind] = getattr(t, "data", t) if kind else t
        for name, parts in found.items():
            out[name] = parts[""] if "" in parts else _applied(name, out[name], parts)
        for name, t in out.items():
            said = metadata.get(CHECKSUM_KEY + name)
            if said is not None and checksum(t.data) != said:
                raise InputError(f"tensor {name!r} then has another checksum than the delta says: it "
                                 f"builds on another base, {metadata.get('base_version')}")
    except OSError as e:
        raise InputError(f"{path}: {e.strerror}") from e
    except (ValueError, KeyError, struct.error) as e:
        if isinstance(e, InputError):
            raise
        raise InputError(f"{path}: the delta cannot be used: {e}") from e
    return out


def _abort(url, update_id, reason):
    try:
        ask(url, "POST", f"{UPDATE}/abort", {"update_id": update_id, "reason": reason[:200]},
            timeout=10.0)
    except BatonError:
        pass  # the session has ended, or its lease will end it


def _send_parts(delta, send):
    """A name that the model fuses of others, or a tensor that it keeps in another dtype, comes whole:
    the server says which."""
    while True:
        try:
            return send()
        except BatonError as e:
            if not delta._without(e):
                raise


def push_delta(delta: Delta, url: str, base: Dict[str, str], weight_version: Optional[str],
               checksums: bool, partial: bool, timeout: float,
               send: Callable[[Dict[str, Tensor], Dict[str, Any]], Any]) -> Optional[Dict[str, Any]]:
    """The server's update object, or None: it does not have that base, so the whole is to be sent,
    unless that is `partial`, which would be a part of another version: an error then.
    @base  the members that name it
    @send  of parts into a session: send(parts, members) -> the answer"""
    start: Dict[str, Any] = {**base, "delta": True, "lease_s": LEASE_S}
    if weight_version:
        start["weight_version"] = weight_version
    update_id = None
    try:
        update_id = ask(url, "POST", f"{UPDATE}/start", start, timeout=timeout)["update_id"]
        _send_parts(delta, lambda: send(delta.parts, {"update_id": update_id}))
        finish: Dict[str, Any] = {"update_id": update_id}
        if checksums:
            finish["checksums"] = delta.checksums
        return ask(url, "POST", f"{UPDATE}/finish", finish, timeout=timeout)
    except BaseException as e:
        if update_id is not None and getattr(e, "code", "") != "not_handed_over":
            _abort(url, update_id, str(e))
        if isinstance(e, BatonError) and e.code in NO_DELTA and not partial:
            return None
        raise
