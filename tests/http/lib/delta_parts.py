"""What changed in a tensor, as the parts of docs/delta.md."""

import ctypes

import numpy

zstd = ctypes.CDLL("libzstd.so.1")
zstd.ZSTD_compress.restype = ctypes.c_size_t

KINDS = ("whole", "gap", "xor", "bitmap", "index", "range")  # all but the first need the right bytes to build on
GAP_MAX = 0xFFFF


def compressed(data):
    out = ctypes.create_string_buffer(len(data) + 1000)
    n = zstd.ZSTD_compress(out, ctypes.c_size_t(len(out)), data, ctypes.c_size_t(len(data)), 1)
    return out.raw[:n]


def gaps_of(where, xors):
    """With elements of xor 0 in longer gaps."""
    gap = numpy.diff(where, prepend=-1) - 1
    bridges = gap // (GAP_MAX + 1)
    last = numpy.cumsum(bridges + 1) - 1
    gaps = numpy.full(last[-1] + 1 if len(last) else 0, GAP_MAX, "<u2")
    values = numpy.zeros(len(gaps), xors.dtype)
    gaps[last] = gap - bridges * (GAP_MAX + 1)
    values[last] = xors
    return gaps, values


def parts_of(name, dtype, shape, old, new, kind, index="U32"):
    """[(name, dtype, shape, bytes)] of the change of one tensor; `old` and `new` are unsigned words of its width."""
    where, unsigned = numpy.flatnonzero(old != new), f"U{8 * old.itemsize}"
    xors = (old ^ new)[where]
    if kind == "whole":
        arrays = [("", dtype, new)]
    elif kind == "xor":
        arrays = [("#xor", unsigned, old ^ new)]
    elif kind == "bitmap":
        arrays = [("#bitmap", "U8", numpy.packbits(old != new, bitorder="little")), ("#xor", unsigned, xors)]
    elif kind == "index":
        arrays = [("#index", index, where.astype(f"<{index[0].lower()}{int(index[1:]) // 8}")), ("#value", dtype, new[where])]
    elif kind == "range":
        first = where[numpy.diff(where, prepend=-2) != 1]
        last = where[numpy.diff(where, append=len(old) + 1) != 1]
        arrays = [("#range", "U64", numpy.stack([first, last - first + 1], 1).astype("<u8")), ("#value", unsigned, new[where])]
    else:
        gaps, values = gaps_of(where, xors)
        arrays = [("#gap", "U16", gaps), ("#xor", unsigned, values)]
    alike = kind in ("whole", "xor")
    return [(name + part, as_dtype, list(shape if alike else array.shape), array.tobytes()) for part, as_dtype, array in arrays]


def packed(parts):
    """The same, compressed where they are not the whole tensor."""
    out = []
    for name, dtype, shape, data in parts:
        if "#" in name:
            data = compressed(data)
            name, dtype, shape = name + ".zst", "U8", [len(data)]
        out.append((name, dtype, shape, data))
    return out
