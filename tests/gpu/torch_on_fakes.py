"""A torch without CUDA in a trainer's process: its CPU tensors are taken for tensors on a GPU, and
what torch would do there is done over tests/fakes. Exports are real ones of the fake driver, with
torch's counters and classes; the bytes that others see are those that lay there when torch last
waited for its GPU. So a test of torch can be tried where there is no GPU.

Only what the trainers of test_dialects_torch.py call is here."""

import ctypes
import types

import nccl_torch
import nccl_world as nccl

import ipc_trainer

TORCH_PREFIX = b"\x02c"  # of a handle: the allocator's version, and that it is of cudaMalloc


class Memory:
    """Copies of exported storages on a fake GPU."""

    def __init__(self, library):
        self.gpus, self.copies = ipc_trainer._Gpus(library), {}

    def _of(self, storage):
        """Where a storage lies there; its own address here is used again when it has gone."""
        from torch.multiprocessing.reductions import StorageWeakRef

        here = storage.data_ptr()
        if here not in self.copies or self.copies[here].ref.expired():
            copy = types.SimpleNamespace(ref=StorageWeakRef(storage), nbytes=storage.nbytes())
            copy.here, copy.at, copy.counters = here, self.gpus.alloc(0, storage.nbytes()), []
            if here in self.copies:
                old = self.copies.pop(here)
                self.copies[("gone", old.at)] = old
            self.copies[here] = copy
        return self.copies[here]

    def renew(self):
        """What torch waits for: all that was written is there."""
        for copy in self.copies.values():
            if not copy.ref.expired():
                self.gpus.write(copy.at, 0, ctypes.string_at(copy.here, copy.nbytes))
        self.gpus.settle()

    def collect(self):
        """As ipc_collect: what has gone is kept until whoever got it has counted it down."""
        for key, copy in list(self.copies.items()):
            if copy.ref.expired() and not any(read() for read in copy.counters):
                self.gpus.free(copy.at)
                del self.copies[key]

    def allocated(self):
        return sum(self.gpus.sizes.values())

    def export(self, tensor):
        """(function, arguments) of reduce_tensor."""
        from torch.multiprocessing import reductions

        storage = tensor.untyped_storage()
        shared = (None, 0, 0, None, 0, None, None)
        if storage.nbytes() > 0:
            copy = self._of(storage)
            _, handle, offset, nbytes, name, slot, event = self.gpus.export(
                copy.at, 0, copy.nbytes, True
            )
            memory = self.gpus.exports[-1][0]
            copy.counters.append(lambda: memory[ipc_trainer.COUNTER_HEAD + 8 * slot])
            shared = (TORCH_PREFIX + handle, nbytes, offset, name, slot, event, True)
            self.renew()
        handle, nbytes, offset, name, slot, event, sync = shared
        return reductions.rebuild_cuda_tensor, (
            type(tensor),
            tensor.size(),
            tensor.stride(),
            tensor.storage_offset(),
            type(tensor._typed_storage()),
            tensor.dtype,
            0,
            handle,
            nbytes,
            offset,
            tensor.requires_grad,
            name,
            slot,
            event,
            sync,
        )


# --- NCCL, in place of what nccl_torch does on a GPU


def _fresh_rank(state):
    if state.rank is not None and state.rank.comm:
        state.rank.leave()
    state.rank, state.pg = nccl.nccl_rank.Rank(state.library, state.gpu), None
    return state.rank


def _join(state, unique_id, world_size):
    state.rank.join(unique_id, 0, world_size)
    state.rank.warm_up()
    return 0.0


def _form_group(state, port, world_size, name):
    """torch's store; of the process group only what it does there, at its first collective."""
    from torch.distributed import distributed_c10d as c10d

    url = f"tcp://127.0.0.1:{port}"
    state.store = next(c10d.rendezvous(url, rank=0, world_size=world_size))[0]
    _fresh_rank(state)
    state.pg = (name, world_size)


def _first_collective(state):
    name, world_size = state.pg
    unique_id = state.rank.mint()
    state.store.set(f"{name}/{name}//cuda//0", unique_id)
    state.rank.join(unique_id, 0, world_size)


def _broadcast(state, tensor):
    if state.pg is not None and not state.rank.comm:
        _first_collective(state)
    raw = nccl_torch.world.raw_of(tensor)
    if raw.numel() > 0:  # NCCL drops broadcasts of nothing
        state.rank.send(ctypes.string_at(raw.data_ptr(), raw.numel()), 0)


def be(state, cuda, library):
    """This process is such a trainer from now on, as nccl_torch.be_torch makes it one on a GPU. A
    worker is told functions by name, so it finds those that are put in their place here."""
    import torch
    from torch.multiprocessing import reductions

    state.index, state.library, state.pg, state.rank = 0, library, None, None
    memory = Memory(cuda)
    state.gpu = nccl.nccl_rank.Gpu(cuda)
    uuid = memory.gpus.uuid(0)
    reductions.reduce_tensor = memory.export
    reductions.init_reductions()
    torch.cuda.get_device_properties = lambda _=None: types.SimpleNamespace(uuid=uuid)
    torch.cuda.synchronize = lambda _=None: memory.renew()
    torch.cuda.ipc_collect = memory.collect
    torch.cuda.memory_allocated = torch.cuda.memory_reserved = lambda _=None: memory.allocated()
    torch.distributed.destroy_process_group = lambda _: state.rank.leave()
    nccl_torch.place = lambda _: "cpu"
    nccl_torch.settle = lambda _state, _patience_s=0: None
    nccl_torch._fresh_rank, nccl_torch.join = _fresh_rank, _join
    nccl_torch.form_group, nccl_torch.broadcast = _form_group, _broadcast
    return torch.__version__
