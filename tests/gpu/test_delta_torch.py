"""Deltas against torch: a trainer in a process of its own makes each step and its delta on the GPU,
baton makes the step from the version before it, and the trainer maps what is served and compares
every byte: by a file, shared memory, CUDA IPC and NCCL, each in a chain.

Usage: test_delta_torch.py --baton BATON [--only WAY[,WAY...]]
By NCCL both are on one GPU: the trainer claims to be on another host, and NCCL sends by sockets.
Ends with 0, or 1 if a check failed, or 77 (skipped) where there is no torch or no GPU; with
BATON_REQUIRE_GPU=1 that is a failure too."""

import argparse
import json
import os
import sys
import tempfile
import types

import delta_parts
import gpu_world as world
import nccl_torch
import nccl_world as nccl
from gpu_world import baton

N_STEPS = 5
CODES = {"uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "int32": "I32",
         "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64",
         "float8_e4m3fn": "F8_E4M3"}
SPECS = [("odd", "float8_e4m3fn", (3, 5)), ("one", "float64", (1,)), ("norm", "bfloat16", (257,))] + [
    (f"layers.{i}.weight", dtype, shape)
    for i, (dtype, shape) in enumerate(
        [("bfloat16", (1531, 1024)), ("bfloat16", (4096, 2048)), ("float32", (513, 129)),
         ("float16", (300, 77)), ("float8_e4m3fn", (2047, 513)), ("float64", (111, 33))] * 3
    )
] + [("embed", "bfloat16", (20011, 2048))]


# --- in the trainer


def make(state, seed):
    import torch

    state.named, state.parts = {}, []
    generator = torch.Generator("cuda").manual_seed(seed)
    for name, dtype, shape in SPECS:
        drawn = torch.randn(shape, generator=generator, device="cuda:0", dtype=torch.float32)
        state.named[name] = drawn.to(getattr(torch, dtype))
        width = state.named[name].element_size()
        state.parts.append((name, dtype, list(shape), world.raw_of(state.named[name])))
        assert width in delta_parts.UINT


def step(state, seed, checksums):
    """The lowest bit of 1 % of the elements, or of all of them, or of none; the delta of any kinds.
    Returns the members that say so."""
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    state.parts = []
    for i, (name, old) in enumerate(state.named.items()):
        share = (0.01, 0.01, 1.0, 0.0)[(i + seed) % 4]
        new = old.clone()
        drawn = torch.rand(old.numel(), generator=generator, device="cuda:0") < share
        delta_parts.bits(new).bitwise_xor_(drawn.to(delta_parts.bits(new).dtype))
        kind = delta_parts.KINDS[(i * 5 + seed) % len(delta_parts.KINDS)]
        state.parts += delta_parts.parts_of(name, old, new, kind)
        state.named[name] = new
    if not checksums:
        return {}
    sums = baton.gpu_checksums([p[3] for p in state.parts])
    return {"checksums": [s if k % 2 else None for k, s in enumerate(sums)]}


def post(url, members):
    return baton.request(url, "POST", "/v1/update_weights", members)


def by_ipc(state, url, members):
    """Packed in one buffer, as they come: most parts are at odd addresses."""
    import torch

    content = torch.cat([p[3] for p in state.parts] + [state.parts[0][3][:0]])
    _, args = world.export(content)
    torch.cuda.synchronize()
    body = {**delta_parts.columns(state.parts), **members, "packed": True,
            "ipc_handles_pickled": world.pickled({world.uuid_of(0): args})}
    said = post(url, body)
    return said, world.counter(args)


def host_tensors(state):
    return [(n, baton.Tensor(CODES[d], s, memoryview(raw.cpu().numpy()))) for n, d, s, raw in state.parts]


def by_path(state, url, members):
    with tempfile.TemporaryDirectory(dir=state.folder) as folder:
        path, at = os.path.join(folder, "delta.safetensors"), 0
        head = {"__metadata__": {"format": "pt"}}
        if members.get("delta"):
            head = {"__metadata__": {"format": "baton-delta-1",
                                     "base_version": members["base_version"]}}
        for n, d, s, raw in state.parts:
            head[n] = {"dtype": CODES[d], "shape": s, "data_offsets": [at, at + raw.numel()]}
            at += raw.numel()
        text = json.dumps(head).encode()
        with open(path, "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            for *_, raw in state.parts:
                f.write(raw.cpu().numpy().tobytes())
        return post(url, {**members, "path": path}), 0


def by_shm(state, url, members):
    import baton.host

    with baton.host.by_shm(host_tensors(state), False, world.PATIENCE_S) as ask:
        return ask(url, members, None), 0


def send(state):
    """Each part as a broadcast of its own."""
    for *_, raw in state.parts:
        nccl_torch.broadcast(state, raw)
        nccl_torch.settle(state)


def open_folder(state, folder):
    state.folder = folder


def differing(state, url):
    return world.differing(url, state.named)


# --- asking


class Trainer(nccl.Trainer):
    def __init__(self, args):
        world.Worker.__init__(self, NCCL_HOSTID="the trainer's host")
        self.tell(nccl_torch.be_torch, args.nccl)


def by_nccl(server, trainer, members):
    body = {**trainer.ask(columns_of), **members, "transport": "nccl"}
    body.pop("tensor_sizes")
    pending = nccl.Pending(server, nccl.UPDATE, body)
    trainer.tell(send)
    answer = pending.answer()
    if answer.status != 200:
        raise AssertionError(f"the update failed: {answer}")
    trainer.hear()
    return answer.body, 0


def columns_of(state):
    return delta_parts.columns(state.parts)


WAYS = {"path": by_path, "shm": by_shm, "ipc": by_ipc, "nccl": None}


def push(way, server, trainer, members):
    if way == "nccl":
        return by_nccl(server, trainer, members)
    return trainer.ask(WAYS[way], server.url, members)


def chain(checks, args, way, folder):
    specs = [nccl.Spec(n, d, s) for n, d, s in SPECS]
    with nccl.store(args, specs, "--allow-path", folder) as server, Trainer(args) as trainer:
        trainer.ready()
        trainer.ask(open_folder, folder)
        if way == "nccl":
            nccl_torch.enter(checks, server, trainer, "an id that is posted")
        trainer.ask(make, 1)
        push(way, server, trainer, {"weight_version": "step-0"})
        for k in range(1, N_STEPS + 1):
            more = trainer.ask(step, k, way in ("ipc", "nccl") and k % 2 == 1)
            said, counted = push(way, server, trainer, {
                "weight_version": f"step-{k}", "base_version": f"step-{k - 1}", "delta": True, **more})
            about = f"step {k} by {way}"
            checks.same((said["phase"], said["delta"], counted), ("committed", True, 0), about)
            checks.same(said["checksums_on"], "gpu", f"{about}: sums")
            checks.same(trainer.ask(differing, server.url), [], f"{about}: every byte")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--baton", required=True, help="the program to test")
    parser.add_argument("--only", default=",".join(WAYS), help="ways, by commas")
    args = parser.parse_args()
    torch = world.need_gpus(1)
    torch.cuda.init()
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast can put a host's GPUs out of service
    library = nccl.torch_nccl()
    args = types.SimpleNamespace(**vars(args), cuda_library=None, cuda="libcuda.so.1", devices=[0],
                                 nccl=library, nccl_server=library)
    checks = world.Checks()
    with tempfile.TemporaryDirectory() as folder:
        for way in args.only.split(","):
            with checks.section(way):
                chain(checks, args, way, folder)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
