"""An NCCL group of this process's GPU and those of servers, and pushes to it."""

from __future__ import annotations

import base64
import itertools
import threading
import time
from typing import Any, Generic, List, Optional, Union, overload

from .calls import (ASK_S_MAX, Call, LOOK_S_MAX, answers_of, answers_of_all, raise_failed,
                    wait_until)
from .connection import ask
from .errors import BatonError, InputError, has_committed
from .gpu import gpu_checksums, pack, torch_with_cuda
from .nccl import LEAVE_S, Nccl
from .progress import Watch
from .success import check_open
from .tensors import plan_digest
from .types import Update
from .update import Answer, push

REASON_S = 2.0  # how much later than NCCL a server may say what went wrong


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


class _BounceBuffer:
    """A buffer that is packed on one stream and broadcast on another."""

    def __init__(self, index, nbytes):
        import torch

        self.bytes = torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{index}")
        self.packed, self.sent = torch.cuda.Event(), torch.cuda.Event()


def _nccl_of(status):
    """NCCL as a server's /v1/status has it, and how many GPUs it keeps weights on."""
    nccl, cuda = status.get("nccl"), status.get("cuda")
    try:
        return dict(dict.fromkeys(("available", "reason", "version")), **nccl), len(cuda["ranks"])
    except (KeyError, TypeError):
        return {}, 0  # in front of engines without --stage


class Group(Generic[Answer]):
    """Rank 0 of an NCCL group; the other ranks are the GPUs of one baton server or several, which
    join() invited. Every wait has an end. Whatever fails once a broadcast may have been entered
    ends the group, and every later push says so: another join() is needed. What a server refuses
    before that leaves the group as it is.

    url          as join() was given it; of a list of servers push() returns a list
    world_size   all ranks, this one counted
    nccl_version, library   of this process
    """

    def __init__(self, url, device=None, library=None, timeout=60.0):
        torch = torch_with_cuda("join")
        self.url = url if isinstance(url, str) else list(url)
        self._urls = [url] if isinstance(url, str) else self.url
        if not self._urls or len(set(self._urls)) < len(self._urls):
            raise InputError("join needs the urls of servers, each once")
        wanted = None if device is None else torch.device(device).index
        self._index = torch.cuda.current_device() if wanted is None else wanted
        self._busy, self._broken, self._closed = threading.Lock(), None, False
        self._joined = {}  # url -> the address of the bootstrap, as the server reports it
        deadline = time.monotonic() + timeout
        self._nccl = Nccl(library)
        self.nccl_version, self.library = self._nccl.version, self._nccl.path
        with torch.cuda.device(self._index):
            self._packing = torch.cuda.Stream(self._index)
            self._sending = torch.cuda.Stream(self._index)
            self._join(self._count_ranks(deadline), deadline)

    def _ask(self, method, path, bodies, deadline):
        """Each server with a body of its own, all at the same time. The caller keeps the deadline."""
        return [Call(url, method, path, body, deadline - time.monotonic() + REASON_S)
                for url, body in zip(self._urls, bodies)]

    def _ask_all(self, method, path, bodies, deadline):
        return answers_of(self._ask(method, path, bodies, deadline), deadline)

    def _count_ranks(self, deadline):
        """How many ranks each server has. What cannot work is refused before a rank waits."""
        counts = []
        answers = self._ask_all("GET", "/v1/status", [None] * len(self._urls), deadline)
        for url, status in zip(self._urls, answers):
            nccl, n = _nccl_of(status)
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
        invitation = {"transport": "nccl", "world_size": self.world_size,
                      "nccl_unique_id": base64.b64encode(unique_id).decode(),
                      "timeout_s": min(max(int(deadline - time.monotonic()), 1), 86400)}
        late = deadline + REASON_S  # so that a server which knows the reason can answer
        try:
            calls = self._ask("POST", "/v1/weight_transfer/init",
                              [dict(invitation, rank_offset=1 + sum(counts[:i]))
                               for i in range(len(counts))], late)
            self._nccl.begin_join(self.world_size, unique_id)
            waited = (f"not all {self.world_size} ranks have joined: different NCCL versions or "
                      f"NCCL_CUMEM_ENABLE, or an address that cannot be reached, look like this")
            wait_until(self._nccl.ended, calls, late, waited)
            self._warm_up(calls, late, waited)
            answers_of(calls, late)
            self._joined = {call.url: call.answer["bootstrap"] for call in calls}
        except BaseException:
            for call in calls:
                call.give_up()
            self._joined = {call.url: call.answer["bootstrap"] for call in calls if call.answer}
            self.close()
            raise

    def _warm_up(self, calls, deadline, what):
        """Finds out what does not work now, not in the first push."""
        import torch

        done = torch.cuda.Event()
        with torch.cuda.stream(self._sending):
            one = torch.zeros(4, dtype=torch.uint8, device=f"cuda:{self._index}")
            self._nccl.begin_sum(one.data_ptr(), self._sending.cuda_stream)
            wait_until(self._nccl.ended, calls, deadline, what)
            done.record(self._sending)
        self._wait_event(done, calls, deadline, what)

    def _wait_event(self, event, calls, deadline, what):
        def reached():
            """NCCL reports a failure, where the stream may wait for ever."""
            there = event.query()
            return self._nccl.ended() and there

        wait_until(reached, calls, deadline, what)

    def push(self, tensors: Any, **options: Any) -> Answer:
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
            self._check_tensor_list(named, members, deadline)
            body = {"transport": "nccl", "plan_id": plan_digest(named), "packed": True,
                    "bucket_nbytes": bucket_nbytes, "expected_digest": plan_digest(named)}
            if "trainer_rank" in members:
                body["trainer_rank"] = members["trainer_rank"]
            if checksums:
                body["checksums"] = [s for chunk in chunks for s in _checksums(chunk)]
            ids, opened = self._open(members, deadline)
            with Watch(self._urls[0], progress):
                found = self._transfer(chunks, body, ids, opened, deadline)
        return found[0] if isinstance(self.url, str) else found

    def _check_tensor_list(self, named, members, deadline):
        """Every server checks the tensor list before any of them enters a broadcast."""
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
                raise InputError(f"{len(ids)} update_ids for {len(self._urls)} servers")
            return ids, False
        calls = self._ask("POST", "/v1/update_weights/start", [members] * len(self._urls), deadline)
        try:
            return [answer["update_id"] for answer in answers_of(calls, deadline)], True
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
            answers_of_all(calls, deadline)
            if not opened:
                return [check_open(url, ask(url, "GET", f"/v1/update_weights/{i}", timeout=LEAVE_S))
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
                    update = ask(call.url, "GET", f"/v1/update_weights/{update_id}",
                                 timeout=max(deadline - time.monotonic(), 0.1))
                except BatonError as e:
                    if e.status == 0:
                        raise
                    return False  # the update has ended: the answer of the call has the reason
                return update["phase"] == "receiving" and update.get("tensor") in names

            wait_until(receiving, calls, deadline, f"{call.url} has not begun to receive",
                       ASK_S_MAX)
        raise_failed(calls)

    def _broadcast(self, chunks, calls, deadline):
        """One bucket is packed while the one before is on its way."""
        import torch

        largest = max((sum(t.nbytes for _, t in chunk) for chunk in chunks), default=0)
        what = f"a broadcast to {', '.join(self._urls)} has not ended"
        with torch.cuda.device(self._index):
            buffers = [_BounceBuffer(self._index, largest) for _ in range(min(len(chunks), 2))]
            self._packing.wait_stream(torch.cuda.current_stream(self._index))
            for chunk, buffer in zip(chunks, itertools.cycle(buffers)):
                self._wait_event(buffer.sent, calls, deadline, what)
                with torch.cuda.stream(self._packing):
                    pack(buffer.bytes, chunk)
                    buffer.packed.record(self._packing)
                self._sending.wait_event(buffer.packed)
                self._nccl.begin_broadcast(buffer.bytes.data_ptr(), sum(t.nbytes for _, t in chunk),
                                           self._sending.cuda_stream)
                wait_until(self._nccl.ended, calls, deadline, what)  # before, it is on no stream
                buffer.sent.record(self._sending)
            for buffer in buffers:
                self._wait_event(buffer.sent, calls, deadline, what)

    def _finish(self, ids, deadline):
        calls = self._ask("POST", "/v1/update_weights/finish", [{"update_id": i} for i in ids],
                          deadline)
        try:
            return answers_of(calls, deadline)
        except BatonError as e:
            done = [call.url for call in calls if call.answer or has_committed(call.error)]
            wrong = [call.error for call in calls if call.error and not has_committed(call.error)]
            e = wrong[0] if wrong else e
            if done:
                e.args = (f"{e.args[0]}; committed, nevertheless, by {', '.join(done)}",)
            raise e

    def _check_joined(self, deadline):
        """All servers are still in this group, and not in another trainer's."""
        answers = self._ask_all("GET", "/v1/weight_transfer", [None] * len(self._urls), deadline)
        for url, group in zip(self._urls, answers):
            if group["state"] != "joined" or group["bootstrap"] != self._joined[url]:
                error = group.get("error") or {"message": f"its group is {group['state']}"}
                raise BatonError(f"{url} has left this group, or is in another's: "
                                 f"{error['message']}", code="conflict")

    def _still_joined(self):
        try:
            self._check_joined(time.monotonic() + LEAVE_S)
            return True
        except BatonError:
            return False

    def _all_sent(self, calls):
        """Have all servers answered, and are they in the group still? Then they have received
        everything, although its end had not been seen here yet; and it is waited for."""
        import torch

        end = time.monotonic() + REASON_S
        for call in calls:
            call.join(max(end - time.monotonic(), 0.0))
        if any(call.is_alive() for call in calls) or not self._still_joined():
            return False
        try:
            wait_until(self._nccl.ended, [], end, "a broadcast has not ended")
            with torch.cuda.device(self._index):
                sent = torch.cuda.Event()
                sent.record(self._sending)
                wait_until(sent.query, [], end, "a broadcast has not ended")
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
        end = time.monotonic() + REASON_S
        for call in calls:
            call.join(max(end - time.monotonic(), 0.0))
        if not halfway and (any(call.is_alive() for call in calls) or not self._still_joined()):
            e = self._end(calls, e)
        for call in calls:
            call.give_up()
        self._packing.synchronize()  # its buffers are given back now
        return e

    def _end(self, calls, e):
        """No push will work any more. The error of a server says more than that NCCL has failed."""
        if isinstance(e, BatonError) and e.code == "nccl_error":
            end = time.monotonic() + REASON_S
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
        calls = [Call(url, "POST", "/v1/update_weights/abort", dict(body, update_id=i), LEAVE_S)
                 for url, i in zip(urls, ids)]
        for call in calls:
            call.join(LEAVE_S)  # if it fails, the update has ended, or its lease will end it

    def close(self) -> None:
        """Leave the group, and let the servers leave it. A push that is under way fails."""
        if self._closed:
            return
        self._closed, self._broken = True, self._broken or "it was closed"
        self._nccl.abort()
        path, end = "/v1/weight_transfer", time.monotonic() + LEAVE_S
        found = [Call(url, "GET", path, timeout=LEAVE_S) for url in self._joined]
        for call in found:
            call.join(max(end - time.monotonic(), 0.0))
        gone = [Call(call.url, "DELETE", path, timeout=LEAVE_S) for call in found
                if call.answer and call.answer["bootstrap"] == self._joined[call.url]]
        for call in gone:
            call.join(LEAVE_S)  # a server that does not answer has left, or finds out by itself

    def __enter__(self) -> Group[Answer]:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


@overload
def join(url: str, device: Any = ..., library: Optional[str] = ...,
         timeout: float = ...) -> Group[Update]: ...


@overload
def join(url: List[str], device: Any = ..., library: Optional[str] = ...,
         timeout: float = ...) -> Group[List[Update]]: ...


def join(url: Union[str, List[str]], device: Any = None, library: Optional[str] = None,
         timeout: float = 60.0) -> Any:
    """Form an NCCL group of this process's GPU, rank 0, and the GPUs of one or several servers;
    returns a Group, to be used in a with. NCCL must be able to connect both ways.

    url      of the server, or a list of them: ranks are counted in this order
    device   the GPU of this process that broadcasts; None: the current one. No server may be on it
    library  path of libnccl; None: the one that torch uses. All ranks have to run the same version
    timeout  seconds, until all have joined
    """
    return Group(url, device, library, timeout)
