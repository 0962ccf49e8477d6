"""Pushes of tensors in host memory: through shared memory, or in the body of a request."""

import json
import os
import secrets
import struct
import urllib.parse

from .connection import request
from .progress import Watch
from .tensors import PIECE_NBYTES, checksum


def _columns(named, checksums):
    body = {"names": [n for n, _ in named], "dtypes": [t.dtype for _, t in named],
            "shapes": [list(t.shape) for _, t in named], "sizes": [t.numel for _, t in named],
            "packed": True}
    if checksums:
        body["checksums"] = [checksum(t.data) for _, t in named]
    return body


def push_shm(named, url, members, checksums, progress, timeout):
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
        with Watch(url, progress):
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


def push_body(named, url, members, checksums, progress, timeout):
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
