"""SkyRL's own senders of weights, by NCCL and by CUDA IPC, with its client, against baton's engine. On a
CPU, so what needs a GPU is a stand-in: the endpoint of NCCL, memory that is shared, and torch.cuda's
calls for it. vLLM's trainer_send_weights, which releases since 0.28 lack, is the function it called."""

import asyncio
import contextlib
import dataclasses
import types

import fake_gpu
import ipc_trainer
import torch
from ipc_world import fill
from real_world import MODEL, world
from safetensors.torch import load_file
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient
from skyrl.backends.skyrl_train.weight_sync import (
    BroadcastTransferStrategy,
    CudaIpcTransferStrategy,
    WeightChunk,
    cuda_ipc_strategy,
)
from torch.multiprocessing.reductions import rebuild_cuda_tensor
from vllm.distributed.weight_transfer import packed_tensor
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

STEPS, N_CHUNKS = ("step-00100", "step-01500"), 4
CONFIG = types.SimpleNamespace(run_engines_locally=False, model_dtype="bfloat16")
TIED = "lm_head.weight"  # in the files, not in the model's own list


def weights(step):
    tensors = load_file(world.MODEL / "checkpoints" / f"{step}.safetensors")
    return {n: t for n, t in tensors.items() if n != TIED}


def chunks(tensors):
    rows = list(tensors.items())
    for i in range(N_CHUNKS):
        names, held = zip(*rows[i::N_CHUNKS])
        shapes = [list(t.shape) for t in held]
        yield WeightChunk(list(names), [str(t.dtype) for t in held], shapes, list(held))


def columns(tensors):
    made = [(n, "bfloat16", list(t.shape)) for c in chunks(tensors) for n, t in zip(c.names, c.tensors)]
    return dict(zip(("names", "dtype_names", "shapes"), map(list, zip(*made))))


def over_nccl(groups, server, stack):
    """What joins it, and what a new trainer's init says."""
    port, endpoint = fake_gpu.endpoint_of(groups, stack)
    NCCLWeightTransferEngine.trainer_init = staticmethod(lambda info: endpoint(info["world_size"]))
    NCCLWeightTransferEngine.trainer_send_weights = staticmethod(
        lambda iterator, trainer_args: packed_tensor.packed_nccl_broadcast_producer(
            iterator=iterator, group=trainer_args["group"], src=0, post_iter_func=lambda item: item[1]
        )
    )
    return {"master_addr": "127.0.0.1", "master_port": port}


def over_ipc(groups, server, stack):
    """A buffer of the trainer's becomes memory of libfakecuda, and a handle of torch's form."""
    gpu = stack.enter_context(fake_gpu.process_of(lambda: groups.trainer(server)))
    gpus = types.SimpleNamespace(uuid=gpu.export(gpu.alloc(0, 1), 0, 1).uuid)
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.get_device_properties = lambda _: gpus
    torch.cuda.synchronize = gpu.settle
    torch.cuda.ipc_collect = lambda: None

    def reduce_tensor(t):
        content = t.view(torch.uint8).numpy().tobytes()
        x = gpu.export(fill(gpu, 0, content), 0, len(content))
        kind = (torch.storage.TypedStorage, t.dtype, 0)
        return rebuild_cuda_tensor, (torch.Tensor, t.shape, t.stride(), 0, *kind, *ipc_trainer._shared(x))

    cuda_ipc_strategy.reduce_tensor = reduce_tensor
    return {}


async def a_sender(client, strategy, **told):
    """As its trainer's worker makes one: both ends at once."""
    size, _ = await client.get_world_size()
    info = dataclasses.replace(strategy.create_init_info(CONFIG, size), **told)
    made, _ = await asyncio.gather(
        asyncio.to_thread(strategy.create_sender, info, client),
        client.init_weight_update_communicator(info),
    )
    return made


async def step_of(checks, server, client, sender, step, rollout):
    """As its trainer makes it, and what is served and generated then."""
    tensors, (_, ids, _) = weights(step), rollout.case(step)
    await client.pause()
    await sender.send_chunks(chunks(tensors), weight_metadata=columns(tensors))
    await client.resume()
    checks.same(fake_gpu.is_served(server, tensors), None, f"{step}: a tensor that is not served")
    made = await rollout.rollout(client)
    checks.same(made["response_ids"], [ids[: rollout.N]] * 2, f"{step}: what it generates")


async def play(checks, groups, strategy, over, rollout):
    first = f"{groups.model}/checkpoints/step-00000.safetensors"
    options = ("--model", groups.model, "--weights", first, "--served-model-name", MODEL)
    with fake_gpu.engine_of(groups, *options) as (server, url), contextlib.ExitStack() as stack:
        told = over(groups, server, stack)
        async with RemoteInferenceClient(
            proxy_url=url, server_urls=[url], data_parallel_size=1, model_name=MODEL
        ) as client:
            sender = await a_sender(client, strategy, **told)
            for step in STEPS:
                await step_of(checks, server, client, sender, step, rollout)
            await client.start_weight_update()
            await step_of(checks, server, client, sender, STEPS[0], rollout)
            checks.that(True, "a start that was abandoned does not block the next")
            await client.start_weight_update()
            told = over(groups, server, stack)
            sender = await a_sender(client, strategy, **told)
            await step_of(checks, server, client, sender, STEPS[1], rollout)
            checks.that(True, "nor that of another trainer, which initializes its transfer")
            sender.teardown()


def senders(args, checks, rollout):
    groups = fake_gpu.fakes(args)
    fake_gpu.without_gpu()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    for strategy, over in (BroadcastTransferStrategy, over_nccl), (CudaIpcTransferStrategy, over_ipc):
        with checks.section(f"SkyRL, {strategy.__name__}"):
            asyncio.run(play(checks, groups, strategy, over, rollout))
