"""checkpoint-engine's ParameterServer as a server of weights meets it (0.4.2: ps.py, api.py): REQ
sockets that it binds, the pickles that it sends through them, and its two ways to ask. Real ZeroMQ;
the GPU memory is a trainer's of ipc_trainer.py, and torch's names are its stand-ins'."""

import pickle

import zmq

from ipc_trainer import _MODULES, _arguments, _as_torch

ALIGN = 256  # of tensors in a buffer
REPLY_S = 60  # longest that a reply may take
STEP = {}  # as ps.py counts its addresses


def dumps(value, protocol=4):
    """As zmq's send_pyobj."""
    with _as_torch():
        return pickle.dumps(value, protocol)


def handle(export, **arguments):
    """reduce_tensor(buffer). @arguments  {index: value} of the fifteen, in place of the right ones"""
    made = list(_arguments(export))
    for index, value in arguments.items():
        made[int(index[1:])] = value
    return _MODULES["torch.multiprocessing.reductions"].rebuild_cuda_tensor, tuple(made)


def entry(name, shape, dtype, offset):
    torch = _MODULES["torch"]
    return {"name": name, "dtype": getattr(torch, dtype), "shape": torch.Size(shape),
            "offset": offset}


def place(specs, start=0):
    """[(spec, offset)], as _to_named_tensor lays them out; and where the last one ends."""
    out, at = [], start
    for s in specs:
        out.append((s, at))
        at += -(-s.nbytes // ALIGN) * ALIGN
    return out, at


class Rank:
    """One of the trainer's ranks: a GPU's buffer of two halves, and the socket of its UUID."""

    context = zmq.Context()

    def __init__(self, trainer, device, half, bind=True, address=None):
        self.trainer, self.half = trainer, half
        self.at = trainer.alloc(device, 2 * half)
        self.export = trainer.export(self.at, 0, 2 * half)
        self.key = f"GPU-{self.export.uuid}"
        n = STEP[self.key] = STEP.get(self.key, -1) + 1
        self.address = address or f"ipc://@checkpoint-engine-{self.key}-{trainer.pid}-{n}.sock"
        self.socket = self.context.socket(zmq.REQ)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, REPLY_S * 1000)
        self.socket.setsockopt(zmq.SNDTIMEO, REPLY_S * 1000)
        if bind:
            self.bind()

    def bind(self):
        self.socket.bind(self.address)

    def send(self, value, protocol=4):
        self.socket.send(dumps(value, protocol))

    def fill(self, placed, data):
        """Broadcast: the bytes are there when the list is sent."""
        for s, at in placed:
            self.trainer.write(self.at, at, data[s.name])
        self.trainer.settle()

    def refill(self, which, content):
        """What the next step does with a half as soon as its list has been replied to."""
        self.trainer.write(self.at, which * self.half, content)
        self.trainer.settle()

    def reply(self):
        return self.socket.recv().decode()

    def fail(self):
        self.send(RuntimeError("Some workers failed to update weights"))

    def close(self):
        self.socket.close()


def as_list(placed, torch_names):
    return [entry(s.name, s.shape, torch_names[s.dtype], at) for s, at in placed]


def vllm_body(ranks, timeout=60.0):
    """api.py, request_inference_to_update."""
    return "/collective_rpc", {"method": "update_weights_from_ipc",
                               "args": [{r.key: r.address for r in ranks}], "timeout": timeout}


def sglang_body(ranks, **members):
    return "/update_weights_from_ipc", {"zmq_handles": {r.key: r.address for r in ranks},
                                        "flush_cache": True, **members}
