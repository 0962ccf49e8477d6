"""One rank of checkpoint-engine in a worker of gpu_world: its own ParameterServer and its own
request_inference_to_update, unmodified. Without a GPU (`fakes`) its tensors lie on the CPU, its group
is gloo's, and exports are those of torch_on_fakes; the code that runs is its own all the same."""

import os
import threading
import time
import types


def begin(state, rank, world_size, port, bucket_gb, fakes=None):
    """Makes the ParameterServer. Returns which torch."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port - 1), PS_MAX_BUCKET_SIZE_GB=str(bucket_gb))
    if fakes is not None:
        _be_on_fakes(fakes)
    import torch
    from checkpoint_engine import ps

    state.rank, state.world_size, state.asked = rank, world_size, None
    state.server = ps.ParameterServer(auto_pg=True)
    return torch.__version__


def load(state, path):
    """{name: tensor} of a safetensors file, this rank's share of them."""
    from safetensors.torch import load_file

    tensors = sorted(load_file(path).items())
    state.tensors = dict(tensors[state.rank::state.world_size])
    return len(state.tensors)


def make(state, n, nbytes):
    """Random ones instead, n of nbytes each. Returns the first bytes of each."""
    import torch

    torch.manual_seed(state.rank)
    state.tensors = {f"rank{state.rank}.{i}": torch.randint(0, 100, (nbytes,), dtype=torch.uint8)
                     for i in range(n)}
    return {name: bytes(t[:4096].numpy().tobytes()) for name, t in state.tensors.items()}


def bucket(_state, gb):
    """The size of buckets from now on."""
    os.environ["PS_MAX_BUCKET_SIZE_GB"] = str(gb)


def spoil(state, name):
    """A tensor that no model has, in this rank's share."""
    import torch

    state.tensors = {**state.tensors, name: torch.zeros(8)}


def push(state, url, form, label=None, files=None, slow_s=0):
    """A whole update as its users make it. Returns (what update() raised, what the request raised,
    seconds)."""
    import httpx
    from checkpoint_engine.api import request_inference_to_update

    name = "step"
    state.asked = None

    def ask(socket_paths):
        if state.rank != 0:
            return
        try:
            if form == "vllm":
                request_inference_to_update(url + "/collective_rpc", dict(socket_paths), timeout=120)
                return
            body = {"zmq_handles": dict(socket_paths), "flush_cache": True, "weight_version": label}
            httpx.post(url + "/update_weights_from_ipc", json=body, timeout=120).raise_for_status()
        except httpx.HTTPStatusError as e:
            state.asked = f"{e.response.status_code} {e.response.text}"

    if files is not None:
        state.server.register_checkpoint(name, files=files)
    else:
        state.server.register_checkpoint(name, named_tensors=state.tensors)
    copy = state.server._copy_to_buffer
    if slow_s:
        state.server._copy_to_buffer = lambda *a: (time.sleep(slow_s), copy(*a))
    state.server.gather_metas(name)
    began, raised = time.monotonic(), None
    try:
        state.server.update(name, ask)
    except Exception as e:  # noqa: BLE001
        raised = f"{type(e).__name__}: {e}"
    spent = time.monotonic() - began
    state.server._copy_to_buffer = copy
    state.server.unregister_checkpoint(name)
    return raised, state.asked, spent


def held(_state):
    """GPU memory that torch has in use."""
    import torch

    return torch.cuda.memory_allocated()


def _be_on_fakes(library):
    import torch
    import torch_on_fakes
    from torch.multiprocessing import reductions

    memory = torch_on_fakes.Memory(library)
    lock = threading.Lock()

    def renew(_=None):
        with lock:
            memory.renew()

    uuid = memory.gpus.uuid(0)
    reductions.reduce_tensor = memory.export
    module = types.SimpleNamespace(
        device_count=lambda: 1, set_device=lambda _: None,
        get_device_properties=lambda _=None: types.SimpleNamespace(uuid=uuid),
        mem_get_info=lambda: (64 << 20, 64 << 20), memory_allocated=memory.allocated,
        memory_reserved=memory.allocated, synchronize=renew, empty_cache=lambda: None,
        ipc_collect=memory.collect)
    torch.cuda.memory_allocated = memory.allocated
    torch._C._host_emptyCache = lambda: None
    empty = torch.empty
    torch.empty = lambda *a, pin_memory=False, **k: empty(*a, **k)
    from checkpoint_engine import ps

    ps.DeviceManager = lambda: types.SimpleNamespace(device_type="cpu", backend="gloo",
                                                     device_module=module)
    ps._get_physical_gpu_id = lambda *_: f"GPU-{uuid}"
