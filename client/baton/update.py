"""push: one whole update, by whichever way."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, TypeVar, Union, overload

from .connection import is_local, url_list
from .delta import encode, push_delta
from .errors import BatonError, InputError
from .gpu import is_cuda, on_gpus
from .host import by_body, by_path, by_shm
from .ipc import by_ipc, exports_plainly, has_gpus
from .nixl import by_nixl
from .progress import Bar, show_warnings
from .several import push_several
from .tensors import as_pairs, as_tensors, load_file
from .types import Update

if TYPE_CHECKING:
    from .group import Group

Answer = TypeVar("Answer", Update, List[Update])
Progress = Union[bool, Callable[[int, int], None], None]
WAYS = ("auto", "ipc", "nccl", "nixl", "shm", "body", "path")


def _is_path(tensors):
    return isinstance(tensors, (str, os.PathLike))


def _choose(tensors, url):
    """What "auto" means for these tensors and this server."""
    if not is_local(url):
        return "body"
    if _is_path(tensors) or not all(is_cuda(v) for _, v in tensors):
        return "shm"
    return "ipc" if tensors and exports_plainly(tensors[0][1]) and has_gpus(url) else "shm"


def _ways(tensors, checksums, timeout, bucket_nbytes, placement):
    """via -> the context that gives its send function; see host.py."""
    @functools.lru_cache(maxsize=None)
    def on_host():
        return as_tensors(load_file(tensors) if _is_path(tensors) else tensors)

    return {"ipc": lambda: by_ipc(on_gpus(tensors), checksums, timeout, bucket_nbytes, placement),
            "nixl": lambda: by_nixl(tensors, checksums, timeout),
            "shm": lambda: by_shm(on_host(), checksums, timeout),
            "body": lambda: by_body(on_host(), checksums, timeout),
            "path": lambda: by_path(tensors, timeout)}


def _push_to(urls, vias, ways, members, progress, timeout):
    """One update object for each url."""
    with contextlib.ExitStack() as stack:
        made = {via: stack.enter_context(ways[via]()) for via in dict.fromkeys(vias)}
        if len(urls) == 1:
            return [made[vias[0]](urls[0], members, progress)]
        sends = {url: made[via] for url, via in zip(urls, vias)}
        return push_several(urls, sends, members, progress, timeout)


def _push_delta(tensors, base, url, base_members, via, weight_version, checksums, partial,
                progress, timeout):
    """What differs from `base`; None: the whole has to be sent."""
    delta = encode(base, tensors, partial)
    if delta.nbytes >= delta.nbytes_whole:
        return None

    def send_parts(parts, members):
        pairs = list(parts.items())
        way = _choose(pairs, url) if via == "auto" else via
        with _ways(pairs, checksums, timeout, 0, None)[way]() as send:
            return send(url, members, progress)

    return push_delta(delta, url, base_members, weight_version, checksums, partial, timeout, send_parts)


def _base_members(delta_from) -> Dict[str, str]:
    """What names the base in a request: its label, and the update that made it if that is known."""
    if isinstance(delta_from, str):
        return {"base_version": delta_from}
    try:
        return {"base_version": delta_from["weight_version"], "base_update_id": delta_from["update_id"]}
    except (KeyError, TypeError) as e:
        raise InputError("delta_from is the label of a version, or the update object that push returned") from e


def _check_delta(url, via, group, delta_from, delta_base, others):
    if (delta_from is None) != (delta_base is None):
        raise InputError("delta_from, a version, and delta_base, its tensors, go together")
    if delta_from is None:
        return
    if group is not None or not isinstance(url, str):
        raise InputError("delta_from goes with the url of one server")
    if via not in ("auto", "shm", "body"):
        raise InputError(f"delta_from goes with via 'auto', 'shm' or 'body', not {via!r}: what changed "
                         "is encoded in host memory")
    for name, value in others.items():
        if value:
            raise InputError(f"{name} does not go with delta_from")


def _check(url, via, group, update_id, trainer_rank, placement):
    if via not in WAYS:
        raise InputError(f"via {via!r} is not one of {', '.join(WAYS)}")
    if (group is not None) != (via == "nccl"):
        raise InputError("via 'nccl' and group, which join() returns, go together")
    if group is None and url is None:
        raise InputError("push needs the server's url")
    if group is not None and url not in (None, group.url):
        raise InputError(f"the group was joined with {group.url!r}, not with {url!r}")
    if group is None and update_id is not None and not isinstance(url, str):
        raise InputError("update_id names a session of one server: give the url of that one")
    if trainer_rank is not None and update_id is None:
        raise InputError("trainer_rank goes with update_id, the session that all ranks push into")
    if placement is not None and via != "ipc":
        raise InputError(f"placement goes with via 'ipc', not {via!r}")


@overload
def push(tensors: Any, url: str, via: str = ..., weight_version: Optional[str] = ...,
         checksums: bool = ..., partial: bool = ..., convert: bool = ...,
         update_id: Union[str, List[str], None] = ..., progress: Progress = ...,
         timeout: float = ..., bucket_nbytes: int = ..., placement: Optional[str] = ...,
         group: Optional[Group[Update]] = ..., trainer_rank: Optional[int] = ...,
         delta_from: Union[str, Update, None] = ..., delta_base: Any = ...) -> Update: ...


@overload
def push(tensors: Any, url: List[str], via: str = ..., weight_version: Optional[str] = ...,
         checksums: bool = ..., partial: bool = ..., convert: bool = ...,
         update_id: Union[str, List[str], None] = ..., progress: Progress = ...,
         timeout: float = ..., bucket_nbytes: int = ..., placement: Optional[str] = ...,
         group: Optional[Group[List[Update]]] = ...,
         trainer_rank: Optional[int] = ...) -> List[Update]: ...


@overload
def push(tensors: Any, url: None = ..., via: str = ..., weight_version: Optional[str] = ...,
         checksums: bool = ..., partial: bool = ..., convert: bool = ...,
         update_id: Union[str, List[str], None] = ..., progress: Progress = ...,
         timeout: float = ..., bucket_nbytes: int = ..., placement: Optional[str] = ...,
         *, group: Group[Answer], trainer_rank: Optional[int] = ...) -> Answer: ...


def push(tensors: Any, url: Union[str, List[str], None] = None, via: str = "auto",
         weight_version: Optional[str] = None, checksums: bool = True, partial: bool = False,
         convert: bool = False, update_id: Union[str, List[str], None] = None,
         progress: Progress = None, timeout: float = 600.0,
         bucket_nbytes: int = 1 << 30, placement: Optional[str] = None,
         group: Any = None, trainer_rank: Optional[int] = None,
         delta_from: Union[str, Update, None] = None, delta_base: Any = None) -> Any:
    """Push one whole update and return the server's update object.

    tensors         name -> torch tensor, numpy array or Tensor (or an iterable of pairs); or the
                    path of a safetensors file, or of a directory of them
    url             the server's (http://host:port, https://host:port, unix:/path), or a list of
                    servers': then a list of update objects is returned, and no server commits
                    before all have received and verified the update. BatonError's details name
                    those that failed. Not needed with a group, which knows its servers
    via             "ipc" (torch tensors on GPUs of the server's host), "nccl" (torch tensors on
                    other GPUs, by a group), "nixl" (tensors on GPUs or in host memory, which a
                    server with --nixl-library reads; needs nixl-cu12 or nixl-cu13), "shm" (same
                    host), "body", "path" (tensors is a path
                    that the server can read), or "auto": to a loopback address or a Unix socket
                    ipc if all tensors are on GPUs and the server keeps weights on one, else shm;
                    elsewhere body
    weight_version  the label that replies will carry
    checksums       send one for each tensor; the server then proves the bytes, not only the lengths
    partial         tensors that are not sent stay as they are
    convert         let the server convert dtypes that differ from the model's
    update_id       push into an open session of one server instead (it commits at its finish)
    progress        None, True (on standard error a bar, and the warnings of the answer's
                    `changes`), or a function of (done, total) bytes
    timeout         seconds: of each request; nccl: of the whole push
    bucket_nbytes   ipc: bytes of the buffer on each GPU; there are two of them when the tensors do
                    not fit into one, so that one is filled while the other is copied. nccl: a
                    broadcast ends with the tensor that exceeds this; there are two buffers, each as
                    large as the largest broadcast
    placement       ipc, tensors on several GPUs: "sharded" or "replicated" sends each of the
                    server's GPUs what lies on that GPU here; without it every one gets everything
    group           nccl: what join() returned. If that was given a list of servers, update_id is
                    one too, and so is what is returned
    trainer_rank    with update_id: which rank of the trainer pushes. Each pushes what it holds; the
                    update object's `senders` list what each has brought
    delta_from      send only what changed since this version, which the server serves: the update
                    object that push returned for it, or its label, which another trainer may have
                    given to other bytes; with
    delta_base      its tensors, as `tensors` are, on the same GPUs if those are on GPUs: keep a copy
                    of what was pushed before. All is sent instead if the server has another version
                    (with partial that is an error), or if the difference takes no fewer bytes; the
                    update object's `delta` says which, its `nbytes_sent` how much. One server; ipc
                    and nccl send wholes
    """
    _check(url, via, group, update_id, trainer_rank, placement)
    _check_delta(url, via, group, delta_from, delta_base,
                 {"convert": convert, "update_id": update_id})
    urls: List[str] = [] if group is not None else url_list(url)
    members: Dict[str, Any] = {k: v for k, v in (
        ("weight_version", weight_version), ("partial", partial), ("convert", convert),
        ("update_id", update_id)) if v}
    if trainer_rank is not None:
        members["trainer_rank"] = trainer_rank
    warns, progress = progress is True, Bar() if progress is True else progress
    if not _is_path(tensors):
        tensors = as_pairs(tensors)
    answers = [None]
    try:
        if group is not None:
            answer = group._push(on_gpus(tensors, via), members, checksums, progress, timeout,
                                 bucket_nbytes)
            answers = answer if isinstance(answer, list) else [answer]
        elif delta_from is not None:
            base_members = _base_members(delta_from)
            answer = _push_delta(tensors, delta_base, url, base_members, via, weight_version, checksums,
                                 partial, progress, timeout)
            answers = [answer]
            if answer is None and partial:  # what is not sent must be that of the base
                members.update(base_members)
        if group is None and answers[0] is None:
            vias = [_choose(tensors, one) if via == "auto" else via for one in urls]
            ways = _ways(tensors, checksums, timeout, bucket_nbytes, placement)
            answers = _push_to(urls, vias, ways, members, progress, timeout)
            answer = answers[0] if isinstance(url, str) else answers
    except RuntimeError as e:
        if via not in ("ipc", "nccl", "nixl"):
            raise
        raise BatonError(f"CUDA failed in this process: {e}", code="cuda_error") from e
    if progress:
        done = sum(one["nbytes_done"] for one in answers)
        progress(done, done)
    if warns:
        show_warnings(answers)
    return answer
