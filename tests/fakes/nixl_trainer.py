"""The side of a trainer whose memory is read through the double of NIXL (tests/fakes/libnixl/): its agents, and the
shards that they have. Its memory is a file that it says is mapped at an address; the process that has it is a `sleep`,
so that a test can stop or kill it."""
import atexit
import base64
import itertools
import os
import random
import subprocess

import baton

ADDRESS = 0x7F0000000000
DRAM, VRAM = 0, 1
_numbers = itertools.count()


class Agent:
    """One process of the trainer, with one registered range."""

    def __init__(self, folder, nbytes, mem=DRAM, device=0):
        number = next(_numbers)
        self.name = f"trainer-{os.getpid()}-{number}"
        self.path = os.path.join(folder, self.name)
        self.mem, self.device, self.addr, self.nbytes, self.used = mem, device, ADDRESS + (number << 34), nbytes, 0
        self.file = open(self.path, "w+b", buffering=0)
        self.file.truncate(nbytes)
        self.process = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        atexit.register(self.process.kill)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.file.close()
        os.unlink(self.path)

    def put(self, data):
        """The address at which the bytes are from now on."""
        at, self.used = self.used, self.used + len(data)
        assert self.used <= self.nbytes
        os.pwrite(self.file.fileno(), data, at)
        return self.addr + at

    def json(self, **more):
        blob = f"NIXLDOUBLE\n{self.name}\n{self.process.pid}\n{self.mem} {self.device} {self.addr} {self.nbytes} {self.path}\n"
        return {"name": self.name, "metadata": base64.b64encode(blob.encode()).decode(), **more}


def flat_shards(agents, tensor, n, rng):
    """`n` ranges of its elements, each in the memory of one of the agents, in any order."""
    size = tensor.nbytes // max(tensor.numel, 1)
    cuts = sorted(rng.sample(range(1, tensor.numel), min(n - 1, tensor.numel - 1))) if tensor.numel > 1 else []
    shards = []
    for begin, end in itertools.pairwise([0, *cuts, tensor.numel]) if tensor.numel else []:
        agent = rng.randrange(len(agents))
        shards.append({"agent": agent, "mem": "DRAM", "device": 0, "offset": begin, "numel": end - begin,
                       "addr": agents[agent].put(bytes(tensor.data[begin * size:end * size]))})
    rng.shuffle(shards)
    return shards


def update_of(agents, tensors, n_shards=1, seed=1, **members):
    """The body of an update whose tensors are in the agents' memory."""
    rng = random.Random(seed)
    for agent in agents:
        agent.used = 0
    return {"transport": "nixl", "names": list(tensors), "dtypes": [t.dtype for t in tensors.values()],
            "shapes": [list(t.shape) for t in tensors.values()],
            "checksums": [baton.tensors.checksum(t.data) for t in tensors.values()],
            "agents": [agent.json() for agent in agents],
            "shards": [flat_shards(agents, t, n_shards, rng) for t in tensors.values()], **members}
