"""What the trainers of test_dialects_torch.py do in their own process, with torch on GPU 0: they
hold a checkpoint, and make of it what SkyRL, vLLM's examples, SGLang, slime, verl and prime-rl
send."""

import base64
import contextlib
import dataclasses
import io
import os
import sys
import types

import gpu_world as world
import nccl_torch
import test_ipc_torch as ipc

from sglang_pickles import BUCKET, LOCAL, OLD_PATCH, PATCH  # of tests/fakes, by nccl_world

DEVICE = 6  # among the arguments of rebuild_cuda_tensor
TIED = ("lm_head.weight", "model.embed_tokens.weight")


def be(state, fakes, library):
    """@fakes  the CUDA library of a trainer without a GPU, or None"""
    state.kept, state.exports, state.bucket, state.loaded = [], [], None, {}
    if fakes is None:
        return nccl_torch.be_torch(state, library)
    import torch_on_fakes

    return torch_on_fakes.be(state, fakes, library)


# --- weights


def _columns(state):
    return [(n, world.dtype_name(t), list(t.shape)) for n, t in state.named]


def load(state, step, nbytes_max, tied=False):
    """A checkpoint, cut into chunks; of a tied model, both names, if asked for. Returns what it
    consists of, and the number of chunks."""
    from safetensors.torch import load_file

    if step not in state.loaded:
        path = ipc.CHECKPOINTS / f"{step}.safetensors"
        state.loaded[step] = load_file(path, device=nccl_torch.place(state))
    state.named = list(state.loaded[step].items())
    if tied:
        state.named.append((TIED[0], state.loaded[step][TIED[1]]))
    state.chunks = world.cut(state.named, nbytes_max)
    return _columns(state), len(state.chunks)


def make(state, specs, seed, nbytes_max):
    """Tensors of those dtypes and shapes, whose bytes everybody can make from the seed."""
    nccl_torch.make(state, specs, seed)
    state.chunks = world.cut(state.named, nbytes_max)
    return len(state.chunks)


def save(state, folder):
    """As a trainer writes its directory of a step."""
    from safetensors.torch import save_file

    os.makedirs(folder)
    save_file(dict(state.named), os.path.join(folder, "model.safetensors"))


def memory(_state):
    import torch

    torch.cuda.synchronize(0)
    torch.cuda.ipc_collect()
    return {"allocated": torch.cuda.memory_allocated(0), "reserved": torch.cuda.memory_reserved(0)}


def shrink(state):
    """Nothing is kept for later."""
    import torch

    state.loaded, state.named, state.chunks = {}, [], []
    let_go(state)
    torch.cuda.empty_cache()


# --- CUDA IPC


def let_go(state):
    """Of what was sent, since it was answered. Returns how many of the exports are still held."""
    import torch

    left = [world.counter(args) for args in state.exports]
    state.kept, state.exports, state.bucket = [], [], None
    torch.cuda.ipc_collect()
    return sum(1 for n in left if n)


def skyrl_chunk(state, i):
    """A fresh packed tensor, sizes in elements."""
    body, args, packed = world.skyrl_chunk(state.chunks[i])
    state.kept.append(packed)
    state.exports.append(args)
    return body


def vllm_list(state, i, pair):
    """An export for each tensor: with torch's function, or the arguments alone."""
    body, exports, copies = world.vllm_list_chunk(state.chunks[i], pair)
    state.kept.append(copies)
    state.exports += exports
    return body


def vllm_packed(state, i):
    """One buffer of bytes, exported once and refilled."""
    import torch

    if state.bucket is None:
        most = max(sum(world.raw_of(t).numel() for _, t in c) for c in state.chunks)
        place = nccl_torch.place(state)
        state.bucket = torch.empty(most, dtype=torch.uint8, device=place)
        state.bucket_args = world.export(state.bucket)[1]
        state.exports.append(state.bucket_args)
    world.pack(state.chunks[i], state.bucket)
    torch.cuda.synchronize(0)
    return dict(world.vllm_packed_body(state.chunks[i], state.bucket_args, 0), packed=True)


# --- SGLang's pickles, of classes that bear its names


@dataclasses.dataclass
class FlattenedTensorMetadata:
    name: str
    shape: object
    dtype: object
    start_idx: int
    end_idx: int
    numel: int


@dataclasses.dataclass
class LocalSerializedTensor:
    values: list


def _rebuild_cuda_tensor_modified(*_):
    raise AssertionError("a pickle is read, never executed")


def _found_in(module, made):
    """pickle looks for it there."""
    parts = module.split(".")
    for n in range(1, len(parts) + 1):
        name = ".".join(parts[:n])
        sys.modules.setdefault(name, types.ModuleType(name))
    made.__module__ = module
    setattr(sys.modules[module], made.__name__, made)


@contextlib.contextmanager
def _reductions(state, module):
    """torch's, patched as SGLang does it: a GPU is told by its UUID. @module None: not patched"""
    from torch.multiprocessing import reductions

    original = reductions.reduce_tensor, reductions.rebuild_cuda_tensor

    def reduce_tensor(tensor):
        function, args = original[0](tensor)
        state.exports.append(args)
        if module is not None:
            args = (*args[:DEVICE], world.uuid_of(args[DEVICE]), *args[DEVICE + 1 :])
        return function, args

    reductions.reduce_tensor = reduce_tensor
    if module is not None:
        _found_in(module, _rebuild_cuda_tensor_modified)
        reductions.rebuild_cuda_tensor = _rebuild_cuda_tensor_modified
    reductions.init_reductions()
    try:
        yield
    finally:
        reductions.reduce_tensor, reductions.rebuild_cuda_tensor = original
        reductions.init_reductions()


def _dumps(value):
    """As its MultiprocessingSerializer, which takes what torch has registered there."""
    from multiprocessing.reduction import ForkingPickler

    out = io.BytesIO()
    ForkingPickler(out).dump(value)
    return out.getvalue()


def _bucket(state, chunk, in_bytes):
    """As FlattenedTensorBucket: back to back, counted in bytes; once in elements of one dtype."""
    import torch

    flat = [world.raw_of(t) if in_bytes else t.flatten() for _, t in chunk]
    metadata, at = [], 0
    for (name, t), part in zip(chunk, flat):
        end = at + part.numel()
        metadata.append(FlattenedTensorMetadata(name, t.shape, t.dtype, at, end, part.numel()))
        at = end
    state.kept.append(torch.cat(flat))
    return {"flattened_tensor": state.kept[-1], "metadata": metadata}


def _value(state, chunk, form):
    if form in ("bucket", "elements"):
        return _bucket(state, chunk, form == "bucket")
    copies = {id(t): t.detach().clone() for _, t in chunk}
    named = [(n, copies[id(t)]) for n, t in chunk]  # of a tied one, one under two names
    state.kept.append(named)
    if form == "verl":
        return [(n, LocalSerializedTensor(values=[_dumps(t)])) for n, t in named]
    return named


def sglang(state, i, form):
    """One string of serialized_named_tensors. @form  bucket: slime's; elements: its older; verl;
    list; index: the list, by a torch that nobody patched"""
    import torch

    _found_in(BUCKET, FlattenedTensorMetadata)
    _found_in(LOCAL, LocalSerializedTensor)
    module = {"elements": OLD_PATCH, "index": None}.get(form, PATCH)
    with _reductions(state, module):
        data = _dumps(_value(state, state.chunks[i], form))
    torch.cuda.synchronize(0)
    return base64.b64encode(data).decode()


# --- NCCL


def send_packed(state, cuts, first=0):
    """Broadcasts of whole tensors, from number `first` on."""
    whole = state.named
    state.named = whole[first:]
    try:
        nccl_torch.send_packed(state, cuts)
    finally:
        state.named = whole


def send_each(state, first=0, last=None):
    for _, tensor in state.named[first:last]:
        nccl_torch.broadcast(state, tensor)
        nccl_torch.settle(state)


def leave_group(state):
    """As slime does it beside the servers' leaving."""
    import torch

    torch.distributed.destroy_process_group(state.pg)
    state.pg = None
