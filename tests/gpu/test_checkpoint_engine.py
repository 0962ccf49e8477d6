"""checkpoint-engine 0.4.2, unmodified, pushes weights into baton: its ParameterServer and its client,
with real ZeroMQ and torch's own CUDA IPC, to one GPU and to two.

Usage: test_checkpoint_engine.py --baton BATON [--gib N]
Needs torch, checkpoint-engine, pyzmq and safetensors to import. The server finds libzmq.so.5 where the
loader looks, or else is lent the one of pyzmq's wheel. Ends with 0, or 1 if a check failed, or 77
(skipped) where torch, checkpoint-engine or a GPU is missing (with BATON_REQUIRE_GPU=1: a failure).

--fakes CUDA[,CUDA] is a dry run without a GPU, over tests/fakes: the server's library, and the
trainer's (else the same)."""

import argparse
import ctypes
import glob
import json
import os
import shutil
import socket
import struct
import sys
import tempfile
import time

import checkpoint_engine_rank as rank_side
import gpu_world as world

STEPS = [f"step-{n:05}" for n in (0, 100, 1500)]
BUCKET_GB = 0.0005  # so that the small model comes in several
GIB = 1 << 30


def lend_libzmq(folder):
    """The server's own lookup fails without it. Returns where it is from."""
    try:
        ctypes.CDLL("libzmq.so.5")
        return "the system's"
    except OSError:
        import zmq

    libs = os.path.join(os.path.dirname(os.path.dirname(zmq.__file__)), "pyzmq.libs")
    for path in glob.glob(os.path.join(libs, "lib*")):
        name = os.path.basename(path)
        shutil.copy(path, os.path.join(folder, "libzmq.so.5" if name.startswith("libzmq") else name))
    os.environ["LD_LIBRARY_PATH"] = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    return "pyzmq's"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def contents(path):
    """name -> bytes of a safetensors file."""
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    return {k: raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]
            for k, v in header.items()}


def checkpoint(step):
    return str(world.MODEL / "checkpoints" / f"{step}.safetensors")


class Trainer:
    """Its ranks, one on each GPU."""

    def __init__(self, args, n):
        self.workers = [world.Worker(**({"PYTHONDONTWRITEBYTECODE": "1"})) for _ in range(n)]
        port = free_port()
        self.torch = self.all(rank_side.begin, n, port, BUCKET_GB, args.trainer_fake, with_rank=True)

    def all(self, function, *args, with_rank=False, **kwargs):
        """On every rank at the same time."""
        for i, w in enumerate(self.workers):
            w.tell(function, *((i,) if with_rank else ()), *args, **kwargs)
        return [w.hear() for w in self.workers]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for w in self.workers:
            w.__exit__()


def serve(args, *options):
    fake = ["--cuda-library", args.server_fake] if args.server_fake else []
    return world.Server(args.baton, *options, *fake)


def serves(checks, server, step, what, label=None):
    """Every byte, and a token of it."""
    wanted = contents(checkpoint(step))
    wrong = [n for n, data in wanted.items() if server.get(f"/v1/weights/{n}") != data]
    checks.same(wrong, [], f"{what}: the bytes of {step}")
    weights = server.status()["weights"]
    checks.that(label in (None, weights["weight_version"]), f"{what}: its label", weights)
    checks.same(server.mapped(), 0, f"{what}: mappings left")
    answer = server.post("/v1/generate", {"token_ids": [5, 6, 7],
                                          "sampling_params": {"max_tokens": 4, "temperature": 0}})
    checks.that(len(answer["choices"][0]["token_ids"]) == 4, f"{what}: generates", answer["choices"])


def ok(checks, results, what):
    checks.same([r[:2] for r in results], [(None, None)] * len(results), f"{what}: the update")


def rounds(checks, args, trainer, server, n):
    for i, (step, form) in enumerate(zip(STEPS * 2, ("vllm", "sglang") * 3)):
        what, label = f"{form} {n} GPU {i}", f"policy-{i}" if form == "sglang" else None
        trainer.all(rank_side.load, checkpoint(step))
        ok(checks, trainer.all(rank_side.push, server.url, form, label), what)
        serves(checks, server, step, what, label)


def in_place(checks, args, trainer, server):
    """A file in /dev/shm, which checkpoint-engine pins where it lies: its tensors come without gaps."""
    path = f"/dev/shm/baton-{os.getpid()}.safetensors"
    shutil.copy(checkpoint(STEPS[1]), path)
    try:
        found = trainer.workers[0].ask(rank_side.push, server.url, "vllm", files=[path])
        ok(checks, [found], "a file in /dev/shm")
        serves(checks, server, STEPS[1], "a file in /dev/shm")
    finally:
        if os.path.exists(path):
            os.unlink(path)


def failures(checks, args, trainer, server, step):
    """`step` serves before, and after each of them."""
    before = trainer.all(rank_side.held)
    trainer.all(rank_side.load, checkpoint(STEPS[0]))
    trainer.workers[0].ask(rank_side.spoil, "a.stranger")
    results = trainer.all(rank_side.push, server.url, "vllm")
    checks.that("Failed to update weights" in str(results[0][0]), "a stranger: it stops", results)
    checks.that("a.stranger" in str(results[0][1]), "a stranger: the answer says why", results[0][1])
    serves(checks, server, step, "after a stranger")
    trainer.all(rank_side.load, checkpoint(STEPS[2]))
    ok(checks, trainer.all(rank_side.push, server.url, "sglang", "again"), "after a stranger")
    serves(checks, server, STEPS[2], "after a stranger", "again")
    checks.same(trainer.all(rank_side.held), before, "the trainer's memory after both")


def death(checks, args, server, step):
    """The trainer is killed in mid update."""
    with Trainer(args, 1) as trainer:
        trainer.all(rank_side.load, checkpoint(STEPS[0]))
        trainer.workers[0].tell(rank_side.push, server.url, "vllm", slow_s=0.5)
        world.until(lambda: (server.status()["update"] or {}).get("n_tensors_done"), "a bucket came")
        began = time.monotonic()
        trainer.workers[0].kill()
        world.until(lambda: (server.status()["update"] or {}).get("phase") in
                    (None, "none", "aborted"), "the update ends")
        checks.that(time.monotonic() - began < 10, "killed: the update ends soon",
                    f"{time.monotonic() - began:.1f} s")
    serves(checks, server, step, "after a death")


def one_gpu(checks, args):
    with serve(args, "--model", world.MODEL, "--weights", "none", "--device", "cuda:0") as server:
        with Trainer(args, 1) as trainer:
            print(f"torch {trainer.torch}", flush=True)
            rounds(checks, args, trainer, server, 1)
            if not args.fakes:
                in_place(checks, args, trainer, server)
            trainer.all(rank_side.load, checkpoint(STEPS[2]))
            ok(checks, trainer.all(rank_side.push, server.url, "vllm"), "before failures")
            failures(checks, args, trainer, server, STEPS[2])
        usage = server.descriptors()
        for _ in range(3):
            death(checks, args, server, STEPS[2])
        checks.that(sum(server.descriptors().values()) <= sum(usage.values()) + 2,
                    "descriptors after deaths", f"{usage} {server.descriptors()}")


def two_gpus(checks, args):
    with serve(args, "--model", world.MODEL, "--weights", "none", "--device",
               "cuda:0,cuda:1") as server, Trainer(args, 2) as trainer:
        rounds(checks, args, trainer, server, 2)
        failures(checks, args, trainer, server, STEPS[2])


def large(checks, args):
    """How fast; and that the first bytes of each tensor are right."""
    nbytes = 64 << 20
    n = max(1, args.gib * GIB // nbytes)
    with tempfile.TemporaryDirectory() as folder:
        manifest = world.write_manifest(folder, [(f"rank0.{i}", "uint8", [nbytes]) for i in range(n)])
        with serve(args, "--engine", "none", "--manifest", manifest, "--weights", "none",
                   "--device", "cuda:0") as server, Trainer(args, 1) as trainer:
            trainer.all(rank_side.bucket, 2)
            heads = trainer.all(rank_side.make, n, nbytes)[0]
            for i in range(3):
                found = trainer.all(rank_side.push, server.url, "vllm")
                ok(checks, found, f"large {i}")
                print(f"     {n * nbytes / GIB:.1f} GiB in {found[0][2]:.2f} s, the trainer's own "
                      f"copies and start included: {n * nbytes / GIB / found[0][2]:.2f} GiB/s", flush=True)
            name = f"rank0.{n - 1}"
            checks.same(server.get(f"/v1/weights/{name}")[:4096], heads[name], "large: the last one")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--baton", required=True)
    parser.add_argument("--gib", type=int, default=8)
    parser.add_argument("--fakes", default="")
    args = parser.parse_args()
    fakes = args.fakes.split(",") if args.fakes else []
    args.server_fake = os.path.abspath(fakes[0]) if fakes else None
    args.trainer_fake = os.path.abspath(fakes[-1]) if fakes else None
    required = os.environ.get("BATON_REQUIRE_GPU") == "1"
    try:
        import checkpoint_engine.ps  # noqa: F401
    except ImportError as e:
        print(f"{'FAIL' if required else 'skipped'}: checkpoint-engine cannot be imported: {e}")
        sys.exit(1 if required else world.SKIPPED)
    n_gpus = 1 if fakes else world.need_gpus().cuda.device_count()
    checks = world.Checks()
    with tempfile.TemporaryDirectory() as folder:
        print(f"libzmq: {lend_libzmq(folder)}; {n_gpus} GPUs", flush=True)
        with checks.section("one GPU"):
            one_gpu(checks, args)
        if n_gpus > 1:
            with checks.section("two GPUs"):
                two_gpus(checks, args)
        if not fakes:
            with checks.section("large"):
                large(checks, args)
    sys.exit(checks.done())


if __name__ == "__main__":
    main()
