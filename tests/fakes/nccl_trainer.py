"""A trainer with an NCCL group of its own: rank 0, in a process that can be killed, over libfakenccl
and libfakecuda; with a TCPStore in it, where its form needs one."""

import os
import pickle
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "libnccl")]

import forked  # noqa: E402
import nccl_rank  # noqa: E402
import tcpstore  # noqa: E402

ANSWER_S = 60  # longest that a trainer may take for anything that must end
VLLM_MODULE = "vllm.distributed.device_communicators.pynccl_wrapper"


class TrainerError(RuntimeError):
    pass


def vllm_pickle(unique_id):
    """What StatelessProcessGroup.broadcast_obj puts into the store."""
    parts = VLLM_MODULE.split(".")
    for i in range(len(parts)):
        name = ".".join(parts[:i + 1])
        module = sys.modules.setdefault(name, types.ModuleType(name))
    kind = type("ncclUniqueId", (nccl_rank.UniqueId,), {"__module__": VLLM_MODULE})
    module.ncclUniqueId = kind
    return pickle.dumps(kind.from_buffer_copy(unique_id), 4)


class _Process:
    """What runs in the process; each method is a command."""

    def __init__(self, nccl, cuda):
        self.rank = nccl_rank.Rank(nccl, nccl_rank.Gpu(cuda))
        self.store = None

    def mint(self):
        return self.rank.mint()

    def open_store(self):
        """The trainer counts itself through a client of its own."""
        self.store = tcpstore.Store()
        self.store.add("init/", 1)
        return self.store.port

    def publish(self, key, value):
        self.store.set(key, value)

    def counted(self):
        return int(self.store.get("init/"))

    def await_count(self, n):
        if not self.store.await_count(n, ANSWER_S):
            raise TrainerError(f"only {self.counted()} of {n} ranks were counted in")

    def join(self, unique_id, world_size, warm_up):
        self.rank.join(unique_id, 0, world_size)
        if warm_up:
            self.rank.warm_up()

    def stateless(self, world_size):
        """As vLLM's trainer_init: the id into the store, when all are counted in; warmed up."""
        self.await_count(world_size)
        unique_id = self.mint()
        self.publish("/broadcast_from/0/0", vllm_pickle(unique_id))
        self.join(unique_id, world_size, True)

    def first_collective(self, group_name, world_size):
        """As a torch process group before its first collective."""
        unique_id = self.mint()
        self.publish(f"/{group_name}/{group_name}//cuda//0", unique_id)
        self.join(unique_id, world_size, False)

    def send(self, blobs):
        for blob in blobs:
            if blob:  # NCCL drops broadcasts of nothing
                self.rank.send(blob, 0)

    def send_watched(self, blobs):
        for blob in blobs:
            self.rank.send_watched(blob, 0)

    def leave(self):
        self.rank.leave()


def _serve(connection, nccl, cuda, environment):
    os.environ.update(environment)
    process = _Process(nccl, cuda)
    connection.send((None, os.getpid()))
    while True:
        try:
            name, args = connection.recv()
        except EOFError:
            os._exit(0)  # also from within whatever hangs
        try:
            connection.send((None, getattr(process, name)(*args)))
        except Exception as e:  # reported to the caller
            connection.send((f"{type(e).__name__}: {e}", None))


class Trainer:
    """The process. `environment` is that of the fakes."""

    def __init__(self, nccl, cuda, **environment):
        context = forked.context()
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, nccl, cuda, environment),
                                       daemon=True)
        self.process.start()
        theirs.close()
        self.pid = self.result()

    def begin(self, name, *args):
        self.connection.send((name, args))

    def result(self):
        if not self.connection.poll(ANSWER_S):
            raise TrainerError("the trainer does not answer")
        try:
            wrong, value = self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise TrainerError("the trainer died") from None
        if wrong is not None:
            raise TrainerError(wrong)
        return value

    def ask(self, name, *args):
        self.begin(name, *args)
        return self.result()

    def await_death(self):
        self.process.join(ANSWER_S)
        if self.process.is_alive():
            raise TrainerError("the trainer lives")

    def kill(self):
        self.process.kill()
        self.process.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.connection.close()
