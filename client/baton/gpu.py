"""torch tensors on GPUs of this process."""

from __future__ import annotations

import os
from typing import Any, List

from .errors import BatonError, InputError
from .tensors import CANONICAL, DTYPES

GPU_PIECE_NBYTES = 16 << 20  # of a checksum on a GPU; takes five times as much there


def torch_with_cuda(what):
    """torch, with CUDA started in this process."""
    try:
        import torch

        torch.cuda.init()
    except (ImportError, AssertionError, RuntimeError) as e:
        raise BatonError(f"{what} needs torch with CUDA in this process: {e}; without a GPU push "
                         "by via='shm' or via='body'", code="no_gpu") from e
    return torch


class _OnGpu:
    """A torch tensor that is on a GPU, and stays there."""

    def __init__(self, name, value):
        dtype = str(value.dtype).rpartition(".")[2]
        if dtype not in CANONICAL:
            raise InputError(f"tensor {name!r}: unknown dtype {dtype!r}")
        self.value, self.index = value, value.device.index
        self.dtype, self.shape = CANONICAL[dtype], tuple(value.shape)
        self.numel = value.numel()
        self.nbytes = self.numel * DTYPES[self.dtype][0]

    def raw(self):
        """Its bytes, packed, as a 1-D uint8 tensor: a view where it lies packed already."""
        import torch

        return self.value.detach().contiguous().reshape(-1).view(torch.uint8)


def is_cuda(value):
    return getattr(value, "is_cuda", False) is True


def on_gpus(pairs, via="ipc"):
    if isinstance(pairs, (str, os.PathLike)):
        raise InputError(f"via {via!r} needs torch tensors on a GPU, not the path of a file")
    for name, value in pairs:
        if not is_cuda(value):
            raise InputError(f"tensor {name!r}: via {via!r} needs torch tensors on a GPU")
    if not pairs:
        raise InputError("there is nothing to push: no tensors were given")
    return [(str(name), _OnGpu(name, value)) for name, value in pairs]


def _gpu_words(raw):
    """The little-endian 32-bit words of a 1-D uint8 tensor as int64, zeros after its end."""
    import torch

    missing = -raw.numel() % 4
    if missing or raw.storage_offset() % 4 or raw.data_ptr() % 4:
        padded = torch.zeros(raw.numel() + missing, dtype=torch.uint8, device=raw.device)
        padded[:raw.numel()].copy_(raw)
        raw = padded
    return raw.view(torch.int32).to(torch.int64).bitwise_and_(0xFFFFFFFF)


def gpu_checksums(raws: List[Any]) -> List[str]:
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


def pack(buffer, chunk):
    """Copies the chunk's bytes into the buffer, back to back, on the current stream."""
    at = 0
    for _, t in chunk:
        if t.nbytes:
            buffer[at:at + t.nbytes].copy_(t.raw(), non_blocking=True)
        at += t.nbytes
