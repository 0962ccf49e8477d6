"""What runs in the trainer's process of test_sglang_real.py: SGLang's own pieces of a trainer, from
its wheel. What goes by a group lies on the last GPU, what is sent as a tensor on the engine's, the
first."""

import gpu_world as world
import test_ipc_torch as ipc
import vllm_trainer


def be(state, device):
    """@device  cuda or cpu: there gloo takes NCCL's place"""
    import sglang
    import sglang.srt.utils
    import sglang.srt.weight_sync.tensor_bucket  # noqa: F401, now, since it takes its time
    import torch

    state.device, state.groups, state.alive = device, {}, []
    state.near = state.far = device
    if device == "cpu":
        torch.multiprocessing.set_sharing_strategy("file_system")
        return sglang.__version__
    from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions

    monkey_patch_torch_reductions()
    state.near, state.far = "cuda:0", f"cuda:{torch.cuda.device_count() - 1}"
    torch.cuda.set_device(state.far)
    return sglang.__version__


def load(state, step):
    """The next weights; their names, dtypes and shapes."""
    from safetensors.torch import load_file

    state.named = list(load_file(ipc.CHECKPOINTS / f"{step}.safetensors").items())
    return world.columns(state.named)


def _synchronize(state):
    import torch

    if state.device == "cuda":
        torch.cuda.synchronize(state.near)
        torch.cuda.synchronize(state.far)


# --- a group


def join(state, port, name):
    """Rank 0 of two; there is no communicator until the first broadcast."""
    from sglang.srt.utils import init_custom_process_group

    state.groups[name] = init_custom_process_group(
        backend="nccl" if state.device == "cuda" else "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        world_size=2,
        rank=0,
        group_name=name,
    )


def leave(state, name):
    import torch

    torch.distributed.destroy_process_group(state.groups.pop(name))


def broadcast(state, name, first, last, flat, gate=None):
    """Tensors first to last: each by itself, or all in one. @gate  as in vllm_trainer"""
    import torch

    group = state.groups[name]
    named = [(n, t.to(state.far)) for n, t in state.named[first:last]]
    if flat:
        named = [("all", _bucket(named).get_flattened_tensor())]
    for i, (_, tensor) in enumerate(named):
        if gate is not None and i == min(gate[1], len(named) - 1):
            _synchronize(state)
            vllm_trainer.wait_at(gate[0])
        torch.distributed.broadcast(tensor, src=0, group=group)
    _synchronize(state)


# --- tensors on the engine's GPU


def _bucket(named):
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    return FlattenedTensorBucket(named_tensors=named)


def serialized(state, first, last, flat):
    """It is kept until all have been let go of."""
    from sglang.srt.utils import MultiprocessingSerializer

    value = [(n, t.to(state.near, copy=True)) for n, t in state.named[first:last]]
    if flat:
        bucket = _bucket(value)
        value = {
            "flattened_tensor": bucket.get_flattened_tensor(),
            "metadata": bucket.get_metadata(),
        }
    state.alive.append(value)
    _synchronize(state)
    return MultiprocessingSerializer.serialize(value, output_str=True)


def let_go(state):
    state.alive.clear()
