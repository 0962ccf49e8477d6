"""Push weights into a running baton server. One file: copy it next to your trainer.

    import baton
    baton.push(model.state_dict(), "http://127.0.0.1:8700", weight_version="step-100")

Needs the standard library; uses torch or numpy when the tensors are theirs. A push is one whole
update: the call returns when the server has received every byte, proven it and put it into service,
and raises BatonError, with the server's own words, in every other case.
"""

import argparse
import array
import ctypes
import hashlib
import http.client
import json
import mmap
import os
import secrets
import struct
import sys
import threading
import urllib.parse

__all__ = ["BatonError", "Tensor", "push", "request", "load_file", "checksum", "plan_digest"]

PIECE_NBYTES = 8 << 20  # of a body on its way out, and of a checksum
POLL_S = 0.2  # between two looks at the progress of an update

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


def push(tensors, url, via="auto", weight_version=None, checksums=True, partial=False,
         convert=False, update_id=None, progress=None, timeout=600.0):
    """Push one whole update and return the server's update object.

    tensors         name -> torch tensor, numpy array or Tensor (or an iterable of pairs); or the
                    path of a safetensors file
    via             "shm" (same host), "body", "path" (tensors is a path that the server can read),
                    or "auto": shm to a loopback address, else body
    weight_version  the label that replies will carry
    checksums       send one for each tensor; the server then proves the bytes, not only the lengths
    partial         tensors that are not sent stay as they are
    convert         let the server convert dtypes that differ from the model's
    update_id       push into an open session instead (it commits at its finish)
    progress        None, True (a bar on standard error), or a function of (done, total) bytes
    """
    _, _, host = _connect(url, timeout)
    members = {k: v for k, v in (("weight_version", weight_version), ("partial", partial),
                                 ("convert", convert), ("update_id", update_id)) if v}
    progress = _Bar() if progress is True else progress
    if via == "auto":
        via = "shm" if host in ("127.0.0.1", "localhost", "::1") else "body"
    if via == "path":
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
        raise ValueError(f"via {via!r} is not one of auto, shm, body, path")
    if progress:
        progress(answer["nbytes_done"], answer["nbytes_done"])
    return answer


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
