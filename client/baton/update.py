"""push: one whole update, by whichever way."""

import os

from .connection import open_connection, request
from .gpu import is_cuda, on_gpus
from .host import push_body, push_shm
from .ipc import exports_plainly, has_gpus, push_ipc
from .progress import Bar, Watch
from .tensors import as_pairs, as_tensors, load_file

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _choose(tensors, url, host):
    """What "auto" means for these tensors and this server."""
    if host not in LOOPBACK:
        return "body"
    if isinstance(tensors, (str, os.PathLike)) or not all(is_cuda(v) for _, v in tensors):
        return "shm"
    return "ipc" if tensors and exports_plainly(tensors[0][1]) and has_gpus(url) else "shm"


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
    host = None if group is not None else open_connection(url, timeout)[2]
    members = {k: v for k, v in (("weight_version", weight_version), ("partial", partial),
                                 ("convert", convert), ("update_id", update_id)) if v}
    progress = Bar() if progress is True else progress
    if not isinstance(tensors, (str, os.PathLike)):
        tensors = as_pairs(tensors)
    if placement is not None and via != "ipc":
        raise ValueError(f"placement goes with via 'ipc', not {via!r}")
    if via == "auto":
        via = _choose(tensors, url, host)
    if via == "ipc":
        answer = push_ipc(on_gpus(tensors), url, members, checksums, progress, timeout,
                           bucket_nbytes, placement)
    elif via == "nccl":
        answer = group._push(on_gpus(tensors, via), members, checksums, progress, timeout,
                             bucket_nbytes)
    elif via == "path":
        if not isinstance(tensors, (str, os.PathLike)):
            raise ValueError("via 'path' needs the path of a safetensors file, not tensors")
        body = dict(members, path=os.path.abspath(tensors))
        with Watch(url, progress):
            answer = request(url, "POST", "/v1/update_weights", body, timeout=timeout)
    elif via in ("shm", "body"):
        named = as_tensors(load_file(tensors) if isinstance(tensors, (str, os.PathLike))
                           else tensors)
        send = push_shm if via == "shm" else push_body
        answer = send(named, url, members, checksums, progress, timeout)
    else:
        raise ValueError(f"via {via!r} is not one of auto, ipc, nccl, shm, body, path")
    if progress:
        done = (answer[0] if isinstance(answer, list) else answer)["nbytes_done"]
        progress(done, done)
    return answer
