"""What runs in the trainer's process of test_vllm_sparse.py: vLLM's own trainer of sparse patches and its HTTP client,
unmodified. With --fakes NCCL and the GPU are tests/fakes, and only the communicator is another."""

import os
import socket
import sys
import time
import types

import gpu_world as world
import nccl_world as nccl
import vllm_files

ANSWER_S = 120  # of a call


def be(state, host_id, folder, fakes):
    """@host_id  on which host NCCL is to believe that this process is: two ranks of one GPU are refused on one
    @folder  with vLLM's files; None: it is installed. @fakes  None, or CUDA, NCCL"""
    os.environ["NCCL_HOSTID"] = host_id
    import torch

    state.place = "cpu" if fakes else "cuda:0"
    state.now, state.next, state.engine = {}, {}, None
    if not fakes:
        torch.cuda.set_device(0)
        torch.zeros(1, device="cuda")
    if folder is not None:
        vllm_files.use(folder)
    if fakes:
        _use_fakes(fakes)
    else:
        _use_older_nccl()
    return torch.__version__


def _use_older_nccl():
    """vLLM 0.33 refuses an NCCL before 2.29.7, which suspends no communicators. Its trainers suspend none: they do
    without those functions here."""
    import ctypes

    from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
    from vllm.utils.nccl import find_nccl_library

    lib = ctypes.CDLL(find_nccl_library())
    for f in NCCLLibrary.exported_functions:
        assert hasattr(lib, f.name) or f.name in ("ncclCommSuspend", "ncclCommResume", "ncclCommQueryProperties"), f.name
    NCCLLibrary.exported_functions = [f for f in NCCLLibrary.exported_functions if hasattr(lib, f.name)]


def _use_fakes(fakes):
    import torch
    from vllm.distributed.device_communicators.pynccl_wrapper import ncclUniqueId

    torch.accelerator.current_device_index = lambda: 0
    torch.cuda.current_stream = lambda *_: None

    class Communicator:
        """Instead of PyNcclCommunicator. It looks at what NCCL reports of its peers, which that one does not."""

        def __init__(self, group, device):
            self.group = group  # its store: the server watches that
            self.device, self.rank = torch.device("cpu"), nccl.nccl_rank.Rank(fakes[1], nccl.nccl_rank.Gpu(fakes[0]))
            minted = self.rank.mint()
            group.broadcast_obj(ncclUniqueId.from_buffer_copy(minted), src=0)
            self.rank.join(minted, 0, group.world_size)
            self.rank.warm_up()

        def broadcast(self, tensor, src, stream=None):
            if tensor.numel() > 0:  # NCCL drops broadcasts of nothing
                self.rank.send_watched(tensor.view(torch.uint8).numpy().tobytes(), src)

        def destroy(self):
            if self.rank.comm:
                self.rank.leave()

    pynccl = types.ModuleType("vllm.distributed.device_communicators.pynccl")
    pynccl.PyNcclCommunicator = Communicator
    sys.modules[pynccl.__name__] = pynccl


def free_port(_state):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def join(state, url, port):
    """Store, id, POST, init and warm-up are vLLM's."""
    from vllm.distributed.weight_transfer import sparse_nccl_engine as sparse
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient

    leave(state)
    info = sparse.SparseNCCLTrainerInitInfo(master_address="127.0.0.1", master_port=port, world_size=2, rank=0)
    client = HTTPVLLMWeightSyncClient(url, timeout=ANSWER_S)
    state.engine = sparse.SparseNCCLTrainerWeightTransferEngine.trainer_init(info, client=client)


def leave(state):
    if state.engine is not None:
        state.engine.shutdown()
    state.engine = None


def load(state, path, names):
    """What the server is to serve next; what it serves is what was loaded before, or sent."""
    import torch

    tensors = world.baton.load_file(path)
    state.next = {
        n: torch.frombuffer(bytearray(t.data), dtype=torch.bfloat16).view(*t.shape).to(state.place)
        for n, t in tensors.items()
        if n in names
    }
    if not state.now:
        state.now = state.next


def change(state, share, seed):
    """Of all tensors that share of the elements, by one step of bfloat16."""
    import torch

    torch.manual_seed(seed)
    for name, old in state.now.items():
        bits = old.view(torch.int16).clone()
        where = torch.rand(bits.shape, device=state.place) < share
        bits[where] ^= 1
        state.next[name] = bits.view(torch.bfloat16)


def patches_of(state, order):
    """From what is served to the next: as nonzero() finds them, or in any order. Nothing changed: an empty patch."""
    import torch
    from vllm.distributed.weight_transfer.sparse_nccl_engine import SparseWeightPatch

    made = []
    for name, new in state.next.items():
        changed = state.now[name].view(torch.int16).flatten() != new.view(torch.int16).flatten()
        where = changed.nonzero().flatten().to(torch.int32)
        if order == "any":
            where = where[torch.randperm(where.numel(), device=where.device)]
        made.append(SparseWeightPatch(name, where, new.flatten()[where.long()], tuple(new.shape)))
    return made


def send(state, n_chunks, order, label=None):
    """In one shot, or as a framework does it: a start, chunks, a finish. Returns seconds and sent elements."""
    patches = patches_of(state, order)
    began = time.monotonic()
    if n_chunks == 1 and label is None:
        state.engine.send_weights(patches)
    else:
        state.engine.client.start_weight_update()
        for i in range(n_chunks):
            state.engine.send_weight_chunk(patches[i::n_chunks])
        state.engine.client.finish_weight_update(label)
    took = time.monotonic() - began
    state.now = dict(state.next)
    return took, sum(p.indices.numel() for p in patches)


def told_of(state, patches):
    """What the trainer is told of patches that are refused."""
    try:
        state.engine.send_weights(patches)
    except Exception as e:
        return f"{e} {getattr(getattr(e, 'response', None), 'text', '')}"
    return "they were taken"


def send_wrong(state, how):
    """Nothing is left of it on the GPU then."""
    import torch

    patches = patches_of(state, "rising")
    big = max(patches, key=lambda p: p.indices.numel())
    if how == "twice":
        big.indices[0] = big.indices[-1]
    elif how == "outside":
        big.indices[0] = state.next[big.name].numel()
    elif how == "unknown":
        big.name = "no.such.tensor"
    told = told_of(state, patches)
    if how == "unknown":  # it is in its broadcasts, which the server has left
        leave(state)
    if state.place != "cpu":
        torch.cuda.synchronize()
    return told


def send_again(state):
    """Of a trainer that goes on as if nothing had happened; it ends with its group."""
    told = told_of(state, patches_of(state, "rising"))
    leave(state)
    return told


def saved(state, path):
    """What is to be served, as a file."""
    import torch

    named, data = {}, bytearray()
    for name, t in state.next.items():
        raw = t.cpu().view(torch.uint8).numpy().tobytes()
        named[name] = {"dtype": "BF16", "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = world.json.dumps(named).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data)


def made(state, n_tensors, rows, columns):
    """A model of random numbers, which the server serves."""
    import torch

    torch.manual_seed(1)
    state.next = {
        f"model.layers.{i}.weight": torch.randn(rows, columns, device=state.place).to(torch.bfloat16)
        for i in range(n_tensors)
    }
    state.now = dict(state.next)
    return [(n, "bfloat16", [rows, columns]) for n in state.next]
