"""vLLM's own trainer of sparse patches (backend sparse_nccl, vLLM 0.29 and later) and its HTTP client, unmodified, against
baton's engine on the same GPU. In one shot and in chunks, rising and in any order; what is refused before and after the
broadcasts; another commit in between; and how long an update of 1 % takes. Each update ends in the bytes, tokens and logprobs of the checkpoint.

Usage: test_vllm_sparse.py --baton BATON [--vllm WHEEL] [--only SECTION[,SECTION...]] [--large-mib N]
Without --vllm an installed one is used; of a wheel its few files that are needed.
Ends with 0, or 1 if a check failed, or 77 (skipped) where torch, vLLM or a GPU is missing. With
BATON_REQUIRE_GPU=1 what is missing is a failure.

--fakes CUDA,NCCL[,CUDA,NCCL] is a dry run without a GPU, over tests/fakes. It needs a torch all the same."""

import argparse
import hashlib
import importlib.util
import itertools
import os
import sys
import tempfile
import types

import gpu_world as world
import nccl_world as nccl
import test_ipc_torch as ipc
import test_nccl_torch
import vllm_files
import vllm_sparse_trainer as trainer_side
from dialects_world import Stage, by_vllm, serve

GRACE_S = 60
SHAPE = (2048, 2048)  # of a tensor of the large model
N_LARGE = 5  # updates of it


def file_of(step):
    return str(ipc.CHECKPOINTS / f"{step}.safetensors")


class Play(Stage):
    def load(self, step):
        names = {t["name"] for t in self.server.get("/v1/weights?checksums=false")["tensors"]}
        self.trainer.ask(trainer_side.load, file_of(step), names)

    def join(self):
        self.trainer.ask(trainer_side.join, self.server.url, self.trainer.ask(trainer_side.free_port))

    def last(self):
        return self.server.status()["recent_updates"][-1]

    def push(self, step, what, n_chunks=1, order="rising", label=None):
        self.load(step)
        took, n = self.trainer.ask(trainer_side.send, n_chunks, order, label)
        found = self.last()
        self.checks.same((found["outcome"], found["delta"], found["base"]), ("committed", True, "unchecked"), what)
        self.checks.that(True, f"{what}: {n} elements", f"{1e3 * took:.1f} ms")
        self.serves(step, what, by_vllm, label)


def started(args):
    """Where the trainer's first weights are served."""
    return serve(args, 0, "--allow-path", ipc.CHECKPOINTS)


def updates(checks, args, trainer):
    with started(args) as server:
        play = Play(checks, args, trainer, server)
        play.load("step-00000")
        play.join()
        play.push("step-00100", "one shot")
        play.push("step-01500", "three chunks, in any order", 3, "any", "step-1500")
        play.push("step-01500", "nothing changes")
        play.push("step-00000", "one shot, in any order", 1, "any")
        for i, step in enumerate(("step-00100", "step-01500", "step-00000")):
            play.push(step, f"chunks {i}", 2 + i, "rising", f"policy-{i}")


REFUSED = {"unknown": "no.such.tensor", "twice": "not above", "outside": "beyond"}
REMOTE_ERROR = ": 6"  # ncclRemoteError: with the fakes the trainer looks at it, and may see it before the answer


def is_told(checks, told, words, what):
    checks.that(words in told or REMOTE_ERROR in told, f"{what}: the trainer is told", told[:200])


def refusals(checks, args, trainer):
    """Each time another version is pushed first, by a new group, and is served to the end."""
    with started(args) as server:
        play = Play(checks, args, trainer, server)
        play.load("step-00000")
        for how, served in zip(REFUSED, itertools.cycle(("step-00100", "step-01500"))):
            play.join()
            play.push(served, f"{how}: before")
            play.load("step-00000")
            told = trainer.ask(trainer_side.send_wrong, how)
            is_told(checks, told, REFUSED[how], how)
            play.serves(served, f"{how}: as before", by_vllm)
            if how != "unknown":  # which has ended its group
                told = trainer.ask(trainer_side.send_again)
                is_told(checks, told, "new group", f"{how}, and what follows")
        play.join()
        play.push("step-01500", "a new group")
        server.post("/v1/update_weights", {"path": file_of("step-00000"), "weight_version": "other"})
        play.load("step-00100")
        told = trainer.ask(trainer_side.send_again)
        is_told(checks, told, "came in another way", "another commit in between")
        play.serves("step-00000", "the other commit stays", by_vllm, "other")


def large(checks, args, trainer):
    """A store of the size asked for; 1 % of the elements change in each update."""
    n_tensors = max(1, (args.large_mib << 20) // (2 * SHAPE[0] * SHAPE[1]))
    named = trainer.ask(trainer_side.made, n_tensors, *SHAPE)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = os.path.join(folder, "base.safetensors")
        trainer.ask(trainer_side.saved, path)
        manifest = world.write_manifest(folder, named)
        options = ("--engine", "none", "--manifest", manifest, "--weights", path, "--allow-path", folder)
        with nccl.Server(args, *options, devices=[0]) as server:
            play = Play(checks, args, trainer, server)
            play.join()
            for i in range(N_LARGE):
                order = "rising" if i % 2 == 0 else "any"
                trainer.ask(trainer_side.change, 0.01, i)
                took, n = trainer.ask(trainer_side.send, 1 if i < 3 else 4, order)
                times = play.last()["seconds"]
                checks.that(n > 0, f"{order}: {n} elements of {args.large_mib} MiB", f"{took:.3f} s; {times}")
            trainer.ask(trainer_side.saved, path)
            tensors = world.baton.load_file(path)
            found = server.post("/v1/weights/check", {
                "action": "compare", "baseline": {n: hashlib.sha256(t.data).hexdigest() for n, t in tensors.items()}})
            checks.that(found["match"], "what is served", found)


SECTIONS = {f.__name__: f for f in (updates, refusals, large)}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--baton", required=True, help="the program to test")
    parser.add_argument("--vllm", help="a wheel of vLLM; default: the one that is installed")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, by commas")
    parser.add_argument("--large-mib", type=int, default=1024, help="of the section large")
    parser.add_argument("--budget-s", type=float, default=300, help="time for all of it")
    parser.add_argument("--fakes", help="CUDA,NCCL[,CUDA,NCCL]: without a GPU, over tests/fakes")
    args = parser.parse_args()
    unknown = set(args.only.split(",")) - set(SECTIONS)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}: not one of {', '.join(SECTIONS)}")
    return args


def use_gpu(args):
    torch = world.need_gpus()
    args.cuda_library, args.cuda, args.torch, args.small = None, "libcuda.so.1", True, False
    args.nccl = args.nccl_server = nccl.torch_nccl()
    print(f"torch {torch.__version__}, NCCL {nccl.version_of(args.nccl)}, {torch.cuda.get_device_name(0)}")


def need_vllm(args):
    if args.vllm is not None or importlib.util.find_spec("vllm") is not None:
        return
    required = os.environ.get("BATON_REQUIRE_GPU") == "1"
    print(f"{'FAIL' if required else 'skipped'}: no vllm; --vllm names a wheel of it")
    sys.exit(1 if required else world.SKIPPED)


def run(checks, args, folder):
    fakes = (args.cuda, args.nccl) if args.fakes else None
    for name in args.only.split(","):
        with checks.section(name), world.Worker(**args.environment) as trainer:
            trainer.ask(trainer_side.be, "trainer", folder, fakes)
            SECTIONS[name](checks, args, trainer)


def main():
    args = parse()
    need_vllm(args)
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast can put a host's GPUs out of service
    args.environment = {}
    if args.fakes:
        test_nccl_torch.use_fakes(args)
        os.environ["FAKENCCL_TRANSPORT"] = "socket"  # as of another host
    else:
        use_gpu(args)
        args.environment = {"VLLM_NCCL_SO_PATH": args.nccl}
    checks = world.Checks()
    with tempfile.TemporaryDirectory() as folder, test_nccl_torch.Watchdog(checks, args.budget_s):
        if args.vllm is not None:
            vllm_files.unpack(args.vllm, folder)
        run(checks, types.SimpleNamespace(**vars(args)), folder if args.vllm is not None else None)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
