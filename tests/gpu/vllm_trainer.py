"""What runs in the trainer's process of test_vllm_real.py and its kin: vLLM's own trainer code,
unmodified. Only the iterator of tensors is ours, so that it can stop in mid transfer."""

import os
import pathlib
import time

import gpu_world as world
import test_ipc_torch as ipc

GATE_S = 120  # how long an iterator waits at its gate


def be(state, gpu, host_id=None):
    """@host_id  NCCL_HOSTID: on which host NCCL is to believe that this process is"""
    if host_id is not None:
        os.environ["NCCL_HOSTID"] = host_id
    import torch
    import vllm

    torch.cuda.set_device(gpu)
    torch.zeros(1, device="cuda")
    state.group, state.gpu = None, gpu
    return vllm.__version__


def load(state, step):
    """The next weights; their names, dtypes and shapes."""
    from safetensors.torch import load_file

    path = ipc.CHECKPOINTS / f"{step}.safetensors"
    state.named = list(load_file(path, device=f"cuda:{state.gpu}").items())
    return world.columns(state.named)


def memory(state):
    """Bytes: of tensors, of torch's allocator, and of all processes on this GPU."""
    import torch

    state.named = []
    torch.cuda.synchronize()
    torch.cuda.ipc_collect()
    free, total = torch.cuda.mem_get_info(state.gpu)
    return {
        "allocated": torch.cuda.memory_allocated(state.gpu),
        "reserved": torch.cuda.memory_reserved(state.gpu),
        "used": total - free,
    }


def join(state, port, world_size):
    """Rank 0 of the group: store, id, init and warm-up are vLLM's."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

    place = {"master_address": "127.0.0.1", "master_port": port, "world_size": world_size}
    state.group = NCCLWeightTransferEngine.trainer_init(place)


def _tensors(state, gate):
    """@gate  None, or (folder, i): before tensor number i, says so in folder/reached and waits for
    folder/open."""
    for i, pair in enumerate(state.named):
        if gate is not None and i == gate[1]:
            wait_at(gate[0])
        yield pair


def wait_at(folder):
    pathlib.Path(folder, "reached").touch()
    end = time.monotonic() + GATE_S
    while not os.path.exists(f"{folder}/open"):
        if time.monotonic() > end:
            raise TimeoutError(f"the gate was not opened within {GATE_S} s")
        time.sleep(0.005)


def send_by_nccl(state, members, gate=None):
    """@members  packed, packed_buffer_size_bytes, packed_num_buffers: as in the update's info"""
    import torch
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

    args = {"group": state.group, **members}
    NCCLWeightTransferEngine.trainer_send_weights(_tensors(state, gate), args)
    torch.cuda.synchronize()


def send_by_ipc(state, url, members, gate=None):
    """It posts /update_weights by itself, once or for each chunk."""
    from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine

    args = {"send_mode": "http", "url": url, **members}
    IPCWeightTransferEngine.trainer_send_weights(_tensors(state, gate), args)
