"""One step of a bfloat16 model as a delta, 1 % of the elements as gaps and xors without zstd, against
the whole model: by CUDA IPC from memory of the same GPU, and by NCCL, in one run.

Usage: bench_delta_gpu.py --baton BATON [--layers N] [--nccl-layers N] [--out FILE.json]
The clock runs from before the first request to the reply that says committed, HTTP and JSON
included; the requests are written beforehand. Deltas have the names of the one before and sizes of
their own, as steps of a training have; the first by IPC, whose names are new, is printed by itself. The
floor of a delta by IPC is printed too: copies of all bytes by the driver, and a scatter of the
changed elements by torch. By NCCL both sides are on one GPU: the trainer claims to be on another
host, and NCCL sends by sockets. What is served after the last delta is compared with what torch
makes of the base. Ends with 0, or 1 if bytes were wrong, or 77 without a GPU."""

import argparse
import json
import os
import pathlib
import sys
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))
import bench_ipc  # noqa: E402
import gpu_world as world  # noqa: E402
import ipc_wire as wire  # noqa: E402
import nccl_bench_wire  # noqa: E402
import nccl_torch  # noqa: E402
import nccl_world as nccl  # noqa: E402
from gpu_world import baton  # noqa: E402

N_RUNS = 6
NTH = 105  # of so many elements one changes, about
GIB = 1 << 30
NBYTES_MIN = 200 << 10  # smaller tensors come whole


class Delta:
    """Its parts, packed in one block of GPU memory: the lowest bit of some elements. Every second
    small tensor is not named."""

    def __init__(self, torch, named, step=0):
        self.torch, self.rows, self.small, total, n_small = torch, [], [], 0, 0
        for name, shape in named:
            numel = wire.nbytes_of(shape) // 2
            if 2 * numel < NBYTES_MIN:
                n_small += 1
                if n_small % 2:
                    self.small.append((name, shape, 2 * numel))
                continue
            n = numel // NTH - (len(self.rows) + step) % 7 * step
            self.rows.append((name, n, total))
            total += 4 * n
        generator = torch.Generator("cuda").manual_seed(1 + step)
        total += sum(nbytes for _, _, nbytes in self.small)
        self.content = torch.zeros(total, dtype=torch.uint8, device="cuda:0")
        words = self.content.view(torch.int16)
        pool = torch.randint(0, 192, (4 << 20,), generator=generator, device="cuda:0").to(torch.int16)
        for i, (_, n, at) in enumerate(self.rows):
            words[at // 2 :][:n] = pool[i * 32 :][:n] if n <= 3 << 20 else pool.repeat(n // (4 << 20) + 1)[:n]
            words[at // 2 + n :][:n] = 1
        torch.cuda.synchronize()

    def columns(self):
        names, dtypes, shapes = [], [], []
        for name, n, _ in self.rows:
            names += [f"{name}#gap", f"{name}#xor"]
            dtypes += ["uint16", "uint16"]
            shapes += [[n], [n]]
        for name, shape, _ in self.small:
            names.append(name)
            dtypes.append("bfloat16")
            shapes.append(list(shape))
        return {"names": names, "dtype_names": dtypes, "shapes": shapes}

    def sizes(self):
        return [2 * n for _, n, _ in self.rows for _ in (0, 1)] + [n for _, _, n in self.small]

    def request(self):
        """By IPC, ready to be sent."""
        _, exported = world.export(self.content)
        self.torch.cuda.synchronize()
        body = {**self.columns(), "tensor_sizes": self.sizes(), "packed": True, "delta": True,
                "base_version": "bench", "weight_version": "bench",
                "ipc_handles_pickled": world.pickled({world.uuid_of(0): exported})}
        return wire.Ready(wire.PATH, body, with_id=False)

    def applied(self, k, raw):
        """Tensor k with its change."""
        _, n, at = self.rows[k]
        gaps = self.content.view(self.torch.int16)[at // 2 :][:n]
        out = raw.clone().view(self.torch.int16)
        where = self.torch.cumsum(gaps.to(self.torch.int64) + 1, 0) - 1
        out[where] ^= 1
        return out.view(self.torch.uint8)


def clocked(call):
    began = time.perf_counter()
    said = call()
    if said["phase"] != "committed":
        raise AssertionError(said)
    return (time.perf_counter() - began) * 1e3, said


def told(name, found):
    ms = sorted(m for m, _ in found)
    timing = min(found, key=lambda f: f[0])[1]["timing"]
    print(f"{name}: receive_ms {' '.join(str(round(s['timing']['receive_ms'], 1)) for _, s in found)}; beside the update "
          f"{' '.join(str(round(m - sum(s['timing'].values()), 1)) for m, s in found)}")
    print(f"{name:34} {' '.join(f'{m:7.1f}' for m, _ in found)} ms; best {ms[0]:.1f}, median "
          f"{ms[len(ms) // 2]:.1f}; the best's {timing}", flush=True)
    return {"ms": [m for m, _ in found], "timing": timing}


def check(torch, server, deltas, before):
    """@deltas  those that are in what is served
    @before  name -> raw bytes of the base, of some tensors"""
    wrong = []
    with baton.attach(server.url) as served:
        for k, (name, _, _) in enumerate(deltas[0].rows):
            if name not in before:
                continue
            wanted = before[name]
            for delta in deltas:
                wanted = delta.applied(k, wanted)
            if not torch.equal(world.raw_of(served.tensors[name]), wanted):
                wrong.append(name)
    return wrong


def some_served(torch, server, delta):
    rows = delta.rows
    names = {rows[0][0], rows[1][0], rows[len(rows) // 2][0], rows[-2][0], rows[-1][0]}
    with baton.attach(server.url) as served:
        return {n: world.raw_of(served.tensors[n]).clone() for n in names}


def floor_ms(trainer, buckets):
    """Each bucket copied, and about as many of its elements stored as a delta changes, on the GPU."""
    torch = trainer.torch
    drawn = torch.randint(1, 2 * NTH, (GIB // 2 // NTH,), device="cuda:0")
    places = torch.cumsum(drawn, 0)
    values = torch.ones_like(places, dtype=torch.int16)
    words = trainer.target.view(torch.int16)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    counts = [int((places < wire.length_of(b) // 2).sum()) for b in buckets]
    torch.cuda.synchronize()
    first.record()
    for bucket, n in zip(buckets, counts):
        trainer.target[: wire.length_of(bucket)].copy_(trainer.bucket[: wire.length_of(bucket)])
        words.scatter_(0, places[:n], values[:n])
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last)


def by_ipc(args, torch, report):
    named = wire.qwen3_30b_a3b(args.layers)
    trainer = bench_ipc.Trainer(torch, GIB)
    deltas = [Delta(torch, named, step) for step in range(3)]
    requests_of = [d.request() for d in deltas]
    with bench_ipc.Served(args, trainer, named, GIB) as served:
        print(f"by IPC: {served.nbytes / 1e9:.1f} GB, {len(named)} tensors; the delta: "
              f"{deltas[1].content.numel() / 1e9:.3f} GB, {2 * len(deltas[1].rows) + len(deltas[1].small)} parts, "
              f"{len(requests_of[1].tail) >> 10} KiB of JSON")
        report["raw_ms"] = min(sum(trainer.raw(served.buckets)[1:]) * 1e3 for _ in range(3))
        report["floor_ms"] = min(floor_ms(trainer, served.buckets) for _ in range(3))
        print(f"on the GPU: raw copies of as many bytes {report['raw_ms']:.1f} ms, with a scatter {report['floor_ms']:.1f} ms")
        for mode in ("one request", "one request, plan_id", "8 connections, plan_id"):
            requests, how = served.ready(mode)
            found = [clocked(lambda r=requests, h=how: served.update(r, h)[1]) for _ in range(N_RUNS)]
            report[f"whole by IPC, {mode}"] = told(f"whole by IPC, {mode}", found)
        before = some_served(torch, served.server, deltas[0])
        steps = [0] + [1 + i % 2 for i in range(N_RUNS)]  # an odd number of times each
        found = [clocked(lambda i=i: json.loads(served.wire.whole([requests_of[i]]))) for i in steps]
        report["first delta by IPC"] = told("delta by IPC with new names", found[:1])
        report["delta by IPC"] = told("delta by IPC, one request", found[1:])
        report["wrong"] = check(torch, served.server, [deltas[i] for i in range(3) if steps.count(i) % 2], before)
        last = [line for line in served.server.read_log().splitlines() if '"bytes_in"' in line]
        print("the server's last requests:", *last[-3:], sep="\n  ")
    best = min(report["delta by IPC"]["ms"])
    wholes = [min(report[k]["ms"]) for k in report if k.startswith("whole by IPC")]
    print(f"delta to whole by IPC: {best / min(wholes):.2f} of the fastest way; "
          f"to raw copies of all bytes: {best / report['raw_ms']:.2f}; "
          f"to these and a scatter: {best / report['floor_ms']:.2f}")


# --- NCCL


def be_sender(state, nbytes):
    import torch

    state.block = torch.randint(0, 128, (nbytes,), dtype=torch.uint8, device="cuda:0")


def be_delta(state, layers):
    import torch

    state.delta = Delta(torch, wire.qwen3_30b_a3b(layers))
    return state.delta.columns(), state.delta.sizes()


def send(state, what, sizes):
    block, at = state.block if what == "whole" else state.delta.content, 0
    for n in sizes:
        nccl_torch.broadcast(state, block[:n] if what == "whole" else block[at : at + n])
        at += n
    nccl_torch.settle(state)


class Trainer(nccl.Trainer):
    def __init__(self, args):
        world.Worker.__init__(self, NCCL_HOSTID="the trainer's host")
        self.tell(nccl_torch.be_torch, args.nccl)


def by_nccl(args, torch, report):
    named = wire.qwen3_30b_a3b(args.nccl_layers)
    spans = [sum(t[3] for t in b) for b in nccl_bench_wire.cut_vllm(nccl_bench_wire.placed(named), GIB)]
    library = nccl.torch_nccl()
    made = types.SimpleNamespace(baton=args.baton, nccl=library, nccl_server=library, devices=[0],
                                 cuda_library=None, cuda="libcuda.so.1")
    specs = [nccl.Spec(n, "bfloat16", s) for n, s in named]
    with nccl.store(made, specs, "--json-body-max", 256 << 20) as server, Trainer(made) as trainer:
        trainer.ready()
        answer = nccl_torch.enter_id(server, trainer, None)
        assert answer.status == 200, answer
        trainer.hear()
        trainer.ask(be_sender, max(spans))
        columns, sizes = trainer.ask(be_delta, args.nccl_layers)
        plan = server.post("/v1/weights/plans", {
            "names": [n for n, _ in named], "shapes": [list(s) for _, s in named], "dtypes": ["bfloat16"] * len(named)})
        common = {"transport": "nccl", "packed": True, "bucket_nbytes": GIB, "weight_version": "bench"}
        print(f"by NCCL: {sum(spans) / 1e9:.1f} GB in {len(spans)} broadcasts; the delta: {sum(sizes) / 1e9:.3f} GB")

        def update(what, body, cuts):
            pending = nccl.Pending(server, nccl.UPDATE, body)
            trainer.tell(send, what, cuts)
            answer = pending.answer()
            trainer.hear()
            assert answer.status == 200, answer
            return answer.body

        whole = {**common, "plan_id": plan["plan_id"]}
        found = [clocked(lambda: update("whole", whole, spans)) for _ in range(3)]
        report["whole by NCCL"] = told("whole by NCCL, plan_id", found)
        body = {**common, **columns, "delta": True, "base_version": "bench"}
        found = [clocked(lambda: update("delta", body, [sum(sizes)])) for _ in range(N_RUNS)]
        report["delta by NCCL"] = told("delta by NCCL", found)
    print(f"delta to whole by NCCL: {min(report['delta by NCCL']['ms']) / min(report['whole by NCCL']['ms']):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--baton", required=True, help="the program to measure")
    parser.add_argument("--layers", type=int, default=48, help="48: 61 GB in 18,867 tensors; the server keeps two versions")
    parser.add_argument("--nccl-layers", type=int, default=4)
    parser.add_argument("--out", help="write the figures there")
    args = parser.parse_args()
    torch = world.need_gpus(1)
    torch.cuda.init()
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast can put a host's GPUs out of service
    report = {"wrong": ["nothing was compared"]}
    by_ipc(args, torch, report)
    torch.cuda.empty_cache()
    by_nccl(args, torch, report)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            json.dump(report, f, indent=1)
    print("wrong:", report["wrong"])
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
