"""What stands for a GPU where a real peer's trainer runs on a CPU: streams, and its endpoint of NCCL,
which is a rank of libfakenccl in a process of its own."""

import contextlib
import os
import pathlib
import sys
import types
import unittest.mock

import real_world
import torch
from real_world import world
from vllm.distributed.weight_transfer import packed_tensor

TESTS = real_world.ROOT / "tests"
sys.path[:0] = [str(TESTS / "http" / "lib"), str(TESTS / "fakes")]
from ipc_world import Server  # noqa: E402
from transfer_world import Ended, Groups  # noqa: E402


class Stream:
    """Of a GPU, on which all has been done."""

    def synchronize(self):
        pass

    wait_event = wait_stream = synchronize


def without_gpu():
    torch.cuda.current_stream = torch.accelerator.current_stream = lambda *_: Stream()
    torch.cuda.stream = contextlib.nullcontext
    torch.cuda.get_device_name = lambda *_: "none"
    torch.accelerator.current_device_index = lambda: 0
    torch.Tensor.record_stream = lambda *_: None
    torch.Event = lambda: types.SimpleNamespace(record=lambda _: None)
    packed_tensor._get_streams = lambda _, n: (Stream(),) * n


class FakeRank:
    """Of the trainer: rank 0 of a group of libfakenccl. It looks at what NCCL reports of its peers,
    as process groups of torch do, and as vLLM's PyNcclCommunicator does not."""

    def __init__(self, rank0):
        self.rank0 = rank0
        self.group = types.SimpleNamespace()  # TRL drops what it holds

    def broadcast(self, tensor, src, stream=None):
        self.rank0.ask("send_watched", [tensor.view(torch.uint8).numpy().tobytes()])


def fakes(args):
    built = pathlib.Path(args.baton).resolve().parent / "tests" / "fakes"
    cuda, nccl = built / "libcuda", built / "libnccl"
    made = ("libfakecuda.so", "libfakenccl.so", "libfakecuda_foreign.so", "libfakenccl_foreign.so")
    paths = [str((cuda if "cuda" in name else nccl) / name) for name in made]
    return Groups(args.baton, str(world.MODEL), str(real_world.ROOT / "client"), *paths, 1)


def process_of(start):
    """A process of the trainer, which must not import the test, and a real peer with it."""
    with unittest.mock.patch.dict(sys.modules, __main__=types.ModuleType("__main__")):
        return start()


@contextlib.contextmanager
def engine_of(groups, *options, **environment):
    """(server, URL) of baton over the fakes, with one GPU"""
    report = os.path.join(groups.folder, f"nccl-{groups.n_reports}")
    groups.n_reports += 1
    server = Server(
        groups, *options, "--device", "cuda:0", "--nccl-library", groups.nccl,
        FAKENCCL_REPORT=report, **environment,
    )
    with Ended(server, report) as started:
        yield started, f"http://127.0.0.1:{started.port}"


def endpoint_of(groups, stack, **environment):
    """The port of the trainer's store, and what joins the group that is open there."""
    rank0 = stack.enter_context(process_of(lambda: groups.nccl_trainer(**environment)))

    def endpoint(world_size):
        rank0.ask("stateless", world_size)
        return FakeRank(rank0)

    return rank0.ask("open_store"), endpoint


def is_served(server, tensors):
    for name, tensor in tensors.items():
        found = server.ask("GET", f"/v1/weights/{name}").raw
        if found != tensor.view(torch.uint8).numpy().tobytes():
            return name
    return None
