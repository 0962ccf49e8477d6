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

A trainer on other GPUs, of this host or another, forms an NCCL group with the servers' GPUs once,
and then broadcasts to all of them at the same time:

    with baton.join(["http://10.0.0.2:8700", "http://10.0.0.3:8700"]) as group:
        group.push(model.state_dict(), weight_version="step-100")

A server with keys (--api-key-file) is sent the one in the environment's BATON_API_KEY: a control
key. One with TLS is an https:// URL; SSL_CERT_FILE names a certificate that the system does not know.
"""

import argparse
import array
import base64
import concurrent.futures
import ctypes
import hashlib
import http.client
import importlib.util
import itertools
import json
import mmap
import os
import pickle
import secrets
import socket
import struct
import sys
import threading
import time
import urllib.parse

__all__ = ["BatonError", "Tensor", "push", "join", "Group", "attach", "Attached", "request",
           "load_file", "checksum", "plan_digest"]

PIECE_NBYTES = 8 << 20  # of a body on its way out, and of a checksum
GPU_PIECE_NBYTES = 16 << 20  # of a checksum on a GPU; takes five times as much there
POLL_S = 0.2  # between two looks at the progress of an update
COUNTER_OFFSET = 64  # of slot 0 in torch's file of export counters
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LOOK_S_MAX = 0.001  # between two looks at what a GPU or NCCL is doing
ASK_S_MAX = 0.02  # between two looks at how far servers are
WORDS_S = 2.0  # how much later than NCCL a server may say what went wrong
LEAVE_S = 10.0  # for NCCL's abort, and for a server to let a group or an update go

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
    """The server refused, or could not be reached, or this process has no GPU for what it asks
    for. `message` is in the server's words if `status` is not 0."""

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


def _pairs(tensors):
    """Names and tensors, in a list: an iterable can be read once."""
    if callable(getattr(tensors, "state_dict", None)):
        raise ValueError(f"tensors is a {type(tensors).__name__}: push its state_dict()")
    try:
        return [(name, value)
                for name, value in (tensors.items() if hasattr(tensors, "items") else tensors)]
    except (TypeError, ValueError) as e:
        raise ValueError("tensors is a dict of name to tensor, an iterable of such pairs, or the "
                         f"path of a safetensors file, not {type(tensors).__name__}: {e}") from e


def _cuda(what):
    """torch, with CUDA started in this process."""
    try:
        import torch

        torch.cuda.init()
    except (ImportError, AssertionError, RuntimeError) as e:
        raise BatonError(f"{what} needs torch with CUDA in this process: {e}; without a GPU push by "
                         "via='shm' or via='body'", code="no_gpu") from e
    return torch


def _named(tensors):
    out = [(str(name), _tensor(name, value)) for name, value in _pairs(tensors)]
    if not out:
        raise ValueError("there is nothing to push: no tensors were given")
    return out


def load_file(path):
    """The tensors of a safetensors file, name -> Tensor, over a read-only map of it. ValueError if
    it is none."""
    with open(path, "rb") as f:
        if os.fstat(f.fileno()).st_size < 8:
            raise ValueError(f"{path}: not a safetensors file, it has less than 8 bytes")
        mapped = memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))
    if mapped[:4] == b"PK\3\4" or mapped[:2] in (b"\x80\2", b"\x80\4", b"\x80\5"):
        raise ValueError(f"{path}: not a safetensors file, but one of torch.save or pickle: load it "
                         "and push its tensors, or save it by safetensors.torch.save_file")
    try:
        (n,) = struct.unpack("<Q", mapped[:8])
        header = json.loads(bytes(mapped[8:8 + n]))
        header.pop("__metadata__", None)
        order = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        return {name: Tensor(t["dtype"], t["shape"],
                             mapped[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
                for name, t in order}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as e:
        raise ValueError(f"{path}: not a safetensors file, its header cannot be read: {e}") from e


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
    if not isinstance(url, str):
        raise ValueError(f"url is one server's, a string such as 'http://127.0.0.1:8700', not "
                         f"{type(url).__name__}; join() takes a list of servers")
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


def request(url, method, path, body=None, headers=None, timeout=600.0, connected=None):
    """One request; returns the decoded JSON answer (bytes when it is not JSON). `connected` is
    called with the socket. BATON_API_KEY is the server's key, if it asks for one."""
    connection, prefix, _ = _connect(url, timeout)
    headers = dict(headers or {})
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    key = os.environ.get("BATON_API_KEY")
    if key:
        headers.setdefault("Authorization", "Bearer " + key)
    try:
        connection.connect()
        if connected is not None:
            connected(connection.sock)
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


def _on_gpus(pairs, via="ipc"):
    if isinstance(pairs, (str, os.PathLike)):
        raise ValueError(f"via {via!r} needs torch tensors on a GPU, not the path of a file")
    for name, value in pairs:
        if not _is_cuda(value):
            raise ValueError(f"tensor {name!r}: via {via!r} needs torch tensors on a GPU")
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


def _pack(buffer, chunk):
    """Copies the chunk's bytes into the buffer, back to back, on the current stream."""
    at = 0
    for _, t in chunk:
        if t.nbytes:
            buffer[at:at + t.nbytes].copy_(t.raw(), non_blocking=True)
        at += t.nbytes


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

        with torch.cuda.device(self.index):
            _pack(self.bytes, chunk)
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


class _Call(threading.Thread):
    """A request on a thread of its own, which can be given up."""

    def __init__(self, url, method, path, body=None, timeout=600.0):
        super().__init__(daemon=True, name="baton-call")
        self.url, self.answer, self.error = url, None, None
        self._request, self._timeout = (url, method, path, body), max(timeout, 0.1)
        self._socket, self._given_up = None, False
        self.start()

    def run(self):
        try:
            self.answer = request(*self._request, timeout=self._timeout, connected=self._connected)
        except BatonError as e:
            self.error = _naming(self.url, e)
        except Exception as e:  # whoever waits for this thread is told
            self.error = BatonError(f"{self.url}: {type(e).__name__}: {e}", code="connection")

    def _connected(self, connection):
        self._socket = connection
        if self._given_up:
            self.give_up()

    def give_up(self):
        """Hangs up, by which the server knows that nobody waits for it any more."""
        self._given_up = True
        try:
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended


def _naming(url, e):
    """The same error, with the server's address in it."""
    if url in e.message:
        return e
    return BatonError(f"{url}: {e.message}", e.status, e.code, e.param, e.retryable, e.details,
                      e.request_id)


def _raise_failed(calls):
    for call in calls:
        if call.error is not None:
            raise call.error


def _wait(ready, calls, deadline, what, step=LOOK_S_MAX):
    """Asks until it is so; raises what a call failed with, or that the time is over."""
    pause = 0.0
    while not ready():
        _raise_failed(calls)
        if time.monotonic() > deadline:
            raise BatonError(f"{what}: the time is over", code="timeout", retryable=True)
        time.sleep(pause)  # at first a mere chance for other threads
        pause = min(pause + 20e-6, step)


def _answers(calls, deadline):
    """In order; all have been waited for when one of them failed, unless the time is over."""
    for call in calls:
        call.join(max(deadline - time.monotonic(), 0.0))
    _raise_failed(calls)
    late = [call.url for call in calls if call.is_alive()]
    if late:
        raise BatonError(f"no answer from {', '.join(late)} when the time was over", code="timeout",
                         retryable=True)
    return [call.answer for call in calls]


def _answers_of_all(calls, deadline):
    """As _answers, but at once when one has failed: the others may wait for that one."""
    for call in calls:
        while call.is_alive() and time.monotonic() < deadline:
            call.join(min(ASK_S_MAX, max(deadline - time.monotonic(), 0.0)))
            _raise_failed(calls)
    return _answers(calls, deadline)


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


class _Nccl:
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


def _cut_beyond(named, nbytes_max):
    """As vLLM cuts packed tensors, and the server with it: a bucket ends with the tensor that makes
    it larger than that."""
    chunk, nbytes = [], 0
    for name, t in named:
        chunk.append((name, t))
        nbytes += t.nbytes
        if nbytes > nbytes_max:
            yield chunk
            chunk, nbytes = [], 0
    if chunk:
        yield chunk


def _checksums(chunk):
    """Of tensors that may lie on several GPUs, in order."""
    sums = {}
    for index in {t.index for _, t in chunk}:
        mine = [(name, t) for name, t in chunk if t.index == index]
        sums.update(zip((n for n, _ in mine), gpu_checksums([t.raw() for _, t in mine])))
    return [sums[name] for name, _ in chunk]


class _Lane:
    """A buffer that is packed on one stream and broadcast on another."""

    def __init__(self, index, nbytes):
        import torch

        self.bytes = torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{index}")
        self.packed, self.sent = torch.cuda.Event(), torch.cuda.Event()


class Group:
    """Rank 0 of an NCCL group; the other ranks are the GPUs of one baton server or several, which
    join() asked in. Every wait has an end. Whatever fails once a broadcast may have been entered
    ends the group, and every later push says so: another join() is needed. What a server refuses
    before that leaves the group as it is.

    url          as join() was given it
    world_size   all ranks, this one counted
    nccl_version, library   of this process
    """

    def __init__(self, url, device=None, library=None, timeout=60.0):
        torch = _cuda("join")
        self.url = url if isinstance(url, str) else list(url)
        self._urls = [url] if isinstance(url, str) else self.url
        if not self._urls or len(set(self._urls)) < len(self._urls):
            raise ValueError("join needs the urls of servers, each once")
        wanted = None if device is None else torch.device(device).index
        self._index = torch.cuda.current_device() if wanted is None else wanted
        self._busy, self._broken, self._closed = threading.Lock(), None, False
        self._joined = {}  # url -> where the id's minter listens, as the server tells it
        deadline = time.monotonic() + timeout
        self._nccl = _Nccl(library)
        self.nccl_version, self.library = self._nccl.version, self._nccl.path
        with torch.cuda.device(self._index):
            self._packing = torch.cuda.Stream(self._index)
            self._sending = torch.cuda.Stream(self._index)
            self._join(self._count_ranks(deadline), deadline)

    def _ask(self, method, path, bodies, deadline):
        """Each server with a body of its own, all at the same time. Whoever waits for them looks at
        the deadline."""
        return [_Call(url, method, path, body, deadline - time.monotonic() + WORDS_S)
                for url, body in zip(self._urls, bodies)]

    def _ask_all(self, method, path, bodies, deadline):
        return _answers(self._ask(method, path, bodies, deadline), deadline)

    def _count_ranks(self, deadline):
        """How many ranks each server brings. What cannot work is refused before anyone waits."""
        counts = []
        answers = self._ask_all("GET", "/v1/status", [None] * len(self._urls), deadline)
        for url, status in zip(self._urls, answers):
            nccl, n = status["nccl"], len(status["cuda"]["ranks"])
            if n == 0:
                raise BatonError(f"{url} keeps its weights in host memory: it can not join a group "
                                 f"(baton serve --device cuda:0)", code="no_gpu")
            if not nccl["available"]:
                raise BatonError(f"{url} has no NCCL: {nccl['reason']}", code="no_nccl")
            if nccl["version"] != self.nccl_version:
                raise BatonError(f"{url} runs NCCL {nccl['version']}, and this process "
                                 f"{self.nccl_version} ({self.library}): all ranks of a group have "
                                 f"to run the same; give one of them the other's (--nccl-library, "
                                 f"library=)", code="nccl_error")
            counts.append(n)
        return counts

    def _join(self, counts, deadline):
        calls, unique_id = [], self._nccl.mint()
        self.world_size = 1 + sum(counts)
        said = {"transport": "nccl", "world_size": self.world_size,
                "nccl_unique_id": base64.b64encode(unique_id).decode(),
                "timeout_s": min(max(int(deadline - time.monotonic()), 1), 86400)}
        late = deadline + WORDS_S  # a server that can tell why shall
        try:
            calls = self._ask("POST", "/v1/weight_transfer/init",
                              [dict(said, rank_offset=1 + sum(counts[:i]))
                               for i in range(len(counts))], late)
            self._nccl.begin_join(self.world_size, unique_id)
            waited = (f"not all {self.world_size} ranks have joined: different NCCL versions or "
                      f"NCCL_CUMEM_ENABLE, or an address that cannot be reached, look like this")
            _wait(self._nccl.ended, calls, late, waited)
            self._warm_up(calls, late, waited)
            _answers(calls, late)
            self._joined = {call.url: call.answer["bootstrap"] for call in calls}
        except BaseException:
            for call in calls:
                call.give_up()
            self._joined = {call.url: call.answer["bootstrap"] for call in calls if call.answer}
            self.close()
            raise

    def _warm_up(self, calls, deadline, what):
        """What cannot work shall be known now, and not in the first push."""
        import torch

        done = torch.cuda.Event()
        with torch.cuda.stream(self._sending):
            one = torch.zeros(4, dtype=torch.uint8, device=f"cuda:{self._index}")
            self._nccl.begin_sum(one.data_ptr(), self._sending.cuda_stream)
            _wait(self._nccl.ended, calls, deadline, what)
            done.record(self._sending)
        self._wait_event(done, calls, deadline, what)

    def _wait_event(self, event, calls, deadline, what):
        def reached():
            """NCCL tells of what failed, where the stream may wait for ever."""
            there = event.query()
            return self._nccl.ended() and there

        _wait(reached, calls, deadline, what)

    def push(self, tensors, **options):
        """push(tensors, via="nccl", group=this, ...), to all servers of the group."""
        return push(tensors, via="nccl", group=self, **options)

    def _push(self, named, members, checksums, progress, timeout, bucket_nbytes):
        deadline = time.monotonic() + timeout
        chunks = list(_cut_beyond(named, bucket_nbytes))
        with self._busy:
            if self._broken is not None:
                raise BatonError(f"this group can not be used any more, join() makes another: "
                                 f"{self._broken}", code="conflict")
            self._check_joined(deadline)
            self._judge(named, members, deadline)
            body = {"transport": "nccl", "plan_id": plan_digest(named), "packed": True,
                    "bucket_nbytes": bucket_nbytes, "expected_digest": plan_digest(named)}
            if checksums:
                body["checksums"] = [s for chunk in chunks for s in _checksums(chunk)]
            ids, opened = self._open(members, deadline)
            with _Watch(self._urls[0], progress):
                found = self._transfer(chunks, body, ids, opened, deadline)
        return found[0] if isinstance(self.url, str) else found

    def _judge(self, named, members, deadline):
        """Every server sees the plan before any of them enters a broadcast."""
        plan = {"names": [n for n, _ in named], "dtypes": [t.dtype for _, t in named],
                "shapes": [list(t.shape) for _, t in named],
                "convert": members.get("convert", False)}
        answers = self._ask_all("POST", "/v1/weights/plans", [plan] * len(self._urls), deadline)
        whole = not members.get("partial") and "update_id" not in members
        for url, answer in zip(self._urls, answers):
            if answer["plan_id"] != plan_digest(named):
                raise BatonError(f"{url} makes another plan of these tensors", code="conflict")
            if whole and not answer["covers_manifest"]:
                raise BatonError(f"{url}: {answer['n_missing']} tensors of the model are missing",
                                 422, "incomplete_update", details=answer)

    def _open(self, members, deadline):
        """The updates' ids, and whether they were opened here."""
        if "update_id" in members:
            ids = members["update_id"]
            ids = [ids] if isinstance(ids, str) else list(ids)
            if len(ids) != len(self._urls):
                raise ValueError(f"{len(ids)} update_ids for {len(self._urls)} servers")
            return ids, False
        calls = self._ask("POST", "/v1/update_weights/start", [members] * len(self._urls), deadline)
        try:
            return [answer["update_id"] for answer in _answers(calls, deadline)], True
        except BaseException as e:
            self._abort_updates([c.url for c in calls if c.answer],
                                [c.answer["update_id"] for c in calls if c.answer], e)
            raise

    def _transfer(self, chunks, body, ids, opened, deadline):
        calls, entered, sent = [], False, False
        try:
            calls = self._ask("POST", "/v1/update_weights", [dict(body, update_id=i) for i in ids],
                              deadline)
            self._await_receiving(calls, ids, {name for chunk in chunks for name, _ in chunk},
                                  deadline)
            self._check_joined(deadline)  # which none can change while it is receiving
            entered = True
            self._broadcast([c for c in chunks if sum(t.nbytes for _, t in c)], calls, deadline)
            sent = True
            _answers_of_all(calls, deadline)
            if not opened:
                return [request(url, "GET", f"/v1/update_weights/{i}", timeout=LEAVE_S)
                        for url, i in zip(self._urls, ids)]
            return self._finish(ids, deadline)
        except BaseException as e:
            cause = self._give_up(calls, ids if opened else [], entered and not sent, e)
            if cause is e:
                raise
            raise cause from e

    def _await_receiving(self, calls, ids, names, deadline):
        """Until each server is about to enter the broadcast of these very tensors."""
        for call, update_id in zip(calls, ids):
            def receiving():
                if not call.is_alive():
                    return True  # refused; or there was nothing to receive
                try:
                    update = request(call.url, "GET", f"/v1/update_weights/{update_id}",
                                     timeout=max(deadline - time.monotonic(), 0.1))
                except BatonError as e:
                    if e.status == 0:
                        raise
                    return False  # there is no such update: the call is about to be told why
                return update["phase"] == "receiving" and update["tensor"] in names

            _wait(receiving, calls, deadline, f"{call.url} has not begun to receive", ASK_S_MAX)
        _raise_failed(calls)

    def _broadcast(self, chunks, calls, deadline):
        """One bucket is packed while the one before is on its way."""
        import torch

        largest = max((sum(t.nbytes for _, t in chunk) for chunk in chunks), default=0)
        what = f"a broadcast to {', '.join(self._urls)} has not ended"
        with torch.cuda.device(self._index):
            lanes = [_Lane(self._index, largest) for _ in range(min(len(chunks), 2))]
            self._packing.wait_stream(torch.cuda.current_stream(self._index))
            for chunk, lane in zip(chunks, itertools.cycle(lanes)):
                self._wait_event(lane.sent, calls, deadline, what)
                with torch.cuda.stream(self._packing):
                    _pack(lane.bytes, chunk)
                    lane.packed.record(self._packing)
                self._sending.wait_event(lane.packed)
                self._nccl.begin_broadcast(lane.bytes.data_ptr(), sum(t.nbytes for _, t in chunk),
                                           self._sending.cuda_stream)
                _wait(self._nccl.ended, calls, deadline, what)  # before that it is on no stream
                lane.sent.record(self._sending)
            for lane in lanes:
                self._wait_event(lane.sent, calls, deadline, what)

    def _finish(self, ids, deadline):
        calls = self._ask("POST", "/v1/update_weights/finish", [{"update_id": i} for i in ids],
                          deadline)
        try:
            return _answers(calls, deadline)
        except BatonError as e:
            done = [call.url for call in calls if call.answer]
            if done:
                e.args = (f"{e.args[0]}; committed, nevertheless, by {', '.join(done)}",)
            raise

    def _check_joined(self, deadline):
        """All servers are still in this group, and not in another trainer's."""
        answers = self._ask_all("GET", "/v1/weight_transfer", [None] * len(self._urls), deadline)
        for url, group in zip(self._urls, answers):
            if group["state"] != "joined" or group["bootstrap"] != self._joined[url]:
                error = group.get("error") or {"message": f"its group is {group['state']}"}
                raise BatonError(f"{url} has left this group, or is in another's: "
                                 f"{error['message']}", code="conflict")

    def _intact(self):
        try:
            self._check_joined(time.monotonic() + LEAVE_S)
            return True
        except BatonError:
            return False

    def _all_sent(self, calls):
        """Have all servers answered, and are they in the group still? Then they have received
        everything, although its end had not been seen here yet; and it is waited for."""
        import torch

        end = time.monotonic() + WORDS_S
        for call in calls:
            call.join(max(end - time.monotonic(), 0.0))
        if any(call.is_alive() for call in calls) or not self._intact():
            return False
        try:
            _wait(self._nccl.ended, [], end, "a broadcast has not ended")
            with torch.cuda.device(self._index):
                sent = torch.cuda.Event()
                sent.record(self._sending)
                _wait(sent.query, [], end, "a broadcast has not ended")
        except BatonError:
            return False
        return True

    def _give_up(self, calls, opened, halfway, e):
        """Ends what a push has begun; returns the error to raise. The group ends too if it is in a
        broadcast here, or if a server was: by then that has left it."""
        halfway = halfway and not self._all_sent(calls)
        if halfway:
            e = self._end(calls, e)
        self._abort_updates(self._urls, opened, e)
        end = time.monotonic() + WORDS_S
        for call in calls:
            call.join(max(end - time.monotonic(), 0.0))
        if not halfway and (any(call.is_alive() for call in calls) or not self._intact()):
            e = self._end(calls, e)
        for call in calls:
            call.give_up()
        self._packing.synchronize()  # its buffers are given back now
        return e

    def _end(self, calls, e):
        """No push will work any more. A server's own words say more than that NCCL has failed."""
        if isinstance(e, BatonError) and e.code == "nccl_error":
            end = time.monotonic() + WORDS_S
            while time.monotonic() < end and not any(call.error for call in calls):
                time.sleep(LOOK_S_MAX)
            e = next((call.error for call in calls if call.error), e)
        self._broken = e
        if not self._nccl.abort():
            e = self._broken = BatonError(f"{e}; NCCL's abort does not come back: this process has "
                                          f"to be started anew", code="nccl_error")
        return e

    @staticmethod
    def _abort_updates(urls, ids, cause):
        body = {"reason": f"{type(cause).__name__}: {cause}"[:200]}
        calls = [_Call(url, "POST", "/v1/update_weights/abort", dict(body, update_id=i), LEAVE_S)
                 for url, i in zip(urls, ids)]
        for call in calls:
            call.join(LEAVE_S)  # if it fails, the update has ended, or its lease will end it

    def close(self):
        """Leave the group, and let the servers leave it. A push that is under way fails."""
        if self._closed:
            return
        self._closed, self._broken = True, self._broken or "it was closed"
        self._nccl.abort()
        path, end = "/v1/weight_transfer", time.monotonic() + LEAVE_S
        found = [_Call(url, "GET", path, timeout=LEAVE_S) for url in self._joined]
        for call in found:
            call.join(max(end - time.monotonic(), 0.0))
        gone = [_Call(call.url, "DELETE", path, timeout=LEAVE_S) for call in found
                if call.answer and call.answer["bootstrap"] == self._joined[call.url]]
        for call in gone:
            call.join(LEAVE_S)  # a server that does not answer has left, or finds out by itself

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def join(url, device=None, library=None, timeout=60.0):
    """Form an NCCL group of this process's GPU, rank 0, and the GPUs of one or several servers;
    returns a Group, to be used in a with. NCCL must be able to connect both ways.

    url      of the server, or a list of them: ranks are counted in this order
    device   the GPU of this process that broadcasts; None: the current one. No server may be on it
    library  path of libnccl; None: the one that torch uses. All ranks have to run the same version
    timeout  seconds, until all have joined
    """
    return Group(url, device, library, timeout)


def _choose(tensors, url, host):
    """What "auto" means for these tensors and this server."""
    if host not in LOOPBACK:
        return "body"
    if isinstance(tensors, (str, os.PathLike)) or not all(_is_cuda(v) for _, v in tensors):
        return "shm"
    return "ipc" if tensors and _exports_plainly(tensors[0][1]) and _has_gpus(url) else "shm"


def push(tensors, url=None, via="auto", weight_version=None, checksums=True, partial=False,
         convert=False, update_id=None, progress=None, timeout=600.0, bucket_nbytes=1 << 30,
         placement=None, group=None):
    """Push one whole update and return the server's update object.

    tensors         name -> torch tensor, numpy array or Tensor (or an iterable of pairs); or the
                    path of a safetensors file
    url             the server's; not needed with a group, which knows its servers
    via             "ipc" (torch tensors on GPUs of the server's host), "nccl" (torch tensors on
                    other GPUs, by a group), "shm" (same host), "body", "path" (tensors is a path
                    that the server can read), or "auto": to a loopback address ipc if all tensors
                    are on GPUs and the server keeps weights on one, else shm; elsewhere body
    weight_version  the label that replies will carry
    checksums       send one for each tensor; the server then proves the bytes, not only the lengths
    partial         tensors that are not sent stay as they are
    convert         let the server convert dtypes that differ from the model's
    update_id       push into an open session instead (it commits at its finish)
    progress        None, True (a bar on standard error), or a function of (done, total) bytes
    timeout         seconds: of each request; nccl: of the whole push
    bucket_nbytes   ipc: bytes of the buffer on each GPU; there are two of them when the tensors do
                    not fit into one, so that one is filled while the other is copied. nccl: a
                    broadcast ends with the tensor that exceeds this; there are two buffers, each as
                    large as the largest broadcast
    placement       ipc, tensors on several GPUs: "sharded" or "replicated" sends each of the
                    server's GPUs what lies on that GPU here; without it every one gets everything
    group           nccl: what join() returned. If that was given a list of servers, update_id is
                    one too, and so is what is returned
    """
    if group is not None and via != "nccl" or group is None and via == "nccl":
        raise ValueError("via 'nccl' and group, which join() returns, go together")
    if group is None and url is None:
        raise ValueError("push needs the server's url")
    if group is not None and url not in (None, group.url):
        raise ValueError(f"the group was joined with {group.url!r}, not with {url!r}")
    host = None if group is not None else _connect(url, timeout)[2]
    members = {k: v for k, v in (("weight_version", weight_version), ("partial", partial),
                                 ("convert", convert), ("update_id", update_id)) if v}
    progress = _Bar() if progress is True else progress
    if not isinstance(tensors, (str, os.PathLike)):
        tensors = _pairs(tensors)
    if placement is not None and via != "ipc":
        raise ValueError(f"placement goes with via 'ipc', not {via!r}")
    if via == "auto":
        via = _choose(tensors, url, host)
    if via == "ipc":
        answer = _push_ipc(_on_gpus(tensors), url, members, checksums, progress, timeout,
                           bucket_nbytes, placement)
    elif via == "nccl":
        answer = group._push(_on_gpus(tensors, via), members, checksums, progress, timeout,
                             bucket_nbytes)
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
        raise ValueError(f"via {via!r} is not one of auto, ipc, nccl, shm, body, path")
    if progress:
        done = (answer[0] if isinstance(answer, list) else answer)["nbytes_done"]
        progress(done, done)
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
        _cuda("attach")
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
