"""Pushes of tensors in host memory: through shared memory, or in the body of a request.

Each way to send is a context, made once for a push, which gives the function that sends to one
server: send(url, members, progress) -> the server's update object. It may be called for several
servers at the same time."""

import contextlib
import json
import os
import secrets
import struct
import urllib.parse

from .connection import ask
from .errors import BatonError, InputError
from .progress import Watch
from .tensors import PIECE_NBYTES, checksum

SHM_DIR = "/dev/shm"
WRITE_NBYTES = 1 << 30  # in one call


def _columns(named, checksums):
    body = {"names": [n for n, _ in named], "dtypes": [t.dtype for _, t in named],
            "shapes": [list(t.shape) for _, t in named], "sizes": [t.numel for _, t in named],
            "packed": True}
    if checksums:
        body["checksums"] = [checksum(t.data) for _, t in named]
    return body


def _write(fd, named, total):
    os.posix_fallocate(fd, 0, max(total, 1))  # a full /dev/shm is an error here, not a signal
    offset = 0
    for _, t in named:
        view = t.data
        while view.nbytes:
            n = os.pwrite(fd, view[:WRITE_NBYTES], offset)
            view, offset = view[n:], offset + n


@contextlib.contextmanager
def by_shm(named, checksums, timeout):
    total = sum(t.nbytes for _, t in named)
    name = f"/baton-{os.getpid()}-{secrets.token_hex(8)}"
    path = SHM_DIR + name
    made = False
    try:
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            made = True
            with contextlib.closing(os.fdopen(fd, "wb", 0)):
                _write(fd, named, total)
        except OSError as e:
            raise BatonError(f"shared memory of {total} bytes in {SHM_DIR}: {e.strerror}; make it "
                             "larger (a container's --shm-size), or push by via='body'",
                             code="shared_memory") from e
        columns = dict(_columns(named, checksums), shm={"name": name, "offset": 0, "nbytes": total})

        def send(url, members, progress):
            with Watch(url, progress):
                return ask(url, "POST", "/v1/update_weights", dict(columns, **members),
                           timeout=timeout)

        yield send
    finally:
        if made:
            os.unlink(path)


def safetensors_head(named, checksums):
    """The header of a safetensors file of these tensors, and how many bytes follow."""
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


def _pieces(head, named, total, progress):
    done = 0
    yield head
    for _, t in named:
        for start in range(0, t.nbytes, PIECE_NBYTES):
            piece = t.data[start:start + PIECE_NBYTES]
            yield piece
            done += piece.nbytes
            if progress and done < total:
                progress(done, total)


@contextlib.contextmanager
def by_body(named, checksums, timeout):
    head, total = safetensors_head(named, checksums)
    headers = {"Content-Type": "application/vnd.safetensors",
               "Content-Length": str(len(head) + total)}

    def send(url, members, progress):
        query = urllib.parse.urlencode({k: str(v).lower() if isinstance(v, bool) else v
                                        for k, v in members.items()})
        return ask(url, "POST", "/v1/update_weights" + ("?" + query if query else ""),
                   _pieces(head, named, total, progress), members, headers=headers,
                   timeout=timeout)

    yield send


@contextlib.contextmanager
def by_path(path, timeout):
    if not isinstance(path, (str, os.PathLike)):
        raise InputError("via 'path' needs the path of a safetensors file, not tensors")
    body = {"path": os.path.abspath(path)}

    def send(url, members, progress):
        with Watch(url, progress):
            return ask(url, "POST", "/v1/update_weights", dict(body, **members), timeout=timeout)

    yield send
