"""What vLLM 0.33 itself says and takes on the wire of weight updates, without a server of it: its
HTTPVLLMWeightSyncClient and its NCCL trainer against baton's engine, and through baton to a double of
that release, of which its own NCCL worker receives what the double got. The classes are vLLM's own,
unmodified. Only what needs a GPU is a stand-in: streams, and the endpoint of NCCL, which before
baton's engine is a rank of libfakenccl, and before the double hands to the worker what the trainer
broadcasts. Usage: test_vllm_wire.py --baton PROGRAM"""

import contextlib
import functools
import json
import os
import pathlib
import sys
import types

os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # as its workers read pickled handles

import real_world
import requests
import torch
from real_world import ask, world
from vllm.distributed.weight_transfer import ipc_engine, nccl_common, nccl_engine
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient

import fake_gpu  # noqa: E402
from fake_gpu import is_served  # noqa: E402

sys.path.insert(0, str(real_world.ROOT / "client"))
import baton  # noqa: E402
from fake_engine_world import Double  # noqa: E402
from nccl_trainer import TrainerError  # noqa: E402

TENSORS = {"names": ["a", "b"], "dtype_names": ["bfloat16"] * 2, "shapes": [[1], [2, 3]]}
BUFFERS = {"packed": True, "packed_buffer_size_bytes": 4096, "packed_num_buffers": 3}
HANDLES = {**TENSORS, "tensor_sizes": [2, 12], "ipc_handles_pickled": "gASVAAAAAAAAAAB9lC4="}  # {}


def joining(world_size):
    """As its trainer ships it to the workers."""
    info = nccl_common.NCCLWeightTransferInitInfo(
        master_address="127.0.0.1", master_port=29500, rank_offset=1, world_size=world_size, **BUFFERS
    )
    return nccl_common.worker_init_payload(info)


def status_of(call):
    try:
        call()
        return 200, ""
    except requests.HTTPError as e:
        return e.response.status_code, e.response.text


def to_baton(args, checks):
    with real_world.embedded(args) as server:
        client = HTTPVLLMWeightSyncClient(server.url, timeout=real_world.WAIT_S)
        client.init_weight_transfer_engine({})
        client.start_weight_update()
        checks.that(True, "init, start")
        checks.same(status_of(client.finish_weight_update)[0], 422, "finish without tensors")
        client.shutdown_weight_transfer_engine()
        checks.that(True, "shutdown")
        status, text = status_of(lambda: client.init_weight_transfer_engine(joining(2)))
        checks.that((status, "NCCL needs GPUs" in text) == (409, True), "a group, without a GPU", text[:200])


def one_update(client, info):
    client.start_weight_update()
    client.update_weights(info)
    client.finish_weight_update("step-1")


def sent(double, op, member):
    return json.loads(double.journal(op)[-1]["body"])[member]


def by_group(checks, client, double):
    asked = joining(2)
    client.init_weight_transfer_engine(asked)
    found = nccl_common.NCCLWeightTransferInitInfo(**sent(double, "init", "init_info"))
    checks.same(nccl_common.worker_init_payload(found), asked, "init_info of a group")
    one_update(client, TENSORS)
    info = sent(double, "update", "update_info")
    checks.same(vars(nccl_engine.NCCLWeightTransferUpdateInfo(**info)), TENSORS, "update_info")
    try:
        nccl_engine.NCCLWeightTransferUpdateInfo(**info, packed=True)
        checks.that(False, "packed in update_info, as 0.24 has it", "it was taken")
    except TypeError as e:
        checks.that(True, "packed in update_info, as 0.24 has it, is refused", e)


def by_handles(checks, client, double):
    """Of a trainer that says with each update that it is packed, as they did before 0.27."""
    client.init_weight_transfer_engine({})
    one_update(client, {**HANDLES, "packed": True})
    found = ipc_engine.IPCWeightTransferInitInfo(**sent(double, "init", "init_info"))
    checks.same(found.packed, True, "init_info of handles")
    info = vars(ipc_engine.IPCWeightTransferUpdateInfo(**sent(double, "update", "update_info")))
    checks.same({m: info[m] for m in TENSORS}, TENSORS, "update_info")
    checks.same((info["ipc_handles"], info["tensor_sizes"]), ({}, [2, 12]), "handles and sizes")


# --- the trainer


class Endpoint:
    """Of the trainer; and of the worker, if it has what a trainer sent."""

    def __init__(self, sent=None):
        self.sent, self.receives, self.remote_error = list(sent or []), sent is not None, False

    def broadcast(self, tensor, src, stream=None):
        if self.remote_error:
            raise RuntimeError("NCCL error: remote process exited or there was a network error")
        if self.receives:
            tensor.copy_(self.sent.pop(0))
        else:
            self.sent.append(tensor.clone())


class Source(WeightSource):
    """Other bytes at each pass. @passes  name -> tensor, of each"""

    def __init__(self, passes):
        self.passes, self.n = passes, 0

    @functools.cached_property
    def metadata(self):
        return [ParamMeta(n, t.dtype, tuple(t.shape)) for n, t in self.passes[0].items()]

    def iter_full(self):
        made = self.passes[self.n % len(self.passes)]
        self.n += 1
        yield from made.items()


class Client(HTTPVLLMWeightSyncClient):
    """What it sends is also kept."""

    def __init__(self, url):
        super().__init__(url, timeout=real_world.WAIT_S)
        self.infos, self.n_answered = [], 0

    def update_weights(self, info):
        self.infos.append(info)
        try:
            super().update_weights(info)
        finally:
            self.n_answered += 1


class Trainer(nccl_engine.NCCLTrainerWeightTransferEngine):
    endpoint = None  # called in the place of PyNcclCommunicator's init

    def _open_trainer_endpoint(self, init_info):
        self.model_update_group = type(self).endpoint(init_info)


def a_trainer(url, source, packed, endpoint, port=29500):
    info = nccl_engine.NCCLTrainerInitInfo(
        rank=0, master_address="127.0.0.1", master_port=port, world_size=2, packed=packed,
        packed_buffer_size_bytes=BUFFERS["packed_buffer_size_bytes"],
    )
    Trainer.endpoint = staticmethod(endpoint)
    return Trainer.trainer_init(info, client=Client(url), source=source)


# --- straight to baton's engine

STEPS = ("step-00100", "step-01500", "step-00000")
TIED = "lm_head.weight"  # in the files, not in the model's own list


def checkpoint(step):
    tensors = baton.load_file(str(world.MODEL / "checkpoints" / f"{step}.safetensors"))
    return {
        n: torch.frombuffer(bytearray(t.data), dtype=torch.bfloat16).view(*t.shape)
        for n, t in tensors.items()
        if n != TIED
    }


def opened(groups, url, source, packed, stack, **environment):
    port, endpoint = fake_gpu.endpoint_of(groups, stack, **environment)
    joins = lambda init_info: endpoint(init_info.world_size)  # noqa: E731
    return a_trainer(url, source, packed, joins, port)


def engine_of(groups, **environment):
    first = f"{groups.model}/checkpoints/{STEPS[-1]}.safetensors"
    options = ("--model", groups.model, "--weights", first, "--weight-version", STEPS[-1])
    return fake_gpu.engine_of(groups, *options, **environment)


def rounds(checks, groups, packed):
    """From its second round on it sends no lists; an init forgets them on both sides."""
    passes = [checkpoint(step) for step in STEPS]
    with engine_of(groups) as (server, url), contextlib.ExitStack() as stack:
        source = Source(passes)
        for n_init in (1, 2):
            trainer = opened(groups, url, source, packed, stack)
            for n in range(len(STEPS) + 1):
                made = passes[source.n % len(passes)]
                trainer.send_weights()
                about = f"packed {packed}, init {n_init}, round {n + 1}"
                checks.same(len(trainer.client.infos[n]["names"]), 0 if n else len(made), about)
                checks.same(is_served(server, made), None, f"{about}: a tensor that is not served")


def refused_of_engine(checks, groups, packed):
    """The trainer is in its broadcast when the refusal comes. Over a network NCCL reports that the
    group was left; the answer says so too."""
    passes, socket = [checkpoint(STEPS[0])], {"FAKENCCL_TRANSPORT": "socket"}
    with engine_of(groups, **socket) as (server, url), contextlib.ExitStack() as stack:
        trainer = opened(groups, url, Source(passes), packed, stack, **socket)
        trainer.send_weights()
        few = {n: t for n, t in passes[0].items() if "layers.0" not in n}
        few["no.such.tensor"] = torch.zeros(300, 1000, dtype=torch.bfloat16)
        trainer.source = Source([few])
        e = failed(trainer.send_weights, (TrainerError, requests.HTTPError))
        checks.that(e is not None, f"packed {packed}: a refused update ends in the trainer", e)
        status, text = status_of(lambda: trainer.client.update_weights({}))
        checks.that((status, "join a new group" in text) == (409, True), "what comes after it", text)
        checks.same(is_served(server, passes[0]), None, "a tensor that is not served")


def trained(args, checks):
    groups = fake_gpu.fakes(args)
    for packed in (False, True):
        rounds(checks, groups, packed)
        refused_of_engine(checks, groups, packed)


# --- in front of an engine


class Model(torch.nn.Module):
    """Of a worker: what it was told to load."""

    def __init__(self):
        super().__init__()
        self.loaded = {}

    def load_weights(self, pairs):
        self.loaded.update({name: tensor.clone() for name, tensor in pairs})


def small(n):
    return {"a": torch.full((1,), n, dtype=torch.bfloat16), "b": torch.full((2, 3), n, dtype=torch.bfloat16)}


def a_worker(packed):
    """As it is after a restart of its process, and an init."""
    config = types.SimpleNamespace(parallel_config=None, model_config=None)
    worker = nccl_engine.NCCLWeightTransferEngine(None, config, torch.device("cpu"), Model())
    worker.packed, worker.packed_buffer_size_bytes = packed, BUFFERS["packed_buffer_size_bytes"]
    return worker


def received(worker, info, sent):
    worker.model_update_group = Endpoint(sent)
    worker.receive_weights(nccl_engine.NCCLWeightTransferUpdateInfo(**info))
    return {name: tensor.flatten()[0].item() for name, tensor in worker.model.loaded.items()}


def by_trainer(checks, url, double, packed):
    """Its second round and all after it send no lists. A worker that was restarted has none."""
    trainer = a_trainer(url, Source([small(n) for n in (1, 2, 3, 4)]), packed, lambda _: Endpoint())
    for n in (1, 2, 3, 4):
        trainer.model_update_group.sent.clear()
        trainer.send_weights()
        checks.same(len(trainer.client.infos[-1]["names"]), 0 if n > 1 else 2, f"names of round {n}")
        info = sent(double, "update", "update_info")
        checks.same(info, TENSORS, f"packed {packed}: what the engine got of round {n}")
        loaded = received(a_worker(packed), info, trainer.model_update_group.sent)
        checks.same(loaded, {"a": float(n), "b": float(n)}, f"what a restarted worker loads of round {n}")
    empty = received(a_worker(packed), {}, trainer.model_update_group.sent)
    checks.same(empty, {}, "what a restarted worker loads of empty lists, without an error")


def failed(call, kind):
    try:
        call()
        return None
    except kind as e:
        return e


def by_refused_trainer(checks, url, double):
    """What ends the trainer that the refusal leaves in its broadcast is NCCL, which reports a group
    that was left, or the error of the call."""
    trainer = a_trainer(url, Source([small(1)]), False, lambda _: Endpoint())
    trainer.send_weights()
    double.order("update", "status", status=400)
    n = len(double.journal("leave"))
    e = failed(trainer.send_weights, requests.HTTPError)
    told = e is not None and "join a new group" in e.response.text
    checks.that(told, "a refused update is an error of the trainer", e and e.response.text)
    checks.same(len(double.journal("leave")), n + 1, "the engine was told to leave the group")
    trainer.model_update_group.remote_error = True
    e = failed(trainer.send_weights, Exception)
    checks.that(e is not None, "so is each one after it, without waiting", e)
    world.until(lambda: trainer.client.n_answered == 3, "the request that its trainer left behind")
    trainer = a_trainer(url, Source([small(2)]), False, lambda _: Endpoint())
    trainer.send_weights()
    checks.same(sent(double, "update", "update_info"), TENSORS, "a new trainer sends its lists")


def to_vllm(args, checks):
    binary = pathlib.Path(args.baton).resolve().parent / "tests" / "fakes" / "fake_engine"
    options = ("--vllm-version", "0.33.0", "--weight-version", "step-0")
    with Double(str(binary), "vllm", *options) as double:
        with world.Server(args.baton, "--upstream", f"{double.url},vllm") as front:
            world.until(lambda: ask(front.url, "GET", "/readyz").status == 200, "baton is ready")
            client = HTTPVLLMWeightSyncClient(front.url, timeout=real_world.WAIT_S)
            by_group(checks, client, double)
            for packed in (False, True):
                by_trainer(checks, front.url, double, packed)
            by_refused_trainer(checks, front.url, double)
            by_handles(checks, client, double)


def main():
    args = real_world.options()
    checks = world.Checks()
    fake_gpu.without_gpu()
    for part in (to_baton, trained, to_vllm):
        with checks.section(part.__name__):
            part(args, checks)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
