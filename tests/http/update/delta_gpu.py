"""Deltas whose parts are on GPUs, by CUDA IPC and by NCCL, on one GPU and on two: every kind, tensors of every width at odd
places, chains, and what is refused. What is served is that of the model, on each GPU.
Usage: delta_gpu.py BATON MODEL CLIENT_DIR FAKECUDA FAKENCCL FAKECUDA_OF_TRAINERS FAKENCCL_OF_TRAINERS SEED"""

import sys

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[3])

import numpy  # noqa: E402

import baton  # noqa: E402
from ipc_trainer import pickled_dict  # noqa: E402
from ipc_world import NBYTES, TORCH, Spec, bucket, columns, fill, must, packed  # noqa: E402
from transfer_world import UPDATE, Groups, cut_each, cut_whole, join  # noqa: E402

N_STEPS = 4
KINDS = ("gap", "xor", "bitmap", "index", "range", "whole")
UINT = {1: "U8", 2: "U16", 4: "U32", 8: "U64"}
for width, uint in UINT.items():
    NBYTES[uint], TORCH[uint] = width, f"uint{8 * width}"
NBYTES["I32"], TORCH["I32"] = 4, "int32"


def changed(rng, data, specs):
    """Some elements of some tensors, all of one, none of another."""
    out = dict(data)
    for s in specs:
        share = rng.choice([0, 0.01, 0.3, 1])
        old = numpy.frombuffer(data[s.name], f"<u{NBYTES[s.dtype]}")
        where = numpy.random.default_rng(rng.randrange(1 << 32)).random(old.size) < share
        out[s.name] = (old ^ where.astype(old.dtype)).tobytes()  # the lowest bit: finite stays finite
    return out


def parts_of(rng, spec, old, new):
    """[(Spec, bytes)] of one tensor's change, of any kind."""
    width, kind = NBYTES[spec.dtype], rng.choice(KINDS)
    a, b = (numpy.frombuffer(x, f"<u{width}") for x in (old, new))
    where, uint, at = numpy.flatnonzero(a != b), UINT[width], spec.name

    def part(suffix, dtype, shape, array):
        return Spec(f"{at}#{suffix}", dtype, list(shape)), array.tobytes()

    n = [len(where)]
    if kind == "whole" or len(spec.shape) == 0:
        return [(spec, new)]
    if kind == "xor":
        return [part("xor", uint, spec.shape, a ^ b)]
    if kind == "bitmap":
        bits = numpy.packbits(a != b, bitorder="little")
        return [part("bitmap", "U8", [len(bits)], bits), part("xor", uint, n, (a ^ b)[where])]
    if kind == "index":
        dtype = rng.choice(["I32", "U32", "I64", "U64"])
        return [part("index", dtype, n, where.astype(f"<{dtype[0].lower()}{NBYTES[dtype]}")),
                part("value", rng.choice([uint, spec.dtype]), n, b[where])]
    if kind == "range":
        pairs = numpy.stack([where, numpy.ones_like(where)], 1).astype("<u8")
        return [part("range", "U64", pairs.shape, pairs), part("value", uint, n, b[where])]
    gaps = numpy.diff(where, prepend=-1) - 1
    must(gaps.size == 0 or gaps.max() < 65536, "a gap of this test fits")
    return [part("gap", "U16", n, gaps.astype("<u2")), part("xor", uint, n, (a ^ b)[where])]


def delta_of(rng, specs, old, new):
    parts = [p for s in specs for p in parts_of(rng, s, old[s.name], new[s.name])]
    return [s for s, _ in parts], {s.name: data for s, data in parts}


def sums_of(rng, specs, data):
    """Of some parts, or of none."""
    if rng.random() < 0.5:
        return {}
    return {"checksums": [rng.choice([None, baton.checksum(data[s.name])]) for s in specs]}


def members(k, **more):
    return {"weight_version": f"step-{k + 1}", "base_version": f"step-{k}", "delta": True, **more}


def handles_of(trainer, n_devices, specs, data):
    """The same packed parts on each GPU, from an odd address on."""
    content, exports = packed(specs, data), {}
    for device in range(n_devices):
        x = trainer.export(fill(trainer, device, content, front=257), 257, len(content))
        exports[x.uuid] = x
    return columns(specs, ipc_handles_pickled=pickled_dict(exports))


def serves(server, reader, data, n_devices, what):
    server.check_gpus(reader, [data] * n_devices, what)


def by_ipc(world, server, n_devices):
    rng, data = world.rng, world.data()
    with world.trainer(server) as t:
        body = handles_of(t, n_devices, world.specs, data)
        server.update({**body, "weight_version": "step-0"}, data)
        for k in range(N_STEPS):
            new = changed(rng, data, world.specs)
            specs, parts = delta_of(rng, world.specs, data, new)
            body = {**handles_of(t, n_devices, specs, parts), **members(k, **sums_of(rng, specs, parts))}
            found = server.post(200, UPDATE, body, f"step {k + 1}")
            must(found["delta"] and found["checksums_on"] == "gpu", found)
            maps = found["mappings"]
            must(maps["opened"] >= n_devices and maps["opened"] == maps["closed"] and maps["still_mapped"] == 0, found)
            must(k == 0 or found["changes"]["n_not_compared"] == 0, found)  # all are looked at
            server.serve(new, found)
            data = new
            serves(server, t, data, n_devices, f"step {k + 1} by ipc")
    return data


def wrong(world, server, data, n_devices):
    """Parts that only a kernel sees are refused as a host refuses them."""
    large = next(s for s in world.specs if s.name == "large")

    def u32(*values):
        return numpy.array(values, "<u4").tobytes()

    good = (Spec("odd.u8#xor", "U8", [3]), bytes(3))
    for parts, word in (
            (((Spec("large#index", "U32", [3]), u32(5, large.numel, 9)), (Spec("large#value", "U16", [3]), bytes(6))),
             f"position 1 is {large.numel}, beyond"),
            (((Spec("large#index", "U32", [3]), u32(5, 7, 7)), (Spec("large#value", "U16", [3]), bytes(6))),
             "position 2 is 7, not above"),
            (((Spec("large#gap", "U16", [4]), b"\xff" * 8), (Spec("large#xor", "U16", [4]), bytes(8))),
             f"position 3 is 262143, beyond the tensor's {large.numel}"),
            (((Spec("large#bitmap", "U8", [(large.numel + 7) // 8]), b"\x01" + bytes((large.numel - 1) // 8)),
              (Spec("large#xor", "U16", [2]), bytes(4))), "values have no position"),
            (((Spec("large#range", "U64", [1, 2]), numpy.array([[large.numel, 1]], "<u8").tobytes()),
              (Spec("large#value", "U16", [1]), bytes(2))), "ends beyond"),
            (((Spec("large#index", "U32", [1]), u32(0)), (Spec("large#value", "U16", [1]), b"\x80\x7f")), "inf"),
    ):
        specs, content = [good[0], *(s for s, _ in parts)], {s.name: d for s, d in (good, *parts)}
        with world.trainer(server) as t:
            body = {**handles_of(t, n_devices, specs, content), **members(N_STEPS)}
            server.refuse(body, "non_finite_weights" if word == "inf" else "bad_request", None, "large", word,
                          status=422 if word == "inf" else 400, what=word)
    specs, content = [good[0]], {good[0].name: good[1]}
    with world.trainer(server) as t:
        body = {**handles_of(t, n_devices, specs, content), **members(N_STEPS), "checksums": ["1" * 32]}
        serves(server, t, data, n_devices, "after wrong ones")
        server.refuse(body, "checksum_mismatch", "/checksums/0", "odd.u8#xor", status=422, what="a part's sum")


def by_nccl(world, server, n_devices):
    """A group of the trainer and a rank for each GPU."""
    rng, data = world.rng, world.data()
    with world.nccl_trainer(**server.environment) as t, world.trainer(server) as reader:
        join(server, t, world_size=1 + n_devices)
        body = columns(world.specs, transport="nccl", weight_version="step-0")
        for k in range(-1, N_STEPS):
            specs, parts = world.specs, data
            if k >= 0:
                new = changed(rng, data, world.specs)
                specs, parts = delta_of(rng, world.specs, data, new)
                data = new
                body = columns(specs, transport="nccl", packed=k % 2 == 1, **members(k, **sums_of(rng, specs, parts)))
            t.begin("send", (cut_whole if k >= 0 and k % 2 == 1 else cut_each)(specs, parts))
            found = server.post(200, UPDATE, body, f"step {k + 1}")
            t.result()
            server.serve(data, found)
            serves(server, reader, data, n_devices, f"step {k + 1} by nccl")


def main():
    world = Groups(*sys.argv[1:8], int(sys.argv[8]))
    for n_devices in (1, 2):
        devices = ",".join(f"cuda:{i}" for i in range(n_devices))
        with world.serve(devices=devices, n_devices="2") as server:
            wrong(world, server, by_ipc(world, server, n_devices), n_devices)
        with world.serve(devices=devices, n_devices="2") as server:
            by_nccl(world, server, n_devices)
    print(f"ok: {must.n} checks")


if __name__ == "__main__":
    main()
