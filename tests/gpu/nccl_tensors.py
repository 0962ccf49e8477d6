"""Tensors whose bytes every process can make from a seed, and how they are cut into broadcasts."""

import array
import itertools
import random

from gpu_world import baton

BLOCK_NBYTES = 4 * 1021  # of a tensor's pattern; a prime, so no shift of it looks alike
GIB = 1 << 30
FINITE = bytes(b % 0x70 for b in range(256))  # as bytes of any float dtype neither NaN nor infinity


class Spec:
    def __init__(self, name, dtype, shape):
        self.name, self.dtype, self.shape, self.numel = name, dtype, list(shape), 1
        for dim in shape:
            self.numel *= dim
        self.width = baton.DTYPES[baton.tensors.CANONICAL[dtype]][0]
        self.nbytes = self.numel * self.width


def total_of(specs):
    return sum(s.nbytes for s in specs)


def block_of(seed, spec):
    """What a tensor's bytes repeat."""
    block = random.Random(f"{seed}/{spec.name}").randbytes(BLOCK_NBYTES).translate(FINITE)
    return bytes(b & 1 for b in block) if spec.dtype == "bool" else block


def content(seed, spec):
    block = block_of(seed, spec)
    return (block * (spec.nbytes // len(block) + 1))[: spec.nbytes]


def _sums(data, first):
    words = array.array("I", data + b"\0" * (-len(data) % 4))
    return sum(words), sum(i * w for i, w in enumerate(words, first + 1))


def tiled_checksum(block, nbytes):
    """baton's checksum of so many bytes that repeat the block, without making them."""
    k, rest = divmod(nbytes, len(block))
    n = len(block) // 4
    a, b = _sums(block, 0)
    a, b = k * a, k * b + n * a * (k * (k - 1) // 2)
    a_rest, b_rest = _sums(block[:rest], k * n)
    mask = 2**64 - 1
    return f"{(a + a_rest) & mask:016x}{(b + b_rest) & mask:016x}"


def checksums_of(seed, specs):
    return {s.name: tiled_checksum(block_of(seed, s), s.nbytes) for s in specs}


def offsets(specs):
    """Packed, so most lie at odd places."""
    return [0, *itertools.accumulate(s.nbytes for s in specs)][: len(specs)]


def cut_each(specs):
    """[(offset, nbytes)] of the broadcasts: one for each tensor; NCCL drops those of nothing."""
    return [(at, s.nbytes) for at, s in zip(offsets(specs), specs) if s.nbytes]


def cut_whole(specs):
    return [(0, total_of(specs))]


def cut_vllm(specs, bound):
    """vLLM's rule: the tensor that crosses the bound is in."""
    cuts, at, size = [], 0, 0
    for s in specs:
        size += s.nbytes
        if size > bound:
            cuts.append((at, size))
            at, size = at + size, 0
    return cuts + ([(at, size)] if size else [])


def wire(specs, **more):
    return {
        "transport": "nccl",
        "names": [s.name for s in specs],
        "dtype_names": [s.dtype for s in specs],
        "shapes": [s.shape for s in specs],
        **more,
    }


def ways(specs):
    """(what it is called, members of the request, broadcasts): each way to cut these tensors."""
    total = total_of(specs)
    for bound in (1, 1000, total // 3, total - 1, total):
        yield (
            f"packed by {bound}",
            {"packed": True, "packed_buffer_size_bytes": bound},
            cut_vllm(specs, bound),
        )
    yield "packed by 1 GiB", {"packed": True}, cut_vllm(specs, GIB)
    sizes = [s.numel for s in specs]
    yield "packed with sizes", {"packed": True, "sizes": sizes}, cut_whole(specs)
    yield "one for each tensor", {"packed": False}, cut_each(specs)


def digest(specs):
    """A plan's."""
    named = [(s.name, baton.Tensor(s.dtype, [0], b"")) for s in specs]
    for (_, tensor), spec in zip(named, specs):
        tensor.shape = tuple(spec.shape)
    return baton.plan_digest(named)
