"""What vLLM 0.33 itself says and takes on the wire of weight updates, without a server of it: its
HTTPVLLMWeightSyncClient against baton's engine; its NCCL trainer through baton to a double of that
release, and what the double got into its NCCL worker. The classes are vLLM's own, unmodified; only
the endpoints of NCCL are stand-ins, since there is no GPU: what the trainer broadcasts, the worker
receives. Usage: test_vllm_wire.py --baton PROGRAM"""

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

sys.path.insert(0, str(real_world.ROOT / "tests" / "http" / "lib"))
from fake_engine_world import Double  # noqa: E402

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


class Endpoint:
    """Of the trainer, and of the worker: what one sends is what the other gets."""

    def __init__(self):
        self.sent, self.remote_error = [], False

    def broadcast(self, tensor, src, stream):
        if self.remote_error:
            raise RuntimeError("NCCL error: remote process exited or there was a network error")
        self.sent.append(tensor.clone())


class Receiver:
    def __init__(self, sent):
        self.left = list(sent)

    def broadcast(self, tensor, src, stream):
        tensor.copy_(self.left.pop(0))


class Source(WeightSource):
    """Other bytes at each pass."""

    n = 0

    @functools.cached_property
    def metadata(self):
        return [ParamMeta("a", torch.bfloat16, (1,)), ParamMeta("b", torch.bfloat16, (2, 3))]

    def iter_full(self):
        self.n += 1
        for m in self.metadata:
            yield m.name, torch.full(m.shape, self.n, dtype=m.dtype)


class Trainer(nccl_engine.NCCLTrainerWeightTransferEngine):
    def _open_trainer_endpoint(self, init_info):
        self.model_update_group = Endpoint()


class Model(torch.nn.Module):
    """Of a worker: what it was told to load."""

    def __init__(self):
        super().__init__()
        self.loaded = {}

    def load_weights(self, pairs):
        self.loaded.update({name: tensor.clone() for name, tensor in pairs})


def a_trainer(url, source):
    info = nccl_engine.NCCLTrainerInitInfo(
        rank=0, master_address="127.0.0.1", master_port=29500, world_size=2, packed=False
    )
    client = HTTPVLLMWeightSyncClient(url, timeout=real_world.WAIT_S)
    return Trainer.trainer_init(info, client=client, source=source)


def a_worker():
    """As it is after a restart of its process, and an init."""
    config = types.SimpleNamespace(parallel_config=None, model_config=None)
    worker = nccl_engine.NCCLWeightTransferEngine(None, config, torch.device("cpu"), Model())
    return worker


def received(worker, info, sent):
    worker.model_update_group = Receiver(sent)
    worker.receive_weights(nccl_engine.NCCLWeightTransferUpdateInfo(**info))
    return {name: tensor.flatten()[0].item() for name, tensor in worker.model.loaded.items()}


def by_trainer(checks, url, double):
    """Its second round and all after it send no lists. A worker that was restarted has none."""
    source = Source()
    trainer = a_trainer(url, source)
    for n in (1, 2, 3):
        trainer.model_update_group.sent.clear()
        trainer.send_weights()
        info = sent(double, "update", "update_info")
        checks.same(info, TENSORS, f"the lists of round {n}")
        loaded = received(a_worker(), info, trainer.model_update_group.sent)
        checks.same(loaded, {"a": float(n), "b": float(n)}, f"what a restarted worker loads of round {n}")
    empty = received(a_worker(), {}, trainer.model_update_group.sent)
    checks.same(empty, {}, "what a restarted worker loads of empty lists, without an error")


def failed(call, kind):
    try:
        call()
        return None
    except kind as e:
        return e


def by_refused_trainer(checks, url, double):
    """A refusal comes while it broadcasts. What ends that is NCCL, which reports a group that was
    left; the class has no limit of its own, so this error is what it goes by, or that of the call."""
    source = Source()
    trainer = a_trainer(url, source)
    trainer.send_weights()
    double.order("update", "status", status=400)
    n = len(double.journal("leave"))
    e = failed(trainer.send_weights, requests.HTTPError)
    checks.that(e is not None, "a refused update is an error of the trainer", e)
    checks.same(len(double.journal("leave")), n + 1, "the engine was told to leave the group")
    trainer.model_update_group.remote_error = True
    e = failed(trainer.send_weights, Exception)
    checks.that(e is not None, "so is each one after it, without waiting", e)
    trainer = a_trainer(url, source)
    trainer.send_weights()
    checks.same(sent(double, "update", "update_info"), TENSORS, "a new trainer sends its lists")


def to_vllm(args, checks):
    torch.cuda.current_stream = lambda: None
    binary = pathlib.Path(args.baton).resolve().parent / "tests" / "fakes" / "fake_engine"
    options = ("--vllm-version", "0.33.0", "--weight-version", "step-0")
    with Double(str(binary), "vllm", *options) as double:
        with world.Server(args.baton, "--upstream", f"{double.url},vllm") as front:
            world.until(lambda: ask(front.url, "GET", "/readyz").status == 200, "baton is ready")
            client = HTTPVLLMWeightSyncClient(front.url, timeout=real_world.WAIT_S)
            by_group(checks, client, double)
            by_trainer(checks, front.url, double)
            by_refused_trainer(checks, front.url, double)
            by_handles(checks, client, double)


def main():
    args = real_world.options()
    checks = world.Checks()
    for part in (to_baton, to_vllm):
        with checks.section(part.__name__):
            part(args, checks)
    return checks.done()


if __name__ == "__main__":
    sys.exit(main())
