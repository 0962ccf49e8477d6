"""The weights that a server keeps on GPUs of this host, as torch tensors of this process."""

from __future__ import annotations

import base64
import os
import secrets
import threading
import time
from typing import Any, Dict, Optional, cast

from .connection import ask
from .errors import BatonError
from .gpu import torch_with_cuda
from .tensors import CANONICAL, DTYPES
from .types import Handles, Lease


def _strides(shape):
    strides = [1] * len(shape)
    for k in range(len(shape) - 1, 0, -1):
        strides[k - 1] = strides[k] * max(shape[k], 1)
    return tuple(strides)


def _torch_dtype(name):
    import torch

    dtype = getattr(torch, DTYPES[CANONICAL[name]][1][0], None) if name in CANONICAL else None
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
    nbytes = numel * DTYPES[CANONICAL[dtype]][0]
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

    def __init__(self, url: str, device: Any = None, lease_s: int = 60, timeout: float = 600.0):
        torch_with_cuda("attach")
        self._url, self._timeout = url, timeout
        self._lost: Optional[BatonError] = None
        self._stop = threading.Event()
        answer = cast(Handles, ask(url, "GET", f"/v1/weights/handles?lease_s={int(lease_s)}",
                                   timeout=timeout))
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
    def tensors(self) -> Dict[str, Any]:
        if self._lost is not None:
            raise self._lost
        return self._tensors

    def renew(self, lease_s: Optional[int] = None) -> Lease:
        """Ask for lease_s seconds from now (None: as many as before)."""
        body: Dict[str, Any] = {"lease_id": self.lease_id}
        if lease_s is not None:
            body["lease_s"] = int(lease_s)
        asked = time.monotonic()
        answer = cast(Lease, ask(self._url, "POST", "/v1/weights/handles/renew", body,
                                 timeout=min(self._timeout, self.lease_s)))
        self.lease_s = answer["lease_s"]
        self._until = asked + self.lease_s
        return answer

    def _keep(self):
        while not self._stop.wait(self.lease_s / 3):
            try:
                self.renew()
            except BatonError as e:
                if e.code not in ("connection", "timeout") or time.monotonic() > self._until:
                    self._lost = BatonError(f"the lease on the served weights is lost: {e.message}",
                                            e.status, e.code, request_id=e.request_id)
                    return

    def _end(self):
        self._stop.set()
        self._thread.join()
        try:
            ask(self._url, "DELETE", f"/v1/weights/handles/{self.lease_id}", timeout=30.0)
        except BatonError:
            pass  # it has ended by itself, or the server has

    def close(self) -> None:
        """Wait for what reads the tensors on the GPU, unmap them, and end the lease."""
        import torch

        if self._stop.is_set():
            return
        torch.cuda.synchronize()
        self._tensors = {}
        self._end()

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def attach(url: str, device: Any = None, lease_s: int = 60, timeout: float = 600.0) -> Attached:
    """Map the weights that a server on this host keeps on its GPUs; returns an Attached, to be used
    in a with.

    device   the GPU of this process to map them on; None: the one that they are on, by its UUID.
             Another one reads them over NVLink or PCIe
    lease_s  how long the server keeps this version without a renewal
    """
    return Attached(url, device, lease_s, timeout)
