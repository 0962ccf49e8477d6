"""Pushes of tensors on GPUs to a server on the same host, by CUDA IPC."""

import base64
import concurrent.futures
import contextlib
import itertools
import os
import pickle
import threading

from .connection import ask
from .errors import BatonError
from .gpu import gpu_checksums, pack
from .progress import Watch
from .success import check_open

COUNTER_OFFSET = 64  # of slot 0 in torch's file of export counters


def exports_plainly(value):
    """False in a process whose allocator makes expandable segments: no other process can map those."""
    import torch

    bucket = _Bucket(value.device.index, 1)
    plain = bucket.args[7][1:2] != b"e"
    bucket.settle()
    del bucket
    torch.cuda.ipc_collect()
    return plain


def has_gpus(url):
    """Does the server keep weights on a GPU?"""
    try:
        return bool(ask(url, "GET", "/v1/status", timeout=10.0)["cuda"]["ranks"])
    except (BatonError, KeyError, TypeError):
        return False


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
            pack(self.bytes, chunk)
            torch.cuda.current_stream(self.index).synchronize()

    def args_of(self, chunk, placement):
        """The export in the form of the request. Where each GPU has a list of its own, a bucket is
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
    """What each request carries: a list of chunks, one for each GPU that it names. A request
    that named fewer GPUs than the server has ranks would feed several from one."""
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


@contextlib.contextmanager
def by_ipc(named, checksums, timeout, bucket_nbytes, placement):
    """As those of host.py. One server after the other: each gets buffers of its own."""
    lock = threading.Lock()

    def send(url, members, progress):
        with lock:
            return _push_ipc(named, url, members, checksums, progress, timeout, bucket_nbytes,
                             placement)

    yield send


def _push_ipc(named, url, members, checksums, progress, timeout, bucket_nbytes, placement):
    import torch

    rounds = _rounds(named, bucket_nbytes, placement)
    slots = [_Slot() for _ in range(min(len(rounds), 2))]
    opened = "update_id" not in members
    if opened:
        members = dict(members, placement=placement) if placement else members
        started = ask(url, "POST", "/v1/update_weights/start", members, timeout=timeout)
        members = {"update_id": started["update_id"]}
    update_id = members["update_id"]

    def post(body):
        return ask(url, "POST", "/v1/update_weights", dict(body, **members), timeout=timeout)

    try:
        with Watch(url, progress):
            _send_rounds(slots, rounds, post, checksums, placement)
            if opened:
                return ask(url, "POST", "/v1/update_weights/finish", {"update_id": update_id},
                               timeout=timeout)
            return check_open(url, ask(url, "GET", f"/v1/update_weights/{update_id}",
                                       timeout=timeout))
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
        ask(url, "POST", "/v1/update_weights/abort",
                {"update_id": update_id, "reason": f"{type(cause).__name__}: {cause}"[:200]},
                timeout=30.0)
    except BatonError:
        pass  # it has ended already, or its lease will end it
