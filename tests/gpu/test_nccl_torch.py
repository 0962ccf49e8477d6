"""NCCL against real trainers: torch on GPU 0 in the forms of vLLM, SkyRL, slime and SGLang, and
trainers that use the same library without torch and are killed, stopped and never come; baton on
the other GPUs.

Usage: test_nccl_torch.py --baton BATON [--only SCENARIO[,SCENARIO...]] [--rounds N] [--seed SEED]
Ends with 0, or 1 if a check failed, or 77 (skipped) where torch or a second GPU is missing; with
BATON_REQUIRE_GPU=1 that is a failure too.

--fakes CUDA,NCCL[,CUDA,NCCL] runs what needs no torch over tests/fakes: the server's libraries, and
the trainers' (else the same)."""

import argparse
import faulthandler
import multiprocessing
import os
import random
import sys
import threading
import time
import types

import gpu_world as world
import nccl_faults
import nccl_rounds
import nccl_torch
import nccl_world as nccl
import test_ipc_torch as ipc

GRACE_S = 60  # what is under way when the budget is spent may take so much longer
N_FAKE = 3


def ways_to(checks, args, server, specs):
    """Each form, in each way, by a trainer without torch: tensors at odd places."""
    seeds = iter(range(1, 1000))
    for form in nccl.FORMS:
        with nccl.trainer(args) as rank_0:
            nccl.enter(server, rank_0, form)
            for (way, members, cuts), seed in zip(nccl.ways(specs), seeds):
                what = f"{form.__name__}, {way}"
                answer = nccl.push(server, rank_0, specs, seed, cuts, **members)
                checks.same(
                    answer.body["nbytes_done"], nccl.total_of(specs), f"{what}: the update"
                )
                checks.same(nccl.wrong(args, server, specs, seed), [], f"{what}: bytes")
            nccl_torch.joined(checks, args, server)


def mixed(checks, args):
    specs = [nccl.Spec(*row) for row in ipc.MIXED]
    with checks.section("mixed, misaligned"), nccl.store(args, specs) as server:
        with nccl.Health(server) as health:
            ways_to(checks, args, server, specs)
        health.judge(checks, "mixed")


def ranks(checks, args):
    """Fewer ranks than there are GPUs, and each alone."""
    if len(args.devices) < 2:
        checks.skip("ranks", f"baton has {len(args.devices)} GPU")
        return
    specs = [nccl.Spec(*row) for row in ipc.MIXED]
    for n in range(2, len(args.devices) + 1):
        with checks.section(f"{n} ranks"):
            with nccl.store(args, specs, devices=args.devices[:n]) as server:
                ways_to(checks, args, server, specs)


def versions(checks, args):
    """The server's NCCL is not the trainer's: both are named, and soon."""
    other = (args.nccl_other, "") if args.nccl_other else nccl.other_nccl(args.nccl_version)
    if args.small or other is None:
        checks.skip("versions", "no NCCL of another version is found")
        return
    path = other[0]
    found = other[1] or nccl.version_of(path)
    specs = [nccl.Spec("w", "bfloat16", (1000,))]
    with checks.section(f"NCCL {found} here, {args.nccl_version} there"):
        with nccl.store(args, specs, nccl=path) as server, nccl.Health(server) as health:
            status = server.status()["nccl"]
            checks.same((status["available"], status["version"]), (True, found), "the server's")
            for form in (nccl.by_id, nccl.by_store):
                other_version(checks, args, server, found, form)
            health.judge(checks, "versions")


def other_version(checks, args, server, found, form):
    with nccl.trainer(args) as rank_0:
        body = form(server, rank_0, timeout_s=nccl_faults.JOIN_S)
        answer = nccl.ask(server, "POST", nccl.INIT, body)
    nccl.in_time(checks, answer, nccl_faults.JOIN_S, form.__name__)
    checks.that(
        answer.code == "nccl_error"
        and found in answer.message
        and args.nccl_version in answer.message,
        f"{form.__name__}: both versions are named",
        answer,
    )
    group = nccl.group(server)
    checks.same(
        (group["state"], group["trainer_nccl_version"]),
        ("failed", args.nccl_version),
        f"{form.__name__}: the group, and the trainer's version",
    )


SCENARIOS = {
    "forms": nccl_torch.forms,
    "mixed": mixed,
    "progress": nccl_rounds.progress,
    "versions": versions,
    "joining": nccl_faults.joining,
    "updating": nccl_faults.updating,
    "refused": nccl_faults.refused,
    "ranks": ranks,
    "rounds": nccl_rounds.rounds,
}


# --- main


def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--baton", required=True, help="the program to test")
    parser.add_argument("--only", default=",".join(SCENARIOS), help="scenarios, by commas")
    parser.add_argument("--rounds", type=int, default=200, help="of the scenario rounds")
    parser.add_argument("--seed", type=int, default=None, help="of the scenario rounds")
    parser.add_argument("--budget-s", type=float, default=1500, help="time for all of it")
    parser.add_argument("--nccl-other", help="a library of another version; default: ldconfig -p")
    parser.add_argument("--fakes", help="CUDA,NCCL[,CUDA,NCCL]: without torch, over tests/fakes")
    args = parser.parse_args(argv)
    unknown = set(args.only.split(",")) - set(SCENARIOS)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}: not one of {', '.join(SCENARIOS)}")
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1 << 30)
    return args


def use_fakes(args):
    paths = [os.path.abspath(p) for p in args.fakes.split(",")]
    args.cuda_library, args.nccl_server = paths[:2]
    args.cuda, args.nccl = paths[-2:]
    args.torch, args.small, args.devices = False, True, list(range(1, N_FAKE))
    os.environ["FAKECUDA_DEVICES"] = str(N_FAKE)


def use_gpus(args):
    torch = world.need_gpus(2)
    torch.cuda.init()
    args.cuda_library, args.cuda = None, "libcuda.so.1"
    args.nccl = args.nccl_server = nccl.torch_nccl()
    args.torch, args.small = True, False
    args.devices = list(range(1, torch.cuda.device_count()))
    print(f"torch {torch.__version__}, {torch.cuda.device_count()} x "
          f"{torch.cuda.get_device_name(0)}")


class Watchdog:
    """A hang of this program itself ends it, and is a failure with a place."""

    def __init__(self, checks, budget_s):
        self.checks = checks
        self.timer = threading.Timer(budget_s + GRACE_S, self.bite)
        self.timer.daemon = True

    def bite(self):
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        self.checks.that(False, "the time is over", "where it was is on standard error")
        self.checks.done()
        for child in multiprocessing.active_children():
            child.kill()
        for server in list(nccl.SERVERS):
            server.kill()
        sys.stdout.flush()
        os._exit(1)

    def __enter__(self):
        self.timer.start()

    def __exit__(self, *_):
        self.timer.cancel()


def run(checks, args):
    for name in args.only.split(","):
        with checks.section(name):
            if time.monotonic() > args.deadline:
                checks.that(False, "begins within the budget", f"{args.budget_s} s are over")
                continue
            SCENARIOS[name](checks, args)


def main():
    args = parse()
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast can put a host's GPUs out of service
    if args.fakes:
        use_fakes(args)
    else:
        use_gpus(args)
    args.nccl_version = nccl.version_of(args.nccl)
    args.deadline = time.monotonic() + args.budget_s
    before = nccl_rounds.leftovers()
    print(f"NCCL {args.nccl_version} ({args.nccl}), baton on {args.devices}, seed {args.seed}")
    checks = world.Checks()
    with Watchdog(checks, args.budget_s):
        run(checks, types.SimpleNamespace(**vars(args)))
    left = nccl_rounds.leftovers() - before
    print(f"killed trainers left {left} files of NCCL in /dev/shm")
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
