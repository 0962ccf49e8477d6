"""The client's deltas, without a server: what is encoded and written gives the new bytes again, for every width of
elements and every density, in host memory and by torch; sizes; refusals."""
import os
import pathlib
import re
import sys
import tempfile

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client"))
import baton  # noqa: E402
from baton import delta  # noqa: E402

WIDTHS = {"U8": 1, "F8_E8M0": 1, "BF16": 2, "F32": 4, "F64": 8, "C64": 8}
RNG = numpy.random.default_rng(1611)


def must(ok, what):
    if not ok:
        raise AssertionError(what)


def refused(call, *wanted):
    try:
        call()
    except baton.InputError as e:
        must(all(w in e.message for w in wanted), e.message)
        return
    raise AssertionError(f"not refused: {wanted}")


def tensor(dtype, words):
    return baton.Tensor(dtype, words.shape, memoryview(words.reshape(-1)).cast("B"))


def words_of(dtype, n):
    return numpy.frombuffer(RNG.bytes(n * WIDTHS[dtype]), f"<u{WIDTHS[dtype]}").copy()


def stepped(words, chance):
    """Each element, with this chance, one up or down."""
    changed = RNG.random(words.shape) < chance
    return words + numpy.where(changed, RNG.choice([1, -1], words.shape), 0).astype(words.dtype)


def same(found, wanted):
    must(found.dtype == wanted.dtype and found.shape == wanted.shape and found.data == wanted.data, "other bytes")


def round_trip(path, base, new):
    made = delta.write(path, base, new, base_version="step-1", version="step-2")
    found = delta.read(path, base)
    must(found.keys() == new.keys(), "other names")
    for name, t in new.items():
        same(found[name], t)
    return made


class TestZstd:
    """A module `compression.zstd` of this test: its frames are those of zlib."""

    @staticmethod
    def compress(data, level):
        must(level == 1, level)
        import zlib
        return zlib.compress(bytes(data), 1)

    @staticmethod
    def decompress(data):
        import zlib
        return zlib.decompress(bytes(data))


def every_dtype_of_the_server():
    source = (pathlib.Path(__file__).resolve().parents[2] / "memory/dtype.h").read_text()
    rows = re.findall(r'X\(DTYPE_\w+, "(\w+)", ([0-9]+), "(\w+)"\)', source)
    must(len(rows) > 10, rows)
    for name, bits, torch_name in rows:
        found = baton.Tensor(torch_name, (3,), bytes(3 * int(bits) // 8))
        must(found.dtype == name, f"{torch_name}: {found.dtype}")
    must(baton.tensors.as_tensors([("a", numpy.ones(2, "complex64"))])[0][1].dtype == "C64", "numpy's complex64")


def every_width_and_density(path):
    for dtype in WIDTHS:
        for chance, kinds in ((0, {""}), (0.0001, {"gap", "xor"}), (0.01, {"gap", "xor"}), (0.1, {"bitmap", "xor"}),
                              (1, {""})):
            words = words_of(dtype, 70003)
            base = {"a": tensor(dtype, words), "norm": tensor(dtype, words[:40])}
            new = {"a": tensor(dtype, stepped(words, chance)), "norm": base["norm"]}
            made = round_trip(path, base, new)
            found = {part.rpartition("#")[2] if "#" in part else "" for part in made.parts}
            if chance != 0.1 or WIDTHS[dtype] < 8:
                must(found == kinds, f"{dtype} {chance}: {found}")
            must(made.nbytes <= made.nbytes_whole, "more than the whole")


def long_gaps(path):
    words = words_of("BF16", 3 << 20)
    changed, at = words.copy(), 0
    for gap in (65534, 65535, 65536, 65537, 131071, 131072, 131073):
        changed[at:at + 40] ^= 1
        at += 40 + gap
    changed[at] ^= 1
    made = round_trip(path, {"a": tensor("BF16", words)}, {"a": tensor("BF16", changed)})
    must("a#gap" in made.parts, made.parts)
    few = words.copy()
    few[2] ^= 1
    few[-1] ^= 1
    made = round_trip(path, {"a": tensor("BF16", words)}, {"a": tensor("BF16", few)})
    must(made.nbytes == 2 * (4 + 2) and "a#index" in made.parts, made.parts)


def compressed(path):
    """With a zstd: parts are smaller, a dense change is a xor. The frames are of this test."""
    old = delta._Zstd.__init__
    delta._Zstd.__init__ = lambda self: self.__dict__.update(there=True, _new=TestZstd, _old=None)
    try:
        words = words_of("BF16", 70003)
        base = {"a": tensor("BF16", words)}
        for chance, kinds in ((0.01, {"a#gap.zst", "a#xor.zst"}), (0.2, {"a#bitmap.zst", "a#xor.zst"}),
                              (1, {"a#xor.zst"})):
            made = round_trip(path, base, {"a": tensor("BF16", stepped(words, chance))})
            must(set(made.parts) == kinds, made.parts)
    finally:
        delta._Zstd.__init__ = old


def torch_finds_the_same():
    try:
        import torch
    except ImportError:
        return
    for dtype in (torch.uint8, torch.bfloat16, torch.float32, torch.float64):
        base = (torch.randn(300, 77) * 50).to(dtype)
        new = base.clone()
        new.view(-1)[::97] += 1
        new.view(-1)[1::131] = -new.view(-1)[1::131]
        found = delta._find_on_gpu("a", base, new)  # on the CPU here: the same operations
        pairs = [baton.tensors.as_tensors([("a", t)])[0][1] for t in (base, new)]
        wanted = delta._find_on_host(*pairs)
        must(found.n and (found.at == wanted.at).all() and (found.xors == wanted.xors).all(), f"{dtype}")
        must(found.dtype == wanted.dtype and found.shape == wanted.shape, f"{dtype}")
        same(found.new(), pairs[1])


def refusals(path):
    words = words_of("BF16", 4096)
    base = {"a": tensor("BF16", words), "b": tensor("BF16", words)}
    changed = {"a": tensor("BF16", stepped(words, 0.01)), "b": base["b"]}
    refused(lambda: delta.encode(base, {"a": base["a"]}), "'b' of the base is missing")
    must(len(delta.encode(base, {"a": base["a"]}, partial=True).parts) == 1, "partial")
    refused(lambda: delta.encode(base, {**base, "c": base["a"]}), "'c' is not in the base")
    refused(lambda: delta.encode(base, {**base, "b": tensor("F16", words)}), "'b' has another dtype")
    refused(lambda: delta.encode(base, {**base, "b": tensor("BF16", words.reshape(64, 64))}), "'b' has another")
    delta.write(path, base, changed, base_version="step-1")
    refused(lambda: delta.read(path, changed), "'a'", "another base, step-1")
    refused(lambda: delta.read(path, {"b": base["b"]}), "no tensor 'a'")
    refused(lambda: delta.read(path + ".none", base), "No such file")
    url = "http://127.0.0.1:1"
    refused(lambda: baton.push(changed, url, delta_from="step-1"), "go together")
    refused(lambda: baton.push(changed, url, delta_base=base), "go together")
    refused(lambda: baton.push(changed, [url], delta_from="step-1", delta_base=base), "one server")
    refused(lambda: baton.push(changed, url, via="path", delta_from="step-1", delta_base=base), "'path'")
    refused(lambda: baton.push(changed, url, convert=True, delta_from="step-1", delta_base=base), "convert")
    with open(path, "r+b") as f:  # another position: the checksum tells
        f.seek(-1 - delta.encode(base, changed).parts["a#xor"].nbytes, os.SEEK_END)
        f.write(b"\1")
    refused(lambda: delta.read(path, base), "'a'")


with tempfile.TemporaryDirectory() as work:
    where = os.path.join(work, "x.delta")
    every_dtype_of_the_server()
    every_width_and_density(where)
    long_gaps(where)
    compressed(where)
    torch_finds_the_same()
    refusals(where)
print("ok")
