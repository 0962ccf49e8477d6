"""The parts of deltas (docs/delta.md) by torch, on the GPU where the tensors are."""

import gpu_world as world

UINT = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
KINDS = ("gap", "xor", "bitmap", "index", "range", "whole")


def bits(tensor):
    """The elements as integers of the same width."""
    import torch

    width = tensor.element_size()
    signed = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    return tensor.contiguous().view(-1).view(signed)


def part(name, suffix, dtype, shape, tensor):
    """(name, dtype, shape, bytes)"""
    return f"{name}#{suffix}", dtype, list(shape), world.raw_of(tensor)


def parts_of(name, old, new, kind):
    """A tensor's change; no gap may be longer than 65,535."""
    import torch

    a, b, uint = bits(old), bits(new), UINT[old.element_size()]
    where = (a != b).nonzero().view(-1)
    n = [where.numel()]
    if kind == "whole":
        return [(name, world.dtype_name(new), list(new.shape), world.raw_of(new))]
    if kind == "xor":
        return [part(name, "xor", uint, old.shape, a ^ b)]
    values = (a ^ b)[where]
    if kind == "bitmap":
        mask = torch.nn.functional.pad((a != b).to(torch.uint8), (0, -a.numel() % 8)).view(-1, 8)
        mask = (mask << torch.arange(8, device=mask.device, dtype=torch.uint8)).sum(1)
        return [part(name, "bitmap", "uint8", [mask.numel()], mask.to(torch.uint8)),
                part(name, "xor", uint, n, values)]
    if kind == "index":
        return [part(name, "index", "int32", n, where.to(torch.int32)),
                part(name, "value", uint, n, b[where])]
    if kind == "range":
        pairs = torch.stack([where, torch.ones_like(where)], 1)
        return [part(name, "range", "uint64", pairs.shape, pairs),
                part(name, "value", uint, n, b[where])]
    first = torch.full((1,), -1, dtype=where.dtype, device=where.device)
    gaps = torch.diff(where, prepend=first) - 1
    assert gaps.numel() == 0 or int(gaps.max()) < 65536
    return [part(name, "gap", "uint16", n, gaps.to(torch.int32).to(torch.int16)),
            part(name, "xor", uint, n, values)]


def columns(parts):
    return {
        "names": [p[0] for p in parts],
        "dtype_names": [p[1] for p in parts],
        "shapes": [p[2] for p in parts],
        "tensor_sizes": [p[3].numel() for p in parts],
    }
