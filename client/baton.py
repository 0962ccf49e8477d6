"""Push weights into a running baton server. One file: copy it next to your trainer.

    import baton
    baton.push(model.state_dict(), "http://127.0.0.1:8700", weight_version="step-100")

Needs the standard library; uses torch or numpy when the tensors are theirs. A push is one whole
update: the call returns when the server has received every byte, proven it and put it into service,
and raises BatonError, with the server's own words, in every other case.

Tensors on GPUs of the server's host need not leave them: push(..., via="ipc") packs them into a
buffer on their GPU, exports it once with CUDA IPC, and refills it when the server has copied it.
The other way round, on that host,

    with baton.attach("http://127.0.0.1:8700") as served:
        reference.load_state_dict(served.tensors)

sees the weights that a server with --device cuda:N serves as torch tensors, without a copy. They
are the server's own memory: read them, do not write, and not after the end of the with.
"""

import argparse
import array
import base64
import concurrent.futures
import ctypes
import hashlib
import http.client
import itertools
import json
import mmap
import os
import pickle
import secrets
import struct
import sys
import threading
import time
import urllib.parse

__all__ = ["BatonError", "Tensor", "push", "attach", "Attached", "request", "load_file", "checksum",
           "plan_digest"]

PIECE_NBYTES = 8 << 20  # of a body on its way out, and of a checksum
GPU_PIECE_NBYTES = 16 << 20  # of a checksum on a GPU; takes five times as much there
POLL_S = 0.2  # between two looks at the progress of an update
COUNTER_OFFSET = 64  # of slot 0 in torch's file of export counters
LOOPBACK = ("127.0.0.1", "localhost", "::1")

DTYPES = {  # canonical (safetensors) name -> bytes an element, other spellings
    "BOOL": (1, ("bool",)), "U8": (1, ("uint8",)), "I8": (1, ("int8",)),
    "F8_E5M2": (1, ("float8_e5m2",)), "F8_E4M3": (1, ("float8_e4m3fn",)),
    "I16": (2, ("int16",)), "U16": (2, ("uint16",)),
    "F16": (2, ("float16", "half")), "BF16": (2, ("bfloat16",)),
    "I32": (4, ("int32",)), "U32": (4, ("uint32",)), "F32": (4, ("float32", "float")),
    "I64": (8, ("int64",)), "U64": (8, ("uint64",)), "F64": (8, ("float64", "double")),
}
_CANONICAL = {alias: name for name, (_, aliases) in DTYPES.items() for alias in aliases + (name,)}


class BatonError(Exception):
    """The server refused, or could not be reached. `message` is in the server's words."""

    def __init__(self, message, status=0, code="", param=None, retryable=False, details=None,
                 request_id=""):
        self.message, self.status, self.code, self.param = message, status, code, param
        self.retryable, self.details, self.request_id = retryable, details, request_id
        where = f" (at {param})" if param else ""
        what = f"{status} {code}: " if status else ""
        listed = ""
        if code == "incomplete_update" and details and details.get("missing"):
            listed = f"; missing: {', '.join(details['missing'][:8])}"
        super().__init__(f"{what}{message}{where}{listed}")


class Tensor:
    """A tensor as plain bytes: dtype (any known spelling), shape, and a bytes-like object."""

    def __init__(self, dtype, shape, data):
        if str(dtype) not in _CANONICAL:
            raise ValueError(f"unknown dtype {dtype!r}")
        self.dtype, self.shape = _CANONICAL[str(dtype)], tuple(int(d) for d in shape)
        self.data = memoryview(data).cast("B")
        numel = 1
        for dim in self.shape:
            numel *= dim
        self.numel, self.nbytes = numel, numel * DTYPES[self.dtype][0]
        if self.data.nbytes != self.nbytes:
            raise ValueError(f"{self.dtype} of shape {list(self.shape)} takes {self.nbytes} bytes, "
                             f"got {self.data.nbytes}")


def _from_torch(t):
    import torch

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
    try:
        if isinstance(value, Tensor):
            return value
        if type(value).__module__.partition(".")[0] == "torch":
            return _from_torch(value)
        return _from_numpy(value)
    except (ValueError, TypeError, AttributeError, RuntimeError) as e:
        raise ValueError(f"tensor {name!r}: {e}") from e


def _named(tensors):
    pairs = tensors.items() if hasattr(tensors, "items") else tensors
    out = [(str(name), _tensor(name, value)) for name, value in pairs]
    if not out:
        raise ValueError("there is nothing to push: no tensors were given")
    return out


def load_file(path):
    """The tensors of a safetensors file, name -> Tensor, over a read-only map of it."""
    with open(path, "rb") as f:
        mapped = memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))
    (n,) = struct.unpack("<Q", mapped[:8])
    header = json.loads(bytes(mapped[8:8 + n]))
    header.pop("__metadata__", None)
    order = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    return {name: Tensor(t["dtype"], t["shape"],
                         mapped[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
            for name, t in order}


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


def checksum(data):
    """baton's checksum of a tensor's bytes, 32 hex digits: over its little-endian 32-bit words w,
    A = sum of w[i] and B = sum of (i+1)*w[i], both mod 2**64; A first."""
    try:
        import numpy
    except ImportError:
        a, b = _sum_plain(data)
    else:
        a, b = _sum_numpy(data, numpy)
    return f"{a & (2**64 - 1):016x}{b & (2**64 - 1):016x}"


def plan_digest(named):
    """The digest that names a plan: SHA-256 over name, dtype and shape of each tensor, in order."""
    lines = "".join(f"{name}\t{t.dtype}\t{','.join(map(str, t.shape))}\n" for name, t in named)
    return hashlib.sha256(lines.encode()).hexdigest()


def _connect(url, timeout):
    parts = urllib.parse.urlsplit(url if "//" in url else "http://" + url)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"url {url!r}: the scheme is http or https")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=timeout), parts.path.rstrip("/"), parts.hostname


def _failure(status, body, headers):
    request_id = headers.get("X-Request-Id", "")
    try:
        error = json.loads(body)["error"]
        return BatonError(error["message"], status, str(error.get("code", "")), error.get("param"),
                          bool(error.get("retryable")), error.get("details"), request_id)
    except (ValueError, KeyError, TypeError):
        text = body[:300].decode("utf-8", "replace").strip()
        return BatonError(text or "no body", status, request_id=request_id)


def request(url, method, path, body=None, headers=None, timeout=600.0):
    """One request; returns the decoded JSON answer (bytes when it is not JSON)."""
    connection, prefix, _ = _connect(url, timeout)
    headers = dict(headers or {})
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    try:
        try:
            connection.request(method, prefix + path, body=body, headers=headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server may have answered before it read everything: its answer says why
        answer = connection.getresponse()
        data = answer.read()
    except (OSError, http.client.HTTPException) as e:
        raise BatonError(f"{method} {url}{path}: {type(e).__name__}: {e}", code="connection",
                         retryable=True) from e
    finally:
        connection.close()
    if answer.status >= 400:
        raise _failure(answer.status, data, answer.headers)
    if answer.headers.get("Content-Type", "").startswith("application/json"):
        return json.loads(data)
    return data


class _Bar:
    """progress=True: one line on standard error, redrawn."""

    def __call__(self, done, total):
        share = done / total if total else 1.0
        filled = int(share * 30)
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\r[{'#' * filled}{'.' * (30 - filled)}] {done / 1e6:.1f} of "
                         f"{total / 1e6:.1f} MB{end}")
        sys.stderr.flush()


class _Watch:
    """Shows the server's own count of received bytes while a request runs."""

    def __init__(self, url, progress):
        self.url, self.progress, self.stop = url, progress, threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self.stop.wait(POLL_S):
            try:
                update = request(self.url, "GET", "/v1/status", timeout=5.0).get("update")
            except BatonError:
                continue
            if update and update["nbytes_total"] and not self.stop.is_set():
                self.progress(min(update["nbytes_done"], update["nbytes_total"] - 1),
                              update["nbytes_total"])

    def __enter__(self):
        if self.progress:
            self.thread.start()

    def __exit__(self, *_):
        self.stop.set()
        if self.progress:
            self.thread.join()


def _columns(named, checksums):
    body = {"names": [n for n, _ in named], "dtypes": [t.dtype for _, t in named],
            "shapes": [list(t.shape) for _, t in named], "sizes": [t.numel for _, t in named],
            "packed": True}
    if checksums:
        body["checksums"] = [checksum(t.data) for _, t in named]
    return body


def _push_shm(named, url, members, checksums, progress, timeout):
    total = sum(t.nbytes for _, t in named)
    name = f"/baton-{os.getpid()}-{secrets.token_hex(8)}"
    fd = os.open("/dev/shm" + name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, max(total, 1))  # a full /dev/shm is an error here, not a signal
        offset = 0
        for _, t in named:
            view = t.data
            while view.nbytes:
                n = os.pwrite(fd, view[:1 << 30], offset)
                view, offset = view[n:], offset + n
        body = dict(_columns(named, checksums), shm={"name": name, "offset": 0, "nbytes": total},
                    **members)
        with _Watch(url, progress):
            return request(url, "POST", "/v1/update_weights", body, timeout=timeout)
    finally:
        os.close(fd)
        os.unlink("/dev/shm" + name)


def _header(named, checksums):
    header, offset = {}, 0
    if checksums:
        header["__metadata__"] = {f"baton.checksum.{n}": checksum(t.data) for n, t in named}
    for name, t in named:
        header[name] = {"dtype": t.dtype, "shape": list(t.shape),
                        "data_offsets": [offset, offset + t.nbytes]}
        offset += t.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, offset


def _push_body(named, url, members, checksums, progress, timeout):
    head, total = _header(named, checksums)

    def pieces():
        done = 0
        yield head
        for _, t in named:
            for start in range(0, t.nbytes, PIECE_NBYTES):
                piece = t.data[start:start + PIECE_NBYTES]
                yield piece
                done += piece.nbytes
                if progress and done < total:
                    progress(done, total)

    query = urllib.parse.urlencode({k: str(v).lower() if isinstance(v, bool) else v
                                    for k, v in members.items()})
    return request(url, "POST", "/v1/update_weights" + ("?" + query if query else ""), pieces(),
                   {"Content-Type": "application/vnd.safetensors",
                    "Content-Length": str(len(head) + total)}, timeout)


class _OnGpu:
    """A torch tensor that is on a GPU, and stays there."""

    def __init__(self, name, value):
        dtype = str(value.dtype).rpartition(".")[2]
        if dtype not in _CANONICAL:
            raise ValueError(f"tensor {name!r}: unknown dtype {dtype!r}")
        self.value, self.index = value, value.device.index
        self.dtype, self.shape = _CANONICAL[dtype], tuple(value.shape)
        self.numel = value.numel()
        self.nbytes = self.numel * DTYPES[self.dtype][0]

    def raw(self):
        """Its bytes, packed, as a 1-D uint8 tensor: a view where it lies packed already."""
        import torch

        return self.value.detach().contiguous().reshape(-1).view(torch.uint8)


def _is_cuda(value):
    return getattr(value, "is_cuda", False) is True


def _on_gpus(pairs):
    if isinstance(pairs, (str, os.PathLike)):
        raise ValueError("via 'ipc' needs torch tensors on a GPU, not the path of a file")
    for name, value in pairs:
        if not _is_cuda(value):
            raise ValueError(f"tensor {name!r}: via 'ipc' needs torch tensors on a GPU")
    if not pairs:
        raise ValueError("there is nothing to push: no tensors were given")
    return [(str(name), _OnGpu(name, value)) for name, value in pairs]


def _exports_plainly(value):
    """False in a process whose allocator makes expandable segments: nobody else can map those."""
    import torch

    bucket = _Bucket(value.device.index, 1)
    plain = bucket.args[7][1:2] != b"e"
    bucket.settle()
    del bucket
    torch.cuda.ipc_collect()
    return plain


def _has_gpus(url):
    """Does the server keep weights on a GPU?"""
    try:
        return bool(request(url, "GET", "/v1/status", timeout=10.0)["cuda"]["ranks"])
    except (BatonError, KeyError, TypeError):
        return False


def _gpu_words(raw):
    """The little-endian 32-bit words of a 1-D uint8 tensor as int64, zeros after its end."""
    import torch

    missing = -raw.numel() % 4
    if missing or raw.storage_offset() % 4 or raw.data_ptr() % 4:
        padded = torch.zeros(raw.numel() + missing, dtype=torch.uint8, device=raw.device)
        padded[:raw.numel()].copy_(raw)
        raw = padded
    return raw.view(torch.int32).to(torch.int64).bitwise_and_(0xFFFFFFFF)


def gpu_checksums(raws):
    """checksum() of each 1-D uint8 torch tensor, where they are; all on one GPU. In pieces, so that
    it takes little memory there, and with one copy to the host in all."""
    import torch

    sums = torch.zeros((len(raws), 2), dtype=torch.int64, device=raws[0].device)
    for k, raw in enumerate(raws):
        for start in range(0, raw.numel(), GPU_PIECE_NBYTES):
            words = _gpu_words(raw[start:start + GPU_PIECE_NBYTES])
            first = start // 4 + 1
            sums[k, 0] += words.sum()  # wraps mod 2**64, as wanted
            places = torch.arange(first, first + words.numel(), dtype=torch.int64,
                                  device=words.device)
            sums[k, 1] += words.mul_(places).sum()
    return [f"{a & (2**64 - 1):016x}{b & (2**64 - 1):016x}" for a, b in sums.tolist()]


class _Bucket:
    """A buffer on one GPU, exported once and refilled. Nobody may write to it between the request
    that names it and its answer."""

    def __init__(self, index, nbytes):
        import torch
        from torch.multiprocessing.reductions import reduce_tensor

        self.index = index
        self.bytes = torch.empty(max(nbytes, 1), dtype=torch.uint8, device=f"cuda:{index}")
        self.args = reduce_tensor(self.bytes)[1]
        self.uuid = str(torch.cuda.get_device_properties(index).uuid)

    def fill(self, chunk):
        """Packs the chunk and waits for it: the exported event knows nothing of later copies."""
        import torch

        at = 0
        with torch.cuda.device(self.index):
            for _, t in chunk:
                if t.nbytes:
                    self.bytes[at:at + t.nbytes].copy_(t.raw(), non_blocking=True)
                at += t.nbytes
            torch.cuda.current_stream(self.index).synchronize()

    def args_of(self, chunk, placement):
        """The export as the request tells it. Where each GPU has a list of its own, a bucket is
        as long as its list: the server takes a difference for swapped lists."""
        if placement is None:
            return self.args
        size = type(self.args[1])((sum(t.nbytes for _, t in chunk),))
        return (self.args[0], size) + self.args[2:]

    def settle(self):
        """Nobody reads it any more. The server counts an export down; one that it never opened
        would keep the memory in this process for good, so its counter is put to zero here."""
        name, slot = self.args[11], self.args[12]
        if not name:
            return
        try:
            fd = os.open("/dev/shm" + name.decode(), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return  # torch has removed it: everything in it was counted down
        try:
            os.pwrite(fd, bytes(8), COUNTER_OFFSET + 8 * slot)
        finally:
            os.close(fd)


def _cut(named, nbytes_max):
    """In order, as many in each as fit, one at least."""
    chunk, nbytes = [], 0
    for name, t in named:
        if chunk and nbytes + t.nbytes > nbytes_max:
            yield chunk
            chunk, nbytes = [], 0
        chunk.append((name, t))
        nbytes += t.nbytes
    if chunk:
        yield chunk


def _cut_finer(chunks, n):
    """The same in n chunks, if there are as many tensors: what has most of them is halved."""
    while len(chunks) < n:
        k = max(range(len(chunks)), key=lambda i: len(chunks[i]))
        half = len(chunks[k]) // 2
        if half == 0:
            break
        chunks[k:k + 1] = [chunks[k][:half], chunks[k][half:]]
    return chunks


def _rounds(named, nbytes_max, placement):
    """What each request carries: a list of chunks, one for each GPU that it speaks of. A request
    that spoke of fewer GPUs than it has ranks would feed several from one."""
    groups = {}
    for name, t in named:
        groups.setdefault(t.index, []).append((name, t))
    cuts = [list(_cut(group, nbytes_max)) for group in groups.values()]
    if placement is None:
        return [[chunk] for cut in cuts for chunk in cut]
    n = max(map(len, cuts))
    return [[c for c in at if c] for at in itertools.zip_longest(*(_cut_finer(c, n) for c in cuts))]


def _gpu_columns(chunk, checksums):
    columns = {"names": [n for n, _ in chunk], "dtypes": [t.dtype for _, t in chunk],
               "shapes": [list(t.shape) for _, t in chunk], "sizes": [t.numel for _, t in chunk]}
    if checksums:
        columns["checksums"] = gpu_checksums([t.raw() for _, t in chunk])
    return columns


class _Slot:
    """Buckets that are filled and sent together, one on each GPU, and the request under way."""

    def __init__(self):
        self.buckets, self.sent = {}, None

    def wait(self):
        sent, self.sent = self.sent, None
        if sent is not None:
            sent.result()

    def settle(self):
        while self.buckets:
            self.buckets.popitem()[1].settle()

    def body(self, chunks, nbytes, checksums, placement):
        """Fills the buckets; returns the request for them. @nbytes of a bucket, by GPU."""
        per_gpu, handles = {}, {}
        for chunk in chunks:
            index = chunk[0][1].index
            if index not in self.buckets:
                self.buckets[index] = _Bucket(index, nbytes[index])
            bucket = self.buckets[index]
            bucket.fill(chunk)
            per_gpu[bucket.uuid] = _gpu_columns(chunk, checksums)
            handles[bucket.uuid] = bucket.args_of(chunk, placement)
        body = {"per_gpu": per_gpu}
        if placement is None:
            (body,) = per_gpu.values()
            body["tensor_sizes"] = [t.nbytes for _, t in chunks[0]]
        body["packed"] = True
        body["ipc_handles_pickled"] = base64.b64encode(pickle.dumps(handles, 4)).decode()
        return body


def _send_rounds(slots, rounds, post, checksums, placement):
    """Each slot's answer is waited for before its buckets are written again."""
    nbytes = {}
    for chunk in itertools.chain.from_iterable(rounds):
        index = chunk[0][1].index
        nbytes[index] = max(nbytes.get(index, 0), sum(t.nbytes for _, t in chunk))
    with concurrent.futures.ThreadPoolExecutor(len(slots)) as pool:
        for chunks, slot in zip(rounds, itertools.cycle(slots)):
            slot.wait()
            slot.sent = pool.submit(post, slot.body(chunks, nbytes, checksums, placement))
        # the pool's end waits for all of them, also after an error
    for slot in slots:
        slot.wait()


def _push_ipc(named, url, members, checksums, progress, timeout, bucket_nbytes, placement):
    import torch

    rounds = _rounds(named, bucket_nbytes, placement)
    slots = [_Slot() for _ in range(min(len(rounds), 2))]
    opened = "update_id" not in members
    if opened:
        members = dict(members, placement=placement) if placement else members
        started = request(url, "POST", "/v1/update_weights/start", members, timeout=timeout)
        members = {"update_id": started["update_id"]}
    update_id = members["update_id"]

    def post(body):
        return request(url, "POST", "/v1/update_weights", dict(body, **members), timeout=timeout)

    try:
        with _Watch(url, progress):
            _send_rounds(slots, rounds, post, checksums, placement)
            if opened:
                return request(url, "POST", "/v1/update_weights/finish", {"update_id": update_id},
                               timeout=timeout)
            return request(url, "GET", f"/v1/update_weights/{update_id}", timeout=timeout)
    except BaseException as e:
        if opened:
            _abort(url, update_id, e)
        raise
    finally:
        for slot in slots:
            slot.settle()
        torch.cuda.ipc_collect()  # gives the buckets back to the allocator


def _abort(url, update_id, cause):
    try:
        request(url, "POST", "/v1/update_weights/abort",
                {"update_id": update_id, "reason": f"{type(cause).__name__}: {cause}"[:200]},
                timeout=30.0)
    except BatonError:
        pass  # it has ended already, or its lease will end it


def _choose(tensors, url, host):
    """What "auto" means for these tensors and this server."""
    if host not in LOOPBACK:
        return "body"
    if isinstance(tensors, (str, os.PathLike)) or not all(_is_cuda(v) for _, v in tensors):
        return "shm"
    return "ipc" if tensors and _exports_plainly(tensors[0][1]) and _has_gpus(url) else "shm"


def push(tensors, url, via="auto", weight_version=None, checksums=True, partial=False,
         convert=False, update_id=None, progress=None, timeout=600.0, bucket_nbytes=1 << 30,
         placement=None):
    """Push one whole update and return the server's update object.

    tensors         name -> torch tensor, numpy array or Tensor (or an iterable of pairs); or the
                    path of a safetensors file
    via             "ipc" (torch tensors on GPUs of the server's host), "shm" (same host), "body",
                    "path" (tensors is a path that the server can read), or "auto": to a loopback
                    address ipc if all tensors are on GPUs and the server keeps weights on one, else
                    shm; elsewhere body
    weight_version  the label that replies will carry
    checksums       send one for each tensor; the server then proves the bytes, not only the lengths
    partial         tensors that are not sent stay as they are
    convert         let the server convert dtypes that differ from the model's
    update_id       push into an open session instead (it commits at its finish)
    progress        None, True (a bar on standard error), or a function of (done, total) bytes
    bucket_nbytes   ipc: bytes of the buffer on each GPU; there are two of them when the tensors do
                    not fit into one, so that one is filled while the other is copied
    placement       ipc, tensors on several GPUs: "sharded" or "replicated" sends each of the
                    server's GPUs what lies on that GPU here; without it every one gets everything
    """
    _, _, host = _connect(url, timeout)
    members = {k: v for k, v in (("weight_version", weight_version), ("partial", partial),
                                 ("convert", convert), ("update_id", update_id)) if v}
    progress = _Bar() if progress is True else progress
    if not isinstance(tensors, (str, os.PathLike)):  # an iterable can be read once
        tensors = list(tensors.items() if hasattr(tensors, "items") else tensors)
    if placement is not None and via != "ipc":
        raise ValueError(f"placement goes with via 'ipc', not {via!r}")
    if via == "auto":
        via = _choose(tensors, url, host)
    if via == "ipc":
        answer = _push_ipc(_on_gpus(tensors), url, members, checksums, progress, timeout,
                           bucket_nbytes, placement)
    elif via == "path":
        if not isinstance(tensors, (str, os.PathLike)):
            raise ValueError("via 'path' needs the path of a safetensors file, not tensors")
        body = dict(members, path=os.path.abspath(tensors))
        with _Watch(url, progress):
            answer = request(url, "POST", "/v1/update_weights", body, timeout=timeout)
    elif via in ("shm", "body"):
        named = _named(load_file(tensors) if isinstance(tensors, (str, os.PathLike)) else tensors)
        send = _push_shm if via == "shm" else _push_body
        answer = send(named, url, members, checksums, progress, timeout)
    else:
        raise ValueError(f"via {via!r} is not one of auto, ipc, shm, body, path")
    if progress:
        progress(answer["nbytes_done"], answer["nbytes_done"])
    return answer


def _strides(shape):
    strides = [1] * len(shape)
    for k in range(len(shape) - 1, 0, -1):
        strides[k - 1] = strides[k] * max(shape[k], 1)
    return tuple(strides)


def _torch_dtype(name):
    import torch

    dtype = getattr(torch, DTYPES[_CANONICAL[name]][1][0], None) if name in _CANONICAL else None
    return dtype if isinstance(dtype, torch.dtype) else None


def _shared_storage(slab, index):
    """A slab of the server as a torch storage on GPU `index` of this process."""
    import torch

    nowhere = b"/torch_%d_%d_0" % (os.getpid(), secrets.randbits(32))  # nothing is counted there
    return torch.UntypedStorage._new_shared_cuda(index, base64.b64decode(slab["handle"]),
                                                 slab["nbytes"], 0, nowhere, 0, b"", False)


def _view(storage, dtype, shape, offset):
    """The tensor at that byte of the storage; where torch has no such dtype, or could not read one
    there, its bytes."""
    import torch

    numel = 1
    for dim in shape:
        numel *= dim
    known = _torch_dtype(dtype)
    nbytes = numel * DTYPES[_CANONICAL[dtype]][0]
    if known is None or offset % known.itemsize:
        flat = torch.empty(0, dtype=torch.uint8, device=storage.device)
        return flat.set_(storage, offset, (nbytes,), (1,))
    empty = torch.empty(0, dtype=known, device=storage.device)
    return empty.set_(storage, offset // known.itemsize, tuple(shape), _strides(shape))


def _bare_uuid(text):
    return str(text).lower().removeprefix("gpu-").removeprefix("mig-")


def _places(devices, device):
    """(device of the answer, index of the GPU here to map it on), the preferred one first."""
    import torch

    here = {_bare_uuid(torch.cuda.get_device_properties(i).uuid): i
            for i in range(torch.cuda.device_count())}
    places = [(d, here.get(_bare_uuid(d["uuid"]))) for d in devices]
    if device is None:
        found = [p for p in places if p[1] is not None]
        if not found:
            theirs = ", ".join(d["uuid"] for d in devices)
            raise BatonError(f"the server's weights are on {theirs}; this process sees "
                             f"{', '.join(here) or 'no GPU'}", code="no_gpu")
        return sorted(found, key=lambda p: p[1] != torch.cuda.current_device())
    wanted = torch.device(device)
    index = torch.cuda.current_device() if wanted.index is None else wanted.index
    return sorted(((d, index) for d, _ in places), key=lambda p: here.get(_bare_uuid(p[0]["uuid"]))
                  != index)


def _map(answer, device):
    """name -> tensor, of the first place that has it; of a slab only what is used is mapped."""
    tensors = {}
    for about, index in _places(answer["devices"], device):
        storages = {}
        columns = zip(answer["names"], answer["dtypes"], answer["shapes"], about["slab"],
                      about["offset"])
        for name, dtype, shape, slab, offset in columns:
            if slab is None or name in tensors:
                continue
            if slab not in storages:
                storages[slab] = _shared_storage(about["slabs"][slab], index)
            tensors[name] = _view(storages[slab], dtype, shape, offset)
    return tensors


class Attached:
    """The version that was served when it was attached; it stays as it is, whatever is committed
    meanwhile, while its lease lasts. A thread renews that at a third of its length.

    tensors         name -> torch tensor, in the server's own memory: to be read only, and not after
                    close(), nor after the lease has ended (then this raises BatonError)
    aliases         other names of whole tensors, as of tied embeddings
    weight_version, serial, boot_id, lease_id
    """

    def __init__(self, url, device=None, lease_s=60, timeout=600.0):
        import torch

        torch.cuda.init()
        self._url, self._timeout, self._lost = url, timeout, None
        self._stop = threading.Event()
        answer = request(url, "GET", f"/v1/weights/handles?lease_s={int(lease_s)}", timeout=timeout)
        self.lease_id, self.lease_s = answer["lease_id"], answer["lease_s"]
        self.weight_version, self.serial = answer["weight_version"], answer["serial"]
        self.boot_id, self.aliases = answer["boot_id"], answer.get("aliases", {})
        self._until = time.monotonic() + self.lease_s
        self._thread = threading.Thread(target=self._keep, daemon=True, name="baton-lease")
        self._thread.start()
        try:
            self._tensors = _map(answer, device)
        except BaseException:
            self._end()
            raise

    @property
    def tensors(self):
        if self._lost is not None:
            raise self._lost
        return self._tensors

    def renew(self, lease_s=None):
        """Ask for lease_s seconds from now (None: as many as before)."""
        body = {"lease_id": self.lease_id}
        if lease_s is not None:
            body["lease_s"] = int(lease_s)
        asked = time.monotonic()
        answer = request(self._url, "POST", "/v1/weights/handles/renew", body,
                         timeout=min(self._timeout, self.lease_s))
        self.lease_s = answer["lease_s"]
        self._until = asked + self.lease_s
        return answer

    def _keep(self):
        while not self._stop.wait(self.lease_s / 3):
            try:
                self.renew()
            except BatonError as e:
                if e.code != "connection" or time.monotonic() > self._until:
                    self._lost = BatonError(f"the lease on the served weights is lost: {e.message}",
                                            e.status, e.code, request_id=e.request_id)
                    return

    def _end(self):
        self._stop.set()
        self._thread.join()
        try:
            request(self._url, "DELETE", f"/v1/weights/handles/{self.lease_id}", timeout=30.0)
        except BatonError:
            pass  # it has ended by itself, or the server has

    def close(self):
        """Wait for what reads the tensors on the GPU, unmap them, and end the lease."""
        import torch

        if self._stop.is_set():
            return
        torch.cuda.synchronize()
        self._tensors = {}
        self._end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def attach(url, device=None, lease_s=60, timeout=600.0):
    """Map the weights that a server on this host keeps on its GPUs; returns an Attached, to be used
    in a with.

    device   the GPU of this process to map them on; None: the one that they are on, by its UUID.
             Another one reads them over NVLink or PCIe
    lease_s  how long the server keeps this version without a word from this process
    """
    return Attached(url, device, lease_s, timeout)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="baton.py", description="Push weights into baton.")
    parser.add_argument("file", help="a safetensors file")
    parser.add_argument("--url", default=os.environ.get("BATON_URL", "http://127.0.0.1:8700"))
    parser.add_argument("--via", default="auto", choices=["auto", "shm", "body", "path"])
    parser.add_argument("--weight-version", default=None)
    parser.add_argument("--partial", action="store_true")
    parser.add_argument("--convert", action="store_true")
    parser.add_argument("--no-checksums", action="store_true")
    args = parser.parse_args(argv)
    try:
        answer = push(args.file, args.url, args.via, args.weight_version, not args.no_checksums,
                      args.partial, args.convert, progress=sys.stderr.isatty() or None)
    except (BatonError, ValueError, OSError) as e:
        print(f"baton.py: {e}", file=sys.stderr)
        return 1
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
