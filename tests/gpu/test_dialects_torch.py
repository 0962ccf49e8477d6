"""Trainers that speak to vLLM, SkyRL, SGLang or prime-rl, with torch on GPU 0, and baton that they
take for these: beside them on GPU 0 for CUDA IPC, on GPU 1 for NCCL. Each update ends in generation
whose tokens and logprobs are those of the checkpoint that was pushed, and nothing grows.

Usage: test_dialects_torch.py --baton BATON [--only SECTION[,SECTION...]] [--rounds N]
Ends with 0, or 1 if a check failed, or 77 (skipped) where torch or a GPU is missing. With one GPU,
what needs two is left out. With BATON_REQUIRE_GPU=1 what is missing is a failure.

--fakes CUDA,NCCL[,CUDA,NCCL] is a dry run without a GPU, over tests/fakes: the server's libraries,
and the trainer's (else the same). It needs a torch all the same, but none with CUDA."""

import argparse
import importlib.util
import itertools
import os
import sys
import tempfile
import time
import types

import dialects_sglang
import dialects_skyrl
import dialects_trainer as trainer_side
import gpu_world as world
import nccl_torch
import nccl_world as nccl
import test_nccl_torch
from dialects_world import NCCL_SLACK, Stage, Trainers, by_vllm, must_answer, serve, specs_of, wire

SMALL_BUFFER = 300_000  # so that the small model comes in several


# --- vLLM's trainers


def vllm_step(st, push, label=None):
    """As its examples do it; with a label as its newest ones, which keep what runs."""
    st.say("/pause" if label is None else "/pause?mode=keep&clear_cache=false")
    st.say("/start_weight_update", None if label is None else {"is_checkpoint_format": True})
    push()
    st.say("/finish_weight_update", None if label is None else {"weight_version": label})
    st.say("/resume")


VLLM_IPC = {
    "list of (function, arguments)": (trainer_side.vllm_list, True),
    "list of arguments": (trainer_side.vllm_list, False),
    "packed": (trainer_side.vllm_packed,),
}


def vllm_ipc_round(st, step, form, label):
    make, *options = VLLM_IPC[form]
    _, n_chunks = st.load(step)

    def push():
        for i in range(n_chunks):
            st.say("/update_weights", {"update_info": st.trainer.ask(make, i, *options)})

    vllm_step(st, push, label)
    st.let_go(form)
    st.serves(step, form, by_vllm, label)


def labels():
    """None by turns."""
    return (None if i % 2 else f"policy-{i}" for i in itertools.count())


def vllm_ipc(checks, args, trainer):
    with serve(args, 0) as server:
        st = Stage(checks, args, trainer, server)
        st.say("/init_weight_transfer_engine", {"init_info": {}})

        def rounds(steps):
            for step, form, label in zip(steps, itertools.cycle(VLLM_IPC), labels()):
                vllm_ipc_round(st, step, form, label)

        st.no_growth(rounds)


def vllm_joins(st):
    n = st.say("/get_world_size", method="GET")["world_size"]
    port = st.trainer.ask(nccl_torch.listen)
    info = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1}
    body = {"init_info": {**info, "world_size": 1 + n}}
    pending = nccl.Pending(st.server, "/init_weight_transfer_engine", body)
    st.trainer.tell(nccl_torch.stateless, port, 1 + n)
    must_answer(pending.answer(), "the init")
    st.checks.same(st.trainer.hear(), 0.0, "the warm-up's sum")


VLLM_NCCL = {  # members, and from where on a buffer is full; None: not packed
    "packed, as both default": ({"packed": True}, nccl.GIB),
    "packed, small buffers": (
        {"packed": True, "packed_buffer_size_bytes": SMALL_BUFFER, "packed_num_buffers": 2},
        SMALL_BUFFER,
    ),
    "each tensor": ({"packed": False}, None),
}


def vllm_nccl_round(st, step, way, label):
    members, bound = VLLM_NCCL[way]
    columns, _ = st.load(step)
    body = {"update_info": wire(columns, **members)}
    send, args = trainer_side.send_each, ()
    if bound is not None:
        send, args = trainer_side.send_packed, (nccl.cut_vllm(specs_of(columns), bound),)
    vllm_step(st, lambda: st.meanwhile("/update_weights", body, send, *args), label)
    st.serves(step, way, by_vllm, label)


def vllm_nccl(checks, args, trainer):
    with serve(args, 1) as server:
        st = Stage(checks, args, trainer, server)
        vllm_joins(st)

        def rounds(steps):
            for step, way, label in zip(steps, itertools.cycle(VLLM_NCCL), labels()):
                vllm_nccl_round(st, step, way, label)

        st.no_growth(rounds, gpu_used=NCCL_SLACK)


# --- prime-rl


def prime_rl_round(st, step, folder):
    st.load(step)
    st.trainer.ask(trainer_side.save, folder)
    st.say("/pause?mode=keep&clear_cache=false")
    found = st.say("/update_weights", {"weight_dir": folder})
    st.checks.same(found, {"status": "ok"}, "the answer that its client reads")
    st.say("/resume")
    st.serves(step, f"weight_dir of {step}", by_vllm)


def prime_rl(checks, args, trainer):
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as root, serve(args, 0, "--allow-path", root) as server:
        st = Stage(checks, args, trainer, server)

        def rounds(steps):
            for step in steps:
                prime_rl_round(st, step, os.path.join(root, f"step_{next(numbers)}"))

        st.no_growth(rounds)


# --- main


SECTIONS = {  # what is played, and the GPUs that it takes; SkyRL's client is on aiohttp
    "skyrl-ipc": (dialects_skyrl.by_ipc, 1),
    "skyrl-memory": (dialects_skyrl.memory, 1),
    "vllm-ipc": (vllm_ipc, 1),
    "sglang-tensor": (dialects_sglang.by_tensor, 1),
    "sglang-mixed": (dialects_sglang.mixed, 1),
    "prime-rl": (prime_rl, 1),
    "skyrl-nccl": (dialects_skyrl.by_nccl, 2),
    "vllm-nccl": (vllm_nccl, 2),
    "sglang-nccl": (dialects_sglang.by_group, 2),
}


def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--baton", required=True, help="the program to test")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, by commas")
    parser.add_argument("--rounds", type=int, default=6, help="in which nothing may grow")
    parser.add_argument("--budget-s", type=float, default=120, help="time for all of it")
    parser.add_argument("--fakes", help="CUDA,NCCL[,CUDA,NCCL]: without a GPU, over tests/fakes")
    args = parser.parse_args(argv)
    unknown = set(args.only.split(",")) - set(SECTIONS)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}: not one of {', '.join(SECTIONS)}")
    return args


def use_gpus(args):
    torch = world.need_gpus()
    torch.cuda.init()
    args.cuda_library, args.cuda, args.torch, args.small = None, "libcuda.so.1", True, False
    args.nccl = args.nccl_server = nccl.torch_nccl()
    args.n_gpus = torch.cuda.device_count()
    for index in range(args.n_gpus):  # what this process takes on each, before any is measured
        torch.zeros(1, device=f"cuda:{index}")
    print(f"torch {torch.__version__}, {args.n_gpus} x {torch.cuda.get_device_name(0)}")


def left_out(checks, args, name):
    """A section that cannot be played."""
    why, n_gpus = None, SECTIONS[name][1]
    if time.monotonic() > args.deadline:
        checks.that(False, "begins within the budget", f"{args.budget_s} s are over")
        return True
    if n_gpus > args.n_gpus:
        why = f"{n_gpus} GPUs are needed, and {args.n_gpus} is here"
    elif name.startswith("skyrl") and importlib.util.find_spec("aiohttp") is None:
        why = "there is no aiohttp"
    if why is None:
        return False
    if os.environ.get("BATON_REQUIRE_GPU") == "1":
        checks.that(False, "it has what it needs", why)
    checks.skip(name, why)
    return True


def run(checks, args):
    trainers = Trainers(args)
    try:
        for name in args.only.split(","):
            with checks.section(name):
                if not left_out(checks, args, name):
                    with trainers.lent() as trainer:
                        SECTIONS[name][0](checks, args, trainer)
    finally:
        trainers.drop()


def main():
    args = parse()
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast can put a host's GPUs out of service
    if args.fakes:
        test_nccl_torch.use_fakes(args)
        args.n_gpus = test_nccl_torch.N_FAKE
    else:
        use_gpus(args)
    args.deadline = time.monotonic() + args.budget_s
    checks = world.Checks()
    with test_nccl_torch.Watchdog(checks, args.budget_s):
        run(checks, types.SimpleNamespace(**vars(args)))
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
