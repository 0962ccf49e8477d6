"""Patches as vLLM's trainers broadcast them (for each tensor its positions, then its values) against raw NCCL
broadcasts of the same pieces between two processes, in turns, in one run.

Usage: bench_sparse.py --baton BATON [--mib N] [--rounds N] [--out FILE.json]
1 % of the elements of a bfloat16 model change, at positions that rise. An update is timed from before its start to
the reply of its finish, which says committed; a raw one until its receiver's stream has ended. All are on one GPU:
the senders claim to be on another host, and NCCL sends by sockets. What is served after the last update is compared
with what torch makes. Ends with 0, or 1 if bytes were wrong, or 77 without a GPU."""

import argparse
import json
import os
import pathlib
import sys
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))
import gpu_world as world  # noqa: E402
import nccl_torch  # noqa: E402
import nccl_world as nccl  # noqa: E402
from gpu_world import baton  # noqa: E402

SHAPE = (2048, 2048)
SHARE = 0.01


class Rank(nccl.Trainer):
    def __init__(self, args, host):
        world.Worker.__init__(self, NCCL_HOSTID=host)
        self.tell(nccl_torch.be_torch, args.nccl)


# --- in the trainers


def make(state, n_tensors):
    """The model, and its patches. Returns how many elements each has."""
    import torch

    torch.manual_seed(1)
    state.named = [(f"t{i}", torch.randn(SHAPE, device="cuda:0").to(torch.bfloat16)) for i in range(n_tensors)]
    state.patches = []
    for _ in state.named:
        where = (torch.rand(SHAPE[0] * SHAPE[1], device="cuda:0") < SHARE).nonzero().flatten()
        state.patches.append((where.to(torch.int32), torch.randn(len(where), device="cuda:0").to(torch.bfloat16)))
    torch.cuda.synchronize()
    return [len(where) for where, _ in state.patches]


def turn(state):
    """Other values at the same places."""
    import torch

    state.patches = [(where, values.neg()) for where, values in state.patches]
    for (_, tensor), (where, values) in zip(state.named, state.patches):
        tensor.view(-1)[where.long()] = values
    torch.cuda.synchronize()


def send_patches(state):
    for where, values in state.patches:
        nccl_torch.broadcast(state, where)
        nccl_torch.broadcast(state, values)
    nccl_torch.settle(state)


def checksums(state):
    return baton.gpu_checksums([world.raw_of(t) for _, t in state.named])


def join_second(state, unique_id):
    """Rank 1 of two, with the warm-up of rank 0."""
    import ctypes

    import torch

    nccl_torch._fresh_rank(state).join(unique_id, 1, 2)
    data = torch.zeros(2, device="cuda:0")
    at = [ctypes.c_void_p(data[i:].data_ptr()) for i in (0, 1)]
    state.rank.call("ncclAllReduce", *at, ctypes.c_size_t(1), nccl_torch.FLOAT32, nccl_torch.SUM, state.rank.comm,
                    nccl_torch._stream(state))
    nccl_torch.settle(state)


# --- asking


def raw(sender, receiver):
    began = time.perf_counter()
    for rank in (receiver, sender):
        rank.tell(send_patches)
    for rank in (receiver, sender):
        rank.hear()
    return (time.perf_counter() - began) * 1e3


def patched(server, trainer, body, label):
    trainer.ask(turn)
    began = time.perf_counter()
    update = server.post("/v1/update_weights/start", {"weight_version": label})["update_id"]
    pending = nccl.Pending(server, nccl.UPDATE, {**body, "update_id": update})
    trainer.tell(send_patches)
    answer = pending.answer()
    assert answer.status == 200, answer
    said = server.post("/v1/update_weights/finish", {"update_id": update})
    took = (time.perf_counter() - began) * 1e3
    trainer.hear()
    assert said["phase"] == "committed", said
    return took, said


def joined(server, trainer):
    answer = nccl_torch.enter_id(server, trainer, None)
    assert answer.status == 200, answer
    trainer.hear()


def told(name, ms):
    print(f"{name:18} {' '.join(f'{m:7.1f}' for m in ms)} ms; best {min(ms):.1f}, median {sorted(ms)[len(ms) // 2]:.1f}",
          flush=True)


def measure(args, report):
    n_tensors = max(1, (args.mib << 20) // (2 * SHAPE[0] * SHAPE[1]))
    specs = [nccl.Spec(f"t{i}", "bfloat16", list(SHAPE)) for i in range(n_tensors)]
    library = nccl.torch_nccl()
    made = types.SimpleNamespace(baton=args.baton, nccl=library, nccl_server=library, devices=[0], cuda_library=None,
                                 cuda="libcuda.so.1")
    with nccl.store(made, specs) as server, Rank(made, "host a") as trainer, Rank(made, "host b") as sender, \
            Rank(made, "host c") as receiver:
        for rank in (trainer, sender, receiver):
            rank.ready()
        counts = [rank.ask(make, n_tensors) for rank in (trainer, sender, receiver)][0]
        joined(server, trainer)
        nccl_torch.update(server, trainer, nccl.wire(specs, weight_version="base"), None)
        joined(server, trainer)  # patches build on what is served when their group is joined
        minted = sender.ask(nccl_torch.mint)
        receiver.tell(join_second, minted)
        sender.ask(nccl_torch.join, minted, 2)
        receiver.hear()
        body = {**nccl.wire(specs), "num_updates_list": counts}
        print(f"{args.mib} MiB in {n_tensors} tensors, {sum(counts)} elements: {6 * sum(counts) / 1e6:.1f} MB in "
              f"{2 * n_tensors} broadcasts")
        raws, updates, timings = [], [], []
        for i in range(args.rounds + 1):  # the first of each counts for nothing
            raws.append(raw(sender, receiver))
            took, said = patched(server, trainer, body, f"step-{i}")
            updates.append(took)
            timings.append(said["timing"])
        report.update(raw_ms=raws[1:], update_ms=updates[1:], timing=timings[1:])
        sums = {t["name"]: t["checksum"] for t in server.get("/v1/weights")["tensors"]}
        wanted = trainer.ask(checksums)
        report["wrong"] = [f"t{i}" for i in range(n_tensors) if sums[f"t{i}"] != wanted[i]]
    told("raw broadcasts", raws[1:])
    told("updates", updates[1:])
    best = min(range(len(updates) - 1), key=lambda i: updates[1 + i])
    print("the best update's", timings[1 + best])
    report["ratio_best"] = min(updates[1:]) / min(raws[1:])
    report["ratio_median"] = sorted(updates[1:])[args.rounds // 2] / sorted(raws[1:])[args.rounds // 2]
    print(f"updates to raw broadcasts: {report['ratio_best']:.2f} of the best, {report['ratio_median']:.2f} of the medians")
    print("wrong:", report["wrong"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--baton", required=True, help="the program to measure")
    parser.add_argument("--mib", type=int, default=2048, help="of the model")
    parser.add_argument("--rounds", type=int, default=9, help="of each, in turns")
    parser.add_argument("--out", help="write the figures there")
    args = parser.parse_args()
    torch = world.need_gpus(1)
    torch.cuda.init()
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast can put a host's GPUs out of service
    report = {"wrong": ["nothing was compared"]}
    measure(args, report)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            json.dump(report, f, indent=1)
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
